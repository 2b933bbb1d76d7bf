"""What the key of a trace holds of a module: its parts as the objects that they are, its settings by their values."""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import Any


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


def is_setting(value: Any) -> bool:
    """Whether a trace depends on an attribute by its value: a number, a string, a function, or a tuple of such."""
    if isinstance(value, tuple):
        return all(map(is_setting, value))
    return value is None or isinstance(value, (bool, int, float, str, FunctionType))
