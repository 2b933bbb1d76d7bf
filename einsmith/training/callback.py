"""Define the interface of callbacks of `fit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from einsmith.base.arguments import Shown

if TYPE_CHECKING:
    from einsmith.training.step import TrainStep


class Callback(Shown):
    """A callback of `fit`: base class of `es.callbacks` and of a user's own. No method has to be overridden."""

    def on_begin(self, step: TrainStep) -> bool | None:
        """Act before the first batch of a call of `fit`; return true to train nothing."""

    def on_step(self, step: TrainStep, loss: float) -> None:
        """Act after each batch with its loss."""

    def on_epoch(self, step: TrainStep, row: Mapping[str, Any]) -> bool | None:
        """Act after each epoch with its results, the last row of `step.history`; return true to end the training."""

    def on_end(self, step: TrainStep) -> None:
        """Act at the end of a call of `fit`, also after an error."""
