"""How much work a call is, counted: the same on every machine."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from einsmith.codegen.cache.native import compile_text, host_target
from einsmith.codegen.ssa import Op
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Graph
from einsmith.ir.views import storage
from einsmith.kernels.autoconfig import choose, predicted
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.planner import fuse
from einsmith.tuning.kernels.decisions import lower_choice
from tests import nest_interp

_lines = ctypes.c_int64()
_EXECUTED = f"""
define i32 @executed(ptr %self, ptr %frame, i32 %event, ptr %argument) {{
  %lines = inttoptr i64 {ctypes.addressof(_lines)} to ptr
  %begins = icmp eq i32 %event, 2
  %more = zext i1 %begins to i64
  %before = load i64, ptr %lines
  %after = add i64 %before, %more
  store i64 %after, ptr %lines
  ret i32 0
}}
"""
"""Counts the events PyTrace_LINE (Python's C API, Profiling and Tracing). A trace function in Python takes most of the
time that counting takes."""
_set_trace = ctypes.pythonapi.PyEval_SetTrace
_set_trace.argtypes, _set_trace.restype = (ctypes.c_void_p, ctypes.c_void_p), None


def executed_lines(call: Callable[[], Any]) -> int:
    """Lines of Python that a call executes; one that is gone back to counts again."""
    code = compile_text(_EXECUTED, ["executed"], host_target())
    collecting, before = gc.isenabled(), sys.gettrace()
    gc.disable()  # what runs when garbage is collected depends on what was made before the call
    _lines.value = 0
    try:
        _set_trace(code.addresses["executed"], None)
        call()
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return _lines.value


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
        nest_interp.run(lower_choice(choose(call.kernel, target)), call.kernel, given, observe=observe)
    return [memory[storage(t)].reshape(t.shape) for t in plan.graph.outputs], count
