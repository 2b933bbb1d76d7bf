"""Functions on the samples that PyTorch tests its own with: values, by the reference evaluator in float64.

What is refused is counted: nothing is refused but what `REFUSED` says, and every function has samples that are not.
"""

from __future__ import annotations

import warnings
from itertools import islice

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from einsmith import functional as F  # noqa: E402
from einsmith.base.errors import EinsmithError  # noqa: E402
from tests.nn.twin import agree, outputs, torch_testing  # noqa: E402

OTHERS = {
    "bernoulli", "rand_like", "randn", "randn_like", "fractional_max_pool2d", "fractional_max_pool3d",  # draw numbers
    "dropout", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",  # draw numbers
    "unfold",  # of torch.nn.functional, not of torch
    "full", "zeros", "ones", "eye", "linspace", "arange",  # take no tensors
    "triplet_margin_with_distance_loss",  # samples with modules of torch
    "one_hot", "bincount",  # samples of integers alone
}  # fmt: skip
OPS = {}
for _op in torch_testing("common_methods_invocations").op_db:
    _name = _op.name.removeprefix("nn.functional.")
    if _name in F.__all__ and not _op.variant_test_name and _name not in OTHERS:
        OPS[_name] = _op

REFUSED = {
    "gather": 1, "cosine_similarity": 1, "normalize": 1, "transpose": 1,  # 0-d and empty tensors
    "cat": 1,  # an empty vector among matrices
    "repeat_interleave": 2, "narrow": 5,  # extents that depend on values
    "multi_margin_loss": 1, "multilabel_margin_loss": 1,  # one score of one class, 0-d
    "embedding": 5, "embedding_bag": 30,  # max_norm
    "avg_pool2d": 1, "batch_norm": 2,  # an empty stride; no channels
}  # fmt: skip
DROPPED = ("out", "memory_format", "requires_grad", "layout", "device")


def _arguments(sample, name: str):
    args = [sample.input, *sample.args]
    if name in ("embedding", "embedding_bag"):  # listed with the weight first
        args[:2] = args[1], args[0]
    if name in ("einsum", "where"):  # listed with the equation, the condition second
        args[:2] = args[1], args[0]
    dropped = (*DROPPED, "output_size") if name == "repeat_interleave" else DROPPED
    return args, {k: v for k, v in sample.kwargs.items() if k not in dropped}


def compare(run, name: str, count: int | None, largest: int) -> None:
    refused = compared = 0
    for sample in islice(OPS[name].sample_inputs("cpu", torch.float64, requires_grad=False), count):
        args, kwargs = _arguments(sample, name)
        drops = name == "rrelu" or name == "multi_head_attention_forward" and args[10]
        if kwargs.get("training") and drops or kwargs.get("dropout_p"):
            continue
        arrays: list[np.ndarray] = []

        def spec(x, arrays=arrays):
            if isinstance(x, torch.Tensor):
                arrays.append(x.detach().numpy())
                return len(arrays) - 1, None
            if isinstance(x, (list, tuple)):
                return None, type(x)(spec(v) for v in x) if type(x) in (list, tuple) else tuple(spec(v) for v in x)
            return None, str(x).partition(".")[2] if isinstance(x, torch.dtype) else x

        given, named = [spec(x) for x in args], {k: spec(v) for k, v in kwargs.items()}

        def value(s, values):
            place, rest = s
            if place is not None:
                return values[place]
            return type(rest)(value(v, values) for v in rest) if isinstance(rest, (list, tuple)) else rest

        def f(*values, given=given, named=named):
            args, kwargs = [value(s, values) for s in given], {k: value(s, values) for k, s in named.items()}
            y = getattr(F, name)(*args, **kwargs)
            return tuple(y) if isinstance(y, (tuple, list)) else y

        if sum(a.size for a in arrays) > largest:
            continue
        try:
            wanted = OPS[name].op(sample.input, *sample.args, **sample.kwargs)
        except (RuntimeError, ValueError):
            continue
        wanted = wanted[0] if name == "embedding_bag" and isinstance(wanted, tuple) else wanted
        try:
            found = run(f, *arrays)
        except EinsmithError:
            refused += 1
            continue
        agree(outputs(found), [np.asarray(w.detach().numpy()) for w in outputs(wanted)], 1e-7)
        compared += 1
    assert compared and refused <= REFUSED.get(name, 0), f"{refused} samples are refused, {compared} are not"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPS))
def test_all_samples(run, name) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(run, name, None, 10**5)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", sorted(OPS))
def test_first_samples(run, name) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = 8 if name in ("embedding", "gather", "narrow", "rrelu") else 3
        compare(run, name, count, 10**5 if name == "ctc_loss" else 1000)


def test_most_functions_have_samples() -> None:
    assert len(OPS) > 190
