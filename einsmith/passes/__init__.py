"""The pipeline of graph passes."""

from typing import TYPE_CHECKING

from einsmith.base import late

if TYPE_CHECKING:
    from einsmith.passes.registration import register as register
else:
    __getattr__ = late.names_of(__name__, {"register": "einsmith.passes.registration"})
