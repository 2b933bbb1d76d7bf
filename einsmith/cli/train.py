"""Train a network by name on a data set, with progress, a saved run and its loss curve, for `einsmith train`."""

from __future__ import annotations

import inspect
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
import numpy as np

from einsmith import distributed, models, nn, optim
from einsmith.base import environment, files
from einsmith.base.errors import SaveError
from einsmith.cli.progress import TrainProgress
from einsmith.cli.runs import Interrupted, check_writable, cosine_rate, draw_curve, interrupts
from einsmith.cli.task_table import task_of
from einsmith.cli.tasks import Loaded, fitting, model_arguments
from einsmith.data import Batches, Stream
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
SETTINGS = "run.json"
SINCE = ("size", "augment", "clip", "accumulate", "ema", "precision")
"""Settings that may be missing in older saved runs."""
CURVE = "loss.png"
REDRAWN = 2.0
"""Least seconds between two drawings of the loss curve; drawing takes 0.1 s, as long as a short epoch."""

OPTIONS = dict.fromkeys(("steps", "vocabulary", "unit"), "language models") | dict.fromkeys(
    ("size", "augment"), "networks of colour images"
)
"""Kinds of networks, for messages, by the settings that only their tasks have."""

_ASKED = 16
"""Batches after which the processes of a group tell each other of Ctrl-C: 0.1 ms each time."""
WARM_UP = 0.2
"""Fraction of a run in which the cosine schedule rises."""


@dataclass
class Run:
    """The settings and the history of a run, kept as run.json in its save folder.

    steps, vocabulary, unit: tokens per window, most distinct tokens, and kind of token of a language model; arguments:
    the model's arguments that the user chose.
    """

    model: str
    data: str
    batch: int
    optimizer: str = "adam"
    lr: float = 0.0
    schedule: str = "cosine"
    seed: int = 0
    epochs: int = 5
    steps: int = 35
    vocabulary: int = 10_000
    unit: str = "word"
    size: int = 32
    augment: bool = False
    clip: float | None = None
    accumulate: int = 1
    ema: float | None = None
    precision: str = "fp32"
    arguments: dict[str, int | float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of step number `step` (from 0) of `steps`.

        The cosine schedule rises linearly over the first fifth and ends at a hundredth of `lr`."""
        if self.schedule == "constant":
            return self.lr
        return cosine_rate(self.lr, step, steps, WARM_UP)


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
        step = TrainStep(
            fresh(run, data),
            task.loss,
            optimizer,
            seed=run.seed,
            threads=threads,
            clip_grad_norm=run.clip,
            accumulate=run.accumulate,
            ema=run.ema,
            precision=run.precision,
            group=group,
        )
    step.memory_limit, step.mode = memory_limit, mode or step.mode
    if max_stored is not None:
        step.max_stored = max_stored
    if target is not None:
        if group.rank == 0:
            check_writable(target, lambda folder: files.exists(folder / SETTINGS))
        group.barrier()
    with progress, interrupts() as interrupted:
        try:
            _loop(run, step, data.train, data.test, target, progress, interrupted)
        except Interrupted:
            if target is None:
                raise click.ClickException("interrupted; nothing is saved, since --save was not given") from None
            _save(run, step, target)
            if group.rank == 0:
                _draw(run, target, progress.say)
            group.barrier()
            raise click.ClickException(
                f"interrupted after step {step.steps}; continue with: einsmith train {model} --resume {target}"
            ) from None
    progress.final(run.history[-1] if run.history else {}, run, target)


def _comes_anywhere(came: bool, step: TrainStep, batches: int) -> bool:
    """Return whether Ctrl-C came: where a group of processes trains, to any of them, of which each learns at the same
    step. batches: those of an epoch."""
    group = step.group
    if group.size == 1:
        return came
    number = step.epoch * batches + step.position
    return (number % _ASKED == 0 or step.position == batches) and group.all_reduce(int(came)) > 0


def fresh(run: Run, data: Loaded) -> nn.Module:
    """Make the network that a run begins with; its weights are a function of the seed, or those of an ONNX file."""
    if run.model.endswith(".onnx"):
        return _of_file(run.model)
    nn.manual_seed(run.seed)
    return models.get(run.model, **(fitting(run.model, data.arguments) | run.arguments))


def _loop(
    run: Run,
    step: TrainStep,
    train_batches: Batches | Stream,
    test_batches: Batches | Stream,
    target: Path | None,
    progress: TrainProgress,
    interrupted: Callable[[], bool],
) -> None:
    total = run.epochs * -(-len(train_batches) // run.accumulate)
    began, drawn = time.perf_counter() - run.seconds, -math.inf
    if step.epoch >= run.epochs:
        progress.say(f"the saved run has already trained for its {run.epochs} epochs")

    def on_step(step: TrainStep, loss: float) -> None:
        del run.losses[step.epoch * len(train_batches) + step.position - 1 :]
        run.losses.append(loss)
        run.seconds = time.perf_counter() - began
        progress.step(step.epoch, run.epochs, step.position, len(train_batches), loss, train_batches.size)
        _set_rate(step, run, total)
        if _comes_anywhere(interrupted(), step, len(train_batches)):
            raise Interrupted

    def on_epoch(step: TrainStep, loss: float) -> None:
        nonlocal drawn
        result = step.evaluate(test_batches, averaged=run.ema is not None)
        run.seconds = time.perf_counter() - began
        row = {
            "epoch": step.epoch,
            "loss": _epoch_loss(run, train_batches, step.epoch * len(train_batches))
            if not step.runner.is_parallel
            else loss,
            "test_loss": result["loss"],
            **_metric(task_of(run.model, run.data).metric, result),
            "seconds": run.seconds,
        }
        run.history = [h for h in run.history if h["epoch"] < step.epoch] + [row]
        progress.epoch(row, run.epochs)
        if target is not None:
            _save(run, step, target)
            is_due = step.epoch >= run.epochs or time.perf_counter() - drawn > REDRAWN
            if is_due and step.writes:
                _draw(run, target, progress.say)
                drawn = time.perf_counter()

    _set_rate(step, run, total)
    step.fit(train_batches, epochs=run.epochs, progress=False, on_step=on_step, on_epoch=on_epoch)


def _set_rate(step: TrainStep, run: Run, total: int) -> None:
    """Set every rule's learning rate for the next of `total` updates; AdamW for a matrix optimizer's rest gets a
    tenth."""
    rate = run.rate(step.steps, total)
    for group, rule in step.optimizer.rules.items():
        rule.lr = rate / 10 if group == optim.REST and run.optimizer in MATRICES else rate


def _metric(name: str, result: dict[str, float]) -> dict[str, float]:
    """Return the metric `name` of an evaluation's result, by name; empty where the result has none."""
    if name == "perplexity":
        return {"perplexity": math.exp(min(result["loss"], 700.0))}  # a larger one has no float
    return {name: result[name]} if name in result else {}


def _epoch_loss(run: Run, data: Batches | Stream, end: int) -> float:
    """Return the mean loss over the samples of the epoch that ends at batch `end`, batches before a resume included."""
    losses = run.losses[end - len(data) : end]
    sizes = np.full(len(losses), data.size, np.float64)
    sizes[-1] = data.samples - data.size * (len(data) - 1)
    return float(np.average(losses, weights=sizes))


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
    run = Run(model, **{**usual, **task.usual, **chosen})
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
        saved = json.loads(files.read_bytes(folder / SETTINGS))
        run = Run(**{f.name: saved[f.name] for f in fields(Run) if f.name in saved or f.name not in SINCE})
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise SaveError(f"{folder} is not a run of `einsmith train`: {SETTINGS} is missing or damaged ({e})") from e
    if run.model != model:
        raise click.BadParameter(f"{folder} holds a run of {run.model}, not of {model}", param_hint="MODEL")
    for name, value in chosen.items():
        if name != "epochs" and value != getattr(run, name):
            raise click.BadParameter(
                f"the run in {folder} has {getattr(run, name)!r}; a resumed run keeps its settings",
                param_hint="--set" if name == "arguments" else f"--{name}",
            )
    run.epochs = chosen.get("epochs", run.epochs)
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


def _save(run: Run, step: TrainStep, target: Path) -> None:
    """Save weights, state, settings and history atomically, so that a kill at any point leaves a whole save."""
    others: dict[str, Callable[[Path], None]] = {SETTINGS: lambda file: _write_settings(run, file)}
    if run.model.endswith(".onnx"):
        from einsmith.frontends.onnx import save

        others["model.onnx"] = lambda file: save(step.model, file)
    checkpoint.write(step, target, others)


def _draw(run: Run, target: Path, say: Callable[[str], None]) -> None:
    draw_curve(run.losses, run.history, target / CURVE, f"{run.model}, {run.optimizer}, batch {run.batch}", say)


def _write_settings(run: Run, file: Path) -> None:
    files.write(file, json.dumps(asdict(run)))
