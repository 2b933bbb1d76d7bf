"""Run forward, backward and update of a model as one native call: TrainStep (API "Networks and training")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from einsmith.base import environment, html, locks, recording
from einsmith.base.arguments import Count, check_arguments, check_options, show
from einsmith.base.dtypes import is_whole
from einsmith.base.errors import ArgumentError, KindError, ShapeError
from einsmith.distributed.group import ProcessGroup
from einsmith.distributed.transport import Alone
from einsmith.driver.executable import FINITE, Executable
from einsmith.driver.sizes import check_sizes
from einsmith.runtime.signals import Deferred
from einsmith.runtime.store import Slot
from einsmith.schedule.row_clusters import MAX_STORED_BYTES
from einsmith.training.accumulation import Accumulation
from einsmith.training.ahead import StepsAhead, non_finite
from einsmith.training.averages import WeightAverages
from einsmith.training.batch import batch_arrays
from einsmith.training.compiler import StepCompiler
from einsmith.training.definition import StepDefinition
from einsmith.training.description import describe_definition, describe_explorations, describe_programs
from einsmith.training.deterministic import DeterministicTraining
from einsmith.training.epochs import Epochs
from einsmith.training.evaluate import Evaluator
from einsmith.training.fit import Fit
from einsmith.training.numbers import StepNumbers
from einsmith.training.parallel import GroupTraining
from einsmith.training.profile import Profile, measure
from einsmith.training.reports import Reports
from einsmith.training.search import ProgramSearch
from einsmith.training.settings import Setting, Settings, delegate
from einsmith.training.state import TrainingState
from einsmith.tuning.programs import kernel_search

AHEAD = 2
"""Most steps of `fit` that are under way at once on a device: one computes while the next one's batch is copied."""


class TrainStep:
    """A training step of `model`: `step(*inputs, target)` trains on a batch and returns the loss as a Python float.

    loss: a function of (model's output, target) giving a float scalar, or several in a tuple or under names in a
    dictionary, of which the first or (trained="sum") their sum is trained; all are in `losses` after a step. Several
    targets are a tuple of arrays, `step(x, (energy, forces))`, and the loss's arguments: loss(output, energy, forces).
    optimizer: an `es.optim` rule, or Groups of them. threads: worker threads (default: all cores the process may use).
    group: the processes that train together (`es.distributed.init`), each on its part of every batch; without one, or
    in a group of one, this process trains alone. shard_optimizer: divide the optimizer's state, and the averages, among
    the processes of the group: each updates its part of the parameters and sends it to the others (ZeRO, Rajbhandari et
    al. 2020, stages 1 and 2). The results are bitwise the same. Raises ArgumentError for a rule that computes an
    element from others. deterministic: give bitwise the same numbers for 1, 2, 4 and 8 processes and any number of
    threads (docs/distributed.md): a batch is computed in 8 parts, which takes longer, most of all for small batches.
    The model's parameters are updated in place. Every batch shape is compiled at its first use; `compile` does that
    without training. winograd: allows 3x3 convolutions at stride 1 in Winograd's form, which is faster and rounds
    differently (the bound is in `composite.winograd`), and in which an infinity or NaN reaches all results of its tile.
    precision: "bf16" or "fp16" stores activations and their cotangents, and multiplies, in 16 bits (docs/precision.md);
    weights, sums, norms, losses and the optimizer's state stay in float32. A dictionary excepts layers by patterns of
    their names: {"": "bf16", "head": "fp32"}. "tf32" rounds the operands of products on a graphics card.
    If the loss is not finite nothing is updated and NonFiniteError names the step. Ctrl-C ends a step that has stored
    nothing yet, which then counts for nothing; a step that has begun to update is finished first.

    clip_grad_value, clip_grad_norm: limits of each element of the gradients, then of the norm of all of them (of order
    norm_type), as in torch.nn.utils; `grad_norm` is that norm, before it is clipped, in the last step. accumulate:
    batches whose gradients make one update, that of one batch as large as all: a batch weighs as much as its loss
    divides by, such as the labels that are not ignored or the sum of their class weights, or else its samples. Between
    updates nothing but buffers changes. ema: the decay of an exponential moving average of the weights, which
    `averaged`, `evaluate` and `averages` give. All of these can be set at any time.

    memory_limit: most memory of a step, as bytes or "800MB": parameters, state, batch and intermediate results. Where
    intermediate results are too large, some are recomputed before their gradients, first those that cost the least
    time per byte; a step's results stay bitwise the same. Raises ArgumentError, which says how much is needed, where
    the limit cannot be kept. It can be set at any time; evaluation has no limit.

    max_stored: largest result between two reductions, as bytes or "32MiB" (the default), that is stored although it
    need not be, because that is predicted to be faster. Larger ones, such as the scores of attention, are used up tile
    by tile and computed again for the backward pass, which adds in another order (docs/patterns.md, "Chains of
    reductions"). It can be set at any time; evaluation has the default.

    sizes: "each" (the default, which EINSMITH_SIZES changes) and "auto" compile a program for each batch shape;
    "shared" compiles one for all sizes up to a capacity, once a second size of a dimension is seen (docs/sizes.md).
    Programs that are tuned, and those of a group of processes, are for one shape each.

    device: "cpu", "cuda" (the first card; in a group, the one of the process's number on its host) or a card by its
    number, such as "cuda:1" (docs/gpu.md); by default as EINSMITH_DEVICE says. Parameters and state stay on a card from
    step to step; whoever reads them (`data`, `state_dict`, saving, programs on the CPU) gets what the last step left.
    The first step raises DeviceError where there is no such card; in a group, the TrainStep does.

    tune: seconds, for all batch shapes together, to search for faster kernel configurations when a batch shape is first
    compiled (docs/tuning.md); "graph" also searches a minute for better graphs before. Results are kept for later
    processes. Tuning changes only the order in which sums are added. executor: an executor as in `concurrent.futures`
    that measures kernels for this search, on other hosts of this kind. mode: "dynamic" searches while a program trains
    instead, for `tune` seconds, or (0) as long as something is to be gained: other configurations are tried in some of
    the steps, and faster ones stay. `explored` shows the results. It can be set at any time, for programs that are
    compiled from then on.

    steps: number of updates made; epoch, position: epochs done by `fit`, and batches done in the current epoch;
    epoch_loss, epoch_samples: sum of the samples' losses in the current epoch, and the number of samples; history: a
    row of results of each epoch of `fit`. A new `optimizer` begins without state; so do parameters that replace others.
    Frozen parameters (`requires_grad`) keep their state.
    """

    # Each part of a step is described in its own module; the attributes of users are those of its parts.

    model: Any = delegate("definition.model", "The network that is trained.")
    loss: Callable = delegate("definition.loss", "The function of (model's output, target) that is minimized.")
    optimizer: Any = delegate("definition.optimizer", "The update rule, or Groups of them.")
    seed: Any = delegate("definition.seed", "The integer from which dropout draws.")
    threads: int | None = delegate("definition.threads", "Worker threads; None for all cores the process may use.")
    winograd: bool = delegate("definition.winograd", "Whether convolutions may be computed in Winograd's form.")
    precision: str | Mapping[str, str] = delegate(
        "definition.precision", 'Precision: "fp32", "tf32", "bf16" or "fp16"; or, by layer, a dictionary.'
    )
    settings: Settings = delegate("definition.settings", "All settings together; `change` sets them.")
    clip_grad_norm, norm_type, clip_grad_value = Setting(), Setting(), Setting()
    accumulate, ema, trained = Setting(), Setting(), Setting()
    rules: Mapping[str, tuple[str, Any]] = delegate("state.rules", "(group, rule) of each parameter, by name.")
    memory_limit: Any = delegate("compiler.memory_limit", "Limit of a step's memory, in bytes; None for no limit.")
    device: str | None = delegate("compiler.device", "Where its programs run; None as EINSMITH_DEVICE says.")
    max_stored: Any = delegate("compiler.max_stored", "Most bytes of a result that is stored where it need not be.")
    mode: str = delegate(
        "compiler.search.mode", 'When kernels are tuned: "static", at compilation, or "dynamic", later.'
    )
    tune: float | str = delegate("compiler.search.tune", "Seconds of the search, or a word for one.")
    steps: int = delegate("accumulation.steps", "Number of updates made.")
    gathered: int = delegate("accumulation.batches", "Number of batches whose gradients wait for the update.")
    gathered_samples: int = delegate("accumulation.samples", "Number of the samples of these batches.")
    losses: dict[str, float] = delegate("reports.losses", "The last step's losses by name, where there are several.")
    grad_norm: float | None = delegate(
        "reports.grad_norm", "The gradients' norm in the last step, before it was clipped."
    )
    epoch: int = delegate("epochs.epoch", "Epochs done by `fit`.")
    position: int = delegate("epochs.position", "Batches done in the current epoch.")
    epoch_loss: float = delegate("epochs.loss", "Sum of the samples' losses in the current epoch.")
    epoch_samples: int = delegate("epochs.samples", "Number of samples in the current epoch so far.")
    epoch_losses: dict[str, float] = delegate("epochs.losses", "Sums of several losses in the current epoch, by name.")
    history: list[dict[str, Any]] = delegate("epochs.history", "A row of results of each epoch of `fit`.")
    source: Any = delegate("epochs.source", "Batches of an iterator in an unfinished epoch.")
    loader_state: str | None = delegate(
        "epochs.loader_state", "Torch's generator state for the epoch's order, in hexadecimal."
    )

    @check_arguments
    def __init__(
        self, model: Any, loss: Callable, optimizer: Any, *, mode: str = "static", seed: Any = 0,
        threads: Count | None = None, winograd: bool = False, clip_grad_norm: float | None = None,
        norm_type: float = 2.0, clip_grad_value: float | None = None, accumulate: int = 1, ema: float | None = None,
        trained: str = "first", memory_limit: Any = None, tune: kernel_search.Seconds | str = 0.0,
        max_stored: Any = MAX_STORED_BYTES, group: ProcessGroup | None = None, shard_optimizer: bool = False,
        deterministic: bool = False, executor: Any = None, precision: str | Mapping[str, str] = "fp32",
        sizes: str | None = None, device: str | None = None,
    ):  # fmt: skip
        settings = Settings(clip_grad_norm, norm_type, clip_grad_value, accumulate, ema, trained)
        self.definition = StepDefinition(model, loss, optimizer, settings, seed, threads, winograd, precision)
        self.definition.is_alone = not deterministic and (group is None or group.size == 1)
        self.definition.check_model_and_loss()
        if not is_whole(seed):  # of any size
            raise ArgumentError(f"seed={seed!r} must be an integer")
        self.definition.check_optimizer()
        if executor is not None and not callable(getattr(executor, "submit", None)):
            raise ArgumentError(
                f"executor={show(executor)} has no method submit, as executors of concurrent.futures do"
            )
        search = ProgramSearch(mode, tune, executor)
        self.state = TrainingState(self.definition)
        self.store, self.counts = self.state.store, self.state.counts
        self.accumulation, self.epochs, self.reports = Accumulation(), Epochs(), Reports()
        self.numbers = StepNumbers(self.definition, self.state, self.accumulation)
        self.compiler = StepCompiler(self.definition, self.state, self.accumulation, self.numbers, self.reports, search)
        self._ahead = StepsAhead(self.definition, self.accumulation, self.epochs, self.numbers, self.reports)
        self._programs = self.compiler.programs
        self._evaluator: Evaluator | None = None
        self._checked: set[tuple] = set()
        """Shapes of batches, with versions of the programs, for which gradients have been checked."""
        self.group, self.deterministic = group or ProcessGroup(Alone()), deterministic
        self.compiler.ordinal, self.device = self.group.local_rank, device
        self._parallel: GroupTraining | None = None
        if deterministic or self.group.size > 1:
            kind = DeterministicTraining if deterministic else GroupTraining
            self._parallel = kind(
                self.group, shard_optimizer, self.definition, self.state, self.accumulation,
                self.numbers, self.compiler, self.reports, self.epochs,
            )  # fmt: skip
        self._averages = WeightAverages(self.definition, self.state, self._parallel)
        self.memory_limit, self.max_stored, self.compiler.sizes = memory_limit, max_stored, check_sizes(sizes)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise KindError(
            "a TrainStep owns the memory of its programs and can be neither copied nor pickled; write it with "
            "es.save(step, folder), and make copies with es.load(folder)"
        )

    def change(self, **settings: Any) -> None:
        """Set settings by name. Raises ArgumentError for values that are not allowed."""
        check_options(Settings, settings)
        with self.store.guard:
            self.settings = replace(self.settings, **settings)
            self.compiler.recheck()

    @property
    def writes(self) -> bool:
        """Whether this process writes files for its group: rank 0 does, and a process that is alone."""
        return self.group.rank == 0

    @property
    def is_parallel(self) -> bool:
        """Whether gradients are summed over parts of a batch: in a group of several processes, or deterministically."""
        return self._parallel is not None

    def begin_group(self) -> None:
        """Check that all processes of the group train the same, and give them the weights of rank 0."""
        if self._parallel is not None:
            self._parallel.begin()

    def check_agreement(self) -> None:
        """Check that all processes of the group have one model, optimizer, settings and seed. Raises GroupError, on all
        of them, which names the difference. Training begins with it, and each call of `fit`."""
        if self._parallel is not None:
            self._parallel.check_agreement()

    def whole_state(self) -> dict[str, np.ndarray]:
        """Return copies of the optimizer's state, by `parameter/state`, with what is divided among the processes of a
        group put together. All of them call it."""
        state = {n: np.array(s.data, order="C") for n, s in self.current_state().items()}
        return state if self._parallel is None else state | self._parallel.gather_state()

    def compile(self, *batch: Any) -> TrainStep:
        """Compile the step for the shapes and types of a batch (inputs..., target), without training."""
        arrays = self.read_batch(batch)
        if self._parallel is not None:
            self._parallel.compile(arrays)
            return self
        for gather in (False, True)[: 1 + (self.accumulate > 1)]:
            self.compiler.find_or_compile(arrays, gather)
        return self

    def current_state(self) -> dict[str, Slot]:
        """Return the optimizer's state that the next step starts from, by `parameter/state`. State of a replaced
        optimizer or parameter is not part of it."""
        with self.store.guard:
            self.compiler.compare()
            return self.store.state

    # -- running

    def __call__(self, *batch: Any) -> float:
        return self.train_arrays(self.read_batch(batch, self._parallel is not None))

    def read_batch(self, batch: Sequence[Any], may_be_empty: bool = False) -> list[np.ndarray]:
        """Return the arrays of a batch (`batch_arrays`), and take its number of targets for that of all batches.

        Raises ShapeError where programs were compiled for another number of targets."""
        arrays = batch_arrays(batch, may_be_empty)
        count, definition = len(arrays) - len(batch) + 1, self.definition
        if count != definition.targets:
            with self.store.guard:
                self.compiler.compare_if_changed()
                if len(self._programs):
                    raise ShapeError(
                        f"the number of targets is {count} in this batch and was {definition.targets} in earlier ones; "
                        "several are a tuple of arrays in all batches, as in step(x, (y, z))"
                    )
                definition.targets = count
        return arrays

    def train_arrays(self, arrays: list[np.ndarray], samples: int | None = None, last: bool = False) -> float:
        """Train on a batch and return its loss.

        samples: size of the batch where it belongs to an epoch of `fit`, else None; last: whether this batch makes the
        update, however many were gathered."""
        if self._parallel is not None:
            if environment.checks_gradients():
                self._check_gradients(arrays)
            return self._parallel.train(arrays, samples is not None, last)
        while True:
            # A signal during native code is handled when that ends: weights and counters change together. A signal
            # while the guard is taken or released must not leave it held.
            with Deferred(), self.store.guard:
                # The choice of the program and the step are one critical section: other threads gather batches, too.
                gather = self.accumulation.batches + 1 < self.definition.settings.accumulate and not last
                run = self.compiler.find(arrays, gather)
                if run is not None:
                    return self._train(run, arrays, samples, gather)
            if environment.checks_gradients():
                self._check_gradients(arrays)
            self.compiler.compile(arrays, gather)

    @property
    def runs_ahead(self) -> bool:
        """Whether `fit` may begin a step before the one before it has ended: a device computes meanwhile."""
        settings = self.definition.settings
        able = self._parallel is None and settings.accumulate == 1 and not environment.checks_gradients()
        return able and self.compiler.overlaps

    def begin_arrays(self, arrays: list[np.ndarray], samples: int | None, last: bool = False) -> float:
        """Train on a batch of an epoch of `fit`; `settle` waits for its end. Return the last loss that is known."""
        with Deferred(), self.store.guard:
            run = self.compiler.find(arrays, False)
            exploration = None if run is None else run.note.exploration
            ahead = (exploration is None or exploration.is_done) and "loss_scale" not in self.numbers.derived
            if run is not None and samples is not None and ahead and self._ahead.begin(run, arrays, samples, AHEAD):
                return self._ahead.loss
        self.settle()
        return self.train_arrays(arrays, samples)

    def settle(self) -> None:
        """Wait until all steps that have begun have ended. Raises the error of one that has failed."""
        with Deferred(), self.store.guard:
            self._ahead.end()
        self._ahead.raise_failure()

    def _check_gradients(self, arrays: list[np.ndarray]) -> None:
        """Compare the gradients of a batch's loss with central differences, before the first step of its program."""
        with locks.IMPORTING:
            from einsmith.training.gradient_check import check_gradients  # imported late: few steps are checked

        with self.store.guard:
            self.compiler.compare_if_changed()
            key = tuple((a.shape, a.dtype.str) for a in arrays), self.compiler.version
            if key not in self._checked:
                self.numbers.set(arrays)
                check_gradients(self.definition, self.state, self.numbers, arrays, self.accumulation.steps + 1)
                self._checked.add(key)

    def _train(self, run: Executable, arrays: list[np.ndarray], samples: int | None, gather: bool) -> float:
        """Run a step's program and count the step. The caller holds the guard and defers signals.

        Where only the gradients of float16 are not finite, the program runs again with a smaller scale of the loss."""
        groups, exploration = run.note.groups, run.note.exploration
        while True:
            self.numbers.set(arrays)
            status, outputs = run.run_locked(arrays) if exploration is None else exploration.step(arrays)
            value = float(outputs[0])
            if status != FINITE or not np.isfinite(value) or not self.numbers.scaling.shrink():
                break
        if status == FINITE:
            raise non_finite(value, self.accumulation.steps + 1)
        if "loss_scale" in self.numbers.derived:
            self.numbers.scaling.count()
        if self.reports.names:
            self.reports.read(outputs, self.definition.settings.clip_grad_norm is not None)
        if gather:
            self.accumulation.add(self.definition.count_samples(arrays))
        else:
            self.accumulation.end_update(groups)
        if samples is not None:
            self.epochs.add(value, samples, self.reports.losses)
        return value

    @check_arguments
    def fit(
        self,
        batches: Iterable,
        epochs: int = 1,
        *,
        progress: bool | None = None,
        on_step: Callable[[TrainStep, float], None] | None = None,
        on_epoch: Callable[[TrainStep, float], None] | None = None,
        validation: Iterable | None = None,
        metrics: Mapping[str, Any] | None = None,
        callbacks: Sequence[Any] = (),
    ) -> list[float]:
        """Train until `epochs` epochs are done, from the current epoch and batch; return each epoch's mean loss.

        batches: an iterable of (inputs..., target) that can be iterated again, such as a torch DataLoader;
        `es.data.batches` and a DataLoader with a `generator` of its own also resume within an epoch. progress: a bar on
        a terminal and in a notebook, plain lines elsewhere, nothing when False. on_step and on_epoch are called after
        each batch and epoch; their errors end the training, which another call continues. validation: batches that are
        evaluated after each epoch, with the average of the weights where there is one (`ema`), and with `metrics`;
        `history` has the results as val_loss, val_accuracy and so on. callbacks: callbacks as in `es.callbacks`.

        Where `accumulate` batches make an update, the last batch of an epoch makes one, however many were gathered.
        Raises DataError where the batches raise: nothing is lost then, and another call continues.
        """
        return Fit(self, batches, epochs, progress, on_step, on_epoch, validation, metrics, callbacks).run()

    @check_arguments
    def evaluate(
        self, batches: Iterable, *, metrics: Mapping[str, Any] | None = None, averaged: bool = False
    ) -> dict[str, float]:
        """Return the mean loss over all examples, by "loss", each of several losses by its name, and "accuracy" for
        integer targets of one class each. Trains nothing; batches may have any size.

        Examples whose class is -100, which losses ignore, count in neither. metrics: further metrics by name, as in
        `es.metrics`. averaged: use the average of the weights (`ema`). Raises ShapeError where no example is left.
        """
        evaluator, numerics = self._evaluator, self.definition.numerics
        if evaluator is None or not evaluator.is_of(self.model, self.loss, self.trained, numerics, self.device):
            evaluator = Evaluator(self.model, self.loss, self.trained, self.threads, numerics, self.group, self.device)
            self._evaluator = evaluator
        if self._parallel is not None:
            self._parallel.share()
        if not averaged:
            return evaluator.evaluate(batches, metrics or {})
        with self.averaged():
            return evaluator.evaluate(batches, metrics or {})

    def averages(self) -> dict[str, np.ndarray]:
        """Return the model's state dictionary with the averages (`ema`) of trained weights in place of the weights.

        Raises ArgumentError where no average is kept."""
        return self._averages.state_dict()

    @contextmanager
    def averaged(self) -> Iterator[Any]:
        """Context in which the model has the average of its weights. Steps of other threads wait until it ends."""
        with self._averages.in_model() as model:
            self.compiler.recheck()  # a step of this thread raises an error
            yield model

    # -- for people

    @property
    def plan(self) -> html.PlanText:
        """Description of the compiled programs, by batch shape: each kernel's pattern, configuration and seconds."""
        plan = describe_programs(self._programs)
        if self._parallel is None:
            return plan
        title, _, lines = self._parallel.describe().partition("\n")
        return html.PlanText((*(plan.programs or [(str(plan), "", ())]), (title, lines, ())))

    @property
    def explored(self) -> str:
        """Log of dynamic mode so far: faster configurations, and rejected ones with the reason."""
        return describe_explorations(self._programs)

    def __repr__(self) -> str:
        return f"TrainStep({describe_definition(self.definition)}, steps={self.steps}, epoch={self.epoch})"

    def _repr_html_(self) -> str:
        return html.text(repr(self), "") + self.model._repr_html_() + self.plan._repr_html_()

    @check_arguments
    def profile(self, *batch: Any, repeats: Count = 20, trace: Any = None) -> Profile:
        """Time every kernel of a step, one by one; changes no weight and no state.

        trace: file to which a step is also written as Chrome trace events, which Perfetto shows (docs/tracing.md), with
        the phases of its compilation: the step is compiled once more for it. Raises ArgumentError where the file cannot
        be written.
        """
        arrays = self.read_batch(batch)
        file = None if trace is None else recording.file_to_write(trace)
        self.compile(*batch)
        gather = self._parallel is not None
        if file is not None:
            with recording.recording() as recorder:
                run = self.compiler.compile_apart(arrays, gather)
                with self.store.guard:
                    self.numbers.set(arrays)
                    run.record(recorder, arrays, repeats)
            recorder.write(file)
        run = self.compiler.find_or_compile(arrays, gather)
        with self.store.guard:
            self.numbers.set(arrays)
            return measure(run, arrays, repeats)
