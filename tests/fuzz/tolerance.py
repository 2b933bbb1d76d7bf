"""How far a computed result may lie from the exact one (`einsmith.check.tolerance`)."""

from __future__ import annotations

from einsmith.check.tolerance import C, errors

__all__ = ["C", "errors"]
