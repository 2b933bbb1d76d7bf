"""The functions of the formula language and of `functional` beside PyTorch's of that name, at kinks, bounds and poles:
which points are looked at, and where Einsmith differs on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import copysign, inf, isinf, isnan, nan
from typing import Any

import numpy as np

import einsmith as es

F = es.functional
POINTS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.0, -2.0, 3.0, -3.0, 6.0, 20.0, -20.0, inf, -inf, nan)
PAIRS = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 2.5, 3.0, inf, -inf, nan)

ZERO_POWER = "a constant power of 0 has derivative 0; PyTorch multiplies 0 by an infinite logarithm"
C_POW = "as C's pow; PyTorch computes a square root here, with its sign of zero or NaN"
NAN_SIGN = "NaN stays NaN, as in NumPy and JAX"
NAN_CHOICE = "abs passes no gradient at NaN; PyTorch multiplies the gradient by sign(NaN) = 0"
NAN_AMAX = (
    "NaN elements share the gradient, as in torch.max; torch.amax divides by the number of elements equal to NaN, 0"
)
PROD_QUOTIENT = "the derivative is the whole product divided by the factor: NaN where both are infinite or NaN"


@dataclass(frozen=True)
class Case:
    """`ours` of arrays, or the text of a formula, beside `peer(torch)`. `shown`: the points that the document lists.
    `differs(order, wrt, point)` is the reason why the value (order 0) or a derivative differs on purpose, or None."""

    name: str
    ours: Any
    peer: Callable[[Any], Callable]
    points: Sequence[tuple[Any, ...]]
    shown: Sequence[tuple[Any, ...]] = ()
    differs: Callable[[int, int, tuple[Any, ...]], str | None] = lambda order, wrt, at: None
    elementwise: bool = True

    def function(self) -> Callable:
        return es.op(self.ours) if isinstance(self.ours, str) else self.ours


def _unary(*at: float) -> list[tuple[float]]:
    return [(x,) for x in at]


ALL = _unary(*POINTS)
ALL_PAIRS = [(a, b) for a in PAIRS for b in PAIRS]


def _negative_zero(x: float) -> bool:
    return x == 0 and copysign(1.0, x) < 0


def _sign(order: int, wrt: int, at: tuple) -> str | None:
    return NAN_SIGN if order == 0 and isnan(at[0]) else None


def _pow(order: int, wrt: int, at: tuple) -> str | None:
    x, y = at
    if order == 2 and (y == 0 and (x == 0 or isnan(x)) if wrt == 0 else x == 0 and y >= 0):
        return ZERO_POWER
    return None


def _half_power(order: int, wrt: int, at: tuple) -> str | None:
    return C_POW if _negative_zero(at[0]) or at[0] == -inf else None


def _zero_base(order: int, wrt: int, at: tuple) -> str | None:
    return ZERO_POWER if order == 2 and at[0] >= 0 else None


LIMIT = "0, in place of NaN"


def _limit(order: int, wrt: int, at: tuple) -> str | None:
    return LIMIT if order and (not np.any(at) or np.isinf(at).any()) else None


FAR = "the limit, in place of NaN"


def _far(order: int, wrt: int, at: tuple) -> str | None:
    x, y = at
    return FAR if order and (isinf(x) or isinf(y)) and not isnan(x + y if x != -y else 0.0) else None


def _abs_cubed(order: int, wrt: int, at: tuple) -> str | None:
    return NAN_CHOICE if order and isnan(at[0]) else None


UNARY = {
    "exp": (inf, -inf), "log": (0.0, -0.0, -1.0, inf), "tanh": (inf, -20.0), "sigmoid": (-20.0, inf, -inf),
    "sqrt": (0.0, -0.0, -1.0, inf), "rsqrt": (0.0, -1.0, inf), "erf": (0.0, inf), "abs": (0.0, -1.0, -inf, nan),
    "sign": (0.0, -0.0, -2.0, nan), "floor": (1.0, -0.5, inf), "relu": (0.0, -0.0, 1.0, -1.0, inf, nan),
    "sin": (0.0, inf), "cos": (0.0, inf), "log1p": (0.0, -1.0, -2.0, inf), "expm1": (0.0, inf, -inf),
    "softplus": (0.0, 100.0, -100.0, inf, -inf),
}  # fmt: skip
"""The language's functions of one argument, and the points that the document shows."""


def _powers() -> list[Case]:
    out = []
    for k in ("0", "0.0", "1", "2", "3", "4", "-1", "-2", "-3", "2.5", "-1.5"):
        shown = _unary(0.0, -0.0, inf) if k in ("0", "-2") else ()
        out.append(Case(f"x**{k}", f"y[i] = x[i]**({k})", lambda torch, k=k: lambda x: x ** float(k), ALL, shown,
                        _half_power if k == "2.5" else lambda *_: None))  # fmt: skip
    for k in ("0.5", "1.5", "-0.5"):
        out.append(Case(f"x**{k}", f"y[i] = x[i]**({k})", lambda torch, k=k: lambda x: x ** float(k), ALL,
                        _unary(0.0, -0.0, -1.0), _half_power))  # fmt: skip
    for k in ("0", "0.0"):
        out.append(Case(f"{k}**x", f"y[i] = ({k})**x[i]", lambda torch, k=k: lambda x: torch.pow(float(k), x), ALL,
                        _unary(0.0, 1.0, -1.0) if k == "0" else (), _zero_base))  # fmt: skip
    out.append(Case("2**x", "y[i] = 2**x[i]", lambda torch: lambda x: torch.pow(2.0, x), ALL))
    return out


def _bounded(name: str, bound: float) -> Callable:
    return lambda torch: lambda x: getattr(torch, name)(x, torch.full_like(x, bound))


def _with_constants() -> list[Case]:
    out = []
    for k in ("0", "0.5", "-2"):
        for name in ("min", "max"):
            out.append(Case(f"{name}(x, {k})", f"y[i] = {name}(x[i], {k})", _bounded(name + "imum", float(k)), ALL,
                            _unary(0.0, 1.0, nan) if k == "0" else ()))  # fmt: skip
        if k != "0":
            out.append(Case(f"x % {k}", f"y[i] = x[i] % ({k})", lambda torch, k=k: lambda x: x % float(k), ALL))
    out.append(Case("min(max(x, 0), 1)", "y[i] = min(max(x[i], 0), 1)", lambda torch: lambda x: torch.minimum(
        torch.maximum(x, torch.zeros_like(x)), torch.ones_like(x)), ALL, _unary(0.0, 1.0)))  # fmt: skip
    out.append(Case("relu(x)**2", "y[i] = relu(x[i])**2", lambda torch: lambda x: torch.relu(x) ** 2, ALL,
                    _unary(0.0)))  # fmt: skip
    out.append(Case("relu(x)*x", "y[i] = relu(x[i])*x[i]", lambda torch: lambda x: torch.relu(x) * x, ALL))
    out.append(
        Case(
            "abs(x)**3",
            "y[i] = abs(x[i])**3",
            lambda torch: lambda x: torch.abs(x) ** 3,
            ALL,
            _unary(0.0, nan),
            _abs_cubed,
        )
    )
    out.append(Case(
        "where(x > 0, sqrt(x), 0)", "y[i] = where(x[i] > 0, sqrt(x[i]), 0)",
        lambda torch: lambda x: torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), 0.0), ALL,
        _unary(0.0, -1.0, nan),
    ))  # fmt: skip
    out.append(Case(
        "where(x != 0, sin(x)/x, 1)", "y[i] = where(x[i] != 0, sin(x[i])/x[i], 1)",
        lambda torch: lambda x: torch.where(x != 0, torch.sin(x) / torch.where(x != 0, x, 1.0), 1.0), ALL,
        _unary(0.0),
    ))  # fmt: skip
    return out


BINARY = [
    Case("min(x, y)", "z[i] = min(x[i], y[i])", lambda torch: torch.minimum, ALL_PAIRS, [(1.0, 1.0), (nan, 1.0)]),
    Case("max(x, y)", "z[i] = max(x[i], y[i])", lambda torch: torch.maximum, ALL_PAIRS,
         [(0.0, -0.0), (1.0, 1.0), (nan, 1.0), (1.0, nan)]),
    Case("pow(x, y)", "z[i] = pow(x[i], y[i])", lambda torch: torch.pow, ALL_PAIRS,
         [(0.0, 0.0), (0.0, 1.0), (0.0, -1.0), (-2.0, 3.0), (-2.0, 0.5), (nan, 0.0), (1.0, nan)], _pow),
    Case("logaddexp(x, y)", "z[i] = logaddexp(x[i], y[i])", lambda torch: torch.logaddexp, ALL_PAIRS,
         [(1.0, 1.0), (-inf, 1.0), (-inf, -inf), (inf, 1.0), (inf, inf)], _far),
    Case("x/y", "z[i] = x[i]/y[i]", lambda torch: torch.div, ALL_PAIRS, [(1.0, 0.0), (0.0, 0.0), (1.0, inf)]),
    Case("x*y", "z[i] = x[i]*y[i]", lambda torch: torch.mul, ALL_PAIRS, [(0.0, inf)]),
    Case("x % y", "z[i] = x[i] % y[i]", lambda torch: torch.remainder, ALL_PAIRS,
         [(-0.5, 2.0), (2.0, 2.0), (0.5, -2.0), (1.0, 0.0), (1.0, inf), (-1.0, inf)]),
    Case("x // y", "z[i] = x[i] // y[i]", lambda torch: lambda x, y: torch.floor_divide(x.detach(), y.detach()),
         ALL_PAIRS, [(-0.5, 2.0), (1.0, 0.0), (0.0, 0.0)]),
]  # fmt: skip

FUNCTIONAL_UNARY = ("relu", "tanh", "sigmoid", "silu", "leaky_relu", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "erf",
                    "abs", "sign", "floor", "log1p", "expm1")  # fmt: skip


def _peer_of(name: str) -> Callable:
    return lambda torch: getattr(torch.nn.functional, name, None) or getattr(torch, name)


def _functional() -> list[Case]:
    shown = {"leaky_relu": (0.0,), "relu": (0.0, nan)}
    out = [Case(f"functional.{n}", getattr(F, n), _peer_of(n), ALL, _unary(*shown.get(n, ())), _sign if n == "sign"
                else lambda *_: None) for n in FUNCTIONAL_UNARY]  # fmt: skip
    for form in ("none", "tanh"):  # PyTorch's are NaN at infinities and lose digits at -3, by the width of its vectors
        out.append(Case(f"functional.gelu(x, approximate={form!r})", lambda x, form=form: F.gelu(x, approximate=form),
                        lambda torch, form=form: lambda x: torch.nn.functional.gelu(x, approximate=form),
                        [p for p in ALL if not isinf(p[0]) and p[0] > -3]))  # fmt: skip
    for slope in (0.0, -0.5):
        out.append(Case(f"functional.leaky_relu(x, {slope})", lambda x, s=slope: F.leaky_relu(x, s),
                        lambda torch, s=slope: lambda x: torch.nn.functional.leaky_relu(x, s), ALL))  # fmt: skip
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (None, 1.0), (0.0, None), (2.0, 1.0), (1.0, 1.0)):
        at = _unary(0.0, 1.0, 2.0, nan) if (low, high) == (0.0, 1.0) else ()
        out.append(Case(f"functional.clamp(x, {low}, {high})", lambda x, a=low, b=high: F.clamp(x, a, b),
                        lambda torch, a=low, b=high: lambda x: torch.clamp(x, a, b), ALL, at))  # fmt: skip
    poles = ((0.0, 2.0), (0.0, 0.0), (1.0, 0.0), (2.0, 3.0))
    out.append(Case("functional.xlogy", F.xlogy, lambda torch: torch.xlogy, poles, poles[:3], _limit))
    far = ((0.0, 0.0), (1.0, inf), (inf, inf), (1.0, 2.0))
    out.append(Case("functional.atan2", F.atan2, lambda torch: torch.atan2, far, far[:3], _limit))
    for n in ("maximum", "minimum"):
        out.append(Case(f"functional.{n}", getattr(F, n), lambda torch, n=n: getattr(torch, n), ALL_PAIRS))
    return out


ROWS = ([3.0, 1.0, 3.0], [1.0, 1.0, 1.0], [-inf, -inf, -inf], [inf, 1.0, inf], [1.0, 2.0, nan], [nan, 1.0, nan],
        [0.0, -0.0, 0.0], [2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [1.0, inf, 0.0], [nan, 0.0, 0.0], [inf, -inf, 1.0],
        [5.0])  # fmt: skip
SETS = [(tuple(r),) for r in ROWS]
TIES = [((3.0, 1.0, 3.0),), ((nan, 1.0, nan),)]


def _prod(order: int, wrt: int, at: tuple) -> str | None:
    odd = [x for x in at[0] if isnan(x) or isinf(x)]
    return PROD_QUOTIENT if odd and order else None


def _no_terms(order: int, wrt: int, at: tuple) -> str | None:
    return FAR if order and max(at[0]) == -inf else None


def _amax(order: int, wrt: int, at: tuple) -> str | None:
    return NAN_AMAX if order == 1 and any(map(isnan, at[0])) else None


def _reductions() -> list[Case]:
    zeros = [((2.0, 0.0, 3.0),), ((0.0, 0.0, 3.0),), ((1.0, inf, 0.0),)]
    out = [
        Case(f"{n}[i](x[i])", f"y[] = {n}[i](x[i])", peer, SETS, shown, differs, elementwise=False)
        for n, peer, shown, differs in (
            ("max", lambda torch: lambda x: x.max(0)[0], TIES, lambda *_: None),
            ("min", lambda torch: lambda x: x.min(0)[0], TIES[:1], lambda *_: None),
            ("sum", lambda torch: torch.sum, [((inf, -inf, 1.0),)], lambda *_: None),
            ("mean", lambda torch: torch.mean, (), lambda *_: None),
            ("prod", lambda torch: torch.prod, zeros, _prod),
            ("logsumexp", lambda torch: lambda x: torch.logsumexp(x, 0), [((-inf, -inf, -inf),)], _no_terms),
        )
    ]
    for n in ("amax", "amin", "max", "min"):
        out.append(Case(f"functional.{n}(x)", getattr(F, n), lambda torch, n=n: getattr(torch, n), SETS, TIES,
                        _amax if n[0] == "a" else lambda *_: None, elementwise=False))  # fmt: skip
    for n in ("softmax", "log_softmax"):
        out.append(Case(
            f"functional.{n}(x, 0)", lambda x, n=n: getattr(F, n)(x, 0),
            lambda torch, n=n: lambda x: getattr(torch.nn.functional, n)(x, 0), SETS, elementwise=False,
        ))  # fmt: skip
    zeros = [((0.0, 0.0),), ((3.0, 4.0),)]
    for text, mine, peer in (
        ("norm(x)", F.norm, lambda torch: torch.linalg.vector_norm),
        ("normalize(x, dim=0)", lambda x: F.normalize(x, dim=0), lambda torch: lambda x: torch.nn.functional.normalize(
            x, dim=0)),
    ):  # fmt: skip
        out.append(Case(f"functional.{text}", mine, peer, zeros, zeros[:1], _limit, elementwise=False))
    running = [((3.0, 1.0, 3.0, 5.0, 5.0),), ((1.0, 2.0),)]
    out.append(Case(
        "c[i] = where(i > 0, c[i-1], 0) + x[i]", "c[i] = where(i > 0, c[i-1], 0) + x[i]",
        lambda torch: lambda x: torch.cumsum(x, 0), [*running, ((1.0, inf, -inf, 1.0),), ((1.0, nan, 2.0),)],
        [((1.0, inf, -inf, 1.0),)], elementwise=False,
    ))  # fmt: skip
    out.append(Case(
        "c[i] = where(i > 0, c[i-1], 1) * x[i]", "c[i] = where(i > 0, c[i-1], 1) * x[i]",
        lambda torch: lambda x: torch.cumprod(x, 0), [*running, ((2.0, 0.0, 3.0, 0.0, 4.0),)],
        [((2.0, 0.0, 3.0),)], elementwise=False,
    ))  # fmt: skip
    out.append(Case(
        "c[i] = where(i > 0, max(c[i-1], x[i]), x[i])", "c[i] = where(i > 0, max(c[i-1], x[i]), x[i])",
        lambda torch: lambda x: torch.stack(_running_max(torch, x)), [*running, ((1.0, nan, 2.0),)],
        [((3.0, 1.0, 3.0),)], elementwise=False,
    ))  # fmt: skip
    return out


def _running_max(torch: Any, x: Any) -> list[Any]:
    out = [x[0]]
    for v in x[1:]:
        out.append(torch.maximum(out[-1], v))
    return out


CASES = [
    *(Case(f"{n}(x)", f"y[i] = {n}(x[i])", _peer_of(n),
           [p for p in ALL if p[0] != 20 or n != "softplus"],  # from where on PyTorch's is x itself
           _unary(*shown), _sign if n == "sign" else lambda *_: None) for n, shown in UNARY.items()),
    *BINARY, *_powers(), *_with_constants(), *_functional(), *_reductions(),
]  # fmt: skip


# ------------------------------------------------------------------------------------------------------- evaluation


def _batches(case: Case) -> list[tuple[list[tuple], list[np.ndarray]]]:
    """The points of a case by call: all at once where the function is elementwise, else one at a time."""
    if case.elementwise:
        return [(list(case.points), [np.array(c) for c in zip(*case.points, strict=True)])]
    return [([p], [np.array(x) for x in p]) for p in case.points]


def _weights(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.arange(1, int(np.prod(shape)) + 1).reshape(shape).astype(dtype)


def ours(case: Case, wrt: int, arrays: Sequence[np.ndarray], wrap: Callable = es.jit) -> list[np.ndarray]:
    """Value, gradient and gradient of the gradient by argument `wrt`; sums are weighted where elements share one."""
    f = case.function()

    def weighted(y: Any) -> Any:
        return y.sum() if case.elementwise else (y * _weights(y.shape, arrays[0].dtype)).sum()

    first = es.grad(lambda *a: weighted(f(*a)), argnums=wrt)
    second = es.grad(lambda *a: weighted(first(*a)), argnums=wrt)
    return [np.asarray(wrap(g)(*arrays)) for g in (lambda *a: f(*a), first, second)]


def theirs(torch: Any, case: Case, wrt: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same by PyTorch; what does not depend on the argument has zeros."""
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = case.peer(torch)(*leaves)
    out = [y]
    for _ in range(2):
        total = y.sum() if case.elementwise else (y * torch.tensor(_weights(tuple(y.shape), arrays[0].dtype))).sum()
        g = None
        if total.requires_grad:
            (g,) = torch.autograd.grad(total, [leaves[wrt]], create_graph=True, allow_unused=True)
        y = torch.zeros_like(leaves[wrt]) if g is None else g
        out.append(y)
    return [t.detach().numpy(force=True) for t in out]


@dataclass(frozen=True)
class Found:
    """Value, first and second derivative by one argument at one point."""

    at: tuple
    wrt: int
    ours: tuple[np.ndarray, ...]
    evaluator: tuple[np.ndarray, ...]
    theirs: tuple[np.ndarray, ...]


def compare(torch: Any, case: Case, dtype: Any = np.float32) -> list[Found]:
    """What all give at every point, by every argument; the evaluator, which computes in float64, of float64."""
    out = []
    for points, arrays in _batches(case):
        arrays = [a.astype(dtype) for a in arrays]
        for wrt in range(len(arrays)):
            evaluated = ours(case, wrt, arrays, es.interpret) if dtype == np.float64 else []
            results = (ours(case, wrt, arrays), evaluated, theirs(torch, case, wrt, arrays))
            for n, p in enumerate(points):
                at = [tuple(r[n] if case.elementwise else r for r in rs) for rs in results]
                out.append(Found(p, wrt, *at))
    return out


def same(a: np.ndarray, b: np.ndarray, dtype: Any) -> bool:
    """Whether two results agree to rounding, NaN and infinities exactly; a zero has no sign."""
    tol = 3e-5 if dtype == np.float32 else 1e-12
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=tol, atol=tol * 0.03, equal_nan=True))
