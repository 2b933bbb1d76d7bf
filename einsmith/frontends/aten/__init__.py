"""Core ATen as formulas: `TABLE` has PyTorch's operators by name, `REFUSED` why others are not there."""

from einsmith.frontends.aten import (
    attention,
    contractions,
    counting,
    factories,
    gradients,
    indexing,
    integers,
    linalg,
    losses,
    normalization,
    numbers,
    pointwise,
    pooling,
    randomness,
    recurrent,
    reductions,
    same,  # noqa: F401  # fills the table
    sampling,
    views,
)
from einsmith.frontends.aten.aten_graph import OperatorGraph, check, evaluate
from einsmith.frontends.aten.refused import REFUSED
from einsmith.frontends.aten.table import TABLE
from einsmith.frontends.graph import OperatorEntry

FAMILIES = (
    pointwise, integers, reductions, views, indexing, counting, contractions,
    linalg, normalization, pooling, sampling, attention, recurrent, losses, factories, randomness, gradients, numbers,
)  # fmt: skip

__all__ = ["FAMILIES", "REFUSED", "TABLE", "OperatorEntry", "OperatorGraph", "check", "evaluate"]
