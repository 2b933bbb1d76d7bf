"""Recognise the mean of a reduction's terms among a kernel's results."""

from __future__ import annotations

from einsmith.ir.nodes import Apply, Axis, Const, Piece, Read, Reduce
from einsmith.schedule.kernel import Stage

_TOLERANCE = 1e-6
"""Relative difference between a factor, which may be rounded to single precision, and 1 over the number of terms."""


def is_mean(root: Stage, stage: Stage, terms: int) -> bool:
    """Return whether a stage divides the root's sum, of `terms` terms, by their number, and does nothing else."""
    summed, piece = root.template.parts[0].body, stage.template.parts[0]
    if not isinstance(summed, Reduce) or not isinstance(piece, Piece) or len(stage.template.parts) > 1:
        return False
    e, shape = piece.body, root.template.shape
    if not isinstance(e, Apply) or e.fn not in ("div", "mul") or not piece.extents == stage.template.shape == shape:
        return False
    total, by = e.args
    if not isinstance(total, Read) or not isinstance(by, Const) or stage.args[total.slot] != ("stage", 0, 0):
        return False
    own = all(i is Axis(d) or n == 1 for d, (i, n) in enumerate(zip(total.index, shape, strict=True)))
    return own and abs(float(by.value) * (1 / terms if e.fn == "div" else terms) - 1) < _TOLERANCE
