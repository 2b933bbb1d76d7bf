"""What depends on parameters alone is computed once, and again after every change of theirs, whoever makes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_call
from einsmith.base.dtypes import f32
from einsmith.base.trees import flatten
from einsmith.driver.constants import MOST_VAIN, Constants
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Graph, leaf
from einsmith.passes.constants import split_constants
from einsmith.runtime.assemble import ArenaLayout
from einsmith.runtime.memory import ChangeWatch, Memory
from einsmith.schedule.plan import KernelCall
from tests.programs import program_of


class Network(es.nn.Module):
    """A convolution with batch norm, whose scale depends on parameters and buffers alone, and a large product, whose
    operand kernels pack."""

    def __init__(self) -> None:
        self.conv = es.nn.Conv2d(3, 24, 3, padding=1, bias=False)
        self.norm = es.nn.BatchNorm2d(24)
        self.last = es.nn.Linear(24 * 64, 200)

    def forward(self, x):
        return self.last(F.relu(self.norm(self.conv(x))).reshape((x.shape[0], -1)))


@pytest.fixture
def network(rng) -> Network:
    net = Network()
    for b in (net.norm.running_mean, net.norm.running_var):
        b.data = rng.uniform(0.5, 1.5, b.shape).astype(np.float32)
    return net.eval()


@pytest.fixture
def x(rng) -> np.ndarray:
    return rng.standard_normal((5, 3, 8, 8), np.float32)


def wanted(net: Network, x: np.ndarray) -> np.ndarray:
    w = {n: np.asarray(v, np.float64) for n, v in net.state_dict().items() if np.asarray(v).dtype.kind == "f"}
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    y = np.einsum("bchwij,ocij->bohw", windows, w["conv.weight"])

    def of(v: np.ndarray) -> np.ndarray:
        return v[:, None, None]

    scale = w["norm.weight"] / np.sqrt(w["norm.running_var"] + net.norm.eps)
    y = (y - of(w["norm.running_mean"])) * of(scale) + of(w["norm.bias"])
    return np.maximum(y, 0).reshape(len(x), -1) @ w["last.weight"].T + w["last.bias"]


def check(net: Network, x: np.ndarray) -> None:
    for _ in range(2):
        np.testing.assert_allclose(net(x), wanted(net, x), rtol=1e-4, atol=1e-4)


def run_of(net: es.nn.Module) -> Executable:

    run = program_of(net)
    return run


class Counted:
    """Counts how often constants are prepared."""

    def __init__(self, monkeypatch):
        self.count = 0
        before = Constants.prepare

        def counted(constants: Constants, binding: Any, *args: Any) -> None:
            time = binding.prepared
            before(constants, binding, *args)
            self.count += binding.prepared != time

        monkeypatch.setattr(Constants, "prepare", counted)

    def during(self, f: Callable[[], Any]) -> int:
        before = self.count
        f()
        return self.count - before


@pytest.fixture
def counted(monkeypatch) -> Counted:
    return Counted(monkeypatch)


def test_constants_are_computed_once(network, x, counted) -> None:
    assert counted.during(lambda: check(network, x)) == 1
    assert counted.during(lambda: [network(x) for _ in range(3)]) == 0
    run = run_of(network)
    assert run.constants.first is not None and run.binding.preparation is not None and run.binding.kept.nbytes > 0
    assert counted.during(lambda: network.predict(x)) == 0


def in_place(net: Network) -> None:
    net.conv.weight.data[1] *= 3


def kept_view(net: Network) -> Callable[[], None]:
    view = net.last.weight.data[7:9].T

    def change() -> None:
        view[...] += 1

    return change


CHANGES: dict[str, Callable[[Network], Any]] = {
    "data in place": in_place,
    "data set": lambda net: setattr(net.last.weight, "data", np.ones(net.last.weight.shape, np.float32)),
    "running statistics": lambda net: setattr(net.norm, "running_var", np.full(24, 3.0, np.float32)),
    "state": lambda net: net.load_state_dict({n: np.asarray(v) * 2 for n, v in net.state_dict().items()}),
    "initialisation": lambda net: es.nn.init.constant_(net.last.weight, 0.25),
    "another layout": lambda net: net.last.weight.store_as(None),
    "another parameter": lambda net: setattr(net.last, "bias", es.nn.Parameter(np.ones(200, np.float32))),
    "through NumPy": lambda net: np.copyto(net.norm.weight.data, 5.0),
    "through a memoryview": lambda net: memoryview(net.norm.bias.data).cast("B").cast("f").__setitem__(0, 7.0),
}


@pytest.mark.parametrize("way", CHANGES)
def test_a_change_is_followed(network, x, way) -> None:
    check(network, x)
    before = network(x)
    CHANGES[way](network)
    check(network, x)
    assert way == "another layout" or not np.array_equal(network(x), before)


def test_a_change_through_an_array_that_was_taken_earlier_is_followed(network, x, counted) -> None:
    change = kept_view(network)
    check(network, x)
    for _ in range(3):
        change()
        check(network, x)
    del change
    network(x)
    assert counted.during(lambda: [network(x) for _ in range(3)]) == 0


def test_a_change_through_torch_is_followed(network, x, torch) -> None:
    shared = torch.from_numpy(network.last.weight.data)
    check(network, x)
    shared.mul_(-2)
    check(network, x)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("options", ({}, {"deterministic": True}, {"accumulate": 2}), ids=str)
def test_training_is_followed(network, x, rng, options) -> None:
    step = es.TrainStep(network, F.cross_entropy, es.optim.SGD(lr=0.1), **options)
    y = rng.integers(0, 200, len(x))
    for _ in range(3):
        check(network.eval(), x)
        for _ in range(2):
            network.train()
            step(x, y)
    check(network.eval(), x)


def test_averages_of_weights_are_followed(network, x, rng) -> None:
    step = es.TrainStep(network, F.cross_entropy, es.optim.SGD(lr=0.1), ema=0.5)
    step(x, rng.integers(0, 200, len(x)))
    check(network.eval(), x)
    with step.averaged():
        check(network, x)
    check(network, x)


def test_a_thread_that_changes_parameters_is_followed(network, x) -> None:
    check(network, x)
    for _ in range(3):
        thread = threading.Thread(target=in_place, args=(network,))
        thread.start()
        thread.join()
        check(network, x)


def test_two_networks_in_turns_are_prepared_once_each(network, x, counted, rng) -> None:
    other = Network().eval()
    network(x), other(x)
    assert counted.during(lambda: [net(x) for _ in range(3) for net in (network, other)]) == 0


def test_shapes_share_parameters_and_their_arena(network, x) -> None:
    for n in (5, 1, 3, 5, 1):
        check(network, x[:n])
    network.last.weight.data *= 2
    for n in (1, 5, 3):
        check(network, x[:n])


def test_what_changes_all_the_time_is_prepared_no_more(network, x, counted) -> None:
    view = network.last.weight.data[3]
    for n in range(3 * MOST_VAIN):
        view[...] = n
        check(network, x)
    run = run_of(network)
    assert run.constants is None
    assert counted.during(lambda: network(x)) == 0
    del view
    network.norm.weight.data *= 2
    check(network, x)


def test_another_program_that_stores_changes_nothing_here(network, x, counted, rng) -> None:
    other = es.nn.BatchNorm1d(6)
    z = rng.standard_normal((9, 6), np.float32)
    step = es.TrainStep(es.nn.Sequential(es.nn.Linear(6, 3), es.nn.Dropout(0.5)), F.cross_entropy, es.optim.Adam())
    network(x), other(z), step(z, np.zeros(9, np.int64))
    assert counted.during(lambda: (other(z), step(z, np.zeros(9, np.int64)), network(x))) == 0


def test_a_run_that_is_interrupted_after_it_has_stored_is_followed(rng, monkeypatch) -> None:
    norm, x = es.nn.BatchNorm1d(6), rng.standard_normal((9, 6), np.float32)
    evaluated = es.jit(lambda x: F.batch_norm(x, norm.running_mean, norm.running_var))
    evaluated(x), norm(x)
    run = run_of(norm)
    whole = run.binding.program.run

    def interrupted() -> int:
        whole()
        raise KeyboardInterrupt

    monkeypatch.setattr(run.binding.program, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        norm(x)
    want = (x - norm.running_mean.numpy()) / np.sqrt(norm.running_var.numpy() + 1e-5)
    np.testing.assert_allclose(evaluated(x), want, rtol=1e-5, atol=1e-5)


def test_timing_leaves_constants_as_they_are(network, x) -> None:
    check(network, x)
    network.norm.running_mean.data[...] = 2
    run_of(network).time_calls([x], 2)
    check(network, x)


def test_what_is_kept_counts_towards_the_bound_of_programs(network, x) -> None:
    check(network, x)
    run = run_of(network)
    assert run.nbytes > run.binding.kept.nbytes > network.last.weight.memory.physical.nbytes // 2


def test_what_a_graph_stores_is_no_constant(rng) -> None:
    norm = es.nn.BatchNorm1d(6)
    x = rng.standard_normal((9, 6), np.float32)
    norm(x)
    run = run_of(norm)
    assert run.constants is None
    first = np.array(norm.running_mean)
    norm(x)
    assert not np.array_equal(first, np.array(norm.running_mean))


def test_a_gradient_reads_present_parameters(network, x) -> None:
    """A function of one's own, whose user changes parameters between calls as an optimizer does."""

    @es.jit
    def norms(x):
        return (network.last.weight * network.last.weight).sum() + x.sum()

    for _ in range(3):
        want = (np.asarray(network.last.weight, np.float64) ** 2).sum() + x.sum(dtype=np.float64)
        np.testing.assert_allclose(norms(x), want, rtol=1e-4)
        network.last.weight.data -= 0.1


def test_a_split_graph_computes_the_same(network, x) -> None:
    traced = trace_call(network, (x,), {})
    first, then = split_constants(traced.graph, set(traced.bind))
    assert first is not None and not first.outputs
    given = [traced.bind.get(p) for p in first.inputs]
    inputs = [np.zeros(p.shape) if a is None else a for p, a in zip(first.inputs, given, strict=True)]
    values = evaluate(first, inputs)[1]
    known = {**traced.bind, **dict(zip((p for p, _ in first.updates), values, strict=True)), traced.graph.inputs[0]: x}
    (got,), _ = evaluate(then, [known[p] for p in then.inputs])
    np.testing.assert_allclose(got, wanted(network, x), rtol=1e-6, atol=1e-6)


def test_what_is_larger_than_its_constants_stays() -> None:
    v = leaf((2000,), f32)

    def split(f: Callable) -> tuple[Graph | None, Graph]:
        from einsmith.tracing.builder import Value

        return split_constants(Graph((v,), (f(Value(v)).tensor,), (), ()), {v})

    first, _ = split(lambda a: F.exp(a))
    assert first is not None
    first, then = split(lambda a: F.exp(a).reshape((2000, 1)) * F.exp(a).reshape((1, 2000)))
    assert first is not None and all(p.shape == (2000,) for p, _ in first.updates)
    first, _ = split(lambda a: a.reshape((40, 50)))
    assert first is None
    first, _ = split(lambda a: a.reshape((40, 50)).transpose(0, 1))
    assert first is None


def test_a_watch_tells_of_every_change() -> None:
    memory = Memory((3, 4), np.dtype(np.float32))
    memory.store(0)
    watch = ChangeWatch([memory])
    time = watch.time()
    assert watch.time() == time

    def is_noticed() -> bool:
        nonlocal time
        before, time = time, watch.time()
        return before != time

    memory.store(1)
    assert is_noticed() and not is_noticed()
    memory.copy()
    assert not is_noticed()
    row = memory.logical()[1]
    assert is_noticed() and is_noticed() and is_noticed()
    del row
    assert is_noticed() and not is_noticed()
    place = np.zeros((3, 4), np.float32)
    elsewhere = ChangeWatch([Memory((3, 4), np.dtype(np.float32), place=place)])
    assert elsewhere.time() != elsewhere.time()


def test_weights_that_a_recurrence_reads_in_parts_are_parted_once(rng, counted) -> None:
    class Stacked(es.nn.Module):
        def __init__(self) -> None:
            self.w = es.nn.Parameter(rng.standard_normal((2, 24, 24), np.float32) / 5)

        def forward(self, x):
            def run(w):
                op = es.op("h[t,j] = tanh(x[t,j] + sum[k](where(t > 0, h[t-1,k], 0)*w[j,k]))")
                return op(x, w)

            return run(self.w[0]) + run(self.w[1])

    net, x = Stacked().eval(), rng.standard_normal((7, 24), np.float32)

    def want() -> np.ndarray:
        out = 0.0
        for w in net.w.data.astype(np.float64):
            h = [np.zeros(24)]
            for row in x:
                h.append(np.tanh(row + w @ h[-1]))
            out = out + np.array(h[1:])
        return out

    np.testing.assert_allclose(net(x), want(), rtol=1e-4, atol=1e-5)
    run = run_of(net)
    assert run.constants.first is not None and len(run.constants.first.bindings[0].compiled.source_graph.updates) == 2
    net(x)  # `want` has taken the array
    assert counted.during(lambda: net(x)) == 0
    net.w.data[1] *= 0.5
    np.testing.assert_allclose(net(x), want(), rtol=1e-4, atol=1e-5)


class Grid(es.nn.Module):
    """A recurrence over rows and columns: a step of the loop over rows is a loop over columns. `v` is no constant."""

    def __init__(self) -> None:
        self.w, self.u = (es.nn.Parameter(np.empty((24, 24), np.float32)) for _ in range(2))

    def forward(self, x, v):
        op = es.op(
            """
            a[s,t,j] = sum[k](where(t > 0, h[s,t-1,k], 0)*w[j,k]) + sum[k](where(s > 0, h[s-1,t,k], 0)*u[j,k])
            h[s,t,j] = tanh(x[s,t,j] + v[j] + a[s,t,j])
            return h
            """
        )
        return op(x=x, v=v, w=self.w, u=self.u)


class Mixed(es.nn.Module):
    """A recurrence whose step multiplies by a parameter, by an input, and by their product."""

    def __init__(self) -> None:
        self.w = es.nn.Parameter(np.empty((24, 24), np.float32))

    def forward(self, x, v):
        op = es.op(
            """
            p[t,k] = where(t > 0, h[t-1,k], 0)
            q[t,j] = sum[k](p[t,k]*w[j,k])
            r[t,j] = sum[k](q[t,k]*v[j,k])
            h[t,j] = tanh(x[t,j] + r[t,j] + sum[k](r[t,k]*w[j,k]*v[j,k]))
            return h
            """
        )
        return op(x=x, v=v, w=self.w)


RECURRENT: dict[str, tuple[Callable[[], es.nn.Module], tuple[tuple[int, ...], ...]]] = {
    "LSTM": (lambda: es.nn.LSTM(20, 24), ((7, 3, 20),)),
    "GRU, both directions": (lambda: es.nn.GRU(20, 24, 2, bidirectional=True), ((6, 2, 20),)),
    "subLSTM": (lambda: es.nn.SubLSTM(20, 24), ((9, 1, 20),)),
    "LLTM": (lambda: es.nn.LLTM(20, 64), ((9, 2, 20),)),
    "few steps": (lambda: es.nn.LSTM(20, 24), ((2, 3, 20),)),
    "loop in a loop": (Grid, ((5, 6, 24), (24,))),
    "inputs and parameters": (Mixed, ((8, 24), (24, 24))),
}
"""Networks by name, with the shapes of their inputs."""


def recurrent(name: str, rng: np.random.Generator) -> tuple[es.nn.Module, list[np.ndarray]]:
    make, shapes = RECURRENT[name]
    net = make().eval()
    for p in net.parameters():
        p.data = (rng.standard_normal(p.shape) / 5).astype(np.float32)
    return net, [rng.standard_normal(s, np.float32) / 4 for s in shapes]


def check_evaluated(net: es.nn.Module, inputs: list[np.ndarray]) -> None:
    """Compare with the evaluation of the formula in float64."""
    traced = trace_call(net, tuple(inputs), {})
    given = iter(inputs)
    values = [traced.bind[p] if p in traced.bind else next(given) for p in traced.graph.inputs]
    want, _ = evaluate(traced.graph, values)
    del traced, values
    for _ in range(2):
        for a, b in zip(flatten(net(*inputs))[0], want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def packed_in_each_run(run: Executable) -> list[KernelCall]:
    """The calls whose loop-invariant operands are packed in each run, before their loop."""
    launches = [run.compiled.code[c.kernel].launches for c in run.calls]
    steps = np.bincount(run.binding.call_of_step, minlength=len(launches) + 1)
    return [
        call
        for call, n, some in zip(run.calls, steps, launches, strict=False)
        if any(once for _, _, once in some) and n == len(some)
    ]


def kept_in_loops(places: ArenaLayout) -> int:
    """The number of workspaces of loops' kernels that last from run to run."""
    return sum(len(x.kept) + kept_in_loops(x) for x in places.inner.values())


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", RECURRENT)
def test_what_a_loop_makes_of_constants_follows_them(name, rng) -> None:
    net, inputs = recurrent(name, rng)
    check_evaluated(net, inputs)
    for p in net.parameters():
        p.data[...] *= -1
        check_evaluated(net, inputs)
    net.load_state_dict({n: np.asarray(v) / 2 for n, v in net.state_dict().items()})
    check_evaluated(net, inputs)
    first = inputs[0]
    for n in (first.shape[0] + 3, 1, first.shape[0]):
        check_evaluated(net, [rng.standard_normal((n, *first.shape[1:]), np.float32), *inputs[1:]])
    next(iter(net.parameters())).data *= 3
    check_evaluated(net, inputs)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "name, products", [("LSTM", 1), ("GRU, both directions", 4), ("subLSTM", 1), ("LLTM", 1), ("loop in a loop", 2)]
)
def test_loops_pack_constants_once_for_all_runs(name, products, rng, counted) -> None:
    net, inputs = recurrent(name, rng)
    net(*inputs)
    run = run_of(net)
    assert not packed_in_each_run(run)
    assert kept_in_loops(run.compiled.places) >= products
    assert counted.during(lambda: net(*inputs)) == 0


def test_loops_pack_what_is_no_constant_in_each_run(rng) -> None:
    net, (x, v) = recurrent("inputs and parameters", rng)
    net(x, v)
    packed = packed_in_each_run(run_of(net))
    assert packed
    check_evaluated(net, [x, v])
    check_evaluated(net, [x, rng.standard_normal(v.shape, np.float32)])


def test_a_loop_in_training_is_followed(rng) -> None:
    net, inputs = recurrent("LSTM", rng)
    step = es.TrainStep(net, lambda out, y: F.mse_loss(out[0], y), es.optim.SGD(lr=0.5))
    y = rng.standard_normal((7, 3, 24), np.float32)
    for _ in range(3):
        before = net.eval()(*inputs)[0]
        check_evaluated(net, inputs)
        net.train()
        step(*inputs, y)
        assert not np.array_equal(before, net.eval()(*inputs)[0])
    check_evaluated(net, inputs)


def test_loops_of_checked_programs_keep_nothing(rng, monkeypatch) -> None:
    monkeypatch.setenv("EINSMITH_CHECK", "1")
    net, inputs = recurrent("loop in a loop", rng)
    check_evaluated(net, inputs)
    assert not run_of(net).binding.kept.nbytes


def test_loops_pack_the_same_bits_for_all_runs_as_in_each(rng) -> None:
    """A program that keeps nothing is the one that nothing is constant in, with the same kernels in its loop."""
    net, inputs = recurrent("LSTM", rng)
    kept = net(*inputs)
    run = run_of(net)
    run._forget_constants()
    assert packed_in_each_run(run) and not run.binding.kept.nbytes
    for a, b in zip(flatten(kept)[0], flatten(net(*inputs))[0], strict=True):
        np.testing.assert_array_equal(a, b)


class Rows(es.nn.Module):
    """Rows of a table at places that a buffer holds."""

    def __init__(self):
        self.table = es.nn.Parameter(np.arange(6.0).reshape(3, 2))
        self.register_buffer("places", np.array([2, 0, 2]))

    def forward(self, x):
        return x * es.functional.index_select(self.table, 0, self.places)


def test_indices_of_a_buffer_are_checked_in_gradients() -> None:
    """The check depends on constants alone, and the gradient reads no row."""
    rows = Rows()
    gradient = es.grad(lambda p, x: es.nn.functional_call(rows, p, x).sum())
    table = {"table": rows.table.numpy()}
    np.testing.assert_array_equal(gradient(table, np.ones((3, 2)))["table"], [[1, 1], [0, 0], [2, 2]])
    rows.places.data = np.array([0, 3, 0])
    with pytest.raises(es.IndexOutOfRange):
        gradient(table, np.ones((3, 2)))


class Adapted(es.nn.Module):
    """A frozen product large enough to be packed once in bfloat16, a frozen norm, and small products that train."""

    def __init__(self, keep: str | None = None) -> None:
        self.down, self.up = es.nn.Linear(192, 8, bias=False), es.nn.Linear(8, 192, bias=False)
        self.norm, self.large = es.nn.LayerNorm(192), es.nn.Linear(192, 192)
        es.nn.freeze(self, ["norm.*", "large.*"], keep=keep)

    def forward(self, x):
        return x + self.large(self.norm(x + self.up(self.down(x))))


def adapted_losses(
    rng: np.random.Generator, change: Callable[[Adapted], Any] = lambda net: None, **settings: Any
) -> tuple[list[float], es.TrainStep, Adapted]:
    """Return the losses of six steps, the frozen weights being changed after three of them."""
    es.manual_seed(5)
    net = Adapted(settings.pop("keep", None))
    step = es.TrainStep(net, F.mse_loss, es.optim.Adam(lr=1e-3), **settings)
    x = rng.standard_normal((200, 192), np.float32)
    losses = []
    for n in range(6):
        if n == 3:
            change(net)
        losses.append(step(x, np.roll(x, 1, 1)))
    return losses, step, net


def program_of_step(step: es.TrainStep) -> Any:
    return next(iter(step.compiler.programs.items()))[1]


FROZEN_CHANGES: dict[str, Callable[[Adapted], Any]] = {
    "nothing": lambda net: None,
    "data in place": lambda net: net.large.weight.data.__imul__(-2),
    "state": lambda net: net.load_state_dict({n: np.asarray(v) * 2 for n, v in net.state_dict().items()}),
    "trained again": lambda net: setattr(net.large.weight, "requires_grad", True),
}


@pytest.mark.parametrize("way", FROZEN_CHANGES)
def test_frozen_weights_of_a_step_are_packed_once_and_followed(way, rng, counted, monkeypatch) -> None:
    monkeypatch.setattr("einsmith.schedule.pipeline.LEAST_SAVED", 1e-9)
    state = rng.bit_generator.state
    losses, step, _ = adapted_losses(rng, FROZEN_CHANGES[way], precision="bf16")
    if way == "nothing":
        run = program_of_step(step)
        assert run.constants is not None and run.binding.kept.nbytes >= 192 * 192 * 2 and counted.count == 1
    monkeypatch.setattr("einsmith.schedule.pipeline.LEAST_SAVED", 2.0)
    rng.bit_generator.state = state
    unpacked, step, _ = adapted_losses(rng, FROZEN_CHANGES[way], precision="bf16")
    assert program_of_step(step).constants is None
    np.testing.assert_allclose(losses, unpacked, rtol=1e-5)


def test_a_step_packs_frozen_weights_once_where_a_memory_limit_allows_it(rng, monkeypatch) -> None:
    monkeypatch.setattr("einsmith.schedule.pipeline.LEAST_SAVED", 1e-9)
    state = rng.bit_generator.state
    losses, step, _ = adapted_losses(rng, precision="bf16", memory_limit=1 << 26)
    run = program_of_step(step)
    assert run.binding.kept.nbytes >= 192 * 192 * 2 and run.held_bytes <= 1 << 26
    for limit, packs_once in ((run.held_bytes, True), (run.held_bytes - 1, False)):
        rng.bit_generator.state = state
        limited, step, _ = adapted_losses(rng, precision="bf16", memory_limit=limit)
        run = program_of_step(step)
        assert (run.constants is not None and run.binding.kept.nbytes > 0) == packs_once
        assert run.held_bytes <= limit
        np.testing.assert_allclose(limited, losses, rtol=1e-5)


class Repeated(Adapted):
    """The frozen product of several inputs, of which some are in kernels that are equal."""

    def forward(self, x):
        y = x + self.up(self.down(x))
        for _ in range(3):
            y = es.relu(self.large(y))
        return x + y


def test_equal_kernels_share_what_they_pack_of_a_frozen_weight(rng, monkeypatch) -> None:
    """Forward passes that checkpoints run again have kernels that are equal, too."""
    monkeypatch.setattr("einsmith.schedule.pipeline.LEAST_SAVED", 1e-9)
    x, losses = rng.standard_normal((200, 192), np.float32), []
    for apart in (False, True):
        if apart:
            monkeypatch.setattr("einsmith.schedule.plan.KernelCall.invariant_operands", property(unshared_operands))
        es.manual_seed(5)
        step = es.TrainStep(Repeated(), F.mse_loss, es.optim.Adam(lr=1e-3), precision="bf16")
        losses.append([step(x, np.roll(x, 1, 1)) for _ in range(4)])
        run = program_of_step(step)
        packed = [*run.binding.compiled.places.kept.values()]
        assert (len(packed) == len(set(packed))) == apart
    assert losses[0] == losses[1]


INVARIANT_OPERANDS = KernelCall.invariant_operands.fget


def unshared_operands(call: KernelCall) -> list[tuple[Any, int]]:
    return [(t, id(call)) for t, _ in INVARIANT_OPERANDS(call)]


def test_weights_that_train_are_not_packed_while_gradients_are_gathered(rng, monkeypatch) -> None:
    """Their programs read them alone; an update changes them all the same."""
    monkeypatch.setattr("einsmith.schedule.pipeline.LEAST_SAVED", -1.0)
    net = Adapted()
    step = es.TrainStep(net, F.mse_loss, es.optim.SGD(lr=1e-3), accumulate=2, precision="bf16")
    x = rng.standard_normal((200, 192), np.float32)
    for _ in range(4):
        step(x, x)
    programs = [run for _, run in step.compiler.programs.items()]
    kept = {id(run.memory.arrays[t]) for run in programs if run.constants for t in run.constants.leaves}
    trained = {id(p.memory.physical) for p in net.parameters() if p.requires_grad}
    assert kept and kept.isdisjoint(trained)


def test_a_step_stores_no_second_copy_of_a_frozen_weight_in_another_type(rng) -> None:
    _, step, net = adapted_losses(rng, precision="bf16")
    constants = program_of_step(step).constants
    assert constants is None or all(a.nbytes < net.large.weight.data.nbytes // 2 for a in constants.arrays.values())


@pytest.mark.parametrize("keep", ["bf16", "int8"])
def test_steps_with_kept_weights_equal_steps_with_their_rounded_values(keep, rng) -> None:
    state = rng.bit_generator.state
    losses, _, net = adapted_losses(rng, keep=keep)
    rounded = net.large.weight.numpy()
    rng.bit_generator.state = state

    def put(other: Adapted) -> None:
        other.large.weight.data = rounded

    es.manual_seed(5)
    other = Adapted()
    put(other)
    step = es.TrainStep(other, F.mse_loss, es.optim.Adam(lr=1e-3))
    x = rng.standard_normal((200, 192), np.float32)
    np.testing.assert_allclose(losses, [step(x, np.roll(x, 1, 1)) for _ in range(6)], rtol=1e-5)
