"""`python -m tests.fuzz --minutes N --seed S`: random formulas and graphs, compiled and compared with the evaluator.

Runs as long as it is told; prints what it finds, made smaller, as tests ready to paste. Writes nothing but the report.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.fuzz.run import Run, Settings


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 1 where something was found."""
    p = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    p.add_argument("--minutes", type=float, default=3.0, help="how long to run (default 3)")
    p.add_argument("--seed", default=None, help="of the cases; default: the time")
    p.add_argument("--cases", type=int, help="comparisons after which to end")
    p.add_argument("--jobs", type=int, default=1, help="worker processes")
    p.add_argument("--limit", type=float, default=60, help="seconds after which a worker is taken to hang")
    p.add_argument("--shrink", type=float, default=60, help="seconds that a find may be made smaller for")
    p.add_argument("--finds", type=int, help="different finds after which to end")
    p.add_argument("--themes", default="", help="comma-separated, of tests.fuzz.session.NAMES")
    p.add_argument("--first", type=int, default=0, help="number of the first case of each theme")
    p.add_argument("--no-steer", action="store_true", help="take all themes in turn")
    p.add_argument("--checkout", default="", help="a folder from which einsmith is imported")
    p.add_argument("--setup", default="", help="a Python file that each worker runs first")
    p.add_argument("--report", default="", help="a file for the report, JSON")
    p.add_argument("--coverage", action="store_true", help="print which cells were reached")
    a = p.parse_args(arguments)
    seed = a.seed if a.seed is not None else str(int(time.time()))
    settings = Settings(
        seed=seed, minutes=a.minutes, cases=a.cases, jobs=a.jobs, limit=a.limit, shrinking=a.shrink, finds=a.finds,
        steer=not a.no_steer, checkout=a.checkout and str(Path(a.checkout).resolve()),
        setup=a.setup and str(Path(a.setup).resolve()), themes=tuple(t for t in a.themes.split(",") if t),
        first=a.first,
    )  # fmt: skip
    run = (_on_terminal if sys.stdout.isatty() else _in_lines)(settings)
    report = run.report()
    if a.report:
        Path(a.report).write_text(json.dumps(report, indent=1))
    if a.coverage:
        print(run.coverage.table())
    print(f"{run.line()}, {report['cases_per_second_and_job']} cases a second and job, seed {seed}")
    for f in run.finds.values():
        print(f"  case {f.number} ({f.theme}, {f.what}), {f.times} times, first after {f.second:.0f} s: {f.kind}: "
              f"{f.message.splitlines()[0][:120]}")  # fmt: skip
    return 1 if run.finds else 0


def _in_lines(settings: Settings) -> Run:
    """A line of progress now and then, the longer the rarer."""
    said = [0.0]

    class Lines(Run):
        def tick(self) -> None:
            super().tick()
            if self.seconds - said[0] > max(10.0, self.seconds / 20):
                said[0] = self.seconds
                print(self.line(), flush=True)

    run = Lines(settings, say=lambda text: print(text, flush=True))
    run.run()
    return run


def _on_terminal(settings: Settings) -> Run:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, refresh_per_second=2) as live:

        class Shown(Run):
            def tick(self) -> None:
                super().tick()
                live.update(Text(self.line()))

        run = Shown(settings, say=lambda text: console.print(text, markup=False, highlight=False))
        run.run()
    return run


if __name__ == "__main__":
    sys.exit(main())
