"""Export a model, or a run that `einsmith train` has saved, as a library, for `einsmith export`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from einsmith import models, optim
from einsmith.cli.task_table import task_of
from einsmith.cli.tasks import defaults, model_arguments
from einsmith.export.write import MANIFEST, export
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
    """Export the model of a name or the run of a folder, and print the library's functions, files and sizes."""
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
        task, given = task_of(what), model_arguments(what, settings)
        arguments = defaults(what) | given
        model = models.get(what, **(given | task.sizes(batch or task.batch)))
        step = TrainStep(model, task.loss, optim.Adam(), threads=threads)
    else:
        raise click.UsageError(
            f"{what!r} is neither a saved run nor a model; the models are {', '.join(models.names())}"
        )
    made = export(step, folder, *task.example(batch or task.batch, arguments), **options)
    told = json.loads((made / MANIFEST).read_text())
    if as_json:
        click.echo(json.dumps(told))
        return
    for function in told["functions"]:
        click.echo(f"{function['function']}({', '.join(a['name'] for a in function['arguments'])})")
    for name, size in told["files"].items():
        click.echo(f"{made / name}  {size / 1024:.1f} KiB")
