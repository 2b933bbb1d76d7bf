"""Operators and losses under torch.nn.functional's names, and tensor functions under torch's. All of them are formulas.

Given arrays, each is compiled, run, and returns fresh NumPy arrays; given traced tensors it extends the trace. They are
the rows of the table of operators (`table.OPERATORS`); a module is imported when one of its operators is first used.
`__init__.pyi`, which is made from the table, declares them for type checkers.
"""

from einsmith.base import late
from einsmith.ops.operator import find
from einsmith.tracing.trace import provide_functions

provide_functions(find)
__getattr__ = late.names_of(__name__, {}, find.__module__)
