"""Tensors whose memory does not hold their elements: arguments and cotangents of backend="einsmith"."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")

import einsmith as es  # noqa: E402
from einsmith.base.errors import DtypeError  # noqa: E402
from einsmith.frontends import torch_device  # noqa: E402
from einsmith.frontends.torch import operator  # noqa: E402
from tests.frontends.torch_compiled import agree, compiled, fresh, randn  # noqa: E402, F401

LAZY: dict[str, Callable] = {
    "zero": lambda: torch._efficientzerotensor((4,), dtype=torch.float64),
    "gradient of sgn": lambda: torch.autograd.grad(torch.sgn(x := randn(4, grad=True)).sum(), x)[0],
    "negative": lambda: torch._neg_view(randn(4)),
    "negative, gaps": lambda: torch._neg_view(randn(8))[::2],
    "negative, expanded": lambda: torch._neg_view(randn(1)).expand(4),
    "imaginary part of a conjugate": lambda: torch.complex(randn(4), randn(4)).conj().imag,
}


def _f(x: torch.Tensor) -> torch.Tensor:
    return (x * x).exp().sum() * x


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", LAZY)
def test_lazy_tensors_are_read_as_their_elements(kind):
    t, x = LAZY[kind](), randn(4, grad=True)
    f = compiled(_f)
    agree(f(t.clone()), _f(t.clone()))  # the program for a plain tensor of the same layout
    agree(f(t), _f(t.clone()))
    agree(torch.autograd.grad(f(x), x, t)[0], torch.autograd.grad(_f(x), x, t.clone())[0])
    agree(operator(es.op("y[i] = x[i] * x[i] + x[i]"))(t), t.clone() * t.clone() + t.clone())


def test_lazily_negated_tensors_are_changed_in_place():
    def f(x):
        x.mul_(2).add_(1)
        return x.sin()

    base = randn(8)
    for at in (slice(0, 4), slice(1, 8, 2)):
        ours, theirs = torch._neg_view(base.clone()), torch._neg_view(base.clone())
        g = compiled(f)
        g(randn(8)[at])
        agree(g(ours[at]), f(theirs[at]))
        agree(ours.clone(), theirs.clone())


def test_incoming_gradients_of_batches():
    x, cotangents = randn(4, grad=True), torch.eye(4, dtype=torch.float64)
    f = torch.compile(_f, backend="einsmith")
    with pytest.warns(UserWarning, match="only PyTorch can read"):
        got = torch.autograd.grad(f(x), x, cotangents, is_grads_batched=True)
    agree(got, torch.autograd.grad(_f(x), x, cotangents, is_grads_batched=True))
    with pytest.raises(Exception, match="only PyTorch can read"):
        torch.autograd.grad(compiled(_f)(x), x, cotangents, is_grads_batched=True)


def test_tangents_of_arguments_are_carried_on():
    from torch.autograd import forward_ad

    x, t = randn(4), randn(4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        with pytest.warns(UserWarning, match="tangent"):
            got = forward_ad.unpack_dual(torch.compile(_f, backend="einsmith")(dual)).tangent
        want = forward_ad.unpack_dual(_f(dual)).tangent
    agree(got, want)


def test_tensors_without_memory_are_refused():
    x = torch.ones(3)
    for t in (x.to_sparse(), x.to_mkldnn(), x.to("meta"), torch.nested.nested_tensor([x, x])):
        with pytest.raises(DtypeError, match="only PyTorch can read"):
            torch_device.in_memory([x, t])
    (same,) = torch_device.in_memory([x])
    assert same is x
