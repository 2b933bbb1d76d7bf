"""Express loops as recurrences: a step, given as a function of tensors, becomes tensors with a time axis that read
themselves at the previous step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith.autodiff.batch import batch
from einsmith.base import dtypes as dt
from einsmith.base.errors import ShapeError
from einsmith.ir.nodes import Leaf, Tensor, leaf
from einsmith.ir.rebuild import rebuild
from einsmith.ir.recurrence.define import solve
from einsmith.ops.common import read
from einsmith.tracing import builder
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import current_trace

Step = Callable[[Value, list[Value], list[Value]], tuple[list[Value], list[Value]]]


def scan(step: Step, states: Sequence[Value], inputs: Sequence[Value], steps: int) -> tuple[list[Value], list[Value]]:
    """Return (the states after the last step, the outputs of all steps along a first axis).

    step(number, states, inputs) returns (the states after it, its outputs), and is called once; inputs have the steps
    along their first axis. Raises ShapeError if states change their shapes or types from step to step, and
    RecurrenceError if a step is not a formula of the previous one, for example if it is a recurrence itself.
    """
    own = [Value(leaf(v.shape, v.dtype)) for v in states]
    rows = [Value(leaf(x.shape[1:], x.dtype)) for x in inputs]
    number = Value(leaf((), dt.i64))
    trace = current_trace()
    known = len(trace.checked) if trace is not None else 0
    after, outputs = step(number, own, rows)
    for k, (a, b) in enumerate(zip(own, after, strict=True)):
        if a.shape != b.shape or a.dtype is not b.dtype:
            raise ShapeError(
                f"state {k} is {a.dtype.name}{list(a.shape)} before a step and {b.dtype.name}{list(b.shape)} after it"
            )
    checked = trace.checked[known:] if trace is not None else []
    wide = {v.tensor: leaf((steps, *v.shape), v.dtype) for v in (number, *own, *rows)}
    batched = batch([v.tensor for v in (*after, *outputs)] + checked, wide, steps)  # type: ignore[arg-type]
    # A state before a step is the state after the previous step.
    places = [leaf((steps, *v.shape), v.dtype) for v in own]
    replaced: dict[Any, Tensor] = {wide[number.tensor]: builder.compute((steps,), lambda t: t).astype(dt.i64).tensor}
    for v, first, place in zip(own, states, places, strict=True):
        replaced[wide[v.tensor]] = _before(Value(place), first).tensor
    for r, x in zip(rows, inputs, strict=True):
        replaced[wide[r.tensor]] = x.tensor
    rebuilt = rebuild(batched, replaced.get, {})
    definitions: dict[Leaf, Tensor] = dict(zip(places, rebuilt[: len(own)], strict=True))
    names = {p: f"state {k}" for k, p in enumerate(places)}
    solved = solve(definitions, (*places, *rebuilt[len(own) :]), names)
    if trace is not None:
        trace.checked[known:] = solved[len(own) + len(outputs) :]
    last = [Value(t)[steps - 1] for t in solved[: len(own)]]
    return last, [Value(t) for t in solved[len(own) : len(own) + len(outputs)]]


def _before(after: Value, first: Value) -> Value:
    def body(t: Any, *i: Any) -> Any:
        return builder.where(t > 0, after[(t - 1, *i)], read(first, i) if i else builder.Ex(builder.element(first, ())))

    return builder.compute(after.shape, body)
