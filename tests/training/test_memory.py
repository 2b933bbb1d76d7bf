"""Parameters and state in layouts of their own: programs compute on the memory, people see the tensors."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import DtypeError, ShapeError
from einsmith.tracing.builder import Value


@dataclass(frozen=True)
class Transposed:
    """The first axis last."""

    def physical(self, x: Any) -> Any:
        return x.transpose((*range(1, x.ndim), 0))

    def logical(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.transpose((x.ndim - 1, *range(x.ndim - 1)))


@dataclass(frozen=True)
class Padded:
    """Rows of a matrix with zeros behind them."""

    by: int = 3

    def physical(self, x: Any) -> Any:
        return es.functional.pad(x, (0, self.by)) if isinstance(x, Value) else np.pad(x, ((0, 0), (0, self.by)))

    def logical(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x[:, : shape[1]]


@dataclass(frozen=True)
class Blocked:
    """Columns in blocks of five, block by block: no view has them side by side."""

    def physical(self, x: Any) -> Any:
        return x.reshape((x.shape[0], x.shape[1] // 5, 5)).transpose((1, 0, 2))

    def logical(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.transpose((1, 0, 2)).reshape(shape)


LAYOUTS = {"transposed": Transposed(), "padded": Padded(), "blocked": Blocked()}
RULES = {
    "sgd": lambda: es.optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda: es.optim.Adam(lr=0.02),
    "rows": lambda: es.optim.Rule(  # of each row as a whole: the places between elements must not count
        "p[i,j] = p[i,j] - lr * g[i,j] / (0.001 + sqrt(sum[k](g[i,k] * g[i,k])))", lr=0.05
    ),
}
RNG = np.random.default_rng(11)
X, Y = RNG.standard_normal((6, 10)).astype(np.float32), np.arange(6) % 4


class Net(es.nn.Module):
    def __init__(self):
        self.a, self.b = es.nn.Linear(10, 15, bias=False), es.nn.Linear(15, 4, bias=False)

    def forward(self, x):
        return self.b(es.functional.tanh(self.a(x)))


def step_of(rule: str = "sgd") -> es.TrainStep:
    es.manual_seed(2)
    return es.TrainStep(Net(), es.functional.cross_entropy, RULES[rule](), threads=2)


def stored(rule: str, layout: Any) -> es.TrainStep:
    step = step_of(rule)
    for p in step.model.parameters():
        p.store_as(layout)
    return step


def close(a: Any, b: Any) -> None:
    a, b = dict(a), dict(b)
    assert a.keys() == b.keys()
    for k in a:
        assert a[k].shape == b[k].shape
        np.testing.assert_allclose(a[k], b[k], rtol=2e-4, atol=1e-6, err_msg=k)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_programs_compute_on_the_memory(name, rule):
    plain, other = step_of(rule), stored(rule, LAYOUTS[name])
    close(other.model.state_dict().items(), plain.model.state_dict().items())
    for _ in range(4):
        assert other(X, Y) == pytest.approx(plain(X, Y), rel=1e-5)
    close(other.store.arrays(), plain.store.arrays())
    (run,) = other.compiler.programs.values()
    memories = [*(p.memory for p in other.model.parameters()), *(s.memory for s in other.store.state.values())]
    assert all(any(m.physical is a for a in run.bound.values()) for m in memories)
    assert all(m.layout is LAYOUTS[name] and m.physical.shape != m.shape for m in memories)
    if name == "padded":
        assert all((m.physical[:, m.shape[1] :] == 0).all() for m in memories)
    np.testing.assert_allclose(other.model(X), plain.model(X), rtol=1e-4)
    weight = other.model.a.weight
    np.testing.assert_allclose(es.jit(lambda x: x @ weight.transpose((1, 0)))(X), X @ weight.numpy().T, rtol=1e-4)
    np.testing.assert_allclose(es.functional.linear(X, weight), X @ weight.numpy().T, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_taken_up_in_the_middle_of_training(name):
    """The state moves with its parameter; what was compiled for the old memory is not used again."""
    plain, other = step_of("adam"), step_of("adam")
    for n in range(4):
        if n == 2:
            other.model.a.weight.store_as(LAYOUTS[name])
        if n == 3:
            other.model.a.weight.store_as(None)
        assert other(X, Y) == pytest.approx(plain(X, Y), rel=1e-5)
    close(other.store.arrays(), plain.store.arrays())
    assert all(v.flags.c_contiguous for _, v in other.store.arrays())


@pytest.mark.parametrize("name", LAYOUTS)
def test_saves_hold_the_logical_tensor(name, tmp_path):
    plain, other = step_of("adam"), stored("adam", LAYOUTS[name])
    other(X, Y), plain(X, Y)
    es.save(other, tmp_path / "s")
    back = es.load(tmp_path / "s", model=Net())
    close(back.store.arrays(), plain.store.arrays())
    assert all((a == b).all() for (_, a), (_, b) in zip(back.store.arrays(), other.store.arrays(), strict=True))
    assert back(X, Y) == pytest.approx(other(X, Y), rel=1e-5)
    fresh = stored("adam", LAYOUTS[name])
    fresh.model.load_state_dict(plain.model.state_dict())
    close(fresh.model.state_dict().items(), plain.model.state_dict().items())
    assert fresh.model.a.weight.memory.layout is LAYOUTS[name]


@pytest.mark.parametrize("name", LAYOUTS)
def test_values_are_set_through_a_view_or_by_assignment(name):
    step = stored("sgd", LAYOUTS[name])
    step(X, Y)
    w = step.model.a.weight
    wanted = w.numpy()
    wanted[3, 4] = 2.5
    if name == "blocked":  # a copy: what is written there would be lost
        with pytest.raises(ValueError, match="read-only"):
            w.data[3, 4] = 2.5
        w.data = wanted
    else:
        w.data[3, 4] = 2.5
    assert (w.numpy() == wanted).all() and (np.asarray(w) == wanted).all()
    np.testing.assert_allclose(step.model(X), np.tanh(X @ wanted.T) @ step.model.b.weight.numpy().T, rtol=1e-4)
    es.nn.init.constant_(w, 0.25)
    assert (w.data == 0.25).all() and w.shape == (15, 10) and w.size == 150 and w.ndim == 2
    w.convert("float64")
    assert w.data.dtype == np.float64 and w.memory.layout is LAYOUTS[name] and (w.data == 0.25).all()


def test_without_a_layout_the_memory_is_the_array():
    step = step_of()
    step(X, Y)
    (run,) = step.compiler.programs.values()
    for _, v in (*step.store.arrays(),):
        assert v.ctypes.data in {a.ctypes.data for a in run.bound.values()}
        assert v.flags.c_contiguous and v.ctypes.data % 64 == 0
    w = step.model.a.weight
    assert w.data is w.data and w.data.ctypes.data == w.memory.physical.ctypes.data


def test_a_layout_that_loses_the_tensor_is_refused():
    class Wrong(Transposed):
        def logical(self, x, shape):
            return x

    w = step_of().model.a.weight
    before = w.numpy()
    with pytest.raises(ShapeError, match=r"\(15, 10\) with the shape \(10, 15\)"):
        w.store_as(Wrong())
    assert (w.data == before).all()
    square = es.nn.Parameter(np.arange(9, dtype=np.float32).reshape(3, 3))
    with pytest.raises(ShapeError, match="in another order"):
        square.store_as(Wrong())
    with pytest.raises(ShapeError, match=r"Blocked\(\) does not take a tensor of shape \(3, 3\)"):
        square.store_as(Blocked())

    class Narrow(Transposed):
        def physical(self, x):
            return x.astype("float16")

    with pytest.raises(DtypeError, match="stores float32 as float16"):
        square.store_as(Narrow())
    assert (square.data == np.arange(9).reshape(3, 3)).all()


@pytest.mark.parametrize("wrong", ["shape", "type"])
def test_a_layout_that_does_another_thing_in_programs_is_refused(wrong):
    """Its arrays are padded, and its tensors are not, or become another type."""

    class Differs(Padded):
        def physical(self, x):
            if not isinstance(x, Value):
                return super().physical(x)
            return x if wrong == "shape" else super().physical(x).astype("float16")

    step = step_of()
    step.model.a.weight.store_as(Differs())
    with pytest.raises(ShapeError, match="`physical` of the layout .* makes .* in a program"):
        step(X, Y)


def test_copies_have_the_layout():
    for stored in (es.nn.Parameter(np.ones((4, 10))), es.nn.Buffer(np.ones((4, 10), np.float32))):
        stored.store_as(LAYOUTS["blocked"])
        copied = copy.deepcopy(stored)
        assert copied.memory.layout == LAYOUTS["blocked"] and (copied.data == 1).all()
        assert not np.shares_memory(copied.memory.physical, stored.memory.physical)


def test_an_embedding_is_drawn_anew_in_any_layout():
    table = es.nn.Embedding(4, 10, padding_idx=1)
    table.weight.store_as(LAYOUTS["blocked"])
    before = table.weight.numpy()
    table.reset_parameters()
    assert (table.weight.data[1] == 0).all() and (table.weight.data[0] != before[0]).all()
