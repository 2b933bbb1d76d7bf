"""The table of PyTorch's operators: all of the core set has a formula, is decomposed or has a reason, and formulas give
PyTorch's values and derivatives on awkward data, by the reference evaluator. `test_aten_op_db.py` and
`compile_samples.py` take PyTorch's own samples, `tests/operators` operators that `einsmith.functional` has as well."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.frontends.aten import REFUSED, TABLE
from einsmith.tracing.builder import as_value

torch = pytest.importorskip("torch", reason="its operators are compared with")
from einsmith.frontends.torch_decompositions import decompositions  # noqa: E402
from einsmith.frontends.torch_nodes import operator_name  # noqa: E402
from tests.frontends.aten_samples import compare  # noqa: E402

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")


def overload(name: str) -> Any:
    base, _, which = name.partition(".")
    return getattr(getattr(aten, base), which)


def core_set() -> list[str]:
    """The operators that PyTorch calls core, of all that are registered; torch.ops.aten lists those that were used."""
    registered = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    names = [n.removeprefix("aten::") if "." in n else f"{n.removeprefix('aten::')}.default" for n in registered]
    return [n for n in names if torch.Tag.core in overload(n).tags]


def test_all_of_the_core_set_is_there_is_decomposed_or_is_refused_with_a_reason():
    assert len(core := core_set()) > 150
    apart = {operator_name(op) for op in decompositions()}
    assert [n for n in core if n not in TABLE and n not in REFUSED and n not in apart] == []
    assert not TABLE.keys() & (REFUSED.keys() | apart)


DECOMPOSABLE = {
    "one formula and its derivative, instead of gathers by computed places": """affine_grid_generator col2im im2col
        embedding_dense_backward reflection_pad1d reflection_pad2d reflection_pad3d reflection_pad1d_backward
        reflection_pad2d_backward reflection_pad3d_backward replication_pad1d replication_pad2d replication_pad3d roll
        _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec _upsample_nearest_exact3d.vec upsample_bicubic2d.vec
        upsample_linear1d.vec upsample_nearest1d.vec upsample_nearest3d.vec upsample_trilinear3d.vec""",
    "kernels of their own": """avg_pool1d adaptive_max_pool1d max_pool1d max_pool1d_with_indices max_pool2d max_pool3d
        dot vdot mv baddbmm scaled_dot_product_attention _safe_softmax logsumexp tril triu gru.input lstm.input
        rnn_tanh.input rnn_relu.input""",
    "digits, rounding once, or NaN": """logaddexp logaddexp2 mish silu sinc softplus softshrink threshold
        threshold_backward huber_loss mse_loss smooth_l1_loss smooth_l1_loss_backward soft_margin_loss_backward
        linspace linspace.Scalar_Tensor linspace.Tensor_Scalar linspace.Tensor_Tensor frac square isfinite""",
    "derivatives where parts have none": """std.correction std_mean.correction detach multilabel_margin_loss_forward
        special_log_ndtr""",
    "indices are checked": "index_add index_copy index_fill.int_Scalar index_fill.int_Tensor take",
    "as simple": "all all.dim all.dims bernoulli empty_like new_empty sym_size.int",
}
"""Why entries are in the table although PyTorch decomposes the operators for compilers."""


def test_operators_that_could_be_decomposed_are_there_for_a_reason():
    core = {operator_name(op) for op in torch._decomp.core_aten_decompositions()}
    listed = [n if "." in n else f"{n}.default" for names in DECOMPOSABLE.values() for n in names.split()]
    assert sorted(core & TABLE.keys()) == sorted(listed)


def test_names_and_arguments_are_those_of_pytorchs_schemas():
    """Every entry takes as many arguments by position as its schema has, and those that are passed by name."""
    for name, entry in TABLE.items():
        if "." not in name or "::" in name:
            continue
        taken = inspect.signature(entry.run).parameters.values()
        several = any(p.kind is p.VAR_POSITIONAL for p in taken)
        names = [p.name for p in taken]
        places = ("device", "layout", "pin_memory", "memory_format", "generator", "non_blocking")
        schema = [a for a in overload(name)._schema.arguments if a.name not in places]
        positional = [a for a in schema if not a.kwarg_only]
        assert several or len(names) >= len(positional), name
        assert [a.name for a in schema if a.kwarg_only and a.name not in names] == [], name
        assert entry.formula, name


def t(*shape: int, low: float | None = None, high: float = 2.0) -> Any:
    """Random float64, evenly from [low, high) where given."""
    return torch.randn(shape, dtype=torch.float64) if low is None else torch.rand(shape).double() * (high - low) + low


def ints(*shape: int, low: int = -5, high: int = 6, dtype: Any = None) -> Any:
    return torch.randint(low, high, shape).to(dtype or torch.int64)


def bools(*shape: int) -> Any:
    return torch.rand(shape) > 0.5


def row(*numbers: float) -> Any:
    return torch.tensor(numbers, dtype=torch.float64)


SPECIAL = row(NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, -0.5, 3.5)
ENDS = row(0.0, -0.0, INF, -INF, NAN, 1e-9, -1e9, 1e200)
SERIES = ("i0 special_i0e special_erfcx special_ndtri special_bessel_j0 special_bessel_y1 special_modified_bessel_k0 "
          "special_airy_ai special_log_ndtr").split()  # fmt: skip
WIDE = (SPECIAL.view(-1, 1), SPECIAL)
WHOLE = (ints(9), torch.tensor([3, -3, 2, -2, 7, 1, -1, 5, 4]))
MIXED = [(t(3), torch.tensor(2)), (ints(3, dtype=torch.int32), t()), (ints(3, dtype=torch.int32), torch.tensor(1.5)),
         (ints(4, dtype=torch.uint8), ints(4, dtype=torch.int8)), (bools(5), bools(5)), (t(2), 3)]  # fmt: skip


def _pointwise() -> dict[str, list[tuple]]:
    """Special values, mixed types, and integers that floats have to represent."""
    cases: dict[str, list[tuple]] = {}
    for name in ("log log1p log2 log10 sqrt rsqrt reciprocal floor ceil trunc round sign atan asinh isnan isinf "
                 "isfinite signbit logical_not nan_to_num elu leaky_relu").split() + SERIES:  # fmt: skip
        cases[f"{name}.default"] = [(SPECIAL,), (ENDS,)]
    for name in "acos asin atanh erfinv".split():
        cases[f"{name}.default"] = [(row(-1.5, -1.0, 0.0, 0.5, 1.0, 2.0, NAN),)]
    for name in "exp sin cos tan tanh sigmoid erf abs neg relu".split():
        cases[f"{name}.default"] = [(ints(4),)]
    for name in "add sub mul".split():
        cases[f"{name}.Tensor"] = MIXED[: 5 if name != "sub" else 4] + MIXED[5:]
    cases["add.Tensor"] += [(t(3), t(3), {"alpha": 2.5}), (ints(3), ints(3), {"alpha": -2})]
    cases["mul.Tensor"] += [(bools(5), 2.5), (ints(5), True)]
    cases["rsub.Scalar"] = [(t(3), 2.0, 3.0), (ints(3), 2)]
    cases["div.Tensor"] = [WHOLE, (ints(3), 2.5), (SPECIAL, t(12))]
    tenths = row(0.3, 6.0, -6.0), row(0.1, 0.2, 0.3)  # floor(a/b) is wrong where a/b rounds up
    cases["div.Tensor_mode"] = [
        (*pair, {"rounding_mode": mode}) for mode in ("floor", "trunc") for pair in (WHOLE, WIDE, tenths)
    ]
    for name in "remainder fmod".split():
        cases[f"{name}.Tensor"] = [WHOLE]
        cases[f"{name}.Scalar"] = [(t(5), -0.7), (ints(5), -3)]
    cases["pow.Tensor_Scalar"] = [(t(4), 0), (ints(5), 3), (ints(5), 2.0), (row(0.0, -2.0), 3)]
    cases["pow.Tensor_Tensor"] = [(torch.tensor([1, -1, 2, -1]), torch.tensor([-3, -3, -1, -2]))]
    cases["pow.Scalar"] = [(3, ints(4, low=0))]
    cases["atan2.default"] = [(row(0.0, 0.0, 1.0, -1.0, 2.0, INF, -INF), row(1.0, -1.0, 0.0, 0.0, 1e-9, INF, INF))]
    for name in "maximum minimum fmax fmin".split():
        cases[f"{name}.default"] = [WIDE, (ints(5), ints(5)), (row(0.0, 1.0, 2.0), torch.ones(3).double())]
    for name in "eq ne lt le gt ge".split():
        cases[f"{name}.Tensor"] = [WIDE, (ints(5), t(5)), (bools(5), bools(5))]
        cases[f"{name}.Scalar"] = [(SPECIAL, 1), (ints(5), 0.5)]
    for name in "and or xor".split():
        cases[f"bitwise_{name}.Tensor"] = [(ints(5, dtype=torch.int8), ints(5, dtype=torch.int32))]
        cases[f"bitwise_{name}.Scalar"] = [(ints(9, low=-(2**62), high=2**62), 77)]
    cases["bitwise_not.default"] = [(bools(5),), (ints(5, low=0, dtype=torch.uint8),)]
    cases["clamp.default"] = [(ints(9), -1.5, None), (row(-1.0, 1.0, NAN), -1, 1)]
    cases["clamp.Tensor"] = [(t(3, 4), t(4), t(3, 1)), (t(4), row(NAN, 0, 1, 2), None)]
    cases["where.self"] = [(bools(3), ints(3), t(3))]
    cases["masked_fill.Scalar"] = [(ints(3), bools(3), 2)]
    cases["angle.default"] = [(row(1.0, -1.0, NAN, 0.0),), (ints(4),)]
    cases["round.decimals"] = [(t(9) * 1000, {"decimals": -2})]
    cases["_to_copy.default"] = [(SPECIAL[3:], {"dtype": torch.int32}), (SPECIAL, {"dtype": torch.bool})]
    return cases


AWKWARD = _pointwise() | {
    "lgamma.default": [(row(0.0, -1.0, INF, -INF, 1e300, NAN),), (ints(4, low=1),)],
    "digamma.default": [(ints(4, low=1),)],
    "sum.default": [(bools(5),), (ints(3, dtype=torch.int32),), (t(),)], "sum.dim_IntList": [(t(3), []), (t(), [0])],
    "mean.dim": [(t(3, 4), None), (t(3, 0), [1]), (t(), [-1])],
    "amax.default": [(row(1.0, 1.0, NAN, 0.0).view(2, 2), [1], True), (ints(4), [])],
    "amin.default": [(row(2.0, 1.0, 1.0), [0]), (bools(4), [0])], "any.dim": [(SPECIAL, 0)],
    "any.dims": [(bools(3, 4), [0, 1])], "all.default": [(SPECIAL,)],
    "max.dim": [(row(1.0, 3.0, 3.0), 0, True), (bools(4), 0), (t(), 0)], "min.dim": [(row(2.0, NAN, 1.0), 0)],
    "max.default": [(row(1.0, 3.0, 3.0),), (bools(3),), (t(),)], "min.default": [(ints(5),)],
    "argmax.default": [(t(3, 4), None, True), (t(),)], "argmin.default": [(torch.tensor([2, 1, 1]), 0)],
    "prod.default": [(row(2.0, 0.0, 3.0),), (ints(3),), (t(),)], "prod.dim_int": [(bools(3), 0), (t(), 0)],
    "linalg_vector_norm.default": [(t(3, 4), p, [1]) for p in (0, INF, -INF, 0.5)] + [(t(), 0)],
    "cumsum.default": [(ints(4, dtype=torch.int32), 0), (bools(4), 0), (t(), 0)],
    "cummax.default": [(row(1.0, 3.0, 3.0, 2.0), 0), (ints(3, dtype=torch.int32), 0), (t(), 0)],
    "logcumsumexp.default": [(row(-3.0, -1.7e308, 5.0, -INF, 2.0, 1e308), 0)],
    "sort.default": [(row(2.0, NAN, 1.0), 0, True), (bools(4),)], "kthvalue.default": [(t(5), 5, 0, True)],
    "median.dim": [(ints(5, dtype=torch.int32), 0)], "topk.default": [(torch.tensor([3, 1, 2], dtype=torch.int32), 2)],
    "nanmedian.dim": [(row(3.0, NAN, 1.0, 2.0, NAN, NAN).view(2, 3), 1)],
    "hardtanh.default": [(row(-1.0, 1.0, 0.3, 3.0),), (ints(9), -2, 2)],
    "mode.default": [(torch.tensor([[3, 1, 3, 1, 2], [5, 4, 4, 4, 5]]), 1)],
    "searchsorted.Tensor": [(row(1.0, 2.0, 2.0, 3.0), row(2.0, 0.0, NAN, 9.0), {"out_int32": True})],
    "histc.default": [(torch.full((3,), 2.0).double(), 3)], "histogram.bin_ct": [(t(9), 3, {"density": True})],
    "_softmax.default": [(t(), 0, False)], "_safe_softmax.default": [(row(-INF, -INF, 0.3, -INF).view(2, 2), -1)],
    "slice.Tensor": [(t(9, 2), 0, -4, 99, 2), (t(5), 0, None, -1)],
    "cat.default": [([t(2), ints(2)],), ([t(0), t(2, 3)], 1)], "copy.default": [(ints(2, 3), t(3))],
    "squeeze.dims": [(t(1, 3), []), (t(1, 3, 1), [0, 1])], "permute.default": [(t(), [])],
    "constant_pad_nd.default": [(t(2, 3), [1, 2, -1, 1], 2.5), (bools(3), [1, 0], True)],
    "index_put.default": [(t(4, 3), [torch.tensor([0, -1])], t(2, 3)), (t(3, 4), [bools(3, 4)], t())],
    "index_add.default": [(ints(4) > 0, 0, torch.tensor([0, 0, 3]), ints(3) > 0, {"alpha": True})],
    "linalg_lu.default": [(t(3, 3),), (t(2, 3, 5),), (t(0, 3, 3),), (t(2, 0, 0),)],
    "linalg_lu_factor_ex.default": [(row(0.0, 1.0, 0.0, 0.0).view(2, 2),)],
    "max_pool2d_with_indices.default": [(ints(1, 2, 4, 5), [2, 2], [2, 1], [1, 1])], "mm.default": [(t(2, 0), t(0, 4))],
    "gcd.default": [(torch.tensor([12, -18, 0, 7540113804746346429]), torch.tensor([18, 12, 0, 4660046610375530309]))],
    "linspace.Tensor_Scalar": [(row(0.3)[0], 2.0, 7, {"dtype": torch.float64}),
                               (torch.tensor(3), -9, 5, {"dtype": torch.int64})],
    "full.default": [([2, 3], 2.5), ([2], True), ([], 3)], "full_like.default": [(ints(3), 2)],
    "fill.Scalar": [(t(3), 2)], "scalar_tensor.default": [(2.5, {"dtype": torch.float64}), (3,)],
    "arange.start_step": [(1, 9, 3), (0.5, 3.0, 0.5), (5, -2, -2), (0, 4, 1, {"dtype": torch.float64})],
    "eye.m": [(2, 3)], "zeros.default": [([2],)], "ones_like.default": [(ints(3),)],
}  # fmt: skip
"""Calls that PyTorch's own samples do not have: special values, equal elements, mixed types, and creation."""
VALUES_ALONE = {"logcumsumexp.default", *(f"{name}.default" for name in SERIES)}
"""Where PyTorch's derivatives of special values differ from the limits."""
INEXACT = {f"special_{name}.default" for name in ("bessel_j0", "bessel_y1", "airy_ai")}
"""PyTorch's are up to 5e-6 away from the functions: `test_expansions.py` compares these with the functions as well."""


def check(name: str, arguments: tuple, gradients: bool = True, rtol: float = 1e-9) -> None:
    """A call of an operator, by the table and by PyTorch."""
    kwargs = arguments[-1] if arguments and isinstance(arguments[-1], dict) else {}
    leaves, structure = torch.utils._pytree.tree_flatten(arguments[: len(arguments) - bool(kwargs)])
    at = [n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def call(*tensors):
        given = dict(zip(at, tensors, strict=True))
        args = torch.utils._pytree.tree_unflatten([given.get(n, x) for n, x in enumerate(leaves)], structure)
        return overload(name)(*args, **kwargs)

    compare(call, [leaves[n] for n in at], gradients, rtol)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", AWKWARD)
def test_values_and_derivatives_are_pytorchs(name):
    for case, arguments in enumerate(AWKWARD[name]):
        try:
            check(name, arguments, name not in VALUES_ALONE, 1e-3 if name in INEXACT else 1e-7)
        except AssertionError as e:
            raise AssertionError(f"{name}, case {case}: {e}") from None


@pytest.mark.parametrize("count", [4, 5, 9])
def test_the_gradient_of_masked_scatter(count):
    grad, mask = t(3, 4), SPECIAL.reshape(3, 4) > 0
    wanted = torch.cat([grad[mask], torch.zeros(9).double()])[:count]

    def f(g):
        return TABLE["masked_scatter_backward.default"].run(as_value(g), as_value(mask.numpy()), [count])

    np.testing.assert_allclose(es.interpret(f)(grad.numpy()), wanted)
