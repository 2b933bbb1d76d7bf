"""Fine-tune a published language model by adapters or as a whole, for `einsmith finetune`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from einsmith import adapters, models, optim
from einsmith.adapters import peft_folder
from einsmith.base import files, folders
from einsmith.base.errors import ArgumentError, DataError, SaveError
from einsmith.cli.progress import TrainProgress, metric_text
from einsmith.cli.runs import CURVE, DAMAGED, SETTINGS, SavedRun, TrainingRun, check_writable
from einsmith.cli.tasks import token_loss
from einsmith.data import Tokenizer, TokenRows, documents, hold_out, rows
from einsmith.data.documents import KINDS, Document
from einsmith.models import published_folder
from einsmith.nn import Module
from einsmith.training import TrainStep, checkpoint, manifest

RUN, SINCE = "run", ("ema",)
"""Folder of a run in the save folder, and settings that may be missing in older runs."""
LENGTH = 512
"""Tokens in a row where neither --length nor the model says less."""
RATES = {True: 2e-4, False: 2e-5}
"""Default learning rates: of adapters (that of QLoRA, arXiv 2305.14314, for models of up to 13 billion parameters), and
of all weights."""
STATES = 2
"""Arrays of AdamW's state for each parameter."""
COPIES = 2
"""Saves that exist at once: the last one stays until the next one is complete."""
_LIST = re.compile(r"[\w.]+(,[\w.]+)*")
"""Targets that are names, with commas; others are a regular expression."""


@dataclass(kw_only=True)
class FinetuneRun(SavedRun):
    """The settings and the history of a run of `einsmith finetune`, kept in the folder `run` of its save folder.

    Attributes:
        base, data: the model's folder and the file of documents, with checksums of their contents in `digests`
        rank: rank of the adapters; None: all weights are trained
        weights: checksum of the file of trained weights that was saved last
    """

    WARM_UP = 0.05

    base: str
    data: str
    rank: int | None = None
    targets: str = adapters.config.ALL_LINEAR
    alpha: float = 0.0
    dora: bool = False
    dropout: float = 0.0
    epochs: int = 3
    batch: int = 4
    length: int = 0
    clip: float | None = 1.0
    validation: str = ""
    is_padded: bool = False
    is_divided: bool = False
    keep: str = "fp32"
    digests: dict[str, str] = field(default_factory=dict)
    weights: str = ""

    @property
    def model(self) -> str:
        """Name of the model, for messages."""
        return Path(self.base).name

    @property
    def tensors(self) -> str:
        """Name of the file of trained weights in the save folder."""
        return published_folder.WEIGHTS if self.rank is None else peft_folder.TENSORS

    def save(self, step: TrainStep, target: Path) -> None:
        """Replace the save folder by the adapter, or the model, and the state of the run, as a whole."""
        with folders.rewriting(target, is_run, "a save of `einsmith finetune`") as (place, work):
            if self.rank is None:
                published_folder.write_files(step.model, work, Path(self.base))
            else:
                peft_folder.write_files(step.model, work, self.base)
            self.weights = manifest.digest(work / self.tensors)
            checkpoint.write(step, work / RUN, {SETTINGS: self.write}, holds_weights=False)
            folders.copy_others(place, work, [p.name for p in work.iterdir()])

    def adapt(self, model: Module) -> None:
        """Give a model the adapters that are trained, or unfreeze its weights."""
        if self.rank is None:
            model.requires_grad_(True)
            return
        targets = self.targets.split(",") if _LIST.fullmatch(self.targets) else self.targets
        is_all = targets == [adapters.config.ALL_LINEAR] or self.targets == adapters.config.ALL_LINEAR
        adapters.lora(
            model,
            self.rank,
            self.alpha,
            adapters.config.ALL_LINEAR if is_all else targets,
            dropout=self.dropout,
            dora=self.dora,
            seed=self.seed,
        )


def finetune(
    folder: Path,
    *,
    save_to: str,
    resume: bool = False,
    full: bool | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
    as_json: bool = False,
    **chosen: Any,
) -> None:
    """Fine-tune the model in a folder and report progress and results.

    chosen: settings of a FinetuneRun; None means the default, or the saved value when resuming.

    Raises click's usage errors for wrong options and EinsmithErrors for what fails.
    """
    target = Path(save_to)
    settings = {name: value for name, value in chosen.items() if value is not None}
    for name in ("data", "validation"):  # a resumed run may have another working directory
        if Path(settings.get(name, "")).suffix in KINDS:
            settings[name] = str(Path(settings[name]).resolve())
    if full and "rank" in settings:
        raise click.UsageError("--lora trains adapters, and --full all weights; pass one of them")
    progress = TrainProgress(as_json, "tokens")
    run = _saved(target, folder, settings, full) if resume else _new(folder, settings, full)
    progress.say(f"reading {folder}")
    keep = None if run.keep == "fp32" else run.keep
    model = models.from_folder(folder if run.rank is not None or not resume else target, keep=keep)
    train_rows, held = _read(run, model, progress.say)
    _check_digests(run)
    if resume:
        if run.rank is not None:
            adapters.load(model, target)
        step = checkpoint.load(target / RUN, model=model, loss=token_loss, threads=threads)
        run.history = [h for h in run.history if h["epoch"] <= step.epoch]
    else:
        run.adapt(model)
        step = run.new_step(model, token_loss, optim.AdamW(lr=run.lr), threads=threads)
    step.memory_limit = memory_limit
    _check_room(target, step)
    check_writable(target, is_run)
    trained = sum(p.size for p in model.parameters() if p.requires_grad)
    progress.say(f"training {trained:,} of {sum(p.size for p in model.parameters()):,} parameters")
    how = "all weights" if run.rank is None else f"adapters of rank {run.rank}"
    title, rate = f"{run.model}, {how}, batch {run.batch}", run.batch * run.length
    training = TrainingRun(run, step, train_rows, held, target, progress, title, rate, folder=RUN)
    training.finish(f"einsmith finetune {folder} --save {target} --resume")
    last = run.history[-1] if run.history else {}
    if as_json:
        click.echo(json.dumps(last | {"epochs": step.epoch, "steps": step.steps, "seconds": run.seconds}))
        return
    metric = f": test {metric_text(last)}" if metric_text(last) else f": loss {last['loss']:.4f}" if last else ""
    click.echo(
        f"{run.model}{metric} after {step.epoch} epochs, {run.seconds:.1f} s; saved in {target}, its loss curve in "
        f"{target / RUN / CURVE}"
    )


# ------------------------------------------------------------------------------------------------------------ settings


def _new(folder: Path, settings: dict[str, Any], full: bool | None) -> FinetuneRun:
    """Return a new run. Raises click's usage errors."""
    if "data" not in settings:
        raise click.UsageError("--data FILE is missing: what the model learns")
    if "rank" not in settings and not full:
        raise click.UsageError("--lora RANK is missing, as in --lora 16; --full trains all weights")
    frozen = {"targets": "targets", "alpha": "alpha", "dora": "dora", "dropout": "dropout", "keep": "weights"}
    others = [f"--{option}" for name, option in frozen.items() if name in settings and full]
    if others:
        raise click.UsageError(f"{', '.join(others)}: these options belong to --lora")
    run = FinetuneRun(base=str(folder.resolve()), **settings)
    run.alpha = run.alpha or float(run.rank or 0)
    run.lr = run.lr or RATES[run.rank is not None]
    return run


def is_run(folder: Path) -> bool:
    """Return whether a folder holds what `einsmith finetune` saved."""
    return manifest.is_saved_step(folder / RUN) and files.is_file(folder / RUN / SETTINGS)


def _saved(target: Path, folder: Path, settings: dict[str, Any], full: bool | None) -> FinetuneRun:
    """Return the run that a folder holds, whose settings stay. Raises SaveError, and click's usage errors."""
    folders.find(target, is_run)
    if not is_run(target):
        raise SaveError(f"{target} holds no run of `einsmith finetune`; leave out --resume to begin one")
    try:
        run = FinetuneRun.read(target / RUN / SETTINGS, SINCE)
        is_whole = manifest.digest(target / run.tensors) == run.weights
    except DAMAGED as e:
        raise SaveError(f"{target} cannot be continued: a file is missing or damaged ({e})") from e
    if not is_whole:
        raise SaveError(f"{target / run.tensors} was changed since it was saved; the run cannot be continued from it")
    if full is not None:
        settings = settings | {"rank": None}
    options = {"rank": "lora", "is_padded": "pad", "is_divided": "divide", "keep": "weights"}
    run.base = str(folder.resolve())
    run.data, run.epochs = settings.get("data", run.data), settings.get("epochs", run.epochs)
    run.check_kept(target, settings, options)
    return run


def _check_digests(run: FinetuneRun) -> None:
    """Record the checksums of the model's weights and of the data; for a resumed run check that they are the same."""
    base = Path(run.base)
    paths = {p.name: p for p in sorted(base.glob("*.safetensors"))} | {"config.json": base / "config.json"}
    paths["--data"] = Path(run.data)
    if Path(run.validation).suffix in KINDS:
        paths["--validation"] = Path(run.validation)
    digests = {name: manifest.digest(path) for name, path in paths.items()}
    if run.digests and run.digests != digests:
        changed = sorted(name for name in {*run.digests, *digests} if run.digests.get(name) != digests.get(name))
        raise SaveError(f"the run was begun with other contents of {', '.join(changed)} and cannot be continued")
    run.digests = digests


def _check_room(target: Path, step: TrainStep) -> None:
    """Raise SaveError where the saves of a run do not fit on the disk."""
    size = sum(p.size * p.memory.dtype.itemsize for p in step.model.parameters() if p.requires_grad)
    needed = size * (1 + STATES) * COPIES
    place = next(p for p in (target.resolve(), *target.resolve().parents) if files.exists(p))
    free = shutil.disk_usage(place).free
    if free < needed:
        raise SaveError(
            f"{target} needs room for {needed / 1e6:,.0f} MB (two saves of weights and optimizer state), and the disk "
            f"has {free / 1e6:,.0f} MB free"
        )


# ---------------------------------------------------------------------------------------------------------------- data


def _read(run: FinetuneRun, model: Module, say: Callable[[str], None]) -> tuple[TokenRows, TokenRows | None]:
    """Return the batches to train on, and those held out. Raises DataError, ArgumentError."""
    limits = published_folder.limits_of(model)
    run.length = run.length or min(LENGTH, limits.tokens)
    if run.length > limits.tokens:
        raise click.BadParameter(f"{run.model} reads {limits.tokens} tokens at most", param_hint="--length")
    encode, end = _tokenizer(Path(run.base))
    train = documents(run.data, limits.vocabulary, encode, end, is_divided=run.is_divided)
    held: Sequence[Document] = ()
    if Path(run.validation).suffix in KINDS:
        held = documents(run.validation, limits.vocabulary, encode, end, is_divided=run.is_divided)
    elif run.validation:
        try:
            train, held = hold_out(train, float(run.validation), run.seed)
        except (ValueError, ArgumentError) as e:
            raise click.BadParameter(
                f"{run.validation!r} is neither a fraction, as 0.05, nor a {' or '.join(KINDS)} file ({e})",
                param_hint="--validation",
            ) from e
    is_packed = limits.takes_segments and not run.is_padded
    parts = [
        rows(part, run.length, run.batch, seed, is_packed=is_packed) if part else None
        for part, seed in ((train, run.seed), (held, None))
    ]
    for name, part in (("", parts[0]), ("held-out ", parts[1])):
        if part is not None:
            cut = f", {part.cut} of them cut to {run.length}" if part.cut else ""
            say(f"{part.documents:,} {name}documents, {part.labels:,} tokens to learn, {part.samples:,} rows{cut}")
    assert parts[0] is not None
    return parts[0], parts[1]


def _tokenizer(folder: Path) -> tuple[Callable[[str, bool], list[int]] | None, int | None]:
    """Return the function that encodes a text, and the token that ends a document; (None, None) without tokenizer."""
    if not files.exists(folder / "tokenizer.json"):
        return None, None
    try:
        tokenizer = Tokenizer(folder)
    except ImportError as e:
        message = str(e)

        def refuse(text: str, begins: bool) -> list[int]:
            raise DataError(message)

        return refuse, None

    def encode(text: str, begins: bool) -> list[int]:
        ids = tokenizer.encode(text, begins)
        return ids[:-1] if begins and ids and ids[-1] == tokenizer.eos else ids

    return encode, tokenizer.eos
