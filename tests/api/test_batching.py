"""vmap and hessian against loops over the batch and against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es

ORDER = es.op("h[t,i] = where(t > 0, tanh(h[t-1,i]*w[i]), x[i])", extents={"t": 4})


def loss(x, w):
    return es.tanh(x @ w).sum()


@pytest.mark.parametrize("run", [es.interpret, es.jit])
def test_a_batch_is_a_loop(run, rng) -> None:
    x, w, many = rng.normal(size=(4, 3)), rng.normal(size=(3, 2)), rng.normal(size=(5, 3, 2))
    found = run(
        lambda x, w, many: (
            es.vmap(loss, (0, None))(x, w),
            es.vmap(es.grad(loss, 1), (0, None), -1)(x, w),
            es.vmap(es.vmap(loss, (0, None)), (None, 0))(x, many),
            es.grad(lambda x: (es.vmap(loss, (0, None))(x, w) ** 2).sum())(x),
            es.vmap(lambda a: {"sum": a["p"] * a["q"][0], "same": es.sin(w)}, 1)({"p": x, "q": [x]}),
            es.vmap(lambda x: ORDER(w=w[:, 0], x=x)[-1])(x),
        )
    )(x, w, many)
    once = [es.interpret(es.grad(loss, 1))(a, w) for a in x]
    values = np.tanh(x @ w).sum(1)
    wanted = (
        values, np.stack(once, -1), np.tanh(x @ many).sum(-1),
        2 * values[:, None] * ((1 - np.tanh(x @ w) ** 2) @ w.T),
        {"sum": x.T * x.T, "same": np.tile(np.sin(w), (3, 1, 1))},
        np.stack([es.interpret(ORDER)(w=w[:, 0], x=a)[-1] for a in x]),
    )  # fmt: skip
    for got, want in zip(found, wanted, strict=True):
        for key in want if isinstance(want, dict) else (...,):
            np.testing.assert_allclose(got[key], want[key], rtol=1e-12, atol=1e-14)


def test_modules_and_single_samples(rng) -> None:
    model, x = es.nn.Linear(3, 2, dtype="float64"), rng.normal(size=(7, 3))
    np.testing.assert_allclose(es.vmap(model)(x), model(x), rtol=1e-13)
    assert es.vmap(model)(x[:1]).shape == (1, 2)


def test_second_derivatives_are_torchs(rng) -> None:
    torch = pytest.importorskip("torch", reason="its hessian is compared with")
    x, w = rng.normal(size=(2, 3)), rng.normal(size=(3, 3))

    def f(tanh):
        return lambda x, w: (tanh(x @ w) ** 2).sum() * x[0, 1]

    for at in (0, 1):
        want = torch.func.hessian(f(torch.tanh), at)(torch.tensor(x), torch.tensor(w)).numpy()
        np.testing.assert_allclose(es.hessian(f(es.tanh), at)(x, w), want, rtol=1e-10, atol=1e-12)
    assert es.hessian(lambda a: a * a * a)(np.float32(2) + np.zeros((), np.float32)) == 12
    third = es.grad(lambda x: es.hessian(f(es.tanh))(x, w).sum())(x)
    t = torch.tensor(x, requires_grad=True)
    torch.func.hessian(f(torch.tanh))(t, torch.tensor(w)).sum().backward()
    np.testing.assert_allclose(third, t.grad.numpy(), rtol=1e-9)


@pytest.mark.parametrize(
    "call, error, said",
    [
        (lambda x, w: es.vmap(loss)(x, w), es.ShapeError, "found 3, 4"),
        (lambda x, w: es.vmap(loss, None)(x, w), es.ShapeError, "found none"),
        (lambda x, w: es.vmap(loss, (0,))(x, w), es.ArgumentError, "has 1 entries for 2 arguments"),
        (lambda x, w: es.vmap(loss, (5, None))(x, w), es.ArgumentError, "argument 0 .* no dimension 5"),
        (lambda x, w: es.vmap(loss, 0.5)(x, w), es.ArgumentError, "in_axes=0.5"),
        (lambda x, w: es.vmap(loss, (0, None), 1)(x, w), es.ArgumentError, "a result .* no dimension 1"),
        (lambda x, w: es.hessian(lambda x: x)(x), es.GradientError, "float scalar"),
        (lambda x, w: es.hessian(loss, 4)(x, w), es.GradientError, "argnums=4"),
        (lambda x, w: es.hessian(loss)(x.astype(int), w), es.GradientError, "i64"),
        (lambda x, w: es.hessian(lambda d: d["a"].sum())({"a": x}), es.GradientError, "one array"),
    ],
)
def test_impossible_batches_are_named(call, error, said) -> None:
    with pytest.raises(error, match=said):
        call(np.ones((4, 3)), np.ones((3, 2)))
