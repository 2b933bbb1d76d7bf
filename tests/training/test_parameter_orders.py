"""Parameters in the order of dimensions that decisions give them: training computes the same, people see row-major."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest

import einsmith as es
from einsmith.driver.cpu import CPU
from einsmith.ir.nodes import Graph
from einsmith.runtime.memory import DimensionOrder
from einsmith.schedule.graph_decisions import TensorNames, show_order
from einsmith.schedule.layout.dimension_orders import permutations
from einsmith.tuning.programs import graph_search

RNG = np.random.default_rng(5)


@contextmanager
def decided(choose: Callable[[tuple[int, ...]], int] = lambda shape: -1) -> Iterator[None]:
    """Give each leaf of a training step one of its possible orders, by its number, as if tuning had decided so."""

    def find(graph: Graph, target: Any) -> frozenset[str]:
        names = TensorNames(graph)
        return frozenset(
            f"order {names.of(x)} {show_order(permutations(x.shape)[choose(x.shape)])}"
            for x in graph.inputs
            if len(permutations(x.shape)) > 1
        )

    with mock.patch.object(CPU, "find_graph_decisions", find):
        yield


class Tied(es.nn.Module):
    def __init__(self) -> None:
        self.table, self.a, self.b = es.nn.Embedding(19, 13), es.nn.Linear(13, 13), es.nn.LayerNorm(13)

    def forward(self, x: Any) -> Any:
        h = self.b(es.functional.tanh(self.a(self.table(x))))
        return es.functional.linear(h.sum(1), self.table.weight)


class Recurrent(es.nn.Module):
    def __init__(self) -> None:
        self.lstm, self.head = es.nn.LSTM(7, 9), es.nn.Linear(9, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][-1])


def mlp() -> es.nn.Module:
    return es.nn.Sequential(es.nn.Linear(17, 33), es.nn.Tanh(), es.nn.Linear(33, 16), es.nn.ReLU(), es.nn.Linear(16, 5))


def images() -> es.nn.Module:
    return es.nn.Sequential(
        es.nn.Conv2d(3, 17, 3, padding=1), es.nn.BatchNorm2d(17), es.nn.ReLU(), es.nn.Conv2d(17, 16, 3, stride=2),
        es.nn.ReLU(), es.nn.Conv2d(16, 8, 1), es.nn.Flatten(), es.nn.Linear(8 * 3 * 3, 5),
    )  # fmt: skip


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


NETWORKS: dict[str, tuple[Callable[[], es.nn.Module], np.ndarray, int]] = {
    "mlp": (mlp, floats(7, 17), 5),
    "mlp of 1": (mlp, floats(1, 17), 5),
    "images": (images, floats(3, 3, 8, 8), 5),
    "tied": (Tied, RNG.integers(0, 19, (5, 11)), 19),
    "recurrent": (Recurrent, floats(4, 3, 7), 5),
}
RULES = {
    "sgd": lambda: es.optim.SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda: es.optim.AdamW(lr=0.01),
}


def step_of(name: str, rule: str = "sgd", **options: Any) -> tuple[es.TrainStep, np.ndarray, np.ndarray]:
    make, x, classes = NETWORKS[name]
    es.manual_seed(3)
    y = np.arange(x.shape[1] if name == "recurrent" else len(x)) % classes
    return es.TrainStep(make(), es.functional.cross_entropy, RULES[rule](), threads=2, **options), x, y


def ordered(step: es.TrainStep) -> list[str]:
    return [n for n, p in step.model.named_parameters() if isinstance(p.memory.layout, DimensionOrder)]


def same(a: es.TrainStep, b: es.TrainStep) -> None:
    for one, other in ((a.model.state_dict(), b.model.state_dict()), (a.whole_state(), b.whole_state())):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(other[name], one[name], rtol=2e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("rule", ["sgd", "adamw"])
@pytest.mark.parametrize("number", [-1, 1])
@pytest.mark.parametrize("name", NETWORKS)
def test_training_in_another_order_computes_the_same(name, number, rule):
    (plain, x, y), (other, _, _) = step_of(name, rule), step_of(name, rule)
    with decided(lambda shape: number):
        for _ in range(4):
            assert other(x, y) == pytest.approx(plain(x, y), rel=1e-4)
    assert ordered(other) or name == "recurrent"
    for n, slot in other.store.state.items():
        parameter = other.store.parameters[n.rpartition("/")[0]]
        if slot.memory.shape == parameter.shape:
            assert slot.memory.layout == parameter.memory.layout
    same(plain, other)
    np.testing.assert_allclose(other.model(x), plain.model(x), rtol=1e-3, atol=1e-4)  # programs that only read
    assert other.evaluate([(x, y)]) == pytest.approx(plain.evaluate([(x, y)]), rel=1e-4)


def test_other_batch_sizes_follow_the_order():
    (plain, x, y), (other, _, _) = step_of("mlp"), step_of("mlp")
    with decided():
        other(x, y)
    plain(x, y)
    before = [p.memory for p in other.model.parameters()]
    for n in (7, 5, 1, 7):  # no decision is known of these graphs
        assert other(x[:n], y[:n]) == pytest.approx(plain(x[:n], y[:n]), rel=1e-4)
    assert [p.memory for p in other.model.parameters()] == before
    same(plain, other)


def test_who_asks_for_the_array_has_it_row_major():
    (plain, x, y), (other, _, _) = step_of("mlp"), step_of("mlp")
    with decided():
        for _ in range(2):
            plain(x, y), other(x, y)
        weight = other.model[0].weight
        assert isinstance(weight.memory.layout, DimensionOrder)
        assert weight.numpy().flags.c_contiguous and "Parameter" in repr(weight)
        assert isinstance(weight.memory.layout, DimensionOrder)  # neither shows the memory itself
        data = weight.data
        assert data.flags.c_contiguous and data.flags.writeable and weight.memory.layout is None
        data[0, 1:] = 0.25
        plain.model[0].weight.data[0, 1:] = 0.25
        for _ in range(2):
            assert other(x, y) == pytest.approx(plain(x, y), rel=1e-4)
        assert weight.data is not None and np.shares_memory(weight.data, data)
        np.testing.assert_allclose(data, plain.model[0].weight.data, rtol=1e-4, atol=1e-6)
        del data
        other(x, y), plain(x, y)
        assert weight.memory.layout is None  # for good
    same(plain, other)


def test_averages_and_clipped_gradients_keep_their_meaning():
    options = {"ema": 0.9, "clip_grad_norm": 0.5}
    (plain, x, y), (other, _, _) = step_of("images", "adamw", **options), step_of("images", "adamw", **options)
    with decided():
        for _ in range(3):
            assert other(x, y) == pytest.approx(plain(x, y), rel=1e-4)
        with plain.averaged(), other.averaged():
            np.testing.assert_allclose(other.model(x), plain.model(x), rtol=1e-3, atol=1e-4)
        assert other(x, y) == pytest.approx(plain(x, y), rel=1e-4)
    assert ordered(other)
    same(plain, other)


def test_a_parameter_that_somebody_holds_stays():
    step, x, y = step_of("mlp")
    data = step.model[0].weight.data
    with decided():
        step(x, y)
    assert "0.weight" not in ordered(step) and "2.weight" in ordered(step)
    before = data.copy()
    step(x, y)
    assert np.abs(data - before).max() > 0  # the memory itself


def test_assigned_values_are_stored_in_the_order():
    (plain, x, y), (other, _, _) = step_of("mlp"), step_of("mlp")
    with decided():
        plain(x, y), other(x, y)
        values = floats(33, 17)
        plain.model[0].weight.data = values
        other.model[0].weight.data = values
        other.model.load_state_dict({n: a + 1 for n, a in other.model.state_dict().items()})
        plain.model.load_state_dict({n: a + 1 for n, a in plain.model.state_dict().items()})
        assert other(x, y) == pytest.approx(plain(x, y), rel=1e-4)
    assert "0.weight" in ordered(other)
    same(plain, other)


def test_saves_and_copies_hold_the_tensors(tmp_path):
    (plain, x, y), (other, _, _) = step_of("mlp", "adamw"), step_of("mlp", "adamw")
    with decided():
        plain(x, y), other(x, y)
        es.save(other, tmp_path / "saved")
        loaded = es.load(tmp_path / "saved", model=mlp())
        twin = copy.deepcopy(other.model)
        np.testing.assert_allclose(twin(x), other.model(x), rtol=1e-5)
        assert loaded(x, y) == pytest.approx(plain(x, y), rel=1e-4)
    same(plain, loaded)


def test_an_export_has_row_major_parameters(tmp_path):
    step, x, y = step_of("mlp")
    with decided():
        step(x, y)
        wanted = step.model(x)
        es.export(step.model, tmp_path / "library", x)
        assert not ordered(step)
        np.testing.assert_allclose(step.model(x), wanted, rtol=1e-5)


def test_gathered_gradients_and_updates_of_rows_keep_their_meaning():
    (plain, x, y), (other, _, _) = step_of("mlp"), step_of("mlp")
    with decided():
        plain(x, y), other(x, y)
    for step in (plain, other):
        step.accumulate = 2
    for _ in range(4):
        assert other(x, y) == pytest.approx(plain(x, y), rel=1e-4)
    same(plain, other)


def test_the_graph_search_races_orders_of_parameters():
    """A form with a parameter in another order has memory of its own, and computes the same."""
    step, x, y = step_of("mlp")
    step.compile(x, y)
    (run,) = step.compiler.programs.values()
    genes = [d for d, _, _ in graph_search._leaf_losses(run)]
    assert len(genes) == 3 and all(d.endswith(" 1,0") for d in genes)
    step.parts.set_numbers([x, y])
    form = run.compile_deciding(frozenset(genes))
    assert len(form.memory.placed) == 6 and not run.memory.placed  # weights and their momentum
    assert graph_search.difference(run, form, [x, y]) == ""
    back = form.compile_deciding(frozenset())
    assert not back.memory.placed and graph_search.difference(form, back, [x, y]) == ""
