"""Provide operators and losses under torch.nn.functional's names, tensor functions under torch's: those of `ops`."""

from einsmith.ops import *  # noqa: F403
from einsmith.ops import __all__ as __all__
