"""What is predicted of training steps before anything runs: python -m benchmarks.predictions --json FILE --before FILE

For each network: predicted seconds of its plan, kernels, those that are distinct, bytes of the arena without what
kernels need for themselves, and the calls of Python functions that compiling takes up to there, without machine code.
Another run's file says what has changed: a plan that is predicted to be slower than before is a fault of the passes,
which decide by the same prices. `--static` takes the machine's coefficients as they are before any calibration.
`--measured` compares the predictions with the steps that benchmarks.training has timed (its JSON files): their ratio
for each network, and the correlation of the logarithms.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import plans

SLOWER = 1.005
"""How many times as long a plan may be predicted to take as before."""


def planned(name: str, threads: int) -> dict[str, float]:
    """The figures of one training step."""
    from benchmarks.models import TRAINING
    from einsmith.driver.compile import predicted

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


def table(cells: dict[str, dict[str, float]], before: dict[str, dict[str, float]]) -> Table:
    out = Table(title="predicted for training steps (times what was before)")
    for n in ("", "ms", "kernels", "distinct", "arena MiB", "million calls"):
        out.add_column(n, justify="right" if n else "left")
    for name, cell in cells.items():
        units = {"seconds": (1e3, "{:.3f}"), "kernels": (1, "{:.0f}"), "distinct": (1, "{:.0f}"),
                 "arena": (2**-20, "{:.2f}"), "calls": (1e-6, "{:.3f}")}  # fmt: skip
        row = []
        for key, (unit, form) in units.items():
            old = before.get(name, {}).get(key)
            ratio = "" if not old else f" ({cell[key] / old:.3f})"
            row.append(form.format(cell[key] * unit) + ratio)
        out.add_row(name, *row)
    return out


def compare(cells: dict[str, dict[str, float]], files: Sequence[Path], threads: int) -> Table:
    """Measured milliseconds beside predicted ones, and the correlation of their logarithms."""
    measured = {}
    for file in files:
        for key, cell in json.loads(file.read_text())["cells"].items():
            if "median" in (ours := cell["peers"].get("einsmith", {})):
                measured[key] = ours["median"]
    pairs = {n: (c["seconds"], measured[f"{n}-t{threads}"]) for n, c in cells.items() if f"{n}-t{threads}" in measured}
    logs = np.log(np.array(list(pairs.values()))).T
    out = Table(title=f"correlation of the logarithms: {np.corrcoef(logs)[0, 1]:.4f} over {len(pairs)} steps")
    for name in ("", "predicted, ms", "measured, ms", "measured / predicted"):
        out.add_column(name, justify="right" if name else "left")
    for name, (predicted, found) in pairs.items():
        out.add_row(name, f"{predicted * 1e3:.3f}", f"{found * 1e3:.3f}", f"{found / predicted:.2f}")
    return out


def main() -> int:
    from benchmarks.models import TRAINING
    from einsmith.codegen.cache.native import host_target
    from einsmith.tuning.calibration import calibrate

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("network", nargs="*", default=[], help="as resnet18-b16 (default: all)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="figures are kept here; what it holds already is not run again")
    parser.add_argument("--before", type=Path, help="the file of another run, which this one is compared with")
    parser.add_argument("--measured", type=Path, action="append", default=[], help="a file of benchmarks.training")
    parser.add_argument("--static", action="store_true", help="by the machine's facts alone, with nothing measured")
    args = parser.parse_args()
    if unknown := set(args.network) - set(TRAINING):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if args.static:
        calibrate._target, calibrate._patterns = host_target(), len(calibrate.autoconfig.PATTERNS)
    cells = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    for name in args.network or TRAINING:
        if name not in cells:
            cells[name] = planned(name, args.threads)
            if args.json:
                args.json.write_text(json.dumps(cells))
    before = json.loads(args.before.read_text()) if args.before else {}
    Console(width=140).print(table(cells, before))
    if args.measured:
        Console(width=140).print(compare(cells, args.measured, args.threads))
    slower = [n for n, c in cells.items() if n in before and c["seconds"] > SLOWER * before[n]["seconds"]]
    if slower:
        print(f"predicted to be slower than before: {', '.join(slower)}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
