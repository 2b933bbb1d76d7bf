"""Core ATen as formulas: `TABLE` has PyTorch's operators by name, `REFUSED` why others are not there."""

from einsmith.frontends.aten import (
    attention,
    contractions,
    factories,
    gradients,
    indexing,
    losses,
    normalization,
    numbers,
    pointwise,
    pooling,
    randomness,
    recurrent,
    reductions,
    sampling,
    views,
)
from einsmith.frontends.aten.graph import OperatorGraph, check, evaluate
from einsmith.frontends.aten.refused import REFUSED
from einsmith.frontends.aten.table import TABLE, Entry

FAMILIES = (
    pointwise, reductions, views, indexing, contractions, normalization, pooling, sampling, attention, recurrent,
    losses, factories, randomness, gradients, numbers,
)  # fmt: skip

__all__ = ["FAMILIES", "REFUSED", "TABLE", "Entry", "OperatorGraph", "check", "evaluate"]
