"""Shifts of bits as PyTorch has them: all integer types, counts that are no place of a bit, numbers, in place; numbers
that are no elements of a type, in other functions of integers."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from einsmith.base.errors import DtypeError
from einsmith.frontends.aten import TABLE
from einsmith.tracing.builder import Value

torch = pytest.importorskip("torch", reason="its operators are compared with")
from tests.frontends.compile_samples import compare  # noqa: E402
from tests.frontends.test_aten import check  # noqa: E402
from tests.lang.common import value  # noqa: E402

TYPES = ("uint8", "int8", "int16", "int32", "int64")
COUNTS = (-300, -129, -1, 0, 1, 6, 7, 8, 15, 16, 31, 32, 33, 62, 63, 64, 100, 255, 256, 257, 300, 1 << 40)
NUMBERS = ("__lshift__.Scalar", "__rshift__.Scalar", "bitwise_left_shift.Tensor_Scalar",
           "bitwise_right_shift.Tensor_Scalar")  # fmt: skip
TENSORS = ("__lshift__.Tensor", "__rshift__.Tensor", "bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor")
OF_NUMBERS = ("bitwise_left_shift.Scalar_Tensor", "bitwise_right_shift.Scalar_Tensor")


def elements(rng: np.random.Generator, dtype: str) -> torch.Tensor:
    info = np.iinfo(dtype)
    ends = [info.min, info.min + 1, info.max, 0, 1, 5]
    return torch.from_numpy(np.concatenate([ends, rng.integers(info.min, info.max, 9)]).astype(dtype))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", NUMBERS)
def test_by_numbers(name, dtype, rng):
    """Which wrap in the type of the elements: 257 is 1 among bytes."""
    for n in COUNTS:
        check(name, (elements(rng, dtype), n), gradients=False)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", TENSORS)
def test_by_tensors(name, dtype, rng):
    info = np.iinfo(dtype)
    counts = torch.tensor([n for n in COUNTS if info.min <= n <= info.max], dtype=getattr(torch, dtype))
    check(name, (elements(rng, dtype)[:, None], counts), gradients=False)
    check(name, (elements(rng, dtype)[:, None], torch.tensor([-1, 0, 3, 31, 63, 64])), gradients=False)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_of_numbers(name, dtype, rng):
    for x in (3, -1, 300, -(1 << 31)):
        check(name, (x, torch.arange(9).to(getattr(torch, dtype))), gradients=False)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "remainder", "eq", "lt", "ge"])
def test_numbers_wrap_in_arithmetic_and_comparisons(name, dtype, rng):
    for n in (-300, -1, 7, 255, 256, 257, 300, (1 << 40) + 1):
        if name != "remainder" or int(np.array(n).astype(dtype)):
            check(f"{name}.Scalar", (elements(rng, dtype), n), gradients=False)


@pytest.mark.parametrize("name", [*NUMBERS, *TENSORS])
def test_floats_are_refused(name):
    x: Value = value(3)
    with pytest.raises(DtypeError, match="integers are needed, not f32"):
        TABLE[name].run(x, 2 if "Scalar" in name else x)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("dtype", TYPES)
def test_none_runs_in_pytorch(dtype, rng):
    """`<<` and `>>` of tensors by tensors and numbers, and what they do in place."""
    x, by = elements(rng, dtype)[:5], torch.tensor([1, 0, 2, 7, 8], dtype=getattr(torch, dtype))

    def in_place(x, by):
        out = x.clone()
        out <<= by
        out >>= 1
        return out.__ilshift__(2)

    for f in (operator.lshift, operator.rshift, in_place):
        assert compare(f, [x, by], gradients=False) == []
    for f in (operator.lshift, operator.rshift):
        assert compare(lambda x, f=f: f(x, 3), [x], gradients=False) == []
