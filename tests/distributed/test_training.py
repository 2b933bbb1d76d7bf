"""Training in a group: equal to one process with the whole batch, over threads in the place of processes."""

from __future__ import annotations

import copy
import errno

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.distributed.collectives import add_in_pairs
from einsmith.runtime.steps import Notify, RunLaunch
from einsmith.training import checkpoint, gradient_buckets
from einsmith.training.deterministic import PairwiseSum
from einsmith.training.gradient_buckets import FIRST_BYTES, bucket_bytes, divide
from tests.distributed.world import calls_of, make_seeded, run

CLASSES, WIDTH = 5, 7
LOSS = es.functional.cross_entropy


def network(seed=0, *layers):
    return make_seeded(seed, lambda: nn.Sequential(nn.Linear(WIDTH, 11), *layers, nn.ReLU(), nn.Linear(11, CLASSES)))


def data(rng, n):
    return rng.standard_normal((n, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, n)


def part(group, *arrays):
    n = len(arrays[0])
    return tuple(a[n * group.rank // group.size : n * (group.rank + 1) // group.size] for a in arrays)


def weights(step):
    return {k: np.array(v) for k, v in step.model.state_dict().items()}


def train(step, batches, divided=lambda *arrays: arrays):
    return [step(*divided(*batch)) for batch in batches], weights(step)


def check(size, make, batches, tolerance=2e-6):
    """Train alone and in a group that begins with other weights on the other ranks; compare losses and weights."""
    losses, expected = train(make(network(0), None), batches)
    models = [network(rank) for rank in range(size)]

    def work(group):
        return train(make(models[group.rank], group), batches, lambda *arrays: part(group, *arrays))

    results = run(size, work)
    for found, state in results:
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        for name, value in state.items():
            np.testing.assert_allclose(value, expected[name], atol=tolerance, err_msg=name)
            np.testing.assert_array_equal(value, results[0][1][name])
    return results


@pytest.fixture
def many_buckets(monkeypatch):
    """Every parameter has a bucket of its own."""
    monkeypatch.setattr(gradient_buckets, "FIRST_BYTES", 1)
    monkeypatch.setattr(gradient_buckets, "MOST_BYTES", 1)


@pytest.mark.thinned(18)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("optimizer", [es.optim.SGD(lr=0.1, momentum=0.9), es.optim.AdamW(lr=0.01)])
@pytest.mark.parametrize("shard_optimizer", [False, True])
@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 0.1}, {"accumulate": 2}])
def test_many_buckets_equal_one_process(size, optimizer, shard_optimizer, options, rng, many_buckets):
    """Those of all buckets but the last are updated while that one is summed."""
    batches = [data(rng, n) for n in (12, 12, 7, 3)]

    def make(model, group):
        return es.TrainStep(
            model, LOSS, optimizer, group=group, shard_optimizer=shard_optimizer and group is not None, **options
        )

    if "accumulate" not in options:
        check(size, make, batches, 1e-5)
        return
    models = [network(0) for _ in range(size + 1)]
    alone = make(models[size], None)
    for batch in batches:
        alone(*batch)

    def work(group):
        step = make(models[group.rank], group)
        for batch in batches:
            step(*part(group, *batch))
        return weights(step)

    for state in run(size, work):
        for name, value in weights(alone).items():
            np.testing.assert_allclose(state[name], value, atol=1e-5)


def test_a_small_step_exchanges_one_message(rng):
    """Gradients, losses and counts share it."""
    models = [network(0), network(0)]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)
        step(*part(group, *data(np.random.default_rng(1), 8)))
        calls = calls_of(group)
        before = len(calls)
        step(*part(group, *data(np.random.default_rng(2), 8)))
        return calls[before:]

    assert run(2, work) == [["exchange"]] * 2


@pytest.mark.thinned(2)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("optimizer", [es.optim.SGD(lr=0.1, momentum=0.9), es.optim.AdamW(lr=0.01)])
def test_equals_one_process(size, optimizer, rng):
    batches = [data(rng, n) for n in (12, 12, 7, 3)]  # 7 and 3 do not divide evenly
    check(size, lambda model, group: es.TrainStep(model, LOSS, optimizer, group=group), batches, 1e-5)


def test_gradients_are_clipped_by_their_common_norm(rng):
    batches = [data(rng, 8) for _ in range(3)]
    norms = {}

    def make(model, group):
        step = es.TrainStep(model, LOSS, es.optim.SGD(lr=0.5), clip_grad_norm=0.1, group=group)
        norms.setdefault(group.rank if group else "alone", step)
        return step

    check(2, make, batches)
    assert norms[0].grad_norm == norms[1].grad_norm == pytest.approx(norms["alone"].grad_norm, rel=1e-5)
    assert norms[0].grad_norm > 0.1


def test_averages_of_weights(rng):
    batches = [data(rng, 8) for _ in range(3)]
    steps = {}

    def make(model, group):
        return steps.setdefault(group.rank if group else "alone", es.TrainStep(
            model, LOSS, es.optim.SGD(lr=0.5), ema=0.5, group=group))  # fmt: skip

    check(2, make, batches)
    expected = steps["alone"].averages()
    for name, value in steps[1].averages().items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6)


def test_several_losses(rng):
    def losses(out, target):
        return {"class": LOSS(out, target), "size": es.mean(out * out)}

    batches = [data(rng, n) for n in (6, 5)]
    steps = {}

    def make(model, group):
        key = group.rank if group else "alone"
        steps[key] = es.TrainStep(model, losses, es.optim.SGD(lr=0.1), trained="sum", group=group)
        return steps[key]

    check(2, make, batches)
    assert steps[0].losses == steps[1].losses
    assert steps[0].losses == pytest.approx(steps["alone"].losses, rel=1e-5)


def test_several_losses_are_means_over_all_accumulated_batches(rng):
    def losses(out, target):
        return {"class": LOSS(out, target), "size": es.mean(out * out)}

    batches = [data(rng, n) for n in (6, 4)]
    models = [network() for _ in range(3)]

    def make(model, group):
        return es.TrainStep(model, losses, es.optim.SGD(lr=0.1), accumulate=2, group=group)

    alone = make(models[2], None)
    parts = []
    for batch in batches:
        alone(*batch)
        parts.append(alone.losses)

    def work(group):
        step = make(models[group.rank], group)
        for batch in batches:
            loss = step(*part(group, *batch))
        return loss, step.losses

    for loss, found in run(2, work):
        expected = {k: (6 * parts[0][k] + 4 * parts[1][k]) / 10 for k in parts[0]}
        assert found == pytest.approx(expected, rel=1e-5) and loss == pytest.approx(expected["class"], rel=1e-5)


def test_accumulated_batches_make_one_update_without_messages_between(rng):
    batches = [data(rng, n) for n in (8, 6, 4, 8)]
    reference = es.TrainStep(network(), LOSS, es.optim.SGD(lr=0.1), accumulate=2)
    train(reference, batches)
    models = [network(rank) for rank in range(2)]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), accumulate=2, group=group)
        counts = []
        for batch in batches:
            before = len(calls_of(group))
            step(*part(group, *batch))
            counts.append(len(calls_of(group)) - before)
        return counts, weights(step), step.steps

    for counts, state, steps in run(2, work):
        assert counts[0] == counts[2] == 0 and counts[1] == counts[3] > 0 and steps == 2
        for name, value in weights(reference).items():
            np.testing.assert_allclose(state[name], value, atol=2e-6, err_msg=name)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_rank_without_samples(deterministic, rng):
    """In the first batch and later."""
    batches = [data(rng, n) for n in (1, 6, 2, 6)]

    def make(model, group):
        is_deterministic = deterministic and group is not None
        return es.TrainStep(model, LOSS, es.optim.Adam(lr=0.01), group=group, deterministic=is_deterministic)

    check(2 if deterministic else 3, make, batches, 1e-5)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_batch_that_is_empty_on_all_ranks_is_refused(deterministic, rng):
    x, y = data(rng, 16)
    models = [network(0, nn.BatchNorm1d(11)) for _ in range(2)]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group, deterministic=deterministic)
        step(*part(group, x, y))
        before = weights(step)
        with pytest.raises(es.ShapeError, match="no rank has a sample"):
            step(x[:0], y[:0])
        for name, value in weights(step).items():
            np.testing.assert_array_equal(value, before[name])
        assert step.steps == 1

    run(2, work)


class Unused(nn.Module):
    """A network that uses its second layer only for more than two samples at once."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.first(x) + self.second(x) if x.shape[0] > 2 else self.first(x)


@pytest.mark.parametrize("shard_optimizer", [False, True])
def test_a_parameter_that_one_rank_does_not_use_has_no_gradient_there(shard_optimizer, rng):
    x, y = data(rng, 8)
    nn.manual_seed(1)
    models = [Unused(), Unused()]
    start = {k: np.array(v) for k, v in models[0].state_dict().items()}
    lr = 0.1

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=lr), group=group, shard_optimizer=shard_optimizer)
        for split in (4, 2, 2):  # then rank 0 has too few samples to use the second layer
            chosen = slice(None, split) if group.rank == 0 else slice(split, None)
            step(x[chosen], y[chosen])
        return weights(step)

    def logits(w, x, uses_second):
        out = x @ w["first.weight"].T + w["first.bias"]
        return out + x @ w["second.weight"].T + w["second.bias"] if uses_second else out

    def gradients(w, x, y, uses_second):
        z = logits(w, x, uses_second)
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        own = {"weight": p.T @ x, "bias": p.sum(0)}
        return {f"{n}.{k}": v * (n == "first" or uses_second) for n in ("first", "second") for k, v in own.items()}

    w = {k: v.astype(np.float64) for k, v in start.items()}
    for split in (4, 2, 2):
        parts = [gradients(w, x[:split], y[:split], split > 2), gradients(w, x[split:], y[split:], True)]
        w = {k: v - lr * sum(p[k] for p in parts) / 8 for k, v in w.items()}
    for state in run(2, work):
        for name, value in state.items():
            np.testing.assert_allclose(value, w[name], atol=1e-5, err_msg=name)


def test_parts_that_do_not_use_a_parameter(rng):
    """A deterministic step whose parts have one or two samples, and others that have three."""
    nn.manual_seed(1)
    step = es.TrainStep(Unused(), LOSS, es.optim.SGD(lr=0.1), deterministic=True)
    x, y = data(rng, 20)  # 2, 3, 2, 3, ... samples
    before = weights(step)
    step(x, y)
    used = np.concatenate(
        [np.arange(20 * k // 8, 20 * (k + 1) // 8) for k in range(8) if (20 * (k + 1) // 8 - 20 * k // 8) > 2]
    )
    z = x @ before["first.weight"].T + before["first.bias"]
    z[used] += x[used] @ before["second.weight"].T + before["second.bias"]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(20), y] -= 1
    expected = before["second.weight"] - 0.1 * p[used].T @ x[used] / 20
    np.testing.assert_allclose(weights(step)["second.weight"], expected, atol=1e-6)


def freeze(step, frozen=True):
    step.model[0].weight.requires_grad = not frozen


def replace_layer(step):
    step.model[2] = make_seeded(7, lambda: nn.Linear(11, CLASSES))


CHANGES = {
    "compiled before": lambda step, batch: step.compile(*batch),
    "clipping": lambda step, batch: setattr(step, "clip_grad_norm", 0.1),
    "an average": lambda step, batch: setattr(step, "ema", 0.9),
    "a replaced layer": lambda step, batch: replace_layer(step),
    "another optimizer": lambda step, batch: setattr(step, "optimizer", es.optim.SGD(lr=0.05, momentum=0.5)),
    "a frozen weight": lambda step, batch: freeze(step),
    "an unfrozen weight": lambda step, batch: freeze(step, False),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"shard_optimizer": True}, {"deterministic": True}])
def test_changes_while_training(options, rng):
    """Each change is made alone and in a group; the trainings stay equal."""
    batches = [data(rng, 16) for _ in range(2 * len(CHANGES) + 2)]
    group_only = {"shard_optimizer", "deterministic"}
    models = [network(rank) for rank in range(2)]

    def go(step, divided):
        for n, change in enumerate(CHANGES.values()):
            change(step, divided(*batches[2 * n]))
            for batch in batches[2 * n : 2 * n + 2]:
                step(*divided(*batch))
        return weights(step)

    plain = {k: v for k, v in options.items() if k not in group_only}
    expected = go(es.TrainStep(network(), LOSS, es.optim.Adam(lr=0.01), **plain), lambda *arrays: arrays)

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.Adam(lr=0.01), group=group, **options)
        return go(step, lambda *arrays: part(group, *arrays))

    one, other = run(2, work)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])
        np.testing.assert_allclose(value, expected[name], atol=5e-5, err_msg=name)


def test_an_error_between_updates_is_raised_on_all_ranks_at_the_update(rng):
    ids = rng.integers(0, 4, (6, 2))
    wrong = np.where(np.arange(6)[:, None] == 5, 9, ids)  # a sample of rank 1
    y = rng.integers(0, CLASSES, 6)
    nn.manual_seed(0)
    models = [nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, CLASSES)) for _ in range(2)]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group, accumulate=2)
        step(*part(group, wrong, y))
        with pytest.raises(es.IndexOutOfRange if group.rank else es.GroupError):
            step(*part(group, ids, y))
        for _ in range(2):
            loss = step(*part(group, ids, y))
        return loss, step.steps

    one, other = run(2, work)
    assert one == other and one[1] == 1 and np.isfinite(one[0])


def test_a_group_step_is_not_tuned_or_exported(rng, tmp_path):
    batch = data(rng, 6)
    models = [network(), network()]

    def work(group):
        with pytest.raises(es.ArgumentError, match="tune before"):
            es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group, mode="dynamic")
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)
        step(*part(group, *batch))
        assert "are summed in buckets" in step.plan and "a step waits" in step.plan
        with pytest.raises(es.ArgumentError, match="exported from its save"):
            es.export(step, tmp_path / f"{group.rank}", *part(group, *batch))
        step.profile(*part(group, *batch), repeats=1)
        return step(*part(group, *batch))

    one, other = run(2, work)
    assert one == other


def test_batch_norm_keeps_its_statistics_by_process_and_evaluates_by_those_of_rank_0(rng):
    x, y = data(rng, 12)
    models = [network(rank, nn.BatchNorm1d(11)) for rank in range(2)]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)
        for _ in range(3):
            step(*part(group, x, y))
        before = weights(step)
        results = step.evaluate([part(group, x, y)], metrics={"top2": es.metrics.top_k(2)})
        return before, results, weights(step)

    (before0, results0, after0), (before1, results1, after1) = run(2, work)
    assert not np.array_equal(before0["1.running_mean"], before1["1.running_mean"])
    np.testing.assert_array_equal(before0["1.running_mean"], after1["1.running_mean"])
    assert results0 == results1
    alone = es.TrainStep(network(0, nn.BatchNorm1d(11)), LOSS, es.optim.SGD(lr=0.1))
    alone.model.load_state_dict(after0)
    expected = alone.evaluate([(x, y)], metrics={"top2": es.metrics.top_k(2)})
    assert results0 == pytest.approx(expected, rel=1e-5)


def test_dropout_draws_apart(rng):
    """Two ranks with equal samples and dropout train otherwise than two ranks that draw alike would."""
    x, y = data(rng, 1)
    x, y = np.repeat(x, 64, 0), np.repeat(y, 64)
    models = [network(0, nn.Dropout(0.5)) for _ in range(2)]
    alone = es.TrainStep(network(0, nn.Dropout(0.5)), LOSS, es.optim.SGD(lr=0.1))
    loss = alone(x[:32], y[:32])

    def work(group):
        return es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)(*part(group, x, y))

    one, other = run(2, work)
    assert one == other != loss


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_infinite_loss_of_one_rank_updates_nothing_on_any(accumulate, rng):
    good, bad = data(rng, 8), data(rng, 8)
    bad[0][0] = np.inf  # of rank 0
    models = [network(), network()]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.Adam(lr=0.1), accumulate=accumulate, group=group)
        for _ in range(accumulate):
            step(*part(group, *good))
        before, state = weights(step), {n: s.data.copy() for n, s in step.current_state().items() if "#" not in n}
        with pytest.raises(es.NonFiniteError, match="not finite on 1 of 2 ranks; nothing was updated"):
            for _ in range(accumulate):
                step(*part(group, *bad))
        for name, value in weights(step).items():
            np.testing.assert_array_equal(value, before[name])
        for name, value in state.items():
            np.testing.assert_array_equal(step.current_state()[name].data, value)
        return [step(*part(group, *good)) for _ in range(accumulate)], step.steps

    one, other = run(2, work)
    assert one[0][-1] == other[0][-1] and np.isfinite(one[0]).all() and one[1] == other[1] == 2


def test_an_error_of_one_rank_is_raised_on_all(rng):
    ids = rng.integers(0, 4, (6, 2))
    wrong = ids.copy()
    wrong[5] = 9  # a sample of rank 1
    y = rng.integers(0, CLASSES, 6)
    nn.manual_seed(0)
    models = [nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, CLASSES)) for _ in range(2)]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)
        step(*part(group, ids, y))
        before = weights(step)
        kind, message = (
            (es.IndexOutOfRange, "9") if group.rank else (es.GroupError, "rank 1 failed in this step.*IndexOut")
        )
        with pytest.raises(kind, match=message):
            step(*part(group, wrong, y))
        for name, value in weights(step).items():
            np.testing.assert_array_equal(value, before[name])
        return step(*part(group, ids, y))

    assert len(set(run(2, work))) == 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"seed": 1}, "seed"),
        ({"optimizer": es.optim.SGD(lr=0.2)}, "optimizer"),
        ({"accumulate": 2}, r"settings\.accumulate"),
        ({"loss": es.functional.mse_loss}, "loss"),
        ({"model": nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, CLASSES))}, r"parameters\.0\.weight"),
        ({"model": nn.Sequential(nn.Linear(WIDTH, 11), nn.Tanh(), nn.Linear(11, CLASSES))}, r"code\."),
    ],
)
def test_ranks_that_differ_are_refused_at_the_start(change, what):
    models = [network(), network()]

    def work(group):
        given = {"model": models[group.rank], "loss": LOSS, "optimizer": es.optim.SGD(lr=0.1)}
        given |= change if group.rank else {}
        with pytest.raises(es.GroupError, match=f"the training step differs between the ranks: rank 0 .*{what}"):
            es.TrainStep(**given, group=group)

    run(2, work)


def test_epochs(rng, tmp_path):
    """`fit` with uneven batches, validation and a callback that stops on one rank only; a save that two ranks make and
    one continues."""
    x, y = data(rng, 26)
    reference = es.TrainStep(network(), LOSS, es.optim.Adam(lr=0.01))
    expected = reference.fit(es.data.batches(x, y, 4, seed=3), 2, validation=es.data.batches(x, y, 5), progress=False)
    models = [network(rank) for rank in range(2)]

    class Stop(es.callbacks.Callback):
        def on_epoch(self, step, row):
            return step.group.rank == 1 and step.epoch == 2

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.Adam(lr=0.01), group=group)
        batches = es.data.batches(x, y, 4, seed=3, group=group)
        losses = step.fit(
            batches, 9, validation=es.data.batches(x, y, 5, group=group), callbacks=[Stop()], progress=False
        )
        es.save(step, tmp_path / "run")
        step.fit(batches, 3, progress=False)
        return losses, step.history, weights(step)

    results = run(2, work)
    for losses, history, state in results:
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        for row, other, mine in zip(history, results[0][1], reference.history, strict=False):
            assert {k: v for k, v in row.items() if k != "seconds"} == {
                k: v for k, v in other.items() if k != "seconds"
            }
            assert row["val_loss"] == pytest.approx(mine["val_loss"], rel=1e-4)
            assert row["val_accuracy"] == pytest.approx(mine["val_accuracy"])
        for name, value in state.items():
            np.testing.assert_array_equal(value, results[0][2][name])
    resumed = es.load(tmp_path / "run", model=network(5))
    assert not [n for n in resumed.store.state if "#" in n]
    resumed.fit(es.data.batches(x, y, 4, seed=3), 3, progress=False)
    for name, value in weights(resumed).items():
        np.testing.assert_allclose(value, results[0][2][name], atol=1e-5)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_save_with_accumulated_gradients_continues_in_a_group_of_another_size(after, rng, tmp_path):
    batches = [data(rng, 6) for _ in range(6)]
    reference = es.TrainStep(network(), LOSS, es.optim.SGD(lr=0.1, momentum=0.9), accumulate=3)
    train(reference, batches)
    models = [network(), network()]

    def begin(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1, momentum=0.9), accumulate=3, group=group)
        train(step, batches[:after], lambda *arrays: part(group, *arrays))
        es.save(step, tmp_path / "run")

    def go_on(group):
        step = es.load(tmp_path / "run", model=network(), group=group)
        return train(step, batches[after:], lambda *arrays: part(group, *arrays))[1]

    run(2, begin)
    for state in (*run(1, go_on), *run(3, go_on)):
        for name, value in weights(reference).items():
            np.testing.assert_allclose(state[name], value, atol=2e-6, err_msg=name)


def test_a_save_that_fails_on_rank_0_fails_on_all(rng, tmp_path):
    (tmp_path / "file").write_text("")
    models = [network(), network()]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)
        with pytest.raises(es.SaveError, match="cannot save"):
            es.save(step, tmp_path / "file" / "run")
        es.save(step, tmp_path / "run")

    run(2, work)
    assert (tmp_path / "run").is_dir()


def test_a_full_disk_of_rank_0_is_said_by_all_and_the_old_save_stays(rng, tmp_path, monkeypatch):
    x, y = data(rng, 6)
    models = [network(), network()]

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)
        step(*part(group, x, y))
        es.save(step, tmp_path / "run")
        before = weights(step)
        group.barrier()
        monkeypatch.setattr(checkpoint, "save_file", full)
        step(*part(group, x, y))
        with pytest.raises(es.SaveError, match="No space left"):
            es.save(step, tmp_path / "run")
        return before

    expected, _ = run(2, work)
    for name, value in weights(es.load(tmp_path / "run", model=network(1))).items():
        np.testing.assert_array_equal(value, expected[name])
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_loader_with_a_distributed_sampler(rng, torch):
    """Each rank reads its part of the same order, another one in each epoch; sizes of parts may differ in the last."""
    x, y = data(rng, 24)
    models = [network(rank) for rank in range(2)]
    seen = [[], []]

    def loader(rank):
        samples = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y), torch.arange(len(x)))
        sampler = torch.utils.data.distributed.DistributedSampler(samples, 2, rank, seed=5)

        def collate(rows):
            seen[rank].append([int(row[2]) for row in rows])
            return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])

        return torch.utils.data.DataLoader(samples, 5, sampler=sampler, collate_fn=collate)

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)
        return step.fit(loader(group.rank), 2, progress=False), weights(step)

    (losses, state), (other, _) = run(2, work)
    assert losses == other
    whole = [one + two for one, two in zip(*seen, strict=True)]
    first, second = whole[:3], whole[3:]
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(24)) and first != second
    alone = es.TrainStep(network(), LOSS, es.optim.SGD(lr=0.1))
    for rows in whole:
        alone(x[rows], y[rows])
    for name, value in weights(alone).items():
        np.testing.assert_allclose(state[name], value, atol=2e-6, err_msg=name)


def test_different_numbers_of_batches_are_refused(rng):
    x, y = data(rng, 9)
    models = [network(), network()]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)
        with pytest.raises(es.GroupError, match="the number of batches differs"):
            step.fit([(x, y)] * (1 + group.rank), 1, progress=False)

    run(2, work)


def test_a_metric_that_cannot_be_combined_is_refused(rng):
    batch = data(rng, 4)
    models = [network(), network()]

    class Last:
        def reset(self):
            pass

        def update(self, output, target):
            pass

        def compute(self):
            return 0.0

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)
        with pytest.raises(es.ArgumentError, match="has no `states`"):
            step.evaluate([part(group, *batch)], metrics={"last": Last()})
        return step.evaluate([part(group, *batch)], metrics={"zero": lambda output, target: float(len(target))})

    one, other = run(2, work)
    assert one == other and one["zero"] == 2.0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_metrics_are_those_of_all_ranks_together(size, rng):
    """Also where a rank has no batch at all."""
    x, y = data(rng, 11)
    models = [network() for _ in range(size + 1)]
    metrics = {
        "top2": es.metrics.top_k(2), "f1": es.metrics.f1(), "micro": es.metrics.precision("micro"),
        "size": lambda output, target: float(abs(output).mean()),
    }  # fmt: skip
    batches = [(x[k : k + 2], y[k : k + 2]) for k in range(0, 11, 2)]

    def evaluate(model, group, chosen):
        step = es.TrainStep(model, LOSS, es.optim.SGD(lr=0.1), group=group)
        return step.evaluate(chosen, metrics={n: copy.copy(m) for n, m in metrics.items()})

    expected = evaluate(models[-1], None, batches)
    for found in run(size, lambda group: evaluate(models[group.rank], group, batches[group.rank :: size])):
        assert found == pytest.approx(expected, rel=1e-5)
    if size == 2:
        for found in run(2, lambda group: evaluate(models[group.rank], group, batches if group.rank else [])):
            assert found == pytest.approx(expected, rel=1e-5)


def test_the_explained_variance_of_all_ranks(rng):
    x, y = rng.standard_normal((12, WIDTH)).astype(np.float32), 1e4 + rng.standard_normal((12, CLASSES))
    y = y.astype(np.float32)
    models = [network() for _ in range(3)]

    def evaluate(model, group):
        step = es.TrainStep(model, es.functional.mse_loss, es.optim.SGD(lr=0.1), group=group)
        chosen = (x, y) if group is None else part(group, x, y)
        return step.evaluate([chosen], metrics={"r2": es.metrics.r2()})["r2"]

    expected = evaluate(models[2], None)
    for found in run(2, lambda group: evaluate(models[group.rank], group)):
        assert found == pytest.approx(expected, rel=1e-6)


# ------------------------------------------------------------------------------------------- divided state


@pytest.mark.thinned(5)
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize(
    "optimizer", [es.optim.SGD(lr=0.1, momentum=0.9), es.optim.AdamW(lr=0.01), es.optim.NAdam(lr=0.01)]
)
def test_a_divided_optimizer_gives_the_same_bits(size, optimizer, rng):
    batches = [data(rng, n) for n in (12, 7, 12)]

    def run_with(shard_optimizer):
        models = [network(rank) for rank in range(size)]

        def work(group):
            step = es.TrainStep(
                models[group.rank], LOSS, optimizer, clip_grad_norm=0.3, ema=0.9, group=group,
                shard_optimizer=shard_optimizer,
            )  # fmt: skip
            losses, state = train(step, batches, lambda *arrays: part(group, *arrays))
            shards = sum(s.memory.physical.nbytes for s in step.store.shards.values())
            wholes = sum(s.memory.physical.nbytes for n, s in step.store.state.items() if "#gradient" not in n)
            saved = {n: a for n, a in step.whole_state().items() if "#gradient" not in n}
            return losses, step.grad_norm, {"weights": state, "state": saved, "mean": step.averages()}, shards, wholes

        return run(size, work)

    (losses, norm, arrays, _, total), *_ = run_with(False)
    divided = run_with(True)
    for mine, my_norm, found, _, wholes in divided:
        assert mine == losses and my_norm == norm and wholes == 0
        for kind, expected in arrays.items():
            assert found[kind].keys() == expected.keys()
            for name, value in expected.items():
                np.testing.assert_array_equal(found[kind][name], value, err_msg=f"{kind} {name}")
    line = 64  # bytes, by which parameters are padded in buckets
    parameters = len(arrays["weights"])
    assert max(shards for *_, shards, _ in divided) <= total / size + 3 * parameters * line


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda: es.optim.Muon(), "Muon updates .* as a whole only"),
        (lambda: es.optim.LAMB(), "computes one element from others by a sum"),
        (lambda: es.optim.Adafactor(), "cannot be divided among processes"),
    ],
)
def test_rules_that_couple_elements_are_not_divided(rule, message):
    optimizer = es.optim.Groups(es.optim.AdamW(), matrix=es.optim.Group(ndim=2, rule=rule()))
    models = [network(), network()]

    def work(group):
        with pytest.raises(es.ArgumentError, match=message):
            es.TrainStep(models[group.rank], LOSS, optimizer, group=group, shard_optimizer=True)

    run(2, work)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("divided", [False, True])
def test_a_divided_state_is_saved_as_a_whole(divided, rng, tmp_path):
    batches = [data(rng, 6) for _ in range(4)]
    reference = es.TrainStep(network(), LOSS, es.optim.Adam(lr=0.01))
    train(reference, batches)
    models = [network(), network()]

    def begin(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.Adam(lr=0.01), group=group, shard_optimizer=not divided)
        train(step, batches[:2], lambda *arrays: part(group, *arrays))
        es.save(step, tmp_path / "run")

    def go_on(group):
        step = es.load(tmp_path / "run", model=network(), group=group, shard_optimizer=divided and group.size > 1)
        return train(step, batches[2:], lambda *arrays: part(group, *arrays))[1]

    run(2, begin)
    for state in (*run(1, go_on), *run(3, go_on)):
        for name, value in weights(reference).items():
            np.testing.assert_allclose(state[name], value, atol=1e-5, err_msg=name)


# ------------------------------------------------------------------------------------------- equal numbers


def normalised(seed):
    return network(seed, nn.BatchNorm1d(11), nn.Dropout(0.2))


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (normalised, {"optimizer": es.optim.AdamW(lr=0.01)}),
        (normalised, {"clip_grad_norm": 0.2, "ema": 0.9}),
        (normalised, {"shard_optimizer": True}),
        (network, {"clip_grad_norm": 0.2}),
    ],
)
def test_deterministic_training_is_equal_for_any_number_of_processes_and_threads(make, options, rng):
    # Parts of one sample, and empty ones, are nothing for batch norm.
    batches = [data(rng, n) for n in ((16, 21, 33, 16) if make is normalised else (16, 21, 9, 3, 16))]
    given = {"optimizer": es.optim.SGD(lr=0.1, momentum=0.9)} | options
    outcomes = []
    for size, threads in ((1, 1), (1, 2), (2, 1), (4, 3)):
        models = [make(rank) for rank in range(size)]

        def work(group, models=models, threads=threads):
            step = es.TrainStep(
                models[group.rank], LOSS, **given, deterministic=True, group=group, threads=threads, seed=5
            )
            losses, state = train(step, batches, lambda *arrays: part(group, *arrays))
            return losses, step.grad_norm, state

        outcomes += run(size, work)
    losses, norm, state = outcomes[0]
    assert len(set(losses)) == len(losses)
    for other_losses, other_norm, other_state in outcomes[1:]:
        assert other_losses == losses and other_norm == norm
        for name, value in state.items():
            np.testing.assert_array_equal(other_state[name], value, err_msg=name)


def test_deterministic_training_is_that_of_the_whole_batch(rng):
    batches = [data(rng, n) for n in (16, 21, 9)]
    losses, expected = train(es.TrainStep(network(), LOSS, es.optim.Adam(lr=0.01)), batches)
    found, state = train(es.TrainStep(network(), LOSS, es.optim.Adam(lr=0.01), deterministic=True), batches)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    for name, value in state.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5, err_msg=name)


def test_statistics_of_a_deterministic_step_are_the_mean_over_the_parts(rng):
    x, y = data(rng, 16)
    step = es.TrainStep(network(0, nn.BatchNorm1d(11)), LOSS, es.optim.SGD(lr=0.1), deterministic=True)
    first = step.model[0]
    hidden = x @ first.weight.data.T + first.bias.data
    step(x, y)
    means = hidden.reshape(8, 2, 11).mean(1)
    np.testing.assert_allclose(step.model[1].running_mean.data, 0.1 * means.mean(0), atol=1e-6)


def test_what_deterministic_training_cannot_do_is_refused(rng):
    x, y = data(rng, 9)
    models = [network() for _ in range(3)]

    def three(group):
        with pytest.raises(es.ArgumentError, match="use 1, 2, 4 or 8 processes"):
            es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), deterministic=True, group=group)

    run(3, three)

    def uneven(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), deterministic=True, group=group)
        with pytest.raises(es.ShapeError, match=r"\[6, 3\] samples of a batch of 9; deterministic=True needs \[4, 5\]"):
            step(*((x[:6], y[:6]) if group.rank == 0 else (x[6:], y[6:])))

    run(2, uneven)
    step = es.TrainStep(network(), LOSS, es.optim.SGD(lr=0.1), deterministic=True, accumulate=2)
    with pytest.raises(es.ArgumentError, match="without accumulate"):
        step(x, y)


@pytest.mark.parametrize("bad", [False, True])
def test_a_deterministic_step_that_fails_changes_nothing(bad, rng):
    x, y = data(rng, 16)
    step = es.TrainStep(network(0, nn.BatchNorm1d(11)), LOSS, es.optim.Adam(lr=0.1), deterministic=True)
    step(x, y)
    before = weights(step)
    if bad:
        y[9] = CLASSES + 3
    else:
        x[9] = np.nan
    with pytest.raises(es.IndexOutOfRange if bad else es.NonFiniteError):
        step(x, y)
    for name, value in weights(step).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_pairwise_sums_do_not_depend_on_who_adds_which(count, rng):
    rows = (rng.standard_normal((count, 9)) * 10.0 ** rng.integers(-8, 8, (count, 9))).astype(np.float32)
    whole = np.empty(9, np.float32)
    add_in_pairs(rows, whole)
    for parts in (1, 2, 4, 8, 16)[: count.bit_length()]:
        totals = []
        for own in rows.reshape(parts, -1, 9):
            tree = PairwiseSum()
            for row in own:
                tree.add([row])
            totals += tree.result()
        found = np.empty(9, np.float32)
        add_in_pairs(np.stack(totals), found)
        np.testing.assert_array_equal(found, whole)


# ---------------------------------------------------------------------------------------------------- buckets


class _Parameter:
    def __init__(self, nbytes, dtype=np.float32):
        array = np.zeros(nbytes // np.dtype(dtype).itemsize, dtype)
        self.memory = type("M", (), {"host": array, "dtype": array.dtype})()


def test_buckets_are_limited_and_of_one_type():
    sizes = {"a": FIRST_BYTES // 2, "b": FIRST_BYTES // 2, "c": 4, "d": 5 * FIRST_BYTES, "e": 8 * FIRST_BYTES, "f": 8}
    parameters = {name: _Parameter(n, np.float64 if name == "f" else np.float32) for name, n in sizes.items()}
    assert [list(p) for p in divide(parameters, 6 * FIRST_BYTES)] == [["a", "b"], ["c", "d"], ["e"], ["f"]]


@pytest.mark.parametrize(
    ("total", "ranks", "expected"),
    [(3, 2, 1), (16, 2, 2), (45, 2, 4), (45, 64, 4), (45, 128, 8), (3, 128, 8), (45, 400, 25), (45, 4096, 25)],
)
def test_buckets_are_parts_of_all_gradients_and_grow_with_the_group(total, ranks, expected):
    assert bucket_bytes(total << 20, ranks) == expected << 20


def test_buckets_are_announced_while_the_program_runs(rng, many_buckets):
    """With a bucket for each parameter, the program tells of every bucket by itself, the last layer's first."""
    x, y = data(rng, 8)
    models = [network(), network()]

    def work(group):
        step = es.TrainStep(models[group.rank], LOSS, es.optim.SGD(lr=0.1), group=group)
        step(*part(group, x, y))
        buckets = step.runner._buckets
        ((_, run),) = step.compiler.programs.items()
        steps = run.program.steps
        first = buckets.completed.message(0)
        told = {buckets.buckets[s.message - first].names: n for n, s in enumerate(steps) if isinstance(s, Notify)}
        launches = [n for n, s in enumerate(steps) if isinstance(s, RunLaunch)]
        return {names[0]: sum(n > at for n in launches) for names, at in told.items()}

    for left in run(2, work):  # launches that come after each notice
        assert left.keys() == {"0.bias", "0.weight", "2.bias", "2.weight"}
        assert min(left["2.bias"], left["2.weight"]) > 0 and min(left.values()) == 0
