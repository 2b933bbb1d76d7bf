"""Update rules against torch.optim, step by step in float64, through the reference evaluator; and Rule's own errors."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith import optim
from einsmith.base.dtypes import f32, f64
from einsmith.base.errors import FormulaError, ShapeError
from einsmith.ir.nodes import leaf, postorder
from einsmith.tracing.builder import Value
from tests.optim.updating import Updater, trace

SETTINGS = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}),
    ("SGD", {"momentum": 0.8, "dampening": 0.3}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-3}),
    ("Adam", {"amsgrad": True, "maximize": True}),
    ("AdamW", {}),
    ("AdamW", {"weight_decay": 0.3, "amsgrad": True}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "alpha": 0.9}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3}),
]


def test_disabled_options_keep_no_state() -> None:
    assert optim.SGD(lr=0.1).state_names == []
    assert optim.SGD(lr=0.1, momentum=0.9).state_names == ["momentum_buffer"]
    assert optim.Adam().state_names == ["exp_avg", "exp_avg_sq"]
    assert optim.RMSprop().state_names == ["square_avg"]
    assert list(optim.SGD(lr=0.1).hyper) == ["lr"]


def test_corrections_are_computed_once_in_float64() -> None:
    """Bias corrections are 0-d tensors: parameters of all shapes share them, and float32 does not round them."""
    rule = optim.Adam()
    x, g, step = leaf((3, 4), f32), leaf((3, 4), f32), Value(leaf((), f64), weak=True)
    y, h = leaf((5,), f32), leaf((5,), f32)
    hyper = {n: Value(leaf((), f64), weak=True) for n in rule.hyper}
    roots = []
    for p, d in ((x, g), (y, h)):
        state = {n: Value(leaf(p.shape, f32)) for n in rule.state_names}
        new, after = rule.update(Value(p), Value(d), state, hyper, step)
        roots += [new.tensor, *(v.tensor for v in after.values())]
    small = [t for t in postorder(roots) if t.shape == () and t.args]
    assert len(small) == 2 and all(t.dtype is f64 for t in small)
    for t in postorder(roots):
        if t.shape and t.args:
            for part in t.template.parts:
                assert not any(getattr(e, "fn", "") == "pow" for b in part.bodies for e in postorder([b]))


def test_float32_rounds_only_what_meets_the_parameter(torch, rng) -> None:
    """1 - 0.999 in float32 is wrong by 5e-5: the evaluator, which does not round, would not show it; the types do."""
    graph, _ = trace(optim.Adam(), (3,), f32)
    for t in postorder(graph.roots):
        for part in t.template.parts if t.args else ():
            for b in part.bodies:
                for e in postorder([b]):
                    if getattr(e, "fn", "") == "sub" and not any(a.dtype is f32 for a in e.args):
                        assert e.dtype is f64


def test_lion(rng) -> None:
    lion = optim.Rule(
        """
        p[i] = p[i] - lr*sign(b1*m[i] + (1-b1)*g[i])
        m[i] = b2*m[i] + (1-b2)*g[i]
        """,
        lr=1e-2,
        b1=0.9,
        b2=0.99,
    )
    p, m = rng.normal(size=(2, 3)), np.zeros((2, 3))
    run = Updater(lion, p)
    for _ in range(4):
        g = rng.normal(size=p.shape)
        run.step(g)
        p = p - 1e-2 * np.sign(0.9 * m + 0.1 * g)
        m = 0.99 * m + 0.01 * g
        np.testing.assert_allclose(run.p, p, rtol=1e-13)
        np.testing.assert_allclose(run.state["m"], m, rtol=1e-13)


def test_statements_are_assignments_in_order() -> None:
    """Small integers, exactly: each line sees what the lines above it wrote; a temporary keeps nothing."""
    rule = optim.Rule(
        """
        t[i] = 2*g[i]          # a temporary
        s[i] = s[i] + t[i]
        t[i] = t[i] + s[i]
        p[i] = p[i] + t[i]*step
        p[i] = p[i] + c[i]
        """,
        init={"s": 1.0, "c": 5.0},
    )
    assert rule.state_names == ["s", "c"]
    run = Updater(rule, np.array([100.0, 200.0]))
    run.step(np.array([1.0, 2.0]))
    assert run.state["s"].tolist() == [3, 5]
    assert run.p.tolist() == [100 + 5 + 5, 200 + 9 + 5]
    run.step(np.array([1.0, 2.0]))
    assert run.state["s"].tolist() == [5, 9] and run.state["c"].tolist() == [5, 5]
    assert run.p.tolist() == [110 + 14 + 5, 214 + 26 + 5]


def test_reductions_over_all_elements(rng) -> None:
    rule = optim.Rule("n[i] = sqrt(sum[k](g[k]*g[k]))\np[i] = p[i] - lr*g[i]/n[i]", lr=0.5)
    for shape in [(), (7,), (3, 5)]:
        p, g = rng.normal(size=(2, *shape))
        run = Updater(rule, p)
        run.step(g)
        np.testing.assert_allclose(run.p, p - 0.5 * g / np.sqrt((g * g).sum()), rtol=1e-13)


def test_rules_with_more_axes(rng) -> None:
    rule = optim.Rule("p[i,j] = p[i,j] - lr*(g[i,j] - mean[k](g[k,j]))", lr=1.0)
    p, g = rng.normal(size=(2, 4, 3))
    run = Updater(rule, p)
    run.step(g)
    np.testing.assert_allclose(run.p, p - g + g.mean(axis=0), rtol=1e-13)
    with pytest.raises(ShapeError, match="2 axes"):
        trace(rule, (4,))


def test_hyperparameters_are_settable_numbers_or_callables() -> None:
    rule = optim.SGD(lr=lambda step: 1 / step, momentum=0.9)
    assert rule.values(4) == {"lr": 0.25, "momentum": 0.9}
    rule.lr = 3
    assert rule.lr == 3.0 and rule.hyper["lr"] == 3.0
    adam = optim.Adam()
    adam.betas = (0.5, 0.75)
    assert adam.values(1)["beta2"] == 0.75
    with pytest.raises(AttributeError, match="did you mean 'lr'"):
        rule.lrr = 1
    with pytest.raises(AttributeError, match="weight_decay"):
        rule.weight_decay = 0.1
    with pytest.raises(ValueError, match="lr=nan"):
        adam.lr = float("nan")
    with pytest.raises(TypeError, match="lr='fast'"):
        rule.lr = "fast"


@pytest.mark.parametrize("name, options", SETTINGS, ids=[f"{n}-{','.join(o)}" for n, o in SETTINGS])
def test_descriptions_make_equal_rules(name, options) -> None:
    import json

    rule = getattr(optim, name)(lr=0.5, **options)
    rule.lr = 0.125
    again = optim.restore(json.loads(json.dumps(optim.describe(rule))))
    assert type(again) is type(rule) and again.hyper == rule.hyper
    assert trace(again, (3,))[0].outputs[0].template is trace(rule, (3,))[0].outputs[0].template
    assert again.state_names == rule.state_names
    assert [again.initial(s) for s in again.state_names] == [rule.initial(s) for s in rule.state_names]


def test_rules_of_ones_own_are_described_by_their_text() -> None:
    rule = optim.Rule("v[i] = b*v[i] + g[i]\np[i] = p[i] - lr*v[i]", {"v": 2.0}, lr=0.5, b=0.25)
    again = optim.restore(optim.describe(rule))
    assert again.hyper == rule.hyper and again.initial("v") == 2.0
    assert optim.describe(optim.SGD(lr=lambda n: 0.1)) is None


@pytest.mark.parametrize(
    "text, hyper, words",
    [
        ("p[i] = p[i] - lr*g[i]", {}, "lr is not a hyperparameter"),
        ("p[i] = p[i] - rate*g[i]", {"rat": 1}, "did you mean rat"),
        ("p[i] = p[i] - g[i]", {"lr": 1}, "does not use the hyperparameter lr"),
        ("p[i] = p[i] - step*g[i]", {"step": 1}, "step is a reserved name"),
        ("m[i] = g[i]", {}, "must assign the parameter's new value"),
        ("p[i] - g[i]", {}, "an assignment"),
        ("p[i] += g[i]", {}, "needs ="),
        ("p[i] = p[i] - g[i]\nm[i,j] = g[i]", {}, "equally many axes"),
        ("p[i] = p[i] - m\nm[i] = g[i]", {}, "m is .*needs its axes"),
        ("", {}, "empty"),
    ],
)
def test_errors(text, hyper, words) -> None:
    with pytest.raises(FormulaError, match=words):
        optim.Rule(text, **hyper)


def test_errors_of_init_and_use() -> None:
    with pytest.raises(FormulaError, match="init names v"):
        optim.Rule("p[i] = p[i] - g[i]", {"v": 1.0})
    with pytest.raises(FormulaError, match="cannot be a part of an index"):
        trace(optim.Rule("p[i] = p[i] - g[i+0]"), (3, 4))
    with pytest.raises(ValueError, match="nesterov"):
        optim.SGD(lr=0.1, nesterov=True)
    with pytest.raises(ValueError, match="lr=-1"):
        optim.SGD(lr=-1)
    with pytest.raises(ValueError, match="betas"):
        optim.Adam(betas=(1.0, 0.9))


# --------------------------------------------------------------------------- numbers, rows and columns beside elements


def test_numbers_of_whole_tensors(rng) -> None:
    """A temporary and a state without axes, and `size` of the one axis, for tensors of every rank."""
    rule = optim.Rule(
        """
        n[] = sqrt(sum[i](g[i]*g[i])/size(i))
        top[] = max(top[]*b, n[])
        p[i] = p[i] - lr*g[i]/top[]
        """,
        init={"top": 0.5},
        lr=0.5,
        b=0.5,
    )
    for shape in [(), (7,), (3, 5), (2, 3, 2)]:
        p, top = rng.normal(size=shape), 0.5
        run = Updater(rule, p)
        assert run.state["top"].shape == ()
        for _ in range(4):
            g = rng.normal(size=shape)
            run.step(g)
            top = max(top * 0.5, np.sqrt((g * g).mean()))
            p = p - 0.5 * g / top
            np.testing.assert_allclose(run.p, p, rtol=1e-13)
            np.testing.assert_allclose(run.state["top"], top, rtol=1e-13)


def test_statistics_of_rows_and_columns(rng) -> None:
    rule = optim.Rule(
        """
        rows[i] = b*rows[i] + sum[j](g[i,j])
        columns[j] = columns[j] + sum[i](g[i,j])
        pairs[k,i] = sum[j](g[i,j]*g[k,j])
        p[i,j] = p[i,j] - lr*(rows[i]*columns[j] + sum[k](pairs[k,i]))
        """,
        init={"rows": 1.0},
        lr=0.5,
        b=0.5,
    )
    p, rows, columns = rng.normal(size=(4, 3)), np.ones(4), np.zeros(3)
    run = Updater(rule, p)
    assert {n: v.shape for n, v in run.state.items()} == {"rows": (4,), "columns": (3,)}
    for _ in range(3):
        g = rng.normal(size=(4, 3))
        run.step(g)
        rows, columns = 0.5 * rows + g.sum(1), columns + g.sum(0)
        p = p - 0.5 * (rows[:, None] * columns + (g @ g.T).sum(1)[:, None])
        np.testing.assert_allclose(run.p, p, rtol=1e-12)
        np.testing.assert_allclose(run.state["rows"], rows, rtol=1e-12)


@pytest.mark.parametrize(
    "text, words",
    [
        ("p[] = p[] - g[]", "p needs an axis"),
        ("m[k] = m[k] + sum[i,j](g[i,j])\np[i,j] = p[i,j] - m[i]", "m has axes that p does not have"),
        ("p[i,j] = p[i,j] - g[i,j]\ng[i] = g[i]", "equally many axes"),
        ("n[] = sum[i](g[i])\np[i] = p[i] - n", "n is a tensor and needs its axes"),
    ],
)
def test_errors_of_axes(text, words) -> None:
    with pytest.raises(FormulaError, match=words):
        optim.Rule(text)


def test_hyperparameters_are_checked_by_name() -> None:
    for make, words in (
        (lambda: optim.LAMB(eps=-1.0), "eps=-1.0"), (lambda: optim.Lion(betas=(0.9,)), "betas"),
        (lambda: optim.Adadelta(rho=1.5), "rho=1.5"), (lambda: optim.Adafactor(beta2_decay=0.5), "beta2_decay=0.5"),
        (lambda: optim.Adafactor(d=0.5), "d=0.5"), (lambda: optim.Muon(ns_steps=100), "ns_steps=100"),
        (lambda: optim.Muon(adjust_lr_fn="mine"), "adjust_lr_fn='mine'"), (lambda: optim.Muon(momentum=-1), "momentum"),
        (lambda: optim.Muon(ns_coefficients=(1.0, 2.0)), "ns_coefficients"), (lambda: optim.NAdam(lr="x"), "lr='x'"),
        (lambda: optim.RAdam(weight_decay=-0.1), "weight_decay=-0.1"),
        (lambda: optim.Adamax(lr=float("nan")), "lr=nan"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            make()


def test_disabled_options_stay_disabled_when_restored() -> None:
    for name in ("AdamW", "LAMB", "Muon"):
        rule = getattr(optim, name)(weight_decay=0.0)
        assert "weight_decay" not in optim.restore(optim.describe(rule)).hyper
