"""The operators, a file a family. Importing them fills the table."""

from einsmith.frontends.onnx.operators import (
    activations,
    arrangement,
    casts,
    contractions,
    control,
    indexing,
    learning,
    normalization,
    pointwise,
    pooling,
    quantized,
    randomness,
    recurrent,
    reductions,
    resizing,
    shapes,
    signal,
    training,
)

FAMILIES = (
    pointwise, activations, casts, reductions, arrangement, shapes, indexing, contractions, normalization, pooling,
    resizing, quantized, recurrent, control, randomness, signal, training, learning,
)  # fmt: skip

__all__ = ["FAMILIES"]
