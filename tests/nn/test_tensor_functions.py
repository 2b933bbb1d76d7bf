"""Functions of tensors beside torch's: values and derivatives to second order over their options, and bad options."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import einsmith as es  # noqa: E402
from einsmith import functional as F  # noqa: E402
from einsmith import nn  # noqa: E402
from einsmith.base.errors import ArgumentError, DtypeError, FormulaError, IndexOutOfRange, ShapeError  # noqa: E402
from tests.nn.twin import Case, agree, check, check_compiled, outputs, pairwise  # noqa: E402

T = torch


def normal(*shapes):
    return lambda rng: tuple(rng.normal(size=s) for s in shapes)


def positive(*shapes):
    return lambda rng: tuple(rng.uniform(0.1, 3, s) for s in shapes)


def with_index(shape, index, count):
    return lambda rng: (rng.normal(size=shape), rng.integers(0, count, index))


def _zeros(rng):
    x = rng.normal(size=(3, 5))
    x[0, 2] = x[1, 0] = x[1, 3] = 0
    return (x,)


X = normal((3, 5, 2))
M = normal((4, 5))
DIMS = {"dim": [0, 1, -1]}
STATISTICS = {"dim": [None, 0, (0, 2), (-1, 1)], "correction": [1, 0, 1.5], "keepdim": [False, True]}


def words(name: str, *args, **keywords):
    """A case whose arguments stand in the order given, the same in both."""

    def ours(*x):
        return getattr(F, name)(*x, *args, **keywords)

    def theirs(*x):
        found = getattr(T, name, None) or getattr(T.nn.functional, name, None)
        return found(*x, *args, **keywords) if found else getattr(x[0], name)(*x[1:], *args, **keywords)

    return {"ours": lambda *x, **o: ours(*x), "theirs": lambda *x, **o: theirs(*x)}


UNARY = (
    "log2", "log10", "log1p", "expm1", "exp2", "tan", "sinh", "cosh", "ceil", "trunc", "frac", "round", "reciprocal",
    "square", "neg",
)  # fmt: skip
CASES = [
    *(Case(n, positive((7,))) for n in UNARY),
    Case("logit", lambda rng: (rng.uniform(0.05, 0.95, 7),), {"eps": [None, 0.2]}),
    Case("logaddexp", normal((3, 5), (5,))), Case("xlogy", positive((3, 5), (3, 1))),
    Case("div", positive((3, 5), (5,)), {"rounding_mode": [None, "floor", "trunc"]}),
    Case("add", normal((3, 5), (5,)), {"alpha": [1, 0.5]}), Case("sub", normal((3, 5), (5,)), {"alpha": [1, 0.5]}),
    Case("mul", normal((3, 5), (3, 1))), Case("pow", positive((3, 5), (5,))), Case("remainder", positive((7,), (7,))),
    Case("lerp", normal((3, 5), (3, 5), (3, 5))), Case("lerp", normal((3,), (3,)), {"weight": [0.3]}),
    *(Case(n, normal((7,), (7,)), smooth=0) for n in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(Case(n, lambda rng: (rng.integers(0, 2, 9), rng.integers(0, 3, 9)), smooth=0)
      for n in ("logical_and", "logical_or", "logical_xor")),
    Case("clamp", normal((17,)), {"min": [None, -0.5], "max": [0.5, 1.0]}),
    Case("clamp", normal((17,)), {"min": [0.0]}),
    Case("masked_fill", normal((3, 5)), **words("masked_fill", np.array([True, False, True, False, True]), 4.5) | {
        "theirs": lambda x: x.masked_fill(T.tensor([True, False, True, False, True]), 4.5)}),
    # -- running totals, sorting
    Case("cumsum", X, DIMS), Case("cumprod", _zeros, {"dim": [0, 1]}), Case("logcumsumexp", X, DIMS),
    Case("cummax", X, DIMS), Case("cummin", X, DIMS), Case("cumsum", normal((1,)), {"dim": [0]}),
    Case("sort", X, {"dim": [0, 1, -1], "descending": [False, True]}),
    Case("argsort", X, {"dim": [0, 1, -1], "descending": [False, True]}, smooth=0),
    Case("topk", normal((3, 11)), {"k": [1, 3, 9], "largest": [True, False]}),
    Case("topk", X, {"k": [2], "dim": [0, 1]}), Case("median", X, {"dim": [0, 1, -1], "keepdim": [False, True]}),
    # -- choosing
    Case("gather", with_index((4, 5), (2, 5), 4), **words("gather"), smooth=0),
    Case("index_select", normal((4, 5)), **words("index_select", 1, np.array([3, 0, 3])) | {
        "theirs": lambda x: x.index_select(1, T.tensor([3, 0, 3]))}),
    # -- statistics
    Case("var", X, STATISTICS), Case("std", X, STATISTICS), Case("var_mean", X, {"dim": [0, (1, 2)]}),
    Case("std_mean", X, {"dim": [0, (1, 2)]}),
    *(Case(n, lambda rng: (rng.integers(0, 2, (3, 4, 2)),), {"dim": [0, 1, -1]}, smooth=0)
      for n in ("all", "any", "count_nonzero")),
    Case("norm", X, {"p": ["fro", 2, 1, 3.5, float("inf"), -float("inf")], "dim": [None, 0, (0, 2)],
                     "keepdim": [False, True]}),
    Case("norm", X, {"p": [0], "dim": [1]}, smooth=0),
    # -- distances and products
    Case("cdist", normal((2, 3, 4), (2, 5, 4)), {"p": [1.0, 2.0, 3.0]}, smooth=1),
    Case("cdist", normal((2, 1, 3, 4), (7, 5, 4)), smooth=1),
    Case("cdist", normal((3, 4), (5, 4)), {"p": [float("inf"), 0.0]}, smooth=1),
    Case("pairwise_distance", normal((3, 4), (3, 4)), {"p": [2.0, 1.0, 3.0], "keepdim": [False, True]}),
    Case("pairwise_distance", normal((3, 4), (4,)), {"eps": [0.1]}),
    Case("cosine_similarity", X, theirs=lambda x, dim: T.cosine_similarity(x, x.flip(0), dim),
         ours=lambda x, dim: F.cosine_similarity(x, F.flip(x, 0), dim), options=DIMS),
    Case("cosine_similarity", normal((3, 4), (5, 1, 4)), {"dim": [-1], "eps": [1e-8, 100.0]}),
    Case("bilinear", normal((2, 3, 4), (2, 3, 5), (6, 4, 5), (6,))), Case("bilinear", normal((4,), (5,), (6, 4, 5))),
    Case("mm", normal((3, 4), (4, 5))), Case("bmm", normal((2, 3, 4), (2, 4, 5))), Case("mv", normal((3, 4), (4,))),
    Case("dot", normal((5,), (5,))), Case("outer", normal((3,), (5,))),
    Case("addmm", normal((5,), (3, 4), (4, 5)), {"beta": [1, 0.5, 0], "alpha": [1, 2]}),
    Case("baddbmm", normal((2, 3, 5), (2, 3, 4), (2, 4, 5)), {"beta": [1, 0.5], "alpha": [1, 2]}),
    # -- arrangement
    Case("roll", X, {"shifts": [2, -1, 7], "dims": [0, 1, -1, None]}), Case("roll", X, **words("roll", (1, 2), (0, 1))),
    Case("flip", X, **words("flip", (0, 2))), Case("trace", M), Case("diag", normal((4,)), {"diagonal": [0, 1, -2]}),
    Case("diag", M, {"diagonal": [0, 1, -2, 9]}), Case("tril", X, {"diagonal": [0, 1, -1, 9]}),
    Case("triu", X, {"diagonal": [0, 1, -1, -9]}),
    Case("diagonal", X, {"offset": [0, 1, -1], "dim1": [0, 1], "dim2": [2, -1]}),
    Case("diag_embed", normal((2, 3)), {"offset": [0, 1, -2]}),
    Case("repeat", normal((2, 3)), ours=lambda x: F.repeat(x, 2, 1, 3), theirs=lambda x: x.repeat(2, 1, 3)),
    Case("tile", normal((2, 3)), **words("tile", (2,))), Case("tile", normal((2, 3)), **words("tile", (2, 1, 3))),
    Case("repeat_interleave", X, {"repeats": [2, 1], "dim": [None, 0, -1]}),
    Case("repeat_interleave", normal((3, 2)), ours=lambda x: F.repeat_interleave(x, (2, 0, 3), 0),
         theirs=lambda x: x.repeat_interleave(T.tensor([2, 0, 3]), 0)),
    Case("expand", normal((3, 1)), ours=lambda x: F.expand(x, 2, -1, 4), theirs=lambda x: x.expand(2, -1, 4)),
    Case("broadcast_to", normal((3, 1)), **words("broadcast_to", (2, 3, 4))),
    Case("narrow", X, **words("narrow", 1, 1, 3)), Case("narrow", X, **words("narrow", 1, -2, 2)),
    Case("select", X, **words("select", 1, -2)), Case("movedim", X, **words("movedim", 0, -1)),
    Case("movedim", X, **words("movedim", (0, 1), (2, 0))),
    Case("unflatten", normal((3, 6)), **words("unflatten", 1, (2, -1))),
    Case("split", normal((7, 2)), ours=lambda x, n, dim: F.split(x, n, dim),
         theirs=lambda x, n, dim: T.split(x, n, dim), options={"n": [3, 7, [2, 0, 5]], "dim": [0]}),
    Case("chunk", normal((7, 2)), {"chunks": [1, 3, 5, 9], "dim": [0]}), Case("unbind", X, DIMS),
    Case("hstack", X, ours=lambda x: F.hstack([x, x * 2]), theirs=lambda x: T.hstack([x, x * 2])),
    Case("vstack", normal((5,)), ours=lambda x: F.vstack([x, x * 2]), theirs=lambda x: T.vstack([x, x * 2])),
    Case("meshgrid", normal((3,), (2,), (4,)), {"indexing": ["ij", "xy"]}),
    *(Case(n, X, smooth=0) for n in ("zeros_like", "ones_like", "isnan", "isfinite", "isinf")),
    Case("full_like", X, {"fill_value": [2.5]}, smooth=0),
]  # fmt: skip
CASES = [c for c in CASES if c.name != "gather"]
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


SOME = ["cumsum", "cumprod", "cummax", "sort", "topk", "std", "cdist", "diag_embed", "roll", "norm"]


@pytest.mark.parametrize("name", SOME)
def test_some_compiled(rng, name) -> None:
    case = next(c for c in CASES if c.name == name)
    check_compiled(case, pairwise(case.options)[0], rng, "float32")


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("compiled", [False, True])
def test_places_chosen_by_integers(run, rng, dim, compiled) -> None:
    """Forward and backward: indices are arguments, so that they are not constants of the formula."""
    x, source = rng.normal(size=(4, 5)), rng.normal(size=(3, 4))
    index = rng.integers(0, 4, (3, 4))
    vector = np.array([3, 0, 3])
    slices = rng.normal(size=(3, 5) if dim == 0 else (4, 3))

    def with_words(lib, x, source, slices, index, vector):
        return (
            lib.gather(x, dim, index), lib.take_along_dim(x, index[:, :1] if dim == 0 else index[:1], dim),
            lib.index_select(x, dim, vector), lib.scatter_add(x, dim, index, source),
            lib.index_add(x, dim, vector, slices, alpha=0.5),
        )  # fmt: skip

    both = es.jit if compiled else lambda f: lambda *a: run(f, *a)
    arrays = (x, source, slices, index, vector)
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    wanted = with_words(torch, *tensors)
    agree(both(lambda *a: with_words(F, *a))(*arrays), [t.detach().numpy() for t in wanted], 1e-12)
    (sum((w * w).sum() for w in wanted)).backward()

    def loss(*a):
        return sum((w * w).sum() for w in with_words(F, *a))

    if compiled:
        found = es.grad(loss, argnums=(0, 1, 2))(*arrays)
    else:
        found = es.interpret(es.grad(loss, argnums=(0, 1, 2)))(*arrays)
    agree(found, [t.grad.numpy() for t in tensors[:3]], 1e-11)


@pytest.mark.parametrize("dim", [0, 1])
def test_places_written_over(run, rng, dim) -> None:
    x, source = rng.normal(size=(4, 5)), rng.normal(size=(4, 5))
    index = rng.integers(0, 4, (3, 4))  # places repeat, and there is less of it than of the input
    for reduce in ({}, {"reduce": "multiply"}):
        found = run(lambda x, k, s, r=reduce: F.scatter(x, dim, k, s, **r), x, index, source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch would rather have scatter_reduce
            wanted = torch.scatter(torch.tensor(x), dim, torch.tensor(index), torch.tensor(source), **reduce)
        agree([found], [wanted.numpy()], 1e-12)
    # Of places that repeat the last one is read alone: torch leaves that open, and hands all of them the gradient.
    once = np.argsort(rng.random((4, 5)), axis=dim)[:2]
    arrays = [torch.tensor(a, requires_grad=True) for a in (x, source[:2])]
    torch.scatter(arrays[0], dim, torch.tensor(once), arrays[1]).square().sum().backward()
    grads = es.grad(lambda x, s: (F.scatter(x, dim, once, s) ** 2).sum(), argnums=(0, 1))(x, source[:2])
    agree(grads, [a.grad.numpy() for a in arrays], 1e-12)


def test_the_last_of_equal_places_stays(run) -> None:
    x, k, s = np.zeros(5), np.array([1, 1, 3, 1]), np.array([1.0, 2, 3, 4])
    np.testing.assert_array_equal(F.scatter(x, 0, k, s), [0, 4, 0, 3, 0])
    gradient = es.grad(lambda s: (F.scatter(x, 0, k, s) ** 2).sum())
    np.testing.assert_array_equal(es.interpret(gradient)(s), [0, 0, 6, 8])
    one_each = run(lambda k: F.scatter(np.zeros((2, 3)), 1, k, 1.0), np.array([[2], [0]]))
    np.testing.assert_array_equal(one_each, np.eye(3)[[2, 0]])


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


EQUATIONS = [
    ("ij,kj,ki->ik", (3, 4), (5, 4), (5, 3)), ("ii,ij->j", (4, 4), (4, 5)), ("iij->j", (3, 3, 2)),
    ("...ii->...i", (2, 3, 3)), ("...ij,j->...i", (2, 1, 3, 4), (4,)), ("...,...->...", (2, 3), (3,)),
    ("a,b,c,d->dcba", (2,), (3,), (4,), (5,)), ("ab,bc,cd,de,ef->af", (2, 3), (3, 4), (4, 2), (2, 3), (3, 5)),
    ("i...j->...", (3, 2, 4)), (" i j , j k -> i k ", (3, 4), (4, 5)), ("ij,ij", (3, 1), (3, 4)),
    ("abc->cab", (2, 3, 4)),
    ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5)), (",ij->ij", (), (2, 3)),
    ("ijk,ilm,njm,nlk,abc->", *[(2,) * 3] * 5),
    ("Aa,aB->BA", (2, 3), (3, 4)), ("ij->", (3, 4)), ("i,i,i->i", (4,), (4,), (4,)),
]  # fmt: skip


@pytest.mark.parametrize("equation, shapes", [(e, s) for e, *s in EQUATIONS], ids=[e for e, *_ in EQUATIONS])
def test_einsum(run, rng, equation, shapes) -> None:
    case = Case("einsum", normal(*shapes), ours=lambda *a: F.einsum(equation, *a),
                theirs=lambda *a: torch.einsum(equation, *a))  # fmt: skip
    check(run, case, {}, rng)


def test_einsum_of_lists_of_numbers(run, rng) -> None:
    x, y = rng.normal(size=(2, 3)), rng.normal(size=(3, 4))
    wanted = torch.einsum(torch.tensor(x), [0, 1], torch.tensor(y), [1, 2], [2, 0]).numpy()
    agree([run(lambda x, y: F.einsum(x, [0, 1], y, [1, 2], [2, 0]), x, y)], [wanted], 1e-12)
    wanted = torch.einsum(torch.tensor(x), [..., 1], torch.tensor(y), [1, 2]).numpy()
    agree([run(lambda x, y: F.einsum(x, [..., 1], y, [1, 2]), x, y)], [wanted], 1e-12)


MODES = {"mode": ["sum", "mean", "max"], "padding_idx": [None, 2, -1], "include_last_offset": [False, True]}


@pytest.mark.parametrize("options", pairwise(MODES), ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_embedding_bag(run, rng, options, compiled) -> None:
    weight, ids, bags = rng.normal(size=(7, 3)), rng.integers(0, 7, 9), rng.integers(0, 7, (3, 4))
    ids[:2], bags[0] = 2, 2  # a bag of padding alone
    offsets = np.array([0, 2, 2, 7, 9] if options["include_last_offset"] else [0, 2, 2, 7])
    factors = rng.normal(size=9) if options["mode"] == "sum" else None
    arrays = [weight] + ([factors] if factors is not None else [])

    def both(lib, convert, weight, *factors):
        o = options | ({"per_sample_weights": factors[0]} if factors else {})
        return (
            lib.embedding_bag(convert(ids), weight, convert(offsets), **o),
            lib.embedding_bag(convert(bags), weight, mode=o["mode"], padding_idx=o["padding_idx"]),
        )

    case = Case(
        "embedding_bag", lambda rng: arrays, ours=lambda *a: both(F, lambda x: x, *a),
        theirs=lambda *a: both(torch.nn.functional, torch.tensor, *a), smooth=1,
    )  # fmt: skip
    check_compiled(case, {}, rng, "float32") if compiled else check(run, case, {}, rng)


def test_gradients_by_frequency(rng) -> None:
    weight, ids = rng.normal(size=(5, 3)), np.array([[1, 1, 4], [1, 0, 4]])
    w = torch.tensor(weight, requires_grad=True)
    y = torch.nn.functional.embedding(torch.tensor(ids), w, scale_grad_by_freq=True)
    g = rng.normal(size=(2, 3, 3))
    y.backward(torch.tensor(g))
    found, pullback = es.vjp(lambda w: F.embedding(ids, w, scale_grad_by_freq=True), weight)
    agree([found, *pullback(g)], [y.detach().numpy(), w.grad.numpy()], 1e-12)


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
