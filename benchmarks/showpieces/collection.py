"""All showpieces by name."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from benchmarks.showpieces.case import FIELDS, Showpiece


def _of_fields() -> dict[str, Showpiece]:
    pieces: dict[str, Showpiece] = {}
    for area in FIELDS:
        if find_spec(f"benchmarks.showpieces.{area}") is None:
            continue
        for piece in import_module(f"benchmarks.showpieces.{area}").SHOWPIECES:
            if piece.area != area or piece.name in pieces:
                raise ValueError(f"{piece.name} is of {piece.area}, in {area}, or there are two of this name")
            pieces[piece.name] = piece
    return pieces


SHOWPIECES = _of_fields()
