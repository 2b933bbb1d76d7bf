"""Split a fused kernel between its stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage

Place = int | tuple[int, int]
"""A buffer of the fused kernel by number; or (stage, member), a result that the fused kernel does not store."""


class SplitStages(NamedTuple):
    """Consecutive stages as a kernel of their own, and the place in the fused kernel of each of its buffers."""

    kernel: Kernel
    places: tuple[Place, ...]
    written: tuple[bool, ...]


def split_stages(kernel: Kernel) -> list[SplitStages]:
    """Return each stage of a kernel as a kernel of its own, which stores the results that later stages read.

    before: s = sum[k](a*b);  y = max(s + c, 0), where s is in registers
    after:  s = sum[k](a*b)   and   y = max(s + c, 0), each of tensors
    """
    return split_before(kernel, range(1, len(kernel.stages)))


def split_before(kernel: Kernel, starts: Sequence[int]) -> list[SplitStages]:
    """Return the kernels of stages of a kernel without sums: each but the first begins at a stage of `starts`, and
    stores the results that later ones read."""
    read = [(n, where[1:]) for n, stage in enumerate(kernel.stages) for where in stage.args if where[0] == "stage"]
    return [
        _take(kernel, first, last, {place for n, place in read if n >= last})
        for first, last in pairwise([0, *starts, len(kernel.stages)])
    ]


def _take(kernel: Kernel, first: int, last: int, read_later: set[tuple[int, int]]) -> SplitStages:
    """Return stages of a kernel, up to `last`, as a kernel of their own, which stores the results `read_later`."""
    numbers: dict[Place, int] = {}
    written: set[int] = set()

    def buffer_of(place: Place) -> int:
        return numbers.setdefault(place, len(numbers))

    def place_of(stage: int, member: int) -> Place:
        stored = kernel.stages[stage].outputs[member]
        return (stage, member) if stored is None else stored

    def argument(where: tuple) -> tuple:
        if where[0] == "buffer":
            return "buffer", buffer_of(where[1])
        _, stage, member = where
        return ("stage", stage - first, member) if stage >= first else ("buffer", buffer_of(place_of(stage, member)))

    stages = []
    for n in range(first, last):
        stage = kernel.stages[n]
        args = tuple(map(argument, stage.args))
        outputs = tuple(
            None if b is None and (n, m) not in read_later else buffer_of(place_of(n, m))
            for m, b in enumerate(stage.outputs)
        )
        written.update(b for b in outputs if b is not None)
        stages.append(Stage(stage.template, args, outputs))
    only_written = written - {where[1] for stage in stages for where in stage.args if where[0] == "buffer"}
    buffers = tuple(_buffer(kernel, place, b in only_written) for place, b in numbers.items())
    invariant = kernel.loop_invariant
    if invariant is not None:
        invariant = tuple(b for place, b in numbers.items() if place in invariant)
    return SplitStages(
        Kernel(tuple(stages), buffers, invariant), tuple(numbers), tuple(b in written for b in numbers.values())
    )


def _buffer(kernel: Kernel, place: Place, written: bool) -> KernelBuffer:
    """Return the buffer of a place. written: whether the stages only write it."""
    if isinstance(place, int):
        b = kernel.buffers[place]
        return KernelBuffer(b.dtype, b.shape, b.non_temporal and written, b.strides)
    stage, member = place
    template = kernel.stages[stage].template
    return KernelBuffer(template.dtypes[member], template.shape)
