"""Formulations that JAX and TensorFlow share mean what the formulas mean, whatever library has the functions."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch stands in for the libraries")
from benchmarks.graphs.forms import Formulation  # noqa: E402
from benchmarks.peers import einsmith_operators  # noqa: E402
from benchmarks.peers.formulations import BLOCK, Operators  # noqa: E402
from tests.benchmarks.test_models import Torch  # noqa: E402


class Library(Torch):
    """What operators need beside the functions of networks."""

    exp, floor, where = staticmethod(torch.exp), staticmethod(torch.floor), staticmethod(torch.where)
    cumsum, constant, total = staticmethod(torch.cumsum), staticmethod(torch.from_numpy), staticmethod(sum)

    def maximum(self, a, b):
        return a.clamp_min(b)

    def pad(self, a, pads):
        return torch.nn.functional.pad(a, [n for pair in reversed(pads) for n in pair])

    def integer(self, a):
        return a.long()

    def product(self, a, b, ta, tb):
        return (a.mT if ta else a) @ (b.mT if tb else b)

    def pick(self, x, row, column):
        batch = torch.arange(x.shape[0]).reshape(-1, *[1] * (row.ndim - 1))
        return x[batch, :, row, column]


SIZES = {
    "capsule_conv": ((2, 3, 6, 6, 4, 4), (5, 3, 3, 3, 4, 4)),
    "capsule_composed": ((2, 3, 6, 6, 4, 4), (4, 3, 3, 3, 4, 4)),
    "pairwise": ((10, 4), (9, 4)),
    "gaussian_kernel": ((10, 3), (9, 3), (9, 2)),
    "local_attention": ((2, 3 * BLOCK, 8),) * 3,
    "relative_bias": (*[(2, 3, 6, 64)] * 3, (11, 3)),
    "relative_keys": (*[(2, 3, 6, 64)] * 3, (11, 64)),
    "depthwise": ((2, 3, 9, 10), (3, 7, 7)),
    "bilinear": ((5, 4), (6, 4, 3), (5, 3)),
    "involution": ((2, 3, 4, 8, 8), (2, 3, 7, 7, 8, 8)),
    "tensor_train": ((3, 4, 5, 6), (4, 2, 3), (3, 5, 2, 3), (3, 6, 2)),
    "running_sum": ((2, 9),),
    "grid_sample": ((2, 3, 6, 8), (2, 6, 8, 2)),
    "deformable": ((2, 3, 6, 8), (2, 9, 2, 6, 8), (4, 3, 9)),
}
FORMS = {
    "pairwise": ("pairwise_product", "pairwise_differences"),
    "gaussian_kernel": ("gaussian_product", "gaussian_differences"),
    "relative_bias": ("relative_bias_gather", "relative_bias_skewed"),
    "relative_keys": ("relative_keys_skewed", "relative_keys_table"),
    "depthwise": ("depthwise_taps", "depthwise_conv"),
    "bilinear": ("bilinear_matrix", "bilinear_outer"),
    "involution": ("involution_taps",),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_formulation_means_what_the_formula_means(name: str, rng: np.random.Generator) -> None:
    arrays = [rng.standard_normal(shape, np.float32) for shape in SIZES[name]]
    options = {"stride": 2} if name.startswith("capsule") else {}
    want = np.asarray(next(iter(einsmith_operators.OPERATORS[name].values()))()(*arrays, **options))
    for form in FORMS.get(name, (name,)):
        f = getattr(Operators(Library(Formulation())), form)
        got = f(*(torch.from_numpy(a).clone() for a in arrays), **options).numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max(), err_msg=form)
