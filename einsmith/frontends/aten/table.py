"""Define the table of ATen's operators: PyTorch's name, `add.Tensor` for aten.add.Tensor, -> function of tensors.

Arguments are those of PyTorch's schema, in its order; tensors are traced tensors, element types are DTypes, and
arguments of placement (device, layout, memory format) are left out. Results have PyTorch's shapes and types;
derivatives are derived from the formula.
"""

from __future__ import annotations

from einsmith.frontends.graph import OperatorTable

__all__ = ["TABLE", "aten", "enter"]

TABLE = OperatorTable()
enter, aten = TABLE.enter, TABLE.operator
