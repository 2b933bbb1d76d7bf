"""Handle ONNX files on the command line: choose their training data, make example inputs, run `einsmith run`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np

from einsmith.base import files, npz
from einsmith.base.errors import ArgumentError, DataError
from einsmith.cli.tasks import COLOURS, IMAGES, ROWS, Loaded, Say, Task, TaskSettings, assignment, number, shape
from einsmith.data import batches
from einsmith.frontends.onnx import load
from einsmith.frontends.onnx.module import OnnxModule
from einsmith.frontends.onnx.nodes import Input
from einsmith.frontends.onnx.types import ELEMENTS
from einsmith.nn.module import Module

SUFFIX = ".onnx"
SIZE = 8
"""Extent that example inputs get in open dimensions after the first."""


def is_file(what: str) -> bool:
    """Return whether an argument names an ONNX file."""
    return Path(what).suffix == SUFFIX


def network(what: str) -> OnnxModule:
    """Load the network of an ONNX file. Raises click's error where the package `onnx` is missing."""
    try:
        return load(what)
    except ImportError as e:
        raise click.ClickException(str(e)) from e


@lru_cache(maxsize=8)
def _inputs(what: str, changed: float) -> tuple[Input, ...]:
    return network(what).inputs


def inputs_of(what: str) -> tuple[Input, ...]:
    """Return the inputs of the network of an ONNX file. Raises DataError where there is no such file."""
    path = Path(what)
    if not files.is_file(path):
        raise DataError(f"there is no file {what}")
    return _inputs(what, path.stat().st_mtime)


# ----------------------------------------------------------------------------------------------------------- training


class Arrays(Task):
    """Task of the arrays of a .npz file: x and y for training, test_x and test_y for tests.

    Without test arrays the last tenth of x and y is held out for tests."""

    def load(self, run: TaskSettings, say: Say) -> Loaded:
        try:
            arrays = npz.read_arrays(run.data)
        except (OSError, ValueError) as e:
            raise DataError(f"{run.data} is not a file of arrays: {e}; np.savez(file, x=x, y=y) writes one") from e
        counts = [arrays[n].shape[:1] for n in ("x", "y") if n in arrays]
        if len(counts) < 2 or not counts[0] or counts[0] != counts[1]:
            raise DataError(f"{run.data} needs arrays x and y of one length; it has {', '.join(arrays) or 'none'}")
        x, y = arrays["x"], arrays["y"]
        if ("test_x" in arrays) != ("test_y" in arrays):
            raise DataError(f"{run.data} needs test_x and test_y, or neither; it has {', '.join(arrays)}")
        others = [n for n in arrays if n not in ("x", "y", "test_x", "test_y")]
        if others:
            say(f"{run.data}: {', '.join(others)} not used")
        if "test_x" in arrays:
            test_x, test_y = arrays["test_x"], arrays["test_y"]
        else:
            held = max(len(x) // 10, 1)
            say(f"{run.data} has no test_x and test_y: the last {held} of {len(x)} samples are held out to test")
            x, y, test_x, test_y = x[:-held], y[:-held], x[-held:], y[-held:]
        test = batches(test_x, test_y, min(run.batch, len(test_y)))
        return Loaded(batches(x, y, min(run.batch, len(y)), seed=run.seed), test)

    def check(self, data: str) -> None:
        if Path(data).suffix != ".npz" or not files.is_file(data):
            raise click.BadParameter(f"{data!r} is not a .npz file of arrays x and y", param_hint="--data")


def task_of_file(what: str, data: str | None) -> Task:
    """Choose the task of an ONNX file's network: the arrays of a .npz file, or images where the input's rank fits.

    Raises click's usage error for networks of several inputs or with a fixed batch size."""
    taken = inputs_of(what)
    if len(taken) != 1:
        raise click.UsageError(
            f"{what} takes {len(taken)} inputs, {', '.join(i.name for i in taken)}; this command trains networks of "
            "one input only; use es.TrainStep(es.frontends.onnx.load(...), ...)"
        )
    if taken[0].shape and isinstance(taken[0].shape[0], int):
        raise click.UsageError(
            f"{what} takes only batches of {taken[0].shape[0]}; export it with a dynamic first dimension"
        )
    rates = {"sgd": 0.05, "momentum": 0.01, "adam": 0.001, "adamw": 0.001}
    shape = taken[0].shape or ()
    if data is not None and Path(data).suffix == ".npz" or len(shape) not in (3, 4):
        return Arrays(("FILE.npz",), "", "samples", 64, rates)
    known = ROWS if len(shape) == 3 else IMAGES if shape[1] == 1 else COLOURS
    size = shape[2] if len(shape) == 4 and isinstance(shape[2], int) else None
    usual: Mapping[str, Any] = {"size": size} if known is COLOURS and size else {}
    return replace(known, rates=rates, usual=usual)


# ----------------------------------------------------------------------------------------------------------- examples


def example(what: str, batch: int | None, shapes: Sequence[str], settings: Sequence[str]) -> tuple[OnnxModule, tuple]:
    """Return (the network in evaluation mode, random inputs).

    batch: extent of open first dimensions; shapes: "name=1,3,224,224" for inputs with other open dimensions; settings:
    "name=value" for inputs that hold one number."""
    model = network(what)
    model.eval()
    if batch is not None and not any(i.shape and not isinstance(i.shape[0], int) for i in model.inputs):
        raise click.UsageError(f"--batch is for a dynamic first dimension, and no input of {what} has one")
    by_name = dict(assignment(s, "--shape", "x=64,128") for s in shapes)
    numbers = dict(assignment(s, "--set", "rate=16000") for s in settings)
    rng = np.random.default_rng(0)
    arrays = []
    for i in model.inputs:
        kind = ELEMENTS.get(i.type)
        if kind is None:
            raise click.UsageError(f"{what} takes a {i.type}, {i.name!r}; random inputs are made for tensors only")
        extents: list[Any] = [*(i.shape or ())]
        if i.name in by_name:
            extents = [*shape(i.name, by_name.pop(i.name))]
        sizes = tuple(n if isinstance(n, int) else (batch or 1) if d == 0 else SIZE for d, n in enumerate(extents))
        if i.name in numbers:
            arrays.append(np.full(sizes, number(numbers.pop(i.name))).astype(kind.numpy))
        elif kind.is_float:
            arrays.append(rng.standard_normal(sizes).astype(kind.numpy))
        else:
            arrays.append(rng.integers(0, 2, sizes).astype(kind.numpy))
    if by_name or numbers:
        wrong = next(iter({**by_name, **numbers}))
        raise click.UsageError(f"{what} has no input {wrong}; it has {', '.join(i.name for i in model.inputs)}")
    return model, tuple(arrays)


def traceable(model: OnnxModule, inputs: tuple) -> tuple[Module, tuple]:
    """Return (the network, its inputs), where inputs whose values determine extents have become constants."""
    static = {i.name for i in model.static}
    if not static:
        return model, inputs
    constants = {i.name: x for i, x in zip(model.inputs, inputs, strict=True) if i.name in static}
    rest = tuple(x for i, x in zip(model.inputs, inputs, strict=True) if i.name not in static)
    return model.with_constants(constants), rest


# ----------------------------------------------------------------------------------------------------- einsmith run


def run(what: str, *, inputs: Sequence[str], output: Path | None, threads: int | None, as_json: bool) -> None:
    """Run an ONNX network on arrays of .npy files and print its outputs.

    inputs: "X.npy", in order, or "name=X.npy"; output: a .npz file for the outputs by name instead."""
    if not is_file(what):
        raise click.UsageError(f"{what!r} is not an ONNX file; `einsmith run` takes FILE{SUFFIX}")
    if output is not None and output.suffix != ".npz":
        raise click.UsageError(f"--output {output} must be a .npz file")
    model = network(what)
    model.eval()
    names = [i.name for i in model.inputs]
    arrays: dict[str, np.ndarray] = {}
    for n, text in enumerate(inputs):
        name, equals, path = text.partition("=")
        if not equals or name not in names:
            name, path = names[n] if n < len(names) else "", text
        if not name or name in arrays:
            raise click.UsageError(f"--input {text}: {what} takes {len(names)} inputs, {', '.join(names)}")
        try:
            arrays[name] = npz.read_array(path)
        except (OSError, ValueError) as e:
            raise click.ClickException(f"--input {path} cannot be read as an array: {e}; np.save writes one") from e
    missing = [n for n in names if n not in arrays]
    if missing:
        raise click.UsageError(f"--input is missing for {', '.join(missing)}: --input {missing[0]}=X.npy")
    if threads is not None:
        from einsmith.runtime.thread_count import set_threads

        set_threads(threads)
    outputs = model(**arrays)
    results = dict(zip(model.outputs, outputs if len(model.outputs) > 1 else (outputs,), strict=True))
    if any(not isinstance(v, np.ndarray) for v in results.values()):
        raise ArgumentError(f"{what} returns a sequence, which can be neither printed nor written")
    if output is not None:
        floats = {k: v.astype(np.float32) if v.dtype.name == "bfloat16" else v for k, v in results.items()}
        try:
            npz.write_arrays(output, floats)
        except OSError as e:
            raise click.ClickException(f"--output {output} cannot be written: {e.strerror}; name another file") from e
    for name, v in results.items():
        if as_json:
            values = v.astype(np.float64) if v.dtype.kind not in "iub" else v
            click.echo(
                json.dumps({"output": name, "type": v.dtype.name, "shape": list(v.shape), "values": values.tolist()})
            )
        else:
            click.echo(f"{name}: {v.dtype.name}{list(v.shape)}")
            if output is None:
                click.echo(np.array2string(v, threshold=60, precision=6))
