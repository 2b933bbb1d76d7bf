"""Recurrences as loops: every program against a loop in NumPy over the members' templates."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.base.trees import flatten
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import (
    Axis,
    Const,
    Graph,
    Item,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Template,
    apply,
    cast,
    leaf,
)
from einsmith.ir.template_evaluator import evaluate_template
from einsmith.schedule.plan import LoopCall, Plan
from tests.lang.recurrences import CASES
from tests.passes import ragged


def axis(n: int) -> Axis:
    return Axis(n)


def num(x: float) -> Const:
    return Const(x, dt.f64)


def at(slot: int, *index) -> Read:
    return Read(slot, tuple(Const(i, dt.i32) if isinstance(i, int) else i for i in index), dt.f64)


def add(a, b):
    both = [Const(x, dt.i32) if isinstance(x, int) else x for x in (a, b)]
    return apply("add", *both)


def sub(a, b):
    both = [Const(x, dt.i32) if isinstance(x, int) else x for x in (a, b)]
    return apply("sub", *both)


def mul(a, b):
    return apply("mul", a, b)


def less(a, b):
    both = [Const(x, dt.i32) if isinstance(x, int) else x for x in (a, b)]
    return apply("lt", *both)


def member(shape, params, origin: int, steps: int, body, initial=None) -> Template:
    """Step pieces over the whole of the other dimensions, and an initial piece for everything outside the window."""
    rest = tuple(shape[1:])
    zeros, ones = (0,) * len(rest), (1,) * len(rest)
    pieces = [Piece((origin, *zeros), (1, *ones), (steps, *rest), body)]
    for first, n in ((0, origin), (origin + steps, shape[0] - origin - steps)):
        if n:
            pieces.append(Piece((first, *zeros), (1, *ones), (n, *rest), initial))
    return Template(tuple(shape), tuple(params), tuple(pieces))


def by_steps(node: Recurrence, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The members, evaluated whole at every step: only what the step writes is kept."""
    out = [np.full(shape, np.nan) for _, shape in node.results]
    for j, m in enumerate(node.members):
        n, first = node.steps, node.origins[j]
        full = evaluate_template(m, [*inputs, *map(np.nan_to_num, out)])[0]
        out[j][:first], out[j][first + n :] = full[:first], full[first + n :]
    for t in reversed(range(node.steps)) if node.reverse else range(node.steps):
        for j, m in enumerate(node.members):
            at = node.origins[j] + t
            out[j][at] = evaluate_template(m, [*inputs, *map(np.nan_to_num, out)])[0][at]
    return out


def run(node: Recurrence, inputs: list[np.ndarray], outside=None, threads: int = 1) -> tuple[list, Executable]:
    outside = range(len(node.members)) if outside is None else outside
    graph = Graph(tuple(node.args), tuple(Item(node, j) for j in outside), (), ())
    program = Executable(graph, {}, threads)
    program.arena.fill(0xFF)  # NaN: what is not written yet is not used
    return program(inputs)[1], program


def check(node: Recurrence, rng, outside=None) -> Executable:
    """Every member that is read outside equals the loop in NumPy, on one and two threads, bit for bit the same."""
    inputs = [rng.standard_normal(a.shape) for a in node.args]
    want = by_steps(node, inputs)
    outside = list(range(len(node.members))) if outside is None else outside
    first: list[np.ndarray] | None = None
    for threads in (1, 2):
        got, program = run(node, inputs, outside, threads)
        again = program(inputs)[1]
        for j, x, y in zip(outside, got, again, strict=True):
            np.testing.assert_allclose(x, want[j], rtol=1e-12, atol=1e-12, err_msg=f"member {j}, {threads} threads")
            np.testing.assert_array_equal(x, y)
        if first is None:
            first = got
        for x, y in zip(first, got, strict=True):
            np.testing.assert_array_equal(x, y)
    return program


def leaves(*shapes):
    args = tuple(leaf(s, dt.f64) for s in shapes)
    return args, [(dt.f64, s) for s in shapes]


def rnn(steps: int, batch: int, hidden: int, reverse: bool = False, turned: bool = False) -> Recurrence:
    """Member 0: the sum s[t] = h[t] U; member 1: h[t+1] = tanh(x[t] + s[t]), h[0] = h0. reverse: the other way round in
    time. turned: U is stored transposed."""
    args, params = leaves((steps, batch, hidden), (batch, hidden), (hidden, hidden))
    params += [(dt.f64, (steps, batch, hidden)), (dt.f64, (steps + 1, batch, hidden))]
    t, b, k, j = map(axis, range(4))
    before, origin = (add(t, 1), 0) if reverse else (t, 1)
    weight = at(2, k, j) if turned else at(2, j, k)
    s = member(params[3][1], params, 0, steps, Reduce("sum", (hidden,), (mul(at(4, before, b, j), weight),)))
    h = member(params[4][1], params, origin, steps, apply("tanh", add(at(0, t, b, k), at(3, t, b, k))), at(1, b, k))
    return Recurrence(steps, reverse, (0, origin), (s, h), args)


@pytest.fixture(autouse=True)
def loops(monkeypatch) -> None:
    """Keep short loops as loops, whose plans are looked at here."""
    monkeypatch.setenv("EINSMITH_WITHOUT", "joined steps")


def loop_of(plan: Plan) -> LoopCall:
    (call,) = [c for c in plan.calls if isinstance(c, LoopCall)]
    return call


@pytest.mark.thinned(3)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("steps, batch, hidden", [(1, 1, 1), (2, 3, 5), (7, 1, 33), (9, 5, 17)])
def test_rnn(steps, batch, hidden, reverse, turned, rng):
    check(rnn(steps, batch, hidden, reverse, turned), rng)


def test_members_read_in_the_same_step_are_not_stored(rng):
    program = check(rnn(6, 3, 8), rng, outside=[1])
    call = loop_of(program.plan)
    assert [j for j, _ in call.loop.segments[0].targets] == [1]
    assert [len(p.calls) for p in call.plans] == [1]  # the tanh is the product's epilogue


def test_conditions_on_time_make_segments(rng):
    """y[t] = x[t] * (t < 3 ? 0.5 : y[t-3]) + (t == 5 ? 1 : 0): no initial pieces, distance 3."""
    steps = 9
    args, params = leaves((steps, 4))
    params += [(dt.f64, (steps, 4))]
    t, i = axis(0), axis(1)
    old = apply("where", less(t, 3), num(0.5), at(1, sub(t, 3), i))
    five = apply("where", apply("eq", t, Const(5, dt.i32)), num(1.0), num(0.0))
    y = member((steps, 4), params, 0, steps, add(mul(at(0, t, i), old), five))
    node = Recurrence(steps, False, (0,), (y,), args)
    program = check(node, rng)
    call = loop_of(program.plan)
    assert [s.steps for s in call.loop.segments] == [3, 2, 1, 3]
    assert not any(p.kind == "argument" and p.stride == 0 for s in call.loop.segments for p in s.places)


def test_the_step_as_a_value_and_in_an_index(rng):
    """y[t+1, i] = y[t, i]*0.5 + (t + 1)*x[i, t] + a[i + t] + w[t, (t + i) % 4] + r[T-1-t, i], down in time."""
    steps, n = 6, 4
    args, params = leaves((n, steps), (n + steps - 1,), (steps, n), (steps, n))
    params += [(dt.f64, (steps + 1, n))]
    t, i = axis(0), axis(1)
    turn = apply("mod", add(t, i), Const(n, dt.i32))
    body = mul(at(4, t, i), num(0.5))
    for e in (
        mul(cast(add(t, 1), dt.f64), at(0, i, t)),
        at(1, add(i, t)),
        at(2, t, turn),
        at(3, sub(steps - 1, t), i),
    ):
        body = add(body, e)
    check(Recurrence(steps, False, (1,), (member((steps + 1, n), params, 1, steps, body, num(0.25)),), args), rng)


@pytest.mark.parametrize("steps", [1, 5, 23])
def test_reads_at_every_earlier_step(steps, rng):
    """y[t] = x[t] - sum[k](k < t: a[k]*y[t-1-k]), and a scalar of each step."""
    args, params = leaves((steps,), (steps,))
    params += [(dt.f64, (steps,))]
    t, k = axis(0), axis(1)
    params += [(dt.f64, (steps,))]
    term = apply("where", less(k, t), mul(at(1, k), at(3, sub(sub(t, 1), k))), num(0.0))
    total = member((steps,), params, 0, steps, Reduce("sum", (steps,), (term,)))
    y = member((steps,), params, 0, steps, sub(at(0, t), at(2, t)))
    check(Recurrence(steps, False, (0, 0), (total, y), args), rng)


def lstm(steps: int, batch: int, hidden: int) -> Recurrence:
    """Members: 4 gates' sums, c, h; c and h one longer, with zeros first."""
    args, params = leaves((steps, batch, 4, hidden), (4, hidden, hidden))
    longer = (steps + 1, batch, hidden)
    params += [(dt.f64, (steps, batch, 4, hidden)), (dt.f64, longer), (dt.f64, longer)]
    t, b = axis(0), axis(1)
    q, k, j = axis(2), axis(3), axis(4)
    product = Reduce("sum", (hidden,), (mul(at(4, t, b, j), at(1, q, k, j)),))
    g = member(params[2][1], params, 0, steps, product)
    k = axis(2)

    def gate(n: int):
        return add(at(0, t, b, n, k), at(2, t, b, n, k))

    keep = mul(apply("sigmoid", gate(1)), at(3, t, b, k))
    c = member(longer, params, 1, steps, add(keep, mul(apply("sigmoid", gate(0)), apply("tanh", gate(2)))), num(0.0))
    new = mul(apply("sigmoid", gate(3)), apply("tanh", at(3, add(t, 1), b, k)))
    h = member(longer, params, 1, steps, new, num(0.0))
    return Recurrence(steps, False, (0, 1, 1), (g, c, h), args)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("steps, batch, hidden", [(1, 2, 3), (4, 1, 24), (5, 6, 19)])
def test_lstm(steps, batch, hidden, rng):
    program = check(lstm(steps, batch, hidden), rng, outside=[1, 2])
    call = loop_of(program.plan)
    assert len(call.plans[0].calls) <= 2


def test_turns_are_listed_and_timed(rng):
    """A loop's kernels are listed with their turns; each has a time in whole runs."""
    node = rnn(6, 3, 8)
    inputs = [rng.standard_normal(a.shape) for a in node.args]
    _, program = run(node, inputs, [1])
    assert max(program.turns) == 6 and "6 times" in program.describe()
    assert all(s > 0 for s, t in zip(program.time_calls(inputs, 3), program.turns, strict=True) if t > 1)


def test_kernels_do_not_depend_on_the_number_of_steps():
    def kernels(node):
        graph = Graph(tuple(node.args), (Item(node, len(node.members) - 1),), (), ())
        plan = Executable(graph, {}, 1).plan
        call = loop_of(plan)
        return len(list(plan.kernel_calls())), [c.kernel for p in call.plans for _, c, _ in p.kernel_calls()]

    for make in (rnn, lstm):
        assert kernels(make(8, 3, 5)) == kernels(make(128, 3, 5)) == kernels(make(1024, 3, 5))


CELLS = ("RNN", "LSTM", "GRU", "MILSTM", "SubLSTM", "SCRN")


def last_state(out, y):
    return ((out[0][out[0].shape[0] - 1] - y) ** 2).sum()


def all_states(out, y):
    return ((out[0] - y) ** 2).sum()


def trained(cell: str, steps: int, batch: int, loss) -> Executable:
    """The program of a training step that has run once."""
    es.manual_seed(0)
    layer = getattr(es.nn, cell)(28, 64, *((32,) if cell == "SCRN" else ()))
    step = es.TrainStep(layer, loss, es.optim.SGD(lr=0.1))
    step(np.ones((steps, batch, 28), np.float32), np.ones((batch, 64), np.float32))
    (program,) = step.compiler.programs.values()
    return program


every_length = pytest.mark.parametrize(
    "lengths", [(8, 1024), pytest.param((8, 128, 1024), marks=pytest.mark.slow)], ids=["two", "three"]
)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "cell, loss",
    [
        ("LLTM", last_state),
        ("LSTM", all_states),
        ("SCRN", all_states),  # its output is a product of its own: of the last state alone, most of that is zero
        *(pytest.param(c, last_state, marks=pytest.mark.slow) for c in ("LSTM", "RNN", "GRU", "MILSTM", "SubLSTM")),
    ],
)
@every_length
def test_a_training_step_is_the_same_code_at_every_length(cell, loss, lengths):
    """Forward, backward and update: the same kernels, all of them, byte for byte."""
    found = []
    for steps in lengths:
        program = trained(cell, steps, 64, loss)
        found.append(([c.kernel for c in program.calls], program.kernels))
    assert all(x == found[0] for x in found[1:])


@pytest.mark.parametrize("cell", ["LLTM", *(pytest.param(c, marks=pytest.mark.slow) for c in CELLS)])
@every_length
def test_the_training_step_of_a_small_batch_has_as_many_kernels_at_every_length(cell, lengths):
    """Where chunks have too few rows, a kernel outside of the loops has its number of steps in it as a constant, and
    the tiles that suit that many rows: such kernels differ, and prices decide which of them are fused, but the code
    does not grow with the steps. Those of the loops are the same, byte for byte."""
    found = []
    for steps in lengths:
        run = trained(cell, steps, 16, last_state)
        loops = [c for c in run.plan.calls if isinstance(c, LoopCall)]
        inside = [c.kernel for call in loops for p in call.plans for _, c, _ in p.kernel_calls()]
        assert inside
        found.append((inside, len(run.kernels), sum(k.nbytes for k in set(run.kernels))))
    assert all(inside == found[0][0] for inside, *_ in found[1:])
    counts, sizes = zip(*((count, size) for _, count, size in found), strict=True)
    assert max(counts) <= min(counts) + 1
    assert max(sizes) <= 1.2 * min(sizes), sizes


def test_members_that_are_equal_in_some_steps_each_have_their_memory(rng):
    """y[t, i] = t < 3 ? a*y[t-1, i] + x[t, i] : 0, three times with different a: the last steps of all are the same."""
    steps = 5
    args, params = leaves((steps, 4), (4,))
    params += [(dt.f64, (steps + 1, 4))] * 3
    t, i = axis(0), axis(1)

    def y(n: int) -> Template:
        body = add(mul(num(0.5 + n), at(2 + n, t, i)), at(0, t, i))
        return member((steps + 1, 4), params, 1, steps, apply("where", less(t, 3), body, num(0.0)), at(1, i))

    check(Recurrence(steps, False, (1, 1, 1), (y(0), y(1), y(2)), args), rng)
    passed = [member((steps + 1, 4), params, 1, steps, at(0, t, i), num(float(n))) for n in range(3)]
    check(Recurrence(steps, False, (1, 1, 1), tuple(passed), args), rng)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", CASES)
def test_formulas(name):
    """Every recurrent formula, loops in loops too, compiled in float64, against its plain loop."""
    c = CASES[name]
    want = flatten(c.loop(*c.inputs, **c.parameters))[0]
    traced = trace_call(lambda *inputs: c.formula(*inputs), c.inputs, {})
    first = None
    for threads in (1, 2):
        program = Executable(traced.graph, traced.bind, threads)
        program.arena.fill(0xFF)  # NaN: what is not written yet is not used
        got = program(list(c.inputs))[1]
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-11, atol=1e-11)
        first = first or got
        for g, w in zip(program(list(c.inputs))[1], first, strict=True):
            np.testing.assert_array_equal(g, w)


def test_products_that_share_the_carried_factor_are_one(rng):
    """Four gates of an LSTM, each a product of its own in the formula: one contraction a step, and one kernel for the
    rest; what reads another carried tensor is apart. The weights are stacked before the loop."""
    gates = "\n".join(
        f"{g}[t,b,k] = sigmoid(x[t,b,k] + sum[j](where(t>0, {of}[t-1,b,j], 0) * {w}[j,k]))"
        for g, of, w in (("i", "h", "U"), ("f", "h", "V"), ("o", "h", "W"), ("z", "c", "U"), ("y", "c", "V"))
    )
    text = (
        gates
        + """
    c[t,b,k] = f[t,b,k]*where(t>0, c[t-1,b,k], 0) + i[t,b,k]*z[t,b,k]*y[t,b,k]
    h[t,b,k] = o[t,b,k]*tanh(c[t,b,k])
    return h
    """
    )
    formula = es.op(text)
    shapes = {"x": (6, 16, 64), "U": (64, 64), "V": (64, 64), "W": (64, 64)}
    inputs = [rng.standard_normal(shapes[n]) * 0.2 for n in formula.inputs]
    traced = trace_call(lambda *x: formula(*x), inputs, {})
    program = Executable(traced.graph, traced.bind, 2)
    (want,) = evaluate(traced.graph, inputs)[0]
    np.testing.assert_allclose(program(inputs)[1][0], want, rtol=1e-12, atol=1e-12)
    step = loop_of(program.plan).plans[-1]
    products = [c.kernel for c in step.calls if isinstance(c.kernel.root.parts[0].body, Reduce)]
    assert sorted(k.shape for k in products) == [(16, 2, 64), (16, 3, 64)] and len(step.calls) == 3
    assert all(k.loop_invariant for k in products)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("longest", [0, 1, 5, 9])
def test_steps_beyond_all_lengths_do_no_product(reverse, longest, rng):
    """A ragged batch: the state stands still from a sequence's end on, or until it is reached from behind."""
    body = "tanh(x[t,b,k] + sum[j](where({inside}, h[{before},b,j], 0) * U[j,k]))"
    old = "where({inside}, h[{before},b,k], 0)"
    names = {"inside": "t < size(t)-1", "before": "t+1"} if reverse else {"inside": "t > 0", "before": "t-1"}
    formula = es.op(f"h[t,b,k] = where(t < lengths[b], {body}, {old})".format(**names))
    given = {
        "x": rng.standard_normal((9, 4, 6)), "U": rng.standard_normal((6, 6)),
        "lengths": np.minimum(longest, [0, 2, 5, 9]),
    }  # fmt: skip
    inputs = [given[n] for n in formula.inputs]
    traced = trace_call(lambda *x: formula(*x), inputs, {})
    (want,) = evaluate(traced.graph, inputs)[0]
    for threads in (1, 2):
        program = Executable(traced.graph, traced.bind, threads)
        for _ in range(2):
            np.testing.assert_allclose(program(inputs)[1][0], want, rtol=1e-12, atol=1e-12)
    call = loop_of(program.plan)
    late = [p for s, p in zip(call.loop.segments, call.plans, strict=True) if s.first is not None]
    assert late and any(s.stop is not None for s in call.loop.segments)
    assert not any(isinstance(c.kernel.root.parts[0].body, Reduce) for p in late for c in p.calls)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("longest", [0, 1, 6, 9])
def test_a_training_step_does_no_product_beyond_all_lengths(reverse, longest, rng):
    """Forward and backward of a ragged batch, in memory that starts as NaN: what a step makes for the backward alone is
    not made from the last length on, and not read."""
    steps, batch, width = 9, 3, 17
    formula = ragged.gru(width, reverse)
    shapes = {"x": (steps, batch, 5), "W": (5, 2 * width), "U": (width, 2 * width), "h0": (batch, width)}
    given = {n: rng.standard_normal(s) for n, s in shapes.items()}

    def loss(w, x, u, h0, lengths):
        h = formula(x=x, W=w, U=u, h0=h0, lengths=lengths)
        return (h * h).sum()

    lengths = np.minimum(longest, [2, 9, 4])
    inputs = [given["W"], given["x"], given["U"], given["h0"], lengths]
    traced = trace_call(es.grad(loss, (0, 1, 2, 3)), inputs, {})
    want = evaluate(traced.graph, inputs)[0]
    for threads in (1, 2):
        program = Executable(traced.graph, traced.bind, threads)
        program.arena.fill(0xFF)
        for got, w in zip(program(inputs)[1], want, strict=True):
            np.testing.assert_allclose(got, w, rtol=1e-11, atol=1e-11)
    forward, backward = (c for c in program.plan.calls if isinstance(c, LoopCall))
    for call in forward, backward:
        parts = list(zip(call.loop.segments, call.plans, strict=True))
        late = [(s, p) for s, p in parts if s.first is not None]
        assert late and any(s.stop == late[0][0].first for s, _ in parts)
        assert not any(isinstance(c.kernel.root.parts[0].body, Reduce) for _, p in late for c in p.calls)
        if call is forward:  # the state alone
            assert len(late[0][0].targets) == 1 < max(len(s.targets) for s, _ in parts)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_state_before_under_a_name_is_not_stored_twice(reverse, rng):
    """p is h one step before: what reads p outside of the loop, as the gradient of U does, reads h."""
    names = ("t < size(t)-1", "t+1") if reverse else ("t > 0", "t-1")
    op = es.op(
        """
        p[t,b,k] = where({}, h[{},b,k], h0[b,k])
        h[t,b,k] = tanh(x[t,b,k] + 0.5*p[t,b,k] + sum[j](p[t,b,j]*U[j,k]))
        return h
    """.format(*names)
    )

    def loss(x, h0, u):
        h = op(x=x, h0=h0, U=u)
        return (h * h).sum()

    inputs = [rng.standard_normal(s) for s in ((6, 3, 5), (3, 5), (5, 5))]
    traced = trace_call(es.grad(loss, (0, 1, 2)), inputs, {})
    program = Executable(traced.graph, traced.bind, 2)
    program.arena.fill(0xFF)
    for got, want in zip(program(inputs)[1], evaluate(traced.graph, inputs)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
    forward = next(c for c in program.plan.calls if isinstance(c, LoopCall))
    assert [len(s.targets) for s in forward.loop.segments] == [1]


def test_a_read_without_the_condition_is_of_all_steps(rng):
    """A product that something reads at every step is made in every step."""
    text = """
    u[t,b,k] = sum[j](where(t > 0, h[t-1,b,j], 0) * U[j,k])
    h[t,b,k] = where(t < lengths[b], tanh(x[t,b,k] + u[t,b,k]), where(t > 0, h[t-1,b,k], 0))
    y[b,k] = {read}
    return h, y
    """
    x, u = rng.standard_normal((7, 3, 18)), rng.standard_normal((18, 18))
    for read, parts in (("u[size(t)-1,b,k]", 1), ("sum[t](where(t <= lengths[b], u[t,b,k], 0))", 1),
                        ("sum[t](where(t < lengths[b], u[t,b,k], 0))", 2)):  # fmt: skip
        formula = es.op(text.format(read=read).replace("size(t)", "x.shape[0]"))
        given = {"x": x, "U": u, "lengths": np.array([3, 1, 5])}
        inputs = [given[n] for n in formula.inputs]
        traced = trace_call(formula, inputs, {})
        program = Executable(traced.graph, traced.bind, 2)
        program.arena.fill(0xFF)
        for got, want in zip(program(inputs)[1], evaluate(traced.graph, inputs)[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
        assert len(loop_of(program.plan).loop.segments) == parts, read


@pytest.mark.parametrize("steps", [2, 7])
def test_unread_results_of_the_last_step_are_skipped(steps):
    """The backward's last step would find the cotangent of an initial state that no gradient is asked for."""
    op = es.op("h[t,b,k] = tanh(x[t,b,k] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * U[j,k]))")

    def loss(x, h0, u):
        return (op(x=x, h0=h0, U=u) ** 2).sum()

    rng = np.random.default_rng(2)
    given = rng.standard_normal((steps, 3, 8)), rng.standard_normal((3, 8)), rng.standard_normal((8, 8))
    for wrt, parts in ((2,), [1, steps - 1]), ((1, 2), [steps]):
        g = es.grad(loss, wrt)
        plan = Executable(trace_call(g, given, {}).graph, {}, 1).plan
        (back,) = (c for c in plan.calls if isinstance(c, LoopCall) and c.loop.reverse)
        assert sorted(s.steps for s in back.loop.segments) == sorted(parts)
        assert len({s.body for s in back.loop.segments}) == 1
        calls = [len(p.calls) for p in back.plans]  # in the order in which they run
        assert len(calls) == 1 or calls[1] < calls[0]
        for got, want in zip(g(*given), es.interpret(g)(*given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
