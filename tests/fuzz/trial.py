"""Trials of a case: value, gradients, second order and tangents, compiled in one way and compared with the evaluator.

A trial compares the results of one compiled program (see `Check`): run twice in guarded memory, with rubbish in the
arena, scratch and outputs, and once as a user calls it, on arrays that lie in memory in any way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes
from einsmith.base.arrays import to_array
from einsmith.codegen.cache import native
from einsmith.codegen.loopnest.dots import DOTS
from einsmith.cost.facts import Target
from einsmith.driver import constant_values
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Const, Graph, Read, apply, leaf, template
from einsmith.runtime.memory import Memory
from einsmith.schedule import pipeline
from einsmith.tuning.calibration import calibrate
from tests.fuzz import memory, sizes, torch_twin
from tests.fuzz.case import Case
from tests.fuzz.check import Unfit, agree, threads
from tests.fuzz.tolerance import errors
from tests.fuzz.variants import Picker, Seen, drawn_orders, nearest, observed, packing, streaming

WHATS = ("value", "gradient", "jvp", "second")
TARGETS: dict[str, dict[str, Any]] = {
    "host": {}, "32": {"vector_bytes": 32}, "16": {"vector_bytes": 16},
    "avx2": {"vector_bytes": 32, "vector_registers": 16, "cpu": "haswell", "features": "",
             "triple": "x86_64-unknown-linux-gnu"},
    "words": {"dots": tuple((name, 4.0) for name in DOTS)},
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """What is compared: `what` of WHATS, or "twin", "dot", "sizes", "constants", "frozen", "call"; for so many threads;
    on a target of TARGETS; kernels being forced into the configurations (pattern, configuration) in `forced`, and
    intermediate tensors into orders of their dimensions that are drawn from the seed `orders`; 0: none is. streamed:
    the blocks of `variants.STREAMED` in which chains of reductions run, on a machine with next to no last-level cache;
    "": where the model says so."""

    what: str = "value"
    threads: int = 1
    target: str = "host"
    forced: tuple[tuple[str, str], ...] = ()
    orders: int = 0
    streamed: str = ""


class Wrong(AssertionError):
    """A find: what has been computed is wrong, or memory has been touched that may not be."""


class Slow(Exception):
    """A find: compiling one small formula takes too long."""


COMPILE_SECONDS = 5.0
"""Most processor seconds, of all threads of this process, to derive and compile one program of a formula in the
configurations that are chosen for it. A graph of many formulas has no such limit, nor have forced configurations."""


class Trial:
    """The programs of a case. Nothing is computed before it is asked for."""

    def __init__(self, case: Case):
        self.case = case
        self.arrays = case.arrays()
        self.static = {n: v for n, v in case.parameters.items() if isinstance(v, int)}
        self.running = {n: v for n, v in case.parameters.items() if n not in self.static}
        self.f = case.function()
        self.rng = np.random.default_rng(case.seed + 1)
        self._made: dict[str, TrialProgram] = {}
        self._values: list[np.ndarray] | None = None
        self.seen = Seen()
        self.directions: tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]] | None = None

    def apply(self, *arrays: Any) -> Any:
        return self.f(*arrays, **self.case.parameters)

    def is_begun(self) -> bool:
        """Whether a program of it, or its values by the evaluator, are there."""
        return self._values is not None or bool(self._made)

    def rounds(self) -> bool:
        """Whether the evaluator rounds, too: to float16."""
        return any(a.dtype == np.float16 for a in self.arrays)

    @property
    def values(self) -> list[np.ndarray]:
        """The results by the evaluator."""
        if self._values is None:
            self._values = self.program("value").want()[0]
        return self._values

    def random(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        if np.dtype(dtype).kind != "f":
            return np.zeros(shape, dtype)
        found = self.rng.integers(-2, 3, shape) if self.case.exact else self.rng.standard_normal(shape)
        return np.asarray(found).astype(dtype)

    def program(self, what: str) -> TrialProgram:
        if what not in self._made:
            self._made[what] = self._program(what)
        return self._made[what]

    def _program(self, what: str) -> TrialProgram:
        if what == "value":
            return TrialProgram(lambda *a, **k: self.f(*a, **self.static, **k), self.arrays, self.running)
        outputs = self.program("value").traced.graph.outputs
        at = [n for n, a in enumerate(self.arrays) if a.dtype.kind == "f"]
        if not at or not any(t.dtype.is_float for t in outputs):
            raise Unfit("no float input or no float output")
        if self.case.special:
            raise Unfit("derivatives where there are no numbers")
        if self.directions is None:
            c = [self.random(t.shape, t.dtype.numpy) for t in outputs]
            v = [self.random(self.arrays[n].shape, self.arrays[n].dtype) for n in at]
            self.directions = c, v, [self.random(x.shape, x.dtype) for x in v]
        c, v, w = self.directions
        n, m = len(c), len(c) + len(v)

        def tangents(v: Sequence[Any]) -> list[Any]:
            given = dict(zip(at, v, strict=True))
            return [given.get(k) for k in range(len(self.arrays))]

        def pulled(c: Sequence[Any], a: Sequence[Any]) -> list[Any]:
            _, pull = es.vjp(lambda *x: _several(self.apply(*x)), *a)
            return [g for g in pull(tuple(c)) if g is not None]

        def gradient(*x: Any) -> Any:
            return tuple(pulled(x[:n], x[n:]))

        def jvp(*x: Any) -> Any:
            return tuple(_several(es.jvp(self.apply, x[len(v) :], tangents(x[: len(v)]))[1]))

        def second(*x: Any) -> Any:
            inner = _rest(pulled, x[:n])
            return tuple(es.jvp(inner, x[m:], tangents(x[n:m]))[1])

        def reverse(*x: Any) -> Any:
            inner = _rest(pulled, x[:n])
            _, pull = es.vjp(inner, *x[m:])
            return tuple(g for g in pull(tuple(x[n:m])) if g is not None)

        f, lead = {
            "gradient": (gradient, c), "jvp": (jvp, v), "second": (second, [*c, *v]), "reverse": (reverse, [*c, *w]),
        }[what]  # fmt: skip
        return TrialProgram(f, [*lead, *self.arrays], {})

    # -------------------------------------------------------------------------------------------------------- checks

    def compare(self, check: Check, pick: Picker | None = None) -> None:
        """Raises AssertionError where the compiled program is wrong. `pick` goes before `check.forced`."""
        start = time.process_time()
        program, case = self.program(check.what), self.case
        pick = pick or (nearest(check.forced) if check.forced else None)
        target = _target(check)
        with observed(self.seen, pick), drawn_orders(check.orders), streaming(check.streamed):
            run = program.compiled(check.threads, target)
        seconds = time.process_time() - start
        if seconds > COMPILE_SECONDS and pick is None and not check.streamed and not case.is_python:
            raise Slow(f"{check.what}: {seconds:.1f} s of compiling, {COMPILE_SECONDS:.0f} s are allowed")
        what = f"{check.what}, {check.threads} threads, {check.target}" + ", streamed" * bool(check.streamed)
        first = program.run(run, what, bool(case.seed % 2), 0xFF)
        agree(first, program.traced.graph, program.inputs, what, case.exact, program.want(), program.bounds())
        again = program.run(run, what, not case.seed % 2, 0x3C)
        for n, (a, b) in enumerate(zip(first, again, strict=True)):
            if a.tobytes() != b.tobytes():
                raise Wrong(f"{what}, result {n}: two runs differ")

    def call(self, n: int) -> None:
        """As a user calls it, on arrays that lie anyhow in memory: the bits of the program for contiguous ones."""
        program, views = self.program("value"), self.case.views()
        with observed(self.seen):
            alone = program.compiled(n, calibrate.target(n))
        want = program.run(alone, f"call, {n} threads", True, 0xFF)
        before = [a.tobytes() for a in views]
        with observed(self.seen), threads(n):
            f = es.jit(self.apply) if self.case.is_python else self.apply
            got = _several(f(*views))
        if any(a.tobytes() != b for a, b in zip(views, before, strict=True)):
            raise Wrong(f"call, {n} threads: an input was changed")
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                raise Wrong(f"call, {n} threads, result {k}: not what the program gives for contiguous arrays")

    def constants(self, n: int) -> None:
        """Some inputs, with zeros, are constants in values or gradients; sums over them are unrolled or lists."""
        if self.case.special or self.case.is_python:
            raise Unfit("a zero times what is infinite, or no formula")
        rng = np.random.default_rng(self.case.seed + 3)
        arrays = [np.where(rng.integers(0, 2, a.shape) > 0, a, 0).astype(a.dtype) for a in self.arrays]
        known = {k: es.constant(a) for k, a in enumerate(arrays) if rng.integers(0, 2)}
        rest = [k for k in range(len(arrays)) if k not in known]
        at = tuple(n for n, k in enumerate(rest) if arrays[k].dtype.kind == "f")

        def apply(*given: Any) -> tuple:
            whole = known | dict(zip(rest, given, strict=True))
            return _several(self.apply(*(whole[k] for k in range(len(arrays)))))

        def loss(*given: Any) -> Any:
            return sum(((t * t).sum() for t in apply(*given) if is_float(t)), 0 * given[at[0]].sum())

        def is_float(t: Any) -> bool:
            return t.tensor.dtype.is_float

        derives = bool(at) and bool(self.case.seed % 2)
        program = TrialProgram(es.grad(loss, at) if derives else apply, [arrays[k] for k in rest], {})
        price = _count_points if rng.integers(0, 2) else _count_buffers
        with mock.patch.object(constant_values, "predicted", price), observed(self.seen):
            run = program.compiled(n, calibrate.target(n))
        what = f"constants {sorted(known)}, {n} threads"
        got = program.run(run, what, True, 0xFF)
        agree(got, program.traced.graph, program.inputs, what, self.case.exact, program.want(), program.bounds())

    def frozen(self, n: int) -> None:
        """Some inputs are memory that a program reads and never changes, beside what it updates: kernels pack it once,
        and again after every change."""
        if self.case.special or self.case.is_python:
            raise Unfit("values that are changed may become infinite, or no formula")
        rng = np.random.default_rng(self.case.seed + 4)
        derives = bool(self.case.seed % 2) and any(a.dtype.kind == "f" for a in self.arrays)
        program = self.program("gradient") if derives else self.program("value")
        graph, held = program.traced.graph, {}
        for x, a in zip(graph.inputs, program.inputs, strict=False):
            if x not in program.traced.bind and rng.integers(0, 4):
                held[x] = Memory(a.shape, a.dtype)
                held[x].store(a)
        count = leaf((), dtypes.f32)
        kept = Memory((), np.dtype(np.float32))
        kept.store(0)
        more = Compute(
            template((), [(dtypes.f32, ())], apply("add", Read(0, (), dtypes.f32), Const(1.0, dtypes.f32))), (count,)
        )
        whole = Graph((*graph.inputs, count), graph.outputs, ((count, more),), graph.checks, graph.gradients)
        bind = program.traced.bind | {x: m.host for x, m in held.items()} | {count: kept.host}
        with mock.patch.object(pipeline, "LEAST_SAVED", -1.0), observed(self.seen, packing(rng)):
            run = Executable(
                whole, bind, n, target=calibrate.target(n), memories=[*held.values(), kept], frozen=[*held.values()]
            )
        what, inputs = f"frozen {len(held)} of {len(program.given)}, {n} threads", list(program.inputs)
        for turn in range(4):
            given = [a for x, a in zip(graph.inputs, inputs, strict=False) if x not in bind]
            got = run(given)[1]
            agree(got, graph, inputs, f"{what}, turn {turn}", self.case.exact)
            if turn == 1:
                for k, x in enumerate(graph.inputs):
                    if x in held and inputs[k].dtype.kind == "f":
                        inputs[k] = (inputs[k][..., ::-1] if inputs[k].ndim else inputs[k]).copy()
                        held[x].store(inputs[k])
        if float(kept.host) != 4:
            raise Wrong(f"{what}: {kept.host} updates in 4 runs")

    def sizes(self) -> None:
        """A program that sizes share gives what each size's own gives, for values or gradients."""
        seed, extents = self.case.seed, sizes.extents_of([i.shape for i in self.case.inputs.values()])
        if self.case.special or not extents:
            raise Unfit("no extent varies, or infinite numbers, of which sums depend on their order")
        rng = np.random.default_rng(seed)
        subject = sizes.of_case(self.case, int(rng.choice(extents)))
        chosen = sizes.draw_sizes(rng, subject)
        if not sizes.fits(subject, chosen):
            raise Unfit("the formula has one size")
        with observed(self.seen), sizes.guarded_memory() as guards:
            sizes.compare(subject, chosen, "shared", guards, bool(seed % 2))

    def dot(self) -> None:
        """Forward and reverse mode agree by the evaluator, to second order: neither knows how the other is derived."""
        if self.rounds():
            raise Unfit("derivatives that are rounded to float16 agree to its precision only")
        pairs = (("jvp", 0, "gradient", 1), ("second", 2, "reverse", 1))
        for forward, c, backward, v in pairs[: 2 if self.case.seed % 2 else 1]:
            left = self.program(forward)
            assert self.directions is not None
            left_value, left_size = _product(self.directions[c], left.want()[0])
            right = self.program(backward)
            right_value, right_size = _product(self.directions[v], right.want()[0])
            if not np.isfinite([left_value, right_value]).all():
                raise Unfit("infinite derivatives")
            if abs(left_value - right_value) > 1e-7 * (1 + left_size + right_size):
                raise Wrong(f"dot: {forward} {left_value!r} is not {backward} {right_value!r}")

    def twin(self) -> None:
        """Values and gradients agree with an independent translation to PyTorch."""
        if self.case.special:
            raise Unfit("what infinite numbers become is compared with the evaluator")
        if "arg" in self.case.text and any(i.layout == "broadcast" for i in self.case.inputs.values()):
            raise Unfit("roundings decide which position is that of the largest of equal values")
        rng = np.random.default_rng(self.case.seed + 2)
        kept: list[Any] = []
        floats = [t.dtype.is_float for t in self.program("value").traced.graph.outputs]

        def cotangents(values: Sequence[np.ndarray]) -> list[Any]:
            both = zip(values, floats, strict=True)
            kept[:] = [rng.standard_normal(v.shape) if v.dtype.kind == "f" and f else None for v, f in both]
            return kept

        try:
            values, grads = torch_twin.run(self.case, self.arrays, cotangents)
        except torch_twin.NoTwin:
            raise Unfit("no plain way to say it in PyTorch") from None
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in self.arrays]
        own = _several(es.interpret(self.apply)(*wide)) if self.rounds() else self.values
        for n, (a, b) in enumerate(zip(own, values, strict=True)):
            _same(a, b, f"twin, result {n}")
        at = [n for n, a in enumerate(self.arrays) if a.dtype.kind == "f"]
        if not at or all(c is None for c in kept) or grads is None:
            return

        def scalar(*a: Any) -> Any:
            total = 0.0
            for o, c in zip(_several(self.apply(*a)), kept, strict=True):
                total = total if c is None else total + (o * c).sum()
            return total

        for k, (a, b) in enumerate(zip(es.interpret(es.grad(scalar, tuple(at)))(*wide), grads, strict=True)):
            _same(a, b, f"twin, gradient by input {at[k]}")


class TrialProgram:
    """A traced function with the arrays to run it on, what it must give, and executables of it."""

    def __init__(self, f: Callable, arrays: Sequence[np.ndarray], parameters: dict[str, float]):
        self.traced = trace_call(f, tuple(arrays), parameters)
        self.given = [to_array(a) for a in arrays] + [np.asarray(v, np.float64) for v in parameters.values()]
        graph = self.traced.graph
        self.inputs = [*self.given, *(self.traced.bind[x] for x in graph.inputs[len(self.given) :])]
        self._want: tuple[list[np.ndarray], list[np.ndarray]] | None = None
        self._bounds: tuple | None = None

    def want(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        if self._want is None:
            self._want = evaluate(self.traced.graph, self.inputs)
        return self._want

    def bounds(self) -> tuple:
        """The evaluator's results with bounds of errors, and the greatest number met."""
        if self._bounds is None:
            self._bounds = errors(self.traced.graph, self.inputs)
        return self._bounds

    def compiled(self, n: int, target: Target) -> Executable:
        return Executable(self.traced.graph, self.traced.bind, n, target=target)

    def run(self, executable: Executable, what: str, before: bool, fill: int) -> list[np.ndarray]:
        """The outputs of a run in guarded memory."""
        graph = self.traced.graph
        executable.arena[:] = fill
        held = []
        for a in self.given:
            h = memory.lent(a.nbytes)
            h.place(a.nbytes, a.dtype.itemsize, before)[:] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
            held.append(h)
        outs = []
        for t in graph.outputs:
            size = int(np.prod(t.shape, dtype=np.int64)) * t.dtype.itemsize
            outs.append(memory.lent(size))
            outs[-1].place(size, 64, before)
        try:
            places = [[h.bytes.ctypes.data for h in x] for x in (held, outs)]
            executable.run_at(*places)
            for n, (h, a) in enumerate(zip(held, self.given, strict=True)):
                if h.bytes.tobytes() != a.tobytes() or not h.intact():
                    raise Wrong(f"{what}: input {n} or bytes beside it were changed")
            for n, h in enumerate(outs):
                if not h.intact():
                    raise Wrong(f"{what}: bytes beside result {n} were changed")
            pairs = zip(graph.outputs, outs, strict=True)
            return [np.frombuffer(h.bytes.tobytes(), t.dtype.numpy).reshape(t.shape) for t, h in pairs]
        finally:
            for h in (*held, *outs):
                memory.give_back(h)


def _count_points(kernel: Any, target: Target) -> float:
    """The price of a kernel on a machine where points take time, however many terms are added at each."""
    return float(sum(np.prod(p.domain, dtype=np.int64) for p in kernel.root.parts))


def _count_buffers(kernel: Any, target: Target) -> float:
    """The price of a kernel on a machine where lists of terms, which have buffers of their own, take the least time."""
    return 10.0 * (len(kernel.root.parts) > 1) + 1 / (1 + len(kernel.buffers))


def _target(check: Check) -> Target:
    cache = {"l3": 1} if check.streamed else {}
    return replace(native.host_target(), cores=check.threads, **TARGETS[check.target], **cache)


def _several(out: Any) -> tuple:
    return out if isinstance(out, tuple) else (out,)


def _rest(pulled: Callable, c: Sequence[Any]) -> Callable:
    return lambda *a: tuple(pulled(c, a))


def _product(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> tuple[float, float]:
    """Inner product of two lists of float arrays, and that of their magnitudes."""
    pairs = [(x.astype(float), y) for x, y in zip(a, b, strict=True) if x.dtype.kind == "f"]
    return sum(float((x * y).sum()) for x, y in pairs), sum(float(np.abs(x * y).sum()) for x, y in pairs)


def _same(a: np.ndarray, b: np.ndarray, what: str) -> None:
    if a.shape != tuple(b.shape):
        raise Wrong(f"{what}: shape {a.shape}, PyTorch has {tuple(b.shape)}")
    a, b = np.asarray(a, float), np.asarray(b, float)
    scale = float(np.abs(np.where(np.isfinite(b), b, 0)).max(initial=1.0))
    with np.errstate(invalid="ignore"):
        bad = ~((np.abs(a - b) <= 1e-6 * scale) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if bad.any():
        at = tuple(map(int, np.unravel_index(np.argmax(bad), bad.shape)))
        raise Wrong(f"{what}: {bad.sum()} of {bad.size} elements differ, first at {at}: {a[at]!r}, PyTorch {b[at]!r}")


def run_check(case: Case, check: Check) -> None:
    """The trial that a check says. Raises AssertionError (or whatever the code under test raises) where it fails."""
    trial = Trial(case)
    if check.what == "twin":
        trial.twin()
    elif check.what == "dot":
        trial.dot()
    elif check.what == "sizes":
        trial.sizes()
    elif check.what == "constants":
        trial.constants(check.threads)
    elif check.what == "frozen":
        trial.frozen(check.threads)
    elif check.what == "call":
        trial.compare(replace(check, what="value"))
        trial.call(check.threads)
    else:
        trial.compare(check)
