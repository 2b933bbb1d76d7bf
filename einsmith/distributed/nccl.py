"""Join the cards of a group's processes, one each, so that programs sum over them by NCCL.

NCCL's initial data, all other messages and agreements between the processes go through the group's own engine.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from einsmith.base.errors import EinsmithError, GroupError
from einsmith.distributed.group import ProcessGroup
from einsmith.gpu.cuda.card import Card
from einsmith.runtime.memory import Memory

_HIDDEN = "CUDA_VISIBLE_DEVICES"
"""The variable by which a launcher gives each process other cards."""


class CardGroup:
    """The cards on which the processes of a group train.

    Args:
        group: the processes, all of which make this object.
        card: the card of this one.
        name: the name of its device.
    Raises:
        GroupError: on every rank, where one has no NCCL, the cards are of several kinds, or two processes have one.
    """

    def __init__(self, group: ProcessGroup, card: Card, name: str):
        self._group, self._card = group, card
        facts, unique, problem = card.device.facts, b"", None
        try:
            card.device.check_sums()
            if group.rank == 0:
                unique = card.device.unique_id()
        except EinsmithError as e:
            problem = str(e)
        place = [platform.node(), os.environ.get(_HIDDEN, ""), name]
        cards = group.gather({"kind": [facts.name, facts.multiprocessors], "place": place, "problem": problem})
        _check(cards)
        identity = np.array([len(unique)], np.int64)
        group.broadcast_flat(identity)
        raw = np.zeros(int(identity[0]), np.uint8)
        if group.rank == 0:
            raw[:] = np.frombuffer(unique, np.uint8)
        group.broadcast_flat(raw)
        self.communicator = card.device.join(raw.tobytes(), group.rank, group.size)

    def all_reduce(self, memories: Sequence[Memory], elem: str) -> None:
        """Overwrite memory by its sum over all cards, on this one. Every process calls it, or runs a program that does
        the same, in the same order."""
        self._card.all_reduce(self.communicator, memories, elem)


def _check(cards: Sequence[dict[str, Any]]) -> None:
    """Raise GroupError unless the ranks' cards can train together."""
    taken: dict[tuple[str, ...], int] = {}
    for rank, one in enumerate(cards):
        if one["problem"]:
            raise GroupError(f"rank {rank} cannot join the other cards: {one['problem']}")
        if one["kind"] != cards[0]["kind"]:
            kinds = [f"{name} with {count} multiprocessors" for name, count in (cards[0]["kind"], one["kind"])]
            raise GroupError(
                f"rank 0 has the card {kinds[0]}, and rank {rank} {kinds[1]}: their kernels would round differently; "
                "train on cards of one kind"
            )
        host, _, device = place = tuple(one["place"])
        if place in taken:
            raise GroupError(
                f"ranks {taken[place]} and {rank} both have the card {device} of {host}; each process needs its own: "
                'start as many processes as there are cards, with device="cuda" on all of them'
            )
        taken[place] = rank
