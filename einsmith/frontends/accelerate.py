"""Let Accelerate, and with it transformers' Trainer, compile models with the backend "einsmith" (docs/trainers.md).

Both refuse backends of torch.compile that are not in Accelerate's own list. Importing this module adds "einsmith".
"""

from __future__ import annotations

from typing import Any

try:
    from accelerate.utils import DynamoBackend
except ImportError as e:
    raise ImportError("einsmith.frontends.accelerate needs the package accelerate: pip install accelerate") from e

from einsmith.frontends.torch import BACKEND  # which registers the backend in a checkout

__all__ = ["add_backend"]

_NAME = BACKEND.upper()


def add_backend() -> None:
    """Make `DynamoBackend("EINSMITH")` a member of Accelerate's list of backends, by the hook of enumerations for
    unknown values."""
    if _NAME in DynamoBackend:
        return
    member = str.__new__(DynamoBackend, _NAME)
    member._name_ = member._value_ = _NAME
    unknown = DynamoBackend._missing_

    def find(cls: Any, value: Any) -> Any:
        return member if value == _NAME else unknown(value)

    DynamoBackend._missing_ = classmethod(find)


add_backend()
