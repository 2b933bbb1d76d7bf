"""Undo what was registered from outside of the package, by a call or at the end of a `with` block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self


class Registration:
    """Something that was registered under a name. undo: takes it away again."""

    def __init__(self, name: str, undo: Callable[[], None]):
        self.__name__, self._undo = name, undo

    def unregister(self) -> None:
        """Take it away again; programs that are compiled already keep it."""
        self._undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.__name__}>"
