"""Interleave special functions of several vectors: decide which instructions of a block are emitted together.

before: y0 = erf(x0); y1 = erf(x1)      each a chain of some twenty multiply-adds, every one waiting for the last
after:  y0, y1 = erf(x0), erf(x1)       step by step in turn: one chain computes while the other waits

A processor looks ahead by a hundred instructions or so. These cover three chains that follow one another, but all
chains that are interleaved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from einsmith.codegen.ssa import Op
from einsmith.ir.functions import has_lanes

_STORES = (
    "store", "stream", "scatter", "barrier", "prefetch", "tile_zero", "tile_load", "tile_store", "tile_dot",
)  # fmt: skip
_LOADS = ("load", "gather")


def group_instructions(run: Sequence[Op], width: int) -> Iterator[list[Op]]:
    """Yield the instructions of a block without branches in an order in which each follows its arguments. Instructions
    that are emitted together, at most `width` functions with code over lanes, on vectors, are one list.

    The arguments of a function move up with it; but loads never pass a store, and stores keep their places.
    """
    chains = [n for n, op in enumerate(run) if has_lanes(op.name) and op.results and op.result.type.lanes]
    if len(chains) < 2 or width < 2:
        yield from ([op] for op in run)
        return
    makers = {op.result.id: n for n, op in enumerate(run) if op.results}
    needs = [[makers[a.id] for a in op.operands if a.id in makers] for op in run]
    stores = [0]  # before each instruction
    for op in run:
        stores.append(stores[-1] + (op.name in _STORES))
    placed: set[int] = set()
    waiting = dict.fromkeys(chains)

    def collect_missing(n: int, stored: int) -> list[int] | None:
        """Return the unplaced instructions on which instruction n depends, in order; None if one of them cannot be
        placed yet."""
        unplaced: set[int] = set()
        todo = [n]
        while todo:
            for m in needs[todo.pop()]:
                if m in placed or m in unplaced:
                    continue
                if m in waiting or run[m].name in _LOADS and stores[m] > stored:
                    return None
                unplaced.add(m)
                todo.append(m)
        return sorted(unplaced)

    for n in range(len(run)):
        if n in placed:
            continue
        group = [n]
        if n in waiting:
            for m in list(islice((m for m in waiting if m > n), 2 * width)):
                first = collect_missing(m, stores[n]) if len(group) < width else None
                if first is not None:
                    placed.update(first)
                    yield from ([run[x]] for x in first)
                    group.append(m)
            for m in group:
                del waiting[m]
        placed.update(group)
        yield [run[m] for m in group]


def interleave(parts: Sequence[list[str]]) -> list[str]:
    """Interleave the lines of several chains round-robin; concatenate the chains if one of them branches (a line that
    ends in a colon begins a block)."""
    if any(line.endswith(":") for part in parts for line in part):
        return [line for part in parts for line in part]
    return [part[n] for n in range(max(map(len, parts))) for part in parts if n < len(part)]
