"""Compare Einsmith's training steps on this machine with PyTorch's: `einsmith bench`."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence

import click
from rich.console import Console

from einsmith import models
from einsmith.base import messages
from einsmith.base.errors import ArgumentError, UnknownNameError
from einsmith.base.system import processes, processors
from einsmith.bench import compare
from einsmith.bench.networks import NETWORKS, SMALL, NetworkStep
from einsmith.runtime.thread_count import get_threads

SMALL_BATCH, BATCH = 64, 4
"""Batch size where none is given: of the networks of SMALL, and of all others."""
SMALL_CAP, CAP = 60.0, 180.0
"""Seconds that a peer may take for a network of SMALL, and for another one; torch.compile takes minutes for some."""
WIDTH = 130
"""Columns of a table that is not printed on a terminal."""
BUSY = 0.5
"""Load of a machine above which times are said to be off."""


def make_problem(model: str, batch: int | None = None) -> NetworkStep:
    """Return the training step of a model; batch: None for the usual batch size.

    Raises UnknownNameError for a name that `einsmith.models` does not have, ArgumentError for a model whose layers
    PyTorch does not have.
    """
    models.maker(model)
    if model not in NETWORKS:
        raise ArgumentError(
            f"{model!r} has no program in PyTorch here; compare {', '.join(NETWORKS)}, or recurrent networks from a "
            "checkout: python -m benchmarks.recurrent"
        )
    return NETWORKS[model](batch or (SMALL_BATCH if model in SMALL else BATCH))


def bench(
    what: Sequence[str], *, batch: int | None, peers: str | None, threads: int | None, cap: float | None, as_json: bool
) -> None:
    """Verify and time training steps of models, and print the figures.

    Raises click.ClickException where a result is wrong, or where Einsmith was not timed.

    Args:
        what: names of models; those of `networks.SMALL` where it is empty
        batch: batch size; None for the usual one of each model
        peers: names of PyTorch's programs (`compare.PEERS`), separated by commas; None for all
        threads: threads of every library
        cap: most seconds for each peer and model, compilation included; None for the usual ones
        as_json: print one JSON object for each model instead of tables
    """
    if not processes.can_wait_for_pipes():
        raise click.ClickException("Windows waits for no process with a time limit; use Linux or macOS")
    names = list(dict.fromkeys(what)) or list(SMALL)
    chosen = list(compare.PEERS) if peers is None else [p.strip() for p in peers.split(",") if p.strip()]
    if unknown := [n for n in chosen if n not in compare.PEERS]:
        raise click.UsageError(f"there is no peer {unknown[0]!r} to compare; there are {', '.join(compare.PEERS)}")
    try:
        problems = {name: make_problem(name, batch) for name in names}
    except (UnknownNameError, ArgumentError) as e:
        raise click.BadParameter(str(e), param_hint="MODEL") from e
    console = Console(highlight=False) if messages.is_terminal(sys.stdout) else Console(highlight=False, width=WIDTH)
    say = Console(stderr=True, highlight=False, soft_wrap=True)
    if (load := processors.load() or 0.0) > BUSY:
        say.print(f"the machine is busy (load {load:.1f}): times will be off", style="yellow")
    cells = {}
    for name, problem in problems.items():
        limit = cap or (SMALL_CAP if name in SMALL else CAP)
        with say.status(problem.name) as status:
            cell = compare.compare(problem, ["einsmith", *chosen], threads or get_threads(), limit, status.update)
        cells[problem.name] = cell
        if as_json:
            click.echo(json.dumps({"network": name, **cell, "machine": compare.machine()}))
        else:
            console.print(compare.table(problem, cell))
    ratios = [c["speedup"] for c in cells.values() if c["speedup"]]
    if not as_json and len(ratios) > 1:
        mean = statistics.geometric_mean(ratios)
        console.print(f"times as fast as the best peer, geometric mean: {mean:.2f}")
    if not as_json and any(r["status"] == "missing" for c in cells.values() for r in c["peers"].values()):
        console.print("not installed, and so not compared: torch")
    for name, cell in cells.items():
        for peer, r in cell["peers"].items():
            if r["status"] == "wrong" or (peer == "einsmith" and r["status"] != "ok"):
                raise click.ClickException(f"{name}: {peer}: {r['status']}: {r.get('message', '')}")
