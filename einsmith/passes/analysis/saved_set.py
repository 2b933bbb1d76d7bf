"""Decide which tensors are kept for the backward pass, recomputed there, or never stored, by a minimum cut.

A tensor of the forward pass that the backward pass reads is kept, which costs memory, or its readers there recompute it
from its operands, which have to be available in turn: kept, or recomputed. Readers in the forward pass may recompute it
too; it is then never stored. The costs add up, and the dependences between choices all point in one direction, so that
the best set of choices is a minimum cut (Kolmogorov and Zabih 2004, "What energy functions can be minimized via graph
cuts?").
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf, isinf
from typing import NamedTuple

from einsmith.passes.analysis.minimum_cut import UNBOUNDED, Network

_UNIT = 1e18
"""Units per second: costs are rounded to whole units."""


class Option(NamedTuple):
    """A tensor and the costs of its alternatives (seconds).

    Attributes:
        sources: numbers of its operands.
        needed: whether the backward pass reads it.
        held: cost of keeping it for the backward pass.
        again: additional time of its readers in the backward pass if they recompute it, possibly negative; inf if they
            cannot.
        unstored: cost to add if its readers in the forward pass recompute it too, minus the time to store it; inf if
            they cannot.
    """

    sources: tuple[int, ...]
    needed: bool
    held: float
    again: float = inf
    unstored: float = inf


def cost(options: Sequence[Option], again: Collection[int], unstored: Collection[int]) -> float:
    """Return the seconds of a choice; inf if a tensor is not stored that is not recomputed."""
    if not set(unstored) <= set(again):
        return inf
    there = {i for i, o in enumerate(options) if o.needed}.union(again, *(options[i].sources for i in again))
    seconds = sum(options[i].again for i in again) + sum(options[i].unstored for i in unstored)
    return seconds + sum(options[i].held for i in there if i not in again)


def saved_set(options: Sequence[Option]) -> tuple[set[int], set[int]]:
    """Return (tensors that are recomputed, those of them that are never stored) at the lowest cost; of equal costs, the
    fewest tensors."""
    network = Network()
    # Nodes are on the source's side if a tensor is available to the backward pass, is recomputed there, is not stored.
    there = [network.node() for _ in options]
    again = [network.node() for _ in options]
    unstored = [network.node() for _ in options]
    for i, o in enumerate(options):
        if o.needed:
            network.edge(network.SOURCE, there[i], UNBOUNDED)
        network.edge(there[i], again[i], round(o.held * _UNIT))
        if isinf(o.again):
            network.edge(again[i], network.SINK, UNBOUNDED)
            continue
        network.edge(again[i], there[i], UNBOUNDED)
        network.edge(unstored[i], again[i], UNBOUNDED)
        for s in o.sources:
            network.edge(again[i], there[s], UNBOUNDED)
        for node, seconds in ((again[i], o.again), (unstored[i], o.unstored)):
            if isinf(seconds):
                network.edge(node, network.SINK, UNBOUNDED)
            elif seconds > 0:
                network.edge(node, network.SINK, round(seconds * _UNIT))
            else:
                network.edge(network.SOURCE, node, round(-seconds * _UNIT))
    _, side = network.cut()
    return {i for i, n in enumerate(again) if n in side}, {i for i, n in enumerate(unstored) if n in side}
