"""`import einsmith as torch`: functions, element types and constants under the names of the module torch."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.functional import torch_names
from einsmith.tracing.torch_types import TYPES, Device


def test_functions_and_types_have_torch_s_names(torch) -> None:
    for name in es.functional.__all__:
        assert name in es.__all__ or getattr(es, name) is getattr(es.functional, name)
    for name, kind in TYPES.items():
        assert getattr(es, name) is kind and getattr(torch, name).itemsize == kind.itemsize
        assert getattr(torch, name).is_floating_point == kind.is_float
    assert all(hasattr(torch, n) for n in torch_names.NAMES)
    for name in ("float16", "float32", "float64", "bfloat16"):
        ours, theirs = es.finfo(getattr(es, name)), torch.finfo(getattr(torch, name))
        assert all(getattr(ours, n) == getattr(theirs, n) for n in ("min", "max", "eps", "tiny", "bits"))
    assert es.device("cpu") == Device() == es.device("cpu") and str(es.device("cpu")) == "cpu"
    assert es.Tensor is es.tracing.builder.Value and es.nn.functional is es.functional


@pytest.mark.parametrize("call", [
    lambda t, x: t.sum(x, 1), lambda t, x: t.sum(x, dim=(0, 2), keepdim=True), lambda t, x: t.mean(x, -1, True),
    lambda t, x: t.max(x, 1), lambda t, x: t.min(x, dim=0, keepdim=True), lambda t, x: t.max(x, -x),
    lambda t, x: t.argmax(x, dim=-1), lambda t, x: t.argmin(x, 1), lambda t, x: t.prod(x, 1), lambda t, x: t.max(x),
    lambda t, x: t.sum(x), lambda t, x: t.mean(x, axis=1), lambda t, x: t.where(x > 0, x, t.zeros_like(x)),
])  # fmt: skip
def test_reductions_take_torch_s_arguments(call, torch, rng) -> None:
    """Names that Einsmith has for formulas, too; on arrays and on traced tensors."""
    x = rng.standard_normal((3, 5, 4))
    want = call(torch, torch.tensor(x))
    for got in (call(es, x), es.jit(lambda x: call(es, x))(x)):
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        for a, b in pairs:
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-12)


@pytest.mark.parametrize("name, words", [
    ("no_grad", "no attribute 'no_grad': gradients are those of functions; use .*detach"), ("empty", "use zeros"),
    ("ones_lik", "did you mean ones_like"), ("compile", "es.jit"),
])  # fmt: skip
def test_missing_names(name, words) -> None:
    assert not hasattr(es, name)
    with pytest.raises(es.UnknownAttributeError, match=words):
        getattr(es, name)
