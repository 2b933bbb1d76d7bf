"""Metrics by themselves: outputs that hold NaN, labels that are no classes, batches that do not belong together."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es


def value_of(metric, *batches):
    metric.reset()
    for output, target in batches:
        metric.update(output, target)
    return metric.compute()


def by_class(rng, samples, classes):
    return rng.standard_normal((samples, classes)), rng.integers(0, classes, samples)


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("classes", [5, 17])
def test_top_k_counts_samples_with_nan_as_wrong(rng, k, classes):
    output, target = by_class(rng, 31, classes)
    output[3, target[3]] = output[4, (target[4] + 1) % classes] = np.nan
    output[5] = np.nan
    ranked = np.argsort(-output, 1, kind="stable")[:, :k]
    right = (ranked == target[:, None]).any(1) & ~np.isnan(output).any(1)
    assert value_of(es.metrics.top_k(k), (output, target)) == right.mean()
    assert value_of(es.metrics.accuracy(), (np.full((7, classes), np.nan), target[:7])) == 0


@pytest.mark.parametrize("make", [es.metrics.precision, es.metrics.recall, es.metrics.f1])
@pytest.mark.parametrize("average", ["macro", "micro"])
def test_scores_of_outputs_that_are_all_nan_are_zero(make, average):
    assert value_of(make(average), (np.full((7, 3), np.nan), np.zeros(7, np.int64))) == 0


@pytest.mark.parametrize("make", [es.metrics.precision, es.metrics.recall, es.metrics.f1])
def test_scores_of_samples_with_nan_are_misses_alone(rng, make):
    output, target = by_class(rng, 40, 3)
    lost = np.arange(40) % 5 == 0
    broken = np.where(lost[:, None], np.nan, output)
    said = output.argmax(1)
    scores = []
    for c in range(3):
        right = ((said == c) & (target == c) & ~lost).sum()
        stated, real = ((said == c) & ~lost).sum(), (target == c).sum()
        parts = {"precision": (right, stated), "recall": (right, real), "f1": (2 * right, stated + real)}
        a, b = parts[make.__name__]
        scores.append(a / b if b else 0.0)
    np.testing.assert_allclose(value_of(make(), (broken, target)), np.mean(scores))


@pytest.mark.parametrize("make", [lambda: es.metrics.top_k(2), es.metrics.accuracy, es.metrics.f1])
@pytest.mark.parametrize("label", [-1, -3, 3, 2**40])
def test_labels_that_are_no_classes_are_refused(make, label):
    with pytest.raises(es.IndexOutOfRange, match=f"target {label} is outside the 3 classes.*-100"):
        value_of(make(), (np.eye(3), np.array([0, label, -100])))


def test_batches_of_other_numbers_of_classes_are_refused(rng):
    with pytest.raises(es.ShapeError, match="4 classes, but earlier batches had 3"):
        value_of(es.metrics.recall(), by_class(rng, 9, 3), by_class(rng, 9, 4))


@pytest.mark.parametrize("mean", [0.0, 1e9])
def test_r2_of_large_targets_keeps_its_digits(rng, mean):
    target = rng.standard_normal(1001)
    output = target + 0.5 * rng.standard_normal(1001)
    want = 1 - ((output - target) ** 2).sum() / ((target - target.mean()) ** 2).sum()
    parts = [(output[a:b] + mean, target[a:b] + mean) for a, b in [(0, 1), (1, 1), (1, 18), (18, 1001)]]
    np.testing.assert_allclose(value_of(es.metrics.r2(), *parts), want, rtol=1e-5)


class Given(es.nn.Module):
    """Gives what it is given, times a parameter that is 1."""

    def __init__(self):
        self.scale = es.nn.Parameter(np.ones(()))

    def forward(self, x):
        return x * self.scale


def evaluated(loss, *batches, **metrics):
    step = es.TrainStep(Given(), loss, es.optim.SGD(lr=0.1))
    return step.evaluate(batches, metrics=metrics)


def test_evaluate_counts_samples_with_nan_as_wrong():
    found = evaluated(es.functional.cross_entropy, (np.full((6, 3), np.nan), np.zeros(6, np.int64)))
    assert found["accuracy"] == 0 and np.isnan(found["loss"])


@pytest.mark.parametrize("ignored", [-1, 0, None])
def test_evaluate_leaves_out_the_labels_that_its_loss_ignores(rng, ignored):
    loss = es.nn.CrossEntropyLoss(ignore_index=ignored)
    batches = [by_class(rng, n, 5) for n in (17, 1, 8)]
    if ignored is not None:
        batches[0][1][:9] = batches[2][1][3] = ignored
    output, target = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    counted = np.full(26, True) if ignored is None else target != ignored
    found = evaluated(loss, *batches)
    np.testing.assert_allclose(found["accuracy"], (output.argmax(1) == target)[counted].mean())
    np.testing.assert_allclose(found["loss"], loss(output[counted], target[counted]))


def test_a_batch_without_samples_leaves_the_mean_of_a_function(rng):
    metric = es.training.evaluate.as_metrics({"mae": es.metrics.mean_absolute_error})["mae"]
    output, target = rng.standard_normal((2, 15))
    assert value_of(metric, (output, target), (output[:0], target[:0])) == np.abs(output - target).mean()
