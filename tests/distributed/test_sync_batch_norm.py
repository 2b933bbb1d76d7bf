"""Statistics over the batches of all processes: equal to batch norm of the whole batch in one process."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.driver.binding import place_in_order
from einsmith.runtime import queues
from einsmith.runtime.steps import Await, Notify
from tests.distributed.test_training import LOSS, many_buckets, part, weights  # noqa: F401
from tests.distributed.world import calls_of, make_seeded, run

CHANNELS, CLASSES = 3, 4


@pytest.fixture(autouse=True)
def runs_at_once(monkeypatch):
    """A process runs one training step at a time, but here its threads are ranks whose steps wait for each other."""
    own = threading.local()

    class Own:
        """The first queue of each thread."""

        def __getattr__(self, name):
            if not hasattr(own, "queue"):
                own.queue = queues.RunQueue(0)
            return getattr(own.queue, name)

    monkeypatch.setattr(queues, "FIRST", Own())


class Network(nn.Module):
    """Two convolutions with batch norms, and a branch around the second."""

    def __init__(self, norm, frozen=False):
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, CHANNELS, 3, padding=1), norm(CHANNELS)
        self.second, self.again = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), norm(CHANNELS)
        self.last = nn.Linear(CHANNELS * 25, CLASSES)
        self.first.weight.requires_grad = not frozen

    def forward(self, x):
        x = es.functional.relu(self.norm(self.first(x)))
        x = es.functional.relu(self.again(self.second(x)) + x)
        return self.last(x.reshape((x.shape[0], -1)))


def network(norm, **options):
    nn.manual_seed(3)
    return Network(norm, **options)


def data(rng, n):
    return (3 + rng.standard_normal((n, 2, 5, 5))).astype(np.float32), rng.integers(0, CLASSES, n)


def compare(size, batches, rng, **options):
    alone = es.TrainStep(network(nn.BatchNorm2d), LOSS, es.optim.SGD(lr=0.2, momentum=0.9), **options)
    expected = [alone(*batch) for batch in batches]
    models = [network(nn.SyncBatchNorm) for _ in range(size)]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.2, momentum=0.9), group=group, **options)
        losses = [step(*part(group, *batch)) for batch in batches]
        return losses, weights(step), step

    results = run(size, work)
    for losses, state, _ in results:
        if options.get("accumulate", 1) == 1:
            np.testing.assert_allclose(losses, expected, rtol=1e-4)
        for name, value in weights(alone).items():
            np.testing.assert_allclose(state[name], value, rtol=1e-3, atol=2e-5, err_msg=name)
            np.testing.assert_array_equal(state[name], results[0][1][name])
    return results


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_equals_batch_norm_of_the_whole_batch(size, rng):
    compare(size, [data(rng, n) for n in (12, 12, 7, 12)], rng)


@pytest.mark.slow
def test_a_rank_without_samples_takes_part(rng):
    """It adds nothing to the sums, which the others wait for."""
    compare(3, [data(rng, n) for n in (9, 2, 2, 9)], rng)


@pytest.mark.slow
def test_accumulated_batches(rng):
    compare(2, [data(rng, n) for n in (8, 5, 8, 5)], rng, accumulate=2)


def test_a_bucket_for_each_parameter(rng, many_buckets):  # noqa: F811
    """The sums of gradients and those of statistics have orders of their own."""
    compare(2, [data(rng, n) for n in (8, 8)], rng)


def test_a_layer_exchanges_two_messages(rng):
    """One in the forward pass and one in the backward pass, in the middle of one native call."""
    (_, _, step), _ = compare(2, [data(rng, 8)], rng)
    ((_, program),) = step.compiler.programs.items()
    kinds = [type(s) for s in program.program.steps if isinstance(s, (Notify, Await))]
    assert kinds.count(Await) == 4
    calls = calls_of(step.group.twin())
    assert calls == ["exchange"] * 4


def test_a_group_sum_in_a_formula_of_ones_own(rng):
    """A loss of the mean over all samples, whose gradient crosses the ranks, weighted by their samples."""

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, CLASSES)

        def forward(self, x):
            y = self.layer(x)
            total = es.functional.group_sum(
                es.functional.cat([es.sum(y, axis=0), es.functional.full((1,), float(x.shape[0]))])
            )
            return y - total[:CLASSES] / total[CLASSES]

    x, y = rng.standard_normal((10, 6)).astype(np.float32), rng.integers(0, CLASSES, 10)

    def make(group=None):
        return es.TrainStep(make_seeded(1, Centred), LOSS, es.optim.SGD(lr=0.5), group=group)

    alone = make()
    expected = [alone(x, y) for _ in range(3)]

    def work(group):
        step = make(group)
        first = 7 if group.rank else 0
        own = slice(first, 10 if group.rank else 7)
        return [step(x[own], y[own]) for _ in range(3)], weights(step)

    for losses, state in run(2, work):
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        for name, value in weights(alone).items():
            np.testing.assert_allclose(state[name], value, atol=1e-5, err_msg=name)


def test_an_error_in_the_step_ends_it_on_all_ranks(rng):
    """The other ranks do not wait for sums of the rank that has failed."""
    x, y = data(rng, 8)
    x[:4] = np.nan
    models = [network(nn.SyncBatchNorm) for _ in range(2)]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)
        before = weights(step)
        with pytest.raises(es.NonFiniteError):
            step(*part(group, x, y))
        after = weights(step)
        for name in before:
            if "running" not in name and "num_batches" not in name:
                np.testing.assert_array_equal(after[name], before[name])
        good = data(np.random.default_rng(5), 8)
        return step(*part(group, *good))

    run(2, work)


def test_deterministic_training_refuses_it(rng):
    step = es.TrainStep(network(nn.SyncBatchNorm), LOSS, es.optim.SGD(lr=0.1), deterministic=True)
    with pytest.raises(es.ArgumentError, match="cannot share sums"):
        step(*data(rng, 8))


def test_alone_it_is_batch_norm(rng):
    found, expected = (
        es.TrainStep(network(norm), LOSS, es.optim.SGD(lr=0.1)) for norm in (nn.SyncBatchNorm, nn.BatchNorm2d)
    )
    batch = data(rng, 6)
    assert [found(*batch) for _ in range(2)] == [expected(*batch) for _ in range(2)]


def test_batch_norms_are_converted(rng):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=0.2), nn.Sequential(nn.BatchNorm2d(4)))
    kept = {k: v for k, v in model.named_parameters()}
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert [type(m).__name__ for m in converted.modules()].count("SyncBatchNorm") == 2
    assert converted[1].momentum == 0.2 and {k: v for k, v in converted.named_parameters()} == kept
    assert isinstance(nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3)), nn.SyncBatchNorm)


def test_programs_of_several_shapes_have_memory_of_their_own(rng):
    """What is summed has another shape for each length, and a rank without samples knows it."""

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, CLASSES)

        def forward(self, x):
            y = self.layer(x)
            total = es.functional.group_sum(es.sum(y, axis=0))
            count = es.functional.group_sum(es.functional.full((1,), float(x.shape[0])))
            return es.sum(y - total / count[0], axis=1)

    def make(group=None):
        return es.TrainStep(make_seeded(1, Centred), LOSS, es.optim.SGD(lr=0.5), group=group)

    batches = [
        (rng.standard_normal((n, length, 3)).astype(np.float32), rng.integers(0, CLASSES, n))
        for n, length in ((6, 4), (6, 7), (6, 4), (1, 7), (1, 5), (6, 7))
    ]
    alone = make()
    expected = [alone(*batch) for batch in batches]

    def work(group):
        step = make(group)
        return [step(*part(group, *batch)) for batch in batches], weights(step)

    for losses, state in run(2, work):
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        for name, value in weights(alone).items():
            np.testing.assert_allclose(state[name], value, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("first_reads", "places"),
    [([], []), ([5], [5]), ([3, 8], [3, 8]), ([8, 3], [3, 3]), ([4, 9, 2, 7], [2, 2, 2, 7])],
)
def test_replies_are_awaited_in_their_order(first_reads, places):
    """The bytes in the pipe are alike: the first one answers the first notice."""
    assert place_in_order(first_reads) == places


def test_half_precision_is_summed_in_single(rng):
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, CLASSES)

        def forward(self, x):
            y = self.layer(x)
            half = es.mean(y, axis=0).astype("float16")
            return y + es.functional.group_sum(half).astype("float32") * 0.5

    x, y = rng.standard_normal((4, 3)).astype(np.float32), rng.integers(0, CLASSES, 4)

    def work(group):
        step = es.TrainStep(make_seeded(1, Doubled), LOSS, es.optim.SGD(lr=0.1), group=group)
        return [step(*part(group, x, y)) for _ in range(2)]

    first, second = run(2, work)
    assert np.isfinite(first).all() and first == second
