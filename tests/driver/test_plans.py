"""Plans and derivations on disk: a later process runs what the first one planned, and nothing else's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from benchmarks import plans
from benchmarks.models import TRAINING
from einsmith.api.tracing import trace_call
from einsmith.base import caches
from einsmith.base.dtypes import f32
from einsmith.base.errors import IndexOutOfRange, StoreWarning
from einsmith.base.numerics import Numerics
from einsmith.codegen.cache import objects
from einsmith.driver import compile as compilation
from einsmith.driver import registry
from einsmith.driver.cpu import CPU
from einsmith.driver.executable import Executable
from einsmith.ir import pickled
from einsmith.ir.graph_digest import graph_digest, number_leaves
from einsmith.ir.nodes import Graph, leaf, postorder
from einsmith.passes import pipeline
from einsmith.tracing.lower import LOWERED
from einsmith.tuning.kernels.decisions import name_of
from einsmith.tuning.kernels.override import overriding
from tests.caches import forget
from tests.gallery.entries import ENTRIES
from tests.passes.test_capacity import FLAT, sized
from tests.programs import program_of

ROOT = Path(__file__).parents[2]
MODELS = ("lenet5", "mlp3", "capsulenet", "milstm", "lstm-lm", "sublstm")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty folder for compiled code, in which plans are kept."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EINSMITH_PLANS", "1")
    monkeypatch.setattr(objects, "_written", {})
    forget("reasons not to keep compiled code")
    return tmp_path / "cache"


class Planned:
    """Counts the graphs that passes are run over."""

    def __init__(self, monkeypatch):
        self.count = 0
        run = pipeline.run_passes

        def counted(*args: Any) -> Graph:
            self.count += 1
            return run(*args)

        monkeypatch.setattr(compilation, "run_passes", counted)

    def during(self, f: Callable[[], Any]) -> tuple[int, Any]:
        before = self.count
        out = f()
        return self.count - before, out


@pytest.fixture
def planned(monkeypatch) -> Planned:
    return Planned(monkeypatch)


def compiled(f: Callable, *arrays: np.ndarray, **options: Any) -> Executable:
    """A program of its own, as a process compiles it that has compiled nothing."""
    caches.cache_clear()
    traced = trace_call(f, arrays, {})
    return Executable(traced.graph, traced.bind, 1, origins=traced.origins, **options)


def batch_of(name: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, Callable]:
    if name in ("mlp3", "lenet5", "capsulenet"):
        return rng.standard_normal((3, 1, 28, 28), np.float32), rng.integers(0, 10, 3), F.cross_entropy
    if name == "resnet18_cifar":
        return rng.standard_normal((2, 3, 32, 32), np.float32), rng.integers(0, 10, 2), F.cross_entropy
    if name == "lstm-lm":
        words, wanted = rng.integers(0, 100, (2, 5)), rng.integers(0, 100, (2, 5))
        return words, wanted, lambda y, t: F.cross_entropy(y.reshape((-1, y.shape[-1])), t.reshape((-1,)))
    return rng.standard_normal((3, 5, 28), np.float32), rng.integers(0, 10, 3), F.cross_entropy


def test_a_plan_for_other_workspaces_is_made_anew(planned, rng, monkeypatch) -> None:
    """Its arena need not have room for what the kernels write."""
    x, y = rng.standard_normal((300, 700), np.float32), rng.standard_normal((700, 300), np.float32)
    plain = CPU.compile
    monkeypatch.setattr(CPU, "compile", lambda *given: [replace(c, workspace=c.workspace + 64) for c in plain(*given)])
    assert planned.during(lambda: compiled(F.matmul, x, y))[0] == 1
    monkeypatch.setattr(CPU, "compile", plain)
    assert planned.during(lambda: compiled(F.matmul, x, y))[0] == 1
    assert planned.during(lambda: compiled(F.matmul, x, y))[0] == 0


def test_plans_without_code_are_not_kept(cache) -> None:
    plans.planned(TRAINING["lenet5-b1"], 1)
    assert not [x for x in cache.rglob("*") if x.is_file() and "calibration" not in str(x)]


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", [*MODELS, pytest.param("resnet18_cifar", marks=pytest.mark.slow)])
def test_a_network_trains_bitwise_as_it_does_from_a_new_plan(name, rng, planned) -> None:
    options = {"vocabulary": 100, "width": 20, "batch": 2} if name == "lstm-lm" else {}
    state, results = None, []
    x, y, loss = batch_of(name, rng)
    for _ in range(2):
        caches.cache_clear()
        network = es.models.get(name, **options)
        state = state or {k: np.array(v) for k, v in network.state_dict().items()}
        network.load_state_dict(state)
        step = es.TrainStep(network, loss, es.optim.Adam(lr=1e-3), clip_grad_norm=1.0)
        count, losses = planned.during(lambda step=step: [step(x, y) for _ in range(2)])
        results.append((losses, {k: np.array(v) for k, v in network.state_dict().items()}, str(step.plan), count))
    (losses, first, plan, count), (again, second, same, none) = results
    assert count > 0 and none == 0
    assert losses == again and plan == same
    for k, v in first.items():
        np.testing.assert_array_equal(v, second[k], err_msg=k)


def test_a_loop_keeps_what_it_packs_where_its_plan_is_on_disk(rng, planned) -> None:
    x, state, results = rng.standard_normal((9, 2, 40), np.float32), None, []
    for _ in range(2):
        caches.cache_clear()
        net = es.nn.LSTM(40, 64).eval()
        state = state or {k: np.array(v) for k, v in net.state_dict().items()}
        net.load_state_dict(state)
        count, (first, _) = planned.during(lambda net=net: net(x))
        run = program_of(net)
        net.weight_hh_l0.data[...] *= 2
        results.append((count, run.binding.kept.nbytes, first, net(x)[0]))
    (count, nbytes, *want), (none, again, *got) = results
    assert count > 0 and none == 0
    assert nbytes == again >= 4 * 4 * 64 * (40 + 64)
    np.testing.assert_array_equal(got, want)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_an_operator_computes_the_same_bits_from_its_plan_on_disk(entry, rng, planned) -> None:
    op = es.op(entry.formula, extents=entry.extents)
    case = entry.cases[0]
    arrays = entry.inputs(case, rng)
    inputs = [arrays[n] for n in op.inputs]
    floats = [n for n, a in enumerate(inputs) if a.dtype.kind == "f"]

    def f(*x):
        y, pull = es.vjp(lambda *z: op(*(z[floats.index(n)] if n in floats else inputs[n] for n in range(len(x))),
                                       **entry.parameters(case)), *(x[n] for n in floats))  # fmt: skip
        return y, pull(y)

    (n, want), (m, got) = (planned.during(lambda: compiled(f, *inputs)(inputs)[1]) for _ in range(2))
    assert n > 0 and m == 0
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def product(a, b):
    return F.relu(a @ b)


@pytest.fixture
def matrices(rng) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((19, 23), np.float32), rng.standard_normal((23, 17), np.float32)


def test_a_plan_is_found_only_where_everything_is_as_it_was(matrices, planned, monkeypatch) -> None:
    def plans_anew(f: Callable = product, **options: Any) -> bool:
        return planned.during(lambda: compiled(f, *matrices, **options))[0] > 0

    target = registry.DEFAULT.static_target(1)
    assert plans_anew() and not plans_anew()
    assert plans_anew(lambda a, b: F.relu(a @ b) + 1.0)
    assert not plans_anew(target=target)  # which is this machine, where nothing is measured
    assert plans_anew(target=replace(target, l2=target.l2 * 2))
    assert plans_anew(numerics=Numerics(precision="bf16"))
    assert plans_anew(max_stored=1 << 10)
    assert plans_anew(memory=1 << 20) and not plans_anew(memory=1 << 20)
    with monkeypatch.context() as patch:
        patch.setenv("EINSMITH_WITHOUT", "recompute")
        assert plans_anew() and not plans_anew()
    with monkeypatch.context() as patch:
        patch.setattr(objects, "source_hash", lambda: b"another version")
        assert plans_anew()
    with monkeypatch.context() as patch:
        patch.setenv("EINSMITH_PLANS", "0")
        assert plans_anew()
    assert not plans_anew()


def test_a_plan_rests_on_what_its_limits_are_products_of(planned) -> None:
    general = sized(*FLAT["gradients of merged rows"])

    def plans_anew(limits: Any) -> bool:
        graph, bound = general.graph, general.capacity.bind
        return planned.during(lambda: Executable(graph, bound, 1, limits=limits))[0] > 0

    assert any(x.factors for x in general.limits)
    assert plans_anew(general.limits) and not plans_anew(general.limits)
    assert plans_anew([x._replace(times=1, factors=()) for x in general.limits])


def test_listings_are_written_from_the_passes_themselves(matrices, planned, monkeypatch, tmp_path) -> None:
    compiled(product, *matrices)
    monkeypatch.setenv("EINSMITH_DUMP", str(tmp_path / "dump"))
    assert planned.during(lambda: compiled(product, *matrices))[0] > 0
    assert len(list((tmp_path / "dump" / "program-0000").iterdir())) > len(pipeline.PASSES)


def test_another_decision_on_a_kernel_is_followed(matrices, planned) -> None:
    first = compiled(product, *matrices)
    with overriding({name_of(first.calls[0].kernel): "reduction"}):
        count, run = planned.during(lambda: compiled(product, *matrices))
    assert count > 0 and run.kernels[0].pattern == "reduction"
    want = matrices[0].astype(np.float64) @ matrices[1]
    np.testing.assert_allclose(run(matrices)[1][0], np.maximum(want, 0), rtol=1e-5, atol=1e-5)
    assert compiled(product, *matrices).kernels[0].pattern == first.kernels[0].pattern


def test_a_plan_whose_decisions_are_others_counts_passes_once(matrices, planned, monkeypatch) -> None:
    """As after tuning, which changes the decision on a kernel between two processes."""

    def f(a, b):
        return F.log_softmax(F.relu(a @ b) * 2.0, 1).sum(0)

    first = compiled(f, *matrices)
    assert first.changes.tensors
    monkeypatch.setattr("einsmith.tuning.kernels.override.is_active", lambda: False)
    with overriding({name_of(first.calls[0].kernel): "reduction"}):
        count, run = planned.during(lambda: compiled(f, *matrices))
    assert count > 0 and run.kernels[0].pattern == "reduction"
    assert run.changes.tensors == first.changes.tensors


@pytest.mark.parametrize("damage", ("empty", "cut", "bit", "exchanged"))
def test_a_damaged_store_is_rebuilt(matrices, planned, cache, damage) -> None:
    (want,) = compiled(product, *matrices)(matrices)[1]
    compiled(F.tanh, matrices[0])
    paths = sorted((cache / "objects").iterdir())
    whole = [p.read_bytes() for p in paths]
    for path, data, other in zip(paths, whole, whole[1:] + whole[:1], strict=True):
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"empty": b"", "cut": data[:-1], "bit": flipped, "exchanged": other}[damage])
    count, run = planned.during(lambda: compiled(product, *matrices))
    assert count > 0
    np.testing.assert_array_equal(run(matrices)[1][0], want)
    count, run = planned.during(lambda: compiled(product, *matrices))
    assert count == 0
    np.testing.assert_array_equal(run(matrices)[1][0], want)


def test_what_cannot_be_read_or_written_is_planned_anew(matrices, planned, monkeypatch) -> None:
    (want,) = compiled(product, *matrices)(matrices)[1]

    def fail(*_: Any) -> Any:
        raise RecursionError

    with monkeypatch.context() as patch:
        patch.setattr(pickled.GraphUnpickler, "load", fail)
        count, run = planned.during(lambda: compiled(product, *matrices))
        assert count > 0
        np.testing.assert_array_equal(run(matrices)[1][0], want)
    with monkeypatch.context() as patch:
        patch.setattr(pickled.GraphPickler, "dump", fail, raising=False)
        with pytest.warns(StoreWarning, match="cannot be written"):
            run = compiled(lambda a, b: F.tanh(a @ b), *matrices)
    np.testing.assert_allclose(run(matrices)[1][0], np.tanh(matrices[0].astype(np.float64) @ matrices[1]), atol=1e-5)


def test_a_check_has_its_message_where_the_plan_is_read(rng, planned) -> None:
    op = es.op("Y[i] = X[I[i]]")
    x, i = rng.standard_normal(5), np.array([0, 4, 7])
    messages = []
    for _ in range(2):
        count, run = planned.during(lambda: compiled(op, x, i))
        with pytest.raises(IndexOutOfRange) as e:
            run((x, i))
        messages.append(str(e.value))
    assert count == 0 and messages[0] == messages[1] and "7" in messages[0]


PROGRAM = """
import hashlib, sys
import numpy as np
import einsmith as es
from einsmith.driver import compile as compilation
runs = []
before = compilation.run_passes
compilation.run_passes = lambda *a: runs.append(1) or before(*a)
rng = np.random.default_rng(0)
es.manual_seed(1)
network = es.models.mlp3()
step = es.TrainStep(network, es.functional.cross_entropy, es.optim.Adam(lr=1e-3), threads=1)
x, y = rng.standard_normal((4, 1, 28, 28), np.float32), rng.integers(0, 10, 4)
for _ in range(2):
    step(x, y)
digest = hashlib.sha256(b"".join(np.array(v).tobytes() for v in network.state_dict().values())).hexdigest()
print(len(runs), digest)
"""


def _start() -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, env=environment, text=True)


def _finish(process: subprocess.Popen) -> tuple[int, str]:
    out, _ = process.communicate()
    assert process.returncode == 0
    passes, digest = out.split()
    return int(passes), digest


def test_two_processes_at_once_and_a_third_one_compute_the_same() -> None:
    first, second = [_finish(p) for p in [_start(), _start()]]
    third = _finish(_start())
    assert first[1] == second[1] == third[1]
    assert first[0] > 0 and third[0] == 0


def test_the_digest_of_a_graph_is_that_of_its_structure(rng) -> None:
    a, b = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))

    def digest(f: Callable, *x: np.ndarray) -> bytes:
        graph = trace_call(f, x, {}).graph
        return graph_digest(graph, number_leaves(graph))

    digests = [
        digest(lambda x, y: x - y, a, b), digest(lambda x, y: y - x, a, b), digest(lambda x, y: x + y, a, b),
        digest(lambda x, y: x - x, a, b), digest(lambda x, y: (x - y, x), a, b), digest(lambda x, y: (x, x - y), a, b),
        digest(lambda x, y: x - y, a, b.astype(np.float32)), digest(lambda x, y: x - y, a[:2], b[:2]),
    ]  # fmt: skip
    assert len(set(digests)) == len(digests)
    assert digest(lambda x, y: x - y, a, b) == digests[0]


def test_updates_checks_and_gradients_are_parts_of_the_digest() -> None:
    x, y = leaf((3,), f32), leaf((3,), f32)
    plain = Graph((x, y), (x,), (), ())
    graphs = [
        plain, Graph((y, x), (x,), (), ()), Graph((x, y), (x,), ((x, y),), ()), Graph((x, y), (x,), ((y, x),), ()),
        Graph((x, y), (x,), (), ((y, "one"),)), Graph((x, y), (x,), (), ((y, "two"),)),
        Graph((x, y), (x,), (), (), (y,)),
    ]  # fmt: skip
    assert len({graph_digest(g, number_leaves(g)) for g in graphs}) == len(graphs)


def test_a_leaf_of_another_process_is_no_leaf_of_this_one() -> None:
    own, made = leaf((2,), f32), leaf((2,), f32)
    data = pickled.dumps((own, made, made), leaves={own: 0})
    here = leaf((2,), f32)
    first, second, third = pickled.loads(data, [here])
    assert first is here and second is third
    assert second not in (own, made, here) and second.shape == (2,)


def test_a_graph_of_any_depth_is_pickled() -> None:
    def deep(x):
        for _ in range(3000):
            x = F.tanh(x)
        return x

    x = np.zeros(2)
    graph = trace_call(deep, (x,), {}).graph
    leaves = number_leaves(graph)
    assert pickled.loads(pickled.dumps(graph, [graph], leaves), list(leaves)) is graph


@pytest.fixture
def derived(monkeypatch) -> Iterator[None]:
    """Traces of any length are worth their derivations."""
    monkeypatch.setattr("einsmith.driver.derivations.WORTHWHILE", 0.0)
    yield


def test_derivations_are_read_back(derived, monkeypatch, rng) -> None:
    def f(x, w):
        return es.value_and_grad(lambda x, w: F.conv2d(x, w, padding=1).sum(), (0, 1))(x, w)

    x, w = rng.standard_normal((2, 3, 7, 5)), rng.standard_normal((4, 3, 3, 3))
    caches.cache_clear()
    graph = trace_call(f, (x, w), {}).graph
    digest = graph_digest(graph, number_leaves(graph))
    records = len(LOWERED)
    assert records > 0
    caches.cache_clear()
    monkeypatch.setattr("einsmith.tracing.lower._lower_single", lambda *_: pytest.fail("a formula is lowered again"))
    graph = trace_call(f, (x, w), {}).graph
    assert graph_digest(graph, number_leaves(graph)) == digest and len(LOWERED) == records


def test_derivations_of_something_else_change_nothing(derived, monkeypatch, rng) -> None:
    """All functions have one hint here."""
    monkeypatch.setattr("einsmith.api.tracing._name_in_hint", lambda f: "f")
    x = rng.standard_normal((5, 5))
    functions = [F.softmax, lambda a: F.log_softmax(a, 0), lambda a: a @ a, lambda a: (a * a).sum(0)]
    digests = []
    for _ in range(2):
        for f in functions:
            caches.cache_clear()
            graph = trace_call(f, (x,), {}).graph
            digests.append(graph_digest(graph, number_leaves(graph)))
    assert digests[:4] == digests[4:] and len(set(digests)) == 4


def test_a_formula_is_lowered_once_and_read_with_each_ones_tensors(rng) -> None:
    a, b = rng.standard_normal((4, 6)), rng.standard_normal((4, 6))

    def rows(x, y):
        def sum_of(z):
            (k,) = es.axes(z.shape[1])
            return es.compute(z.shape[:1], lambda i: es.sum(z[i, k] * z[i, k], over=(k,)))

        return sum_of(x), sum_of(y), sum_of(x - y)

    caches.cache_clear()
    graph = trace_call(rows, (a, b), {}).graph
    assert sum(1 for _ in postorder(graph.roots)) == 6
    for got, z in zip(es.interpret(rows)(a, b), (a, b, a - b), strict=True):
        np.testing.assert_allclose(got, (z * z).sum(1), rtol=1e-12)
