"""Define the IR: expressions, reductions, templates, tensors, graphs. The grammar is in docs/architecture.md.

Every node is frozen and interned: equal nodes are one object (`ir.interned`).

The axes of a template are numbered: those of the output are `0 .. rank-1`, those of a reduction with r axes are `rank
.. rank+r-1`. In a piece, axis `d` of the output takes the values `0 .. piece.extents[d]-1`; value i is position
`piece.offset[d] + piece.step[d]*i` of the output.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from math import prod
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import VerifyError
from einsmith.base.symbolic import SYMBOLIC, literal
from einsmith.ir.functions import COMBINERS, FUNCTIONS, SCATTERED, SELECTIONS, identity
from einsmith.ir.interned import Node

# ---------------------------------------------------------------------------------------------------- expressions


_PYTHON_TYPES: dict[str, type] = {"f": float, "i": int, "b": bool}
"""Python type of a literal's value, by the kind of its element type (`DType.kind`)."""


class Const(Node):
    """A literal: a Python float, int or bool according to `dtype`.

    A value of the storage types float16 and bfloat16 is rounded to the type.
    """

    __slots__ = ("value", "dtype")
    fields = ("value", "dtype")
    value: float | int | bool
    dtype: DType

    def __new__(cls, value, dtype: DType):
        number = literal(value, dtype.is_float) if isinstance(value, SYMBOLIC) else _PYTHON_TYPES[dtype.kind](value)
        if dtype.in_memory_only and dtype.is_float:
            number = number.fixed() if isinstance(number, SYMBOLIC) else number
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
    """An element of the template's argument number `slot`. `index` holds an integer expression for each dimension."""

    __slots__ = ("slot", "index", "dtype")
    fields = ("slot", "index", "dtype")
    exact = True
    slot: int
    index: tuple[Expr, ...]
    dtype: DType
    args: tuple[Expr, ...]


Read.args = Read.__dict__["index"]  # an alias of the field: traversals follow `args`


class Apply(Node):
    """The scalar function `fn` (a name in `ir.functions`) of expressions. `apply` builds it with the result's type."""

    __slots__ = ("fn", "args", "dtype")
    fields = ("fn", "args", "dtype")
    exact = True
    fn: str
    args: tuple[Expr, ...]
    dtype: DType


Expr = Const | Axis | Read | Apply


def rank(e: Expr) -> tuple[bytes, bytes]:
    """Return a sort key for operands of a commutative operation, such as a sum.

    Literals decide only between operands that are otherwise equal. Formulas that differ in extents, and in numbers that
    come of them, alone therefore have their operands in the same order.
    """
    return _outline(e), e.digest


def _outline(e: Expr) -> bytes:
    """Return the digest (16 bytes) of an expression in which the values of literals are left out."""
    stack = [e]
    while stack:
        x = stack[-1]
        if hasattr(x, "_outline"):
            stack.pop()
            continue
        pending = [a for a in x.args if not hasattr(a, "_outline")]
        stack += pending
        if not pending:
            if isinstance(x, Const) and not x.dtype.is_bool:
                content = b"integer" if x.dtype.is_int else b"float"
            elif isinstance(x, (Read, Apply)):
                head = f"Read {x.slot} {x.dtype}" if isinstance(x, Read) else f"Apply {x.fn} {x.dtype}"
                content = head.encode() + b"".join(a._outline for a in x.args)
            else:
                content = x.digest
            x._set("_outline", hashlib.blake2b(content, digest_size=16).digest())
    return e._outline


def apply(fn: str, *args: Expr) -> Apply:
    """Return `fn(*args)` with the type that `fn` gives for the argument types. Inserts no conversions.

    Raises:
        DtypeError: the argument types differ, or `fn` is not defined for them.
        TypeError: `fn` takes another number of arguments.
    """
    spec = FUNCTIONS[fn]
    if len(args) != spec.arity:
        raise TypeError(f"{fn} takes {spec.arity} arguments")
    return Apply(fn, tuple(args), spec.rule(*(a.dtype for a in args)))


def cast(x: Expr, dtype: DType) -> Expr:
    """Return `x` converted to `dtype`: `x` itself if it has this type.

    A float becomes an integer by rounding towards zero. A number becomes a bool by comparison with 0. A conversion from
    or to float16, bfloat16 or uint8 passes through the type in which their elements are computed (`DType.arithmetic`).
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
    # A float literal that int64 does not hold, such as NaN, has no integer value: its cast stays.
    if isinstance(x, Const) and not (dtype.is_int and x.dtype.is_float and not -(2.0**63) <= x.value < 2.0**63):
        return Const(x.value, dtype)
    return Apply("cast", (x,), dtype)


def is_zero(x: Expr | Reduce) -> bool:
    """Return whether an expression is the literal 0, -0.0 or False."""
    return isinstance(x, Const) and x.value == 0


class Reduce(Node):
    """A reduction of each of the `bodies` by `combiner`, over the box of axes `rank .. rank+len(extents)-1`.

    `rank` is that of the enclosing template. Over an empty box a sum is 0 and a product is 1; `ir.verify` refuses the
    other combiners there.
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
        if self.combiner in SELECTIONS:
            if len(self.bodies) != 2 or not self.bodies[1].dtype.is_int:
                raise VerifyError(f"{self.combiner} takes a key and an integer, the rank")
        elif self.combiner.startswith("arg") and len(self.bodies) != 1:
            raise VerifyError(f"{self.combiner} takes one body")

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The types of the results. argmax and argmin have two: the extremum and its row-major position, an int32.
        Selections have only the position."""
        if self.combiner in SELECTIONS:
            return (dt.i32,)
        if self.combiner.startswith("arg"):
            return (self.bodies[0].dtype, dt.i32)
        return tuple(b.dtype for b in self.bodies)


class Piece(Node):
    """A part of an output: `out[offset + step*i] = body(i)` for all points i of the box `extents`.

    `domain` holds the extents of all axes: those of the output, then those of the reduction.
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
        """The expressions that are evaluated at each point of `domain`: those of the reduction if there is one."""
        return self.body.bodies if isinstance(self.body, Reduce) else (self.body,)


class Scatter(Node):
    """A scatter: `out[index(i)] = combine(out[index(i)], body(i))` for i in the box `extents`, in row-major order.

    `combine` is that of `combiner`: sum, prod, max or min. The output starts from the values that the preceding pieces
    of the template wrote; without pieces, from the combiner's identity element.
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
        """The extents of all axes, as of a piece; a scatter has no reduction axes."""
        return self.extents

    @property
    def neutral(self) -> float | int | bool:
        """Return the combiner's identity element, which leaves a value unchanged when combined with it."""
        return identity(self.combiner, self.body.dtype)

    @property
    def bodies(self) -> tuple[Expr, ...]:
        """The expressions that are evaluated at each point: those of the index, then `body`."""
        return (*self.index, self.body)


class Template(Node):
    """An operator without names: its axes are positions, and its arguments are slots.

    Attributes:
        shape: extents of the output.
        params: (element type, shape) of each argument; a Read names one by its number, the slot.
        parts: pieces that cover the output, or one Scatter after pieces without reductions that give its initial value
            (without pieces: its combiner's identity element).
        dtypes: element type of each result. Several results, all of the one shape, come from a Reduce of several bodies
            and from argmax and argmin.
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
        result_types = set()
        for part in self.parts:
            body = part.body
            result_types.add(body.dtypes if isinstance(body, Reduce) else (body.dtype,))
        if len(result_types) != 1:
            raise VerifyError("all parts of a template must have the same result types")
        self._set("dtypes", result_types.pop())
        self._set("_memo", {})

    @property
    def is_scatter(self) -> bool:
        """Return whether the last part is a scatter."""
        return isinstance(self.parts[-1], Scatter)

    @property
    def rank(self) -> int:
        """The number of dimensions of the output."""
        return len(self.shape)

    def memo(self, name: Hashable, compute):
        """Return `compute(self)`, computed at the first call with this name and cached with the template.

        Equal templates are one object, so all uses of an operator share its analyses.
        """
        if name not in self._memo:
            self._memo[name] = compute(self)
        return self._memo[name]

    @property
    def memos(self) -> Mapping[Hashable, Any]:
        """The values that `memo` has computed, by name."""
        return MappingProxyType(self._memo)


def template(shape: Iterable[int], params, body: Expr | Reduce) -> Template:
    """Return the template with one piece that covers the whole output.

    Args:
        shape: extents of the output.
        params: (element type, shape) of each argument.
        body: the expression or reduction that gives each element.
    """
    shape = tuple(shape)
    return Template(shape, tuple(params), (Piece((0,) * len(shape), (1,) * len(shape), shape, body),))


# -------------------------------------------------------------------------------------------------------- tensors

_LEAF_IDS = count()
"""Source of the ids of leaves, each used once in a process."""


class Leaf(Node):
    """An input of a graph, with a unique id. Create one with `leaf`.

    after: None for a leaf whose value is known before the program begins. Otherwise a leaf that the graph updates:
    while the program runs, another thread computes this leaf's value from that update. Kernels that read this leaf
    run after the update, and several such leaves are read in the order of their ids.
    """

    __slots__ = ("id", "shape", "dtype", "after")
    fields = ("id", "shape", "dtype", "after")
    exact = True
    id: int
    shape: tuple[int, ...]
    dtype: DType
    after: Leaf | None
    args = ()

    def __new__(cls, id, shape, dtype, after=None):
        return super().__new__(cls, id, shape, dtype, after)


def leaf(shape: Iterable[int], dtype: DType, after: Leaf | None = None) -> Leaf:
    """Return a new input of a graph, distinct from every other."""
    return Leaf(next(_LEAF_IDS), tuple(n if isinstance(n, SYMBOLIC) else int(n) for n in shape), dtype, after)


def received(leaves: Iterable[Leaf]) -> dict[Leaf, Leaf]:
    """Return the leaves that another thread stores while the program runs, in the order of their ids, each with the
    leaf after whose update it is stored (`Leaf.after`)."""
    return {x: x.after for x in sorted(leaves, key=lambda x: x.id) if x.after is not None}


class Compute(Node):
    """A template applied to tensors. It is a tensor if it has one result; several results are its `Item`s."""

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
                f"arguments {[(a.dtype.name, a.shape) for a in self.args]} do not match the template's parameters "
                f"{[(d.name, s) for d, s in params]}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each result."""
        return self.template.shape

    @property
    def dtype(self) -> DType:
        """The element type of the single result; raises VerifyError where there are several."""
        if len(self.template.dtypes) != 1:
            raise VerifyError("a node with several results has no single type; take an Item of it")
        return self.template.dtypes[0]

    @property
    def results(self) -> tuple[tuple[DType, tuple[int, ...]], ...]:
        """Return the (element type, shape) of each result."""
        return tuple((d, self.template.shape) for d in self.template.dtypes)


class StepOptions(NamedTuple):
    """How the steps of a recurrence are run. checkpoint: number of steps between the states that the gradient saves,
    recomputing the others; 0: the gradient saves all states. chunk: number of steps that a step of a linear
    recurrence takes at once (`ir.recurrence.chunks`); 1: one after the other; 0: it is not decided yet."""

    checkpoint: int = 0
    chunk: int = 0


DEFAULT_STEPS = StepOptions()
"""The gradient saves all states, and the cost model decides on chunks."""


class Recurrence(Node):
    """Tensors, its members, that read themselves and each other at earlier steps of one axis, time.

    Dimension 0 of every member is time. In each step t the members are evaluated in order, member j at position
    `origins[j] + t` of dimension 0. The pieces of member j are of two kinds. Step pieces span the positions
    `origins[j] .. origins[j]+steps-1` of dimension 0 with step 1. Initial values lie outside of this window, read no
    member, and are computed ahead of the first step.

    A step piece of member j reads an element of member i only if it is an initial value or was evaluated before: at an
    earlier step, or at the same step if i < j. Members that read each other at the same step in a cycle are in turn a
    recurrence along another axis. `ir.verify` proves these rules. `ir.recurrence.define.recurrence` makes recurrences.

    Attributes:
        steps: number of steps.
        reverse: whether t runs from steps-1 down to 0 instead of from 0 up to steps-1.
        origins: for each member, its position in dimension 0 at t = 0.
        members: a template for each member. Its arguments are `args`, then all members as whole tensors: slot
            `len(args) + i` is member i. The whole of member j is `Item(node, j)`.
        args: the tensors that the members read besides each other.
        options: how the steps are run.
    """

    __slots__ = ("steps", "reverse", "origins", "members", "args", "options")
    fields = ("steps", "reverse", "origins", "members", "args", "options")
    steps: int
    reverse: bool
    origins: tuple[int, ...]
    members: tuple[Template, ...]
    args: tuple[Tensor, ...]
    options: StepOptions

    def __new__(cls, steps, reverse, origins, members, args, options: StepOptions = DEFAULT_STEPS):
        return super().__new__(cls, steps, reverse, origins, members, args, options)

    def _derive(self) -> None:
        params = tuple((a.dtype, a.shape) for a in self.args) + self.results
        if any(m.params != params for m in self.members) or len(self.origins) != len(self.members):
            raise VerifyError(
                "each member of a recurrence has one origin, and takes the recurrence's arguments, then all members"
            )

    @property
    def results(self) -> tuple[tuple[DType, tuple[int, ...]], ...]:
        """Return the (element type, shape) of each member."""
        return tuple((m.dtypes[0], m.shape) for m in self.members)


class Item(Node):
    """Result `member` (from 0) of a Compute with several results, of a Recurrence, or of a Loop, its lowered form."""

    __slots__ = ("node", "member")
    fields = ("node", "member")
    exact = True
    node: Any  # Compute | Recurrence | ir.loop.Loop
    member: int

    @property
    def args(self) -> tuple[Any]:
        """The node that has this result, as a tuple."""
        return (self.node,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the result."""
        return self.node.results[self.member][1]

    @property
    def dtype(self) -> DType:
        """The element type of the result."""
        return self.node.results[self.member][0]


class GroupSum(Node):
    """The sum of a tensor over a group of processes, in a graph that is being traced. `is_cotangent`: the tensor is the
    cotangent of such a sum, of which it is the adjoint. The training step replaces it by leaves (`Leaf.after`)."""

    __slots__ = ("tensor", "is_cotangent")
    fields = ("tensor", "is_cotangent")
    tensor: Tensor
    is_cotangent: bool

    @property
    def args(self) -> tuple[Tensor]:
        """The tensor that is summed, as a tuple."""
        return (self.tensor,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the tensor."""
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        """The element type of the tensor."""
        return self.tensor.dtype


Tensor = Leaf | Compute | Item
"""A tensor of a graph. A Compute is one only if it has a single result."""

Role = Literal["forward", "backward", "update"]
ROLES: tuple[Role, ...] = ("forward", "backward", "update")
"""Roles in the order of a training step: nodes of a role need no nodes of a later role."""


class Graph(Node):
    """A computation from inputs to outputs and updates.

    Attributes:
        inputs: the leaves.
        outputs: the tensors that are returned.
        updates: pairs (leaf, tensor); the tensor's value is stored into the leaf's buffer after every read of the old
            value.
        checks: pairs (tensor, message), evaluated ahead of anything else. The tensor is a 0-d i32 count of violations.
            If it is not 0, nothing is changed and IndexOutOfRange is raised with the message.
        gradients: the tensors that updates are computed from. They only tell backward nodes from update nodes (`role`)
            and need not be computed: a pass may merge one into the update that reads it.
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
        """Tensors that a program computes: checks, outputs and the new values of updates."""
        return (*(t for t, _ in self.checks), *self.outputs, *(t for _, t in self.updates))

    @property
    def role(self) -> dict[Any, Role]:
        """Return the role of each node of the graph: forward, backward or update.

        A node is forward if an output or a check needs it, else backward if a gradient needs it, else update. Nodes are
        interned and shared by graphs, so the roles are stored with the graph.
        """
        if self._role is None:
            results = [*(t for t, _ in self.checks), *self.outputs]
            updates = [t for _, t in self.updates]
            self._set("_role", assign_roles({"forward": results, "backward": self.gradients, "update": updates}))
        assert self._role is not None
        return self._role


def assign_roles(roots: Mapping[Role, Sequence[Node]]) -> dict[Any, Role]:
    """Return the earliest role that needs each node; `roots` holds the tensors that each role computes."""
    role_of: dict[Any, Role] = {}
    for role in ROLES:
        role_of.update(dict.fromkeys(postorder(roots.get(role, ()), role_of), role))
    return role_of


def earliest_role(roles: Iterable[Role]) -> Role:
    """Return the role of a node that serves several roles: the first of them in a training step."""
    return min(roles, key=ROLES.index)


# ------------------------------------------------------------------------------------------------------ traversal


def postorder(roots: Iterable[Node], known: Container[Node] = ()) -> Iterator[Any]:
    """Yield the roots and every node that they reach through `.args`, each once, arguments ahead of users.

    Nodes in `known` are left out, and so are nodes reachable only through them. Works without recursion.
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
def cached_postorder(roots: tuple[Node, ...]) -> tuple[Any, ...]:
    """Return the nodes of `postorder(roots)`, cached: several analyses in a row visit the same bodies."""
    return tuple(postorder(roots))


@lru_cache(maxsize=1 << 14)
def axes_of(*exprs: Expr) -> frozenset[int]:
    """Return the positions of all axes in expressions, including those in the indices of their reads."""
    return frozenset(e.position for e in postorder(exprs) if isinstance(e, Axis))


def has_no_reduction_axis(e: Expr, rank: int) -> bool:
    """Return whether an expression has no reduction axis, where `rank` is that of the template."""
    return all(a < rank for a in axes_of(e))


def has_read(x: Expr) -> bool:
    """Return whether an expression contains a Read."""
    return any(isinstance(e, Read) for e in postorder([x]))


def read_whole(slot: int, shape: Sequence[int], dtype: DType) -> Read:
    """Return the read of an argument of this shape at the index of a result of the same shape."""
    return Read(slot, tuple(map(Axis, range(len(shape)))), dtype)


def reads(x: Expr) -> list[Read]:
    """Return every Read in an expression, each once, arguments ahead of users."""
    return [e for e in postorder([x]) if isinstance(e, Read)]


def outermost(exprs: Iterable[Expr], kinds: type | tuple[type, ...]) -> Iterator[Any]:
    """Yield the outermost subexpressions of the types `kinds`, each once, from left to right.

    The search does not continue inside a subexpression that is yielded.
    """
    return outermost_where(exprs, lambda e: isinstance(e, kinds))


def outermost_where(roots: Iterable[Any], matches: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield the outermost nodes that match, among the roots and what they reach through `.args`, as `outermost`
    does."""
    stack, seen = [*roots][::-1], set[Any]()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if matches(e):
            yield e
        else:
            stack.extend(reversed(e.args))


def size(shape: Iterable[int]) -> int:
    """Return the number of points of a box: the product of its extents."""
    return prod(shape)


def nbytes(t: Any) -> int:
    """Return the bytes that the elements of a tensor occupy in memory."""
    return size(t.shape) * t.dtype.itemsize
