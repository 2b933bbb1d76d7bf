"""What a trace of a layer on symbolic extents says of other sizes is what a trace at these sizes says, so that no size
is read without a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.api.tracing import trace_shapes
from einsmith.base import dtypes as dt
from einsmith.base.symbolic import Scope
from einsmith.base.trees import flatten
from einsmith.passes.capacity import SymbolicSizes, size_graph
from einsmith.passes.size_traces import SizeDependentError, TracedSize

CAPACITY, PROBE = (40, 56), (38, 52)
IMAGE, ROWS, WORDS = ("b", 4, "n", "n"), ("b", "n", 8), ("b", "n")
LAYERS: dict[str, tuple[Callable[[], Any], tuple, int]] = {
    # how it is made, the shapes of its inputs, and at how many of twelve sizes at least nothing is traced
    "linear": (lambda: nn.Linear(8, 3), (ROWS,), 12),
    "bilinear": (lambda: nn.Bilinear(4, 3, 2), (("b", 4), ("b", 3)), 12),
    "embedding": (lambda: nn.Embedding(9, 4), (WORDS,), 12),
    "bag": (lambda: nn.EmbeddingBag(9, 4), (WORDS,), 12),
    "convolution": (lambda: nn.Conv2d(4, 3, 3, padding=1), (IMAGE,), 12),
    "stride": (lambda: nn.Conv1d(4, 3, 3, stride=2), (("b", 4, "n"),), 2),
    "batch norm": (lambda: nn.BatchNorm2d(4), (IMAGE,), 12),
    "instance norm": (lambda: nn.InstanceNorm2d(4), (IMAGE,), 12),
    "group norm": (lambda: nn.GroupNorm(2, 4), (IMAGE,), 12),
    "layer norm": (lambda: nn.LayerNorm(8), (ROWS,), 12),
    "dropout": (lambda: nn.Dropout(0.5), (ROWS,), 12),
    "channels": (lambda: nn.Dropout2d(0.5), (IMAGE,), 12),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (ROWS,), 12),
    "decoder": (lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), (ROWS, ROWS), 12),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), (ROWS,) * 3, 12),
    "LSTM": (lambda: nn.LSTM(8, 3, 2, bidirectional=True), (ROWS,), 12),
    "GRU": (lambda: nn.GRU(8, 3, batch_first=True), (ROWS,), 12),
    "LLTM": (lambda: nn.LLTM(8, 3), (ROWS,), 12),
    "cell": (lambda: nn.LSTMCell(8, 3), (("b", 8),), 12),
    "delta net": (lambda: nn.GatedDeltaNet(8, 2, 4), (ROWS,), 12),
    "Kimi delta attention": (lambda: nn.KimiDeltaAttention(8, 2, 4), (ROWS,), 12),
    "Mamba-2": (lambda: nn.Mamba2(8, 3, 4), (ROWS,), 12),
    "matrix LSTM": (lambda: nn.MLSTM(8, 2), (ROWS,), 12),
    "max pooling": (lambda: nn.MaxPool2d(2), (IMAGE,), 2),
    "mean pooling": (lambda: nn.AvgPool1d(3, 2, 1), (("b", 4, "n"),), 2),
    "global pooling": (lambda: nn.AdaptiveAvgPool2d(1), (IMAGE,), 12),
    "four windows": (lambda: nn.AdaptiveAvgPool1d(4), (("b", 4, "n"),), 0),
    "reflection": (lambda: nn.ReflectionPad1d(1), (("b", 4, "n"),), 10),
    "circle": (lambda: nn.CircularPad1d(1), (("b", 4, "n"),), 12),
    "flat": (lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Flatten()), (("b", 8),), 12),
    "classes": (nn.CrossEntropyLoss, (("b", 4, "n"), WORDS), 12),
    "softmax of products": (lambda: nn.LinearCrossEntropyLoss(8, 7), (("b", 8), ("b",)), 12),
    "clusters": (lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [4]), (("b", 8), ("b",)), 12),
    "variance": (lambda: lambda x: es.functional.var(x, 0), (ROWS,), 9),
    "network": (lambda: es.models.get("lstm-lm"), (WORDS,), 12),
}  # fmt: skip
RECURRENT = "delta net", "Kimi delta attention", "Mamba-2", "matrix LSTM"
WITHOUT_GRADIENT = "embedding", "bag", "network", "stride", "mean pooling", *RECURRENT


def trace(f: Callable, shapes: tuple, sizes: Any) -> TracedSize:
    at = dict(zip("bn", sizes, strict=True))
    kinds = [(tuple(at.get(n, n) for n in s), dt.i64 if s in (WORDS, ("b",)) else dt.f32) for s in shapes]
    t = trace_shapes(f, kinds)
    return TracedSize(t.graph, t.bind, [memory.physical for _, memory in t.live])


def gradient_of(f: Callable) -> Callable:
    return es.grad(lambda *x: sum((y * y).sum() for y in flatten(f(*x))[0]))


@pytest.mark.parametrize("is_gradient", [False, True], ids=["value", "gradient"])
@pytest.mark.parametrize("name", LAYERS)
def test_sizes_follow_as_in_traces(name: str, is_gradient: bool, rng: np.random.Generator) -> None:
    make, shapes, least = LAYERS[name]
    if is_gradient and name in WITHOUT_GRADIENT:
        pytest.skip("its inputs are integers, or each size has a program of its own")
    layer = make()
    f = gradient_of(layer) if is_gradient else layer
    graph = size_graph(*(trace(f, shapes, sizes) for sizes in (CAPACITY, PROBE)))
    scope, count, others = Scope(CAPACITY), 0, 0
    traced = trace(f, shapes, scope.symbols)
    symbolic = SymbolicSizes(graph, traced, scope, PROBE)
    for sizes in [tuple(int(rng.integers(2, c + 1)) for c in CAPACITY) for _ in range(12)]:
        at = scope.at(sizes)
        fit = None if at is None else symbolic.fit(at)
        if fit is None:
            continue
        t = trace(f, shapes, sizes)
        assert fit.outputs == tuple(x.shape for x in t.graph.outputs), sizes
        try:
            numbers = graph.fit(t)
        except SizeDependentError:  # a division by 1 or by a power of two, or another order of operands
            others += 1
            continue
        for a, b in zip(fit.numbers, numbers, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=str(sizes))
        count += 1
    assert others <= 4 and count + others >= least


def test_a_factor_that_is_no_integer_needs_the_size() -> None:
    scope = Scope(CAPACITY)
    with pytest.raises(AttributeError):
        trace(nn.Upsample(scale_factor=2), (("b", 4, "n"),), scope.symbols)
    assert scope.at(CAPACITY) is not None and scope.at(PROBE) is None
