"""Branches, loops and sequences. Branches that depend on shapes and constants are resolved during compilation. Loops
whose steps have equal shapes are recurrences: compile time does not depend on the number of steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, RecurrenceError, ShapeError, TraceError
from einsmith.frontends.onnx.binding import Axis, Int, resolve_axis
from einsmith.frontends.onnx.evaluate import MOST_EXTENT, NodeCall, Several
from einsmith.frontends.onnx.long_loops import LongLoopError
from einsmith.frontends.onnx.nodes import OnnxGraph, every_node, needs_unrolling
from einsmith.frontends.onnx.operators.randomness import RANDOM
from einsmith.frontends.onnx.scan import scan
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.frontends.onnx.types import ELEMENTS
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

MOST_STEPS = 1000
"""Most steps of a loop that are unrolled."""
MOST_MASKED, MOST_BYTES = 2**14, 2**28
"""Most steps, and most bytes of their states, of a loop in a program whose end depends on values: all are run and
stored."""


@onnx("If", static=(0,))
def if_(n: NodeCall, condition: Value) -> Several:
    """then_branch or else_branch; both are computed, and selected by where, unless the condition is known during
    compilation"""
    holds = n.known(condition)
    branches = [n.body(b, 0, len(n.node.outputs)) for b in ("then_branch", "else_branch")]
    if holds is not None:
        return Several(n.evaluate(branches[not _is_true(holds, "the condition of If")], {}))
    first, second = (n.evaluate(b, {}) for b in branches)
    for a, b in zip(first, second, strict=True):
        if not isinstance(a, Value) or not isinstance(b, Value) or a.shape != b.shape:
            raise TraceError(
                "the branches of If give different shapes, but the condition is known only when the program runs"
            )
    c = condition.reshape(())
    return Several(builder.where(c, a, b).astype(a.dtype) for a, b in zip(first, second, strict=True))


def _is_true(values: np.ndarray, what: str) -> bool:
    if values.size != 1:
        raise ShapeError(f"{what} must be one truth value, not of shape {values.shape}")
    return bool(values.reshape(-1)[0])


def _random(body: OnnxGraph) -> bool:
    return any(node.operator in RANDOM for node in every_node(body))


@onnx("Loop", static=(0,))
def loop(n: NodeCall, count: Value | None, condition: Value | None, *states: Any) -> Several:
    """states after the last of at most `count` steps, and each step's outputs: a recurrence, or unrolled if shapes
    differ between steps or the condition is known"""
    body = n.body("body", 2 + len(states), max(1 + len(states), 1 + len(n.node.outputs)))
    most = None if count is None else n.integer(count, "the trip count of Loop")
    begins = None if condition is None else n.known(condition)
    if begins is not None and not _is_true(begins, "the condition of Loop"):
        most = 0
    tensors = all(isinstance(s, Value) for s in states)
    uniform = tensors and not needs_unrolling(body) and not _random(body)
    if uniform and (most is None or most > 1 or (most == 1 and begins is None and condition is not None)):
        try:
            return _recurrence(n, body, most, condition, list(states))
        except (RecurrenceError, ShapeError, _OutputsDiffer):
            pass
        except LongLoopError as e:
            try:
                return _written_out(n, body, most, condition, list(states))
            except TraceError:
                raise e from None
    return _written_out(n, body, most, condition, list(states))


class _OutputsDiffer(Exception):
    """The number of a loop's steps, and so of its outputs, is known only when the program runs."""


def _step(
    n: NodeCall, body: OnnxGraph, number: Value, on: Value, states: list[Any]
) -> tuple[Value, list[Any], list[Any]]:
    """Evaluate a step of a loop: (condition for the next step, states, outputs)."""
    values = dict(zip((i.name for i in body.inputs), (number, on, *states), strict=True))
    goes_on, *results = n.evaluate(body, values)
    return goes_on, results[: len(states)], results[len(states) :]


def _recurrence(
    n: NodeCall, body: OnnxGraph, most: int | None, condition: Value | None, states: list[Value]
) -> Several:
    true = builder.full((), True, dt.bool_)
    start = true if condition is None else condition.reshape(())
    always = True

    def step(number: Value, carried: list[Value], _: list[Value]) -> tuple[list[Value], list[Value]]:
        nonlocal always
        on = carried[-1] if masked else true
        goes_on, after, outputs = _step(n, body, number, on, carried[: len(states)])
        known = n.known(goes_on)
        if goes_on is not on and not (known is not None and known.all()):
            always = False
        if not masked:
            return after, outputs
        if outputs:
            raise _OutputsDiffer
        kept = [builder.where(on, a, b).astype(b.dtype) for a, b in zip(after, carried, strict=False)]
        return [*kept, on & goes_on.reshape(())], []

    known = n.known(start)
    masked = not (known is not None and known.all())
    bounded = most is not None and most <= MOST_EXTENT
    if not masked:
        last, outputs = scan(step, states, [], most if bounded and most else 2)
        masked = not always
        if always and bounded:
            return Several([*last, *outputs])
    if masked and len(body.outputs) == 1 + len(states):
        _refuse_long(n, most, states)
    if most is None or not bounded:
        raise RecurrenceError("a loop of that many steps is no recurrence")
    last, outputs = scan(step, [*states, start], [], most)
    return Several([*last[: len(states)], *outputs])


def _refuse_long(n: NodeCall, most: int | None, states: list[Value]) -> None:
    """Raise LongLoopError if the program would reserve too much memory for a loop whose end depends on values."""
    size = sum(s.size * s.dtype.bits // 8 for s in states)
    if most is None or most > MOST_MASKED or most * size > MOST_BYTES:
        raise LongLoopError(
            f"the end of this Loop depends on values, and it may take {most or 'any number of'} steps, for each of "
            f"which a program reserves {size:,} bytes; call the network on arrays, outside of traced functions and "
            f"training steps, where it takes no such memory, or write a trip count of at most {MOST_MASKED}",
            n.node,
        )


def _written_out(n: NodeCall, body: OnnxGraph, most: int | None, condition: Value | None, states: list[Any]) -> Several:
    on: Any = builder.full((), True, dt.bool_) if condition is None else condition
    rows: list[list[Any]] = []
    t = 0
    while most is None or t < most:
        known = n.known(on)
        if known is None:
            raise TraceError(
                "the number of steps of a Loop is known only when the program runs; make it depend on shapes and "
                "constants only, or give a trip count and no outputs per step"
            )
        if not _is_true(known, "the condition of Loop"):
            break
        if t >= MOST_STEPS:
            raise TraceError(f"a loop whose steps differ in shapes is unrolled for at most {MOST_STEPS} steps")
        on, states, outputs = _step(n, body, n.constant(t, dt.i64), on, states)
        rows.append(outputs)
        t += 1
    if not rows:
        shapes: Any = [body.shapes.get(name, (None,)) for name in body.outputs[1 + len(states) :]]
        if any(not isinstance(e, int) for shape in shapes for e in shape):  # those of a step that does not run
            shapes = [y.shape for y in _step(n, body, n.constant(0, dt.i64), on, states)[2]]
        kinds = [ELEMENTS[body.types[name]].dtype for name in body.outputs[1 + len(states) :]]
        return Several([*states, *(builder.full((0, *s), 0, k) for s, k in zip(shapes, kinds, strict=True))])
    return Several([*states, *(F.stack(list(column), 0) for column in zip(*rows, strict=True))])


@onnx("Scan")
def scan_(n: NodeCall, *inputs: Value) -> Several:
    """states after the last step, and each step's outputs, over slices of inputs along an axis: a recurrence"""
    count = len(inputs) - (n.version < 9)
    states = count - n.attr("num_scan_inputs")
    if states < 0:
        raise ArgumentError(
            f"Scan has {count} inputs, but num_scan_inputs={n.attr('num_scan_inputs')} of them are scanned"
        )
    body = n.body("body", count, max(states, len(n.node.outputs)))
    if n.version < 9:
        return _with_batch(n, body, *inputs)
    return Several(_scan(n, body, inputs))


def _scan(n: NodeCall, body: OnnxGraph, inputs: Any) -> list[Value]:
    m = n.attr("num_scan_inputs")
    states, xs = list(inputs[: len(inputs) - m]), list(inputs[len(inputs) - m :])
    k = len(body.outputs) - len(states)
    if n.version < 9:
        axes, out_axes = (0,) * m, (0,) * k
        backward, out_backward = n.per_dimension("directions", m, 0), (0,) * k
    else:
        axes, out_axes = n.per_dimension("scan_input_axes", m, 0), n.per_dimension("scan_output_axes", k, 0)
        backward = n.per_dimension("scan_input_directions", m, 0)
        out_backward = n.per_dimension("scan_output_directions", k, 0)
    rows = []
    for x, a, r in zip(xs, axes, backward, strict=True):
        d = resolve_axis(a, x.ndim)
        x = F.movedim(x, d, 0) if d else x
        rows.append(F.flip(x, 0) if r else x)
    steps = rows[0].shape[0]
    if any(x.shape[0] != steps for x in rows):
        raise ShapeError(f"Scan: inputs of shapes {[x.shape for x in xs]} differ in their numbers of steps")
    names = [i.name for i in body.inputs]

    def step(number: Any, carried: list[Value], slices: list[Value]) -> tuple[list[Value], list[Value]]:
        results = n.evaluate(body, dict(zip(names, (*carried, *slices), strict=True)))
        return results[: len(states)], results[len(states) :]

    try:
        if steps < 2 or needs_unrolling(body) or _random(body):
            raise RecurrenceError("written out")
        last, outputs = scan(step, states, rows, steps)
    except (RecurrenceError, ShapeError):
        if not 0 < steps <= MOST_STEPS:
            raise
        columns, last = [], states
        for t in range(steps):
            last, outs = step(None, last, [x[t] for x in rows])
            columns.append(outs)
        outputs = [F.stack(list(column), 0) for column in zip(*columns, strict=True)]
    turned = []
    for y, a, r in zip(outputs, out_axes, out_backward, strict=True):
        d = resolve_axis(a, y.ndim)
        y = F.flip(y, 0) if r else y
        turned.append(F.movedim(y, 0, d) if d else y)
    return [*last, *turned]


def _with_batch(n: NodeCall, body: OnnxGraph, lengths: Value | None, *inputs: Value) -> Several:
    """Evaluate Scan of operator set 8, with a batch as first dimension and sequences of one length."""
    if lengths is not None:
        raise ArgumentError(
            "Scan of operator set 8 with sequence_lens is not supported; later operator sets have no sequence_lens"
        )
    columns = [_scan(n, body, [x[b] for x in inputs]) for b in range(inputs[0].shape[0])]
    return Several(F.stack(list(c), 0) for c in zip(*columns, strict=True))


# ---------------------------------------------------------------------------------------------------------- sequences


def _find_place(k: int | None, length: int, end: bool = False) -> int:
    """Return a place in a sequence, the last one for None. end: whether the place behind the last one is one."""
    if k is None:
        return length if end else length - 1
    if not -length <= k < length + end:
        raise ShapeError(f"position {k} is outside a sequence of {length}")
    return k + length if k < 0 else k


enter("SequenceConstruct", "a sequence of the tensors", lambda *x: list(x))
enter("SequenceEmpty", "an empty sequence", lambda: [])
enter("SequenceLength", "the length of a sequence", lambda n, s: n.constant(len(s), dt.i64))


@onnx("SequenceAt")
def sequence_at(s: list[Value], place: Int) -> Value:
    """a tensor of a sequence"""
    return s[_find_place(place, len(s))]


@onnx("SequenceInsert")
def sequence_insert(s: list[Value], x: Value, place: Int = None) -> list[Value]:
    """a sequence with a tensor inserted"""
    k = _find_place(place, len(s), True)
    return [*s[:k], x, *s[k:]]


@onnx("SequenceErase")
def sequence_erase(s: list[Value], place: Int = None) -> list[Value]:
    """a sequence with a tensor removed"""
    k = _find_place(place, len(s))
    return [*s[:k], *s[k + 1 :]]


@onnx("ConcatFromSequence")
def concat_from_sequence(s: list[Value], *, axis: int, new_axis: int = 0) -> Value:
    """the tensors of a sequence, concatenated along an axis or stacked along a new one"""
    d = resolve_axis(axis, s[0].ndim + new_axis)
    return F.stack(s, d) if new_axis else F.cat(s, d) if len(s) > 1 else s[0]


@onnx("SplitToSequence", static=(1,))
def split_to_sequence(
    n: NodeCall, x: Value, sizes: Value | None = None, *, axis: Axis = 0, keepdims: int = 1
) -> list[Value]:
    """x split along an axis, as a sequence"""
    extent = x.shape[axis]
    if sizes is None or not sizes.ndim:
        each = 1 if sizes is None else n.integer(sizes, "the size of SplitToSequence", 1)
        n.table((-(-extent // each),), "SplitToSequence")
        parts = [min(each, extent - k) for k in range(0, extent, each)]
    else:
        parts = list(n.ints(sizes, "sizes of SplitToSequence", 0))
    if sum(parts) != extent:
        raise ShapeError(
            f"SplitToSequence: parts of {parts[:8]} do not add up to {extent}, the extent along axis {axis}"
        )
    out = F.split(x, parts, axis) if parts else ()
    return [v if sizes is not None or keepdims else F.squeeze(v, axis) for v in out]


enter("Optional", "x, which may be missing", lambda x=None: x)
enter("OptionalGetElement", "x; an error if it is missing", lambda x: x)
enter("OptionalHasElement", "true if x is present", lambda n, x=None: n.constant(x is not None, dt.bool_))
