"""What the CPU computes, on a card: random formulas, the gallery, and the networks of `es.models`, with gradients."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import einsmith as es
from einsmith.base.environment import DEVICE
from einsmith.driver.cuda import Cuda
from tests.frontends.test_onnx_export import NETWORKS
from tests.fuzz.check import Unfit, check_gradients, check_values
from tests.fuzz.generate import KINDS, Generator
from tests.gallery.entries import ENTRIES, Entry
from tests.tiles.test_programs import of_gallery

FORMULAS = 12
"""Formulas of a test; the slow ones draw 300 in all."""
QUICK = ("gpt_small", "sublstm")

DEEP = ("shufflenet_v1", "mobilenet_v1", "mobilenet_v2", "resnet50", "efficientnet_lite0", "resnet18_cifar")


@pytest.fixture
def on_card(card: Callable[..., Cuda], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """A card, on which all programs run."""
    made = card(seed=random.randrange(1 << 30))
    monkeypatch.setenv(DEVICE.name, "cuda")
    yield made
    assert made.card.device.launches


def formulas(count: int, kinds: tuple[str, ...], smooth: bool, check: Callable) -> None:
    seed = random.randrange(1 << 30)
    checked = 0
    for n in range(4 * count):
        case = Generator(functools.partial(lambda r, n: r.randrange(n), random.Random(seed + n)), kinds, smooth).case()
        try:
            check(case)
        except Unfit:
            continue
        except Exception as e:
            raise AssertionError(f"formula of seed {seed + n}:\n{case}") from e
        checked += 1
        if checked == count:
            return
    raise AssertionError(f"only {checked} of {4 * count} formulas could be checked")


@pytest.mark.parametrize("count", [FORMULAS, pytest.param(200, marks=pytest.mark.slow)])
def test_values_of_formulas(count: int, on_card: Cuda) -> None:
    formulas(count, KINDS, False, check_values)


@pytest.mark.parametrize("count", [FORMULAS, pytest.param(100, marks=pytest.mark.slow)])
def test_gradients_of_formulas(count: int, on_card: Cuda) -> None:
    formulas(count, ("f64", "f32"), True, check_gradients)


@pytest.mark.thinned(16)
@pytest.mark.parametrize("entry", ENTRIES, ids=[e.name for e in ENTRIES])
def test_the_gallery_and_its_gradients(entry: Entry, on_card: Cuda, rng: np.random.Generator) -> None:
    turn = [e.name for e in ENTRIES].index(entry.name)
    of_gallery(entry, turn % len(entry.cases), bool(turn % 2), rng)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS])
def test_models_and_their_gradients(name: str, card: Callable[..., Cuda]) -> None:
    """In evaluation mode, where normalisation does not amplify roundings; deep networks in float64, as a rounding that
    turns the sign before a ReLU changes gradients."""
    make, inputs = NETWORKS[name]
    es.manual_seed(1)
    model, dtype = make().eval(), np.float32
    if name in DEEP:
        model, dtype = model.double(), np.float64
        inputs = tuple(x.astype(dtype) if x.dtype.kind == "f" else x for x in inputs)
    rng = np.random.default_rng(5)
    for b in model.buffers():
        if b.ndim:
            b.data = 0.5 + rng.random(b.shape).astype(b.dtype.numpy)
    weights = {n: p.data for n, p in model.named_parameters()}
    out = es.jit(model)(*inputs)
    cotangent = rng.standard_normal(np.shape(out[0] if isinstance(out, tuple) else out)).astype(dtype)

    def scalar(weights, cotangent, *inputs):
        y = es.nn.functional_call(model, weights, *inputs)
        return ((y[0] if isinstance(y, tuple) else y) * cotangent).sum()

    f = es.value_and_grad(scalar)
    want, gradients = es.jit(f)(weights, cotangent, *inputs)
    made = card(seed=len(name))
    got, found = es.jit(f, device="cuda")(weights, cotangent, *inputs)
    scale = float(np.abs(cotangent).sum())
    tol = 1e-9 if name in DEEP else 1.0
    np.testing.assert_allclose(got, want, rtol=1e-4 * tol, atol=1e-6 * scale * tol)
    for key, value in gradients.items():
        scale = float(np.abs(value).max(initial=0))
        np.testing.assert_allclose(found[key], value, rtol=1e-3 * tol, atol=(2e-4 * scale + 1e-6) * tol, err_msg=key)
    assert made.card.device.launches >= 1
