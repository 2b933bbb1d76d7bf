"""Train one model in a group of processes, each on its part of every batch (data parallelism).

Every process accumulates the gradients of its samples, as for several batches that make one update; the group sums them
during the backward pass; then every process makes the same update. The sums are in the order of the ranks, so that all
processes have bitwise equal parameters.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from einsmith import optim
from einsmith.base import VERSION
from einsmith.base.dtypes import BFLOAT16, dtype_of
from einsmith.base.errors import ArgumentError, DeviceError, GroupError, NonFiniteError, ShapeError
from einsmith.base.identity import code_text
from einsmith.base.sizes import show_size
from einsmith.distributed.collectives import Collectives
from einsmith.distributed.group import ProcessGroup
from einsmith.distributed.nccl import CardGroup
from einsmith.driver.binding import LeafSum, Notice, Reply
from einsmith.driver.bound_program import BoundProgram
from einsmith.nn import KeptWeight
from einsmith.nn.parameter import Stored
from einsmith.runtime.signals import Deferred
from einsmith.runtime.steps import FINITE
from einsmith.training.compiler import StepCompiler
from einsmith.training.exchanges import Exchanged, Exchanges
from einsmith.training.gradient_buckets import Bucket, GradientBuckets
from einsmith.training.manifest import loss_name
from einsmith.training.runner import StepRunner
from einsmith.training.sharding import ShardedState
from einsmith.training.state import StepParts
from einsmith.training.updates import StepGraph

SAMPLES, LOSS_SAMPLES, LOSS, INFINITE, FAILED, FIXED = range(6)
"""Positions in the numbers that ranks sum for an update: samples of all its batches; samples whose loss is reported,
and the sum of their losses; ranks with a loss that is not finite; ranks that failed. The sums of named losses follow,
then, for each parameter, the number of ranks that have a gradient of it."""
_JOINED_BYTES = 1 << 20
"""Most bytes of a bucket that is copied to share messages with other numbers: a copy of so many takes less time than a
message between two processes of a host (0.1 ms beside 0.3 on a Zen 4)."""


class GroupTraining(StepRunner):
    """What runs the programs of a training step in one process of a group.

    group: the processes; shards: whether each of them keeps the state of a part of the parameters only."""

    is_parallel = True
    _divides_norm = True
    """Whether each rank sums the powers of a part of the gradients only, for their norm."""

    def __init__(self, parts: StepParts, compiler: StepCompiler, group: ProcessGroup, shards: bool):
        super().__init__(parts, compiler)
        self.group, self._state, numbers = group, parts.state, parts.numbers
        self._buckets = GradientBuckets(parts.state.store, group.size)
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
        if parts.definition.tuning.mode != "static" or parts.definition.tuning.tune:
            raise ArgumentError(
                "a step in a group is not tuned while it trains, as all processes run the same kernels; tune before, "
                "by `einsmith tune`"
            )
        self._sharded = ShardedState(group, parts.state, self._buckets) if shards else None
        self.join()

    def _notices(self, traced: StepGraph) -> list[Notice | Reply | LeafSum]:
        self._check_exchanged(traced.exchanged)
        if self._cards is not None:
            if self._parts.definition.updates.accumulate > 1:
                return []  # most runs sum nothing
            return [*self._buckets.sums(traced.bind, self._cards.communicator)]
        return [*self._buckets.notices(traced.bind), *self._exchanges.notices(traced.bind, traced.exchanged)]

    def _check_exchanged(self, exchanged: Sequence[Exchanged]) -> None:
        """Check that a program sums nothing over the group that the next of its kernels read, where cannot be. Raises
        ArgumentError."""
        if exchanged and self._cards is not None:
            raise ArgumentError(
                'SyncBatchNorm and group_sum sum on the CPU only; use BatchNorm and no group_sum, or device="cpu"'
            )

    def join(self) -> None:
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
        if self._sharded is not None:
            raise ArgumentError(
                "shard_optimizer=True divides the optimizer's state among processes on CPUs only; leave the option "
                'out, or use device="cpu"'
            )

    def check_agreement(self) -> None:
        try:
            device = "CPU" if self._compiler.backend.card is None else "card"
        except DeviceError as e:  # all ranks raise an error
            device = str(e)
        self.group.agree("the training step", describe_training(self._parts, device))

    def share(self, parameters: bool = False, root: int = 0) -> None:
        """Give all ranks the buffers of the rank `root`, such as running statistics; parameters: the parameters too."""
        model = self._parts.definition.model
        stored: list[Stored] = [b for _, b in model.named_buffers() if parameters or not isinstance(b, KeptWeight)]
        if parameters:
            stored += [p for _, p in model.named_parameters()]
        with self._state.store.guard:
            copies = [s.memory.copy() for s in stored]
            bits = [x.view(np.uint16) if x.dtype == BFLOAT16 else x for x in copies]
            for s, value in zip(stored, self.group.broadcast(bits, root), strict=True):
                s.memory.store(value.view(s.memory.dtype))

    # -- steps

    def compile(self, arrays: list[np.ndarray]) -> None:
        """Compile the program for this rank's part of a batch."""
        with self._state.store.guard:
            self._prepare()
        self._compiler.find_or_compile(arrays, True)

    def train(self, arrays: list[np.ndarray], samples: int | None = None, last: bool = False) -> float:
        """Train on this rank's part of a batch, and return the mean loss over all ranks where the batch makes an
        update, else that of this rank."""
        self.check_gradients(arrays)
        count = self._parts.definition.count_samples(arrays)
        while True:
            with Deferred(), self._state.store.guard:
                self._prepare()
                run = self._compiler.find(arrays, True) if count else None
                known = self._exchanged.get(self._key_of(arrays)) if not count else None
                exchanged = known if run is None else run.note.exchanged
                if exchanged is not None:
                    return self._train(run, exchanged, arrays, count, samples is not None, last)
            self._compile_or_trace([arrays])

    def _prepare(self) -> None:
        """Follow changes of the model and the optimizer, and arrange the gradients. The caller holds the guard."""
        self._compiler.compare_if_changed()
        self._join_cards()
        if not self._buckets.is_arranged():
            if self._sharded is not None:
                self._sharded.unite()
            self._buckets.arrange()
            self._compiler.drop()

    def _compile_or_trace(self, batches: list[list[np.ndarray]]) -> None:
        """Compile the programs for these batches; for an empty one, learn what its program would report and sum."""
        for arrays in batches:
            if self._parts.definition.count_samples(arrays):
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
        run: BoundProgram | None,
        exchanged: Sequence[Exchanged],
        arrays: list[np.ndarray],
        count: int,
        is_epoch: bool,
        last: bool,
    ) -> float:
        updates = self._parts.accumulation.batches + 1 >= self._parts.definition.updates.accumulate or last
        if not self._parts.accumulation.batches:
            self._forget_batches()
            self._buckets.clear_others(() if run is None else run.note.trained)
        self._parts.set_numbers(arrays)
        self._buckets.completed.begin()
        self._exchanges.begin(exchanged)
        # Buckets are summed on the group's thread, in the order of their numbers on every rank. The last one waits for
        # the end of the run, whose results come with it.
        early = self._buckets.buckets[:-1] if updates and self._cards is None else []
        pending = [self.group.submit(partial(self._reduce, bucket=b)) for b in early]
        launched = 0 if self._cards is None else self._cards.communicator.launched
        status, outputs = 0, list[np.ndarray]()
        try:
            if run is not None and self._failure is None:
                status, outputs = run.run_locked(arrays)
                self._trained |= set(run.note.trained)
        except BaseException as e:
            self._failure = e
        finally:
            self._buckets.completed.end()
            first = self._exchanges.end()
            if first is not None:
                self.share(root=first)
        loss = float(outputs[0]) if outputs else math.nan
        if status == FINITE:
            self._is_infinite = True
        elif outputs:
            values = [float(x) for x in outputs]
            self._losses += [count, *(x * count for x in values[: 1 + len(self._parts.reports.names)])]
        if not updates:
            self._buckets.completed.await_end()
            self._parts.accumulation.add(count)
            if is_epoch:
                self._parts.epochs.add(0.0, 0, {})
            return loss
        if self._cards is not None and self._cards.communicator.launched == launched:
            for bucket in self._buckets.buckets:  # as the runs of the other ranks do, whose cards wait for this one
                self._cards.all_reduce(bucket.memories, dtype_of(bucket.flat.dtype).name)
        return self._update(pending, arrays, is_epoch)

    def _forget_batches(self) -> None:
        self._is_infinite, self._failure = False, None
        self._trained, self._losses = set(), np.zeros(2 + len(self._parts.reports.names))

    def _reduce(self, collectives: Collectives, bucket: Bucket, is_complete: bool = False) -> None:
        """Sum a bucket over the ranks, once the run has completed it."""
        if not is_complete:
            self._buckets.completed.await_number(bucket.number)
        if self._sharded is not None:
            collectives.reduce_scatter(bucket.flat)
        else:
            collectives.all_reduce(bucket.flat)

    def _start_last(self, sums: np.ndarray) -> tuple[Future[None], Future[None]]:
        """Start to sum the other numbers (losses and counts) and the last bucket, in common messages if the bucket is
        small; return the future of each. The run has ended."""
        last, on_cards = self._buckets.buckets[-1], self._cards is not None
        is_joined = self._sharded is None and not on_cards and last.flat.nbytes <= _JOINED_BYTES

        def reduce_sums(collectives: Collectives) -> None:
            self._buckets.completed.await_end()  # here, where the other notices are read
            collectives.all_reduce(*[last.flat] * is_joined, sums)

        summed = self.group.submit(reduce_sums)
        if is_joined or on_cards:
            return summed, summed
        return summed, self.group.submit(partial(self._reduce, bucket=last, is_complete=True))

    def _update(self, pending: list[Future[None]], arrays: list[np.ndarray], is_epoch: bool) -> float:
        """Sum what this rank has with all others', and update the parameters."""
        names, samples = self._parts.reports.names, self._parts.accumulation.samples
        samples += self._parts.definition.count_samples(arrays)
        sums = np.zeros(FIXED + len(names) + len(self._buckets.names))
        sums[SAMPLES], sums[LOSS_SAMPLES : LOSS + 1] = samples, self._losses[:2]
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
        names, samples = self._parts.reports.names, sums[LOSS_SAMPLES]
        ranks_of = zip(self._buckets.names, sums[FIXED + len(names) :], strict=True)
        self._apply(tuple(n for n, ranks in ranks_of if ranks), arrays, float(sums[SAMPLES]), last)
        self._parts.reports.losses = {n: float(x / samples) for n, x in zip(names, sums[FIXED:], strict=False)}
        mean = float(sums[LOSS] / samples)
        if is_epoch:
            self._parts.epochs.add(mean, int(samples), self._parts.reports.losses)
        return mean

    def _apply(self, trained: tuple[str, ...], arrays: list[np.ndarray], samples: float, last: Future[None]) -> None:
        """Update parameters by the summed gradients of `samples` samples, and count the update.

        Parameters of all buckets but the last are updated while that one is summed, unless the norm of all is needed.
        Where the parameters are divided, those of each of these two parts are shared while the next is updated."""
        interrupts: list[BaseException] = []

        def complete(stage: slice, shards: bool, norm: float | None) -> list[np.ndarray]:
            """Run a program to its end even if a signal arrives, as the other ranks complete this step, too."""
            chosen = self._buckets.shards(self.group.rank if shards else None, stage)
            pieces = [piece for piece in chosen if piece.name in trained]
            if not pieces:
                return []
            while True:
                key = trained, (stage.start, stage.stop), shards
                update = self._compiler.find_or_compile_update(key, pieces, norm is None)
                self._parts.set_numbers(arrays)
                self._parts.numbers.derived["samples"][...] = samples
                self._parts.numbers.derive("norm")[...] = norm or 0.0
                try:
                    return update.run_locked([])[1]
                except KeyboardInterrupt as e:  # it has stored nothing
                    interrupts.append(e)

        clips, divides = (
            self._parts.definition.updates.clip_grad_norm is not None,
            self._divides_norm and not self._cards,
        )
        norm = 0.0
        if clips:
            self._await(last)
            # Every rank adds up its own part, whether or not it updates only that: the sum is the same.
            squares = self.group.gather_numbers(float(sum(complete(slice(None), divides, None), 0.0)))
            norm = _norm(squares if divides else squares[:1], self._parts.definition.updates.norm_type)
        self._parts.reports.grad_norm = norm if clips else None
        shared: list[Future[None]] = []
        for stage in (slice(0, -1), slice(-1, None)) if self._cards is None else (slice(None),):
            if stage.stop is None:
                self._await(last)
            complete(stage, self._sharded is not None, norm)
            if self._sharded is not None:
                shared += self._sharded.send_parameters(stage)
        if self._sharded is not None:
            self._sharded.receive_parameters(trained, shared, self._await)
            self._sharded.drop_whole(trained)
        self._parts.accumulation.end_update(self._state.counts.regroup(trained)[0])
        if interrupts:
            raise interrupts[0]

    def gather_state(self, kind: str | None = None) -> dict[str, np.ndarray]:
        return {} if self._sharded is None else self._sharded.gather(kind)

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
            self._parts.accumulation.drop()
            if failure is not None:
                raise failure
            rank = next(n for n, reason in enumerate(reasons) if reason is not None)
            raise GroupError(f"rank {rank} failed in this step, and nothing was updated: {reasons[rank]}")
        if not sums[LOSS_SAMPLES] and not sums[INFINITE]:
            raise ShapeError("no rank has a sample; a batch needs at least one")
        if sums[INFINITE]:
            self._parts.accumulation.drop()
            number = self._parts.accumulation.steps + 1
            raise NonFiniteError(
                f"the loss of step {number} is not finite on {int(sums[INFINITE])} of {self._divisions}; "
                "nothing was updated. Lower the learning rate, or look at the batch",
                number,
                math.nan,
            )


def _norm(powers: np.ndarray, norm_type: float) -> float:
    """Return the norm of all gradients from the sums of powers of each rank's (`sum_powers`)."""
    if norm_type == math.inf:
        return float(powers.max())
    return float(sum(powers.tolist()) ** (1 / norm_type))


def describe_training(parts: StepParts, device: str) -> dict[str, Any]:
    """Return what all processes of a group have to have in common, by name, as JSON expresses it.

    device: the kind of device on which the programs of this process run."""
    definition = parts.definition
    model, loss, optimizer = definition.model, definition.loss, definition.optimizer
    return {
        "version": VERSION,
        "parameters": {n: [*_form(p), p.requires_grad] for n, p in model.named_parameters()},
        "buffers": {n: _form(b) for n, b in model.named_buffers()},
        "code": {type(m).__qualname__: _digest(type(m)) for m in model.modules()},
        "loss": loss_name(loss) or _describe(loss),
        "optimizer": optim.describe(optimizer) or _describe(optimizer),
        "settings": asdict(definition.updates),
        "seed": int(definition.seed),
        "device": device,
        "updates": parts.accumulation.steps,
    }


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
    texts = [code_text(x.__code__) for x in members if hasattr(x, "__code__")]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12] if texts else ""
