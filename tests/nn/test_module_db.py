"""The samples by which PyTorch tests its own modules, for layers that are here too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.lang.builder import as_value
from einsmith.transforms import vjp
from tests.nn.twin import torch_testing

NAMES = [
    *(f"{kind}{n}d" for kind in (
        "AdaptiveAvgPool", "AdaptiveMaxPool", "AvgPool", "BatchNorm", "CircularPad", "ConstantPad", "Conv",
        "ConvTranspose", "InstanceNorm", "LPPool", "MaxPool", "ReflectionPad", "ReplicationPad", "ZeroPad",
    ) for n in (1, 2, 3)),
    "GroupNorm", "LayerNorm", "Linear", "LocalResponseNorm", "RMSNorm",
]  # fmt: skip


def module_db() -> dict[str, Any]:
    """torch.testing's entries by name."""
    entries = torch_testing("common_modules").module_db
    return {info.name.removeprefix("nn."): info for info in entries}


def numpy(x: Any) -> Any:
    return x.detach().numpy() if hasattr(x, "detach") else x


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_samples(torch, name, training) -> None:
    torch.manual_seed(0)
    info = module_db()[name]
    samples = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=False, training=training)
    assert samples
    for sample in samples:
        if sample.forward_input is None:
            continue
        args, kwargs = sample.constructor_input.args, dict(sample.constructor_input.kwargs)
        theirs = getattr(torch.nn, name)(*args, **kwargs).double().train(training)
        ours = getattr(nn, name)(*args, **kwargs).double().train(training)
        ours.load_state_dict(theirs.state_dict())
        given = (*sample.forward_input.args, *sample.forward_input.kwargs.values())
        inputs = [x.requires_grad_() for x in given]
        wanted = theirs(*inputs)
        several = isinstance(wanted, tuple)
        first = wanted[0] if several else wanted
        weights = np.random.default_rng(0).standard_normal(tuple(first.shape))
        first.backward(torch.tensor(weights))

        def both(*x: Any, ours: Any = ours, weights: np.ndarray = weights, several: bool = several) -> tuple:
            y, pull = vjp(lambda *x: ours(*x)[0] if several else ours(*x), *x)
            return y, *pull(as_value(weights))

        found = es.interpret(both)(*map(numpy, inputs))
        message = f"{name}{args}{kwargs} of {[tuple(x.shape) for x in inputs]}"
        for a, b in zip(found, [first, *(x.grad for x in inputs)], strict=True):
            np.testing.assert_allclose(a, numpy(b), rtol=1e-9, atol=1e-10, err_msg=message)
        if several:
            for a, b in zip(es.interpret(ours)(*map(numpy, inputs)), wanted, strict=True):
                np.testing.assert_allclose(a, numpy(b), rtol=1e-9, err_msg=message)
