"""Count the bytes of intermediate results that are alive at each call of a program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einsmith.ir.nodes import Role
from einsmith.schedule.arena import Life
from einsmith.schedule.plan import Plan

KINDS = ("saved", "rest", "workspace")
"""Results that the forward pass saves for later calls, other results, and workspaces of kernels."""


def kinds_of(lives: Sequence[Life], plan: Plan, roles: Sequence[Role]) -> list[str]:
    """Return the kind, one of KINDS, of each live range of a plan. roles: the role of each of its kernels."""
    forward = [False] * len(plan.calls)
    for (n, _, _), role in zip(plan.kernel_calls(), roles, strict=True):
        forward[n] |= role == "forward"
    return [
        "workspace"
        if isinstance(x.key, int)
        else "saved"
        if forward[x.first] and x.last < len(forward) and not forward[x.last]
        else "rest"
        for x in lives
    ]


def live_bytes(lives: Sequence[Life], plan: Plan, roles: Sequence[Role]) -> dict[str, np.ndarray]:
    """Return the bytes that are alive at each call of a plan, by kind. roles: the role of each of its kernels."""
    calls = len(plan.calls)
    change = {kind: np.zeros(calls + 2, np.int64) for kind in KINDS}
    for x, kind in zip(lives, kinds_of(lives, plan, roles), strict=True):
        change[kind][x.first] += x.nbytes
        change[kind][x.last + 1] -= x.nbytes
    return {kind: np.cumsum(c)[:calls] for kind, c in change.items()}
