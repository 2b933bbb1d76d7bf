"""Functions that look at a program's status: checks, and kernels that do nothing where they must not run.

A graph of launches has no branches. A check stores a code into the status, a word of memory, and the kernels that must
not run after a failed check end at once where the status is not 0. Kernels in loops whose bounds are only known at run
time end where their turn is outside of the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from einsmith.codegen.ssa import SSAValue, operations
from einsmith.gpu.tiles.ir import TileBuilder, TileFunction, TileParameter


class LaunchGuard(NamedTuple):
    """Conditions that a kernel checks before it begins: the status, and the bounds of the loops around it.

    status: whether the kernel ends at once if the status is not 0; bounds: for each enclosing loop with run-time
    bounds, outermost first, (whether its first iteration is one, whether its end is one)
    """

    status: bool = False
    bounds: tuple[tuple[bool, bool], ...] = ()

    @property
    def elems(self) -> list[str]:
        """The element types of the words that a guarded function's additional parameters point to, in order: the
        status; and for each loop the turn, the first turn, the turn before which it ends."""
        return ["i32"] * self.status + [e for first, stop in self.bounds for e in ["i64"] * (1 + first + stop)]


def guarded(f: TileFunction, guard: LaunchGuard, buffers: int) -> TileFunction:
    """Return the function with a guard before it. Its additional parameters are buffers from number `buffers` on, in
    the order of `LaunchGuard.elems`."""
    if not guard.elems:
        return f
    b = TileBuilder(f.name)
    b.continue_from(f)
    words = [b.parameter(TileParameter(elem, 1, buffers + n)) for n, elem in enumerate(guard.elems)]
    values = iter([b.load(p, b.const(0)) for p in words])
    ends = [b.op("ne", next(values), 0)] if guard.status else []
    for first, stop in guard.bounds:
        turn = next(values)
        ends += [b.op("lt", turn, next(values))] if first else []
        ends += [b.op("le", next(values), turn)] if stop else []
    ending = ends[0]
    for end in ends[1:]:
        ending = b.op("or", ending, end)
    b.end_if(ending)
    start = b.finish(f.programs, f.cooperative)
    return replace(start, body=[*start.body, *f.body])


def _check(name: str, elem: str) -> TileFunction:
    """Return the function that stores the code of a check into the status where its value fails and no earlier check
    has failed. Parameters: the value, the code, the status."""
    b = TileBuilder(name)
    value, code, status = (b.parameter(TileParameter(e, 1, n)) for n, e in enumerate((elem, "i32", "i32")))
    zero = b.const(0)
    x, before = b.load(value, zero), b.load(status, zero)
    if elem == "i32":
        fails: SSAValue = b.op("ne", x, 0)
    else:  # an infinity or a NaN less itself is a NaN
        difference = b.op("sub", x, x)
        fails = b.op("ne", difference, difference)
    b.store(status, zero, b.select(b.op("ne", before, 0), before, b.select(fails, b.load(code, zero), zero)))
    return b.finish(1)


CHECKS = {elem: _check(f"check_{elem}", elem) for elem in ("i32", "f32", "f64")}
"""Functions of checks, by the element type of the value: an integer must be zero, a float finite."""


def accessed(f: TileFunction) -> tuple[Sequence[bool], Sequence[bool]]:
    """Return, for each parameter of a function, whether it is loaded from, and whether it is stored to."""
    loaded: set[int] = set()
    stored: set[int] = set()
    for x in operations(f.body):
        if x.memory is not None:
            (loaded if x.name == "load" else stored).add(x.memory)
            if x.name == "grid_barrier":
                loaded.add(x.memory)
    n = range(len(f.parameters))
    return [i in loaded for i in n], [i in stored for i in n]
