"""Find the tiles of a nest that change nothing, so that they can be skipped: those that a mask excludes whole.

before: for each block of j:  s[i,j] = where(j <= i, t[i,j], -inf);  m[i] = max(m[i], s[i,j])   for a block of i
after:  for each block of j in which some j <= some i: the same

A value that equals a constant unless a condition holds (`analysis.constant_unless`) is followed from kernel to kernel.
The sum of a row that a mask excludes whole is no number by one of its terms, so that one tile of each block of rows
runs in any case (`Activity.some`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from einsmith.ir.analysis.constant_unless import ConstantUnless, constant_unless
from einsmith.ir.functions import identity
from einsmith.ir.nodes import Expr, Piece, Read, Reduce, Template, axes_of, reads
from einsmith.ir.rebuild import rebuild
from einsmith.schedule.kernel import Kernel


def results_unless(
    kernel: Kernel, known: Callable[[int, tuple[Expr, ...]], ConstantUnless | None], name: Callable[[int], int | None]
) -> list[list[ConstantUnless | None]]:
    """Return what each result of each stage equals unless a condition on its axes holds.

    Args:
        kernel: the kernel.
        known: the same for buffer n, read at an index.
        name: the number that a condition gives buffer n; None if it may not read it.
    """
    out: list[list[ConstantUnless | None]] = []
    for stage in kernel.stages:
        t = stage.template
        body = _whole_body(t)

        def read(e: Read, stage=stage) -> ConstantUnless | None:
            kind, *where = stage.args[e.slot]
            if kind == "stage":
                return out[where[0]][where[1]]
            return known(where[0], e.index)

        results: list[ConstantUnless | None] = []
        for b in t.parts[0].bodies if body is not None else ():
            x = constant_unless(b, read)
            unless = None if x is None else _rename(x.unless, stage.args, name)
            if x is not None and unless is not None and isinstance(body, Reduce):
                summed = {a for a in axes_of(unless) if a >= t.rank}
                # A sum is its identity where all its terms are, so their condition may not depend on the summed axes.
                x = x if x.value == identity(body.combiner, b.dtype) and not summed else None
            results.append(None if x is None or unless is None else ConstantUnless(x.value, unless))
        # An argmax has two results of one body; nothing is known of its position.
        out.append(results if len(results) == len(t.dtypes) else [None] * len(t.dtypes))
    return out


def _whole_body(t: Template) -> Expr | Reduce | None:
    """Return the body of a template of one piece that covers the output; None for another one."""
    piece = t.parts[0]
    return piece.body if isinstance(piece, Piece) and piece.extents == t.shape else None


def identity_unless(
    kernel: Kernel, known: Callable[[int, tuple[Expr, ...]], ConstantUnless | None], name: Callable[[int], int | None]
) -> Expr | None:
    """Return the condition on a point of the root's domain without which the root's reduction adds nothing there; None
    if there is none. The arguments are those of `results_unless`."""
    t, args = kernel.root, kernel.stages[0].args
    body = _whole_body(t)
    if not isinstance(body, Reduce) or len(body.bodies) > 1:
        return None

    def read(e: Read) -> ConstantUnless | None:
        return known(args[e.slot][1], e.index)

    x = constant_unless(body.bodies[0], read)
    if x is None or x.value != identity(body.combiner, body.bodies[0].dtype):
        return None
    return _rename(x.unless, args, name)


def _rename(condition: Expr, args: Sequence[tuple], name: Callable[[int], int | None]) -> Expr | None:
    """Return a condition with the names of the buffers for slots; None where it reads another stage or a buffer without
    a name. Reads of known values, which `constant_unless` has put there, have names already (negative slots)."""
    valid = True

    def rule(e):
        nonlocal valid
        if not isinstance(e, Read) or e.slot < 0:
            return None
        kind, *where = args[e.slot]
        number = name(where[0]) if kind == "buffer" else None
        if number is None:
            valid = False
            return None
        return Read(-1 - number, e.index, e.dtype)

    out = rebuild([condition], rule)[0]
    return out if valid else None


def names_in(condition: Expr) -> set[int]:
    """Return the names of the buffers that a condition reads."""
    return {-1 - r.slot for r in reads(condition)}
