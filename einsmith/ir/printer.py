"""Print nodes as text, equal in every process: expressions in the syntax of the formula language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from einsmith.base.dtypes import DType
from einsmith.ir.functions import FUNCTIONS, SCATTERED
from einsmith.ir.interned import Node
from einsmith.ir.loop import InputPlace, LoopSegment, LoweredLoop
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
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
    postorder,
)
from einsmith.ir.rebuild import operands

_ATOM_PRECEDENCE = 9
"""Precedence of names, literals, reads and calls, which bind tighter than every operator."""
_COMPARISON_PRECEDENCE = 4
"""Precedence of comparisons, as in `ir.functions`."""
_MAX_TREE_NODES = 400
"""Most nodes, counted as a tree, that are printed in full; of larger expressions, shared subexpressions are printed
once, by name."""


def show(node: Any, axes: Sequence[str] | None = None, slots: Sequence[str] | None = None) -> str:
    """Return any node as text.

    `axes` names axis positions (default: i0, i1, ... and, inside a template, r0, r1, ... for the reduction's); `slots`
    names arguments (default: x0, x1, ...).
    """
    if isinstance(node, (Const, Axis, Read, Apply)):
        return _write_with_names([node], axes, slots)[0]
    if isinstance(node, Reduce):
        return _show_reduce(node, None, axes, slots)
    if isinstance(node, Piece):
        return _show_piece(node, "out", axes, slots)
    if isinstance(node, Scatter):
        return _show_scatter(node, "out", axes, slots)
    if isinstance(node, Template):
        return _show_template(node, axes, slots)
    if isinstance(node, Leaf):
        return f"Leaf({node.id}, {_show_type(node.dtype, node.shape)})"
    if isinstance(node, Compute):
        return f"Compute({_show_results(node.template)} of {len(node.args)} arguments, {node.digest.hex()[:8]})"
    if isinstance(node, Recurrence):
        results = ", ".join(_show_type(d, s) for d, s in node.results)
        return f"Recurrence({results} in {node.steps} steps of {len(node.args)} arguments, {node.digest.hex()[:8]})"
    if isinstance(node, Item):
        return f"Item({show(node.node)}, {node.member})"
    if isinstance(node, Graph):
        return show_graph(node)
    return _show_fields(node)


def _show_fields(value: Any) -> str:
    """Return Class(field, ...) for a node that has no syntax of its own."""
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_show_fields, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, Node):
        if type(value).__name__ in _SYNTAX:
            return show(value)
        return f"{type(value).__name__}({', '.join(_show_fields(getattr(value, f)) for f in value.fields)})"
    return repr(value)


_SYNTAX = {
    c.__name__
    for c in (Const, Axis, Read, Apply, Reduce, Piece, Scatter, Template, Leaf, Compute, Recurrence, Item, Graph)
}


# ---------------------------------------------------------------------------------------------------- expressions


def _write_constant(x: Const) -> str:
    return repr(x.value)


def _precedence(x: Expr) -> int:
    if isinstance(x, Const):
        return FUNCTIONS["neg"].precedence if _write_constant(x).startswith("-") else _ATOM_PRECEDENCE
    if isinstance(x, Apply) and FUNCTIONS[x.fn].symbol:
        return FUNCTIONS[x.fn].precedence
    return _ATOM_PRECEDENCE


def _text_parts(x: Expr, axis: Callable[[int], str], slot: Callable[[int], str]) -> list[Any]:
    """Return the text of one node as strings and (argument, least precedence that needs no parentheses) pairs."""
    if isinstance(x, Const):
        return [_write_constant(x)]
    if isinstance(x, Axis):
        return [axis(x.position)]
    if isinstance(x, Read):
        out: list[Any] = [slot(x.slot), "["]
        for n, i in enumerate(x.index):
            out += [", " if n else "", (i, 0)]
        return [*out, "]"]
    spec = FUNCTIONS[x.fn]
    p = spec.precedence
    if spec.symbol is None:
        out = [x.dtype.name if x.fn == "cast" else spec.call or x.fn, "("]
        for n, a in enumerate(x.args):
            out += [", " if n else "", (a, 0)]
        return [*out, ")"]
    if spec.arity == 1:
        return [spec.symbol + (" " if spec.symbol.isalpha() else ""), (x.args[0], p)]
    first = x.args[0]
    if x.fn == "add" and x.dtype.is_int and isinstance(first, Apply) and first.fn == "mul":
        k, rest = first.args
        if isinstance(k, Const) and k.value < 0:  # -1*i + 3 is 3 - i
            positive = rest if k.value == -1 else Apply("mul", (Const(-k.value, k.dtype), rest), x.dtype)
            return [(x.args[1], p), " - ", (positive, p + 1)]
    left, right = (p + 1, p) if x.fn == "pow" else (p + 1, p + 1) if p == _COMPARISON_PRECEDENCE else (p, p + 1)
    tight = p > FUNCTIONS["add"].precedence
    return [(x.args[0], left), spec.symbol if tight else f" {spec.symbol} ", (x.args[1], right)]


def _chain_comparisons(x: Apply) -> list[Any]:
    """Return the text pieces of nested `and`s as one chain of conditions, `a <= b and b < c` as `a <= b < c`."""
    terms = operands(x, "and")
    out: list[Any] = []

    def is_chained(a: Expr, b: Expr) -> bool:
        """Return whether the right operand of integer comparison a is the left operand of b, so that they print as a
        chain."""
        both = all(isinstance(e, Apply) and e.fn in ("lt", "le") and e.args[0].dtype.is_int for e in (a, b))
        return both and a.args[1] is b.args[0]

    while terms:
        first = terms.pop(0)
        last = next((t for t in terms if is_chained(first, t)), None)
        if last is None and (before := next((t for t in terms if is_chained(t, first)), None)):
            first, last = before, first
            terms.remove(before)
        elif last is not None:
            terms.remove(last)
        out += [" and "] if out else []
        if not isinstance(first, Apply) or not isinstance(last, Apply):
            out.append((first, FUNCTIONS["and"].precedence + 1))
            continue
        out += [
            (first.args[0], _COMPARISON_PRECEDENCE + 1),
            f" {FUNCTIONS[first.fn].symbol} ",
            (first.args[1], _COMPARISON_PRECEDENCE + 1),
        ]
        out += [f" {FUNCTIONS[last.fn].symbol} ", (last.args[1], _COMPARISON_PRECEDENCE + 1)]
    return out


def _write(
    x: Expr,
    axis: Callable[[int], str],
    slot: Callable[[int], str],
    names: dict[Expr, str],
    chains: bool = False,
) -> str:
    def split(e: Expr) -> list[Any]:
        if chains and isinstance(e, Apply) and e.fn == "and":
            return _chain_comparisons(e)
        return _text_parts(e, axis, slot)

    out: list[str] = []
    stack: list[Any] = list(reversed(split(x)))
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            out.append(item)
            continue
        e, least = item
        if e in names:
            out.append(names[e])
            continue
        parts = split(e)
        if _precedence(e) < least:
            parts = ["(", *parts, ")"]
        stack.extend(reversed(parts))
    return "".join(out)


def show_expressions(roots: Sequence[Expr], axes: Sequence[str], slots: Sequence[str]) -> list[str]:
    """Return expressions expanded in full, in the formula language's syntax, with adjoining comparisons chained."""
    return [_write(r, axes.__getitem__, slots.__getitem__, {}, True) for r in roots]


def _write_with_names(
    roots: Sequence[Expr], axes: Sequence[str] | None, slots: Sequence[str] | None, rank: int | None = None
) -> list[str]:
    """Return the roots' texts; where sharing would make them explode, `where t0 = ...` is appended to the last."""

    def axis(n: int) -> str:
        if axes is not None and n < len(axes):
            return axes[n]
        return f"i{n}" if rank is None or n < rank else f"r{n - rank}"

    def slot(n: int) -> str:
        return slots[n] if slots is not None and n < len(slots) else f"x{n}"

    order = list(postorder(roots))
    size: dict[Expr, int] = {}
    uses: Counter[Expr] = Counter()
    for e in order:
        size[e] = 1 + sum(size[a] for a in e.args)
        uses.update(e.args)
    names: dict[Expr, str] = {}
    tail: list[str] = []
    if sum(size[r] for r in roots) > _MAX_TREE_NODES:
        for e in order:
            if uses[e] > 1 and e.args and len(e.args) + size[e] > 4:
                tail.append(f"t{len(names)} = {_write(e, axis, slot, names)}")
                names[e] = f"t{len(names)}"
    out = [names[r] if r in names else _write(r, axis, slot, names) for r in roots]
    if tail:
        out[-1] += " where " + "; ".join(tail)
    return out


# ------------------------------------------------------------------------------------------------------ templates


def _show_type(dtype: DType, shape: tuple[int, ...]) -> str:
    return f"{dtype.name}[{', '.join(map(str, shape))}]"


def _show_results(t: Template) -> str:
    return ", ".join(_show_type(d, t.shape) for d in t.dtypes)


def _axis_names(rank: int, n: int, axes: Sequence[str] | None) -> list[str]:
    names = list(axes or ())[:n]
    return names + [f"i{d}" if d < rank else f"r{d - rank}" for d in range(len(names), n)]


def _show_reduce(r: Reduce, rank: int | None, axes: Sequence[str] | None, slots: Sequence[str] | None) -> str:
    if rank is None:
        return f"{r.combiner}[{', '.join(map(str, r.extents))}]({'; '.join(_write_with_names(r.bodies, axes, slots))})"
    names = _axis_names(rank, rank + len(r.extents), axes)[rank:]
    return f"{r.combiner}[{', '.join(names)}]({'; '.join(_write_with_names(r.bodies, axes, slots, rank))})"


def _show_extents(names: Sequence[str], extents: Sequence[int]) -> str:
    return "  # " + ", ".join(f"{a} < {n}" for a, n in zip(names, extents, strict=True)) if names else ""


def _show_piece(p: Piece, name: str, axes: Sequence[str] | None, slots: Sequence[str] | None) -> str:
    rank = len(p.extents)
    names = _axis_names(rank, len(p.domain), axes)
    index = []
    for a, offset, step in zip(names[:rank], p.offset, p.step, strict=True):
        index.append((a if step == 1 else f"{step}*{a}") + (f" + {offset}" if offset else ""))
    if isinstance(p.body, Reduce):
        right = _show_reduce(p.body, rank, axes, slots)
    else:
        right = _write_with_names([p.body], axes, slots, rank)[0]
    return f"{name}[{', '.join(index)}] = {right}{_show_extents(names, p.domain)}"


def _show_scatter(s: Scatter, name: str, axes: Sequence[str] | None, slots: Sequence[str] | None) -> str:
    names = _axis_names(len(s.extents), len(s.extents), axes)
    *index, body = _write_with_names([*s.index, s.body], axes, slots)
    return f"{name}[{', '.join(index)}] {SCATTERED[s.combiner]} {body}{_show_extents(names, s.extents)}"


def show_statements(
    t: Template, name: str, slots: Sequence[str] | None = None, axes: Sequence[str] | None = None
) -> list[str]:
    """Return one line for each piece or scatter of a template whose output is called `name`."""
    return [
        _show_scatter(p, name, axes, slots) if isinstance(p, Scatter) else _show_piece(p, name, axes, slots)
        for p in t.parts
    ]


def _show_template(t: Template, axes: Sequence[str] | None, slots: Sequence[str] | None) -> str:
    names = [slots[n] if slots is not None and n < len(slots) else f"x{n}" for n in range(len(t.params))]
    params = ", ".join(f"{n}: {_show_type(d, s)}" for n, (d, s) in zip(names, t.params, strict=True))
    return "\n  ".join([f"({params}) -> {_show_results(t)}:", *show_statements(t, "out", slots, axes)])


def _show_recurrence(node: Recurrence, name: str, args: Sequence[str]) -> list[str]:
    """Return a line for the steps, then the members' statements; the first axis of a step's statement is time."""
    steps = f"{node.steps - 1} .. 0" if node.reverse else f"0 .. {node.steps - 1}"
    lines = [f"{name} = for {steps}:"]
    slots = [*args, *(f"{name}.{j}" for j in range(len(node.members)))]
    for j, t in enumerate(node.members):
        lines += ["  " + line for line in show_statements(t, f"{_show_results(t)} {name}.{j}", slots)]
    return lines


def _show_loop(node: LoweredLoop, name: str, args: Sequence[str]) -> list[str]:
    """Return a loop as lines: a head, the members' initial values, then the graph of a step of each segment.

    The tensors of a step's graph have names of their own; t is the number of the step.
    """
    members = [f"{name}.{j}" for j in range(len(node.results))]
    lines = [f"{name} = loop{', of each segment the last step first' if node.reverse else ''}:"]
    for j, t, slots in node.initial:
        own = show_statements(t, f"{_show_results(t)} {members[j]}", [args[k] for k in slots])
        lines += ["  " + line for line in own]
    for segment in node.segments:
        lines += ["  " + line for line in _show_segment(segment, members, args)]
    return lines


def _show_segment(s: LoopSegment, members: Sequence[str], args: Sequence[str]) -> list[str]:
    """Return the steps of a segment as lines; tensors outside of them are called outer."""
    bounds = [f" from {args[s.first]}"] if s.first is not None else []
    bounds += [f" before {args[s.stop]}"] if s.stop is not None else []
    bounds += [f", part {s.part[0] + 1} of {s.part[1]}"] if s.part[1] > 1 else []
    lines = [f"{s.steps} steps{''.join(bounds)}:"]
    for n, p in enumerate(s.places):
        source = args[p.number] if p.kind == "argument" else members[p.number]
        lines.append(f"  in{n} = outer {source}{_show_place(p)}")
    lines += [f"  {line}" for line in show_graph(s.body).splitlines()[1:-1]]  # without its inputs and outputs
    names = tensor_names(s.body)
    for t, (j, first) in zip(s.body.outputs, s.targets, strict=True):
        lines.append(
            f"  outer {members[j]}{_show_place(InputPlace('member', j, first, s.rows or 1, s.rows))} <- {names[t]}"
        )
    return lines


def _show_place(place: InputPlace) -> str:
    """Return the part of a tensor that a loop's step reads, as text: an index or a slice of its first dimension."""

    def index(n: int) -> str:
        turn = "" if not place.stride else "t" if place.stride == 1 else f"{place.stride}*t"
        return f"{turn} {'-' if n < 0 else '+'} {abs(n)}" if turn and n else turn or str(n)

    if place.first is None:
        return ""
    stop = f" : {index(place.first + place.rows)}" if place.rows else ""
    return f"[{index(place.first)}{stop}]"


# --------------------------------------------------------------------------------------------------------- graphs


def tensor_names(g: Graph) -> dict[Node, str]:
    """Return the name of each node in `show_graph`: in0, in1, ... for inputs, t0, t1, ... for computed nodes, t0.1 for
    a result."""
    names: dict[Node, str] = {x: f"in{n}" for n, x in enumerate(g.inputs)}
    for node in postorder(g.roots):
        if isinstance(node, Item):
            names[node] = f"{names[node.node]}.{node.member}"
        elif node not in names:
            names[node] = f"t{len(names) - len(g.inputs)}"
    return names


def show_graph(g: Graph) -> str:
    """Return a graph as text: one line a tensor, in evaluation order, under the names of `tensor_names`."""
    names = tensor_names(g)
    lines = ["inputs " + ", ".join(f"{names[x]}: {_show_type(x.dtype, x.shape)}" for x in g.inputs)]
    for node in postorder(g.roots):
        if names[node].startswith("in") or isinstance(node, Item):
            continue
        if isinstance(node, Recurrence):
            lines += _show_recurrence(node, names[node], [names[a] for a in node.args])
        elif isinstance(node, LoweredLoop):
            lines += _show_loop(node, names[node], [names[a] for a in node.args])
        elif isinstance(node, Compute):
            slots = [names[a] for a in node.args]
            lines += show_statements(node.template, f"{_show_results(node.template)} {names[node]}", slots)
        else:
            lines.append(f"{names[node]} = {show(node)}  # not an input of the graph")
    lines += [f"check {names[t]} == 0: {message}" for t, message in g.checks]
    lines += [f"update {names[p]} <- {names[t]}" for p, t in g.updates]
    lines.append("return " + ", ".join(names[t] for t in g.outputs))
    return "\n".join(lines)


Node._show = show
