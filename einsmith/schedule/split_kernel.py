"""Split a fused kernel into the kernels of its stages."""

from __future__ import annotations

from typing import NamedTuple

from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage

Place = int | tuple[int, int]
"""A buffer of the fused kernel by number; or (stage, member), a result that the fused kernel does not store."""


class SplitStage(NamedTuple):
    """A stage as a kernel of its own, and the place in the fused kernel of each of its buffers."""

    kernel: Kernel
    places: tuple[Place, ...]


def split_stages(kernel: Kernel) -> list[SplitStage]:
    """Return each stage of a kernel as a kernel of its own, which stores the results that later stages read.

    before: s = sum[k](a*b);  y = max(s + c, 0), where s is in registers
    after:  s = sum[k](a*b)   and   y = max(s + c, 0), each of tensors
    """
    read_later = {(i, m) for stage in kernel.stages for kind, i, *rest in stage.args if kind == "stage" for m in rest}
    out = []

    def place_of(i: int, member: int) -> Place:
        stored = kernel.stages[i].outputs[member]
        return (i, member) if stored is None else stored

    for number, stage in enumerate(kernel.stages):
        places: dict[Place, int] = {}

        def buffer_of(place: Place, places: dict[Place, int] = places) -> int:
            return places.setdefault(place, len(places))

        args = tuple(
            ("buffer", buffer_of(where[0] if kind == "buffer" else place_of(*where))) for kind, *where in stage.args
        )
        outputs = tuple(
            None if n is None and (number, m) not in read_later else buffer_of(place_of(number, m))
            for m, n in enumerate(stage.outputs)
        )
        written = {n for n in outputs if n is not None} - {n for _, n in args}
        buffers = tuple(_buffer(kernel, place, n in written) for place, n in places.items())
        out.append(SplitStage(Kernel((Stage(stage.template, args, outputs),), buffers, None), tuple(places)))
    return out


def _buffer(kernel: Kernel, place: Place, written: bool) -> KernelBuffer:
    """Return the buffer of a place. written: whether the stage only writes it."""
    if isinstance(place, int):
        b = kernel.buffers[place]
        return KernelBuffer(b.dtype, b.shape, b.non_temporal and written, b.strides)
    stage, member = place
    template = kernel.stages[stage].template
    return KernelBuffer(template.dtypes[member], template.shape)
