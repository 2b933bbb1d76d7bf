"""Write the derived gradient of a formula in the formula language: `Operator.gradient`.

C[i,j] = sum[k](A[i,k] * B[k,j])      ->      dA[i, k] = sum[j](dC[i, j]*B[k, j])

Each tensor is one statement, pieces and `+=` included. Axes are named after the dimensions that they run along. The
text parses to equal templates; that of a recurrence has no statements for copies (`merged`), and comments say which
state is which of the user's tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from einsmith.autodiff.reverse import gradients
from einsmith.base import dtypes as dt
from einsmith.base import html
from einsmith.base.dtypes import DType
from einsmith.base.errors import EinsmithError, GradientError
from einsmith.ir.analysis.linear import linear
from einsmith.ir.functions import SCATTERED
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Expr,
    Graph,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    Template,
    Tensor,
    leaf,
    postorder,
    read_whole,
    template,
)
from einsmith.ir.printer import show_expressions
from einsmith.ir.rewrite.simplify import values_only
from einsmith.lang.diagram import index_tables
from einsmith.lang.infer import infer
from einsmith.lang.merged import Definition, find_definitions, merge_copies
from einsmith.lang.parser import RESERVED, parse
from einsmith.lang.resolve import FormulaProgram, resolve, resolve_source
from einsmith.lang.syntax import Name
from einsmith.tracing.builder import Value

if TYPE_CHECKING:
    from einsmith.lang.op import Operator

MAX_TERMS = 20_000
"""Most terms of an expression, expanded as a tree, that is written as text."""

_AXIS_NAMES = ("h", "w", "d", "x", "y", "z", "u", "v", "l", "n", "o", "e", "f", "g", "t", "a")
"""Axis names that are tried in order for dimensions that the text of the formula does not name."""


class FormulaText(str):
    """A formula's text with the extents needed to parse it again: `es.op(text)` is the operator.

    `extents`: of the axes that the text does not determine, as in `es.op(text, extents=...)`; a comment in the first
    line shows them too.
    """

    extents: dict[str, int]

    def __new__(cls, text: str, extents: Mapping[str, int] | None = None) -> FormulaText:
        self = super().__new__(cls, text)
        self.extents = dict(extents or {})
        return self

    def _repr_html_(self) -> str:
        program = resolve(str(self), self.extents)
        head = f"{', '.join(program.outputs)} from {', '.join(program.inputs)}"
        return html.text(head, str(self)) + index_tables(program)


@dataclass
class _Notation:
    """The name of a tensor, and those of its dimensions (None: no name yet). `parameter`: read without brackets."""

    name: str
    dims: list[str | None]
    parameter: bool = False


def gradient_text(
    operator: Operator,
    wrt: Sequence[str],
    operands: Mapping[str, tuple[tuple[int, ...], DType, bool]],
    static: Mapping[str, Any],
    values: Any,
) -> FormulaText:
    """Return the text of the gradient by the tensors (or run-time parameters) `wrt`.

    operands: name -> (shape, type, whether it is a number); static: parameters' values; `values(operands)` gives the
    Value of every name of the program. Raises GradientError for integers, and for a formula too long to be written.
    """
    program = operator.program
    leaves = {n: leaf(shape, dtype) for n, (shape, dtype, _) in operands.items()}
    for n in wrt:
        if not leaves[n].dtype.is_float:
            raise GradientError(f"{n} is {leaves[n].dtype}; only floats have gradients")
    defined: dict[str, Value] = values({n: Value(x, operands[n][2]) for n, x in leaves.items()})
    outputs = [n for n in program.outputs if defined[n].dtype.is_float]
    if not outputs:
        raise GradientError(f"no output of {operator.name} is a float, so it has no gradient")
    cotangents = {n: leaf(defined[n].shape, defined[n].dtype) for n in outputs}
    tensors = [v.tensor for v in defined.values()]  # all of them, so that the result of each is known
    tensors, grads = gradients(tensors, [cotangents.get(n) for n in defined], [leaves[n] for n in wrt])
    # The text defines values only; parsed again it is differentiated as written.
    tensors, grads = _split(values_only(Graph((), (*tensors, *grads), (), ())).outputs, len(tensors))
    names = _Names(program)
    known: dict[Tensor, _Notation] = {}
    for n, x in leaves.items():
        known[x] = _Notation(n, names.of(n, x.shape), n in program.parameters)
    for n, t in zip(defined, tensors, strict=True):
        if not isinstance(t, Leaf):
            known[t] = _Notation(n, names.of(n, t.shape))
    for n, x in cotangents.items():
        known[x] = _Notation(names.reserve("d" + n), names.of(n, x.shape))
    results = [(names.reserve("d" + n), known[leaves[n]].dims, g) for n, g in zip(wrt, grads, strict=True)]
    definitions = find_definitions([g for *_, g in results])
    if not any(isinstance(x, Item) for x in definitions):
        return _Writer(names, known, definitions).write(results, leaves, cotangents)
    for tensor, named in known.items():  # statements that pad a state leave the axes' own names to the others
        for axis, extent in zip(named.dims, tensor.shape, strict=True):
            names.extents.setdefault(str(axis), extent)
    kept = {*known, *(g for *_, g in results)}
    forward = {n for n in postorder(tensors) if isinstance(n, Recurrence)}
    return _Writer(names, known, merge_copies(definitions, kept), forward).write(results, leaves, cotangents)


def _split(tensors: Sequence[Tensor], n: int) -> tuple[list[Tensor], list[Tensor]]:
    return list(tensors[:n]), list(tensors[n:])


class _Names:
    """The names of tensors and axes; an axis name has one extent throughout, so that `extents=` can give it."""

    def __init__(self, program: FormulaProgram):
        self.program = program
        self.tensors = {*program.defined, *program.inputs, *program.parameters}
        self.user_axes = {a for line in program.lines for a in line.axes}  # the user's axes
        self.extents: dict[str, int] = {}
        self.dims: dict[str, list[str | None]] = {}
        for n in self.tensors:
            self._name_dims(n)
        named = {d for dims in self.dims.values() for d in dims}
        self.loops = [a for line in program.lines for a in line.axes if a not in named]  # they name no dimension

    def reserve(self, name: str) -> str:
        """Return a free name for a tensor: this one, with underscores appended if it is taken."""
        while name in self.used_names() or name in RESERVED:
            name += "_"
        self.tensors.add(name)
        return name

    def used_names(self) -> set[str]:
        return {*self.tensors, *self.user_axes, *self.extents}

    def _name_dims(self, tensor: str) -> None:
        """Name a tensor's dimensions after the axes that index them alone in the user's text."""
        out = self.dims.setdefault(tensor, [])
        for line in self.program.lines:
            indices = [s.node.index for s in line.reads if s.node.name == tensor]
            if line.statement.name == tensor:
                indices.insert(0, line.statement.index)
            for index in indices:
                out += [None] * (len(index) - len(out))
                for d, i in enumerate(index):
                    if out[d] is None and isinstance(i, Name) and i.id in line.axes and i.id not in out:
                        out[d] = i.id

    def of(self, tensor: str, shape: Sequence[int]) -> list[str | None]:
        """Return the names of a tensor's dimensions; new ones for dimensions that no axis indexes alone."""
        dims = self.dims[tensor] or [None] * len(shape)
        for d in range(len(shape)):
            if dims[d] is None:
                dims[d] = next(n for n in self._new(()) if n not in dims)
        return list(dims)

    def _new(self, loops: Sequence[str]) -> Iterator[str]:
        yield from loops
        fresh = [n for n in _AXIS_NAMES if n not in self.user_axes and n not in self.tensors]
        yield from fresh
        for k in itertools.count(1):
            yield from (f"{n}{k}" for n in (fresh or _AXIS_NAMES))

    def name_axis(self, preferred: Sequence[str], extent: int, excluded: Iterable[str], loop: bool) -> str:
        """Return the first free name for an axis: a preferred one, a preferred one with a number, or else
        a new one."""
        excluded = set(excluded)
        numbered = (
            (f"{preferred[0]}{k}" for k in itertools.count(1)) if preferred else self._new(self.loops if loop else ())
        )
        for n in itertools.chain(preferred, numbered):
            if (
                n not in excluded
                and n not in self.tensors
                and n not in RESERVED
                and self.extents.get(n, extent) == extent
            ):
                self.extents[n] = extent
                return n
        raise AssertionError("names never run out")


class _Writer:
    """The writer of a gradient's text. `definitions`: the tensors that are statements; `forward`: the recurrences of
    the formula itself."""

    def __init__(
        self,
        names: _Names,
        known: dict[Tensor, _Notation],
        definitions: dict[Any, Definition],
        forward: Collection[Recurrence] = (),
    ):
        self.names, self.known, self.definitions, self.forward = names, known, definitions, forward
        self.is_recurrent = any(isinstance(x, Item) for x in definitions)
        self.lines: list[str] = []
        self.shapes: dict[str, tuple[int, ...]] = {}  # of the tensors that are written
        self.dims: dict[Tensor, list[str | None]] = {}  # unnamed tensors: names that their readers use
        self.comments: dict[Any, list[str]] = {}  # of recurrences: which states are tensors of the user

    def write(
        self,
        results: Sequence[tuple[str, list[str | None], Tensor]],
        inputs: Mapping[str, Leaf],
        cotangents: Mapping[str, Leaf],
    ) -> FormulaText:
        done: set[Any] = set()
        self._name_states()
        self._name_backwards(results)
        if self.is_recurrent:
            self._name_forwards()
        for name, dims, t in results:
            for node in postorder([t]):
                if node is not t and node not in done and not isinstance(node, Leaf):
                    self._tensor(node)
                    done.add(node)
            if t in done or isinstance(t, Leaf) or _is_member(t):  # a copy under the expected name
                t = Compute(template(t.shape, [(t.dtype, t.shape)], read_whole(0, t.shape, t.dtype)), (t,))
                self.definitions[t] = t.template, t.args
            self.known[t] = _Notation(name, list(dims))
            self._tensor(t)
            done.add(t)
        if len(results) > 1 or any(isinstance(t, Recurrence) for t in done):
            self.lines.append("return " + ", ".join(name for name, _, _ in results))
        text = "\n".join(self.lines)
        shapes = {self.known[x].name: x.shape for x in (*inputs.values(), *cotangents.values())}
        extents = self._undetermined_extents(text, shapes, {n: 0 for n, x in inputs.items() if self.known[x].parameter})
        if extents:
            text = "# extents: " + ", ".join(f"{a} {n}" for a, n in extents.items()) + "\n" + text
        return FormulaText(text, extents)

    def _undetermined_extents(
        self, text: str, shapes: dict[str, tuple[int, ...]], numbers: dict[str, int]
    ) -> dict[str, int]:
        """Return the fewest extents without which the text would be parsed with other extents, or not at all."""
        source = parse(text)
        sizes = dict(self.names.extents)
        used = {n for line in resolve_source(source).lines for n in line.axes}
        kept = {n: e for n, e in sizes.items() if n in used}
        kept |= {f"{n}.shape[{d}]": e for n, shape in self.shapes.items() for d, e in enumerate(shape)}

        def reproduces(extents: dict[str, int]) -> bool:
            program = resolve_source(source, extents)
            here = {n: s for n, s in shapes.items() if n in program.inputs}
            try:
                inferred = infer(program, here, {n: 0 for n in numbers})
            except EinsmithError:
                return False
            axes = all(sizes[a] == n for (_, a), n in inferred.axes.items())
            return axes and all(inferred.shapes[n] == shape for n, shape in self.shapes.items())

        for key in [k for k in kept if "." in k] + [k for k in kept if "." not in k]:
            fewer = {k: e for k, e in kept.items() if k != key}
            if reproduces(fewer):
                kept = fewer
        return kept

    def _name_backwards(self, results: Sequence[tuple[str, list[str | None], Tensor]]) -> None:
        """Name the dimensions of intermediate tensors after those of the results that read them."""
        for _, dims, t in results:
            self.dims[t] = list(dims)
        for t in reversed(list(postorder([t for *_, t in results]))):
            if isinstance(t, Recurrence):
                for x in self._members(t):
                    self._name_args(x, *self.definitions[x])
            if isinstance(t, Item) and isinstance(t.node, Compute):
                known = [self.known[x] for m in range(2) if (x := Item(t.node, m)) in self.known]
                if known:
                    self.dims[t] = list(known[0].dims)
            if t in self.definitions and isinstance(t, Compute) and len(t.template.dtypes) == 1:
                self._name_args(t, *self.definitions[t])

    def _members(self, node: Recurrence) -> list[Item]:
        """Return the members of a recurrence that are statements."""
        return [x for j in range(len(node.members)) if (x := Item(node, j)) in self.definitions]

    def _name_states(self) -> None:
        """Name each state of a recurrence that holds one of the user's tensors in another layout after that tensor, and
        add a comment with the relation."""
        for t, named in list(self.known.items()):
            if not isinstance(t, Compute) or len(t.args) != 1 or t.args[0] in self.known:
                continue
            (state,), (part, *others) = t.args, t.template.parts
            if state not in self.definitions or not _is_member(state) or others or not isinstance(part.body, Read):
                continue
            forms = [linear(i) for i in part.body.index]
            axes = [a for f in forms for a, c in f.terms.items() if isinstance(a, Axis) and c == 1]
            if part.extents != t.shape or not len(axes) == sum(len(f.terms) for f in forms) == len(forms):
                continue
            dims = [named.dims[a.position] for a in axes]
            self.known[state] = _Notation(self.names.reserve(f"{named.name}_"), dims)
            places = [_write_position(f.const, 1, d) for f, d in zip(forms, dims, strict=True)]
            own = f"{self.known[state].name}[{', '.join(places)}]"
            notes = self.comments.setdefault(state.node, [])  # type: ignore[union-attr]
            notes.append(f"{own} is {named.name}[{', '.join(map(str, named.dims))}]")

    def _name_forwards(self) -> None:
        """Name the dimensions that have no name yet after those of the arguments that run along them."""
        for _ in range(2):  # members read each other
            for x, (t, args) in self.definitions.items():
                dims = self.dims.setdefault(x, [None] * len(t.shape))
                if x in self.known or len(dims) != len(t.shape):
                    continue
                known = [self.known[a].dims if a in self.known else self.dims.get(a, [None] * 99) for a in args]
                for part in t.parts:
                    for p, names in _collect_dimension_names(part.bodies, known).items():
                        if isinstance(part, Piece) and p < len(dims) and dims[p] is None and names[0] not in dims:
                            dims[p] = names[0]

    def _name_args(self, t: Tensor, own_template: Template, args: Sequence[Tensor]) -> None:
        """Name the dimensions of a template's arguments after those of the tensor `t` that it computes."""
        own = self.known[t].dims if t in self.known else self.dims.get(t, [None] * len(t.shape))
        for part in own_template.parts:
            for e in postorder(part.bodies):
                if isinstance(e, Read) and args[e.slot] not in self.known:
                    dims = self.dims.setdefault(args[e.slot], [None] * len(e.index))
                    for d, i in enumerate(e.index):
                        if isinstance(i, Axis) and i.position < len(t.shape) and isinstance(part, Piece):
                            dims[d] = dims[d] or (own[i.position] if own[i.position] not in dims else None)

    # -------------------------------------------------------------------------------------------------- statements

    def _tensor(self, node: Compute | Item | Recurrence) -> None:
        if isinstance(node, Recurrence):
            for x in self._members(node):
                self._name(x)
            comment = ", ".join(self.comments.get(node, ())) or "the steps of the formula"
            self.lines.append(f"# {comment if node in self.forward else 'gradients that flow back through the steps'}")
            for x in self._members(node):
                self._statements(x, *self.definitions[x], 0)
            return
        compute = node.node if isinstance(node, Item) else node
        if (isinstance(node, Compute) and len(node.template.dtypes) > 1) or isinstance(compute, Recurrence):
            return  # its Items follow; those of a recurrence are written with it
        if compute in self.definitions:
            self._name(node)
            self._statements(node, *self.definitions[compute], node.member if isinstance(node, Item) else 0)

    def _name(self, node: Tensor) -> None:
        if node not in self.known:
            self.known[node] = _Notation(self._temporary(), self.dims.get(node) or [None] * len(node.shape))

    def _statements(self, node: Tensor, t: Template, args: Sequence[Tensor], member: int) -> None:
        named = self.known[node]
        for part in t.parts:
            self.lines.append(self._part(part, t, args, named, member))
        self.shapes[named.name] = t.shape

    def _temporary(self) -> str:
        # Statements of a recurrence have axes of several extents, t and t1, which no tensor should look like.
        axes = self.names.user_axes if self.is_recurrent else ()
        letter = next((n for n in "tvw" if n not in axes), "t")
        for k in itertools.count(1):
            if (name := f"{letter}{k}") not in self.names.used_names():
                return self.names.reserve(name)
        raise AssertionError

    def _part(self, part: Piece | Scatter, t: Template, args: Sequence[Tensor], named: _Notation, member: int) -> str:
        rank = len(t.shape)
        bodies = part.bodies
        preferred = _collect_dimension_names(bodies, [self.known[a].dims for a in args])
        used = {a.position for a in postorder(bodies) if isinstance(a, Axis)}
        axes: dict[int, str] = {}
        for p, extent in enumerate(part.domain):
            is_output = isinstance(part, Piece) and p < rank
            if is_output and extent == 1 and p not in used:
                continue
            own = named.dims[p] if is_output else None
            names = [*([own] if own else ()), *preferred.get(p, ())]
            axes[p] = self.names.name_axis(names, extent, axes.values(), not is_output)
            if is_output and named.dims[p] is None:
                named.dims[p] = axes[p]
        slots = [self.known[a].name for a in args]
        weak = [self.known[a].parameter for a in args]
        numbers = [n for n, w in zip(slots, weak, strict=True) if w]
        names = [axes.get(p, "0") for p in range(len(part.domain))]
        if isinstance(part, Scatter):
            *index, body = _spell([*part.index, _add_cast(part.body, t.dtypes[0], t, weak)], names, slots, numbers)
            return f"{named.name}[{', '.join(index)}] {SCATTERED[part.combiner]} {body}"
        output_index = [
            _write_position(o, s, axes.get(d)) for d, (o, s) in enumerate(zip(part.offset, part.step, strict=True))
        ]
        if isinstance(part.body, Reduce):
            r = part.body
            combiner = r.combiner.removeprefix("arg") if member == 0 else r.combiner
            chosen = r.bodies[0] if r.combiner.startswith("arg") else r.bodies[member]
            (body,) = _spell([_add_cast(chosen, chosen.dtype, t, weak)], names, slots, numbers)
            right = f"{combiner}[{', '.join(names[rank:])}]({body})"
        else:
            (right,) = _spell([_add_cast(part.body, t.dtypes[member], t, weak)], names, slots, numbers)
        return f"{named.name}[{', '.join(output_index)}] = {right}"


def _is_member(t: Tensor) -> bool:
    return isinstance(t, Item) and isinstance(t.node, Recurrence)


def _write_position(offset: int, step: int, axis: str | None) -> str:
    if axis is None:
        return str(offset)
    return (axis if step == 1 else f"{step}*{axis}") + (f" + {offset}" if offset else "")


def _collect_dimension_names(bodies: Sequence[Expr], dims: Sequence[list[str | None]]) -> dict[int, list[str]]:
    """Return the names of the dimensions that each axis (by position) runs along: first those that it indexes alone,
    then strided ones."""
    names_by_axis: dict[int, list[tuple[int, str]]] = {}
    for e in postorder(bodies):
        if not isinstance(e, Read):
            continue
        for i, name in zip(e.index, dims[e.slot], strict=True):
            terms = linear(i).terms
            if name is None or len(terms) != 1:
                continue
            ((atom, _),) = terms.items()
            if isinstance(atom, Axis):
                names_by_axis.setdefault(atom.position, []).append((0 if i is atom else 1, name))
    return {p: [n for _, n in sorted(names, key=lambda x: x[0])] for p, names in names_by_axis.items()}


def _spell(roots: Sequence[Expr], axes: Sequence[str], slots: Sequence[str], numbers: Sequence[str]) -> Iterator[str]:
    sizes: dict[Expr, int] = {}
    for e in postorder(roots):
        sizes[e] = 1 + sum(sizes[a] for a in e.args)
    if sum(sizes[r] for r in roots) > MAX_TERMS:
        raise GradientError(
            f"the gradient has expressions of more than {MAX_TERMS} terms and is not written out; split the formula "
            f"into several statements"
        )
    for text in show_expressions(roots, axes, slots):
        for n in numbers:
            text = text.replace(f"{n}[]", n)
        yield text


def _add_cast(e: Expr, dtype: DType, t: Template, weak: Sequence[bool]) -> Expr:
    """Return the expression under a cast where its text alone would not determine its type.

    `weak`: slots that are numbers, which, like literals, take the type of the template's other floats.
    """

    def find_strong_type(x: Expr) -> DType | None:
        if isinstance(x, Read):
            return None if weak[x.slot] else x.dtype
        if isinstance(x, Axis) or (isinstance(x, Apply) and (x.fn == "cast" or x.dtype.is_bool)):
            return x.dtype
        if isinstance(x, Apply):
            operand_types = (types[a] for a in (x.args[1:] if x.fn == "where" else x.args))
            return x.dtype if x.dtype in operand_types else None
        return None

    types: dict[Expr, DType | None] = {}
    for x in postorder([*(b for part in t.parts for b in part.bodies), e]):
        types[x] = find_strong_type(x)
    own = types[e]
    if own is None and dtype.is_float:
        floats = {x for x in types.values() if x is not None and x.is_float}
        own = max(floats, key=lambda x: x.bits) if floats else dt.f32
    return e if own is dtype else Apply("cast", (e,), dtype)
