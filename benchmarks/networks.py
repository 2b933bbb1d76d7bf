"""Training steps of all networks beside every peer, and how they stand to what each is asked for:
python -m benchmarks.networks [network ...] [--batch 16] [--threads 1] [--json FILE]

The steps of benchmarks.training, with the goal of each network: to be so many times as fast as the best peer, or
as near to the step's floor as ROOFLINE, whichever is less.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from benchmarks import training
from benchmarks.models import TRAINING
from benchmarks.report import run
from einsmith.bench.harness import PEERS
from einsmith.bench.recurrent import Recurrent, peers_of
from einsmith.bench.report import geometric_mean

GOALS = {
    "resnet18": 1.25, "resnet50": 1.4, "mobilenet_v1": 2.0, "mobilenet_v2": 2.2, "efficientnet_lite0": 2.2,
    "shufflenet_v1": 3.0, "squeezenet": 1.5, "capsulenet": 2.2, "vit_small": 1.4, "gpt_small": 1.25, "bert_base": 1.25,
    "unet": 1.3, "lstm_lm": 1.6,
}  # fmt: skip
"""Times as fast as the best peer, of several samples; AHEAD for the other networks, RECURRENT for other cells."""
OF_ONE = {
    "mlp3": 3.29, "lenet5": 8.97, "resnet18": 1.43, "resnet50": 1.52, "mobilenet_v1": 2.08, "mobilenet_v2": 2.40,
    "shufflenet_v1": 4.41, "squeezenet": 1.40, "efficientnet_lite0": 2.51, "capsulenet": 3.26, "unet": 1.17,
    "vit_small": 1.26, "gpt_small": 1.15, "bert_base": 1.15,
}  # fmt: skip
"""Times as fast as the best peer of one sample: what docs/models.md recorded on 2026-11-22 and 23."""
RECURRENT, AHEAD = 2.0, 1.0
ROOFLINE = 85.0
"""Percent of the step's floor that do instead."""
NOVEL = ("capsulenet", "shufflenet_v1")
TIMES_TORCH = 3.16
"""Geometric mean over the novel networks, which are these and the recurrent cells, beside PyTorch."""


def goal(name: str) -> float:
    """How many times as fast as the best peer a problem is asked to be."""
    problem = TRAINING[name]
    if isinstance(problem, Recurrent):
        return GOALS.get(problem.network, RECURRENT)
    return (OF_ONE if problem.batch == 1 else GOALS).get(problem.network, AHEAD)


def verdicts(cells: Mapping[str, dict]) -> list[tuple[str, str, str, bool | None]]:
    """What each network is asked for, then all of them, as far as the cells tell (see report.asked)."""
    out: list[tuple[str, str, str, bool | None]] = []
    torch: list[float] = []
    for name, cell in cells.items():
        ours, ratio, wanted = cell["peers"].get("einsmith", {}), cell.get("speedup"), goal(name)
        if not ratio:
            continue
        floor = ours.get("floor_percent", 0.0)
        found = f"{ratio:.2f} times {cell['best_peer']}, {floor:.0f} % of the floor"
        out.append((name, found, f"{wanted:g} times or {ROOFLINE:.0f} %", ratio >= wanted or floor >= ROOFLINE))
        theirs = cell["peers"].get("torch", {}).get("median")
        if theirs and (TRAINING[name].network in NOVEL or isinstance(TRAINING[name], Recurrent)):
            torch.append(theirs / ours["median"])
    mean = geometric_mean(torch)
    if mean is not None:
        found = f"{mean:.2f} over {len(torch)}"
        out.append(("novel networks, times PyTorch, geometric mean", found, f"{TIMES_TORCH}", mean >= TIMES_TORCH))
    return [*out, *training.verdicts(cells)]


if __name__ == "__main__":
    title = "Training steps of all networks, and what each is asked for."
    sys.exit(run(title, TRAINING, known=PEERS, fit=peers_of, verdicts=verdicts))
