"""Operators of 16 bits beside themselves in float64: what they compute on the way may leave the range of their type
where no result does, and only results are rounded."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.autodiff.reverse import gradients
from einsmith.base import dtypes as dt
from einsmith.ops import operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value
from tests.nn.conftest import evaluated
from tests.nn.twin import outputs

torch = pytest.importorskip("torch", reason="the samples are its operators'")
from tests.operators.samples import SAMPLES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SCALES = (-12, 0, 9, 14)
"""Powers of two by which the operands are multiplied."""
CASES = [
    pytest.param(c, o, id=f"{c.name}-{n}")
    for n, c in enumerate(SAMPLES)
    for o in c.draws[-1:]
    if c.name != "rms_norm" or o.get("eps")  # its default is another number in each type
]


def off(case, options, kind, scale, rng):
    """Yield the greatest error of each value and gradient of a call in units of the type, where the exact one has a
    normal number of it."""

    def narrow(x):
        is_float = isinstance(x, np.ndarray) and x.dtype.kind == "f"
        return kind.narrow(x) if is_float else x

    def wide(x):
        return kind.wide(x) if isinstance(x, np.ndarray) and x.dtype == kind.numpy else x

    arrays = [np.asarray(a) for a in case.arrays(rng)]
    arrays = [narrow(a * 2.0**scale if a.dtype.kind == "f" else a) for a in arrays]
    options = {n: narrow(v) for n, v in options.items()}

    def derived(options):
        def f(*values):
            outs = outputs(case.function(*values, **options))
            chosen = [y for y in outs if y.dtype.is_float] if case.smooth else []
            ones = [builder.full(y.shape, 1.0, y.dtype).tensor for y in chosen]
            floats = [x.tensor for x in values if x.dtype.is_float]
            first = gradients([y.tensor for y in chosen], ones, floats)[1] if chosen and floats else ()
            return (*outs, *map(Value, first))

        return f

    with np.errstate(all="ignore"):
        exact = evaluated(derived({n: wide(v) for n, v in options.items()}), *map(wide, arrays))
        for got, want in zip(evaluated(derived(options), *arrays), exact, strict=True):
            held = np.isfinite(want) & (np.abs(want) >= kind.tiny) & (np.abs(want) < kind.max * (1 - kind.eps))
            if want.dtype.kind == "f" and held.any():
                error = np.abs(kind.wide(np.asarray(got))[held] / want[held] - 1) / kind.eps
                yield float(np.where(np.isfinite(error), error, np.inf).max())


@pytest.mark.thinned(16)
@pytest.mark.parametrize("kind", [dt.f16, dt.bf16], ids=str)
@pytest.mark.parametrize("case, options", CASES)
def test_only_results_are_rounded(rng, case, options, kind) -> None:
    for scale in SCALES:
        assert max(off(case, options, kind, scale, rng), default=0.0) <= 6.0, scale


def test_rounding_in_between_is_seen(rng, monkeypatch) -> None:
    monkeypatch.setattr(operator, "keep_wide", lambda operands, results: results)
    (norm,) = [c for c in SAMPLES if c.name == "norm"][:1]
    assert max(off(norm, {"p": 2}, dt.f16, 9, rng)) == np.inf


HALVES = {
    "norm": lambda x: x.norm(), "norms": lambda x: torch.linalg.vector_norm(x, dim=1),
    "normalize": lambda x: torch.nn.functional.normalize(x), "deviation": lambda x: x.std(1),
    "variance and mean": lambda x: sum(torch.var_mean(x / 64, dim=1)), "hypot": lambda x: torch.hypot(x, 3 * x),
    "cosine": lambda x: torch.nn.functional.cosine_similarity(x, x.flip(0)),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (5,)), "mean": lambda x: (x * 64).mean(),
    "log-sum-exp": lambda x: x.logsumexp(1), "distance": lambda x: torch.nn.functional.pairwise_distance(x, x.flip(0)),
}  # fmt: skip


@pytest.mark.parametrize("name", HALVES)
def test_backend(rng, name) -> None:
    x = torch.tensor(rng.normal(size=(4, 5)) * 300, dtype=torch.float16, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    torch._dynamo.reset()
    found, wanted = torch.compile(HALVES[name], backend="einsmith")(x), HALVES[name](exact)
    torch.testing.assert_close(found.double(), wanted, rtol=3e-3, atol=3e-3)
    slopes = [torch.autograd.grad(y.sum(), t)[0].double() for y, t in ((found, x), (wanted, exact))]
    torch.testing.assert_close(*slopes, rtol=2e-2, atol=2e-3)
