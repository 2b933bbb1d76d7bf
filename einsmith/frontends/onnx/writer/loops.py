"""Write recurrences as the operator Loop.

The states of the loop are the rows of the members that later steps read, h[t-1] and so on; each step's rows are outputs
of the loop, which stacks them. A member that is read at positions which are not a fixed number of steps back is a state
as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx import helper

from einsmith.base import dtypes as dt
from einsmith.base.errors import FormulaError
from einsmith.frontends.onnx.writer.formulas import describe, write_template
from einsmith.frontends.onnx.writer.onnx_graph import GraphWriter, element_type
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Template,
    Tensor,
    leaf,
    postorder,
    template,
)
from einsmith.ir.rebuild import map_bodies, prune_args, rebuild, types_of
from einsmith.ir.recurrence.define import Step, at_step, step_groups, step_parts

WriteTensors = Callable[[GraphWriter, Mapping[Leaf, str], Sequence[Tensor]], list[str]]


class _Rows:
    """The rows of members that a step reads. `leaves`: (member, steps back) -> the leaf that represents the row;
    `whole`: the members that are read as wholes."""

    def __init__(self, node: Recurrence, steps: Iterable[Step]):
        self.node = node
        self.whole = {j for s in steps for j in self._read_as_wholes(s)}
        self.leaves: dict[tuple[int, int], Leaf] = {}

    def _read_as_wholes(self, step: Step) -> Iterator[int]:
        for n in postorder(step.tensors):
            places = [(slot, step.wholes.index(a)) for slot, a in enumerate(n.args) if a in step.wholes]
            if not isinstance(n, Compute):
                yield from (j for _, j in places)
                continue
            reads = {e for part in n.template.parts for e in postorder(part.bodies) if isinstance(e, Read)}
            for slot, j in places:
                if any(e.slot == slot and self._steps_back(n, e, j, step) is None for e in reads):
                    yield j

    def _steps_back(self, n: Compute, e: Read, j: int, step: Step) -> int | None:
        """Return how many steps back a read of member j is; None where this is not a fixed number."""
        form = linear(e.index[0])
        if len(form.terms) != 1 or list(form.terms.values()) != [1]:
            return None
        (atom,) = form.terms
        while atom.args and not isinstance(atom, Read):
            atom = atom.args[0]  # a cast
        if not isinstance(atom, Read) or n.args[atom.slot] is not step.step:
            return None
        back = (self.node.origins[j] - form.const) * (-1 if self.node.reverse else 1)
        return back if back >= 0 else None

    def replace(self, step: Step) -> list[Tensor]:
        """Return a step's tensors in terms of rows."""

        def rule(n: Any) -> Any:
            members = {s: step.wholes.index(a) for s, a in enumerate(n.args) if a in step.wholes}
            members = {s: j for s, j in members.items() if j not in self.whole}
            if not members or not isinstance(n, Compute):
                return None
            args = [*n.args]

            def row(e: Any) -> Expr | None:
                if not isinstance(e, Read) or e.slot not in members:
                    return None
                j = members[e.slot]
                back = self._steps_back(n, e, j, step)
                assert back is not None
                dtype, shape = self.node.results[j]
                place = self.leaves.setdefault((j, back), leaf(shape[1:], dtype))
                if place not in args:
                    args.append(place)
                return Read(args.index(place), e.index[1:], e.dtype)

            bodies = {b: rebuild([b], row)[0] for part in n.template.parts for b in part.bodies}
            params = types_of(args)
            return prune_args(map_bodies(n.template, bodies.__getitem__, params), tuple(args))

        return rebuild(step.tensors, rule)


def write_recurrence(graph: GraphWriter, node: Recurrence, args: Sequence[str], write: WriteTensors) -> list[str]:
    """Write a recurrence and return the names of its members. args: names of its arguments; write: writes tensors into
    a graph, with the names of the leaves that they read."""
    (part, *_) = step_parts(node, 0)
    states = ["out", *(f"state{j}" for j in range(1, len(node.members)))]  # the part defines the first one, "out"
    before, graph.formula = graph.formula, describe(part, [*args, *states])
    try:
        return _write_loop(graph, node, args, write)
    finally:
        graph.formula = before


def _write_loop(graph: GraphWriter, node: Recurrence, args: Sequence[str], write: WriteTensors) -> list[str]:
    groups = [group for group, _ in step_groups(node)]
    steps = [at_step(node, group) for group in groups]
    rows = _Rows(node, steps)
    tensors = [rows.replace(s) for s in steps]
    members = range(len(node.members))
    back = {j: max((d for k, d in rows.leaves if k == j), default=0) for j in members}
    known = [*args, *("" for _ in members)]
    body = graph.body()
    number, going = body.unique("step"), body.unique("going")
    # The states: (member, steps back), or (member, 0) for a whole; their names in the body and their first values.
    states = [(j, d) for j in members for d in ([0] if j in rows.whole else range(1, back[j] + 1))]
    names = {s: body.unique("state") for s in states}
    first = [_first(graph, node, j, d if j not in rows.whole else None, known) for j, d in states]
    infos = [_info(node, names[s], s[0], s[0] in rows.whole) for s in states]
    inputs = [
        helper.make_tensor_value_info(number, element_type(dt.i64), []),
        helper.make_tensor_value_info(going, element_type(dt.bool_), []),
        *infos,
    ]
    at = body.node("Sub", body.number(node.steps - 1, dt.i64), number) if node.reverse else number
    position = body.cast(at, dt.i32)
    values: dict[int, str] = {}
    for group, step, rows_of_step in zip(groups, steps, tensors, strict=True):
        leaves = {**dict(zip(step.args, args, strict=True)), step.step: position}
        leaves |= {step.wholes[j]: names[j, 0] for j in rows.whole}
        leaves |= {x: values[j] if d == 0 else names[j, d] for (j, d), x in rows.leaves.items() if d or j in values}
        for j, value in zip(group, write(body, leaves, rows_of_step), strict=True):
            values[j] = value
            if j in rows.whole:
                origin = node.origins[j]
                place = body.node("Add", at, body.number(origin, dt.i64)) if origin else at
                place = body.node("Reshape", place, body.ints([1, 1], "shape"))
                row = body.node("Unsqueeze", value, body.ints([0], "axes"))
                names[j, 0] = body.node("ScatterND", names[j, 0], place, row)
    before = dict(zip(states, (i.name for i in infos), strict=True))
    after = [names[s] if s[0] in rows.whole else values[s[0]] if s[1] == 1 else before[s[0], s[1] - 1] for s in states]
    stacked = [j for j in members if j not in rows.whole]
    # Every output of a body is a name of its own.
    outputs = [body.node("Identity", x) for x in (going, *after, *(values[j] for j in stacked))]
    results = [helper.make_tensor_value_info(outputs[0], element_type(dt.bool_), [])]
    kinds = [*((j, j in rows.whole) for j, _ in states), *((j, False) for j in stacked)]
    results += [_info(node, x, j, whole) for x, (j, whole) in zip(outputs[1:], kinds, strict=True)]
    inner = helper.make_graph(body.nodes, graph.unique("step"), inputs, results)
    ends = [graph.unique("loop") for _ in kinds]
    condition = "" if first else graph.number(True, dt.bool_)  # a Loop has two inputs or more
    graph.nodes_of("Loop", [graph.number(node.steps, dt.i64), condition, *first], ends, body=inner)
    written = {j: name for (j, whole), name in zip(kinds[: len(states)], ends, strict=False) if whole}
    for j, name in zip(stacked, ends[len(states) :], strict=True):
        (written[j],) = write_template(graph, _member(node, j, known, name), [*known, name])
    return [written[j] for j in members]


def _info(node: Recurrence, name: str, j: int, whole: bool) -> Any:
    """Return the type of a member, or of one of its rows. Extents are left out, so that a body does for all."""
    dtype, shape = node.results[j]
    return helper.make_tensor_value_info(name, element_type(dtype), [None] * (len(shape) - (not whole)))


def _first(graph: GraphWriter, node: Recurrence, j: int, back: int | None, known: Sequence[str]) -> str:
    """Return the name of the row of member j that lies `back` steps ahead of the first one, or of the whole member
    (None), as they are before the first step. What the first steps do not read is zero."""
    member = _member(node, j, known)
    if back is None:
        return write_template(graph, member, known)[0]
    at = node.origins[j] + (node.steps - 1 + back if node.reverse else -back)
    shape = member.shape
    if not 0 <= at < shape[0]:
        return write_template(graph, template(shape[1:], [], Const(0, member.dtypes[0])), [])[0]
    whole = write_template(graph, member, known)
    index = (Const(at, dt.i32), *(Axis(d) for d in range(len(shape) - 1)))
    row = template(shape[1:], [(member.dtypes[0], shape)], Read(0, index, member.dtypes[0]))
    return write_template(graph, row, whole)[0]


def _member(node: Recurrence, j: int, known: Sequence[str], rows: str = "") -> Template:
    """Return member j with its initial values and, at the positions of the steps, zeros, or the rows that a loop has
    stacked, which are the last argument."""
    member, steps = node.members[j], step_parts(node, j)
    for part in member.parts:
        if not isinstance(part, Piece):
            raise FormulaError(
                "ONNX cannot express a recurrence that adds up at computed positions", describe(part, known), 0
            )
    shape, (dtype,) = member.shape, member.dtypes
    box = node.steps, *shape[1:]
    params, body = member.params, Const(0, dtype)
    if rows:
        axes: list[Expr] = [Axis(d) for d in range(len(shape))]
        if node.reverse:
            axes[0] = (linear(axes[0]) * -1 + (node.steps - 1)).expr(dt.i32)
        body = Read(len(params), tuple(axes), dtype)  # type: ignore[assignment]
        params = (*params, (dtype, box))
    origin = (node.origins[j], *(0 for _ in shape[1:]))
    window = Piece(origin, (1,) * len(shape), box, body)
    return Template(shape, params, (*(p for p in member.parts if p not in steps), window))
