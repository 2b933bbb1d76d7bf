"""Choose which operators of PyTorch reach the table as they are, and which by PyTorch's decompositions into others.

All that PyTorch can decompose is decomposed, except what the table has: operators with one formula that is faster, more
accurate or differentiable where the decomposition is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from einsmith.frontends import torch_linalg
from einsmith.frontends.aten import TABLE
from einsmith.frontends.torch_nodes import operator_name

_MORE = (
    "dist",
    "ldexp",
    "narrow_copy",
    "permute_copy",
    "unbind_copy",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
)
"""Operators that PyTorch's core set has whole, or lacks, though there are decompositions of them."""
NORMS = (
    "_log_softmax",
    "_batch_norm_with_update_functional",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "batch_norm_backward",
    "native_batch_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
)
"""Norms with their gradients, and the logarithm of a softmax. From the parts of a norm, not from the whole, a backward
can recompute what it reads: of log-probabilities it keeps a number for each row."""


def decompositions_of(names: Sequence[str]) -> dict[Any, Callable]:
    """Return PyTorch's decompositions of ATen's operators of these names, all overloads of each."""
    return torch._decomp.get_decompositions([getattr(torch.ops.aten, name) for name in names])


@cache
def decompositions() -> dict[Any, Callable]:
    """Return PyTorch's decompositions by operator, of all operators that the table lacks."""
    known = dict(torch._decomp.core_aten_decompositions()) | decompositions_of(_MORE)
    return {op: f for op, f in known.items() if operator_name(op) not in TABLE} | torch_linalg.APART
