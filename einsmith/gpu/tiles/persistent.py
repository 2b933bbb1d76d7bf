"""Join the launches of a loop into one cooperative function (persistent kernel), with grid barriers between launches.

In each iteration, the programs of a launch's function are divided among the programs of the cooperative function. A
buffer that moves from iteration to iteration is one parameter for all iterations. Memory that several launches access
at different offsets is one parameter as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from einsmith.codegen.ssa import BYTES, SSAValue, operations
from einsmith.gpu.tiles.guards import accessed
from einsmith.gpu.tiles.ir import TileBuilder, TileFunction, TileParameter
from einsmith.gpu.tiles.points import MOST_I32_POINTS


class TurnLaunch(NamedTuple):
    """A launch in a loop.

    function: its function; addresses: of its parameters in turn 0; deltas: bytes by which each moves per turn
    """

    function: TileFunction
    addresses: Sequence[int]
    deltas: Sequence[int]


class Persistent(NamedTuple):
    """A loop as one function.

    function: the cooperative function, whose parameter n is buffer n; addresses: of its parameters; rounds: for each
    grid barrier of a turn, how often the programs begin with a program of a launch until they come to the next one
    """

    function: TileFunction
    addresses: tuple[int, ...]
    rounds: tuple[int, ...]


class TurnAccess(NamedTuple):
    """Bytes that a launch accesses through a parameter: `nbytes` from `start` + turn * `delta` on."""

    start: int
    delta: int
    nbytes: int
    stores: bool

    def overlaps(self, other: TurnAccess, turns: np.ndarray, later: np.ndarray) -> bool:
        """Return whether this access in one of `turns` shares a byte with `other` in the corresponding turn of
        `later`."""
        first, second = self.start + self.delta * turns, other.start + other.delta * later
        return bool(((first < second + other.nbytes) & (second < first + self.nbytes)).any())


class _Piece(NamedTuple):
    """Memory that becomes one parameter: addresses from `start` to before `end`."""

    start: int
    end: int
    elem: str


def combine(
    name: str,
    launches: Sequence[TurnLaunch],
    turns: int,
    reverse: bool,
    most_programs: int,
    barrier: int,
    first: int = 0,
    stop: int = 0,
) -> Persistent | None:
    """Return a loop as one function (persistent kernel).

    None where a launch ends early, waits for others, or accesses memory that is no array of one element type, and where
    no launch reads what an earlier one stores.

    Args:
        name: the function's name.
        launches: the launches of a turn, in order, at least one.
        turns: the number of turns, at least one.
        reverse: whether the last turn comes first.
        most_programs: how many programs are certain to be resident at once.
        barrier: address of the i32 of grid barriers.
        first: address of an i64, the first turn; 0 for turn 0.
        stop: address of an i64, the turn before which the loop ends; 0 where all turns run.
    """
    if any(x.name in ("end_if", "grid_barrier") for launch in launches for x in operations(launch.function.body)):
        return None
    accesses = [_accesses(launch) for launch in launches]
    pieces = _pieces(launches, accesses, turns)
    before = barriers(accesses, turns, reverse)
    if pieces is None or not before:
        return None
    programs = min(most_programs, max(launch.function.programs for launch in launches))
    b = TileBuilder(name)
    addresses = [p.start for p in pieces]
    for n, p in enumerate(pieces):
        b.parameter(TileParameter(p.elem, (p.end - p.start) // BYTES[p.elem], n))

    def word(elem: str, address: int) -> int:
        addresses.append(address)
        return b.parameter(TileParameter(elem, 1, len(addresses) - 1))

    counter = word("i32", barrier)
    low, high = (
        b.cast(b.op("max", b.op("min", b.load(word("i64", at), b.const(0)), turns), 0), "i32") if at else b.const(n)
        for at, n in ((first, 0), (stop, turns))
    )
    if reverse:
        low, high = b.op("sub", b.const(turns), high), b.op("sub", b.const(turns), low)
    program = b.program()
    with b.loop(low, high, 1) as loop:
        turn = b.op("sub", b.const(turns - 1), loop.var) if reverse else loop.var
        for n, launch in enumerate(launches):
            if n in before:
                b.grid_barrier(counter)
            places = [
                _place(b, pieces, p, at, delta, turn)
                for p, at, delta in zip(launch.function.parameters, launch.addresses, launch.deltas, strict=True)
            ]
            if launch.function.programs == programs:
                b.inline(launch.function, program, places)
            else:
                with b.loop(program, b.const(launch.function.programs), programs) as part:
                    b.inline(launch.function, part.var, places)
    rounds: list[int] = []
    for n in (*range(min(before), len(launches)), *range(min(before))):
        rounds += [0] * (n in before)
        rounds[-1] += -(-launches[n].function.programs // programs)
    return Persistent(b.finish(programs, cooperative=True), tuple(addresses), tuple(rounds))


def _accesses(launch: TurnLaunch) -> list[TurnAccess]:
    """Return the bytes that a launch accesses, by parameter."""
    f = launch.function
    loaded, stored = accessed(f)
    return [
        TurnAccess(at, delta, p.nbytes if loads or stores else 0, stores)
        for p, at, delta, loads, stores in zip(
            f.parameters, launch.addresses, launch.deltas, loaded, stored, strict=True
        )
    ]


def _pieces(
    launches: Sequence[TurnLaunch], accesses: Sequence[Sequence[TurnAccess]], turns: int
) -> list[_Piece] | None:
    """Return the memory that launches access in all turns, with what overlaps in one piece; None where elements of
    several types overlap and are stored, elements do not begin at multiples of their size, or there are none."""
    ranges = []
    for launch, row in zip(launches, accesses, strict=True):
        for p, x in zip(launch.function.parameters, row, strict=True):
            last = x.start + x.delta * (turns - 1)
            if x.delta % BYTES[p.elem] or not p.size:
                return None
            ranges.append((min(x.start, last), max(x.start, last) + p.nbytes, p.elem, x.stores))
    out: list[_Piece] = []
    end, is_stored = 0, False
    here: dict[str, _Piece] = {}
    """The pieces of memory that overlaps, by type."""
    for start, stop, elem, stores in sorted(ranges):
        if start >= end:
            out += here.values()
            here, is_stored = {}, False
        end, is_stored = max(end, stop), is_stored or stores
        known = here.get(elem, _Piece(start, stop, elem))
        if (start - known.start) % BYTES[elem]:
            return None
        here[elem] = known._replace(end=max(known.end, stop))
        if is_stored and len(here) > 1:
            return None
    return [*out, *here.values()]


def _place(
    b: TileBuilder, pieces: Sequence[_Piece], p: TileParameter, address: int, delta: int, turn: SSAValue
) -> tuple[int, SSAValue]:
    """Return the piece in which a parameter lies, and with which of its elements it begins in a turn."""
    n, piece = next((n, x) for n, x in enumerate(pieces) if x.elem == p.elem and x.start <= address < x.end)
    width = BYTES[p.elem]
    elem = "i64" if (piece.end - piece.start) // width > MOST_I32_POINTS else "i32"
    moved = b.op("mul", b.cast(turn, elem), delta // width)
    return n, b.op("add", moved, (address - piece.start) // width)


def barriers(accesses: Sequence[Sequence[TurnAccess]], turns: int, reverse: bool) -> set[int]:
    """Return the numbers of the launches that need a grid barrier before them in each iteration.

    With these barriers, two launches that access the same memory, at least one of them storing, are never concurrent.
    """

    def must_wait(n: int, m: int, laps: int) -> bool:
        """Return whether launch m, `laps` turns after launch n, must wait for it."""
        earlier = np.arange(turns - laps) if not reverse else np.arange(laps, turns)
        later = earlier + (-laps if reverse else laps)
        return any(x.overlaps(y, earlier, later) for x in accesses[n] for y in accesses[m] if x.stores or y.stores)

    out: set[int] = set()
    since: list[tuple[int, int]] = []  # (lap, launch) since the last barrier
    for lap in (0, 1):  # a barrier of the first lap parts the second one from it
        for m in range(len(accesses)):
            if m in out:
                since = []
            elif any(must_wait(n, m, lap - other) for other, n in since):
                out.add(m)
                since = []
            since.append((lap, m))
    every = range(len(accesses))
    if not out and any(must_wait(n, m, laps) for laps in range(2, turns) for n in every for m in every):
        out.add(0)
    return out
