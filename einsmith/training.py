"""TrainStep: forward, backward and update of a model as one native call (API "Networks and training")."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from einsmith import dtypes as dt
from einsmith import locks
from einsmith.autodiff.sweep import gradients
from einsmith.caches import Bound, Cache
from einsmith.compile import FINITE, PROGRAMS, Executable, label
from einsmith.dtypes import dtype_of
from einsmith.errors import ArgumentError, EinsmithError, GradientError, NonFiniteError, ShapeError
from einsmith.expr.nodes import ROLES, Graph, Leaf, Role, leaf
from einsmith.functional.losses.classes import IGNORED
from einsmith.lang import builder, trace
from einsmith.lang.builder import Value, as_value
from einsmith.modes import Jitted, bound, to_array
from einsmith.runtime.arena import Arena
from einsmith.runtime.interrupts import Deferred
from einsmith.runtime.memory import Memory
from einsmith.runtime.store import ParameterStore, Slot
from einsmith.runtime.threads import get_threads

_WORLDS = Bound("states of modules in training steps", 1024)
_NUMBERS = count()
"""Of such states: programs are known by them."""


@dataclass
class Profile:
    """Measured seconds of a step's kernels, in all turns of loops: (part, label, pattern, measured, predicted) each;
    `part` is the kernel's role: forward, backward or update."""

    rows: list[tuple[Role, str, str, float, float]]
    step_seconds: float

    def part(self, name: str) -> float:
        """Seconds of all kernels of forward, backward or update."""
        return sum(r[3] for r in self.rows if r[0] == name)

    def __str__(self) -> str:
        lines = [f"one step {self.step_seconds * 1e3:.3f} ms; kernels one by one:"]
        for i, (part, text, pattern, measured, predicted) in enumerate(self.rows):
            times = f"{measured * 1e6:9.1f} us  predicted {predicted * 1e6:9.1f}"
            lines.append(f"{i:3d}  {part:<8} {times}  {pattern:<12} {text}")
        for name in ROLES:
            lines.append(f"     {name:<8} {self.part(name) * 1e6:9.1f} us")
        return "\n".join(lines)


class TrainStep:
    """Trains `model`: `step(*inputs, target)` runs one step on a batch and returns the loss as a Python float.

    loss: a function of (model's output, target) giving a float scalar. optimizer: an `es.optim` rule. threads: worker
    threads (default: all cores the process may use). The model's parameters are updated in place. Every batch shape is
    compiled at its first use; `compile` does that without training. winograd: allows 3x3 convolutions at stride 1 in
    Winograd's form, which is faster and rounds differently (the bound is in `composite.winograd`), and in which an
    infinity or NaN reaches all results of its tile. If the loss is not
    finite nothing is updated and NonFiniteError names the step. Ctrl-C waits for the end of a step.

    steps: how many were trained; epoch, position: where `fit` stands, position counting the batches of the epoch;
    epoch_loss, epoch_samples: the sum of the samples' losses in that epoch, and how many they are. A new `optimizer`
    begins without state; so do parameters that replace others. Frozen ones (`requires_grad`) keep theirs.
    """

    def __init__(
        self, model: Any, loss: Callable, optimizer: Any, *, mode: str = "static", seed: int = 0,
        threads: int | None = None, winograd: bool = False,
    ):
        if mode != "static":
            raise EinsmithError(f"mode={mode!r} is not available; use mode='static'")
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise EinsmithError(f"threads={threads!r} must be an integer of at least 1")
        if not hasattr(model, "named_parameters") or isinstance(model, type):
            raise ArgumentError(f"model={_shown(model)} is not a network; pass an es.nn.Module")
        if not callable(loss):
            raise ArgumentError(f"loss={_shown(loss)} is not a function of the model's output and the target")
        if not hasattr(optimizer, "state_names") or isinstance(optimizer, type):
            raise ArgumentError(f"optimizer={_shown(optimizer)} is no update rule; pass one, as es.optim.SGD(lr=0.1)")
        self.model, self.loss, self.optimizer, self.seed = model, loss, optimizer, seed
        self.threads = threads
        self.winograd = winograd
        self.steps = 0
        self.epoch = 0
        self.position = 0
        self.epoch_loss, self.epoch_samples = 0.0, 0
        self.store = ParameterStore()
        for name, p in model.named_parameters():
            self.store.add_parameter(name, p)
        self._hyper: dict[str, np.ndarray] = {}
        self._count = np.zeros((), np.float64)
        self._arena = Arena()  # of all batch shapes
        self._programs: Cache[tuple, Executable] = Cache(PROGRAMS, lambda run: run.nbytes, self._arena.evicted)
        self._evaluate: Jitted | None = None
        self._lock = locks.Awaited("in a training step")
        self._version: object = None  # of what programs depend on, when it was last looked at
        self._made_for = (optimizer, loss)
        self._live: dict[int, tuple[Any, Memory]] = {}  # captured objects, with their memory at that time
        self._depends: dict[int, Any] = {}  # modules that were met while tracing
        self._worlds: Cache[tuple, int] = Cache(_WORLDS)
        self._world = 0

    # -- compiling

    def compile(self, *batch: Any) -> TrainStep:
        """Compiles the step for the shapes and types of a batch (inputs..., target), without training."""
        self._program(self._arrays(batch))
        return self

    def _arrays(self, batch: tuple) -> list[np.ndarray]:
        if len(batch) < 2:
            raise ShapeError("a training step takes the model's inputs and a target: step(x, y)")
        arrays = [to_array(x, f"argument {i}") for i, x in enumerate(batch)]
        for i, a in enumerate(arrays):
            if a.ndim and a.shape[0] == 0:
                raise ShapeError(f"argument {i} has shape {a.shape}: a batch of size 0 trains nothing")
        return arrays

    def _program(self, arrays: list[np.ndarray]) -> Executable:
        threads = self.threads or get_threads()
        shapes = tuple((a.shape, a.dtype) for a in arrays)
        if (
            self._version is not trace.version()
            or self._made_for[0] is not self.optimizer
            or self._made_for[1] is not self.loss
        ):
            self._look()
        run = self._programs.get((shapes, threads, self._world))
        if run is None:
            with trace.LOCK, self.model.in_mode(training=True):
                run = self._trace(arrays, threads)
            self._look()
            self._programs.put((shapes, threads, self._world), run)
        return run

    def _look(self) -> None:
        """Finds what has changed of all that programs depend on: they belong to one state of the modules (`_world`),
        and none of them outlives the optimizer, the loss, or the memory that it was made for."""
        with self._lock:
            self._compare()

    def _compare(self) -> None:
        self._version = trace.version()
        parameters = dict(self.model.named_parameters())
        replaced = [n for n, p in self.store.parameters.items() if parameters.get(n) is not p]
        if self._made_for[0] is not self.optimizer:
            replaced = list(self.store.parameters)
        for name in replaced:
            self.store.forget(name)
        moved = any(o.memory is not memory for o, memory in self._live.values())
        if replaced or moved or self._made_for[1] is not self.loss:
            for kept in (self._programs, self._worlds, self._live, self._hyper):
                kept.clear()
        self.store.parameters = parameters
        self._made_for = (self.optimizer, self.loss)
        modules = {id(m): m for m in self.model.modules()} | self._depends
        world = tuple(m.trace_key(modes=False) for m in modules.values())
        found = self._worlds.get(world)
        if found is None:
            found = next(_NUMBERS)
            self._worlds.put(world, found)
        self._world = found

    def current_state(self) -> dict[str, Slot]:
        """The optimizer's state that the next step goes on with, as `parameter/state`: what belongs to an optimizer or
        to a parameter that was replaced is not part of it."""
        self._look()
        return self.store.state

    def _trace(self, arrays: list[np.ndarray], threads: int) -> Executable:
        inputs = [leaf(a.shape, dtype_of(a)) for a in arrays]
        t = trace.Trace()
        own: list[tuple[Any, Leaf]] = []  # what the step itself has captured

        def scalar(memory: np.ndarray) -> Value:
            x = leaf((), dt.f64)
            own.append((memory, x))
            return Value(x, weak=True)

        t.paths = {id(m): path for path, m in self.model.named_modules()}
        with trace.tracing(t):
            count = scalar(self._count)
            t.key = self.seed % 2**31, builder.cast(count, dt.i32)
            values = [Value(x) for x in inputs]
            loss = as_value(self.loss(self.model(*values[:-1]), values[-1]))
            if loss.shape != () or not loss.dtype.is_float:
                raise GradientError(f"the loss has type {loss.dtype} and shape {loss.shape}; it must be a float scalar")
            trained = [
                (name, p, t.captured[id(p)][1])
                for name, p in self.store.parameters.items()
                if p.requires_grad and id(p) in t.captured
            ]
            if not trained:
                raise GradientError("the loss depends on no parameter that requires a gradient")
            one = builder.full((), 1.0, loss.dtype).tensor
            # What is stored into buffers is rewritten with the loss, so that both read one forward pass.
            stored = [new for _, new in t.updates.values()]
            (out, *stored), grads = gradients(
                [loss.tensor, *stored], [one, *[None] * len(stored)], [x for _, _, x in trained]
            )
            hyper = {}
            for name in self.optimizer.hyper:
                hyper[name] = scalar(self._hyper.setdefault(name, np.zeros((), np.float64)))
            updates = []
            for (name, p, x), g in zip(trained, grads, strict=True):
                state = {}
                slots = {}
                for s in self.optimizer.state_names:
                    initial = self.optimizer.initial(s)
                    slots[s] = self.store.slot(f"{name}/{s}", p.shape, p.memory.dtype, initial, p.memory.layout)
                    y = leaf(x.shape, x.dtype)
                    own.append((slots[s], y))
                    state[s] = (Value(y), y)
                old = {s: v for s, (v, _) in state.items()}
                new, after = self.optimizer.update(Value(x), Value(g), old, hyper, count)
                updates += [(state[s][1], v.tensor) for s, v in after.items()]
                updates.append((x, new.tensor))
            for (obj, _), value in zip(t.updates.values(), stored, strict=True):
                updates.append((t.capture(obj, value.shape, value.dtype), value))
        captured = [*own, *t.captured.values()]
        self._live |= {id(o): (o, o.memory) for o, _ in t.captured.values() if not isinstance(o, np.ndarray)}
        self._depends |= t.depends
        graph = Graph((*inputs, *(x for _, x in captured)), (out,), tuple(updates), (), tuple(grads))
        graph, bind, _ = bound(graph, captured)
        return Executable(graph, bind, threads, finite=graph.outputs[0], winograd=self.winograd, shared=self._arena)

    # -- running

    def __call__(self, *batch: Any) -> float:
        arrays = self._arrays(batch)
        return self._train(self._program(arrays), arrays)

    def _train(self, run: Executable, arrays: list[np.ndarray], samples: int | None = None) -> float:
        """One step; `samples`: of the batch, where it is one of the epoch that `fit` goes through."""
        # A signal that comes while native code runs is handled when it ends: weights and counters move together.
        with self._lock, Deferred():
            self._set_scalars()
            status, outputs = run(arrays)
            value = float(outputs[0])
            if status != FINITE:
                self.steps += 1
                if samples is not None:
                    self.position += 1
                    self.epoch_loss += value * samples
                    self.epoch_samples += samples
        if status == FINITE:
            raise NonFiniteError(
                f"the loss of step {self.steps + 1} is {value}; nothing was updated. Lower the learning rate, or look "
                "at the batch", self.steps + 1, value,
            )
        return value

    def _set_scalars(self) -> None:
        self._count[...] = self.steps + 1
        for name, value in self.optimizer.values(self.steps + 1).items():
            if name in self._hyper:
                self._hyper[name][...] = value

    def fit(
        self, batches: Iterable, epochs: int = 1, *, progress: bool | None = None,
        on_step: Callable[[TrainStep, float], None] | None = None,
        on_epoch: Callable[[TrainStep, float], None] | None = None,
    ) -> list[float]:
        """Trains until `epochs` epochs are done, from where this step stands; returns each epoch's mean loss.

        batches: an iterable of (inputs..., target) that can be iterated again; `es.data.batches` also resumes within an
        epoch. progress: a bar on a terminal, plain lines elsewhere, nothing when False. on_step and on_epoch are called
        after each step and epoch; what they raise ends the training, which another call goes on with.
        """
        history = []
        report = _Progress(progress)
        try:
            while self.epoch < epochs:
                begun, start = self.epoch_samples, time.perf_counter()
                length = len(batches) if isinstance(batches, Sized) else None
                for batch in _epoch(batches, self.epoch, self.position):
                    arrays = self._arrays(batch)
                    value = self._train(self._program(arrays), arrays, _samples(arrays[-1]))
                    rate = (self.epoch_samples - begun) / (time.perf_counter() - start)
                    mean = self.epoch_loss / self.epoch_samples
                    report.step(self.epoch, epochs, self.position, length, mean, rate)
                    if on_step is not None:
                        on_step(self, value)
                if not self.position:
                    raise ShapeError("the batches are empty")
                mean = self.epoch_loss / max(self.epoch_samples, 1)
                self.epoch, self.position, self.epoch_loss, self.epoch_samples = self.epoch + 1, 0, 0.0, 0
                history.append(mean)
                report.epoch(self.epoch, epochs, mean)
                if on_epoch is not None:
                    on_epoch(self, mean)
        finally:
            report.close()
        return history

    def evaluate(self, batches: Iterable) -> dict[str, float]:
        """Mean loss over all examples and, for integer targets of one class each, accuracy. Trains nothing.

        Examples whose class is -100, which losses ignore, count in neither. Raises ShapeError where none is left.
        """
        if self._evaluate is None:

            def run(inputs: tuple, target: Any) -> Any:
                out = self.model(*inputs)
                return self.loss(out, target), out

            self._evaluate = Jitted(run, threads=self.threads, winograd=self.winograd)
        total, right, seen, classes = 0.0, 0, 0, True
        with self.model.in_mode(training=False):
            for *inputs, target in batches:
                target = to_array(target, "target")
                value, out = self._evaluate(tuple(inputs), target)
                n = _samples(target)
                one_each = isinstance(out, np.ndarray) and target.ndim == 1 and out.ndim == 2
                classes = classes and one_each and target.dtype.kind in "iu"
                if classes:
                    n -= int((target == IGNORED).sum())
                    right += int((out.argmax(1) == target).sum())
                if n:  # the mean of no labels is no number
                    total, seen = total + float(value) * n, seen + n
        if not seen:
            raise ShapeError("the batches are empty, or every label in them is ignored")
        return {"loss": total / seen} | ({"accuracy": right / seen} if classes else {})

    # -- for people

    @property
    def plan(self) -> str:
        """What was compiled: every kernel of every batch shape, with its pattern, configuration and predicted time."""
        if not self._programs:
            return "nothing is compiled yet; call step.compile(x, y)"
        parts = []
        for (shapes, threads, _), run in self._programs.items():
            head = ", ".join(f"{d}{list(s)}" for s, d in shapes)
            parts.append(f"training step for {head} on {threads} threads\n{run.describe()}")
        return "\n\n".join(parts)

    def profile(self, *batch: Any, repeats: int = 20) -> Profile:
        """Times every kernel of a step, one by one; changes no weight and no state."""
        arrays = self._arrays(batch)
        run = self._program(arrays)
        self._set_scalars()
        with run.preserved():
            run(arrays)
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                run(arrays)
                times.append(time.perf_counter() - start)
        rows = [
            (part, label(call), kernel.pattern, seconds, kernel.seconds * turns)
            for part, call, kernel, turns, seconds in zip(
                run.roles, run.calls, run.kernels, run.turns, run.time_calls(arrays, repeats), strict=True
            )
        ]
        return Profile(rows, sorted(times)[len(times) // 2])


def _shown(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 60 else f"a {type(x).__name__}"


def _samples(target: np.ndarray) -> int:
    return len(target) if target.ndim else 1


def _epoch(batches: Iterable, epoch: int, start: int) -> Iterable:
    """The batches of one epoch, from number `start` on."""
    if hasattr(batches, "epoch"):
        yield from batches.epoch(epoch, start=start)
        return
    for i, batch in enumerate(batches):
        if i >= start:
            yield batch


class _Progress:
    """A progress bar on a terminal; elsewhere a plain line an epoch, and within long ones one every LINE_SECONDS."""

    LINE_SECONDS = 30.0  # so that a log shows life, and a night's training fits some thousand lines

    def __init__(self, show: bool | None):
        self.show = show if show is not None else True
        self.bar = self.show and sys.stderr.isatty()
        self._last = 0.0 if self.bar else time.perf_counter()
        self._rich: Any = None
        self._process = os.getpid()

    def step(self, epoch: int, epochs: int, done: int, length: int | None, loss: float, rate: float) -> None:
        now = time.perf_counter()
        if not self.show or now - self._last < (0.1 if self.bar else self.LINE_SECONDS):
            return
        self._last = now
        if self._process != os.getpid():  # forked inside the training: the bar is the parent's
            self.show, self.bar, self._rich = False, False, None
            return
        if not self.bar:
            batches = f"{done}/{length}" if length else f"{done}"
            line = f"epoch {epoch + 1}/{epochs}  batch {batches}  loss {loss:.4f}  {rate:.0f}/s"
            print(line, file=sys.stderr, flush=True)
            return
        if self._rich is None:
            with locks.IMPORTING:
                from rich.console import Console
                from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._rich = Progress(
                TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
                TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:.0f}/s"), TimeRemainingColumn(),
                console=Console(stderr=True),  # of its own: a forked child may find the common one locked
            )
            self._rich.start()
            self._task = self._rich.add_task("", total=length, epoch="", loss=0.0, rate=0.0)
        self._rich.update(self._task, completed=done, total=length, epoch=f"{epoch + 1}/{epochs}", loss=loss, rate=rate)

    def close(self) -> None:
        """Ends the bar, so that the terminal is as it was."""
        if self._rich is not None and self._process == os.getpid():
            self._rich.stop()
        self._rich = None

    def epoch(self, epoch: int, epochs: int, loss: float) -> None:
        self.close()
        self._last = time.perf_counter()
        if self.show:
            print(f"epoch {epoch}/{epochs}  loss {loss:.4f}", file=sys.stderr, flush=True)
