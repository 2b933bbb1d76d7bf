"""Identify Python functions by their definitions, equal in every process, for the keys of caches on disk."""

from __future__ import annotations

import dis
import functools
import hashlib
import types
from typing import Any

import numpy as np

from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


def identify(f: Any, version: str = "") -> str:
    """Return a digest (16 hex digits) of a function's definition: its code, defaults, and the values that it captures.

    Functions of the same package that it calls are part of its definition; those of other packages are named.

    Args:
        f: a function, a text, or a tuple of them.
        version: identifies the definition instead of its code.

    Raises:
        ArgumentError: the function reads an object that has no such identity.
    """
    content = repr(version) if version else repr(_describe(f, _package(f), {}))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _package(x: Any) -> str:
    return str(getattr(x, "__module__", "") or "").partition(".")[0]


def _describe(x: Any, package: str, seen: dict[int, int]) -> Any:
    """Return nested tuples of texts and numbers that define a value."""
    if isinstance(x, _PLAIN):
        return (type(x).__name__, repr(x))
    if id(x) in seen:
        return ("seen", seen[id(x)])
    if hasattr(x, "__einsmith_identity__"):
        return x.__einsmith_identity__
    if isinstance(x, np.ufunc):
        return ("ufunc", x.__name__)
    if isinstance(x, (np.ndarray, np.generic)):
        return ("array", str(x.dtype), x.shape, hashlib.blake2b(x.tobytes(), digest_size=16).hexdigest())
    if isinstance(x, DType):
        return ("type", x.name)
    if isinstance(x, types.ModuleType):
        return ("module", x.__name__)
    if isinstance(x, (type, types.BuiltinFunctionType, np.dtype)):
        return ("name", _package(x), getattr(x, "__qualname__", str(x)))
    seen[id(x)] = len(seen)
    if isinstance(x, (tuple, list)):
        return (type(x).__name__, *(_describe(v, package, seen) for v in x))
    if isinstance(x, dict):
        return ("dict", *((_describe(k, package, seen), _describe(v, package, seen)) for k, v in x.items()))
    if isinstance(x, functools.partial):
        return ("partial", *(_describe(v, package, seen) for v in (x.func, x.args, x.keywords)))
    if isinstance(x, np.vectorize):
        return ("vectorize", _describe(x.pyfunc, package, seen))
    if isinstance(x, types.MethodType):
        return ("method", _describe(x.__func__, package, seen), _describe(x.__self__, package, seen))
    if isinstance(x, types.CodeType):
        return ("code", code_text(x))
    if isinstance(x, types.FunctionType):
        if _package(x) != package:
            return ("name", x.__module__, x.__qualname__)
        cells = [c.cell_contents for c in x.__closure__ or ()]
        read = [x.__globals__[n] for n in _globals_of(x.__code__) if n in x.__globals__]
        parts = (x.__code__, x.__defaults__, x.__kwdefaults__, cells, read)
        return ("function", *(_describe(v, package, seen) for v in parts))
    raise ArgumentError(
        f"a function reads an object of {type(x).__module__}.{type(x).__qualname__}, which has no identity that is "
        "equal in every process, so that programs cannot be kept on disk; pass version=, a text that changes with the "
        "function's definition"
    )


def code_text(code: types.CodeType) -> str:
    """Return compiled code as text, with that of the functions in it."""
    return " ".join((code.co_code.hex(), *code.co_names, *map(_constant_text, code.co_consts)))


def _constant_text(x: Any) -> str:
    if isinstance(x, types.CodeType):
        return code_text(x)
    return repr(sorted(map(repr, x))) if isinstance(x, frozenset) else repr(x)


def _globals_of(code: types.CodeType) -> list[str]:
    """Return the names of the globals that code reads, that of nested functions included."""
    names = [i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            names += _globals_of(c)
    return list(dict.fromkeys(names))
