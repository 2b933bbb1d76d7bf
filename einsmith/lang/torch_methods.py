"""Provide PyTorch's methods on traced tensors, for names that NumPy's arrays lack or define otherwise."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from einsmith.base.errors import TraceError, UnknownAttributeError
from einsmith.lang import trace


def _function(name: str) -> Callable[..., Any]:
    """Return the function of tensors of that name, which is defined in a higher layer."""
    if name not in trace.functions:
        raise TraceError(f"the method {name} needs einsmith.ops; `import einsmith` loads it")
    return trace.functions[name]


def _make_method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _function(name)(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"`es.functional.{name}` of this tensor, with the arguments of torch.Tensor.{name}."
    return method


def _make_sequence_method(name: str, keyword: str) -> Callable[..., Any]:
    """Return a method that takes several numbers one by one or as one sequence."""

    def method(self: Any, *operands: Any, **kwargs: Any) -> Any:
        listed = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
        return _function(name)(self, *(() if kwargs and not operands else (tuple(listed),)), **kwargs)

    method.__doc__ = f"`es.functional.{name}` of this tensor; `{keyword}` one by one or as one sequence."
    return method


class TorchMethods:
    """Methods of PyTorch's tensors. `transpose(d0, d1)` is defined by the tensor (`einsmith.lang.builder`)."""

    __slots__ = ()

    flatten, unsqueeze, squeeze = _make_method("flatten"), _make_method("unsqueeze"), _make_method("squeeze")
    expand, chunk, softmax = _make_method("expand"), _make_method("chunk"), _make_method("softmax")
    masked_fill = _make_method("masked_fill")
    permute, view = _make_sequence_method("permute", "dims"), _make_sequence_method("reshape", "shape")

    exchange = _make_method("transpose")

    def split(self, split_size: Any, dim: int = 0) -> Any:
        """Split this tensor as `es.functional.split`: `split_size` is one size, or those of all parts."""
        return _function("split")(self, split_size, dim)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what protocols ask for
            raise UnknownAttributeError(f"a traced tensor has no {name}")
        known = [n for n in dir(type(self)) if not n.startswith("_")]
        near = get_close_matches(name, known, 1)
        hint = f"did you mean .{near[0]}?" if near else f"it has {', '.join(known)}"
        if name in trace.functions:
            hint = f"use es.functional.{name}(x, ...)"
        raise UnknownAttributeError(f"a traced tensor has no attribute {name!r}; {hint}")
