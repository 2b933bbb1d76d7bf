"""nn.LSTM, nn.GRU and nn.RNN under torch.compile(backend="einsmith") are recurrences in one graph, as eager ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")
from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402

from einsmith.base.errors import EinsmithWarning  # noqa: E402
from einsmith.frontends import torch_dynamo  # noqa: E402
from einsmith.frontends.torch_compile import aot, recurrences  # noqa: E402
from tests.frontends.test_torch_compile_training import trains_alike  # noqa: E402
from tests.frontends.torch_compiled import agree, compiled, fresh, randn  # noqa: E402, F401


class Reader(nn.Module):
    """Scores of a sequence, by what a recurrent layer gives at its end, and its last states."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 3)

    def forward(self, x, *states):
        y, last = self.layer(x, *states)
        return self.head(y), last


def whole(f):
    """f as one graph, of which nothing may run in PyTorch."""
    return torch.compile(f, backend="einsmith", fullgraph=True, options={"fallback": "error"})


def results_and_gradients(f, parameters, x, states=()):
    tensors = [x, *(states if isinstance(states, tuple) else (states,))]
    out, last = f(x, *([states] if len(tensors) > 1 else []))
    last = last if isinstance(last, tuple) else (last,)
    value = sum((t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype).reshape(t.shape)).sum() for t in (out, *last))
    return (out, *last, *torch.autograd.grad(value, [*tensors, *parameters]))


@pytest.mark.thinned(8)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {"bidirectional": True, "batch_first": True, "num_layers": 2}),
        (nn.LSTM, {"num_layers": 2}),
        (nn.LSTM, {"proj_size": 2}),
        (nn.LSTM, {"bias": False}),
        (nn.GRU, {"bidirectional": True, "bias": False}),
        (nn.GRU, {"num_layers": 2, "batch_first": True}),
        (nn.RNN, {"nonlinearity": "relu"}),
        (nn.RNN, {"num_layers": 2, "bidirectional": True}),
    ],
)
def test_values_and_gradients(kind, options) -> None:
    layer = kind(5, 7, **options)
    width = (options.get("proj_size") or 7) * (2 if options.get("bidirectional") else 1)
    model = Reader(layer, width).double()
    x = randn(4, 6, 5, grad=True)
    parameters = list(model.parameters())
    agree(results_and_gradients(whole(model), parameters, x), results_and_gradients(model, parameters, x))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one sequence", "a batch"])
def test_given_states(kind, batch) -> None:
    model = Reader(kind(5, 7), 7).double()
    x, h, c = randn(4, *batch, 5, grad=True), randn(1, *batch, 7, grad=True), randn(1, *batch, 7, grad=True)
    states, parameters = (h, c) if kind is nn.LSTM else h, list(model.parameters())
    agree(
        results_and_gradients(whole(model), parameters, x, states),
        results_and_gradients(model, parameters, x, states),
    )


class Language(nn.Module):
    """A small language model."""

    def __init__(self, layer):
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(11, 6), layer, nn.Linear(6, 11)

    def forward(self, x):
        return self.head(self.layer(self.words(x))[0]).flatten(0, 1)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_training(kind) -> None:
    batches = [(torch.randint(11, (5, 3)), torch.randint(11, (15,))) for _ in range(5)]
    model = Language(kind(6, 6, num_layers=2))
    trains_alike(model, batches, nn.functional.cross_entropy, lambda p: torch.optim.Adam(p, lr=0.05))


@pytest.mark.slow
def test_dropout_between_layers() -> None:
    """Drawn by PyTorch, it is that of eager execution; drawn by the program, gradients are those of its values."""
    layer = nn.GRU(3, 4, 2, dropout=0.5).double()
    x = randn(3, 2, 3, grad=True)
    eager = torch.compile(layer, backend="einsmith", options={"fallback_random": True})
    torch.manual_seed(1)
    given = eager(x)[0]
    torch.manual_seed(1)
    agree(given, layer(x)[0])
    drawn = compiled(layer)

    def run(x):
        torch.manual_seed(1)
        return drawn(x)[0]

    assert torch.autograd.gradcheck(run, (x,)) and not torch.equal(run(x), drawn(x)[0])
    layer.eval()
    agree(drawn(x)[0], layer(x)[0])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_types_under_autocast_are_pytorchs(kind) -> None:
    layer, x = kind(5, 7), torch.randn(4, 3, 5)
    run = whole(layer)
    with torch.autocast("cpu", torch.bfloat16):
        (got, *_), (want, *_) = run(x), layer(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


def test_steps_are_not_unrolled(monkeypatch) -> None:
    sizes, old = [], aot.split

    def noted(graph, options):
        sizes.append(len(graph.graph.nodes))
        return old(graph, options)

    monkeypatch.setattr(aot, "split", noted)
    layer = nn.LSTM(5, 7)
    for steps in (3, 60):
        compiled(layer)(torch.randn(steps, 2, 5))[0].sum().backward()
        torch._dynamo.reset()
    assert len(sizes) == 4 and sizes[:2] == sizes[2:]


def test_other_backends_are_as_they_were() -> None:
    """Dynamo still leaves the layers to PyTorch there, and its setting is what it was."""
    calls = []

    def other(gm, inputs):
        calls.extend(n.target for n in gm.graph.nodes)
        return gm.forward

    model, x = Reader(nn.LSTM(5, 7), 7), torch.randn(4, 3, 5)
    compiled(model)(x)
    torch.compile(model, backend=other)(x)
    assert torch.lstm not in calls and not torch._dynamo.config.allow_rnn
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.compile(model, backend=other)(x)
    assert torch.lstm in calls


def test_packed_sequences_run_in_pytorch() -> None:
    layer = nn.LSTM(5, 7)
    packed = pack_padded_sequence(torch.randn(6, 3, 5), torch.tensor([6, 4, 2]))
    agree(compiled(lambda p: layer(p)[0].data * 2)(packed), layer(packed)[0].data * 2)


def test_calls_on_packed_data_stay_in_the_graph() -> None:
    graph = torch.fx.Graph()
    data, sizes, state, weights = (graph.placeholder(n) for n in ("data", "sizes", "state", "weights"))
    packed = graph.call_function(torch.gru, (data, sizes, state, [weights], True, 1, 0.0, False, False))
    plain = graph.call_function(torch.gru, (data, state, [weights], True, 1, 0.0, False, False, False))
    graph.output((packed, plain))
    recurrences.replace_recurrences(torch.fx.GraphModule(nn.Module(), graph))
    assert packed.target is torch.gru and plain.target is recurrences.gru


def test_a_dynamo_without_the_setting_is_reported(monkeypatch) -> None:
    from torch._dynamo.variables.builder import VariableBuilder

    monkeypatch.delattr(VariableBuilder, "wrap_module")
    with pytest.warns(EinsmithWarning, match="nn.LSTM, nn.GRU and nn.RNN run in PyTorch.*from_torch"):
        torch_dynamo.allow_recurrent_layers()


@pytest.mark.slow
@pytest.mark.parametrize("installed", [False, True])
def test_the_first_graph_of_a_process(installed) -> None:
    """Registered by the import of a checkout, or by the entry point of an installed package, before anything traces."""
    code = """
import importlib.metadata as metadata
entry = metadata.EntryPoint("einsmith", "einsmith.frontends.torch_compile:backend", "torch_dynamo_backends")
old = metadata.entry_points
def entry_points(**given):
    ours = given.get("group") == "torch_dynamo_backends"
    return metadata.EntryPoints([entry] if installed else []) if ours else old(**given)
metadata.entry_points = entry_points
import torch
if not installed:
    import einsmith.frontends.torch
layer = torch.nn.LSTM(3, 4)
run = torch.compile(layer, backend="einsmith", fullgraph=True, options={"fallback": "error"})
x = torch.randn(5, 2, 3)
torch.testing.assert_close(run(x)[0], layer(x)[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", f"installed = {installed}\n{code}"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
