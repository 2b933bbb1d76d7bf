"""Resolve names of the module `torch` for programs with `import einsmith as torch`."""

from __future__ import annotations

from math import e, inf, nan, pi
from typing import Any

from einsmith.base.dtypes import DType
from einsmith.ops import operator
from einsmith.tracing.builder import Value
from einsmith.tracing.refused import missing_name
from einsmith.tracing.torch_types import TYPES, Device, finfo

NAMES: dict[str, Any] = {
    **TYPES, "Size": tuple, "Tensor": Value, "device": Device, "dtype": DType, "e": e, "finfo": finfo, "inf": inf,
    "nan": nan, "pi": pi,
}  # fmt: skip
"""Names other than functions, such as element types, with their values."""


def find(name: str) -> Any:
    """Return the value of a name of `torch`: a function of `einsmith.functional`, an element type or another constant.

    Raises UnknownAttributeError for names that are not there.
    """
    if name in NAMES:
        return NAMES[name]
    try:
        return operator.find("as_tensor" if name == "tensor" else name)
    except AttributeError:
        raise missing_name("einsmith", ["torch"], name, [*NAMES, "tensor", *operator.all_operators()]) from None
