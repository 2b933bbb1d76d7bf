"""Formulas in float16, int16 and uint8: computed in float32 or int32, rounded once where a tensor is written."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.driver.executable import Executable

SIZES = (1, 7, 15, 16, 17, 33)


def halves(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16)


def f32(x):
    return np.asarray(x).astype(np.float32)


FLOATS = {
    "pointwise": ("y[i] = exp(x[i])*2 + w[i]", "ab", lambda t, x, w: x.exp() * 2 + w),
    "mixed literals": ("y[i] = 0.1*x[i] + 3 - w[i]/7", "ab", lambda t, x, w: 0.1 * x + 3 - w / 7),
    "a sum": ("y[i] = sum[k](x[i,k]*w[k])", "AB", lambda t, x, w: (x * w).sum(1)),
    "a mean": ("y[i] = mean[k](x[i,k]) + w[i]", "AB", lambda t, x, w: x.mean(1) + w),
    "a product of matrices": ("y[i,j] = sum[k](x[i,k]*w[k,j])", "AA", lambda t, x, w: x @ w),
    "a layer": ("y[i,j] = relu(sum[k](x[i,k]*w[k,j]) + x[i,j])", "AA", lambda t, x, w: t.relu(x @ w + x)),
    "softmax": ("y[i,j] = exp(x[i,j] - max[k](x[i,k])) / sum[k](exp(x[i,k] - max[l](x[i,l]))) * w[i,j]", "AA",
                lambda t, x, w: t.softmax(x, 1) * w),
    "a convolution": ("y[i] = sum[u](x[i+u]*w[u])", "l3", lambda t, x, w: t.conv1d(x[None, None], w[None, None])[0, 0]),
    "a maximum": ("y[i] = max[k](x[i,k]*w[k])", "AB", lambda t, x, w: (x * w).amax(1)),
    "a recurrence": ("y[t] = where(t > 0, 0.5*y[t-1] + x[t], w[t])", "ab", None),
    "a scatter": ("y[(i*3) % size(i)] += x[i]*w[i]", "ab", None),
    "a transpose": ("y[j,i] = x[i,j]*w[i,j]", "AA", lambda t, x, w: (x * w).T),
}  # fmt: skip


def arguments(rng, kinds, n):
    shapes = {"l": (n + 2,), "a": (n,), "b": (n,), "A": (n, n), "B": (n,), "3": (3,)}
    return [halves(rng, *shapes[k]) for k in kinds]


def text_of(name, n):
    text = FLOATS[name][0]
    return text.replace("size(i)", str(n))


def close(got, want, scale=1.0, roundings=1):
    """Within roundings to float16 and of float32 sums; the evaluator and kernels may fall to two sides of a tie."""
    want = np.asarray(want, np.float64)
    assert np.all(np.isfinite(want))
    error = roundings * dt.f16.eps * np.maximum(np.abs(want), dt.f16.tiny) + 2e-5 * scale
    np.testing.assert_array_less(np.abs(np.asarray(got, np.float64) - want), error)


def formula(name, n):
    text, extents = text_of(name, n), {}
    if name == "a scatter":
        return es.op(text, extents={"y.shape[0]": n})
    return es.op(text, extents=extents)


@pytest.mark.thinned(12)
@pytest.mark.parametrize("name", FLOATS)
def test_values_gradients_and_tangents_in_float16(rng, name):
    """Against the evaluator, which rounds at the same places, value, gradient, second order and tangent."""
    for n in SIZES:
        f = formula(name, n)
        args = arguments(rng, FLOATS[name][1], n)
        y = f(*args)
        assert y.dtype == np.float16
        scale = 8 * n
        close(y, es.interpret(f)(*args), scale)
        g = halves(rng, *y.shape)

        def pulled(x, w, g, f=f):
            out, pull = es.vjp(f, x, w)
            return pull(g)

        def second(x, w, g, m, f=f):
            return es.jvp(lambda x, w: pulled(x, w, g, f), (x, w), (m, m if m.shape == w.shape else w))[1]

        for get, want in zip(es.jit(pulled)(*args, g), es.interpret(pulled)(*args, g), strict=True):
            assert get.dtype == np.float16
            close(get, want, scale, 2)
        m = halves(rng, *args[0].shape)
        for get, want in zip(es.jit(second)(*args, g, m), es.interpret(second)(*args, g, m), strict=True):
            close(get, want, 8 * scale, 4)
        moved = es.jvp(f, tuple(args), (m, args[1]))[1]
        assert moved.dtype == np.float16
        close(moved, es.interpret(lambda x, w, m, f=f: es.jvp(f, (x, w), (m, w))[1])(*args, m), scale, 2)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", [n for n, x in FLOATS.items() if x[2] is not None])
def test_float16_as_pytorch_computes_it_in_float32(rng, torch, name):
    for n in SIZES:
        args = arguments(rng, FLOATS[name][1], n)
        tensors = [torch.from_numpy(f32(a)).requires_grad_() for a in args]
        want = FLOATS[name][2](torch, *tensors)
        f = formula(name, n)
        y = f(*args)
        close(y, want.detach(), 8 * n)
        g = halves(rng, *y.shape)
        grads = es.vjp(f, *args)[1](g)
        for get, x in zip(grads, torch.autograd.grad(want, tensors, torch.from_numpy(f32(g))), strict=True):
            close(get, x, 8 * n)


def test_a_statement_rounds_once():
    x = np.array([2.0**-11 * 3], np.float16)
    y = es.op("y[i] = (1 + x[i]) - 1")(x)
    np.testing.assert_array_equal(y, x)
    z = es.op("h[i] = 1 + x[i]\ny[i] = h[i] - 1")(x)
    np.testing.assert_array_equal(z, ((np.float16(1) + x) - np.float16(1)))
    assert y != z


def test_sums_are_accumulated_in_float32():
    x = np.ones(5000, np.float16)
    assert es.op("y[] = sum[i](x[i])")(x) == 5000  # in float16, 1 is lost from 2048 on
    assert es.op("y[] = sum[i](x[i]*x[i])/5000")(x * np.float16(16)) == 256  # the sum itself is out of range
    y = es.op("y[i//5000] += x[i]", extents={"y.shape[0]": 1})(x)
    assert y.dtype == np.float16 and y == 5000


def test_rounding_does_not_depend_on_fusion(rng):
    x = halves(rng, 37)
    text = "h[i] = x[i]*1.7\ny[i] = h[i]*h[i] + 0.3"
    both = es.op(text + "\nreturn y, h")(x)
    np.testing.assert_array_equal(es.op(text)(x), both[0])
    h = (f32(x) * np.float32(1.7)).astype(np.float16)
    np.testing.assert_array_equal(both[1], h)
    exact = (f32(h) * f32(h) + np.float32(0.3)).astype(np.float16)
    assert np.all(np.abs(both[0].view(np.int16) - exact.view(np.int16)) <= 1)  # fused multiply-add


def test_a_product_of_float16_matrices_has_tiles():
    x = np.ones((96, 96), np.float16)
    traced = trace_call(es.op("y[i,j] = sum[k](x[i,k]*w[k,j])"), (x, x), {})
    run = Executable(traced.graph, traced.bind, 1)
    assert [k.pattern for k in run.kernels] == ["contraction"]


def test_promotion(rng):
    half, single, double = (rng.standard_normal(5).astype(t) for t in (np.float16, np.float32, np.float64))
    whole = {t: rng.integers(0, 50, 5).astype(t) for t in (np.uint8, np.int8, np.int16, np.int32, np.int64)}
    f = es.op("y[i] = a[i]*b[i]")
    assert f(half, half).dtype == np.float16
    assert f(half, single).dtype == np.float32
    assert f(half, double).dtype == np.float64
    for x in whole.values():
        assert f(half, x).dtype == np.float16
        assert f(x, x).dtype == x.dtype
    for a, b, c in (
        (np.uint8, np.int8, np.int16), (np.uint8, np.int16, np.int16), (np.uint8, np.int32, np.int32),
        (np.uint8, np.int64, np.int64), (np.int8, np.int16, np.int16), (np.int16, np.int32, np.int32),
    ):  # fmt: skip
        for x, y in ((a, b), (b, a)):
            got = f(whole[x], whole[y])
            assert got.dtype == c
            np.testing.assert_array_equal(got, whole[x].astype(c) * whole[y].astype(c))
    assert es.op("y[i] = 2.5*a[i]")(half).dtype == np.float16
    assert es.op("y[i] = a[i] + 1")(whole[np.uint8]).dtype == np.uint8
    assert es.op("y[i] = f16(a[i])")(single).dtype == np.float16


INTEGERS = {
    "arithmetic": ("y[i] = x[i]*w[i] + 3 - x[i]", lambda x, w: x * w + x.dtype.type(3) - x),
    "choice": ("y[i] = where(x[i] < w[i], x[i], w[i] + 1)", lambda x, w: np.where(x < w, x, w + x.dtype.type(1))),
    "extremes": ("y[i] = min(max(x[i], w[i]), 100)", lambda x, w: np.minimum(np.maximum(x, w), x.dtype.type(100))),
    "division": ("y[i] = where(w[i] == 0, 0, x[i] // max(abs(w[i]), 1))",
                 lambda x, w: np.where(w == 0, 0, x // np.maximum(np.abs(w), 1)).astype(x.dtype)),
    "sum": ("y[] = sum[i](x[i]*i32(w[i]))", lambda x, w: (x.astype(np.int64) * w.astype(np.int64)).sum()),
    "maximum": ("y[] = max[i](x[i])", lambda x, w: x.max()),
    "position": ("y[] = argmax[i](x[i])", lambda x, w: np.argmax(x)),
    "float": ("y[i] = f32(x[i])*0.5 + w[i]", lambda x, w: x.astype(np.float32) * np.float32(0.5) + w),
    "narrowed": ("y[i] = i8(x[i])", lambda x, w: x.astype(np.int8)),
    "widened": ("y[i] = i64(x[i])*w[i]", lambda x, w: x.astype(np.int64) * w),
    "a recurrence": ("y[t] = where(t > 0, i16(y[t-1] % 7 + x[t]), i16(x[t]))", None),
    "a condition": ("y[i] = x[i] == w[i]", lambda x, w: x == w),
}  # fmt: skip


@pytest.mark.thinned(6)
@pytest.mark.parametrize("kind", [np.int16, np.uint8])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(rng, name, kind):
    text, meaning = INTEGERS[name]
    ends = np.iinfo(kind)
    for n in SIZES:
        x = rng.integers(ends.min, ends.max, n, kind, endpoint=True)
        w = np.where(rng.random(n) < 0.3, x, rng.integers(ends.min + (ends.min < 0), ends.max, n, kind, endpoint=True))
        w = w.astype(kind)
        f = es.op(text)
        args = {"x": x, "w": w} if "w[" in text else {"x": x}
        if meaning is None:
            want = x.astype(np.int16)
            with np.errstate(over="ignore"):
                for t in range(1, n):
                    want[t] = want[t - 1] % np.int16(7) + want[t]
        else:
            with np.errstate(over="ignore"):
                want = meaning(x, w)
        got = f(**args)
        np.testing.assert_array_equal(got, want, err_msg=f"{n}")
        np.testing.assert_array_equal(es.interpret(f)(**args), want)
        if name not in ("position",):
            assert got.dtype == np.asarray(want).dtype


@pytest.mark.parametrize("kind", [np.int16, np.uint8])
def test_indices(rng, kind):
    for n in SIZES:
        table, at = halves(rng, 50, 3), rng.integers(0, 50, n).astype(kind)
        np.testing.assert_array_equal(es.op("y[i,j] = t[k[i],j]")(table, at), table[at])
        x = halves(rng, n)
        got = es.op("y[k[i]] += x[i]", extents={"y.shape[0]": 50})(at, x)
        want = np.zeros(50, np.float32)
        np.add.at(want, at, f32(x))
        assert got.dtype == np.float16
        close(got, want, n)
        g = es.vjp(lambda t, at=at: es.op("y[i,j] = t[k[i],j]")(t, at), table)[1](np.ones((n, 3), np.float16))[0]
        np.testing.assert_array_equal(g, np.broadcast_to(np.bincount(at, minlength=50)[:, None], (50, 3)))
    with pytest.raises(es.IndexOutOfRange):
        es.op("y[i,j] = t[k[i],j]")(table, np.array([60], kind))


def test_out_of_range_and_casts():
    big = np.array([70000.0, -1e9, 65519.9, 65520.0, np.nan, 300.7, -5.0], np.float32)
    half = es.op("y[i] = f16(x[i])")(big)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half, big.astype(np.float16))
    np.testing.assert_array_equal(es.op("y[i] = u8(x[i])")(big), [255, 0, 255, 255, 0, 255, 0])
    np.testing.assert_array_equal(es.op("y[i] = i16(x[i])")(big), [32767, -32768, 32767, 32767, 0, 300, -5])
    whole = np.array([300, -1, 255, 256], np.int32)
    np.testing.assert_array_equal(es.op("y[i] = u8(x[i])")(whole), [44, 255, 255, 0])
    np.testing.assert_array_equal(es.op("y[i] = u8(x[i]) + 1")(whole), [45, 0, 0, 1])


def test_parameters_of_modules_are_wider():
    with pytest.raises(es.DtypeError, match="float32 or float64"):
        es.nn.Linear(3, 2).to("float16")
    with pytest.raises(es.DtypeError, match="float32 or float64.*f16"):
        es.nn.Parameter(np.zeros(3, np.float16))
    with pytest.raises(es.DtypeError, match="float32 or float64"):
        es.nn.Linear(3, 2, dtype="float16")


def test_layers_take_float16(rng):
    layer, x = es.nn.Linear(5, 3), halves(rng, 7, 5)
    y = es.jit(lambda x: layer(x))(x)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, f32(x) @ layer.weight.numpy().T + layer.bias.numpy(), rtol=1e-5, atol=1e-6)


def test_bfloat16_is_rounded_on_the_way(rng):
    x = rng.standard_normal(100).astype(np.float32)
    got = es.op("y[i] = f32(bf16(x[i]))*2")(x)
    np.testing.assert_array_equal(got, 2 * dt.bf16.wide(dt.bf16.narrow(x)))
    bits = es.op("y[i] = bf16(x[i])")(x)
    assert bits.dtype == dt.BFLOAT16
    np.testing.assert_array_equal(es.op("y[i] = f32(x[i])")(bits), dt.bf16.wide(bits))
