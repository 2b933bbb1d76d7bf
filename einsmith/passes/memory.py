"""Liveness: every intermediate gets an offset in one arena; tensors that are never alive together share bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from einsmith.expr.nodes import Tensor, nbytes
from einsmith.passes.fuse import Plan
from einsmith.passes.views import storage

ALIGNMENT = 64


def lifetimes(plan: Plan, outside: Iterable[Tensor]) -> dict[Tensor, tuple[int, int]]:
    """storage -> (first call, last call) that touches it, for everything that is not in `outside`."""
    skip = set(outside)
    out: dict[Tensor, tuple[int, int]] = {}
    for i, call in enumerate(plan.calls):
        for t in call.tensors:
            s = storage(t)
            if s not in skip and s not in plan.home:
                out[s] = (out.get(s, (i, i))[0], i)
    return out


def arena(
    plan: Plan, outside: Iterable[Tensor], extra: Mapping[int, int], kept: Collection[int] = ()
) -> tuple[dict[object, int], int]:
    """Offsets by storage (and by call number for `extra`: workspace bytes of a call, which those in `kept` have to
    themselves through the whole plan), and the arena's size.

    Largest first, each at the lowest offset that is free during its life (best-fit decreasing: within a few per cent of
    the peak of live bytes on training graphs).
    """
    items: list[tuple[object, int, int, int]] = [
        (t, nbytes(t), first, last) for t, (first, last) in lifetimes(plan, outside).items()
    ]
    end = len(plan.calls)
    items += [(call, n, *((0, end) if call in kept else (call, call))) for call, n in extra.items() if n]
    order = sorted(range(len(items)), key=lambda i: (-items[i][1], i))
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    offsets: dict[object, int] = {}
    total = 0
    for i in order:
        key, n, first, last = items[i]
        n = (n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        at = 0
        for lo, hi, a, b in sorted(placed):
            if b < first or last < a:
                continue
            if lo - at >= n:
                break
            at = max(at, hi)
        placed.append((at, at + n, first, last))
        offsets[key] = at
        total = max(total, at + n)
    return offsets, total
