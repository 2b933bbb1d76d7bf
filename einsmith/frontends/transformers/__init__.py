"""Replace functions of the library transformers that need custom kernels, or loop in Python.

`enable()` replaces them by formulas with derived gradients, in eager mode and within torch.compile; `disable()`
restores the original functions (registering.py). The formulas are in delta_rules.py, state_spaces.py and loops.py.
"""

from __future__ import annotations

from einsmith.frontends.transformers.registering import SUPPORTED, disable, enable
from einsmith.frontends.transformers.table import FUNCTIONS, METHODS

__all__ = ["FUNCTIONS", "METHODS", "SUPPORTED", "disable", "enable"]
