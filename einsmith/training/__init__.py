"""Train models: the step of a model as one native call, and the loop around it."""

from einsmith.training.description import Profile
from einsmith.training.settings import TuningSettings, UpdateSettings
from einsmith.training.step import TrainStep

__all__ = ["Profile", "TrainStep", "TuningSettings", "UpdateSettings"]
