"""The recurrent networks that are timed alone: which cells, over how many steps, at which batch sizes."""

from __future__ import annotations

from benchmarks.recurrent_steps import CELLS, LAYER_CELLS, language_model, recurrent

BATCHES = (1, 16, 64)
STEPS = (1, 28, 35, 150)
RECURRENT = {
    p.name: p for p in (*(recurrent(c, b, t) for c in CELLS for t in STEPS for b in BATCHES), language_model())
}
FIRST_CALL_STEPS = (8, 128, 1024)
FIRST_CALLS = {p.name: p for p in (recurrent(c, 4, t) for c in (*LAYER_CELLS, *CELLS) for t in FIRST_CALL_STEPS)}
"""Of which only the first call is timed."""
