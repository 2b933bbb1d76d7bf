"""Cells of one step, the adaptive softmax and fractional pooling beside torch.nn's: values, gradients, errors."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.base.errors import ArgumentError, EinsmithError, ShapeError

CELLS = [
    ("RNNCell", {}), ("RNNCell", {"nonlinearity": "relu", "bias": False}), ("LSTMCell", {}),
    ("LSTMCell", {"bias": False}), ("GRUCell", {}), ("GRUCell", {"bias": False}),
]  # fmt: skip


def pair(torch, name, *args, **options):
    ours, theirs = getattr(nn, name)(*args, **options).double(), getattr(torch.nn, name)(*args, **options).double()
    assert repr(ours) == repr(theirs)
    assert [(n, v.shape) for n, v in ours.state_dict().items()] == [
        (n, tuple(v.shape)) for n, v in theirs.state_dict().items()
    ]
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def compare(torch, rng, ours, theirs, call, arrays):
    """Compare values, and gradients by the float arrays and all parameters. call: of a module and tensors."""
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    wanted = call(theirs, tensors)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    weights = [rng.standard_normal(tuple(w.shape)) for w in wanted]
    sum((w * torch.tensor(c)).sum() for w, c in zip(wanted, weights, strict=True)).backward()

    def total(parameters, floats, others):
        given = [floats[n] if n in floats else others[n] for n in range(len(arrays))]
        found = call(lambda *a: nn.functional_call(ours, parameters, *a), given)
        found = tuple(found) if isinstance(found, tuple) else (found,)
        return sum((y * c).sum() for y, c in zip(found, weights, strict=True)), found

    floats = {n: a for n, a in enumerate(arrays) if a.dtype.kind == "f"}
    others = {n: a for n, a in enumerate(arrays) if n not in floats}
    run = es.interpret(es.value_and_grad(total, argnums=(0, 1), has_aux=True))
    (_, found), (by_name, by_place) = run({n: p.numpy() for n, p in ours.named_parameters()}, floats, others)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-10, atol=1e-12)
    for n, p in theirs.named_parameters():
        grad = np.zeros(tuple(p.shape)) if p.grad is None else p.grad.numpy()
        np.testing.assert_allclose(by_name[n], grad, rtol=1e-9, atol=1e-11, err_msg=n)
    for n, g in by_place.items():
        np.testing.assert_allclose(g, tensors[n].grad.numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name, options", CELLS)
@pytest.mark.parametrize("batch", [(), (1,), (5,)])
@pytest.mark.parametrize("given", [True, False])
def test_cells(torch, rng, name, options, batch, given) -> None:
    ours, theirs = pair(torch, name, 7, 3, **options)
    states = [rng.standard_normal((*batch, 3)) for _ in range(2 if name == "LSTMCell" else 1)] if given else []

    def call(module, tensors):
        x, *hx = tensors
        return module(x, *([tuple(hx)] if name == "LSTMCell" and hx else hx))

    compare(torch, rng, ours, theirs, call, [rng.standard_normal((*batch, 7)), *states])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_steps_in_a_loop_are_the_layer(rng, name) -> None:
    """A loop of the cell over 4 steps equals the layer of the sequence, with the same parameters."""
    layer, cell = getattr(nn, name)(5, 3), getattr(nn, f"{name}Cell")(5, 3)
    cell.load_state_dict({n.removesuffix("_l0"): v for n, v in layer.state_dict().items()})
    x = rng.standard_normal((4, 2, 5)).astype(np.float32)

    class Loop(nn.Module):
        def __init__(self):
            self.cell = cell

        def forward(self, x):
            hx, out = None, []
            for t in range(x.size(0)):
                hx = self.cell(x[t], hx)
                out.append(hx[0] if name == "LSTM" else hx)
            return es.functional.stack(out)

    np.testing.assert_allclose(Loop()(x), layer(x)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("call, error, words", [
    (lambda: nn.RNNCell(3, 2, nonlinearity="elu"), ArgumentError, "nonlinearity='elu'"),
    (lambda: nn.GRUCell(3, 2)(np.ones((4, 5), "f4")), ShapeError, "GRUCell: 'input'.*input_size=3"),
    (lambda: nn.GRUCell(3, 2)(np.ones((4, 3), "f4"), np.ones((4, 3), "f4")), ShapeError, r"'hx' has shape.*\(4, 2\)"),
    (lambda: nn.LSTMCell(3, 2)(np.ones((4, 3), "f4"), np.ones((4, 2), "f4")), ArgumentError, r"the pair \(h, c\)"),
    (lambda: nn.LSTMCell(0, 2), EinsmithError, "input_size"),
    (lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3, 3]), ArgumentError, "cutoffs.*from 1 to 8"),
    (lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3])(np.ones((2, 4), "f4"), np.ones(3, int)), ShapeError, "'target'"),
    (lambda: nn.FractionalMaxPool2d(2), ArgumentError, "give one of output_size"),
    (lambda: nn.FractionalMaxPool2d(2, output_ratio=1.5), ArgumentError, "between 0 and 1"),
    (lambda: nn.FractionalMaxPool2d(3, output_size=4)(np.ones((1, 4, 9), "f4")), ShapeError, "from 1 to 2"),
])  # fmt: skip
def test_errors(call, error, words) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("options", [{}, {"div_value": 2.0, "head_bias": True}])
@pytest.mark.parametrize("batch", [(), (6,)])
def test_adaptive_softmax(torch, rng, options, batch) -> None:
    ours, theirs = pair(torch, "AdaptiveLogSoftmaxWithLoss", 17, 20, [4, 5, 11], **options)
    target = np.array([0, 4, 19, 7, 3, 12])[: batch[0]] if batch else np.array(13)
    x = rng.standard_normal((*batch, 17))
    compare(torch, rng, ours, theirs, lambda m, t: tuple(m(*t)), [x, target])
    if batch:
        with torch.no_grad():
            log_prob, best = theirs.log_prob(torch.tensor(x)).numpy(), theirs.predict(torch.tensor(x)).numpy()
        np.testing.assert_allclose(es.jit(ours.log_prob)(x), log_prob, rtol=1e-10)
        np.testing.assert_array_equal(es.jit(ours.predict)(x), best)
        output, loss = ours(x, target)
        np.testing.assert_allclose(loss, -output.mean(), rtol=1e-12)
        with pytest.raises(es.IndexOutOfRange):
            ours(x, target + 1)


@pytest.mark.parametrize("n, options", [
    (2, {"kernel_size": 2, "output_size": (3, 4)}), (3, {"kernel_size": (1, 2, 3), "output_ratio": (0.5, 0.4, 0.3)}),
])  # fmt: skip
def test_fractional_pooling(torch, rng, n, options) -> None:
    u = rng.random((2, 3, n))
    made = [getattr(m, f"FractionalMaxPool{n}d")(**options, return_indices=True, _random_samples=s)
            for m, s in ((nn, u), (torch.nn, torch.tensor(u)))]  # fmt: skip
    x = rng.permutation(2 * 3 * 9**n).reshape(2, 3, *(9,) * n) / 7
    for a, b in zip(made[0](x), made[1](torch.tensor(x)), strict=True):
        np.testing.assert_array_equal(a, b.numpy())
    drawn = getattr(nn, f"FractionalMaxPool{n}d")(**options)
    first, second = drawn(x), drawn(x)
    assert first.shape == made[0](x)[0].shape and (first != second).any()
    assert np.isin(first, x).all()


@pytest.mark.parametrize("options", [
    {}, {"bias": True, "weight": np.linspace(0.5, 2, 7), "ignore_index": 3, "reduction": "sum"},
    {"out_features": (2, 3), "bias": True, "label_smoothing": 0.1},
])  # fmt: skip
def test_linear_cross_entropy(torch, rng, options) -> None:
    given = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    ours, theirs = nn.LinearCrossEntropyLoss(5, 7, **options), torch.nn.LinearCrossEntropyLoss(5, 7, **given)
    assert repr(ours) == repr(theirs)
    ours.double().load_state_dict(theirs.double().state_dict())
    target = rng.integers(0, 7, (6, *options.get("out_features", ())))
    compare(torch, rng, ours, theirs, lambda m, t: m(*t), [rng.standard_normal((6, 5)), target])
    with pytest.raises(ShapeError, match="needs \\(7,\\)"):
        nn.LinearCrossEntropyLoss(5, 7, weight=np.ones(3))


def test_initial_values() -> None:
    """Distributions of torch.nn.init that have a property to test."""
    nn.manual_seed(1)
    p = nn.Parameter(np.zeros((40, 50)))
    nn.init.trunc_normal_(p, mean=0.5, std=0.5, a=0.0, b=1.5)
    assert 0 <= p.data.min() < 0.01 and 1.4 < p.data.max() <= 1.5 and abs(p.data.mean() - 0.616) < 0.05
    for shape in ((3, 7), (7, 3), (4, 3, 2)):
        q = nn.Parameter(np.zeros(shape))
        nn.init.orthogonal_(q, gain=2.0)
        m = q.data.reshape(shape[0], -1)
        m = m if m.shape[0] <= m.shape[1] else m.T
        np.testing.assert_allclose(m @ m.T, 4 * np.eye(len(m)), atol=1e-12)
    nn.init.sparse_(p, 0.3, std=1.0)
    assert ((p.data == 0).sum(0) == 12).all()
    nn.init.eye_(p)
    np.testing.assert_array_equal(p.data, np.eye(40, 50))
    for call in (lambda: nn.init.trunc_normal_(p, 0.0, 0.1, 2.0, 3.0), lambda: nn.init.eye_(nn.Parameter(np.ones(2))),
                 lambda: nn.init.orthogonal_(nn.Parameter(np.ones(2))), lambda: nn.init.dirac_(p)):  # fmt: skip
        with pytest.raises(ArgumentError):
            call()


@pytest.mark.parametrize("shape, groups", [((3, 4, 5), 1), ((6, 2, 3, 4), 3), ((4, 4, 1, 2, 3), 2)])
def test_dirac(torch, shape, groups) -> None:
    p, t = nn.Parameter(np.ones(shape)), torch.ones(shape)
    nn.init.dirac_(p, groups)
    np.testing.assert_array_equal(p.data, torch.nn.init.dirac_(t, groups).numpy())
