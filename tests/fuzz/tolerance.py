"""How far a computed result may lie from the exact one: `einsmith.check.tolerance` of this checkout, also where another
checkout's einsmith is under test."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "tests.fuzz.own_tolerance", Path(__file__).resolve().parents[2] / "einsmith" / "check" / "tolerance.py"
)
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
C, errors = _module.C, _module.errors

__all__ = ["C", "errors"]
