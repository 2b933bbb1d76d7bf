"""Lower formula trees to tensors: templates that are applied to other tensors.

Y[i,j] = exp(X[i,j]) / sum[k](exp(X[i,k]))      ->      S = template(sum over k), Y = template(X, S)

In a template, axes are positions and tensors are slots, and every value has a definite type. A reduction that is not at
the root of its formula becomes a tensor of its own, over the axes that it depends on, in the order of the enclosing
template. Where its reads are in bounds only under the guards around it, the guards are pushed into it: `where(i > 0,
sum[j](X[i-1,j]), 0)` sums `where(i > 0, X[i-1,j], 0)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.caches import Bound, Cache
from einsmith.base.dtypes import DType
from einsmith.base.errors import BoundsError, DtypeError, FormulaError
from einsmith.ir.analysis.bounds import Facts, bounds, prove
from einsmith.ir.analysis.ends import guards_around
from einsmith.ir.analysis.in_bounds import is_compared_with_data
from einsmith.ir.analysis.linear import linear
from einsmith.ir.analysis.ranges import leaves
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Item,
    Leaf,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    Tensor,
    apply,
    cast,
    has_read,
    leaf,
)
from einsmith.ir.rebuild import guarded, map_bodies, rebuild, substitute, types_of
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.verify import verify_template
from einsmith.tracing.composed import compose
from einsmith.tracing.formula import (
    AxisVar,
    Convert,
    Form,
    FormulaFold,
    FormulaOp,
    Index,
    Literal,
    Load,
    Ty,
    WeakForm,
    exchange_tensors,
    identity,
    is_integer,
    join,
    op,
    postorder,
    replace_args,
    type_name,
    widen_index,
)
from einsmith.tracing.index_origins import find_bound, origins_of
from einsmith.tracing.integers import check_extents
from einsmith.tracing.result_types import float_type, result_type
from einsmith.tracing.trace import current_trace, record_origins

Guards = tuple[tuple[Form, bool], ...]
"""The conditions of the `where`s around a form, outermost first, each with its value on the side where the form is."""


class TemplateScope:
    """The axes and arguments of a template under construction, in which formulas are lowered to expressions.

    Args:
        axes: the axes of the template, in order
        float_: the type of a weak float for which the context wants no float type
    """

    def __init__(self, axes: Sequence[AxisVar], float_: DType):
        self.axes = list(axes)
        self.position = {a: i for i, a in enumerate(axes)}
        self.float_ = float_
        self.args: list[Tensor] = []
        self.slots: dict[Tensor, int] = {}
        self.memo: dict = {}  # expression by `_key`

    def slot(self, tensor: Tensor) -> int:
        """Return the slot of a tensor; one that is not an argument yet becomes the last argument."""
        if tensor not in self.slots:
            self.slots[tensor] = len(self.args)
            self.args.append(tensor)
        return self.slots[tensor]

    def resolve(self, ty: Ty, want: DType | None) -> DType:
        """Return the type in which values of a formula's type are computed.

        A strong type is computed in its arithmetic type, WeakForm.SCALAR in float64. Other weak types take the type
        `want` of the context, if it is a float or both are integers, else the template's float type.
        """
        if isinstance(ty, DType):
            return ty.arithmetic
        if ty is WeakForm.SCALAR:
            return dt.f64
        if want is not None and (want.is_float or (ty is WeakForm.INT and want.is_int)):
            return want.arithmetic
        return self.float_.arithmetic

    def convert(self, root: Form, want: DType, guards: Guards = ()) -> Expr:
        """Lower a form to an expression of type `want`, under guards that hold wherever the form is evaluated.

        Raises FormulaError for an axis that is bound nowhere or twice, BoundsError for a read in a nested reduction
        that is not proven in bounds.
        """
        # An explicit stack, since formulas may be nested deeper than Python's stack allows.
        top = self._key(root, want, guards)
        stack = [(top, False)]
        while stack:
            key, ready = stack.pop()
            if key in self.memo:
                continue
            node, want, guards = key
            operands = self._operand_keys(node, want, guards)
            if ready or not operands:
                self.memo[key] = self._build(node, want, guards, [self.memo[k] for k in operands])
            else:
                stack.append((key, True))
                stack.extend((k, False) for k in reversed(operands) if k not in self.memo)
        return self.memo[top]

    @staticmethod
    def _key(node: Form, want: DType, guards: Guards) -> tuple[Form, DType, Guards]:
        """Return the key of a form's expression in `memo`. Guards matter only to forms that contain a reduction."""
        return node, want, guards if node.folds else ()

    def _operand_type(self, node: FormulaOp, want: DType) -> DType:
        """Return the type in which a function takes its operands, where the context wants results of type `want`.

        Comparisons take operands in their common type, and in int64 where int32 might not hold a literal or a run-time
        number among them; logic takes conditions; other functions take operands in the type of the result.
        """
        if node.fn in ("lt", "le", "eq", "ne"):
            ty = join(a.ty for a in node.args)
            literal = not any(a.loads for a in node.args)
            out = (dt.i32 if literal else dt.i64) if ty is WeakForm.INT else self.resolve(ty, None)
            exceeds = out.is_int and any(not isinstance(a.ty, DType) and leaves(a.reach, out) for a in node.args)
            return dt.i64 if exceeds else out
        if node.fn in ("and", "or", "not"):
            return dt.bool_
        return self.resolve(node.ty, want)

    def _operand_keys(self, node: Form, want: DType, guards: Guards) -> list:
        """Return the keys of the operands that `_build` needs; a nested reduction has none, as it has its own scope."""
        if isinstance(node, Load):
            return [self._key(i, index_type(i), guards) for i in node.args]
        if isinstance(node, Convert):
            (x,) = node.args
            assert isinstance(node.ty, DType)
            context = dt.i32 if x.ty is WeakForm.INT and node.ty.is_bool else node.ty
            return [self._key(x, self.resolve(x.ty, context), guards)]
        if isinstance(node, FormulaOp):
            ty = self._operand_type(node, want)
            if node.fn == "where":
                c, a, b = node.args
                return [
                    self._key(c, dt.bool_, guards),
                    self._key(a, ty, (*guards, (c, True))),
                    self._key(b, ty, (*guards, (c, False))),
                ]
            return [self._key(a, _computation_type(node, ty), guards) for a in node.args]
        return []

    def _build(self, node: Form, want: DType, guards: Guards, args: list[Expr]) -> Expr:
        """Return the expression of a form, of type `want`, from the expressions `args` of its operands."""
        if isinstance(node, Literal):
            return Const(node.value, want)
        if isinstance(node, Index):
            if node.axis not in self.position:
                raise FormulaError(
                    f"axis {node.axis.name} is neither an axis of the result nor under a reduction",
                    hint=f"reduce over it, as in sum(..., over={node.axis.name}), or add it to the result's axes",
                )
            return cast(Axis(self.position[node.axis]), want)
        if isinstance(node, Load):
            return cast(Read(self.slot(node.tensor), tuple(args), node.tensor.dtype), want)
        if isinstance(node, Convert):
            assert isinstance(node.ty, DType)
            return cast(cast(args[0], node.ty), want)
        if isinstance(node, FormulaOp):
            if FUNCTIONS[node.fn].composition is not None:
                return cast(compose(FUNCTIONS[node.fn], args), want)
            return cast(_apply_wrapping(node, args, self._operand_type(node, want)), want)
        assert isinstance(node, FormulaFold)
        return self._lower_nested(node, want, guards)

    def _lower_nested(self, node: FormulaFold, want: DType, guards: Guards) -> Expr:
        """Lower a nested reduction to a tensor of its own and return the read of the tensor, of type `want`.

        The guards are pushed into the reduction where it reads at indices read from tensors, which are only checked
        when the program runs, or where its reads are not proven in bounds without the guards.
        """
        bound_twice = [a.name for a in node.axes if a in self.position]
        if bound_twice:
            raise FormulaError(f"axis {bound_twice[0]} is bound twice: {node.combiner} stands inside another use of it")
        indirect = any(isinstance(n, Load) and any(i.loads for i in n.args) for n in postorder(node.args[0]))
        tensor: Tensor | None = None
        if not (guards and indirect):
            try:
                axes = self._free_axes(node)
                tensor = _lower_single(axes, node, self.resolve(node.ty, want), self.float_)
            except BoundsError:
                if not guards:
                    raise
        if tensor is None:
            node = _add_guards(node, guards)
            axes = self._free_axes(node)
            tensor = _lower_single(axes, node, self.resolve(node.ty, want), self.float_)
        index = tuple(Axis(self.position[a]) for a in axes)
        return cast(Read(self.slot(tensor), index, tensor.dtype), want)

    def _free_axes(self, node: FormulaFold) -> list[AxisVar]:
        """Return the axes on which a nested reduction depends, in the template's order. Raises FormulaError for an axis
        that the template lacks."""
        missing = [a for a in node.free if a not in self.position]
        if missing:
            name = min(a.name for a in missing)
            raise FormulaError(
                f"axis {name} is neither an axis of the result nor under a reduction",
                hint=f"reduce over it, as in sum(..., over={name}), or add it to the result's axes",
            )
        return sorted(node.free, key=self.position.__getitem__)


def _add_guards(node: FormulaFold, guards: Guards) -> FormulaFold:
    """Return the reduction with its combiner's identity element as the body where a guard does not hold, so that it
    reads nothing there."""
    condition: Form | None = None
    for c, holds in guards:
        term = c if holds else op("not", c)
        condition = term if condition is None else op("and", condition, term)
    assert condition is not None
    (body,) = node.args
    neutral = Literal(identity(node.combiner, body.ty))
    return FormulaFold(node.combiner, node.axes, op("where", condition, body, neutral), node.ty, node.at)


def push_guards(root: Form) -> Form:
    """Return the formula with the guards around each reduction repeated inside the reduction.

    before: where(s < t, sum[k](h[s,k]), 0)
    after:  where(s < t, sum[k](where(s < t, h[s,k], 0)), 0)
    """
    memo: dict[tuple[Form, Guards], Form] = {}

    def push(node: Form, guards: Guards) -> Form:
        if not node.folds:
            return node
        key = (node, guards)
        if key not in memo:
            guards_of_args = [guards] * len(node.args)
            if isinstance(node, FormulaOp) and node.fn == "where":
                c = node.args[0]
                guards_of_args[1:] = (*guards, (c, True)), (*guards, (c, False))
            args = [push(a, g) for a, g in zip(node.args, guards_of_args, strict=True)]
            memo[key] = replace_args(node, args)
            if isinstance(node, FormulaFold) and guards:
                memo[key] = _add_guards(FormulaFold(node.combiner, node.axes, args[0], node.ty, node.at), guards)
        return memo[key]

    return push(root, ())


_RING = ("add", "sub", "mul", "neg")
"""Functions of integers whose wrapped result is the same, whether their operands were wrapped before or not."""


def _computation_type(node: FormulaOp, ty: DType) -> DType:
    """Return the type in which a function whose operands have type `ty` is computed.

    Integer arithmetic that may wrap is computed exactly in a wider type, and the result is cast: all integer arithmetic
    of a template is exact, except int64 arithmetic on elements of tensors.
    """
    if not node.wraps or ty.bits == 64 or not ty.is_int or node.fn == "where":
        return ty
    return dt.i32 if ty.bits < 32 or node.ty is dt.u8 else dt.i64


def _apply_wrapping(node: FormulaOp, args: Sequence[Expr], ty: DType) -> Expr:
    """Return the expression of a function, of type `ty`, from its operands in their `_computation_type`. The result of
    integer arithmetic that may exceed its type wraps in the type."""
    wide, own = _computation_type(node, ty), node.ty if node.wraps and node.ty is dt.u8 else ty
    if wide is own:
        return apply(node.fn, *args)
    if node.fn in _RING:  # operands need not be wrapped
        args = [
            _undo_wrap(e) if isinstance(a, FormulaOp) and a.wraps and a.ty is node.ty and a.fn in _RING else e
            for a, e in zip(node.args, args, strict=True)
        ]
    return cast(cast(apply(node.fn, *args), own), ty)


def _undo_wrap(e: Expr) -> Expr:
    """Return the exact value from which `_apply_wrapping` made an operand by two casts, or the operand itself where the
    exact value has another type."""
    wrapped = e.args[0] if isinstance(e, Apply) and e.fn == "cast" else e
    unwrapped = wrapped.args[0] if isinstance(wrapped, Apply) and wrapped.fn == "cast" else wrapped
    return unwrapped if unwrapped.dtype is e.dtype else e


def index_type(i: Form) -> DType:
    """Return the integer type in which an index is computed: for a weak type int32, or int64 where its range exceeds
    int32; for a strong type its arithmetic type."""
    if isinstance(i.ty, DType):
        return i.ty.arithmetic
    return dt.i64 if leaves(i.reach, dt.i32) else dt.i32


def _lower_body(
    axes: Sequence[AxisVar], root: Form, dtype: DType, float_: DType, scope: TemplateScope
) -> Expr | Reduce:
    """Lower a formula to the body of a piece, of element type `dtype`.

    A reduction at the root becomes a Reduce, and its axes follow the piece's `axes` in the scope. A Reduce accumulates
    in its own type, so that one whose results are stored in a narrower type is lowered as a nested reduction.
    """
    if not isinstance(root, FormulaFold):
        return cast(scope.convert(root, dtype.arithmetic), dtype)
    if dtype.in_memory_only:
        return cast(scope._lower_nested(root, dtype.arithmetic, ()), dtype)
    twice = [a.name for a in root.axes if a in axes]
    if twice:
        raise FormulaError(f"axis {twice[0]} is bound twice, by {root.combiner} and around it", hint="use another axis")
    scope.axes += root.axes
    scope.position.update({a: len(axes) + i for i, a in enumerate(root.axes)})
    (body,) = root.args
    inner = result_type([body]).arithmetic if root.combiner.startswith("arg") else dtype
    return Reduce(root.combiner, tuple(a.extent for a in root.axes), (scope.convert(body, inner),))


def _lower_single(axes: Sequence[AxisVar], root: Form, dtype: DType, float_: DType) -> Tensor:
    """Return the tensor `out[axes] = root` of element type `dtype`. `float_`: the type of weak floats."""
    shape = tuple(a.extent for a in axes)
    return _lower_parts(shape, [((0,) * len(axes), (1,) * len(axes), axes, root)], dtype, float_)


def _lower_parts(shape: tuple[int, ...], pieces: Sequence[tuple], dtype: DType, float_: DType) -> Tensor:
    """Return the tensor of pieces `out[offset + step*axes] = root`, each (offset, step, axes, root).

    Where all pieces are reductions by argmax, or all by argmin, the template has two results, values and positions, and
    the tensor is the positions. In other pieces argmax and argmin become tensors of their own, as nested reductions do.
    """
    args: list[Tensor] = []
    parts = []
    scopes = []
    slots: dict[Tensor, int] = {}
    combiners = {root.combiner if isinstance(root, FormulaFold) else "" for *_, root in pieces}
    has_positions = len(combiners) == 1 and combiners <= {"argmax", "argmin"}
    for offset, step, axes, root in pieces:
        scope = TemplateScope(axes, float_)
        scope.args, scope.slots = args, slots
        if not has_positions and isinstance(root, FormulaFold) and root.combiner.startswith("arg"):
            body: Expr | Reduce = scope._lower_nested(root, dtype, ())
        else:
            body = _lower_body(axes, root, dtype, float_, scope)
        scopes.append(scope)
        parts.append(Piece(tuple(offset), tuple(step), tuple(a.extent for a in axes), body))
    params = types_of(args)
    node = _apply_template(
        Template(shape, params, tuple(parts)), args, [(s, r) for s, (*_, r) in zip(scopes, pieces, strict=True)]
    )
    return Item(node, 1) if has_positions else node


def _apply_template(
    t: Template,
    args: list[Tensor],
    roots: list[tuple[TemplateScope, Form]],
    destinations: Sequence[Form] = (),
    name: str = "",
) -> Compute:
    """Return a template applied to tensors, verified and in canonical form.

    Args:
        t: the template
        args: its arguments, by slot
        roots: (scope, formula) of each part, for messages
        destinations: of a scatter, the indices at which elements are combined
        name: of a scatter, the name of the tensor, for messages

    Raises:
        BoundsError: a read is not proven in bounds.
        ShapeError: no array can have the shape.
    """
    check_extents(t.shape, [part.domain for part in t.parts])
    indexed: list[Load] = []
    bound: Load | None = None
    for scope, root in roots:
        if root.loads:
            nodes = postorder(root)
            loads = [n for n in nodes if isinstance(n, Load) and any(i.loads for i in n.args)]
            if any(n.computed for n in loads):  # the template's verification exempts indices read from tensors
                _diagnose(scope, root)
            bound = bound or find_bound(nodes)
            indexed += [n for n in nodes if isinstance(n, Load)] if bound else loads
    node = canonical(t, args)
    if (indexed or destinations) and current_trace() is not None:
        record_origins(origins_of(node, indexed, destinations, name, bound))
    try:
        node.template.memo("verified", verify_template)
    except BoundsError:
        # A bound that follows from a guard in the template as lowered may not be provable in canonical form.
        try:
            verify_template(t)
        except BoundsError:
            for scope, root in roots:
                _diagnose(scope, root)
            raise
    return node


# ------------------------------------------------------------------------------------------------------- entry points


def lower(axes: Sequence[AxisVar], root: Form, dtype: DType | None = None) -> Tensor:
    """Return the tensor `out[axes] = root`.

    `dtype` is the element type of the result where the formula's type is weak; None: as `result_type` decides. Raises
    FormulaError for an axis that is bound nowhere, BoundsError for a read that is not proven in bounds.
    """
    want = root.ty if isinstance(root.ty, DType) else dtype or result_type([root])
    tensors: dict[Tensor, Tensor] = {}
    structure = _structure(axes, root, tensors)
    if structure is None:
        return _lower_single(list(axes), root, want, float_type([root]))
    record = LOWERED.get((len(axes), want, structure))
    if record is None:
        stand_ins = {t: leaf(t.shape, t.dtype) for t in tensors}
        out = _lower_single(list(axes), exchange_tensors(root, stand_ins), want, float_type([root]))
        record = list(stand_ins.values()), out
        LOWERED.put((len(axes), want, structure), record)
    leaves, out = record
    return rebuild([out], lambda node: None, dict(zip(leaves, tensors, strict=True)))[0]


LOWERED: Cache[tuple, tuple[list[Leaf], Tensor]] = Cache(Bound("lowered formulas", 2048))
"""Leaves in place of a formula's tensors, and the tensor that it is lowered to, by the formula's structure; at most
2048 formulas."""


def _structure(axes: Sequence[AxisVar], root: Form, tensors: dict[Tensor, Tensor]) -> tuple[Any, ...] | None:
    """Return a key of the tensor that a formula is lowered to, up to its tensors, which are appended to `tensors` in
    order; None where indices are read from tensors, whose origins are of this formula alone."""
    numbers: dict[Any, int] = {}  # of axes, tensors and forms, in the order in which they are met
    out: list[Any] = []

    def number(x: Any, *described: Any) -> None:
        """Append the number of an axis or a tensor to the key, and at its first occurrence its description."""
        if x not in numbers:
            numbers[x] = len(numbers)
            out.extend(described)
        out.append(numbers[x])

    for a in axes:
        number(a, a.extent)
    for node in postorder(root):
        out += type(node), node.ty, len(node.args)
        out += [numbers[x] for x in node.args]
        if isinstance(node, Load):
            if any(i.loads for i in node.args):
                return None
            tensors.setdefault(node.tensor, node.tensor)
            number(node.tensor, node.tensor.shape, node.tensor.dtype)
            out += node.weak, node.wide
        elif isinstance(node, Literal):
            out += type(node.value), repr(node.value), node.passed
        elif isinstance(node, Index):
            number(node.axis, node.axis.extent)
        elif isinstance(node, FormulaOp):
            out.append(node.fn)
        elif isinstance(node, FormulaFold):
            out += node.combiner, len(node.axes)
            for a in node.axes:
                number(a, a.extent)
        numbers[node] = len(numbers)
    return tuple(out)


def lower_pieces(
    shape: Sequence[int],
    pieces: Sequence[tuple[Sequence[int], Sequence[int], Sequence[AxisVar], Form]],
    dtype: DType | None = None,
) -> Tensor:
    """Return the tensor of shape `shape` that pieces `out[offset + step*axes] = body` define together.

    `pieces` holds (offset, step, axes, body) of each piece. `dtype` is the element type; None: as `result_type` decides
    from the bodies. Raises FormulaError and BoundsError as `lower` does.
    """
    bodies = [b for *_, b in pieces]
    return _lower_parts(tuple(shape), pieces, dtype or result_type(bodies), float_type(bodies))


def accumulation_type(bodies: Sequence[Form], summed: bool) -> DType:
    """Return the type in which a tensor accumulates the values of these formulas.

    Integers are summed in int64; float16 and bfloat16 are accumulated in float32. summed: whether some of the values
    are added (`+=`), instead of multiplied or combined by maximum or minimum (`*=`, `max=`, `min=`). Raises DtypeError
    for others of conditions than sums.
    """
    dtype = result_type(bodies)
    if dtype.is_bool and not summed:
        raise DtypeError("*=, max= or min= of a bool; use where(c, 1, 0)")
    return dtype.arithmetic if dtype.is_float or not summed else dt.i64


def lower_scatter(
    combiner: str,
    shape: Sequence[int],
    axes: Sequence[AxisVar],
    index: Sequence[Form],
    body: Form,
    dtype: DType,
    start: Tensor | None = None,
    name: str = "",
) -> Tensor:
    """Return the tensor that `out[index] += body`, or the same with another combiner, defines over a box of axes.

    Indices that read tensors are used, and checked, only where no guard makes the body the combiner's identity element.

    Args:
        combiner: how elements are combined: sum, prod, max or min
        shape: the shape of `out`
        axes: the axes of the box; one element of `out` is updated at each point
        index: integer formulas over the axes, one for each dimension of `out`
        body: the formula whose values are combined
        dtype: the element type, in which values accumulate
        start: the values to begin with; None: the combiner's identity element. A `start` without reductions is not
            stored: its pieces become parts of the new template.
        name: the name of `out`, for messages

    Raises:
        FormulaError: an index is not an integer, or an axis is bound nowhere.
        BoundsError: a read or an index is not proven in bounds.
    """
    scope = TemplateScope(axes, float_type([body]))
    for d, i in enumerate(index):
        if not is_integer(i.ty):
            raise FormulaError(f"index {d} is {type_name(i.ty)}, not an integer", hint="use // or i32(...)")
    value = scope.convert(body, dtype)
    index = [widen_index(i) for i in index]
    destinations = tuple(scope.convert(i, index_type(i)) for i in index)
    # Where the value changes nothing, its destination may be anything.
    guards = [c for c, _ in guards_around(value, identity(combiner, dtype))]
    destinations = tuple(guarded(guards, x) if has_read(x) else x for x in destinations)
    part = Scatter(combiner, tuple(a.extent for a in axes), destinations, value)
    args = list(scope.args)
    before: tuple[Piece | Scatter, ...] = ()
    if start is not None:
        at = tuple(Axis(d) for d in range(len(shape)))
        zero, one = (0,) * len(at), (1,) * len(at)
        if (
            not isinstance(start, Compute)
            or start.template.is_scatter
            or start.dtype is not dtype
            or any(isinstance(p.body, Reduce) for p in start.template.parts)
        ):
            before = (Piece(zero, one, tuple(shape), cast(Read(len(args), at, start.dtype), dtype)),)
            args.append(start)
        else:
            slots = {s: len(args) + s for s in range(len(start.args))}
            before = map_bodies(start.template, lambda b: substitute(b, {}, slots)).parts
            args += start.args
    params = types_of(args)
    return _apply_template(Template(tuple(shape), params, (*before, part)), args, [(scope, body)], index, name)


# ---------------------------------------------------------------------------------------------------------- diagnosis


def _diagnose(scope: TemplateScope, root: Form) -> None:
    """Raise a BoundsError for the first read of a formula that is not proven in bounds; return if there is none.

    Reads in nested reductions are skipped, since the reductions are verified as templates of their own.
    """
    extents = [a.extent for a in scope.axes]
    stack: list[tuple[Form, Guards]] = [(root.args[0] if isinstance(root, FormulaFold) else root, ())]
    seen = set()
    while stack:
        node, guards = stack.pop()
        if isinstance(node, FormulaFold) or (node, guards) in seen:
            continue
        seen.add((node, guards))
        if isinstance(node, FormulaOp) and node.fn == "where":
            c, a, b = node.args
            stack += [(b, (*guards, (c, False))), (a, (*guards, (c, True))), (c, guards)]
            continue
        stack.extend((a, guards) for a in reversed(node.args))
        if isinstance(node, Load):
            _check_load(scope, node, guards, extents)


def _check_load(scope: TemplateScope, node: Load, guards: Guards, extents: list[int]) -> None:
    """Raise a BoundsError with a remedy if an index of a read is not proven in bounds under the guards around it.

    Indices that read tensors, or that guards compare with elements of tensors, are exempt, as they are checked when the
    program runs; not so where an index of the read depends on floats (`Load.computed`). `extents` holds the extents of
    the scope's axes.
    """
    conditions = []
    for c, holds in guards:
        e = scope.convert(c, dt.bool_)
        conditions.append(e if holds else apply("not", e))
    for d, (i, n) in enumerate(zip(node.args, node.tensor.shape, strict=True)):
        e = scope.convert(i, index_type(i))
        if not node.computed and (i.loads or is_compared_with_data(e, Facts.of(extents, conditions))):
            continue
        low = apply("le", Const(0, e.dtype), e)
        high = apply("lt", e, Const(n, e.dtype))
        if prove(low, extents, conditions) and prove(high, extents, conditions):
            continue
        lo, hi = bounds(e, extents, conditions)
        reach = f"{'an unknown bound' if lo is None else lo} to {'an unknown bound' if hi is None else hi}"
        names = [scope.axes[a.position].name for a in linear(e).terms if isinstance(a, Axis)]
        message = (
            f"the read of {node.name}, dimension {d}, runs from {reach}, but {node.name} has shape "
            f"{tuple(node.tensor.shape)}: {f'only 0 to {n - 1} exist' if n else 'no position exists'}"
        )
        if names:
            message += f" (axes {', '.join(f'{s} < {a.extent}' for s in names for a in scope.axes if a.name == s)})"
        source, offset = node.at or (None, None)
        raise BoundsError(message, source, offset, _remedy(scope, node, d, e, n, lo, bool(guards)))


def _remedy(scope: TemplateScope, node: Load, d: int, e: Expr, n: int, lo: int | None, guarded: bool) -> str:
    """Return the advice of a BoundsError: a shorter extent of an axis where this mends the read, else a guard.

    Args:
        scope: the template's axes
        node: the read
        d: the dimension whose index is not proven in bounds
        e: that index
        n: the extent of the dimension
        lo: the lower bound of the index; None: not known
        guarded: whether there are guards around the read
    """
    guard = "guard the read, as in where(0 <= index and index < extent, read, 0)"
    form = linear(e)
    if not form.terms and -n <= form.const < 0:
        name = f"{node.name}.shape[{d}]"
        return f"indices count from the start: write {name}-{-form.const}, not {form.const}, to count from the end"
    if node.computed:
        return "an index computed from floats must be limited to the extent, as in min(max(i32(x), 0), extent-1)"
    if lo is None or lo < 0 or guarded or n == 0:
        return guard
    for atom, c in form.terms.items():
        if not isinstance(atom, Axis) or c <= 0:
            continue
        rest = form.without(atom)
        if any(not isinstance(a, Axis) for a in rest.terms):
            return guard
        highest = rest.const
        for a, k in rest.terms.items():
            if isinstance(a, Axis) and k > 0:
                highest += k * (scope.axes[a.position].extent - 1)
        size = f"{node.name}.shape[{d}]"
        # The index is c*axis + rest with rest <= highest; it is below n if the extent is (n - 1 - highest) // c + 1.
        extent = f"{size}-{highest}" if c == 1 and highest else size if c == 1 else f"({size}-{1 + highest})//{c}+1"
        if (n - 1 - highest) // c + 1 > 0:
            return f'shorten the axis with extents={{"{scope.axes[atom.position].name}": "{extent}"}}, or {guard}'
    return guard
