"""Batches of one update weigh as much as their losses divide by: the update is that of one batch of all samples."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from tests.distributed.world import run

F = es.functional
CLASS_WEIGHTS = np.array([0.1, 1.0, 5.0], np.float32)
PERPLEXITY = es.op("""
    z[i] = log(sum[c](exp(x[i,c])))
    L[] = sum[i](where(t[i] != 7, z[i] - x[i,t[i]], 0)) / sum[i](where(t[i] != 7, 1.0, 0.0))
""")


def masked(output, target, mask):
    return ((output[:, 0] - target) ** 2 * mask).sum() / mask.sum()


def clamped(output, target, mask):
    return ((output[:, 0] - target) ** 2 * mask).sum() / F.clamp(mask.sum(), min=1.0)


LABELS = {
    "ignored": F.cross_entropy,
    "weights": lambda o, t: F.cross_entropy(o, t, CLASS_WEIGHTS),
    "smoothing": lambda o, t: F.cross_entropy(o, t, label_smoothing=0.1),
    "weights and smoothing": lambda o, t: F.cross_entropy(o, t, CLASS_WEIGHTS, label_smoothing=0.1),
    "nll": lambda o, t: F.nll_loss(F.log_softmax(o, 1), t, CLASS_WEIGHTS),
    "half": lambda o, t: 0.5 * F.cross_entropy(o, t) - 3,
    "module": es.nn.CrossEntropyLoss(weight=CLASS_WEIGHTS),
    "count of one's own": lambda o, t: F.cross_entropy(o, t, reduction="sum") / (t != -100).sum(),
}


def train(loss, x, targets, sizes, **options):
    es.manual_seed(0)
    model = es.nn.Linear(5, 3)
    step = es.TrainStep(model, loss, es.optim.SGD(lr=0.5, momentum=0.9), accumulate=len(sizes), **options)
    for _ in range(2):
        start = 0
        for n in sizes:
            part = tuple(t[start : start + n] for t in targets)
            step(x[start : start + n], part if len(part) > 1 else part[0])
            start += n
    return step


def same(a, b):
    for name, values in a.model.state_dict().items():
        np.testing.assert_allclose(values, b.model.state_dict()[name], rtol=2e-4, atol=1e-6, err_msg=name)


def labels(rng, ignored):
    y = rng.integers(0, 3, 12)
    y[rng.permutation(12)[:ignored]] = -100
    return y


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("sizes", [(6, 6), (1, 4, 7)], ids=str)
def test_labels_weigh_batches(rng, name, sizes):
    x, y = rng.standard_normal((12, 5)).astype(np.float32), labels(rng, 5)
    y[: sizes[0]] = 1  # the first batch has a label
    loss = LABELS[name]
    whole, parts = (train(loss, x, (y,), s) for s in ((12,), sizes))
    same(whole, parts)
    batches, start = [], 0
    for n in sizes:
        batches.append((x[start : start + n], y[start : start + n]))
        start += n
    assert parts.evaluate(batches)["loss"] == pytest.approx(parts.evaluate([(x, y)])["loss"], rel=1e-5)


def test_a_decay_of_the_weights_weighs_nothing(rng):
    x, y = rng.standard_normal((12, 5)).astype(np.float32), labels(rng, 5)

    def train_decayed(sizes):
        es.manual_seed(0)
        model = es.nn.Linear(5, 3)

        def loss(o, t):
            return F.cross_entropy(o, t) + 0.1 * (model.weight**2).sum()

        step = es.TrainStep(model, loss, es.optim.SGD(lr=0.5), accumulate=len(sizes))
        start = 0
        for n in sizes:
            step(x[start : start + n], y[start : start + n])
            start += n
        return step

    same(train_decayed((12,)), train_decayed((4, 8)))


@pytest.mark.parametrize("loss", [masked, clamped])
def test_masks_weigh_batches(rng, loss):
    x, target = rng.standard_normal((12, 5)).astype(np.float32), rng.standard_normal(12).astype(np.float32)
    mask = (rng.random(12) < 0.5).astype(np.float32)
    mask[[0, 5]] = 1
    same(*(train(loss, x, (target, mask), sizes) for sizes in ((12,), (3, 9))))


def test_a_formula_of_ones_own(rng):
    x, y = rng.standard_normal((12, 5)).astype(np.float32), rng.integers(0, 3, 12)
    y[[1, 2, 8]] = 7
    same(*(train(lambda o, t: PERPLEXITY(x=o, t=t), x, (y,), sizes) for sizes in ((12,), (4, 8))))


def test_a_batch_without_labels_counts_for_nothing(rng):
    x, y = rng.standard_normal((12, 5)).astype(np.float32), labels(rng, 3)
    y[:4] = -100
    y[5] = 1
    same(*(train(F.cross_entropy, x, (y,), sizes) for sizes in ((12,), (4, 8))))
    same(*(train(F.cross_entropy, x[::-1].copy(), (y[::-1].copy(),), sizes) for sizes in ((12,), (8, 4))))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.filterwarnings("ignore:precision")
def test_an_update_without_labels_is_an_error(rng, precision):
    x, y = rng.standard_normal((12, 5)).astype(np.float32), np.full(12, -100)
    es.manual_seed(0)
    options = {"accumulate": 2, "precision": precision}
    step = es.TrainStep(es.nn.Linear(5, 3), F.cross_entropy, es.optim.SGD(lr=0.5), **options)
    before = {n: np.array(v) for n, v in step.model.state_dict().items()}
    step(x[:6], y[:6])
    with pytest.raises(es.NonFiniteError):
        step(x[6:], y[6:])
    assert all((before[n] == v).all() for n, v in step.model.state_dict().items())


def test_a_save_between_batches_goes_on(rng, tmp_path):
    x, y = rng.standard_normal((12, 5)).astype(np.float32), labels(rng, 5)
    y[[0, 8]] = 1

    def half(step):
        return step(x[:4], y[:4])

    whole = train(F.cross_entropy, x, (y,), (4, 8))
    es.manual_seed(0)
    step = es.TrainStep(es.nn.Linear(5, 3), F.cross_entropy, es.optim.SGD(lr=0.5, momentum=0.9), accumulate=2)
    for _ in range(2):
        half(step)
        es.save(step, tmp_path / "run")
        step = es.load(tmp_path / "run", model=es.nn.Linear(5, 3))
        step(x[4:], y[4:])
    same(whole, step)


@pytest.mark.parametrize(
    "loss",
    [F.mse_loss, lambda o, t: F.mse_loss(o, t, reduction="sum"), lambda o, t: F.mse_loss(o, t) + F.l1_loss(o, t),
     lambda o, t: F.mse_loss(o, t) / (o * o).mean()],
)  # fmt: skip
def test_other_losses_are_weighted_by_samples(rng, loss):
    """As numbers show: the mean of the batches' gradients by samples."""
    x, t = rng.standard_normal((12, 5)).astype(np.float32), rng.standard_normal((12, 3)).astype(np.float32)
    es.manual_seed(0)
    model = es.nn.Linear(5, 3)
    w = np.array(model.weight.data)

    def gradient(n, m):
        return es.grad(lambda w: loss(F.linear(x[n:m], w, np.array(model.bias.data)), t[n:m]))(w)

    expected = w - 0.5 * (4 * gradient(0, 4) + 8 * gradient(4, 12)) / 12
    step = es.TrainStep(model, loss, es.optim.SGD(lr=0.5), accumulate=2)
    step(x[:4], t[:4]), step(x[4:], t[4:])
    np.testing.assert_allclose(model.weight.data, expected, rtol=1e-4, atol=1e-5)


def test_a_group_does_not_go_on_between_weighted_batches(rng, tmp_path):
    es.manual_seed(0)
    step = es.TrainStep(es.nn.Linear(5, 3), F.cross_entropy, es.optim.SGD(lr=0.5), accumulate=2)
    step(rng.standard_normal((4, 5)).astype(np.float32), np.zeros(4, int))
    es.save(step, tmp_path / "run")

    def work(group):
        with pytest.raises(es.SaveError, match="continue in one process"):
            es.load(tmp_path / "run", model=es.nn.Linear(5, 3), group=group)

    run(2, work)
