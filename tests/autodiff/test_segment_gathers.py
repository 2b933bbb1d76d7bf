"""Gradients of gathers under the guards of segments: sums over other axes come before the scatter."""

import numpy as np
import pytest
import torch

import einsmith as es

SPLAT = """a[e,p] = min(o[id[e]]*exp(-x[e,p]**2*q[id[e]]), 0.8)
y[t,p,k] = sum[e](where(row[t] <= e and e < row[t+1], a[e,p]*c[id[e],k]*w[t,p], 0))
return y"""
SPARSE = """m[e,k,u] = sum[n](where(row[k] <= n and n < row[k+1], v[n]*Y[e,J[n]]*w[e,P[n],u]*x[src[e],I[n],u], 0))
return m"""
LAST = {"t": "row.shape[0]-1"}


def rows_of(borders, segments, count, rng):
    if borders == "sorted":
        return np.sort(np.concatenate([[0], rng.integers(0, count + 1, segments - 1), [count]]))
    if borders == "gaps":
        return np.sort(rng.integers(0, count + 1, segments + 1))
    if borders == "empty":
        return np.full(segments + 1, count // 2)
    return rng.integers(-2, count + 3, segments + 1)  # several segments may have the same element


def splat_reference(x, o, q, c, w, ids, row):
    a = torch.clamp(o[ids][:, None] * torch.exp(-(x**2) * q[ids][:, None]), max=0.8)
    at = torch.arange(len(ids))
    inside = ((row[:-1, None] <= at) & (at < row[1:, None])).to(x.dtype)
    return torch.einsum("te,ep,ek,tp->tpk", inside, a, c[ids], w)


def sparse_reference(x, Y, w, v, row, I, J, P, src):  # noqa: E741
    at = torch.arange(len(v))
    inside = ((row[:-1, None] <= at) & (at < row[1:, None])).to(x.dtype)
    return torch.einsum("kn,n,en,enu,enu->eku", inside, v, Y[:, J], w[:, P], x[src][:, I])


def compare(f, reference, floats, ints, tolerance=1e-12):
    """Compare values, gradients and second derivatives with PyTorch's."""
    rng = np.random.default_rng(7)
    tensors = [torch.from_numpy(a).requires_grad_() for a in floats]
    y = reference(*tensors, *map(torch.from_numpy, ints))
    g, v = rng.standard_normal(tuple(y.shape)), [rng.standard_normal(a.shape) for a in floats]
    first = torch.autograd.grad((y * torch.from_numpy(g)).sum(), tensors, create_graph=True)
    second = torch.autograd.grad(sum((a * torch.from_numpy(b)).sum() for a, b in zip(first, v, strict=True)), tensors)
    n = tuple(range(len(floats)))

    def gradients(*x):
        return es.grad(lambda *x: (f(*x, *ints) * g).sum(), n)(*x)

    def product(*x):
        return sum(((a * b).sum() for a, b in zip(gradients(*x), v, strict=True)), start=0.0)

    got = [es.jit(lambda *x: f(*x, *ints))(*floats), *es.jit(gradients)(*floats), *es.jit(es.grad(product, n))(*floats)]
    for a, b in zip(got, [y, *first, *second], strict=True):
        want = b.detach().numpy()
        np.testing.assert_allclose(a, want, atol=tolerance * max(1.0, np.abs(want).max(initial=0)), rtol=0)


@pytest.mark.parametrize("borders", ["sorted", "gaps", "empty", "anywhere"])
@pytest.mark.parametrize(("segments", "count", "pixels"), [(1, 1, 2), (5, 13, 7), (67, 131, 17)])
def test_splats(borders, segments, count, pixels):
    rng = np.random.default_rng(segments)
    ids, row = rng.integers(0, 11, count), rows_of(borders, segments, count, rng)
    floats = [rng.standard_normal((count, pixels)), rng.uniform(0.2, 1.5, 11), rng.uniform(0.1, 1, 11),
              rng.standard_normal((11, 3)), rng.standard_normal((segments, pixels))]  # fmt: skip
    op = es.op(SPLAT, inputs="x, o, q, c, w, id, row", extents=LAST)
    compare(op, splat_reference, floats, [ids, row])


@pytest.mark.parametrize("borders", ["sorted", "gaps", "empty", "anywhere"])
@pytest.mark.parametrize(("edges", "terms", "channels"), [(1, 1, 1), (7, 5, 17), (31, 41, 33)])
def test_lists_of_coefficients(borders, edges, terms, channels):
    rng = np.random.default_rng(edges)
    floats = [rng.standard_normal((5, 4, channels)), rng.standard_normal((edges, 6)),
              rng.standard_normal((edges, 3, channels)), rng.standard_normal(terms)]  # fmt: skip
    ints = [rows_of(borders, 9, terms, rng), *(rng.integers(0, n, terms) for n in (4, 6, 3)), rng.integers(0, 5, edges)]
    op = es.op(SPARSE, inputs="x, Y, w, v, row, I, J, P, src", extents={"k": 9})
    compare(op, sparse_reference, floats, ints)


def gradient_of_table(text, inputs):
    op = es.op(text, inputs=inputs, extents=LAST)
    return es.jit(lambda c, g, *rest: es.vjp(lambda c: op(c, *rest), c)[1](g)[0])


def test_index_outside_of_all_segments_may_be_wrong():
    """Beside the sum that is scattered, nothing reads it."""
    text = "y[t,k] = sum[e,p](where(row[t] <= e and e < row[t+1], a[e,p]*c[id[e],k], 0))"
    f = gradient_of_table(text, "c, a, id, row")
    rng = np.random.default_rng(3)
    a, c, g, row = (
        rng.standard_normal((13, 7)),
        rng.standard_normal((5, 3)),
        np.ones((4, 3)),
        np.array([2, 5, 5, 9, 11]),
    )
    for e in range(13):
        ids = rng.integers(0, 5, 13)
        ids[e] = rng.choice([-1, 5, 2**31 - 1])
        if 2 <= e < 11:
            with pytest.raises(IndexError, match=rf"element \[{e}\]"):
                f(c, g, a, ids, row)
        else:
            want = np.zeros((5, 3))
            np.add.at(want, ids[2:11], a[2:11].sum(1)[:, None] * np.ones(3))
            np.testing.assert_allclose(f(c, g, a, ids, row), want, atol=1e-13)


def test_index_read_at_an_index_that_a_guard_keeps_in_bounds():
    text = "y[t,k] = sum[e,p](where(row[t] <= e and e < row[t+1] and at[e] < id.shape[0], a[e,p]*c[id[at[e]],k], 0))"
    f = gradient_of_table(text, "c, a, id, at, row")
    rng = np.random.default_rng(4)
    a, c, g, row = (
        rng.standard_normal((13, 7)),
        rng.standard_normal((5, 3)),
        np.ones((4, 3)),
        np.array([2, 5, 5, 9, 11]),
    )
    ids, at = rng.integers(0, 5, 6), rng.integers(0, 9, 13)
    at[[0, 12]] = -1
    want = np.zeros((5, 3))
    for e in range(2, 11):
        if at[e] < 6:
            want[ids[at[e]]] += a[e].sum()
    np.testing.assert_allclose(f(c, g, a, ids, at, row), want, atol=1e-13)
    at[4] = -1
    with pytest.raises(IndexError, match=r"element \[4\] of"):
        f(c, g, a, ids, at, row)


def test_gradient_is_summed_before_it_is_scattered():
    """The scatter has a point for each element, not for each pixel."""
    op = es.op(SPLAT, inputs="x, o, q, c, w, id, row", extents=LAST)
    shapes = {"x": (500, 64), "o": (50,), "q": (50,), "c": (50, 3), "w": (70, 64), "id": (500,), "row": (71,)}
    text = str(op.gradient("c", **shapes))
    (line,) = [x for x in text.splitlines() if "+=" in x]
    assert "sum" not in line and "dy[" not in line
