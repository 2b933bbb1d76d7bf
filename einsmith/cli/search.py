"""Search for faster kernels of a program, for `einsmith tune MODEL`; show the search and draw it at the end."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click

from einsmith.base import environment, files
from einsmith.cli.programs import program, to_be_written
from einsmith.cli.workers import executor_of
from einsmith.driver import registry
from einsmith.training.progress import SearchProgress
from einsmith.tuning.kernels.decisions import name_of
from einsmith.tuning.programs import graph_search, kernel_search


class Dot(NamedTuple):
    """A measured candidate.

    at: seconds since the search began; kernel: the first digits of its kernel's name; ratio: its time divided by that
    of the model's choice, infinity where it cannot run; step: seconds of all kernels at that moment."""

    at: float
    kernel: str
    ratio: float
    step: float


def search(
    what: str,
    *,
    batch: int | None,
    shapes: Sequence[str],
    settings: Sequence[str],
    threads: int | None,
    memory_limit: int | None,
    max_stored: int | None,
    device: str | None,
    seconds: float,
    graph: bool,
    workers: str | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Compile a program, named as for `einsmith explain`, search its kernels for `seconds`, and print the report.

    device: as `registry.check_device` takes it; graph: use half of the time to measure the decisions of the graph
    passes; workers: as for `executor_of`; picture: file for a PNG."""
    with ExitStack() as stack:
        executor = None if workers is None else stack.enter_context(executor_of(workers))
        if workers is not None and executor is None:
            return  # this process was a worker
        if picture is not None:
            stack.enter_context(to_be_written(picture, "--picture"))
        stack.enter_context(environment.setting(environment.DEVICE, registry.check_device(device)))
        run, arrays, _ = program(what, batch, shapes, settings, threads, memory_limit, max_stored)
        decided = None
        if graph:
            decided = graph_search.tune(run, arrays, seconds / 2)
            run, seconds = decided.run, max(1.0, seconds - decided.seconds)
            if not as_json:
                click.echo(str(decided))
        dots: list[Dot] = []
        begun = time.monotonic()
        with SearchProgress(seconds, kernel_search.predict_seconds(run), show=not as_json) as shown:

            def tell(f: Any, candidate: Any, took: float) -> None:
                shown(f, candidate, took)
                dots.append(Dot(time.monotonic() - begun, name_of(f.kernel)[:8], took / f.prior, shown.total))

            report = kernel_search.tune(run, arrays, seconds, tell, executor)
        if picture is not None:
            draw(dots, picture, f"{what}: {report.before * 1e3:.3f} ms before, {report.after * 1e3:.3f} ms now")
    if as_json:
        graph_report = {} if decided is None else {"decisions": sorted(decided.run.decisions), "forms": decided.tried}
        click.echo(json.dumps(as_object(report) | graph_report))
    else:
        click.echo(str(report))


def as_object(report: kernel_search.Report) -> dict[str, Any]:
    """Return the report of a search, ready for JSON."""
    kept = [
        {
            "kernel": name_of(f.kernel),
            "choice": str(f.choice),
            "best": str(f.best),
            "prior": f.prior,
            "seconds": f.seconds,
            "turns": f.turns,
        }
        for f in report.kept
    ]
    faults = [
        {"kernel": name_of(f.kernel), "candidate": str(c), "why": why} for f in report.results for c, why in f.faults
    ]
    return {
        "seconds": report.seconds,
        "before": report.before,
        "after": report.after,
        "tried": report.tried,
        "kept": kept,
        "faults": faults,
        "busy": report.busy,
    }


def draw(dots: Sequence[Dot], path: Path, title: str) -> None:
    """Write a PNG of the search over time: each candidate's time relative to the model's choice, and all kernels'
    time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    top, low = figure.subplots(2, sharex=True, height_ratios=(1, 2))
    top.plot([d.at for d in dots], [1e3 * d.step for d in dots], color="#27408b", drawstyle="steps-post")
    top.set(ylabel="all kernels, ms", title=title)
    ran = [d for d in dots if math.isfinite(d.ratio)]
    kernels = {k: n for n, k in enumerate(dict.fromkeys(d.kernel for d in dots))}
    low.scatter(
        [d.at for d in ran],
        [d.ratio for d in ran],
        c=[kernels[d.kernel] % 20 for d in ran],
        cmap="tab20",
        s=8,
        vmin=0,
        vmax=19,
    )
    not_run = [d.at for d in dots if not math.isfinite(d.ratio)]
    low.plot(
        not_run, [8.0] * len(not_run), "x", color="#c0392b", markersize=4, label="cannot run, or gives wrong results"
    )
    low.axhline(1.0, color="#888888", linewidth=0.8)
    low.set(xlabel="seconds of the search", ylabel="time relative to the model's choice", yscale="log", ylim=(0.3, 10))
    if not_run:
        low.legend(frameon=False, fontsize=8)
    for axes in (top, low):
        axes.grid(alpha=0.25)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    files.write(path, picture.getvalue())
