"""Backward passes of compiled functions are differentiated as those of eager execution, to any order."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import einsmith as es
import einsmith.frontends.torch  # noqa: F401  registers the backend
from einsmith.base.errors import GradientError


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(f: Any, options: Any = None, **more: Any) -> Any:
    return torch.compile(f, backend="einsmith", options={"fallback": "error", **(options or {})}, **more)


def same(run: Callable[[Any], Any], f: Any, options: Any = None, **tolerance: Any) -> None:
    """Compare what `run` gives for a function and for the compiled one."""
    want = run(f)
    got = run(compiled(f, **(options or {})))
    torch.testing.assert_close(got, want, **({"rtol": 1e-10, "atol": 1e-12} | tolerance))


def forces(energy: Callable[..., Any], x: torch.Tensor, *more: Any, wrt: Any = ()) -> list[Any]:
    """The energy, the forces, and the gradients of a loss of both."""
    x = x.clone().requires_grad_()
    e = energy(x, *more).sum()
    (force,) = torch.autograd.grad(e, x, create_graph=True)
    loss = (force**2).sum() + 0.1 * e**2
    return [e.detach(), force.detach(), *torch.autograd.grad(loss, [x, *wrt])]


class Net(nn.Module):
    """Three layers of smooth functions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1), nn.Softplus()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def test_losses_of_forces() -> None:
    net, x = Net().double(), torch.randn(5, 3, dtype=torch.float64)
    same(lambda f: forces(f, x, wrt=tuple(net.parameters())), net)


def test_three_orders() -> None:
    """A residual of third order in one coordinate, as of the Korteweg-de Vries equation."""
    net, x = Net().double(), torch.randn(4, 3, dtype=torch.float64)

    def run(f: Any) -> Any:
        z = x.clone().requires_grad_()
        u = f(z)
        derivatives = [u]
        for _ in range(3):
            (g,) = torch.autograd.grad(derivatives[-1].sum(), z, create_graph=True)
            derivatives.append(g[:, :1])
        u, first, _, third = derivatives
        loss = ((first + 6 * u * first + third) ** 2).mean()
        return [loss.detach(), *torch.autograd.grad(loss, list(net.parameters()))]

    same(run, net, rtol=1e-8)


class Own(torch.autograd.Function):
    """A sine whose backward pass leaves out a part of its own derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return g * x.cos().detach() * x.exp()


def weighted(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        w = x.exp()
    return torch.tanh(x) * x.detach() + w * x**3 + Own.apply(2 * x)


def test_what_has_no_gradient_has_none_in_the_second() -> None:
    x = torch.randn(7, dtype=torch.float64)
    same(lambda f: forces(f, x), weighted)


def edges(x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    d = ((x[source] - x[target]) ** 2).sum(1).add(0.1).sqrt()
    return x.new_zeros(x.shape[0]).index_add(0, target, torch.exp(-d) * torch.cos(d))


@pytest.mark.parametrize("dynamic", [None, True])
def test_gathers_and_scatters_of_any_number_of_edges(dynamic: bool | None) -> None:
    x = torch.randn(6, 3, dtype=torch.float64)
    lists = [torch.randint(0, 6, (2, n)) for n in (9, 14, 5, 9)]
    same(lambda f: [forces(f, x, *e) for e in lists], edges, {"dynamic": dynamic})


def test_numbers_of_edges_share_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    from einsmith.frontends.torch_compile import higher

    traced = []
    own = higher._GradientsOf
    monkeypatch.setattr(higher, "_GradientsOf", lambda *args: traced.append(0) or own(*args))
    torch._dynamo.reset()
    f = compiled(edges, dynamic=True)
    for atoms, n in ((6, 9), (6, 14), (5, 23), (11, 40), (6, 0), (1, 9), (7, 7), (6, 15)):
        x, e = torch.randn(atoms, 3, dtype=torch.float64), torch.randint(0, atoms, (2, n))
        torch.testing.assert_close(forces(f, x, *e), forces(edges, x, *e), rtol=1e-10, atol=1e-12)
        if n == 40:
            assert len(traced) == 1
    assert len(traced) <= 4  # and for no edge, one atom, and as many edges as atoms


def test_results_that_share_memory() -> None:
    net, x = Net().double(), torch.randn(6, 3, dtype=torch.float64)

    def shared(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = net(x) * x
        return h[:, 0], h[:, 1:], h.view(-1), x.flatten()

    def run(f: Any) -> Any:
        z = x.clone().requires_grad_()
        a, b, c, d = f(z)
        (force,) = torch.autograd.grad(a.sum() + (b**2).sum() + (d**2 * c).sum(), z, create_graph=True)
        return [force.detach(), *torch.autograd.grad((force**2).sum() + b.sum(), [z, *net.parameters()])]

    same(run, shared)


def test_incoming_gradients_of_any_layout() -> None:
    x, w = torch.randn(2, 4, 4, dtype=torch.float64)

    def run(f: Any) -> Any:
        z, v = x.clone().requires_grad_(), w.clone().requires_grad_()
        (force,) = torch.autograd.grad((f(z).T * v.exp()).sum(), z, create_graph=True)
        return torch.autograd.grad((force**2).sum(), [z, v])

    same(run, lambda x: (x @ x.T).sin() * x[:, :1])


@pytest.mark.parametrize("f", [torch.linalg.inv, lambda x: torch.linalg.eigvals(x).abs()])
def test_operators_with_checks_in_order(f: Any) -> None:
    x = torch.randn(3, 3, dtype=torch.float64)
    run = lambda f: forces(f, x)  # noqa: E731
    torch.testing.assert_close(run(torch.compile(f, backend="einsmith")), run(f))


def test_derivatives_that_depend_on_values_are_refused() -> None:
    x, i = torch.randn(4, 3), torch.tensor([0, 2, 0])
    f = torch.compile(lambda x: x.index_reduce(0, i, x[:3] ** 2, "prod"), backend="einsmith")
    with pytest.raises(GradientError, match="depends on values"):
        forces(f, x)


def inside(net: Any, x: torch.Tensor) -> torch.Tensor:
    e = net(x).sum()
    (force,) = torch.autograd.grad(e, x, create_graph=True)
    return (force**2).sum() + 0.1 * e**2


def by_func(net: Any, x: torch.Tensor) -> torch.Tensor:
    force, e = torch.func.grad_and_value(lambda x: net(x).sum())(x)
    return (force**2).sum() + 0.1 * e**2


@pytest.mark.parametrize("loss", [inside, by_func])
@pytest.mark.parametrize("traced", [False, True])
def test_forces_inside_of_a_compiled_function(loss: Any, traced: bool) -> None:
    net, x = Net().double(), torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    f = torch.compile(lambda x: loss(net, x), backend="einsmith")

    def run(f: Any) -> Any:
        return torch.autograd.grad(f(x), [x, *net.parameters()])

    with warnings.catch_warnings(), torch._dynamo.config.patch(trace_autograd_ops=traced):
        warnings.filterwarnings("error", message="Dynamo detected")
        torch.testing.assert_close(run(f), run(lambda x: loss(net, x)), rtol=1e-10, atol=1e-12)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_gradient_penalties() -> None:
    """Wasserstein critics with convolutions, normalisation by batches, and pooling."""
    critic = nn.Sequential(
        nn.Conv2d(2, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.LeakyReLU(0.2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 1)
    ).double()
    real, made, w = torch.randn(3, 2, 8, 8).double(), torch.randn(3, 2, 8, 8).double(), torch.rand(3, 1, 1, 1).double()

    def run(f: Any) -> Any:
        critic[1].reset_running_stats()
        z = (w * real + (1 - w) * made).requires_grad_()
        (g,) = torch.autograd.grad(f(z).sum(), z, create_graph=True)
        loss = f(made).mean() - f(real).mean() + 10 * ((g.flatten(1).norm(dim=1) - 1) ** 2).mean()
        return [loss.detach(), *torch.autograd.grad(loss, list(critic.parameters())), critic[1].running_mean.clone()]

    same(run, critic, rtol=1e-8)


def test_steps_of_a_learner_are_differentiated() -> None:
    """The inner loop of model-agnostic meta-learning: weights are inputs, and come of earlier gradients."""
    weights = [torch.randn(s, dtype=torch.float64) for s in ((3, 6), (6,), (6, 1))]
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)

    def loss(x: Any, y: Any, a: Any, b: Any, c: Any) -> Any:
        return ((torch.tanh(x @ a + b) @ c - y) ** 2).mean()

    def run(f: Any) -> Any:
        first = [w.clone().requires_grad_() for w in weights]
        now = first
        for _ in range(3):
            now = [
                w - 0.1 * g
                for w, g in zip(now, torch.autograd.grad(f(x, y, *now), now, create_graph=True), strict=True)
            ]
        return torch.autograd.grad(f(x, y, *now), first)

    same(run, loss)


def test_gradients_without_a_graph_run_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    from einsmith.frontends.torch_compile import higher

    monkeypatch.setattr(higher.DifferentiableBackward, "_run", lambda *_: pytest.fail("the other graph ran"))
    net, x = Net(), torch.randn(5, 3)
    same(
        lambda f: torch.autograd.grad(f(x).sum(), list(net.parameters()), retain_graph=True), net, rtol=1e-5, atol=1e-6
    )


def test_random_numbers_are_drawn_once() -> None:
    x, net = torch.randn(5, 3, dtype=torch.float64), Net().double()

    def run(f: Any) -> Any:
        torch.manual_seed(1)
        return forces(f, x)

    drops = lambda x: nn.functional.dropout(net(x), 0.5) ** 2 * torch.rand_like(x)  # noqa: E731
    same(run, drops, {"options": {"fallback_random": True}})
    out, f = [], compiled(drops)
    for _ in range(2):
        e, force, _ = run(f)
        out.append(force)
        assert torch.equal(e, run(f)[0])
    assert torch.equal(*out)


def test_what_the_forward_pass_saves_is_not_computed_again() -> None:
    calls = []

    @torch.library.custom_op("einsmith_tests::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return x**3

    cube.register_fake(torch.empty_like)
    cube.register_autograd(
        lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    x = torch.randn(5, dtype=torch.float64)
    f = torch.compile(lambda x: cube(x.sin()).exp(), backend="einsmith")
    with pytest.warns(UserWarning, match="cube"):
        got = forces(f, x)
    assert calls == [5]
    torch.testing.assert_close(got, forces(lambda x: (x.sin() ** 3).exp(), x))


def test_inputs_that_have_changed_are_refused() -> None:
    x, w = torch.randn(5, requires_grad=True), torch.ones(5)
    e = compiled(lambda x, w: (x**3 * w).sum())(x, w)
    w.add_(1)
    with pytest.raises((GradientError, RuntimeError), match="changed in place|modified by an inplace operation"):
        torch.autograd.grad(e, x, create_graph=True)


def test_inputs_with_another_history_are_refused() -> None:
    x = torch.randn(5, requires_grad=True)
    z = x * 1
    e = compiled(torch.tanh)(z).sum()
    z.mul_(2)
    with pytest.raises(GradientError, match="changed in place since"):
        torch.autograd.grad(e, x, create_graph=True)


def test_inputs_that_the_forward_changes() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.sin() * w.exp()
        w.mul_(2)
        return x**3 * w + y**2

    x, w = torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)

    def run(f: Any) -> Any:
        v = w.clone()
        return [*forces(f, x, v), v]

    same(run, f)


def test_operators_compute_the_gradients_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from einsmith.frontends import torch_operator

    programs = []
    run = torch_operator._Definition.run
    monkeypatch.setattr(torch_operator._Definition, "run", lambda d, p, x: programs.append(p) or run(d, p, x))
    f = torch_operator.operator(es.op("y[] = sum[i,j](w[j]*sin(x[i]*v[j]))\nreturn y"))
    x, v, w = (torch.randn(n, requires_grad=True) for n in (5, 3, 3))

    def step(g: Any) -> list[Any]:
        (force,) = torch.autograd.grad(g(x=x, v=v, w=w), x, create_graph=True)
        return [force.detach(), *torch.autograd.grad((force**2).sum(), [v, w])]

    got = step(f)
    assert programs == ["", "|3:1", "|3:1|4:0,2"]
    torch.testing.assert_close(got, step(lambda x, v, w: (w * (x[:, None] * v).sin()).sum()))
    (f(x=x, v=v, w=w) + 0 * v.sum()).backward()
    assert programs[-1] == "|3:0,1,2"
