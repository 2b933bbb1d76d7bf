"""Operators that are functions of `einsmith.functional` with the same attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import enter
from einsmith.ops.operator import OperatorRow
from einsmith.ops.table import OPERATORS
from einsmith.tracing.builder import Value

FAMILIES = {"elementwise": "pointwise", "inverse": "pointwise", "activation": "activations"}
"""Families of the rows of the table -> families of ONNX's operators."""


def _entry(row: OperatorRow) -> Callable[..., Any]:
    """Return ONNX's form of an operator."""
    names = {setting: row.attributes.get(setting, setting) for setting in row.settings}

    def run(n: NodeCall, *inputs: Value) -> Value:
        return row.call(*inputs, **{s: n.attr(name) for s, name in names.items() if n.attr(name) is not None})

    return run


for _row in OPERATORS.values():
    if _row.onnx:
        enter(_row.onnx, _row.formula, _entry(_row), FAMILIES[_row.family])
