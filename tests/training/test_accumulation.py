"""Gradients of several batches in one update, averages of weights, losses under names; and resuming in their midst."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from tests.training.small import arrays, batches, data, equal, net, same, twin

F = es.functional.cross_entropy
SCHEDULE = es.optim.lr_scheduler


def pieces(x, y, sizes):
    ends = np.cumsum(sizes)
    return [(x[e - n : e], y[e - n : e]) for n, e in zip(sizes, ends, strict=True)]


def counters(step):
    """The updates made, and the batches and samples whose gradients wait for the next one."""
    accumulation = step.parts.accumulation
    return accumulation.steps, accumulation.batches, accumulation.samples


@pytest.mark.thinned(8)
@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 1), (1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 0.1, "ema": 0.5}], ids=["plain", "clipped"])
def test_parts_equal_the_whole(sizes, options) -> None:
    """Where the loss is a mean, of batches of any sizes."""
    whole = es.TrainStep(net(), F, es.optim.Adam(lr=0.05), **options)
    parts = es.TrainStep(net(), F, es.optim.Adam(lr=0.05), accumulate=len(sizes), **options)
    for k in range(4):
        x, y = data(sum(sizes), seed=k)
        loss = whole(x, y)
        before = {n: a for n, a in parts.model.state_dict().items()}
        values = []
        for n, (a, b) in enumerate(pieces(x, y, sizes)):
            assert counters(parts)[:2] == (k, n)
            assert all(np.array_equal(before[m], v) for m, v in parts.model.state_dict().items())
            values.append(parts(a, b) * len(b))
        assert sum(values) / sum(sizes) == pytest.approx(loss, rel=1e-12)
        assert counters(parts) == (k + 1, 0, 0)
        if options:
            assert parts.grad_norm == pytest.approx(whole.grad_norm, rel=1e-10)
            assert parts.averages()["0.weight"] == pytest.approx(whole.averages()["0.weight"], rel=1e-10)
        for n, v in parts.model.state_dict().items():
            np.testing.assert_allclose(v, whole.model.state_dict()[n], rtol=1e-9, atol=1e-12)


def test_accumulation_equals_torch(torch) -> None:
    model = net()
    other = twin(torch, model)
    step = es.TrainStep(model, F, es.optim.SGD(lr=0.5, momentum=0.9), accumulate=3)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.5, momentum=0.9)
    for n, (x, y) in enumerate(batches(12)):
        step(x, y)
        (torch.nn.functional.cross_entropy(other(torch.tensor(x)), torch.tensor(y)) / 3).backward()
        if n % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    equal(model, other)


def test_two_programs_whatever_is_accumulated() -> None:
    step = es.TrainStep(net(), F, es.optim.SGD(lr=0.5), accumulate=5).compile(*data(6))
    assert len(step.compiler.programs) == 2 and not step.steps
    for x, y in batches(10):
        step(x, y)
    assert len(step.compiler.programs) == 2 and "gradients for" in step.plan
    step.accumulate = 2  # a number: the same programs
    for x, y in batches(4):
        step(x, y)
    assert len(step.compiler.programs) == 2 and step.steps == 4
    step(*data(6))
    step.accumulate = 1  # what waits is let go
    step(*data(6))
    assert step.steps == 5 and not step.parts.accumulation.batches and not [n for n in step.store.state if "#" in n]


def test_a_bad_part_is_left_out() -> None:
    step = es.TrainStep(net(), F, es.optim.SGD(lr=0.5), accumulate=2)
    x, y = data(6)
    step(x, y)
    before = arrays(step)
    with pytest.raises(es.NonFiniteError):
        step(x * np.nan, y)
    same(before, arrays(step))
    assert step.parts.accumulation.batches == 1
    step(x, y)
    one = es.TrainStep(net(), F, es.optim.SGD(lr=0.5))
    one(x, y)
    np.testing.assert_allclose(step.model[0].weight.data, one.model[0].weight.data, rtol=1e-12)


def test_the_last_batch_of_an_epoch_makes_an_update() -> None:
    x, y = data(20)
    step = es.TrainStep(net(), F, es.optim.SGD(lr=0.5), accumulate=2)
    seen = []
    step.fit(es.data.batches(x, y, 4), epochs=2, progress=False, on_step=lambda s, _: seen.append(s.steps))
    assert seen == [0, 1, 1, 2, 3, 3, 4, 4, 5, 6]
    other = es.TrainStep(net(), F, es.optim.SGD(lr=0.5))
    for _ in range(2):
        for a, b in pieces(x, y, (8, 8, 4)):
            other(a, b)
    for n, v in step.model.state_dict().items():
        np.testing.assert_allclose(v, other.model.state_dict()[n], rtol=1e-10)


class Noisy(es.nn.Module):
    """Random numbers and a running statistic: what differs between batches beside their data."""

    def __init__(self):
        super().__init__()
        self.a, self.b = es.nn.Linear(7, 13), es.nn.Linear(13, 5)
        self.drop = es.nn.Dropout(0.3)
        self.register_buffer("seen", np.zeros(13, np.float32))

    def forward(self, x):
        h = es.functional.relu(self.a(x))
        if self.training:
            self.seen = self.seen * 0.9 + h.mean(axis=0)
        return self.b(self.drop(h))


def test_parts_draw_random_numbers_of_their_own() -> None:
    step = es.TrainStep(Noisy(), F, es.optim.SGD(lr=0.0), accumulate=3)
    x, y = data(30, dtype="float32")
    assert len({step(x, y) for _ in range(7)}) == 7


# -------------------------------------------------------------------------------------------------------- averages


def test_the_average_equals_torch(torch) -> None:
    model = net()
    other = twin(torch, model)
    step = es.TrainStep(model, F, es.optim.SGD(lr=0.5, momentum=0.9), ema=0.8)
    average = torch.optim.swa_utils.AveragedModel(other, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.5, momentum=0.9)
    for n, (x, y) in enumerate(batches(12)):
        if n == 8:  # a number, settable
            step.ema = 0.3
            average.multi_avg_fn = torch.optim.swa_utils.get_ema_multi_avg_fn(0.3)
        step(x, y)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(other(torch.tensor(x)), torch.tensor(y)).backward()
        optimizer.step()
        average.update_parameters(other)
    equal(model, other)
    for n, a in step.averages().items():
        np.testing.assert_allclose(a, average.module.state_dict()[n].numpy(), rtol=1e-10)
    x, y = data(40)
    found = step.evaluate([(x, y)], averaged=True)
    average.eval()
    loss = torch.nn.functional.cross_entropy(average(torch.tensor(x)), torch.tensor(y)).item()
    assert found["loss"] == pytest.approx(loss, rel=1e-10)
    equal(model, other)  # the weights themselves are back
    with step.averaged() as averaged:
        np.testing.assert_allclose(averaged.predict(x), average(torch.tensor(x)).detach().numpy(), rtol=1e-9)
        with pytest.raises(es.ArgumentError, match="average of its weights"):
            step(x, y)
    step(x, y)


class Tied(es.nn.Module):
    """One weight under two names, used twice, and one layer that nothing uses."""

    def __init__(self):
        self.into, self.out = es.nn.Linear(7, 5, bias=False), es.nn.Linear(7, 5, bias=False)
        self.out.weight = self.into.weight
        self.idle = es.nn.Linear(2, 2)

    def forward(self, x):
        return self.out(es.functional.tanh(es.functional.matmul(self.into(x), self.into.weight)))


def test_a_weight_of_two_names_is_one_weight(torch, tmp_path) -> None:
    """In gradients, accumulation, the optimizer, the average of the weights, states and saves."""
    model = Tied().to("float64")
    w = torch.tensor(model.into.weight.numpy(), requires_grad=True)
    optimizer = torch.optim.AdamW([w], lr=0.01, weight_decay=0.1)
    step = es.TrainStep(model, F, es.optim.AdamW(lr=0.01, weight_decay=0.1), ema=0.8, accumulate=2, clip_grad_norm=0.5)
    average = None
    given = batches(8)
    for n, (x, y) in enumerate(given):
        step(x, y)
        out = torch.tanh(torch.tensor(x) @ w.T @ w) @ w.T
        (torch.nn.functional.cross_entropy(out, torch.tensor(y)) / 2).backward()
        if n % 2:
            torch.nn.utils.clip_grad_norm_([w], 0.5)
            optimizer.step()
            optimizer.zero_grad()
            now = w.detach().clone()
            average = now if average is None else average + 0.2 * (now - average)
        if n == 4:
            es.save(step, tmp_path / "run")
    again = es.load(tmp_path / "run", model=Tied().to("float64"))
    assert again.model.out.weight is again.model.into.weight
    for x, y in given[5:]:
        again(x, y)
    same(arrays(step), arrays(again))
    averages, state = step.averages(), model.state_dict()
    for name in ("into.weight", "out.weight"):
        np.testing.assert_allclose(state[name], w.detach().numpy(), rtol=1e-9)
        np.testing.assert_allclose(averages[name], average.numpy(), rtol=1e-9)
    with step.averaged():
        np.testing.assert_allclose(model.into.weight.data, average.numpy(), rtol=1e-9)
    np.testing.assert_array_equal(model.into.weight.data, state["into.weight"])
    assert not [n for n in step.store.state if n.startswith(("idle", "out"))]


def test_steps_without_averages_say_so() -> None:
    step = es.TrainStep(net(), F, es.optim.SGD(lr=0.5))
    with pytest.raises(es.ArgumentError, match="ema="):
        step.evaluate([data(5)], averaged=True)
    step.ema = 0.5
    start = step.model.state_dict()
    assert all(np.array_equal(v, start[n]) for n, v in step.averages().items())
    step(*data(5))
    step.ema = None
    step(*data(5))
    assert not [n for n in step.store.state if "#" in n]


# ---------------------------------------------------------------------------------------------------------- losses


def test_several_losses(torch) -> None:
    def both(out, y):
        return {"ce": F(out, y), "size": (out * out).mean()}

    x, y = data(9)
    for trained in ("first", "sum"):
        model = net()
        other = twin(torch, model)
        step = es.TrainStep(model, both, es.optim.SGD(lr=0.5), trained=trained)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
        for _ in range(3):
            out = other(torch.tensor(x))
            parts = torch.nn.functional.cross_entropy(out, torch.tensor(y)), (out * out).mean()
            loss = sum(parts) if trained == "sum" else parts[0]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert step(x, y) == pytest.approx(loss.item(), rel=1e-10)
            assert step.losses == pytest.approx({"ce": parts[0].item(), "size": parts[1].item()}, rel=1e-10)
        equal(model, other)
        found = step.evaluate([(x, y)])
        assert found["loss"] == pytest.approx(found["ce"] + (found["size"] if trained == "sum" else 0.0))
        step.fit([(x, y), (x[:4], y[:4])], progress=False)
        assert {"loss", "ce", "size"} <= set(step.history[-1])
    pair = es.TrainStep(net(), lambda out, y: (F(out, y), (out * out).mean()), es.optim.SGD(lr=0.5), clip_grad_norm=1.0)
    pair(x, y)
    assert set(pair.losses) == {"loss_0", "loss_1"} and pair.grad_norm > 0
    with pytest.raises(es.GradientError, match="'size'"):
        es.TrainStep(net(), lambda out, y: {"ce": F(out, y), "size": out}, es.optim.SGD(lr=0.5))(x, y)
    with pytest.raises(es.GradientError, match="at least one loss"):
        es.TrainStep(net(), lambda out, y: {}, es.optim.SGD(lr=0.5))(x, y)


# -------------------------------------------------------------------------------------------------------- resuming


def everything() -> es.TrainStep:
    es.manual_seed(3)
    rate = SCHEDULE.SequentialLR(
        [SCHEDULE.LinearLR(0.1, total_iters=2), SCHEDULE.CosineAnnealingLR(0.1, T_max=20)], milestones=[2]
    )
    rules = es.optim.Groups(
        es.optim.NAdam(lr=rate),
        plain=es.optim.Group("*.bias", lr=SCHEDULE.ReduceLROnPlateau(0.05, mode="max", patience=0)),
        matrix=es.optim.Group("b.weight", rule=es.optim.Muon(lr=0.01)),
    )  # fmt: skip
    return es.TrainStep(
        Noisy(), F, rules, seed=7, accumulate=2, ema=0.9, clip_grad_norm=0.5, clip_grad_value=0.2, norm_type=1.0
    )


class Stop(Exception):
    pass


@pytest.mark.thinned(4)
@pytest.mark.parametrize("when", [2, 3, 5, 9])
def test_a_run_of_everything_resumes_bitwise(tmp_path, when) -> None:
    """Stopped between the parts of an update, in the middle of an epoch and at its end."""
    x, y = data(26, dtype="float32")
    validation = [data(9, seed=5, dtype="float32")]
    train = es.data.batches(x, y, 6, seed=2)  # five batches an epoch, the last of two
    whole = everything()
    whole.fit(train, 4, progress=False, validation=validation)

    part, count = everything(), 0

    def stop(step, loss):
        nonlocal count
        count += 1
        if count == when:
            raise Stop

    with pytest.raises(Stop):
        part.fit(train, 4, progress=False, validation=validation, on_step=stop)
    es.save(part, tmp_path / "run")
    again = es.load(tmp_path / "run", model=Noisy())
    assert (counters(again), again.position) == (counters(part), part.position)
    assert again.updates == part.updates
    again.fit(train, 4, progress=False, validation=validation)
    same(arrays(whole), arrays(again))
    rows = [[{n: v for n, v in row.items() if n != "seconds"} for row in s.history] for s in (whole, again)]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    assert whole.optimizer.values(30) == again.optimizer.values(30)
    assert again.optimizer["plain"].lr.lr < 0.05, "the plateau has never been reached: nothing is tested"
