"""Count the epochs of a training, and sum the losses of the current one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Epochs:
    """How far a training in epochs has come, so that another call of `fit` continues it.

    epoch: epochs done; position: batches done in the current epoch; loss, samples: sum of the samples' losses in the
    current epoch, and their number; losses: the sums of several losses, by name; history: a row of results of each
    epoch; source: batches of an iterator in an unfinished epoch; loader_state: the state of torch's generator for the
    order of the epoch's batches, in hexadecimal."""

    epoch: int = 0
    position: int = 0
    loss: float = 0.0
    samples: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    source: Any = None
    loader_state: str | None = None

    def add(self, loss: float, samples: int, losses: Mapping[str, float]) -> None:
        """Count a batch with its loss, its number of samples, and several losses by name."""
        self.position += 1
        self.loss += loss * samples
        self.samples += samples
        for name, part in losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + part * samples

    def end_epoch(self, row: dict[str, Any], loader_state: str | None) -> None:
        """Begin the next epoch. row: results of the one that ends; loader_state: that of the next one."""
        self.epoch, self.position, self.loss, self.samples = self.epoch + 1, 0, 0.0, 0
        self.losses, self.source, self.loader_state = {}, None, loader_state
        self.history.append(row)
