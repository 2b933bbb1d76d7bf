"""What the networks are asked for."""

from __future__ import annotations

from benchmarks import training
from benchmarks.models import TRAINING


def cell(ours: float, best: float, floor: float = 50.0, torch: float | None = None) -> dict:
    peers = {"einsmith": {"median": ours, "floor_percent": floor}, "jax": {"median": best}}
    if torch is not None:
        peers["torch"] = {"median": torch}
    return {"peers": peers, "best_peer": "jax", "speedup": best / ours}


def test_a_network_reaches_its_goal_or_its_floor():
    found = training.goal_verdicts(
        {"resnet18-b16": cell(1.0, 1.24), "resnet50-b16": cell(1.0, 1.41), "mobilenet_v2-b1": cell(1.0, 1.1, 85.0)}
    )
    assert [(what, holds) for what, _, _, holds in found[:3]] == [
        ("resnet18-b16", False), ("resnet50-b16", True), ("mobilenet_v2-b1", True)
    ]  # fmt: skip
    assert "1.24 times jax, 50 % of the floor" in found[0]


def test_novel_networks_are_compared_with_pytorch():
    cells = {"capsulenet-b16": cell(1.0, 3.5, torch=4.0), "resnet18-b1": cell(1.0, 2.0, torch=99.0)}
    (mean,) = (x for x in training.goal_verdicts(cells) if x[0].startswith("novel"))
    assert mean[1:] == ("4.00 over 1", "3.16", True)


def test_every_step_has_a_goal():
    assert all(training.goal(name) >= 1 for name in TRAINING)
    assert {TRAINING[name].network for name in TRAINING} >= {*training.GOALS, *training.NOVEL}
    assert training.goal("milstm-b16-t28") == training.RECURRENT
    assert training.goal("resnet18-b1") == training.OF_ONE["resnet18"] != training.goal("resnet18-b16")


def test_unfinished_cells_are_left_out():
    unfinished = {"peers": {"einsmith": {"status": "timeout"}}, "best_peer": None, "speedup": None}
    assert not training.goal_verdicts({"unet-b16": unfinished})
