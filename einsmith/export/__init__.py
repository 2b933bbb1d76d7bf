"""Export training steps and functions as libraries that run without Python (`docs/export.md`)."""

from typing import TYPE_CHECKING

from einsmith.base import late

if TYPE_CHECKING:
    from einsmith.export.load import Library, load_library
    from einsmith.export.write import export

__all__ = ["Library", "export", "load_library"]

if not TYPE_CHECKING:
    _LOAD = "einsmith.export.load"
    _PLACES = {"Library": _LOAD, "export": "einsmith.export.write", "load_library": _LOAD}
    __getattr__ = late.names_of(__name__, _PLACES)
