"""Decide which tensors are kept, computed again or never stored: one policy over one cost, in seconds.

A tensor of the forward pass that the backward pass reads is kept, which moves its bytes through memory, or its readers
there recompute it from its operands, which have to be available in turn: kept, or recomputed. Readers in the forward
pass may recompute it too; it is then never stored. The costs add up, and the dependences between choices all point in
one direction, so that the best set of choices is a minimum cut (Kolmogorov and Zabih 2004, "What energy functions can
be minimized via graph cuts?").

`passes.algebra.recompute` prices the kernels of Einsmith's graphs, and `frontends.torch_compile.saved` counts the bytes
of a joint graph of PyTorch, whose kernels do not exist yet. `schedule.rematerialize` searches for plans that meet a
limit of memory; it takes from here which operands are too small to be recomputed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf, isinf
from typing import NamedTuple

from einsmith.cost.facts import Target
from einsmith.schedule.minimum_cut import UNBOUNDED, Network

FREED_READ_FRACTION = 1e-3
"""Benefit of a byte that is not kept for the backward pass, as a fraction of the time to read it from memory, where
kernel prices hold that time already. It is below any measurable time, so that memory is saved only where the step does
not become slower."""
CACHED_RATIO = 4
"""A tensor smaller than L3 by this factor stays cached until the backward pass, as its operands do, so recomputing it
saves no traffic."""
SMALL_RATIO = 16
"""An operand smaller than the tensor computed from it by this factor may be kept for the recomputation."""
TENSOR_BYTES = 0.25
"""Bytes that are added to the size of each tensor kept, so that of equal bytes the fewest tensors are kept."""
VIEW_MOVE_FRACTION = 0.25
"""Additional cost of keeping a view in place of its base tensor, as a fraction of one move of its bytes."""
POINTWISE_SECONDS = -1e-16
"""Cost (seconds) of recomputing a pointwise function where no kernel is priced: none, as kernels that wait for memory
have time for it. Of equal bytes, the sign selects the tensors nearest to the inputs (predicted against those nearest to
the readers: 0.3 % faster for a small ShuffleNet, 0.1 % slower for a small GPT)."""
_UNITS_PER_SECOND = 1e18
"""Units per second: costs are rounded to whole units."""


def is_small(operand: int, result: int) -> bool:
    """Return whether an operand may be kept so that a result can be recomputed from it (sizes in bytes)."""
    return operand * SMALL_RATIO <= result


def is_cached(size: int, target: Target) -> bool:
    """Return whether a tensor of `size` bytes of the forward pass is still in L3 when the backward pass reads it."""
    return size * CACHED_RATIO <= target.last_level


def backward_target(target: Target, total: int) -> Target:
    """Return the machine by which kernels are priced if a pass computes `total` bytes: beyond L3, tensors kept for the
    backward pass are read from memory."""
    if total <= target.last_level:
        return target
    return replace(target, l3=min(target.last_level, target.l2 * target.cores), l3_share=1.0)


def seconds_to_free(size: int, target: Target) -> float:
    """Return the benefit of not keeping a tensor of `size` bytes whose reads the kernel prices hold already."""
    return FREED_READ_FRACTION * target.seconds_for_bytes(size, size + target.last_level, target.cores)


def seconds_to_keep(size: float, target: Target, total: int, *, stored: bool, view: bool = False) -> float:
    """Return the seconds to write a tensor in the forward pass and read it in the backward pass.

    Args:
        size: the tensor's bytes; inf if it cannot be kept.
        target: the machine.
        total: bytes of all tensors that might be kept.
        stored: whether it is written in any case.
        view: whether it is a view of a tensor that might be kept in its place.
    """
    if isinf(size):
        return inf
    moves = (1 if stored else 2) + (VIEW_MOVE_FRACTION if view else 0)
    return target.seconds_for_bytes((size + TENSOR_BYTES) * moves, total + target.last_level, target.cores)


class Option(NamedTuple):
    """A tensor and the costs of its alternatives (seconds).

    Attributes:
        sources: numbers of its operands.
        needed: whether the backward pass reads it.
        keep_seconds: cost of keeping it for the backward pass; inf if it cannot be kept.
        recompute_seconds: additional time of its readers in the backward pass if they recompute it, possibly negative;
            inf if they cannot.
        unstore_seconds: cost to add if its readers in the forward pass recompute it too, minus the time to store it;
            inf if they cannot.
    """

    sources: tuple[int, ...]
    needed: bool
    keep_seconds: float
    recompute_seconds: float = inf
    unstore_seconds: float = inf


def kept_tensors(options: Sequence[Option], again: Collection[int]) -> list[int]:
    """Return the tensors that are kept if those in `again` are recomputed, in order."""
    available = {i for i, o in enumerate(options) if o.needed}.union(*(options[i].sources for i in again))
    return sorted(available.difference(again))


def saved_set(options: Sequence[Option]) -> tuple[set[int], set[int]]:
    """Return (tensors that are recomputed, those of them that are never stored) at the lowest cost; of equal costs, the
    fewest tensors."""
    network = Network()
    # Nodes are on the source's side if a tensor is available to the backward pass, is recomputed there, is not stored.
    available = [network.node() for _ in options]
    again = [network.node() for _ in options]
    unstored = [network.node() for _ in options]
    for i, o in enumerate(options):
        if o.needed:
            network.edge(network.SOURCE, available[i], UNBOUNDED)
        network.edge(available[i], again[i], _capacity(o.keep_seconds))
        if isinf(o.recompute_seconds):
            network.edge(again[i], network.SINK, UNBOUNDED)
            continue
        network.edge(again[i], available[i], UNBOUNDED)
        network.edge(unstored[i], again[i], UNBOUNDED)
        for s in o.sources:
            network.edge(again[i], available[s], UNBOUNDED)
        for node, seconds in ((again[i], o.recompute_seconds), (unstored[i], o.unstore_seconds)):
            if seconds > 0:
                network.edge(node, network.SINK, _capacity(seconds))
            else:
                network.edge(network.SOURCE, node, _capacity(-seconds))
    _, side = network.cut()
    return {i for i, n in enumerate(again) if n in side}, {i for i, n in enumerate(unstored) if n in side}


def _capacity(seconds: float) -> int:
    return UNBOUNDED if isinf(seconds) else round(seconds * _UNITS_PER_SECOND)
