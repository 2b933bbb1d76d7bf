"""Evaluate a model: mean losses and metrics over batches of any size, without training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from einsmith.api.jit import Jitted
from einsmith.api.settings import CompileSettings
from einsmith.base.arguments import describe, show
from einsmith.base.arrays import to_array
from einsmith.base.errors import ArgumentError, DataError, EinsmithError, ShapeError
from einsmith.distributed.group import ProcessGroup
from einsmith.metrics import predicted
from einsmith.ops.losses.classes import IGNORED
from einsmith.training.definition import (
    StepDefinition,
    check_takes,
    count_samples,
    find_divisor,
    targets_of,
    traced_losses,
)


class _Mean:
    """A metric from a function of a batch's outputs and targets: the mean of its results over the samples."""

    states = ("total", "samples")

    def __init__(self, f: Callable[..., Any]):
        self.f = f

    def reset(self) -> None:
        self.total, self.samples = 0.0, 0

    def update(self, output: Any, *targets: np.ndarray) -> None:
        n = count_samples(targets[0])
        if not n:  # the mean over no samples is NaN
            return
        result = self.f(output, *targets)
        try:
            number = float(result)
        except (TypeError, ValueError, OverflowError):
            name = getattr(self.f, "__name__", type(self.f).__name__)
            raise ArgumentError(f"the metric {name} returned {show(result)}; it must return a number") from None
        self.total, self.samples = self.total + number * n, self.samples + n

    def add(self, other: _Mean) -> None:
        self.total, self.samples = self.total + other.total, self.samples + other.samples

    def compute(self) -> float:
        return self.total / self.samples if self.samples else float("nan")


def as_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics as objects with reset, update and compute; a function becomes its mean over samples.

    Raises ArgumentError for a metric that is neither an object with these methods nor a function."""
    out = {}
    for name, metric in metrics.items():
        if all(callable(getattr(metric, part, None)) for part in ("reset", "update", "compute")):
            out[name] = metric
        elif callable(metric) and not isinstance(metric, type):
            out[name] = _Mean(metric)
        else:
            raise ArgumentError(
                f"the metric {name}={metric!r} is neither a function of (output, target) nor an object with reset, "
                "update and compute"
            )
    return out


def _check_mergeable(metrics: Mapping[str, Any]) -> None:
    """Raise ArgumentError for a metric whose results of several processes cannot be combined."""
    for name, metric in metrics.items():
        if not hasattr(metric, "states") or not hasattr(metric, "add"):
            raise ArgumentError(
                f"the metric {name}={metric!r} has no `states` and `add(other)`, by which the processes of a group put "
                "their results together; pass a function of (output, target), or evaluate in one process"
            )


def _merge(group: ProcessGroup, metric: Any) -> Any:
    """Return a metric of all processes' batches."""
    parts = []
    for state in group.gather({n: np.asarray(getattr(metric, n)).tolist() for n in metric.states}):
        part = copy(metric)
        for name, value in state.items():
            setattr(part, name, np.array(value) if isinstance(value, list) else value)
        parts.append(part)
    for part in parts[1:]:
        parts[0].add(part)
    return parts[0]


def _wrap_errors(batches: Iterable) -> Iterator[Any]:
    """Yield the batches. Raises DataError for exceptions that they raise."""
    try:
        yield from batches
    except EinsmithError:
        raise
    except Exception as e:
        raise DataError(f"the batches raised {type(e).__name__}: {e}") from e


def as_tuple(batch: Any) -> Sequence[Any]:
    """Return a batch (inputs..., target). Raises ArgumentError where it is no tuple or list of two or more."""
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        return batch
    if isinstance(batch, Mapping):
        raise ArgumentError(
            f"a batch is a mapping of {', '.join(map(str, batch))}; make tuples of it: "
            "(b['input'], b['target']), or read the data set with es.data.columns"
        )
    raise ArgumentError(f"a batch is {describe(batch)}, and must be a tuple of the model's inputs and a target")


def losses_and_outputs(model: Any, loss: Callable, trained: str) -> Callable:
    """Return a function (tuple of inputs, tuple of targets) -> (the trained loss, the outputs, all losses by name)."""

    def run(inputs: tuple, target: tuple) -> Any:
        out = model(*inputs)
        total, parts = traced_losses(loss, out, target, trained)
        return total, out, parts

    return run


def _measured(model: Any, loss: Callable, trained: str) -> Callable:
    """Return a function (tuple of inputs, tuple of targets) -> (all losses by name, the outputs, and what losses divide
    by, by name, where that is another number in each batch)."""

    evaluated = losses_and_outputs(model, loss, trained)

    def run(inputs: tuple, target: tuple) -> Any:
        total, out, parts = evaluated(inputs, target)
        named = {"loss": total, **parts}
        divisors = {name: find_divisor(value) for name, value in named.items()}
        return named, out, {name: d for name, d in divisors.items() if d is not None}

    return run


class Evaluator:
    """The compiled evaluation of a step's model with its loss function, for batches of all shapes. It has the
    default of what programs store, and no limit of memory."""

    def __init__(self, definition: StepDefinition, group: ProcessGroup):
        self.model, self.loss, self.group = definition.model, definition.loss, group
        self._trained, self._numerics = definition.updates.trained, definition.numerics
        self._settings = CompileSettings(threads=definition.compilation.threads, device=definition.compilation.device)
        f = _measured(self.model, self.loss, self._trained)
        self._run = Jitted(f, settings=self._settings, numerics=self._numerics)

    def is_of(self, definition: StepDefinition) -> bool:
        """Return whether this is the evaluation of that definition's model and loss, with its rounding."""
        is_same = self.model is definition.model and self.loss is definition.loss
        is_same = is_same and self._trained == definition.updates.trained and self._numerics == definition.numerics
        settings, compilation = self._settings, definition.compilation
        return is_same and settings.threads == compilation.threads and settings.device == compilation.device

    def evaluate(self, batches: Iterable, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Evaluate the model on batches, as TrainStep.evaluate documents."""
        measured = as_metrics(metrics)
        shared = self.group if self.group.size > 1 else None
        if shared is not None:
            _check_mergeable(measured)
        for metric in measured.values():
            metric.reset()
        sums: dict[str, float] = {"loss": 0.0}
        weights: dict[str, float] = {"loss": 0.0}
        correct, label_count, classes = 0, 0, True
        ignored = getattr(self.loss, "ignore_index", IGNORED)
        with self.model.in_mode(training=False):
            for batch in _wrap_errors(batches):
                batch = as_tuple(batch)
                targets = tuple(to_array(t, "target") for t in targets_of(batch))
                named, out, divisors = self._run(tuple(batch[:-1]), targets)
                target = targets[0]
                n = count_samples(target)
                one_each = len(targets) == 1 and isinstance(out, np.ndarray) and target.ndim == 1 and out.ndim == 2
                classes = classes and one_each and target.dtype.kind in "iu"
                for name, metric in measured.items():
                    if len(targets) > 1:
                        check_takes(getattr(metric, "f", metric.update), f"the metric {name}", targets)
                    metric.update(out, *targets)
                if classes:
                    n -= int((target == ignored).sum())
                    best, is_valid = predicted(out)
                    correct += int(((best == target) & (target != ignored) & is_valid).sum())
                label_count += n
                for name, x in named.items():
                    weight = float(divisors.get(name, n))
                    if weight:  # the mean over no labels is NaN
                        sums[name] = sums.get(name, 0.0) + float(x) * weight
                        weights[name] = weights.get(name, 0.0) + weight
        if shared is not None:
            names = sorted({name for reported in shared.gather(list(sums)) for name in reported})
            mine = tuple({name: part.get(name, 0.0) for name in names} for part in (sums, weights))
            (sums, weights), label_count, correct, others = shared.all_reduce(
                (mine, label_count, correct, int(not classes))
            )
            classes = not others
            measured = {name: _merge(shared, metric) for name, metric in measured.items()}
        if not label_count or not weights["loss"]:
            raise ShapeError("the batches are empty, or every label in them is ignored")
        results = {name: total / (weights[name] or np.nan) for name, total in sums.items()}
        if classes:
            results["accuracy"] = correct / label_count
        return results | {name: float(metric.compute()) for name, metric in measured.items()}
