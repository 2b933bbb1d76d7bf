"""Gradients of scatters, and gradients that are scatters."""

from __future__ import annotations

import numpy as np

from einsmith.autodiff.reverse import gradients
from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Axis, Compute, Const, Piece, Read, Scatter, Template, apply, leaf, postorder
from einsmith.passes.analysis.index_checks import index_checks
from tests.autodiff.formulas import check_gradients, compute, constant, fn, run, where
from tests.autodiff.test_gradients import arrays, labels


def scattered(tensors):
    return [n for n in postorder(tensors) if isinstance(n, Compute) and n.template.is_scatter]


def test_the_chosen_points_of_a_large_box_are_scattered():
    """max-plus: 20*20 points instead of 20*20*20; of a small box they are gathered."""
    for n, count in ((20, 2), (5, 0)):
        (a, b), feed = arrays((n, n), (n, n))
        y = compute((n, n), [a, b], lambda a, b, i, j, k: a[i, k] + fn("sin", b[k, j]), (n,), "max")
        grads = check_gradients(y, [a, b], feed)
        assert len(scattered(grads)) == count
    (x,), feed = arrays((3, 4))
    (dx,) = check_gradients(compute((3,), [x], lambda x, i, k: x[i, k], (4,), "min"), [x], feed)
    assert not scattered([dx])


def test_chosen_points_of_several_axes_under_guards():
    """Padded windows of 2 axes, far apart; what no window chooses gets zero, and padding nothing."""
    (x,), feed = arrays((2, 40, 50))

    def window(x, b, p, r, s):
        h, w = 20 * p + r - 3, 5 * p + s - 2
        inside = (h >= 0) & (h < 40) & (w >= 0) & (w < 50)
        return where(inside, x[b, h, w] * x[b, h, w], -np.inf)

    y = compute((2, 2), [x], window, (30, 40), "max")
    (dx,) = check_gradients(y, [x], feed, order=2)
    assert scattered([dx]) and not index_checks([dx]), "positions are proven by their range"


def test_gradients_independent_of_the_chosen_point_have_no_sum():
    """max[k](x[i,k] + w[i]): dw is the cotangent itself."""
    (x, w), feed = arrays((4, 6), (4,))
    y = compute((4,), [x, w], lambda x, w, i, k: x[i, k] + w[i], (6,), "max")
    g = leaf((4,), dt.f64)
    _, (dw,) = gradients([y], [g], [w])
    assert dw is g
    check_gradients(y, [x, w], feed)


def test_a_diagonal_is_added_to_what_is_there():
    (x,), feed = arrays((9, 9))
    y = compute((9,), [x], lambda x, i: x[i, i] * x[0, i] * x[i, 3])
    (dx,) = check_gradients(y, [x], feed, order=2)
    assert len(scattered([dx])) == 1 and len(dx.template.parts) > 1
    alone = compute((9,), [x], lambda x, i: x[i, i] * 2.0)
    assert not scattered(check_gradients(alone, [x], feed)), "81 points are fewer than 81 zeros and 9 points"


def accumulated(start, body, ids, args, shape):
    """`out = start(n, k), out[ids[i], k] += body(i, k)`."""
    n, k = (Axis(d) for d in range(2))
    first = Piece((0, 0), (1, 1), shape, start(n, k))
    s = Scatter("sum", (7, shape[1]), (Read(0, (n,), dt.i32), k), body(n, k))
    t = Template(shape, tuple((a.dtype, a.shape) for a in (ids, *args)), (first, s))
    return Compute(t, (ids, *args))


def test_scatter_onto_a_value():
    """The initial value's adjoint is the cotangent, and its own value is not the result."""
    (b, x, w), feed = arrays((5, 3), (7, 3), (5, 3))
    ids, feed[ids] = labels((7,), 5, dt.i32)
    for start in ("exp", "tanh", "sqrt"):
        feed[b] = np.abs(feed[b]) + 0.5
        y = accumulated(
            lambda n, k, fn=start: apply(fn, Read(1, (n, k), dt.f64)),
            lambda i, k: apply("mul", Read(2, (i, k), dt.f64), Read(1, (Read(0, (i,), dt.i32), k), dt.f64)),
            ids, (b, x), (5, 3),
        )  # fmt: skip
        z = compute((5, 3), [y, w], lambda y, w, n, k: y[n, k] * y[n, k] * w[n, k])
        check_gradients(z, [b, x, w], feed, order=2)
    relu = accumulated(
        lambda n, k: apply("where", apply("lt", Const(0.7, dt.f64), Read(1, (n, k), dt.f64)),
                           Read(1, (n, k), dt.f64), Const(0.0, dt.f64)),
        lambda i, k: apply("neg", Read(2, (i, k), dt.f64)), ids, (b, x), (5, 3),
    )  # fmt: skip
    check_gradients(relu, [b, x], feed)


def test_a_count_is_no_constant():
    """A cotangent that is a scatter of ones is not ones."""
    (e,), feed = arrays((5, 3))
    ids, feed[ids] = labels((7,), 5, dt.i32)
    soft = compute((5, 3), [e], lambda e, n, k: fn("exp", e[n, k]))
    y = compute((7, 3), [soft, ids], lambda s, ids, i, k: s[ids[i], k])
    _, (de,) = gradients([y], [constant(1.0, (7, 3))], [e])
    want = np.exp(feed[e]) * np.bincount(feed[ids], minlength=5)[:, None]
    np.testing.assert_allclose(run([de], feed)[0], want)
