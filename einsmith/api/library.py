"""Find out whether a trace of a function runs code of Einsmith alone, which leaves a record of each size that it reads.

Python code of users may depend on a size without a record: by a set or a dictionary that holds numbers, by a text, or
by what it has changed itself in an earlier trace. Hooks are code of users, too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from inspect import Signature
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from einsmith.base.dtypes import DType

_VALUES = (
    type(None), bool, int, float, complex, str, bytes, np.generic, np.ndarray, np.dtype, np.ufunc, DType, Signature,
)  # fmt: skip
"""Types of values that are read and not called."""
_LIBRARIES = frozenset(("builtins", "collections", "einsmith", "numpy", "types", "typing"))
"""Packages whose classes a function may name."""


def called_modules(f: Any) -> tuple[Any, ...] | None:
    """Return the modules, objects with a `trace_key`, that a trace of a function calls; None where it runs code of
    others than Einsmith.

    A function is Einsmith's where it is defined in one of its modules and all that it closes over is Einsmith's. An
    object is where its class is, no subclass of users, and all its attributes that `code_parts` of the class names;
    None names all.
    """
    modules, seen, stack = [], set[int](), [f]
    while stack:
        x = stack.pop()
        if type(x) in _VALUES or id(x) in seen:
            continue
        seen.add(id(x))
        parts = _parts_of(x)
        if parts is None:
            return None
        if hasattr(x, "trace_key") and not isinstance(x, type):
            modules.append(x)
        stack += parts
    return tuple(modules)


def _parts_of(x: Any) -> Iterable[Any] | None:
    """Return what a trace of an object may call; None where that is not known."""
    kind = type(x)
    if kind in (tuple, list, set, frozenset):
        return x
    if kind is dict:
        return x.values()
    if kind is FunctionType:
        return _captured(x) if _package(x.__globals__.get("__name__")) == "einsmith" else None
    if kind is MethodType:
        return x.__func__, x.__self__
    if kind is functools.partial:
        return x.func, x.args, x.keywords
    if kind is BuiltinFunctionType:
        return () if isinstance(x.__self__, ModuleType) else None
    if isinstance(x, type) or kind.__module__ == "typing":
        return () if _package(x.__module__) in _LIBRARIES else None
    names = getattr(kind, "code_parts", ())
    if not (isinstance(x, tuple) or hasattr(kind, "code_parts")):
        return () if isinstance(x, _VALUES) else None
    if not _is_own(kind):
        return None
    if isinstance(x, tuple):
        return x
    return getattr(kind, "forward", None), *(getattr(x, n) for n in (vars(x) if names is None else names))


def _captured(f: FunctionType) -> list[Any]:
    """Return what a function closes over, and the defaults of its arguments."""
    captured = [*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
    for cell in f.__closure__ or ():
        try:
            captured.append(cell.cell_contents)
        except ValueError:  # nothing is there yet
            continue
    return captured


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _is_own(kind: type) -> bool:
    """Return whether a class is one of Einsmith's, under its name in its module."""
    holder: Any = sys.modules.get(kind.__module__) if _package(kind.__module__) == "einsmith" else None
    for part in kind.__qualname__.split("."):
        holder = getattr(holder, part, None)
    return holder is kind
