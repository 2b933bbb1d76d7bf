"""es.save and es.load: a training step in a folder, as safetensors and JSON; never pickle.

The folder is written beside its place and moved there whole, so that what was saved before stays until the new one is
complete. `step.json` has the checksum of every file, itself included; a folder of which a byte has changed, a truncated
and a foreign one are refused before anything else changes.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from einsmith import files, functional, manifest, models, optim, tuning
from einsmith.arguments import Count, checked, described
from einsmith.errors import EinsmithError, SaveError
from einsmith.manifest import FILES, META, PLAN, STATE, WEIGHTS
from einsmith.nn import Module
from einsmith.training import TrainStep
from einsmith.training.graph import OWN


@checked
def save(step: Any, path: Any) -> None:
    """Writes a TrainStep's weights, optimizer state, counters and plan to the folder `path`, replacing one that save
    wrote before.

    Raises SaveError where `path` holds something else or cannot be written; what was there stays whole.
    """
    if not isinstance(step, TrainStep):
        raise SaveError(f"a TrainStep is saved, not {described(step)}; a model's weights alone: model.state_dict()")
    write(step, path, {})


def write(step: TrainStep, path: Any, others: Mapping[str, Callable[[Path], None]]) -> None:
    """`save`, with other files in the same folder: each by its name and what writes it to a path."""
    target = _folder(path)
    try:
        _put_back(target)
        if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
            if not manifest.is_saved_step(target):
                raise SaveError(f"{target} exists and is not a saved step; choose another folder or remove it")
        if target in (here := Path.cwd(), *here.parents):
            raise SaveError(f"{target} is or holds the working directory, which cannot be replaced; name a new folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        work, old = _beside(target, "new"), _beside(target, "old")
        _clear(target)
        work.mkdir()
        try:
            _write(step, work, others)
            for extra in sorted(target.iterdir()) if target.is_dir() else []:  # what a user has put there stays
                if extra.is_dir() and not extra.is_symlink():
                    shutil.copytree(extra, work / extra.name, symlinks=True)
                elif extra.name not in (*FILES, *others):
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
    except (OSError, SafetensorError) as e:
        raise SaveError(f"cannot save to {target}: {e}; choose a folder that can be written") from e


def _folder(path: Any) -> Path:
    """The absolute path of a folder. Raises SaveError for what is none."""
    try:
        if not os.fspath(path):
            raise ValueError("it is empty")
        return Path(path).resolve()
    except (TypeError, ValueError, OSError, RuntimeError) as e:
        raise SaveError(f"{path!r} is not the path of a folder: {e}") from e


def _write(step: TrainStep, work: Path, others: Mapping[str, Callable[[Path], None]]) -> None:
    """The files of a save, each on the disk when this returns."""
    with step.store.guard:  # as they are between two steps, whatever other threads do
        weights = {k: np.array(v) for k, v in step.model.state_dict().items()}
        state = {k: np.array(s.data, order="C") for k, s in step.current_state().items()}
        told = _told(step)
    save_file(weights, work / WEIGHTS)
    save_file(state, work / STATE)
    (work / PLAN).write_text(step.plan + "\n")
    for name, put in others.items():
        put(work / name)
    manifest.write(work, told)
    for name in (*FILES, *others):
        with open(work / name, "rb") as f:
            os.fsync(f.fileno())


def _told(step: TrainStep) -> dict[str, Any]:
    """What a step is, beside its arrays."""
    return {
        "model": getattr(step.model, "spec", None),
        "frozen": [n for n, p in step.model.named_parameters() if not p.requires_grad],
        "loss": manifest.loss_name(step.loss),
        "optimizer": optim.describe(step.optimizer),
        "steps": step.steps,
        "updates": step.counts.by_name(),
        "epoch": step.epoch,
        "position": step.position,
        "epoch_loss": step.epoch_loss,
        "epoch_samples": step.epoch_samples,
        "epoch_losses": step.epoch_losses,
        "history": step.history,
        "settings": asdict(step.settings),
        "gathered": step.gathered,
        "gathered_samples": step.gathered_samples,
        "loader_state": step.loader_state,
        "seed": int(step.seed),
        "winograd": bool(step.winograd),
        "mode": step.mode,
        "tune": step.tune,
    }


def _beside(target: Path, what: str) -> Path:
    return target.parent / f".{target.name}.{os.getpid()}.{what}"


def _put_back(target: Path) -> None:
    """The save that a process which was killed while it replaced `target` had moved aside returns to its place."""
    if target.exists() or not target.parent.is_dir():
        return
    for old in sorted(target.parent.glob(f".{glob.escape(target.name)}.*.old")):
        if manifest.is_saved_step(old):
            old.rename(target)
            return


def _clear(target: Path) -> None:
    """Removes what processes that were killed while they saved to `target` have left beside it."""
    for left in list(target.parent.iterdir()):
        found = re.fullmatch(rf"\.{re.escape(target.name)}\.(\d+)\.(new|old)", left.name)
        if found and (int(found[1]) == os.getpid() or not files.runs(int(found[1]))):
            shutil.rmtree(left, ignore_errors=True)


@checked
def load(
    path: Any, *, model: Module | None = None, loss: Callable | None = None, optimizer: Any = None,
    threads: Count | None = None, mode: str | None = None, tune: tuning.Seconds | str | None = None,
) -> TrainStep:
    """The TrainStep saved at `path`, ready to go on bitwise as if it had not stopped.

    model, loss, optimizer: needed where they are the user's own (the message says so); weights and state are filled in.
    mode, tune: as in TrainStep; by default the saved mode, and in dynamic mode the saved seconds. A search that came
    before the first step is not made again: what it found is in the store of tuned configurations.
    Raises SaveError where the folder is missing, truncated or foreign, or does not fit the given model or optimizer.
    """
    source = _folder(path)
    with contextlib.suppress(OSError):
        _put_back(source)
    meta = manifest.read(source)
    weights, state = (_tensors(source, name) for name in (WEIGHTS, STATE))
    if model is None:
        model = _model(source, meta, weights)
    if loss is None:
        if meta["loss"] is None:
            raise SaveError(f"{source} was trained with a loss of your own; pass it: es.load(path, loss=...)")
        loss = getattr(functional, meta["loss"])
    if optimizer is None:
        if meta["optimizer"] is None:
            raise SaveError(f"{source} has an optimizer of your own; pass it: es.load(path, optimizer=...)")
        try:
            optimizer = optim.restore(meta["optimizer"])
        except Exception as e:
            raise SaveError(f"{source}: the optimizer of {META} cannot be made again: {e!r}") from e
    mode = meta["mode"] if mode is None else mode
    if tune is None:
        tune = meta["tune"] if mode == "dynamic" else 0.0
    try:
        step = TrainStep(
            model, loss, optimizer, seed=meta["seed"], threads=threads, winograd=meta["winograd"], tune=tune,
            **meta["settings"],
        )
    except (EinsmithError, TypeError) as e:
        raise SaveError(f"{source} does not fit the model: {e}") from e
    step.mode = mode
    for name, array in state.items():
        owner, _, kind = name.rpartition("/")
        parameter = step.store.parameters.get(owner)
        shapes, shape = {}, None
        if parameter is not None:
            shapes = step.rules[owner][1].states(parameter.shape, parameter.dtype)
            shape = shapes.get(kind, parameter.shape)
        if shape != array.shape or array.dtype.kind != "f":
            raise SaveError(
                f"{source} does not fit the model: {name} is {array.dtype}{list(array.shape)}, and there is no "
                "parameter like it"
            )
        others = [] if kind in OWN else [s for s in shapes if f"{owner}/{s}" not in state]
        if kind not in (*shapes, *OWN) or others:
            raise SaveError(
                f"{source} does not fit the optimizer, whose state is {list(shapes) or 'empty'}: it has "
                f"{name}" + (f" but no {', '.join(others)}" if others else "")
            )
    updates = meta["updates"] or dict.fromkeys(step.store.parameters, meta["steps"])
    if updates.keys() != step.store.parameters.keys():
        raise SaveError(
            f"{source} does not fit the model: {META} tells the updates of {', '.join(updates)}, and the model has "
            f"{', '.join(step.store.parameters)}"
        )
    kinds = {n: s.dtype.numpy.kind for n, s in (*model.named_parameters(), *model.named_buffers())}
    for name, array in weights.items():
        if kinds.get(name, array.dtype.kind) != array.dtype.kind:
            raise SaveError(f"{source} does not fit the model: {name} holds {array.dtype}")
    with step.store.guard:  # the model may be in use
        try:
            model.load_state_dict(weights)
        except EinsmithError as e:
            raise SaveError(f"{source} does not fit the model: {e}") from e
        for name, array in state.items():
            step.store.slot(name, array.shape, array.dtype, array)
    step.steps, step.epoch, step.position = meta["steps"], meta["epoch"], meta["position"]
    step.counts.restore(updates)
    step.epoch_loss, step.epoch_samples = meta["epoch_loss"], meta["epoch_samples"]
    step.epoch_losses, step.history, step.loader_state = meta["epoch_losses"], meta["history"], meta["loader_state"]
    step.gathered, step.gathered_samples = meta["gathered"], meta["gathered_samples"]
    return step


def _tensors(source: Path, name: str) -> dict[str, np.ndarray]:
    try:
        return load_file(source / name)
    except Exception as e:  # of a file that is no safetensors the library raises errors of several kinds
        raise SaveError(f"{source}: {name} does not hold tensors that can be read: {e}") from e


def _model(source: Path, meta: dict[str, Any], weights: dict[str, np.ndarray]) -> Module:
    """The model that a save describes, in the element types of its weights."""
    if meta["model"] is None:
        raise SaveError(f"{source} holds a model of your own class; pass it: es.load(path, model=...)")
    try:
        model = models.get(meta["model"]["name"], **meta["model"]["arguments"])
    except Exception as e:
        raise SaveError(
            f"{source}: the model of {META} cannot be made again: {e!r}; pass it: es.load(path, model=...)"
        ) from e
    for name, stored in (*model.named_parameters(), *model.named_buffers()):
        if name in weights and stored.dtype.is_float and weights[name].dtype.kind == "f":
            stored.convert(weights[name].dtype)
    names = dict(model.named_parameters())
    unknown = [n for n in meta["frozen"] if n not in names]
    if unknown:
        raise SaveError(f"{source}: {META} freezes {', '.join(unknown)}, which the model does not have")
    for name, parameter in names.items():
        parameter.requires_grad = name not in meta["frozen"]
    return model
