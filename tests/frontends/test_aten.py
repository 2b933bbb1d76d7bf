"""The table of PyTorch's operators: all of the core set has a formula or a reason, and formulas give PyTorch's values
and derivatives, by the reference evaluator. `tests/operators` has operators that `einsmith.functional` has as well."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest

from einsmith.frontends.aten import REFUSED, TABLE

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


def special() -> Any:
    return torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, -0.5, 3.5], dtype=torch.float64)


def _unary() -> dict[str, list[tuple]]:
    cases: dict[str, list[tuple]] = {}
    for name in ("exp expm1 exp2 sin cos tan sinh cosh tanh sigmoid erf erfc atan asinh floor ceil trunc round "
                 "neg abs sign sgn relu").split():  # fmt: skip
        cases[f"{name}.default"] = [(t(),), (ints(4),)]
    for name in "log log1p log2 log10 sqrt rsqrt reciprocal".split():
        cases[f"{name}.default"] = [(ints(4, low=1),), (special(),)]
    for name in "acos asin atanh acosh".split():
        cases[f"{name}.default"] = [(torch.tensor([1.0, 0.5, 2.0, NAN]).double(),)]
    for name in "floor ceil trunc round sign atan asinh isnan isinf isfinite signbit logical_not".split():
        cases.setdefault(f"{name}.default", []).append((special(),))
    cases["atan.default"].append((torch.tensor([0.0, 1.0, -1.0, 1e-9, 1e9, -1e300, 0.66]).double(),))
    cases["asinh.default"].append((torch.tensor([0.0, 1e-9, -1e9, 1e200]).double(),))
    return cases


def _binary() -> dict[str, list[tuple]]:
    pairs = [(t(3, 1), t(4)), (t(3), torch.tensor(2, dtype=torch.int64)), (ints(3, dtype=torch.int32), t()),
             (ints(3, dtype=torch.int32), torch.tensor(1.5))]  # fmt: skip
    cases: dict[str, list[tuple]] = {}
    for name in "add sub mul".split():
        cases[f"{name}.Tensor"] = [
            *pairs,
            (ints(4, dtype=torch.uint8), ints(4, dtype=torch.int8)),
            (
                t(2),
                3,
            ),
        ]
    cases["add.Tensor"] += [(bools(5), bools(5)), (t(3), t(3), {"alpha": 2.5}), (ints(3), ints(3), {"alpha": -2})]
    cases["mul.Tensor"] += [(bools(5), bools(5)), (bools(5), t(5)), (bools(5), 2.5), (ints(5), True)]
    cases["rsub.Scalar"] = [(t(3), 2.0, 3.0), (ints(3), 2)]
    cases["div.Tensor"] = [(t(3), t(3)), (ints(3), ints(3, low=1)), (ints(3), 2.5), (special(), t(12))]
    wide = (special().view(-1, 1), special())
    for mode in (None, "floor", "trunc"):
        more = {"rounding_mode": mode}
        cases.setdefault("div.Tensor_mode", []).extend(
            [(t(9), t(9), more), (ints(9), torch.tensor([3, -3, 2, -2, 7, 1, -1, 5, 4]), more), (*wide, more),
             (torch.tensor([0.3, 6.0, -6.0]).double(), torch.tensor([0.1, 0.2, 0.3]).double(), more)])  # fmt: skip
    for name in "remainder fmod".split():
        cases[f"{name}.Tensor"] = [(t(9), t(9)), (ints(9), torch.tensor([3, -3, 2, -2, 7, 1, -1, 5, 4]))]
        cases[f"{name}.Scalar"] = [(t(5), 0.7), (t(5), -0.7), (ints(5), -3)]
    cases["pow.Tensor_Scalar"] = [(t(4), k) for k in (2, 3.0, 0, 1)] + [(t(4, low=0.5), e) for e in (-1, 0.5, 2.5)]
    cases["pow.Tensor_Scalar"] += [(ints(5), 3), (ints(5), 2.0), (torch.tensor([0.0, -2.0]).double(), 3)]
    cases["pow.Tensor_Tensor"] = [(t(4, low=0.5), t(4)), (ints(6), ints(6, low=0)), (torch.tensor([1, -1, 2, -1]),
                                   torch.tensor([-3, -3, -1, -2]))]  # fmt: skip
    cases["pow.Scalar"] = [(2.0, t(4)), (3, ints(4, low=0))]
    cases["atan2.default"] = [(torch.tensor([0.0, 0.0, 1.0, -1.0, 2.0, INF, -INF]).double(),
                               torch.tensor([1.0, -1.0, 0.0, 0.0, 1e-9, INF, INF]).double())]  # fmt: skip
    for name in "maximum minimum fmax fmin".split():
        cases[f"{name}.default"] = [(t(5), t(5)), wide, (ints(5), ints(5)), (t(3), torch.ones(3).double())]
    for name in "eq ne lt le gt ge".split():
        cases[f"{name}.Tensor"] = [wide, (ints(5), t(5)), (bools(5), bools(5))]
        cases[f"{name}.Scalar"] = [(special(), 1), (ints(5), 0.5)]
    for name in "and or xor".split():
        cases[f"logical_{name}.default"] = [(t(3), bools(3)), (ints(4, low=0, high=2), ints(4, low=0, high=2))]
        cases[f"bitwise_{name}.Tensor"] = [(ints(9, low=-99, high=99), ints(9, low=-99, high=99)), (bools(4), bools(4)),
                                           (ints(5, dtype=torch.int8), ints(5, dtype=torch.int32))]  # fmt: skip
        cases[f"bitwise_{name}.Scalar"] = [(ints(9, low=-(2**62), high=2**62), 77)]
    cases["bitwise_not.default"] = [(ints(5),), (bools(5),), (ints(5, low=0, dtype=torch.uint8),)]
    for name in "copysign hypot heaviside".split():
        which = "Tensor" if name == "copysign" else "default"
        cases[f"{name}.{which}"] = [(t(5), t(5))]
    cases["clamp.default"] = [(t(9), -0.5, 0.5), (t(9), None, 0.1), (ints(9), -2, 2), (ints(9), -1.5, None),
                              (torch.tensor([-1.0, 1.0, NAN]).double(), -1, 1)]  # fmt: skip
    cases["clamp.Tensor"] = [(t(3, 4), t(4), t(3, 1)), (t(4), torch.tensor([NAN, 0, 1, 2]).double(), None)]
    cases["where.self"] = [(bools(3, 4), t(4), t(3, 1)), (bools(3), ints(3), t(3))]
    cases["masked_fill.Scalar"] = [(t(3, 4), bools(4), 2.5), (ints(3), bools(3), 2)]
    cases["_to_copy.default"] = [(special()[3:], {"dtype": torch.int32}), (special(), {"dtype": torch.bool}),
                                 (bools(4), {"dtype": torch.float64})]  # fmt: skip
    return cases


POINTWISE = _unary() | _binary() | {
    "elu.default": [(t(9),), (t(9), 1.3, 0.7, 2.0), (special(),)],
    "leaky_relu.default": [(special(), 0.2)],
    "hardtanh.default": [(torch.tensor([-1.0, 1.0, 0.3, 3.0]).double(),), (ints(9), -2, 2)],
    "nan_to_num.default": [(special(),), (special(), 1.0, 2.0, 3.0)],
    "round.decimals": [(t(9), {"decimals": 2}), (t(9) * 1000, {"decimals": -2})],
}  # fmt: skip

REDUCTIONS = {
    "sum.default": [(t(3, 4),), (bools(5),), (ints(3, dtype=torch.int32),), (t(),)],
    "sum.dim_IntList": [(t(3, 4, 2), [0, -1]), (t(3, 4), [1], True), (t(3), []),
                        (ints(3), [0], {"dtype": torch.float64})],
    "mean.dim": [(t(3, 4, 2), [0, -1], True), (t(3, 4), None), (t(3, 0), [1])],
    "amax.default": [(t(3, 4), [0]), (torch.tensor([[1.0, 1.0], [NAN, 0.0]]).double(), [1], True), (ints(4), [])],
    "amin.default": [(t(3, 4), []), (torch.tensor([2.0, 1.0, 1.0]).double(), [0]), (bools(4), [0])],
    "any.dim": [(bools(3, 4), 1), (special(), 0)], "any.dims": [(bools(3, 4), [0, 1])], "any.default": [(ints(4),)],
    "all.dim": [(bools(3, 4), 1, True)], "all.default": [(special(),)],
    "max.dim": [(t(3, 4), 1), (torch.tensor([1.0, 3.0, 3.0]).double(), 0, True), (bools(4), 0), (t(), 0)],
    "min.dim": [(t(3, 4), -1), (torch.tensor([2.0, NAN, 1.0]).double(), 0)],
    "max.default": [(torch.tensor([1.0, 3.0, 3.0]).double(),)], "min.default": [(ints(5),)],
    "argmax.default": [(t(3, 4),), (t(3, 4), 0), (t(3, 4), 1, True), (t(3, 4), None, True), (t(),)],
    "argmin.default": [(torch.tensor([2, 1, 1]), 0), (t(3, 4), -2)],
    "prod.default": [(torch.tensor([2.0, 0.0, 3.0]).double(),), (ints(3),)],
    "prod.dim_int": [(t(3, 4), 1, True), (bools(3), 0)],
    "var.dim": [(t(3, 4), [1], False, True)],
    "linalg_vector_norm.default": [(t(3, 4), p, [1]) for p in (2, 1, 0, 3, INF, -INF, 0.5)] + [(t(), 0), (t(3, 4),)],
    "cumsum.default": [(t(3, 4), 1), (ints(4, dtype=torch.int32), 0), (bools(4), 0)],
    "cummax.default": [(torch.tensor([1.0, 3.0, 3.0, 2.0]).double(), 0)],
    "sort.default": [(torch.tensor([2.0, NAN, 1.0]).double(), 0, True), (bools(4),)],
    "kthvalue.default": [(t(3, 5), 2), (t(5), 5, 0, True)], "median.default": [(t(3, 5),)],
    "_softmax.default": [(t(), 0, False)],
    "_safe_softmax.default": [(torch.tensor([[-INF, -INF], [0.3, -INF]]).double(), -1)],
}  # fmt: skip

VIEWS = {
    "expand.default": [(t(), [3])], "unsqueeze.default": [(t(), 0)],
    "slice.Tensor": [(t(9, 2), 0, -4, 99, 2), (t(3, 5), -1, 3, 1), (t(5), 0, None, -1)],
    "cat.default": [([t(2), ints(2)],), ([t(0), t(2, 3)], 1)],
    "unfold.default": [(t(2, 7), 1, 3, 2)], "as_strided.default": [(t(12), [2, 3], [5, 2], 1)],
    "copy.default": [(ints(2, 3), t(3))],
    "slice_scatter.default": [(t(7, 2), t(3, 2), 0, 1, 99, 2)], "select_scatter.default": [(t(3, 4), t(3), 1, -1)],
    "constant_pad_nd.default": [(t(2, 3), [1, 2, -1, 1], 2.5), (bools(3), [1, 0], True)],
}  # fmt: skip

_K = torch.tensor([[0, 2, -1], [1, -3, 2]])
INDEXING = {
    "scatter.value": [(t(4, 3), 1, ints(4, 2, low=0, high=3), 2.5)],
    "scatter_reduce.two": [(t(3, 4), 0, ints(5, 3, low=0, high=3), t(5, 4), how, {"include_self": own})
                           for how in ("sum", "prod", "mean", "amax", "amin") for own in (True, False)],
    "index.Tensor": [(t(3, 4, 2), [_K]), (t(3, 4, 2), [None, _K]), (t(3, 4, 2), [_K, None, torch.tensor([1, 0, 1])]),
                     (t(3, 4, 2), [torch.tensor(1), torch.tensor(-1)]), (t(3, 3), [_K, torch.tensor([0, 1, 2])])],
    "index_put.default": [(t(4, 3), [torch.tensor([0, -1])], t(2, 3)), (t(4, 3), [_K], t(3), True),
                          (t(3, 4), [None, torch.tensor([0, 2])], t(3, 1)), (t(3, 4), [bools(3, 4)], t()),
                          (t(3, 3, 2), [_K, None, torch.tensor([1, 0, 1])], t(2, 3, 3), True)],
    "index_fill.int_Scalar": [(t(3, 4), 1, torch.tensor([0, -1]), 2.5)],
    "masked_scatter.default": [(t(3, 4), bools(3, 4), t(12))],
}  # fmt: skip

_IMAGE = t(2, 4, 7, 6)
LAYERS = {
    "mm.default": [(t(2, 0), t(0, 4))], "addbmm.default": [(t(4), t(2, 2, 3), t(2, 3, 4))],
    "max_pool2d_with_indices.default": [(_IMAGE, [3, 2], [2, 1], [1, 1], [1, 2], True), (_IMAGE, [2, 2])],
    "max_pool3d_with_indices.default": [(t(1, 2, 4, 5, 4), [2, 3, 2], [2, 2, 1])],
    "avg_pool2d.default": [(_IMAGE, [2, 2], [], [1, 1], False, True, 3)],
    "upsample_nearest2d.vec": [(_IMAGE, [9, 4], None), (_IMAGE, None, [1.5, 2.0])],
    "upsample_bilinear2d.vec": [(_IMAGE, [9, 4], True, None), (_IMAGE, None, False, [1.5, 2.0])],
    "upsample_bicubic2d.vec": [(_IMAGE, [9, 4], False, None)],
    "scaled_dot_product_attention.default": [
        (t(2, 2, 3, 4), t(2, 2, 5, 4), t(2, 2, 5, 3)), (t(2, 3, 4), t(2, 3, 4), t(2, 3, 4), None, 0.0, True),
        (t(2, 3, 4), t(2, 5, 4), t(2, 5, 4), bools(3, 5)), (t(2, 3, 4), t(2, 5, 4), t(2, 5, 4), t(2, 3, 5)),
    ],
    "nll_loss_forward.default": [(t(4, 3), torch.tensor([0, 2, -100, 1]), t(3, low=0.5), k, -100) for k in (0, 1, 2)],
    "_pdist_forward.default": [(t(4, 3), 2.0)],
}  # fmt: skip

FACTORIES = {
    "full.default": [([2, 3], 2.5), ([2], True), ([], 3)], "full_like.default": [(ints(3), 2), (t(3), 1)],
    "fill.Scalar": [(t(3), 2)], "scalar_tensor.default": [(2.5, {"dtype": torch.float64}), (3,)],
    "arange.start_step": [(1, 9, 3), (0.5, 3.0, 0.5), (5, -2, -2), (0, 4, 1, {"dtype": torch.float64})],
    "eye.m": [(2, 3)], "zeros.default": [([2],)], "ones_like.default": [(ints(3),)],
}  # fmt: skip

_GRID = torch.rand(2, 5, 3, 2).double() * 3 - 1.5
_MOMENTS = t(2, 1), t(2, 1, low=0.5)
OTHERS = {
    "grid_sampler_2d.default": [(t(2, 2, 4, 5), _GRID, mode, padding, corners) for mode in (0, 1, 2)
                                for padding in (0, 1, 2) for corners in (True, False)],
    "_adaptive_avg_pool2d_backward.default": [(t(2, 4, 3, 4), _IMAGE)],
    "avg_pool2d_backward.default": [(t(2, 4, 4, 5), _IMAGE, [3, 2], [2, 1], [1, 0], True, False, None)],
    "convolution_backward.default": [
        (t(2, 6, 4, 4), _IMAGE, t(6, 2, 3, 2), [6], [2, 1], [1, 0], [1, 2], False, [0, 0], 2, [True, True, True]),
        (t(1, 3, 5), t(1, 2, 3), t(2, 3, 3), [3], [1], [0], [1], True, [0], 1, [True, True, True]),
    ],
    "max_pool2d_with_indices_backward.default": [
        (t(2, 4, 3, 3), _IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], False,
         torch.nn.functional.max_pool2d(_IMAGE, 2, return_indices=True)[1])
    ],
    "embedding_dense_backward.default": [(t(2, 3, 4), ints(2, 3, low=0, high=5), 5, pad, False)
                                         for pad in (-1, 2)],
    "native_layer_norm_backward.default": [
        (t(2, 3), t(2, 3), [3], *_MOMENTS, t(3), t(3), [True] * 3), (t(2, 3), t(2, 3), [3], *_MOMENTS, None, None,
                                                                     [True, False, False]),
    ],
    "native_group_norm_backward.default": [
        (t(2, 4, 3), t(2, 4, 3), t(2, 2), t(2, 2, low=0.5), t(4), 2, 4, 3, 2, [True] * 3)
    ],
}  # fmt: skip

CASES = POINTWISE | REDUCTIONS | VIEWS | INDEXING | LAYERS | FACTORIES | OTHERS


def test_bags_of_rows_are_pytorchs():
    weight, indices, offsets = t(5, 3), ints(7, low=0, high=5), torch.tensor([0, 2, 2, 6])
    for mode in ("sum", "mean", "max"):
        compare(partial(_bags, mode), [weight, indices, offsets, *([t(7)] if mode == "sum" else [])])


def _bags(mode, weight, indices, offsets, *scales):
    more = scales[0] if scales else None
    return torch.nn.functional.embedding_bag(indices, weight, offsets, mode=mode, per_sample_weights=more)


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


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_are_pytorchs(name):
    for case, arguments in enumerate(CASES[name]):
        try:
            check(name, arguments)
        except AssertionError as e:
            raise AssertionError(f"{name}, case {case}: {e}") from None
