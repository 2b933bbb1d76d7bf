"""The gallery: formulas of every kind, each at several awkward sizes, with PyTorch's way to write it."""

from __future__ import annotations

from tests.gallery import convolutions, reductions, shapes
from tests.gallery.entry import ENTRIES, Entry

__all__ = ["ENTRIES", "Entry", "convolutions", "reductions", "shapes"]
