"""NaN, infinities and zeros in data and in bounds: torch.compile's backend and `einsmith.functional` against eager
PyTorch, values and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="its operators are compared with")
from torch.nn import functional as F  # noqa: E402

import einsmith as es  # noqa: E402
from tests.frontends.torch_compiled import compiled, fresh  # noqa: E402, F401

ORDERS = (1, 2, 3, 0.5, 1.5, -0.5, -1, -2, inf, -inf)
SELECTIONS: dict[str, Callable] = {
    "median of all": lambda x, y: x.median(),
    "median": lambda x, y: x.median(1).values,
    "median along columns": lambda x, y: x.median(0).values,
    "nanmedian": lambda x, y: x[:-1].nanmedian(1).values,
    "max": lambda x, y: x.max(1).values,
    "max of all": lambda x, y: x.max(),
    "min": lambda x, y: x.min(1).values,
    "amax": lambda x, y: x.amax(1),
    "amin": lambda x, y: x.amin(1),
    "kthvalue": lambda x, y: x[:-1].kthvalue(2, 1).values,
    "sort": lambda x, y: x.sort(dim=1, stable=True).values,
    "cummax": lambda x, y: x.cummax(1).values,
    "cummin": lambda x, y: x.cummin(1).values,
    "segments": lambda x, y: torch.segment_reduce(x, "max", lengths=torch.tensor([2, 3, 4])),
}
POINTWISE: dict[str, Callable] = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "hypot": torch.hypot,
    "relu": lambda x, y: F.relu(x),
    "threshold": lambda x, y: F.threshold(x, 0.5, 7.0),
    "threshold of NaN": lambda x, y: F.threshold(x, nan, 7.0),
    "nan_to_num": lambda x, y: torch.nan_to_num(x, 1.0, 2.0, 3.0),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "where": lambda x, y: torch.where(x > y, x, y),
    **{
        f"clamp to {low}, {high}": lambda x, y, low=low, high=high: x.clamp(low, high)
        for low, high in ((nan, None), (None, nan), (nan, 1.0), (0.0, nan), (0.5, -0.5), (-inf, inf), (inf, None))
    },
    "clamp to tensors": lambda x, y: x.clamp(y, y + 1),
}
WITHOUT_DERIVATIVES: dict[str, Callable] = {
    "place of the first NaN": lambda x, y: torch.where(x.isnan().any(1), x.median(1).indices, -1),
    "argmax": lambda x, y: x.argmax(1),
    "argmin": lambda x, y: x.argmin(1),
    "places of sort": lambda x, y: x.sort(dim=1, stable=True).indices,
    "sign": lambda x, y: torch.sign(x),
    "heaviside": torch.heaviside,
    "comparisons": lambda x, y: torch.stack([x == y, x != y, x < y, x <= y, x > y, x >= y]),
    "norm 0": lambda x, y: torch.linalg.vector_norm(x, 0, 1),
    "bucketize": lambda x, y: torch.bucketize(x, torch.tensor([-1.0, 0.0, 2.0])),
    "bucketize among NaN": lambda x, y: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5, nan])),
    "bucketize among NaN, right": lambda x, y: torch.bucketize(x, torch.tensor([-1.0, inf, nan]), right=True),
    "searchsorted": lambda x, y: torch.searchsorted(y[3:].sort(dim=1).values, x[3:]),
    "searchsorted, right": lambda x, y: torch.searchsorted(y[3:].sort(dim=1).values, x[3:], right=True),
}
NORMS: dict[str, Callable] = {
    **{f"norm {p}": lambda x, y, p=p: torch.linalg.vector_norm(x, p, 1) for p in ORDERS},
    **{f"norm of all {p}": lambda x, y, p=p: torch.linalg.vector_norm(x, p) for p in ORDERS if p != inf},
    **{f"normalize {p}": lambda x, y, p=p: F.normalize(x, p) for p in ORDERS if abs(p) != inf},
}


def awkward(seed):
    """Two tensors of 9 rows, distinct numbers among which stand NaN, infinities and zeros; the last row is all NaN."""
    rng = np.random.default_rng(seed)
    pair = []
    for _ in range(2):
        x = rng.permutation(np.linspace(-2.33, 2.1, 45)).reshape(9, 5)
        for row, value in enumerate([nan, nan, inf, -inf, 0.0, -0.0], start=1):
            x[row, rng.integers(5)] = value
        x[2, :3] = nan, 1.25, nan
        x[8] = nan
        pair.append(torch.tensor(x, dtype=torch.float32))
    return pair


def evaluate(functions, x, y, derivatives):
    """Return each function's value, and its derivative by an own copy of x."""
    xs = [x.clone().requires_grad_(derivatives) for _ in functions]

    def every(xs, y):
        return [f(v, y) for f, v in zip(functions.values(), xs, strict=True)]

    wanted, ours = every(xs, y), compiled(every)(xs, y)
    pairs = list(zip(ours, wanted, strict=True))
    if derivatives:
        seeds = [torch.full_like(v, 0.5) for v in wanted]
        grads = [torch.autograd.grad(values, xs, seeds) for values in (ours, wanted)]
        pairs = [
            tuple((v.detach(), g) for v, g in zip(values, derivative, strict=True))
            for values, derivative in zip(pairs, zip(*grads, strict=True), strict=True)
        ]
    return dict(zip(functions, pairs, strict=True))


def check(results):
    for name, (ours, theirs) in results.items():
        torch.testing.assert_close(
            ours, theirs, rtol=1e-5, atol=1e-6, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))])
@pytest.mark.parametrize(
    "functions",
    [SELECTIONS, POINTWISE, WITHOUT_DERIVATIVES, pytest.param(NORMS, marks=pytest.mark.slow)],
    ids=["selections", "pointwise", "places", "norms"],
)
def test_operators_agree_with_eager_execution(functions, seed):
    check(evaluate(functions, *awkward(seed), functions is not WITHOUT_DERIVATIVES))


def test_all_nan_count_as_equal_for_the_mode():
    x = torch.tensor([[nan, nan, nan, 0.0], [0.0, nan, nan, nan], [1.0, nan, 1.0, nan], [nan, 2.0, 1.0, 3.0]])
    values, places = compiled(torch.mode)(x)
    np.testing.assert_array_equal(values, [nan, nan, 1.0, 1.0])
    np.testing.assert_array_equal(places, [2, 3, 2, 2])


def test_logarithms_of_sums_are_nan_behind_a_nan():
    x = torch.tensor([[1.0, inf, 2.0, nan, 3.0], [-inf, -inf, 0.0, nan, inf]])
    check({"logcumsumexp": (compiled(lambda x: x.logcumsumexp(1))(x), x.logcumsumexp(1))})


FUNCTIONAL: dict[str, tuple[Callable, Callable]] = {
    "median": (lambda x, y: es.functional.median(x, 1)[0], lambda x, y: x.median(1)[0]),
    "smooth_l1_loss": (
        lambda x, y: es.functional.smooth_l1_loss(x, y, reduction="none"),
        lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    ),
    **{
        f"clamp to {low}, {high}": (
            lambda x, y, low=low, high=high: es.functional.clamp(x, low, high),
            lambda x, y, low=low, high=high: x.clamp(low, high),
        )
        for low, high in ((nan, None), (None, nan), (nan, 1.0), (0.0, nan), (0.5, -0.5), (inf, None))
    },
    "clamp to a tensor": (lambda x, y: es.functional.clamp(x, y), lambda x, y: x.clamp(y)),
    **{
        f"norm {p}": (
            lambda x, y, p=p: es.functional.norm(x, p, 1),
            lambda x, y, p=p: torch.linalg.vector_norm(x, p, 1),
        )
        for p in ORDERS
        if abs(p) != inf
    },
}


def test_functions_agree_with_pytorch():
    x, y = awkward(0)
    xs = [x.clone().requires_grad_() for _ in FUNCTIONAL]
    wanted = [theirs(v, y) for (_, theirs), v in zip(FUNCTIONAL.values(), xs, strict=True)]
    seeds = [torch.full_like(v, 0.5) for v in wanted]
    grads = torch.autograd.grad(wanted, xs, seeds)

    @es.jit
    def every(x, y, seeds):
        pulled = [es.vjp(lambda v, f=ours: f(v, y), x) for ours, _ in FUNCTIONAL.values()]
        return [(value, pull(s)[0]) for (value, pull), s in zip(pulled, seeds, strict=True)]

    results = every(x.numpy(), y.numpy(), [s.numpy() for s in seeds])
    ours = [tuple(torch.tensor(np.asarray(v)) for v in pair) for pair in results]
    theirs = [(v.detach(), g) for v, g in zip(wanted, grads, strict=True)]
    check(dict(zip(FUNCTIONAL, zip(ours, theirs, strict=True), strict=True)))
