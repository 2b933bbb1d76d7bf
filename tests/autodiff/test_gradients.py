"""Gradients of a gallery of formulas against central differences in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.autodiff.reverse import gradients
from einsmith.base import dtypes as dt
from einsmith.base.errors import GradientError
from einsmith.ir.adjoint_rules import mul
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import Compute, Read, Reduce, leaf, postorder
from tests.autodiff.formulas import F, check_gradients, compute, constant, fn, run, where

RNG = np.random.default_rng(7)


def arrays(*shapes):
    leaves = [leaf(s, dt.f64) for s in shapes]
    return leaves, {x: RNG.standard_normal(x.shape) for x in leaves}


def labels(shape, classes, dtype=dt.i64):
    x = leaf(shape, dtype)
    return x, RNG.integers(0, classes, shape)


def pad(x, size):
    """x within [0, size), as a condition."""
    return (x >= 0) & (x < size)


def conv(inp, w, stride=1, padding=0, dilation=1):
    b, c, h, wd = inp.shape
    k, _, r, s = w.shape
    p = (h + 2 * padding - dilation * (r - 1) - 1) // stride + 1
    q = (wd + 2 * padding - dilation * (s - 1) - 1) // stride + 1

    def body(x, f, n, o, i, j, ch, u, v):
        y, z = i * stride + u * dilation - padding, j * stride + v * dilation - padding
        inside = where(pad(y, h) & pad(z, wd), x[n, ch, y, z], 0.0) if padding else x[n, ch, y, z]
        return inside * f[o, ch, u, v]

    return compute((b, k, p, q), [inp, w], body, over=(c, r, s))


def capsule_conv(a, w, stride):
    b, ci, h, wd, m, k = a.shape
    co, _, r, s, _, n = w.shape
    p, q = (h - r) // stride + 1, (wd - s) // stride + 1
    return compute(
        (b, co, p, q, m, n),
        [a, w],
        lambda a, w, b, o, i, j, m, n, c, u, v, k: a[b, c, i * stride + u, j * stride + v, m, k] * w[o, c, u, v, k, n],
        over=(ci, r, s, k),
    )


def pool(x, size, stride, combiner):
    b, c, h, w = x.shape
    shape = (b, c, (h - size) // stride + 1, (w - size) // stride + 1)
    return compute(
        shape, [x], lambda x, b, c, i, j, u, v: x[b, c, i * stride + u, j * stride + v], (size, size), combiner
    )


def softmax(x):
    n, c = x.shape
    top = compute((n,), [x], lambda x, i, j: fn("stop_gradient", x[i, j]), (c,), "max")
    total = compute((n,), [x, top], lambda x, m, i, j: fn("exp", x[i, j] - m[i]), (c,))
    return compute((n, c), [x, top, total], lambda x, m, s, i, j: fn("exp", x[i, j] - m[i]) / s[i])


def logsumexp(x):
    n, c = x.shape
    top = compute((n,), [x], lambda x, i, j: x[i, j], (c,), "max")
    total = compute((n,), [x, top], lambda x, m, i, j: fn("exp", x[i, j] - m[i]), (c,))
    return compute((n,), [total, top], lambda s, m, i: fn("log", s[i]) + m[i])


def cross_entropy(x, y):
    n = x.shape[0]
    lse = logsumexp(x)
    return compute((), [x, lse, y], lambda x, lse, y, i: (lse[i] - x[i, y[i]]) * (1.0 / n), (n,))


def bodies(t):
    assert isinstance(t, Compute)
    return [p.body for p in t.template.parts]


def test_matmul_is_the_plain_product():
    (a, b), feed = arrays((4, 5), (5, 3))
    y = compute((4, 3), [a, b], lambda a, b, i, j, k: a[i, k] * b[k, j], (5,))
    for g in check_gradients(y, [a, b], feed, order=2):
        (body,) = bodies(g)
        assert isinstance(body, Reduce) and body.combiner == "sum"
        product = body.bodies[0]
        assert product.fn == "mul" and all(isinstance(x, Read) for x in product.args)


@pytest.mark.parametrize(
    "stride,padding,dilation,kernel",
    [(1, 0, 1, 3), (1, 2, 1, 5), (2, 1, 1, 3), (2, 0, 1, 1), (3, 0, 1, 2), (2, 0, 3, 2), (1, 1, 2, 3), (2, 3, 1, 7)],
)
def test_convolution(stride, padding, dilation, kernel):
    (x, w), feed = arrays((2, 3, 8, 7), (4, 3, kernel, kernel - (kernel > 1)))
    y = conv(x, w, stride, padding, dilation)
    dx, dw = check_gradients(y, [x, w], feed)
    (body,) = bodies(dw)
    assert isinstance(body, Reduce) and body.extents == (2, *y.shape[2:])
    if stride == 1:
        assert len(bodies(dx)) == 1


def test_strided_convolution_does_the_useful_work_alone():
    (x, w), _ = arrays((1, 4, 16, 16), (4, 4, 3, 3))
    y = conv(x, w, stride=2, padding=1)
    _, (dx,) = gradients([y], [constant(1.0, y.shape)], [x])
    c = leaf(y.shape, dt.f64)
    _, (dx,) = gradients([y], [c], [x])
    work = [p.body.extents for p in dx.template.parts]
    assert sorted(work) == sorted([(4,), (4, 2), (4, 2), (4, 2, 2)])
    (x, w), _ = arrays((1, 4, 16, 16), (4, 4, 1, 1))
    y = conv(x, w, stride=2)
    _, (dx,) = gradients([y], [leaf(y.shape, dt.f64)], [x])
    assert sum(isinstance(b, Reduce) for b in bodies(dx)) == 1


@pytest.mark.parametrize("stride", [1, 2])
def test_capsule_convolution(stride):
    (a, w), feed = arrays((2, 3, 5, 7, 2, 3), (2, 3, 3, 3, 3, 2))
    dx, dw = check_gradients(capsule_conv(a, w, stride), [a, w], feed)
    assert len(bodies(dx)) == stride**2 and len(bodies(dw)) == 1


@pytest.mark.parametrize("size,stride", [(2, 2), (3, 2), (3, 3), (2, 3)])
@pytest.mark.parametrize("combiner", ["max", "min", "sum"])
def test_pooling(size, stride, combiner):
    (x,), feed = arrays((2, 2, 7, 8))
    (dx,) = check_gradients(pool(x, size, stride, combiner), [x], feed, order=2)
    if size == stride:
        assert not any(isinstance(b, Reduce) for b in bodies(dx))


def test_max_pooling_shares_its_position_with_the_forward_sweep():
    (x,), feed = arrays((1, 1, 4, 4))
    y = pool(x, 2, 2, "max")
    (new,), (dx,) = gradients([y], [constant(1.0, y.shape)], [x])
    nodes = {n for n in postorder([new, dx]) if isinstance(n, Compute) and isinstance(n.template.parts[0].body, Reduce)}
    assert [n.template.parts[0].body.combiner for n in nodes] == ["argmax"]
    value = run([dx], {x: np.zeros((1, 1, 4, 4))})[0][0, 0]
    assert value.tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]  # the first of equals


def test_max_then_its_own_gradient_through_several_layers():
    (x,), feed = arrays((3, 8))
    y = compute((3, 4), [x], lambda x, i, j, r: x[i, j * 2 + r], (2,), "max")
    z = compute((3, 2), [y], lambda y, i, j, r: y[i, j * 2 + r] * 2.0, (2,), "max")
    w = compute((3,), [z, y], lambda z, y, i, r: z[i, r] * y[i, r], (2,))
    check_gradients(w, [x], feed, order=2)


def test_softmax_cross_entropy():
    (x,), feed = arrays((5, 4))
    y, chosen = labels((5,), 4)
    feed[y] = chosen
    (dx,) = check_gradients(cross_entropy(x, y), [x], feed)
    (dx,) = gradients([cross_entropy(x, y)], [constant(1.0)], [x])[1]
    p = np.exp(feed[x]) / np.exp(feed[x]).sum(1, keepdims=True)
    np.testing.assert_allclose(run([dx], feed)[0], (p - np.eye(4)[chosen]) / 5, atol=1e-12)
    check_gradients(softmax(x), [x], feed, order=2)
    check_gradients(logsumexp(x), [x], feed, order=2)


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "erf", "sin", "cos", "abs"])
def test_scalar_functions(name):
    (x,), feed = arrays((9,))
    check_gradients(compute((9,), [x], lambda x, i: fn(name, x[i])), [x], feed, order=2)
    check_gradients(compute((9,), [x], lambda x, i: fn(name, x[i] * 0.5) * x[i]), [x], feed, order=2)


@pytest.mark.parametrize("name", ["log", "sqrt", "rsqrt"])
def test_scalar_functions_of_positive_numbers(name):
    (x,), feed = arrays((9,))
    feed[x] = 0.5 + feed[x] ** 2
    check_gradients(compute((9,), [x], lambda x, i: fn(name, x[i])), [x], feed, order=2, tol=1e-5)
    check_gradients(compute((9,), [x], lambda x, i: fn(name, x[i] * 2.0) / x[i]), [x], feed, order=2, tol=1e-5)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "min", "max", "mod", "pow"])
def test_binary_functions(name):
    (x, y), feed = arrays((3, 4), (4,))
    feed = {k: 0.5 + v**2 for k, v in feed.items()}
    z = compute((3, 4), [x, y], lambda x, y, i, j: fn(name, x[i, j], y[j]))
    check_gradients(z, [x, y], feed, order=2, tol=1e-5)


def test_ties_of_maximum_give_halves():
    (x, y), _ = arrays((3,), (3,))
    z = compute((3,), [x, y], lambda x, y, i: fn("max", x[i], y[i]))
    _, grads = gradients([z], [constant(1.0, (3,))], [x, y])
    dx, dy = run(grads, {x: np.array([1.0, 2.0, 3.0]), y: np.array([1.0, 5.0, 0.0])})
    assert dx.tolist() == [0.5, 0, 1] and dy.tolist() == [0.5, 1, 0]


def test_broadcast_is_one_reduction():
    (b,), feed = arrays((3,))
    y = compute((4, 3, 5), [b], lambda b, i, j, k: b[j])
    (db,) = check_gradients(y, [b], feed)
    (body,) = bodies(db)
    assert isinstance(body, Reduce) and body.extents == (4, 5)


def test_transpose_and_reshape_reduce_nothing():
    (x,), feed = arrays((6, 4))
    t = compute((4, 6), [x], lambda x, i, j: x[j, i])
    r = compute((8, 3), [x], lambda x, i, j: x[(i * 3 + j) // 4, (i * 3 + j) % 4])
    f = compute((24,), [x], lambda x, i: x[i // 4, i % 4])
    for y in (t, r, f):
        (dx,) = check_gradients(y, [x], feed)
        assert len(bodies(dx)) == 1 and not isinstance(bodies(dx)[0], Reduce)


def test_concatenation_slices_and_differences():
    (x, y), feed = arrays((5, 3), (4, 3))
    z = compute((9, 3), [x, y], lambda x, y, i, j: where(i < 5, x[i, j], y[i - 5, j]))
    for g in check_gradients(z, [x, y], feed):
        assert not isinstance(bodies(g)[0], Reduce)
    (x,), feed = arrays((9,))
    d = compute((8,), [x], lambda x, i: x[i + 1] - x[i])
    (dx,) = check_gradients(d, [x], feed)
    assert len(list(postorder([dx]))) == 2  # one body and the cotangent
    s = compute((4,), [x], lambda x, i: x[i * 2 + 1] * x[i * -1 + 8])
    check_gradients(s, [x], feed, order=2)


def test_diagonal_trace_and_shared_reads():
    (x,), feed = arrays((4, 4))
    check_gradients(compute((4,), [x], lambda x, i: x[i, i] * x[0, i]), [x], feed, order=2)
    check_gradients(compute((), [x], lambda x, i: x[i, i], (4,)), [x], feed)
    check_gradients(compute((4,), [x], lambda x, i, k: x[i, k] * x[k, i], (4,)), [x], feed, order=2)


def test_embedding_is_a_scatter_and_labels_are_gathered():
    (e,), feed = arrays((50, 3))
    ids, feed[ids] = labels((7,), 50, dt.i32)
    y = compute((7, 3), [e, ids], lambda e, ids, i, k: e[ids[i], k] * e[ids[i], 0])
    (de,) = check_gradients(y, [e], feed, order=2)
    made = [n for n in postorder([de]) if isinstance(n, Compute) and n.template.is_scatter]
    assert made
    guarded = compute((7, 3), [e, ids], lambda e, ids, i, k: where(ids[i] >= 10, e[ids[i] - 10, k], 0.0))
    check_gradients(guarded, [e], feed)


def test_guard_keeps_a_division_by_zero_unseen():
    (x,), feed = arrays((6,))
    feed[x][::2] = 0.0
    y = compute((6,), [x], lambda x, i: where(x[i].eq(0.0), 1.0, fn("sin", x[i]) / x[i]))
    _, (dx,) = gradients([y], [constant(1.0, (6,))], [x])
    value = run([dx], feed)[0]
    assert np.isfinite(value).all() and (value[::2] == 0).all() and (value[1::2] != 0).all()


def test_relu_reads_its_result():
    (m, b), feed = arrays((5, 4), (4,))
    y = compute((5, 4), [m, b], lambda m, b, i, j: where(m[i, j] + b[j] > 0.0, m[i, j] + b[j], 0.0))
    dm, db = check_gradients(y, [m, b], feed)
    assert set(dm.args) - {y} and m not in dm.args and y in dm.args
    assert db.args == (dm,)


def test_tanh_reads_its_result():
    (x,), _ = arrays((5,))
    y = compute((5,), [x], lambda x, i: fn("tanh", x[i]))
    _, (dx,) = gradients([y], [leaf((5,), dt.f64)], [x])
    assert y in dx.args and x not in dx.args


def test_product_with_zeros():
    (x,), feed = arrays((3, 4))
    feed[x][0, 1] = 0.0
    feed[x][1, :2] = 0.0
    check_gradients(compute((3,), [x], lambda x, i, k: x[i, k] + 0.0, (4,), "prod"), [x], feed)


def test_sums_of_two_bodies_and_positions():
    (x,), feed = arrays((3, 5))
    a, b = compute((3,), [x], lambda x, i, k: (x[i, k], x[i, k] * x[i, k]), (5,))
    y = compute((3,), [a, b], lambda a, b, i: b[i] * 0.2 - a[i] * a[i] * 0.04)
    check_gradients(y, [x], feed, order=2)
    value, at = compute((3,), [x], lambda x, i, k: x[i, k], (5,), "argmax")
    check_gradients(compute((3,), [value, at], lambda v, p, i: v[i] * p[i].cast(dt.f64)), [x], feed)


def test_stop_gradient_independent_and_integers():
    (x, y), feed = arrays((4,), (4,))
    n = leaf((4,), dt.i32)
    z = compute((4,), [x, y], lambda x, y, i: fn("stop_gradient", x[i]) * y[i])
    _, (dx, dy, dn) = gradients([z], [constant(1.0, (4,))], [x, y, n])
    got = run([dx, dy], feed)
    assert (got[0] == 0).all() and (got[1] == feed[x]).all()
    assert dn.shape == (4,) and dn.dtype is dt.i32


def test_a_tensor_in_the_middle_and_outputs_that_are_inputs():
    (x,), feed = arrays((4,))
    y = compute((4,), [x], lambda x, i: x[i] * x[i])
    z = compute((4,), [y, x], lambda y, x, i: y[i] * x[i])
    _, (dy, dx) = gradients([z, x], [constant(1.0, (4,)), constant(2.0, (4,))], [y, x])
    got = run([dy, dx], feed)
    np.testing.assert_allclose(got[0], feed[x])
    np.testing.assert_allclose(got[1], 3 * feed[x] ** 2 + 2)


def test_casts_pass_floats():
    x = leaf((4,), dt.f32)
    y = compute((4,), [x], lambda x, i: x[i].cast(dt.f64) * 3.0)
    _, (dx,) = gradients([y], [constant(1.0, (4,))], [x])
    assert dx.dtype is dt.f32 and run([dx], {x: np.ones(4, np.float32)})[0].tolist() == [3] * 4


def test_cumulative_and_banded_sums():
    (x,), feed = arrays((9,))
    check_gradients(compute((9,), [x], lambda x, i, k: where(k <= i, x[k], 0.0), (9,)), [x], feed)
    band = compute((9,), [x], lambda x, i, k: where((k <= i + 1) & (k >= i - 1), x[k] * x[i], 0.0), (9,))
    check_gradients(band, [x], feed, order=2)


def test_second_order_of_tanh_chain():
    (x, w), feed = arrays((3, 4), (4, 2))
    y = compute((3, 2), [x, w], lambda x, w, i, j, k: x[i, k] * w[k, j], (4,))
    z = compute((3, 2), [y], lambda y, i, j: fn("tanh", y[i, j]))
    check_gradients(z, [x, w], feed, order=2)


def test_wrong_adjoint_rule_is_caught(monkeypatch):
    broken = replace(FUNCTIONS["tanh"], adjoint=(lambda g, a, out: mul(g, apply_sub(1.0, out)),))
    monkeypatch.setitem(FUNCTIONS, "tanh", broken)
    (x,), feed = arrays((13,))
    with pytest.raises(AssertionError, match="gradient of argument 0"):
        check_gradients(compute((13,), [x], lambda x, i: fn("tanh", x[i])), [x], feed)


def apply_sub(value, out):
    return (value - F(out)).e


def test_every_function_has_a_rule_per_argument():
    assert all(f.arity == len(f.adjoint) or f.composition for f in FUNCTIONS.values())


def test_constant_cotangents_are_folded_into_bodies():
    (x,), feed = arrays((4, 3))
    y = compute((), [x], lambda x, i, j: x[i, j] * x[i, j] * 0.25, (4, 3))
    _, (dx,) = gradients([y], [constant(1.0)], [x])
    assert dx.args == (x,)
    np.testing.assert_allclose(run([dx], feed)[0], feed[x] / 2)


def test_a_sum_that_is_the_same_along_an_axis_is_made_once():
    (x,), feed = arrays((4, 3))
    y = compute((4, 5), [x], lambda x, i, j, k: x[i, k], (3,))
    (dx,) = check_gradients(y, [x], feed)
    assert isinstance(bodies(dx)[0], Read) and bodies(dx.args[0])[0].extents == (5,)
    z = compute((4,), [x], lambda x, i, j, k: x[i, k], (5, 3))
    (dx,) = check_gradients(z, [x], feed)
    assert not isinstance(bodies(dx)[0], Reduce)


def test_cotangents_that_do_not_fit_are_refused():
    (x,), _ = arrays((4,))
    y = compute((4,), [x], lambda x, i: x[i] * 2.0)
    with pytest.raises(GradientError, match="output 0"):
        gradients([y], [constant(1.0, (3,))], [x])
    with pytest.raises(GradientError, match="cotangents"):
        gradients([y], [], [x])


def test_deep_graphs_need_no_recursion():
    (x,), feed = arrays((2,))
    y = x
    for _ in range(3000):
        y = compute((2,), [y], lambda y, i: y[i] * 1.001)
    _, (dx,) = gradients([y], [constant(1.0, (2,))], [x])
    np.testing.assert_allclose(run([dx], feed)[0], 1.001**3000)


def test_random_bodies_of_one_tensor(rng):
    """Products and sums of guarded, shifted, strided and transposed reads, to second order."""
    for trial in range(12):
        n, m = (int(v) for v in rng.choice([1, 2, 3, 5, 7], 2))
        x = leaf((n, m), dt.f64)
        s, o, p = (int(v) for v in rng.integers([1, -2, -2], [4, 3, 3]))

        def body(x, i, j, k, s=s, o=o, p=p, n=n, m=m):
            a = i * s + k + o
            first = where(pad(a, n) & pad(j + p, m), fn("tanh", x[a, j + p]), 0.5)
            return first * where(pad(i + j, n), x[i + j, k % m], 1.0) + x[k % n, j % m] * x[0, 0]

        y = compute((4, 3), [x], body, (int(rng.integers(1, 5)),))
        check_gradients(y, [x], {x: rng.standard_normal((n, m))}, order=2, seed=trial)


def test_the_gradient_of_a_subtracted_maximum_reuses_the_sum(rng):
    """d/dM of sum[k](exp(X - M)) is that sum times a factor: no second sweep, and the softmax also for ties."""
    op = es.op("M[b] = max[i](X[b,i])\nY[b] = M[b] + log(sum[i](exp(X[b,i] - M[b])))")
    x = np.array([[0.5, 2.0, 2.0, -1.0], [3.0, -np.inf, 3.0, 1.0], [1e4, -1e4, 0.0, 1e4]])
    p = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(es.interpret(es.grad(lambda x: op(x).sum()))(x), p / p.sum(1, keepdims=True), atol=1e-15)
    bad = np.array([[0.0, np.nan, 1.0], [np.inf, 1.0, 2.0], [-np.inf, -np.inf, -np.inf]])
    with np.errstate(invalid="ignore"):
        assert np.isnan(es.interpret(es.grad(lambda x: op(x).sum()))(bad)).all()
    traced = trace_call(es.grad(lambda x: op(x).sum()), (x,), {})
    sums = [n for n in postorder(traced.graph.outputs) if isinstance(n, Compute) and isinstance(bodies(n)[0], Reduce)]
    assert [n.template.parts[0].body.combiner for n in sums] == ["argmax", "sum"]


def test_a_label_s_share_is_summed_before_it_goes_to_its_place(rng):
    """The read Z[b,y[b]] stands in a loop over c that its index does not mention, and under a guard that does."""
    op = es.op("L[b] = sum[c](where(c != y[b], max(0, 1 - Z[b,y[b]] + Z[b,c])*W[c], 0))")
    z, w, y = rng.standard_normal((7, 5)), rng.standard_normal(5), rng.integers(0, 5, 7)
    es.check_gradients(lambda z, w: op(y, z, w), z, w)
    one = es.op("L[b] = sum[c](where(c < n[b], Z[b,p[y[b]]]*W[c], 0))")
    y, n = np.array([0, 2, 9, -5]), np.array([1, 3, 0, 0])  # y is a position where a loop is not empty
    z, p = rng.standard_normal((4, 5)), rng.integers(0, 5, 3)
    es.check_gradients(lambda z, w: one(n, z, p, y, w), z, w)
    rare = es.op("L[b] = sum[c](where(c < n[b], E[y[b]]*W[c], 0))")  # a large table: scattered
    es.check_gradients(lambda e, w: rare(n, e, np.clip(y, 0, 2), w), rng.standard_normal(4000), w)
