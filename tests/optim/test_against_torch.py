"""Optimizers against torch.optim over 20 steps, and against NumPy programs of the papers where torch has none or
computes in another type; options drawn pairwise, in float64 through the reference evaluator, in float32 compiled."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import einsmith as es
from einsmith import optim
from einsmith.base import dtypes
from tests.optim.updating import Updater

SHAPES = [(), (17,), (5, 3), (2, 1, 3, 2)]
STEPS = 20

BETAS = [(0.9, 0.999), (0.8, 0.95)]
DECAY = [0.0, 0.1]
OPTIONS = {
    "SGD": {"momentum": [0.0, 0.9], "dampening": [0.0, 0.3], "weight_decay": DECAY, "nesterov": [False, True],
            "maximize": [False, True]},
    "Adam": {"betas": BETAS, "eps": [1e-8, 1e-3], "weight_decay": DECAY, "amsgrad": [False, True],
             "maximize": [False, True]},
    "AdamW": {"betas": BETAS, "weight_decay": [0.0, 0.3], "amsgrad": [False, True], "maximize": [False, True]},
    "RMSprop": {"alpha": [0.99, 0.8], "momentum": [0.0, 0.9], "centered": [False, True], "weight_decay": DECAY,
                "maximize": [False, True]},
    "Adagrad": {"lr_decay": [0.0, 0.1], "weight_decay": DECAY, "initial_accumulator_value": [0.0, 0.5],
                "eps": [1e-10, 1e-3], "maximize": [False, True]},
    "Adadelta": {"rho": [0.9, 0.5], "eps": [1e-6, 1e-3], "weight_decay": DECAY, "maximize": [False, True]},
    "NAdam": {"betas": BETAS, "weight_decay": DECAY, "momentum_decay": [4e-3, 0.1],
              "decoupled_weight_decay": [False, True], "maximize": [False, True]},
    "RAdam": {"betas": BETAS, "weight_decay": DECAY, "decoupled_weight_decay": [False, True],
              "maximize": [False, True]},
    "Adamax": {"betas": BETAS, "eps": [1e-8, 1e-2], "weight_decay": DECAY, "maximize": [False, True]},
    "Adafactor": {"beta2_decay": [-0.8, -0.3], "eps": [(None, 1e-3), (1e-2, 0.5)], "d": [1.0, 2.0],
                  "weight_decay": DECAY, "maximize": [False, True]},
}  # fmt: skip
STATES = {"square_sum": "sum"}  # torch's name, where ours is another


def pairwise(options):
    """Settings in which every two values of two options meet (those that torch refuses left out)."""
    names = list(options)
    every = [dict(zip(names, values, strict=True)) for values in product(*options.values())]
    every = [s for s in every if not (s.get("nesterov") and (not s["momentum"] or s["dampening"]))]

    def pairs(s):
        items = [(n, str(v)) for n, v in s.items()]
        return {(a, b) for i, a in enumerate(items) for b in items[:i]}

    left, chosen = set().union(*map(pairs, every)), []
    while left:
        best = max(every, key=lambda s: len(pairs(s) & left))
        chosen.append(best)
        left -= pairs(best)
    return chosen


SETTINGS = [(name, s) for name, options in OPTIONS.items() for s in pairwise(options)]


def gradients(shape, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(STEPS):
        yield rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3)


@pytest.fixture
def torch64(torch):
    """torch, where numbers that it keeps beside a parameter are float64 too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(before)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name, options", SETTINGS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(SETTINGS)])
def test_rules_equal_torch(torch64, rng, name, options) -> None:
    torch = torch64
    for shape in SHAPES:
        start = rng.normal(size=shape)
        theirs = torch.nn.Parameter(torch.tensor(start))
        peer = getattr(torch.optim, name)([theirs], lr=0.05, **options)
        ours = Updater(getattr(optim, name)(lr=0.05, **options), start)
        for n, g in enumerate(gradients(shape)):
            if n == 9:  # a schedule
                ours.rule.lr = peer.param_groups[0]["lr"] = 0.01
            theirs.grad = torch.tensor(g)
            peer.step()
            ours.step(g)
            np.testing.assert_allclose(ours.p, theirs.detach().numpy(), rtol=1e-10, atol=1e-13)
        for s, value in ours.state.items():
            peers = peer.state[theirs][STATES.get(s, s)].numpy().reshape(value.shape)
            np.testing.assert_allclose(value, peers, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", [*OPTIONS, "Lion", "LAMB"])
def test_descriptions_make_equal_rules(name) -> None:
    import json

    options = OPTIONS.get(name, {"betas": BETAS, "weight_decay": DECAY, "maximize": [False, True]})
    for s in pairwise(options):
        rule = getattr(optim, name)(lr=0.5, **s)
        rule.lr = 0.125
        again = optim.restore(json.loads(json.dumps(optim.describe(rule))))
        assert type(again) is type(rule) and again.hyper == rule.hyper
        for shape in ((3,), (3, 2)):
            assert again.text_for(shape, dtypes.f32) == rule.text_for(shape, dtypes.f32)
        assert all(again.initial(n) == rule.initial(n) for n in rule.states((3,), dtypes.f32))


class Net(es.nn.Module):
    """Parameters of several shapes, and a loss whose gradients are what the batch says."""

    SHAPES = {"a": (), "b": (17,), "c": (6, 9), "d": (3, 2, 4, 5), "e": (9, 6)}

    def __init__(self, start, names):
        super().__init__()
        for n in names:
            setattr(self, n, es.nn.Parameter(start[n]))
        self.names = names

    def forward(self, *gs):
        return sum((getattr(self, n) * g).sum() for n, g in zip(self.names, gs, strict=True))


def trained(rule, start, grads, names):
    model = Net({n: start[n].astype(np.float32) for n in names}, names)
    step = es.TrainStep(model, lambda total, target: total + 0 * target, rule)
    for g in grads:
        step(*(g[n].astype(np.float32) for n in names), np.zeros((), np.float32))
    return {n: v.astype(np.float64) for n, v in model.state_dict().items()}


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "name, options",
    [
        ("Adadelta", {"weight_decay": 0.1}), ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
        ("RAdam", {"betas": (0.8, 0.95)}), ("Adamax", {"weight_decay": 0.1}), ("Adafactor", {"weight_decay": 0.1}),
    ],
)  # fmt: skip
def test_compiled_in_float32(torch, rng, name, options) -> None:
    """As near to torch in float64 as torch in float32, within a factor."""
    start = {n: np.asarray(rng.normal(size=s)) for n, s in Net.SHAPES.items()}
    grads = [{n: np.asarray(rng.normal(size=s)) for n, s in Net.SHAPES.items()} for _ in range(STEPS)]
    names = list(Net.SHAPES)
    ours = trained(getattr(optim, name)(lr=0.05, **options), start, grads, names)
    peers = {}
    for dtype in (torch.float32, torch.float64):
        p = {n: torch.nn.Parameter(torch.tensor(v, dtype=torch.float32).to(dtype)) for n, v in start.items()}
        peer = getattr(torch.optim, name)(p.values(), lr=0.05, **options)
        for g in grads:
            for n in names:
                p[n].grad = torch.tensor(g[n], dtype=torch.float32).to(dtype)
            peer.step()
        peers[dtype] = {n: v.detach().numpy().astype(np.float64) for n, v in p.items()}
    for n in names:
        exact, near = peers[torch.float64][n], peers[torch.float32][n]
        assert np.abs(ours[n] - exact).max() <= 4 * np.abs(near - exact).max() + 4e-6, n


# ---------------------------------------------------------------------------------------- from the papers, in NumPy


def lion(p, g, s, t, lr, beta1, beta2, weight_decay):
    m = s.get("m", 0.0)
    p = p * (1 - lr * weight_decay)
    p = p - lr * np.sign(beta1 * m + (1 - beta1) * g)
    s["m"] = beta2 * m + (1 - beta2) * g
    return p


def lamb(p, g, s, t, lr, beta1, beta2, weight_decay, eps=1e-6):
    s["m"] = beta1 * s.get("m", 0.0) + (1 - beta1) * g
    s["v"] = beta2 * s.get("v", 0.0) + (1 - beta2) * g * g
    r = (s["m"] / (1 - beta1**t)) / (np.sqrt(s["v"] / (1 - beta2**t)) + eps) + weight_decay * p
    norms = np.linalg.norm(p), np.linalg.norm(r)
    return p - lr * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * r


@pytest.mark.parametrize("name, paper", [("Lion", lion), ("LAMB", lamb)])
@pytest.mark.parametrize("betas, weight_decay", [((0.9, 0.99), 0.1), ((0.8, 0.95), 0.0)])
def test_rules_equal_the_papers(rng, name, paper, betas, weight_decay) -> None:
    for shape in SHAPES:
        p, state = rng.normal(size=shape) * (name != "LAMB" or shape != (17,)), {}  # LAMB from zeros too
        ours = Updater(getattr(optim, name)(lr=0.05, betas=betas, weight_decay=weight_decay), p)
        for t, g in enumerate(gradients(shape), 1):
            p = paper(p, g, state, t, 0.05, *betas, weight_decay)
            ours.step(g)
            np.testing.assert_allclose(ours.p, p, rtol=1e-10, atol=1e-13)


def muon(p, g, s, lr, momentum, nesterov, weight_decay, ratio, steps=5):
    s["b"] = momentum * s.get("b", 0.0) + (1 - momentum) * g
    x = (1 - momentum) * g + momentum * s["b"] if nesterov else s["b"]
    x = x / max(np.linalg.norm(x), 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return p * (1 - lr * weight_decay) - lr * ratio * x


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (1, 7)])
@pytest.mark.parametrize("nesterov, weight_decay, adjust", [(True, 0.1, None), (False, 0.0, "match_rms_adamw")])
def test_muon_equals_the_paper(torch, rng, shape, nesterov, weight_decay, adjust) -> None:
    start = p = rng.normal(size=shape)
    state = {}
    ours = Updater(optim.Muon(lr=0.05, nesterov=nesterov, weight_decay=weight_decay, adjust_lr_fn=adjust), p)
    theirs = torch.nn.Parameter(torch.tensor(start))
    peer = torch.optim.Muon([theirs], lr=0.05, nesterov=nesterov, weight_decay=weight_decay, adjust_lr_fn=adjust)
    ratio = 0.2 * np.sqrt(max(shape)) if adjust else np.sqrt(max(1, shape[0] / shape[1]))
    for g in list(gradients(shape))[:6]:
        p = muon(p, g, state, 0.05, 0.95, nesterov, weight_decay, ratio)
        ours.step(g)
        theirs.grad = torch.tensor(g)
        peer.step()
        np.testing.assert_allclose(ours.p, p, rtol=1e-9, atol=1e-12)
    # torch makes the matrix orthogonal in bfloat16
    np.testing.assert_allclose(ours.p, theirs.detach().numpy(), atol=6 * 0.05 * ratio * 0.05)


def test_compiled_rules_over_matrices(rng) -> None:
    """Muon, LAMB and Lion compiled in float32, against float64 by the reference evaluator."""
    for rule, names in (
        (optim.Muon(lr=0.05), ["c", "e"]), (optim.LAMB(lr=0.05), list(Net.SHAPES)), (optim.Lion(), ["a", "d"]),
    ):  # fmt: skip
        start = {n: np.asarray(rng.normal(size=Net.SHAPES[n])) for n in names}
        grads = [{n: np.asarray(rng.normal(size=Net.SHAPES[n])) for n in names} for _ in range(5)]
        ours = trained(rule, start, grads, names)
        for n in names:
            exact = Updater(rule, start[n])
            for g in grads:
                exact.step(g[n])
            np.testing.assert_allclose(ours[n], exact.p, rtol=2e-5, atol=2e-5)


def test_muon_names_the_remedy_for_other_parameters() -> None:
    with pytest.raises(es.ShapeError, match=r"Groups\(.*ndim=2"):
        optim.Muon().states((3,), dtypes.f32)
    with pytest.raises(es.ShapeError, match=r"shape \(17,\)"):
        es.TrainStep(Net({"b": np.zeros(17)}, ["b"]), lambda a, b: a, optim.Muon())
