"""What is held for the backward pass, what is made again there, and what is never stored: a minimum cut.

A tensor of the forward pass that the backward pass reads is held, which costs the bytes, or its readers there make it
of what it is made of, which has to be there in turn: held, or made again. Of what is made again, the readers in the
forward pass may make it too, so that nobody stores it. The costs add up, and what one choice asks of another one always
points the same way, so that the best set of choices is a minimum cut (Kolmogorov and Zabih 2004, "What energy functions
can be minimized via graph cuts?").
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf, isinf
from typing import NamedTuple

from einsmith.passes.analysis.minimum_cut import UNBOUNDED, Network

_UNIT = 1e18
"""Parts of a second: costs are counted in whole ones."""


class Option(NamedTuple):
    """A tensor, in seconds. sources: the numbers of those that it is made of; needed: whether the backward pass reads
    it; held: what holding it for that costs; again: what its readers there take longer if they make it, which may be
    negative, inf where they cannot; unstored: what is to be added where those in the forward pass make it too, less
    what storing it takes; inf where they cannot."""

    sources: tuple[int, ...]
    needed: bool
    held: float
    again: float = inf
    unstored: float = inf


def cost(options: Sequence[Option], again: Collection[int], unstored: Collection[int]) -> float:
    """Seconds of a choice; inf where something is not stored that is not made again."""
    if not set(unstored) <= set(again):
        return inf
    there = {i for i, o in enumerate(options) if o.needed}.union(again, *(options[i].sources for i in again))
    seconds = sum(options[i].again for i in again) + sum(options[i].unstored for i in unstored)
    return seconds + sum(options[i].held for i in there if i not in again)


def saved_set(options: Sequence[Option]) -> tuple[set[int], set[int]]:
    """(what is made again, what of it is never stored) at the lowest cost; the fewest of those that cost the same."""
    network = Network()
    # A tensor is there for the backward pass, is made again there, is not stored: on the source's side where it is so.
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
