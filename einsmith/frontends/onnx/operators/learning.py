"""Classical machine learning on numbers (the domain ai.onnx.ml)."""

from __future__ import annotations

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.indexing import wrap_index
from einsmith.frontends.onnx.table import onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.common import pointwise


@onnx("ai.onnx.ml.ArrayFeatureExtractor")
def array_feature_extractor(n: NodeCall, x: Value, places: Value) -> Value:
    """x[.., indices[k]]"""
    x = x.reshape((1, -1)) if x.ndim == 1 else x
    k = wrap_index(places.reshape((-1,)), x.shape[-1])
    return F.index_select(x, x.ndim - 1, k)


@onnx("ai.onnx.ml.Binarizer")
def binarizer(n: NodeCall, x: Value) -> Value:
    """1 where x > threshold, else 0"""
    edge = float(n.attr("threshold", 0.0))
    return pointwise(x, lambda e: builder.where(e > edge, 1, 0)).astype(x.dtype)


@onnx("ai.onnx.ml.Scaler")
def scaler(n: NodeCall, x: Value) -> Value:
    """(x - offset)*scale for each column"""
    offset, scale = (n.constant(np.asarray(n.attr(k), np.float32), dt.f32) for k in ("offset", "scale"))
    return ((x.astype(dt.f32) - offset) * scale).astype(dt.f32)


@onnx("ai.onnx.ml.Normalizer")
def normalizer(n: NodeCall, x: Value) -> Value:
    """each row of x divided by its max, L1 or L2 norm"""
    kind, y = n.attr("norm", "MAX"), x.astype(dt.f32)
    size = {
        "MAX": lambda: F.amax(y, (y.ndim - 1,), True),
        "L1": lambda: F.sum(builder.abs(y), (y.ndim - 1,), True),
        "L2": lambda: F.norm(y, 2.0, (y.ndim - 1,), True),
    }
    if kind not in size:
        raise ArgumentError(f"norm {kind!r} is none of {', '.join(size)}")
    length = size[kind]()
    return builder.where(length == 0, y, y / builder.where(length == 0, 1.0, length)).astype(dt.f32)


@onnx("ai.onnx.ml.LinearRegressor")
def linear_regressor(n: NodeCall, x: Value) -> Value:
    """sum[i](x[b, i]*w[k, i]) + c[k]"""
    if n.attr("post_transform", "NONE") != "NONE":
        raise ArgumentError("post_transform of LinearRegressor is not supported")
    targets = n.attr("targets", 1)
    w = n.constant(np.asarray(n.attr("coefficients"), np.float32).reshape(targets, -1), dt.f32)
    y = builder.matmul(x.astype(dt.f32), w.T)
    c = n.attr("intercepts")
    return y if c is None else y + n.constant(np.asarray(c, np.float32), dt.f32)


def _table(n: NodeCall, what: str) -> np.ndarray | None:
    for kind in ("int64s", "floats", "tensor"):
        found = n.attr(f"{what}_{kind}")
        if found is not None:
            return np.asarray(found).reshape(-1)
    return None


@onnx("ai.onnx.ml.LabelEncoder")
def label_encoder(n: NodeCall, x: Value) -> Value:
    """the value of the key x, or a default"""
    keys, values = _table(n, "keys"), _table(n, "values")
    if keys is None or values is None:
        raise ArgumentError("LabelEncoder of strings is not supported")
    default = n.attr("default_tensor")
    other = (
        np.asarray(default).reshape(-1)[0]
        if default is not None
        else (n.attr("default_float", -0.0) if n.dtype.is_float else n.attr("default_int64", -1))
    )
    k, v = n.constant(keys, x.dtype), n.constant(values, n.dtype)
    (m,) = builder.axes(len(keys))

    def hit(a: Value) -> Value:
        return builder.compute(
            a.shape,
            lambda *i: builder.max(builder.where((a[i] == k[m]) | ((a[i] != a[i]) & (k[m] != k[m])), m, -1), over=m),
        )

    place = hit(x)
    number = builder.full((), other.item() if hasattr(other, "item") else other, n.dtype)
    found = builder.compute(x.shape, lambda *i: v[builder.maximum(place[i], 0)])
    return builder.where(place < 0, number, found).astype(n.dtype)
