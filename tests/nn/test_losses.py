"""Losses at the bounds of their arguments, alignments of CTC, and bad options."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import einsmith as es  # noqa: E402
from einsmith import functional as F  # noqa: E402
from einsmith import nn  # noqa: E402
from einsmith.base.errors import ArgumentError, DtypeError, IndexOutOfRange, ShapeError  # noqa: E402
from tests.nn.twin import Case, agree, derivatives, wanted  # noqa: E402
from tests.operators.samples import aligned  # noqa: E402


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


def test_ctc_compiled_with_second_derivatives(run, rng) -> None:
    x, *rest = aligned(7, 3, 5, 2)(rng)

    def loss(x):
        return F.ctc_loss(F.log_softmax(x, 2), *rest)

    es.check_gradients(loss, x, order=2)
    targets, *lengths = map(torch.tensor, rest)
    twin = torch.nn.CTCLoss()(torch.tensor(x).log_softmax(2), targets, *lengths)
    np.testing.assert_allclose(es.jit(loss)(x.astype(np.float32)), twin.numpy(), rtol=1e-5)
    known = [tuple(n.tolist()) for n in lengths]
    for reduction in ("mean", "sum", "none"):
        ours, theirs = (library.CTCLoss(0, reduction) for library in (nn, torch.nn))
        wanted = theirs(torch.tensor(x).log_softmax(2), targets, *lengths).numpy()
        agree([run(lambda x, layer=ours: layer(F.log_softmax(x, 2), rest[0], *known), x)], [wanted], 1e-9)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("steps, lengths", [((6, 5), (2, 2)), ((-1, 5), (2, 2)), ((5, 5), (2, 3)), ((5, 5), (-1, 2))])
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
