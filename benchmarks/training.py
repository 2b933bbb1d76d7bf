"""Training steps of all networks, Einsmith and its peers side by side: python -m benchmarks.training [network ...]

One step of forward, loss, backward and SGD's update: the networks of `es.models` at batch 1 and 16, and the recurrent
ones of benchmarks.recurrent. Each peer is verified against PyTorch in float64 before it is timed (recurrent networks:
against each other), in a process and with caches of its own. With --goals the networks are judged by GOALS: to be so
many times as fast as the best peer, or as near to the step's floor as ROOFLINE, whichever is less.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from benchmarks.driver import geometric_mean
from benchmarks.models import TRAINING
from benchmarks.recurrent_steps import Recurrent, peers_of
from benchmarks.report import run
from benchmarks.run import PEERS

COLD, KERNELS = 1 / 3, 100
"""What a cold first call may take of torch.compile's, and how many distinct kernels ResNet-18's step may have."""


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
NOVEL = ("capsulenet", "capsulenet_conv", "shufflenet_v1")
TIMES_TORCH = 3.16
"""Geometric mean over the novel networks, which are these and the recurrent cells, beside PyTorch."""


def goal(name: str) -> float:
    """How many times as fast as the best peer a problem is asked to be."""
    problem = TRAINING[name]
    if isinstance(problem, Recurrent):
        return GOALS.get(problem.network, RECURRENT)
    return (OF_ONE if problem.batch == 1 else GOALS).get(problem.network, AHEAD)


def verdicts(cells: Mapping[str, dict]) -> list[tuple[str, str, str, bool | None]]:
    """What the steps and their first calls are asked for (see driver.asked), as far as the cells tell."""
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
        part = f"{geometric_mean(list(cold.values())):.2f} in the mean; above: {named or 'none'}"
        out.append(("cold first call, of torch.compile's", part, f"at most {COLD:.2f}", not over))
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


def goal_verdicts(cells: Mapping[str, dict]) -> list[tuple[str, str, str, bool | None]]:
    """What each network is asked for, then all of them, as far as the cells tell (see driver.asked)."""
    out: list[tuple[str, str, str, bool | None]] = []
    torch: list[float] = []
    for name, cell in cells.items():
        ours, ratio, wanted = cell["peers"].get("einsmith", {}), cell.get("speedup"), goal(name)
        if not ratio:
            continue
        floor = ours.get("floor_percent", 0.0)
        reached = f"{ratio:.2f} times {cell['best_peer']}, {floor:.0f} % of the floor"
        out.append((name, reached, f"{wanted:g} times or {ROOFLINE:.0f} %", ratio >= wanted or floor >= ROOFLINE))
        theirs = cell["peers"].get("torch", {}).get("median")
        if theirs and (TRAINING[name].network in NOVEL or isinstance(TRAINING[name], Recurrent)):
            torch.append(theirs / ours["median"])
    mean = geometric_mean(torch)
    if mean is not None:
        reached = f"{mean:.2f} over {len(torch)}"
        out.append(("novel networks, times PyTorch, geometric mean", reached, f"{TIMES_TORCH}", mean >= TIMES_TORCH))
    return [*out, *verdicts(cells)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; with --goals, tell how each network stands to its goal."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    judge = goal_verdicts if "--goals" in arguments else verdicts
    arguments = [a for a in arguments if a != "--goals"]
    title = "Times one training step (SGD) of each network in every peer; --goals: and judges them by their goals."
    return run(title, TRAINING, arguments, known=PEERS, fit=peers_of, verdicts=judge)


if __name__ == "__main__":
    sys.exit(main())
