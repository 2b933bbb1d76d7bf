"""Ctrl-C ends real processes that wait for others of their group."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 120
"""Seconds after which a test fails, on a busy machine."""
TRAIN = """
import numpy as np, einsmith as es
with es.distributed.init() as group:
    step = es.TrainStep(es.models.mlp3(), es.functional.cross_entropy, es.optim.SGD(lr=0.1), group=group)
    while True:
        step(np.ones((8, 784), np.float32), np.arange(8))
        print("step", flush=True)
"""


class Ranks:
    """Processes of a group of two, without a launcher."""

    def __init__(self) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.processes: list[subprocess.Popen] = []

    def start(self, rank: int) -> subprocess.Popen:
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port}
        process = subprocess.Popen(
            [sys.executable, "-c", TRAIN], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), **{k: str(v) for k, v in own.items()}},
        )  # fmt: skip
        self.processes.append(process)
        return process

    def is_waited_for(self) -> bool:
        """Whether rank 0 waits for the others: it listens."""
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def ranks(torch) -> Iterator[Ranks]:
    out = Ranks()
    yield out
    for process in out.processes:
        process.kill()
        process.communicate()


def interrupt(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert "KeyboardInterrupt" in errors and process.returncode != 0, errors


def test_a_process_whose_others_do_not_come(ranks):
    process = ranks.start(0)
    while not ranks.is_waited_for():
        assert process.poll() is None, process.communicate()
    interrupt(process)


@pytest.mark.slow
def test_a_step_whose_other_process_stands_still(ranks):
    first, second = ranks.start(0), ranks.start(1)
    assert first.stdout.readline() == "step\n"
    second.send_signal(signal.SIGSTOP)
    interrupt(first)
