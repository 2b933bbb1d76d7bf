"""Classical machine learning on numbers (the domain ai.onnx.ml)."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.indexing import wrap_index
from einsmith.frontends.onnx.operators.normalization import scale_to_norm
from einsmith.frontends.onnx.table import onnx
from einsmith.ops.common import pointwise, read
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


@onnx("ai.onnx.ml.ArrayFeatureExtractor")
def array_feature_extractor(x: Value, places: Value) -> Value:
    """x[.., indices[k]]"""
    x = x.reshape((1, -1)) if x.ndim == 1 else x
    return F.index_select(x, x.ndim - 1, wrap_index(places.reshape((-1,)), x.shape[-1]))


@onnx("ai.onnx.ml.Binarizer")
def binarizer(x: Value, *, threshold: float = 0.0) -> Value:
    """1 where x > threshold, else 0"""
    return pointwise(x, lambda e: builder.where(e > threshold, 1, 0))


@onnx("ai.onnx.ml.Scaler")
def scaler(n: NodeCall, x: Value) -> Value:
    """(x - offset)*scale for each column"""
    offset, scale = (n.constant(n.attr(k), dt.f32) for k in ("offset", "scale"))
    return (x.astype(dt.f32) - offset) * scale


@onnx("ai.onnx.ml.Normalizer")
def normalizer(x: Value, *, norm: str = "MAX") -> Value:
    """each row of x divided by its max, L1 or L2 norm"""
    return scale_to_norm(x.astype(dt.f32), x.ndim - 1, norm)


@onnx("ai.onnx.ml.LinearRegressor")
def linear_regressor(
    n: NodeCall, x: Value, *, coefficients: Any, intercepts: Any = None, targets: int = 1, post_transform: str = "NONE"
) -> Value:
    """sum[i](x[b, i]*w[k, i]) + c[k]"""
    if post_transform != "NONE":
        raise ArgumentError("post_transform of LinearRegressor is not supported")
    w = n.constant(np.reshape(coefficients, (targets, -1)), dt.f32)
    y = builder.matmul(x.astype(dt.f32), w.T)
    return y if intercepts is None else y + n.constant(intercepts, dt.f32)


def _read_table(n: NodeCall, what: str) -> np.ndarray | None:
    for kind in ("int64s", "floats", "tensor"):
        if (values := n.attr(f"{what}_{kind}")) is not None:
            return np.asarray(values).reshape(-1)
    return None


@onnx("ai.onnx.ml.LabelEncoder")
def label_encoder(n: NodeCall, x: Value, *, default_tensor: Any = None) -> Value:
    """the value of the key x, or a default"""
    keys, values = _read_table(n, "keys"), _read_table(n, "values")
    if keys is None or values is None:
        raise ArgumentError("LabelEncoder of strings is not supported")
    if default_tensor is not None:
        other = np.reshape(default_tensor, -1)[0].item()
    else:
        other = n.attr("default_float", -0.0) if n.dtype.is_float else n.attr("default_int64", -1)
    k, v = n.constant(keys, x.dtype), n.constant(values, n.dtype)
    (m,) = builder.axes(len(keys))

    def hit(e: Any) -> Any:
        same = (e == k[m]) | ((e != e) & (k[m] != k[m]))
        return builder.max(builder.where(same, m, -1), over=m)

    place = builder.compute(x.shape, lambda *i: hit(read(x, i)))
    known = builder.compute(x.shape, lambda *i: v[builder.maximum(place[i], 0)])
    return builder.where(place < 0, builder.full((), other, n.dtype), known)
