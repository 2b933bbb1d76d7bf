"""es.save and es.load: a training step in a folder, as safetensors and JSON; never pickle.

The folder is written beside its place and moved there whole, so that what was saved before stays until the new one is
complete. Every file's checksum is in `step.json`; a truncated or foreign folder is refused before anything changes.
"""

from __future__ import annotations

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
from einsmith.errors import SaveError
from einsmith.nn import Module
from einsmith.training import TrainStep

FORMAT = "einsmith-step"
VERSION = 1
_WEIGHTS, _STATE, _META, _PLAN = "weights.safetensors", "state.safetensors", "step.json", "plan.txt"


def save(step: TrainStep, path: str | os.PathLike) -> None:
    """Writes weights, optimizer state, counters and plan to the folder `path`, replacing one that save wrote before.

    Raises SaveError where `path` holds something else or cannot be written; what was there stays whole.
    """
    target = Path(path)
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        if not _is_ours(target):
            raise SaveError(f"{target} exists and is not a saved step; choose another folder or remove it")
    work = target.parent / f".{target.name}.{os.getpid()}.new"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        save_file({k: np.array(v) for k, v in step.model.state_dict().items()}, work / _WEIGHTS)
        save_file({k: np.array(s.data) for k, s in step.store.state.items()}, work / _STATE)
        (work / _PLAN).write_text(step.plan + "\n")
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "model": getattr(step.model, "spec", None),
            "loss": _loss_name(step.loss),
            "optimizer": optim.describe(step.optimizer),
            "steps": step.steps,
            "epoch": step.epoch,
            "position": step.position,
            "seed": step.seed,
            "files": {n: _digest(work / n) for n in (_WEIGHTS, _STATE)},
        }
        (work / _META).write_text(json.dumps(meta, indent=1) + "\n")
        for extra in sorted(target.iterdir()) if target.is_dir() else []:
            if extra.name not in (_WEIGHTS, _STATE, _META, _PLAN) and extra.is_file():
                shutil.copy2(extra, work / extra.name)  # a loss curve beside the saved run stays
        old = target.parent / f".{target.name}.{os.getpid()}.old"
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        work.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        shutil.rmtree(work, ignore_errors=True)
        raise SaveError(f"cannot save to {target}: {e}; choose a folder that can be written") from e


def load(
    path: str | os.PathLike, *, model: Module | None = None, loss: Callable | None = None, optimizer: Any = None,
    threads: int | None = None,
) -> TrainStep:
    """The TrainStep saved at `path`, ready to go on bitwise as if it had not stopped.

    model, loss, optimizer: needed where they are the user's own (the message says so); weights and state are filled in.
    Raises SaveError where the folder is missing, truncated or foreign, or does not fit the given model.
    """
    source = Path(path)
    meta = _meta(source)
    if model is None:
        if meta["model"] is None:
            raise SaveError(f"{source} holds a model of your own class; pass it: es.load(path, model=...)")
        model = models.get(meta["model"]["name"], **meta["model"]["arguments"])
    if loss is None:
        if meta["loss"] is None:
            raise SaveError(f"{source} was trained with a loss of your own; pass it: es.load(path, loss=...)")
        loss = getattr(functional, meta["loss"])
    if optimizer is None:
        if meta["optimizer"] is None:
            raise SaveError(f"{source} has an optimizer of your own; pass it: es.load(path, optimizer=...)")
        optimizer = optim.restore(meta["optimizer"])
    weights, state = load_file(source / _WEIGHTS), load_file(source / _STATE)
    model.load_state_dict(weights)
    step = TrainStep(model, loss, optimizer, seed=meta["seed"], threads=threads)
    for name, array in state.items():
        step.store.slot(name, array.shape, array.dtype, array)
    step.steps, step.epoch, step.position = meta["steps"], meta["epoch"], meta["position"]
    return step


def _meta(source: Path) -> dict:
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
    missing = {"model", "loss", "optimizer", "steps", "epoch", "position", "seed", "files"} - set(meta)
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
