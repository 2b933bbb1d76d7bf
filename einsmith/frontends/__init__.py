"""Networks of other libraries, `einsmith.frontends.torch` and `einsmith.frontends.onnx`, imported where one is used."""

from importlib import import_module
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    if name in ("onnx", "torch"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
