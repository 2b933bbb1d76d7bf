"""The caches of Einsmith by the names of their bounds, for tests of what is kept and of what is said once."""

from __future__ import annotations

from einsmith.base import caches
from einsmith.codegen.cache import native
from einsmith.codegen.llvm import jit

CHOICES = "choices of kernels"
CODE = "machine code of kernels"


def bound(name: str) -> caches.Bound:
    """Return the bound of a name; its module must be imported."""
    return next(b for b in caches.BOUNDS if b.name == name)


def count_objects() -> int:
    """Return the number of objects of machine code in memory."""
    return len(jit._loaded)


def forget_code() -> None:
    """Forget the machine code by the digests of its kernels; the next kernel is read from disk or compiled."""
    native._loaded.clear()


def forget(*names: str) -> None:
    """Empty the caches under the bounds of these names."""
    for name in names:
        for cache in bound(name).caches():
            cache.clear()
