"""What is predicted of training steps before anything runs: python -m benchmarks.predictions --json FILE --before FILE

For each network: predicted seconds of its plan, kernels, those that are distinct, bytes of the arena without what
kernels need for themselves, and the calls of Python functions that compiling takes up to there, without machine code.
Another run's file says what has changed: a plan that is predicted to be slower than before is a fault of the passes,
which decide by the same prices. `--static` takes the machine's coefficients as they are before any calibration.
`--measured` compares the predictions with the steps that benchmarks.training has timed (its JSON files): their ratio
for each network, and the correlation of the logarithms.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.table import Table

from benchmarks import driver, plans
from benchmarks.driver import KEPT, Parser, Results

SLOWER = 1.005
"""How many times as long a plan may be predicted to take as before."""


def planned(name: str, threads: int) -> dict[str, float]:
    """The figures of one training step."""
    from benchmarks.models import TRAINING
    from einsmith.kernels.autoconfig import predicted

    step, batch = plans.begun(TRAINING[name], threads)
    profile = cProfile.Profile()
    with plans.uncompiled():
        profile.runcall(step.compile, *batch)
    run = plans.program_of(step)
    calls = [call.kernel for call in run.calls]
    return {
        "seconds": sum(predicted(k, run.target) * n for k, n in zip(calls, run.turns, strict=True)),
        "kernels": len(calls),
        "distinct": len(set(calls)),
        "arena": run.arena_bytes,
        "calls": pstats.Stats(profile).total_calls,  # type: ignore[attr-defined]
    }


UNITS = {
    "seconds": ("ms", 1e3, 3), "kernels": ("kernels", 1, 0), "distinct": ("distinct", 1, 0),
    "arena": ("arena MiB", 2**-20, 2), "calls": ("million calls", 1e-6, 3),
}  # fmt: skip
"""Figures of a step: their heading, the factor to its unit, and the digits that are shown."""


def table(cells: dict[str, dict[str, float]], before: dict[str, dict[str, float]]) -> Table:
    def shown(name: str, key: str) -> str:
        _, unit, digits = UNITS[key]
        value, old = cells[name][key], before.get(name, {}).get(key)
        return f"{value * unit:.{digits}f}" + (f" ({value / old:.3f})" if old else "")

    names, rows = ("", *(x[0] for x in UNITS.values())), ((n, *(shown(n, key) for key in UNITS)) for n in cells)
    return driver.table("predicted for training steps (times what was before)", names, rows)


def compare(cells: dict[str, dict[str, float]], files: Sequence[Path], threads: int) -> Table:
    """Measured milliseconds beside predicted ones, and the correlation of their logarithms."""
    measured = {}
    for file in files:
        for key, cell in driver.load(file)["cells"].items():
            if "median" in (ours := cell["peers"].get("einsmith", {})):
                measured[key] = ours["median"]
    pairs = {n: (c["seconds"], measured[f"{n}-t{threads}"]) for n, c in cells.items() if f"{n}-t{threads}" in measured}
    logs = np.log(np.array(list(pairs.values()))).T
    title = f"correlation of the logarithms: {np.corrcoef(logs)[0, 1]:.4f} over {len(pairs)} steps"
    rows = ((name, f"{a * 1e3:.3f}", f"{b * 1e3:.3f}", f"{b / a:.2f}") for name, (a, b) in pairs.items())
    return driver.table(title, ("", "predicted, ms", "measured, ms", "measured / predicted"), rows)


def main() -> int:
    """Plan the networks' steps; return the exit status."""
    from benchmarks.models import TRAINING
    from einsmith.codegen.cache.native import host_target
    from einsmith.tuning.calibration import calibrate

    parser = Parser(
        __doc__, TRAINING, threads=(2, ""), json=KEPT,
        before=(Path, "the file of another run, which this one is compared with"),
        measured=([Path], "a file of benchmarks.training"),
        static=(False, "by the machine's facts alone, with nothing measured"),
    )  # fmt: skip
    args = parser.read()
    if args.static:
        calibrate._target, calibrate._patterns = host_target(), len(calibrate.autoconfig.PATTERNS)
    results = Results(args.json, 140, timing=False)
    results.fill((name, partial(planned, name, args.threads)) for name in args.names or TRAINING)
    cells, before = results.cells, json.loads(args.before.read_text()) if args.before else {}
    before = before.get("cells", before)  # which files once held alone
    results.console.print(table(cells, before))
    if args.measured:
        results.console.print(compare(cells, args.measured, args.threads))
    slower = [n for n, c in cells.items() if n in before and c["seconds"] > SLOWER * before[n]["seconds"]]
    if slower:
        print(f"predicted to be slower than before: {', '.join(slower)}")
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
