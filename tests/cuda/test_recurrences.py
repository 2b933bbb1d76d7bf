"""Recurrences on a card, each loop as one cooperative launch: they give what the CPU gives, and need every grid
barrier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
import einsmith.functional as F
from einsmith.base.trees import flatten
from einsmith.codegen.ssa import operations
from einsmith.driver.cuda import Cuda
from einsmith.gpu.cuda import launches
from einsmith.gpu.cuda.card_program import CudaProgram
from einsmith.gpu.cuda.executable_graph import ExecutableGraph
from einsmith.gpu.cuda.launches import TileCode
from einsmith.gpu.tiles.persistent import Persistent
from einsmith.gpu.tiles.triton_text import triton_text
from einsmith.runtime.steps import BeginLoop
from tests.lang.recurrences import CASES
from tests.passes.ragged import gru
from tests.programs import program_of
from tests.tiles import card as tiles_card
from tests.tiles.memory import Fault
from tests.tiles.test_persistent import without_barrier

Insert = Callable[..., Cuda]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loop that can becomes one launch, whether it pays or not."""
    monkeypatch.setattr(launches, "pays", lambda loop, turns: True)


def persistent(program: CudaProgram) -> list[TileCode]:
    """The loops that are one launch."""
    return [x.code for x in program.launches if x.code.function.cooperative]


def loops(program: CudaProgram) -> int:
    """How many loops of at least two turns there are."""
    return sum(isinstance(s, BeginLoop) and s.most > 1 for s in program.steps)


def programs_of(run: es.TrainStep) -> Iterator[CudaProgram]:
    return iter({id(x.program): x.program for x in run.compiler.programs.values()}.values())  # type: ignore[misc]


def trained(name: str, hidden: int, device: str) -> tuple[es.TrainStep, list[float]]:
    es.manual_seed(3)
    net = getattr(es.models, name)(input_size=3, hidden_size=hidden, classes=4)
    x = default_rng(5).standard_normal((7, 6, 3)).astype(np.float32)
    step = es.TrainStep(net, F.cross_entropy, es.optim.SGD(lr=0.1), device=device)
    return step, [step(x, np.arange(7) % 4) for _ in range(2)]


@pytest.mark.parametrize(
    ("name", "hidden", "options"),
    [
        pytest.param("milstm", 37, {"multiprocessors": 2}, marks=pytest.mark.slow),
        ("scrn", 5, {"multiprocessors": 1}),
        pytest.param("sublstm", 33, {"multiprocessors": 3, "way": "text"}, marks=pytest.mark.slow),
        ("lltm", 19, {"multiprocessors": 132}),
    ],
)
def test_recurrent_networks_train_as_on_the_cpu(
    name: str, hidden: int, options: dict, card: Insert, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many multiprocessors as a card has, each loop becomes one launch because that pays."""
    if options["multiprocessors"] < 132:
        monkeypatch.setattr(launches, "pays", lambda loop, turns: True)
    plain, wanted = trained(name, hidden, "cpu")
    card(**options)
    step, losses = trained(name, hidden, "cuda")
    np.testing.assert_allclose(losses, wanted, rtol=2e-5)
    for key, value in plain.model.state_dict().items():
        np.testing.assert_allclose(step.model.state_dict()[key], value, rtol=1e-3, atol=2e-5, err_msg=key)
    (program,) = programs_of(step)
    assert len(persistent(program)) == loops(program) >= 2
    assert all(program.describe([x.step]) for x in program.launches if x.code.function.cooperative)


def of_ragged_batch(reverse: bool, device: str) -> tuple[Callable, list[np.ndarray]]:
    op, rng = gru(5, reverse), default_rng(2)

    def f(x, w, u, h0, lengths):
        def loss(*floats):
            out = op(**dict(zip("xWU", floats, strict=False)), h0=floats[3], lengths=lengths)
            return (out[0 if reverse else -1] ** 2).sum()

        return es.value_and_grad(loss, argnums=(0, 1, 2, 3))(x, w, u, h0)

    shapes = (7, 3, 4), (4, 10), (5, 10), (3, 5)
    return es.jit(f, device=device), [rng.standard_normal(s).astype(np.float32) for s in shapes]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("reverse", [False, True])
def test_loops_whose_bounds_come_with_the_batch(reverse: bool, card: Insert, always) -> None:
    """The lengths of sequences, none of which may reach the last turn, or even the first one."""
    plain, arrays = of_ragged_batch(reverse, "cpu")
    card(multiprocessors=2)
    there, _ = of_ragged_batch(reverse, "cuda")
    for lengths in ([2, 5, 4], [0, 0, 0], [7, 1, 7], [1, 1, 1]):
        given = [*arrays, np.array(lengths)]
        for got, want in zip(flatten(there(*given))[0], flatten(plain(*given))[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    run = program_of(there)
    codes = persistent(run.program)
    bounded = [c for c in codes if any(p.elem == "i64" and p.size == 1 for p in c.function.parameters)]
    assert len(codes) == loops(run.program) and bounded


BEYOND = pytest.mark.xfail(
    raises=Fault,
    strict=False,
    reason="a product of two guarded operands loads one of them where the other's guard fails",
)


@pytest.mark.thinned(8)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=BEYOND) if n == "attention_over_what_was" else n for n in CASES]
)
def test_recurrences_of_the_language(name: str, card: Insert, always) -> None:
    """Values, and gradients of what is floating: coupled tensors, windows, dynamic programs, loops in loops."""
    case = CASES[name]
    rng = default_rng(7)
    cotangents = None
    arrays = [np.asarray(x) for x in case.inputs]
    floats = [n for n, x in enumerate(arrays) if x.dtype.kind == "f"]

    def f(*xs):
        def loss(*fs):
            given = list(xs)
            for n, v in zip(floats, fs, strict=True):
                given[n] = v
            outs = [o for o in flatten(case.formula(*given))[0] if o.dtype.is_float]
            return sum(((o * c).sum() for o, c in zip(outs, cotangents, strict=True)), 0.0)

        values = case.formula(*xs)
        return values, es.grad(loss, argnums=tuple(range(len(floats))))(*(xs[n] for n in floats))

    outs = [o for o in flatten(es.jit(lambda *xs: case.formula(*xs))(*arrays))[0]]
    cotangents = [rng.standard_normal(o.shape).astype(o.dtype) for o in outs if o.dtype.kind == "f"]
    if not cotangents:
        f = lambda *xs: case.formula(*xs)  # noqa: E731
    want = flatten(es.jit(f, device="cpu")(*arrays))[0]
    card(multiprocessors=2, seed=len(name))
    got = flatten(es.jit(f, device="cuda")(*arrays))[0]
    for a, b in zip(got, want, strict=True):
        scale = max(1.0, float(np.abs(b).max(initial=0)))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * scale)


def test_each_left_out_grid_barrier_is_noticed(card: Insert, always) -> None:
    device = card(multiprocessors=2).card.device
    step, _ = trained("milstm", 5, "cuda")
    (program,) = programs_of(step)
    x, nodes, tried = default_rng(5).standard_normal((7, 6, 3)).astype(np.float32), list(program.nodes), 0
    for n, node in enumerate(nodes):
        f = node.code.function
        for k in range(sum(op.name == "grid_barrier" for op in operations(f.body))):
            code = replace(node.code, function=without_barrier(f, k))
            changed = [*nodes[:n], node._replace(function=device.load(code), code=code), *nodes[n + 1 :]]
            program.nodes, program.graph = changed, ExecutableGraph(device, changed, program.edges)
            with pytest.raises(Fault):
                step(x, np.arange(7) % 4)
            tried += 1
    assert tried >= 4
    program.nodes, program.graph = nodes, ExecutableGraph(device, nodes, program.edges)
    step(x, np.arange(7) % 4)


def test_what_pays() -> None:
    def pays(turns: int, *rounds: int) -> bool:
        return launches.pays(Persistent(None, (), rounds), turns)  # type: ignore[arg-type]

    assert pays(28, 1, 1) and not pays(2, 1)  # a launch more than it saves
    assert not pays(28, 2, 2)  # programs that wait for others of their multiprocessor
    assert pays(28, 1, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["milstm", "scrn", "sublstm", "lltm"])
def test_loops_of_networks_compile_for_a_card(name: str, card: Insert) -> None:
    pytest.importorskip("triton", reason="compiles by Triton")
    pytest.importorskip("torch", reason="tells which card there is")
    card()
    step, _ = trained(name, 37, "cuda")
    (program,) = programs_of(step)
    codes = persistent(program)
    assert codes
    for code in codes:
        f = code.function
        types = tuple(f"*{p.elem.replace('f', 'fp')}" for p in f.parameters)
        made = tiles_card.compiled(triton_text([f]), f.name, types, tiles_card.Shape(code.warps, code.stages))
        assert f.programs == 1 or "atom.global.gpu.acq_rel" in made.asm["ptx"]
