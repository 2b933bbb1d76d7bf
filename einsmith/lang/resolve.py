"""Resolve the names of a formula to outputs, inputs, axes and parameters, and collect reads with the guards around
them.

Axes are scoped per statement; a name that some statement defines is never an input; a name that is not an axis, tensor
or function is a parameter, static where an integer or a condition is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from einsmith.base import dtypes as dt
from einsmith.base.errors import FormulaError
from einsmith.ir.components import components
from einsmith.lang.parser import near, parse, parse_expression
from einsmith.lang.syntax import (
    Ast,
    Cast,
    Name,
    Number,
    ParsedApply,
    ParsedRead,
    ParsedReduction,
    ShapeOf,
    SizeOf,
    Source,
    Statement,
    walk,
)

Guard = tuple[Ast, bool]
MAX_AXES = 32
"""Most axes of a statement: NumPy's former limit of dimensions."""


@dataclass(frozen=True, eq=False)
class ReadSite:
    """A read in a statement: `guards` are the conditions of the enclosing `where`s with the side taken."""

    node: ParsedRead
    guards: tuple[Guard, ...]


@dataclass(frozen=True, eq=False)
class Line:
    """A statement with its names resolved. `axes`: the left side's, then the reductions', in order."""

    statement: Statement
    output_axes: tuple[str, ...]
    axes: tuple[str, ...]
    reads: tuple[ReadSite, ...]


@dataclass(eq=False)
class FormulaProgram:
    """A resolved formula. `inputs`: name -> rank (None where only its shape is used); `parameters`: name -> static;
    `order`: the defined tensors, each after those it reads, those that read each other in a cycle together."""

    source: Source
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    inputs: dict[str, int | None]
    parameters: dict[str, bool]
    defined: dict[str, list[int]]
    order: tuple[tuple[str, ...], ...]
    extents: dict[str, int | Ast] = field(default_factory=dict)
    integer_inputs: frozenset[str] = frozenset()
    places: dict[str, int] = field(default_factory=dict)  # offset of a parameter's first occurrence in the text
    in_index: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The text of the formula."""
        return self.source.text


def resolve(text: str, extents: Mapping[str, int | str] | None = None, known: Iterable[str] = ()) -> FormulaProgram:
    """Resolve the program of a text. `known` are names given as parameters. Raises FormulaError."""
    return resolve_source(parse(text), extents, known)


def resolve_source(
    source: Source, extents: Mapping[str, int | str] | None = None, known: Iterable[str] = ()
) -> FormulaProgram:
    """Resolve a parsed formula: ranks of inputs, types of names, extents of axes, order of definitions.

    Args:
        source: the parsed formula
        extents: extents of axes given by name
        known: names that are parameters

    Raises:
        FormulaError: the statements contradict each other.
    """
    text, known_parameters = source.text, set(known)
    defined: dict[str, list[int]] = {}
    for k, s in enumerate(source.statements):
        defined.setdefault(s.name, []).append(k)
        first = source.statements[defined[s.name][0]]
        if len(first.index) != len(s.index):
            raise FormulaError(f"{s.name} has {len(first.index)} dimensions above and {len(s.index)} here", text, s.at)
        if source.statements[defined[s.name][len(defined[s.name]) - 2]].accumulate and not s.accumulate:
            raise FormulaError(
                f"{s.name} is defined with = after it is accumulated", text, s.at, "put the = statements first"
            )
    lines = tuple(_resolve_line(source, s, known_parameters, set(extents or ())) for s in source.statements)
    program = FormulaProgram(source, lines, (), {}, {}, defined, ())
    _resolve_tensors(program)
    _resolve_parameters(program, known_parameters)
    _resolve_extents(program, extents or {})
    program.order = _order_definitions(program)
    program.outputs = _find_outputs(program)
    return program


def _find_parameters(s: Statement, extents: set[str]) -> set[str]:
    """Return the names in left indices that are parameters, not axes, such as st in `y[st*i+r] += z[i,r]`.

    A parameter occurs only in sums and products with axes. A name is an axis if it indexes a dimension alone, the body
    uses it, or `extents` gives its extent. A factor of an axis that indexes a dimension alone is a parameter even where
    the body uses it, such as L in `y[L*n+i] = x[n,i] + where(L*n+i > 0, y[L*n+i-1], 0)`.
    """
    alone = {i.id for i in s.index if isinstance(i, Name)} | extents
    used: set[str] = set()
    for n in walk(s.value):
        used |= {n.id} if isinstance(n, Name) else {n.axis} if isinstance(n, SizeOf) else set()
        alone |= {i.id for i in n.index if isinstance(i, Name)} if isinstance(n, ParsedRead) else set()
        alone |= set(n.axes) if isinstance(n, ParsedReduction) else {n.axis} if isinstance(n, SizeOf) else set()
    parameters: set[str] = set()
    for i in s.index:
        names = {n.id for n in walk(i) if isinstance(n, Name)}
        if names & (used | alone):
            parameters |= names - used - alone
        for product in walk(i):
            if isinstance(product, ParsedApply) and product.fn == "mul":
                factors = {n.id for n in walk(product) if isinstance(n, Name)}
                parameters |= factors - alone if factors & alone else set()
    return parameters


def _resolve_line(source: Source, s: Statement, known_parameters: set[str], extents: set[str]) -> Line:
    text = source.text
    output_axes: list[str] = []
    known_parameters = known_parameters | _find_parameters(s, extents)
    for i in s.index:
        names = [n for n in walk(i) if isinstance(n, Name) and n.id not in known_parameters]
        if isinstance(i, Name) and names and i.id in output_axes and not s.accumulate:
            raise FormulaError(
                f"the left side names the axis {i.id} twice", text, i.at, "give each dimension its own axis"
            )
        repeated = [n for n in names if n.id in output_axes]
        if repeated and not s.accumulate and len({n.id for n in names}) > 1:
            raise FormulaError(f"the axis {repeated[0].id} stands in two left indices", text, repeated[0].at)
        output_axes += [x for x in dict.fromkeys(n.id for n in names) if x not in output_axes]
    axes = list(output_axes)
    reads: list[ReadSite] = []

    def visit(root: Ast, guards: tuple[Guard, ...]) -> None:
        stack: list[tuple[Ast, tuple[Guard, ...], frozenset[str]]] = [(root, guards, frozenset(output_axes))]
        while stack:
            node, around, bound = stack.pop()
            if isinstance(node, ParsedReduction):
                for a in node.axes:
                    if a in bound:
                        raise FormulaError(
                            f"the axis {a} is bound twice: {node.combiner}[{a}] stands inside another use of it",
                            text,
                            node.at,
                            f"give the reduction another axis than {a}",
                        )
                    if a in known_parameters:
                        raise FormulaError(f"{a} is both an axis and a parameter", text, node.at)
                    if a not in axes:
                        axes.append(a)
                stack.append((node.body, around, bound | set(node.axes)))
            elif isinstance(node, ParsedApply) and node.fn == "where":
                c, a_, b_ = node.operands
                stack += [(b_, (*around, (c, False)), bound), (a_, (*around, (c, True)), bound), (c, around, bound)]
            else:
                if isinstance(node, ParsedRead):
                    reads.append(ReadSite(node, around))
                if isinstance(node, Name):
                    used.append((node.id, node.at, bound))
                elif isinstance(node, SizeOf):
                    sizes.append((node.axis, node.at))
                stack.extend((a, around, bound) for a in reversed(node.args))

    used: list[tuple[str, int, frozenset[str]]] = []
    sizes: list[tuple[str, int]] = []
    for i in s.index:
        visit(i, ())
    visit(s.value, ())
    for name, at, bound in used:
        if name in axes and name not in bound:
            raise FormulaError(
                f"the axis {name} is used outside its reduction",
                text,
                at,
                f"put this inside the reduction over {name}, or give the other axis another name",
            )
    for name, at in sizes:
        if name not in axes:
            hint = _find_size(source, name) or near(name, axes)
            raise FormulaError(f"size({name}): {name} is not an axis of this statement", text, at, hint)
    if len(axes) > MAX_AXES:
        raise FormulaError(
            f"a statement has at most {MAX_AXES} axes, and this one {len(axes)}", text, s.at, "split it into several"
        )
    return Line(s, tuple(output_axes), tuple(axes), tuple(reads))


def _find_size(source: Source, axis: str) -> str | None:
    """Return how to write the extent of an axis of another statement; None where no left side has the axis."""
    for s in source.statements:
        for d, i in enumerate(s.index):
            if isinstance(i, Name) and i.id == axis:
                return f"write {s.name}.shape[{d}]; size() takes axes of its own statement alone"
    return None


def _resolve_tensors(program: FormulaProgram) -> None:
    text, ranks = program.text, {n: len(program.lines[k[0]].statement.index) for n, k in program.defined.items()}
    inputs: dict[str, int | None] = {}
    integer: set[str] = set()
    for line in program.lines:
        everything = _in_text_order((*line.statement.index, line.statement.value))
        for node in everything:
            if isinstance(node, ParsedRead):
                rank = ranks.setdefault(node.name, len(node.index))
                if rank != len(node.index):
                    raise FormulaError(
                        f"{node.name} has {rank} dimensions elsewhere and is read with {len(node.index)} here",
                        text,
                        node.at,
                    )
                for i in node.index:
                    integer |= _find_integer_tensors(i)
            if isinstance(node, (ParsedRead, ShapeOf)) and node.name not in program.defined:
                inputs[node.name] = ranks.get(node.name)
        for i in line.statement.index:
            integer |= _find_integer_tensors(i)
        for a in line.axes:
            if a in program.defined or a in inputs:
                raise FormulaError(
                    f"{a} names both an axis and a tensor", text, _find_binding(text, line, a), f"rename the axis {a}"
                )
    program.inputs = inputs
    program.integer_inputs = frozenset(integer)


def _find_binding(text: str, line: Line, axis: str) -> int:
    """Return the offset in the text at which a statement first names an axis: in a left index, or in a reduction's
    brackets."""
    for node in _in_text_order((*line.statement.index, line.statement.value)):
        if isinstance(node, Name) and node.id == axis:
            return node.at
        if isinstance(node, ParsedReduction) and axis in node.axes:
            match = re.compile(rf"\b{axis}\b").search(text, node.at)
            return match.start() if match else node.at
    return line.statement.at


def _find_integer_tensors(index: Ast) -> set[str]:
    """Return the tensors whose elements an index uses unconverted: not those that it converts or compares."""
    tensors: set[str] = set()
    todo = [index]
    while todo:
        node = todo.pop()
        if isinstance(node, ParsedRead):
            tensors.add(node.name)  # a nested read's index is examined with that read
        elif not isinstance(node, Cast) and not (isinstance(node, ParsedApply) and node.fn in ("lt", "le", "eq", "ne")):
            todo += node.args
    return tensors


def _in_text_order(roots: Iterable[Ast]) -> list[Ast]:
    """Return every node by its place in the text, as the parser stores `a > b` as `b < a`."""
    return sorted((n for r in roots for n in walk(r)), key=lambda n: n.at)


def _resolve_parameters(program: FormulaProgram, known_parameters: set[str]) -> None:
    text, places = program.text, program.places
    static: dict[str, bool] = {}
    tensors = {*program.defined, *program.inputs}
    in_index: set[str] = set()

    def free_names(root: Ast, axes: set[str]) -> list[Name]:
        return [n for n in walk(root) if isinstance(n, Name) and n.id not in axes]

    for line in program.lines:
        axes = set(line.axes)
        for root in (*line.statement.index, line.statement.value):
            for n in free_names(root, axes):
                if n.id in tensors:
                    hint = f"write {n.id}[...] with its axes"
                    raise FormulaError(f"the tensor {n.id} stands without indices", text, n.at, hint)
                static.setdefault(n.id, False)
                places.setdefault(n.id, n.at)
            for node in walk(root):
                for part in _find_integer_parts(node, axes):
                    for n in free_names(part, axes):
                        static[n.id] = True
                        if isinstance(node, (ParsedRead, ShapeOf)):
                            in_index.add(n.id)
        for i in line.statement.index:
            for n in free_names(i, axes):
                static[n.id] = True
                in_index.add(n.id)
    for name in known_parameters:
        if name in tensors:
            raise FormulaError(f"{name} is a tensor, it cannot have a default")
    program.parameters = static
    program.in_index = frozenset(in_index)


def _find_integer_parts(node: Ast, axes: set[str]) -> list[Ast]:
    """Return the parts of a node where a parameter must be an integer or a condition, known when the formula is
    compiled."""
    if isinstance(node, ParsedRead):
        return list(node.index)
    if isinstance(node, ShapeOf):
        return [node.dim]
    if not isinstance(node, ParsedApply):
        return []
    if node.fn in ("and", "or", "not"):
        return [a for a in node.operands if isinstance(a, Name)]
    if node.fn == "where":
        return [node.operands[0]] if isinstance(node.operands[0], Name) else []
    if node.fn in ("lt", "le", "eq", "ne", "floordiv", "mod"):
        leaves = [n for n in walk(node) if not n.args or isinstance(n, (ParsedRead, ParsedReduction))]
        whole = all(
            isinstance(n, (Name, SizeOf, ShapeOf)) or (isinstance(n, Number) and isinstance(n.value, int))
            for n in leaves
        ) and not any(isinstance(n, ParsedApply) and n.fn in ("div", "pow") for n in walk(node))
        anchored = any(isinstance(n, (SizeOf, ShapeOf)) or (isinstance(n, Name) and n.id in axes) for n in leaves)
        return [node] if whole and anchored else []
    return []


def _resolve_extents(program: FormulaProgram, extents: Mapping[str, int | str]) -> None:
    axes = {a for line in program.lines for a in line.axes}
    tensors = {*program.defined, *program.inputs}
    for name, value in extents.items():
        at = re.fullmatch(r"(\w+)\.shape\[(\d{1,9})\]", name) if isinstance(name, str) else None
        ranks = {n: len(program.lines[k[0]].statement.index) for n, k in program.defined.items()}
        if name not in axes and not (at and int(at[2]) < ranks.get(at[1], 0)):
            hint = near(str(name), axes) or f"the axes are {', '.join(sorted(axes))}"
            raise FormulaError(f"extents: {name!r} is not an axis of the formula", hint=hint)
        parsed: int | Ast
        if isinstance(value, str):
            parsed = parse_expression(value)
            for n in walk(parsed):
                if isinstance(n, Name):
                    program.parameters[n.id] = True
                elif isinstance(n, ShapeOf) and n.name not in tensors:
                    raise FormulaError(f"unknown tensor {n.name}", value, n.at, near(n.name, tensors))
                elif isinstance(n, (ParsedRead, ParsedReduction, SizeOf)):
                    raise FormulaError("an extent is an integer expression of parameters and A.shape[n]", value, n.at)
        elif isinstance(value, int) and not isinstance(value, bool):
            parsed = value
        else:
            raise FormulaError(f'extents: {name!r} is {value!r}; give an int or a string such as "H//2"')
        program.extents[name] = parsed


def _find_outputs(program: FormulaProgram) -> tuple[str, ...]:
    source = program.source
    if source.returns is not None:
        for name, at in source.returns:
            if name not in program.defined:
                hint = near(name, program.defined) or f"the tensors are {', '.join(program.defined)}"
                raise FormulaError(f"{name} is returned but not defined", source.text, at, hint)
        return tuple(n for n, _ in source.returns)
    read = {r.node.name for line in program.lines for r in line.reads if r.node.name != line.statement.name}
    outputs = tuple(n for n in program.defined if n not in read)
    if not outputs:
        hint = f"add a last line such as: return {next(iter(program.defined))}"
        last = program.lines[-1].statement
        message = "every tensor is read by another one, so none is known to be an output"
        raise FormulaError(message, source.text, last.at, hint)
    return outputs


def reads_of(program: FormulaProgram, name: str) -> list[str]:
    """Return the defined tensors that a defined tensor reads."""
    lines = (program.lines[k] for k in program.defined[name])
    return list(dict.fromkeys(r.node.name for line in lines for r in line.reads if r.node.name in program.defined))


_CONDITIONS = ("lt", "le", "eq", "ne", "and", "or", "not")


def find_conditions(program: FormulaProgram, group: Iterable[str], known: Iterable[str] = ()) -> set[str]:
    """Return the tensors of a mutually recursive group that are conditions by the text of their definitions. `known`:
    other tensors that are conditions."""
    group, others = tuple(group), frozenset(known)
    logical: set[str] = set()

    def is_condition(e: Ast) -> bool:
        if isinstance(e, ParsedApply):
            return any(map(is_condition, e.operands[1:])) if e.fn == "where" else e.fn in _CONDITIONS
        if isinstance(e, Cast):
            return e.dtype is dt.bool_
        if isinstance(e, ParsedRead):
            return e.name in logical or e.name in others
        return isinstance(e, Number) and isinstance(e.value, bool)

    while True:
        more = {n for n in group if any(is_condition(program.lines[k].statement.value) for k in program.defined[n])}
        if more == logical:
            return logical
        logical = more


def _order_definitions(program: FormulaProgram) -> tuple[tuple[str, ...], ...]:
    """Return the defined tensors in an order of evaluation."""
    return tuple(tuple(group) for group in components(program.defined, lambda n: reads_of(program, n)))
