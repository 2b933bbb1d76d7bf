"""Derivatives of derivatives by torch.compile's backend: formed inside of what is compiled, or an error."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")

import einsmith as es  # noqa: E402
from einsmith.frontends import torch_export  # noqa: E402
from einsmith.frontends.torch import from_torch  # noqa: E402
from tests.frontends.compile_samples import compare, derived, operators, sweep  # noqa: E402
from tests.frontends.torch_compiled import agree, compiled, fresh, randn  # noqa: E402, F401


def network(x, w):
    return torch.tanh(x @ w).pow(3).sum()


def penalty(x, w):
    """Of the derivatives."""
    return sum((g * g).sum() for g in torch.func.grad(network, argnums=(0, 1))(x, w))


def test_derivatives_formed_inside_are_derived_again():
    x, w = randn(3, 4, grad=True), randn(4, 5, grad=True)
    f = compiled(penalty)
    agree(f(x, w), penalty(x, w))
    agree(torch.autograd.grad(f(x, w), [x, w]), torch.autograd.grad(penalty(x, w), [x, w]))


def test_they_are_what_differences_say():
    f = compiled(lambda x, w: torch.func.grad(network, argnums=(0, 1))(x, w))
    assert torch.autograd.gradcheck(f, (randn(2, 3, grad=True), randn(3, 2, grad=True)))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("outer", ["hessian", "jacrev", "jacfwd"])
def test_whole_matrices_of_second_derivatives(outer):
    x, w = randn(2, 3), randn(3, 2)
    whole = getattr(torch.func, outer)
    f = whole(network if outer == "hessian" else torch.func.grad(network))
    agree(compiled(lambda x, w: f(x, w))(x, w), f(x, w))


def test_the_backward_of_a_compiled_function_is_derived():
    x, w = randn(3, 4, grad=True), randn(4, 5, grad=True)

    def second(f):
        (first,) = torch.autograd.grad(f(x, w), [x], create_graph=True)
        return torch.autograd.grad(first.sum(), [w])

    agree(second(compiled(network)), second(network))


def test_a_derivative_that_is_zero_is_a_tensor():
    f = derived(lambda x: x.abs())
    assert compare(f, [randn(3, 4, grad=True)]) == []


@pytest.mark.skipif(not torch_export.TELLS_GUARDS, reason="from_torch needs a newer PyTorch")
def test_imported_modules_are_derived_again():
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double()
    x, v = randn(4), randn(4)
    ours = from_torch(model, x)

    _, got = es.jvp(es.grad(lambda x: es.sum(ours(x))), (x.numpy(),), (v.numpy(),))
    want = torch.func.hessian(lambda x: model(x).sum())(x) @ v
    agree(torch.from_numpy(got), want.detach())


def test_second_order_of_samples_of_operators():
    """A few of PyTorch's own; `python -m tests.frontends.compile_samples --second` takes all of them."""
    said: list[str] = []
    chosen = [op for op in operators(torch.float64) if op.supports_gradgrad][3::61]
    tally = sweep(torch.float64, 1, 0, chosen, said.append, second=True)
    assert not tally["wrong"] and not tally["error"], "\n".join(said)
    assert tally["ours"] > tally["in PyTorch"], said


@pytest.mark.slow
def test_second_order_of_samples_of_all_operators():
    said: list[str] = []
    chosen = [op for op in operators(torch.float64) if op.supports_gradgrad]
    tally = sweep(torch.float64, 1, 0, chosen, said.append, second=True)
    assert not tally["wrong"] and not tally["error"], "\n".join(said)
    assert tally["ours"] >= 0.9 * (tally["ours"] + tally["in PyTorch"]), tally
