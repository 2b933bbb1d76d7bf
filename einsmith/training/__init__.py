"""Train models: the step of a model as one native call, and the loop around it."""

from einsmith.training.profile import Profile
from einsmith.training.step import TrainStep

__all__ = ["Profile", "TrainStep"]
