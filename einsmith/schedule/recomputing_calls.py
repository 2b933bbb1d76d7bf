"""Find the calls that compute a result of a kernel again: the kernel's own call, or that of some of its stages.

before: one kernel computes s = f(x), stores s, and stores t = g(s)
after: a kernel that computes t = g(s) from the stored s
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.nodes import Tensor
from einsmith.ir.views import storage
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows, Stage
from einsmith.schedule.plan import KernelCall


def calls_computing(call: KernelCall, s: Tensor) -> Iterator[KernelCall]:
    """Yield calls that compute a result: the call itself; of a row-fused call, the part that computes it, if that part
    is pointwise (a sum's rounding depends on its kernel's order); and the stages that compute it from other stored
    results of the kernel."""
    yield call
    for c in call.parts or (call,):
        if isinstance(c.kernel, Rows) or any(c.offsets):
            continue
        for n, (t, written) in enumerate(zip(c.tensors, c.written, strict=True)):
            if not written or storage(t) is not s:
                continue
            if c is not call and pointwise_body(c.kernel.root) is not None:
                yield c
            stages = _stages_from_stored(c.kernel, n)
            if stages is not None:
                yield _call_of_stages(c, stages, n)


def _call_of_stages(call: KernelCall, stages: Sequence[Stage], b: int) -> KernelCall:
    """Return the call of some stages of a kernel, which store to buffer b and read the others."""
    numbers = sorted({n for st in stages for kind, n, *_ in st.args if kind == "buffer"} | {b})
    place = {n: k for k, n in enumerate(numbers)}
    sources = [(n, call.kernel.buffers[n]) for n in numbers]
    buffers = tuple(x if n == b else KernelBuffer(x.dtype, x.shape, False, x.strides) for n, x in sources)
    kernel = Kernel(tuple(_renumber_buffers(st, place) for st in stages), buffers)
    nodes = tuple(n for n, st in zip(call.nodes, call.kernel.stages, strict=True) if b in st.outputs)
    offsets = tuple(call.offsets[n] for n in numbers) if call.offsets else ()
    tensors, written = tuple(call.tensors[n] for n in numbers), tuple(n == b for n in numbers)
    return KernelCall(kernel, tensors, written, nodes, offsets, is_recomputation=call.is_recomputation)


def _renumber_buffers(stage: Stage, place: Mapping[int, int]) -> Stage:
    args = tuple(("buffer", place[a[1]]) if a[0] == "buffer" else a for a in stage.args)
    return Stage(stage.template, args, tuple(None if o is None else place[o] for o in stage.outputs))


def _stages_from_stored(kernel: Kernel, b: int) -> list[Stage] | None:
    """Return the pointwise stages that compute buffer b from other buffers, including ones that the kernel stores; None
    if these are all stages or one is not pointwise."""
    stages = kernel.stages
    producer = {o: i for i, st in enumerate(stages) for o in st.outputs if o is not None}
    needed: set[int] = set()
    todo = [producer[b]]
    sources: dict[tuple[int, int], int] = {}
    while todo:
        i = todo.pop()
        if i in needed:
            continue
        needed.add(i)
        if pointwise_body(stages[i].template) is None:
            return None
        for kind, n, *member in stages[i].args:
            stored = stages[n].outputs[member[0]] if kind == "stage" else None
            if stored is not None and not kernel.buffers[stored].dtype.in_memory_only:
                sources[n, member[0]] = stored
            elif kind == "stage":
                todo.append(n)
    if len(needed) == len(stages):
        return None
    number = {i: k for k, i in enumerate(sorted(needed))}

    def arg(a: tuple) -> tuple:
        if a[0] == "buffer":
            return a
        source = sources.get((a[1], a[2]))
        return ("stage", number[a[1]], a[2]) if source is None else ("buffer", source)

    out = []
    for i in sorted(needed):
        outputs = tuple(o if o == b else None for o in stages[i].outputs)
        out.append(Stage(stages[i].template, tuple(map(arg, stages[i].args)), outputs))
    return out
