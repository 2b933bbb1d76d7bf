"""Operators from text: values, types, templates equal to the builder's, calls, errors."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import BoundsError, DtypeError, FormulaError, ShapeError, TraceError
from einsmith.ir.nodes import Compute, Piece, Scatter
from einsmith.lang.op import op
from einsmith.tracing import builder
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import Trace, tracing
from tests.lang.common import run, value

CAPSULE = "C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j])"


def capsule_conv(A, W, stride):
    (B, C, H, Wd, U, M), (K, _, R, S, _, J) = A.shape, W.shape
    c, r, s, m = builder.axes(C, R, S, M)
    return builder.compute(
        (B, K, (H - R) // stride + 1, (Wd - S) // stride + 1, U, J),
        lambda b, k, p, q, i, j: builder.sum(
            A[b, c, stride * p + r, stride * q + s, i, m] * W[k, c, r, s, m, j], over=(c, r, s, m)
        ),
    )


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_text_and_builder_give_one_template(stride):
    a, w = value(2, 3, 7, 8, 2, 3), value(4, 3, 3, 2, 3, 2)
    text = op(CAPSULE)
    assert text(a, w, stride=stride).tensor is capsule_conv(a, w, stride).tensor


def test_matmul_and_softmax_are_the_builders():
    a, b = value(3, 5), value(5, 4)
    assert op("C[i,j] = sum[k](A[i,k] * B[k,j])")(a, b).tensor is (a @ b).tensor

    def softmax(x):
        k, m = builder.axes(5, 5)
        top = lambda i: builder.max(x[i, k], over=k)  # noqa: E731
        return builder.compute(
            x.shape, lambda i, j: builder.exp(x[i, j] - top(i)) / builder.sum(builder.exp(x[i, m] - top(i)), over=m)
        )

    text = op("Y[i,j] = exp(X[i,j] - max[k](X[i,k])) / sum[l](exp(X[i,l] - max[k](X[i,k])))")
    assert text(a).tensor is softmax(a).tensor


def test_statement_order_and_names_do_not_matter():
    one = op("S[i] = sum[j](X[i,j])\nY[i,j] = X[i,j] / S[i]")
    two = op("Out[a,b] = In[a,b] / Total[a]\nTotal[u] = sum[v](In[u,v])")
    x = value(3, 4)
    assert one(x).tensor is two(x).tensor


def test_pieces(rng):
    x = rng.integers(-9, 9, (3, 4))
    got = run(op("D[b,2*h] = X[b,h]\nD[b,2*h+1] = -X[b,h]"), x)
    np.testing.assert_array_equal(got, np.stack([x, -x], -1).reshape(3, 8))
    got = run(op("D[0,h] = X[0,h]\nD[b+1,h] = X[b+1,h] - X[b,h]", extents={"b": "X.shape[0]-1"}), x)
    np.testing.assert_array_equal(got, np.concatenate([x[:1], np.diff(x, axis=0)]))
    y = rng.integers(-9, 9, 5)
    got = run(op("D[i] = A[i]\nD[i+n] = sum[j](A[j]) * B[i]", n=3), y, y[:3], n=5)
    np.testing.assert_array_equal(got, np.concatenate([y, y.sum() * y[:3]]))


def test_accumulation(rng):
    ids, x = np.array([0, 4, 4, 1, 4]), rng.normal(size=(5, 3))
    f = op("E[ids[i],k] += X[i,k]", extents={"E.shape[0]": "n"})
    want = np.zeros((6, 3))
    np.add.at(want, ids, x)
    np.testing.assert_allclose(run(f, ids, x, n=6), want)
    assert isinstance(f(value(5, dtype="int64"), value(5, 3), n=6).tensor.template.parts[0], Scatter)
    fold = op("Y[p+r] += X[p,r]")
    x = rng.integers(0, 9, (4, 3))
    want = np.zeros(6, int)
    for p in range(4):
        want[p : p + 3] += x[p]
    np.testing.assert_array_equal(run(fold, x), want)
    two = op("Y[i] += X[i]\nY[i+1] += 2*X[i]", extents={"Y.shape[0]": "X.shape[0]+1"})
    v = rng.integers(0, 9, 4)
    np.testing.assert_array_equal(run(two, v), np.append(v, 0) + np.append(0, 2 * v))


def test_accumulation_from_a_value(rng):
    ids, x, e = np.array([0, 4, 4, 1, 4]), rng.normal(size=(5, 3)), rng.normal(size=(6, 3))
    want = np.exp(e)
    np.add.at(want, ids, x)
    f = op("Y[n,k] = exp(E[n,k])\nY[ids[i],k] += X[i,k]")
    np.testing.assert_allclose(run(f, e, ids, x), want)
    t = f(value(6, 3), value(5, dtype="int64"), value(5, 3)).tensor.template
    assert [type(p) for p in t.parts] == [Piece, Scatter] and len(t.params) == 3
    pieces = op("Y[2*n] = A[n]\nY[2*n+1] = -A[n]\nY[ids[i]] += 1\nY[i] += B[i]", extents={"Y.shape[0]": 6})
    a, b = rng.normal(size=3), rng.normal(size=2)
    want = np.stack([a, -a], -1).reshape(6)
    np.add.at(want, ids, 1)
    want[:2] += b
    np.testing.assert_allclose(run(pieces, a, ids, b), want)
    summed = op("Y[n] = sum[k](E[n,k])\nY[ids[i]] += 2", extents={"i": 5})
    want = e.sum(1)
    np.add.at(want, ids, 2)
    np.testing.assert_allclose(run(summed, e, ids), want)
    counts = op("Y[n] = i64(3)\nY[ids[i]] += 1", extents={"n": 6})
    got = run(counts, ids)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, 3 + np.bincount(ids, minlength=6))


def test_guards(rng):
    x = rng.normal(size=7)
    shift = op("Y[i] = where(0 <= i-1 < X.shape[0], X[i-1], 0)", extents={"i": "X.shape[0]+2"})
    np.testing.assert_allclose(run(shift, x), np.concatenate([[0], x, [0]]))
    cat = op("Y[i] = where(i < A.shape[0], A[i], B[i - A.shape[0]])", extents={"i": "A.shape[0]+B.shape[0]"})
    np.testing.assert_allclose(run(cat, x, x[:3]), np.concatenate([x, x[:3]]))
    nested = op("Y[i] = where(i > 0, sum[j](where(j < i, X[i-1-j], 0)), 1)", extents={"i": 8, "j": 7})
    np.testing.assert_allclose(run(nested, x), np.concatenate([[1], np.cumsum(x)]))
    outer = op("Y[i] = where(i > 0, 3 * max[j](M[i-1,j]), -1)", extents={"i": "M.shape[0]+1"})
    m = rng.normal(size=(3, 4))
    np.testing.assert_allclose(run(outer, m), np.concatenate([[-1], 3 * m.max(1)]))


def test_data_dependent_guards_reach_into_reductions(rng):
    ids, e = np.array([2, -1, 0]), rng.normal(size=(3, 4))
    f = op("Y[t] = where(ids[t] >= 0, 2 * sum[k](E[ids[t],k]), 0)")
    np.testing.assert_allclose(run(f, ids, e), np.where(ids >= 0, 2 * e.sum(1)[ids], 0))


def test_types():
    f, d, n = value(3), value(3, dtype="float64"), value(3, dtype="int64")
    one = lambda text, *a, **k: op(text)(*a, **k).dtype  # noqa: E731
    assert one("Y[i] = X[i] * 2", f) is dt.f32 and one("Y[i] = X[i] * 2", d) is dt.f64
    assert one("Y[i] = X[i] + Z[i]", f, d) is dt.f64 and one("Y[i] = X[i] + Z[i]", f, n) is dt.f32
    assert one("Y[i] = X[i] + i", n) is dt.i64 and one("Y[i] = X[i] / 2", n) is dt.f32
    assert one("Y[i] = X[i] * (i / 2)", d) is dt.f64 and one("Y[i] = 0*X[i] + sqrt(i)", d) is dt.f64
    assert one("Y[i] = where(X[i] > 0, 1, 0)", d) is dt.f64 and one("Y[i] = where(X[i] > 0, 1, 0)", n) is dt.f32
    assert one("Y[] = sum[i](X[i])", value(3, dtype="int32")) is dt.i64
    assert one("Y[] = argmax[i](X[i])", f) is dt.i32
    assert one("Y[i] = f64(X[i]) + 1", f) is dt.f64 and one("Y[i] = X[i] > 0", f) is dt.bool_
    assert one("Y[i] = X[i] * lr", f, lr=value(dtype="float64", weak=True)) is dt.f32


def test_quotients_of_axes_are_computed_in_the_formulas_type():
    x = np.ones(7)
    np.testing.assert_array_equal(run(op("Y[i] = X[i] * (i/3)"), x), np.arange(7) / 3)
    body = op("Y[i] = X[i] * (i/3)")(value(7, dtype="float64")).tensor.template.parts[0].body
    assert body.fn == "mul" and all(a.dtype is dt.f64 for a in body.args)


def test_run_time_parameters_do_not_change_the_template():
    f = op("P[i] = W[i] - lr * G[i]", lr=0.1)
    w, g = value(5), value(5)
    a, b = (f(w, g, lr=value(dtype="float64", weak=True)).tensor for _ in range(2))
    assert a.template is b.template and a is not b and len(a.args) == 3
    assert f(w, g).tensor.template is not a.template  # the default is a constant here


def test_a_second_application_is_shared():
    f = op("Y[i] = sum[j](X[i,j]) / size(j)")
    a, b = f(value(3, 4)).tensor, f(value(3, 4)).tensor
    assert a is not b and a.template is b.template and a.args[0].template is b.args[0].template
    g = op("Y[i] = A[i] * B[i]")
    x = value(3)
    assert len(g(x, x).tensor.args) == 1 and len(g(x, value(3)).tensor.args) == 2


def test_several_outputs(rng):
    f = op("S[] = sum[i](X[i])\nM[] = max[i](X[i])")
    x = rng.normal(size=5)
    s, m = run(f, x)
    np.testing.assert_allclose([s, m], [x.sum(), x.max()])
    g = op("S[] = sum[i](X[i])\nY[i] = X[i] - S[]\nreturn Y, S")
    y, s = run(g, x)
    np.testing.assert_allclose(y, x - x.sum())


def test_by_name_and_signature():
    f = op(CAPSULE, name="capsule_conv", stride=2)
    assert f.signature == "capsule_conv(A[b,c,_,_,i,m], W[k,c,r,s,m,j]; stride=2 (static)) -> C[b,k,p,q,i,j]"
    a, w = value(2, 3, 7, 8, 2, 3), value(4, 3, 3, 2, 3, 2)
    assert f(W=w, A=a).tensor is f(a, w).tensor and f.inputs == ("A", "W")


def test_numbers_and_constants_as_inputs(rng):
    f = op("Y[i] = X[i] * s[] + c[i]")
    x, c = rng.normal(size=3), rng.normal(size=3)
    np.testing.assert_allclose(run(lambda v: f(v, 2, c), x), 2 * x + c)


def test_arrays_are_handed_to_run_arrays(monkeypatch):
    from einsmith.tracing import trace

    seen = []

    def run_arrays(f, args, kwargs):
        seen.append((f, args, kwargs))
        with tracing(Trace()):
            return f(
                *map(builder.as_value, args), **{k: Value(value(dtype="float64").tensor, weak=True) for k in kwargs}
            )

    monkeypatch.setattr(trace, "run_arrays", run_arrays)
    f = op("Y[i] = X[s*i] * lr", lr=0.5)
    x = np.ones(7, np.float32)
    for lr in (0.5, 0.25):
        assert f(x, s=2, lr=lr).shape == (4,)
    f(x, s=3)
    assert seen[0][0] is seen[1][0] is not seen[2][0]  # one callable for each set of static parameters
    assert [kw for *_, kw in seen] == [{"lr": 0.5}, {"lr": 0.25}, {"lr": 0.5}]


M, V, N = (lambda: value(3, 4)), (lambda: value(5)), (lambda: value(3, dtype="int64"))


@pytest.mark.parametrize(
    "text,args,kwargs,kind,message",
    [
        ("Y[i] = X[i] + scal", [V], {"scale": 2}, FormulaError, "no input or parameter 'scale'(.|\n)*mean scal"),
        ("Y[i] = X[i] + scal", [V], {}, FormulaError, "no parameter scal(.|\n)*scal=..."),
        ("Y[i] = X[i+k]", [V], {}, FormulaError, r"k is not an axis(.|\n)*sum\[k\]"),
        ("Y[i,j] = A[i,k] * B[k,j]", [M, M], {}, FormulaError, r"sum\[k\]"),
        ("Y[i] = X[i]", [M], {}, ShapeError, r"X has shape \(3, 4\), 2-d.*1-d"),
        ("Y[i] = X[i] * W[i]", [V, lambda: value(4)], {}, ShapeError, "X has extent 5.*W has extent 4"),
        ("Y[i] = E[ids[i]]", [V, V], {}, DtypeError, "ids is f32.*index"),
        ("Y[i] = X[i+1] - Z[i]", [V, V], {}, BoundsError, r'extents={"i": "X.shape\[0\]-1"}'),
        ("Y[i] = X[2*i+1] - X[i]", [V], {}, BoundsError, r'extents={"i": "\(X.shape\[0\]-2\)//2\+1"}'),
        ("Y[i] = X[i] * X[7]", [V], {}, BoundsError, "shape \\(5,\\)"),
        ("Y[i] = where(i > 0, X[i-2], X[i])", [V], {}, BoundsError, "where"),
        ("Y[i] = exp(X[i] > 0)", [V], {}, FormulaError, r"a bool is not a number(.|\n)*\^"),
        ("Y[i] = X[i/2]", [V], {}, FormulaError, "not an integer(.|\n)*//"),
        ("Y[i] = X[i] and X[i] > 0", [V], {}, FormulaError, "needs conditions"),
        ("Y[i] = X[s*i]", [V], {"s": 1.5}, FormulaError, "stands in an index.*1.5"),
        ("Y[i] = X[s*i]", [V], {"s": lambda: 0}, FormulaError, "not a number"),
        ("Y[i] = X[s*i]", [V], {"s": "weak"}, TraceError, "static_argnames"),
        ("Y[i] = X[i] * s", [V], {"s": "vector"}, ShapeError, "must be a number, not a tensor"),
        ("Y[i] = X[i]", [V, V], {}, FormulaError, "takes 1 inputs"),
        ("Y[i] = X[i] * Z[i]", [V], {}, FormulaError, "input Z is missing"),
        ("D[2*i] = X[i]\nD[2*i+2] = X[i]", [V], {}, FormulaError, "overlaps"),
        ("D[2*i] = X[i]", [V], {}, FormulaError, r"no piece of D defines the element \(1,\)"),
        ("D[i-1] = X[i]", [V], {}, FormulaError, "covers positions -1 to 3"),
        ("D[-i+4] = X[i]", [V], {}, FormulaError, "step positive"),
        ("D[ids[i]] = X[i]", [N, N], {}, FormulaError, "extent|accumulate"),
        ("Y[i] = max[j](X[i,j])", [lambda: value(3, 0)], {}, FormulaError, "no elements"),
        ("Y[i] = X[A.shape[1]]", [V, V], {}, FormulaError, "shape\\[1\\] does not exist|not determined"),
    ],
)
def test_bad_input(text, args, kwargs, kind, message):
    special = {"weak": value(dtype="float64", weak=True), "vector": value(3)}
    kwargs = {k: special.get(v, v) if isinstance(v, str) else v for k, v in kwargs.items()}
    with pytest.raises(kind, match=message):
        op(text)(*(a() for a in args), **kwargs)


def test_bad_defaults_and_extents():
    with pytest.raises(FormulaError, match="'strid' is not a parameter(.|\n)*stride"):
        op(CAPSULE, strid=2)
    with pytest.raises(FormulaError, match="cannot have a default"):
        op("Y[i] = X[i]", X=3)
    with pytest.raises(FormulaError, match="give an int or a string"):
        op("Y[i] = X[i+1]", extents={"i": 2.5})


def test_deep_text(rng):
    x = rng.integers(0, 5, 4)
    f = op("Y[i] = " + " + ".join(["X[i]*2"] * 1500))
    np.testing.assert_array_equal(run(f, x), x * 3000)


def test_nested_tensors_are_computes():
    t = op("Y[i] = X[i] - mean[j](X[j])")(value(6)).tensor
    assert isinstance(t, Compute) and sum(isinstance(a, Compute) for a in t.args) == 1
