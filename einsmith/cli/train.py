"""Train a network by name on a data set, with progress, a saved run and its loss curve, for `einsmith train`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from einsmith import distributed, models, nn, optim
from einsmith.base import environment, files
from einsmith.base.errors import SaveError
from einsmith.cli.progress import TrainProgress
from einsmith.cli.runs import DAMAGED, SETTINGS, SavedRun, TrainingRun, check_writable
from einsmith.cli.task_table import task_of
from einsmith.cli.tasks import Loaded, fitting, model_arguments
from einsmith.data import Stream
from einsmith.driver import registry
from einsmith.training import TrainStep, checkpoint, manifest

MATRICES = ("muon",)
"""Optimizers of matrices only; AdamW at a tenth of the rate updates all other parameters."""
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    name.lower(): make for name, make in optim.STANDARD.items() if name.lower() not in MATRICES
} | {
    "momentum": lambda lr: optim.SGD(lr=lr, momentum=0.9),
    "adamw": lambda lr: optim.AdamW(lr=lr, weight_decay=0.05),
    "muon": lambda lr: optim.Groups(optim.AdamW(lr=lr / 10), matrix=optim.Group(ndim=2, rule=optim.Muon(lr=lr))),
}
"""Optimizers by name, each a function of the learning rate."""
SINCE = ("size", "augment", "clip", "accumulate", "ema", "precision")
"""Settings that may be missing in older saved runs."""
OPTIONS = dict.fromkeys(("steps", "vocabulary", "unit"), "language models") | dict.fromkeys(
    ("size", "augment"), "networks of colour images"
)
"""Kinds of networks, for messages, by the settings that only their tasks have."""


@dataclass(kw_only=True)
class Run(SavedRun):
    """The settings and the history of a run of `einsmith train`.

    steps, vocabulary, unit: tokens per window, most distinct tokens, and kind of token of a language model; arguments:
    the model's arguments that the user chose.
    """

    WARM_UP = 0.2

    model: str
    data: str
    batch: int
    optimizer: str = "adam"
    schedule: str = "cosine"
    epochs: int = 5
    steps: int = 35
    vocabulary: int = 10_000
    unit: str = "word"
    size: int = 32
    augment: bool = False
    arguments: dict[str, int | float] = field(default_factory=dict)

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of step number `step` (from 0) of `steps`."""
        return self.lr if self.schedule == "constant" else super().rate(step, steps)

    def save(self, step: TrainStep, target: Path) -> None:
        """Save weights, state, settings and history atomically, so that a kill at any point leaves a whole save."""
        others: dict[str, Callable[[Path], None]] = {SETTINGS: self.write}
        if self.model.endswith(".onnx"):
            from einsmith.frontends.onnx import save

            others["model.onnx"] = lambda file: save(step.model, file)
        checkpoint.write(step, target, others)


def train(
    model: str,
    *,
    save_to: str | None = None,
    resume: str | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
    max_stored: int | None = None,
    mode: str | None = None,
    as_json: bool = False,
    arguments: Sequence[str] = (),
    device: str | None = None,
    **chosen: Any,
) -> None:
    """Train a model and report progress and results.

    chosen: settings of a Run; None means the default, or the saved value when resuming. arguments: "name=value", the
    model's arguments. device: as in TrainStep.

    Raises click's usage errors for wrong options and EinsmithErrors for what fails.
    """
    registry.check_device(device)
    with environment.setting(environment.DEVICE, device), distributed.init() as group:
        _train(
            model, group, save_to, resume, threads, memory_limit, max_stored, mode, as_json, arguments,
            {name: value for name, value in chosen.items() if value is not None},
        )  # fmt: skip


def _train(
    model: str,
    group: distributed.ProcessGroup,
    save_to: str | None,
    resume: str | None,
    threads: int | None,
    memory_limit: int | None,
    max_stored: int | None,
    mode: str | None,
    as_json: bool,
    arguments: Sequence[str],
    chosen: dict[str, Any],
) -> None:
    step: TrainStep | None = None
    _check_name(model)
    if arguments:
        if model.endswith(".onnx"):
            raise click.UsageError("--set is for a model; the sizes of a file's network are fixed by the file")
        chosen["arguments"] = model_arguments(model, arguments)
    if resume:
        run, step = _resume(Path(resume), model, threads, chosen, group)
    else:
        run = _start(model, chosen)
    target = Path(save_to or resume) if save_to or resume else None  # type: ignore[arg-type]
    task = task_of(model, run.data)
    progress = TrainProgress(as_json, task.things, is_shown=group.rank == 0)
    data = task.load(run, progress.say)
    if group.size > 1:
        if isinstance(data.train, Stream) or isinstance(data.test, Stream):
            raise click.UsageError(f"{model} carries its state from batch to batch, and is trained by one process")
        data.train.group = data.test.group = group
    if step is None:
        optimizer = OPTIMIZERS[run.optimizer](lr=run.lr)
        step = run.new_step(fresh(run, data), task.loss, optimizer, threads=threads, group=group)
    step.memory_limit, step.mode = memory_limit, mode or step.mode
    if max_stored is not None:
        step.max_stored = max_stored
    if target is not None:
        if group.rank == 0:
            check_writable(target, lambda folder: files.exists(folder / SETTINGS))
        group.barrier()
    title = f"{run.model}, {run.optimizer}, batch {run.batch}"
    training = TrainingRun(run, step, data.train, data.test, target, progress, title, data.train.size, task.metric)
    training.finish(f"einsmith train {model} --resume {target}")
    progress.final(run.history[-1] if run.history else {}, run, target)


def fresh(run: Run, data: Loaded) -> nn.Module:
    """Make the network that a run begins with; its weights are a function of the seed, or those of an ONNX file."""
    if run.model.endswith(".onnx"):
        return _of_file(run.model)
    nn.manual_seed(run.seed)
    return models.get(run.model, **(fitting(run.model, data.arguments) | run.arguments))


def _check_name(model: str) -> None:
    known = list(models.names())
    if model.endswith(".onnx"):
        return  # the task reads the file
    if model not in known:
        near = get_close_matches(model, known, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise click.BadParameter(f"no model is named {model!r}; {hint}known: {', '.join(known)}", param_hint="MODEL")


def _start(model: str, chosen: dict[str, Any]) -> Run:
    task = task_of(model, chosen.get("data"))
    for option, what in OPTIONS.items():
        if option in chosen and option not in task.options:
            raise click.UsageError(f"--{option} is for {what}; {model} is trained on {task.things}")
    usual: dict[str, Any] = {"data": task.names[0], "batch": task.batch}
    run = Run(model=model, **{**usual, **task.usual, **chosen})
    if run.optimizer not in OPTIMIZERS:
        raise click.BadParameter(
            f"no optimizer is named {run.optimizer!r}; known: {', '.join(OPTIMIZERS)}", param_hint="--optimizer"
        )
    task.check(run.data)
    run.lr = run.lr or task.rates.get(run.optimizer) or _usual_rate(run.optimizer)
    return run


def _usual_rate(optimizer: str) -> float:
    """Return the default learning rate of a rule of es.optim."""
    names = {name.lower(): name for name in optim.STANDARD}
    return inspect.signature(optim.STANDARD[names[optimizer]]).parameters["lr"].default


def _resume(
    folder: Path, model: str, threads: int | None, chosen: dict[str, Any], group: distributed.ProcessGroup
) -> tuple[Run, TrainStep]:
    network = _of_file(model) if model.endswith(".onnx") else None
    step = checkpoint.load(folder, threads=threads, loss=_own_loss(model, network), model=network, group=group)
    try:
        run = Run.read(folder / SETTINGS, SINCE)
    except DAMAGED as e:
        raise SaveError(f"{folder} is not a run of `einsmith train`: {SETTINGS} is missing or damaged ({e})") from e
    if run.model != model:
        raise click.BadParameter(f"{folder} holds a run of {run.model}, not of {model}", param_hint="MODEL")
    run.epochs = chosen.get("epochs", run.epochs)
    run.check_kept(folder, chosen, {"arguments": "set"})
    if len(run.losses) < step.steps:
        raise SaveError(f"{folder}: {SETTINGS} does not belong to the saved step {step.steps}")
    run.history = [h for h in run.history if h["epoch"] <= step.epoch]
    return run, step


def _of_file(file: str) -> nn.Module:
    from einsmith.cli.onnx_files import network  # reads files only with the package onnx

    return network(file)


def _own_loss(model: str, network: nn.Module | None) -> Callable | None:
    """Return the loss of a model's task where a save cannot name it, else None."""
    if network is not None:
        return None
    loss = task_of(model).loss
    return None if manifest.loss_name(loss) else loss
