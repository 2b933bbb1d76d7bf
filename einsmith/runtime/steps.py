"""The steps of a program, which every back end runs: launches, checks, loops whose pointers move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class RunLaunch:
    """Runs `code`, what a back end has made of a launch (on the CPU the address of its function), for every task in
    0 .. tasks-1, with these buffer addresses."""

    code: Any
    tasks: int
    pointers: Sequence[int]


@dataclass(frozen=True)
class CheckZero:
    """Ends the run with status `code` (not 0) unless the i32 at `pointer` is 0."""

    pointer: int
    code: int


@dataclass(frozen=True)
class CheckFinite:
    """Ends the run with status `code` (not 0) if the float at `pointer` is infinite or NaN; `elem` is f32 or f64."""

    pointer: int
    elem: str
    code: int


class Move(NamedTuple):
    """Pointer `pointer` of step `step` (a launch, or a loop inside, whose bases count as its pointers) is, in turn t
    counted from 0, the loop's own base with the number of this move, + offset + delta * t bytes."""

    step: int
    pointer: int | str
    offset: int
    delta: int


@dataclass(frozen=True)
class BeginLoop:
    """The steps up to the matching EndLoop run in turns 0 .. most-1. `first` and `stop`, where they are not 0, are the
    addresses of i64 that tell the first turn and the one before which the loop ends. `reverse`: the last turn comes
    first. One base address for each move."""

    most: int
    reverse: bool
    moves: Sequence[Move]
    bases: Sequence[int]
    stop: int = 0
    first: int = 0


@dataclass(frozen=True)
class EndLoop:
    """The end of the innermost loop that is open."""


Step = RunLaunch | CheckZero | CheckFinite | BeginLoop | EndLoop
