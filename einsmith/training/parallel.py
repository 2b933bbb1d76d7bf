"""Train one model in a group of processes, each on its part of every batch (data parallelism).

Every process accumulates the gradients of its samples, as for several batches that make one update; the group sums them
while the backward pass goes on; then every process makes the same update. The sums are in the order of the ranks, so
that all processes have bitwise equal parameters.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from statistics import median
from types import CodeType
from typing import Any

import numpy as np

from einsmith import optim
from einsmith.base import VERSION
from einsmith.base.errors import ArgumentError, GroupError, NonFiniteError, ShapeError
from einsmith.base.sizes import show_size
from einsmith.distributed.group import ProcessGroup, add_in_order, all_gather, all_reduce, reduce_scatter
from einsmith.driver.executable import FINITE, Executable
from einsmith.runtime.memory import Memory
from einsmith.runtime.signals import Deferred
from einsmith.training.accumulation import Accumulation
from einsmith.training.batch import count_samples
from einsmith.training.compiler import StepCompiler
from einsmith.training.definition import StepDefinition
from einsmith.training.epochs import Epochs
from einsmith.training.gradient_buckets import GradientBuckets
from einsmith.training.manifest import loss_name
from einsmith.training.numbers import StepNumbers
from einsmith.training.reports import Reports
from einsmith.training.shards import Shard
from einsmith.training.state import GRADIENT, TrainingState
from einsmith.training.step_graph import find_coupling

SAMPLES, LOSS_SAMPLES, LOSS, INFINITE, FAILED, FIXED = range(6)
"""Positions in the numbers that ranks sum for an update: samples of all its batches; samples whose loss is reported,
and the sum of their losses; ranks with a loss that is not finite; ranks that failed. The sums of named losses follow,
then, for each parameter, the number of ranks that have a gradient of it."""


class GroupTraining:
    """The steps of one training in a group of processes. All arguments but the first two are parts of the step.

    group: the processes; shard_optimizer: whether each of them keeps the state of a part of the parameters only."""

    _divides_norm = True
    """Whether each rank sums the powers of a part of the gradients only, for their norm."""

    def __init__(
        self,
        group: ProcessGroup,
        shard_optimizer: bool,
        definition: StepDefinition,
        state: TrainingState,
        accumulation: Accumulation,
        numbers: StepNumbers,
        compiler: StepCompiler,
        reports: Reports,
        epochs: Epochs,
    ):
        self.group, self._definition, self._state = group, definition, state
        self._shards = shard_optimizer
        self._accumulation, self._numbers, self._compiler = accumulation, numbers, compiler
        self._reports, self._epochs = reports, epochs
        self._buckets = GradientBuckets(state.store, group.size)
        numbers.rank, numbers.ranks = group.rank, group.size
        compiler.notices = self._buckets.notices
        self._trained: set[str] = set()
        """Parameters that have a gradient from this rank's batches since the last update."""
        self._is_infinite = False
        self._failure: BaseException | None = None
        """What one of these batches raised; all ranks learn of it at the update."""
        self._waits: deque[float] = deque(maxlen=101)
        """Seconds for which the last steps have waited for sums of gradients."""
        self._losses = np.zeros(2)
        """Samples since the last update, and the sums of their losses: of the loss, then of each named one."""
        if compiler.search.mode != "static" or compiler.search.tune:
            raise ArgumentError(
                "a step in a group is not tuned while it trains, as all processes run the same kernels; tune before, "
                "by `einsmith tune`"
            )
        if shard_optimizer:
            check_divisible(state)
        self.begin()

    def begin(self) -> None:
        """Check that all ranks train the same, and give all of them the parameters and buffers of rank 0."""
        self.check_agreement()
        self.share(parameters=True)

    def check_agreement(self) -> None:
        """Check that all ranks train the same. Raises GroupError, on every rank, which names the difference."""
        model, d = self._definition.model, self._definition
        self.group.agree(
            "the training step",
            {
                "version": VERSION,
                "parameters": {n: [*_form(p), p.requires_grad] for n, p in model.named_parameters()},
                "buffers": {n: _form(b) for n, b in model.named_buffers()},
                "code": {type(m).__qualname__: _digest(type(m)) for m in model.modules()},
                "loss": loss_name(d.loss) or _describe(d.loss),
                "optimizer": optim.describe(d.optimizer) or _describe(d.optimizer),
                "settings": asdict(d.settings),
                "seed": int(d.seed),
                "updates": self._accumulation.steps,
            },
        )

    def share(self, parameters: bool = False) -> None:
        """Give all ranks the buffers of rank 0, such as running statistics; parameters: the parameters too."""
        model = self._definition.model
        stored = [b for _, b in model.named_buffers()]
        if parameters:
            stored += [p for _, p in model.named_parameters()]
        with self._state.store.guard:
            values = self.group.broadcast([s.memory.copy() for s in stored])
            for s, value in zip(stored, values, strict=True):
                s.memory.store(value)

    # -- steps

    def compile(self, arrays: list[np.ndarray]) -> None:
        """Compile the program for this rank's part of a batch."""
        with self._state.store.guard:
            self._prepare()
        self._compiler.find_or_compile(arrays, True)

    def train(self, arrays: list[np.ndarray], is_epoch: bool, last: bool) -> float:
        """Train on this rank's part of a batch, and return the mean loss over all ranks where the batch makes an
        update, else that of this rank. The arguments are those of `TrainStep.train_arrays`."""
        count = count_samples(arrays)
        while True:
            with Deferred(), self._state.store.guard:
                self._prepare()
                run = self._compiler.find(arrays, True) if count else None
                if run is not None or (not count and self._reports.is_known):
                    return self._train(run, arrays, count, is_epoch, last)
            self._compile_or_trace([arrays])

    def _prepare(self) -> None:
        """Follow changes of the model and the optimizer, and arrange the gradients. The caller holds the guard."""
        self._compiler.compare_if_changed()
        if not self._buckets.is_arranged():
            self._unite_shards()
            self._buckets.arrange()
            self._compiler.drop()

    def _compile_or_trace(self, batches: list[list[np.ndarray]]) -> None:
        """Compile the programs for these batches; for an empty one, learn what its program would report."""
        for arrays in batches:
            if count_samples(arrays):
                self._compiler.find_or_compile(arrays, True)
        if not self._reports.is_known:
            shapes = [(a.shape, a.dtype) for a in batches[0]]
            self._compiler.trace([np.zeros((2, *shape[1:]) if shape else (), dtype) for shape, dtype in shapes], True)

    def _train(self, run: Executable | None, arrays: list[np.ndarray], count: int, is_epoch: bool, last: bool) -> float:
        updates = self._accumulation.batches + 1 >= self._definition.settings.accumulate or last
        if not self._accumulation.batches:
            self._forget_batches()
            self._buckets.clear_others(() if run is None else run.note.trained)
        self._numbers.set(arrays)
        self._buckets.begin()
        # Buckets are summed on the group's thread, in the order of their numbers on every rank.
        pending = [self._start(n) for n in range(len(self._buckets.buckets))] if updates else []
        status, outputs = 0, list[np.ndarray]()
        try:
            if run is not None and self._failure is None:
                status, outputs = run.run_locked(arrays)
                self._trained |= set(run.note.trained)
        except BaseException as e:
            self._failure = e
        finally:
            self._buckets.end()
        loss = float(outputs[0]) if outputs else math.nan
        if status == FINITE:
            self._is_infinite = True
        elif outputs:
            values = [float(x) for x in outputs]
            self._losses += [count, *(x * count for x in values[: 1 + len(self._reports.names)])]
        if not updates:
            self._buckets.await_end()
            self._accumulation.add(count)
            if is_epoch:
                self._epochs.add(0.0, 0, {})
            return loss
        return self._update(pending, arrays, is_epoch)

    def _forget_batches(self) -> None:
        self._is_infinite, self._failure = False, None
        self._trained, self._losses = set(), np.zeros(2 + len(self._reports.names))

    def _start(self, number: int) -> Future[None]:
        buckets = self._buckets
        flat = buckets.buckets[number].flat

        def reduce_bucket(transport: Any) -> None:
            buckets.await_bucket(number)
            if self._shards:
                reduce_scatter(transport, flat, add_in_order)
            else:
                all_reduce(transport, flat)

        return self.group.submit(reduce_bucket)

    def _update(self, pending: list[Future[None]], arrays: list[np.ndarray], is_epoch: bool) -> float:
        """Sum what this rank has with all others', and update the parameters."""
        names, accumulation, count = self._reports.names, self._accumulation, count_samples(arrays)
        sums = np.zeros(FIXED + len(names) + len(self._buckets.names))
        sums[SAMPLES], sums[LOSS_SAMPLES : LOSS + 1] = accumulation.samples + count, self._losses[:2]
        sums[INFINITE], sums[FAILED] = self._is_infinite, self._failure is not None
        sums[FIXED : FIXED + len(names)] = self._losses[2:]
        sums[FIXED + len(names) :] = [n in self._trained for n in self._buckets.names]
        start = time.perf_counter()
        for future in pending:
            future.result()
        self._buckets.await_end()
        self._waits.append(time.perf_counter() - start)
        self.group.all_reduce_flat(sums).result()
        return self._end_step(sums, arrays, is_epoch)

    def _end_step(self, sums: np.ndarray, arrays: list[np.ndarray], is_epoch: bool) -> float:
        """Update the parameters by summed gradients, report the step, and return its mean loss. sums: see SAMPLES."""
        failure = self._failure
        self._forget_batches()
        self._raise_failures(sums, failure)
        names, samples = self._reports.names, sums[LOSS_SAMPLES]
        ranks_of = zip(self._buckets.names, sums[FIXED + len(names) :], strict=True)
        self._apply(tuple(n for n, ranks in ranks_of if ranks), arrays, float(sums[SAMPLES]))
        self._reports.losses = {n: float(x / samples) for n, x in zip(names, sums[FIXED:], strict=False)}
        mean = float(sums[LOSS] / samples)
        if is_epoch:
            self._epochs.add(mean, int(samples), self._reports.losses)
        return mean

    def _apply(self, trained: tuple[str, ...], arrays: list[np.ndarray], samples: float) -> None:
        """Update parameters by the summed gradients of `samples` samples, and count the update."""
        settings, group = self._definition.settings, self.group

        def mine() -> list[Shard]:
            return [piece for piece in self._buckets.pieces_of(group.rank) if piece.name in trained]

        def run(update: Executable, norm: float) -> list[np.ndarray]:
            self._numbers.set(arrays)
            self._numbers.derived["samples"][...] = samples
            self._numbers.derive("norm")[...] = norm
            return update.run_locked([])[1]

        interrupts: list[BaseException] = []

        def complete(update: Executable, norm: float) -> list[np.ndarray]:
            """Run a program to its end: the other ranks make this step, whatever signal comes here."""
            while True:
                try:
                    return run(update, norm)
                except KeyboardInterrupt as e:  # it has stored nothing
                    interrupts.append(e)

        whole = partial(self._buckets.whole, trained)
        norm = 0.0
        if settings.clip_grad_norm is not None:
            # Every rank adds up its own part, whether or not it updates only that: the sum is the same.
            parts = mine if self._divides_norm else whole
            powers = 0.0
            if parts():
                powers = float(complete(self._compiler.find_or_compile_update(trained, parts, True), norm)[0])
            found = group.gather_numbers(powers)
            norm = _norm(found if self._divides_norm else found[:1], settings.norm_type)
        self._reports.grad_norm = norm if settings.clip_grad_norm is not None else None
        pieces = mine if self._shards else whole
        if pieces():
            complete(self._compiler.find_or_compile_update(trained, pieces, False), norm)
        if self._shards:
            self._share_parameters(trained)
            self._drop_whole_state(trained)
        self._accumulation.end_update(self._state.counts.regroup(trained)[0])
        if interrupts:
            raise interrupts[0]

    def _share_parameters(self, trained: Collection[str]) -> None:
        """Give all ranks the parameters of which each has updated its own pieces. The buckets, whose gradients are used
        up, carry them."""
        rank, parameters = self.group.rank, self._state.store.parameters
        pending = []
        for bucket in self._buckets.buckets:
            count = bucket.flat.size // self.group.size
            for piece in bucket.pieces(rank * count, (rank + 1) * count):
                piece.gradient[...] = piece.select(parameters[piece.name].memory.physical)
            pending.append(self.group.submit(partial(all_gather, flat=bucket.flat)))
        for bucket, future in zip(self._buckets.buckets, pending, strict=True):
            future.result()
            for piece in bucket.pieces(0, bucket.flat.size):
                if piece.name in trained:
                    piece.select(parameters[piece.name].memory.physical)[...] = piece.gradient

    def _drop_whole_state(self, trained: Collection[str]) -> None:
        """Remove the state, such as that of a save, of which every rank has taken its part."""
        state = self._state.store.state
        for name in [n for n in state if parameter_name(n) in trained and not n.endswith(f"/{GRADIENT}")]:
            del state[name]

    def _unite_shards(self) -> None:
        """Put divided state together on every rank, before it is divided anew. All ranks call it."""
        store = self._state.store
        for name, values in self.gather_state().items():
            p = store.parameters[parameter_name(name)]
            layout = p.memory.layout if values.shape == p.shape else None
            store.state.pop(name, None)
            store.slot(name, values.shape, values.dtype, values, layout)
        store.shards.clear()

    def gather_state(self, kind: str | None = None) -> dict[str, np.ndarray]:
        """Return the state that is divided among the ranks as a whole, by `parameter/state`. All ranks call it.

        kind: the state to gather; all by default."""
        if not self._shards:
            return {}
        store, out = self._state.store, {}
        mine = {
            n: bool(shard.memory.shape)
            for n, shard in sorted(store.shards.items())
            if kind is None or n.endswith(f"/{kind}")
        }
        known: dict[str, bool] = {}
        for found in self.group.gather(mine):
            known |= found
        parts = {piece.name: piece.part for piece in self._buckets.pieces_of(self.group.rank)}
        for name in sorted(known):
            parameter, shard = store.parameters[parameter_name(name)], store.shards.get(name)
            if not known[name]:
                values = self.group.gather(None if shard is None else float(shard.data))
                out[name] = np.asarray(next(v for v in values if v is not None), parameter.memory.dtype)
                continue
            whole = Memory(parameter.shape, parameter.memory.dtype, parameter.memory.layout)
            flat = np.zeros(whole.physical.size, whole.dtype)
            if shard is not None:
                flat[parts[parameter_name(name)]] = shard.data
            self.group.all_reduce_flat(flat).result()
            whole.physical.reshape(-1)[...] = flat
            out[name] = whole.logical()
        return out

    def describe(self) -> str:
        """Describe the buckets, and how long steps have waited for their sums."""
        lines = [f"gradients of {self.group.size} processes are summed in buckets:"]
        for n, bucket in enumerate(self._buckets.buckets):
            many = f" to {bucket.names[-1]}" if len(bucket.names) > 1 else ""
            lines.append(f"  {n}: {show_size(bucket.flat.nbytes)}, {bucket.names[0]}{many}")
        if self._waits:
            lines.append(f"after the backward pass, a step waits {median(self._waits) * 1e3:.3f} ms for the rest")
        return "\n".join(lines)

    @property
    def _divisions(self) -> str:
        return f"{self.group.size} ranks"

    def _raise_failures(self, sums: np.ndarray, failure: BaseException | None) -> None:
        """Raise the same kind of error on all ranks, where one has failed or its loss is not finite."""
        if sums[FAILED]:
            reasons = self.group.gather(None if failure is None else f"{type(failure).__name__}: {failure}")
            self._accumulation.drop()
            if failure is not None:
                raise failure
            rank = next(n for n, reason in enumerate(reasons) if reason is not None)
            raise GroupError(f"rank {rank} failed in this step, and nothing was updated: {reasons[rank]}")
        if not sums[LOSS_SAMPLES] and not sums[INFINITE]:
            raise ShapeError("no rank has a sample; a batch needs at least one")
        if sums[INFINITE]:
            self._accumulation.drop()
            number = self._accumulation.steps + 1
            raise NonFiniteError(
                f"the loss of step {number} is not finite on {int(sums[INFINITE])} of {self._divisions}; "
                "nothing was updated. Lower the learning rate, or look at the batch",
                number,
                math.nan,
            )


def parameter_name(state: str) -> str:
    """Return the parameter of a state's name, `parameter/state`."""
    return state.rpartition("/")[0]


def _norm(powers: np.ndarray, norm_type: float) -> float:
    """Return the norm of all gradients from the sums of powers of each rank's (`sum_powers`)."""
    if norm_type == math.inf:
        return float(powers.max())
    return float(sum(powers.tolist()) ** (1 / norm_type))


def check_divisible(state: TrainingState) -> None:
    """Check that a part of each parameter can be updated by itself. Raises ArgumentError, which names the rule."""
    for name, p in state.store.parameters.items():
        rule = state.rules[name][1]
        kind = type(rule).__name__
        if not p.requires_grad:
            continue
        shapes = rule.states(p.shape, p.dtype)
        odd = [s for s, shape in shapes.items() if shape not in (p.shape, ())]
        if odd:
            raise ArgumentError(
                f"shard_optimizer: {kind} keeps {odd[0]} of shape {list(shapes[odd[0]])} for {name} of shape "
                f"{list(p.shape)}, which cannot be divided among processes; leave the option out"
            )
        try:
            coupling = find_coupling(rule, p.dtype)
        except ShapeError as e:
            raise ArgumentError(f"shard_optimizer: {kind} updates {name} as a whole only; leave the option out") from e
        if coupling is not None:
            raise ArgumentError(
                f"shard_optimizer: {kind}, the rule of {name}, computes one element from others by {coupling}; leave "
                "the option out"
            )


def _form(stored: Any) -> list[Any]:
    return [str(stored.memory.dtype), list(stored.shape)]


def _describe(x: Any) -> Any:
    """Return what JSON can express of a function or an object: its code, and the plain values that it holds."""
    if isinstance(x, partial):
        return [_describe(x.func), [_plain(a) for a in x.args], {n: _plain(a) for n, a in x.keywords.items()}]
    if hasattr(x, "__code__"):
        return _digest(x)
    return [type(x).__qualname__, _digest(type(x)), {n: _plain(v) for n, v in sorted(vars(x).items())}]


def _plain(x: Any) -> Any:
    return x if isinstance(x, (bool, int, float, str, type(None))) else type(x).__qualname__


def _digest(code: Any) -> str:
    """Return a checksum of the compiled code of a class's methods, or of a function; "" where there is none."""
    members = [x for _, x in sorted(vars(code).items())] if isinstance(code, type) else [code]
    texts = [_code_text(x.__code__) for x in members if hasattr(x, "__code__")]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12] if texts else ""


def _code_text(code: CodeType) -> str:
    parts = [_constant_text(x) for x in code.co_consts]
    return " ".join((code.co_code.hex(), *code.co_names, *parts))


def _constant_text(x: Any) -> str:
    if isinstance(x, CodeType):
        return _code_text(x)
    return repr(sorted(map(repr, x))) if isinstance(x, frozenset) else repr(x)
