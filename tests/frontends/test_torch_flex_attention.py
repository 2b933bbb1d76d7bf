"""PyTorch's flex_attention compiled by the backend: the values of PyTorch's own dense form, in float64."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

from tests.frontends.torch_compiled import agree, compiled, fresh, randn  # noqa: E402, F401

BIAS, SLOPE = randn(4, 64), randn(4).abs()
DOC = torch.arange(17).div(6, rounding_mode="floor").repeat(2, 1)


def capped(s, b, h, i, j):
    return torch.tanh(s / 2) * 2


def relative(s, b, h, i, j):
    return s + BIAS[h, i - j + 20]


def alibi(s, b, h, i, j):
    return torch.where(j <= i + 2, s + SLOPE[h] * (j - i), -torch.inf)


def documents(b, h, i, j):
    return (DOC[b, i] == DOC[b, j]) & (j <= i)


def window(b, h, i, j):
    return (i - j).abs() <= 2


def strict(b, h, i, j):
    return j < i


@pytest.mark.thinned(6)
@pytest.mark.parametrize("mask", [None, documents, window, strict])
@pytest.mark.parametrize("score", [None, capped, relative, alibi])
def test_mods(score, mask) -> None:
    q, k, v = (randn(2, n, 17, 16) for n in (4, 2, 2))
    blocks = None if mask is None else flex.create_block_mask(mask, 2, None, 17, 17, device="cpu")

    def f(q, k, v):
        return flex.flex_attention(q, k, v, score, blocks, enable_gqa=True)

    agree(compiled(f)(q, k, v), f(q, k, v))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("L, S", [(1, 1), (1, 17), (17, 1), (7, 17)])
def test_sizes_and_logsumexp(L, S) -> None:
    q, k, v = (randn(2, 4, n, 16) for n in (L, S, S))

    def f(q, k, v):
        y, lse = flex.flex_attention(q * 2, k, v, relative, return_lse=True)
        return y + 1, lse

    (y, lse), (wanted, exact) = compiled(f)(q, k, v), f(q, k, v)
    agree(y, wanted)
    torch.testing.assert_close(lse, exact.float())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("mask", [None, strict])
def test_captured_tensors_that_are_trained(mask) -> None:
    q, bias = randn(2, 2, 7, 16), randn(2, 64, grad=True)
    blocks = None if mask is None else flex.create_block_mask(mask, 2, None, 7, 7, device="cpu")

    def f(q):
        return (flex.flex_attention(q, q, q, lambda s, b, h, i, j: s + bias[h, i - j + 20] ** 2, blocks) ** 2).sum()

    (found,) = torch.autograd.grad(compiled(f)(q), bias)

    at = torch.arange(7)
    s = q @ q.mT / 4 + bias[:, at[:, None] - at + 20] ** 2
    keep = torch.ones(7, 7, dtype=torch.bool).tril(-1) if mask else torch.ones(7, 7, dtype=torch.bool)
    y = (s.masked_fill(~keep, -1e300).softmax(-1) * keep.any(-1, keepdim=True)) @ q
    (wanted,) = torch.autograd.grad((y**2).sum(), bias)
    agree(found, wanted)


def test_gradients_of_queries_are_pytorchs_error() -> None:
    q = randn(1, 2, 7, 16, grad=True)
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        compiled(lambda q: flex.flex_attention(q, q, q))(q)


def test_functions_that_are_not_elementwise_are_refused() -> None:
    x = randn(1, 4, 5, 16)

    def rows(s, b, h, i, j):
        return s + BIAS[h].sum()

    with pytest.raises(Exception, match="not elementwise"):
        compiled(lambda x: flex.flex_attention(x, x, x, rows))(x)


@pytest.mark.parametrize("shape, width", [((6, 8), 3), ((4, 5, 6), 2)])
def test_windows_of_grids(shape, width) -> None:
    """Neighbourhoods that move inside at the border are computed as windows."""

    def mask(b, h, i, j):
        keep, below = None, 1
        for extent in reversed(shape):
            x, y = (p // below % extent for p in (i, j))
            start = torch.clamp(x - width // 2, 0, extent - width)
            own = (start <= y) & (y < start + width)
            keep, below = own if keep is None else keep & own, below * extent
        return keep

    steps = math.prod(shape)
    q, k, v = (randn(2, 3, steps, 8) for _ in range(3))
    blocks = flex.create_block_mask(mask, None, None, steps, steps, device="cpu")

    def f(q, k, v):
        return flex.flex_attention(q, k, v, block_mask=blocks)

    agree(compiled(f)(q, k, v), f(q, k, v))
