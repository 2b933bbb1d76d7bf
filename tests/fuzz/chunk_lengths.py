"""Run linear recurrences in chunks of any length, also those whose steps are predicted to take less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.autodiff import reverse
from einsmith.ir.recurrence.chunks import triangular
from einsmith.ir.recurrence.chunks.linear_recurrence import LinearRecurrence
from einsmith.passes.recurrence import chunk_form

LENGTHS = (1, 2, 3, 4, 5, 8, 12, 16)


def _length(linear: LinearRecurrence, outputs: Sequence[Any], is_differentiated: bool = False) -> int:
    """A length that the recurrence decides, so that a case is the same in every process."""
    return LENGTHS[linear.node.members[linear.state].digest[0] % len(LENGTHS)]


def set_chunk_lengths() -> None:
    """From now on, in this process. Triangular systems are solved by blocks whatever the number of right sides."""
    for module in (reverse, chunk_form):
        module.choose_length = _length  # type: ignore[attr-defined]
    triangular.LEAST_COLUMNS = 1
