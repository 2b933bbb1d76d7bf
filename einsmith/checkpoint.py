"""es.save and es.load: a training step in a folder, as safetensors and JSON; never pickle.

The folder is written beside its place and moved there whole, so that what was saved before stays until the new one is
complete. Every file's checksum is in `step.json`; a truncated or foreign folder is refused before anything changes.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import inspect
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from einsmith import functional, models, optim
from einsmith.errors import EinsmithError, SaveError
from einsmith.nn import Module
from einsmith.training import TrainStep

FORMAT = "einsmith-step"
VERSION = 2
_KEYS = {
    "model", "frozen", "loss", "optimizer", "steps", "epoch", "position", "epoch_loss", "epoch_samples", "seed",
    "winograd", "files",
}  # fmt: skip
_FILES = _WEIGHTS, _STATE, _META, _PLAN = "weights.safetensors", "state.safetensors", "step.json", "plan.txt"


def save(step: TrainStep, path: str | os.PathLike) -> None:
    """Writes weights, optimizer state, counters and plan to the folder `path`, replacing one that save wrote before.

    Raises SaveError where `path` holds something else or cannot be written; what was there stays whole.
    """
    if not isinstance(step, TrainStep):
        kind = type(step).__name__
        raise SaveError(f"a TrainStep is saved, not a {kind}; a model's weights alone: model.state_dict()")
    target = Path(path).resolve()
    try:
        _put_back(target)
        if target.exists() and any(target.iterdir() if target.is_dir() else [target]) and not _is_ours(target):
            raise SaveError(f"{target} exists and is not a saved step; choose another folder or remove it")
        target.parent.mkdir(parents=True, exist_ok=True)
        work, old = _beside(target, "new"), _beside(target, "old")
        for left in (work, old):
            shutil.rmtree(left, ignore_errors=True)
        work.mkdir()
        try:
            _write(step, work)
            for extra in sorted(target.iterdir()) if target.is_dir() else []:  # a loss curve beside the saved run stays
                if extra.is_dir() and not extra.is_symlink():
                    shutil.copytree(extra, work / extra.name, symlinks=True)
                elif extra.name not in _FILES:
                    shutil.copy2(extra, work / extra.name, follow_symlinks=False)
            if target.exists():
                target.rename(old)
            work.rename(target)
        except BaseException:
            if old.exists() and not target.exists():
                old.rename(target)
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    except SaveError:
        raise
    except OSError as e:
        raise SaveError(f"cannot save to {target}: {e}; choose a folder that can be written") from e


def _write(step: TrainStep, work: Path) -> None:
    """The files of a save, each on the disk when this returns."""
    parameters = step.model.named_parameters()
    save_file({k: np.array(v) for k, v in step.model.state_dict().items()}, work / _WEIGHTS)
    save_file({k: np.array(s.data) for k, s in step.store.state.items()}, work / _STATE)
    (work / _PLAN).write_text(step.plan + "\n")
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "model": getattr(step.model, "spec", None),
        "frozen": [n for n, p in parameters if not p.requires_grad],
        "loss": _loss_name(step.loss),
        "optimizer": optim.describe(step.optimizer),
        "steps": step.steps,
        "epoch": step.epoch,
        "position": step.position,
        "epoch_loss": step.epoch_loss,
        "epoch_samples": step.epoch_samples,
        "seed": int(step.seed),
        "winograd": bool(step.winograd),
        "files": {n: _digest(work / n) for n in (_WEIGHTS, _STATE)},
    }
    (work / _META).write_text(json.dumps(meta, indent=1) + "\n")
    for name in _FILES:
        with open(work / name, "rb") as f:
            os.fsync(f.fileno())


def _beside(target: Path, what: str) -> Path:
    return target.parent / f".{target.name}.{os.getpid()}.{what}"


def _put_back(target: Path) -> None:
    """The save that a process which was killed while it replaced `target` had moved aside returns to its place."""
    if target.exists() or not target.parent.is_dir():
        return
    for old in sorted(target.parent.glob(f".{glob.escape(target.name)}.*.old")):
        if _is_ours(old):
            old.rename(target)
            return


def load(
    path: str | os.PathLike, *, model: Module | None = None, loss: Callable | None = None, optimizer: Any = None,
    threads: int | None = None,
) -> TrainStep:
    """The TrainStep saved at `path`, ready to go on bitwise as if it had not stopped.

    model, loss, optimizer: needed where they are the user's own (the message says so); weights and state are filled in.
    Raises SaveError where the folder is missing, truncated or foreign, or does not fit the given model.
    """
    source = Path(path).resolve()
    meta = _meta(source)
    weights, state = load_file(source / _WEIGHTS), load_file(source / _STATE)
    if model is None:
        if meta["model"] is None:
            raise SaveError(f"{source} holds a model of your own class; pass it: es.load(path, model=...)")
        model = models.get(meta["model"]["name"], **meta["model"]["arguments"])
        for name, stored in (*model.named_parameters(), *model.named_buffers()):
            if name in weights and stored.dtype.is_float:
                stored.convert(weights[name].dtype)
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name not in meta["frozen"]
    if loss is None:
        if meta["loss"] is None:
            raise SaveError(f"{source} was trained with a loss of your own; pass it: es.load(path, loss=...)")
        loss = getattr(functional, meta["loss"])
    if optimizer is None:
        if meta["optimizer"] is None:
            raise SaveError(f"{source} has an optimizer of your own; pass it: es.load(path, optimizer=...)")
        optimizer = optim.restore(meta["optimizer"])
    step = TrainStep(model, loss, optimizer, seed=meta["seed"], threads=threads, winograd=meta["winograd"])
    for name, array in state.items():
        owner = step.store.parameters.get(name.rpartition("/")[0])
        if owner is None or owner.shape != array.shape:
            raise SaveError(f"{source} does not fit the model: {name} has shape {array.shape} and no parameter like it")
    try:
        model.load_state_dict(weights)
    except EinsmithError as e:
        raise SaveError(f"{source} does not fit the model: {e}") from e
    for name, array in state.items():
        step.store.slot(name, array.shape, array.dtype, array)
    step.steps, step.epoch, step.position = meta["steps"], meta["epoch"], meta["position"]
    step.epoch_loss, step.epoch_samples = meta["epoch_loss"], meta["epoch_samples"]
    return step


def _meta(source: Path) -> dict:
    with contextlib.suppress(OSError):
        _put_back(source)
    if not source.is_dir():
        raise SaveError(f"{source} is not a folder; pass what es.save wrote")
    try:
        meta = json.loads((source / _META).read_text())
    except (OSError, ValueError) as e:
        raise SaveError(f"{source} is not a saved step: {_META} is missing or damaged") from e
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise SaveError(f"{source} is not a saved step: {_META} is of another format")
    if meta.get("version") != VERSION:
        raise SaveError(f"{source} was saved in version {meta.get('version')}; this Einsmith reads version {VERSION}")
    missing = _KEYS - set(meta)
    if missing:
        raise SaveError(f"{source}: {_META} lacks {', '.join(sorted(missing))}")
    for name, digest in meta["files"].items():
        try:
            found = _digest(source / name)
        except OSError as e:
            raise SaveError(f"{source}: {name} is missing") from e
        if found != digest:
            raise SaveError(f"{source}: {name} is truncated or was changed; its checksum is not the saved one")
    return meta


def _is_ours(path: Path) -> bool:
    try:
        return json.loads((path / _META).read_text()).get("format") == FORMAT
    except (OSError, ValueError, AttributeError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _loss_name(loss: Callable) -> str | None:
    name = getattr(loss, "__name__", None)
    if inspect.isclass(loss) or name is None:
        return None
    return name if getattr(functional, name, None) is loss else None
