"""What the key of a trace holds of a module: its parts as the objects that they are, its settings by their values."""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import Any

import numpy as np


class Same(weakref.ref):
    """An object in a key: equal where it is one object, and not kept alive by a cache that it owns."""

    __slots__ = ("_hash",)

    _hash: int

    def __new__(cls, value: Any) -> Same:
        made = super().__new__(cls, value)
        made._hash = object.__hash__(value)
        return made

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        value = self()
        return self is other if value is None else isinstance(other, Same) and other() is value


SIMPLE = frozenset((type(None), bool, int, float, str, bytes))
DEPTH = 8
"""Most containers in each other that count as a setting; one that holds itself is none."""


def key_of(value: Any, depth: int = DEPTH) -> Any:
    """Return what a trace depends on of an attribute, None where that is nothing: by value of numbers, strings and
    lists, tuples, dictionaries and sets of such, as the objects that they are of functions and of NumPy's arrays."""
    kind = type(value)
    if kind in SIMPLE or isinstance(value, (bool, int, float, str, np.generic)):
        return repr(value)
    if isinstance(value, (FunctionType, np.ndarray)):
        return Same(value)
    if not isinstance(value, (tuple, list, dict, set, frozenset)) or not depth:
        return None
    if isinstance(value, (set, frozenset)):
        return (kind, frozenset(map(repr, value))) if SIMPLE.issuperset(map(type, value)) else None
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    if SIMPLE.issuperset(map(type, parts)):
        return repr(value)
    keys: list[Any] = [kind]
    for part in parts:
        found = key_of(part, depth - 1)
        if found is None:
            return None
        keys.append(found)
    return tuple(keys)
