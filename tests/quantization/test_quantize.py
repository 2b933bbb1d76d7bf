"""Networks of 8-bit integers: their arithmetic, their nearness to float32, what they say, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.ir.nodes import Compute, Piece, Reduce, postorder
from einsmith.passes.pipeline import run_passes
from einsmith.quantization.scales import METHODS, AffineScale, Observed, dequantized, quantize_weight, scale_of

F = es.functional


class Net(es.nn.Module):
    """Convolutions with padding and stride, a residual, pooling, a concatenation and a product of activations."""

    def __init__(self):
        self.conv1, self.bn = es.nn.Conv2d(3, 8, 3, padding=1), es.nn.BatchNorm2d(8)
        self.conv2, self.pool = es.nn.Conv2d(8, 8, 3, padding=1), es.nn.MaxPool2d(2)
        self.depthwise, self.down = es.nn.Conv2d(8, 8, 3, padding=1, groups=8), es.nn.Conv2d(16, 12, 1, stride=2)
        self.head = es.nn.Linear(48, 10)

    def forward(self, x):
        x = F.relu(self.bn(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x) + x))
        x = F.cat([x, F.relu6(self.depthwise(x))], 1)
        return self.head(F.relu(self.down(x)).flatten(1))


class Attention(es.nn.Module):
    def __init__(self):
        self.norm, self.out = es.nn.LayerNorm(16), es.nn.Linear(16, 7)
        self.attention = es.nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        return self.out(x + self.attention(y, y, y, need_weights=False)[0])


def images(rng, n=6):
    return rng.standard_normal((n, 3, 8, 8)).astype(np.float32)


def make(kind, rng):
    es.manual_seed(1)
    model = kind()
    model.eval()
    return model, images(rng) if kind is Net else rng.standard_normal((3, 9, 16)).astype(np.float32)


def integer_products(q, x) -> list[Compute]:
    """The sums of products of bytes that a network computes."""
    graph = run_passes(trace_call(q, (x,), {}).graph)
    nodes = [n for n in postorder(graph.roots) if isinstance(n, Compute) and n.template.dtypes == (dt.i32,)]
    bodies = [(n, p.body) for n in nodes for p in n.template.parts if isinstance(p, Piece)]
    sums = [n for n, b in bodies if isinstance(b, Reduce) and b.combiner == "sum"]
    return [n for n in sums if any(a.dtype in (dt.u8, dt.i8) for a in n.args)]


def integer_sums(q, x) -> list[tuple[int, ...]]:
    """The shapes of the sums of products of bytes that a network computes."""
    return [n.shape for n in integer_products(q, x)]


# ------------------------------------------------------------------------------------------------------ arithmetic


@pytest.mark.parametrize("per_channel", [True, False])
def test_a_layer_computes_exactly_what_its_integers_say(per_channel, rng):
    es.manual_seed(0)
    layer = es.nn.Linear(37, 19)
    x = (3 * rng.standard_normal((11, 37)) + 1).astype(np.float32)
    q = es.quantize(layer, [x], per_channel=per_channel)
    (ranges,) = q.ranges.children()
    s, inverse, z = (np.asarray(b.data) for b in (ranges.scale, ranges.inverse, ranges.zero))
    weight, scales = np.asarray(q.network.weight.data), np.asarray(q.network.weight_scale.data)
    assert weight.dtype == np.int8 and scales.shape == ((19,) if per_channel else (1,))
    xq = np.clip(np.rint(x * inverse) + np.float32(z), 0, 255).astype(np.int32)
    sums = (xq - int(z)) @ weight.astype(np.int32).T
    wanted = sums.astype(np.float32) * (s * scales).astype(np.float32) + np.asarray(q.network.bias.data)
    np.testing.assert_allclose(q(x), wanted, rtol=3e-7, atol=1e-7)


def test_padding_stands_for_zero(rng):
    """The border of a padded convolution is zero, whatever integer stands for it."""
    es.manual_seed(0)
    layer = es.nn.Conv2d(4, 6, 3, padding=1)
    x = (rng.random((2, 4, 7, 7)) + 2).astype(np.float32)  # far from zero, which is in the range all the same
    q = es.quantize(layer, [x])
    np.testing.assert_allclose(q(x), layer(x), atol=0.03 * np.abs(layer(x)).max())


@pytest.mark.thinned(6)
@pytest.mark.parametrize("kind", [Net, Attention])
@pytest.mark.parametrize("method", METHODS)
def test_results_are_near_those_of_float32(kind, method, rng):
    model, x = make(kind, rng)
    wanted, q = model(x), es.quantize(model, [x, x[:2]], method=method)
    np.testing.assert_allclose(q(x), wanted, atol=(0.05 if method == "minmax" else 0.15) * np.abs(wanted).max())
    np.testing.assert_allclose(q(x[:1]), q(x)[:1], rtol=1e-5, atol=1e-6)  # the same integers; scaled in another order
    np.testing.assert_array_equal(model(x), wanted)  # which stays as it was


def test_what_is_computed_by_integers(rng):
    model, x = make(Net, rng)
    q = es.quantize(model, [x])
    assert {n for n, v in q.layers.items() if v == "int8"} == {"conv1", "conv2", "down", "head"}
    assert "8 bits" in q.layers["depthwise"]
    # Those of three colours, conv1, are exact in float32.
    assert sorted(integer_sums(q, x)) == sorted([(6, 8, 8, 8), (6, 12, 2, 2), (6, 10)])
    assert "4 of 5 products in int8" in repr(q)
    attention, x = make(Attention, rng)
    q = es.quantize(attention, [x])
    assert sum(v == "int8" for v in q.layers.values()) == 5, q.layers  # of q, k, v; scores; values; and two layers
    assert len(integer_sums(q, x)) == 5


def test_nothing_of_float32_is_stored_between_products(rng):
    """What passes from product to product, a residual among it, is of 8 bits."""
    model, x = make(Net, rng)
    for n in integer_products(es.quantize(model, [x]), x):
        assert all(a.dtype in (dt.u8, dt.i8) for a in n.args), n.template


def by_exact_sums(q, x, **options) -> np.ndarray:
    """What a quantized convolution is to return: its sums of integers are exact in float64."""
    (ranges,) = q.ranges.children()
    s, inverse, z = (np.asarray(b.data) for b in (ranges.scale, ranges.inverse, ranges.zero))
    xq = np.clip(np.rint(x * inverse) + np.float32(z), 0, 255).astype(np.float64) - z
    weight = np.moveaxis(np.asarray(q.network.weight.data), -1, 1).astype(np.float64)
    sums = np.asarray(F.conv2d(xq, weight, **options))
    scales = (s * np.asarray(q.network.weight_scale.data)).astype(np.float32).reshape(-1, 1, 1)
    return sums.astype(np.float32) * scales + np.asarray(q.network.bias.data).reshape(-1, 1, 1)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_few_channels_are_summed_exactly(channels, rng):
    """Integers of few channels fill no word: they are multiplied and added in float32, which is exact."""
    es.manual_seed(0)
    layer = es.nn.Conv2d(channels, 10, 5, padding=2)
    x = (rng.random((2, channels, 9, 8)) - 0.3).astype(np.float32)
    q = es.quantize(layer, [x])
    assert len(integer_products(q, x)) == (channels == 4)
    np.testing.assert_allclose(q(x), by_exact_sums(q, x, padding=2), rtol=3e-7, atol=1e-6)


def test_products_with_weights_subtract_no_zero_point(rng):
    """What follows relu has none; elsewhere the zero point times the sums of weights is subtracted from the sum. Words
    hold the integers as they lie. A product of activations subtracts it from the integers."""
    model, x = make(Net, rng)
    q = es.quantize(model, [x])
    with_zero = {n for n, m in q.ranges.named_modules() if "zero" in dict(m.named_buffers())}
    assert with_zero == {"conv1/input"}
    assert [len(n.args) for n in integer_products(q, x)] == [2, 2, 2]
    attention, x = make(Attention, rng)
    products = integer_products(es.quantize(attention, [x]), x)
    assert sorted(len(n.args) for n in products) == [2, 2, 2, 3, 3]


@pytest.mark.thinned(8)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_zero_points_are_corrected_by_sums_of_weights(groups, padding, stride, rng):
    """Exactly: the sums of a convolution are those of the integers less the zero point, beside a border too."""
    es.manual_seed(0)
    layer = es.nn.Conv2d(32, 10, 3, stride=stride, padding=padding, groups=groups)
    x = (rng.random((2, 32, 7, 5)) - 0.3).astype(np.float32)
    q = es.quantize(layer, [x])
    assert [len(n.args) for n in integer_products(q, x)] == [2]
    (ranges,) = q.ranges.children()
    assert np.asarray(ranges.zero.data) > 0
    wanted = by_exact_sums(q, x, stride=stride, padding=padding, groups=groups)
    np.testing.assert_allclose(q(x), wanted, rtol=3e-7, atol=1e-6)


def test_skipped_layers_stay_in_float32(rng):
    model, x = make(Net, rng)
    q = es.quantize(model, [x], skip=("conv*", "head"))
    assert {n for n, v in q.layers.items() if v == "int8"} == {"down"}
    assert q.network.conv1.weight.dtype is dt.f32 and q.network.down.weight.dtype is dt.i8


def test_a_sum_that_may_leave_int32_stays_in_float32(rng):
    layer = es.nn.Linear(66_400, 3)
    with pytest.raises(ArgumentError, match="may leave int32"):
        es.quantize(layer, [rng.standard_normal((2, 66_400)).astype(np.float32)])


def test_states_are_saved_and_loaded(tmp_path, rng):
    model, x = make(Net, rng)
    q, other = es.quantize(model, [x]), es.quantize(model, [2 * x])
    assert q.state_dict()["network.conv1.weight"].dtype == np.int8
    assert not np.array_equal(other(x), q(x))
    other.load_state_dict(q.state_dict())
    np.testing.assert_array_equal(other(x), q(x))
    es.export(q, tmp_path / "net", x)
    library = es.load_library(tmp_path / "net")
    np.testing.assert_array_equal(library(x), q(x))


# ---------------------------------------------------------------------------------------------------------- scales


def test_scales_hold_zero_exactly(rng):
    for low, high in ((-1.0, 3.0), (0.5, 3.0), (-3.0, -1.0), (0.0, 0.0), (-1e-30, 1e-30), (-5.0, 0.0)):
        s = scale_of(low, high, "u8")
        assert s.scale > 0 and 0 <= s.zero <= 255
        x = np.linspace(min(low, 0), max(high, 0), 1001)
        assert dequantized(np.zeros(1), s, "u8")[0] == 0
        assert np.abs(dequantized(x, s, "u8") - x).max() <= s.scale * 1.01
    assert scale_of(-2.0, 1.0, "i8") == AffineScale(float(np.float32(2 / 127)), 0)


def test_ways_to_choose_a_range(rng):
    x = rng.standard_normal(200_000)
    x[0] = 1000.0
    seen = Observed()
    seen.widen(x.min(), x.max())
    for part in np.split(x, 4):
        seen.count(part)
    errors = {m: ((dequantized(x[1:], seen.choose(m, "u8"), "u8") - x[1:]) ** 2).mean() for m in METHODS}
    assert errors["percentile"] < 0.1 * errors["minmax"]
    assert seen.choose("mse", "i8").scale <= seen.choose("minmax", "i8").scale


def test_weights_are_symmetric(rng):
    w = rng.standard_normal((5, 4, 3)).astype(np.float32)
    w[2] = 0
    values, scale = quantize_weight(w, True)
    assert values.dtype == np.int8 and values.min() >= -127 and scale[2] == 1
    assert np.abs(values * scale[:, None, None] - w).max() <= 0.5001 * scale.max()
    assert [np.abs(values[n]).max() for n in (0, 1, 3, 4)] == [127] * 4


# ------------------------------------------------------------------------------------------------------- bad input


def test_what_is_refused(rng):
    model, x = make(Net, rng)
    bad = x.copy()
    bad[0, 0, 0, 0] = np.nan
    for batches, options, message in (
        ([], {}, "batches is empty"),
        (x, {}, "must be a sequence of batches"),
        (None, {}, "must be a sequence of batches"),
        ([x], {"method": "best"}, "must be one of minmax, percentile, mse"),
        ([bad], {}, "conv1.input that are not finite"),
        ([x], {"skip": "tail"}, "no product has this name; the names are conv1"),
    ):
        with pytest.raises(ArgumentError, match=message):
            es.quantize(model, batches, **options)
    with pytest.raises(ArgumentError, match="is not a network"):
        es.quantize(np.exp, [x])
    with pytest.raises(ArgumentError, match="has no product"):
        es.quantize(es.nn.ReLU(), [x])
    q = es.quantize(model, [x])
    q.train()
    with pytest.raises(ArgumentError, match="for inference"):
        q(x)
