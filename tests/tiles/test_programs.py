"""Whole programs on tiles: the gallery's values and gradients, recurrences, networks and their updates."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.base.environment import CHECK
from einsmith.driver import registry
from einsmith.kernels import autoconfig
from tests.driver.test_second_backend import NETWORKS, trained
from tests.gallery.entries import ENTRIES, Entry
from tests.gallery.test_gallery import Problem
from tests.tiles import card
from tests.tiles.backend import Tiles
from tests.tiles.running import SMALL, SPLIT, WATCHED, WAYS

on_a_card = pytest.mark.skipif(bool(card.missing()), reason=str(card.missing()))
TURNS = {e.name: n for n, e in enumerate(ENTRIES)}


@pytest.fixture
def seated(monkeypatch: pytest.MonkeyPatch):
    """Makes a back end on tiles that of every program."""

    def seat(**options) -> Tiles:
        made = Tiles(**options)
        monkeypatch.setenv(CHECK.name, "0")
        monkeypatch.setattr(registry, "BACKENDS", {**registry.BACKENDS, made.name: made})
        monkeypatch.setattr(autoconfig, "OTHERS", {made.name: made.patterns})
        monkeypatch.setattr(registry, "DEFAULT", made)
        return made

    return seat


def of_gallery(entry: Entry, case: int, double: bool, rng: np.random.Generator) -> None:
    p = Problem(entry, case, rng)
    float_type = np.float64 if double else np.float32
    p.arrays = {n: a.astype(float_type) if a.dtype.kind == "f" else a for n, a in p.arrays.items()}
    p.x = [p.arrays[n] for n in p.floats]
    c = rng.standard_normal(np.shape(es.interpret(p.f)(*p.x))).astype(float_type)
    want, pulled = es.interpret(p.value_and_pull)(c, *p.x)
    got, grads = es.jit(p.value_and_pull)(c, *p.x)
    tol = 1e-10 if double else 2e-4
    for a, b in zip([got, *grads], [want, *pulled], strict=True):
        assert a.dtype == float_type
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol / 10 * max(1.0, float(np.abs(b).max(initial=0))))


@pytest.mark.thinned(10)
@pytest.mark.parametrize("entry", ENTRIES, ids=[e.name for e in ENTRIES])
def test_the_gallery_and_its_gradients(entry: Entry, seated, rng: np.random.Generator) -> None:
    """In turns in f32 and f64, by the interpreter and as text, whole and split."""
    turn = TURNS[entry.name]
    made = seated(tiling=(SMALL, SPLIT)[turn // 2 % 2], way=WATCHED[turn % 2])
    of_gallery(entry, turn % len(entry.cases), bool(turn // 4 % 2), rng)
    assert made.programs


@on_a_card
@pytest.mark.parametrize("double", [False, True], ids=["f32", "f64"])
@pytest.mark.parametrize("entry", ENTRIES, ids=[e.name for e in ENTRIES])
def test_the_gallery_on_a_card(entry: Entry, double: bool, seated, rng: np.random.Generator) -> None:
    made = seated(tiling=(SMALL, SPLIT)[TURNS[entry.name] % 2], way="card")
    of_gallery(entry, TURNS[entry.name] % len(entry.cases), double, rng)
    assert made.programs


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("entry", ENTRIES, ids=[e.name for e in ENTRIES])
def test_all_of_the_gallery(entry: Entry, way: str, seated, rng: np.random.Generator) -> None:
    turns = count()
    for case in range(len(entry.cases)):
        for double in (False, True):
            seated(tiling=(SMALL, SPLIT)[next(turns) % 2], way=way)
            of_gallery(entry, case, double, rng)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train_alike(name: str, seated) -> None:
    """Convolutions, pooling, dropout, an embedding, a recurrence; losses, gradients and Adam's updates."""
    trains_alike(name, seated, WATCHED[len(name) % 2])


@on_a_card
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train_alike_on_a_card(name: str, seated) -> None:
    trains_alike(name, seated, "card")


def trains_alike(name: str, seated, way: str) -> None:
    step, want = trained(name)
    weights = step.model.state_dict()
    made = seated(way=way)
    step, got = trained(name)
    np.testing.assert_allclose(got, want, rtol=2e-5)
    for key, value in step.model.state_dict().items():
        np.testing.assert_allclose(value, weights[key], rtol=1e-3, atol=2e-5, err_msg=key)
    assert sum(made.used.values()) > 5


def test_attention(seated, rng: np.random.Generator) -> None:
    """Products, a softmax in rows and its gradient."""

    def attention(q, k, v):
        return (F.softmax(q @ k.T * 0.25, 1) @ v).sum()

    x = [rng.standard_normal((19, 8)).astype(np.float32) for _ in range(3)]
    want = es.interpret(es.value_and_grad(attention, argnums=(0, 1, 2)))(*x)
    made = seated(way="text")
    got = es.jit(es.value_and_grad(attention, argnums=(0, 1, 2)))(*x)
    for a, b in zip((got[0], *got[1]), (want[0], *want[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert made.used["contraction"] and made.used["rows"]


WINDOWS = {
    "by channel": ((2, 3, 7, 9), (3, 1, 3, 3), {"padding": 1, "groups": 3}),
    "of stride 2": ((1, 5, 11, 8), (5, 1, 3, 5), {"padding": 2, "stride": 2, "groups": 5}),
    "dilated": ((2, 2, 13, 5), (4, 1, 5, 1), {"dilation": (2, 1), "groups": 2}),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_as_stencils(name: str, way: str, dtype: type, seated, rng: np.random.Generator) -> None:
    """Depthwise convolutions, what is largest around each result, and the gradients of both."""
    shape, taps, how = WINDOWS[name]

    def network(x, w, g):
        y = F.max_pool2d(F.tanh(F.conv2d(x, w, **how)), 3, stride=2, padding=1)
        return (y * g).sum()

    x, w = (rng.standard_normal(s).astype(dtype) for s in (shape, taps))
    y = es.interpret(lambda x, w: F.max_pool2d(F.conv2d(x, w, **how), 3, stride=2, padding=1))(x, w)
    g = rng.standard_normal(y.shape).astype(dtype)
    want = es.interpret(es.value_and_grad(network, argnums=(0, 1)))(x, w, g)
    made = seated(tiling=replace(SMALL, m=32), way=way)
    got = es.jit(es.value_and_grad(network, argnums=(0, 1)))(x, w, g)
    for a, b in zip((got[0], *got[1]), (want[0], *want[1]), strict=True):
        assert a.dtype == dtype
        scale = np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=scale * (1e-12 if dtype is np.float64 else 2e-6))
    assert made.used["stencil"] >= 2
