"""Graphs that a dump holds: read to the same nodes, and run again with the same results bit for bit."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.api.loaded_graph import LoadedGraph
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.base.errors import DataError
from einsmith.ir.graph_text import Dump, leaves_of, read_graph, write_dump, write_graph
from einsmith.ir.nodes import Compute, Const, Graph, apply, leaf, template
from einsmith.kernels.autoconfig import predicted
from einsmith.passes.context import PassContext
from einsmith.passes.pipeline import run_passes
from einsmith.training.definition import batch_arrays
from tests.gallery.test_gallery import Problem, every_case

F = es.functional


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EINSMITH_DUMP", str(tmp_path / "dump"))
    return tmp_path / "dump"


def load(folder: Path, n: int = -1) -> LoadedGraph:
    return es.load_graph(sorted(folder.iterdir())[n])


def check_round_trip(graph: Graph) -> None:
    """A reader gives the same node for the same leaves, and an equal one for new leaves."""
    text = write_graph(graph)
    assert read_graph(text, leaves_of(graph)) is graph
    assert write_graph(read_graph(text)) == text


class Layers(es.nn.Module):
    def __init__(self):
        self.words, self.cell = es.nn.Embedding(11, 7), es.nn.GRU(7, 9)
        self.norm, self.dropout, self.out = es.nn.BatchNorm1d(9), es.nn.Dropout(0.3), es.nn.Linear(9, 5)

    def forward(self, x):
        y, _ = self.cell(self.words(x))
        return self.out(self.dropout(self.norm(y[-1])))


NETWORKS = {
    "dense": (
        lambda: es.nn.Sequential(es.nn.Linear(17, 33), es.nn.ReLU(), es.nn.Linear(33, 5)),
        lambda r: r.normal(size=(7, 17)).astype(np.float32),
    ),
    "image": (
        lambda: es.nn.Sequential(
            es.nn.Conv2d(3, 8, 3, padding=1), es.nn.BatchNorm2d(8), es.nn.ReLU(), es.nn.MaxPool2d(2), es.nn.Flatten(),
            es.nn.Linear(8 * 25, 5),
        ),
        lambda r: r.normal(size=(7, 3, 11, 10)).astype(np.float32),
    ),
    "words": (Layers, lambda r: r.integers(0, 11, (6, 7))),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_training_steps(name: str, precision: str, folder: Path, rng: np.random.Generator) -> None:
    """Three steps with state, numbers and random draws: losses, parameters and state are equal bit for bit."""
    make, batch = NETWORKS[name]
    x, y = batch(rng), rng.integers(0, 5, 7)
    step = es.TrainStep(make(), F.cross_entropy, es.optim.Adam(lr=0.01), precision=precision, threads=1)
    run = step.compiler.find_or_compile(batch_arrays((x, y)))
    check_round_trip(run.graph)
    check_round_trip(run.source_graph)
    loaded = load(folder)
    own = {n: run.bound[x] for x, n in step.parts.names_of(run.bound).items()}
    missing = [a for x, a in run.bound.items() if x not in step.parts.names_of(run.bound)]
    for n, a in own.items():
        loaded.state[n][...] = a
    others = [a for n, a in loaded.state.items() if n not in own]
    assert len(others) == len(missing)
    for a, b in zip(others, missing, strict=True):
        a[...] = b
    for _ in range(3):
        before = [b.copy() for b in missing]
        want = step(x, y)
        for n, a in own.items():
            if not a.shape and a.dtype == np.float64:  # the numbers of this step
                loaded.state[n][...] = a
        for a, b, new in zip(others, before, missing, strict=True):
            a[...] = new if not b.shape or b.dtype.kind in "iu" else b
        out = loaded(x, y)
        got = out[0] if isinstance(out, tuple) else out
        np.testing.assert_array_equal(np.float32(got), np.float32(want))
        for n, a in own.items():
            np.testing.assert_array_equal(loaded.state[n], a, err_msg=n)


FORMULAS = {
    "recurrence": ("h[t,i] = tanh(where(t > 0, sum[j](w[i,j]*h[t-1,j]), 0) + x[t,i])", {"x": (7, 17), "w": (17, 17)}),
    "pieces": ("y[2*i] = x[i]\ny[2*i+1] = -x[i]*0.1", {"x": (13,)}),
    "softmax": ("e[i,j] = exp(x[i,j] - max[m](x[i,m]))\ny[i,j] = e[i,j]/sum[m](e[i,m])\nreturn y", {"x": (16, 33)}),
    "positions": ("y[i] = argmax[j](x[i,j])", {"x": (5, 31)}),
    "stencil": ("y[i] = sum[k](where(0 <= i + k - 1 and i + k - 1 < 29, x[i+k-1], 0)*w[k])", {"x": (29,), "w": (3,)}),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_and_their_gradients(name: str, folder: Path, rng: np.random.Generator) -> None:
    text, shapes = FORMULAS[name]
    f = es.op(text, extents={"i": 29} if name == "stencil" else None)
    arrays = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    want = f(**arrays)
    np.testing.assert_array_equal(load(folder)(**arrays), want)
    if name != "positions":
        g = es.grad(lambda x: es.sum(f(**{**arrays, "x": x})))
        want = g(arrays["x"])
        loaded = load(folder)
        for held in loaded.state.values():  # arrays that the function captured
            held[...] = next(a for n, a in arrays.items() if n != "x")
        np.testing.assert_array_equal(loaded(arrays["x"]), want)


def test_scatters_and_data_indices(folder: Path, rng: np.random.Generator) -> None:
    f = es.op("y[r,j] = 2*z[r,j]\ny[n[i],j] += x[i,j]")
    n, x, z = rng.integers(0, 9, 31), rng.normal(size=(31, 5)).astype(np.float32), np.ones((9, 5), np.float32)
    want = f(n=n, x=x, z=z)
    loaded = load(folder)
    np.testing.assert_array_equal(loaded(n=n, x=x, z=z), want)
    with pytest.raises(es.IndexOutOfRange):
        loaded(n=n + 100, x=x, z=z)


def test_inference_with_parameters(folder: Path, rng: np.random.Generator) -> None:
    """Parameters are state that the caller sets, at any time; a program of its own computes what depends on them
    alone."""
    net, x = NETWORKS["image"][0]().eval(), rng.normal(size=(3, 3, 11, 10)).astype(np.float32)
    run = es.jit(net)
    run(x)
    first, loaded = load(folder, 0), load(folder, 1)
    computed = set(loaded.state) - set(net.state_dict())
    assert not first.inputs and "0.weight" in loaded.state and computed == set(first.state) - set(net.state_dict())
    for _ in range(2):
        net[0].weight.data = rng.normal(size=(8, 3, 3, 3)).astype(np.float32)
        for graph in (first, loaded):
            for name in set(graph.state) - computed:
                graph.state[name][...] = net.state_dict()[name]
        first()
        for name in computed:
            loaded.state[name][...] = first.state[name]
        np.testing.assert_array_equal(loaded(x), run(x))


@pytest.mark.parametrize("name", ["lenet5", "lstm-lm", "milstm", "lltm", "capsulenet"])
def test_models(name: str) -> None:
    """The step of a model before and after the passes, priced as where it is compiled."""
    from einsmith.cli.programs import training_step

    step, arrays, _ = training_step(name, 2, (), 1)
    run = step.compiler.find_or_compile(batch_arrays(tuple(arrays)))
    check_round_trip(run.source_graph)
    check_round_trip(run_passes(run.source_graph, PassContext(run.target, predicted)))


@pytest.mark.thinned(8)
@every_case
def test_formulas_of_the_gallery(entry, case, rng: np.random.Generator) -> None:
    """With their gradients, before and after the passes."""
    p = Problem(entry, case, rng)
    c = rng.standard_normal(np.shape(es.interpret(p.f)(*p.x)))
    graph = trace_call(p.value_and_pull, (c, *p.x), {}).graph
    check_round_trip(graph)
    check_round_trip(run_passes(graph))


def test_one_of_several_processes(tmp_path: Path) -> None:
    own = leaf((3,), dt.f32)
    received = leaf((3,), dt.f32, own)
    graph = Graph((own, received), (received,), ((own, own),), ())
    check_round_trip(graph)
    settings = {"threads": 1, "finite": -1, "winograd": False, "precision": "fp32", "max_stored": 0, "decisions": []}
    settings["separate_exponentials"] = False
    (tmp_path / "graph.txt").write_text(write_dump(Dump(graph, [("own", "state"), ("x", "input")], settings)))
    with pytest.raises(DataError, match="graph of one of several processes, which cannot run alone"):
        es.load_graph(tmp_path)


def test_literals_keep_their_bits() -> None:
    """Signs of zeros, payloads of NaN, denormals and every element type."""
    odd = struct.unpack("<d", (0xFFF8000000000123).to_bytes(8, "little"))[0]
    values = [0.0, -0.0, math.inf, -math.inf, math.nan, odd, 5e-324, -1.5, 0.1, 7]
    for dtype in dt.ALL:
        held = [v for v in values if dtype.is_float or v == 7]
        tensors = tuple(Compute(template((2,), (), Const(v, dtype)), ()) for v in held)
        check_round_trip(Graph((), tensors, (), ()))


def test_deep_and_shared_expressions() -> None:
    """Nesting has no limit, and a shared expression is written once."""
    f = es.op("y[i] = " + "(" * 150 + "x[i]" + "*2.5 + 1)" * 150)
    graph = trace_call(f, (np.ones(3, np.float32),), {}).graph
    check_round_trip(graph)
    e = Const(2.0, dt.f32)
    for _ in range(100):
        e = apply("mul", e, e)
    check_round_trip(Graph((), (Compute(template((2,), (), e), ()),), (), ()))


def test_added_functions(folder: Path) -> None:
    def halve(v, x):
        return v.mul(x, v.f(0.5))

    x = np.arange(5, dtype=np.float32)
    with es.function("half2", derivative="0.5", evaluate=lambda x: 0.5 * x, emit=halve):
        want = es.op("y[i] = half2(x[i])")(x)
        np.testing.assert_array_equal(load(folder)(x), want)
    file = sorted(folder.iterdir())[-1] / "graph.txt"
    file.write_text(file.read_text().replace("half2@", "half2@0"))
    with pytest.raises(DataError, match="line 5: the function half2@0.* is not defined; define half2 by es.function"):
        es.load_graph(file)


def test_bad_arguments(folder: Path) -> None:
    x = np.ones((5, 7), np.float32)
    es.op("y[i] = sum[k](x[i,k]*w[k])")(x, x[0])
    loaded = load(folder)
    assert list(loaded.inputs) == ["x", "w"] and not loaded.state
    for message, args, kwargs in (
        ("takes 2 arrays, not 3", (x, x, x), {}),
        ("w: missing", (x,), {}),
        ("x: given twice", (x,), {"x": x}),
        ("z: no input", (x, x[0]), {"z": x}),
    ):
        with pytest.raises(es.ArgumentError, match=message):
            loaded(*args, **kwargs)
    with pytest.raises(es.ShapeError, match=r"w is float32 of shape \(5, 7\); the graph takes float32 of shape \(7,\)"):
        loaded(x, x)


DAMAGES = {
    "cut": (lambda t: t[: len(t) // 2], r"graph.txt, line \d+: .*; the file is damaged: write it again, by"),
    "empty": (lambda t: "", "is no graph; name a folder"),
    "version": (lambda t: t.replace("graph 1", "graph 99", 1), "is of version 99, not 1"),
    "settings": (lambda t: t.replace('"threads": ', '"thread": ', 1), "line 2: threads is not set"),
    "json": (lambda t: t.replace("{", "", 1), r"line 2: .*damaged"),
    "leaves": (lambda t: t.replace('["x", "input"], ', "", 1), "line 3: there is not one entry for each leaf"),
    "name": (lambda t: t.replace("n2 =", "n77 ="), r"line \d+: n2 is not defined above"),
    "class": (lambda t: t.replace("Template(", "Templet("), r"line \d+: there is no node Templet"),
    "code": (lambda t: t.replace("Template(", "__import__('os').system("), r"line \d+: .*no part of a graph"),
    "function": (lambda t: t.replace("'mul'", "'mull'"), r"line \d+: the function mull is not defined"),
    "bounds": (lambda t: t.replace("Reduce('sum', (7,)", "Reduce('sum', (70,)"), "the graph is not valid: "),
    "types": (lambda t: t.replace("Piece((0,), (1,)", "Piece(0, (1,)"), "is not valid|damaged"),
    "last": (lambda t: t.rpartition("\n")[0].rpartition("\n")[0], "ends before its graph"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(damage: str, folder: Path) -> None:
    es.op("y[i] = sum[k](x[i,k]*w[k])")(np.ones((5, 7), np.float32), np.ones(7, np.float32))
    file = sorted(folder.iterdir())[-1] / "graph.txt"
    change, message = DAMAGES[damage]
    text = file.read_text()
    assert change(text) != text
    file.write_text(change(text))
    with pytest.raises(DataError, match=message):
        es.load_graph(file)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(DataError, match="cannot be read: .*name a folder `program-0000` of a dump"):
            es.load_graph(path)
