"""Compute gradients in kernels separate from the updates that use them, where this saves storing large results.

before: G = f(L);  W = W - rate*sum[n](G[n,v]*x[n,d])               the sum is fused with the update of W
after:  G = f(L);  D[v,d] = sum[n](G[n,v]*x[n,d]);  W = W - rate*D

A kernel that writes into a parameter runs after all other readers of the parameter, and is never fused by rows. The sum
alone can be fused (`schedule.row_clusters`): the logits of a large vocabulary are then consumed block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from einsmith.ir.nodes import Compute, nbytes
from einsmith.ir.views import storage
from einsmith.schedule.row_clusters import longest_time

if TYPE_CHECKING:
    from einsmith.schedule.plan import Plan


def compute_apart(fuse: Callable[[Collection[Compute]], Plan], seconds: Callable[[Plan], float], most: int) -> Plan:
    """Return a plan, with sums apart from updates if results need not be stored then and the plan takes less time, or
    hardly more if these exceed a bound.

    Args:
        fuse: returns the plan in which given nodes are fused with no other ones.
        seconds: predicted seconds of a plan.
        most: most bytes of a result that is stored although it need not be, because that takes less time.
    """
    plan = fuse(())
    if not plan.apart:
        return plan
    trial = fuse(plan.apart)
    saved = plan.stored - trial.stored
    useful = {n for n in plan.apart if not saved.isdisjoint(map(storage, n.args))}
    if not useful:
        return plan
    if len(useful) < len(plan.apart):
        trial = fuse(useful)
        saved = plan.stored - trial.stored
    longest = longest_time(map(nbytes, saved), most, 1.0)
    return trial if seconds(trial) < longest * seconds(plan) else plan
