"""Lower formula trees to tensors: axes get positions, tensors slots, weak types a type; nested reductions become
tensors.

Y[i,j] = exp(X[i,j]) / sum[k](exp(X[i,k]))      ->      S = template(sum over k), Y = template(X, S)

A reduction that is not at the root becomes a tensor over the axes that it depends on, in the order of the enclosing
scope. Where its reads are in bounds only under the guards around it, those are pushed into it: `where(i > 0,
sum[j](X[i-1,j]), 0)` sums `where(i > 0, X[i-1,j], 0)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import BoundsError, DtypeError, FormulaError
from einsmith.ir.analysis.bounds import bounds, prove
from einsmith.ir.analysis.linear import linear
from einsmith.ir.analysis.ranges import leaves
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Item,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    Tensor,
    apply,
    cast,
)
from einsmith.ir.origins import SCATTERED, Origin
from einsmith.ir.rebuild import map_bodies, substitute
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.verify import verify_template
from einsmith.lang.composed import COMPOSED
from einsmith.lang.formula import (
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
    exact,
    identity,
    is_integer,
    join,
    op,
    postorder,
    rebuilt,
    type_name,
)
from einsmith.lang.result_types import float_type, result_type
from einsmith.lang.trace import current_trace, know

Guards = tuple[tuple[Form, bool], ...]


class TemplateScope:
    """The axes and arguments of one template under construction."""

    def __init__(self, axes: Sequence[AxisVar], float_: DType):
        self.axes = list(axes)
        self.position = {a: i for i, a in enumerate(axes)}
        self.float_ = float_
        self.args: list[Tensor] = []
        self.slots: dict[Tensor, int] = {}
        self.memo: dict = {}

    def slot(self, tensor: Tensor) -> int:
        """Return the slot of a tensor, a new one if it has none yet."""
        if tensor not in self.slots:
            self.slots[tensor] = len(self.args)
            self.args.append(tensor)
        return self.slots[tensor]

    def resolve(self, ty: Ty, want: DType | None) -> DType:
        """Return the type to compute in: a strong type itself, float64 for a number, `want` for the rest."""
        if isinstance(ty, DType):
            return ty.arithmetic
        if ty is WeakForm.SCALAR:
            return dt.f64
        if want is not None and (want.is_float or (ty is WeakForm.INT and want.is_int)):
            return want.arithmetic
        return self.float_.arithmetic

    # Conversion walks (node, wanted type, guards) with an explicit stack; results are kept per such triple.

    def convert(self, root: Form, want: DType, guards: Guards = ()) -> Expr:
        """Lower a form to an expression of type `want`, under guards that hold wherever it is evaluated."""
        top = self._key(root, want, guards)
        stack = [(top, False)]
        while stack:
            key, ready = stack.pop()
            if key in self.memo:
                continue
            node, want, guards = key
            needs = self._needs(node, want, guards)
            if ready or not needs:
                self.memo[key] = self._emit(node, want, guards, [self.memo[n] for n in needs])
            else:
                stack.append((key, True))
                stack.extend((n, False) for n in reversed(needs) if n not in self.memo)
        return self.memo[top]

    @staticmethod
    def _key(node: Form, want: DType, guards: Guards) -> tuple[Form, DType, Guards]:
        return node, want, guards if node.folds else ()

    def _operands(self, node: FormulaOp, want: DType) -> DType:
        if node.fn in ("lt", "le", "eq", "ne"):
            ty = join(a.ty for a in node.args)
            small = not any(a.loads for a in node.args)
            out = (dt.i32 if small else dt.i64) if ty is WeakForm.INT else self.resolve(ty, None)
            wide = out.is_int and any(not isinstance(a.ty, DType) and leaves(a.reach, out) for a in node.args)
            return dt.i64 if wide else out
        if node.fn in ("and", "or", "not"):
            return dt.bool_
        return self.resolve(node.ty, want)

    def _needs(self, node: Form, want: DType, guards: Guards) -> list:
        if isinstance(node, Load):
            return [self._key(i, index_type(i), guards) for i in node.args]
        if isinstance(node, Convert):
            (x,) = node.args
            assert isinstance(node.ty, DType)
            inner = dt.i32 if x.ty is WeakForm.INT and node.ty.is_bool else node.ty
            return [self._key(x, self.resolve(x.ty, inner), guards)]
        if isinstance(node, FormulaOp):
            ty = self._operands(node, want)
            if node.fn == "where":
                c, a, b = node.args
                return [
                    self._key(c, dt.bool_, guards),
                    self._key(a, ty, (*guards, (c, True))),
                    self._key(b, ty, (*guards, (c, False))),
                ]
            return [self._key(a, _computed_in(node, ty), guards) for a in node.args]
        return []

    def _emit(self, node: Form, want: DType, guards: Guards, args: list[Expr]) -> Expr:
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
            if node.fn == "relu":
                zero = Const(0.0, args[0].dtype)
                return cast(apply("where", apply("le", args[0], zero), zero, args[0]), want)
            if node.fn in COMPOSED:
                return cast(COMPOSED[node.fn](args[0]), want)
            return cast(_wrapping(node, args, self._operands(node, want)), want)
        assert isinstance(node, FormulaFold)
        return self._read_nested(node, want, guards)

    def _read_nested(self, node: FormulaFold, want: DType, guards: Guards) -> Expr:
        """Return the read of the tensor that a nested reduction becomes."""
        clash = [a.name for a in node.axes if a in self.position]
        if clash:
            raise FormulaError(f"axis {clash[0]} is bound twice: {node.combiner} stands inside another use of it")
        risky = any(isinstance(n, Load) and any(i.loads for i in n.args) for n in postorder(node.args[0]))
        tensor: Tensor | None = None
        if not (guards and risky):
            try:
                axes = self._outer(node)
                tensor = _single(axes, node, self.resolve(node.ty, want), self.float_)
            except BoundsError:
                if not guards:
                    raise
        if tensor is None:
            node = _guard(node, guards)
            axes = self._outer(node)
            tensor = _single(axes, node, self.resolve(node.ty, want), self.float_)
        index = tuple(Axis(self.position[a]) for a in axes)
        return cast(Read(self.slot(tensor), index, tensor.dtype), want)

    def _outer(self, node: FormulaFold) -> list[AxisVar]:
        missing = [a for a in node.free if a not in self.position]
        if missing:
            name = min(a.name for a in missing)
            raise FormulaError(
                f"axis {name} is neither an axis of the result nor under a reduction",
                hint=f"reduce over it, as in sum(..., over={name}), or add it to the result's axes",
            )
        return sorted(node.free, key=self.position.__getitem__)


def _guard(node: FormulaFold, guards: Guards) -> FormulaFold:
    """Return a reduction that reads nothing where the guards do not hold."""
    condition: Form | None = None
    for c, chosen in guards:
        term = c if chosen else op("not", c)
        condition = term if condition is None else op("and", condition, term)
    assert condition is not None
    (body,) = node.args
    neutral = Literal(identity(node.combiner, body.ty))
    return FormulaFold(node.combiner, node.axes, op("where", condition, body, neutral), node.ty, node.at)


def push_guards(root: Form) -> Form:
    """Return the formula with the guards around each reduction repeated inside it: `where(s < t, sum[k](h[s,k]), 0)`
    has `sum[k](where(s < t, h[s,k], 0))`."""
    memo: dict[tuple[Form, Guards], Form] = {}

    def pushed(node: Form, guards: Guards) -> Form:
        if not node.folds:
            return node
        key = (node, guards)
        if key not in memo:
            under = [guards] * len(node.args)
            if isinstance(node, FormulaOp) and node.fn == "where":
                c = node.args[0]
                under[1:] = (*guards, (c, True)), (*guards, (c, False))
            args = [pushed(a, g) for a, g in zip(node.args, under, strict=True)]
            memo[key] = rebuilt(node, args)
            if isinstance(node, FormulaFold) and guards:
                memo[key] = _guard(FormulaFold(node.combiner, node.axes, args[0], node.ty, node.at), guards)
        return memo[key]

    return pushed(root, ())


_RING = ("add", "sub", "mul", "neg")


def _computed_in(node: FormulaOp, ty: DType) -> DType:
    """Return the type that operands are converted to.

    Integers that wrap are computed exactly in a wider type, then cast: all integer arithmetic of a template is exact,
    except int64 arithmetic on elements of tensors.
    """
    if not node.wraps or ty.bits == 64 or not ty.is_int or node.fn == "where":
        return ty
    return dt.i32 if ty.bits < 32 or node.ty is dt.u8 else dt.i64


def _wrapping(node: FormulaOp, args: Sequence[Expr], ty: DType) -> Expr:
    wide, own = _computed_in(node, ty), node.ty if node.wraps and node.ty is dt.u8 else ty
    if wide is own:
        return apply(node.fn, *args)
    if node.fn in _RING:  # sums and products of wrapped values wrap to the same result as those of unwrapped values
        args = [
            _before_wrap(e) if isinstance(a, FormulaOp) and a.wraps and a.ty is node.ty and a.fn in _RING else e
            for a, e in zip(node.args, args, strict=True)
        ]
    return cast(cast(apply(node.fn, *args), own), ty)


def _before_wrap(e: Expr) -> Expr:
    inner = e.args[0] if isinstance(e, Apply) and e.fn == "cast" else e
    exact = inner.args[0] if isinstance(inner, Apply) and inner.fn == "cast" else inner
    return exact if exact.dtype is e.dtype else e


def index_type(i: Form) -> DType:
    """Return the integer type in which an index is computed: int64 where its range leaves int32."""
    if isinstance(i.ty, DType):
        return i.ty.arithmetic
    return dt.i64 if leaves(i.reach, dt.i32) else dt.i32


def _body(axes: Sequence[AxisVar], root: Form, dtype: DType, float_: DType, scope: TemplateScope) -> Expr | Reduce:
    if not isinstance(root, FormulaFold):
        return cast(scope.convert(root, dtype.arithmetic), dtype)
    if dtype.in_memory_only:
        return cast(scope._read_nested(root, dtype.arithmetic, ()), dtype)
    clash = [a.name for a in root.axes if a in axes]
    if clash:
        raise FormulaError(f"axis {clash[0]} is bound twice, by {root.combiner} and around it", hint="use another axis")
    scope.axes += root.axes
    scope.position.update({a: len(axes) + i for i, a in enumerate(root.axes)})
    (body,) = root.args
    inner = result_type([body]).arithmetic if root.combiner.startswith("arg") else dtype
    return Reduce(root.combiner, tuple(a.extent for a in root.axes), (scope.convert(body, inner),))


def _single(axes: Sequence[AxisVar], root: Form, dtype: DType, float_: DType) -> Tensor:
    shape = tuple(a.extent for a in axes)
    return _finish(shape, [((0,) * len(axes), (1,) * len(axes), axes, root)], dtype, float_)


def _finish(shape: tuple[int, ...], pieces: Sequence[tuple], dtype: DType, float_: DType) -> Tensor:
    args: list[Tensor] = []
    parts = []
    scopes = []
    slots: dict[Tensor, int] = {}
    combiners = {root.combiner if isinstance(root, FormulaFold) else "" for *_, root in pieces}
    positions = len(combiners) == 1 and combiners <= {"argmax", "argmin"}
    for offset, step, axes, root in pieces:
        scope = TemplateScope(axes, float_)
        scope.args, scope.slots = args, slots
        if not positions and isinstance(root, FormulaFold) and root.combiner.startswith("arg"):
            body: Expr | Reduce = scope._read_nested(root, dtype, ())
        else:
            body = _body(axes, root, dtype, float_, scope)
        scopes.append(scope)
        parts.append(Piece(tuple(offset), tuple(step), tuple(a.extent for a in axes), body))
    params = tuple((a.dtype, a.shape) for a in args)
    node = _compute(
        Template(shape, params, tuple(parts)), args, [(s, r) for s, (*_, r) in zip(scopes, pieces, strict=True)]
    )
    return Item(node, 1) if positions else node


def _compute(
    t: Template,
    args: list[Tensor],
    roots: list[tuple[TemplateScope, Form]],
    places: Sequence[Form] = (),
    name: str = "",
) -> Compute:
    """Return the tensor of a template. `places`, `name`: destination indices and name of a scattered tensor."""
    indexed: list[Load] = []
    for scope, root in roots:
        if root.loads:
            loads = [n for n in postorder(root) if isinstance(n, Load) and any(i.loads for i in n.args)]
            if any(n.computed for n in loads):
                _diagnose(scope, root)
            indexed += loads
    node = canonical(t, args)
    if (indexed or places) and current_trace() is not None:
        know(_origins(node, indexed, places, name))
    try:
        node.template.memo("verified", verify_template)
    except BoundsError:
        # A bound that follows from a guard as written may not be provable once both are simplified.
        try:
            verify_template(t)
        except BoundsError:
            for scope, root in roots:
                _diagnose(scope, root)
            raise
    return node


# ------------------------------------------------------------------------------------------------------- entry points


def lower(axes: Sequence[AxisVar], root: Form, dtype: DType | None = None) -> Tensor:
    """Return the tensor `out[axes] = root`. `dtype` is the element type of the result where it is weak.

    Raises FormulaError for an axis that is bound nowhere, BoundsError for a read that is not proven in bounds.
    """
    want = root.ty if isinstance(root.ty, DType) else dtype or result_type([root])
    return _single(list(axes), root, want, float_type([root]))


def lower_pieces(
    shape: Sequence[int],
    pieces: Sequence[tuple[Sequence[int], Sequence[int], Sequence[AxisVar], Form]],
    dtype: DType | None = None,
) -> Tensor:
    """Lower pieces `out[offset + step*axes] = body`, each (offset, step, axes, body), to one tensor.

    `dtype` is the element type; by default it follows from the bodies.
    """
    bodies = [b for *_, b in pieces]
    return _finish(tuple(shape), pieces, dtype or result_type(bodies), float_type(bodies))


def accumulated_type(bodies: Sequence[Form], summed: bool) -> DType:
    """Return the type in which a tensor that starts from these bodies accumulates.

    Integers are summed in int64, float16 and bfloat16 in float32. Raises DtypeError for the maximum or minimum of
    conditions.
    """
    dtype = result_type(bodies)
    if dtype.is_bool and not summed:
        raise DtypeError("max= or min= of a bool; use where(c, 1, 0)")
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
    """Lower `out[index] += body`, or with another combiner, over the box of `axes`.

    It accumulates from `start`, or from the combiner's identity element. A `start` without reductions becomes a part of
    the new tensor. `name` is for messages.
    """
    scope = TemplateScope(axes, float_type([body]))
    for d, i in enumerate(index):
        if not is_integer(i.ty):
            raise FormulaError(f"index {d} is {type_name(i.ty)}, not an integer", hint="use // or i32(...)")
    value = scope.convert(body, dtype)
    index = [exact(i) for i in index]
    places = tuple(scope.convert(i, index_type(i)) for i in index)
    part = Scatter(combiner, tuple(a.extent for a in axes), places, value)
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
    params = tuple((a.dtype, a.shape) for a in args)
    return _compute(Template(tuple(shape), params, (*before, part)), args, [(scope, body)], index, name)


def _origins(node: Compute, indexed: Sequence[Load], places: Sequence[Form], name: str) -> Iterator[Origin]:
    """Yield the origins of a tensor's indices that are read from other tensors."""
    slots = {t: s for s, t in enumerate(node.args)}
    found = [(n.name, n.tensor.shape, slots.get(n.tensor), d, i) for n in indexed for d, i in enumerate(n.args)]
    found += [(name or "the result", node.shape, SCATTERED, d, i) for d, i in enumerate(places)]
    for tensor, shape, slot, d, i in found:
        while isinstance(i, Convert):
            (i,) = i.args
        source = i if isinstance(i, Load) else next((n for n in postorder(i) if isinstance(n, Load)), None)
        if source is not None and slot is not None and source.tensor in slots:
            text, offset = source.at or (None, 0)
            yield Origin(
                tensor,
                source.name,
                shape,
                d,
                source.tensor.shape,
                node.template,
                slot,
                slots[source.tensor],
                text,
                offset,
            )


# ---------------------------------------------------------------------------------------------------------- diagnosis


def _diagnose(scope: TemplateScope, root: Form) -> None:
    """Raise a BoundsError that names the read of `root` that is not proven in bounds, if one is found."""
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
    conditions = []
    for c, chosen in guards:
        e = scope.convert(c, dt.bool_)
        conditions.append(e if chosen else apply("not", e))
    for d, (i, n) in enumerate(zip(node.args, node.tensor.shape, strict=True)):
        if i.loads and not node.computed:
            continue
        e = scope.convert(i, index_type(i))
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
    guard = "guard the read, as in where(0 <= index and index < extent, read, 0)"
    form = linear(e)
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
        top = rest.const
        for a, k in rest.terms.items():
            if isinstance(a, Axis) and k > 0:
                top += k * (scope.axes[a.position].extent - 1)
        size = f"{node.name}.shape[{d}]"
        fit = f"{size}-{top}" if c == 1 and top else size if c == 1 else f"({size}-{1 + top})//{c}+1"
        if (n - 1 - top) // c + 1 > 0:
            return f'shorten the axis with extents={{"{scope.axes[atom.position].name}": "{fit}"}}, or {guard}'
    return guard
