"""Narrow reductions, and the tensors that they read, to the windows outside of which terms change nothing.

before: s[q, k] = where(abs(q//8 - k//8) <= 1 and abs(q%8 - k%8) <= 1, t[q, k], -inf);  m[q] = max[k](s[q, k])
after:  s[y, x, a, b] = where(..., t[8*y + x, 8*(u + a) + v + b], -inf) with u = min(max(y - 1, 0), 5), v = ... of x;
        M[y, x] = max[a, b](s[y, x, a, b]);  m[q] = M[q//8, q%8]                   (q, k < 64; a, b < 3)

Tensors between such reductions are computed by digits too, and so are elementwise functions of several of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from einsmith.base import environment
from einsmith.base.symbolic import is_symbolic
from einsmith.ir import labels
from einsmith.ir.analysis.constant_unless import ConstantUnless, constant_unless
from einsmith.ir.analysis.sample import Sample
from einsmith.ir.functions import identity
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Expr,
    Graph,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    apply,
    axes_of,
    has_read,
    postorder,
    template,
)
from einsmith.ir.printer import show
from einsmith.ir.rebuild import exchange, operands, rebuild, substitute, types_of, whole_piece
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.rewrite.windows import Bounded, DigitWindow, digit_of, find_windows, in_int32, value_of_digits

WINDOWS = "windows"
"""Name by which this rewrite can be left out."""
REPORTED = 0.7
"""Largest part of the points at which a mask that is reported holds; those of windows at borders hold at more."""


def narrow(roots: Sequence[Tensor], kept: Collection[Tensor] = ()) -> list[Tensor]:
    """Return the tensors with reductions narrowed to windows; unchanged where EINSMITH_WITHOUT leaves this rewrite out.

    kept: tensors that are not rewritten, because gradients with respect to them are needed.
    """
    if WINDOWS in environment.WITHOUT.get():
        return list(roots)
    return exchange(list(roots), narrowed(roots, kept))


def narrowed(roots: Sequence[Tensor], kept: Collection[Tensor] = ()) -> dict[Tensor, Tensor]:
    """Return a map from each tensor that `narrow` replaces to its replacement; readers precede what they read."""
    replaced = _Narrowing(roots, kept).replacements()
    labels.carry(replaced)
    return replaced


def report_masks(graph: Graph) -> list[str]:
    """Return a line for each condition that excludes many terms of a reduction but does not narrow it to windows."""
    search = _Narrowing(graph.outputs, ())
    lines: dict[str, str] = {}
    for node, condition in search.conditions.items():
        rank, domain = node.template.rank, node.template.parts[0].domain
        axes = sorted(axes_of(condition))
        if node in search.bounded or not axes or not axes[0] < rank <= axes[-1]:
            continue
        holds = Sample(domain).values(condition)
        if holds is not None and holds.mean() < REPORTED:
            names = [f"i{a}" if a < rank else f"r{a - rank}" for a in range(len(domain))]
            box = ", ".join(f"{names[a]} < {domain[a]}" for a in axes)
            mask = f"mask {show(condition, names)}, {box}"
            share = f"{holds.mean():.0%} of the points"
            lines.setdefault(mask, f"{mask}: holds at about {share}, without windows that are faster than blocks")
    return [*lines.values()]


class _Form(NamedTuple):
    """How a tensor is computed: digits of the axes of its template, and windows of them.

    Attributes:
        digits: (axis, extents of its digits) of each axis that has several
        windows: ((axis, number of the digit), window) of each digit that has one
    """

    digits: tuple[tuple[int, tuple[int, ...]], ...]
    windows: tuple[tuple[tuple[int, int], DigitWindow], ...] = ()


class _Narrowing:
    """The search for windows in a graph.

    Attributes:
        kept: tensors that are read where they are
        masked: what each tensor equals unless a condition of its axes holds
        positions: tensors of integers or bools that depend on their axes alone, as expressions of these
        conditions: reductions whose terms change nothing unless a condition of their axes holds
        bounded: those that are narrowed
        digits: axes of tensors that are computed by digits, with the extents of those
    """

    def __init__(self, roots: Sequence[Tensor], kept: Collection[Tensor]):
        self.kept = frozenset(kept)
        self.masked: dict[Any, ConstantUnless] = {}
        self.positions: dict[Any, Expr] = {}
        self.conditions: dict[Any, Expr] = {}
        self.bounded: dict[Any, Bounded] = {}
        self.digits: dict[Any, dict[int, tuple[int, ...]]] = {}
        self._views: dict[tuple[Any, _Form], Compute] = {}
        self.nodes = [n for n in postorder(roots) if isinstance(n, Compute) and _whole_piece(n.template) is not None]
        for node in self.nodes:
            self._analyse(node)

    def replacements(self) -> dict[Tensor, Tensor]:
        """Return the tensors that replace reductions, and elementwise functions of several of them; those that read
        others come first."""
        out: dict[Tensor, Tensor] = {}
        for node in self.nodes:
            digits = self.digits.get(node)
            if digits is None or node in self.kept:
                continue
            is_between = node not in self.masked and sum(map(self.digits.__contains__, {*node.args})) > 1
            if node in self.bounded or is_between:
                view = self._view(node, _Form(tuple(sorted(digits.items()))))
                if not digits:
                    out[node] = view
                    continue
                index = [
                    digit_of(Axis(d), digits.get(d, (n,)), k) if d in digits else Axis(d)
                    for d, n in enumerate(node.shape)
                    for k in range(len(digits.get(d, (n,))))
                ]
                read = Read(0, tuple(index), view.dtype)
                out[node] = Compute(template(node.shape, types_of((view,)), read), (view,))
        return dict(reversed(out.items()))

    # -------------------------------------------------------------------------------------------------- the search

    def _analyse(self, node: Compute) -> None:
        t = node.template
        piece = _whole_piece(t)
        assert piece is not None
        if any(is_symbolic(n) for n in piece.domain):
            return
        body = piece.bodies[0]
        if not isinstance(piece.body, Reduce) and not node.dtype.is_float:
            position = self._inlined(body, node.args, piece.domain)
            if not has_read(position):
                self.positions[node] = position
        masked = self._masked(body, node, piece.domain)
        if isinstance(piece.body, Reduce):
            if masked is None or masked.value != identity(piece.body.combiner, body.dtype):
                return
            self.conditions[node] = masked.unless
            bounded = t.memo(("windows", masked.unless), lambda t: find_windows(masked.unless, piece.domain, t.rank))
            if bounded is not None and self._reads_pairs(node, bounded):
                self.bounded[node] = bounded
                self.digits[node] = {a: d for a, d in bounded.digits.items() if a < t.rank}
            elif all(a < t.rank for a in axes_of(masked.unless)):
                self.masked[node] = masked
            return
        if masked is not None:
            self.masked[node] = masked
        if node not in self.kept:
            self._find_digits(node, body)

    def _find_digits(self, node: Compute, body: Expr) -> None:
        """Note the digits of an elementwise function of tensors that have digits."""
        digits: dict[int, tuple[int, ...]] = {}
        for e in postorder([body]):
            if isinstance(e, Read):
                for d, extents in self.digits.get(node.args[e.slot], {}).items():
                    x = e.index[d]
                    if isinstance(x, Axis) and digits.setdefault(x.position, extents) != extents:
                        return
        if digits:
            self.digits[node] = digits

    def _masked(self, body: Expr, node: Compute, domain: Sequence[int]) -> ConstantUnless | None:
        """Return what a body equals unless a condition of its axes alone holds."""
        if not body.dtype.is_float:
            return None
        if not any(a in self.masked for a in node.args) and not _has_choice(node.template):
            return None

        def known(e: Read) -> ConstantUnless | None:
            x = self.masked.get(node.args[e.slot])
            return x and ConstantUnless(x.value, substitute(x.unless, dict(enumerate(e.index))))

        x = constant_unless(body, known)
        if x is None:
            return None
        own = [c for c in operands(self._inlined(x.unless, node.args, domain), "and") if not has_read(c)]
        if not own:
            return None
        condition = own[0]
        for c in own[1:]:
            condition = apply("and", condition, c)
        return ConstantUnless(x.value, condition)

    def _inlined(self, e: Expr, args: Sequence[Tensor], domain: Sequence[int]) -> Expr:
        """Return an expression over a box in which the reads of positions are replaced by their expressions."""

        def rule(x: Any) -> Expr | None:
            position = self.positions.get(args[x.slot]) if isinstance(x, Read) else None
            return None if position is None else substitute(position, dict(enumerate(x.index)))

        return in_int32(rebuild([e], rule)[0], domain)

    def _reads_pairs(self, node: Compute, bounded: Bounded) -> bool:
        """Return whether a reduction reads a tensor that can be computed by its windows."""
        full = _form_of(bounded)
        piece = _whole_piece(node.template)
        assert piece is not None
        return any(
            (form := _form_of_read(e, full)).windows and self._can_view(node.args[e.slot], form)
            for e in postorder(piece.bodies)
            if isinstance(e, Read)
        )

    # --------------------------------------------------------------------------------------------------- the views

    def _can_view(self, node: Tensor, form: _Form) -> bool:
        """Return whether a tensor that is read is computed in a form."""
        if node in self.kept or not isinstance(node, Compute) or _whole_piece(node.template) is None:
            return False
        if form.windows:
            return node not in self.bounded
        return bool(form.digits) and self.digits.get(node) == dict(form.digits)

    def _view(self, node: Compute, form: _Form) -> Compute:
        """Return a tensor in a form: each axis with digits is an axis for each of them, those with a window counted
        from its start."""
        key = node, form
        if key not in self._views:
            self._views[key] = self._computed(node, form)
        return self._views[key]

    def _computed(self, node: Compute, form: _Form) -> Compute:
        t = node.template
        piece = _whole_piece(t)
        assert piece is not None
        if node in self.bounded:
            form = _form_of(self.bounded[node])
        coordinates = _Coordinates(piece.domain, form)
        args: list[Tensor] = []

        def slot(x: Tensor) -> int:
            args.append(x)
            return len(args) - 1

        old_of = {v: Axis(a) for a, v in coordinates.values.items()}

        def rule(e: Any) -> Any:
            if isinstance(e, Axis):
                return coordinates.values[e.position]
            if not isinstance(e, Read):
                return None
            x = node.args[e.slot]
            if x in self.positions:
                return substitute(self.positions[x], dict(enumerate(e.index)))
            own = _form_of_read(Read(e.slot, tuple(old_of.get(i, i) for i in e.index), e.dtype), form)
            is_view = self._can_view(x, own)
            is_narrow = is_view and bool(own.windows)
            split = {d for d, _ in own.digits} | {d for (d, _), _ in own.windows if is_narrow}
            places = coordinates.axes if is_narrow else coordinates.places
            index = [y for d, i in enumerate(e.index) for y in (places[old_of[i].position] if d in split else [i])]
            if is_view:
                assert isinstance(x, Compute)
                x = self._view(x, own)
            elif own.digits:
                x = _split(x, dict(own.digits))
            return Read(slot(x), tuple(index), e.dtype)

        bodies = tuple(rebuild([b], rule)[0] for b in piece.bodies)
        shape = tuple(n for a in range(t.rank) for n in coordinates.extents[a])
        body: Expr | Reduce = bodies[0]
        if isinstance(piece.body, Reduce):
            inner = tuple(n for a in range(t.rank, len(piece.domain)) for n in coordinates.extents[a])
            body = Reduce(piece.body.combiner, inner, bodies)
        return canonical(template(shape, types_of(args), body), args)


class _Coordinates:
    """The axes of a template in a form.

    Attributes:
        axes: new axes of each axis, one for each digit, outermost first
        extents: their extents
        places: the value of each digit
        values: the value of each axis
    """

    def __init__(self, domain: Sequence[int], form: _Form):
        digits, windows = dict(form.digits), dict(form.windows)
        self.axes: dict[int, list[Axis]] = {}
        self.extents: dict[int, list[int]] = {}
        count = 0
        for a, n in enumerate(domain):
            own = digits.get(a, (n,))
            self.axes[a] = [Axis(count + k) for k in range(len(own))]
            self.extents[a] = [windows[a, k].width if (a, k) in windows else m for k, m in enumerate(own)]
            count += len(own)
        self.places: dict[int, list[Expr]] = {a: [*x] for a, x in self.axes.items()}
        values = {a: value_of_digits(x, digits.get(a, (domain[a],))) for a, x in self.axes.items()}
        for (a, k), w in windows.items():
            self.places[a][k] = apply("add", substitute(w.start, values), self.axes[a][k])
        self.values = {a: value_of_digits(x, digits.get(a, (domain[a],))) for a, x in self.places.items()}


def _form_of(bounded: Bounded) -> _Form:
    return _Form(tuple(sorted(bounded.digits.items())), tuple(sorted(bounded.windows.items(), key=lambda x: x[0])))


def _form_of_read(e: Read, form: _Form) -> _Form:
    """Translate the form of a template (digits and windows of its axes) to the dimensions of a tensor that it reads.

    Only axes that are plain indices of the read are translated. Windows are kept if every axis on which they depend
    indexes exactly one dimension.
    """
    places: dict[int, list[int]] = {}
    for d, i in enumerate(e.index):
        if isinstance(i, Axis):
            places.setdefault(i.position, []).append(d)
    digits = tuple(sorted((d, extents) for a, extents in form.digits for d in places.get(a, ())))
    windows: list[tuple[tuple[int, int], DigitWindow]] = []
    for (a, n), w in form.windows:
        if a not in places:
            continue
        needed = {a} | axes_of(w.start)
        if not all(len(places.get(x, ())) == 1 for x in needed):
            return _Form(digits)
        windows.append(
            ((places[a][0], n), DigitWindow(substitute(w.start, {x: Axis(places[x][0]) for x in needed}), w.width))
        )
    return _Form(digits, tuple(sorted(windows, key=lambda x: x[0])))


def _split(x: Tensor, digits: Mapping[int, tuple[int, ...]]) -> Compute:
    """Return a tensor that has a dimension for each digit of some of its dimensions."""
    coordinates = _Coordinates(x.shape, _Form(tuple(digits.items())))
    shape = [n for d in range(len(x.shape)) for n in coordinates.extents[d]]
    index = tuple(coordinates.values[d] for d in range(len(x.shape)))
    return Compute(template(shape, types_of((x,)), Read(0, index, x.dtype)), (x,))


def _whole_piece(t: Template) -> Piece | None:
    """Return the piece of a template that is one body, or one reduction of one body, all over its output; None for
    other templates."""
    return whole_piece(t) if len(t.dtypes) == 1 else None


def _has_choice(t: Template) -> bool:
    """Return whether a template chooses by a condition."""

    def search(t: Template) -> bool:
        return any(getattr(e, "fn", "") == "where" for p in t.parts for e in postorder(p.bodies))

    return t.memo("has_choice", search)
