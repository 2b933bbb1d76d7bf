"""Operators and losses under torch.nn.functional's names, and tensor functions under torch's. All of them are formulas.

Given arrays, each is compiled, run, and returns fresh NumPy arrays; given traced tensors it extends the trace. They are
the rows of the table of operators (`operator.OPERATORS`). `__init__.pyi`, which is made from it, declares them for type
checkers.
"""

from einsmith.lang.trace import provide_functions
from einsmith.ops import (  # noqa: F401  # each fills the table
    activation,
    arrangement,
    attention,
    bessel,
    conv,
    counting,
    creation,
    distance,
    elementwise,
    embedding,
    fractional,
    group,
    indexing,
    inverse,
    multihead,
    normalization,
    ordering,
    padding,
    pooling,
    product,
    random,
    resize,
    sampling,
    softmax,
    special,
    statistics,
    tensor,
)
from einsmith.ops.losses import classes, ctc, margin, regression  # noqa: F401
from einsmith.ops.operator import OPERATORS

__all__ = sorted(OPERATORS)

_calls = {name: row.call for name, row in OPERATORS.items()}
globals().update(_calls)
provide_functions(_calls | {"__getitem__": indexing.select_by_keys, "_windows": arrangement.windows})
