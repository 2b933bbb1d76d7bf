"""Define the steps of a program, which every back end runs: launches, checks, loops whose pointers move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True)
class RunLaunch:
    """A launch: run `code`, which a back end has compiled (on the CPU the address of its function), for every task in
    0 .. tasks-1, with these buffer addresses."""

    code: Any
    tasks: int
    pointers: Sequence[int]


@dataclass(frozen=True)
class Together:
    """A header before `count` launches that do not depend on each other: with several threads they run as one launch of
    all their tasks, whose time counts as the header's; with one thread they run in order."""

    count: int


@dataclass(frozen=True)
class Apart:
    """A header before `parts` loops of equally many steps, `count` steps in all, that do not depend on each other and
    contain only launches and loops: with several threads they run as one launch of `parts` tasks, whose time counts as
    the header's. With one thread, and where each step's time is added up without saying which thread was at work, they
    run in order."""

    count: int
    parts: int


@dataclass(frozen=True)
class CheckZero:
    """A check that ends the run with status `code` (not 0) unless the i32 at `pointer` is 0."""

    pointer: int
    code: int


FINITE = 1
"""Status of a program that stopped because its loss is not finite; other checks have higher ones."""


@dataclass(frozen=True)
class CheckFinite:
    """A check that ends the run with status `code` (not 0) if the float at `pointer` is infinite or NaN; `elem` is f32
    or f64."""

    pointer: int
    elem: str
    code: int


@dataclass(frozen=True)
class Notify:
    """A notice to another thread: writes the byte at the address `message` to the pipe of this descriptor."""

    pipe: int
    message: int


@dataclass(frozen=True)
class Await:
    """A wait for another thread: reads a byte from the pipe of this descriptor."""

    pipe: int


@dataclass(frozen=True)
class AllReduce:
    """A sum over a group of devices, each of which runs a program with the same sums in the same order: the elements at
    the pointers, `counts` of them at each, of the type `elem`, are overwritten by their sums. `communicator` joins the
    devices; only programs on devices have such steps."""

    communicator: Any
    pointers: Sequence[int]
    counts: Sequence[int]
    elem: str


class Move(NamedTuple):
    """The address of a pointer in a loop. In turn t, counted from 0, pointer `pointer` of step `step` is the loop's
    base with this move's number, + offset + delta * t bytes. The step is a launch, or an inner loop, whose bases count
    as its pointers. `ring` not 0: start + delta * t, modulo `ring` bytes, takes the place of delta * t (a circular
    buffer)."""

    step: int
    pointer: int | str
    offset: int
    delta: int
    ring: int = 0
    start: int = 0

    def bytes_in_turn(self, turn: int) -> int:
        """Return the offset from the base (bytes) of the address that the pointer has in a turn of the loop."""
        way = self.start + self.delta * turn
        return self.offset + (way % self.ring if self.ring else way)


@dataclass(frozen=True)
class BeginLoop:
    """The beginning of a loop: the steps up to the matching EndLoop run in turns 0 .. most-1.

    `first` and `stop`, where they are not 0, are the addresses of i64 values: the first turn, and the turn before
    which the loop ends. `reverse`: the last turn comes first. There is one base address for each move.
    """

    most: int
    reverse: bool
    moves: Sequence[Move]
    bases: Sequence[int]
    stop: int = 0
    first: int = 0


@dataclass(frozen=True)
class EndLoop:
    """The end of the innermost loop that is open."""


Step = RunLaunch | Together | Apart | CheckZero | CheckFinite | Notify | Await | AllReduce | BeginLoop | EndLoop


def end_of_loop(steps: Sequence[Step], begin: int) -> int:
    """Return the position of the EndLoop that matches the BeginLoop at `begin`."""
    depth = 0
    for n in range(begin, len(steps)):
        depth += isinstance(steps[n], BeginLoop) - isinstance(steps[n], EndLoop)
        if not depth:
            return n
    raise ValueError(f"the loop that begins at step {begin} has no end")


class StepTimes(NamedTuple):
    """Times of the steps of one run, in nanoseconds of `time.perf_counter_ns`.

    Attributes:
        seen: duration of each step on the calling thread, summed over the iterations of its loop, [steps].
        starts: [steps, threads] the time at which each thread took its first task of the step, in the first iteration
            in which it had one; for the calling thread (0), the time at which it began the step. 0 for steps not
            reached.
        busy: [steps, threads] time between the start of a thread's first task of the step and the end of its last one,
            summed over the iterations; 0 for a step that the calling thread ran alone.
    """

    seen: np.ndarray
    starts: np.ndarray
    busy: np.ndarray
