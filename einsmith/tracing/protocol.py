"""Define which objects act as arrays, and reject questions of Python and NumPy that need a traced tensor's value."""

from __future__ import annotations

from typing import Any

from einsmith.base.errors import TraceError


def make_trace_error(what: str, remedy: str) -> TraceError:
    """Return the error for a question that only the running program could answer."""
    return TraceError(f"{what} needs the value of a traced tensor, which exists only when the program runs; {remedy}")


def is_array_like(x: Any) -> bool:
    """Return whether an object gives access to its elements, or represents a traced tensor."""
    return hasattr(x, "__einsmith_value__") or hasattr(x, "__array__") or hasattr(x, "__dlpack__")


class RunTimeOnly:
    """Base of traced tensors. Conversions and protocols that need the value raise TraceError with the remedy."""

    __slots__ = ()

    shape: Any
    dtype: Any

    def __bool__(self) -> bool:
        raise make_trace_error("`if`, `while`, `and` or bool()", "choose with es.where(condition, a, b)")

    def __float__(self) -> float:
        raise make_trace_error("float()", "return the tensor from the traced function, or use .astype('float32')")

    def __int__(self) -> int:
        raise make_trace_error("int()", "return the tensor from the traced function, or use .astype('int32')")

    def __index__(self) -> int:
        raise make_trace_error(
            "an index or a size", "pass it as a static argument, or read it in es.compute: E[ids[t], k]"
        )

    def __complex__(self) -> complex:
        raise make_trace_error("complex()", "complex numbers are not supported")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise make_trace_error("a NumPy function", "use einsmith's function of the same name, such as es.exp")

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        raise make_trace_error("another array library", "use einsmith's functions, or return the tensor first")

    def item(self) -> Any:
        """Raise TraceError: the value is known only when the program runs."""
        raise make_trace_error("item()", "return the tensor from the traced function")

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise make_trace_error(f"np.{func.__name__}", f"use the method of the tensor or es.functional.{func.__name__}")
