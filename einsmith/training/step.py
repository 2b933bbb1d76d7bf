"""Run forward, backward and update of a model as one native call: TrainStep (API "Networks and training")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from einsmith.api.settings import CompileSettings
from einsmith.base import html, recording
from einsmith.base.arguments import Count, check_arguments
from einsmith.base.errors import KindError, ShapeError
from einsmith.distributed.group import ProcessGroup
from einsmith.distributed.transport import Alone
from einsmith.runtime.store import Slot
from einsmith.training.compiler import StepCompiler
from einsmith.training.definition import PART_OF, StepDefinition, batch_arrays
from einsmith.training.description import (
    Profile,
    describe_definition,
    describe_explorations,
    describe_programs,
    measure,
)
from einsmith.training.deterministic import DeterministicTraining
from einsmith.training.evaluate import Evaluator
from einsmith.training.fit import Fit
from einsmith.training.parallel import GroupTraining
from einsmith.training.runner import SingleRunner, StepRunner
from einsmith.training.settings import TuningSettings, UpdateSettings
from einsmith.training.state import StepParts, TrainingState


class _Attribute:
    """An attribute of a TrainStep that is a part or a setting of its definition: checked when it is set, and used by
    the next step."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._part = name, PART_OF.get(name)

    def __get__(self, step: Any, owner: type | None = None) -> Any:
        if step is None:
            return self
        holder = step.parts.definition if self._part is None else getattr(step.parts.definition, self._part)
        return getattr(holder, self._name)

    def __set__(self, step: Any, value: Any) -> None:
        step.change(**{self._name: value})


class TrainStep:
    """A training step of `model`: `step(*inputs, target)` trains on a batch and returns the loss as a Python float.

    The model's parameters are updated in place. Every batch shape is compiled at its first use; `compile` does that
    without training. If the loss is not finite nothing is updated and NonFiniteError names the step. Ctrl-C ends a step
    that has stored nothing yet, which then counts for nothing; a step that has begun to update is finished first.

    Args:
        model: the network.
        loss: a function of (model's output, target) giving a float scalar, or several in a tuple or under names in a
            dictionary, of which the first or (trained="sum") their sum is trained; all are in `losses` after a step.
            Several targets are a tuple of arrays, `step(x, (energy, forces))`, and the loss's arguments: loss(output,
            energy, forces).
        optimizer: an `es.optim` rule, or Groups of them.
        seed: the integer from which dropout draws.
        updates: how the weights are updated: clipping, accumulation, averages.
        compilation: how programs are compiled: precision, device, threads, memory.
        tuning: how programs are tuned, before they train or meanwhile.
        group: the processes that train together (`es.distributed.init`), each on its part of every batch; without one,
            or in a group of one, this process trains alone.
        shard_optimizer: divide the optimizer's state, and the averages, among the processes of the group: each updates
            its part of the parameters and sends it to the others (ZeRO, Rajbhandari et al. 2020, stages 1 and 2). The
            results are bitwise the same. Raises ArgumentError for a rule that computes an element from others.
        deterministic: give bitwise the same numbers for 1, 2, 4 and 8 processes and any number of threads
            (docs/distributed.md): a batch is computed in 8 parts, which takes longer, most of all for small batches.
        settings: fields of UpdateSettings, CompileSettings and TuningSettings by their own names, as in
            TrainStep(..., precision="bf16", clip_grad_norm=1.0).

    Model, loss, optimizer, seed and each setting are attributes, too, which can be set at any time: `step.accumulate =
    4`. A new `optimizer` begins without state; so do parameters that replace others. Frozen parameters
    (`requires_grad`) keep their state.
    """

    model, loss, optimizer, seed = _Attribute(), _Attribute(), _Attribute(), _Attribute()
    updates, compilation, tuning = _Attribute(), _Attribute(), _Attribute()
    clip_grad_norm, norm_type, clip_grad_value, accumulate, ema, trained = (_Attribute() for _ in range(6))
    precision, winograd, threads, device, sizes, max_stored, memory_limit = (_Attribute() for _ in range(7))
    mode, tune, executor, separate_exponentials = (_Attribute() for _ in range(4))

    epoch = property(lambda step: step.parts.epochs.epoch, doc="Epochs done by `fit`.")
    position = property(lambda step: step.parts.epochs.position, doc="Batches done in the current epoch.")
    epoch_loss = property(lambda step: step.parts.epochs.loss, doc="Sum of the samples' losses in the current epoch.")
    epoch_samples = property(lambda step: step.parts.epochs.samples, doc="Samples in the current epoch so far.")
    history = property(lambda step: step.parts.epochs.history, doc="A row of results of each epoch of `fit`.")
    losses = property(lambda step: step.parts.reports.losses, doc="The last step's losses by name, if it has several.")
    grad_norm = property(
        lambda step: step.parts.reports.grad_norm, doc="The gradients' norm in the last step, before it was clipped."
    )

    @check_arguments
    def __init__(
        self, model: Any, loss: Callable, optimizer: Any, *, seed: Any = 0, updates: UpdateSettings | None = None,
        compilation: CompileSettings | None = None, tuning: TuningSettings | None = None,
        group: ProcessGroup | None = None, shard_optimizer: bool = False, deterministic: bool = False, **settings: Any,
    ):  # fmt: skip
        self.group, self.deterministic = group or ProcessGroup(Alone()), deterministic
        is_alone = not deterministic and self.group.size == 1
        whole = {"updates": updates, "compilation": compilation, "tuning": tuning}
        settings = {n: value for n, value in whole.items() if value is not None} | settings
        definition = StepDefinition(model, loss, optimizer, seed, is_alone=is_alone).changed(settings)
        definition.check_model_and_loss()
        definition.check_optimizer()
        self.parts = StepParts(definition, TrainingState(definition))
        self.store = self.parts.state.store
        self.compiler = StepCompiler(self.parts, self.group.local_rank)
        self.runner: StepRunner
        if is_alone:
            self.runner = SingleRunner(self.parts, self.compiler)
        else:
            kind = DeterministicTraining if deterministic else GroupTraining
            self.runner = kind(self.parts, self.compiler, self.group, shard_optimizer)
        self._evaluator: Evaluator | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise KindError(
            "a TrainStep owns the memory of its programs and can be neither copied nor pickled; write it with "
            "es.save(step, folder), and make copies with es.load(folder)"
        )

    def change(self, **settings: Any) -> None:
        """Set several attributes at once: model, loss, optimizer, seed, and settings by name. Raises ArgumentError for
        values that are not allowed."""
        self.compiler.change(settings)

    @property
    def steps(self) -> int:
        """Number of updates made."""
        return self.parts.accumulation.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self.parts.accumulation.steps = steps

    @property
    def writes(self) -> bool:
        """True if this process writes files for its group: it has rank 0, or is alone."""
        return self.group.rank == 0

    def compile(self, *batch: Any) -> TrainStep:
        """Compile the step for the shapes and types of a batch (inputs..., target), without training."""
        self.runner.compile(self.read_batch(batch))
        return self

    def current_state(self) -> dict[str, Slot]:
        """Return the optimizer's state that the next step starts from, by `parameter/state`. State of a replaced
        optimizer or parameter is not part of it."""
        with self.store.guard:
            self.compiler.compare()
            return self.store.state

    def whole_state(self) -> dict[str, np.ndarray]:
        """Return copies of the optimizer's state, by `parameter/state`, with what is divided among the processes of a
        group put together. All of them call it."""
        state = {n: np.array(s.data, order="C") for n, s in self.current_state().items()}
        return state | self.runner.gather_state()

    # -- running

    def __call__(self, *batch: Any) -> float:
        return self.runner.train(self.read_batch(batch, self.runner.is_parallel))

    def read_batch(self, batch: Sequence[Any], may_be_empty: bool = False) -> list[np.ndarray]:
        """Return the arrays of a batch (`batch_arrays`), and take its number of targets for that of all batches.

        Raises ShapeError where programs were compiled for another number of targets."""
        arrays = batch_arrays(batch, may_be_empty)
        count, targets = len(arrays) - len(batch) + 1, self.parts.definition.targets
        if count != targets:
            with self.store.guard:
                self.compiler.compare_if_changed()
                if len(self.compiler.programs):
                    raise ShapeError(
                        f"the number of targets is {count} in this batch and was {targets} in earlier ones; "
                        "several are a tuple of arrays in all batches, as in step(x, (y, z))"
                    )
                self.parts.definition = replace(self.parts.definition, targets=count)
        return arrays

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
        evaluator = self._evaluator
        if evaluator is None or not evaluator.is_of(self.parts.definition):
            evaluator = self._evaluator = Evaluator(self.parts.definition, self.group)
        self.runner.share()
        if not averaged:
            return evaluator.evaluate(batches, metrics or {})
        with self.averaged():
            return evaluator.evaluate(batches, metrics or {})

    def averages(self) -> dict[str, np.ndarray]:
        """Return the model's state dictionary with the averages (`ema`) of trained weights in place of the weights.

        Raises ArgumentError where no average is kept."""
        return self.parts.averages(self.runner.gather_state)

    @contextmanager
    def averaged(self) -> Iterator[Any]:
        """Context in which the model has the average of its weights. Steps of other threads wait until it ends."""
        with self.parts.averaged(self.runner.gather_state) as model:
            self.compiler.recheck()  # a step of this thread raises an error
            yield model

    # -- for people

    @property
    def plan(self) -> html.PlanText:
        """Description of the compiled programs, by batch shape: each kernel's pattern, configuration and seconds."""
        plan = describe_programs(self.compiler.programs)
        title, _, lines = self.runner.describe().partition("\n")
        if not title:
            return plan
        return html.PlanText((*(plan.programs or [(str(plan), "", ())]), (title, lines, ())))

    @property
    def explored(self) -> str:
        """Log of dynamic mode so far: faster configurations, and rejected ones with the reason."""
        return describe_explorations(self.compiler.programs)

    def __repr__(self) -> str:
        return f"TrainStep({describe_definition(self.parts.definition)}, steps={self.steps}, epoch={self.epoch})"

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
        gather = self.runner.is_parallel
        if file is not None:
            with recording.recording() as recorder:
                run = self.compiler.compile_apart(arrays, gather)
                with self.store.guard:
                    self.parts.set_numbers(arrays)
                    run.record(recorder, arrays, repeats)
            recorder.write(file)
        run = self.compiler.find_or_compile(arrays, gather)
        with self.store.guard:
            self.parts.set_numbers(arrays)
            return measure(run, arrays, repeats)
