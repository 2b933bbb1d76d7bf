"""Compute gradients apart from the updates that use them, where large results need no memory then.

before: G = f(L);  W = W - rate*sum[n](G[n,v]*x[n,d])               the sum is fused with the update of W
after:  G = f(L);  D[v,d] = sum[n](G[n,v]*x[n,d]);  W = W - rate*D

A kernel that writes into a parameter runs after every other one that reads it, and is not joined with others by rows.
The sum alone can be (`schedule.row_clusters`): the logits of a large vocabulary are then used up block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from einsmith.ir.nodes import Compute, nbytes
from einsmith.schedule.plan import Plan


def compute_apart(
    fuse: Callable[[Collection[Compute]], Plan], seconds: Callable[[Plan], float], smallest: int, most: int
) -> Plan:
    """Return a plan, with sums apart from updates if results need not be stored then, and if these exceed a bound or
    the plan takes less time.

    Args:
        fuse: returns the plan in which given nodes are fused with no other ones.
        seconds: predicted seconds of a plan.
        smallest: bytes of the smallest result that is considered.
        most: most bytes of a result that is stored although it need not be, because that takes less time.
    """
    plan = fuse(())
    if not plan.apart:
        return plan
    trial = fuse(plan.apart)
    saved = [t for t in plan.stored - trial.stored if nbytes(t) >= smallest]
    large = bool(saved) and all(nbytes(t) > most for t in saved)
    return trial if large or (saved and seconds(trial) < seconds(plan)) else plan
