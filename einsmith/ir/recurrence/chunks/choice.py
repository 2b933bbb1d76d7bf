"""Choose between the steps of a linear recurrence and its chunk form.

Both are predicted for a step of one state of K keys and V values, in nanoseconds of one core (AMD EPYC, Zen 5, AVX-512,
one thread). They were fitted to the times of 35 recurrences with states of 16 to 128 keys and values, in chunks of 8 to
128 steps, as `python -m benchmarks.recurrences --lengths N` draws them. Only their ratio decides: it is within a factor
of 2.2 of what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from einsmith.base.symbolic import SIZES_VARY
from einsmith.ir.nodes import size
from einsmith.ir.recurrence.chunks.chunk_form import Output
from einsmith.ir.recurrence.chunks.linear_recurrence import LinearRecurrence, axes_of

LENGTHS = (8, 16, 32, 64)
"""Lengths of chunks that are considered: beyond them, pairs of steps cost more than what is left of the recurrence."""
MANY = 1024
"""Steps that are taken for any number of them."""
CALLS = 20_000.0
"""Nanoseconds of the calls of a chunk form's kernels, values and gradients."""
FORWARD_STEP, STEP = 0.075, 0.5
"""Nanoseconds of an element of the state in a step: values alone, and with gradients, which store all states."""
FORWARD = 0.25
"""The share of the values alone in the time of a chunk form with gradients."""
READ_STEP = 0.4
"""The share that reads within the step add to it."""


class StepWork(NamedTuple):
    """What a recurrence computes in a step: keys and values of its state; states: their number; reads: whether its
    terms read the state; pairs: terms times reads, each of which weighs the pairs of a chunk's steps; by_key: whether
    decays differ by key."""

    steps: int
    keys: int
    values: int
    states: int
    reads: bool
    pairs: int
    by_key: bool


def choose_length(linear: LinearRecurrence, outputs: Sequence[Output], is_differentiated: bool = False) -> int:
    """Return the number of steps of a chunk; 1: the recurrence stays."""
    shape = linear.node.results[linear.state][1]
    keys, values, states = (size(shape[d] for d in axes) for axes in (linear.keys, linear.values, linear.shared))
    reads = any(t.weights for t in linear.terms)
    pairs = len(linear.terms) * (len(linear.reads) + len(outputs))
    by_key = bool(axes_of(linear.decay) & {*linear.keys})
    steps = MANY if SIZES_VARY.get() else linear.node.steps
    work = StepWork(steps, keys, values, states, reads, pairs, by_key)
    lengths = [n for n in LENGTHS if 2 * n <= work.steps]
    best = min(lengths, key=lambda n: predict_chunks(work, n, is_differentiated), default=1)
    if best == 1 or predict_chunks(work, best, is_differentiated) > predict_steps(work, is_differentiated):
        return 1
    return best


def predict_steps(work: StepWork, is_differentiated: bool) -> float:
    """Return the predicted nanoseconds of the recurrence in steps."""
    element, call = (STEP, 30.0) if is_differentiated else (FORWARD_STEP, 5.0)
    return work.steps * work.states * (element * (1 + READ_STEP * work.reads) * work.keys * work.values + call)


def predict_chunks(work: StepWork, length: int, is_differentiated: bool) -> float:
    """Return the predicted nanoseconds of the chunk form: products of pairs of steps, a state a chunk, products with
    the state, and operands."""
    state = work.keys * work.values
    step = 0.09 * length * (work.keys + work.values) + 2 * state / length + 60
    if work.reads:
        step += 0.05 * length * (work.keys + work.values) + 0.09 * state + 40
    if work.by_key:
        step += work.keys * length.bit_length() * (1.6 * work.pairs - 1)
    steps = -(-work.steps // length) * length
    return (CALLS + steps * work.states * step) * (1.0 if is_differentiated else FORWARD)
