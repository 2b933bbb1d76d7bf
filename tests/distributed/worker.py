"""A process of a group, for tests: python -m tests.distributed.worker TASK FOLDER"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import einsmith as es
from einsmith import nn
from einsmith.distributed import ProcessGroup

STEPS = 4
SAVED = 20
"""Steps between two saves."""


def network(seed: int) -> nn.Module:
    nn.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((10, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 10)


def make(group: ProcessGroup | None) -> es.TrainStep:
    return es.TrainStep(
        network(0 if group is None else group.rank), es.functional.cross_entropy, es.optim.Adam(lr=0.01), group=group
    )


def train(group: ProcessGroup | None, steps: int = STEPS) -> tuple[list[float], dict[str, np.ndarray]]:
    x, y = data()
    step = make(group)
    batches = es.data.batches(x, y, 10, group=group)
    losses = [step(*next(iter(batches))) for _ in range(steps)]
    return losses, {k: np.array(v) for k, v in step.model.state_dict().items()}


def normalized(group: ProcessGroup | None) -> dict[str, np.ndarray]:
    """Return the weights of a small network whose statistics are those of the whole batch."""
    nn.manual_seed(4)
    norm = nn.BatchNorm2d if group is None else nn.SyncBatchNorm
    model = nn.Sequential(nn.Conv2d(1, 4, 5, stride=4), norm(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1), group=group)
    x, y = data()
    for batch in es.data.batches(x, y, 10, group=group):
        for _ in range(STEPS):
            step(*batch)
    return {f"normalized.{k}": np.array(v) for k, v in model.state_dict().items()}


def compare(group: ProcessGroup, folder: Path) -> None:
    """Write this rank's losses and weights."""
    losses, state = train(group)
    state |= normalized(group)
    np.savez(folder / f"{group.engine}-{group.rank}.npz", **state)
    facts = {"losses": losses, "cores": len(os.sched_getaffinity(0)), "local": [group.local_rank, group.local_size]}
    (folder / f"{group.engine}-{group.rank}.json").write_text(json.dumps(facts))


GPT = {"vocabulary": 64, "positions": 12, "width": 32, "layers": 2, "heads": 4, "dropout": 0.0}
NETWORKS = {
    "lenet5": (dict[str, Any](), (1, 28, 28), None, 10),
    "resnet18_cifar": (dict[str, Any](), (3, 32, 32), None, 10),
    "gpt_small": (GPT, (12,), 64, 64),
    "milstm": ({"input_size": 16, "hidden_size": 24, "classes": 10}, (8, 16), None, 10),
}  # fmt: skip
"""Of each network: its arguments, the shape of a sample, words where it has words, classes."""
RATES = {"resnet18_cifar": 1e-4}
"""Learning rates, where 0.01 is so high that rounding errors grow tenfold in a step or two."""
MANY_STEPS = 20


def words_loss(y, target):
    """The mean over all words of all samples."""
    return es.functional.cross_entropy(es.functional.flatten(y, 0, 1), target.reshape((-1,)))


def train_network(name: str, group: ProcessGroup | None, **options: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    """Train a network whose batch norms, in a group, have the statistics of the whole batch; the last batch is uneven.
    Return its losses and weights."""
    arguments, shape, words, classes = NETWORKS[name]
    nn.manual_seed(5)
    model = es.models.get(name, **arguments)
    if group is not None and not options:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    rng = np.random.default_rng(6)
    losses, step = [], es.TrainStep(
        model, words_loss if words else es.functional.cross_entropy, es.optim.SGD(lr=RATES.get(name, 0.01)),
        group=group, threads=1, **options,
    )  # fmt: skip
    for n in range(MANY_STEPS):
        count = 8 if n % 5 < 4 else 7
        sizes = (count, *shape)
        x = rng.integers(0, words, sizes) if words else rng.standard_normal(sizes).astype(np.float32)
        y = rng.integers(0, classes, x.shape if words else count)
        first, end = (0, count) if group is None else (count * r // group.size for r in (group.rank, group.rank + 1))
        losses.append(step(x[first:end], y[first:end]))
    return losses, {k: np.array(v) for k, v in model.state_dict().items()}


def networks(group: ProcessGroup, folder: Path) -> None:
    """Write losses and weights of every network, trained as usual and deterministically."""
    for name in NETWORKS:
        losses, state = train_network(name, group)
        np.savez(folder / f"{name}-{group.rank}.npz", **{"losses": losses}, **state)
    if group.size in (1, 2, 4):
        for name in ("lenet5", "gpt_small", "milstm"):
            losses, state = train_network(name, group, deterministic=True)
            np.savez(folder / f"deterministic-{name}-{group.rank}.npz", **{"losses": losses}, **state)


def last(group: ProcessGroup, folder: Path) -> None:
    """Go on from the save, if there is one, train and save for ever; write the number of the process."""
    x, y = data()
    goes_on = group.broadcast((folder / "run").exists())
    step = es.load(folder / "run", model=network(0), group=group) if goes_on else make(group)
    (folder / f"pid-{group.rank}").write_text(str(os.getpid()))
    while True:
        step(*next(iter(es.data.batches(x, y, 10, group=group))))
        if step.steps % SAVED == 1:
            es.save(step, folder / "run")
            (folder / f"saved-{group.rank}").write_text("")


def fail(group: ProcessGroup, folder: Path) -> None:
    """Raise on rank 1 while rank 0 waits."""
    if group.rank == 1:
        raise ValueError("an error of rank 1")
    group.barrier()
    time.sleep(60)


if __name__ == "__main__":
    with es.distributed.init() as joined:
        {"compare": compare, "last": last, "fail": fail, "networks": networks}[sys.argv[1]](joined, Path(sys.argv[2]))
