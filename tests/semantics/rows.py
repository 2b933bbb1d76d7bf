"""Values beside PyTorch's that are no derivatives: integers, casts, comparisons, empty tensors, denormals, sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import numpy as np

import einsmith as es
from einsmith.base.errors import EinsmithError

F = es.functional
LOW32, HIGH32 = -(2**31), 2**31 - 1
LOW64, HIGH64 = -(2**63), 2**63 - 1

EXACT = "the evaluator computes floats in float64, whatever their type"
ZERO_DIVISOR = "the result is 0 instead of an exception, as in NumPy"
FLUSHED = "denormal operands and results are flushed to zero"
REFUSED = "an error before anything runs"
EMPTY = "an error before anything runs: the result is undefined"
UNDEFINED = "undefined in C++, depends on the machine"


@dataclass(frozen=True)
class Row:
    """One expression on arrays. `peer` of torch gives PyTorch's function, or is what the document says of it. `reason`:
    why PyTorch's result is another, on purpose; `exact`: why the evaluator's is."""

    what: str
    ours: Any
    arrays: Sequence[np.ndarray]
    peer: Callable[[Any], Callable] | str
    reason: str = ""
    exact: str = ""

    def function(self) -> Callable:
        return es.op(self.ours) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Section:
    title: str
    text: str
    rows: Sequence[Row]
    signed: bool = False  # whether zeros are told apart


def _i32(*x: int) -> np.ndarray:
    return np.array(x, np.int32)


def _i64(*x: int) -> np.ndarray:
    return np.array(x, np.int64)


def _f32(*x: float) -> np.ndarray:
    return np.array(x, np.float32)


def _of(kind: type) -> Callable[..., np.ndarray]:
    return lambda *x: np.array(x, kind)


def _f64(*x: float) -> np.ndarray:
    return np.array(x, np.float64)


def _binary(fn: str) -> Callable[[Any], Callable]:
    return lambda torch: getattr(torch, fn)


_A, _B = (7, -7, 7, -7), (3, 3, -3, -3)
INTEGERS = [
    Row("x // y", "z[i] = x[i] // y[i]", (_i32(*_A), _i32(*_B)), _binary("floor_divide")),
    Row("x % y", "z[i] = x[i] % y[i]", (_i32(*_A), _i32(*_B)), _binary("remainder")),
    Row("x // 3", "z[i] = x[i] // 3", (_i64(*_A),), lambda torch: lambda x: x // 3),
    Row("x // -4", "z[i] = x[i] // -4", (_i64(*_A),), lambda torch: lambda x: x // -4),
    Row("x % 4", "z[i] = x[i] % 4", (_i32(*_A),), lambda torch: lambda x: x % 4),
    Row("x // y", "z[i] = x[i] // y[i]", (_i32(5, -5, 0), _i32(0, 0, 0)), _binary("floor_divide"), ZERO_DIVISOR),
    Row("x % y", "z[i] = x[i] % y[i]", (_i64(5, -5, 0), _i64(0, 0, 0)), _binary("remainder"), ZERO_DIVISOR),
    Row("x // 0", "z[i] = x[i] // 0", (_i32(5),), lambda torch: lambda x: x // 0, REFUSED),
    Row("x // y", "z[i] = x[i] // y[i]", (_i32(LOW32, LOW32), _i32(-1, 1)), _binary("floor_divide")),
    Row("x % y", "z[i] = x[i] % y[i]", (_i32(LOW32), _i32(-1)), _binary("remainder")),
    Row("x // -1", "z[i] = x[i] // -1", (_i64(LOW64, HIGH64),), lambda torch: lambda x: x // -1),
    Row("x % y", "z[i] = x[i] % y[i]", (_i64(LOW64), _i64(-1)), _binary("remainder")),
    Row("abs(x)", "z[i] = abs(x[i])", (_i32(LOW32),), _binary("abs")),
    Row("-x", "z[i] = -x[i]", (_i64(LOW64),), _binary("neg")),
    Row("x + x", "z[i] = x[i] + x[i]", (_i32(HIGH32, LOW32),), lambda torch: lambda x: x + x),
    Row("x*x", "z[i] = x[i]*x[i]", (_i32(65536, 46341),), lambda torch: lambda x: x * x),
    Row("sum[i](x[i])", "z[] = sum[i](x[i])", (_i32(HIGH32, HIGH32),), _binary("sum")),
    Row("prod[i](x[i])", "z[] = prod[i](x[i])", (_i32(HIGH32, 4),), _binary("prod")),
    Row("sum[i](x[i])", "z[] = sum[i](x[i])", (_i64(HIGH64, 1),), _binary("sum")),
    Row("mean[i](x[i])", "z[] = mean[i](x[i])", (_i32(1, 2),), lambda torch: torch.mean, "the result is a float"),
    Row("x/y", "z[i] = x[i]/y[i]", (_i32(7, 1, 0), _i32(2, 0, 0)), _binary("div")),
    Row("x**-2", "z[i] = x[i]**-2", (_i32(2, 0, 65536),), lambda torch: lambda x: x**-2, "the result is a float"),
    Row("relu(x)", "z[i] = relu(x[i])", (_i32(-3, 0, 3),), _binary("relu")),
    Row("sign(x)", "z[i] = sign(x[i])", (_i64(-3, 0, LOW64),), _binary("sign")),
    Row("floor(x)", "z[i] = floor(x[i])", (_i32(-3),), _binary("floor")),
    Row("sqrt(x)", "z[i] = sqrt(x[i])", (_i32(4, -4),), _binary("sqrt")),
    Row("x << 1", "z[i] = x[i] << 1", (_i32(1),), lambda torch: lambda x: x << 1,
        "the language has no shifts: write `x*2**n` and `x//2**n`"),
]  # fmt: skip

_WIDE = (1.5, -1.5, -0.0, 0.3)
_OUT = (3e9, -3e9, 1e20, inf, -inf, nan)
CASTS = [
    Row("i32(x)", "z[i] = i32(x[i])", (_f32(*_WIDE),), lambda torch: lambda x: x.int()),
    Row("i32(x)", "z[i] = i32(x[i])", (_f32(*_OUT),), UNDEFINED, "saturates; NaN gives 0"),
    Row("i64(x)", "z[i] = i64(x[i])", (_f64(*_OUT),), UNDEFINED, "saturates; NaN gives 0"),
    Row("i32(x)", "z[i] = i32(x[i])", (_f64(2147483647.0, 2147483648.0, -2147483649.0),), UNDEFINED, "saturates"),
    Row("i32(x)", "z[i] = i32(x[i])", (_i64(2**31, 2**32 + 5, -(2**31) - 1),), lambda torch: lambda x: x.int()),
    Row("i32(3000000000)", "z[i] = x[i] + i32(3000000000)", (_i32(1),), "wraps around", REFUSED),
    Row("f32(x)", "z[i] = f32(x[i])", (_f64(1e300, -1e300, nan),), lambda torch: lambda x: x.float(), exact=EXACT),
    Row("f32(x)", "z[i] = f32(x[i])", (_i32(16777217, HIGH32),), lambda torch: lambda x: x.float()),
    Row("bool(x)", "z[i] = bool(x[i])", (_f32(0.0, -0.0, 0.5, nan, inf),), lambda torch: lambda x: x.bool()),
    Row("i32(x > 1)", "z[i] = i32(x[i] > 1)", (_f32(1.0, 2.0, nan),), lambda torch: lambda x: (x > 1).int()),
]  # fmt: skip

_X, _Y = _f32(0.0, 1.0, inf, -inf, nan, 1.0), _f32(-0.0, 2.0, inf, inf, nan, nan)
COMPARED = [
    *(Row(f"x {o} y", f"z[i] = x[i] {o} y[i]", (_X, _Y), _binary(fn))
      for o, fn in (("==", "eq"), ("!=", "ne"), ("<", "lt"), ("<=", "le"), (">", "gt"))),
    Row("not (x < y)", "z[i] = not (x[i] < y[i])", (_X, _Y), lambda torch: lambda x, y: ~(x < y)),
    Row("where(x > 0, x, y)", "z[i] = where(x[i] > 0, x[i], y[i])", (_f32(1.0, -1.0, nan), _f32(nan, 2.0, 3.0)),
        lambda torch: lambda x, y: torch.where(x > 0, x, y)),
    Row("argmax[i](x[i])", "z[] = argmax[i](x[i])", (_f32(1.0, 3.0, 3.0),), _binary("argmax")),
    Row("argmax[i](x[i])", "z[] = argmax[i](x[i])", (_f32(1.0, nan, 3.0, nan),), _binary("argmax")),
    Row("argmin[i](x[i])", "z[] = argmin[i](x[i])", (_f32(0.0, -0.0, nan, -inf),), _binary("argmin")),
    Row("argmin[i](x[i])", "z[] = argmin[i](x[i])", (_i32(2, 1, 1),), _binary("argmin")),
]  # fmt: skip

_NONE, _WIDTH0 = np.zeros((0,), np.float32), np.zeros((2, 0), np.float32)
EMPTIES = [
    Row("sum[i](x[i])", "z[] = sum[i](x[i])", (_NONE,), _binary("sum")),
    Row("prod[i](x[i])", "z[] = prod[i](x[i])", (_NONE,), _binary("prod")),
    *(Row(f"{n}[i](x[i])", f"z[] = {n}[i](x[i])", (_NONE,), _binary(n), EMPTY)
      for n in ("max", "argmax")),
    Row("mean[i](x[i])", "z[] = mean[i](x[i])", (_NONE,), _binary("mean"), EMPTY),
    Row("sum[j](x[i,j])", "z[i] = sum[j](x[i,j])", (_WIDTH0,), lambda torch: lambda x: x.sum(1)),
    Row("max[i](x[i,j])", "z[j] = max[i](x[i,j])", (_WIDTH0,), lambda torch: lambda x: x.max(0)[0]),
    Row("exp(x)", "z[i] = exp(x[i])", (_NONE,), _binary("exp")),
    Row("x @ y", lambda x, y: x @ y, (_WIDTH0, np.zeros((0, 2), np.float32)), _binary("matmul")),
    Row("functional.softmax(x, 1)", lambda x: F.softmax(x, 1), (np.zeros((0, 3), np.float32),),
        lambda torch: lambda x: torch.softmax(x, 1)),
    Row("functional.amax(x)", F.amax, (_NONE,), _binary("amax"), EMPTY),
    Row("gradient of sum[i](x[i]*x[i])", es.grad(lambda x: (x * x).sum()), (_NONE,),
        lambda torch: lambda x: torch.zeros_like(x)),
]  # fmt: skip

_TINY = (1e-40, -1e-40, 1.2e-38)
_DEEP = "the evaluator keeps denormal numbers"
DENORMALS = [
    Row("x*1e10", "z[i] = x[i]*1e10", (_f32(*_TINY),), lambda torch: lambda x: x * 1e10, FLUSHED, _DEEP),
    Row("x*0.01", "z[i] = x[i]*0.01", (_f32(1e-37),), lambda torch: lambda x: x * 0.01, FLUSHED, _DEEP),
    Row("x > 0", "z[i] = x[i] > 0", (_f32(*_TINY),), lambda torch: lambda x: x > 0, FLUSHED, _DEEP),
    Row("log(x)", "z[i] = log(x[i])", (_f32(1e-40),), _binary("log"), FLUSHED, _DEEP),
    Row("exp(x)", "z[i] = exp(x[i])", (_f32(-90.0),), _binary("exp"), FLUSHED, _DEEP),
    Row("sum[i](x[i])", "z[] = sum[i](x[i])", (_f32(1e-38, 1e-38),), _binary("sum"), FLUSHED, _DEEP),
    Row("f64(x)", "z[i] = f64(x[i])", (_f32(1e-40),), lambda torch: lambda x: x.double(), FLUSHED, _DEEP),
    Row("x*1e10", "z[i] = x[i]*1e10", (_f64(1e-310),), lambda torch: lambda x: x * 1e10, FLUSHED, _DEEP),
    Row("x", "z[i] = x[i]", (_f32(1e-40),), lambda torch: lambda x: x),
]  # fmt: skip

_Z = (_f32(0.0, -0.0),)
PYTHON_ZERO = "a zero remainder has the sign of the divisor, as in Python"
_HALF, _BYTES = _of(np.float16), _of(np.uint8)
NARROW = [
    Row("x + 1", "z[i] = x[i] + 1", (_HALF(2048.0, 65504.0, 0.1, nan),), lambda torch: lambda x: x + 1),
    Row("x*x/300", "z[i] = x[i]*x[i]/300", (_HALF(300.0),), lambda torch: lambda x: x * x / 300,
        "a statement is rounded once, when its result is stored"),
    Row("sum[i](x[i])", "z[] = sum[i](x[i])", (_HALF(60000.0, 60000.0, -60000.0),), _binary("sum")),
    Row("x*y", "z[i] = x[i]*y[i]", (_HALF(60000.0), _f32(2.0)), _binary("mul")),
    Row("x*y", "z[i] = x[i]*y[i]", (_HALF(0.5), _i64(3)), _binary("mul")),
    Row("f16(x)", "z[i] = f16(x[i])", (_f32(65519.9, 65520.0, 2.0**-24, 2.0**-25, nan),),
        lambda torch: lambda x: x.half()),
    Row("f16(x)", "z[i] = f16(x[i])", (_f64(1 + 2.0**-11 + 2.0**-40),), lambda torch: lambda x: x.half()),
    Row("x + 1", "z[i] = x[i] + 1", (_BYTES(255, 0),), lambda torch: lambda x: x + 1),
    Row("x - y", "z[i] = x[i] - y[i]", (_BYTES(0), _BYTES(1)), _binary("sub")),
    Row("x - y", "z[i] = x[i] - y[i]", (_BYTES(0), _of(np.int8)(100)), _binary("sub")),
    Row("x + 300", "z[i] = x[i] + 300", (_BYTES(1),), lambda torch: lambda x: x + 300, REFUSED),
    Row("x*x", "z[i] = x[i]*x[i]", (_of(np.int16)(32767, 182),), lambda torch: lambda x: x * x),
    Row("sum[i](x[i])", "z[] = sum[i](x[i])", (_BYTES(200, 100),), _binary("sum")),
]  # fmt: skip

NEUTRAL = "the addition of a literal 0 is removed"
ZEROS = [
    *(Row(f"{n}(x)", f"z[i] = {n}(x[i])", _Z, _binary(n))
      for n in ("abs", "sign", "floor", "sqrt", "tanh", "erf", "sin")),
    Row("-x", "z[i] = -x[i]", _Z, _binary("neg")),
    Row("x*y", "z[i] = x[i]*y[i]", (_f32(0.0, -0.0, -1.0), _f32(-1.0, 0.0, 0.0)), _binary("mul")),
    Row("x + y", "z[i] = x[i] + y[i]", (_f32(0.0, -0.0, 1.0), _f32(-0.0, -0.0, -1.0)), _binary("add")),
    Row("x + 0", "z[i] = x[i] + 0", _Z, lambda torch: lambda x: x + 0, NEUTRAL),
    Row("1/x", "z[i] = 1/x[i]", _Z, lambda torch: lambda x: 1 / x),
    Row("x % y", "z[i] = x[i] % y[i]", (_f32(0.0, -0.0, 2.0), _f32(-2.0, 2.0, -2.0)), _binary("remainder"),
        PYTHON_ZERO),
    Row("pow(x, y)", "z[i] = pow(x[i], y[i])", (_f32(-0.0, -0.0), _f32(3.0, -3.0)), _binary("pow")),
]  # fmt: skip

SECTIONS = [
    Section(
        "Integers",
        "Quotients are rounded towards minus infinity, as in Python; remainders match them. Arithmetic of int32 and"
        " int64 tensors wraps around. The reductions `sum` and `prod` of integers are int64. No operand traps.",
        INTEGERS,
    ),
    Section(
        "Casts",
        "Casts from floats to integers truncate towards zero. Values out of range saturate, on every machine.",
        CASTS,
    ),
    Section(
        "Types of 8 and 16 bits",
        "float16 and bfloat16 are computed in float32, and uint8 in int32. Results, including sums and gradients, are"
        " rounded or wrapped when a tensor of that type is written, or by a cast. Conversions to float16 go through"
        " float32 and round to the nearest, ties to even. Intermediate results of an operator of"
        " `einsmith.functional` stay in float32: the norm of [300, 400] is 500, although float16 cannot hold its"
        " square. float16 with bfloat16 gives float32, and uint8 with int8 gives int16. Python numbers and integers do"
        " not widen floats.",
        NARROW,
    ),
    Section(
        "Comparisons, where, argmax",
        "NaN compares as in IEEE 754. `where` evaluates only the selected branch. `argmax` and `argmin` return the"
        " index of the first of equal elements, or of the first NaN, as int32.",
        COMPARED,
    ),
    Section("Signed zeros", "Zeros of either sign compare equal; `argmax` returns the first one.", ZEROS, signed=True),
    Section("Empty tensors", "An axis may have extent 0.", EMPTIES),
    Section(
        "Denormal numbers",
        "Operands and results below 2^-126 (f64: 2^-1022) are flushed to zero, because arithmetic on them is slow. A"
        " copy keeps them.",
        DENORMALS,
    ),
]


def result(run: Callable, arrays: Sequence[Any]) -> Any:
    """The result as a NumPy array, or the class of the error."""
    try:
        return np.asarray(run(*arrays))
    except EinsmithError as e:
        return type(e).__name__
    except (RuntimeError, IndexError) as e:  # PyTorch's
        return type(e).__name__


def results(torch: Any, row: Row) -> tuple[Any, Any, Any]:
    """(compiled, evaluated, PyTorch's) of a row; the last is text where PyTorch does not define it."""

    def wrapped(wrap: Callable) -> Callable:
        return lambda *a: wrap(lambda *x: row.function()(*x))(*a)

    mine = result(wrapped(es.jit), row.arrays)
    evaluated = result(wrapped(es.interpret), row.arrays)
    if isinstance(row.peer, str):
        return mine, evaluated, row.peer
    return mine, evaluated, result(row.peer(torch), [torch.tensor(a) for a in row.arrays])


def agree(a: Any, b: Any, signed: bool = False) -> bool:
    """Whether both are errors, or equal but for the last bit; `signed`: in the signs of zeros as well."""
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str)
    if signed and not np.array_equal(np.signbit(a), np.signbit(b)):
        return False
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=2e-7, atol=0, equal_nan=True))


# ---------------------------------------------------------------------------------------------- accumulation of errors


@dataclass(frozen=True)
class Sum:
    """A sum of `n` float32 from [0, 1), and bounds of its relative error, ours and PyTorch's, in units of 2**-23."""

    what: str
    n: int
    ours: float
    theirs: float


LENGTHS = (10**2, 10**3, 10**4, 10**5, 10**6, 10**7)
BOUNDS = {
    "sum[i](x[i])": ((10, 10, 10, 10, 10, 100), (10, 10, 10, 10, 10, 10)),
    "sum[i](x[i]*y[i])": ((10, 10, 10, 10, 100, 100), (10, 10, 10, 100, 100, 1000)),
    "sum[i](x[i,j])": ((10, 10, 10, 100, 100, None), (10, 10, 10, 10, 10, None)),
    "h[i] = where(i > 0, h[i-1], 0) + x[i]": ((10, 100, 1000, 1000, 10000, None), (10, 10, 10, 10, 10, None)),
}
"""Powers of ten that hold for any width of vectors and number of threads, four times what was measured or more."""


def sums() -> list[Sum]:
    return [
        Sum(what, n, a, b)
        for what, (ours, theirs) in BOUNDS.items()
        for n, a, b in zip(LENGTHS, ours, theirs, strict=True)
        if a is not None and b is not None
    ]


def errors(torch: Any, s: Sum, rng: np.random.Generator) -> tuple[float, float]:
    """The relative errors, ours and PyTorch's, of one random sum against float64, in units of 2**-23."""
    x, y = (rng.uniform(0, 1, s.n).astype(np.float32) for _ in range(2))
    wide = x.astype(np.float64)
    tx, ty = torch.tensor(x), torch.tensor(y)
    if s.what.endswith("+ x[i]"):
        got, peer, want = es.op(s.what)(x), torch.cumsum(tx, 0), np.cumsum(wide)
    elif "j" in s.what:
        rows = np.stack([x, y, x], 1)
        got, peer = es.op(f"z[j] = {s.what}")(rows), torch.tensor(rows).sum(0)
        want = rows.astype(np.float64).sum(0)
    elif "y" in s.what:
        got, peer, want = es.op(f"z[] = {s.what}")(x, y), tx @ ty, wide @ y.astype(np.float64)
    else:
        got, peer, want = es.op(f"z[] = {s.what}")(x), tx.sum(), wide.sum()
    return tuple(float(np.max(np.abs(np.asarray(v, np.float64) - want) / want)) * 2**23 for v in (got, peer))
