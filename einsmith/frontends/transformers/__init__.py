"""Replace functions of the library transformers that need custom kernels, or loop in Python.

`enable()` puts formulas with their derived gradients there, in eager mode and within torch.compile; `disable()` takes
them back (registering.py). The functions stand in delta_rules.py, state_spaces.py and loops.py.
"""

from __future__ import annotations

from einsmith.frontends.transformers.registering import SUPPORTED, disable, enable
from einsmith.frontends.transformers.table import FUNCTIONS, METHODS

__all__ = ["FUNCTIONS", "METHODS", "SUPPORTED", "disable", "enable"]
