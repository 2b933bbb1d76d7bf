"""Infer the extent of every axis of a formula from the shapes of its inputs: `infer`.

In this order: `extents=`; dimensions that an axis indexes alone outside guards on it (all must agree; a dimension that
the statement also reads shifted and unguarded, as in x[g]*x[g+1], gives its extent less the largest shift); dimensions
that an axis indexes alone under guards (where the guards hold the axis below a constant, only if nothing else
determines it, the constant is not the dimension's own extent, and no read extends beyond it); the largest extent that
keeps an unguarded read in bounds of which the axis is the only unknown; for a defined tensor, the largest position of
the axes that index it alone under guards. The rules are repeated to a fixpoint. The formula's text decides which reads
determine an extent, never the shapes. An extent that stays unknown is an error that shows the `extents=` to add.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from einsmith.base import dtypes as dt
from einsmith.base.errors import BoundsError, FormulaError, ShapeError
from einsmith.ir.analysis.bounds import bounds
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Axis, Expr, postorder
from einsmith.lang.elaborate import Elaborator, NotYet
from einsmith.lang.known_extents import Key, KnownExtents, make_shape_error
from einsmith.lang.limits import is_dimension_bound, limits, rises
from einsmith.lang.resolve import FormulaProgram, Line, ReadSite
from einsmith.lang.syntax import Ast, Name, ParsedRead, ShapeOf, walk
from einsmith.tracing.formula import AxisVar, Form, Index, Literal, is_integer, type_name
from einsmith.tracing.integers import MAX_ELEMENTS
from einsmith.tracing.lower import TemplateScope, index_type

MAX_EXTENT = 2**31 - 1
"""Extent of an axis that counts as unlimited: an index that stays in bounds up to it does not determine the axis."""


@dataclass(frozen=True)
class Extents:
    """The extents of a formula. `axes`: (line, axis) -> extent; `shapes`: the shape of every tensor, inputs and defined
    ones."""

    axes: dict[tuple[int, str], int]
    shapes: dict[str, tuple[int, ...]]


class _Unreadable(Exception):
    """Raised for an expression that depends on the elements of tensors."""


def infer(
    program: FormulaProgram, shapes: Mapping[str, Sequence[int]], values: Mapping[str, int | float | bool]
) -> Extents:
    """Return the extents of all axes and the shapes of all tensors.

    shapes: of the inputs; values: of the static parameters. Raises ShapeError where extents disagree, FormulaError for
    an axis that stays unknown, BoundsError where no extent keeps a read in bounds.
    """
    return ExtentInference(program, shapes, values).run()


class ExtentInference:
    """The extents of a program's axes and dimensions, and the rules that find them."""

    def __init__(self, program: FormulaProgram, shapes: Mapping[str, Sequence[int]], values: Mapping):
        self.program, self.values = program, values
        self.known = KnownExtents(program.text)
        self.ranks = {n: len(program.lines[k[0]].statement.index) for n, k in program.defined.items()}
        self.ranks |= {n: len(s) for n, s in shapes.items()}
        self.scopes = [TemplateScope([AxisVar(a, 0) for a in line.axes], dt.f32) for line in program.lines]
        self.pending = dict(program.extents)
        self.exprs: dict[tuple[int, Ast], Expr] = {}
        self.windows: list[tuple[int, str, int, Name, int, ReadSite]] = []  # see `fit_windows`
        for name, shape in shapes.items():
            for d, n in enumerate(shape):
                self.known.assign(("dim", name, d), n, f"{name} has extent {n} in dimension {d}")

    # ----------------------------------------------------------------------------------------------- expressions

    def make_elaborator(self, line: int | None) -> Elaborator:
        """Return the elaborator of a line's expressions; None: of `extents=`."""
        scope = None if line is None else self.scopes[line]
        axes = {} if scope is None else {a.name: a for a in scope.axes}

        def name(node: Name) -> Form:
            if node.id in axes:
                return Index(axes[node.id])
            if node.id not in self.values:
                raise _Unreadable
            return Literal(self.values[node.id])

        def element(node: ParsedRead, index: Sequence[Form]) -> Form:
            raise _Unreadable

        def shape(node: ShapeOf, d: int) -> int:
            rank = self.ranks.get(node.name)
            if rank is None or not -rank <= d < rank:
                raise FormulaError(f"{node.name} has {rank} dimensions: {node.name}.shape[{d}] does not exist")
            return self.known.require(("dim", node.name, d % rank))

        def size(axis: str) -> int:
            return self.known.require(("axis", line, axis))

        def bind(axis: str) -> AxisVar:
            raise _Unreadable

        return Elaborator(self.program.text, name, element, shape, size, bind)

    def expr(self, line: int, node: Ast, integer: bool = True) -> Expr | None:
        """Return an integer expression (or condition) over the line's axes; None where it reads tensors or is not known
        yet."""
        if (line, node) in self.exprs:
            return self.exprs[line, node]
        try:
            form = self.make_elaborator(line).form(node)
        except (NotYet, _Unreadable):
            return None
        if integer and not is_integer(form.ty):
            raise FormulaError(
                f"this index is {type_name(form.ty)}, not an integer",
                self.program.text,
                node.at,
                "use // for a quotient, or i32(...)",
            )
        out = self.scopes[line].convert(form, index_type(form) if integer else dt.bool_)
        if integer:
            out = linear(out).expr()  # so that axes which cancel do not count
        self.exprs[line, node] = out
        return out

    def axes_of(self, line: int, e: Expr) -> list[str]:
        """Return the names of the axes of an expression."""
        return [self.scopes[line].axes[a.position].name for a in postorder([e]) if isinstance(a, Axis)]

    def extents_of(self, line: int, trial: Mapping[Key, int]) -> list[int]:
        """Return the extents of a line's axes: those of `trial`, those that are known, and 1 for the others."""
        out = []
        for a in self.program.lines[line].axes:
            root = self.known.find(("axis", line, a))
            n = trial.get(root, self.known.get(root))
            out.append(1 if n is None else n)
        return out

    # ------------------------------------------------------------------------------------------------------ rules

    def run(self) -> Extents:
        """Return the extents of all axes and the shapes of all tensors (`infer`)."""
        self.bind()
        while (
            self.apply_explicit()
            or self.fit_windows()
            or self.cover_left_sides()
            or self.infer_under_guards()
            or self.solve_single_unknowns()
            or self.infer_from_readers()
        ):
            pass
        axes: dict[tuple[int, str], int] = {}
        for k, line in enumerate(self.program.lines):
            for a in line.axes:
                n = self.known.get(("axis", k, a))
                if n is None:
                    raise self.make_undetermined_error(k, line, a)
                axes[k, a] = n
        shapes = {}
        for name, rank in self.ranks.items():
            dims = [self.known.get(("dim", name, d)) for d in range(rank)]
            for d, n in enumerate(dims):
                if n is None:
                    raise FormulaError(
                        f"the extent of dimension {d} of {name} is not determined",
                        self.program.text,
                        self.program.lines[self.program.defined[name][0]].statement.at,
                        f'add extents={{"{name}.shape[{d}]": N}}, N an int or a string such as "W.shape[0]"',
                    )
            shapes[name] = shape = tuple(n for n in dims if n is not None)
            if name in self.program.defined and prod(n or 1 for n in shape) > MAX_ELEMENTS:
                message = f"{name} would have shape {shape}; no array can have that many elements"
                at = self.program.lines[self.program.defined[name][0]].statement.at
                raise make_shape_error(message, self.program.text, at)
        return Extents(axes, shapes)

    def bind(self) -> None:
        """Equate axes with dimensions that they index alone, on the left and in reads outside guards on the axis; not
        with dimensions that the statement reads shifted, too."""
        uneven: set[tuple[str, int]] = set()
        for name, numbers in self.program.defined.items():
            for d in range(self.ranks[name]):
                sides = [(k, self.program.lines[k].statement.index[d]) for k in self.find_defining(numbers)]
                if not all(self.is_plain(k, i) for k, i in sides):
                    uneven.add((name, d))
                else:
                    for k, i in sides:
                        assert isinstance(i, Name)
                        self.known.union(("axis", k, i.id), ("dim", name, d), i.at)
        shifts = self.find_shifts()
        cycle = {n: group for group in self.program.order for n in group}
        for k, site, d, i in self.read_indices():
            if (site.node.name, d) in uneven and site.node.name in cycle[self.program.lines[k].statement.name]:
                continue  # y[t+1] = f(y[t]): reads at t extend as far as definitions at t+1
            if self.is_plain(k, i) and isinstance(i, Name) and i.id not in self.program.extents:
                # where(t < n[b], x[b,t], 0) is a guard on t; b has one extent.
                if self.is_guarded(site, {i.id}, into_reads=False):
                    continue
                if (k, site.node.name, d, i.id) in shifts:
                    self.windows.append((k, site.node.name, d, i, *shifts[k, site.node.name, d, i.id]))
                else:
                    self.known.union(("axis", k, i.id), ("dim", site.node.name, d), i.at)

    def find_shifts(self) -> dict[tuple[int, str, int, str], tuple[int, ReadSite]]:
        """Return the largest shift c > 0 at which a statement reads a dimension under no guard, as in x[g+c], with the
        read, by (line, tensor, dimension, axis)."""
        shifts: dict[tuple[int, str, int, str], tuple[int, ReadSite]] = {}
        for k, site, d, i in self.read_indices():
            axes = {n.id for n in walk(i) if isinstance(n, Name)}.intersection(self.program.lines[k].axes)
            if isinstance(i, Name) or len(axes) != 1 or site.guards or not axes.isdisjoint(self.program.extents):
                continue
            e, place = self.expr(k, i), (k, site.node.name, d, axes.pop())
            form = LinearForm() if e is None else linear(e)
            if not form.atoms and list(form.coef.values()) == [1] and form.const > shifts.get(place, (0,))[0]:
                shifts[place] = form.const, site
        return shifts

    def fit_windows(self) -> bool:
        """Set axes that read a dimension both alone and shifted, as in x[g]*x[g+1], to the dimension's extent less the
        largest shift; return whether any was set."""
        ready = [w for w in self.windows if self.known.get(("dim", w[1], w[2])) is not None]
        self.windows = [w for w in self.windows if w not in ready]
        for k, name, d, i, shift, site in ready:
            n = self.known.require(("dim", name, d))
            if 0 < n <= shift:
                e = self.expr(k, site.node.index[d])
                assert e is not None
                raise self.make_bounds_error(k, site, d, n, self.known.find(("axis", k, i.id)), e)
            left = max(0, n - shift)
            why = f"{name} has extent {n} in dimension {d} and is read up to {i.id}+{shift}, which leaves {left}"
            self.known.assign(("axis", k, i.id), left, why, i.at)
        return bool(ready)

    def read_indices(self) -> Iterator[tuple[int, ReadSite, int, Ast]]:
        """Yield (line, read, dimension, index) for every index of a read."""
        for k, line in enumerate(self.program.lines):
            for site in line.reads:
                for d, i in enumerate(site.node.index):
                    yield k, site, d, i

    def find_defining(self, numbers: list[int]) -> list[int]:
        """Return the statements that determine a tensor's shape: those with =, or all if there are none."""
        first = self.program.lines[numbers[0]].statement
        return numbers if first.accumulate else [k for k in numbers if not self.program.lines[k].statement.accumulate]

    def is_plain(self, line: int, i: Ast) -> bool:
        """Return whether an index is an axis alone."""
        return isinstance(i, Name) and i.id in self.program.lines[line].axes

    @staticmethod
    def is_guarded(site: ReadSite, axes: set[str], into_reads: bool = True) -> bool:
        """Return whether guards of a read depend on one of the axes. into_reads: also by the indices of their reads."""
        return any(isinstance(n, Name) and n.id in axes for c, _ in site.guards for n in walk(c, into_reads))

    def apply_explicit(self) -> bool:
        """Set the extents that `extents=` states; return whether there were any."""
        changed = False
        for name, extent in list(self.pending.items()):
            if isinstance(extent, int):
                n = extent
            else:
                try:
                    n = self.make_elaborator(None).integer(extent)
                except NotYet:
                    continue
                except _Unreadable:
                    raise FormulaError(f"extents: {name!r} uses a name that is not a parameter") from None
            del self.pending[name]
            changed = True
            if n < 0:
                raise ShapeError(f"extents: {name!r} would be {n}; an extent is not negative")
            if n > MAX_ELEMENTS:
                raise ShapeError(f"extents: {name!r} would be {n}; no array can have that many elements")
            tensor, _, rest = name.partition(".shape[")
            if rest:
                self.known.assign(("dim", tensor, int(rest.rstrip("]"))), n, f"extents= says {name} = {n}", None)
                continue
            for k, line in enumerate(self.program.lines):
                if name in line.axes:
                    self.known.assign(("axis", k, name), n, f"extents= says {name} = {n}", line.statement.at)
        return changed

    def cover_left_sides(self) -> bool:
        """Set a dimension whose left indices are not all plain to the extent that the indices cover."""
        changed = False
        for name, numbers in self.program.defined.items():
            for d in range(self.ranks[name]):
                if self.known.get(("dim", name, d)) is not None:
                    continue
                reach = 0
                for k in self.find_defining(numbers):
                    e = self.expr(k, self.program.lines[k].statement.index[d])
                    if e is None or any(self.known.get(("axis", k, a)) is None for a in self.axes_of(k, e)):
                        break
                    if any(self.known.get(("axis", k, a)) == 0 for a in self.axes_of(k, e)):
                        continue
                    high = bounds(e, self.extents_of(k, {}))[1]
                    if high is None:
                        break
                    reach = max(reach, high + 1)
                else:
                    if f"{name}.shape[{d}]" not in self.pending:
                        self.known.assign(
                            ("dim", name, d), reach, f"the left sides of {name} define {reach} positions", None
                        )
                        changed = True
        return changed

    def infer_under_guards(self) -> bool:
        """Infer extents from plain indices under guards on the axis; return whether any was found.

        An index whose guards hold the axis below a constant determines its extent only where no other index does, and
        no read of another dimension extends beyond that constant.
        """
        firm: dict[Key, list[tuple[int, str, int]]] = {}
        loose: dict[Key, list[tuple[Key, tuple[int, str, int]]]] = {}
        further: dict[Key, set[Key]] = {}
        for k, site, d, i in self.read_indices():
            axes = self.program.lines[k].axes
            dim = self.known.find(("dim", site.node.name, d))
            if not (self.is_plain(k, i) and isinstance(i, Name)):
                for a in axes:
                    if rises(i, a) and self.is_guarded(site, {a}) and not limits(site.guards, a, axes):
                        key = self.known.find(("axis", k, a))
                        further.setdefault(key, set()).update({dim} - {key})
                continue
            n, key = self.known.get(dim), self.known.find(("axis", k, i.id))
            if n is None or key in self.known or i.id in self.pending:
                continue
            option = n, f"{site.node.name} has extent {n} in dimension {d}", i.at
            axis_limits = limits(site.guards, i.id, axes)
            rank = self.ranks[site.node.name]
            if not axis_limits:
                firm.setdefault(key, []).append(option)
            elif not any(is_dimension_bound(c, i.id, site.node.name, d, rank) for c in axis_limits):
                loose.setdefault(key, []).append((dim, option))
        chosen = firm or {
            key: [o for _, o in options]
            for key, options in loose.items()
            if not further.get(key, set()) - {dim for dim, _ in options}
        }
        for key, options in chosen.items():
            for n, why, at in options:
                self.known.assign(key, n, why, at)
        return bool(chosen)

    def solve_single_unknowns(self) -> bool:
        """Assign the largest extents that keep unguarded reads with one unknown in bounds, all reads of a round at
        once."""
        best: dict[Key, tuple[int, str, int]] = {}
        for k, site, d, i in self.read_indices():
            n = self.known.get(("dim", site.node.name, d))
            e = None if n is None else self.expr(k, i)
            if e is None or n is None:
                continue
            names = self.axes_of(k, e)
            unknown = {x for a in names if (x := self.known.find(("axis", k, a))) not in self.known}
            if len(unknown) != 1 or self.is_guarded(site, set(names)):
                continue
            (key,) = unknown
            if key[0] == "axis" and key[2] in self.pending:
                continue
            largest = self.find_largest(k, e, key, n)
            if largest is None:
                continue
            if largest < 1:
                raise self.make_bounds_error(k, site, d, n, key, e)
            why = f"{site.node.name} has extent {n} in dimension {d}, which allows {largest}"
            if key not in best or largest < best[key][0]:
                best[key] = (largest, why, i.at)
        for key, (n, why, at) in best.items():
            self.known.assign(key, n, why, at)
        return bool(best)

    def infer_from_readers(self) -> bool:
        """Set a dimension that nothing else determines to the extent of an axis that indexes it alone under a guard."""
        largest_readers: dict[Key, tuple[int, str, int]] = {}
        for k, site, d, i in self.read_indices():
            key = self.known.find(("dim", site.node.name, d))
            if self.is_plain(k, i) and isinstance(i, Name) and key not in self.known:
                n = self.known.get(("axis", k, i.id))
                if n is not None and n > largest_readers.get(key, (-1,))[0]:
                    largest_readers[key] = (
                        n,
                        f"{site.node.name} is read at {i.id} < {n} in dimension {d}",
                        i.at,
                    )
        for key, (n, why, at) in largest_readers.items():
            self.known.assign(key, n, why, at)
        return bool(largest_readers)

    def find_largest(self, k: int, e: Expr, key: Key, n: int) -> int | None:
        """Return the largest extent of `key` that keeps 0 <= e < n; 0 where none does, None where every one does."""

        def fits(extent: int) -> bool:
            lo, hi = bounds(e, self.extents_of(k, {key: extent}))
            return lo is not None and hi is not None and lo >= 0 and hi < n

        if n == 0 or not fits(1):
            return 0
        if fits(MAX_EXTENT):
            return None
        low, high = 1, 2
        while fits(high):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    # ----------------------------------------------------------------------------------------------------- errors

    def make_bounds_error(self, k: int, site: ReadSite, d: int, n: int, key: Key, e: Expr) -> BoundsError:
        """Return the error of a read that no extent keeps in bounds."""
        names = ", ".join(a for a in self.axes_of(k, e) if self.known.find(("axis", k, a)) == key)
        lo, hi = bounds(e, self.extents_of(k, {key: 1}))
        reach = f"runs from {lo} to {hi}" if lo is not None and hi is not None else "has no bounds"
        known = [
            f"{a} < {self.known.get(('axis', k, a))}"
            for a in self.axes_of(k, e)
            if self.known.get(("axis", k, a)) is not None
        ]
        message = (
            f"no extent of {names} keeps the read of {site.node.name} in bounds: at {names} = 0 the index of dimension "
            f"{d} {reach}" + (f" ({', '.join(known)})" if known else "") + f", and {site.node.name} has "
            f"extent {n} there"
        )
        hint = "guard the read, as in where(0 <= index and index < extent, read, 0)" if (lo or 0) < 0 else None
        return BoundsError(message, self.program.text, site.node.index[d].at, hint)

    def make_undetermined_error(self, k: int, line: Line, axis: str) -> FormulaError:
        """Return the error of an axis whose extent stays unknown, which shows the `extents=` to add."""
        key = self.known.find(("axis", k, axis))
        message, at = f"the extent of the axis {axis} is not determined", line.statement.at
        value = "N"
        indices = ((site.node.name, d, i) for site in line.reads for d, i in enumerate(site.node.index))
        for tensor, d, i in indices:
            names = [n.id for n in walk(i) if isinstance(n, Name) and n.id in line.axes]
            if axis not in names:
                continue
            at = i.at
            # A plain index was rejected, and the extents of defined tensors follow from those of the axes.
            if not isinstance(i, Name) and tensor in self.program.inputs:
                value = f'"{tensor}.shape[{d}]"'
            others = [a for a in dict.fromkeys(names) if a != axis and self.known.get(("axis", k, a)) is None]
            if others:
                message = (
                    f"the extents of the axes {' and '.join([axis, *others])} are not determined: "
                    f"one index of {tensor} contains them all"
                )
                value = "N"
            break
        hint = f'add extents={{"{axis}": {value}}}'
        if value == "N":
            hint += ', N an int or a string such as "X.shape[0]//2"'
        left = (i for i in line.statement.index if not isinstance(i, Name))
        if any(isinstance(n, Name) and n.id == axis for i in left for n in walk(i)):
            hint += f"; or, if {axis} is a parameter, give it a default, es.op(..., {axis}=N)"
        if self.pending and key not in self.known:
            hint += f" (the given extents of {', '.join(self.pending)} could not be computed)"
        return FormulaError(message, self.program.text, at, hint)
