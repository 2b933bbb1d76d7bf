"""Training steps and functions as libraries that run without Python (`docs/export.md`)."""

from einsmith.export.load import Library, load_library
from einsmith.export.write import export

__all__ = ["Library", "export", "load_library"]
