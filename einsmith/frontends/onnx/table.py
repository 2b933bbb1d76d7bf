"""The table of ONNX's operators: names as in the standard, with their domain in front where it is not the default one.

An operator here is a function of (call, *inputs): the `Call` has attributes, versions and element types, inputs come as
traced tensors, None where one is left out. Results are those of the standard: shapes, types; derivatives are derived
from the formula.
"""

from __future__ import annotations

from einsmith.frontends.graph import OperatorTable

TABLE = OperatorTable()
enter, onnx = TABLE.enter, TABLE.operator

LEAST, GREATEST = 7, 28
"""The operator sets of the default domain whose operators are here."""
DOMAINS = {"ai.onnx.ml": (1, 5), "ai.onnx.preview": (1, 1), "ai.onnx.preview.training": (1, 1), "com.microsoft": (1, 1)}
"""Other domains, and their operator sets; com.microsoft is onnxruntime's own, of which little is here."""
