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
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from operator import methodcaller
from statistics import median
from types import CodeType
from typing import Any

import numpy as np

from einsmith import optim
from einsmith.base import VERSION
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import ArgumentError, DeviceError, GroupError, NonFiniteError, ShapeError
from einsmith.base.sizes import show_size
from einsmith.distributed.collectives import Collectives
from einsmith.distributed.group import ProcessGroup
from einsmith.distributed.nccl import CardGroup
from einsmith.driver.binding import LeafSum, Notice, Reply
from einsmith.driver.executable import FINITE, Executable
from einsmith.runtime.memory import Clock, Memory
from einsmith.runtime.signals import Deferred
from einsmith.training.accumulation import Accumulation
from einsmith.training.compiler import StepCompiler
from einsmith.training.definition import StepDefinition
from einsmith.training.epochs import Epochs
from einsmith.training.exchanges import Exchanged, Exchanges
from einsmith.training.gradient_buckets import Bucket, GradientBuckets
from einsmith.training.manifest import loss_name
from einsmith.training.numbers import StepNumbers
from einsmith.training.reports import Reports
from einsmith.training.state import GRADIENT, TrainingState
from einsmith.training.step_graph import StepGraph, find_coupling

SAMPLES, LOSS_SAMPLES, LOSS, INFINITE, FAILED, FIXED = range(6)
"""Positions in the numbers that ranks sum for an update: samples of all its batches; samples whose loss is reported,
and the sum of their losses; ranks with a loss that is not finite; ranks that failed. The sums of named losses follow,
then, for each parameter, the number of ranks that have a gradient of it."""
_JOINED_BYTES = 1 << 20
"""Most bytes of a bucket that is copied to share messages with other numbers: a copy of so many takes less time than a
message between two processes of a host (0.1 ms beside 0.3 on a Zen 4)."""


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
        self._cards: CardGroup | None = None
        """The cards on which the processes train, where they do."""
        self._card: Any = None
        """The back end's card at the last look."""
        numbers.rank, numbers.ranks = group.rank, group.size
        self._exchanges = numbers.exchanges = Exchanges(group.twin())
        compiler.notices = self._notices
        self._exchanged: dict[tuple, Sequence[Exchanged]] = {}
        """What the program of a batch would sum over the group, for batches of which this rank has no sample."""
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

    def _notices(self, traced: StepGraph) -> list[Notice | Reply | LeafSum]:
        self._check_exchanged(traced.exchanged)
        if self._cards is not None:
            if self._definition.settings.accumulate > 1:
                return []  # most runs sum nothing
            return [*self._buckets.sums(traced.bind, self._cards.communicator)]
        return [*self._buckets.notices(traced.bind), *self._exchanges.notices(traced.bind, traced.exchanged)]

    def _kind_of_device(self) -> str:
        """Return whether programs run on a card, or why they cannot, for an error on all ranks."""
        try:
            return "CPU" if self._compiler.backend.card is None else "card"
        except DeviceError as e:
            return str(e)

    def _check_exchanged(self, exchanged: Sequence[Exchanged]) -> None:
        """Check that a program sums nothing over the group that the next of its kernels read, where cannot be. Raises
        ArgumentError."""
        if exchanged and self._cards is not None:
            raise ArgumentError(
                'SyncBatchNorm and group_sum sum on the CPU only; use BatchNorm and no group_sum, or device="cpu"'
            )

    def begin(self) -> None:
        """Check that all ranks train the same, and give all of them the parameters and buffers of rank 0."""
        self.check_agreement()
        self._join_cards()
        self.share(parameters=True)

    def _join_cards(self) -> None:
        """Join the cards of all ranks, where programs run on cards. All ranks call it. Raises ArgumentError for what
        cards do not do, GroupError where the cards do not fit."""
        card = self._compiler.backend.card
        if card is self._card:
            return
        if card is not None:
            self._check_card()
        self._cards = None if card is None else CardGroup(self.group, card, self._compiler.backend.name)
        self._card = card
        self._buckets.apart = card is not None

    def _check_card(self) -> None:
        """Check that the training can be done on cards. Raises ArgumentError."""
        if self._shards:
            raise ArgumentError(
                "shard_optimizer=True divides the optimizer's state among processes on CPUs only; leave the option "
                'out, or use device="cpu"'
            )

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
                "device": self._kind_of_device(),
                "updates": self._accumulation.steps,
            },
        )

    def share(self, parameters: bool = False, root: int = 0) -> None:
        """Give all ranks the buffers of the rank `root`, such as running statistics; parameters: the parameters too."""
        model = self._definition.model
        stored = [b for _, b in model.named_buffers()]
        if parameters:
            stored += [p for _, p in model.named_parameters()]
        with self._state.store.guard:
            values = self.group.broadcast([s.memory.copy() for s in stored], root)
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
        count = self._definition.count_samples(arrays)
        while True:
            with Deferred(), self._state.store.guard:
                self._prepare()
                run = self._compiler.find(arrays, True) if count else None
                known = self._exchanged.get(self._key_of(arrays)) if not count else None
                exchanged = known if run is None else run.note.exchanged
                if exchanged is not None:
                    return self._train(run, exchanged, arrays, count, is_epoch, last)
            self._compile_or_trace([arrays])

    def _prepare(self) -> None:
        """Follow changes of the model and the optimizer, and arrange the gradients. The caller holds the guard."""
        self._compiler.compare_if_changed()
        self._join_cards()
        if not self._buckets.is_arranged():
            self._unite_shards()
            self._buckets.arrange()
            self._compiler.drop()

    def _compile_or_trace(self, batches: list[list[np.ndarray]]) -> None:
        """Compile the programs for these batches; for an empty one, learn what its program would report and sum."""
        for arrays in batches:
            if self._definition.count_samples(arrays):
                self._compiler.find_or_compile(arrays, True)
            else:
                shapes = [(a.shape, a.dtype) for a in arrays]
                few = [np.zeros((2, *shape[1:]) if shape else (), dtype) for shape, dtype in shapes]
                traced = self._compiler.trace(few, True)
                self._check_exchanged(traced.exchanged)
                self._exchanged[self._key_of(arrays)] = traced.exchanged

    def _key_of(self, arrays: list[np.ndarray]) -> tuple:
        """Return what determines the tensors that a program for such a batch sums over the group."""
        return (*((a.shape[1:], a.dtype.str) for a in arrays), self._compiler.version)

    def _train(
        self,
        run: Executable | None,
        exchanged: Sequence[Exchanged],
        arrays: list[np.ndarray],
        count: int,
        is_epoch: bool,
        last: bool,
    ) -> float:
        updates = self._accumulation.batches + 1 >= self._definition.settings.accumulate or last
        if not self._accumulation.batches:
            self._forget_batches()
            self._buckets.clear_others(() if run is None else run.note.trained)
        self._numbers.set(arrays)
        self._begin_run(exchanged)
        # Buckets are summed on the group's thread, in the order of their numbers on every rank. The last one waits for
        # the end of the run, whose results come with it.
        pending = [self._start(b) for b in self._buckets.buckets[:-1]] if updates and self._cards is None else []
        launched = 0 if self._cards is None else self._cards.communicator.launched
        status, outputs = 0, list[np.ndarray]()
        try:
            if run is not None and self._failure is None:
                status, outputs = run.run_locked(arrays)
                self._trained |= set(run.note.trained)
        except BaseException as e:
            self._failure = e
        finally:
            self._end_run()
        loss = float(outputs[0]) if outputs else math.nan
        if status == FINITE:
            self._is_infinite = True
        elif outputs:
            values = [float(x) for x in outputs]
            self._losses += [count, *(x * count for x in values[: 1 + len(self._reports.names)])]
        if not updates:
            self._buckets.completed.await_end()
            self._accumulation.add(count)
            if is_epoch:
                self._epochs.add(0.0, 0, {})
            return loss
        if self._cards is not None and self._cards.communicator.launched == launched:
            for bucket in self._buckets.buckets:  # as the runs of the other ranks do, whose cards wait for this one
                self._cards.all_reduce(bucket.memories, dtype_of(bucket.flat.dtype).name)
        return self._update(pending, arrays, is_epoch)

    def _begin_run(self, exchanged: Sequence[Exchanged]) -> None:
        self._buckets.completed.begin()
        self._exchanges.begin(exchanged)

    def _end_run(self) -> None:
        self._buckets.completed.end()
        first = self._exchanges.end()
        if first is not None:
            self.share(root=first)

    def _forget_batches(self) -> None:
        self._is_infinite, self._failure = False, None
        self._trained, self._losses = set(), np.zeros(2 + len(self._reports.names))

    def _start(self, bucket: Bucket) -> Future[None]:
        """Start to sum a bucket over the ranks, once the run has completed it."""

        def reduce_bucket(collectives: Collectives) -> None:
            self._buckets.completed.await_number(bucket.number)
            self._reduce(collectives, bucket)

        return self.group.submit(reduce_bucket)

    def _reduce(self, collectives: Collectives, bucket: Bucket) -> None:
        if self._shards:
            collectives.reduce_scatter(bucket.flat)
        else:
            collectives.all_reduce(bucket.flat)

    def _start_last(self, sums: np.ndarray) -> tuple[Future[None], Future[None]]:
        """Start to sum what is summed beside gradients, and the last bucket, in messages that they share if the bucket
        is small; return the future of each. The run has ended."""
        last, on_cards = self._buckets.buckets[-1], self._cards is not None
        is_joined = not self._shards and not on_cards and last.flat.nbytes <= _JOINED_BYTES

        def reduce_sums(collectives: Collectives) -> None:
            self._buckets.completed.await_end()  # here, where the other notices are read
            collectives.all_reduce(*[last.flat] * is_joined, sums)

        summed = self.group.submit(reduce_sums)
        return summed, summed if is_joined or on_cards else self.group.submit(partial(self._reduce, bucket=last))

    def _update(self, pending: list[Future[None]], arrays: list[np.ndarray], is_epoch: bool) -> float:
        """Sum what this rank has with all others', and update the parameters."""
        names, accumulation, count = self._reports.names, self._accumulation, self._definition.count_samples(arrays)
        sums = np.zeros(FIXED + len(names) + len(self._buckets.names))
        sums[SAMPLES], sums[LOSS_SAMPLES : LOSS + 1] = accumulation.samples + count, self._losses[:2]
        sums[INFINITE], sums[FAILED] = self._is_infinite, self._failure is not None
        sums[FIXED : FIXED + len(names)] = self._losses[2:]
        sums[FIXED + len(names) :] = [n in self._trained for n in self._buckets.names]
        summed, last = self._start_last(sums)
        self._waits.append(0.0)
        for future in (*pending, summed):
            self._await(future)
        return self._end_step(sums, arrays, is_epoch, last)

    def _await(self, future: Future[None]) -> None:
        """Wait for a sum, and count the time for the step."""
        start = time.perf_counter()
        self.group.wait(future)
        self._waits[-1] += time.perf_counter() - start

    def _end_step(self, sums: np.ndarray, arrays: list[np.ndarray], is_epoch: bool, last: Future[None]) -> float:
        """Update the parameters by summed gradients, report the step, and return its mean loss.

        sums: see SAMPLES; last: the sum of the last bucket, which may be under way."""
        failure = self._failure
        self._forget_batches()
        try:
            self._raise_failures(sums, failure)
        except BaseException:
            self._await(last)  # it writes to gradients
            raise
        names, samples = self._reports.names, sums[LOSS_SAMPLES]
        ranks_of = zip(self._buckets.names, sums[FIXED + len(names) :], strict=True)
        self._apply(tuple(n for n, ranks in ranks_of if ranks), arrays, float(sums[SAMPLES]), last)
        self._reports.losses = {n: float(x / samples) for n, x in zip(names, sums[FIXED:], strict=False)}
        mean = float(sums[LOSS] / samples)
        if is_epoch:
            self._epochs.add(mean, int(samples), self._reports.losses)
        return mean

    def _apply(self, trained: tuple[str, ...], arrays: list[np.ndarray], samples: float, last: Future[None]) -> None:
        """Update parameters by the summed gradients of `samples` samples, and count the update.

        Parameters of all buckets but the last are updated while that one is summed, unless the norm of all is needed.
        Where the parameters are divided, those of each of these two parts are shared while the next is updated."""
        interrupts: list[BaseException] = []

        def complete(stage: slice, shards: bool, norm: float | None) -> list[np.ndarray]:
            """Run a program to its end: the other ranks make this step, whatever signal comes here."""
            chosen = self._buckets.shards(self.group.rank if shards else None, stage)
            pieces = [piece for piece in chosen if piece.name in trained]
            if not pieces:
                return []
            while True:
                key = trained, (stage.start, stage.stop), shards
                update = self._compiler.find_or_compile_update(key, pieces, norm is None)
                self._numbers.set(arrays)
                self._numbers.derived["samples"][...] = samples
                self._numbers.derive("norm")[...] = norm or 0.0
                try:
                    return update.run_locked([])[1]
                except KeyboardInterrupt as e:  # it has stored nothing
                    interrupts.append(e)

        clips, divides = self._definition.settings.clip_grad_norm is not None, self._divides_norm and not self._cards
        norm = 0.0
        if clips:
            self._await(last)
            # Every rank adds up its own part, whether or not it updates only that: the sum is the same.
            found = self.group.gather_numbers(float(sum(complete(slice(None), divides, None), 0.0)))
            norm = _norm(found if divides else found[:1], self._definition.settings.norm_type)
        self._reports.grad_norm = norm if clips else None
        shared: list[Future[None]] = []
        for stage in (slice(0, -1), slice(-1, None)) if self._cards is None else (slice(None),):
            if stage.stop is None:
                self._await(last)
            complete(stage, self._shards, norm)
            if self._shards:
                shared += self._send_parameters(stage)
        if self._shards:
            self._receive_parameters(trained, shared)
            self._drop_whole_state(trained)
        self._accumulation.end_update(self._state.counts.regroup(trained)[0])
        if interrupts:
            raise interrupts[0]

    def _send_parameters(self, stage: slice) -> list[Future[None]]:
        """Start to give all ranks those parameters of some buckets that this one has updated. The buckets, whose
        gradients are used up, carry them."""
        for piece in self._buckets.shards(self.group.rank, stage):
            piece.gradient[...] = piece.select(self._state.store.parameters[piece.name].memory.physical)
        return [self.group.submit(methodcaller("all_gather", x.flat)) for x in self._buckets.buckets[stage]]

    def _receive_parameters(self, trained: Collection[str], pending: list[Future[None]]) -> None:
        """Take the parameters that the other ranks have updated."""
        for bucket, future in zip(self._buckets.buckets, pending, strict=True):
            self._await(future)
            for piece in bucket.pieces(0, bucket.flat.size):
                if piece.name in trained:
                    piece.select(self._state.store.parameters[piece.name].memory.physical)[...] = piece.gradient
        Clock.note_store()

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
        parts = {piece.name: piece.part for piece in self._buckets.shards(self.group.rank)}
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
            self.group.wait(self.group.all_reduce_flat(flat))
            whole.physical.reshape(-1)[...] = flat
            out[name] = whole.logical()
        return out

    def describe(self) -> str:
        """Describe the buckets, and how long steps have waited for their sums."""
        where = "" if self._cards is None else " on their cards"
        lines = [f"gradients of {self.group.size} processes are summed{where} in buckets:"]
        for n, bucket in enumerate(self._buckets.buckets):
            many = f" to {bucket.names[-1]}" if len(bucket.names) > 1 else ""
            lines.append(f"  {n}: {show_size(bucket.nbytes)}, {bucket.names[0]}{many}")
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
