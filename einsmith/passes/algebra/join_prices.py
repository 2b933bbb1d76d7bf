"""Price tensors as parts of joined ones and apart, with their copies and the kernels that are fused with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from einsmith.ir.analysis.pointwise import is_identity, pointwise_body
from einsmith.ir.nodes import Compute, Tensor, reads
from einsmith.passes.algebra.siblings import Fusion, Siblings, rewire
from einsmith.passes.context import PassContext

MIN_GAIN = 0.03
"""Least predicted gain of products that share an operand, as a fraction of the seconds of separate kernels; a smaller
one is within the model's error."""


class RefusedJoin(NamedTuple):
    """Tensors that are not joined, and the predicted seconds of both ways."""

    members: tuple[Compute, ...]
    joined: float
    apart: float


class SiblingPrices(NamedTuple):
    """The predicted seconds of tensors joined and apart, and the copies that the joined ones read."""

    joined: float
    apart: float
    copies: Sequence[Compute]


class JoinDecisions:
    """The choice between tensors joined and apart by predicted seconds.

    context: predicts; least: the least predicted gain, as a fraction of the seconds of separate kernels; copied:
    operands that joined tensors already read; refused: the best refused join of each set of tensors.
    """

    def __init__(self, context: PassContext, least: float = 0.0):
        self.context, self.least = context, least
        self._copied: set[Tensor] = set()
        self.refused: dict[frozenset[Compute], RefusedJoin] = {}

    def price(self, fusion: Fusion, siblings: Siblings) -> SiblingPrices:
        """Return the prices of a fusion: of its tensors with pointwise readers, and with what computes the operands
        of which they are pointwise functions; if it gains, also of products that then read parts of joined tensors,
        whose operands no pattern may find at an offset as cheap (`kernels.composite.col2im`)."""
        members = [n for n in siblings.nodes if n in fusion and isinstance(n, Compute)]
        wholes = list(dict.fromkeys(p.whole for p in fusion.values()))
        every = dict.fromkeys(r for m in members for r in siblings.readers[m] if r not in fusion)
        readers = [r for r in every if isinstance(r, Compute) and any(is_fusible(r, m) for m in members)]
        latest = max(siblings.depth[m] for m in members)  # a reader of later tensors is none of a member's kernel
        readers = [r for r in readers if all(siblings.depth[a] <= latest for a in r.args)]
        readers.sort(key=siblings.depth.__getitem__)  # one may read another
        producers = [a for w in wholes for a in w.args if isinstance(a, Compute) and a in siblings.role]
        producers = [a for a in producers if a not in fusion and any(is_fusible(w, a) for w in wholes)]
        moved = {r: rewire(r, fusion, {}) for r in readers}
        image = {m: p.whole for m, p in fusion.items()} | moved
        users: dict[Tensor, set[Tensor]] = {}
        for t in (*producers, *members):
            users.setdefault(image.get(t, t), set()).update(image.get(r, r) for r in siblings.readers[t])
        new = dict.fromkeys(a for n in (*wholes, *moved.values()) for a in n.args if isinstance(a, Compute))
        copies = [a for a in new if a not in siblings.role and a not in wholes]
        after = [n for n in (*producers, *wholes, *moved.values()) if isinstance(n, Compute)]
        joined = self.price_copies(copies) + self._price_kernels(after, users)
        apart = self._price_kernels([*producers, *members, *readers], siblings.readers)
        if joined < apart:
            others = [r for r in every if isinstance(r, Compute) and r not in moved]
            rewired = [x for r in others if isinstance(x := rewire(r, fusion, {}), Compute)]
            joined += sum(map(self.context.price, rewired)) - sum(map(self.context.price, others))
        return SiblingPrices(joined, apart, copies)

    def price_copies(self, copies: Iterable[Compute]) -> float:
        """Return the predicted seconds of copies that are not there yet."""
        return sum(self.context.price(a) for a in copies if a not in self._copied)

    def _price_kernels(self, nodes: Sequence[Compute], users: Mapping[Tensor, Collection[Tensor]]) -> float:
        """Return the predicted seconds of the kernels of `nodes`, arguments first.

        A pointwise tensor is counted in the kernel of its last argument, or else in that of a pointwise tensor with a
        common argument. A kernel stores the tensors that other kernels read."""
        kernels: list[list[Compute]] = []
        place: dict[Tensor, int] = {}
        for n in nodes:
            at = max((place[a] for a in n.args if a in place), default=-1)
            is_pointwise = pointwise_body(n.template) is not None
            if at < 0 and is_pointwise:
                beside = [i for i, k in enumerate(kernels) if _are_beside(n, k[0])]
                at = beside[-1] if beside else -1
            elif not all(is_fusible(n, a) for a in n.args if place.get(a) == at):
                at = -1
            if at < 0:
                at = len(kernels)
                kernels.append([])
            kernels[at].append(n)
            place[n] = at
        return sum(
            self.context.price(*k, stored=[n for n in k if not (own := users.get(n)) or not set(own) <= set(k)])
            for k in kernels
        )

    def pays(self, members: Iterable[Compute], prices: SiblingPrices) -> bool:
        """Return whether tensors are joined, and keep the prices if they are not."""
        joined, apart, copies = prices
        if joined < (1 - self.least) * apart:
            self._copied.update(copies)
            return True
        refused = RefusedJoin(tuple(members), joined, apart)
        key = frozenset(refused.members)
        self.refused[key] = min(refused, self.refused.get(key, refused), key=lambda x: x.joined)
        return False


def _are_beside(t: Compute, other: Compute) -> bool:
    """Return whether two pointwise tensors of one shape share an argument, so that one kernel computes them."""
    return t.shape == other.shape and pointwise_body(other.template) is not None and bool({*t.args} & {*other.args})


def is_fusible(reader: Compute, t: Tensor) -> bool:
    """Return whether a pointwise reader reads a tensor of its own shape at its own position alone."""
    body = pointwise_body(reader.template)
    if body is None or reader.shape != t.shape:
        return False
    own = [e for e in reads(body) if reader.args[e.slot] is t]
    return bool(own) and all(is_identity(e, t.shape, t.shape) for e in own)
