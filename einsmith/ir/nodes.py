"""Define the IR: expressions, reductions, templates, tensors, graphs. The grammar is in docs/architecture.md.

Every node is frozen and interned (`ir.interned`).

Axes of a template are numbered: the output's axes first, `0 .. rank-1`, then the reduction's, `rank .. rank+r-1`.
Within a piece, output axis `d` runs over `piece.extents[d]` and denotes output position `offset[d] + step[d]*axis`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from math import prod
from typing import Any, Literal

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import VerifyError
from einsmith.ir.functions import COMBINERS, FUNCTIONS, SCATTERED, identity
from einsmith.ir.interned import Node

# ---------------------------------------------------------------------------------------------------- expressions


_NUMBERS: dict[str, type] = {"f": float, "i": int, "b": bool}


class Const(Node):
    """A literal: a Python float, int or bool according to `dtype`."""

    __slots__ = ("value", "dtype")
    fields = ("value", "dtype")
    value: float | int | bool
    dtype: DType

    def __new__(cls, value, dtype: DType):
        number = _NUMBERS[dtype.kind](value)
        if dtype.in_memory_only and dtype.is_float:
            number = float(dtype.rounded(np.asarray(number)))
        return super().__new__(cls, number, dtype)

    args = ()


class Axis(Node):
    """The iteration variable at `position` of the enclosing piece, an i32 value."""

    __slots__ = ("position",)
    fields = ("position",)
    exact = True
    position: int
    dtype = dt.i32
    args = ()


class Read(Node):
    """Element `index` of the template's argument `slot`. `index` holds integer expressions, one for each dimension."""

    __slots__ = ("slot", "index", "dtype")
    fields = ("slot", "index", "dtype")
    exact = True
    slot: int
    index: tuple[Expr, ...]
    dtype: DType
    args: tuple[Expr, ...]


Read.args = Read.__dict__["index"]  # an alias of the field: nodes are walked by `args`


class Apply(Node):
    """A scalar function of expressions. Build it with `apply`, which checks types and infers the result's."""

    __slots__ = ("fn", "args", "dtype")
    fields = ("fn", "args", "dtype")
    exact = True
    fn: str
    args: tuple[Expr, ...]
    dtype: DType


Expr = Const | Axis | Read | Apply


def rank(e: Expr) -> tuple[bytes, bytes]:
    """Return a sort key for operands whose order is free.

    The numbers in an expression count only if nothing else distinguishes two operands: formulas that differ in extents
    are ordered alike.
    """
    return _outline(e), e.digest


def _outline(e: Expr) -> bytes:
    """Return the digest of an expression without the values of its integers."""
    stack = [e]
    while stack:
        x = stack[-1]
        if hasattr(x, "_outline"):
            stack.pop()
            continue
        below = [a for a in x.args if not hasattr(a, "_outline")]
        stack += below
        if not below:
            if isinstance(x, Const) and x.dtype.is_int:
                own = b"integer"
            elif isinstance(x, (Read, Apply)):
                head = f"Read {x.slot} {x.dtype}" if isinstance(x, Read) else f"Apply {x.fn} {x.dtype}"
                own = head.encode() + b"".join(a._outline for a in x.args)
            else:
                own = x.digest
            x._set("_outline", hashlib.blake2b(own, digest_size=16).digest())
    return e._outline


def apply(fn: str, *args: Expr) -> Apply:
    """Return `fn(*args)` with its type inferred. Raises DtypeError where the argument types do not match; inserts no
    conversions."""
    spec = FUNCTIONS[fn]
    if len(args) != spec.arity:
        raise TypeError(f"{fn} takes {spec.arity} arguments")
    return Apply(fn, tuple(args), spec.rule(*(a.dtype for a in args)))


def cast(x: Expr, dtype: DType) -> Expr:
    """Convert `x` to `dtype` (`x` itself if it has that type).

    Floats are rounded towards zero to integers, and compared != 0 to bool. float16, bfloat16 and uint8 are converted to
    and from other types by way of the type that they are computed in.
    """
    if x.dtype is dtype:
        return x
    if (
        dtype.in_memory_only
        and x.dtype is not dtype.arithmetic
        and not (isinstance(x, Const) or (x.dtype.is_float and dtype.is_int))
    ):
        x = cast(x, dtype.arithmetic)
    if x.dtype.in_memory_only and x.dtype.arithmetic is not dtype:
        x = cast(x, x.dtype.arithmetic)
    if isinstance(x, Const) and not (dtype.is_int and x.dtype.is_float and not -(2.0**63) <= x.value < 2.0**63):
        return Const(x.value, dtype)  # a float that no integer is near keeps its cast
    return Apply("cast", (x,), dtype)


def is_zero(x: Expr | Reduce) -> bool:
    """Return whether an expression is the literal 0, of either sign."""
    return isinstance(x, Const) and x.value == 0


class Reduce(Node):
    """A reduction: `combiner` over the box of axes `rank .. rank+len(extents)-1`, of all `bodies` at once.

    Empty boxes give 0 for sum, 1 for prod, and are refused for the others.
    """

    __slots__ = ("combiner", "extents", "bodies")
    fields = ("combiner", "extents", "bodies")
    exact = True
    combiner: str
    extents: tuple[int, ...]
    bodies: tuple[Expr, ...]

    def _derive(self) -> None:
        if self.combiner not in COMBINERS:
            raise VerifyError(f"unknown combiner {self.combiner}")
        if self.combiner.startswith("arg") and len(self.bodies) != 1:
            raise VerifyError(f"{self.combiner} takes one body")

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The types of the results; argmax and argmin return the extremum and its int32 index."""
        if self.combiner.startswith("arg"):
            return (self.bodies[0].dtype, dt.i32)
        return tuple(b.dtype for b in self.bodies)


class Piece(Node):
    """A part of an output: `out[offset + step*i] = body(i)` for i in the box `extents`.

    domain: extents of all axes, the output's, then the reduction's.
    """

    __slots__ = ("offset", "step", "extents", "body", "domain")
    fields = ("offset", "step", "extents", "body")
    exact = True
    offset: tuple[int, ...]
    step: tuple[int, ...]
    extents: tuple[int, ...]
    body: Expr | Reduce
    domain: tuple[int, ...]

    def _derive(self) -> None:
        self._set("domain", self.extents + (self.body.extents if isinstance(self.body, Reduce) else ()))

    @property
    def bodies(self) -> tuple[Expr, ...]:
        """The expressions that are evaluated or reduced at each point."""
        return self.body.bodies if isinstance(self.body, Reduce) else (self.body,)


class Scatter(Node):
    """A scatter: `out[index(i)] = combine(out[index(i)], body(i))` for i in the box `extents`, in row-major order.

    It starts from the values that the preceding pieces wrote; without pieces, from the identity element of the
    combiner: sum, max or min.
    """

    __slots__ = ("combiner", "extents", "index", "body")
    fields = ("combiner", "extents", "index", "body")
    exact = True
    combiner: str
    extents: tuple[int, ...]
    index: tuple[Expr, ...]
    body: Expr

    def _derive(self) -> None:
        if self.combiner not in SCATTERED:
            raise VerifyError(f"a scatter combines by {', '.join(SCATTERED)}, not by {self.combiner}")

    @property
    def domain(self) -> tuple[int, ...]:
        """The extents of the box whose points are scattered."""
        return self.extents

    @property
    def neutral(self) -> float | int | bool:
        """Return the reduction's identity element, which leaves a value unchanged when combined with it."""
        return identity(self.combiner, self.body.dtype)

    @property
    def bodies(self) -> tuple[Expr, ...]:
        """The expressions of the index and the scattered expression."""
        return (*self.index, self.body)


class Template(Node):
    """A closed operator: output shape, argument types ((dtype, shape) each), and parts.

    The parts are pieces, or pieces without reductions followed by one Scatter, whose initial value they give (without
    pieces: its combiner's identity element). `dtypes` are the results' types: one, or several where the body is a
    tuple-valued Reduce.
    """

    __slots__ = ("shape", "params", "parts", "dtypes", "_memo")
    fields = ("shape", "params", "parts")
    exact = True
    shape: tuple[int, ...]
    params: tuple[tuple[DType, tuple[int, ...]], ...]
    parts: tuple[Piece | Scatter, ...]
    dtypes: tuple[DType, ...]
    _memo: dict[Any, Any]

    def _derive(self) -> None:
        found = set()
        for part in self.parts:
            body = part.body
            found.add(body.dtypes if isinstance(body, Reduce) else (body.dtype,))
        if len(found) != 1:
            raise VerifyError("the pieces of a template have one result type")
        self._set("dtypes", found.pop())
        self._set("_memo", {})

    @property
    def is_scatter(self) -> bool:
        """Return whether the last part is a scatter."""
        return isinstance(self.parts[-1], Scatter)

    @property
    def rank(self) -> int:
        """The number of the output's dimensions."""
        return len(self.shape)

    def memo(self, name: Hashable, compute):
        """Return `compute(self)`, cached by template and name: analyses are shared by every use of an operator."""
        if name not in self._memo:
            self._memo[name] = compute(self)
        return self._memo[name]


def template(shape: Iterable[int], params, body: Expr | Reduce) -> Template:
    """Return the template with one piece that covers the whole output."""
    shape = tuple(shape)
    return Template(shape, tuple(params), (Piece((0,) * len(shape), (1,) * len(shape), shape, body),))


# -------------------------------------------------------------------------------------------------------- tensors

_LEAF_IDS = count()


class Leaf(Node):
    """An input of a graph: a unique id, a shape, a type. Make one with `leaf`."""

    __slots__ = ("id", "shape", "dtype")
    fields = ("id", "shape", "dtype")
    exact = True
    id: int
    shape: tuple[int, ...]
    dtype: DType
    args = ()


def leaf(shape: Iterable[int], dtype: DType) -> Leaf:
    """Return a new input, distinct from every other."""
    return Leaf(next(_LEAF_IDS), tuple(int(n) for n in shape), dtype)


class Compute(Node):
    """A template applied to tensors. With several results it is not itself a tensor; its results are `Item`s."""

    __slots__ = ("template", "args")
    fields = ("template", "args")
    exact = True
    template: Template
    args: tuple[Tensor, ...]

    def _derive(self) -> None:
        params = self.template.params
        if len(params) != len(self.args) or any(
            a.dtype is not d or a.shape != s for a, (d, s) in zip(self.args, params, strict=True)
        ):
            raise VerifyError(
                f"arguments {[(a.dtype.name, a.shape) for a in self.args]} do not fit the template's "
                f"{[(d.name, s) for d, s in params]}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each result."""
        return self.template.shape

    @property
    def dtype(self) -> DType:
        """The type of the single result; raises VerifyError where there are several."""
        if len(self.template.dtypes) != 1:
            raise VerifyError("a node of several results has no single type; take an Item")
        return self.template.dtypes[0]

    @property
    def results(self) -> tuple[tuple[DType, tuple[int, ...]], ...]:
        """Return the type and shape of each result."""
        return tuple((d, self.template.shape) for d in self.template.dtypes)


class Recurrence(Node):
    """Tensors that read themselves and each other at earlier steps of one axis; each result is an `Item` of this node.

    Dimension 0 of every member is time. `members[j]` is a template whose slots are the `args`, then all members, whole:
    slot `len(args) + i` is member i. In step t = 0 .. steps-1 (steps-1 .. 0 if `reverse`) the members are evaluated in
    order, each at position `origins[j] + t`. The pieces of member j are step pieces or initial values. Step pieces span
    positions from `origins[j]` to `origins[j]+steps-1` of dimension 0 with step 1; initial values lie outside of this
    window, read no member, and are computed ahead of the first step. A step piece reads member i only where that is
    evaluated: at an earlier step, at this one if i < j, or at an initial value. Members that read each other at the
    same step in a cycle are in turn a recurrence along another axis. `autodiff` and `lang` make recurrences with
    `ir.recurrence.define.recurrence`; `ir.verify` proves these rules.

    `checkpoint`: number of steps between the states that the gradient saves; it recomputes the others. 0: it saves all
    states.
    """

    __slots__ = ("steps", "reverse", "origins", "members", "args", "checkpoint")
    fields = ("steps", "reverse", "origins", "members", "args", "checkpoint")
    steps: int
    reverse: bool
    origins: tuple[int, ...]
    members: tuple[Template, ...]
    args: tuple[Tensor, ...]
    checkpoint: int

    def __new__(cls, steps, reverse, origins, members, args, checkpoint: int = 0):
        return super().__new__(cls, steps, reverse, origins, members, args, checkpoint)

    def _derive(self) -> None:
        params = tuple((a.dtype, a.shape) for a in self.args) + self.results
        if any(m.params != params for m in self.members) or len(self.origins) != len(self.members):
            raise VerifyError("the members of a recurrence take its arguments, then its members")

    @property
    def results(self) -> tuple[tuple[DType, tuple[int, ...]], ...]:
        """Return the type and shape of each member."""
        return tuple((m.dtypes[0], m.shape) for m in self.members)


class Item(Node):
    """Result `member` of a Compute with several results, of a Recurrence, or of the loop that it is lowered to."""

    __slots__ = ("node", "member")
    fields = ("node", "member")
    exact = True
    node: Any  # Compute | Recurrence | ir.loop.Loop
    member: int

    @property
    def args(self) -> tuple[Any]:
        """The node whose result this is, as a tuple."""
        return (self.node,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.node.results[self.member][1]

    @property
    def dtype(self) -> DType:
        """The type of the result."""
        return self.node.results[self.member][0]


Tensor = Leaf | Compute | Item

Role = Literal["forward", "backward", "update"]
ROLES: tuple[Role, ...] = ("forward", "backward", "update")
"""Roles in the order of a training step: no role needs results of a later one."""


class Graph(Node):
    """A computation: inputs, outputs and updates.

    `updates` are pairs (leaf, tensor): the tensor's value is stored into the leaf's buffer after every read of the old
    value. `checks` are (tensor, message) pairs evaluated ahead of anything else: a 0-d i32 count of violations, which
    must be 0, otherwise nothing is changed and IndexOutOfRange carries the message. `gradients` are the tensors that
    updates are computed from. They are no results, and need not be computed: a pass may merge one into the update that
    reads it. They distinguish the roles of nodes (`role`).
    """

    __slots__ = ("inputs", "outputs", "updates", "checks", "gradients", "_role")
    fields = ("inputs", "outputs", "updates", "checks", "gradients")
    inputs: tuple[Leaf, ...]
    outputs: tuple[Tensor, ...]
    updates: tuple[tuple[Leaf, Tensor], ...]
    checks: tuple[tuple[Tensor, str], ...]
    gradients: tuple[Tensor, ...]
    _role: dict[Any, Role] | None

    def __new__(cls, inputs, outputs, updates, checks, gradients=()):
        return super().__new__(cls, inputs, outputs, updates, checks, gradients)

    def _derive(self) -> None:
        self._set("_role", None)

    @property
    def roots(self) -> tuple[Tensor, ...]:
        """All tensors that a program must compute: checks, outputs and the new values of updates."""
        return (*(t for t, _ in self.checks), *self.outputs, *(t for _, t in self.updates))

    @property
    def role(self) -> dict[Any, Role]:
        """Return the role of each node of the graph: forward, backward or update.

        Outputs and checks need forward nodes, gradients need backward nodes beyond those, and only updates need the
        rest. Nodes are interned and shared by graphs, so the roles are stored with the graph.
        """
        if self._role is None:
            results = [*(t for t, _ in self.checks), *self.outputs]
            updates = [t for _, t in self.updates]
            self._set("_role", needed_for({"forward": results, "backward": self.gradients, "update": updates}))
        assert self._role is not None
        return self._role


def needed_for(roots: Mapping[Role, Sequence[Node]]) -> dict[Any, Role]:
    """Return every node below some roots with the earliest role that needs it."""
    found: dict[Any, Role] = {}
    for role in ROLES:
        found.update(dict.fromkeys(postorder(roots.get(role, ()), found), role))
    return found


def earliest(roles: Iterable[Role]) -> Role:
    """Return the role of a node that serves several roles."""
    return min(roles, key=ROLES.index)


# ------------------------------------------------------------------------------------------------------ traversal


def postorder(roots: Iterable[Node], known: Container[Node] = ()) -> Iterator[Any]:
    """Yield every node below `roots` (through `.args`), each once, arguments ahead of users, without recursion.

    Nodes in `known` are left out, and so are those reachable only through them.
    """
    seen: set[Node] = set()
    for root in roots:
        stack: list[Any] = [root]  # None is pushed above a node whose arguments are done
        while stack:
            node = stack.pop()
            if node is None:
                node = stack.pop()
                if node not in seen:
                    seen.add(node)
                    yield node
            elif node not in seen and node not in known:
                args = node.args
                if args:
                    stack += (node, None)
                    stack += args[::-1]
                else:
                    seen.add(node)
                    yield node


@lru_cache(maxsize=4096)
def below(roots: tuple[Node, ...]) -> tuple[Any, ...]:
    """Return the nodes of `postorder` as a cached tuple: analyses walk through the same bodies one after the other."""
    return tuple(postorder(roots))


@lru_cache(maxsize=1 << 14)
def axes_of(*exprs: Expr) -> frozenset[int]:
    """Return the positions of the axes that expressions mention, including in the indices of their reads."""
    return frozenset(e.position for e in postorder(exprs) if isinstance(e, Axis))


def is_free(e: Expr, rank: int) -> bool:
    """Return whether an expression mentions none of the reduction's axes, in a template of the given rank."""
    return all(a < rank for a in axes_of(e))


def has_read(x: Expr) -> bool:
    """Return whether an expression contains a Read."""
    return any(isinstance(e, Read) for e in postorder([x]))


def reads(x: Expr) -> list[Read]:
    """Return every Read inside an expression, each once, in evaluation order."""
    return [e for e in postorder([x]) if isinstance(e, Read)]


def outermost(exprs: Iterable[Expr], kinds: type | tuple[type, ...]) -> Iterator[Any]:
    """Yield the expressions of some kinds that no other expression of these kinds contains, each once, from left to
    right."""
    stack, seen = [*exprs][::-1], set[Expr]()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if isinstance(e, kinds):
            yield e
        else:
            stack.extend(reversed(e.args))


def size(shape: Iterable[int]) -> int:
    """Return the number of points of a box."""
    return prod(shape)


def nbytes(t: Any) -> int:
    """Return the bytes of a tensor's elements."""
    return size(t.shape) * t.dtype.itemsize
