"""Graphs of dynamic sizes: one program for many sizes, with PyTorch's numbers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from einsmith.driver import executable  # noqa: E402


@pytest.fixture
def compiled(monkeypatch):
    """Every graph that is compiled."""
    out = []
    compile_graph = executable.compile_graph

    def count(graph, *args, **kwargs):
        out.append(graph)
        return compile_graph(graph, *args, **kwargs)

    monkeypatch.setattr(executable, "compile_graph", count)
    torch._dynamo.reset()
    return out


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 3))


@pytest.mark.slow
def test_batches_of_a_marked_size(compiled) -> None:
    model = network().eval()
    f = torch.compile(model, backend="einsmith", options={"fallback": "error", "sizes": "shared"})
    with torch.no_grad():
        for n in (5, 7, 2, 23, 24, 3):
            x = torch.randn(n, 6)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(f(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(compiled) == 2


def test_gradients_of_lengths(compiled) -> None:
    def loss(q, k, w):
        a = torch.softmax(q @ k.transpose(1, 2), -1) @ (k @ w)
        return (a**2).mean()

    f = torch.compile(loss, backend="einsmith", dynamic=True, options={"fallback": "error", "sizes": "shared"})
    w = torch.randn(4, 4, requires_grad=True)
    for n in (5, 9, 3, 24):
        q, k = (torch.randn(2, n, 4, requires_grad=True) for _ in range(2))
        f(q, k, w).backward()
        got = [x.grad for x in (q, k, w)]
        for x in (q, k, w):
            x.grad = None
        loss(q, k, w).backward()
        for x, g in zip((q, k, w), got, strict=True):
            torch.testing.assert_close(g, x.grad, rtol=1e-4, atol=1e-5)
            x.grad = None
    assert len(compiled) <= 8  # the two parts of forward and of backward, for the first size and for a capacity


def test_a_program_for_each_size_by_default(compiled, monkeypatch) -> None:
    f = torch.compile(lambda x: torch.sin(x) * 2, backend="einsmith", dynamic=True)
    for n in (5, 7, 9):
        f(torch.randn(n, 6))
    assert len(compiled) == 3
    torch._dynamo.reset()
    monkeypatch.setenv("EINSMITH_SIZES", "shared")
    for n in (5, 7, 9):
        f(torch.randn(n, 6))
    assert len(compiled) == 5


@pytest.mark.slow
def test_a_smaller_last_batch(compiled) -> None:
    """The gradients of a convolution in a loop over batches, whose last one PyTorch compiles for dynamic sizes."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(8 * 64, 5))
    f = torch.compile(model, backend="einsmith")
    for n in (24, 24, 20, 7, 24, 3):
        x = torch.randn(n, 3, 8, 8)
        got, want = (torch.autograd.grad((m(x) ** 2).mean(), list(model.parameters())) for m in (f, model))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
