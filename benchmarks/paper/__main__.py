"""Run the experiments of papers as far as a CPU can: python -m benchmarks.paper neoflow [--quick]

Of each table and figure it prints what the paper reports, and what Einsmith and its peers take on this machine. Results
are verified before they are timed, and kept in docs/papers/NAME.json after each case: the same command goes on from
there. Of the five files docs/papers.md is written, with its drawings. What needs a card is said, and runs where there
is one, through `python -m benchmarks.gpu`. --quick measures a few small cases, to see that everything runs, and keeps
nothing of it in docs/.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import driver
from benchmarks.driver import FRESH, LIMIT, Parser, Results
from benchmarks.paper import page
from benchmarks.paper.experiment import Experiment, Paper, Plan, Shown
from benchmarks.report import measure_all
from benchmarks.run import Pace
from einsmith.base.errors import DeviceError
from einsmith.gpu.cuda.driver import devices

PAPERS = {
    "neoflow": "neoflow", "autoconfig": "autoconfig", "nnvm": "nnvm", "megengine": "megengine",
    "tvm-training": "tvm_training",
}  # fmt: skip
"""Papers by the module of their experiments."""
PACE, CAP = Pace(5, seconds=2.5), 120.0
QUICK_PACE, QUICK_CAP = Pace(2, chunk=0.02, least=1, warm=1, seconds=0.1), 60.0
"""How long peers are timed, and what they may take on a case with their compilation (seconds)."""
GPU_SECONDS = 540
"""For what a card measures of an experiment."""


def paper(name: str) -> Paper:
    """Return a paper with its experiments."""
    return import_module(f"benchmarks.paper.{PAPERS[name]}").PAPER


def _is_of_peers(cell: Any) -> bool:
    return isinstance(cell, Mapping) and isinstance(cell.get("peers"), Mapping)


class PaperResults(Results):
    """Results of a paper's experiments: times without their single rounds."""

    def keep(self, key: str, cell: Any) -> Any:
        """Add a case's result, and write the file."""
        if _is_of_peers(cell):
            left_out = ("rounds", "variants")
            cell |= {"peers": {p: {k: v for k, v in r.items() if k not in left_out} for p, r in cell["peers"].items()}}
        return super().keep(key, cell)


def run(known: Paper, results: Results, plan: Plan, *, only: str, fresh: bool, seconds: float) -> bool:
    """Run a paper's experiments, and print what they say. Return whether no result was wrong and nothing failed."""
    chosen = [e for e in known.experiments if only.lower() in e.figure.lower()]
    begun, good, ran = time.monotonic(), True, set[str]()
    for experiment in chosen:
        results.say(f"{known.title}, {experiment.figure}: {experiment.title}")
        left = seconds - (time.monotonic() - begun)
        pace, cap = (QUICK_PACE, QUICK_CAP) if plan.quick else (PACE, CAP)
        jobs = [job for job in experiment.jobs(plan) if job.key not in ran]
        for _ in measure_all(jobs, results, pace, cap, fresh=fresh, is_shared=known.is_shared, seconds=left):
            pass
        left = seconds - (time.monotonic() - begun)
        cases = [(key, measure) for key, measure in experiment.cases(plan) if key not in ran]
        results.fill(cases, fresh, left)
        ran.update(job.key for job in jobs)
        ran.update(key for key, _ in cases)
        if experiment.card and (experiment.card_key not in results.cells or fresh):
            told = on_card(experiment.card, results)
            if told is not None:
                results.keep(experiment.card_key, told)
        cells = experiment.of(results.cells, plan)
        rows = [(p, r["status"]) for c in cells.values() if _is_of_peers(c) for p, r in c["peers"].items()]
        good &= all(status != "wrong" and (peer != "einsmith" or status == "ok") for peer, status in rows)
        _print(experiment, experiment.show(cells) if cells else (), results)
    return good


def on_card(arguments: str, results: Results) -> list[str] | None:
    """Return what `python -m benchmarks.gpu` with these arguments reports; None where there is no card."""
    try:
        devices()
    except DeviceError:
        return None
    path = Path("bench-results") / "papers" / f"card-{'-'.join(arguments.replace('-', '').split())}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu"]
    subprocess.run([*command, "--out", str(path), "--seconds", str(GPU_SECONDS), *arguments.split()], check=False)
    told = subprocess.run([*command, "--report", str(path)], capture_output=True, text=True, check=False)
    return told.stdout.splitlines()


def _print(experiment: Experiment, shown: Sequence[Shown], results: Results) -> None:
    results.console.print(f"\n[bold]{experiment.figure}[/]: {experiment.title}")
    results.console.print(f"The paper: {experiment.paper}")
    for part in shown:
        results.console.print(driver.table(part.title, part.columns, part.rows, part.text))
        for remark in part.remarks:
            results.console.print(remark)
    if experiment.remark:
        results.console.print(experiment.remark)
    if experiment.card:
        for line in results.cells.get(experiment.card_key, [page.needs_card(experiment)]):
            results.console.print(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the papers that are named; return the exit status."""
    parser = Parser(
        __doc__, PAPERS, quick=(False, "a few small cases, whose results are not kept in docs/"), threads=(2, ""),
        only=("", "experiments whose name has this in it, as 'figure 9'"), json=(Path, "file of the results"),
        fresh=FRESH, seconds=LIMIT, page=(False, "write docs/papers.md from the files, and run nothing"),
    )  # fmt: skip
    args = parser.read(argv, threads=1, seconds=1e-9)
    if args.json is not None and len(args.names) != 1:
        parser.error("--json: name one paper")
    if args.page:
        page.write([paper(n) for n in PAPERS])
        return 0
    good, plan = True, Plan(args.quick, args.threads)
    folder = Path("bench-results") / "papers" if args.quick else page.FOLDER
    for name in args.names or PAPERS:
        results = PaperResults(args.json or folder / f"{name}.json", 150)
        results.content |= {"quick": args.quick, "threads": args.threads}
        good &= run(paper(name), results, plan, only=args.only, fresh=args.fresh, seconds=args.seconds)
    if not args.quick and args.json is None:
        page.write([paper(n) for n in PAPERS])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
