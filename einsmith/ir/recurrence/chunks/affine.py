"""Write the step of a recurrence as an affine function of its state.

    before   p[t,k,v] = S[t-1,k,v]*a[t];  z[t,v] = sum[k](p[t,k,v]*K[t,k]);  S[t,k,v] = p[t,k,v] - K[t,k]*z[t,v]
    after    z[t,v] = sum[k](a[t]*K[t,k]*S[t-1,k,v]);  S[t,k,v] = a[t]*S[t-1,k,v] - K[t,k]*z[t,v]

Coefficients are expressions over time, axis 0, and the axes of a member, that read arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Piece, Read, Recurrence, Reduce, apply, is_zero, postorder
from einsmith.ir.rebuild import substitute
from einsmith.ir.recurrence.define import step_parts

STATE = -1
"""Slot of the state one step before. A read of it has an index for each axis of the state but time."""


class NotLinearError(Exception):
    """Raised where a recurrence is not in the class; the message is the reason that `explain` gives."""


def reduction_slot(member: int) -> int:
    """Return the placeholder slot of a member that reduces the state of the same step."""
    return -2 - member


Affine = dict[Read | None, Expr]
"""The coefficient of each read of the state one step before and of reductions of it; None: what is added to them."""


class AffineStep:
    """The members of a recurrence as affine functions of one state.

    Attributes:
        state: the number of the member that later steps read
        forms: the affine form of each member's body, over time, the member's other axes, and those of its reduction
    """

    def __init__(self, node: Recurrence):
        self.node = node
        self.forms: list[Affine] = []
        self.state = self._find_state()
        for j in range(len(node.members)):
            self.forms.append(self._form_of_member(j))

    def _find_state(self) -> int:
        back = 1 if self.node.reverse else -1
        carried: set[int] = set()
        for j in range(len(self.node.members)):
            for p in step_parts(self.node, j):
                for e in postorder(p.bodies):
                    if isinstance(e, Read) and e.slot >= len(self.node.args):
                        distance = self.distance(e)
                        if distance == back:
                            carried.add(e.slot - len(self.node.args))
                        elif distance:
                            raise NotLinearError("a step reads more than the step before it")
        if len(carried) != 1:
            raise NotLinearError(f"{len(carried)} tensors are carried from step to step, not one")
        return carried.pop()

    def distance(self, e: Read) -> int:
        """Return the distance in time from a step to the position of a member that it reads."""
        at = linear(e.index[0]) - LinearForm(self.node.origins[e.slot - len(self.node.args)], {Axis(0): 1})
        if at.terms:
            raise NotLinearError("a step reads positions in time that only the data give")
        return at.const

    def step_piece(self, j: int) -> Piece:
        """Return the one piece that computes a member in steps."""
        parts, shape = step_parts(self.node, j), self.node.results[j][1]
        if len(parts) != 1 or parts[0].extents[1:] != shape[1:] or parts[0].extents[0] != self.node.steps:
            raise NotLinearError("parts of a state have formulas of their own")
        return parts[0]

    def _form_of_member(self, j: int) -> Affine:
        body = self.step_piece(j).body
        if not self.node.results[j][0].is_float or self.node.results[j][0].in_memory_only:
            raise NotLinearError("its state is not computed in float32 or float64")
        if not isinstance(body, Reduce):
            return affine(body, self._form_of_read)
        if body.combiner != "sum" or len(body.bodies) > 1:
            raise NotLinearError(f"a {body.combiner} over the state is not linear")
        if j == self.state:
            raise NotLinearError("its state is a sum over another state")
        return affine(body.bodies[0], self._form_of_read)

    def value(self, j: int) -> Affine:
        """Return what the value of a member is: its form, or the reduction by its slot."""
        piece = self.step_piece(j)
        if isinstance(piece.body, Reduce):
            at = plain_index([Axis(d) for d in range(1, len(piece.extents))], piece.extents[1:])
            dtype = self.node.results[j][0]
            return {Read(reduction_slot(j), at, dtype): Const(1, dtype)}
        return self.forms[j]

    def _form_of_read(self, e: Read) -> Affine | None:
        j = e.slot - len(self.node.args)
        if j < 0:
            return None
        if not self.distance(e) and j >= len(self.forms):
            raise NotLinearError("its members read each other within a step")
        index = plain_index(e.index[1:], self.node.results[j][1][1:])
        if self.distance(e):
            return {Read(STATE, index, e.dtype): Const(1, e.dtype)}
        return moved(self.value(j), dict(enumerate(index, 1)))


FIRST = Const(0, dt.i32)
"""The index along an axis of one element."""


def plain_index(index: Sequence[Expr], extents: Sequence[int]) -> tuple[Expr, ...]:
    """Return an index whose parts along axes of one element are `FIRST`."""
    return tuple(FIRST if n == 1 else i for i, n in zip(index, extents, strict=True))


def moved(form: Affine, axes: Mapping[int, Expr]) -> Affine:
    """Return a form with axes replaced by expressions."""
    out: Affine = {}
    for read, x in form.items():
        at = substitute(read, axes) if read is not None else None
        assert at is None or isinstance(at, Read)
        out[at] = total(out.get(at), substitute(x, axes))
    return out


def with_slots(form: Affine, slots: Mapping[int, int]) -> Affine:
    """Return a form whose coefficients read arguments by other slots."""
    return {read: substitute(x, {}, dict(slots)) for read, x in form.items()}


def total(x: Expr | None, y: Expr) -> Expr:
    """Return the sum of two coefficients, of which the first may be missing."""
    return y if x is None else apply("add", x, y)


def affine(body: Expr, form_of: Callable[[Read], Affine | None]) -> Affine:
    """Return an expression as an affine function of reads. form_of: the form of a read; None where it is a coefficient.

    Raises NotLinearError where it is none."""
    memo: dict[Expr, Affine] = {}
    for e in postorder([body]):
        memo[e] = _affine(e, memo, form_of)
    return memo[body]


def is_constant(form: Affine) -> bool:
    """Return whether a form reads no state."""
    return form.keys() <= {None}


def _affine(e: Expr, memo: Mapping[Expr, Affine], form_of: Callable[[Read], Affine | None]) -> Affine:
    if isinstance(e, Read):
        if any(not is_constant(memo[i]) for i in e.index):
            raise NotLinearError("the state decides which elements a step reads")
        return form_of(e) or {None: e}
    forms = [memo[a] for a in e.args]
    if all(map(is_constant, forms)):
        return {None: e}
    assert isinstance(e, Apply)
    if e.fn in ("add", "sub"):
        out = dict(forms[0])
        for read, x in forms[1].items():
            if read not in out:
                out[read] = x if e.fn == "add" else apply("neg", x)
            else:
                out[read] = apply(e.fn, out[read], x)
        return out
    if e.fn == "neg":
        return {read: apply("neg", x) for read, x in forms[0].items()}
    if e.fn == "mul" and any(map(is_constant, forms)):
        factor, form = (e.args[0], forms[1]) if is_constant(forms[0]) else (e.args[1], forms[0])
        return {read: product(x, factor) for read, x in form.items()}
    if e.fn == "div" and is_constant(forms[1]):
        return {read: apply("div", x, e.args[1]) for read, x in forms[0].items()}
    if e.fn == "where" and is_constant(forms[0]):
        zero = Const(0, e.dtype)
        sides = {r: (forms[1].get(r, zero), forms[2].get(r, zero)) for r in (*forms[1], *forms[2])}
        return {r: apply("where", e.args[0], *x) for r, x in sides.items() if not all(map(is_zero, x))}
    raise NotLinearError(f"a step has {e.fn} of its state")


def product(x: Expr, y: Expr) -> Expr:
    """Return a product without factors of 1."""
    one = [a for a in (x, y) if isinstance(a, Const) and a.value == 1]
    if one:
        return y if one[0] is x else x
    return apply("mul", x, y)
