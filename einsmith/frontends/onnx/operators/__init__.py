"""Fill the table of operators on import, one file for each family."""

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
    same,  # noqa: F401  # fills the table
    shapes,
    signal,
    training,
)

FAMILIES = (
    pointwise, activations, casts, reductions, arrangement, shapes, indexing, contractions, normalization,
    pooling, resizing, quantized, recurrent, control, randomness, signal, training, learning,
)  # fmt: skip

__all__ = ["FAMILIES"]
