"""The language model carries its states from window to window, as a loop in PyTorch does."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.ops.random import drop

torch = pytest.importorskip("torch", reason="the twin network is PyTorch's")

WORDS, WIDTH, LAYERS, BATCH, STEPS = 23, 7, 2, 3, 5


class Twin(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.rnn = torch.nn.LSTM(WIDTH, WIDTH, LAYERS)
        self.decoder = torch.nn.Linear(WIDTH, WORDS)

    def regularized(self, tokens, masks, state):
        """The layers one by one, over what the masks leave of their inputs; the output times the last mask, and the
        last states."""
        x, last = self.embedding(torch.tensor(tokens)), []
        for n in range(LAYERS):
            weights = [getattr(self.rnn, f"{name}_l{n}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            h, c = (s[n] for s in state)
            outputs = []
            for step in x * masks[n]:
                i, f, g, o = (step @ weights[0].T + h @ weights[1].T + weights[2] + weights[3]).chunk(4, 1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                outputs.append(h)
            x = torch.stack(outputs)
            last.append((h, c))
        return x * masks[-1], tuple(map(torch.stack, zip(*last, strict=True)))

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


def test_dropout_as_in_zaremba_2014(rng) -> None:
    """Inputs of the layers and of the decoder are dropped, states are not; the norm of the gradients is clipped."""
    p, seed, most = 0.5, 7, 0.1
    theirs = Twin().double()
    ours = es.models.lstm_lm(vocabulary=WORDS, width=WIDTH, layers=LAYERS, batch=BATCH, dropout=p, dtype="float64")
    assert not ours.load_state_dict({n: v.numpy() for n, v in theirs.state_dict().items()}, False).unexpected_keys
    windows = es.data.stream(rng.integers(0, WORDS, 200), BATCH, STEPS)
    step = es.TrainStep(
        ours, es.functional.cross_entropy, es.optim.SGD(lr=0.5), clip_grad_norm=most, seed=seed, threads=1
    )
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    es.manual_seed(seed)
    draw = es.jit(lambda x: tuple(drop(x, p, stream) for stream in ("drop_input/", "rnn/1", "drop_output/")))
    ones = np.ones((STEPS, BATCH, WIDTH))
    draw(ones)  # calls are counted from 0, training steps from 1
    state = [torch.zeros(LAYERS, BATCH, WIDTH, dtype=torch.float64)] * 2
    for number, (x, begins, y) in enumerate(windows):
        masks = [torch.tensor(np.asarray(m)) for m in draw(ones)]
        assert number or {*np.unique(masks[0])} == {0.0, 1 / (1 - p)}
        output, state = theirs.regularized(x, masks, state)
        loss = torch.nn.functional.cross_entropy(theirs.decoder(output.flatten(0, 1)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), most)
        optimizer.step()
        state = tuple(s.detach() for s in state)
        assert step(x, begins, y) == pytest.approx(loss.item(), rel=1e-10)
        assert step.grad_norm == pytest.approx(norm.item(), rel=1e-8) and norm > most
    for n, v in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[n], v.numpy(), rtol=1e-9, atol=1e-12)
    plain = es.models.lstm_lm(vocabulary=WORDS, width=WIDTH, layers=LAYERS, batch=BATCH, dtype="float64").eval()
    plain.load_state_dict(ours.state_dict())
    np.testing.assert_array_equal(ours.eval()(x), plain(x))


def test_without_states() -> None:
    ours = es.models.lstm_lm(vocabulary=WORDS, width=WIDTH, layers=1, batch=BATCH)
    x = np.arange(8).reshape(4, 2)
    assert ours(x).shape == (8, WORDS) and not ours.hidden.data.any()
    with pytest.raises(es.ShapeError, match="3 columns"):
        ours(x, np.array([True, False]))
