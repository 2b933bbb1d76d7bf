"""A process of a group, for tests: python -m tests.distributed.worker TASK FOLDER"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import einsmith as es
from einsmith import nn
from einsmith.distributed import ProcessGroup

STEPS = 4
SAVED = 20
"""Steps between two saves."""


def network(seed: int) -> nn.Module:
    nn.manual_seed(seed)
    return es.models.lenet5()


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


def compare(group: ProcessGroup, folder: Path) -> None:
    """Write this rank's losses and weights."""
    losses, state = train(group)
    np.savez(folder / f"{group.engine}-{group.rank}.npz", **state)
    facts = {"losses": losses, "cores": len(os.sched_getaffinity(0)), "local": [group.local_rank, group.local_size]}
    (folder / f"{group.engine}-{group.rank}.json").write_text(json.dumps(facts))


def last(group: ProcessGroup, folder: Path) -> None:
    """Go on from the save, if there is one, train and save for ever; write the number of the process."""
    x, y = data()
    step = es.load(folder / "run", group=group) if group.broadcast((folder / "run").exists()) else make(group)
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
        {"compare": compare, "last": last, "fail": fail}[sys.argv[1]](joined, Path(sys.argv[2]))
