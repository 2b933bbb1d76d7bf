"""Compiling takes as long for long axes as for short ones.

Executed lines are counted, from a formula to LLVM's text of all its kernels; machine code takes as long as its text.
No tensor is allocated, nothing is run. Both multiples of the extents are primes, so that no form falls away in which
one leaves no remainder.
"""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from einsmith.api.tracing import trace_shapes
from einsmith.base.errors import ShapeError
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.cost.facts import Target
from einsmith.driver import cpu, cpu_kernels, executable
from einsmith.runtime import buffers
from einsmith.schedule.compiled_kernel import CompiledKernel
from tests.passes.counting import executed_lines
from tests.passes.sized import ALL, Sized

TARGET = Target("znver5", "", "x86_64-unknown-linux-gnu", vector_bytes=64, vector_registers=32, cores=2)
"""The same choices on every machine."""
MORE = 64
GROWTH = 1.5
MEMORY = 32 << 20
"""Bytes at once, beside what is kept: index arrays of samples and small boxes, whose sizes are constants."""


class _Steps:
    """A program that is not linked."""

    def __init__(self, steps: Sequence[Any], *_: Any):
        self.slots: dict[Any, int] = defaultdict(int)
        self.table = np.zeros(1, np.uint64)


@pytest.fixture
def compile_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sized, str, int], None]:
    """Compiles a formula at a size, up to the text of its kernels, into no memory."""

    def native(found: Sequence[Any], target: Target) -> list[CompiledKernel]:
        made: dict[Any, CompiledKernel] = {}
        for kernel in dict.fromkeys(found):
            functions, m = cpu_kernels.lower(kernel, target)
            emit_module(functions, target)
            launches = tuple((1, tasks, once) for _, tasks, once in m["launches"])
            made[kernel] = CompiledKernel(launches, m["scratch"], m["workspace"], m["pattern"], m["config"], 0.0, 0)
        return [made[kernel] for kernel in found]

    empty = buffers.empty
    monkeypatch.setattr(cpu.CPU, "compile", native)
    monkeypatch.setattr(cpu_kernels, "Program", _Steps)
    monkeypatch.setattr(buffers, "empty", lambda shape, dtype: empty((64,), np.uint8))

    def compiled(sized: Sized, mode: str, n: int) -> None:
        call = sized.at(n)
        traced = trace_shapes(getattr(call, mode), call.arguments)
        executable.Executable(traced.graph, traced.bind, 2, target=TARGET)

    return compiled


def _prime(n: int) -> int:
    """The first one from n on."""
    while any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
        n += 1
    return n


OFTEN = {
    "matrix product": "value", "convolution in 2d": "value",
    "convolution in 1d, three taps, stride 1, depthwise": "value", "capsule convolution, stride 1": "value",
    "causal attention": "value", "triangular product": "value", "layer norm": "value", "embedding": "gradient",
    "overlapping max pooling": "value", "periodic padding": "gradient", "rnn": "value", "selective_scan": "value",
    "carried_maximum": "gradient", "LLTM": "value",
}  # fmt: skip
"""Formulas of every chapter of the gallery and recurrences, in less than half a minute."""
OTHER_FORMS = {"convolution in 1d, three taps, stride 1, depthwise-value": 3.0,
               "convolution in 1d, three taps, stride 1, depthwise-gradient": 2.5,
               "convolution in 1d, three taps, stride 2, depthwise-value": 2.5,
               "attention-gradient": 4.0, "causal attention-gradient": 4.0,
               "triangular product-value": 2.0, "cumulative product-gradient": 9.0}  # fmt: skip
"""Where axes are long another form costs less: a halo copy of a row that leaves the first-level cache is dearer than
packed panels or guards, or boxes of several images, whose tile has more vectors in its body; scores of attention that
leave the caches stream in nests; a tile of one vector and many rows leaves out more of a large triangle. That code is
as long for every such row.
"""
CASES = [
    pytest.param(s, mode, id=f"{s.name}-{mode}", marks=() if OFTEN.get(s.name) == mode else pytest.mark.slow)
    for s in ALL
    for mode in ("value", "gradient")
]


@pytest.mark.thinned(8)
@pytest.mark.parametrize("sized,mode", CASES)
def test_long_axes_take_no_more_work(sized: Sized, mode: str, compile_at, record_property):
    compile_at(sized, mode, 5)  # what is alike at all sizes is known afterwards
    few = executed_lines(lambda: compile_at(sized, mode, sized.base))
    tracemalloc.start()
    try:
        try:
            many = executed_lines(lambda: compile_at(sized, mode, _prime(MORE * sized.base)))
        except ShapeError:  # more elements than an array has, of three long axes and two of channels
            many = executed_lines(lambda: compile_at(sized, mode, _prime(MORE // 4 * sized.base)))
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    record_property("growth", many / few)
    record_property("memory", most - kept)
    assert few > 1000
    assert many <= OTHER_FORMS.get(f"{sized.name}-{mode}", GROWTH) * few
    assert most - kept <= MEMORY


def test_the_selection_has_formulas_of_the_list():
    assert {*OFTEN} <= {s.name for s in ALL}
    assert {*OTHER_FORMS} <= {p.id for p in CASES}
