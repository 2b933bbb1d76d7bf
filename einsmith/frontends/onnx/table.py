"""Define the table of ONNX's operators: names as in the standard, prefixed with the domain if it is not the default.

An operator is a function of traced tensors and settings (`onnx.binding`). Results get the standard's types; derivatives
are derived from the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith.frontends.graph import OperatorTable
from einsmith.frontends.onnx.binding import bind


class OnnxTable(OperatorTable):
    """A table of operators whose functions are bound to nodes."""

    def enter(
        self, names: str, formula: str, run: Callable[..., Any], family: str | None = None, static: Sequence[int] = ()
    ) -> None:
        """Add an operator under each of `names`. static: operands whose values must be known, besides those that the
        function's annotations say."""
        call, known = bind(run)
        super().enter(names, formula, call, family or run.__module__.rpartition(".")[2], (*static, *known))


TABLE = OnnxTable()
enter, onnx = TABLE.enter, TABLE.operator

LEAST, GREATEST = 7, 28
"""The supported operator sets of the default domain."""
DOMAINS = {"ai.onnx.ml": (1, 5), "ai.onnx.preview": (1, 1), "ai.onnx.preview.training": (1, 1), "com.microsoft": (1, 1)}
"""Other domains -> their supported operator sets; of com.microsoft, onnxruntime's own, few operators exist here."""
