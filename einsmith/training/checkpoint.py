"""Save and load a training step as a folder of safetensors and JSON, without pickle: `es.save`, `es.load`.

The folder is written under a temporary name and renamed when it is complete, so that the previous save stays until
then. Processes and threads that save to one folder take turns. `step.json` holds the checksum of every file, itself
included; a folder with a changed byte, a truncated one and a foreign one are refused before anything else changes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from einsmith import models, ops, optim
from einsmith.base import files, folders
from einsmith.base.arguments import Count, check_arguments, describe
from einsmith.base.errors import EinsmithError, EinsmithWarning, GroupError, SaveError
from einsmith.distributed.group import ProcessGroup
from einsmith.nn import Module
from einsmith.training import TrainStep, manifest
from einsmith.training.manifest import FILES, META, PLAN, STATE, WEIGHTS
from einsmith.training.state import GRADIENT, STEP_STATE_KINDS, WEIGHT, Accumulation, Epochs, LossScaling
from einsmith.tuning.programs import kernel_search

_MAX_READS = 100
"""Most attempts to read a save that other processes are replacing."""


@check_arguments
def save(step: Any, path: Any) -> None:
    """Write a TrainStep's weights, optimizer state, counters and plan to the folder `path`, replacing an earlier save.

    Raises SaveError where `path` holds something else or cannot be written; the old contents stay whole.
    """
    if not isinstance(step, TrainStep):
        raise SaveError(
            f"es.save takes a TrainStep, not {describe(step)}; for a model's weights use model.state_dict()"
        )
    write(step, path, {})


def write(step: TrainStep, path: Any, others: Mapping[str, Callable[[Path], None]], holds_weights: bool = True) -> None:
    """Save a step, with other files in its folder. All processes of a group call it, and rank 0 writes; where it
    cannot, all raise its SaveError.

    others: functions that write a file to a path, by the file's name; holds_weights: whether the model's weights are
    saved; without them, `load` takes a model that has them.
    """
    group, saved = step.group, _Snapshot(step, holds_weights)
    if group.size == 1:
        _write_alone(saved, path, others)
        return
    saved.add_gathered(group)
    failure: Exception | None = None
    if group.rank == 0:
        try:
            _write_alone(saved, path, others)
        except Exception as e:  # the other ranks wait to know
            failure = e
    message = group.gather(str(failure) if failure is not None else None)[0]
    if message is not None:
        raise failure or SaveError(message)


def _write_alone(saved: _Snapshot, path: Any, others: Mapping[str, Callable[[Path], None]]) -> None:
    with folders.rewriting(path, manifest.is_saved_step, "a saved step", SafetensorError) as (target, work):
        saved.write(work, others)
        folders.copy_others(target, work, (*FILES, *others))


class _Snapshot:
    """A copy of a step's parameters, state and metadata between two steps, consistent whatever other threads do."""

    def __init__(self, step: TrainStep, holds_weights: bool):
        with step.store.guard:
            step.runner.settle()
            self.weights = step.model.state_dict() if holds_weights else {}
            self.state = step.whole_state()
            if not step.parts.accumulation.batches:  # gradients of an update that was made
                self.state = {k: a for k, a in self.state.items() if not k.endswith((f"/{GRADIENT}", f"/{WEIGHT}"))}
            self.metadata = _metadata(step) | {"holds_weights": holds_weights}
        self.plan = step.plan

    def add_gathered(self, group: ProcessGroup) -> None:
        """Add up the accumulated gradients of all processes, and their samples."""
        gathered = {k: a for k, a in self.state.items() if k.endswith(f"/{GRADIENT}")}
        total, samples = group.all_reduce((gathered, self.metadata["gathered_samples"]))
        self.state |= total
        self.metadata["gathered_samples"] = samples

    def write(self, work: Path, others: Mapping[str, Callable[[Path], None]]) -> None:
        """Write the files of a save and flush each to disk."""
        save_file(self.weights, work / WEIGHTS)
        save_file(self.state, work / STATE)
        files.write(work / PLAN, self.plan + "\n")
        for name, write_file in others.items():
            write_file(work / name)
        manifest.write(work, self.metadata)
        for name in (*FILES, *others):
            with files.reading(work / name) as f:
                os.fsync(f.fileno())


def _metadata(step: TrainStep) -> dict[str, Any]:
    """Return a step's metadata: everything that is saved apart from its arrays."""
    epochs, accumulation, scaling = step.parts.epochs, step.parts.accumulation, step.parts.numbers.scaling
    return {
        "model": getattr(step.model, "spec", None),
        "frozen": [n for n, p in step.model.named_parameters() if not p.requires_grad],
        "loss": manifest.loss_name(step.loss),
        "optimizer": optim.describe(step.optimizer),
        "steps": accumulation.steps,
        "updates": step.parts.state.counts.by_name(),
        "epoch": epochs.epoch,
        "position": epochs.position,
        "epoch_loss": epochs.loss,
        "epoch_samples": epochs.samples,
        "epoch_losses": epochs.losses,
        "history": epochs.history,
        "settings": asdict(step.updates),
        "gathered": accumulation.batches,
        "gathered_samples": accumulation.samples,
        "loader_state": epochs.loader_state,
        "seed": int(step.seed),
        "winograd": step.winograd,
        "separate_exponentials": step.separate_exponentials,
        "precision": step.precision if isinstance(step.precision, str) else dict(step.precision),
        "loss_scale": [scaling.scale, scaling.steady],
        "mode": step.mode,
        "deterministic": step.deterministic,
        "tune": step.tune,
    }


@check_arguments
def load(
    path: Any,
    *,
    model: Module | None = None,
    loss: Callable | None = None,
    optimizer: Any = None,
    threads: Count | None = None,
    mode: str | None = None,
    tune: kernel_search.Seconds | str | None = None,
    group: ProcessGroup | None = None,
    shard_optimizer: bool = False,
    deterministic: bool | None = None,
    device: str | None = None,
) -> TrainStep:
    """Load the TrainStep saved at `path`; training continues bitwise as if it had not been interrupted.

    A search for kernel configurations that ran before the first step is not repeated: its results are in the store of
    tuned configurations.

    Args:
        path: folder that `es.save` has written.
        model: needed where it is the user's own (the error message says so); weights are filled in.
        loss: needed where it is the user's own.
        optimizer: needed where it is the user's own; its state is filled in.
        threads: as in TrainStep.
        mode: as in TrainStep; by default the saved mode.
        tune: as in TrainStep; by default, in dynamic mode, the saved seconds.
        group: as in TrainStep, of any size, whatever the number of processes that saved.
        shard_optimizer: as in TrainStep, whether or not the save's state was divided.
        deterministic: as in TrainStep; by default as saved.
        device: as in TrainStep, whatever the device that the step was saved on.

    Raises:
        SaveError: the folder is missing, truncated or foreign, or does not fit the given model or optimizer.
    """
    source = folders.absolute(path)
    meta, weights, state = _read(source)
    if model is None:
        model = _model(source, meta, weights)
    loss = _loss(source, meta) if loss is None else loss
    optimizer = _optimizer(source, meta) if optimizer is None else optimizer
    mode = meta["mode"] if mode is None else mode
    if tune is None:
        tune = meta["tune"] if mode == "dynamic" else 0.0
    try:
        step = TrainStep(
            model,
            loss,
            optimizer,
            seed=meta["seed"],
            group=group,
            shard_optimizer=shard_optimizer,
            deterministic=meta["deterministic"] if deterministic is None else deterministic,
            threads=threads,
            device=device,
            tune=tune,
            winograd=meta["winograd"],
            separate_exponentials=meta["separate_exponentials"],
            precision=meta["precision"],
            **meta["settings"],
        )
    except GroupError:
        raise
    except (EinsmithError, TypeError) as e:
        raise SaveError(f"{source} does not fit the model: {e}") from e
    step.mode = mode
    _check_state(source, step, state)
    updates = _updates(source, step, meta, state)
    _warn_frozen(source, step, meta["frozen"])
    _restore(source, step, weights if meta["holds_weights"] else None, state)
    _restore_counters(step, meta, updates)
    _check_gathered(source, step, state)
    if step.group.rank > 0:  # rank 0 has the gradients of all
        step.parts.accumulation.samples = 0
        with step.store.guard:
            for name in (n for n in state if n.endswith(f"/{GRADIENT}")):
                step.store.state[name].memory.store(0.0)
    step.runner.join()
    return step


def _check_state(source: Path, step: TrainStep, state: Mapping[str, np.ndarray]) -> None:
    """Check that saved state has the names and shapes of state of the step. Raises SaveError."""
    for name, array in state.items():
        owner, _, kind = name.rpartition("/")
        parameter = step.store.parameters.get(owner)
        shapes, shape = {}, None
        if parameter is not None:
            shapes = step.parts.state.rules[owner][1].states(parameter.shape, parameter.dtype)
            shape = () if kind == WEIGHT else shapes.get(kind, parameter.shape)
        if shape != array.shape or array.dtype.kind != "f":
            raise SaveError(
                f"{source} does not fit the model: {name} is {array.dtype}{list(array.shape)}, which matches no "
                "parameter"
            )
        others = [] if kind in STEP_STATE_KINDS else [s for s in shapes if f"{owner}/{s}" not in state]
        if kind not in (*shapes, *STEP_STATE_KINDS) or others:
            raise SaveError(
                f"{source} does not fit the optimizer, whose state is {list(shapes) or 'empty'}: it has "
                f"{name}" + (f" but no {', '.join(others)}" if others else "")
            )


def _updates(
    source: Path, step: TrainStep, meta: Mapping[str, Any], state: Mapping[str, np.ndarray]
) -> Mapping[str, int]:
    """Return the saved number of updates of each parameter. Raises SaveError where the model has other parameters, and
    where the save lacks optimizer state of one that has been updated: training would restart that state from zeros."""
    updates: Mapping[str, int] = meta["updates"] or dict.fromkeys(step.store.parameters, meta["steps"])
    if updates.keys() != step.store.parameters.keys():
        raise SaveError(
            f"{source} does not fit the model: {META} counts the updates of {', '.join(updates)}, but the model has "
            f"{', '.join(step.store.parameters)}"
        )
    for name, count in (meta["updates"] or {}).items():
        parameter, (_, rule) = step.store.parameters[name], step.parts.state.rules[name]
        lacking = [s for s in rule.states(parameter.shape, parameter.dtype) if f"{name}/{s}" not in state]
        if count and lacking:
            raise SaveError(
                f"{source} does not fit the optimizer, {type(rule).__name__}, which needs {', '.join(lacking)} of "
                f"{name}: the step was trained with another optimizer. To begin with a new one, load the save with "
                "its own and set step.optimizer"
            )
    return updates


def _restore(
    source: Path, step: TrainStep, weights: Mapping[str, np.ndarray] | None, state: Mapping[str, np.ndarray]
) -> None:
    """Store saved weights and state in the memory of the step. Raises SaveError where they do not fit the model.

    weights: None where the model has them already."""
    model = step.model
    kinds = {n: s.dtype.numpy.kind for n, s in (*model.named_parameters(), *model.named_buffers())}
    for name, array in (weights or {}).items():
        if kinds.get(name, array.dtype.kind) != array.dtype.kind:
            raise SaveError(f"{source} does not fit the model: {name} has the type {array.dtype}")
    with step.store.guard:  # the model may be in use
        try:
            if weights is not None:
                model.load_state_dict(weights)
        except EinsmithError as e:
            raise SaveError(f"{source} does not fit the model: {e}") from e
        for name, array in state.items():
            step.store.slot(name, array.shape, array.dtype, array)


def _restore_counters(step: TrainStep, meta: Mapping[str, Any], updates: Mapping[str, int]) -> None:
    """Set how far the training has come."""
    parts = step.parts
    parts.numbers.scaling = LossScaling(*meta["loss_scale"])
    parts.accumulation = Accumulation(meta["steps"], meta["gathered"], meta["gathered_samples"])
    parts.state.counts.restore(updates)
    parts.epochs = Epochs(
        meta["epoch"],
        meta["position"],
        meta["epoch_loss"],
        meta["epoch_samples"],
        meta["epoch_losses"],
        meta["history"],
        loader_state=meta["loader_state"],
    )


def _check_gathered(source: Path, step: TrainStep, state: Mapping[str, np.ndarray]) -> None:
    """Check that the step weights accumulated batches as the saved one did; one process can also continue from the
    samples of a group. Raises SaveError."""
    if not step.parts.accumulation.batches:
        return
    if not any(n.endswith(f"/{WEIGHT}") for n in state):
        if not step.runner.is_parallel:
            name, parameter = next(iter(step.store.parameters.items()))
            step.store.slot(
                f"{name}/{WEIGHT}", (), parameter.memory.dtype, np.array(float(step.parts.accumulation.samples))
            )
    elif step.runner.is_parallel:
        raise SaveError(
            f"{source} was saved between two batches of one update, whose gradients are weighted by their labels; a "
            "group weighs by samples: continue in one process up to the update, and save again"
        )


def _warn_frozen(source: Path, step: TrainStep, frozen: Sequence[str]) -> None:
    """Warn where the given model trains other parameters than the saved one."""
    now = {n for n, p in step.model.named_parameters() if not p.requires_grad}
    parts = [("trains", sorted({*frozen} - now)), ("freezes", sorted(now - {*frozen}))]
    differences = " and ".join(f"{verb} {', '.join(names)}" for verb, names in parts if names)
    if differences:
        warnings.warn(
            f"{source}: the given model {differences}, unlike the saved one. To continue as saved, set their "
            "requires_grad before the next step",
            EinsmithWarning,
            stacklevel=4,
        )


def _read(source: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the metadata, weights and state of one save, consistent even while other processes replace it."""
    for reads_left in reversed(range(_MAX_READS)):
        folders.find(source, manifest.is_saved_step)
        before = _description(source)
        try:
            read = manifest.read(source), _tensors(source, WEIGHTS), _tensors(source, STATE)
        except SaveError:
            moving = not files.exists(source) and folders.is_locked(source)
            if reads_left == 0 or (_description(source) == before and not moving):
                raise
        else:
            if _description(source) == before:  # it has the checksums of all files read
                return read
    raise SaveError(f"{source} was replaced {_MAX_READS} times while it was read; load it from a folder of its own")


def _description(source: Path) -> bytes | None:
    try:
        return files.read_bytes(source / META, manifest.MAX_BYTES)
    except OSError:
        return None


def _tensors(source: Path, name: str) -> dict[str, np.ndarray]:
    try:
        return load_file(source / name)
    except Exception as e:  # for an invalid safetensors file the library raises errors of several kinds
        raise SaveError(f"{source}: the tensors in {name} cannot be read: {e}") from e


def _loss(source: Path, meta: dict[str, Any]) -> Callable:
    """Return the loss that a save names."""
    if meta["loss"] is None:
        raise SaveError(f"{source} was trained with a loss of your own; pass it: es.load(path, loss=...)")
    loss: Callable = getattr(ops, meta["loss"])
    return loss


def _optimizer(source: Path, meta: dict[str, Any]) -> Any:
    """Build the optimizer that a save describes."""
    if meta["optimizer"] is None:
        raise SaveError(f"{source} has an optimizer of your own; pass it: es.load(path, optimizer=...)")
    try:
        return optim.restore(meta["optimizer"])
    except Exception as e:
        raise SaveError(
            f"{source}: the optimizer in {META} cannot be rebuilt: {e!r}; pass it: es.load(path, optimizer=...)"
        ) from e


def _model(source: Path, meta: dict[str, Any], weights: dict[str, np.ndarray]) -> Module:
    """Build the model that a save describes, in the element types of its weights."""
    if meta["model"] is None:
        raise SaveError(f"{source} holds a model of your own class; pass it: es.load(path, model=...)")
    if not meta["holds_weights"]:
        raise SaveError(f"{source} holds no weights; pass the model that has them: es.load(path, model=...)")
    try:
        model = models.get(meta["model"]["name"], **meta["model"]["arguments"])
    except Exception as e:
        raise SaveError(
            f"{source}: the model in {META} cannot be rebuilt: {e!r}; pass it: es.load(path, model=...)"
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
