"""All operators on which PyTorch tests its own, taken apart as torch.export does and evaluated by the table: none is
wrong, and most are there."""

from __future__ import annotations

import warnings
from itertools import islice
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="its operators are compared with")
from torch.utils._pytree import tree_flatten, tree_unflatten  # noqa: E402

from tests.frontends.aten_samples import Missing, compare  # noqa: E402
from tests.nn.twin import torch_testing  # noqa: E402

LEFT_OUT = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",  # memory as it lies
    "as_strided.partial_views",  # reads past what a copy holds
    "masked.amax", "masked.amin",  # NaN as the derivative of masked infinities
    "masked.normalize",  # of an empty set of numbers
    "special.ndtr",  # where 1 - erf(x) is small its digits are those of 1
    "nn.functional.hardsigmoid",  # PyTorch's derivative takes 1/6 from float32
    "nn.functional.interpolate.bicubic",  # sums whose terms cancel
    "cholesky_inverse", "cholesky_solve",  # PyTorch's derivative takes the triangle that is not read for zero
    "as_strided_scatter",  # PyTorch's derivative by the input is that by the places that were overwritten
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",  # samples with windows outside
    *(f"special.{name}" for name in "bessel_j0 bessel_j1 bessel_y0 bessel_y1 airy_ai".split()),  # PyTorch's: to 5e-6
}  # fmt: skip
DRAWS = ("rand", "dropout", "bernoulli", "normal", "rrelu", "multinomial", "attention")
TIES = {"kthvalue", "topk", "mode", "sort", "argsort", "msort"}  # PyTorch leaves open which of equal elements


def samples(op: Any, dtype: Any, count: int) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(islice(op.sample_inputs("cpu", dtype, requires_grad=False), 60))
    at = np.unique(np.linspace(0, len(found) - 1, count).astype(int)) if found else []
    return [found[i] for i in at]


def agrees(op: Any, sample: Any) -> bool:
    """Whether a sample was compared; False where the table refuses it. Raises AssertionError where they differ."""
    leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    if sum(leaves[n].numel() for n in at) > 5000:
        return False

    def call(*tensors: Any) -> Any:
        given = dict(zip(at, tensors, strict=True))
        x, args, kwargs = tree_unflatten([given.get(n, x) for n, x in enumerate(leaves)], structure)
        return op.op(x, *args, **kwargs)

    try:
        compare(call, [leaves[n] for n in at], rtol=1e-8)
    except Missing:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
def test_none_is_wrong_and_most_are_there(dtype):
    kind, wrong, compared, refused = getattr(torch, dtype), [], 0, 0
    for op in torch_testing("common_methods_invocations").op_db:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        skip = op.name in LEFT_OUT or name in LEFT_OUT or any(word in op.name for word in DRAWS)
        if skip or kind not in op.supported_dtypes("cpu") or op.name.startswith(("jiterator", "linalg", "sparse")):
            continue
        if dtype != "float64" and (op.name in TIES or op.name == "sinc"):
            continue
        if op.name in ("half", "bfloat16", "float", "chalf", "cfloat", "cdouble"):  # the evaluator knows wide types
            continue
        for sample in samples(op, kind, 3):
            try:
                done = agrees(op, sample)
            except AssertionError as e:
                wrong.append(f"{name}: {str(e)[:300]}")
                continue
            compared, refused = compared + done, refused + (not done)
    assert not wrong, "\n".join(wrong)
    assert compared >= 0.65 * (compared + refused), f"{compared} of {compared + refused}"
