"""Choose between the steps of a linear recurrence and its chunk form.

Both are predicted in nanoseconds of one core (AMD EPYC, Zen 5, AVX-512, one thread), from the number of states of K
keys and V values. They were fitted to the times of 102 recurrences of 16 to 8,192 steps, with 1 to 32 states of 2 to
256 keys and values, in chunks of 8 to 64 steps, as `python -m benchmarks.recurrences --lengths N` draws them. Only
their ratio decides: what it chooses takes 1.05 times as long as the best of these lengths and of steps in the mean, and
at most twice as long.
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
CALLS, MORE_CALLS = 6_000.0, 2_500.0
"""Nanoseconds of the call of a program, and of those of more kernels, which a chunk form with gradients has."""
GAIN = 1.1
"""How much faster a chunk form is to be: it takes longer to compile."""
STEP_CALLS = 50.0, 110.0
"""Nanoseconds of the calls of a step's kernels: values alone, and with gradients."""
STEP_ELEMENT, STEP_STATE = (0.079, 0.49), (2.0, 52.0)
"""Nanoseconds of an element of a state in a step, and of a state beside them, likewise. Gradients store all states."""
READ_STEP = 0.3
"""The share that reads within the step add to that of elements."""
FORWARD, FORWARD_BY_KEY = 0.27, 0.18
"""The share of the values alone in the time of a chunk form with gradients, but for calls, and in that which decays by
key add."""


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
    if best == 1 or GAIN * predict_chunks(work, best, is_differentiated) > predict_steps(work, is_differentiated):
        return 1
    return best


def predict_steps(work: StepWork, is_differentiated: bool) -> float:
    """Return the predicted nanoseconds of the recurrence in steps."""
    element, state = STEP_ELEMENT[is_differentiated], STEP_STATE[is_differentiated]
    each = element * (1 + READ_STEP * work.reads) * work.keys * work.values + state
    return CALLS + work.steps * (STEP_CALLS[is_differentiated] + work.states * each)


def predict_chunks(work: StepWork, length: int, is_differentiated: bool) -> float:
    """Return the predicted nanoseconds of the chunk form: products of pairs of steps, a state a chunk, products with
    the state, and operands."""
    state, pairs = work.keys * work.values, length * (work.keys + work.values)
    step = 0.094 * pairs + 1.65 * state / length + 27
    if work.reads:
        step += 0.1 * pairs + 0.05 * state + 30
    by_key = work.by_key * work.keys * length.bit_length() * (0.75 * work.pairs + 0.2)
    steps = work.states * -(-work.steps // length) * length
    if is_differentiated:
        return CALLS + MORE_CALLS + steps * (step + by_key)
    return CALLS + steps * (FORWARD * step + FORWARD_BY_KEY * by_key)
