"""Training steps of all networks, Einsmith and its peers side by side: python -m benchmarks.training [network ...]

One step of forward, loss, backward and SGD's update: the networks of `es.models` at batch 1 and 16, and the recurrent
ones of benchmarks.recurrent. Each peer is verified against PyTorch in float64 before it is timed (recurrent networks:
against each other), in a process and with caches of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from benchmarks.models import TRAINING
from benchmarks.report import run
from einsmith.bench.harness import PEERS
from einsmith.bench.recurrent import peers_of
from einsmith.bench.report import geometric_mean

COLD, KERNELS = 1 / 3, 100
"""What a cold first call may take of torch.compile's, and how many distinct kernels ResNet-18's step may have."""


def verdicts(cells: Mapping[str, dict]) -> list[tuple[str, str, str, bool | None]]:
    """What the steps and their first calls are asked for (see report.asked), as far as the cells tell."""
    out: list[tuple[str, str, str, bool | None]] = []
    ratios = {n: c["speedup"] for n, c in cells.items() if c.get("speedup")}
    slower = sorted((n for n in ratios if ratios[n] < 1), key=ratios.__getitem__)
    mean = geometric_mean(list(ratios.values()))
    if mean is not None:
        out.append(("times as fast as the best peer, geometric mean", f"{mean:.2f}", "", None))
        named = ", ".join(f"{n} {ratios[n]:.2f}" for n in slower)
        out.append(("slower than the best peer", f"{len(slower)} of {len(ratios)} {named}".strip(), "none", not slower))
    cold = {n: share for n, c in cells.items() if (share := _cold(c)) is not None}
    if cold:
        over = sorted((n for n in cold if cold[n] > COLD), key=cold.__getitem__, reverse=True)
        named = ", ".join(f"{n} {cold[n]:.2f}" for n in over)
        found = f"{geometric_mean(list(cold.values())):.2f} in the mean; above: {named or 'none'}"
        out.append(("cold first call, of torch.compile's", found, f"at most {COLD:.2f}", not over))
    for name, cell in cells.items():
        kernels = cell["peers"].get("einsmith", {}).get("kernels")
        if name.startswith("resnet18-") and kernels is not None:
            out.append((f"distinct kernels of {name}", str(kernels), f"at most {KERNELS}", kernels <= KERNELS))
    return out


def _cold(cell: dict) -> float | None:
    """Our cold first call by torch.compile's; where that did not end, by the seconds it was given."""
    ours, theirs = (cell["peers"].get(p, {}) for p in ("einsmith", "compile"))
    took = theirs.get("first_spent", theirs.get("cap") if theirs.get("status") == "timeout" else None)
    return ours["first_spent"] / took if took and "first_spent" in ours else None


if __name__ == "__main__":
    title = "Times one training step (SGD) of each network in every peer."
    sys.exit(run(title, TRAINING, known=PEERS, fit=peers_of, verdicts=verdicts))
