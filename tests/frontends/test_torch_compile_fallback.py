"""What torch.compile(model, backend="einsmith") does not compute itself runs in PyTorch, and is said."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")

from einsmith.base.errors import EinsmithError  # noqa: E402
from einsmith.frontends.torch_compile import aot, options, region, saved  # noqa: E402
from tests.frontends.torch_compiled import agree, compiled, fresh, randn  # noqa: E402, F401


def _spectral(a, x):
    y = torch.linalg.eigvalsh(a @ a.T + torch.eye(3, dtype=a.dtype)) * x.sin()
    return y.cos() * 2


def test_operators_without_a_formula_run_in_pytorch():
    a, x = randn(3, 3, grad=True), randn(2, 3, grad=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            torch._dynamo.reset()
            got = torch.compile(_spectral, backend="einsmith")(a, x)
    texts = [str(w.message) for w in said if "_linalg_eigh" in str(w.message)]
    assert len(texts) == 1 and "torch.linalg.eigvalsh(a @ a.T" in texts[0]
    assert "test_torch_compile_fallback.py" in texts[0]
    agree(got.detach(), _spectral(a, x).detach())
    agree(torch.autograd.grad(got.sum(), (a, x)), torch.autograd.grad(_spectral(a, x).sum(), (a, x)))


_DEGREES = torch.tensor([0.0, 1.0, 2.0, 5.0], dtype=torch.float64)
_KINDS = ("chebyshev_polynomial_", "shifted_chebyshev_polynomial_", "hermite_polynomial_")
_POLYNOMIALS = [kind + end for kind in _KINDS for end in (("h", "he") if kind.startswith("hermite") else "tuvw")]
DIFFERENTIABLE = {
    "polygamma": lambda x: torch.polygamma(7, x),
    "special.zeta": lambda x: torch.special.zeta(2.0, x),
    "ormqr": lambda x: torch.ormqr(x, torch.ones(4, dtype=x.dtype), x),
    "lu_unpack": lambda x: torch.lu_unpack(*torch.linalg.lu_factor(x))[1],
    "put": lambda x: x.put(torch.tensor([1, 2, -1]), x.flatten()[:3] * 2),
}
CONSTANT = {
    "geqrf": lambda x: torch.geqrf(x)[0],
    "histogramdd": lambda x: torch.histogramdd(x, [3] * 4)[0],
    **{name: lambda x, name=name: getattr(torch.special, name)(x, _DEGREES) for name in _POLYNOMIALS},
}
"""Operators without a derivative in PyTorch."""


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", DIFFERENTIABLE | CONSTANT)
def test_operators_left_to_pytorch_give_its_values_and_gradients(name):
    def f(v):
        return (DIFFERENTIABLE | CONSTANT)[name](v.sin() + 2).sin() * 3

    x = randn(4, 4, grad=name in DIFFERENTIABLE)
    with pytest.warns(UserWarning, match="no formula is in the table|order 7 is not supported"):
        got = torch.compile(f, backend="einsmith")(x)
        if x.requires_grad:
            agree(torch.autograd.grad(got.sum(), x), torch.autograd.grad(f(x).sum(), x))
    agree(got.detach(), f(x).detach())


def test_the_fallback_can_be_an_error():
    with pytest.raises(Exception, match=r"_linalg_eigh.*runs in PyTorch"):
        compiled(_spectral)(randn(3, 3), randn(2, 3))


@pytest.mark.parametrize("options", [{"fallbak": "error"}, {"fallback": "never"}])
def test_unknown_options_are_errors(options):
    with pytest.raises(Exception, match="fallback"):
        torch.compile(torch.sin, backend="einsmith", options=options)(randn(3))


def test_graph_breaks_and_shapes_that_depend_on_data():
    def f(x):
        y = x.sin() + 1
        if y.sum() > 0:  # Dynamo breaks the graph here
            y = y * 2
        places = torch.nonzero(y > 1.5)
        return y[y > 2].sum() + places.double().sum(), torch.unique((y * 4).long())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(3):
            torch.manual_seed(seed)
            x = randn(4, 5)
            agree(torch.compile(f, backend="einsmith")(x), f(x))
            agree(torch.compile(f, backend="einsmith", dynamic=True)(x), f(x))


def test_a_part_that_does_not_compile_runs_in_pytorch(monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("no such machine")

    monkeypatch.setattr(region, "Executable", broken)
    x = randn(4, 3, grad=True)
    with pytest.warns(UserWarning, match="no such machine"):
        y = torch.compile(lambda v: v.sin() * 2 + v.t().contiguous().t(), backend="einsmith")(x)
    agree(y.detach(), (x.sin() * 2 + x).detach())
    with pytest.raises(Exception, match="no such machine"):
        compiled(lambda v: v.sin() * 3)(x)


@pytest.mark.parametrize("broken", ["choose", "split"])
def test_graphs_like_none_before_are_pytorchs(broken, monkeypatch):
    def failing(*args, **kwargs):
        raise KeyError("unheard of")

    monkeypatch.setattr(saved if broken == "choose" else aot, broken, failing)
    x = randn(4, 3, grad=True)
    with pytest.warns(UserWarning, match="unheard of"):
        y = torch.compile(lambda v: (v.sin() * v).sum(), backend="einsmith")(x)
        agree(torch.autograd.grad(y, x)[0], x.cos() * x + x.sin())


def test_control_flow_inside_a_graph():
    def f(x):
        return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos() * 2, (x * 2,)) + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (torch.ones(3), -torch.ones(3)):
            agree(torch.compile(f, backend="einsmith")(x), f(x), 1e-6)


def test_indices_out_of_range_are_errors():
    table = randn(5, 3)
    f = compiled(lambda i: table[i] * 2)
    agree(f(torch.tensor([4, -5, 0])), table[[4, -5, 0]] * 2)
    with pytest.raises((IndexError, RuntimeError)):
        f(torch.tensor([4, 5, 0]))


def test_other_types_and_layouts():
    x = torch.randn(3, 4, dtype=torch.complex64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = torch.compile(lambda v: (v * 2).real + 1, backend="einsmith")
        agree(f(x), (x * 2).real + 1, 1e-6)
        g = torch.compile(lambda v: v.imag * 2, backend="einsmith")
        agree(g(x.conj()), x.conj().imag * 2, 1e-6)  # kept as others with a sign to be put on


def test_errors_are_einsmiths():
    with pytest.raises(EinsmithError):
        options.Options("error").say("aten.foo", "no formula", "here")
