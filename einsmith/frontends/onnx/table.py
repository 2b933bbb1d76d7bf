"""Define the table of ONNX's operators: names as in the standard, prefixed with the domain if it is not the default.

An operator is a function of (call, *inputs): the `NodeCall` has attributes, versions and element types; inputs are
traced tensors, None if left out. Results have the standard's shapes and types; derivatives are derived from the
formula.
"""

from __future__ import annotations

from einsmith.frontends.graph import OperatorTable

TABLE = OperatorTable()
enter, onnx = TABLE.enter, TABLE.operator

LEAST, GREATEST = 7, 28
"""The supported operator sets of the default domain."""
DOMAINS = {"ai.onnx.ml": (1, 5), "ai.onnx.preview": (1, 1), "ai.onnx.preview.training": (1, 1), "com.microsoft": (1, 1)}
"""Other domains -> their supported operator sets; of com.microsoft, onnxruntime's own, few operators exist here."""
