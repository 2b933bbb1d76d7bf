"""Sequences, batches and lists without elements: PyTorch's results where it has some, else a clear error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith import functional as F
from einsmith.base.errors import EinsmithError

SHAPES = [(2, 0), (0, 3), (0, 0)]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def assert_as_torch(torch: Any, ours: Any, theirs: Any, *arrays: np.ndarray) -> None:
    """The results, and the derivatives, are PyTorch's; where it raises, so do we, and not about position -1."""
    tensors = [torch.tensor(a).requires_grad_(a.dtype.kind == "f") for a in arrays]
    try:
        expected = theirs(*tensors)
    except Exception:
        with pytest.raises(EinsmithError) as caught:
            ours(*arrays)
        assert "index -1" not in str(caught.value)
        return
    np.testing.assert_allclose(ours(*arrays), expected.detach().numpy(), 1e-5, 1e-6)
    floats = tuple(n for n, a in enumerate(arrays) if a.dtype.kind == "f")
    found = es.grad(lambda *x: F.sum(ours(*x) * 1.0), argnums=floats)(*arrays)
    expected.sum().backward()
    for g, n in zip(found, floats, strict=True):
        wanted = np.zeros(arrays[n].shape) if tensors[n].grad is None else tensors[n].grad.numpy()
        np.testing.assert_allclose(g, wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
def test_logsumexp(torch: Any, shape: tuple[int, ...], keepdim: bool, dim: Any):
    ours = lambda x: F.logsumexp(x, dim, keepdim)  # noqa: E731
    assert_as_torch(torch, ours, lambda x: torch.logsumexp(x, dim, keepdim), normal(*shape))


@pytest.mark.parametrize("lengths", [(0, 0), (0, 3), (3, 0)])
def test_attention(torch: Any, lengths: tuple[int, int]):
    q, k = normal(2, 3, lengths[0], 4), normal(2, 3, lengths[1], 4)
    theirs = torch.nn.functional.scaled_dot_product_attention
    assert_as_torch(torch, F.scaled_dot_product_attention, theirs, q, k, normal(2, 3, lengths[1], 5))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(
    ("steps", "labels", "inputs", "targets"),
    [(5, 3, (0, 5), (3, 3)), (5, 3, (0, 0), (0, 2)), (5, 3, (5, 0), (1, 0)), (5, 0, (5, 4), (0, 0)),
     (5, 3, (3, 5), (0, 3)), (0, 3, (0, 0), (3, 3)), (0, 0, (0, 0), (0, 0))],
)  # fmt: skip
def test_ctc_loss(torch: Any, reduction: str, steps: int, labels: int, inputs: Any, targets: Any):
    y = np.ones((2, labels), np.int64)
    y[:, 1:2] = 2
    lengths = np.array(inputs), np.array(targets)

    def ours(x: Any) -> Any:
        return F.ctc_loss(F.log_softmax(x, -1), y, *lengths, reduction=reduction, zero_infinity=True)

    def theirs(x: Any) -> Any:
        given = (torch.tensor(y), *map(torch.tensor, lengths))
        return torch.nn.functional.ctc_loss(x.log_softmax(-1), *given, reduction=reduction, zero_infinity=True)

    assert_as_torch(torch, ours, theirs, normal(steps, 2, 4))


def test_lengths_of_ctc_loss_out_of_range():
    x, y = normal(5, 2, 4), np.ones((2, 3), np.int64)
    for wrong in (-1, 6):
        with pytest.raises(EinsmithError):
            F.ctc_loss(x, y, np.array([wrong, 5]), np.array([3, 3]))
        with pytest.raises(EinsmithError):
            es.jit(F.ctc_loss)(x, y, np.array([wrong, 5]), np.array([3, 3]))


@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("given", [False, True])
def test_recurrences_of_onnx(operator: str, given: bool):
    onnx = pytest.importorskip("onnx")
    from onnx import helper as h
    from onnx import numpy_helper

    from einsmith.frontends.onnx import load

    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator]
    weights = {"w": normal(1, 4 * gates, 3), "r": normal(1, 4 * gates, 4), "h0": normal(1, 2, 4)}
    node = h.make_node(operator, ["x", "w", "r", "", "", *(["h0"] if given else [])], ["y", "h"], hidden_size=4)
    graph = h.make_graph(
        [node], "g", [h.make_tensor_value_info("x", 1, ["t", 2, 3])],
        [h.make_tensor_value_info(o, 1, None) for o in ("y", "h")],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    model = load(h.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10))
    y, last = model(np.zeros((0, 2, 3), np.float32))
    assert y.shape == (0, 1, 2, 4)
    np.testing.assert_array_equal(last, weights["h0"] if given else np.zeros((1, 2, 4)))
