"""Print kernels as text, in the notation of the graph printer."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.ir.printer import show_statements
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows
from einsmith.schedule.step_loops import StepLoop


def show_kernel(kernel: Kernel, buffers: Sequence[str] | None = None) -> str:
    """Return a kernel as text: a line for the buffers, then the stages s0, s1, ... and their stores.

    `buffers` names the buffers, else they are b0, b1, ...; those that are local to a Rows are l0, l1, ...

        kernel over [8] of x: f32[8, 3], y: f32[8]
          s0[i0] = sum[r0](x[i0, r0])  # i0 < 8, r0 < 3
          y <- s0
    """
    names = list(buffers) if buffers is not None else [f"b{n}" for n in range(len(kernel.buffers))]
    head = ", ".join(f"{name}: {_type(b)}" for name, b in zip(names, kernel.buffers, strict=True))
    if isinstance(kernel, StepLoop):
        names += [f"l{n}" for n in range(len(kernel.local))]
        lines = [f"{kernel.steps} steps{', the last one first,' if kernel.reverse else ''} of {head}"]
        for step in kernel.members:
            parts = [f"{names[n]}[{_part(*part)}]" for n, part in zip(step.places, step.parts, strict=True)]
            lines += show_kernel(step.kernel, parts).splitlines()
        return "\n  ".join(lines)
    if not isinstance(kernel, Rows):
        lines = [line for i in range(len(kernel.stages)) for line in _stage(kernel, i, names)]
        return "\n  ".join([f"kernel over {list(kernel.shape)} of {head}", *lines])
    names += [f"l{n}" for n in range(len(kernel.local))]
    local = ", ".join(f"l{n}: {_type(b)}" for n, b in enumerate(kernel.local))
    lines = [f"{kernel.rows} rows of {head}{f'; local {local}' if local else ''}"]
    for m in kernel.members:
        lines += show_kernel(m.kernel, [names[n] for n in m.places]).splitlines()
    return "\n  ".join(lines)


def _part(offset: int, first: int, move: int, ring: int) -> str:
    """Return the place of the first element of a step's part, in elements."""
    place = f"{first} + {move}*t"
    return f"{offset} + ({place}) mod {ring}" if ring else f"{offset} + {place}" if offset else place


def _type(b: KernelBuffer) -> str:
    strides = "" if b.row_major else f" at strides {list(b.strides)}"
    return f"{b.dtype.name}{list(b.shape)}{strides}{' past the caches' if b.non_temporal else ''}"


def _result(kernel: Kernel, stage: int, member: int) -> str:
    return f"s{stage}.{member}" if len(kernel.stages[stage].outputs) > 1 else f"s{stage}"


def _stage(kernel: Kernel, i: int, names: Sequence[str]) -> list[str]:
    stage = kernel.stages[i]
    slots = [names[where[0]] if kind == "buffer" else _result(kernel, *where) for kind, *where in stage.args]
    stores = [(n, m) for m, n in enumerate(stage.outputs) if n is not None]
    return [
        *show_statements(stage.template, f"s{i}", slots),
        *(f"{names[n]} <- {_result(kernel, i, m)}" for n, m in stores),
    ]
