"""Import names of a package when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from einsmith.base import locks


def names_of(package: str, places: Mapping[str, str], others: str = "") -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: name of the package
        places: module that has the value of each public name; other names are those of the package's modules
        others: module whose `find(name)` returns further names or raises AttributeError

    A fork waits for imports under way. Import statements within the package do not pass through this function: a thread
    inside one holds Python's lock of a module, and another thread may wait for that lock while it holds IMPORTING.
    """

    def find(name: str) -> Any:
        module = sys.modules[package]
        if name in places:
            with locks.IMPORTING:
                value = getattr(import_module(places[name]), name)
            setattr(module, name, value)
            return value
        is_own = name.startswith("_") or _is_own(sys._getframe(1), package)
        if others and not is_own and not _is_module(package, name):
            with locks.IMPORTING:
                value = import_module(others).find(name)
            setattr(module, name, value)
            return value
        if is_own or not _is_module(package, name):
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        with locks.IMPORTING:
            return import_module(f"{package}.{name}")  # becomes an attribute of the package

    return find


def _is_own(frame: Any, package: str) -> bool:
    """Return whether the caller is Python's import system, on behalf of an import statement in a module of the
    package."""
    if frame.f_globals.get("__name__") != "importlib._bootstrap":
        return False
    return frame.f_back.f_globals.get("__name__", "").startswith(f"{package.partition('.')[0]}.")


def _is_module(package: str, name: str) -> bool:
    try:
        return find_spec(f"{package}.{name}") is not None
    except ValueError:  # a module that was made without a specification
        return False
