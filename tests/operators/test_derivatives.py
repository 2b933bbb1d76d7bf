"""Values and derivatives of operators beside PyTorch's at zeros, poles, infinities, ties and NaN, outside domains."""

from __future__ import annotations

from math import inf, isinf, isnan, nan

import numpy as np
import pytest

import einsmith as es
from tests.semantics.derivatives import ALL, ALL_PAIRS, Case, compare, same

torch = pytest.importorskip("torch", reason="its derivatives are compared with")
F, T = es.functional, torch.nn.functional

UNARY = {
    **dict.fromkeys(
        "exp2 log2 log10 reciprocal square sinc tan sinh cosh erfc asin acos atan asinh atanh logit erfinv i0e"
        " logsigmoid mish softsign tanhshrink softshrink hardshrink hardtanh relu6 softplus silu trunc frac".split(),
        lambda x: False,
    ),
    "ndtri": lambda x: x == 0 and np.signbit(x),  # the derivative of a logarithm
    "acosh": lambda x: x < 1,  # no number there, where PyTorch's derivative is one
    "lgamma": lambda x: isinf(x) or x <= 0 and x == round(x),  # poles: NaN or infinite
    "digamma": lambda x: isinf(x) or x < 0 and x == round(x),
    "erfcx": isinf, "i0": isinf, "i1": lambda x: isinf(x) or isnan(x), "i1e": isnan,
    **dict.fromkeys(("elu", "celu", "selu"), isnan),  # NaN here
    "hardswish": lambda x: isinf(x) or isnan(x),  # NaN in PyTorch at minus infinity, 1 at NaN
}  # fmt: skip
"""Names -> whether the derivative differs at x, on purpose or at infinities."""
BINARY = {
    "xlogy": lambda x, y: x == 0 and (y == 0 or y == inf),  # the limits, 0, in place of NaN and infinity
    **dict.fromkeys(("logaddexp", "logaddexp2"), lambda x, y: isinf(x) or isinf(y)),  # the limits, in place of NaN
    "atan2": lambda y, x: isinf(x) or isinf(y),  # the limit, 0, in place of NaN
}  # fmt: skip
VECTORS = [(3.0, 4.0), (0.0, 0.0), (0.0, 2.0), (inf, 1.0), (-inf, -inf), (-inf, 1.0), (nan, 1.0), (1.0, 1.0), (5.0,)]
REDUCTIONS = {
    **{f"norm {p}": (lambda x, p=p: F.norm(x, p), lambda x, p=p: torch.linalg.vector_norm(x, p))
       for p in (2.0, 1.0, inf, -inf, 0.0, 3.0, 0.5, -1.0)},
    **{f"normalize {p}": (lambda x, p=p: F.normalize(x, p, dim=0), lambda x, p=p: T.normalize(x, p, dim=0))
       for p in (1.0, 2.0, 3.0, inf)},
    "cosine_similarity": (lambda x: F.cosine_similarity(x, x * x, dim=0),
                          lambda x: T.cosine_similarity(x, x * x, dim=0)),
    "pairwise_distance": (lambda x: F.pairwise_distance(x, x * 0, eps=0.0),
                          lambda x: T.pairwise_distance(x, x * 0, eps=0.0)),
    "std": (F.std, torch.std), "logsumexp": (lambda x: F.logsumexp(x, 0), lambda x: torch.logsumexp(x, 0)),
    "softmax": (lambda x: F.softmax(x, 0), lambda x: torch.softmax(x, 0)),
    "log_softmax": (lambda x: F.log_softmax(x, 0), lambda x: torch.log_softmax(x, 0)),
    "prod": (F.prod, torch.prod), "cummax": (lambda x: F.cummax(x, 0)[0], lambda x: torch.cummax(x, 0)[0]),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape), lambda x: T.layer_norm(x, x.shape)),
    "rms_norm": (lambda x: F.rms_norm(x, x.shape, eps=0.0), lambda x: T.rms_norm(x, x.shape, eps=0.0)),
}  # fmt: skip


def check(case, differs=lambda *at: False, orders=(0, 1)) -> None:
    for found in compare(torch, case, np.float64):
        if not differs(*found.at):
            for k in orders:
                assert same(found.ours[k], found.theirs[k], np.float64), (found.at, found.wrt, k, found)


def twin(name):
    return next(getattr(p, name) for p in (T, torch, torch.special) if hasattr(p, name))


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", UNARY)
def test_one_number(name) -> None:
    points = [p for p in ALL if name != "softplus" or p[0] != 20]  # from where on PyTorch's is x itself
    exact = (0,) if name == "digamma" else (0, 1)  # PyTorch's trigamma has eight digits
    check(Case(name, getattr(F, name), lambda t: twin(name), points), UNARY[name], exact)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", BINARY)
def test_two_numbers(name) -> None:
    check(Case(name, getattr(F, name), lambda t: getattr(t, name), ALL_PAIRS), BINARY[name])


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name) -> None:
    ours, theirs = REDUCTIONS[name]
    infinite = name in ("prod", "std", "normalize inf")  # quotients and differences of infinities

    def differs(x):
        return infinite and bool(np.isinf(x).any() or np.isnan(x).any())

    check(Case(name, ours, lambda t: theirs, [(x,) for x in VECTORS], elementwise=False), differs)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name, wanted", [("i0", 0.5), ("i1", 0.0), ("bessel_j0", -0.5), ("bessel_j1", 0.0)])
def test_even_and_odd_functions_are_smooth(name, wanted) -> None:
    f = getattr(F, name)
    second = es.jit(es.grad(lambda x: es.grad(lambda y: f(y).sum())(x).sum()))
    np.testing.assert_allclose(second(np.array([0.0, -0.0])), wanted, atol=1e-12)
