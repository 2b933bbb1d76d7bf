"""Keep operators whole while PyTorch traces a graph.

PyTorch decomposes some operators in autograd's dispatch, whatever decompositions a tracer asks for. Where these
differ from eager PyTorch, the table of operators has a formula, for which the operators must reach the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C import DispatchKey

from einsmith.base import locks

WHOLE = (
    # It counts the entries behind the first -1 as targets of class 0.
    torch.ops.aten.multilabel_margin_loss_forward.default,
    # It rounds lambd to 16 bits, and its derivative of an infinite cotangent is NaN.
    torch.ops.aten.softshrink.default,
)
"""Operators whose decompositions in autograd's dispatch are wrong."""
_KERNELS = {op: op.py_kernels.get(DispatchKey.Autograd) for op in WHOLE}
_lock = locks.lock()
_tracers = 0


def _decompose(op: torch._ops.OpOverload, does: bool) -> None:
    kernel = _KERNELS[op]
    if kernel is None:
        return
    if does:
        op.py_kernels[DispatchKey.Autograd] = kernel
    else:
        op.py_kernels.pop(DispatchKey.Autograd, None)
    op._dispatch_cache.clear()


@contextmanager
def keep_whole() -> Iterator[None]:
    """Let PyTorch trace the operators of `WHOLE` as they are, inside this context.

    The setting is the process's. Another compiler that traces at the same time gets the same values from eager kernels.
    """
    global _tracers
    with _lock:
        _tracers += 1
        if _tracers == 1:
            for op in WHOLE:
                _decompose(op, False)
    try:
        yield
    finally:
        with _lock:
            _tracers -= 1
            if not _tracers:
                for op in WHOLE:
                    _decompose(op, True)
