"""Implement the calling rule of all functions: given arrays, trace, compile and run; given traced tensors, extend the
trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from einsmith.base.arguments import check_arguments
from einsmith.base.caches import Bound, Cache
from einsmith.base.errors import ArgumentError
from einsmith.ir import labels
from einsmith.tracing import trace
from einsmith.tracing.builder import traced_tensors
from einsmith.tracing.calls import in_trace

F = TypeVar("F", bound=Callable[..., Any])


def is_array(x: Any) -> bool:
    """Return whether `x` is an argument of the compiled program. Python's and NumPy's scalars are settings instead."""
    return not isinstance(x, np.generic) and (hasattr(x, "__array__") or hasattr(x, "__dlpack__"))


class _Hole:
    """The placeholder of an array in the frozen arguments of a `PartialCall`."""

    code_parts = ()

    def __repr__(self) -> str:
        return "array"


_HOLE = _Hole()


def freeze(x: Any, arrays: list[Any]) -> Any:
    """Return `x` as a hashable structure with placeholders for its arrays, which are appended to `arrays` in order."""
    if hasattr(x, "__einsmith_value__"):
        arrays.append(x.numpy())  # a parameter, whose values are an input like any other
        return _HOLE
    if is_array(x):
        arrays.append(x)
        return _HOLE
    if isinstance(x, Mapping):
        return "dict", tuple((k, freeze(v, arrays)) for k, v in x.items())
    if isinstance(x, (tuple, list)):
        return "tuple" if isinstance(x, tuple) else "list", tuple(freeze(v, arrays) for v in x)
    # 1, 1.0 and True are equal, but are different settings.
    x = x.item() if isinstance(x, np.generic) else x
    return "value", type(x), x


def _thaw(x: Any, arrays: Iterator[Any]) -> Any:
    if x is _HOLE:
        return next(arrays)
    if x[0] == "value":
        return x[2]
    if x[0] == "dict":
        return {k: _thaw(v, arrays) for k, v in x[1]}
    items = [_thaw(v, arrays) for v in x[1]]
    return tuple(items) if x[0] == "tuple" else items


class PartialCall:
    """A function with every argument fixed but its arrays."""

    code_parts = ("function", "structure")

    def __init__(self, function: Callable[..., Any], structure: Any):
        self.function, self.structure = function, structure
        self.__name__ = getattr(function, "__name__", "function")

    @property
    def argument_names(self) -> list[str]:
        """Return the name of each array for messages: that of the argument which it is, or is part of."""
        named = _iterate_arguments(self.function, *self.structure[1])
        return [f"{self.__name__}: {name!r}" for name, x in named for _ in range(_holes(x))]

    def __call__(self, *arrays: Any) -> Any:
        args, kwargs = _thaw(self.structure, iter(arrays))
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return self.__name__


_CALLS: Cache[tuple, PartialCall] = Cache(Bound("calls of functions of tensors", 1024))  # each call has programs


def _iterate_arguments(function: Callable[..., Any], args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, frozen structure) of each argument."""
    known = [p.name for p in signature(function).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    for n, x in enumerate(args[1]):
        yield known[n] if n < len(known) else f"argument {n}", x
    yield from kwargs[1]


def _holes(x: Any) -> int:
    """Return the number of arrays in a frozen structure."""
    if x is _HOLE:
        return 1
    return 0 if x[0] == "value" else sum(_holes(v[1] if x[0] == "dict" else v) for v in x[1])


def cached_call(function: Callable[..., Any], structure: Any) -> PartialCall:
    """Return the cached call of a function for a frozen structure of arguments."""
    key = function, structure
    try:
        return _CALLS.get(key) or _CALLS.setdefault(key, PartialCall(function, structure))
    except TypeError:
        pass
    for name, x in _iterate_arguments(function, *structure[1]):
        try:
            hash(x)
        except TypeError:
            raise ArgumentError(
                f"{function.__name__}: {name!r} is or contains a value that is neither an array nor a number and "
                "cannot be hashed"
            ) from None
    raise AssertionError(structure)


def recorded(function: F) -> F:
    """Make a function of traced tensors record its calls, as functions of `einsmith.ops` do (`trace.Trace.calls`)."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        trace.record_call(function, args, kwargs, out)
        return out

    return call  # type: ignore[return-value]


def accept_arrays(function: F) -> F:
    """Make a function of traced tensors callable on arrays as well. Every other argument is static, and checked by its
    annotation."""
    function = check_arguments(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if in_trace(args, kwargs):
            under_way = trace.current_trace()
            if under_way is None:
                return function(*args, **kwargs)
            with trace.name_scope(under_way, function.__name__):
                out = function(*args, **kwargs)
            if labels.is_recorded():
                origin = labels.Label(function=under_way.function or function.__name__)
                labels.note(traced_tensors(out), origin, traced_tensors((args, kwargs)))
            trace.record_call(function, args, kwargs, out)
            return out
        arrays: list[Any] = []
        structure = freeze((args, kwargs), arrays)
        return trace.run_arrays(cached_call(function, structure), tuple(arrays), {})

    return call  # type: ignore[return-value]
