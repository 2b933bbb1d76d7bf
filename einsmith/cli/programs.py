"""Compile the program that a command's argument names, and check files that a command writes."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from einsmith import models, optim
from einsmith.api.jit import Jitted
from einsmith.api.tracing import trace_call
from einsmith.base import files
from einsmith.base.arguments import describe
from einsmith.base.arrays import to_array
from einsmith.base.errors import EinsmithError
from einsmith.base.numerics import PLAIN
from einsmith.base.trees import flatten
from einsmith.cli.task_table import task_of
from einsmith.cli.tasks import assignment, defaults, model_arguments, number, shape
from einsmith.driver.bound_program import BoundProgram
from einsmith.driver.executable import Executable
from einsmith.lang.op import op
from einsmith.runtime.thread_count import get_threads
from einsmith.training import TrainStep


def program(
    what: str,
    batch: int | None,
    shapes: Sequence[str],
    settings: Sequence[str],
    threads: int | None,
    memory_limit: int | None,
    max_stored: int | None,
) -> tuple[BoundProgram, list[np.ndarray], int | None]:
    """Return the compiled program of a model, Python file, formula or ONNX file, its inputs, and a model's batch size.

    shapes, settings: "name=value" options of the command line. Raises click's usage errors."""
    path = Path(what)
    if path.suffix == ".onnx":
        _require_model(memory_limit, max_stored, "a TrainStep of the file's network")
        from einsmith.cli import onnx_files  # reads files only with the package onnx

        model, arrays = onnx_files.traceable(*onnx_files.example(what, batch, shapes, settings))
        return *_of_function(model, arrays, threads), None
    if files.is_file(path) and batch is not None:
        raise click.UsageError("--batch is for a model; a file has the shapes of its own inputs")
    formula = files.is_file(path) and path.suffix != ".py"
    if not formula and shapes:
        raise click.UsageError("--shape is for a file with a formula")
    if path.suffix == ".py" and files.is_file(path) and settings:
        raise click.UsageError("--set is for a file with a formula, or for a model")
    if files.is_file(path):
        _require_model(memory_limit, max_stored, "a TrainStep in a file")
        return *(_formula(path, shapes, settings, threads) if formula else _file(path, threads)), None
    step, example, batch = training_step(what, batch, settings, threads, memory_limit, max_stored)
    return *_of_step(step, example), batch


def training_step(
    what: str,
    batch: int | None,
    settings: Sequence[str],
    threads: int | None,
    memory_limit: int | None = None,
    max_stored: int | None = None,
) -> tuple[TrainStep, list[np.ndarray], int]:
    """Return a model's training step, the arrays of a batch, and its size. Raises click's usage error for a name that
    is no model."""
    if what not in models.names():
        known = ", ".join(models.names())
        raise click.UsageError(f"{what!r} is neither a file nor a model; the models are {known}")
    task = task_of(what)
    batch = batch or task.batch
    arguments = model_arguments(what, settings)
    example = task.example(batch, defaults(what) | arguments)
    model = models.get(what, **(arguments | task.sizes(batch)))
    step = TrainStep(model, task.loss, optim.SGD(lr=0.01, momentum=0.9), threads=threads, memory_limit=memory_limit)
    if max_stored is not None:
        step.max_stored = max_stored
    return step, step.read_batch(example), batch


def _require_model(memory_limit: int | None, max_stored: int | None, step: str) -> None:
    """Raise click's usage error if an option is given that a file's `step` sets itself."""
    for name, value in (("memory_limit", memory_limit), ("max_stored", max_stored)):
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} is for a model; {step} has its own {name}=")


def _of_step(step: TrainStep, inputs: Sequence[Any]) -> tuple[BoundProgram, list[np.ndarray]]:
    arrays = step.read_batch(inputs)
    run = step.compiler.find_or_compile(arrays)
    step.parts.set_numbers(arrays)  # so that --measure computes with the learning rate that a step would have
    return run, arrays


def _of_function(f: Callable, inputs: tuple, threads: int | None) -> tuple[BoundProgram, list[np.ndarray]]:
    static = frozenset(getattr(f, "static", ()))
    if static:
        names = list(inspect.signature(f).parameters)
        static |= frozenset(names.index(n) for n in static if n in names)
    options: dict[str, Any] = {}
    if isinstance(f, Jitted):
        options |= {"numerics": f.numerics, "max_stored": f.settings.max_stored}
    traced = trace_call(f, inputs, {}, static, options.get("numerics", PLAIN))
    run = Executable(
        traced.graph, traced.bind, threads or get_threads(), guard=traced.guard, origins=traced.origins, **options
    )
    leaves = flatten([x for n, x in enumerate(inputs) if n not in static])[0]
    arrays = [x for x in leaves if not isinstance(x, (str, bool, type(None)))]
    return run, [np.asarray(x) if isinstance(x, (int, float)) else to_array(x) for x in arrays]


def _file(path: Path, threads: int | None) -> tuple[BoundProgram, list[np.ndarray]]:
    """Compile `step` of a Python file for the file's `inputs`, a tuple of arguments or a function that returns it."""
    need = "`step`, a TrainStep or a function, and `inputs`, a tuple of its arguments or a function that returns it"
    names = run_file(path, ("step", "inputs"), need)
    step, inputs = names["step"], names["inputs"]
    if isinstance(step, TrainStep):
        if threads is not None:
            step.threads = threads
        return _of_step(step, inputs)
    if not callable(step):
        raise click.ClickException(f"`step` of {path} is {describe(step)}, neither a TrainStep nor a function")
    return _of_function(step, inputs, threads)


def run_file(path: Path, needed: Sequence[str], need: str) -> dict[str, Any]:
    """Run a Python file and return its names; `inputs` as a tuple, or as the dictionary that it is.

    Args:
        path: the file
        needed: names that it defines
        need: what it needs to define, in words
    Raises:
        click.ClickException: it raises an error, or lacks a name.
    """
    try:
        names = runpy.run_path(str(path))
    except EinsmithError:
        raise
    except (Exception, SystemExit) as e:
        raise click.ClickException(f"{path} raised {type(e).__name__}: {e}") from e
    for name in needed:
        if name not in names:
            raise click.ClickException(f"{path} defines no `{name}`; it needs {need}")
    inputs = names["inputs"]
    inputs = inputs() if callable(inputs) else inputs
    inputs = tuple(inputs) if isinstance(inputs, list) else inputs
    names["inputs"] = inputs if isinstance(inputs, (tuple, dict)) else (inputs,)
    return names


def _formula(
    path: Path, shapes: Sequence[str], settings: Sequence[str], threads: int | None
) -> tuple[BoundProgram, list[np.ndarray]]:
    try:
        operator = op(files.read_text(path))
    except UnicodeDecodeError as e:
        raise click.ClickException(f"{path} is no text in UTF-8, and so no formula: {e.reason}") from None
    by_name = dict(assignment(s, "--shape", "A=64,128") for s in shapes)
    parameters = {k: number(v) for k, v in (assignment(s, "--set", "stride=2") for s in settings)}
    rng = np.random.default_rng(0)
    inputs: list[np.ndarray] = []
    for name in operator.inputs:
        if name not in by_name:
            raise click.UsageError(f"the shape of {name} is missing: --shape {name}=...   ({operator.signature})")
        extents = shape(name, by_name.pop(name))
        if name in operator.program.integer_inputs:
            inputs.append(np.zeros(extents, np.int64))
        else:
            inputs.append(rng.standard_normal(extents, np.float32))
    if by_name:
        raise click.UsageError(f"the formula has no input {next(iter(by_name))}; it has {', '.join(operator.inputs)}")
    return _of_function(lambda *arrays: operator(*arrays, **parameters), tuple(inputs), threads)


@contextmanager
def to_be_written(file: Path, option: str) -> Iterator[None]:
    """Context that first checks that a file can be written, before its body computes what is to be written.

    option: name of the option, for messages."""
    if why := files.unwritable(file):
        raise click.ClickException(f"{option} {file} cannot be written: {why}; name another file")
    try:
        yield
    except OSError as e:
        if e.filename == str(file):
            raise click.ClickException(f"{option} {file} cannot be written: {e.strerror}; name another file") from e
        raise
