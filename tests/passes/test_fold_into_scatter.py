"""Linear functions of a scatter become scatters that start from the rest; updates then touch only destinations."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Graph,
    Piece,
    Read,
    Scatter,
    Template,
    apply,
    leaf,
    postorder,
    template,
)
from einsmith.kernels.scatter.scatter_pattern import in_place
from einsmith.passes.algebra.fold_into_scatter import fold_into_scatter
from einsmith.passes.analysis.index_checks import index_checks
from einsmith.passes.pipeline import run_passes

F, SHAPE = dt.f64, (5, 3)
N, K = Axis(0), Axis(1)
IDS, G, P, W, C = leaf((4,), dt.i64), leaf((4, 3), F), leaf(SHAPE, F), leaf(SHAPE, F), leaf((), F)
ROWS = leaf((5, 1), F)
INPUTS = (IDS, G, P, W, C, ROWS)
S, X, V = (Read(s, (N, K), F) for s in range(3))
SCALE, ROW = Read(3, (), F), Read(4, (N, Const(0, dt.i32)), F)


def scatter(start=None, combiner="sum"):
    """`S[n, k] = start, S[ids[t], k] += g[t, k]`, or with another combiner."""
    part = Scatter(combiner, (4, 3), (Read(0, (N,), dt.i64), K), Read(1, (N, K), F))
    params = ((dt.i64, (4,)), (F, (4, 3)))
    if start is None:
        return Compute(Template(SHAPE, params, (part,)), (IDS, G))
    first = Piece((0, 0), (1, 1), SHAPE, start)
    return Compute(Template(SHAPE, (*params, (F, SHAPE)), (first, part)), (IDS, G, W))


def graph(body, s, more=()):
    args = (s, P, W, C, ROWS)
    out = Compute(template(SHAPE, [(a.dtype, a.shape) for a in args], body), args)
    return Graph(INPUTS, (out, *more), (), ())


def feed(rng):
    return [rng.integers(0, 5, 4), *(rng.standard_normal(x.shape) for x in INPUTS[1:])]


def made(g):
    return [n for n in postorder(g.roots) if isinstance(n, Compute)]


LINEAR = {
    "update": apply("sub", X, apply("mul", SCALE, S)),
    "sum": apply("add", S, X),
    "difference": apply("sub", S, X),
    "negated": apply("neg", S),
    "quotient": apply("div", S, V),
    "rows": apply("add", apply("mul", apply("mul", S, ROW), V), X),
    "decay": apply("sub", X, apply("mul", SCALE, apply("add", S, apply("mul", Const(0.1, F), X)))),
    "nested": apply("div", apply("sub", X, apply("sub", V, apply("neg", apply("mul", Const(2.0, F), S)))), ROW),
    "position": apply("mul", S, Apply("cast", (apply("add", N, K),), F)),
}


@pytest.mark.parametrize("combiner", ["max", "min"])
@pytest.mark.parametrize("name", LINEAR)
def test_other_combiners_stay(name, combiner):
    """The largest of negated terms is not their negated largest."""
    before = graph(LINEAR[name], scatter(combiner=combiner))
    assert fold_into_scatter(before).roots == before.roots


@pytest.mark.parametrize("start", [None, Const(0.5, F), apply("exp", Read(2, (N, K), F))])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_functions(name, start, rng):
    before = graph(LINEAR[name], scatter(start))
    after = fold_into_scatter(before)
    (node,) = made(after)
    assert node.template.is_scatter
    arrays = feed(rng)
    for got, want in zip(evaluate(after, arrays)[0], evaluate(before, arrays)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_chains(rng):
    two = scatter()
    args = (two, P)
    half = Compute(template(SHAPE, [(F, SHAPE)] * 2, apply("add", S, apply("mul", Const(0.5, F), X))), args)
    before = graph(LINEAR["update"], half)
    after = fold_into_scatter(before)
    assert len(made(after)) == 1
    arrays = feed(rng)
    np.testing.assert_allclose(evaluate(after, arrays)[0][0], evaluate(before, arrays)[0][0], rtol=1e-12)


def test_unchanged_graphs():
    s = scatter()
    turned = Read(0, (apply("sub", Const(4, dt.i32), N), K), F)
    for body in (
        apply("mul", S, S),
        apply("div", X, S),
        apply("exp", S),
        apply("add", S, turned),
        turned,
        apply("where", apply("lt", S, X), X, V),
    ):
        g = graph(body, s)
        assert fold_into_scatter(g) is g
    read_twice = graph(LINEAR["update"], s, (Compute(template(SHAPE, [(F, SHAPE)], apply("exp", S)), (s,)),))
    assert fold_into_scatter(read_twice) is read_twice
    result = graph(LINEAR["update"], s, (s,))
    assert fold_into_scatter(result) is result
    many = Scatter("sum", (400,), (apply("mod", N, Const(5, dt.i32)),), Read(0, (N,), F))
    x = leaf((400,), F)
    dense = Compute(Template((5,), ((F, (400,)),), (many,)), (x,))
    scaled = Compute(template((5,), [(F, (5,))], apply("mul", Const(3.0, F), Read(0, (N,), F))), (dense,))
    g = Graph((x,), (scaled,), (), ())
    assert fold_into_scatter(g) is g, "400 products instead of 5"


@pytest.mark.parametrize("corruption", ["start", "factor", "place"])
def test_corruptions_are_noticed(corruption, rng, monkeypatch):
    if corruption == "start":
        monkeypatch.setattr(
            "einsmith.passes.algebra.fold_into_scatter._apply",
            lambda apply, x, other, left: x if x is not None else other,
        )
    elif corruption == "factor":
        monkeypatch.setattr(
            "einsmith.passes.algebra.fold_into_scatter._find_operations", lambda body, read: [("add", X, False)]
        )
    else:
        monkeypatch.setattr("einsmith.passes.algebra.fold_into_scatter.is_identity", lambda *_: True)
    body = (
        LINEAR["rows"] if corruption != "place" else apply("add", Read(0, (apply("sub", Const(4, dt.i32), N), K), F), X)
    )
    before = graph(body, scatter())
    after = fold_into_scatter(before)
    arrays = feed(rng)
    assert not np.allclose(evaluate(after, arrays)[0][0], evaluate(before, arrays)[0][0])


# ----------------------------------------------------------------------------------------------------------- training

OPTIMIZERS = {
    "sgd": ("SGD", {"lr": 0.3}),
    "decay": ("SGD", {"lr": 0.3, "weight_decay": 0.1}),
    "momentum": ("SGD", {"lr": 0.3, "momentum": 0.9}),
    "adam": ("Adam", {"lr": 0.05}),
}
ROWS_OF_TABLE, WIDTH, BATCH = 50_000, 64, 128


class Words(es.nn.Module):
    def __init__(self, rows, width, classes=3, tied=False, seed=0):
        rng = np.random.default_rng(seed)
        self.table = es.nn.Parameter(rng.standard_normal((rows, width)))
        self.tied = tied
        if not tied:
            self.out = es.nn.Parameter(rng.standard_normal((width, classes)))
        self.look = es.op("Y[i,k] = E[ids[i],k]")

    def forward(self, ids):
        x = es.tanh(self.look(self.table, ids))
        return x @ (self.table.T if self.tied else self.out)


def torch_step(torch, model, name, batches):
    """The table after a step of each batch, in double."""
    table = torch.tensor(model.table.data, requires_grad=True)
    params = [table]
    if not model.tied:
        params.append(torch.tensor(model.out.data, requires_grad=True))
    kind, options = OPTIMIZERS[name]
    opt = getattr(torch.optim, kind)(params, **options)
    for ids, y in batches:
        opt.zero_grad()
        z = torch.tanh(table[torch.from_numpy(ids)]) @ (table.T if model.tied else params[1])
        torch.nn.functional.cross_entropy(z, torch.from_numpy(y)).backward()
        opt.step()
    return table.detach().numpy()


def scatters(step):
    ((run,),) = [list(step.compiler.programs.values())]
    found = [(c, k) for c, k in zip(run.plan.calls, run.kernels, strict=True) if c.kernel.root.is_scatter]
    return run, found


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_a_table(name, rng, torch):
    model = Words(ROWS_OF_TABLE, WIDTH)
    batches = [(rng.integers(0, 500, BATCH), rng.integers(0, 3, BATCH)) for _ in range(3)]
    want = torch_step(torch, model, name, batches)
    old = model.table.data.copy()
    kind, options = OPTIMIZERS[name]
    step = es.TrainStep(model, es.functional.cross_entropy, getattr(es.optim, kind)(**options))
    for ids, y in batches:
        step(ids, y)
    np.testing.assert_allclose(model.table.data, want, rtol=1e-9, atol=1e-12)
    run, found = scatters(step)
    ((call, kernel),) = found
    large = [c for c in run.plan.calls if any(w and t.shape == old.shape for t, w in zip(c.tensors, c.written))]  # noqa: B905
    if name != "sgd":
        assert not in_place(call.kernel)
        return
    assert large == [call] and in_place(call.kernel) and len(kernel.launches) == 1
    used = np.unique(np.concatenate([ids for ids, _ in batches]))
    others = np.setdiff1d(np.arange(len(old)), used)
    assert (model.table.data[others] == old[others]).all() and (model.table.data[used] != old[used]).any(1).all()


def test_nothing_is_added_before_the_checks(rng):
    model = Words(50, 4)
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    ids, y = rng.integers(0, 50, 9), rng.integers(0, 3, 9)
    step(ids, y)
    before = model.table.data.copy()
    for wrong in (50, -1):
        with pytest.raises(es.IndexOutOfRange):
            step(np.append(ids[:8], wrong), y)
    model.out.data[0, 0] = np.inf
    with pytest.raises(es.NonFiniteError):
        step(ids, y)
    assert (model.table.data == before).all()
    (((call, _),),) = [scatters(step)[1]]
    assert in_place(call.kernel)


def test_a_table_that_is_read_twice(rng, torch):
    """Tied weights: the table's other reads come before its update, and its other gradient is the start."""
    for name in ("sgd", "momentum"):
        model = Words(40, 6, tied=True)
        batches = [(rng.integers(0, 40, 9), rng.integers(0, 40, 9)) for _ in range(3)]
        want = torch_step(torch, model, name, batches)
        kind, options = OPTIMIZERS[name]
        step = es.TrainStep(model, es.functional.cross_entropy, getattr(es.optim, kind)(**options))
        for ids, y in batches:
            step(ids, y)
        np.testing.assert_allclose(model.table.data, want, rtol=1e-9, atol=1e-12)


def test_the_pipeline_keeps_the_checks():
    s = scatter()
    g = graph(LINEAR["update"], s)
    after = run_passes(Graph(g.inputs, g.outputs, (), index_checks(g.roots)))
    assert len(after.checks) == 1 and sum(n.template.is_scatter for n in made(after)) == 1
