"""Every function of einsmith.functional against torch, in float64, through the reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith import functional as F
from einsmith.base.errors import DtypeError, EinsmithError, IndexOutOfRange, ShapeError


def close(found, wanted) -> None:
    wanted = wanted.detach().numpy() if hasattr(wanted, "detach") else np.asarray(wanted)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("lead", [(), (3,), (2, 17)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(run, torch, rng, lead, bias) -> None:
    x, w, b = rng.normal(size=(*lead, 15)), rng.normal(size=(7, 15)), rng.normal(size=7) if bias else None
    arrays = [x, w] + ([b] if bias else [])
    close(run(F.linear, *arrays), torch.nn.functional.linear(*map(torch.tensor, arrays)))


CONVOLUTIONS = [
    {},
    {"stride": 2, "padding": 1},
    {"stride": (1, 3), "padding": (2, 0)},
    {"padding": "same"},
    {"padding": "same", "dilation": (2, 1)},
    {"padding": "valid", "dilation": 2},
    {"stride": 3, "padding": 2, "dilation": (1, 2)},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv2d(run, torch, rng, options, groups) -> None:
    x, w = rng.normal(size=(2, 4, 7, 8)), rng.normal(size=(8, 4 // groups, 3, 2))
    b = rng.normal(size=8)
    found = run(lambda x, w, b: F.conv2d(x, w, b, groups=groups, **options), x, w, b)
    x, w, b = map(torch.tensor, (x, w, b))
    close(found, torch.nn.functional.conv2d(x, w, b, groups=groups, **options))


def test_conv_without_batch_and_in_one_dimension(run, torch, rng) -> None:
    x, w, b = rng.normal(size=(3, 9, 8)), rng.normal(size=(5, 3, 3, 3)), rng.normal(size=5)
    close(run(F.conv2d, x, w, b), torch.nn.functional.conv2d(*map(torch.tensor, (x, w, b))))
    x, w = rng.normal(size=(2, 3, 17)), rng.normal(size=(5, 3, 4))
    options = {"stride": 2, "padding": 3, "dilation": 2}
    wanted = torch.nn.functional.conv1d(*map(torch.tensor, (x, w, b)), **options)
    close(run(lambda *a: F.conv1d(*a, **options), x, w, b), wanted)


def test_conv_indices_are_exact(run) -> None:
    """Small integers: every index is off by nothing."""
    x = np.arange(30.0).reshape(1, 1, 5, 6)
    w = np.zeros((1, 1, 3, 3))
    w[0, 0, 2, 1] = 1
    found = run(lambda x, w: F.conv2d(x, w, stride=2, padding=1), x, w)
    assert found.tolist() == [[[[6, 8, 10], [18, 20, 22], [0, 0, 0]]]]


POOLINGS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (2, 3), "stride": (3, 1), "padding": (1, 0)},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
]


@pytest.mark.parametrize("options", [*POOLINGS, {"kernel_size": 2, "stride": 1, "dilation": 2}], ids=str)
def test_max_pool2d(run, torch, rng, options) -> None:
    x = rng.normal(size=(2, 3, 7, 10))
    close(run(lambda x: F.max_pool2d(x, **options), x), torch.nn.functional.max_pool2d(torch.tensor(x), **options))


@pytest.mark.parametrize("options", [*POOLINGS, {"kernel_size": 2, "divisor_override": 3}], ids=str)
@pytest.mark.parametrize("count_include_pad", [True, False])
def test_avg_pool2d(run, torch, rng, options, count_include_pad) -> None:
    x = rng.normal(size=(2, 3, 7, 10))
    options = {**options, "count_include_pad": count_include_pad}
    close(run(lambda x: F.avg_pool2d(x, **options), x), torch.nn.functional.avg_pool2d(torch.tensor(x), **options))


def test_max_pool_propagates_nan(run) -> None:
    x = np.zeros((1, 2, 2))
    x[0, 1, 0] = np.nan
    assert np.isnan(run(lambda x: F.max_pool2d(x, 2), x)).all()


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "tanh", "sigmoid", "silu", "gelu"])
def test_activations(run, torch, rng, name) -> None:
    x = np.concatenate([rng.normal(size=15) * 3, [0.0, -0.0, np.nan, np.inf]])
    close(run(getattr(F, name), x), getattr(torch.nn.functional, name)(torch.tensor(x)))


def test_gelu_tanh(run, torch, rng) -> None:
    x = rng.normal(size=(3, 5))
    close(run(lambda x: F.gelu(x, "tanh"), x), torch.nn.functional.gelu(torch.tensor(x), approximate="tanh"))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(run, torch, rng, name, dim) -> None:
    x = rng.normal(size=(3, 5, 7)) * 400
    close(run(lambda x: getattr(F, name)(x, dim), x), getattr(torch.nn.functional, name)(torch.tensor(x), dim))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 5, 2, 2)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(run, torch, rng, reduction, shape, weighted, smoothing) -> None:
    x = rng.normal(size=shape) * 30
    rest = shape[:1] + shape[2:] if len(shape) > 1 else ()
    y = np.asarray(rng.integers(0, 5, rest))
    w = rng.uniform(0.5, 2, 5)
    options = {"reduction": reduction, "label_smoothing": smoothing}

    def loss(x, y, *w):
        return F.cross_entropy(x, y, *w, **options)

    wanted = torch.nn.functional.cross_entropy(
        torch.tensor(x), torch.tensor(y), torch.tensor(w) if weighted else None, **options
    )
    close(run(loss, x, y, *([w] if weighted else [])), wanted)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_ignored_labels(run, torch, rng, reduction, smoothing) -> None:
    x, y, w = rng.normal(size=(6, 5)), np.array([0, -100, 4, 2, -100, 1]), rng.uniform(0.5, 2, 5)
    options = {"reduction": reduction, "label_smoothing": smoothing}
    wanted = torch.nn.functional.cross_entropy(*map(torch.tensor, (x, y, w)), **options)
    close(run(lambda x, y, w: F.cross_entropy(x, y, w, **options), x, y, w), wanted)
    y = np.where(y == -100, 3, y)
    wanted = torch.nn.functional.cross_entropy(*map(torch.tensor, (x, y)), ignore_index=3, **options)
    close(run(lambda x, y: F.cross_entropy(x, y, ignore_index=3, **options), x, y), wanted)
    if not smoothing:
        wanted = torch.nn.functional.nll_loss(*map(torch.tensor, (x, y)), ignore_index=3, reduction=reduction)
        close(run(lambda x, y: F.nll_loss(x, y, ignore_index=3, reduction=reduction), x, y), wanted)


@pytest.mark.parametrize("ignore_index", [None, -100])
@pytest.mark.parametrize("label", [-1, 5])
def test_labels_outside_the_classes(run, rng, label, ignore_index) -> None:
    with pytest.raises(IndexOutOfRange):
        run(
            lambda x, y: F.cross_entropy(x, y, ignore_index=ignore_index), rng.normal(size=(2, 5)), np.array([0, label])
        )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_with_probabilities(run, torch, rng, reduction, smoothing) -> None:
    x, p, w = rng.normal(size=(3, 5, 2)), rng.dirichlet(np.ones(5), (3, 2)).transpose(0, 2, 1), rng.uniform(1, 2, 5)
    options = {"reduction": reduction, "label_smoothing": smoothing}
    wanted = torch.nn.functional.cross_entropy(*map(torch.tensor, (x, p, w)), **options)
    close(run(lambda x, p, w: F.cross_entropy(x, p, w, **options), x, p, w), wanted)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mse_loss(run, torch, rng, reduction) -> None:
    x, y = rng.normal(size=(2, 3, 17))
    wanted = torch.nn.functional.mse_loss(torch.tensor(x), torch.tensor(y), reduction=reduction)
    close(run(lambda x, y: F.mse_loss(x, y, reduction=reduction), x, y), wanted)


REDUCTIONS = ["sum", "mean", "amax", "amin", "prod", "argmax", "argmin", "max", "min"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions(run, torch, rng, name, dim, keepdim) -> None:
    x = rng.integers(-3, 3, (4, 5, 3)).astype(float)
    found = run(lambda x: getattr(F, name)(x, dim, keepdim), x)
    if name in ("argmax", "argmin", "max", "min"):  # torch does not promise the first of equal elements
        position = np.expand_dims(getattr(np, f"arg{name[-3:]}")(x, dim), dim)
        value = np.take_along_axis(x, position, dim)
        position, value = (position, value) if keepdim else (position.squeeze(dim), value.squeeze(dim))
        for got, want in zip(found, (value, position), strict=True) if len(name) == 3 else [(found, position)]:
            close(got, want)
    else:
        close(found, getattr(torch, name)(torch.tensor(x), dim, keepdim))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_whole_reductions(run, torch, rng, name) -> None:
    x = rng.permutation(30).reshape(5, 6) / 7
    close(run(getattr(F, name), x), getattr(torch, name)(torch.tensor(x)))


@pytest.mark.parametrize("dim", [(0, 2), (-1, 1), (0, 1, 2)])
def test_reductions_over_several_dimensions(run, torch, rng, dim) -> None:
    x = rng.normal(size=(4, 5, 3))
    for name in ("sum", "mean", "amax", "amin"):
        close(run(lambda x, name=name: getattr(F, name)(x, dim), x), getattr(torch, name)(torch.tensor(x), dim))


def test_amax_of_infinite_elements(run) -> None:
    x = np.array([[np.inf, 1], [-np.inf, -np.inf], [np.nan, 0]])
    np.testing.assert_array_equal(run(lambda x: F.amax(x, 1), x), [np.inf, -np.inf, np.nan])


def test_shapes(run, torch, rng) -> None:
    x = rng.normal(size=(2, 3, 1, 5))
    t = torch.tensor(x)
    close(run(lambda x: F.reshape(x, (5, -1)), x), t.reshape(5, -1))
    close(run(lambda x: F.flatten(x, 1), x), t.flatten(1))
    close(run(lambda x: F.flatten(x, 0, 2), x), t.flatten(0, 2))
    close(run(lambda x: F.permute(x, (2, 0, -1, 1)), x), t.permute(2, 0, -1, 1))
    close(run(lambda x: F.transpose(x, 0, -1), x), t.transpose(0, -1))
    close(run(F.squeeze, x), t.squeeze())
    close(run(lambda x: F.squeeze(x, 0), x), t.squeeze(0))
    close(run(lambda x: F.unsqueeze(x, -1), x), t.unsqueeze(-1))
    close(run(lambda x: F.pad(x, (1, 2, 0, 3), value=4.5), x), torch.nn.functional.pad(t, (1, 2, 0, 3), value=4.5))
    close(run(lambda x: F.pad(x, (-1, 2, 0, 0, -2, 1)), x), torch.nn.functional.pad(t, (-1, 2, 0, 0, -2, 1)))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat_and_stack(run, torch, rng, dim) -> None:
    shapes = [[3, 4, 5] for _ in range(3)]
    for n, s in enumerate(shapes):
        s[dim] = n + 1
    arrays = [rng.normal(size=s) for s in shapes]
    close(run(lambda *a: F.cat(a, dim), *arrays), torch.cat([torch.tensor(a) for a in arrays], dim))
    close(
        run(lambda x: F.cat([x, x * 2], dim), arrays[0]), torch.cat([torch.tensor(arrays[0] * n) for n in (1, 2)], dim)
    )
    equal = [rng.normal(size=(2, 3)) for _ in range(3)]
    close(run(lambda *a: F.stack(a, dim), *equal), torch.stack([torch.tensor(a) for a in equal], dim))


EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("bij,bjk", (2, 3, 4), (2, 4, 5)),
    ("ij->ji", (3, 4)),
    ("ii->i", (5, 5)),
    ("ii", (5, 5)),
    ("ij->", (3, 4)),
    ("i,j->ij", (3,), (4,)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (7, 4, 5)),
    ("b...,b...->b", (2, 3, 4), (2, 3, 4)),
    ("ab,bc,cd->ad", (3, 4), (4, 5), (5, 6)),
    ("bi,ijk,bj->bk", (2, 3), (3, 4, 5), (2, 4)),
    ("i,i,i,i->", (3,), (3,), (3,), (3,)),
]


@pytest.mark.parametrize(
    "equation, shapes", [(e, s) for e, *s in EQUATIONS], ids=lambda v: v if isinstance(v, str) else ""
)
def test_einsum(run, torch, rng, equation, shapes) -> None:
    arrays = [rng.normal(size=s) for s in shapes]
    close(run(lambda *a: F.einsum(equation, *a), *arrays), torch.einsum(equation, *map(torch.tensor, arrays)))


def test_matmul(run, torch, rng) -> None:
    for a, b in [((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((3, 4), (4,))]:
        x, y = rng.normal(size=a), rng.normal(size=b)
        close(run(F.matmul, x, y), torch.matmul(torch.tensor(x), torch.tensor(y)))


def test_elementwise(run, torch, rng) -> None:
    x, y = rng.uniform(0.1, 3, (2, 3, 5))
    for name in ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "erf", "abs", "sign", "floor"):
        close(run(getattr(F, name), x), getattr(torch, name)(torch.tensor(x)))
    for name in ("maximum", "minimum"):
        close(run(getattr(F, name), x, y), getattr(torch, name)(torch.tensor(x), torch.tensor(y)))
    close(run(lambda x: F.clamp(x, 0.5, 1.5), x), torch.tensor(x).clamp(0.5, 1.5))
    close(run(lambda x: F.where(x > 1, x, 0), x), torch.where(torch.tensor(x) > 1, torch.tensor(x), 0))


@pytest.mark.parametrize("numbers", [(5,), (2, 9), (0, 10, 3), (5, 0, -2), (0.5, 2.0, 0.25), (3, 3)])
def test_arange(run, torch, numbers) -> None:
    close(
        run(lambda: F.arange(*numbers)),
        torch.arange(*numbers).double() if numbers[0] == 0.5 else torch.arange(*numbers),
    )


def test_one_hot(run, torch, rng) -> None:
    y = rng.integers(0, 4, (3, 2))
    close(run(lambda y: F.one_hot(y, 4), y), torch.nn.functional.one_hot(torch.tensor(y), 4))


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: F.conv2d(x, np.ones((4, 2, 3, 3))), ShapeError, "conv2d.*3 channels.*groups=1"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 9, 3))), ShapeError, "window of 9"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 3, 3)), np.ones(3)), ShapeError, "'bias'"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 3, 3)), stride=2, padding="same"), ShapeError, "stride 1"),
        (lambda x: F.conv2d(x, np.ones((4, 3, 3, 3)), stride=0), ShapeError, "stride"),
        (lambda x: F.linear(x, np.ones((4, 5))), ShapeError, "'input'.*'weight'"),
        (lambda x: F.cross_entropy(x, np.zeros((3, 2), np.int64)), ShapeError, "'target'"),
        (lambda x: F.nll_loss(x, np.zeros((2, 8, 8))), DtypeError, "'target'"),
        (lambda x: F.softmax(x, 4), ShapeError, "dim=4"),
        (lambda x: F.max_pool2d(x, 2, padding=2), ShapeError, "padding"),
        (lambda x: F.max_pool2d(F.one_hot(x > 0, 2), 2), EinsmithError, "one_hot"),
        (lambda x: F.cat([x, x[0]]), ShapeError, "cat.*tensors\\[1\\]"),
        (lambda x: F.einsum("ij,jk->ik", x, x), ShapeError, "einsum.*operands\\[0\\]"),
        (lambda x: F.permute(x, (0, 1, 2, 2)), ShapeError, "permute"),
        (lambda x: F.mse_loss(x, x[0]), ShapeError, "mse_loss"),
    ],
)
def test_errors_name_function_and_argument(run, call, error, words) -> None:
    with pytest.raises(error, match=words):
        run(call, np.ones((2, 3, 8, 8)))
