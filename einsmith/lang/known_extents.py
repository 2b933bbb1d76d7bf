"""Hold the extents of axes and dimensions, of which some are equal, and what states each: `KnownExtents`."""

from __future__ import annotations

from einsmith.base.errors import FormulaError, ShapeError
from einsmith.lang.elaborate import NotYet

Key = tuple
"""An extent: ("axis", line, name) or ("dim", tensor, dimension)."""


class KnownExtents:
    """The classes of equal extents of a formula (union-find), and the value of each class that is known, with its
    reason."""

    def __init__(self, text: str):
        self._text = text
        self._parent: dict[Key, Key] = {}
        self._values: dict[Key, tuple[int, str]] = {}

    def find(self, key: Key) -> Key:
        """Return the representative of the extents that are known to be equal to an extent."""
        root = key
        while self._parent.get(root, root) != root:
            root = self._parent[root]
        while self._parent.get(key, key) != root:
            self._parent[key], key = root, self._parent[key]
        return root

    def get(self, key: Key) -> int | None:
        """Return the value of an extent; None where it is not known."""
        return self._values.get(self.find(key), (None,))[0]

    def require(self, key: Key) -> int:
        """Return the value of an extent. Raises NotYet where it is not known."""
        n = self.get(key)
        if n is None:
            raise NotYet
        return n

    def __contains__(self, key: Key) -> bool:
        return self.find(key) in self._values

    def assign(self, key: Key, n: int, why: str, at: int | None = None) -> None:
        """Set the value of an extent. Raises ShapeError where it has another one."""
        root = self.find(key)
        old = self._values.get(root)
        if old is not None and old[0] != n:
            self._conflict(key, old[1], why, at)
        self._values.setdefault(root, (n, why))

    def union(self, a: Key, b: Key, at: int) -> None:
        """Make two extents equal. Raises ShapeError where their values differ."""
        x, y = self.find(a), self.find(b)
        if x == y:
            return
        kx, ky = self._values.get(x), self._values.get(y)
        if kx and ky and kx[0] != ky[0]:
            self._conflict(a, kx[1], ky[1], at)
        self._parent[y] = x
        if ky and not kx:
            self._values[x] = ky

    def _conflict(self, key: Key, one: str, two: str, at: int | None) -> None:
        is_axis = key[0] == "axis"
        name = f"the axis {key[2]}" if is_axis else f"dimension {key[2]} of {key[1]}"
        hint = f'if the axis is to be shorter than one of them, add extents={{"{key[2]}": N}}' if is_axis else None
        raise make_shape_error(f"{name} has two extents: {one}, but {two}", self._text, at, hint)


def make_shape_error(message: str, text: str, at: int | None, hint: str | None = None) -> ShapeError:
    """Return a ShapeError that shows a place of a formula as a FormulaError does."""
    return ShapeError(str(FormulaError(message, text, at, hint)))
