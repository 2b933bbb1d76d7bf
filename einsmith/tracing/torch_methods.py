"""Provide PyTorch's methods on traced tensors, for names that NumPy's arrays lack or define otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.arguments import show
from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.errors import ArgumentError, KindError, ShapeError, UnknownAttributeError
from einsmith.tracing import trace
from einsmith.tracing.refused import refusal
from einsmith.tracing.torch_types import Device, check_device, is_device

FUNCTIONS = """
abs acos acosh add addmm all amax amin any argsort asin asinh atan atan2 atanh baddbmm bmm broadcast_to ceil chunk clamp
clip cos cosh count_nonzero cummax cummin cumprod cumsum diag diag_embed diagonal digamma div dot eq erf erfc erfinv exp
exp2 expand expm1 flatten flip floor frac gather ge gt hardshrink i0 index_add index_select isfinite isinf isnan le lerp
lgamma log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor
logit logsumexp lt masked_fill matmul maximum median minimum mm movedim mul mv nan_to_num narrow ne neg norm outer pow
prelu reciprocal relu remainder repeat repeat_interleave roll round rsqrt scatter scatter_add select sigmoid sign sin
sinc sinh softmax sort sqrt square squeeze std sub take_along_dim tan tanh tile topk trace tril triu trunc unbind
unflatten unsqueeze var xlogy
""".split()
"""Functions of `einsmith.functional` that are methods with the same arguments after the tensor."""
SYNONYMS = {
    "absolute": "abs", "divide": "div", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
    "moveaxis": "movedim", "multiply": "mul", "negative": "neg", "not_equal": "ne", "subtract": "sub",
    "swapaxes": "transpose", "swapdims": "transpose", "true_divide": "div",
}  # fmt: skip
"""Methods that are functions of another name."""
CASTS = {
    "bfloat16": dt.bf16, "bool": dt.bool_, "byte": dt.u8, "char": dt.i8, "double": dt.f64, "float": dt.f32,
    "half": dt.f16, "int": dt.i32, "long": dt.i64, "short": dt.i16,
}  # fmt: skip
"""Methods that convert to an element type."""


def _make_method(name: str, function: str = "") -> Callable[..., Any]:
    target = function or name

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return trace.function(target)(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"`es.functional.{target}` of this tensor, with the arguments of torch.Tensor.{name}."
    return method


def _make_sequence_method(name: str, keyword: str) -> Callable[..., Any]:
    """Return a method that takes several numbers one by one or as one sequence."""

    def method(self: Any, *operands: Any, **kwargs: Any) -> Any:
        listed = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
        return trace.function(name)(self, *(() if kwargs and not operands else (tuple(listed),)), **kwargs)

    method.__doc__ = f"`es.functional.{name}` of this tensor; `{keyword}` one by one or as one sequence."
    return method


def _make_cast(name: str, dtype: DType) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        return self.astype(dtype)

    method.__name__ = name
    method.__doc__ = f"Return the tensor converted to {dtype.name}."
    return method


def _make_filling(name: str, function: str, filled: bool = False) -> Callable[..., Any]:
    """Return a method that creates a tensor of given extents and of this tensor's type. filled: a number follows."""

    def method(self: Any, *size: Any, dtype: Any = None, device: Any = None) -> Any:
        if filled and len(size) != 2:
            raise KindError(f"{name} takes (size, fill_value), got {len(size)} arguments")
        return trace.function(function)(*size, dtype=self.dtype if dtype is None else dtype, device=device)

    method.__name__ = name
    method.__doc__ = f"`es.functional.{function}` of the given extents, in this tensor's element type."
    return method


class TorchMethods:
    """Methods of PyTorch's tensors.

    The tensor (`tracing.builder`) defines `transpose(d0, d1)`, `size()` and the reductions that NumPy has, too.
    """

    __slots__ = ()

    permute, view = _make_sequence_method("permute", "dims"), _make_sequence_method("reshape", "shape")
    exchange = _make_method("transpose")
    new_zeros, new_ones = _make_filling("new_zeros", "zeros"), _make_filling("new_ones", "ones")
    new_full = _make_filling("new_full", "full", True)

    def split(self, split_size: Any, dim: int = 0) -> Any:
        """Split this tensor as `es.functional.split`: `split_size` is one size, or those of all parts."""
        return trace.function("split")(self, split_size, dim)

    def where(self, condition: Any, other: Any) -> Any:
        """Return this tensor where the condition holds, `other` elsewhere."""
        return trace.function("where")(condition, self, other)

    def unfold(self, dimension: int, size: int, step: int) -> Any:
        """Return the windows of `size` elements along a dimension, `step` apart, as a last dimension."""
        return trace.function("_windows")(self, dimension, size, step)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.ndim

    def numel(self) -> int:
        """Return the number of elements."""
        return int(self.size)

    ndimension, nelement = dim, numel

    def is_floating_point(self) -> bool:
        """Return whether the elements are floats."""
        return self.dtype.is_float

    @property
    def device(self) -> Device:
        """The CPU, where all tensors are."""
        return Device()

    @property
    def mT(self) -> Any:
        """The tensor with its last two dimensions exchanged."""
        if self.ndim < 2:
            raise ShapeError(f"mT needs two dimensions or more, got shape {self.shape}")
        return self.exchange(-2, -1)

    def t(self) -> Any:
        """Return the transposed matrix; vectors and numbers are unchanged."""
        if self.ndim > 2:
            raise ShapeError(f"t() needs at most two dimensions, got shape {self.shape}; use .mT or .transpose(d0, d1)")
        return self.exchange(0, 1) if self.ndim == 2 else self

    def contiguous(self, memory_format: Any = None) -> Any:
        """Return this tensor: tensors have no strides."""
        return self

    def clone(self, *, memory_format: Any = None) -> Any:
        """Return this tensor: tensors are values, which nothing changes in place."""
        return self

    def cpu(self) -> Any:
        """Return this tensor: all tensors are on the CPU."""
        return self

    def detach(self) -> Any:
        """Return this tensor with derivative zero."""
        return self._apply("stop_gradient", self)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Convert to an element type, or to that of another tensor; a device must be the CPU."""
        kwargs = {n: x for n, x in kwargs.items() if n not in ("non_blocking", "copy", "memory_format")}
        if unknown := kwargs.keys() - {"dtype", "device", "other"}:
            raise KindError(f"to takes dtype, device and other by name, not {', '.join(sorted(unknown))}")
        for x in (*(a for a in args if not isinstance(a, bool)), *kwargs.values()):
            if x is None or is_device(x):
                check_device("to", x)
            else:
                return self.astype(_type_of(x))
        return self

    def type_as(self, other: Any) -> Any:
        """Return the tensor converted to the element type of another tensor."""
        return self.astype(_type_of(other))

    def type(self, dtype: Any) -> Any:
        """Return the tensor converted to an element type."""
        return self.astype(dtype)

    def expand_as(self, other: Any) -> Any:
        """Broadcast this tensor to the shape of another one."""
        return trace.function("expand")(self, *_shape_of("expand_as", other))

    def view_as(self, other: Any) -> Any:
        """Return the elements, in row-major order, in the shape of another tensor."""
        return trace.function("reshape")(self, _shape_of("view_as", other))

    reshape_as = view_as

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what protocols ask for
            raise UnknownAttributeError(f"a traced tensor has no {name}")
        known = [n for n in dir(type(self)) if not n.startswith("_")]
        if refused := refusal(["torch.Tensor"], name):
            raise UnknownAttributeError(f"a traced tensor has no attribute {name!r}{refused}")
        if name.endswith("_"):
            base = name.rstrip("_")
            remedy = f"write x = x.{base}(...)" if base in known else "make a new one, as with es.where or es.compute"
            raise UnknownAttributeError(
                f"a traced tensor has no attribute {name!r}: tensors are not changed in place; {remedy}"
            )
        near = get_close_matches(name, known, 1)
        hint = f"did you mean .{near[0]}?" if near else f"it has {', '.join(known)}"
        with suppress(AttributeError):
            trace.function(name)
            hint = f"use es.functional.{name}(x, ...)"
        raise UnknownAttributeError(f"a traced tensor has no attribute {name!r}; {hint}")


for _name in FUNCTIONS:
    setattr(TorchMethods, _name, _make_method(_name))
for _name, _target in SYNONYMS.items():
    setattr(TorchMethods, _name, _make_method(_name, _target))
for _name, _dtype in CASTS.items():
    setattr(TorchMethods, _name, _make_cast(_name, _dtype))


def _type_of(x: Any) -> DType:
    """Return the element type that `x` is or has."""
    own = getattr(x, "dtype", x)
    return own if isinstance(own, DType) else dtype_of(own)


def _shape_of(name: str, x: Any) -> tuple[int, ...]:
    if getattr(x, "shape", None) is None:
        raise ArgumentError(f"{name}: other={show(x)} must be a tensor")
    return tuple(x.shape)
