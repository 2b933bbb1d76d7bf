"""Special functions, linear algebra, counting and selection of the table of PyTorch's operators: values and derivatives
by the reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.frontends.aten import TABLE
from einsmith.lang.builder import as_value

torch = pytest.importorskip("torch", reason="its operators are compared with")
from tests.frontends.test_aten import INF, NAN, check, ints, special, t  # noqa: E402

aten = torch.ops.aten


def row(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


_ENDS = row(0.0, -0.0, INF, -INF, NAN)
_WIDE = torch.cat([torch.linspace(-11.7, 13.4, 36).double(), row(1e-3, 30.0, 150.0)])
_SMALL = row(-8.0, -2.5, -1.0, -0.3, 0.2, 1.0, 2.0, 2.1, 6.0, 25.0)


def _functions():
    cases = {}
    for name in ("i0", "special_i0e", "special_i1", "special_i1e", "special_erfcx", "special_modified_bessel_i0",
                 "special_modified_bessel_i1"):  # fmt: skip
        cases[f"{name}.default"] = [(_SMALL,)]
    for name in "bessel_j0 bessel_j1 bessel_y0 bessel_y1 spherical_bessel_j0 airy_ai".split():
        cases[f"special_{name}.default"] = [(_WIDE,), (_ENDS,)]
    for name in "k0 k1".split():
        for kind in ("", "scaled_"):
            cases[f"special_{kind}modified_bessel_{name}.default"] = [(_SMALL,), (row(0.0, NAN, 500.0),)]
    for name in "lgamma digamma".split():
        cases[f"{name}.default"] = [(_WIDE,), (row(0.1, 0.5, 1.0, 2.0, 1e5, -0.5),), (ints(4, low=1),)]
    cases["lgamma.default"] += [(row(0.0, -1.0, INF, -INF, 1e300, NAN),)]
    cases["polygamma.default"] = [(n, _WIDE[::3]) for n in range(5)]
    cases["erfinv.default"] = [(row(-1.0, -0.99, -0.5, 0.0, 0.3, 0.7, 0.71, 0.9999, 1.0, 1.5, NAN),)]
    cases["special_ndtri.default"] = [(row(0.0, 1e-200, 1e-20, 0.1, 0.14, 0.5, 0.8, 0.99, 1.0, 2.0, -1.0),)]
    return cases


_A, _B = t(3, 3), t(2, 4, 4)
_PACKED, _PIVOTS, _ = aten.linalg_lu_factor_ex(_B)
_TALL = t(2, 5, 3)
_SEQUENCE = torch.sort(t(2, 6))[0]
ALGEBRA = {
    "linalg_lu.default": [(_A,), (_B,), (_TALL,), (t(3, 5),), (t(0, 3, 3),), (t(2, 0, 0),)],
    "linalg_inv_ex.default": [(_A,), (_B,)],
    "_linalg_solve_ex.default": [(_A, t(3)), (_B, t(2, 4, 3)), (_B, t(2, 4)), (_B, t(2, 3, 4), {"left": False})],
    "linalg_solve_triangular.default": [
        (_B, t(2, 4, 3), {"upper": True}), (_A, t(2, 3, 2), {"upper": False, "unitriangular": True}),
        (_A, t(2, 3), {"upper": False, "left": False}),
    ],
    "triangular_solve.default": [(t(3, 2), _A, True, True, False), (t(3, 2), _A, False, False, True)],
    "linalg_lu_solve.default": [
        (_PACKED, _PIVOTS, t(2, 4, 3) if left else t(2, 3, 4), {"left": left, "adjoint": adjoint})
        for left in (True, False) for adjoint in (True, False)
    ],
    "linalg_cholesky_ex.default": [(_B @ _B.mT + torch.eye(4), {"upper": upper}) for upper in (True, False)],
    "linalg_householder_product.default": [torch.geqrf(_TALL)], "linalg_qr.default": [(_A,), (_B,), (_TALL,)],
}  # fmt: skip
UNDERIVED = {
    "digamma.default": [(row(0.0, -0.0, -1.0, -3.0, NAN),)],
    "linalg_lu_factor_ex.default": [(_B,), (row(0.0, 1.0, 0.0, 0.0).reshape(2, 2),)],
    "cholesky_inverse.default": [(torch.linalg.cholesky(_A @ _A.mT + torch.eye(3)),)],
    "cholesky_solve.default": [
        (t(3, 2), torch.linalg.cholesky(_A @ _A.mT + torch.eye(3), upper=upper), upper) for upper in (True, False)
    ],
    "logcumsumexp.default": [(row(-3.0, -1.7e308, 5.0, -INF, 2.0, 1e308), 0)],
}  # fmt: skip
COUNTING = {
    "searchsorted.Tensor": [
        (_SEQUENCE, t(2, 5), {"right": right}) for right in (True, False)
    ] + [(row(1.0, 2.0, 2.0, 3.0), row(2.0, 0.0, NAN, 9.0), {"out_int32": True}), (row(1.0, 2.0), row(2.0)[0])],
    "bucketize.Tensor": [(ints(3, 4), torch.tensor([-2, 0, 0, 3]), {"right": right}) for right in (True, False)],
    "histc.default": [(t(20), 5), (t(20), 4, -1, 1), (torch.full((3,), 2.0).double(), 3)],
    "histogram.bins_tensor": [
        (t(3, 7), row(-1.0, 0.0, 0.5, 2.0)), (t(9), row(-1.0, 0.0, 1.0), {"weight": t(9), "density": True}),
    ],
    "histogram.bin_ct": [(t(3, 7), 4), (t(9), 3, {"range": [-1.0, 2.0], "density": True})],
    "nanmedian.dim": [(row(3.0, NAN, 1.0, 2.0, NAN, NAN).reshape(2, 3), 1), (t(4, 5), 0, True)],
    "mode.default": [(torch.tensor([[3, 1, 3, 1, 2], [5, 4, 4, 4, 5]]), 1), (t(3, 4), 0, True)],
    "segment_reduce.default": [
        (t(6, 2), how, {"lengths": torch.tensor([2, 0, 3, 1]), "unsafe": False, "initial": initial})
        for how in ("sum", "mean", "max", "min", "prod") for initial in (None, 1.5)
    ] + [(t(5), "max", {"offsets": torch.tensor([0, 3, 5])})],
    "nonzero_static.default": [(ints(3, 4, low=0, high=2), {"size": 4}), (row(0.0, 2.0), {"size": 3, "fill_value": 7})],
    "take.default": [(t(3, 4), torch.tensor([[0, -1], [5, 11]]))],
    "index_reduce.default": [
        (t(3, 4), 0, torch.tensor([2, 0, 2]), t(3, 4), how, {"include_self": own})
        for how in ("prod", "mean", "amax", "amin") for own in (True, False)
    ],
    "as_strided_scatter.default": [(t(3, 4), t(2, 2), [2, 2], [4, 1], 1)],
    "linspace.Tensor_Scalar": [
        (row(0.3)[0], 2.0, 7, {"dtype": torch.float64}), (torch.tensor(3), -9, 5, {"dtype": torch.int64}),
    ],
    "grid_sampler_3d.default": [
        (t(1, 2, 3, 4, 3), torch.rand(1, 2, 2, 3, 3).double() * 3 - 1.5, mode, padding, True)
        for mode in (0, 1) for padding in (0, 1, 2)
    ],
    "soft_margin_loss_backward.default": [(t(3), t(3) * 9, row(1.0, -1.0, 1.0), k) for k in (0, 1)],
}  # fmt: skip
INTEGERS = {
    "bitwise_left_shift.Tensor": [
        (torch.tensor([1, -3, 5, 7, 1, 3]), torch.tensor([62, 2, 63, 64, -1, 0])),
        (ints(4, dtype=torch.int32), torch.tensor([31, 32, 4, 0], dtype=torch.int32)),
    ],
    "bitwise_right_shift.Tensor": [
        (torch.tensor([-1, -7, 2**62, 5, -5, 9]), torch.tensor([63, 1, 61, 64, -1, 0])),
        (ints(4, dtype=torch.int32), torch.tensor([31, 32, 1, 0], dtype=torch.int32)),
    ],
    "gcd.default": [(torch.tensor([12, -18, 0, 0, 7540113804746346429]),
                     torch.tensor([18, 12, -5, 0, 4660046610375530309]))],
    "lcm.default": [(torch.tensor([12, -18, 0, 7]), torch.tensor([18, 12, -5, -7]))],
    "max_pool2d_with_indices.default": [(ints(1, 2, 4, 5), [2, 2], [2, 1], [1, 1])],
    "addbmm.default": [(ints(4), ints(2, 2, 3), ints(2, 3, 4), {"beta": 2.0, "alpha": 3.0})],
    "angle.default": [(row(1.0, -1.0, NAN, 0.0),), (ints(4),)],
    "index_add.default": [(ints(4) > 0, 0, torch.tensor([0, 0, 3]), ints(3) > 0, {"alpha": True})],
}  # fmt: skip
VALUES = UNDERIVED | INTEGERS | {"as_strided_scatter.default": COUNTING.pop("as_strided_scatter.default")}
FUNCTIONS = _functions()


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", ALGEBRA | COUNTING)
def test_values_and_derivatives_are_pytorchs(name):
    for arguments in (ALGEBRA | COUNTING)[name]:
        check(name, arguments)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", VALUES)
def test_values_are_pytorchs(name):
    for arguments in VALUES[name]:
        check(name, arguments, gradients=False)


ROUGH = {f"special_{name}.default" for name in "bessel_j0 bessel_j1 bessel_y0 bessel_y1 airy_ai".split()}
"""PyTorch's are up to 5e-6 away from the functions: `test_expansions.py` compares these with the functions as well."""


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_pytorchs(name):
    for arguments in FUNCTIONS[name]:
        check(name, arguments, rtol=1e-4 if name in ROUGH else 1e-7)


@pytest.mark.parametrize("count", [4, 5, 9])
def test_the_gradient_of_masked_scatter(count):
    grad, mask = t(3, 4), special().reshape(3, 4) > 0
    wanted = torch.cat([grad[mask], torch.zeros(9).double()])[:count]

    def f(g):
        return TABLE["masked_scatter_backward.default"].run(as_value(g), as_value(mask.numpy()), [count])

    np.testing.assert_allclose(es.interpret(f)(grad.numpy()), wanted)
