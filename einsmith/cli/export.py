"""Export a model, or a run that `einsmith train` has saved, as a library or an ONNX file, for `einsmith export`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from einsmith import models, optim
from einsmith.base import files
from einsmith.cli import onnx_files
from einsmith.cli.task_table import task_of
from einsmith.cli.tasks import defaults, model_arguments
from einsmith.export.write import MANIFEST, export
from einsmith.frontends import onnx
from einsmith.training import TrainStep, checkpoint, manifest


def export_command(
    what: str,
    folder: Path,
    *,
    batch: int | None,
    settings: Sequence[str],
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Export the model of a name or the run of a folder, and print the library's functions, files and sizes.

    A `folder` that ends in .onnx is the path of an ONNX file instead."""
    if onnx_files.is_file(str(folder)):
        _check_no_library_options(threads, options)
    place = Path(what)
    if manifest.is_saved_step(place):
        if settings:
            raise click.UsageError("--set is for a model; a saved model keeps its arguments")
        spec = manifest.read(place)["model"]
        if spec is None:
            raise click.ClickException(f"{what} holds a model of your own class; export it from Python, with es.export")
        task, arguments = task_of(spec["name"]), defaults(spec["name"]) | spec["arguments"]
        step = checkpoint.load(place, loss=task.loss, threads=threads)
    elif what in models.names():
        task, chosen = task_of(what), model_arguments(what, settings)
        arguments = defaults(what) | chosen
        model = models.get(what, **(chosen | task.sizes(batch or task.batch)))
        step = TrainStep(model, task.loss, optim.Adam(), threads=threads)
    else:
        raise click.UsageError(
            f"{what!r} is neither a saved run nor a model; the models are {', '.join(models.names())}"
        )
    example = task.example(batch or task.batch, arguments)
    if onnx_files.is_file(str(folder)):
        _write_onnx(step, folder, example[:-1], batch is None, options["overwrite"], as_json)
        return
    library = export(step, folder, *example, **options)
    description = json.loads(files.read_bytes(library / MANIFEST))
    if as_json:
        click.echo(json.dumps(description))
        return
    for function in description["functions"]:
        click.echo(f"{function['function']}({', '.join(a['name'] for a in function['arguments'])})")
    for name, size in description["files"].items():
        click.echo(f"{library / name}  {size / 1024:.1f} KiB")


def _check_no_library_options(threads: int | None, options: dict[str, Any]) -> None:
    """Raise click's usage error for options that an ONNX file does not have."""
    library_options = {"--threads": threads, **{f"--{n}": options[n] for n in ("name", "schedule", "compiler")}}
    library_options["--target"] = None if options["target"] == "host" else options["target"]
    for name, value in library_options.items():
        if value is not None:
            raise click.UsageError(f"{name} is for a library; an ONNX file takes --batch, --set and --overwrite")


def _write_onnx(
    step: TrainStep, file: Path, inputs: tuple[np.ndarray, ...], any_batch: bool, overwrite: bool, as_json: bool
) -> None:
    """Write a step's model as an ONNX file, and print its inputs, outputs and size."""
    if files.exists(file) and not overwrite:
        raise click.ClickException(f"{file} exists; --overwrite replaces it")
    try:
        onnx.export(step.model, inputs, file, dynamic_batch=any_batch)
    except ImportError as e:
        raise click.ClickException(str(e)) from e
    network = onnx_files.network(str(file))
    size = file.stat().st_size
    if as_json:
        shapes = {i.name: [*(i.shape or ())] for i in network.inputs}
        click.echo(json.dumps({"file": str(file), "bytes": size, "inputs": shapes, "outputs": [*network.outputs]}))
        return
    for i in network.inputs:
        click.echo(f"{i.name}: {i.type}[{', '.join(map(str, i.shape or ()))}]")
    click.echo(f"{', '.join(network.outputs)}\n{file}  {size / 1024:.1f} KiB")
