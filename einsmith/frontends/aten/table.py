"""The table of operators: PyTorch's names, `add.Tensor` for aten.add.Tensor, with what each of them is here.

Arguments are those of PyTorch's schema, in its order; tensors come as traced tensors, element types as DTypes, and what
says where a tensor lies (device, layout, memory format) is left out. Results are those of PyTorch: shapes, types, and
derivatives, which are derived from the formula.
"""

from __future__ import annotations

from einsmith.frontends.graph import OperatorTable

__all__ = ["TABLE", "aten", "enter"]

TABLE = OperatorTable()
enter, aten = TABLE.enter, TABLE.operator
