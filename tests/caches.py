"""The caches of Einsmith by the names of their bounds, for tests of what is kept and of what is said once."""

from __future__ import annotations

from einsmith.base import caches

CHOICES = "choices of kernels"
CODE = "machine code of kernels"


def bound(name: str) -> caches.Bound:
    """Return the bound of a name; its module must be imported."""
    return next(b for b in caches.BOUNDS if b.name == name)


def forget(*names: str) -> None:
    """Empty the caches under the bounds of these names."""
    for name in names:
        for cache in bound(name).caches():
            cache.clear()
