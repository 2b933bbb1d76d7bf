"""Verify the rules of the IR: `verify_template` and `verify_graph` raise VerifyError, or BoundsError for a read."""

from __future__ import annotations

from math import prod
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import BoundsError, DtypeError, FormulaError, RecurrenceError, VerifyError
from einsmith.base.symbolic import gcd
from einsmith.ir.analysis.bounds import bounds
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.in_bounds import out_of_bounds
from einsmith.ir.analysis.linear import linear
from einsmith.ir.analysis.widths import find_overflow
from einsmith.ir.functions import FUNCTIONS, SELECTIONS
from einsmith.ir.loop import LoweredLoop
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
    apply,
    cast,
    has_no_reduction_axis,
    postorder,
)
from einsmith.ir.printer import show
from einsmith.ir.recurrence.define import at_step, step_groups, step_parts


def verify_template(t: Template) -> None:
    """Raise VerifyError, BoundsError, or FormulaError (integers exceed int64) where a template breaks a rule.

    Checked once per template.

    The rules: the pieces cover the output, each position once; types agree; axes and slots exist; reads are in bounds;
    integers over axes lie in their types; no max, min, argmax or argmin runs over an empty box.
    """
    fault = t.memo("verify", _find_fault)
    if fault is not None:
        raise type(fault)(*fault.args)


def _find_fault(t: Template) -> Exception | None:
    try:
        _verify_parts(t)
        for part in t.parts:
            _verify_body(t, part)
        for unproven in out_of_bounds(t):
            return BoundsError(unproven.message())
        overflow = find_overflow(t)
        if overflow is not None:
            e, (lo, hi) = overflow
            kind = FormulaError if e.dtype is dt.i64 else VerifyError  # narrower integers are widened
            return kind(f"{show(e)} has the range {lo} .. {hi}, which exceeds its type {e.dtype}")
    except (VerifyError, BoundsError) as error:
        return error
    return None


def _verify_parts(t: Template) -> None:
    if any(n < 0 for n in t.shape):
        raise VerifyError(f"negative extent in the shape {t.shape}")
    pieces = t.parts[:-1] if t.is_scatter else t.parts
    if t.is_scatter and not pieces:
        return
    for p in pieces:
        if not isinstance(p, Piece):
            raise VerifyError("a template has one scatter at most, as its last part")
        if t.is_scatter and isinstance(p.body, Reduce):
            raise VerifyError(f"a scatter starts from a value without reductions: {show(p)}")
        if not len(p.offset) == len(p.step) == len(p.extents) == t.rank:
            raise VerifyError(f"a piece of rank {len(p.extents)} in an output of rank {t.rank}")
        for o, s, n, size in zip(p.offset, p.step, p.extents, t.shape, strict=True):
            if s < 1 or n < 0 or o < 0 or (n and o + s * (n - 1) >= size):
                raise VerifyError(f"the piece {o} + {s}*i, i < {n}, exceeds the extent {size}")
    full = [p for p in pieces if isinstance(p, Piece) and 0 not in p.extents]
    covered = sum(prod(p.extents) for p in full)
    if covered != prod(t.shape):
        raise VerifyError(f"the pieces write {covered} elements of an output of {prod(t.shape)}: {show(t)}")
    for n, p in enumerate(full):
        for q in full[:n]:
            if all(map(progressions_meet, p.offset, p.step, p.extents, q.offset, q.step, q.extents)):
                raise VerifyError(f"two pieces write the same element: {show(q)}  and  {show(p)}")


def progressions_meet(o1: int, s1: int, n1: int, o2: int, s2: int, n2: int) -> bool:
    """Return whether o1 + s1*i = o2 + s2*j for some i < n1, j < n2."""
    g = gcd(s1, s2)
    if (o2 - o1) % g:
        return False
    # The common positions are `first` and every lcm(s1, s2) from it (Chinese remainder theorem).
    i = (o2 - o1) // g * pow(s1 // g, -1, s2 // g) % (s2 // g)
    first, period = o1 + s1 * i, s1 // g * s2
    low, high = max(o1, o2), min(o1 + s1 * (n1 - 1), o2 + s2 * (n2 - 1))
    return first + max(0, -(-(low - first) // period)) * period <= high


def _verify_body(t: Template, part: Piece | Scatter) -> None:
    body = part.body
    if any(n < 0 for n in part.domain):
        raise VerifyError(f"negative extent in the domain {part.domain}")
    if isinstance(body, Reduce):
        if any(b.dtype.is_bool for b in body.bodies):
            raise VerifyError(f"{body.combiner} of a condition: {show(body)}")
        if any(b.dtype.in_memory_only for b in body.bodies):
            raise VerifyError(f"{body.combiner} in a storage type, {body.dtypes[0]}: {show(body)}")
        if 0 in body.extents and 0 not in part.extents and body.combiner not in ("sum", "prod"):
            raise VerifyError(f"{body.combiner} over nothing: {show(part)}")
        if body.combiner.startswith("arg") and prod(body.extents) > 2**31:
            raise VerifyError(f"{body.combiner} over {prod(body.extents)} elements exceeds int32: {show(part)}")
        if body.combiner in SELECTIONS:
            _verify_rank(t, part, body)
    if isinstance(part, Scatter):
        if len(part.index) != t.rank or not all(i.dtype.is_int for i in part.index):
            raise VerifyError(f"a scatter needs {t.rank} integer indices: {show(part)}")
        if part.body.dtype.is_bool or part.body.dtype.in_memory_only:
            raise VerifyError(f"a scatter of {part.body.dtype}: {show(part)}")
    for e in postorder(part.bodies):
        _verify_node(t, part, e)


def _verify_rank(t: Template, part: Piece | Scatter, body: Reduce) -> None:
    rank = body.bodies[1]
    if not has_no_reduction_axis(rank, t.rank):
        raise VerifyError(f"the rank of {body.combiner} depends on the axes that are reduced: {show(part)}")
    low, high = bounds(rank, part.domain)
    if 0 not in part.extents and (low is None or high is None or low < 0 or high >= prod(body.extents)):
        raise VerifyError(f"a rank of {body.combiner} may leave 0 .. {prod(body.extents) - 1}: {show(part)}")


def _verify_node(t: Template, part: Piece | Scatter, e: Any) -> None:
    if isinstance(e, Axis):
        if not 0 <= e.position < len(part.domain):
            raise VerifyError(f"axis {e.position} in a domain of {len(part.domain)} axes: {show(part)}")
    elif isinstance(e, Read):
        if not 0 <= e.slot < len(t.params):
            raise VerifyError(f"{show(e)} reads argument {e.slot} of {len(t.params)}")
        dtype, shape = t.params[e.slot]
        if e.dtype is not dtype or len(e.index) != len(shape):
            raise VerifyError(f"{show(e)} is {e.dtype}, rank {len(e.index)}; its argument is {dtype} {shape}")
        if not all(i.dtype.is_int for i in e.index):
            raise VerifyError(f"{show(e)} has an index that is no integer")
    elif isinstance(e, Apply):
        spec = FUNCTIONS.get(e.fn)
        if spec is None or len(e.args) != spec.arity:
            raise VerifyError(f"no function {e.fn} of {len(e.args)} arguments")
        try:
            expected = e.dtype if e.fn == "cast" else spec.rule(*(a.dtype for a in e.args))
        except DtypeError as error:
            raise VerifyError(f"{show(e)}: {error}") from None
        if expected is not e.dtype:
            raise VerifyError(f"{show(e)} has type {e.dtype}, its arguments give {expected}")
    elif isinstance(e, Const):
        if e.dtype.is_int and not e.dtype.range[0] <= e.value <= e.dtype.range[1]:
            raise VerifyError(f"the constant {e.value} does not fit {e.dtype}")
    else:
        raise VerifyError(f"a {type(e).__name__} inside a body: {show(part)}")


def verify_recurrence(node: Recurrence) -> None:
    """Raise VerifyError or BoundsError where a recurrence breaks a rule (see `Recurrence`).

    The rules: each template is valid; each piece lies in the window of steps or outside of it; each value read is
    evaluated earlier.
    """
    for j, t in enumerate(node.members):
        verify_template(t)
        if len(t.dtypes) != 1 or t.is_scatter or not t.shape:
            raise VerifyError(
                f"member {j} of a recurrence needs one result, at least one axis and no scatter: {show(t)}"
            )
        first, steps = node.origins[j], step_parts(node, j)
        for p in t.parts:
            assert isinstance(p, Piece)
            if p in steps:
                if (p.offset[0], p.step[0], p.extents[0]) != (first, 1, node.steps):
                    raise VerifyError(f"a piece of member {j} does not cover the {node.steps} steps: {show(p)}")
                continue
            last = p.offset[0] + p.step[0] * (p.extents[0] - 1)
            if p.offset[0] < first <= last:
                raise VerifyError(f"a piece of member {j} covers only a part of the steps: {show(p)}")
            if any(isinstance(e, Read) and e.slot >= len(node.args) for e in postorder(p.bodies)):
                raise VerifyError(f"an initial value of member {j} reads a member: {show(p)}")
    try:
        groups = step_groups(node)
        for group, cyclic in groups:
            if cyclic:
                at_step(node, group)
    except RecurrenceError as error:
        raise VerifyError(f"members read each other within a step: {error}") from None
    cyclic_with = {j: group for group, _ in groups for j in group}
    for j in range(len(node.members)):
        for p in step_parts(node, j):
            for read, facts in reads_under(p):
                i = read.slot - len(node.args)
                if i >= 0 and not facts.prove(_build_evaluated_condition(node, i, read, i < j or i in cyclic_with[j])):
                    raise VerifyError(f"member {j} reads {show(read)} of member {i} before it is evaluated")


def _build_evaluated_condition(node: Recurrence, i: int, read: Read, same: bool) -> Expr:
    """Return the condition that a read of member i in step Axis(0) is of an earlier step, of this one if `same`, or of
    an initial value."""
    at = linear(read.index[0]) - node.origins[i]
    step, position = cast(Axis(0), dt.i64), at.expr(dt.i64)
    before = (step, position) if node.reverse else (position, step)
    initial = (
        apply("le", Const(node.steps, dt.i64), position)
        if not node.reverse
        else apply("lt", position, Const(0, dt.i64))
    )
    return apply("or", apply("le" if same else "lt", *before), initial)


def verify_graph(g: Graph) -> None:
    """Raise VerifyError or BoundsError where a graph breaks a rule.

    The rules: every template is valid; every leaf is an input; outputs, updates and checks have the required types and
    shapes.
    """
    inputs = set(g.inputs)
    if len(inputs) != len(g.inputs):
        raise VerifyError("an input is listed twice")
    for node in postorder(g.roots):
        if isinstance(node, Leaf):
            if node not in inputs:
                raise VerifyError(f"{show(node)} is read but is not an input of the graph")
        elif isinstance(node, Item):
            if not 0 <= node.member < len(node.node.results):
                raise VerifyError(f"{show(node)} takes a result that does not exist")
        elif isinstance(node, Compute):
            if any(isinstance(a, Compute) and len(a.template.dtypes) != 1 for a in node.args):
                raise VerifyError(f"{show(node)} reads a node of several results; it must read an Item")
            verify_template(node.template)
        elif isinstance(node, LoweredLoop):
            for segment in node.segments:
                verify_graph(segment.body)
        elif isinstance(node, Recurrence):
            verify_recurrence(node)
        else:
            raise VerifyError(f"a {type(node).__name__} among the tensors")
    updated = set()
    for p, value in g.updates:
        if p not in inputs or p in updated:
            raise VerifyError(f"{show(p)} is no input, or is updated twice")
        updated.add(p)
        if p.shape != value.shape or p.dtype is not value.dtype:
            raise VerifyError(f"{show(p)} is updated with {value.dtype} {value.shape}")
    for t, message in g.checks:
        if t.shape != () or t.dtype is not dt.i32:
            raise VerifyError(f"the check {message!r} is {t.dtype} {t.shape}; it must be a 0-d i32")
    for out in g.outputs:
        if isinstance(out, Recurrence) or (isinstance(out, Compute) and len(out.template.dtypes) != 1):
            raise VerifyError(f"the output {show(out)} has several results; take Items of it")
