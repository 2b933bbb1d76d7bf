"""Operators on the smallest and largest integers of each type, by torch.compile's backend, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")

from tests.frontends.torch_compiled import compiled, fresh  # noqa: E402, F401

PAIRS: dict[str, Callable] = {
    name: getattr(torch, name)
    for name in "add sub mul maximum minimum fmax fmin eq ne lt le gt ge heaviside bitwise_and bitwise_or bitwise_xor "
    "bitwise_left_shift bitwise_right_shift logical_xor true_divide isclose".split()
} | {
    "3*y less x": lambda x, y: torch.rsub(x, y, alpha=3),
    "power": lambda x, y: x ** (y & 7),
    "where": lambda x, y: torch.where(x > y, x, y),
    "clamp": lambda x, y: x.clamp(min=y),
}
DIVISIONS: dict[str, Callable] = {
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}
DIVISORS: dict[str, Callable] = {"gcd": torch.gcd, "lcm": torch.lcm}
SINGLE: dict[str, Callable] = {
    **{
        name: getattr(torch, name)
        for name in "abs neg sign square relu bitwise_not sum prod amax amin argmax argmin max min median".split()
    },
    "mean": lambda x: x.double().mean(),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0, dtype=x.dtype),
    "cummax": lambda x: x.cummax(0).values,
    "cummin": lambda x: x.cummin(0).values,
    "own sum": lambda x: x.sum(dtype=x.dtype),
    "sort": lambda x: x.sort(descending=True, stable=True).values,
    "places": lambda x: x.sort(stable=True).indices,
    "topk": lambda x: x.topk(3).values,
    "smallest": lambda x: x.topk(3, largest=False).values,
    "kthvalue": lambda x: x.kthvalue(2).values,
    "mode": lambda x: x.mode().values,
    "cast": lambda x: torch.stack([x.to(t).to(torch.int64) for t in (torch.int8, torch.uint8, torch.int16)]),
}
NUMBERS = (-129, -128, -1, 0, 3, 127, 128, 255, 256, 2**31, -(2**31), 2**63 - 1, 1.5)
SCALED: dict[str, Callable] = {
    f"{name} {s}": lambda x, f=f, s=s: f(x, s)
    for s in NUMBERS
    for name, f in {
        "add": torch.add,
        "rsub": torch.rsub,
        "mul": torch.mul,
        "eq": torch.eq,
        "lt": torch.lt,
        "ge": torch.ge,
        "xor": lambda x, s: x ^ int(s),
        "shift": lambda x, s: x << int(s),
    }.items()
}


def extremes(dtype):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    values = [low, high, low + 1, high - 1, 0, 1, 2, 3, 7, high // 2, high // 2 + 1, low // 2, low // 2 + 1, 100, 6]
    return torch.tensor(values + ([-1, -2, -7, -100] if low else [128, 129, 200, 127]), dtype=dtype)


def evaluate(x):
    """Return the results of all operators by name. No divisor is 0 or -1, which overflows in PyTorch's kernels; nor has
    the smallest integer a greatest common divisor there."""
    y = x.flip(0)
    safe = torch.where((y == 0) | (y == (-1 if y.dtype.is_signed else 0)), 5, y)
    small = x.clamp(min=torch.iinfo(x.dtype).min + 1)
    return [
        *(f(x[:, None], y) for f in PAIRS.values()),
        *(f(x[:, None], safe) for f in DIVISIONS.values()),
        *(f(small[:, None], small) for f in DIVISORS.values()),
        *(f(x) for f in SINGLE.values()),
        *(f(x) for f in SCALED.values()),
    ]


SLOW = (torch.int8, torch.uint8, torch.int16, torch.int32)


@pytest.mark.parametrize("dtype", [torch.int64, *(pytest.param(t, marks=pytest.mark.slow) for t in SLOW)])
def test_extreme_integers(dtype):
    x = extremes(dtype)
    results = zip([*PAIRS, *DIVISIONS, *DIVISORS, *SINGLE, *SCALED], compiled(evaluate)(x), evaluate(x), strict=True)
    for name, ours, theirs in results:
        torch.testing.assert_close(
            ours, theirs, rtol=1e-6, atol=0, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}"
        )
