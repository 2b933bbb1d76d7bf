"""Resolve names of the module `torch` for programs with `import einsmith as torch`."""

from __future__ import annotations

from math import e, inf, nan, pi
from typing import Any

from einsmith import ops
from einsmith.base.dtypes import DType
from einsmith.lang.builder import Value
from einsmith.lang.refused import missing_name
from einsmith.lang.torch_types import TYPES, Device, finfo

NAMES: dict[str, Any] = {
    **TYPES, "Size": tuple, "Tensor": Value, "device": Device, "dtype": DType, "e": e, "finfo": finfo, "inf": inf,
    "nan": nan, "pi": pi, "tensor": ops.as_tensor,
}  # fmt: skip
"""Names other than functions, such as element types, with their values."""


def find(name: str) -> Any:
    """Return the value of a name of `torch`: a function of `einsmith.functional`, an element type or another constant.

    Raises UnknownAttributeError for names that are not there.
    """
    if name in NAMES:
        return NAMES[name]
    if name in ops.__all__:
        return getattr(ops, name)
    raise missing_name("einsmith", ["torch"], name, [*NAMES, *ops.__all__])
