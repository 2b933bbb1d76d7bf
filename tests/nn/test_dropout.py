"""Random bits and dropout: what the words are, where they come from, and what a mask does."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.base.errors import ArgumentError, DtypeError, FormulaError, ShapeError
from einsmith.ir.random import numpy_bits


@pytest.mark.parametrize(
    "key, counter, word",
    [
        ((0, 0), (0, 0), 0x6B200159),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), 0x1CB996FC),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), 0xC4923A9C),
    ],
)
def test_words_are_those_of_the_published_generator(key, counter, word) -> None:
    """The known answers of the Random123 library for threefry2x32_20."""
    assert int(numpy_bits(*key, *counter)) % 2**32 == word


def test_compiled_words_equal_the_evaluator(rng) -> None:
    f = es.op("y[i,j] = random_bits(k[0], k[1], 7*i + j, c[i])", extents={"j": 21})
    k, c = rng.integers(-(2**31), 2**31, 2), rng.integers(-(2**31), 2**31, 9)
    i, j = np.indices((9, 21))
    wanted = numpy_bits(k[0], k[1], 7 * i + j, c[:, None] + 0 * j)
    np.testing.assert_array_equal(f(k, c), wanted)
    np.testing.assert_array_equal(es.interpret(f)(k, c), wanted)
    with pytest.raises(FormulaError, match="random_bits takes integers"):
        es.op("y[i] = random_bits(x[i], 0, 0, 0)")(np.zeros(3, np.float32))


def test_words_have_no_gradient(rng) -> None:
    f = es.op("y[i] = x[i] * where(random_bits(0, 1, i, 2) > 0, 2.0, 0.0)")
    x = rng.standard_normal(40)
    y, pullback = es.vjp(f, x)
    kept = numpy_bits(0, 1, np.arange(40), 2) > 0
    np.testing.assert_allclose(pullback(np.ones(40))[0], np.where(kept, 2.0, 0.0))
    text = f.gradient("x", x=(40,))
    np.testing.assert_allclose(es.op(text)(dy=np.ones(40)), np.where(kept, 2.0, 0.0))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_masks(p, rng) -> None:
    es.manual_seed(5)
    x = rng.standard_normal((300, 70)) + 10
    y = es.functional.dropout(x, p)
    kept = y != 0
    np.testing.assert_allclose(y[kept], x[kept] / (1 - p) if p < 1 else [])
    assert abs(kept.mean() - (1 - p)) <= 4 * np.sqrt(p * (1 - p) / x.size)
    for axis in (0, 1):  # no row and no column is favored
        n = x.shape[axis]
        assert np.abs(kept.mean(axis) - (1 - p)).max() <= 5.5 * np.sqrt(p * (1 - p) / n) + 1e-9
    np.testing.assert_array_equal(es.functional.dropout(x, p, training=False), x)


def test_the_seed_decides_the_masks(rng) -> None:
    x = np.ones((40, 40), np.float32)
    runs = []
    for seed in (1, 1, 2):
        es.manual_seed(seed)
        runs.append([es.functional.dropout(x) for _ in range(3)])
    assert all(np.array_equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not np.array_equal(runs[0][0], runs[0][1]) and not np.array_equal(runs[0][0], runs[2][0])


class Noisy(nn.Module):
    def __init__(self):
        self.a, self.b = nn.Dropout(0.5), nn.Dropout(0.5)
        self.weight = nn.Parameter(np.ones((64, 8)))

    def forward(self, x):
        return self.a(x) * self.weight + 0 * self.b(x)


def masks(seed: int, steps: int, threads: int = 1) -> list[np.ndarray]:
    """What each step changed of the weight: the mask of that step."""
    model, out = Noisy(), []
    step = es.TrainStep(model, lambda y, t: (y * t).sum(), es.optim.SGD(lr=0.25), seed=seed, threads=threads)
    for _ in range(steps):
        before = model.weight.numpy()
        step(np.ones((64, 8)), np.ones((64, 8)))
        out.append(before - model.weight.data)
    return out


def test_a_training_step_draws_by_its_seed_and_number() -> None:
    first, again, two, other = masks(3, 3), masks(3, 3), masks(3, 3, threads=2), masks(4, 3)
    for a, b, c in zip(first, again, two, strict=True):
        assert set(np.unique(a)) == {0.0, 0.5}
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert not np.array_equal(first[0], first[1]) and not np.array_equal(first[0], other[0])


def test_layers_draw_apart(rng) -> None:
    es.manual_seed(0)
    one = nn.Dropout(0.5)
    x = np.ones((50, 20))
    a, b, c = es.jit(lambda x: (nn.Dropout(0.5)(x), one(x), one(x)))(x)
    assert not np.array_equal(a, b) and not np.array_equal(b, c)
    one.eval()
    np.testing.assert_array_equal(one(x), x)


def test_a_pullback_has_the_mask_of_its_output(rng) -> None:
    es.manual_seed(4)
    x, g = rng.standard_normal(500), rng.standard_normal(500)
    made = [es.vjp(lambda x: es.functional.dropout(x, 0.25), x) for _ in range(2)]
    for y, pullback in made:
        for _ in range(2):
            np.testing.assert_allclose(pullback(g)[0], np.where(y != 0, g / 0.75, 0))
    assert not np.array_equal(made[0][0], made[1][0])


def test_a_saved_step_resumes_with_the_same_masks(tmp_path) -> None:
    whole = masks(9, 4)
    model = Noisy()
    step = es.TrainStep(model, lambda y, t: (y * t).sum(), es.optim.SGD(lr=0.25), seed=9, threads=1)
    for _ in range(2):
        step(np.ones((64, 8)), np.ones((64, 8)))
    es.save(step, tmp_path / "s")
    after = es.load(tmp_path / "s", model=Noisy(), loss=step.loss)
    for mask in whole[2:]:
        before = after.model.weight.numpy()
        after(np.ones((64, 8)), np.ones((64, 8)))
        np.testing.assert_array_equal(before - after.model.weight.data, mask)


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match=r"p=1\.5"):
        nn.Dropout(1.5)
    with pytest.raises(ArgumentError, match=r"p=-0\.1"):
        es.functional.dropout(np.ones(3, np.float32), -0.1)
    with pytest.raises(DtypeError, match="needs floats"):
        es.functional.dropout(np.ones(3, np.int64))
    with pytest.raises(ArgumentError, match=r"Dropout2d: p=True"):
        nn.Dropout2d(True)
    with pytest.raises(ArgumentError, match=r"alpha_dropout: p=2"):
        es.functional.alpha_dropout(np.ones(3, np.float32), 2)
    with pytest.raises(ShapeError, match="Dropout1d: 'input' needs 2 or 3 dimensions"):
        nn.Dropout1d()(np.ones(3, np.float32))
    with pytest.raises(ShapeError, match="dropout3d: 'input' needs 4 or 5 dimensions"):
        es.functional.dropout3d(np.ones((2, 3, 4), np.float32))
    with pytest.raises(ShapeError, match="FeatureAlphaDropout: 'input' needs 2"):
        nn.FeatureAlphaDropout()(np.ones(3, np.float32))


CHANNELS = [
    ("Dropout1d", (400, 7, 3)), ("Dropout1d", (2000, 3)), ("Dropout2d", (300, 9, 2, 3)), ("Dropout2d", (300, 9, 4)),
    ("Dropout3d", (300, 9, 2, 1, 2)), ("Dropout3d", (2500, 2, 1, 2)),
]  # fmt: skip


@pytest.mark.thinned(2)
@pytest.mark.parametrize("p", [0.2, 0.7])
@pytest.mark.parametrize("name, shape", CHANNELS)
def test_channels_are_dropped_as_a_whole(rng, name, shape, p) -> None:
    """Of two leading dimensions; of input without a batch of one, but that of 2d is [B, C, L], as in torch."""
    es.manual_seed(3)
    x = rng.standard_normal(shape) + 10
    layer = getattr(nn, name)(p)
    y = layer(x)
    single = name != "Dropout2d" and len(shape) == int(name[-2]) + 1
    lead = 1 if single else 2
    kept = (y != 0).reshape(*shape[:lead], -1)
    assert (kept.all(-1) | ~kept.any(-1)).all()
    np.testing.assert_allclose(y[y != 0], x[y != 0] / (1 - p))
    count = kept[..., 0].size
    assert abs(kept.mean() - (1 - p)) <= 4 * np.sqrt(p * (1 - p) / count)
    for axis in range(lead):
        n = count // kept.shape[1 - axis] if lead == 2 else count
        assert lead == 1 or np.abs(kept[..., 0].mean(axis) - (1 - p)).max() <= 5.5 * np.sqrt(p * (1 - p) / n) + 1e-9
    np.testing.assert_array_equal(layer.eval()(x), x)
    function = getattr(es.functional, name.lower())
    np.testing.assert_array_equal(function(x, p, training=False), x)
    es.manual_seed(3)
    again = function(x, p)
    assert ((again != 0).reshape(*shape[:lead], -1).all(-1) == (again != 0).reshape(*shape[:lead], -1).any(-1)).all()


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("name, shape", [("AlphaDropout", (300, 60)), ("FeatureAlphaDropout", (2000, 10, 5))])
def test_alpha_dropout_keeps_mean_and_variance(torch, rng, name, shape, p) -> None:
    """The two values that an element can get are torch's, and the share of each."""
    es.manual_seed(1)
    x = rng.standard_normal(shape)
    layer = getattr(nn, name)(p)
    y = layer(x)
    theirs = getattr(torch.nn, name)(p)(torch.zeros(200, 50, 2, dtype=torch.float64)).numpy()
    low, high = np.unique(theirs)  # of zero: what is dropped, and what is kept
    scale = (1 - p + p * (1 - p) * 1.7580993408473766**2) ** -0.5
    dropped = np.isclose(y, low, rtol=1e-6)
    np.testing.assert_allclose(y[~dropped], x[~dropped] * scale + high, rtol=1e-6)
    independent = dropped.size // (shape[-1] if name.startswith("Feature") else 1)
    assert abs(dropped.mean() - p) <= 4 * np.sqrt(p * (1 - p) / independent)
    assert abs(y.mean()) < 0.05 and abs(y.std() - 1) < 0.05
    if name.startswith("Feature"):
        assert (dropped.all(-1) == dropped.any(-1)).all()
    np.testing.assert_array_equal(layer.eval()(x), x)
    assert repr(layer) == repr(getattr(torch.nn, name)(p))
    function = es.functional.alpha_dropout if name == "AlphaDropout" else es.functional.feature_alpha_dropout
    np.testing.assert_array_equal(function(x, p), x)
    assert not np.array_equal(function(x, p, training=True), x)
    np.testing.assert_array_equal(function(x, 1.0, training=True), np.zeros(shape))


def test_gradients_of_channel_dropout_are_masks() -> None:
    model = nn.Dropout2d(0.5)
    for layer, of in ((model, (0.0, 2.0)), (nn.AlphaDropout(0.5), None)):
        x = np.ones((20, 8, 3, 2))
        y, pull = es.vjp(layer, x)
        es.manual_seed(0)
        g = es.grad(lambda x, layer=layer: layer(x).sum())(x)
        assert set(np.unique(g)) == set(of) if of else len(np.unique(g)) == 2 and g.min() == 0


class Channels(nn.Module):
    def __init__(self):
        self.drop = nn.Sequential(nn.Dropout2d(0.5), nn.AlphaDropout(0.3))
        self.weight = nn.Parameter(np.ones((6, 4, 3, 2)))

    def forward(self, x):
        return self.drop(x * self.weight)


def test_layers_in_a_step_draw_by_path_seed_and_number() -> None:
    def changes(threads: int, seed: int) -> list[np.ndarray]:
        model = Channels()
        step = es.TrainStep(model, lambda y, t: (y * t).sum(), es.optim.SGD(lr=0.5), seed=seed, threads=threads)
        out = []
        for _ in range(3):
            before = model.weight.numpy()
            step(np.ones((6, 4, 3, 2)), np.ones((6, 4, 3, 2)))
            out.append(before - model.weight.data)
        return out

    one, two, other = changes(1, 5), changes(2, 5), changes(1, 6)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not np.array_equal(one[0], one[1]) and not np.array_equal(one[0], other[0])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_dropout_between_layers(run, rng, name) -> None:
    """With p = 1 the second layer reads zeros; in evaluation, and below the first layer, nothing is dropped."""
    m = getattr(nn, name)(3, 4, 2, dropout=1.0, dtype="float64")
    assert "dropout=1.0" in repr(m)
    plain = getattr(nn, name)(3, 4, 2, dtype="float64")
    plain.load_state_dict(m.state_dict())
    second = getattr(nn, name)(4, 4, dtype="float64")
    second.load_state_dict({n.replace("l1", "l0"): v for n, v in m.state_dict().items() if n.endswith("l1")})
    x = rng.standard_normal((5, 2, 3))
    np.testing.assert_allclose(m(x)[0], second(np.zeros((5, 2, 4)))[0], rtol=1e-12)
    m.eval()
    np.testing.assert_allclose(m(x)[0], plain(x)[0], rtol=1e-12)
    with pytest.raises(ArgumentError, match=r"dropout=1\.5"):
        getattr(nn, name)(3, 4, 2, dropout=1.5)


def test_uniform_and_normal_numbers() -> None:
    """Moments of 4e4 numbers, within 5 standard deviations; other numbers at every call and at every use."""
    es.manual_seed(3)
    x = np.zeros((200, 200), np.float64)
    uniform, normal = es.functional.rand(200, 200), es.functional.randn((200, 200), dtype="float64")
    assert uniform.dtype == np.float32 and normal.dtype == np.float64 and 0 <= uniform.min() and uniform.max() < 1
    alike = es.jit(lambda x: (es.functional.rand_like(x), es.functional.randn_like(x)))(x)
    assert not (alike[0] == uniform).all() and not (alike[1] == normal).all()
    for u, n in ((uniform, normal), alike):
        assert abs(u.mean() - 1 / 2) < 5 * (1 / 12) ** 0.5 / 200 and abs(u.var() - 1 / 12) < 2e-3
        assert abs(n.mean()) < 5 / 200 and abs(n.var() - 1) < 0.04 and abs((n**4).mean() - 3) < 0.25
    shares = np.array([0.0, 0.25, 1.0])
    drawn = es.jit(lambda p: es.functional.bernoulli(es.functional.broadcast_to(p, (9000, 3))))(shares)
    assert drawn.dtype == np.float64 and set(np.unique(drawn)) == {0, 1}
    assert drawn[:, 0].max() == 0 and drawn[:, 2].min() == 1 and abs(drawn[:, 1].mean() - 0.25) < 0.025
    es.manual_seed(3)
    np.testing.assert_array_equal(es.functional.rand(200, 200), uniform)
    with pytest.raises(DtypeError, match="randn: dtype=i64"):
        es.functional.randn(2, dtype="int64")
    with pytest.raises(ArgumentError, match="rand: device='cuda'"):
        es.functional.rand(2, device="cuda")
