"""Compare Einsmith's training steps on this machine with the libraries that are installed: `einsmith bench`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click
from rich.console import Console

from einsmith.base import messages
from einsmith.base.errors import ArgumentError, UnknownNameError
from einsmith.base.system import processes, processors
from einsmith.bench import harness, report, table
from einsmith.bench.recurrent import peers_of
from einsmith.runtime.thread_count import get_threads

TABLE = "einsmith.bench.table"
"""Module that lists the peers and problems (`bench.worker`)."""
ROUNDS, SECONDS = 9, 4.0
"""Rounds of a problem, and about the most seconds for which each peer is timed."""
WIDTH = 130
"""Columns of a table that is not printed on a terminal."""
BUSY = 0.5
"""Load of a machine above which times are said to be off."""


def bench(
    what: Sequence[str],
    *,
    batch: int | None,
    peers: str | None,
    threads: int | None,
    cap: float | None,
    as_json: bool,
) -> None:
    """Verify and time training steps of models, and print what is found.

    Raises click.ClickException where a result is wrong, or where Einsmith was not timed.

    Args:
        what: names of models; those of `table.QUICK` where it is empty
        batch: batch size; None for the usual one of each model
        peers: names of other libraries' programs, separated by commas; None for all
        threads: threads of every library
        cap: most seconds for each peer and model, compilation included; None for the usual ones
        as_json: print one JSON object for each model instead of tables
    """
    if not processes.can_pause():
        raise click.ClickException("the libraries' processes pause in turns, which Windows has not; use Linux or macOS")
    named = list(dict.fromkeys(what)) or list(table.QUICK)
    chosen = list(harness.PEERS) if peers is None else [p.strip() for p in peers.split(",") if p.strip()]
    if unknown := [n for n in chosen if n not in harness.PEERS]:
        raise click.UsageError(f"there is no peer {unknown[0]!r} to compare; there are {', '.join(harness.PEERS)}")
    try:
        problems = {name: table.make_problem(name, batch) for name in named}
    except (UnknownNameError, ArgumentError) as e:
        raise click.BadParameter(str(e), param_hint="MODEL") from e
    console = Console(highlight=False) if messages.is_terminal(sys.stdout) else Console(highlight=False, width=WIDTH)
    say = Console(stderr=True, highlight=False, soft_wrap=True)
    if (load := processors.load() or 0.0) > BUSY:
        say.print(f"the machine is busy (load {load:.1f}): times will be off", style="yellow")
    cells = []
    for name, problem in problems.items():
        with say.status(problem.name) as status:
            cell = harness.run_problem(
                problem,
                peers_of(problem, ["einsmith", *chosen]),
                threads or get_threads(),
                harness.Pace(ROUNDS, seconds=SECONDS),
                cap or table.usual_cap(name),
                status.update,
                table=TABLE,
            )
        cells.append(cell)
        if as_json:
            click.echo(json.dumps({"network": name, **cell, "machine": report.machine()}))
        else:
            console.print(report.table(problem, cell))
    if not as_json:
        mean = report.geometric_mean([c["speedup"] for c in cells if c["speedup"]])
        if mean is not None and len(cells) > 1:
            console.print(f"times as fast as the best peer, geometric mean: {mean:.2f}")
        lacking = {
            report.LIBRARIES[p.partition("-")[0]]
            for c in cells
            for p, r in c["peers"].items()
            if r["status"] == "missing"
        }
        if lacking:
            console.print(f"not installed, and so not compared: {', '.join(sorted(lacking))}")
    for problem, cell in zip(problems.values(), cells, strict=True):
        for peer, r in cell["peers"].items():
            if r["status"] == "wrong" or (peer == "einsmith" and r["status"] != "ok"):
                raise click.ClickException(f"{problem.name}: {peer}: {r['status']}: {r.get('message', '')}")
