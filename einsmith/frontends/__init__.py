"""Connect other libraries: `einsmith.frontends.torch`, `.onnx` and `.accelerate`, loaded on first use."""

from typing import TYPE_CHECKING

from einsmith.base import late

if not TYPE_CHECKING:
    __getattr__ = late.names_of(__name__, {})
