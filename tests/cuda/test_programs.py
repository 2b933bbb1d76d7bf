"""Whole programs on a card: graphs that run in any order that their edges allow give what the CPU gives."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
import einsmith.functional as F
from einsmith.base.environment import DEVICE
from einsmith.base.errors import ArgumentError, IndexOutOfRange, NonFiniteError
from einsmith.cli.train import train
from einsmith.driver.cuda import Cuda
from tests.data.test_mnist import idx_bytes
from tests.driver.test_second_backend import NETWORKS
from tests.passes import ragged
from tests.programs import program_of

Insert = Callable[..., Cuda]


def trained(name: str, device: str, **options) -> tuple[es.TrainStep, list[float]]:
    make, x = NETWORKS[name]
    es.manual_seed(3)
    step = es.TrainStep(make(), F.cross_entropy, es.optim.Adam(lr=0.01), device=device, **options)
    return step, [step(x, np.arange(len(x)) % 4) for _ in range(3)]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train_as_on_the_cpu(name: str, card: Insert) -> None:
    plain, wanted = trained(name, "cpu")
    device = card(seed=len(name)).card.device
    step, losses = trained(name, "cuda")
    np.testing.assert_allclose(losses, wanted, rtol=2e-5)
    assert device.launches == 3
    downloaded = device.downloaded
    state = step.model.state_dict()
    assert device.downloaded > downloaded
    for key, value in plain.model.state_dict().items():
        np.testing.assert_allclose(state[key], value, rtol=1e-3, atol=2e-5, err_msg=key)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_precisions(precision: str, card: Insert) -> None:
    """Products of rounded operands, activations of 16 bits, and the scale of the loss that float16 needs."""
    plain, exact = trained("images", "cpu")
    _, wanted = (plain, exact) if precision == "tf32" else trained("images", "cpu", precision=precision)
    device = card().card.device
    step, losses = trained("images", "cuda", precision=precision)
    np.testing.assert_allclose(losses, wanted, rtol=3e-3 if precision == "tf32" else 2e-2)
    assert losses != exact and device.launches >= 3
    for key, value in plain.model.state_dict().items():
        np.testing.assert_allclose(step.model.state_dict()[key], value, rtol=0.1, atol=2e-2, err_msg=key)
    with pytest.raises(ArgumentError, match="tf32"):
        es.jit(lambda x: x @ x, precision="tf32")(np.eye(3, dtype=np.float32))


def test_parameters_stay_on_the_card_until_somebody_asks(card: Insert) -> None:
    device = card().card.device
    step, _ = trained("mlp", "cuda")
    x = NETWORKS["mlp"][1]
    target = np.arange(len(x)) % 4
    step(x, target)
    before = device.uploaded, device.downloaded
    step(x, target)
    passed = x.nbytes + target.nbytes
    assert device.uploaded - before[0] < passed + 700  # besides the batch, the step's numbers
    assert device.downloaded - before[1] < 200


def test_an_array_of_a_parameter_is_live(card: Insert) -> None:
    """Whoever has the array sees each step's result in it, and may change it."""
    card()
    step, _ = trained("mlp", "cuda")
    x = NETWORKS["mlp"][1]
    target = np.arange(len(x)) % 4
    parameter = dict(step.model.named_parameters())["3.bias"]
    held = parameter.data
    before = held.copy()
    step(x, target)
    assert (held != before).any()
    held[:] = 100.0
    step(x, target)
    np.testing.assert_allclose(held, 100.0, atol=0.2)
    del held
    step(x, target)
    parameter.data = np.zeros_like(before)
    step(x, target)
    np.testing.assert_allclose(parameter.data, 0.0, atol=0.2)


def test_programs_of_both_devices_share_parameters(card: Insert) -> None:
    card()
    step, _ = trained("images", "cuda")
    x = NETWORKS["images"][1]
    step.model.eval()
    here, there = es.jit(step.model, device="cpu"), es.jit(step.model, device="cuda:0")
    first = here(x)
    np.testing.assert_allclose(there(x), first, rtol=1e-4, atol=1e-5)
    step(x, np.arange(len(x)) % 4)
    second = here(x)
    assert (first != second).any()
    np.testing.assert_allclose(there(x), second, rtol=1e-4, atol=1e-5)


def test_a_step_moves_to_another_device(card: Insert) -> None:
    plain, wanted = trained("mlp", "cpu")
    card()
    step, losses = trained("mlp", "cuda")
    x = NETWORKS["mlp"][1]
    target = np.arange(len(x)) % 4
    step.device = "cpu"
    np.testing.assert_allclose(step(x, target), plain(x, target), rtol=2e-5)
    step.device = "cuda"
    np.testing.assert_allclose(step(x, target), plain(x, target), rtol=2e-5)


def test_failed_checks_leave_everything_as_it_was(card: Insert) -> None:
    card()
    step, _ = trained("texts", "cuda")
    before = {k: v.copy() for k, v in step.store.arrays()}
    x = NETWORKS["texts"][1].copy()
    target = np.arange(len(x)) % 4
    x[1, 2] = 11
    with pytest.raises(IndexOutOfRange):
        step(x, target)
    step.model.out.bias.data[1] = np.inf
    before["out.bias"][1] = np.inf
    with pytest.raises(NonFiniteError):
        step(NETWORKS["texts"][1], target)
    assert all((v == before[k]).all() for k, v in step.store.arrays())
    step.model.out.bias.data[1] = 0
    assert np.isfinite(step(NETWORKS["texts"][1], target))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("reverse", [False, True])
def test_loops_whose_bounds_come_with_the_batch(reverse: bool, card: Insert) -> None:
    """Turns beyond all lengths change nothing and read nothing, whose values may be anything."""
    steps, batch, width = 7, 3, 5
    formula, rng = ragged.gru(width, reverse), default_rng()
    shapes = {"x": (steps, batch, 4), "W": (4, 2 * width), "U": (width, 2 * width), "h0": (batch, width)}
    w, x, u, h0 = (rng.standard_normal(shapes[n]) for n in ("W", "x", "U", "h0"))

    def loss(w, x, u, h0, lengths):
        h = formula(x=x, W=w, U=u, h0=h0, lengths=lengths)
        return (h * h).sum()

    made = card()
    compiled = es.jit(es.grad(loss, (0, 1, 2, 3)), device="cuda")
    for longest in (steps, 1, 0, 4):
        lengths = np.minimum(longest, [2, 7, 4])
        want = es.interpret(es.grad(loss, (0, 1, 2, 3)))(w, x, u, h0, lengths)
        for a, b in zip(compiled(w, x, u, h0, lengths), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)
    run = program_of(compiled)
    bounded = [x for x in run.program.launches if "i64" in [p.elem for p in x.code.function.parameters[-2:]]]
    assert len(bounded) > steps and made.card.device.launches == 4


def test_unknown_devices() -> None:
    with pytest.raises(ArgumentError, match='"cpu", "cuda"'):
        es.jit(lambda x: x, device="tpu")
    with pytest.raises(ArgumentError, match='"cpu", "cuda"'):
        es.TrainStep(es.nn.Linear(2, 2), F.mse_loss, es.optim.SGD(lr=0.1), device="cuda:x")


def fitted(device: str, batches: list, **options) -> es.TrainStep:
    es.manual_seed(3)
    step = es.TrainStep(NETWORKS["mlp"][0](), F.cross_entropy, es.optim.Adam(lr=0.01), device=device)
    step.fit(batches, epochs=2, progress=False, **options)
    return step


def batches_of(count: int) -> list:
    rng = default_rng(8)
    return [(rng.standard_normal((5, 7)).astype(np.float32), rng.integers(0, 4, 5)) for _ in range(count)]


def test_fit_begins_a_step_before_the_last_one_ends(card: Insert, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = batches_of(6)
    wanted = fitted("cpu", batches)
    made = card()
    open_runs: list[int] = []
    launch = type(made.card.device).launch

    def counted(device, graph, stream):
        (program,) = {id(run.program): run.program for _, run in seen[0].compiler.programs.items()}.values()
        open_runs.append(sum(f.is_open for f in program.flights))
        launch(device, graph, stream)

    seen: list[es.TrainStep] = []
    read = es.TrainStep.read_batch
    monkeypatch.setattr(es.TrainStep, "read_batch", lambda s, *a: (seen.append(s), read(s, *a))[1])
    monkeypatch.setattr(type(made.card.device), "launch", counted)
    step = fitted("cuda", batches)
    assert max(open_runs) == 1 and open_runs.count(1) > 8
    assert (step.steps, step.epoch, len(step.history)) == (12, 2, 2)
    np.testing.assert_allclose([r["loss"] for r in step.history], [r["loss"] for r in wanted.history], rtol=1e-5)
    for key, value in wanted.model.state_dict().items():
        np.testing.assert_allclose(step.model.state_dict()[key], value, rtol=1e-3, atol=2e-5, err_msg=key)


def test_steps_that_had_begun_after_a_failed_one_count_for_nothing(card: Insert) -> None:
    batches = batches_of(6)
    batches[3] = (np.full_like(batches[3][0], np.inf), batches[3][1])
    card()
    es.manual_seed(3)
    step = es.TrainStep(NETWORKS["mlp"][0](), F.cross_entropy, es.optim.Adam(lr=0.01), device="cuda")
    with pytest.raises(NonFiniteError, match="step 4"):
        step.fit(batches, progress=False)
    es.manual_seed(3)
    other = es.TrainStep(NETWORKS["mlp"][0](), F.cross_entropy, es.optim.Adam(lr=0.01), device="cuda")
    for x, y in batches[:3]:
        other(x, y)
    assert step.steps == 3 and step.position == 3
    for key, value in other.model.state_dict().items():
        np.testing.assert_array_equal(step.model.state_dict()[key], value)
    batches[3] = batches[0]
    step.fit(batches, progress=False)
    assert step.steps == 6


def test_a_save_during_fit_has_whole_steps(card: Insert, tmp_path) -> None:
    card()
    saved = []

    class Batches:
        def __iter__(self):
            for n, batch in enumerate(batches_of(5)):
                if n == 3:
                    es.save(seen[0], tmp_path / "step")
                    saved.append((seen[0].steps, seen[0].position))
                yield batch

    es.manual_seed(3)
    seen = [es.TrainStep(NETWORKS["mlp"][0](), F.cross_entropy, es.optim.Adam(lr=0.01), device="cuda")]
    seen[0].fit(Batches(), progress=False)
    assert saved == [(3, 3)]
    again = es.load(tmp_path / "step", model=NETWORKS["mlp"][0](), device="cuda")
    for batch in batches_of(5)[3:]:
        again(*batch)
    for key, value in seen[0].model.state_dict().items():
        np.testing.assert_array_equal(again.model.state_dict()[key], value)


@pytest.mark.slow
def test_the_command_trains_on_a_card(card: Insert, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    made, rng = card(), default_rng(1)
    for part, n in (("train", 16), ("t10k", 8)):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(rng.integers(0, 256, (n, 28, 28), np.uint8)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(rng.integers(0, 10, n, np.uint8)))
    monkeypatch.delenv(DEVICE.name, raising=False)
    train("mlp3", data=str(tmp_path), epochs=1, batch=8, device="cuda", as_json=True)
    assert made.card.device.launches >= 3 and DEVICE.name not in os.environ
    assert "accuracy" in capsys.readouterr().out
    with pytest.raises(ArgumentError, match="device='tpu'"):
        train("mlp3", data=str(tmp_path), device="tpu")


def test_two_cards_share_parameters(card: Insert) -> None:
    plain, _ = trained("mlp", "cpu")
    card(), card(ordinal=1)
    step, _ = trained("mlp", "cuda:0")
    x = NETWORKS["mlp"][1]
    target = np.arange(len(x)) % 4
    for device in ("cuda:1", "cuda:0", "cpu", "cuda:1"):
        step.device = device
        np.testing.assert_allclose(step(x, target), plain(x, target), rtol=2e-5)
    step.model.eval(), plain.model.eval()
    here = es.jit(plain.model, device="cpu")(x)
    for device in ("cuda:0", "cuda:1"):
        np.testing.assert_allclose(es.jit(step.model, device=device)(x), here, rtol=1e-4, atol=1e-5)
