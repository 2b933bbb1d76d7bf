"""Fifty training steps of recurrent networks equal their PyTorch twins (issue: what it must show)."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import nn

torch = pytest.importorskip("torch", reason="the twin networks are PyTorch's")
from tests.nn import twins  # noqa: E402

T, B, N, H, S, CLASSES = 7, 5, 6, 9, 4, 3
LAYERS = {
    "rnn": ("RNN", {}),
    "rnn relu, both ways": ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
    "lstm": ("LSTM", {}),
    "lstm, two layers": ("LSTM", {"num_layers": 2}),
    "lstm, two layers both ways, no bias": ("LSTM", {"num_layers": 2, "bidirectional": True, "bias": False}),
    "lstm, projected": ("LSTM", {"proj_size": 4}),
    "gru": ("GRU", {}),
    "gru, two layers both ways": ("GRU", {"num_layers": 2, "bidirectional": True}),
}
CELLS = {"milstm": "MILSTM", "sublstm": "SubLSTM", "lltm": "LLTM", "scrn": "SCRN"}
SLOW = (
    "lstm",
    "rnn relu, both ways",
    "lstm, two layers both ways, no bias",
    "lstm, projected",
    "gru, two layers both ways",
)


def sizes(name: str) -> tuple[int, ...]:
    return (N, H, S) if name == "SCRN" else (N, H)


class Ours(nn.Module):
    """The layer from given states, and a linear classifier of the mean output."""

    def __init__(self, name: str, dtype: str):
        kind, options = LAYERS.get(name) or (CELLS[name], {})
        self.layer = getattr(nn, kind)(*sizes(kind), **options, dtype=dtype)
        features = {"proj_size": 4}.get(next(iter(options), "")) or H
        self.fc = nn.Linear(features * (1 + options.get("bidirectional", False)), CLASSES, dtype=dtype)

    def forward(self, x, *states):
        output, _ = self.layer(x, states if len(states) > 1 else states[0])
        return self.fc(output.mean(axis=0))


class Theirs(torch.nn.Module):
    def __init__(self, name: str):
        super().__init__()
        kind, options = LAYERS.get(name) or (CELLS[name], {})
        self.layer = getattr(torch.nn if name in LAYERS else twins, kind)(*sizes(kind), **options)
        features = {"proj_size": 4}.get(next(iter(options), "")) or H
        self.fc = torch.nn.Linear(features * (1 + options.get("bidirectional", False)), CLASSES)

    def forward(self, x, *states):
        output, _ = self.layer(x, states if len(states) > 1 else states[0])
        return self.fc(output.mean(0))


def states(name: str, rng: np.random.Generator) -> list[np.ndarray]:
    if name in CELLS:
        return [rng.standard_normal((B, w)) for w in (H, S if name == "scrn" else H)]
    kind, options = LAYERS[name]
    rows = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    widths = [options.get("proj_size") or H, H] if kind == "LSTM" else [H]
    return [rng.standard_normal((rows, B, w)) for w in widths]


def batches(name: str, steps: int):
    rng = np.random.default_rng(3)
    for _ in range(steps):
        yield rng.standard_normal((T, B, N)), states(name, rng), rng.integers(0, CLASSES, B)


def torch_run(name: str, state: dict, dtype, steps: int) -> tuple[np.ndarray, dict]:
    model = Theirs(name).to(dtype)
    model.load_state_dict({k: torch.tensor(v, dtype=dtype) for k, v in state.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, given, y in batches(name, steps):
        optimizer.zero_grad()
        out = model(torch.tensor(x, dtype=dtype), *(torch.tensor(s, dtype=dtype) for s in given))
        loss = torch.nn.functional.cross_entropy(out, torch.tensor(y))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), {k: v.double().numpy() for k, v in model.state_dict().items()}


def our_run(name: str, state: dict, dtype: str, steps: int) -> tuple[np.ndarray, dict]:
    model = Ours(name, dtype)
    model.load_state_dict({k: v.astype(dtype) for k, v in state.items()})
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1, momentum=0.9))
    losses = [step(x.astype(dtype), *(s.astype(dtype) for s in given), y) for x, given, y in batches(name, steps)]
    return np.array(losses), {k: v.astype(np.float64) for k, v in model.state_dict().items()}


@pytest.mark.thinned(12)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in (*LAYERS, *CELLS)]
)
def test_fifty_steps(name: str) -> None:
    rng = np.random.default_rng(1)
    drawn = {k: rng.uniform(-0.4, 0.4, v.shape).astype(np.float32) for k, v in Theirs(name).state_dict().items()}
    state = {k: v.astype(np.float64) for k, v in drawn.items()}
    exact, weights = torch_run(name, state, torch.float64, 50)
    mine, ours = our_run(name, state, "float64", 50)
    np.testing.assert_allclose(mine, exact, rtol=1e-8)
    assert list(ours) == list(weights)
    for k, v in weights.items():
        assert np.linalg.norm(ours[k] - v) <= 1e-8 * np.linalg.norm(v), k
    their_losses, their_weights = torch_run(name, state, torch.float32, 50)
    our_losses, our_weights = our_run(name, state, "float32", 50)
    peer, error = np.abs(their_losses - exact), np.abs(our_losses - exact)
    assert error.max() <= 3 * peer.max() and error.mean() <= 3 * peer.mean(), (error.max(), peer.max())

    def distance(found: dict) -> float:
        return float(np.sqrt(sum(((found[k] - v) ** 2).sum() for k, v in weights.items())))

    assert distance(our_weights) <= 3 * distance(their_weights)
