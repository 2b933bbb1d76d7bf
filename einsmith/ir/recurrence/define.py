"""Turn mutually recursive definitions into recurrences (`recurrence`), and return their steps (`step_groups`,
`at_step`).

    before   h = leaf;  {h: tanh(x[t,k] + sum[j](where(t > 0, h[t-1,j], 0) * U[j,k]))}
    after    {h: a tensor of the Recurrence that computes it}

Tensors that are not in a cycle stay, or become, ordinary tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import RecurrenceError
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.linear import LinearForm, linear, moved
from einsmith.ir.components import components
from einsmith.ir.functions import SCATTERED
from einsmith.ir.nodes import (
    DEFAULT_STEPS,
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Scatter,
    StepOptions,
    Tensor,
    apply,
    cast,
    leaf,
    postorder,
    template,
)
from einsmith.ir.rebuild import rebuild, template_over, with_args
from einsmith.ir.recurrence.component import BuiltRecurrence, Component, Illegal
from einsmith.ir.recurrence.pieces import map_piece
from einsmith.ir.recurrence.results import split_results
from einsmith.ir.rewrite.simplify import canonical


def recurrence(
    definitions: Mapping[Leaf, Tensor],
    names: Mapping[Leaf, str] | None = None,
    options: StepOptions = DEFAULT_STEPS,
) -> dict[Leaf, Tensor]:
    """Solve mutually recursive definitions: return the tensor that each placeholder (a leaf) represents in
    `definitions`.

    `names` are the placeholders' names in messages; `options` are those of the recurrences (see the node). Raises
    RecurrenceError where tensors read each other in a cycle and no axis orders the reads. An axis orders them if the
    positions read lie before (or all after) the position that reads them along it, or if the reads of one position are
    again a recurrence along another axis.
    """
    return dict(zip(definitions, solve(definitions, tuple(definitions), names, options), strict=True))


def solve(
    definitions: Mapping[Leaf, Tensor],
    roots: Sequence[Tensor],
    names: Mapping[Leaf, str] | None = None,
    options: StepOptions = DEFAULT_STEPS,
) -> list[Tensor]:
    """Return root tensors with their placeholders replaced by the tensors of `definitions`; arguments and errors as in
    `recurrence`."""
    return _Solver(definitions, roots, names or {}, options).run()


class _Solver:
    def __init__(
        self,
        definitions: Mapping[Leaf, Tensor],
        roots: Sequence[Tensor],
        names: Mapping[Leaf, str],
        options: StepOptions,
    ):
        self.definitions, self.roots, self.names, self.options = definitions, roots, names, options
        self.solved: dict[Any, Any] = {}

    def below(self, node: Any) -> Sequence[Any]:
        if node in self.definitions:
            return (self.definitions[node],)
        if isinstance(node, Compute) and 0 in node.shape:
            return ()
        return node.args

    def run(self) -> list[Tensor]:
        order: list[list[Any]] = components([*self.roots, *self.definitions.values()], self.below)
        reductions = {n for group in order if len(group) > 1 for n in group if _has_several_results(n)}
        if reductions:
            return self._split_results(reductions).run()
        self.users: dict[Any, list[Any]] = {}
        for group in order:
            for node in group:
                for a in self.below(node):
                    self.users.setdefault(a, []).append(node)
        for group in order:
            node = group[0]
            if len(group) > 1 or node in self.below(node):
                self._cycle(group)
            elif node in self.definitions:
                self.solved[node] = self.solved[self.definitions[node]]
            elif isinstance(node, Compute) and 0 in node.shape and node.args:
                self.solved[node] = Compute(template(node.shape, (), Const(0, node.dtype)), ())
            else:
                self.solved[node] = with_args(node, tuple(self.solved[a] for a in node.args)) if node.args else node
        return [self.solved[r] for r in self.roots]

    def _split_results(self, reductions: set[Compute]) -> _Solver:
        """Return this solver with each result of `reductions` as a tensor of its own, since a member is one
        tensor."""
        memo: dict[Any, Any] = {}
        split: dict[Any, list[Compute]] = {}
        for node in postorder([*self.roots, *self.definitions.values()]):
            new = with_args(node, tuple(memo[a] for a in node.args)) if node.args else node
            if node in reductions:
                split[new] = split_results(new.template, new.args)
            memo[node] = split[new.node][new.member] if isinstance(new, Item) and new.node in split else new
        definitions = {x: memo[t] for x, t in self.definitions.items()}
        return _Solver(definitions, [memo[r] for r in self.roots], self.names, self.options)

    def _cycle(self, group: list[Any]) -> None:
        """Make the nodes of a cyclic component members of a recurrence."""
        inside = set(group)
        nodes: list[Compute] = []
        for node in group:
            last = node.template.parts[-1] if isinstance(node, Compute) else None
            if isinstance(last, Scatter):
                raise RecurrenceError(
                    f"{self._name(node, inside)} accumulates with {SCATTERED[last.combiner]}, which a tensor that "
                    "reads itself cannot do",
                    "reduce over the positions, as in y[i] = sum[t](where(ids[t] == i, x[t], 0))",
                )
            if isinstance(node, Recurrence):
                raise RecurrenceError("a recurrence reads tensors that depend on it")
            if isinstance(node, Compute):
                nodes.append(node)
        number: dict[Any, int] = {n: i for i, n in enumerate(nodes)}
        for node in group:
            seen: Any = node
            while seen in self.definitions:
                seen = self.definitions[seen]
                if seen is node:
                    raise RecurrenceError(f"{self.names.get(node, 'a tensor')} is defined as itself")
            number[node] = number[seen]
        roots = set(self.roots)
        exposed = {number[n] for n in group if n in roots or any(u not in inside for u in self.users.get(n, ()))}
        built = self._choose_time_axes(Component(nodes, number, self.solved.__getitem__, exposed, self.options), inside)
        for node in group:
            self.solved[node] = built.tensors[number[node]]

    def _choose_time_axes(self, component: Component, inside: set) -> BuiltRecurrence:
        """Return the recurrence along the first axis without cycles within a step; else along the first axis whose
        cycles are recurrences themselves. An axis whose positions are independent of each other is not the time if
        there is another; it comes last in memory, so that kernels within the innermost step run along it."""
        if (unproven := component.find_unproven_index()) is not None:
            name, other = (self._name(component.nodes[n], inside) for n in unproven)
            raise RecurrenceError(
                f"{name} reads at an index that {other} computes or guards in the recurrence, and so cannot be checked "
                "before it",
                "limit the index, as in min(max(i, 0), extent-1)",
                *self._placeholders(name, other),
            )
        first: Illegal | None = None
        nested: list[tuple[int, ...]] = []
        for axes in component.propose_time_axes():
            try:
                built = component.build(axes)
            except Illegal as e:
                first = first or e
                continue
            if all(not cyclic for _, cyclic in step_groups(built.node)):
                return built
            nested.append(axes)
        inner: RecurrenceError | None = None
        times = [axes for axes in nested if component.carries(axes)]
        for axes in (*times, *(a for a in nested if a not in times)):
            built = component.build(axes, [a for a in times if a != axes])
            try:
                for group, cyclic in step_groups(built.node):
                    if cyclic:
                        at_step(built.node, group)
                return built
            except RecurrenceError as e:
                inner = e
        raise self._error(component, inside, first) from inner

    def _name(self, node: Any, inside: set) -> str:
        """Return the name of the tensor that a node is part of."""
        seen, todo = {node}, [node]
        for n in todo:
            if n in self.names:
                return self.names[n]
            todo += [u for u in self.users.get(n, ()) if u in inside and u not in seen]
            seen.update(todo)
        return "a tensor"

    def _error(self, component: Component, inside: set, why: Illegal | None) -> RecurrenceError:
        if why is None:
            name = self._name(component.nodes[0], inside)
            return RecurrenceError(f"{name} reads itself at its own position, directly or through others", hint=_HINT)
        edge = why.edge
        reader, source = component.nodes[edge.reader], component.nodes[edge.source]
        name, other = self._name(reader, inside), self._name(source, inside)
        time, hint = why.order[edge.reader], _HINT
        if edge.low is None or edge.high is None:
            where, hint = "at positions that are known only when the program runs", _HINT_OF_LAGS
        elif edge.low < 0 < edge.high:
            where = f"from {edge.high} positions before to {-edge.low} positions after, along dimension {time}"
        else:
            span = f"{-edge.high} to {-edge.low}" if edge.low < edge.high else str(-edge.low)
            where = f"{span} positions after, along dimension {time}, and at others before"
        message = f"{name} reads {other} {where}: along no axis are all reads on one side of the element"
        return RecurrenceError(message, hint, *self._placeholders(name, other))

    def _placeholders(self, *names: str) -> list[Leaf | None]:
        leaves = {n: p for p, n in self.names.items()}
        return [leaves.get(n) for n in names]


def _has_several_results(node: Any) -> bool:
    """Return whether a node is a multi-output reduction."""
    return isinstance(node, Compute) and len(node.template.dtypes) > 1


_HINT_OF_LAGS = "guard a distance that a tensor gives, as in where(lag[k] > 0 and t >= lag[k], h[t-lag[k],k], h0[k])"
_HINT = "a tensor may read itself at earlier (or later) positions of one axis, as in where(t > 0, h[t-1], h0)"


# ------------------------------------------------------------------------------------------------- within one step


def step_groups(node: Recurrence) -> tuple[tuple[tuple[int, ...], bool], ...]:
    """Return (members, whether they read each other in a cycle within a step) for each group, in order of
    evaluation."""
    below: dict[int, list[int]] = {j: [] for j in range(len(node.members))}
    for j in below:
        for read, low, high in distances(node, j).values():
            if low is None or high is None or low <= 0 <= high:
                below[j].append(read - len(node.args))
    groups = components(below, lambda j: sorted(set(below[j])))
    ordered = sorted((tuple(sorted(g)) for g in groups), key=lambda g: g[0])
    return tuple((g, len(g) > 1 or g[0] in below[g[0]]) for g in ordered)


def distances(node: Recurrence, j: int) -> dict[Read, tuple[int, int | None, int | None]]:
    """Return, for each read of a member by a step of member j, its slot and its least and largest distance in steps
    back.

    Reads of initial values are left out.
    """
    key = ("distances", node.steps, node.reverse, node.origins, len(node.args), j)
    return node.members[j].memo(key, lambda _: _distances(node, j))


def _distances(node: Recurrence, j: int) -> dict[Read, tuple[int, int | None, int | None]]:
    out: dict[Read, tuple[int, int | None, int | None]] = {}
    for part in step_parts(node, j):
        for read, facts in reads_under(part):
            i = read.slot - len(node.args)
            if i < 0:
                continue
            at = linear(read.index[0]) - node.origins[i]
            if facts.prove(outside_steps(at, node.steps)):
                continue
            low, high = facts.bounds((LinearForm(0, {Axis(0): 1}) - at).expr(dt.i64))
            if node.reverse:
                low, high = None if high is None else -high, None if low is None else -low
            if read in out:
                _, least, most = out[read]
                low = None if low is None or least is None else min(low, least)
                high = None if high is None or most is None else max(high, most)
            out[read] = read.slot, low, high
    return out


def outside_steps(at: LinearForm, steps: int) -> Expr:
    """Return the condition that a position, counted from a member's origin, lies outside all steps."""
    e = at.expr(dt.i64)
    return apply("or", apply("lt", e, Const(0, dt.i64)), apply("le", Const(steps, dt.i64), e))


def step_parts(node: Recurrence, j: int) -> list[Piece]:
    """Return the pieces of member j that are evaluated in steps; the others are initial values."""
    first = node.origins[j]
    return [p for p in node.members[j].parts if isinstance(p, Piece) and first <= p.offset[0] < first + node.steps]


def separate_reads(node: Recurrence, j: int, x: Expr) -> Expr:
    """Return an expression of a step of member j in which reads of this step's values, at the step's own position, are
    separate from reads of earlier ones."""
    known = distances(node, j)
    memo: dict[Expr, Expr] = {}
    for e in postorder([x]):
        new = with_args(e, tuple(memo[a] for a in e.args)) if e.args else e
        if isinstance(e, Read) and e in known:
            _, low, high = known[e]
            now = moved(Axis(0), node.origins[e.slot - len(node.args)])
            same = Read(e.slot, (now, *new.args[1:]), e.dtype)
            if low == high == 0:
                new = same
            elif low is None or low <= 0:
                here = apply("eq", cast(new.args[0], dt.i64), cast(now, dt.i64))
                new = Apply("where", (here, same, new), e.dtype)
        memo[e] = new
    return memo[x]


@dataclass(frozen=True)
class Step:
    """One step of members that read each other within it.

    tensors: the value of each member in terms of the recurrence's arguments, `step` and `wholes`; step: the number of
    the step (0-d i32); wholes: each member, filled up to this step.
    """

    step: Leaf
    wholes: tuple[Leaf, ...]
    args: tuple[Leaf, ...]
    tensors: tuple[Tensor, ...]


def at_step(node: Recurrence, group: tuple[int, ...]) -> Step:
    """Return one step of a group of members that is cyclic within a step. Raises RecurrenceError where the group is no
    recurrence along another axis."""
    others = b"".join(t.digest for t in node.members).hex()
    key = f"step {group} of {node.steps} {node.reverse} {node.origins} {others}"
    return node.members[group[0]].memo(key, lambda _: _at_step(node, group))


def _at_step(node: Recurrence, group: tuple[int, ...]) -> Step:
    step = leaf((), dt.i32)
    args = tuple(leaf(a.shape, a.dtype) for a in node.args)
    wholes = tuple(leaf(s, d) for d, s in node.results)
    own = {j: leaf(node.results[j][1][1:], node.results[j][0]) for j in group}
    tensors = (*args, *wholes, step, *own.values())
    now = Read(len(args) + len(wholes), (), dt.i32)
    slices = {len(args) + j: len(args) + len(wholes) + 1 + n for n, j in enumerate(own)}

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Axis):
            return Axis(e.position - 1) if e.position else now
        if isinstance(e, Read) and e.slot in slices:
            at = linear(e.index[0]) - LinearForm(node.origins[e.slot - len(args)], {now: 1})
            return None if at.terms or at.const else Read(slices[e.slot], e.index[1:], e.dtype)
        return None

    definitions: dict[Leaf, Tensor] = {}
    for j in group:
        parts = []
        for p in step_parts(node, j):
            q = map_piece(p, lambda b: rebuild([separate_reads(node, j, b)], rule)[0])  # noqa: B023
            parts.append(Piece(q.offset[1:], q.step[1:], q.extents[1:], q.body))
        definitions[own[j]] = canonical(template_over(tensors, node.results[j][1][1:], parts), tensors)
    solved = recurrence(definitions)
    return Step(step, wholes, args, tuple(solved[own[j]] for j in group))
