"""Assemble a recurrence from members that are added one by one, or change the members of one that exists.

The pieces of a member read arguments and members by slots that stay as they are while members are added: an argument
has slot ARGS + its number, a member its own number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from einsmith.base.dtypes import DType
from einsmith.ir.analysis.linear import moved
from einsmith.ir.nodes import DEFAULT_STEPS, Expr, Piece, Read, Recurrence, StepOptions, Template, Tensor
from einsmith.ir.rebuild import prune_recurrence, rebuild, substitute
from einsmith.ir.recurrence.pieces import dims_first, map_piece
from einsmith.ir.rewrite.simplify import simplify_template

ARGS = 1 << 20
"""First slot number of arguments; lower slots are members."""


class Arguments:
    """The tensors that members read and that are not members, each with a slot."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        self.tensors: list[Tensor] = [*tensors]

    def slot(self, a: Tensor) -> int:
        """Return the slot of a tensor, a new one if it has none yet."""
        if a not in self.tensors:
            self.tensors.append(a)
        return ARGS + self.tensors.index(a)


@dataclass(eq=False)
class MemberDraft:
    """A member under construction. origin: its position in dimension 0 at the first step."""

    number: int
    dtype: DType
    shape: tuple[int, ...]
    origin: int
    pieces: list[Piece]


class Assembly:
    """A recurrence under construction. members: in the order of evaluation; numbers from 0 to `reserved` - 1 are for
    members that are read before they are added."""

    def __init__(self, arguments: Arguments, reserved: int = 0):
        self.arguments = arguments
        self.members: list[MemberDraft] = []
        self.count = reserved

    @classmethod
    def of(cls, node: Recurrence) -> Assembly:
        """Return the assembly of a recurrence's members, by their numbers."""
        out = cls(Arguments(node.args))
        slots = {s: ARGS + s for s in range(len(node.args))}
        slots |= {len(node.args) + j: j for j in range(len(node.members))}
        for m, origin in zip(node.members, node.origins, strict=True):
            out.add(m.dtypes[0], m.shape, origin, [renumbered(p, slots) for p in m.parts if isinstance(p, Piece)])
        return out

    def add(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        origin: int,
        pieces: Sequence[Piece],
        number: int | None = None,
        is_first: bool = False,
    ) -> MemberDraft:
        """Add a member; return it. number: a reserved one; is_first: whether it is evaluated before all others."""
        if number is None:
            number, self.count = self.count, self.count + 1
        member = MemberDraft(number, dtype, shape, origin, [*pieces])
        self.members.insert(0 if is_first else len(self.members), member)
        return member

    def add_tensor(self, t: Template, args: Sequence[Tensor], items: Mapping[Any, int], is_first: bool = False):
        """Add a tensor over all steps as a member; return it. items: the number of each member among its arguments."""
        slots = {s: items[a] if a in items else self.arguments.slot(a) for s, a in enumerate(args)}
        pieces = [renumbered(p, slots) for p in t.parts if isinstance(p, Piece)]
        return self.add(t.dtypes[0], t.shape, 0, pieces, is_first=is_first)

    def rewrite(self, rule: Callable[[Expr], Expr | None]) -> None:
        """Rewrite the bodies of all members by a rule (see `rebuild`)."""
        for m in self.members:
            m.pieces = [map_piece(p, lambda b: rebuild([b], rule)[0]) for p in m.pieces]

    def redirect(self, slot: int, number: int, dim: int = 0, by: int = 0) -> None:
        """Let members read member `number` instead of the argument of a slot, of which they read position t + `by` of
        dimension `dim` in step t."""

        def rule(e: Expr) -> Expr | None:
            if not isinstance(e, Read) or e.slot != slot:
                return None
            index = [e.index[d] for d in dims_first((dim,), len(e.index))]
            return Read(number, (moved(index[0], -by), *index[1:]), e.dtype)

        self.rewrite(rule)

    def build(
        self, steps: int, reverse: bool, options: StepOptions = DEFAULT_STEPS
    ) -> tuple[Recurrence, dict[int, int]]:
        """Return the recurrence, without arguments that are not read, and the member that each number has become."""
        args = tuple(self.arguments.tensors)
        at = {m.number: n for n, m in enumerate(self.members)}
        slots = {ARGS + s: s for s in range(len(args))} | {number: len(args) + n for number, n in at.items()}
        params = (*((a.dtype, a.shape) for a in args), *((m.dtype, m.shape) for m in self.members))
        templates = tuple(
            simplify_template(Template(m.shape, params, tuple(renumbered(p, slots) for p in m.pieces)))
            for m in self.members
        )
        origins = tuple(m.origin for m in self.members)
        return prune_recurrence(Recurrence(steps, reverse, origins, templates, args, options)), at


def renumbered(p: Piece, slots: Mapping[int, int]) -> Piece:
    """Return a piece with other slots."""
    return map_piece(p, lambda b: substitute(b, {}, slots))
