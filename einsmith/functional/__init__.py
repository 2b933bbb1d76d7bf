"""Provide operators and losses under torch.nn.functional's names, tensor functions under torch's: those of `ops`."""

from typing import TYPE_CHECKING, Any

from einsmith.lang.refused import missing_name
from einsmith.ops import *  # noqa: F403
from einsmith.ops import __all__ as __all__

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, ["torch.nn.functional", "torch"], name, __all__)
