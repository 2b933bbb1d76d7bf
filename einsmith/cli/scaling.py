"""Print what is predicted of a training step on many processes, for `einsmith explain --ranks`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from einsmith.base.sizes import show_size
from einsmith.cli.programs import training_step
from einsmith.distributed.network import parse_network
from einsmith.training.scaling import USEFUL, largest_useful, predict_scaling


def scale(
    what: str, batch: int | None, settings: Sequence[str], threads: int | None, ranks: int, network: str, as_json: bool
) -> None:
    """Print predicted seconds, exposed communication and efficiency of 1, 2, 4, ... processes."""
    step, arrays, batch = training_step(what, batch, settings, threads)
    predicted = predict_scaling(step, arrays, ranks, parse_network(network))
    if as_json:
        rows: list[dict[str, Any]] = [s._asdict() for s in predicted]
        report = {"what": what, "batch": batch, "network": network, "rows": rows, "useful": largest_useful(predicted)}
        click.echo(json.dumps(report))
        return
    click.echo(f"{what}, {batch} samples on each process, {network} (predicted)")
    click.echo(f"{'processes':>10} {'step, ms':>10} {'exposed, ms':>12} {'efficiency':>11} {'buckets':>9}")
    for s in predicted:
        click.echo(
            f"{s.ranks:>10} {s.seconds * 1e3:>10.3f} {s.exposed * 1e3:>12.3f} {s.efficiency:>10.0%}"
            f" {show_size(s.bucket_bytes):>10}"
        )
    click.echo(f"at most {largest_useful(predicted)} of these at {USEFUL:.0%} efficiency")
