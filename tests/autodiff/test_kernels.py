"""What differentiation adds to a program, counted in kernels."""

from functools import partial

import numpy as np
import pytest

import einsmith as es
from tests.programs import program_of


def kernels(f, *args):
    """The kernels of a transformed or jitted function's program, without those that check indices."""
    f(*args)
    run = program_of(f)
    return [c for c in run.plan.calls if any(d.is_float for n in c.nodes for d in n.template.dtypes)]


def test_the_gradient_of_cross_entropy_is_two_kernels_more():
    """(p - onehot)/B from the row maximum and the row sum that the loss has made already; no position of a maximum."""
    rng = np.random.default_rng()
    x, y = rng.standard_normal((17, 10)).astype(np.float32), rng.integers(0, 10, 17)
    forward = kernels(es.jit(es.functional.cross_entropy), x, y)
    both = kernels(es.value_and_grad(es.functional.cross_entropy), x, y)
    assert len(both) - len(forward) <= 2
    combiners = [getattr(c.kernel.root.parts[0].body, "combiner", None) for c in both]
    assert "max" in combiners and "argmax" not in combiners
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(17), y] -= 1
    np.testing.assert_allclose(es.grad(es.functional.cross_entropy)(x, y), p / 17, rtol=1e-4, atol=1e-6)


def test_the_gradients_of_a_product_are_plain_products():
    a, b = np.ones((5, 7), np.float32), np.ones((7, 3), np.float32)
    calls = kernels(es.grad(lambda a, b, g: ((a @ b) * g).sum(), (0, 1)), a, b, np.ones((5, 3), np.float32))
    assert len(calls) == 2 and all(len(c.nodes) == 1 for c in calls)


def loops(calls):
    """Of every kernel, the extents of the sums of its tensors' pieces."""
    return [[getattr(p.body, "extents", ()) for n in c.nodes for p in n.template.parts] for c in calls]


def pulled(f, x, c):
    """The kernels of the pullback alone."""
    return kernels(es.jit(lambda x, c: es.vjp(f, x)[1](c)[0]), x, c)


FORMULA = """
    M[b] = max[c](Z[b,c])
    L[] = mean[b](M[b] + log(sum[c](exp(Z[b,c] - M[b]))) - Z[b,y[b]])
"""


@pytest.mark.parametrize("shape", [(17, 10), (5, 33)])
def test_the_gradient_of_cross_entropy_alone_is_at_most_two_kernels(shape):
    """Of a formula one, in which a row is read once; beside it, a library's loss counts the labels it ignores."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(shape).astype(np.float32), rng.integers(0, shape[1], shape[0])
    loss = es.op(FORMULA)
    formula = es.grad(lambda z, y: loss(Z=z, y=y))
    assert len(kernels(formula, x, y)) == 1
    assert len(kernels(es.grad(es.functional.cross_entropy), x, y)) <= 2
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    want = (p - np.eye(shape[1])[y]) / shape[0]
    np.testing.assert_allclose(formula(x, y), want, rtol=1e-4, atol=1e-6)


def test_the_gradients_of_convolutions_are_one_contraction_each():
    """Padded or not; a stride of 2 makes four pieces of one kernel, with 4, 2, 2 and 1 taps of a 3x3 window."""
    x, w = np.ones((2, 3, 9, 9), np.float32), np.ones((4, 3, 3, 3), np.float32)
    cases = ((1, 0, 7, [9]), (1, 1, 9, [9]), (2, 0, 4, [1, 2, 2, 4]), (2, 1, 5, [1, 2, 2, 4]))
    for stride, padding, out, pieces in cases:
        conv = partial(es.functional.conv2d, stride=stride, padding=padding)
        c = np.ones((2, 4, out, out), np.float32)
        (found,) = loops(pulled(lambda x, conv=conv: conv(x, w), x, c))
        assert all(e[0] == 4 for e in found)
        assert sorted(int(np.prod(e[1:])) for e in found) == pieces
        (found,) = loops(pulled(lambda w, conv=conv: conv(x, w), w, c))
        assert found == [(2, out, out)]


def test_gradients_of_data_movement_have_no_sum():
    """A broadcast is summed in one kernel; a transposition moves, and a reshape of whole arrays is no kernel at all."""
    x = np.ones((4, 15), np.float32)
    spread = es.op("Y[i,j,k] = B[j]", extents={"i": 5, "k": 6})
    assert loops(pulled(spread, np.ones(4, np.float32), np.ones((5, 4, 6), np.float32))) == [[(5, 6)]]
    assert loops(pulled(lambda x: x.T, x, np.ones((15, 4), np.float32))) == [[()]]
    assert loops(pulled(lambda x: x.reshape(6, 10), x, np.ones((6, 10), np.float32))) == []
    digits = es.op("Y[i,j] = X[(i*10+j)//15, (i*10+j)%15]", extents={"i": 6, "j": 10})
    assert loops(pulled(digits, x, np.ones((6, 10), np.float32))) in ([], [[()]])


def test_choices_between_gathering_and_scattering_are_printed(monkeypatch, capsys):
    monkeypatch.setenv("EINSMITH_DEBUG", "3")
    lookup = es.op("Y[t,k] = 2*E[ids[t],k] # printed")
    ids = np.array([3, 1, 3])
    es.interpret(es.grad(lambda e: lookup(e, ids).sum()))(np.ones((40, 5)))
    assert "argument 1: gathered 600 points, scattered 260: scattered" in capsys.readouterr().err
