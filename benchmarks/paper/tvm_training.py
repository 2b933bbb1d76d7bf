"""TVM_T: a compiler of training on TVM's base."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import models
from benchmarks.paper.experiment import Cells, Experiment, Paper, Plan, Shown, beside
from benchmarks.report import Job

NETWORKS = ("mlp3-b256", "lenet5-b256", "resnet18-b16", "squeezenet-b16", "lstm_lm-b256-t35")


def _training(plan: Plan) -> Sequence[Job]:
    names = plan.pick(NETWORKS, NETWORKS[:1])
    problems = [models.named(n) for n in names]
    return [Job(p, ("einsmith", "torch", "tensorflow"), plan.threads) for p in problems if p is not None]


def _show_training(cells: Cells) -> Sequence[Shown]:
    return [beside(cells, {"PyTorch": ["torch"], "TensorFlow": ["tensorflow"]})]


PAPER = Paper(
    "tvm-training",
    "TVM_T",
    "J. Zeng, M. Kou, X. Zheng, H. Yao, F. Sun: TVM_T: TVM-based high-performance neural network compiler supporting"
    " training (in Chinese). Scientia Sinica Informationis 53, 2023, 2458-2471.",
    {"the loss and the backward pass in one graph with the forward pass": "`docs/training.md`"},
    [
        Experiment(
            "Figure 6a", "training on a CPU beside PyTorch and TensorFlow",
            "faster than both on each network, at most 11.5 times.", _show_training, jobs=_training,
            card="--parts models --models mlp3,lenet5,resnet18,squeezenet",
        ),
    ],
)  # fmt: skip
