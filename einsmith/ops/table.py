"""Fill the table of operators: import the modules of all of them.

Statements import this module while others are imported, so it holds no lock (`base.late.names_of`).
"""

from collections.abc import Mapping
from importlib import import_module

from einsmith.ops.operator import MODULES, ROWS, OperatorRow

for _module in MODULES:
    import_module(f"{__package__}.{_module}")

OPERATORS: Mapping[str, OperatorRow] = dict(sorted(ROWS.items()))
"""All operators, by name and in the order of names, whichever module was imported first."""
