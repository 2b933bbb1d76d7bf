"""Linear recurrences by their papers' names against loops over steps."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.base.errors import RecurrenceError

B, T, H, K, V = 2, 9, 4, 3, 5


@pytest.fixture
def sequences(rng: np.random.Generator) -> dict[str, np.ndarray]:
    z = rng.standard_normal
    return {
        "query": z((B, T, H, K)),
        "key": z((B, T, H, K)),
        "value": z((B, T, H, V)),
        "decay": -np.abs(z((B, T, H))),
        "decays": -np.abs(z((B, T, H, K))),
        "beta": rng.random((B, T, H)),
        "first": z((B, H, K, V)),
    }


def delta_rule(x: dict[str, np.ndarray], decay: np.ndarray, first: np.ndarray, corrects: bool):
    """Return the outputs and the last state of a loop over steps; `corrects`: by the delta rule."""
    state, out = first.copy(), []
    for t in range(T):
        state *= np.exp(decay[:, t].reshape(B, H, -1, 1))
        u = x["value"][:, t]
        if corrects:
            u = x["beta"][:, t, :, None] * (u - np.einsum("bhkv,bhk->bhv", state, x["key"][:, t]))
        state = state + np.einsum("bhk,bhv->bhkv", x["key"][:, t], u)
        out.append(np.einsum("bhkv,bhk->bhv", state, x["query"][:, t]) * K**-0.5)
    return np.stack(out, 1), state


@pytest.mark.parametrize("decay", ["decay", "decays", None])
@pytest.mark.parametrize("corrects", [True, False])
def test_attention_and_delta_rule(sequences, decay: str | None, corrects: bool) -> None:
    x = sequences
    decays = np.zeros((B, T, H)) if decay is None else x[decay]
    given = {n: x[n] for n in ("query", "key", "value", *(["beta"] if corrects else []))}
    given["decay"] = None if decay is None else x[decay]
    f = F.gated_delta_rule if corrects else F.linear_attention
    for first in (None, x["first"]):
        y, last = f(**given, initial_state=first, output_final_state=True)
        expected = delta_rule(x, decays, np.zeros((B, H, K, V)) if first is None else first, corrects)
        np.testing.assert_allclose(y, expected[0], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(last, expected[1], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(f(**given, scale=1.0), delta_rule(x, decays, 0 * x["first"], corrects)[0] * K**0.5)


def test_ssd(rng: np.random.Generator) -> None:
    z, groups, wide = rng.standard_normal, 2, 6
    x, dt, a = z((B, T, H, V)), rng.random((B, T, H)), -rng.random(H)
    left, right = z((B, T, groups, wide)), z((B, T, groups, wide))
    y, last = F.ssd(x, dt, a, left, right, output_final_state=True)
    state, out = np.zeros((B, H, V, wide)), []
    for t in range(T):
        state *= np.exp(a * dt[:, t])[..., None, None]
        keys = np.repeat(left[:, t], H // groups, 1)
        state = state + np.einsum("bhp,bhn->bhpn", dt[:, t, :, None] * x[:, t], keys)
        out.append(np.einsum("bhpn,bhn->bhp", state, np.repeat(right[:, t], H // groups, 1)))
    np.testing.assert_allclose(y, np.stack(out, 1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(last, state, rtol=1e-12, atol=1e-12)


def test_rwkv7(rng: np.random.Generator) -> None:
    r, w, k, v, a, b = rng.standard_normal((6, B, T, H, K)) * 0.5
    y, last = F.rwkv7(r, -np.abs(w), k, v, a, b, output_final_state=True)
    state, out = np.zeros((B, H, K, K)), []
    for t in range(T):
        read = np.einsum("bhvk,bhk->bhv", state, a[:, t])
        state = state * np.exp(-np.abs(w[:, t]))[:, :, None] + read[..., None] * b[:, t, :, None]
        state = state + v[:, t, ..., None] * k[:, t, :, None]
        out.append(np.einsum("bhvk,bhk->bhv", state, r[:, t]))
    np.testing.assert_allclose(y, np.stack(out, 1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(last, state, rtol=1e-12, atol=1e-12)


def test_mlstm(sequences, rng: np.random.Generator) -> None:
    """Without its stabiliser, which cancels."""
    x, i, f = sequences, rng.standard_normal((B, T, H)), rng.standard_normal((B, T, H))
    y = F.mlstm(x["query"], x["key"], x["value"], i, f, eps=0.0)
    state, normalizer, out = np.zeros((B, H, K, V)), np.zeros((B, H, K)), []
    for t in range(T):
        kept = 1 / (1 + np.exp(-f[:, t]))[..., None]
        keys = np.exp(i[:, t])[..., None] * x["key"][:, t]
        state = state * kept[..., None] + np.einsum("bhk,bhv->bhkv", keys, x["value"][:, t])
        normalizer = normalizer * kept + keys
        q = x["query"][:, t] * K**-0.5
        z = np.maximum(np.abs((normalizer * q).sum(-1)), 1.0)
        out.append(np.einsum("bhkv,bhk->bhv", state, q) / z[..., None])
    np.testing.assert_allclose(y, np.stack(out, 1), rtol=1e-10, atol=1e-10)


def test_mlstm_that_forgets_all(rng: np.random.Generator) -> None:
    """A forget gate whose exponential is above all of float32 has a gradient: that of a state of one step, 0."""
    q, k, v = rng.standard_normal((3, 1, T, H, K)).astype(np.float32)
    i, f = rng.standard_normal((1, T, H)).astype(np.float32), np.full((1, T, H), -100, np.float32)
    y = F.mlstm(q, k, v, i, f)
    np.testing.assert_allclose(y[:, 3:4], F.mlstm(*(x[:, 3:4] for x in (q, k, v, i, f))), rtol=1e-6)
    assert not es.grad(lambda f: (F.mlstm(q, k, v, i, f) ** 2).sum())(f).any()


def test_wrong_shapes_are_errors(sequences) -> None:
    x = sequences
    with pytest.raises(es.ShapeError, match="'decay'.*is neither"):
        F.linear_attention(x["query"], x["key"], x["value"], x["decay"][:1])
    with pytest.raises(es.ShapeError, match="'initial_state'"):
        F.linear_attention(x["query"], x["key"], x["value"], initial_state=x["first"][:1])
    with pytest.raises(es.ShapeError, match="heads of 'x'"):
        F.ssd(x["value"], x["beta"], np.ones(H), np.ones((B, T, 3, 2)), np.ones((B, T, 3, 2)))


DELTA = """
p[t,h,k,v] = where(t > 0, S[t-1,h,k,v], 0)*exp(g[t,h])
u[t,h,v] = b[t,h]*(V[t,h,v] - sum[k](p[t,h,k,v]*K[t,h,k]))
S[t,h,k,v] = p[t,h,k,v] + K[t,h,k]*u[t,h,v]
o[t,h,v] = sum[k](S[t,h,k,v]*Q[t,h,k])
return o
"""


def keys_of_one(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("chunk", [5, 16, 64])
def test_chunks_that_are_asked_for(chunk: int, rng: np.random.Generator) -> None:
    """In float32, compiled: values and gradients are those of steps."""
    z = rng.standard_normal
    x = [-np.abs(z((37, 3))), rng.random((37, 3)), z((37, 3, 17)), keys_of_one(z((37, 3, 15))), z((37, 3, 15))]
    x = [a.astype(np.float32) for a in x]
    seed = z((37, 3, 17)).astype(np.float32)
    results = []
    for size in (1, chunk):
        f = es.op(DELTA, inputs="g, b, V, K, Q", chunk=size)
        run = es.jit(lambda seed, x, f=f: (lambda y, pull: (y, *pull(seed)))(*es.vjp(f, *x)))
        results.append(run(seed, tuple(x)))
    for steps, chunks in zip(*results, strict=True):
        assert np.abs(steps - chunks).max() <= 4e-6 * np.abs(steps).max()


def test_second_derivatives_of_chunks(rng: np.random.Generator) -> None:
    z = rng.standard_normal
    x = tuple(a * 0.3 for a in (-np.abs(z((9, 2))), z((9, 2)), z((9, 2, 3)), z((9, 2, 4)), z((9, 2, 4))))

    def second(chunk: int):
        f = es.op(DELTA, inputs="g, b, V, K, Q", chunk=chunk)
        first = es.grad(lambda *x: (f(*x) ** 2).sum(), argnums=tuple(range(5)))
        return es.jit(es.grad(lambda *x: sum((g**2).sum() for g in first(*x)), argnums=tuple(range(5))))(*x)

    for steps, chunks in zip(second(1), second(4), strict=True):
        np.testing.assert_allclose(chunks, steps, rtol=1e-9, atol=1e-9 * np.abs(steps).max())


def test_chunks_of_a_batch(rng: np.random.Generator) -> None:
    z = rng.standard_normal
    x = (-np.abs(z((3, 9, 2))), z((3, 9, 2)), z((3, 9, 2, 3)), z((3, 9, 2, 4)), z((3, 9, 2, 4)))
    steps, chunks = (es.vmap(es.op(DELTA, inputs="g, b, V, K, Q", chunk=n))(*x) for n in (1, 4))
    np.testing.assert_allclose(chunks, steps, rtol=1e-10, atol=1e-10)


def test_chunks_that_there_are_none_of(rng: np.random.Generator) -> None:
    x = rng.standard_normal((8, 3))
    with pytest.raises(RecurrenceError, match="chunk=4 asks for linear recurrences.*a step has tanh of its state"):
        es.op("h[t,k] = tanh(x[t,k] + where(t > 0, h[t-1,k], 0))\nreturn h", chunk=4)(x)
    with pytest.raises(RecurrenceError, match="the formula has none"):
        es.op("y[t,k] = 2*x[t,k]", chunk=4)(x)
    for wrong in (-1, 1.5, True):
        with pytest.raises(es.EinsmithError, match="chunk="):
            es.op("y[t,k] = 2*x[t,k]", chunk=wrong)
