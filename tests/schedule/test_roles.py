"""Forward, backward and update: roles of nodes through the passes, and of kernels."""

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.driver.executable import Executable
from einsmith.ir.nodes import Axis, Compute, Graph, Leaf, Read, Reduce, apply, leaf, nbytes, postorder, template
from einsmith.ir.rebuild import exchanged
from einsmith.ir.views import storage
from einsmith.kernels.autoconfig import predicted
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.plan import LoopCall
from einsmith.schedule.planner import fuse
from einsmith.schedule.roles import saved_results
from einsmith.training.definition import batch_arrays


def pointwise(fn: str, *args):
    """fn of tensors of one shape, element by element."""
    index = tuple(Axis(d) for d in range(len(args[0].shape)))
    body = apply(fn, *(Read(k, index, a.dtype) for k, a in enumerate(args)))
    return Compute(template(args[0].shape, [(a.dtype, a.shape) for a in args], body), args)


def total(x):
    body = Reduce("sum", x.shape, (Read(0, tuple(Axis(d) for d in range(len(x.shape))), x.dtype),))
    return Compute(template((), [(x.dtype, x.shape)], body), (x,))


def test_a_node_has_the_earliest_role_of_what_needs_it():
    x, w, m = leaf((5,), dt.f32), leaf((5,), dt.f32), leaf((5,), dt.f32)
    shared = pointwise("mul", x, w)
    loss = total(shared)
    gradient = pointwise("add", shared, x)
    step = pointwise("add", m, gradient)
    new = pointwise("sub", w, step)
    graph = Graph((x, w, m), (loss,), ((m, step), (w, new)), (), (gradient,))
    wanted = {x: "forward", w: "forward", shared: "forward", loss: "forward", gradient: "backward", m: "update",
              step: "update", new: "update"}  # fmt: skip
    assert graph.role == wanted
    assert set(Graph((x, w, m), (loss,), ((m, step), (w, new)), ()).role.values()) == {"forward", "update"}


def test_replacements_keep_the_role():
    """A gradient that its update takes in, and two that become one tensor, which replaces neither."""
    x, w, m = leaf((5,), dt.f32), leaf((5,), dt.f32), leaf((5,), dt.f32)
    loss = total(x)
    below = pointwise("exp", pointwise("mul", x, w))
    gradient = pointwise("neg", below)
    new = pointwise("sub", w, pointwise("mul", m, gradient))
    graph = Graph((x, w, m), (loss,), ((w, new),), (), (gradient,))

    merged = pointwise("add", w, pointwise("mul", m, below))
    memo = {n: n for n in postorder(graph.roots)} | {new: merged}
    found = exchanged(graph, memo)
    assert found.gradients == (below,)
    assert {n: found.role[n] for n in merged.args[1].args} == {m: "update", below: "backward"}
    assert found.role[merged] == found.role[merged.args[1]] == "update"

    union = pointwise("max", x, x)  # of nothing that the graph had
    fresh = pointwise("sub", w, pointwise("mul", m, union))
    found = exchanged(graph, {x: x, w: w, m: m, loss: loss, new: fresh})
    assert found.role[union] == "backward" and found.role[fresh] == "update"


class Pooled(es.nn.Module):
    """A convolution, centred and pooled: positions in bytes, a running mean, pieces."""

    def __init__(self):
        self.conv, self.out = es.nn.Conv2d(2, 6, 3, padding=1), es.nn.Linear(6 * 16, 5)
        self.mean = es.nn.Buffer(np.zeros(6, np.float32))

    def forward(self, x):
        y = self.conv(x)
        mean = y.mean((0, 2, 3))
        self.mean = self.mean * 0.9 + mean * 0.1
        y = es.functional.max_pool2d(es.functional.relu(y - mean.reshape((6, 1, 1))), 2)
        return self.out(es.functional.flatten(y, 1))


class Cell(es.nn.Module):
    """A recurrence, read at all steps: loops, and chunks of time."""

    def __init__(self):
        self.rnn, self.out = es.nn.LSTM(6, 7), es.nn.Linear(7, 5)

    def forward(self, x):
        return self.out(self.rnn(x)[0].mean(1))


class Words(es.nn.Module):
    """An embedding, whose gradient is a scatter that the update takes in."""

    def __init__(self):
        self.table, self.out = es.nn.Embedding(50, 6), es.nn.Linear(6, 5)

    def forward(self, x):
        return self.out(self.table(x).mean(1))


RNG = np.random.default_rng(0)
NETWORKS = {
    "mlp": (lambda: es.nn.Sequential(es.nn.Linear(9, 15), es.nn.ReLU(), es.nn.Linear(15, 5)),
            RNG.standard_normal((4, 9))),
    "pooled": (Pooled, RNG.standard_normal((3, 2, 8, 8))),
    "recurrent": (Cell, RNG.standard_normal((3, 67, 6))),
    "words": (Words, RNG.integers(0, 50, (3, 7))),
}  # fmt: skip
RULES = {"sgd": lambda: es.optim.SGD(lr=0.1), "momentum": lambda: es.optim.SGD(lr=0.1, momentum=0.9),
         "adam": lambda: es.optim.Adam(lr=0.1)}  # fmt: skip


def trained(name: str, rule: str) -> tuple[es.TrainStep, tuple[np.ndarray, np.ndarray]]:
    make, x = NETWORKS[name]
    x = x.astype(np.float32) if x.dtype.kind == "f" else x
    step = es.TrainStep(make(), es.functional.cross_entropy, RULES[rule](), threads=1)
    return step, (x, np.arange(len(x)) % 5)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NETWORKS)
def test_roles_are_kept_by_every_pass(name, rule):
    """After each pass: the update is what depends on what the update rule alone reads, and no role needs a later one.
    A forward pass made by itself has as many nodes."""
    step, batch = trained(name, rule)
    run = step.compiler.find_or_compile(batch_arrays(batch))
    given = run.source_graph
    rules = {
        memory.ctypes.data
        for memory in (*step.parts.numbers.hyperparameters.values(), *(s.data for s in step.store.state.values()))
    }
    own = {x for x, memory in run.bound.items() if memory.ctypes.data in rules}
    statistics = {x for x, _ in given.updates if x not in own and given.role[x] == "update"}
    assert own and given.gradients and bool(statistics) == (name == "pooled")
    seen = []

    def observe(pass_name, before, after, seconds):
        seen.append(pass_name)
        role = after.role
        above: set = set()
        for node in postorder(after.roots):
            if node in own or any(a in above for a in node.args):
                above.add(node)
        trained = set(postorder([*after.outputs, *(t for x, t in after.updates if x not in statistics)]))
        for node in postorder(after.roots):
            if not isinstance(node, Leaf):
                assert (role[node] == "update") == (node in above or node not in trained), (pass_name, node)
            order = ["forward", "backward", "update"]
            assert all(order.index(role[a]) <= order.index(role[node]) for a in node.args), (pass_name, node)
        alone = postorder([*after.outputs, *(t for t, _ in after.checks)])
        assert {n for n, r in role.items() if r == "forward"} == set(alone)

    run_passes(given, PassContext(run.target, predicted, observe))
    assert len(seen) > 10


@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_and_their_times_have_a_part(name):
    step, batch = trained(name, "momentum")
    profile = step.profile(*batch, repeats=2)
    run = step.compiler.find_or_compile(batch_arrays(batch))
    assert len(run.roles) == len(run.kernels) == len(profile.rows) and [r[0] for r in profile.rows] == run.roles
    assert {"forward", "backward"} <= set(run.roles)
    assert sum(map(profile.part, ("forward", "backward", "update"))) == pytest.approx(sum(r[3] for r in profile.rows))
    lines = step.plan.splitlines()
    kernels = [x for x in lines if " tasks " in x]
    assert [x.split()[1] for x in kernels] == run.roles
    assert [x.split()[0] for x in lines[-3:]] == ["forward", "backward", "update"]


def test_the_forward_part_is_the_forward_pass():
    """A step's forward kernels are those of the loss alone."""
    step, batch = trained("mlp", "momentum")
    run = step.compiler.find_or_compile(batch_arrays(batch))
    given = run.source_graph
    alone = Executable(Graph(given.inputs, given.outputs, (), given.checks), run.bound, 1)
    forward = [c for c, r in zip(run.calls, run.roles, strict=True) if r == "forward"]
    assert len(forward) == len(alone.calls) > 2


def test_kernels_of_one_loop_have_roles_of_their_own():
    """A recurrence that makes the loss and what only a gradient reads: a step's kernels are told apart."""
    step, batch = trained("recurrent", "sgd")
    run = step.compiler.find_or_compile(batch_arrays(batch))
    loops = [c for c in run.plan.calls if isinstance(c, LoopCall)]
    inside = {r for (i, _, _), r in zip(run.plan.kernel_calls(), run.roles, strict=True)
              if isinstance(run.plan.calls[i], LoopCall)}  # fmt: skip
    assert loops and inside >= {"forward", "backward"}


def test_a_program_without_gradients_is_all_forward():
    x = leaf((5,), dt.f32)
    run = Executable(Graph((x,), (total(x),), (), ()), {}, 1)
    assert set(run.roles) == {"forward"} and "forward" not in run.describe()


def test_tensors_held_for_the_backward_pass():
    """The input's positions and what the batch normalisation reads; not the loss, nor what only gradients read."""
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((3, 2, 8, 8)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)
    step = es.TrainStep(Pooled(), es.functional.mse_loss, es.optim.SGD(lr=0.1), threads=1)
    step.compile(x, y)
    (run,) = step.compiler.programs.values()
    held = saved_results(run.plan)
    role, graph = run.plan.graph.role, run.plan.graph
    later = {storage(a) for n in postorder(graph.roots) if role[n] != "forward" for a in n.args}
    assert held and set(held) <= later and not any(isinstance(t, Leaf) for t in held)
    assert storage(graph.outputs[0]) not in held
    mib = sum(map(nbytes, held)) / 2**20
    assert f"held for the backward pass: {len(held)} tensors, {mib:.2f} MiB" in step.plan


def test_a_forward_pass_alone_holds_nothing():
    x = leaf((5,), dt.f32)
    assert saved_results(fuse(Graph((x,), (pointwise("neg", x),), (), ()))) == []
