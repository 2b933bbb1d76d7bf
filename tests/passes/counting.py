"""How much work a call is, counted: the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import einsmith
from einsmith.compile import predicted
from einsmith.expr.nodes import Graph
from einsmith.kernels.choose import choose, lowered
from einsmith.loops.nest import Op
from einsmith.passes.pipeline import PassContext, run_passes
from einsmith.passes.schedule.plan import fuse
from einsmith.passes.schedule.views import storage
from einsmith.target.facts import Target
from tests import nest_interp

_PACKAGE = str(Path(einsmith.__file__).parent)


def executed_lines(call: Callable[[], Any]) -> int:
    """Lines of the package that a call executes; one that is gone back to counts again."""
    lines = 0

    def count(frame: Any, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += 1
        return count

    def entered(frame: Any, event: str, arg: Any) -> Any:
        return count if frame.f_code.co_filename.startswith(_PACKAGE) else None

    before = sys.gettrace()
    try:
        sys.settrace(entered)
        call()
    finally:
        sys.settrace(before)
    return lines


def run_counted(graph: Graph, arrays: Sequence[np.ndarray], target: Target) -> tuple[list[np.ndarray], int]:
    """(outputs, vectors and elements loaded by all kernels) of a graph after all passes, run on the interpreter of
    nests. It has neither updates nor recurrences."""
    plan = fuse(run_passes(graph, PassContext(target, predicted)), None, target)
    memory = {t: a.reshape(-1).copy() for t, a in zip(plan.graph.inputs, arrays, strict=True)}
    count = 0

    def observe(op: Op, *_: object) -> None:
        nonlocal count
        count += op.name in ("load", "gather")

    for _, call, _ in plan.kernel_calls():
        given = []
        for n, (t, buffer) in enumerate(zip(call.tensors, call.kernel.buffers, strict=True)):
            held = memory.setdefault(storage(t), np.zeros(t.shape, t.dtype.numpy).reshape(-1))
            first = call.offsets[n] // held.itemsize if call.offsets else 0
            given.append(held[first : first + prod(buffer.shape)].reshape(buffer.shape))
        nest_interp.run(lowered(choose(call.kernel, target)), call.kernel, given, observe=observe)
    return [memory[storage(t)].reshape(t.shape) for t in plan.graph.outputs], count
