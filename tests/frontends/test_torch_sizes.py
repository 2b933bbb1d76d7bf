"""Graphs of dynamic sizes: one program for many sizes, with PyTorch's numbers."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import einsmith as es  # noqa: E402
from benchmarks.streams import ALIGNED, align  # noqa: E402
from einsmith.base.errors import IndexOutOfRange  # noqa: E402
from einsmith.driver import executable, runs  # noqa: E402
from einsmith.frontends import torch_operator, torch_sizes  # noqa: E402
from einsmith.frontends.torch_compile import region  # noqa: E402
from einsmith.schedule.kernel import Rows, limits_of  # noqa: E402


@pytest.fixture
def compiled(monkeypatch):
    """Every program that is compiled."""
    out = []
    compile_graph = executable.compile_graph

    def count(graph, *args, **kwargs):
        out.append(compile_graph(graph, *args, **kwargs))
        return out[-1]

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
    assert len(compiled) == 1


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


@pytest.mark.parametrize("how", ["EINSMITH_SIZES", "determinism"])
def test_sizes_share_a_program_by_default(how, compiled, monkeypatch, request) -> None:
    f = torch.compile(lambda x: torch.sin(x) * 2, backend="einsmith", dynamic=True)
    for n in (5, 7, 9):
        f(torch.randn(n, 6))
    assert len(compiled) == 1
    torch._dynamo.reset()
    if how == "EINSMITH_SIZES":
        monkeypatch.setenv("EINSMITH_SIZES", "each")
    else:
        torch.use_deterministic_algorithms(True)
        request.addfinalizer(partial(torch.use_deterministic_algorithms, False))
    for n in (5, 7, 9):
        f(torch.randn(n, 6))
    assert len(compiled) == 4


@pytest.mark.parametrize("kind", ["graph", "operator"])
def test_a_size_that_is_used_often_gets_its_own_program(kind, compiled, monkeypatch) -> None:
    monkeypatch.setattr(runs, "OUTGROWN_RUNS", 3)
    f = torch.compile(lambda x: torch.sin(x) * 2, backend="einsmith", dynamic=True)
    if kind == "operator":
        f = torch_operator.operator(es.op("y[i,j] = 2*sin(x[i,j])"))
    counts = []
    for n in (5, 7, 9, 9, 9, 9, 9, 7, 7, 7):
        x = torch.randn(n, 6)
        torch.testing.assert_close(f(x), torch.sin(x) * 2)
        counts.append(len(compiled))
    assert counts == ([1, 1, 1, 1, 1, 2, 2, 2, 2, 3] if kind == "graph" else [1, 2, 2, 2, 2, 3, 3, 3, 3, 4])


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


def count_traces(monkeypatch, module) -> list:
    """Return the list to which each trace of a module adds its shapes."""
    traces: list = []
    trace_shapes = module.trace_shapes
    monkeypatch.setattr(module, "trace_shapes", lambda f, kinds, *a: traces.append(kinds) or trace_shapes(f, kinds, *a))
    return traces


MESSAGES = """
    r[e] = sqrt(sum[a]((x[s[e],a] - x[t[e],a])**2) + 1.0)
    w[e,k] = sum[m](exp(-(r[e] - u[m])**2)*F[m,k])
    y[t[e],k] += w[e,k]*h[s[e],k]
    return y
"""


def messages(x, s, t, u, F, h):
    r = ((x[s] - x[t]).square().sum(1) + 1.0).sqrt()
    w = torch.exp(-((r[:, None] - u) ** 2)) @ F
    return torch.zeros_like(h).index_add(0, t, w * h[s])


def test_operators_of_formulas_run_at_other_sizes_without_a_trace(compiled, monkeypatch) -> None:
    """Graphs of other numbers of nodes and edges, to the second derivative."""
    monkeypatch.setenv("EINSMITH_SIZES", "shared")
    f = torch_operator.operator(es.op(MESSAGES, extents={"y.shape[0]": "x.shape[0]"}))
    traces = count_traces(monkeypatch, torch_operator)
    torch.manual_seed(1)
    u, F = torch.rand(4), torch.rand(4, 3, requires_grad=True)
    counts = []
    for nodes, edges in ((9, 30), (12, 27), (7, 41), (20, 19), (5, 33), (19, 52)):
        x, h = torch.rand(nodes, 3, requires_grad=True), torch.rand(nodes, 3)
        s, t = torch.randint(nodes, (2, edges))
        found = []
        for g in (f, messages):
            (force,) = torch.autograd.grad(g(x=x, s=s, t=t, u=u, F=F, h=h).sum(), x, create_graph=True)
            found.append((force.detach(), *torch.autograd.grad((force**2).sum(), (x, F))))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        counts.append((len(compiled), len(traces)))
    assert counts[1] == counts[-1] and counts[0][0] * 2 == counts[1][0]
    s[4] = 19
    with pytest.raises(IndexOutOfRange, match=r"element \[4\] of s, .* is 19, .* only 0 to 18 exist"):
        f(x=x, s=s, t=t, u=u, F=F, h=h)


CELLS = """
    h[0,b,i] = 0.0
    h[t+1,b,i] = tanh(x[t,b,i] + sum[j](h[t,b,j]*W[j,i]))
    return h
"""


def cells(x, W):
    h = [torch.zeros_like(x[0])]
    for row in x:
        h.append(torch.tanh(row + h[-1] @ W))
    return torch.stack(h)


RECURRENCES = {
    "steps": (CELLS, cells, lambda n: {"x": torch.randn(n, 3, 5), "W": torch.randn(5, 5)}),
    "rows and columns": (
        ALIGNED,
        align,
        lambda n: {"k": -torch.rand(n, n // 2 + 3, 2), "e": -torch.rand(n, n // 2 + 2, 2)},
    ),
}


@pytest.mark.parametrize("name", RECURRENCES)
def test_recurrences_of_any_length_without_a_trace(name: str, compiled, monkeypatch) -> None:
    monkeypatch.setenv("EINSMITH_SIZES", "shared")
    text, reference, make = RECURRENCES[name]
    f = torch_operator.operator(es.op(text))
    traces = count_traces(monkeypatch, torch_operator)
    torch.manual_seed(1)
    counts = []
    for n in (7, 12, 9, 40, 20, 11, 39, 12):
        x = {k: v.requires_grad_() for k, v in make(n).items()}
        results = []
        for g in (f, reference):
            y = g(**x)
            results.append((y.detach(), *torch.autograd.grad((y**2).sum(), list(x.values()))))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        counts.append((len(compiled), len(traces)))
    assert counts[1] == counts[-1] and counts[0][0] * 2 == counts[1][0]


def test_graphs_run_at_other_sizes_without_a_trace(compiled, monkeypatch) -> None:
    """Lengths of a causal model with a loss, whose labels are shifted, padded and compared with a number."""
    traces = count_traces(monkeypatch, region)
    torch.manual_seed(2)
    table, w = torch.randn(11, 8, requires_grad=True), torch.randn(8, 11, requires_grad=True)

    def loss(tokens):
        x = table[tokens]
        a = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        labels = torch.nn.functional.pad(tokens, (0, 1), value=-100)[:, 1:]
        y = (a + x).reshape(-1, 8) @ w
        return torch.nn.functional.cross_entropy(y, labels.reshape(-1))

    f = torch.compile(loss, backend="einsmith", dynamic=True, options={"fallback": "error", "sizes": "shared"})
    counts = []
    for n in (13, 9, 30, 17, 5, 29):
        tokens = torch.randint(11, (2, n))
        got, want = (torch.autograd.grad(g(tokens), (table, w)) for g in (f, loss))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        counts.append((len(compiled), len(traces)))
    assert counts[1] == counts[-1], counts


def test_steps_of_generation_without_a_trace(compiled, monkeypatch) -> None:
    """Keys of one batch, transposed, which grow by one: their number is computed with, and divides a row."""
    traces = count_traces(monkeypatch, region)

    def attend(q, keys, k):
        length = keys.shape[3] + 1
        y = torch.cat((keys, k), 3)
        scores = (q @ y).reshape(4, length) + torch.arange(length) / 8 + length
        return y, scores.reshape(1, 4, 1, length).softmax(3) * 1.5

    f = torch.compile(attend, backend="einsmith", dynamic=True, options={"fallback": "error", "sizes": "shared"})
    torch.manual_seed(4)
    counts, keys = [], torch.randn(1, 4, 8, 6).transpose(2, 3)
    for n in range(8, 16):
        q, k = torch.randn(1, 4, 1, 6), torch.randn(1, 4, 6, 1)
        for a, b in zip(f(q, keys, k), attend(q, keys, k), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        keys = torch.randn(1, 4, n + 1, 6).transpose(2, 3)
        counts.append((len(compiled), len(traces)))
    assert counts[1] == counts[-1], counts


def test_batches_of_a_network_whose_state_changes(compiled) -> None:
    """Running statistics, which the program stores in place, by numbers that come of the batch, such as N/(N - 1)."""
    torch.manual_seed(3)
    body = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten())
    ours, theirs = (torch.nn.Sequential(body, torch.nn.Linear(64, 3)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    theirs[0] = copy.deepcopy(body)
    f = torch.compile(ours, backend="einsmith", dynamic=True, options={"fallback": "error", "sizes": "shared"})
    counts = []
    for n in (20, 24, 17, 31, 19):  # PyTorch chooses another convolution, in a graph of its own, below 16
        x = torch.randn(n, 2, 6, 6)
        for g, model in ((f, ours), (theirs, theirs)):
            model.zero_grad()
            (g(x) ** 2).mean().backward()
        for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)
        counts.append(len(compiled))
    assert counts[1] == counts[-1], counts


def check_ends(programs: list, extents: set[int], products: set[int]) -> None:
    """Rows and members of row fusions, and large kernels, end where extents that vary do. products: extents of
    dimensions that are merged of these and others."""
    for call in (c for x in programs for c in x.plan.calls):
        kernel = call.kernel
        if not isinstance(kernel, Rows):
            assert limits_of(kernel) or math.prod(kernel.shape) <= max(extents), str(kernel)
            continue
        assert kernel.active is not None, str(kernel)
        for m in kernel.members:
            axes = {a for a, x in enumerate(m.kernel.shape) if x in extents | products and (m.reduces or a != m.axis)}
            assert axes <= set(limits_of(m.kernel)), str(m.kernel)


def test_attention_ends_at_batches_and_at_lengths(compiled) -> None:
    """Its products have sequences and heads in one dimension, what is between them has them in two."""

    def attend(q, k, v):
        return (torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True) ** 2).sum()

    f = torch.compile(attend, backend="einsmith", options={"fallback": "error"})
    for b, t in ((5, 280), (3, 170), (9, 33)):
        q, k, v = (torch.randn(b, 4, t, 32, requires_grad=True) for _ in range(3))
        for x in (q, k, v):
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(x, 2)
        got, want = (torch.autograd.grad(g(q, k, v), (q, k, v)) for g in (f, attend))
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)
    assert len(compiled) <= 4  # two parts of forward and backward
    check_ends(compiled, {40, 576}, {160})


def test_programs_of_cards_have_a_size_each_by_default(monkeypatch) -> None:
    assert [torch_sizes.choose(device) for device in ("cpu", "cuda:0")] == ["auto", "each"]
    monkeypatch.setenv("EINSMITH_SIZES", "shared")
    assert torch_sizes.choose("cuda:0") == "shared"
