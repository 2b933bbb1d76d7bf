"""Define the loop that `lower_loops` makes of a Recurrence, for fusion and the program."""

from __future__ import annotations

from typing import NamedTuple

from einsmith.base.dtypes import DType
from einsmith.ir.interned import Node
from einsmith.ir.nodes import Graph, Template, Tensor


class InputPlace(NamedTuple):
    """The source of a step's input: argument `number` of the loop, or its member.

    `first` None: the whole tensor. Otherwise, in step t, element first + stride*t along dimension 0, as a tensor
    without that dimension; where `rows` is not 0, that many elements from there on, as a tensor with it.
    """

    kind: str  # "argument" or "member"
    number: int
    first: int | None = None
    stride: int = 0
    rows: int = 0


class LoopSegment(Node):
    """A run of `steps` consecutive steps of one body.

    `places` gives the source of each input of `body`. Output i of the body is member `targets[i][0]` at position
    `targets[i][1] + t` in step t = 0 .. steps-1; its updates are members that a step changes in place. `first` and
    `stop` are the numbers of 0-d i64 arguments that give, at run time, the first step and the end of the steps that are
    run; None: all are run. The outputs `idle` are not read: nodes needed only by them need not run. `rows`: where it is
    not 0, the outputs have that many positions each, from targets[i][1] + rows*t on (`passes.recurrence.strip_mine`).
    `part`: (number, count) of the parts into which the step is divided, which are consecutive segments that do not
    depend on each other (`passes.recurrence.split_loops`). Inputs and outputs of the body that are smaller than the
    tensors of their places are the contiguous part with that number.
    """

    __slots__ = ("steps", "body", "places", "targets", "first", "stop", "idle", "rows", "part")
    fields = ("steps", "body", "places", "targets", "first", "stop", "idle", "rows", "part")
    steps: int
    body: Graph
    places: tuple[InputPlace, ...]
    targets: tuple[tuple[int, int], ...]
    first: int | None
    stop: int | None
    idle: tuple[int, ...]
    rows: int
    part: tuple[int, int]

    def __new__(cls, steps, body, places, targets, first=None, stop=None, idle=(), rows: int = 0, part=(0, 1)):
        return super().__new__(cls, steps, body, places, targets, first, stop, idle, rows, part)

    def find_part(self, nbytes: int, whole: int) -> int:
        """Return the byte of a slice of `whole` bytes at which the body's input or output of `nbytes` bytes begins."""
        return 0 if nbytes == whole else self.part[0] * nbytes


class LoweredLoop(Node):
    """A recurrence lowered to a loop over steps; its results are `Item`s.

    First the `initial` templates (member, template of pieces that need not cover it, numbers of its arguments) are
    written into their members. Then the segments run in order, each from its last step to its first if `reverse`.
    Members that no segment writes and no initial template fills stay undefined: nothing reads them. The members
    `circular` are circular buffers: position p of the steps is p modulo their extent.
    """

    __slots__ = ("reverse", "results", "initial", "segments", "args", "circular")
    fields = ("reverse", "results", "initial", "segments", "args", "circular")
    reverse: bool
    results: tuple[tuple[DType, tuple[int, ...]], ...]
    initial: tuple[tuple[int, Template, tuple[int, ...]], ...]
    segments: tuple[LoopSegment, ...]
    args: tuple[Tensor, ...]
    circular: tuple[int, ...]

    def __new__(cls, reverse, results, initial, segments, args, circular: tuple[int, ...] = ()):
        return super().__new__(cls, reverse, results, initial, segments, args, circular)

    def invariant_inputs(self, segment: LoopSegment) -> dict[Tensor, Tensor]:
        """Return the loop-invariant inputs of a segment's body, each with the argument of the loop that it is in every
        step, as a whole."""
        return {
            x: self.args[place.number]
            for x, place in zip(segment.body.inputs, segment.places, strict=True)
            if place.kind == "argument" and place.first is None
        }
