"""Calls of the operators of `einsmith.functional`, by family: arrays, options, and how PyTorch is asked for the same.

`test_modes.py` runs all of them in every mode.
"""

# fmt: off
from __future__ import annotations

import numpy as np
import torch

from tests.nn.twin import Case


def normal(*shapes, scale=1):
    return lambda rng: tuple(rng.normal(size=s) * scale for s in shapes)


def uniform(low, high, *shapes):
    return lambda rng: tuple(rng.uniform(low, high, s) for s in shapes)


def distinct(*shape):
    """A tensor without equal elements."""
    return lambda rng: (rng.permutation(int(np.prod(shape))).reshape(shape) / 9,)


def constant(*arrays):
    return lambda rng: tuple(map(np.array, arrays))


def ties(*shape):
    """A tensor of small whole numbers, many of which are equal."""
    return lambda rng: (rng.integers(-3, 3, shape).astype(float),)


def each(options):
    """Return the options with one value each."""
    return {name: [value] for name, value in options.items()}


X = normal((3, 5, 2))
M = normal((4, 5))
DIM = {"dim": [0, 1, -1]}
TWO = {"dim": [0, 1]}
KEEP = DIM | {"keepdim": [False, True]}
NDIM = (1, 2, 3)
SPACE = {1: (11,), 2: (7, 8), 3: (5, 4, 6)}

# --------------------------------------------------------------------------------------------------------- activations

V = normal((17,), scale=3)


def _squash(x, dim):
    n2 = (x * x).sum(dim, keepdim=True)
    return x * n2.sqrt() / (1 + n2)


ACTIVATIONS = [
    *(Case(n, lambda rng: (np.append(rng.normal(size=15) * 3, [0.0, -0.0]),), o)
      for n, o in (("relu", {}), ("leaky_relu", {"negative_slope": [0.01, 0.3, -0.5, 0.0]}))),
    *(Case(n, V) for n in ("tanh", "sigmoid", "silu", "mish", "selu", "softsign", "logsigmoid", "tanhshrink",
                           "hardswish")),
    Case("relu6", normal((17,), scale=6)), Case("hardsigmoid", V, smooth=1, tolerance=1e-7),
    *(Case("prelu", normal(x, (n,))) for n, x in ((1, (17,)), (3, (2, 3, 5)), (1, (2, 3)))),
    Case("rrelu", V, {"lower": [0.125, 0.0], "upper": [1 / 3, 0.5]}),
    Case("gelu", V, {"approximate": ["none", "tanh"]}),
    Case("elu", V, {"alpha": [1.0, 0.5, -0.3, 0.0]}), Case("celu", V, {"alpha": [1.0, 0.5, -2.0]}),
    Case("softplus", V, {"beta": [1, 0.5, 3.0, -1.0], "threshold": [20, 1.0, -1.0]}),
    Case("softshrink", V, {"lambd": [0.5, 0.0, 1.5]}), Case("hardshrink", V, {"lambd": [0.5, 0.0, 1.5, -1.0]}),
    Case("threshold", V, {"threshold": [0.1, -2.0], "value": [20.0, 0.0]}),
    Case("thresholded_relu", V, {"alpha": [1.0, 0.5]}, theirs=lambda x, alpha: torch.where(x > alpha, x, 0.0)),
    Case("hardtanh", V, {"min_val": [-1.0, -2.5], "max_val": [1.0, 0.5]}), Case("glu", normal((4, 6, 2)), DIM),
    Case("squash", normal((3, 5, 2), scale=3), {"dim": [1]}, theirs=_squash),
    *(Case(n, normal(shape, scale=scale), {"dim": dims}) for n in ("softmax", "log_softmax", "softmin")
      for shape, scale, dims in (((3, 5, 2), 3, [0, 1, -1]), ((3, 5, 7), 400, [0, 1, -1]), ((7,), 1, [0]))),
    Case("logsumexp", normal((3, 5, 2), scale=3), {"dim": [0, -1, (0, 2)], "keepdim": [False, True]}),
    Case("logsumexp", V, {"dim": [0]}),
]

# -------------------------------------------------------------------------------------------------------------- losses

REDUCTIONS = ["mean", "sum", "none"]
R = {"reduction": REDUCTIONS}
WEIGHT = np.linspace(0.5, 2, 5)
WEIGHTED = R | {"weight": [None, WEIGHT]}
SMOOTHED = WEIGHTED | {"label_smoothing": [0.0, 0.1]}
EACH = np.linspace(0.1, 2, 15).reshape(3, 5)
ROWS = np.linspace(0.1, 2, 3).reshape(3, 1)
PAIR = normal((3, 5), (3, 5), scale=1.5)


def classes(*shape, scale=2):
    rest = shape[:1] + shape[2:] if len(shape) > 1 else ()
    return lambda rng: (rng.normal(size=shape) * scale, np.asarray(rng.integers(0, 5, rest)))


def signs(*shape):
    return lambda rng: (rng.normal(size=shape), rng.choice([-1.0, 1.0], shape))


def ignored(label):
    return lambda rng: (rng.normal(size=(7, 5)) * 10, np.array([0, label, 4, 2, label, 1, 0]))


def shares(rng, *shape):
    """Probabilities of five classes."""
    return np.moveaxis(rng.dirichlet(np.ones(5), shape), -1, 1)


def _soft_margin(x, t, reduction):
    """torch differentiates its own neither twice nor by the target."""
    loss = torch.nn.functional.softplus(-(x * t))
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def aligned(time, batch, count, most, joined=False):
    """Scores, labels, how many steps and how many labels; a label twice in a row needs a blank between."""
    def arrays(rng):
        x, targets = rng.normal(size=(time, batch, count)), rng.integers(1, count, (batch, most))
        targets[0, :2] = 2
        lengths = np.array([2, 0, *rng.integers(1, most + 1, batch - 2)])
        if joined:
            targets = np.concatenate([t[:n] for t, n in zip(targets, lengths, strict=True)])
        return x, targets, rng.integers(2 * most, time + 1, batch), lengths

    return arrays


LOSSES = [
    *(Case(n, PAIR, R | {"weight": [EACH, None]}) for n in ("mse_loss", "l1_loss")),
    Case("smooth_l1_loss", PAIR, R | {"beta": [1.0, 0.3, 0.0, 5.0]}),
    Case("huber_loss", PAIR, R | {"delta": [1.0, 0.3, 5.0], "weight": [None, EACH]}),
    Case("binary_cross_entropy", uniform(0.05, 0.95, (3, 5), (3, 5)), R | {"weight": [None, WEIGHT, ROWS]}),
    Case("binary_cross_entropy_with_logits", PAIR, R | {"weight": [None, ROWS], "pos_weight": [None, WEIGHT]}),
    Case("kl_div", lambda rng: (np.log(shares(rng, 4)), shares(rng, 4)), {"reduction": [*REDUCTIONS, "batchmean"]}),
    Case("kl_div", lambda rng: (np.log(shares(rng, 4)), np.log(shares(rng, 4))),
         {"reduction": [*REDUCTIONS, "batchmean"], "log_target": [True]}),
    Case("poisson_nll_loss", lambda rng: (rng.uniform(0.2, 3, 7), rng.uniform(0, 4, 7)),
         R | {"log_input": [True, False], "full": [False, True], "eps": [1e-8, 1e-3]}),
    *(Case("gaussian_nll_loss", lambda rng, s=s: (*rng.normal(size=(2, 3, 5)), rng.uniform(0.1, 2, s)), R | more)
      for s, more in (((3, 5), {"full": [False, True], "eps": [1e-6, 0.5]}), (3, {}), ((3, 1), {}))),
    Case("cross_entropy", classes(4, 5), SMOOTHED | {"ignore_index": [-100, 2]}),
    *(Case("cross_entropy", arrays, SMOOTHED, every=True)
      for arrays in (classes(4, 5, scale=30), classes(3, 5, 2, 2, scale=30), classes(5),
                     lambda rng: (rng.normal(size=(3, 5, 2)), shares(rng, 3, 2)))),
    Case("linear_cross_entropy", lambda rng: (rng.normal(size=(4, 6)), rng.normal(size=(5, 6)), np.array([4, 0, 2, 2])),
         {"linear_bias": [None, np.linspace(-1, 1, 5)], "reduction": ["mean", "sum", "none"], "ignore_index": [None, 2],
          "label_smoothing": [0.0, 0.2]}),
    Case("linear_cross_entropy", lambda rng: (rng.normal(size=(4, 6)), rng.normal(size=(5, 3, 6)),
                                              rng.integers(0, 5, (4, 3))), {"weight": [None, np.linspace(0.5, 2, 5)]}),
    *(Case("cross_entropy", ignored(k), SMOOTHED | {"ignore_index": [k]}, every=True) for k in (-100, 3)),
    *(Case("nll_loss", ignored(k), WEIGHTED | {"ignore_index": [k]}) for k in (-100, 3)),
    Case("nll_loss", classes(4, 5), WEIGHTED | {"ignore_index": [-100, 2]}),
    Case("nll_loss", classes(3, 5, 2, 2), WEIGHTED),
    Case("margin_ranking_loss", lambda rng: (*rng.normal(size=(2, 7)), rng.choice([-1.0, 1.0], 7)),
         R | {"margin": [0, 0.7]}),
    Case("hinge_embedding_loss", signs(3, 5), R | {"margin": [1.0, 0.2]}),
    Case("soft_margin_loss", signs(3, 5), R, theirs=_soft_margin),
    Case("multi_margin_loss", classes(4, 5), WEIGHTED | {"p": [1, 2], "margin": [1.0, 0.3]}, smooth=1),
    Case("multilabel_margin_loss", lambda rng: (
        rng.normal(size=(3, 5)), np.array([[3, 0, -1, 1, 2], [-1, 2, 1, 0, 3], [4, 1, 2, 3, 0]])), R, smooth=1),
    Case("multilabel_soft_margin_loss", lambda rng: (rng.normal(size=(3, 5)), rng.integers(0, 2, (3, 5)).astype(float)),
         WEIGHTED),
    Case("triplet_margin_loss", normal(*[(4, 5)] * 3), R | {"margin": [1.0, 3.0], "p": [2, 1.0, 3.5],
                                                            "swap": [False, True]}),
    Case("triplet_margin_loss", normal(*[(5,)] * 3), R),
    Case("triplet_margin_with_distance_loss", normal(*[(4, 5)] * 3), R | {"margin": [1.0, 3.0], "swap": [False, True]}),
    Case("cosine_embedding_loss", lambda rng: (*rng.normal(size=(2, 6, 5)), np.array([1, -1, 1, -1, -1, 1])),
         R | {"margin": [0, 0.2]}),
    Case("cosine_embedding_loss", lambda rng: (*rng.normal(size=(2, 5)), np.array(-1)), R),
    # torch's derivative of CTC is right only together with that of the softmax.
    *(Case("ctc_loss", aligned(9, 4, 6, 3, joined), R, smooth=1, call=lambda lib, x, *rest, reduction: lib.ctc_loss(
        lib.log_softmax(x, 2), *rest, 0, reduction)) for joined in (False, True)),
]

# --------------------------------------------------------------------------------------------------------- elementwise

ELEMENTWISE = [
    *(Case(n, uniform(0.1, 3, (2, 7))) for n in (
        "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma", "digamma")),
    *(Case(n, V) for n in (
        "exp", "sin", "cos", "tan", "sinh", "cosh", "atan", "asinh", "erf", "erfc", "expm1", "exp2", "sinc",
        "reciprocal", "abs", "sign", "floor", "ceil", "trunc", "frac", "round", "square", "neg")),
    *(Case(n, uniform(-0.9, 0.9, (9,))) for n in ("asin", "acos", "atanh", "erfinv")),
    Case("acosh", uniform(1.1, 9, (9,))), Case("atan2", normal((9,), (9,))), Case("ndtri", uniform(0.05, 0.95, (9,))),
    Case("log_ndtr", uniform(-9, 9, (9,))),
    *(Case(n, normal((9,), scale=2)) for n in ("erfcx", "i0", "i0e", "i1", "i1e")),
    *(Case(n, uniform(0.1, 12, (19,)), smooth=0, tolerance=1e-5) for n in (
        "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai")),
    *(Case(n, uniform(0.1, 12, (19,)), smooth=0, tolerance=1e-7) for n in (
        "spherical_bessel_j0", "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0",
        "scaled_modified_bessel_k1")),
    Case("logit", uniform(0.05, 0.95, (7,)), {"eps": [None, 0.2]}),
    *(Case(n, normal((3, 5), (5,))) for n in ("logaddexp", "logaddexp2")),
    Case("xlogy", uniform(0.1, 3, (3, 5), (3, 1))), Case("pow", uniform(0.1, 3, (3, 5), (5,))),
    Case("div", uniform(0.1, 3, (3, 5), (5,)), {"rounding_mode": [None, "floor", "trunc"]}),
    *(Case(n, normal((3, 5), (5,)), {"alpha": [1, 0.5]}) for n in ("add", "sub")), Case("mul", normal((3, 5), (3, 1))),
    Case("remainder", uniform(0.1, 3, (7,), (7,))), *(Case(n, normal((3, 5), (3, 5))) for n in ("maximum", "minimum")),
    Case("lerp", normal((3, 5), (3, 5), (3, 5))), Case("lerp", normal((3,), (3,)), {"weight": [0.3]}),
    *(Case(n, normal((7,), (7,)), smooth=0) for n in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(Case(n, lambda rng: (rng.integers(0, 2, 9), rng.integers(0, 3, 9)), smooth=0)
      for n in ("logical_and", "logical_or", "logical_xor")),
    Case("logical_not", lambda rng: (rng.random(9) > 0.5,), smooth=0),
    *(Case(n, normal((17,)), o) for n in ("clamp", "clip") for o in (
        {"min": [None, -0.5], "max": [0.5, 1.0]}, {"min": [0.0]})),
    Case("nan_to_num", constant([1.5, np.nan, np.inf, -np.inf]),
         {"nan": [0.0, 2.5], "posinf": [7.0], "neginf": [-3.0, -9.0]}),
    Case("masked_fill", lambda rng: (rng.normal(size=(3, 5)), rng.random(5) > 0.5), {"value": [4.5]}),
    Case("where", lambda rng: (rng.random((3, 5)) > 0.5, rng.normal(size=(3, 5)), rng.normal(size=(3, 1)))),
    Case("where", X, call=lambda lib, x: lib.where(x > 1, x, 0)),
    *(Case(n, X, smooth=0) for n in ("zeros_like", "ones_like")), Case("full_like", X, {"fill_value": [2.5]}, smooth=0),
    *(Case(n, constant([1.5, np.nan, np.inf, -np.inf, -0.0]), smooth=0) for n in ("isnan", "isfinite", "isinf")),
]

# ------------------------------------------------------------------------------------ reductions, running totals, order

STATISTICS = {"dim": [None, 0, (0, 2), (-1, 1)], "correction": [1, 0, 1.5], "keepdim": [False, True]}


REDUCING = [
    *(Case(n, ties(4, 5, 3), KEEP, every=True) for n in ("sum", "mean", "amax", "amin", "prod")),
    *(Case(n, normal((4, 5, 3)), {"dim": [(0, 2), (-1, 1), (0, 1, 2)]}) for n in ("sum", "mean", "amax", "amin")),
    *(Case(n, ties(6, 4, 3), {"dim": [(0, 2)]}) for n in ("amax", "amin")),
    *(Case(n, distinct(5, 6)) for n in ("sum", "mean", "amax", "amin", "prod", "max", "min")),
    *(Case(n, distinct(4, 5, 3), KEEP, every=True) for n in ("max", "min")),
    *(Case(n, distinct(4, 5, 3), {"dim": [0, 1, -1, None], "keepdim": [False, True]}, every=True, smooth=0)
      for n in ("argmax", "argmin")),
    Case("var", X, STATISTICS), Case("std", X, STATISTICS),
    *(Case(n, X, {"dim": [0, (1, 2)]}) for n in ("var_mean", "std_mean")),
    *(Case(n, lambda rng: (rng.integers(0, 2, (3, 4, 2)),), DIM, smooth=0) for n in ("all", "any", "count_nonzero")),
    Case("norm", X, {"p": ["fro", 2, 1, 3.5, np.inf, -np.inf], "dim": [None, 0, (0, 2)], "keepdim": [False, True]}),
    Case("norm", X, {"p": [0], "dim": [1]}, smooth=0),
    *(Case(n, X, DIM) for n in ("cumsum", "logcumsumexp", "cummax", "cummin")),
    Case("cumsum", normal((1,)), {"dim": [0]}), Case("median", X, KEEP),
    Case("cumprod", lambda rng: (rng.normal(size=(3, 5)) * [[1, 1, 0, 1, 1], [0, 1, 1, 0, 1], [1] * 5],), TWO),
    Case("sort", X, DIM | {"descending": [False, True]}),
    Case("argsort", X, DIM | {"descending": [False, True]}, smooth=0),
    Case("topk", normal((3, 11)), {"k": [1, 3, 9], "largest": [True, False]}),
    Case("topk", X, {"k": [2], "dim": [0, 1]}),
]

# -------------------------------------------------------------------------------------------------- products, distances

EINSUMS = {
    "ij,jk->ik": [(3, 4), (4, 5)], "bij,bjk": [(2, 3, 4), (2, 4, 5)], "ij->ji": [(3, 4)], "ii->i": [(5, 5)],
    "ii": [(5, 5)], "ij->": [(3, 4)], "i,j->ij": [(3,), (4,)], "...ij,...jk->...ik": [(2, 1, 3, 4), (7, 4, 5)],
    "b...,b...->b": [(2, 3, 4), (2, 3, 4)], "ab,bc,cd->ad": [(3, 4), (4, 5), (5, 6)],
    "bi,ijk,bj->bk": [(2, 3), (3, 4, 5), (2, 4)], "i,i,i,i->": [(3,)] * 4, "ij,kj,ki->ik": [(3, 4), (5, 4), (5, 3)],
    "ii,ij->j": [(4, 4), (4, 5)], "iij->j": [(3, 3, 2)], "...ii->...i": [(2, 3, 3)],
    "...ij,j->...i": [(2, 1, 3, 4), (4,)], "...,...->...": [(2, 3), (3,)], "a,b,c,d->dcba": [(2,), (3,), (4,), (5,)],
    "ab,bc,cd,de,ef->af": [(2, 3), (3, 4), (4, 2), (2, 3), (3, 5)], "i...j->...": [(3, 2, 4)],
    " i j , j k -> i k ": [(3, 4), (4, 5)], "ij,ij": [(3, 1), (3, 4)], "abc->cab": [(2, 3, 4)],
    "bhid,bhjd->bhij": [(2, 3, 4, 5), (2, 3, 6, 5)], ",ij->ij": [(), (2, 3)],
    "ijk,ilm,njm,nlk,abc->": [(2,) * 3] * 5, "Aa,aB->BA": [(2, 3), (3, 4)], "i,i,i->i": [(4,)] * 3,
    "ab,bc,ca->ac": [(3, 4), (4, 5), (5, 3)],
}
LINEAR = [
    *(Case("linear", normal((*lead, 15), (7, 15), *bias)) for lead in ((), (3,), (2, 17)) for bias in ((), ((7,),))),
    *(Case("einsum", normal(*shapes), call=lambda lib, *a, e=e: lib.einsum(e, *a)) for e, shapes in EINSUMS.items()),
    Case("einsum", normal((2, 3), (3, 4)), call=lambda lib, x, y: lib.einsum(x, [0, 1], y, [1, 2], [2, 0])),
    Case("einsum", normal((2, 3), (3, 4)), call=lambda lib, x, y: lib.einsum(x, [..., 1], y, [1, 2])),
    *(Case("matmul", normal(a, b)) for a, b in (((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)),
                                                ((2, 1, 3, 4), (6, 4, 5)))),
    Case("mm", normal((3, 4), (4, 5))), Case("bmm", normal((2, 3, 4), (2, 4, 5))), Case("mv", normal((3, 4), (4,))),
    Case("dot", normal((5,), (5,))), Case("outer", normal((3,), (5,))),
    Case("addmm", normal((5,), (3, 4), (4, 5)), {"beta": [1, 0.5, 0], "alpha": [1, 2]}),
    Case("baddbmm", normal((2, 3, 5), (2, 3, 4), (2, 4, 5)), {"beta": [1, 0.5], "alpha": [1, 2]}),
    Case("bilinear", normal((2, 3, 4), (2, 3, 5), (6, 4, 5), (6,))), Case("bilinear", normal((4,), (5,), (6, 4, 5))),
    Case("cdist", normal((2, 3, 4), (2, 5, 4)), {"p": [1.0, 2.0, 3.0]}, smooth=1),
    Case("cdist", normal((2, 1, 3, 4), (7, 5, 4)), smooth=1),
    Case("cdist", normal((3, 4), (5, 4)), {"p": [np.inf, 0.0]}, smooth=1),
    Case("pdist", normal((7, 3)), {"p": [2.0, 1.0, 3.0, np.inf, 0.0]}, smooth=1),
    Case("pdist", normal((1, 4)), smooth=1),
    Case("pairwise_distance", normal((3, 4), (3, 4)), {"p": [2.0, 1.0, 3.0], "keepdim": [False, True]}),
    Case("pairwise_distance", normal((3, 4), (4,)), {"eps": [0.1]}),
    Case("cosine_similarity", X, DIM, call=lambda lib, x, dim: lib.cosine_similarity(x, lib.flip(x, (0,)), dim)),
    Case("cosine_similarity", normal((3, 4), (5, 1, 4)), {"dim": [-1], "eps": [100.0, 1e-8]}),
]

L, S = 5, 7
MASK = np.tril(np.ones((L, S), bool), 1)


def qkv(*lead, heads=None, width=4, out=3):
    return normal((*lead, L, width), (*(heads or lead), S, width), (*(heads or lead), S, out))


ATTENTION = [
    Case("scaled_dot_product_attention", arrays, options) for arrays, options in (
        (qkv(2, 3), {"attn_mask": [None, MASK, np.where(MASK, 0.5, -np.inf),
                                   np.linspace(-1, 1, 2 * L * S).reshape(2, 1, L, S)],
                     "is_causal": [False], "scale": [None, 0.3]}),
        (qkv(2, 3), {"attn_mask": [None], "is_causal": [True], "scale": [None, 0.3]}), (qkv(2), {}), (qkv(), {}),
        (qkv(2, 6, heads=(2, 2)), {"enable_gqa": [True], "is_causal": [False, True]}),
        (qkv(2, 6, heads=(2, 1)), {"enable_gqa": [True]}))
]

# -------------------------------------------------------------------------------------------------------- convolutions

WINDOWS = [
    {}, {"stride": 2, "padding": 1}, {"stride": (1, 3), "padding": (2, 0)}, {"padding": "same"},
    {"padding": "same", "dilation": (2, 1)}, {"padding": "valid", "dilation": 2},
    {"stride": 3, "padding": 2, "dilation": (1, 2)}, {"stride": (3, 1), "padding": (0, 2), "dilation": (1, 2)},
    {"stride": 4},
]
CONVOLUTIONS = [
    *(Case("conv2d", normal((2, 4, 7, 8), (8, 4 // groups, 3, 2), (8,)), each(o | {"groups": groups}))
      for o in WINDOWS for groups in (1, 2, 4)),
    Case("conv2d", normal((3, 9, 8), (5, 3, 3, 3), (5,))), Case("conv2d", normal((2, 4, 9, 7), (4, 4, 3, 3))),
    Case("conv_tbc", normal((9, 2, 3), (4, 3, 5), (5,)), {"pad": [0, 2]}),
    Case("conv1d", normal((2, 3, 17), (5, 3, 4), (5,)), each({"stride": 2, "padding": 3, "dilation": 2})),
    Case("conv3d", normal((1, 2, 3, 4, 3), (3, 2, 2, 2, 2), (3,)), {"padding": [0, 1], "stride": [1, (2, 1, 3)]}),
    Case("conv_transpose1d", normal((1, 2, 3), (2, 3, 3), (3,)), {"stride": [1, 2], "padding": [0, 1]}),
    Case("conv_transpose2d", normal((2, 4, 3, 4), (4, 3, 3, 2)), each(
        {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2)}) | {"groups": [1, 2], "dilation": [1, 2]}),
    Case("conv_transpose3d", normal((1, 2, 2, 3, 2), (2, 2, 2, 1, 2), (2,)), {"stride": [1, (2, 1, 2)]}),
]

# ------------------------------------------------------------------------------------------------------------- pooling

POOLS = [
    {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (2, 3), "stride": (3, 1), "padding": (1, 0)}, {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
]
PLACED = [
    {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "padding": 1, "dilation": 2},
]
BOTH = {"return_indices": [False, True]}


def maxima(n, **window):
    """Maxima of windows, which overlap where the stride is less than the kernel's size, and their places."""
    def arrays(rng):
        (x,) = distinct(2, 2, *SPACE[n])(rng)
        return [t.numpy() for t in getattr(torch.nn.functional, f"max_pool{n}d")(
            torch.tensor(x), **window, return_indices=True)]

    return arrays


POOLING = [
    *(Case("max_pool2d", distinct(2, 3, 7, 10), each(o))
      for o in (*POOLS, {"kernel_size": 2, "stride": 1, "dilation": 2})),
    *(Case("avg_pool2d", normal((2, 3, 7, 10)), each(o) | {"count_include_pad": [True, False]})
      for o in (*POOLS, {"kernel_size": 2, "divisor_override": 3})),
    *(Case(f"max_pool{n}d", distinct(*lead, *SPACE[n]), each(o) | BOTH)
      for n in NDIM for o in PLACED for lead in ((2, 3), (3,))),
    *(Case(f"avg_pool{n}d", normal((2, 3, *SPACE[n])), {"kernel_size": [2], "stride": [None, 1], "padding": [0, 1]})
      for n in NDIM),
    *(Case(f"adaptive_max_pool{n}d", distinct(1, 2, *SPACE[n]), {"output_size": [size]} | BOTH)
      for n, size in ((1, 4), (2, (3, 8)), (2, (9, 1)), (3, (2, None, 5)))),
    *(Case(f"adaptive_avg_pool{n}d", normal((1, 2, *SPACE[n])), {"output_size": [size]})
      for n, size in ((1, 4), (2, (3, 8)), (2, (9, 1)), (3, (2, None, 5)))),
    *(Case(f"lp_pool{n}d", uniform(0.1, 2, (1, 2, *SPACE[n])), {"norm_type": [2.0, 1.0, 3.0], "kernel_size": [2]})
      for n in NDIM),
    Case("lp_pool2d", uniform(0.1, 2, (1, 2, 5, 6)), {"norm_type": [np.inf, -np.inf], "kernel_size": [2]}, smooth=0),
    *(Case(f"fractional_max_pool{n}d", distinct(2, 3, *SPACE[n]), {
        "kernel_size": [k], "output_size": [o], "return_indices": [False, True],
        "_random_samples": [np.linspace(0.05, 0.95, 6 * n).reshape(2, 3, n)]})
      for n, k, o in ((2, 2, (4, 3)), (2, (3, 1), (1, 5)), (3, (1, 2, 3), (3, 2, 2)))),
    Case("fractional_max_pool2d", distinct(3, 7, 8), {
        "kernel_size": [2], "output_ratio": [(0.4, 0.7)], "_random_samples": [np.full((1, 3, 2), 0.3)]}),
    *(Case(f"max_unpool{n}d", maxima(n, **o), each(o) | {"output_size": [(2, 2, *SPACE[n]), SPACE[n]]})
      for n in NDIM for o in ({"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1})),
]

# ------------------------------------------------------------------------------------------------------- normalization

MEAN, VAR, SCALE, SHIFT = np.linspace(-1, 1, 6), np.linspace(0.5, 2, 6), np.linspace(-2, 3, 6), np.linspace(1, 2, 6)
B = normal((4, 6, 5))
AFFINE = {"weight": [None, SCALE], "bias": [None, SHIFT]}
FIXED = each({"running_mean": MEAN, "running_var": VAR})


NORMALIZING = [
    Case("normalize", lambda rng: (rng.normal(size=(3, 4, 5)) + 0.1,), {
        "p": [2.0, 1.0, 3.0, 0.5, np.inf, -np.inf], "dim": [0, 1, -1, (0, 2), (0, 1, 2)], "eps": [0.3]}, every=True),
    Case("normalize", normal((3, 4, 5)), {"p": [2.0, 1.0, 3.5, 3.0], "dim": [0, 1, -1, (0, 2)]}),
    Case("normalize", normal((3, 4, 5)), {"p": [0], "dim": [0, 1, -1, (0, 2)], "eps": [0.3]}, smooth=1),
    Case("batch_norm", B, FIXED), Case("batch_norm", B, FIXED | AFFINE | {"eps": [1e-5, 0.01]},
         call=lambda lib, x, running_mean, running_var, weight, bias, eps:
         lib.batch_norm(x, running_mean, running_var, weight, bias, False, 0.1, eps)),
    *(Case(n, normal((4, 6, 5), (6,), (6,)), {"eps": [1e-5, 0.3]} | more,
           call=lambda lib, x, *rest, n=n, **o: getattr(lib, n)(x, None, None, *rest, **o))
      for n, more in (("batch_norm", {"training": [True]}), ("instance_norm", {}))),
    Case("batch_norm", normal((4, 6)), AFFINE | each({"running_mean": None, "running_var": None, "training": True})),
    Case("instance_norm", B, AFFINE), Case(
        "instance_norm", B, FIXED | AFFINE, call=lambda lib, x, running_mean, running_var, weight, bias:
        lib.instance_norm(x, running_mean, running_var, weight, bias, False)),
    Case("layer_norm", B, {"normalized_shape": [(4, 6, 5), (6, 5), (5,)], "eps": [1e-5, 0.3]}),
    Case("layer_norm", normal((4, 6, 5), (6, 5), (6, 5)), call=lambda lib, x, w, b: lib.layer_norm(x, (6, 5), w, b)),
    Case("layer_norm", normal((6, 5)), {"normalized_shape": [(6, 5)]}),
    Case("layer_norm", B, {"normalized_shape": [(5,)], "weight": [None, SCALE[:5]], "bias": [SHIFT[:5]]}),
    Case("rms_norm", B, {"normalized_shape": [(6, 5), (4, 6, 5)], "eps": [None, 0.3]}),
    Case("rms_norm", normal((4, 6, 5), (5,)), call=lambda lib, x, w: lib.rms_norm(x, (5,), w)),
    Case("group_norm", B, AFFINE | {"num_groups": [1, 3, 6], "eps": [1e-5, 0.3]}),
    Case("group_norm", normal((2, 4, 3), (4,), (4,)), call=lambda lib, x, w, b: lib.group_norm(x, 2, w, b)),
    Case("local_response_norm", B, call=lambda lib, x: lib.local_response_norm(x, 4, 0.5, 0.6, 0.7)),
    Case("local_response_norm", B, {"size": [4, 3], "alpha": [0.5, 1e-4], "beta": [0.6], "k": [0.7, 1.0]}),
]

# --------------------------------------------------------------------------------------------------- resizing, padding

IMAGE = {"size": [(1, 1), (9, 4)], "align_corners": [False, True]}
SCALED = {"scale_factor": [(1.1, 2.3), 3.0], "align_corners": [False, True]}
PADS = [(2, 3), (0, 1, 2, 0), (-1, 2, 3, -2), (1, 1, 0, 0, 2, 1), (-2, -1, -1, 1)]
PADDED = {2: (2, 5, 6), 4: (2, 3, 5, 6), 6: (2, 3, 4, 5, 6)}
SLIDES = {"kernel_size": (3, 2), "dilation": (1, 2), "padding": (1, 0), "stride": (2, 1)}
# torch.compile cannot differentiate affine_grid where an extent is 1.
SAMPLED = {"padding_mode": ["zeros", "border", "reflection"], "align_corners": [False, True]}

RESIZING = [
    *(Case("interpolate", normal((2, 1, *extents)), o | {"mode": ["bilinear", "bicubic"]})
      for extents in ((1, 1), (2, 3), (7, 5)) for o in (IMAGE, SCALED)),
    Case("interpolate", normal((1, 2, 5)), {"size": [3, 12], "mode": ["nearest", "nearest-exact", "linear", "area"]}),
    *(Case("interpolate", normal((1, 2, 5, 4)), o | {"mode": ["nearest", "nearest-exact", "area"]})
      for o in ({"size": [(9, 4)]}, {"scale_factor": [(1.5, 2.0)]})),
    Case("interpolate", normal((1, 2, 3, 2, 4)), {"size": [(5, 3, 2)], "mode": ["nearest", "trilinear"]}),
    *(Case("pad", normal(PADDED[len(pad)]), {"pad": [pad], "mode": ["constant", "reflect", "replicate", "circular"]})
      for pad in PADS),
    Case("pad", normal((2, 3, 1, 5)), {"pad": [(1, 2, 0, 3), (-1, 2, 0, 0, -2, 1), (1, -1)], "value": [4.5, None]}),
    *(Case(n, normal((2, 9, 6, 12)), {k: [1, 3]}) for n, k in (
        ("pixel_shuffle", "upscale_factor"), ("pixel_unshuffle", "downscale_factor"), ("channel_shuffle", "groups"))),
    Case("pixel_shuffle", normal((2, 12, 3, 4)), {"upscale_factor": [2]}),
    Case("pixel_unshuffle", normal((2, 3, 8, 4)), {"downscale_factor": [2]}),
    Case("channel_shuffle", normal((2, 12, 5)), {"groups": [2, 6]}),
    Case("upsample", normal((1, 2, 5, 4)), {"size": [(9, 3)], "mode": ["nearest", "bilinear"]}),
    Case("upsample_nearest", normal((1, 2, 5, 4)), {"scale_factor": [2]}),
    Case("upsample_bilinear", normal((1, 2, 5, 4)), {"size": [(9, 3)]}),
    *(Case("grid_sample", lambda rng, x=x, g=g: (rng.normal(size=x), rng.uniform(-1.7, 1.7, g)), SAMPLED | {"mode": m})
      for x, g, m in (((2, 3, 5, 7), (2, 4, 3, 2), ["bilinear", "nearest", "bicubic"]),
                      ((1, 1, 1, 6), (1, 2, 17, 2), ["bilinear", "nearest", "bicubic"]),
                      ((2, 2, 3, 4, 5), (2, 2, 1, 3, 3), ["bilinear", "nearest"]))),
    *(Case("affine_grid", normal((size[0], len(size) - 2, len(size) - 1)),
           {"size": [size], "align_corners": [False, True]}, smooth=0 if 1 in size[2:] else 2)
      for size in ((2, 3, 5, 7), (1, 1, 1, 3), (2, 1, 3, 1, 4), (2, 1, 3, 2, 4))),
    Case("unfold", normal((2, 3, 6, 7)), each(SLIDES)),
    Case("fold", normal((2, 18, 15)), each(SLIDES | {"output_size": (6, 7)})),
]

# -------------------------------------------------------------------------------------------- arrangement, places, rows

ARRANGING = [
    Case("reshape", X, {"shape": [(5, -1), (2, 15)]}), Case("permute", normal((2, 3, 1, 5)), {"dims": [(2, 0, -1, 1)]}),
    Case("flatten", normal((2, 3, 1, 5)), {"start_dim": [0, 1], "end_dim": [2, -1]}),
    Case("transpose", X, {"dim0": [0, 1], "dim1": [-1, 1]}), Case("squeeze", normal((2, 3, 1, 5))),
    Case("squeeze", normal((2, 3, 1, 5)), {"dim": [0, 2, (0, 2)]}), Case("unsqueeze", X, {"dim": [-1, 0, 1]}),
    *(Case("cat", normal(*shapes), {"dim": [dim]}, call=lambda lib, *x, dim: lib.cat(x, dim)) for dim, shapes in (
        (0, [(1, 4, 5), (2, 4, 5), (3, 4, 5)]), (1, [(3, 1, 5), (3, 2, 5)]), (-1, [(3, 4, 1), (3, 4, 2), (3, 4, 3)]))),
    *(Case(n, M, o, call=lambda lib, x, n=n, **o: getattr(lib, n)([x, x * 2], **o)) for n, o in (
        ("cat", DIM), ("hstack", {}), ("vstack", {}))),
    Case("vstack", normal((5,)), call=lambda lib, x: lib.vstack([x, x * 2])),
    Case("stack", normal((2, 3), (2, 3), (2, 3)), DIM, call=lambda lib, *x, dim: lib.stack(x, dim)),
    Case("diff", X, {"n": [0, 1, 2, 7], "dim": [0, 1, -1]}),
    Case("diff", X, {"n": [1, 2], "dim": [1], "prepend": [None, np.ones((3, 1, 2))], "append": [np.ones((3, 2, 2))]}),
    Case("diff", constant([3, 1, 4, 1]), smooth=0), Case("diff", constant([True, False, False]), smooth=0),
    Case("roll", X, {"shifts": [2, -1, 7], "dims": [0, 1, -1, None]}), Case("roll", X, each(
        {"shifts": (1, 2), "dims": (0, 1)})),
    Case("flip", X, call=lambda lib, x: lib.flip(x, (0, 2))), Case("trace", M),
    Case("diag", normal((4,)), {"diagonal": [0, 1, -2]}), Case("diag", M, {"diagonal": [0, 1, -2, 9]}),
    Case("tril", X, {"diagonal": [0, 1, -1, 9]}), Case("triu", X, {"diagonal": [0, 1, -1, -9]}),
    Case("diagonal", X, {"offset": [0, 1, -1], "dim1": [0, 1], "dim2": [2, -1]}),
    Case("diagonal", X, each({"offset": -1, "dim1": 1, "dim2": 0})),
    Case("diag_embed", normal((2, 3)), {"offset": [0, 1, -2]}),
    Case("repeat", normal((2, 3)), call=lambda lib, x: lib.repeat(x, 2, 1, 3)),
    Case("tile", normal((2, 3)), {"dims": [(2,), (2, 1, 3)]}, call=lambda lib, x, dims: lib.tile(x, dims)),
    Case("repeat_interleave", X, {"repeats": [2, 1], "dim": [None, 0, -1]}),
    Case("repeat_interleave", normal((3, 2)), each({"repeats": np.array([2, 0, 3]), "dim": 0})),
    Case("expand", normal((3, 1)), call=lambda lib, x: lib.expand(x, 2, -1, 4)),
    Case("broadcast_to", normal((3, 1)), call=lambda lib, x: lib.broadcast_to(x, (2, 3, 4))),
    *(Case("narrow", X, each(dict(dim=1, start=a, length=n))) for a, n in ((1, 3), (-2, 2))),
    Case("select", X, {"dim": [1], "index": [-2]}), Case("movedim", X, each({"source": 0, "destination": -1})),
    Case("movedim", X, each({"source": (0, 1), "destination": (2, 0)})),
    Case("unflatten", normal((3, 6)), call=lambda lib, x: lib.unflatten(x, 1, (2, -1))),
    Case("split", normal((7, 2)), {"n": [3, 7, [2, 0, 5]]}, call=lambda lib, x, n: lib.split(x, n, 0)),
    Case("chunk", normal((7, 2)), {"chunks": [1, 3, 5, 9], "dim": [0]}), Case("unbind", X, DIM),
    Case("meshgrid", normal((3,), (2,), (4,)), {"indexing": ["ij", "xy"]}),
    Case("one_hot", lambda rng: (rng.integers(0, 4, (3, 2)),), {"num_classes": [4]}, smooth=0),
]


def places(shape, index, count, *sources):
    """A tensor, places among `count` in it, and further tensors."""
    return lambda rng: (rng.normal(size=shape), rng.integers(0, count, index), *(rng.normal(size=s) for s in sources))


BAGS = {"mode": ["sum", "mean", "max"], "padding_idx": [None, 2, -1]}


def _bags(rng):
    ids = rng.integers(0, 7, 9)
    ids[:2] = 2  # a bag of padding alone
    return ids, rng.normal(size=(7, 3)), np.array([0, 2, 2, 7, 9])


SEARCHED = {"right": [False, True], "out_int32": [False, True]}


def _sorted(rows, shape):
    """Sorted rows, and elements to search, of which some are equal to elements of the rows, and two are not finite."""
    def arrays(rng):
        x = rng.integers(-4, 5, shape).astype(float)
        x[0, :2] = np.nan, np.inf
        return np.sort(rng.integers(-4, 5, rows).astype(float), -1), x
    return arrays


CHOOSING = [
    Case("gather", places((4, 5), (3, 4), 4), TWO, call=lambda lib, x, k, dim: lib.gather(x, dim, k)),
    *(Case("take_along_dim", places((4, 5), k, 4), {"dim": [d]}) for d, k in ((0, (3, 1)), (1, (1, 4)))),
    Case("index_select", places((4, 5), 3, 4), TWO, call=lambda lib, x, k, dim: lib.index_select(x, dim, k)),
    Case("scatter_add", places((4, 5), (3, 4), 4, (3, 4)), TWO,
         call=lambda lib, x, k, s, dim: lib.scatter_add(x, dim, k, s)),
    *(Case("index_add", places((4, 5), 3, 4, s), {"dim": [d], "alpha": [1, 0.5]},
           call=lambda lib, x, k, s, dim, alpha: lib.index_add(x, dim, k, s, alpha=alpha))
      for d, s in ((0, (3, 5)), (1, (4, 3)))),
    # Places repeat, and there are fewer than elements: of values, torch gives each of equal places the gradient.
    Case("scatter", places((4, 5), (3, 4), 4, (4, 5)), TWO | {"reduce": [None, "multiply"]}, smooth=0,
         call=lambda lib, x, k, s, dim, reduce: lib.scatter(x, dim, k, s, **({"reduce": reduce} if reduce else {}))),
    *(Case("scatter", lambda rng, d=d: (
        rng.normal(size=(4, 5)), np.argsort(rng.random((4, 5)), axis=d)[:2], rng.normal(size=(2, 5))),
        call=lambda lib, x, k, s, d=d: lib.scatter(x, d, k, s)) for d in (0, 1)),
    *(Case("embedding", lambda rng, s=s: (np.resize([2, 10, *rng.integers(0, 11, 13)], s), rng.normal(size=(11, 6))),
           {"padding_idx": [None, 2, -1]}) for s in ((), (1,), (7,), (3, 5))),
    Case("searchsorted", _sorted((9,), (3, 5)), SEARCHED | {"sorter": [None, np.arange(9)]}, smooth=0),
    Case("searchsorted", _sorted((3, 17), (3, 5)), SEARCHED | {"side": [None, "right"]}, smooth=0),
    Case("bucketize", lambda rng: _sorted((9,), (3, 5))(rng)[::-1], SEARCHED, smooth=0),
    Case("bucketize", lambda rng: (rng.integers(0, 9, 17), np.arange(1, 8, 3)), SEARCHED, smooth=0),
    Case("bincount", lambda rng: (rng.integers(0, 7, 17),), {"minlength": [7, 9]}, smooth=0),
    Case("bincount", lambda rng: (rng.integers(0, 7, 17), rng.normal(size=17)), {"minlength": [7]}, smooth=0),
    Case("embedding", constant([[1, 1, 4], [1, 0, 4]], np.arange(15.0).reshape(5, 3)), {"scale_grad_by_freq": [True]},
         smooth=1),
    Case("embedding_bag", _bags, BAGS | {"include_last_offset": [False, True]}, smooth=1),
    Case("embedding_bag", lambda rng: (*_bags(rng), rng.normal(size=9)), {"padding_idx": [None, 2, -1]}, smooth=1,
         call=lambda lib, *a, **o: lib.embedding_bag(*a[:3], per_sample_weights=a[3], mode="sum", **o)),
    Case("embedding_bag", lambda rng: (np.append([[2] * 4], rng.integers(0, 7, (2, 4)), 0), rng.normal(size=(7, 3))),
         BAGS, smooth=1),
]

SAMPLES = (ACTIVATIONS + LOSSES + ELEMENTWISE + REDUCING + LINEAR + ATTENTION + CONVOLUTIONS + POOLING + NORMALIZING
           + RESIZING + ARRANGING + CHOOSING)
