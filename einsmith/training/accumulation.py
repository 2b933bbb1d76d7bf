"""Count a step's updates, and the batches whose gradients wait for the next one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from einsmith.training.counts import CountGroup


@dataclass
class Accumulation:
    """The number of updates so far, and of the batches that are accumulated for the next one.

    steps: updates; batches, samples: batches whose gradients wait for the update, and their samples."""

    steps: int = 0
    batches: int = 0
    samples: int = 0

    def add(self, samples: int) -> None:
        """Count a batch whose gradients wait for the update."""
        self.batches, self.samples = self.batches + 1, self.samples + samples

    def end_update(self, groups: Iterable[CountGroup]) -> None:
        """Count an update of the parameters of these groups, after which no batch waits."""
        self.steps += 1
        for group in groups:
            group.updates += 1
        self.batches = self.samples = 0

    def drop(self) -> None:
        """Forget the batches that wait for the update."""
        self.batches = self.samples = 0
