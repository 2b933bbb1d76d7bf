"""Decide how many points of K of each point of N the lanes of a vector hold (K vectorization)."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.kernels.contraction.config import HaloSetting
from einsmith.schedule.contraction_problem import k_limit, needs_exact_guards

MAX_REPEATED_BYTES = 16
"""Most bytes that are repeated along a vector: what instructions broadcast, and what packing moves as one."""


def choose_depth(n: int, lanes: int, item: int) -> int:
    """Return the points of K in the lanes of a vector with which the fewest lanes stay empty.

    Vectors hold `n` points of N, with elements of `item` bytes.
    """
    return min(
        (d for d in (1, 2, 4) if d * item <= MAX_REPEATED_BYTES and d <= lanes),
        key=lambda d: (-(-n * d // lanes) / d, d),
    )


def can_vectorize_k(s: HaloSetting, depth: int, blocks: Sequence[int]) -> bool:
    """Return whether `depth` points of K are always adjacent in the rows of M.

    No part or block of K may end between them; `blocks` lists their sizes (points).
    """
    rows = s.access(s.m_side)
    groups = rows.groups(s.p.k)
    if (
        not s.m_side.operand.plain
        or not groups
        or needs_exact_guards(s.p)
        or k_limit(s.p) is not None
        and s.p.count(s.p.k[1:]) % depth > 0
        or any(x % depth for x in (groups[-1].extent, *blocks))
    ):
        return False
    return all(f.coef.get(groups[-1].inner) == 1 for f in rows.forms)
