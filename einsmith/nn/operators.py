"""Provide the layers without parameters: one for each operator of the table that has a layer's name.

`operators.pyi`, which is made from the table, declares them for type checkers.
"""

from einsmith.nn import activation, embedding, loss, pooling, vision  # noqa: F401  # bases of layers
from einsmith.nn.operator_layer import make_layer
from einsmith.ops.table import OPERATORS

_layers = {row.layer: make_layer(row, __name__) for row in OPERATORS.values() if row.layer}
globals().update(_layers)
__all__ = list(_layers)
