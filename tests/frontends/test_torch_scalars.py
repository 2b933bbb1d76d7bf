"""Python numbers beside 16-bit tensors by torch.compile's backend: rounded to the tensor's type where eager PyTorch
rounds them, and not where it computes in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")
from torch.nn import functional as F  # noqa: E402

from einsmith.frontends.torch import from_torch  # noqa: E402
from tests.frontends.torch_compiled import compiled, fresh  # noqa: E402, F401

OPERATORS: dict[str, Callable] = {
    "add": lambda x, s: x + s,
    "sub": lambda x, s: x - s,
    "rsub": lambda x, s: s - x,
    "mul": lambda x, s: x * s,
    "div": lambda x, s: x / s,
    "rdiv": lambda x, s: s / x,
    "div trunc": lambda x, s: torch.div(x, s, rounding_mode="trunc"),
    "floordiv": lambda x, s: x // s,
    "rfloordiv": lambda x, s: s // x,
    "mod": lambda x, s: x % s,
    "rmod": lambda x, s: s % x,
    "fmod": torch.fmod,
    "float_power": lambda x, s: torch.float_power(x.abs(), s).to(x.dtype),
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "clamp": lambda x, s: x.clamp(-s, s) == x,
    "clamp_min": lambda x, s: x.clamp(min=s) == x,
    "clamp_max": lambda x, s: x.clamp(max=s) == x,
    "hardtanh": lambda x, s: F.hardtanh(x, -s, s) == x,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "threshold": lambda x, s: F.threshold(x, s, 7 * s),
    "leaky_relu": F.leaky_relu,
    "prelu": lambda x, s: F.prelu(x, torch.full((1,), s, dtype=x.dtype)),
    "where": lambda x, s: torch.where(x > 0, x, s),
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "full": lambda x, s: torch.full_like(x, s) == x,
    "isclose": lambda x, s: torch.isclose(x, x + 0.01, atol=s * 0.01, rtol=0),
    "copysign": torch.copysign,
    "nan_to_num": lambda x, s: torch.nan_to_num(torch.where(x > 0, x, float("nan")), s),
    "isin": lambda x, s: torch.isin(x, torch.full((1,), s, dtype=x.dtype)),
    "index_fill": lambda x, s: x.index_fill(0, torch.tensor([0, 3]), s),
    "index_add": lambda x, s: torch.zeros_like(x).index_add(0, torch.arange(len(x)), x, alpha=s),
    "scatter": lambda x, s: x.scatter(0, torch.tensor([0, 3]), s),
    "pad": lambda x, s: F.pad(x, (1, 1), value=s),
    "bucketize": lambda x, s: torch.bucketize(s, x.sort().values),
    "searchsorted": lambda x, s: torch.searchsorted(x.sort().values, s),
    "maximum": lambda x, s: torch.maximum(x, torch.tensor(s)),
    "atan2": lambda x, s: torch.atan2(x, torch.tensor(s)),
    "hypot": lambda x, s: torch.hypot(x, torch.tensor(s)),
    "round decimals": lambda x, s: torch.round(x * 8, decimals=1),
    "add a tensor of no dimensions": lambda x, s: x + torch.tensor(s),
    "multiply by it": lambda x, s: x * torch.tensor(s),
    "multiply it": lambda x, s: torch.tensor(s) * x,
    "divide by it": lambda x, s: x / torch.tensor(s),
    "compare with it": lambda x, s: x == torch.tensor(s),
}
GRADIENTS: dict[str, Callable] = {
    "clamp": lambda x, s: x.clamp(-s, s),
    "hardtanh": lambda x, s: F.hardtanh(x, -s, s),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "threshold": lambda x, s: F.threshold(x, s, 7 * s),
    "leaky_relu": F.leaky_relu,
    "mul": lambda x, s: x * s,
    "mod": lambda x, s: x % s,
    "where": lambda x, s: torch.where(x > s, x, s),
}
NUMBERS = (0.1, 0.7, 1.1, 2.7)


def edges(dtype, s):
    """256 elements: multiples of s and of s rounded, one unit in the last place off, and random ones."""
    near = s * torch.tensor([1, -1, 2, 3, 7, 0.5, 1 / 3, 10, -5, 8, 100, -3, -0.25], dtype=torch.float64)
    near = torch.cat([near, near.to(dtype).double()]).to(dtype).double()
    eps = torch.finfo(dtype).eps
    near = torch.cat([near, near * (1 + eps), near * (1 - eps)]).to(dtype)
    multiples = (torch.randint(-40, 40, (80,)) * s).to(dtype)
    multiples[multiples == 0] = s
    return torch.cat([near, multiples, torch.randn(256 - len(near) - 80).to(dtype)])


def check(results, wanted, names):
    for name, ours, theirs in zip(names, results, wanted, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}"
        )


def every(functions, x, s):
    return [f(x, s) for f in functions.values()]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("s", [NUMBERS[0], *(pytest.param(s, marks=pytest.mark.slow) for s in NUMBERS[1:])])
def test_numbers_are_rounded_where_pytorch_rounds_them(s, dtype):
    x = edges(dtype, s)
    check(compiled(lambda x: every(OPERATORS, x, s))(x), every(OPERATORS, x, s), OPERATORS)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_derivatives_change_where_pytorchs_do(dtype):
    s = 0.1
    x = edges(dtype, s).requires_grad_()
    seeds = [torch.randn_like(x) for _ in GRADIENTS]

    def derivatives(f):
        return [torch.autograd.grad(y, x, g, retain_graph=True)[0] for y, g in zip(f(x), seeds, strict=True)]

    wanted = derivatives(lambda x: every(GRADIENTS, x, s))
    check(derivatives(compiled(lambda x: every(GRADIENTS, x, s))), wanted, GRADIENTS)


class Every(torch.nn.Module):
    def forward(self, x):
        return tuple(every(OPERATORS, x, 0.1))


@pytest.mark.slow
def test_imported_modules_round_them_too():
    x = edges(torch.float16, 0.1)
    results = from_torch(Every(), x)(x.numpy())
    check([torch.tensor(np.asarray(y)) for y in results], Every()(x), OPERATORS)


FLOATS_OF_INTEGERS: dict[str, Callable] = {
    "mul": lambda n: 0.1 * n,
    "add": lambda n: n + 0.1,
    "sqrt": torch.sqrt,
    "div": lambda n: n / 3,
    "where": lambda n: torch.where(n > 1, 0.1, 0.3),
    "sinc": torch.sinc,
    "digamma": torch.digamma,
    "full": lambda n: torch.full((3,), 0.1),
    "zeros": lambda n: torch.zeros(3) + n,
    "arange": lambda n: torch.arange(0.1, 3) + n,
    "linspace": lambda n: torch.linspace(0, 1, 7),
    "tensor": lambda n: n * torch.tensor(0.1),
    "rand": lambda n: torch.rand(3).lt(1) * 0.1 * n,
    "bool": lambda n: (n > 1) * 0.1,
}


def test_floats_of_integers_have_the_default_type():
    torch.set_default_dtype(torch.float64)
    try:
        n = torch.tensor([1, 2, 5])
        results = compiled(lambda n: [f(n) for f in FLOATS_OF_INTEGERS.values()])(n)
        for name, ours in zip(FLOATS_OF_INTEGERS, results, strict=True):
            wanted = FLOATS_OF_INTEGERS[name](n)
            torch.testing.assert_close(ours, wanted, rtol=1e-14, atol=1e-15, msg=lambda text, k=name: f"{k}: {text}")
    finally:
        torch.set_default_dtype(torch.float32)
