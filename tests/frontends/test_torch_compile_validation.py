"""Arguments that eager PyTorch refuses: torch.compile(backend="einsmith") raises, too, and takes their neighbours."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")
from torch.nn import functional as F  # noqa: E402

from tests.frontends.torch_compiled import agree, compiled, fresh, randn  # noqa: E402, F401

ONE, IMAGE = torch.ones(2, 2), torch.ones(1, 2, 4, 4)
LOGITS = torch.ones(3, 4)
Call = Callable[[], Any]


def _indices() -> dict[str, Call]:
    out: dict[str, Call] = {}
    for n in (-1, 5):
        i, pairs, far = torch.tensor([0, n]), torch.tensor([[0, n]]), torch.tensor([0, 7 * n])
        labels = torch.tensor([0, 1, n])
        out |= {
            f"index_copy {n}": lambda i=i: ONE.index_copy(0, i, ONE),
            f"index_add {n}": lambda i=i: ONE.index_add(0, i, ONE),
            f"index_fill {n}": lambda i=far: ONE.index_fill(0, i, 3.0),
            f"index_select {n}": lambda i=i: ONE.index_select(0, i),
            f"index_reduce {n}": lambda i=i: ONE.index_reduce(0, i, ONE, "prod"),
            f"index {n}": lambda i=far: ONE[i],
            f"index_put {n}": lambda i=far: ONE.index_put((i,), torch.tensor(1.0)),
            f"take {n}": lambda i=far: torch.take(ONE, i),
            f"put {n}": lambda i=far: ONE.put(i, torch.ones(2)),
            f"gather {n}": lambda i=pairs: ONE.gather(1, i),
            f"scatter {n}": lambda i=pairs: ONE.scatter(1, i, ONE),
            f"scatter_add {n}": lambda i=pairs: ONE.scatter_add(0, i, ONE),
            f"scatter_reduce {n}": lambda i=pairs: ONE.scatter_reduce(0, i, ONE, "amax"),
            f"embedding {n}": lambda i=i: F.embedding(i, ONE),
            f"one_hot {n}": lambda i=i: F.one_hot(i, 3),
            f"cross_entropy {n}": lambda t=labels: F.cross_entropy(LOGITS, t),
            f"smoothed cross_entropy {n}": lambda t=labels: F.cross_entropy(LOGITS, t, label_smoothing=0.1),
            f"nll_loss {n}": lambda t=labels: F.nll_loss(LOGITS, t, reduction="none"),
            f"multi_margin_loss {n}": lambda t=labels: F.multi_margin_loss(LOGITS, t),
            f"multilabel_margin_loss {n}": lambda n=n: F.multilabel_margin_loss(LOGITS, torch.full((3, 4), n * 2)),
        }
    return out


def _types() -> dict[str, Call]:
    out: dict[str, Call] = {}
    pairs = {"float64": (ONE, ONE.double()), "float16": (ONE.half(), ONE), "int64": (ONE.int(), ONE.long())}
    for name, (a, b) in pairs.items():
        out |= {
            f"mm {name}": lambda a=a, b=b: a @ b,
            f"mv {name}": lambda a=a, b=b: a @ b[0],
            f"bmm {name}": lambda a=a, b=b: a[None] @ b[None],
            f"addmm {name}": lambda a=a, b=b: torch.addmm(a, a, b),
            f"addbmm {name}": lambda a=a, b=b: torch.addbmm(a, b[None], b[None]),
            f"linear {name}": lambda a=a, b=b: F.linear(a, b),
            f"bias {name}": lambda a=a, b=b: F.linear(a, a, b[0]),
            f"einsum {name}": lambda a=a, b=b: torch.einsum("ij,jk->ik", a, b),
            f"conv1d {name}": lambda a=a, b=b: F.conv1d(a[None], b[..., None]),
            f"index_add {name}": lambda a=a, b=b: a.index_add(0, torch.tensor([0, 1]), b),
            f"index_copy {name}": lambda a=a, b=b: a.index_copy(0, torch.tensor([0, 1]), b),
            f"index_put {name}": lambda a=a, b=b: a.index_put((torch.tensor([0]),), b[0]),
            f"put {name}": lambda a=a, b=b: a.put(torch.tensor([0]), b[0, :1]),
            f"scatter {name}": lambda a=a, b=b: a.scatter(0, torch.tensor([[0, 1]]), b),
            f"cross {name}": lambda a=a, b=b: torch.linalg.cross(a.new_ones(3), b.new_ones(3)),
            f"bce {name}": lambda a=a, b=b: F.binary_cross_entropy(a, b),
            f"grid_sample {name}": lambda a=a, b=b: F.grid_sample(
                a[None, None], b.expand(1, 1, 2, 2), align_corners=False
            ),
        }
    wide = ONE.double()
    return out | {
        "layer_norm": lambda: F.layer_norm(ONE, (2,), wide[0]),
        "group_norm": lambda: F.group_norm(ONE, 1, wide[0]),
        "batch_norm": lambda: F.batch_norm(ONE, ONE.long()[0], ONE.long()[0]),
        "nll_loss": lambda: F.nll_loss(ONE, torch.tensor([0, 1]), wide[0]),
        "heaviside": lambda: torch.heaviside(ONE, wide),
    }


def _integers() -> dict[str, Call]:
    out: dict[str, Call] = {}
    for dtype in (torch.uint8, torch.int32, torch.int64):
        seven, zero, name = torch.tensor([7], dtype=dtype), torch.tensor([0], dtype=dtype), str(dtype)
        out |= {
            f"{name} // 0": lambda x=seven, z=zero: x // z,
            f"{name} % 0": lambda x=seven, z=zero: x % z,
            f"7 % {name}": lambda z=zero: 7 % z,
            f"{name} // number": lambda x=seven: x // 0,
            f"fmod {name}": lambda x=seven, z=zero: torch.fmod(x, z),
            f"truncated {name}": lambda x=seven, z=zero: torch.div(x, z, rounding_mode="trunc"),
            f"{name} ** -1": lambda x=seven: x**-1,
        }
    n, image = ONE.int(), IMAGE.int()
    for f in (F.celu, F.hardswish, F.hardsigmoid, F.logsigmoid, F.hardshrink, F.glu, F.gelu, F.silu):
        out[f"{f.__name__} of integers"] = lambda f=f: f(n)
    for mode, x in {"nearest": image, "linear": image[0], "bilinear": image, "bicubic": image}.items():
        out[f"{mode} resizing of integers"] = lambda mode=mode, x=x: F.interpolate(x, scale_factor=2, mode=mode)
    return out | {
        "hypot": lambda: torch.hypot(n, n),
        "and of floats": lambda: ONE & ONE,
        "not of floats": lambda: torch.bitwise_not(ONE),
        "bools minus floats": lambda: F.tanhshrink(ONE.bool()),
        "median of bools": lambda: ONE.bool().median(),
        "topk of bools": lambda: ONE.bool().topk(1),
        "kthvalue of bools": lambda: ONE.bool().kthvalue(1),
        "lerp of integers": lambda: torch.lerp(n, n, n),
        "bucketize by bools": lambda: torch.bucketize(ONE.bool(), ONE.bool()[0]),
        "soft_margin_loss of integers": lambda: F.soft_margin_loss(n, n),
        "max_pool1d of integers": lambda: F.max_pool1d(n, 2),
        "mul_ of integers and floats": lambda: n.clone().mul_(ONE),
        "div_ of integers": lambda: n.clone().div_(2),
        "full of 300 as uint8": lambda: torch.full((2,), 300, dtype=torch.uint8),
    }


VALUES: dict[str, Call] = {
    "bce, target 1.5": lambda: F.binary_cross_entropy(ONE, 1.5 * ONE),
    "bce, input 1.5": lambda: F.binary_cross_entropy(1.5 * ONE, ONE),
    "bce, input -0.1": lambda: F.binary_cross_entropy(-0.1 * ONE, ONE, reduction="none"),
    "bce, NaN": lambda: F.binary_cross_entropy(ONE * float("nan"), ONE),
    "bernoulli(1.5)": lambda: torch.bernoulli(1.5 * ONE),
    "bernoulli(-1)": lambda: torch.bernoulli(-ONE),
    "bernoulli_(1.5)": lambda: ONE.clone().bernoulli_(1.5),
    "dropout(1.5)": lambda: torch.dropout(ONE, 1.5, True),
    "uniform_(2, 1)": lambda: ONE.clone().uniform_(2, 1),
    "celu, alpha 0": lambda: F.celu(-ONE, 0.0),
    "addmm that grows": lambda: torch.addmm(torch.ones(5, 1), torch.ones(1, 1), torch.ones(1, 1)),
    "addmm of three dimensions": lambda: torch.addmm(torch.ones(2, 1, 1), torch.ones(1, 1), torch.ones(1, 1)),
    "addmv that grows": lambda: torch.addmv(torch.ones(3), torch.ones(1, 1), torch.ones(1)),
    "bias that grows": lambda: F.linear(torch.ones(1, 2), torch.ones(1, 2), torch.ones(3)),
    "bucketize, boundaries": lambda: torch.bucketize(ONE, ONE),
    "alpha that is a bool": lambda: torch.add(ONE.long(), ONE.long(), alpha=True),
}
REFUSED = _indices() | _types() | _integers() | VALUES


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if k % 7 == 0 else pytest.mark.slow) for k, n in enumerate(REFUSED)]
)
def test_what_eager_execution_refuses_raises(name):
    with pytest.raises((RuntimeError, IndexError)):
        REFUSED[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = torch.compile(REFUSED[name], backend="einsmith")
    with pytest.raises(Exception, match="."):
        f()


def _accepted(x: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
    square = x[:3, :3]
    return [
        F.binary_cross_entropy(x.sigmoid(), x.detach().cos().abs()),
        square.index_copy(0, i % 3, square * 2),
        x.index_copy(1, torch.tensor([2, 0]), x[:, :2].sin()),
        torch.addmm(x[0, :3], square, square),
        torch.addmm(x[:1, :1], square, square, beta=2),
        F.celu(x, 0.5),
        F.glu(x),
        F.layer_norm(x, (4,), x[0]),
        F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    ]


def test_neighbours_of_refused_arguments_are_accepted():
    x, i = randn(4, 4, grad=True), torch.tensor([2, 0, 1])
    want, got = _accepted(x, i), compiled(_accepted)(x, i)
    agree([y.detach() for y in got], [y.detach() for y in want])
    agree(*(torch.autograd.grad(sum(y.square().sum() for y in ys), x)[0] for ys in (got, want)))


def test_integers_that_eager_execution_divides():
    def f(a, b):
        return a // b, a % b, torch.fmod(a, b), a // 3, a**2, torch.div(a, b), a.clone().mul_(b), a.bool() & b.bool()

    a, b = torch.tensor([-7, 7, 9]), torch.tensor([2, -3, 4])
    agree(compiled(f)(a, b), f(a, b))


def test_norms_of_16_bits_with_parameters_of_32():
    def f(x, w):
        return F.layer_norm(x, (2,), w, w)

    x, w = torch.randn(3, 2).bfloat16(), torch.rand(2)
    agree(compiled(f)(x, w), f(x, w), 1e-2)
