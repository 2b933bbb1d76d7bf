"""flex_attention beside the dense math form in PyTorch, in float64: values and derivatives, masks, biases, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import einsmith as es  # noqa: E402
from einsmith import functional as F  # noqa: E402
from einsmith.api.tracing import trace_shapes  # noqa: E402
from einsmith.base.dtypes import dtype_of  # noqa: E402
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError  # noqa: E402
from einsmith.ir.nodes import Compute  # noqa: E402

T = 17
"""Offset of relative positions in the table of biases: at least L and S."""


def none(m, a):
    return None, None


def causal(m, a):
    return None, lambda b, h, i, j: j <= i


def window(m, a):
    return None, lambda b, h, i, j: (i - j <= 2) & (j - i <= 1)


def documents(m, a):
    return None, lambda b, h, i, j: (a["doc"][b, i] == a["doc"][b, j]) & (j <= i)


def by_head(m, a):
    return None, lambda b, h, i, j: j % (h + 1) == 0


def capped(m, a):
    return lambda s, b, h, i, j: m.tanh(s / 2) * 2, None


def relative(m, a):
    return lambda s, b, h, i, j: s + a["bias"][h, i - j + T], lambda b, h, i, j: j <= i + 3


def alibi(m, a):
    return lambda s, b, h, i, j: s + a["slope"][h] * (j - i), causal(m, a)[1]


def excluded(m, a):
    """Keys excluded by the score instead of the mask."""
    if m is torch:
        return lambda s, b, h, i, j: m.where(j < i, s * a["slope"][h], -m.inf), None
    return lambda s, b, h, i, j: m.where(j < i, s * a["slope"][h], -np.inf), None


def constant(m, a):
    return lambda s, b, h, i, j: s * 0 + 1.0 if m is torch else 1.0, None


NAMES = ("q", "k", "v", "bias", "slope")


def arrays(rng, L, S, heads=(2, 2), batch=(2, 2)):
    return {
        "q": rng.normal(size=(batch[0], heads[0], L, 5)),
        "k": rng.normal(size=(batch[1], heads[1], S, 5)),
        "v": rng.normal(size=(batch[1], heads[1], S, 3)),
        "bias": rng.normal(size=(heads[0], 2 * T + 1)),
        "slope": rng.uniform(0.5, 1, size=heads[0]),
        "doc": rng.integers(0, 2, size=(batch[0], T)),
        "weight": rng.normal(size=(batch[0], heads[0], L, 3)),
    }


def dense(mods, given, scale=None):
    """Return the result and the gradients of its weighted sum, from stored [B, H, L, S] scores."""
    a = {n: torch.tensor(x, requires_grad=n in NAMES) for n, x in given.items()}
    (B, H, L, E), (_, heads, S, _) = a["q"].shape, a["k"].shape
    k, v = (a[n].repeat_interleave(H // heads, 1) for n in "kv")
    at = torch.meshgrid(*(torch.arange(n) for n in (B, H, L, S)), indexing="ij")
    s = a["q"] @ k.mT * (E**-0.5 if scale is None else scale)
    score_mod, mask_mod = mods(torch, a)
    s = score_mod(s, *at) if score_mod else s
    keep = (mask_mod(*at) if mask_mod else torch.tensor(True)) & (s > -torch.inf)
    # Finite scores in place of minus infinity keep NaN out of the reference's gradients.
    some = keep.any(-1, keepdim=True)
    p = torch.where(keep, s, -1e300).softmax(-1) * some
    y = p @ v
    (y * a["weight"]).sum().backward()
    return y.detach().numpy(), [np.zeros(given[n].shape) if a[n].grad is None else a[n].grad.numpy() for n in NAMES]


def flex(mods, given, **options):
    rest = {n: given[n] for n in ("doc", "weight")}

    def f(q, k, v, bias, slope, doc, weight):
        a = {"bias": bias, "slope": slope, "doc": doc}
        y = F.flex_attention(q, k, v, *mods(es, a), **options)
        return (y * weight).sum(), y

    values = [given[n] for n in NAMES]
    y = es.jit(lambda *x: f(*x)[1])(*values, *rest.values())
    return y, es.grad(lambda *x: f(*x)[0], argnums=tuple(range(len(NAMES))))(*values, *rest.values())


def compare(mods, given, scale=None, **options):
    y, gradients = flex(mods, given, scale=scale, **options)
    wanted, derivatives = dense(mods, given, scale)
    np.testing.assert_allclose(y, wanted, rtol=1e-10, atol=1e-12)
    for name, x, d in zip(NAMES, gradients, derivatives, strict=True):
        np.testing.assert_allclose(x, d, rtol=1e-9, atol=1e-11, err_msg=name)


MODS = [none, causal, window, documents, by_head, capped, relative, alibi, excluded, constant]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("mods", MODS, ids=lambda f: f.__name__)
def test_mods(rng, mods) -> None:
    compare(mods, arrays(rng, 7, 7))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("L, S", [(1, 1), (1, 17), (17, 1), (7, 17), (17, 7)])
def test_sizes(rng, L, S) -> None:
    compare(relative, arrays(rng, L, S))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("mods", [none, documents, relative])
def test_grouped_heads_and_one_batch_of_keys(rng, mods) -> None:
    compare(mods, arrays(rng, 7, 7, (6, 2), (2, 1)), enable_gqa=True)
    compare(mods, arrays(rng, 7, 7, (4, 1)), enable_gqa=True, scale=0.3)


def test_groups_of_attention_under_torchs_name(rng) -> None:
    """Keys and values may have different numbers of heads there, which split the query's heads differently."""
    for heads in ((2, 2), (2, 3), (2, 6), (6, 2), (1, 3), (3, 1)):
        q = rng.normal(size=(2, 6, 5, 4))
        k, v = (rng.normal(size=(2, n, 7, 4)) for n in heads)
        mask = rng.random((6, 5, 7)) < 0.7
        f = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)  # noqa: E731, B023
        given = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
        repeated = [x.repeat_interleave(6 // x.shape[1], 1) for x in given]
        y = torch.nn.functional.scaled_dot_product_attention(*repeated, torch.tensor(mask))
        (y**2).sum().backward()
        np.testing.assert_allclose(es.jit(f)(q, k, v), y.detach().numpy(), rtol=1e-10)
        found = es.grad(lambda *x: (f(*x) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)  # noqa: B023
        for x, t in zip(found, given, strict=True):
            np.testing.assert_allclose(x, t.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 2e-3)])
def test_types(rng, dtype, tolerance) -> None:
    given = arrays(rng, 7, 17)
    narrow = {n: x.astype(dtype) if n in ("q", "k", "v") else x for n, x in given.items()}
    exact = {n: x.astype(float) if n in ("q", "k", "v") else x for n, x in narrow.items()}
    y = F.flex_attention(narrow["q"], narrow["k"], narrow["v"], lambda s, b, h, i, j: s + h, lambda b, h, i, j: j < 9)
    assert y.dtype == dtype
    wanted = dense(lambda m, a: (lambda s, b, h, i, j: s + h, lambda b, h, i, j: j < 9), exact)[0]
    np.testing.assert_allclose(y, wanted, atol=tolerance)


X = np.ones((2, 4, 3, 5))


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda f: f(X[0], X, X), ShapeError, "'query' needs 4"),
        (lambda f: f(X, X[..., :4], X), ShapeError, r"\[B, Hq, L, E\]"),
        (lambda f: f(X, X, X[:, :, :2]), ShapeError, r"\[B, H, S, F\]"),
        (lambda f: f(X[:1], X, X), ShapeError, "1 for the B"),
        (lambda f: f(X, X[:, :2], X[:, :2]), ShapeError, "enable_gqa"),
        (lambda f: f(X, X[:, :3], X[:, :3], enable_gqa=True), ShapeError, "multiple"),
        (lambda f: f(X, X[:, :, :0], X[:, :, :0]), ShapeError, "no steps"),
        (lambda f: f(X, X.astype("float32"), X), DtypeError, "convert"),
        (lambda f: f(X.astype(int), X, X), DtypeError, "'query' needs floats"),
        (lambda f: f(X, X, X, score_mod=lambda s, b, h, i, j: i < j), DtypeError, "'score_mod' returns bool"),
        (lambda f: f(X, X, X, score_mod=lambda s, b, h, i, j: None), DtypeError, "'score_mod' returns NoneType"),
        (lambda f: f(X, X, X, mask_mod=lambda b, h, i, j: i), DtypeError, "'mask_mod' returns"),
        (lambda f: f(X, X, X, mask_mod=lambda b, h, i, j: X[b, h] > 0), ArgumentError, "'mask_mod' reads an array"),
        (lambda f: f(X, X, X, mask_mod=True), ArgumentError, "mask_mod"),
    ],
)
def test_errors(call, error, words) -> None:
    with pytest.raises(error, match=words):
        call(F.flex_attention)


def test_a_mod_that_returns_a_shape() -> None:
    with pytest.raises(ShapeError, match="'score_mod' returns shape"):
        es.jit(lambda x, y: F.flex_attention(x, x, x, lambda s, b, h, i, j: y))(X, np.ones(3))


def test_masks_are_parts_of_the_scores_formula() -> None:
    """No tensor of the traced graph is a mask or a position of query and key steps."""

    def mask(b, h, i, j):
        return (j <= i) & (i - j < 9)

    outputs = trace_shapes(
        lambda q: F.flex_attention(q, q, q, mask_mod=mask), [((1, 2, 33, 5), dtype_of("float64"))], ["q"]
    ).graph.outputs
    todo, seen = list(outputs), set()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            assert node.dtype.is_float or node.shape[-2:] != (33, 33)
            todo += node.args if isinstance(node, Compute) else ()
    assert len(seen) > 2


def test_example_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    known: dict = {}
    exec(page.partition("## Attention with formulas")[2].partition("```python")[2].partition("```")[0], known)
    assert known["y"].shape == (2, 4, 17, 5) and known["gradient"].shape == (4, 35)


@pytest.mark.parametrize(
    ("mask", "shape", "error", "match"),
    [
        (lambda d: lambda b, h, i, j: d[i] == d[j], (5,), es.BoundsError, "8 query steps.*'mask_mod'.*shape \\(5,\\)"),
        (lambda d: lambda b, h, i, j: d[i, b] == d[j, b], (3, 8), es.BoundsError, "8 key steps"),
        (lambda d: lambda b, h, i, j: d[i], (3, 8), es.ShapeError, "2 dimensions"),
        (lambda d: lambda b, h, i, j: d, (3, 8), es.ShapeError, "not one scalar"),
        (lambda d: lambda b, h, i: d[i], (8,), es.KindError, "'mask_mod' takes \\(b, h, i\\)"),
        (lambda d: lambda b, h, i, j: d[i], (8,), es.DtypeError, "needs a bool"),
    ],
)
def test_masks_that_read_tensors_of_other_shapes(rng, mask, shape, error, match):
    q = rng.standard_normal((1, 2, 8, 4)).astype(np.float32)
    attend = es.jit(lambda q, d: F.flex_attention(q, q, q, mask_mod=mask(d)))
    with pytest.raises(error, match=match):
        attend(q, np.zeros(shape, np.int64))
