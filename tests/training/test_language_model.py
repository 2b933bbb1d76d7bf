"""The language model carries its states from window to window, as a loop in PyTorch does."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es

torch = pytest.importorskip("torch", reason="the twin network is PyTorch's")

WORDS, WIDTH, LAYERS, BATCH, STEPS = 23, 7, 2, 3, 5


class Twin(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.rnn = torch.nn.LSTM(WIDTH, WIDTH, LAYERS)
        self.decoder = torch.nn.Linear(WIDTH, WORDS)

    def losses(self, windows, optimizer=None):
        """The loss of each window, from zero states; trained where there is an optimizer."""
        state, out = None, []
        for x, _, y in windows:
            h, state = self.rnn(self.embedding(torch.tensor(x)), state)
            loss = torch.nn.functional.cross_entropy(self.decoder(h.flatten(0, 1)), torch.tensor(y))
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            state = tuple(s.detach() for s in state)
            out.append(loss.item())
        return out


def test_states_go_from_window_to_window(rng) -> None:
    theirs = Twin().double()
    ours = es.models.lstm_lm(vocabulary=WORDS, width=WIDTH, layers=LAYERS, batch=BATCH, dtype="float64")
    state = {n: v.numpy() for n, v in theirs.state_dict().items()}
    assert not ours.load_state_dict(state, strict=False).unexpected_keys
    train = es.data.stream(rng.integers(0, WORDS, 200), BATCH, STEPS)
    test = es.data.stream(rng.integers(0, WORDS, 100), BATCH, STEPS)
    step = es.TrainStep(ours, es.functional.cross_entropy, es.optim.SGD(lr=0.5))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(2):  # a second epoch begins from zero states again
        np.testing.assert_allclose([step(*w) for w in train], theirs.losses(train, optimizer), rtol=1e-10)
        kept = ours.hidden.numpy(), ours.cell.numpy()
        with torch.no_grad():
            wanted = theirs.losses(test)
        for _ in range(2):
            assert step.evaluate(test)["loss"] == pytest.approx(np.mean(wanted), rel=1e-10)
        assert all(np.array_equal(a, b) for a, b in zip(kept, (ours.hidden.data, ours.cell.data), strict=True))
    for n, v in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[n], v.numpy(), rtol=1e-9, atol=1e-12)


def test_without_states() -> None:
    ours = es.models.lstm_lm(vocabulary=WORDS, width=WIDTH, layers=1, batch=BATCH)
    x = np.arange(8).reshape(4, 2)
    assert ours(x).shape == (8, WORDS) and not ours.hidden.data.any()
    with pytest.raises(es.ShapeError, match="3 columns"):
        ours(x, np.array([True, False]))
