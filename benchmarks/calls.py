"""What calls of small programs cost beyond their kernels: python -m benchmarks.calls [name ...] [--json FILE]

Calls with NumPy arrays in and out, on one thread: functions of `es.jit`, operators of `es.op`, modules, `predict`, and
ONNX files as modules and by ONNX's backend interface. The microseconds of the whole call stand beside those of its
layers, each of which contains the ones to its left: the native run of the kernels, the run of the program with its turn
in the queue, its inputs and results, the bound program with the lock of its parameters. Results are compared with
NumPy's before anything is timed.

`launches`: microseconds of a launch inside a program that computes nothing, by its tasks and the program's threads, one
after the other, and in a program of one launch that follows a pause in which the workers fall asleep.

All figures are the least of many short turns, in which the cases take turns: other work on the machine only adds time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import einsmith as es
from benchmarks.driver import KEPT, Parser, Results, table
from einsmith.api import jit
from einsmith.codegen.cache import native
from einsmith.driver.bound_program import BoundProgram
from einsmith.runtime.program import Program
from einsmith.runtime.steps import RunLaunch

CALLS = 50
"""Calls of a turn, which takes half a millisecond: short beside the turns that an operating system gives."""
LAUNCHES = 200
"""Launches of a program."""
PAUSE = 0.001
"""Seconds of a pause, after which all workers of the pool sleep."""
_EMPTY = "define void @nothing(ptr %buffers, ptr %scratch, i64 %task) {\n  ret void\n}\n"


class Case(NamedTuple):
    """A call, the function or module that it compiles, the arrays that its program reads, and the results."""

    name: str
    call: Callable[[], Any]
    compiled: Any
    inputs: Sequence[np.ndarray]
    expected: Sequence[np.ndarray]


def cases() -> Iterator[Case]:
    """Yield the calls."""
    rng = np.random.default_rng(0)
    x, row = rng.random(8, np.float32), rng.random((4, 8), np.float32)
    a, b = rng.random((2, 16, 16), np.float32)
    state, cell = rng.random((2, 1, 8), np.float32)
    double = es.jit(lambda v: 2 * v)
    yield Case("jit", lambda: double(x), double, [x], [2 * x])
    several = es.jit(lambda u, v, h, c: (es.functional.tanh(h) + c, h * c, u @ v))
    yield Case(
        "jit, 4 arrays in, 3 out", lambda: several(a, b, state, cell), several, [a, b, state, cell],
        [np.tanh(state) + cell, state * cell, a @ b],
    )  # fmt: skip
    twice, times = es.op("y[i] = 2*x[i]"), es.op("y[i] = a*x[i]")
    yield Case("op", lambda: twice(x), twice, [x], [2 * x])
    number = np.asarray(3.0)
    yield Case("op, a number by name", lambda: times(x, a=3.0), times, [x, number], [3 * x])
    es.manual_seed(0)
    layers = es.nn.Linear(8, 8), es.nn.Tanh(), es.nn.Linear(8, 4)
    model = es.nn.Sequential(*layers).eval()
    first, last = ((p.weight.numpy(), p.bias.numpy()) for p in (layers[0], layers[2]))
    want = np.tanh(row @ first[0].T + first[1]) @ last[0].T + last[1]
    yield Case("module", lambda: model(row), model, [row], [want])
    yield Case("predict", lambda: model.predict(row), model, [row], [want])
    yield from onnx_cases(row, state)


def onnx_cases(row: np.ndarray, state: np.ndarray) -> Iterator[Case]:
    """Yield calls of a file of two nodes and of one with a state, where the package onnx is installed."""
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return
    from einsmith.frontends.onnx import load
    from einsmith.frontends.onnx.backend import prepare

    weight = np.random.default_rng(1).random((8, 8), np.float32)

    def value(name: str, shape: list[int]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "state"], ["next"]),
        helper.make_node("Tanh", ["next"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "small", [value("x", [4, 8]), value("state", [1, 8])], [value("y", [4, 8]), value("next", [4, 8])],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    after = row @ weight + state
    expected, arrays = [np.tanh(after), after], [row, state]
    module, backend, feeds = load(file).eval(), prepare(file), {"x": row, "state": state}
    yield Case("ONNX module", lambda: module(row, state), module, arrays, expected)
    yield Case("ONNX module, by name", lambda: module(**feeds), module, arrays, expected)
    yield Case("ONNX backend", lambda: backend.run(arrays), backend.module, arrays, expected)
    try:
        import onnxruntime
    except ImportError:
        return
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.SerializeToString(), options, providers=["CPUExecutionProvider"])
    yield Case("onnxruntime", lambda: session.run(None, feeds), None, arrays, expected)


def program_of(case: Case) -> BoundProgram:
    """Return the program that a call runs."""
    f = case.compiled
    if isinstance(f, es.lang.op.Operator):
        f = next(iter(f._bound.values()))
    jitted = f if isinstance(f, jit.Jitted) else jit._JITTED[f]
    return next(iter(jitted._cache.values()))[0]


def layers_of(case: Case) -> dict[str, Callable[[], Any]]:
    """Return what is timed of a call: the functions that run its layers, by name, and the whole. `point` sets the
    pointers of the two layers after it, and returns results into which they write."""
    if case.compiled is None:
        return {"call": case.call}
    program = program_of(case)
    runs, binding, inputs = program.runs, program.binding, list(case.inputs)
    alone = binding.program
    assert isinstance(alone, Program)
    record, time = alone._record, None if program.constants is None else program.constants.watch.time()
    return {
        "point": lambda: program(inputs),
        "kernels": lambda: alone._run(record.address),
        "program": alone.run,
        "arrays": lambda: runs.call(binding, time, inputs),
        "bound": lambda: program(inputs),
        "call": case.call,
    }


def least(calls: dict[tuple[str, str], Callable[[], Any]], seconds: float) -> dict[tuple[str, str], float]:
    """Return the microseconds of each function, the least of its turns in these seconds for all of them."""
    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for key, f in calls.items():
            if key[1] == "point":
                written = f()  # noqa: F841 - held: the next layers write into these results
                continue
            start = time.perf_counter()
            for _ in range(CALLS):
                f()
            best[key] = min(best[key], (time.perf_counter() - start) / CALLS * 1e6)
    return best


def check(case: Case) -> None:
    """Compare the results of a call with NumPy's. Raises AssertionError."""
    for _ in range(3):  # the second call is recognized by the types of its arguments
        results = case.call()
        results = results if isinstance(results, (tuple, list)) else (results,)
        for got, want in zip(results, case.expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def measure_calls(names: Sequence[str], seconds: float) -> dict[str, dict[str, float]]:
    """Return the microseconds of the layers of each call, by name."""
    with es.threads(1):
        chosen = [c for c in cases() if not names or c.name in names]
        for case in chosen:
            check(case)
        best = least({(c.name, n): f for c in chosen for n, f in layers_of(c).items()}, seconds)
    return {c.name: {n: t for (name, n), t in best.items() if name == c.name and n != "point"} for c in chosen}


def launching(count: int, tasks: int, threads: int) -> Program:
    """Return a program of launches of a function that does nothing."""
    code = native.compile_text(_EMPTY, ["nothing"], native.host_target()).addresses["nothing"]
    return Program([RunLaunch(code, tasks, [])] * count, threads=threads)


def measure_launches(seconds: float) -> dict[str, float]:
    """Return microseconds of a launch, by what it is."""
    programs = {
        "1 task, 1 thread": launching(LAUNCHES, 1, 1),
        "1 task, 2 threads": launching(LAUNCHES, 1, 2),
        "2 tasks, 1 thread": launching(LAUNCHES, 2, 1),
        "2 tasks, 2 threads": launching(LAUNCHES, 2, 2),
        "16 tasks, 2 threads": launching(LAUNCHES, 16, 2),
    }
    best = least({(name, ""): p.run for name, p in programs.items()}, seconds)
    figures = {name: best[name, ""] / LAUNCHES for name in programs}
    for name, tasks, threads in (("a pause, 1 thread", 2, 1), ("a pause, 2 threads", 2, 2)):
        program, times = launching(1, tasks, threads), []
        end = time.perf_counter() + seconds / 5
        while time.perf_counter() < end:
            time.sleep(PAUSE)
            start = time.perf_counter()
            program.run()
            times.append(time.perf_counter() - start)
        figures[f"after {name}"] = float(np.median(times)) * 1e6
    return figures


def main() -> int:
    """Measure, and print tables; return the exit status."""
    parser = Parser(__doc__, None, seconds=(10.0, "of all calls, and of all launches"), json=KEPT)
    args = parser.read()
    results = Results(args.json)
    figures = {"calls": lambda: measure_calls((), args.seconds), "launches": lambda: measure_launches(args.seconds)}
    cells = results.fill(figures.items())
    columns = ("kernels", "program", "arrays", "bound", "call")
    rows = (
        (
            name,
            *(f"{t[c]:.2f}" if c in t else "" for c in columns),
            f"{t['call'] - t['kernels']:.2f}" if len(t) > 1 else "",
        )
        for name, t in cells["calls"].items()
    )
    results.console.print(table("calls, microseconds", ("", *columns, "beyond the kernels"), rows))
    launches = ((name, f"{t:.2f}") for name, t in cells["launches"].items())
    results.console.print(table("launches, microseconds of each", ("", "microseconds"), launches))
    return 0


if __name__ == "__main__":
    sys.exit(main())
