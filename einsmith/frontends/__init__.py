"""Networks of other libraries, `einsmith.frontends.torch` and `einsmith.frontends.onnx`, imported where one is used."""

from typing import TYPE_CHECKING

from einsmith import late

if not TYPE_CHECKING:
    __getattr__ = late.names_of(__name__, {})
