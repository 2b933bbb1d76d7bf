"""Functions of tensors: equal elements, NaN, extremes, reductions of nothing, creation, layers, and bad options."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import einsmith as es  # noqa: E402
from einsmith import functional as F  # noqa: E402
from einsmith import nn  # noqa: E402
from einsmith.base.errors import ArgumentError, DtypeError, FormulaError, IndexOutOfRange, ShapeError  # noqa: E402
from tests.nn.twin import agree, outputs  # noqa: E402
from tests.operators.samples import normal  # noqa: E402


def test_the_last_of_equal_places_stays(run) -> None:
    x, k, s = np.zeros(5), np.array([1, 1, 3, 1]), np.array([1.0, 2, 3, 4])
    np.testing.assert_array_equal(F.scatter(x, 0, k, s), [0, 4, 0, 3, 0])
    gradient = es.grad(lambda s: (F.scatter(x, 0, k, s) ** 2).sum())
    np.testing.assert_array_equal(es.interpret(gradient)(s), [0, 0, 6, 8])
    one_each = run(lambda k: F.scatter(np.zeros((2, 3)), 1, k, 1.0), np.array([[2], [0]]))
    np.testing.assert_array_equal(one_each, np.eye(3)[[2, 0]])


@pytest.mark.parametrize("d", [0, 1, 2])
def test_an_element_of_each_line_is_put(d: int, rng) -> None:
    shape = [5, 7, 3]
    one = [1 if a == d else n for a, n in enumerate(shape)]
    x, s, k = rng.normal(size=shape), rng.normal(size=one), rng.integers(0, shape[d], one)
    want = x.copy()
    np.put_along_axis(want, k, s, d)
    f = es.jit(lambda x, k, s: F.scatter(x, d, k, s))
    np.testing.assert_array_equal(f(x, k, s), want)
    dx, ds = es.jit(es.grad(lambda x, s: (F.scatter(x, d, k, s) ** 2).sum(), (0, 1)))(x, s)
    kept = 2 * x
    np.put_along_axis(kept, k, 0, d)
    np.testing.assert_allclose(dx, kept)
    np.testing.assert_allclose(ds, 2 * s)
    for wrong in (-1, shape[d]):
        k.flat[3 % k.size] = wrong
        with pytest.raises(IndexOutOfRange, match=str(wrong)):
            f(x, k, s)


def test_order_of_equal_elements_and_of_nan(run) -> None:
    x = np.array([2.0, np.nan, -np.inf, np.inf, 2.0, np.nan, -np.inf, 0.0, np.inf])
    for descending in (False, True):
        wanted = torch.sort(torch.tensor(x), stable=True, descending=descending)
        values, positions = run(lambda x, d=descending: F.sort(x, descending=d), x)
        np.testing.assert_array_equal(values, wanted.values.numpy())
        np.testing.assert_array_equal(positions, wanted.indices.numpy())
        for k in (3, 8):  # round by round
            found = run(lambda x, d=descending, k=k: F.topk(x, k, largest=d), x)
            np.testing.assert_array_equal(found[0], values[:k])
            np.testing.assert_array_equal(found[1], positions[:k])
    numbers = np.array([5, -(2**63), 2**63 - 1, 5, -(2**63)])
    for largest in (False, True):
        found = F.topk(numbers, 4, largest=largest)
        order = np.argsort(numbers, kind="stable") if not largest else np.argsort(~numbers, kind="stable")
        np.testing.assert_array_equal(found[1], order[:4])
        np.testing.assert_array_equal(found[0], numbers[order[:4]])
    np.testing.assert_array_equal(run(lambda x: F.argsort(x > 0), x), np.argsort(x > 0, kind="stable"))


def test_running_extremes_of_nan(run) -> None:
    x = np.array([1.0, 3.0, 3.0, np.nan, 5.0])
    for name in ("cummax", "cummin"):
        found = run(lambda x, name=name: getattr(F, name)(x, 0), x)
        agree(found, [t.numpy() for t in getattr(torch, name)(torch.tensor(x), 0)], 0)


def test_running_sums_keep_their_digits(rng) -> None:
    x = rng.uniform(size=100_000).astype(np.float32)
    found = F.cumsum(x, 0)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.cumsum(x.astype(np.float64)), rtol=1e-7)
    assert F.cumsum(np.ones(3, np.int32), 0).dtype == np.int64


def test_reductions_of_nothing_and_of_one(run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("var", "std"):
            for x in (np.ones((3, 1)), np.ones((2, 0))):
                wanted = getattr(torch, name)(torch.tensor(x), dim=1).numpy()
                np.testing.assert_array_equal(run(lambda x, name=name: getattr(F, name)(x, 1), x), wanted)


def test_lengths_of_zero_have_no_slope() -> None:
    for f in (lambda x: F.norm(x), lambda x: F.norm(x, 3.0), lambda x: F.std(x), lambda x: F.cdist(x, x).sum()):
        np.testing.assert_array_equal(es.grad(f)(np.zeros((2, 3))), np.zeros((2, 3)))


def test_creation(run) -> None:
    for numbers in ((0.0, 1.0, 7), (-2, 3, 4), (5, 5, 1), (1, 2, 0)):
        wanted = torch.linspace(*numbers, dtype=torch.float64).numpy()
        agree([run(lambda n=numbers: F.linspace(*n, dtype="float64"))], [wanted], 1e-15)
    agree([run(lambda: F.eye(3, 5))], [torch.eye(3, 5).numpy()], 0)
    for ours, theirs in (
        (F.full((2, 3), 7), torch.full((2, 3), 7)), (F.full((2,), 0.5), torch.full((2,), 0.5)),
        (F.zeros(2, 3), torch.zeros(2, 3)), (F.ones((4,), dtype="int32"), torch.ones(4, dtype=torch.int32)),
        (F.full((), True), torch.full((), True)),
    ):  # fmt: skip
        assert ours.dtype == theirs.numpy().dtype
        np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.mark.parametrize(
    "make, arrays",
    [
        (lambda n: n.Bilinear(3, 4, 5), normal((2, 3), (2, 4))),
        (lambda n: n.Bilinear(3, 4, 5, bias=False), normal((2, 6, 3), (2, 6, 4))),
        (lambda n: n.CosineSimilarity(dim=2, eps=0.1), normal((2, 3, 4), (2, 3, 4))),
        (lambda n: n.PairwiseDistance(1.0, keepdim=True), normal((2, 3), (2, 3))),
        (lambda n: n.Embedding(6, 3, padding_idx=-2), lambda rng: (rng.integers(0, 6, (2, 3)),)),
        (lambda n: n.Embedding(6, 3, scale_grad_by_freq=True), lambda rng: (rng.integers(0, 6, (2, 3)),)),
        (lambda n: n.EmbeddingBag(6, 3), lambda rng: (rng.integers(0, 6, (2, 3)),)),
        (lambda n: n.EmbeddingBag(6, 3, mode="max", padding_idx=1), lambda rng: (rng.integers(0, 6, (2, 3)),)),
    ],
)
def test_layers(run, rng, make, arrays) -> None:
    ours, theirs = make(nn), make(torch.nn)
    assert repr(ours) == repr(theirs)
    assert {n: v.shape for n, v in ours.state_dict().items()} == {n: v.shape for n, v in theirs.state_dict().items()}
    ours.load_state_dict(theirs.state_dict())
    ours.double()
    given = arrays(rng)
    wanted = theirs.double()(*map(torch.tensor, given))
    agree(outputs(run(ours, *given)), [wanted.detach().numpy()], 1e-11)
    theirs.load_state_dict({n: torch.tensor(v) for n, v in ours.state_dict().items()})


def test_initial_distributions() -> None:
    w = nn.Bilinear(16, 20, 30).weight.data
    assert np.abs(w).max() <= 0.25 and abs(w.std() - 0.25 / np.sqrt(3)) < 0.004
    w = nn.EmbeddingBag(60, 50, padding_idx=3).weight.data
    assert not w[3].any() and abs(w[4:].std() - 1) < 0.06
    table = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    layer = nn.Embedding.from_pretrained(table)
    assert not layer.weight.requires_grad and np.array_equal(layer(np.array([2])), table[2:])


I4 = np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    "call, error, said",
    [
        (lambda x: F.cumsum(x, 2), ShapeError, "cumsum.*dim=2"),
        (lambda x: F.gather(x, 0, I4), ShapeError, "gather.*'index'"),
        (lambda x: F.gather(x, 0, x), DtypeError, "'index'"),
        (lambda x: F.gather(x, 0, np.array([[3, 0, 0, 0]])), IndexOutOfRange, "3"),
        (lambda x: F.scatter_add(x, 0, np.array([[-1, 0, 0, 0]]), x), IndexOutOfRange, "-1"),
        (lambda x: F.scatter_add(x, 1, np.zeros((3, 5), int), x), ShapeError, "'src'"),
        (lambda x: F.scatter(x, 1, np.array([[4]]), 1.0), IndexOutOfRange, "4"),
        (lambda x: F.scatter(x, 1, np.zeros((3, 5), int), x), ShapeError, "scatter: .*'src'"),
        (lambda x: F.scatter(x, 1, np.zeros((3, 4), int), x, reduce="mean"), ArgumentError, "'multiply'"),
        (lambda x: F.index_add(x, 0, I4, x), ShapeError, "'source'"),
        (lambda x: F.take_along_dim(x, I4, 1), ShapeError, "rank"),
        (lambda x: F.topk(x, 5), ShapeError, "k=5"),
        (lambda x: F.topk(x, 2.0), ArgumentError, "k=2.0"),
        (lambda x: F.roll(x, (1, 2), 0), ShapeError, "roll"),
        (lambda x: F.flip(x, (0, 0)), ShapeError, "twice"),
        (lambda x: F.tril(x[0]), ShapeError, "tril"),
        (lambda x: F.diagonal(x, 0, 1, 1), ShapeError, "different dimensions"),
        (lambda x: F.repeat(x, 2), ShapeError, "repeat"),
        (lambda x: F.repeat_interleave(x, (1, 2), 1), ShapeError, "repeats"),
        (lambda x: F.repeat_interleave(x, x, 1), ArgumentError, "static"),
        (lambda x: F.expand(x, 3, 5), ShapeError, "broadcast"),
        (lambda x: F.split(x, [1, 1]), ShapeError, "add up"),
        (lambda x: F.split(x, 0), ArgumentError, "positive"),
        (lambda x: F.chunk(x, 0), ArgumentError, "chunks"),
        (lambda x: F.narrow(x, 0, 2, 2), ShapeError, "narrow"),
        (lambda x: F.movedim(x, (0, 1), (0,)), ShapeError, "movedim"),
        (lambda x: F.meshgrid(x[0], indexing="xz"), ArgumentError, "indexing"),
        (lambda x: F.norm(x, "nuc"), ArgumentError, "nuc"),
        (lambda x: F.var(x, unbiased=True, correction=1), ArgumentError, "not both"),
        (lambda x: F.cdist(x, x[:, :2]), ShapeError, "cdist"),
        (lambda x: F.cdist(x, x, -1.0), ArgumentError, "p=-1"),
        (lambda x: F.bilinear(x, x, np.ones((2, 4, 3))), ShapeError, "'weight'"),
        (lambda x: F.mm(x, x[0]), ShapeError, "'mat2'"),
        (lambda x: F.bmm(F.stack([x, x]), F.stack([x])), ShapeError, "bmm"),
        (lambda x: F.masked_fill(x, x, 0.0), ArgumentError, "bools"),
        (lambda x: F.div(x, x, rounding_mode="up"), ArgumentError, "rounding_mode"),
        (lambda x: F.linspace(0, 1, -1), ArgumentError, "steps"),
        (lambda x: F.einsum("ij,jk->ik", x, x), ShapeError, "einsum"),
        (lambda x: F.einsum("ij->ii", x), FormulaError, "repeats"),
        (lambda x: F.einsum("i1->i", x), FormulaError, "may contain letters"),
        (lambda x: F.einsum("ij,jk", x), ShapeError, "2 operands"),
        (lambda x: F.embedding(I4, x, max_norm=1.0), ArgumentError, "max_norm"),
        (lambda x: F.embedding_bag(I4, x), ArgumentError, "'offsets'"),
        (lambda x: F.embedding_bag(I4, x, np.array([0]), mode="prod"), ArgumentError, "mode"),
        (lambda x: F.embedding_bag(I4, x, np.array([1])), IndexOutOfRange, "-1"),
        (lambda x: F.embedding_bag(I4, x, np.array([0]), per_sample_weights=x[0]), ArgumentError, "mode='sum'"),
        (lambda x: nn.EmbeddingBag(3, 4, mode="least"), ArgumentError, "mode"),
    ],
)
def test_bad_options(run, call, error, said) -> None:
    with pytest.raises(error, match=said):
        run(call, np.ones((3, 4)))


@pytest.mark.parametrize("data", [1.5, 3, True, [1, 2], [[1.0, 2.0], [3.0, 4.0]], np.arange(3), np.ones(2)])
def test_as_tensor(torch, data) -> None:
    for dtype in (None, "float64"):
        want = torch.tensor(data, dtype=dtype and getattr(torch, dtype)).numpy()
        np.testing.assert_array_equal(F.as_tensor(data, dtype), want, strict=True)
