"""Find names of the module `torch` for programs that import Einsmith in its place: `import einsmith as torch`."""

from __future__ import annotations

from difflib import get_close_matches
from math import e, inf, nan, pi
from typing import Any

from einsmith import ops
from einsmith.base.dtypes import DType
from einsmith.base.errors import UnknownAttributeError
from einsmith.lang.builder import Value
from einsmith.lang.torch_types import TYPES, Device, finfo

NAMES: dict[str, Any] = {
    **TYPES, "Size": tuple, "Tensor": Value, "device": Device, "dtype": DType, "e": e, "finfo": finfo, "inf": inf,
    "nan": nan, "pi": pi, "tensor": ops.as_tensor,
}  # fmt: skip
"""What is no function, by its name."""
_SHAPES = "the shape of the result depends on values, which are not known while a program is traced"
REFUSED = {
    "autograd": "gradients are those of functions: use es.grad, es.vjp or es.jvp",
    "compile": "everything is compiled at its first call; for functions of arrays use es.jit(f)",
    "cuda": "tensors are on the CPU; leave it out",
    "empty": "an uninitialized tensor has no formula: use zeros",
    "enable_grad": "gradients are those of functions: leave it out",
    "from_numpy": "use as_tensor",
    "inference_mode": "gradients are those of functions: leave it out, or use x.detach()",
    "jit": "everything is compiled at its first call; for functions of arrays use es.jit(f)",
    "masked_select": f"{_SHAPES}: use where(mask, x, 0)",
    "no_grad": "gradients are those of functions: leave it out around calls, use x.detach() inside them",
    "nonzero": f"{_SHAPES}: use where(condition, a, b)",
    "unique": f"{_SHAPES}: compute it before the call, with NumPy",
}
"""Names of `torch` that cannot exist here: the reason, and what to use."""


def find(name: str) -> Any:
    """Return the value of a name of `torch`: a function of `einsmith.functional`, an element type or another constant.

    Raises UnknownAttributeError for names that are not there.
    """
    if name in NAMES:
        return NAMES[name]
    if name in ops.__all__:
        return getattr(ops, name)
    hint = f": {REFUSED[name]}" if name in REFUSED else ""
    if not hint and (near := get_close_matches(name, [*NAMES, *ops.__all__], 1)):
        hint = f"; did you mean {near[0]}?"
    raise UnknownAttributeError(f"module 'einsmith' has no attribute {name!r}{hint}")
