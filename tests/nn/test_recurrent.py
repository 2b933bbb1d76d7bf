"""Recurrent layers: values of every option by the evaluator, names, shapes and errors, against torch."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError

T, B, N, H = 3, 2, 4, 5
CELLS = {"MILSTM": (N, H), "SubLSTM": (N, H), "LLTM": (N, H), "SCRN": (N, H, 4)}


def flat(result) -> list:
    """Output and last states in a row."""
    output, last = result
    return [output, *last] if isinstance(last, tuple) else [output, last]


def options() -> list[tuple[str, dict]]:
    """A cover of all pairs of options."""
    rows = [
        dict(num_layers=1, bias=True, batch_first=False, bidirectional=False),
        dict(num_layers=2, bias=False, batch_first=True, bidirectional=True),
        dict(num_layers=2, bias=True, batch_first=True, bidirectional=False),
        dict(num_layers=1, bias=False, batch_first=False, bidirectional=True),
        dict(num_layers=3, bias=True, batch_first=False, bidirectional=True),
        dict(num_layers=1, bias=True, batch_first=True, bidirectional=True),
        dict(num_layers=2, bias=False, batch_first=False, bidirectional=False),
    ]
    more = {"RNN": {"nonlinearity": "relu"}, "LSTM": {"proj_size": 3}, "GRU": {}}
    return [(name, row | (more[name] if n % 2 else {})) for name, (n, row) in itertools.product(more, enumerate(rows))]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name, given", options())
@pytest.mark.parametrize("how", ["zeros", "given", "without a batch"])
def test_values_equal_torch(run, torch, rng, name, given, how) -> None:
    theirs = getattr(torch.nn, name)(N, H, **given).double()
    ours = getattr(nn, name)(N, H, **given, dtype="float64")
    assert [(n, tuple(v.shape)) for n, v in theirs.state_dict().items()] == [
        (n, v.shape) for n, v in ours.state_dict().items()
    ]
    assert repr(ours) == repr(theirs)
    ours.load_state_dict(theirs.state_dict())
    single = how == "without a batch"
    x = rng.standard_normal((T, N) if single else (B, T, N) if given["batch_first"] else (T, B, N))
    rows = given["num_layers"] * (2 if given["bidirectional"] else 1)
    widths = {"LSTM": [given.get("proj_size") or H, H]}.get(name, [H])
    states = [rng.standard_normal((rows, w) if single else (rows, B, w)) for w in widths]
    if how == "zeros":
        got = run(lambda x: tuple(flat(ours(x))), x)
        wanted = theirs(torch.tensor(x))
    else:
        got = run(lambda x, *s: tuple(flat(ours(x, s if name == "LSTM" else s[0]))), x, *states)
        given_states = tuple(map(torch.tensor, states))
        wanted = theirs(torch.tensor(x), given_states if name == "LSTM" else given_states[0])
    for a, b in zip(got, flat(wanted), strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_weights_go_to_torch_by_name(torch, name) -> None:
    es.manual_seed(0)
    ours = getattr(nn, name)(N, H, 2, bidirectional=True)
    theirs = getattr(torch.nn, name)(N, H, 2, bidirectional=True)
    theirs.load_state_dict({n: torch.tensor(v) for n, v in ours.state_dict().items()})
    for n, p in theirs.named_parameters():
        np.testing.assert_array_equal(p.detach().numpy(), ours.state_dict()[n])
        assert np.abs(ours.state_dict()[n]).max() <= 1 / np.sqrt(H)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name, given", [("RNN", {}), ("GRU", {"bidirectional": True}), ("LSTM", {"proj_size": 3})])
def test_gradients_reach_the_input_and_the_initial_states(torch, rng, name, given) -> None:
    """Of the output and the last states, through a compiled program; `hx` by its name in torch."""
    theirs = getattr(torch.nn, name)(N, H, 2, **given).double()
    ours = getattr(nn, name)(N, H, 2, **given, dtype="float64")
    ours.load_state_dict(theirs.state_dict())
    rows = 4 if given.get("bidirectional") else 2
    states = [rng.standard_normal((rows, B, w)) for w in ([given["proj_size"], H] if name == "LSTM" else [H])]
    inputs = [rng.standard_normal((T, B, N)), *states]

    def loss(layer, x, *s):
        parts = flat(layer(x, hx=s if name == "LSTM" else s[0]))
        return sum((n * (p * p).sum() for n, p in enumerate(parts[1:], 2)), (parts[0] * parts[0]).sum())

    given_tensors = [torch.tensor(a, requires_grad=True) for a in inputs]
    loss(theirs, *given_tensors).backward()
    got = es.grad(lambda *a: loss(ours, *a), tuple(range(len(inputs))))(*inputs)
    for a, b in zip(got, given_tensors, strict=True):
        np.testing.assert_allclose(a, b.grad.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU", *CELLS])
def test_a_checkpoint_changes_memory_not_gradients(rng, name) -> None:
    """Of every layer, of all parameters and the input, through a compiled program, with steps left over."""
    sizes = (4, 5, 3) if name == "SCRN" else (4, 5)
    plain, saving = (getattr(nn, name)(*sizes, dtype="float64", checkpoint=s) for s in (0, 3))
    saving.load_state_dict(plain.state_dict())
    assert "checkpoint=3" in repr(saving) and "checkpoint" not in repr(plain)
    x = rng.standard_normal((8, 3, 4))
    found = []
    for layer in plain, saving:
        params = {n: np.asarray(v) for n, v in layer.state_dict().items()}

        def loss(params, x, layer=layer):
            return sum((n * (p * p).sum() for n, p in enumerate(flat(nn.functional_call(layer, params, x)), 1)), 0.0)

        found.append(es.grad(loss, (0, 1))(params, x))
    (dp, dx), (dq, dy) = found
    np.testing.assert_allclose(dx, dy, rtol=1e-11, atol=1e-12)
    for n in dp:
        np.testing.assert_allclose(dp[n], dq[n], rtol=1e-11, atol=1e-12, err_msg=n)


def test_an_empty_batch_and_dropout_of_one_layer() -> None:
    output, last = nn.GRU(N, H, bidirectional=True)(np.zeros((T, 0, N), np.float32))
    assert output.shape == (T, 0, 2 * H) and last.shape == (2, 0, H)
    with pytest.warns(UserWarning, match="num_layers is 1"):
        nn.LSTM(N, H, dropout=0.5)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", list(CELLS))
@pytest.mark.parametrize("steps", [1, 2, T])
def test_cells_equal_their_twins(run, torch, rng, name, steps) -> None:
    from tests.nn import twins

    theirs = getattr(twins, name)(*CELLS[name]).double()
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.tensor(rng.standard_normal(p.shape) * 0.5))
    ours = getattr(nn, name)(*CELLS[name], dtype="float64")
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    x = rng.standard_normal((steps, B, N))
    states = [rng.standard_normal((B, w)) for w in (H, 4 if name == "SCRN" else H)]
    wanted = flat(theirs(torch.tensor(x), tuple(map(torch.tensor, states))))
    got = run(lambda x, *s: tuple(flat(ours(x, s))), x, *states)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-10, atol=1e-12)
    ours.batch_first = True
    turned = run(lambda x, *s: tuple(flat(ours(x, s))), x.swapaxes(0, 1), *states)
    np.testing.assert_allclose(turned[0].swapaxes(0, 1), got[0], rtol=1e-12)
    one = run(lambda x, *s: tuple(flat(ours(x, s))), x[:, 1], *(s[1] for s in states))
    np.testing.assert_allclose(one[0], got[0][:, 1], rtol=1e-12)
    np.testing.assert_allclose(one[2], got[2][1], rtol=1e-12)


def test_initial_values_of_multiplicative_integration() -> None:
    m = nn.MILSTM(3, 4)
    assert (m.alpha.data == 1).all() and (m.beta1.data == 0.5).all() and (m.beta2.data == 0.5).all()
    assert m.weight_ih.data.any() and np.abs(m.weight_ih.data).max() <= 0.5


def test_formulas_in_the_documentation_are_those_that_run() -> None:
    from einsmith.nn import cells, recurrence

    guide = (Path(__file__).parents[2] / "docs" / "recurrences.md").read_text()

    def lines(text: str) -> set[str]:
        return {line.strip() for line in text.splitlines() if "] = " in line}

    for name, module in (
        ("RNN", recurrence), ("GRU", recurrence), ("LSTM", recurrence), ("MILSTM", cells), ("SubLSTM", cells),
        ("LLTM", cells), ("SCRN", cells),
    ):  # fmt: skip
        formula = lines(getattr(module, f"{name.upper()}_FORMULA"))
        assert lines(getattr(nn, name).__doc__) == formula, name
        assert formula <= lines(guide), name


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: nn.RNN(3, 0), ArgumentError, "hidden_size=0"),
        (lambda: nn.LSTM(3, 4, num_layers=0), ArgumentError, "num_layers=0"),
        (lambda: nn.LSTM(3, 4, proj_size=4), ArgumentError, "proj_size=4 must be smaller"),
        (lambda: nn.GRU(3, 4, bias=0), ArgumentError, "bias=0 must be True or False"),
        (lambda: nn.GRU(3, 4, 2, dropout="0.5"), ArgumentError, "dropout='0.5' must be a number"),
        (lambda: nn.GRU(3, 4, 2, dropout=1.5), ArgumentError, "dropout=1.5 must be a number in"),
        (
            lambda: nn.GRU(3, 4)(np.zeros((2, 5, 3), np.float32), (np.zeros((1, 5, 4), np.float32),) * 2),
            ArgumentError, "'h0' must be one tensor .* not 2 tensors",
        ),
        (lambda: nn.RNN(3, 4, nonlinearity="sin"), ArgumentError, "'tanh' or 'relu'"),
        (lambda: nn.SCRN(3, 4, 0), ArgumentError, "context_size=0"),
        (lambda: nn.SCRN(3, 4, 2, alpha=1.5), ArgumentError, "alpha=1.5"),
        (lambda: nn.LLTM(0, 4), ArgumentError, "input_size=0"),
        (lambda: nn.LLTM(3, 4, checkpoint=-1), ArgumentError, "checkpoint=-1"),
        (lambda: nn.GRU(3, 4, checkpoint=True), ArgumentError, "checkpoint=True"),
        (lambda: nn.LSTM(3, 4)(np.zeros((2, 5, 2), np.float32)), ShapeError, "input_size=3"),
        (lambda: nn.LSTM(3, 4)(np.zeros((0, 5, 3), np.float32)), ShapeError, "at least one step"),
        (lambda: nn.GRU(3, 4)(np.zeros((2, 5, 3), np.int64)), DtypeError, "needs floats"),
        (lambda: nn.GRU(3, 4)(np.zeros((2, 5, 3, 1), np.float32)), ShapeError, "2 or 3 dimensions"),
        (
            lambda: nn.GRU(3, 4)(np.zeros((2, 5, 3), np.float32), np.zeros((1, 5, 3), np.float32)),
            ShapeError, r"'h0' has shape \(1, 5, 3\), needs \(1, 5, 4\)",
        ),
        (
            lambda: nn.LSTM(3, 4)(np.zeros((2, 5, 3), np.float32), (np.zeros((1, 5, 4), np.float32),)),
            ArgumentError, "a pair",
        ),
        (
            lambda: nn.MILSTM(3, 4)(np.zeros((2, 5, 3), np.float32), (np.zeros((5, 4), np.float32),) * 3),
            ArgumentError, "a pair",
        ),
    ],
)  # fmt: skip
def test_bad_input(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()
