"""Losses beside torch's: values and derivatives to second order over their options, and extreme inputs."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import einsmith as es  # noqa: E402
from einsmith import functional as F  # noqa: E402
from einsmith import nn  # noqa: E402
from einsmith.base.errors import ArgumentError, DtypeError, IndexOutOfRange, ShapeError  # noqa: E402
from tests.nn.twin import Case, agree, check, check_compiled, derivatives, outputs, pairwise, wanted  # noqa: E402

REDUCTIONS = ["mean", "sum", "none"]
WEIGHT = np.linspace(0.5, 2, 5)
EACH = np.linspace(0.1, 2, 15).reshape(3, 5)


def two(*shape: int):
    return lambda rng: tuple(rng.normal(size=(2, *shape)) * 1.5)


def shares(*shape: int):
    return lambda rng: tuple(rng.uniform(0.05, 0.95, (2, *shape)))


def classes(*shape: int, count: int = 5):
    return lambda rng: (rng.normal(size=shape) * 2, rng.integers(0, count, shape[:1] + shape[2:]))


def signs(*shape: int):
    return lambda rng: (rng.normal(size=shape), rng.choice([-1.0, 1.0], shape))


def three(*shape: int):
    return lambda rng: tuple(rng.normal(size=(3, *shape)))


def _listed(rng):
    return rng.normal(size=(3, 5)), np.array([[3, 0, -1, 1, 2], [-1, 2, 1, 0, 3], [4, 1, 2, 3, 0]])


def _soft(rng):
    return rng.normal(size=(3, 5, 2)), rng.dirichlet(np.ones(5), (3, 2)).transpose(0, 2, 1)


def _soft_margin(x, t, reduction):
    """torch differentiates its own neither twice nor by the target."""
    loss = torch.nn.functional.softplus(-(x * t))
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _divergence(rng):
    return np.log(rng.dirichlet(np.ones(5), 4)), rng.dirichlet(np.ones(5), 4)


def _log_divergence(rng):
    x, y = _divergence(rng)
    return x, np.log(y)


R = {"reduction": REDUCTIONS}
CASES = [
    Case("mse_loss", two(3, 5), R | {"weight": [None, EACH]}),
    Case("l1_loss", two(3, 5), R | {"weight": [None, EACH]}),
    Case("smooth_l1_loss", two(3, 5), R | {"beta": [1.0, 0.3, 0.0, 5.0]}),
    Case("huber_loss", two(3, 5), R | {"delta": [1.0, 0.3, 5.0], "weight": [None, EACH]}),
    Case("binary_cross_entropy", shares(3, 5), R | {"weight": [None, WEIGHT, np.linspace(0.1, 2, 3).reshape(3, 1)]}),
    Case("binary_cross_entropy_with_logits", two(3, 5),
         R | {"weight": [None, np.linspace(0.1, 2, 3).reshape(3, 1)], "pos_weight": [None, WEIGHT]}),
    Case("kl_div", _divergence, {"reduction": [*REDUCTIONS, "batchmean"]}),
    Case("kl_div", _log_divergence, {"reduction": [*REDUCTIONS, "batchmean"], "log_target": [True]}),
    Case("poisson_nll_loss", lambda rng: (rng.uniform(0.2, 3, 7), rng.uniform(0, 4, 7)),
         R | {"log_input": [True, False], "full": [False, True], "eps": [1e-8, 1e-3]}),
    Case("gaussian_nll_loss", lambda rng: (*rng.normal(size=(2, 3, 5)), rng.uniform(0.1, 2, (3, 5))),
         R | {"full": [False, True], "eps": [1e-6, 0.5]}),
    Case("gaussian_nll_loss", lambda rng: (*rng.normal(size=(2, 3, 5)), rng.uniform(0.1, 2, 3)), R),
    Case("gaussian_nll_loss", lambda rng: (*rng.normal(size=(2, 3, 5)), rng.uniform(0.1, 2, (3, 1))), R),
    Case("cross_entropy", classes(4, 5), R | {"weight": [None, WEIGHT], "ignore_index": [-100, 2],
                                              "label_smoothing": [0.0, 0.1]}),
    Case("cross_entropy", classes(3, 5, 2, 2), R | {"weight": [None, WEIGHT], "label_smoothing": [0.0, 0.1]}),
    Case("cross_entropy", _soft,
         R | {"weight": [None, WEIGHT], "label_smoothing": [0.0, 0.1]}),
    Case("nll_loss", classes(4, 5), R | {"weight": [None, WEIGHT], "ignore_index": [-100, 2]}),
    Case("nll_loss", classes(3, 5, 2, 2), R | {"weight": [None, WEIGHT]}),
    Case("margin_ranking_loss", lambda rng: (*rng.normal(size=(2, 7)), rng.choice([-1.0, 1.0], 7)),
         R | {"margin": [0, 0.7]}),
    Case("hinge_embedding_loss", signs(3, 5), R | {"margin": [1.0, 0.2]}),
    Case("soft_margin_loss", signs(3, 5), R, theirs=_soft_margin),
    Case("multi_margin_loss", classes(4, 5), R | {"p": [1, 2], "margin": [1.0, 0.3], "weight": [None, WEIGHT]},
         smooth=1),
    Case("multilabel_margin_loss", _listed, R, smooth=1),
    Case("multilabel_soft_margin_loss", lambda rng: (rng.normal(size=(3, 5)), rng.integers(0, 2, (3, 5)).astype(float)),
         R | {"weight": [None, WEIGHT]}),
    Case("triplet_margin_loss", three(4, 5), R | {"margin": [1.0, 3.0], "p": [2, 1.0, 3.5], "swap": [False, True]}),
    Case("triplet_margin_loss", three(5), R),
    Case("triplet_margin_with_distance_loss", three(4, 5), R | {"margin": [1.0, 3.0], "swap": [False, True]}),
    Case("cosine_embedding_loss", lambda rng: (*rng.normal(size=(2, 6, 5)), np.array([1, -1, 1, -1, -1, 1])),
         R | {"margin": [0, 0.2]}),
    Case("cosine_embedding_loss", lambda rng: (*rng.normal(size=(2, 5)), np.array(-1)), R),
]  # fmt: skip
DRAWN = [(c, o) for c in CASES for o in pairwise(c.options)]
IDS = [f"{c.name}-{n}" for n, (c, o) in enumerate(DRAWN)]


@pytest.mark.parametrize("case, options", DRAWN, ids=IDS)
def test_options(run, rng, case, options) -> None:
    check(run, case, options, rng)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("case, options", DRAWN, ids=IDS)
def test_options_compiled(rng, case, options, kind) -> None:
    check_compiled(case, options, rng, kind)


@pytest.mark.parametrize("name", ["binary_cross_entropy_with_logits", "multi_margin_loss", "triplet_margin_loss"])
def test_some_compiled(rng, name) -> None:
    case = next(c for c in CASES if c.name == name)
    check_compiled(case, pairwise(case.options)[-1], rng, "float32")


def test_logits_of_any_size_have_finite_losses(run) -> None:
    x = np.array([-1e4, -100.0, 0.0, 100.0, 1e4])
    for target in (0.0, 1.0, 0.3):
        t = np.full(5, target)
        for name in ("binary_cross_entropy_with_logits", "soft_margin_loss"):
            found = run(lambda x, t, name=name: getattr(F, name)(x, t, reduction="none"), x, t)
            twin = getattr(torch.nn.functional, name)(torch.tensor(x), torch.tensor(t), reduction="none").numpy()
            if name == "soft_margin_loss":  # torch takes the exponential of a positive number, which overflows
                twin = np.logaddexp(0, -t * x)
            np.testing.assert_allclose(found, twin, rtol=1e-12)
    y = np.array([0, 1])
    logits = np.array([[1e4, -1e4], [1e4, -1e4]])
    np.testing.assert_allclose(run(lambda x, y: F.cross_entropy(x, y, reduction="none"), logits, y), [0, 2e4])


def test_binary_cross_entropy_at_the_bounds(run, rng) -> None:
    arrays = np.array([0.0, 0.0, 1.0, 1.0, 1e-14, 0.5]), np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.5])
    case = Case("binary_cross_entropy", lambda rng: arrays)
    numbers, cotangents, _ = wanted(lambda *a: case.twin(*a, reduction="none"), arrays, rng, 1)

    def f(c, *values):
        return tuple(derivatives(lambda *v: F.binary_cross_entropy(*v, reduction="none"), [c], [], values))

    agree(run(f, *cotangents, *arrays)[:2], numbers[:2], 1e-8)  # torch's 1e-12 is one of float32


def test_targets_that_are_zero_have_no_divergence(run) -> None:
    found = run(lambda x, y: F.kl_div(x, y, reduction="none"), np.log([0.5, 0.5]), np.array([0.0, 1.0]))
    np.testing.assert_allclose(found, [0, np.log(2)])


def _aligned(rng, time: int, batch: int, count: int, most: int):
    x = rng.normal(size=(time, batch, count))
    lengths = rng.integers(1, most + 1, batch)
    targets = rng.integers(1, count, (batch, most))
    targets[0, :2] = 2  # a label twice in a row needs a blank between
    return x, targets, lengths


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("form", ["padded", "joined"])
def test_ctc(run, rng, reduction, form) -> None:
    x, targets, lengths = _aligned(rng, 9, 4, 6, 3)
    lengths[0], lengths[1] = 2, 0
    steps = np.array([9, 7, 8, 5])
    if form == "joined":
        targets = np.concatenate([t[:n] for t, n in zip(targets, lengths, strict=True)])
    blank = 0

    def twin(x):
        return torch.nn.functional.ctc_loss(
            x.log_softmax(2), torch.tensor(targets), torch.tensor(steps), torch.tensor(lengths), blank, reduction
        )

    numbers, cotangents, _ = wanted(twin, [x], rng, 1)

    def f(c, x, targets, steps, lengths):
        def loss(x):
            return F.ctc_loss(F.log_softmax(x, 2), targets, steps, lengths, blank, reduction)

        return tuple(derivatives(loss, [c], [], [x]))

    agree(run(f, *cotangents, x, targets, steps, lengths), numbers, 1e-9)
    if form == "padded":
        layer = nn.CTCLoss(blank, reduction)
        known = tuple(steps.tolist()), tuple(lengths.tolist())
        found = run(lambda x, y: layer(F.log_softmax(x, 2), y, *known), x, targets)
        agree([found], numbers[:1], 1e-9)


def _by_enumeration(p: np.ndarray, label: tuple[int, ...], blank: int) -> float:
    """-log of the sum over all paths that give the label, once repetitions and then blanks are left out."""
    total = 0.0
    for path in np.ndindex(*[p.shape[1]] * p.shape[0]):
        merged = [k for n, k in enumerate(path) if n == 0 or k != path[n - 1]]
        if tuple(k for k in merged if k != blank) == label:
            total += float(np.prod([p[t, k] for t, k in enumerate(path)]))
    return -np.log(total)


@pytest.mark.parametrize("label", [(0, 2), (0, 0), (2,), ()])
def test_ctc_sums_over_all_alignments(run, rng, label) -> None:
    p = rng.dirichlet(np.ones(3), 5)
    y = np.array([*label, 0][: max(1, len(label))])
    found = run(lambda x, y: F.ctc_loss(x, y, (5,), (len(label),), blank=1, reduction="sum"), np.log(p), y)
    np.testing.assert_allclose(found, _by_enumeration(p, label, 1), rtol=1e-12)


def test_ctc_compiled_with_second_derivatives(rng) -> None:
    x, targets, lengths = _aligned(rng, 7, 3, 5, 2)
    steps = np.array([7, 6, 5])

    def loss(x):
        return F.ctc_loss(F.log_softmax(x, 2), targets, steps, lengths)

    es.check_gradients(loss, x, order=2)
    t = torch.tensor(x)
    twin = torch.nn.functional.ctc_loss(t.log_softmax(2), *map(torch.tensor, (targets, steps, lengths)))
    np.testing.assert_allclose(es.jit(loss)(x.astype(np.float32)), twin.numpy(), rtol=1e-5)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("steps, lengths", [((6, 5), (2, 2)), ((0, 5), (2, 2)), ((5, 5), (2, 3)), ((5, 5), (-1, 2))])
def test_ctc_refuses_lengths_of_run_time_that_do_not_fit(rng, joined, steps, lengths) -> None:
    x, y = np.log(rng.dirichlet(np.ones(4), (5, 2))), rng.integers(1, 4, 4 if joined else (2, 2))
    with pytest.raises(IndexOutOfRange):
        es.interpret(F.ctc_loss)(x, y, np.array(steps), np.array(lengths))


def test_ctc_without_an_alignment(run, rng) -> None:
    x = np.log(rng.dirichlet(np.ones(4), (2, 1)))
    y = np.array([[1, 1]])  # needs three steps
    assert run(lambda x, y: F.ctc_loss(x, y, (2,), (2,)), x, y) == np.inf
    assert run(lambda x, y: F.ctc_loss(x, y, (2,), (2,), zero_infinity=True), x, y) == 0
    gradient = es.grad(lambda x: F.ctc_loss(x, y, (2,), (2,), zero_infinity=True))(x)
    np.testing.assert_array_equal(gradient, np.zeros_like(x))
    gradient = es.grad(lambda x: F.ctc_loss(x, y, (2,), (2,)))(x)
    np.testing.assert_array_equal(gradient, np.zeros_like(x))
    never = x.copy()
    never[:, :, 1] = -np.inf
    found = run(lambda x, y: F.ctc_loss(x, y, (2,), (1,), reduction="none"), never, y)
    np.testing.assert_array_equal(found, [np.inf])


LAYERS = [
    ("MSELoss", two(3, 5), R), ("L1Loss", two(3, 5), R), ("SmoothL1Loss", two(3, 5), R | {"beta": [1.0, 0.5]}),
    ("HuberLoss", two(3, 5), R | {"delta": [1.0, 0.5]}), ("BCELoss", shares(3, 5), R | {"weight": [None, WEIGHT]}),
    ("BCEWithLogitsLoss", two(3, 5), R | {"weight": [None, WEIGHT], "pos_weight": [None, WEIGHT]}),
    ("KLDivLoss", _divergence, R), ("PoissonNLLLoss", shares(7), R | {"log_input": [True, False], "full": [True]}),
    ("GaussianNLLLoss", three(7), R | {"full": [False, True]}),
    ("NLLLoss", classes(4, 5), R | {"weight": [None, WEIGHT]}),
    ("CrossEntropyLoss", classes(4, 5), R | {"weight": [None, WEIGHT], "label_smoothing": [0.0, 0.1]}),
    ("MarginRankingLoss", lambda rng: (*rng.normal(size=(2, 7)), np.ones(7)), R | {"margin": [0.0, 0.5]}),
    ("HingeEmbeddingLoss", signs(7), R | {"margin": [1.0, 0.5]}), ("SoftMarginLoss", signs(7), R),
    ("CosineEmbeddingLoss", lambda rng: (*rng.normal(size=(2, 3, 5)), np.array([1, -1, 1])),
     R | {"margin": [0.0, 0.5]}),
    ("MultiMarginLoss", classes(4, 5), R | {"p": [1, 2], "weight": [None, WEIGHT]}),
    ("MultiLabelMarginLoss", _listed, R),
    ("MultiLabelSoftMarginLoss", shares(4, 5), R | {"weight": [None, WEIGHT]}),
    ("TripletMarginLoss", three(4, 5), R | {"p": [2.0, 1.0], "swap": [False, True]}),
    ("TripletMarginWithDistanceLoss", three(4, 5), R | {"swap": [False, True]}),
]  # fmt: skip


@pytest.mark.parametrize("name, arrays, options", LAYERS, ids=[n for n, *_ in LAYERS])
def test_layers(run, rng, name, arrays, options) -> None:
    for drawn in [{}, *pairwise(options)]:
        given = [np.abs(a) if name == "GaussianNLLLoss" else a for a in arrays(rng)]
        ours = getattr(nn, name)(**drawn)
        tensors = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in drawn.items()}
        theirs = getattr(torch.nn, name)(**tensors)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        agree(outputs(run(ours, *given)), [theirs(*map(torch.tensor, given)).numpy()], 1e-9)


X = np.ones((3, 5))


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: F.l1_loss(x, x, reduction="average"), ArgumentError, "l1_loss.*reduction"),
        (lambda x: F.kl_div(x, x, reduction="batch"), ArgumentError, "batchmean"),
        (lambda x: F.huber_loss(x, x[0]), ShapeError, "huber_loss"),
        (lambda x: F.huber_loss(x, x, delta=0), ArgumentError, "delta"),
        (lambda x: F.smooth_l1_loss(x, x, beta=-1), ArgumentError, "beta"),
        (lambda x: F.mse_loss(x, x, weight=np.ones(5)), ShapeError, "'weight'"),
        (lambda x: F.binary_cross_entropy(x, x[0]), ShapeError, "binary_cross_entropy"),
        (lambda x: F.binary_cross_entropy(x, x, np.ones((2, 3, 5))), ShapeError, "'weight'"),
        (lambda x: F.binary_cross_entropy_with_logits(x, x, pos_weight=np.ones((2, 3, 5))), ShapeError, "'pos_weight'"),
        (lambda x: F.gaussian_nll_loss(x, x, -1.0), ArgumentError, "var"),
        (lambda x: F.gaussian_nll_loss(x, x, np.ones(4)), ShapeError, "'var'"),
        (lambda x: F.multi_margin_loss(x, np.zeros(3, np.int64), p=3), ArgumentError, "p=3"),
        (lambda x: F.multi_margin_loss(x, np.zeros(2, np.int64)), ShapeError, "'target'"),
        (lambda x: F.multi_margin_loss(x, np.array([0, 5, 1])), IndexOutOfRange, "5"),
        (lambda x: F.multilabel_margin_loss(x, np.zeros((3, 5))), DtypeError, "'target'"),
        (lambda x: F.margin_ranking_loss(x, x, x[0]), ShapeError, "rank"),
        (lambda x: F.triplet_margin_loss(x, x, x, margin=-1.0), ArgumentError, "margin"),
        (lambda x: F.triplet_margin_loss(x, x, x[0]), ShapeError, "rank"),
        (lambda x: F.cosine_embedding_loss(x, x, x), ShapeError, "'target'"),
        (lambda x: F.ctc_loss(x, np.zeros(2, np.int64), (4,), (2,)), ArgumentError, "input_lengths"),
        (lambda x: F.ctc_loss(x, np.zeros(2, np.int64), (3,), (3,)), ArgumentError, "target_lengths"),
        (lambda x: F.ctc_loss(x, np.zeros(2, np.int64), (3,), (2,), blank=5), ArgumentError, "blank"),
        (lambda x: F.ctc_loss(x, np.zeros(2, np.int64), (3, 3), (2,)), ShapeError, "input_lengths"),
        (lambda x: F.ctc_loss(x, np.array([7, 1]), (3,), (2,)), IndexOutOfRange, "7"),
        (lambda x: nn.L1Loss("median"), ArgumentError, "L1Loss"),
    ],
)
def test_bad_options(run, call, error, words) -> None:
    with pytest.raises(error, match=words):
        run(call, X)
