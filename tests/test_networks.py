"""Training steps of the test networks against the evaluator: whole steps, and every kernel by itself.

Both for 1 and 2 threads, at batches below, at and above the width of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import einsmith as es
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, Item, Leaf, Tensor, leaf
from einsmith.schedule.plan import KernelCall
from tests.fuzz.check import agree

BATCHES = (1, 3, 16, 17)


@dataclass
class Traced:
    """A training step before it is compiled, its program for one thread, and the batch that it is for."""

    graph: Graph
    bind: dict[Leaf, np.ndarray]
    finite: Tensor
    run: Executable
    batch: list[np.ndarray]

    def inputs(self) -> list[np.ndarray]:
        """Arrays of all of the graph's inputs, copied: the bound ones change as the step runs."""
        return [*self.batch, *(self.bind[x].copy() for x in self.graph.inputs[len(self.batch) :])]


def trace(name: str, batch: int, dtype: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Traced:
    """The graph of one step of SGD with momentum, and of Adam for batches of more than 3; biases, moments and so on
    hold random numbers."""
    es.manual_seed(batch)
    optimizer = es.optim.SGD(lr=0.05, momentum=0.9, weight_decay=1e-4) if batch <= 3 else es.optim.Adam(lr=1e-3)
    step = es.TrainStep(es.models.get(name).to(dtype), es.functional.cross_entropy, optimizer, threads=1)
    found = []

    class Spy(Executable):
        def __init__(self, graph, bind, threads, finite=None, target=None, **options):
            super().__init__(graph, bind, threads, finite, target, **options)
            found.append((graph, bind, finite, self))

    monkeypatch.setattr("einsmith.training.compiler.Executable", Spy)
    arrays = [rng.standard_normal((batch, 1, 28, 28)).astype(dtype), rng.integers(0, 10, batch)]
    step.compile(*arrays)
    step.parts.set_numbers(arrays)
    for _, a in step.store.arrays():
        if not a.any():  # a state that begins at zero; Adam's second moment is never negative
            a += (0.05 * np.abs(rng.standard_normal(a.shape))).astype(a.dtype)
    return Traced(*found[0], arrays)


ALWAYS = {("float64", 17), ("float32", 3)}
"""Both types with both optimizers; the others are slow."""
STEPS = [
    pytest.param(dtype, batch, marks=() if (dtype, batch) in ALWAYS else pytest.mark.slow)
    for dtype in ("float64", "float32")
    for batch in BATCHES
]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype,batch", STEPS)
@pytest.mark.parametrize("name", ["mlp3", "lenet5"])
def test_steps_equal_the_evaluator(name, dtype, batch, rng, monkeypatch):
    t = trace(name, batch, dtype, rng, monkeypatch)
    before = t.inputs()
    want = [a for part in evaluate(t.graph, before) for a in part] if dtype == "float32" else []
    for threads in (1, 2):
        for x, a in zip(t.graph.inputs[len(t.batch) :], before[len(t.batch) :], strict=True):
            t.bind[x][...] = a
        run = t.run if threads == 1 else Executable(t.graph, t.bind, threads, finite=t.finite)
        status, outputs = run(t.batch)
        assert status == 0
        result = [*outputs, *(t.bind[p] for p, _ in t.graph.updates)]
        if dtype == "float64":
            agree(result, t.graph, before, f"{threads} threads")
        else:  # roundings may turn a ReLU or the choice of a maximum, which moves single elements
            for got, exact in zip(result, want, strict=True):
                assert np.linalg.norm(got - exact) <= 2e-5 * np.linalg.norm(exact)


KERNELS = {("lenet5", 3)}
"""The others are slow."""


@pytest.mark.parametrize(
    "name,batch",
    [
        pytest.param(name, batch, marks=() if (name, batch) in KERNELS else pytest.mark.slow)
        for name in ("mlp3", "lenet5")
        for batch in BATCHES
    ],
)
def test_kernels_equal_the_evaluator(name, batch, rng, monkeypatch):
    t = trace(name, batch, "float32", rng, monkeypatch)
    values = _intermediate(t.run, t.inputs())
    kernels = {call.kernel: call for call in t.run.plan.calls}
    assert len(kernels) > 5
    for call in kernels.values():
        _check_kernel(call, values)


def _intermediate(run: Executable, inputs: list[np.ndarray]) -> dict[Tensor, np.ndarray]:
    """What every tensor that some kernel reads is, by the evaluator, rounded to the tensor's type."""
    wanted = {t: None for c in run.plan.calls for t, w in zip(c.tensors, c.written, strict=True) if not w}
    outputs, _ = evaluate(Graph(run.graph.inputs, tuple(wanted), (), ()), inputs)
    return {t: np.asarray(a).astype(t.dtype.numpy) for t, a in zip(wanted, outputs, strict=True)}


def _check_kernel(call: KernelCall, values: dict[Tensor, np.ndarray]) -> None:
    """A kernel's stages as a graph of their own, compiled and compared for 1 and 2 threads."""
    given = {t: leaf(t.shape, t.dtype) for t, w in zip(call.tensors, call.written, strict=True) if not w}
    made: dict[Compute, Compute] = {}

    def inside(a: Tensor) -> Tensor:
        if a in given:
            return given[a]
        if isinstance(a, Item):
            return Item(made[a.node], a.member)
        return made[a] if a in made else Compute(a.template, (inside(a.args[0]),))  # a view of what is made here

    for node in call.nodes:
        made[node] = Compute(node.template, tuple(map(inside, node.args)))
    outputs = []
    for t, written in zip(call.tensors, call.written, strict=True):
        if written:
            outputs.append(Item(made[t.node], t.member) if isinstance(t, Item) else made[t])
    graph = Graph(tuple(given.values()), tuple(outputs), (), ())
    arrays = [values[t] for t in given]
    for threads in (1, 2):
        run = Executable(graph, {}, threads)
        agree(run(arrays)[1], graph, arrays, f"{threads} threads: {call.kernel.root}")
