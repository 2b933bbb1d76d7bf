"""Small kernels of every pattern, to be lowered for processors other than this one, and what they must give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from einsmith import dtypes as dt
from einsmith.expr.kernel import Kernel
from einsmith.expr.nodes import Axis, Const, Expr, Piece, Reduce, Scatter, Template, apply, cast
from einsmith.kernels import autoconfig
from einsmith.kernels.kernel import Lowered
from einsmith.target.facts import Target
from tests.kernels.kernel_check import (
    add,
    axes,
    both,
    div,
    kernel_of,
    le,
    lt,
    mod,
    mul,
    num,
    plain,
    random_array,
    read,
    reference,
    sub,
)


def _bias_relu(n: int) -> Kernel:
    b, c, x = axes(3)
    body = apply("max", apply("add", read(0, b, c, x), read(1, c)), num(0.0))
    return plain((3, 5, n), [(dt.f32, (3, 5, n)), (dt.f32, (5,))], body)


def _functions(dtype: dt.DType) -> Kernel:
    i, j = axes(2)
    x, y = read(0, i, j, dtype=dtype), read(1, j, dtype=dtype)
    size = apply("add", apply("abs", x), num(0.25, dtype))
    parts: list[Expr] = [apply(f, x) for f in ("exp", "tanh", "sigmoid", "erf", "sin", "cos", "floor", "sign", "neg")]
    parts += [apply(f, size) for f in ("log", "sqrt", "rsqrt")]
    parts += [apply("pow", size, y), apply("mod", x, size), apply("floordiv", x, size), apply("div", x, size)]
    parts += [apply("min", x, y), apply("max", x, y)]
    body = parts[0]
    for n, part in enumerate(parts[1:]):
        body = apply("add", body, apply("mul", part, num(1 + n / 8, dtype)))
    return plain((5, 13), [(dtype, (5, 13)), (dtype, (13,))], body)


def _types() -> Kernel:
    i, j = axes(2)
    wide = apply("mul", read(0, i, sub(44, j), dtype=dt.f64), read(1, j, dtype=dt.f64))
    small = cast(read(3, i, j, dtype=dt.i8), dt.f64)
    body = apply("where", read(2, i, j, dtype=dt.bool_), wide, small)
    params = [(dt.f64, (7, 45)), (dt.f64, (45,)), (dt.bool_, (7, 45)), (dt.i8, (7, 45))]
    return plain((7, 45), params, body)


def _integers(dtype: dt.DType) -> Kernel:
    i, j = axes(2)
    x, y = read(0, i, j, dtype=dtype), read(1, j, dtype=dtype)
    body = apply("add", apply("floordiv", x, Const(3, dtype)), apply("mul", apply("mod", x, Const(4, dtype)), y))
    return plain((5, 19), [(dtype, (5, 19)), (dtype, (19,))], apply("max", body, apply("floordiv", x, y)))


def _flags() -> Kernel:
    i, j = axes(2)
    x, y = read(0, i, j), read(1, j, i)
    body = apply("or", apply("lt", x, y), apply("and", apply("ne", x, x), apply("not", apply("le", y, x))))
    return plain((9, 21), [(dt.f32, (9, 21)), (dt.f32, (21, 9))], body)


def _transpose() -> Kernel:
    i, j = axes(2)
    return plain((17, 23), [(dt.f32, (23, 17))], read(0, j, i))


def _gather() -> Kernel:
    i, j = axes(2)
    return plain((9, 20), [(dt.f32, (6, 20)), (dt.i32, (9,))], read(0, read(1, i, dtype=dt.i32), j))


def _pool_backward() -> Kernel:
    b, h, w = axes(3)
    picked = apply("eq", read(0, b, div(h, 2), div(w, 2), dtype=dt.i32), add(mul(mod(h, 2), 2), mod(w, 2)))
    body = apply("where", picked, read(1, b, div(h, 2), div(w, 2)), num(0.0))
    return plain((3, 10, 14), [(dt.i32, (3, 5, 7)), (dt.f32, (3, 5, 7))], body)


def _pool(combiner: str) -> Kernel:
    b, y, x, r, s = axes(5)
    body = read(0, b, add(mul(2, y), r), add(mul(2, x), s))
    return plain((3, 5, 9), [(dt.f32, (3, 10, 18))], Reduce(combiner, (2, 2), (body,)))


def _halo() -> Kernel:
    b, y, x, r, s = axes(5)
    iy, ix = sub(add(y, r), 1), sub(add(x, s), 1)
    inside = both(le(0, iy), lt(iy, 11), le(0, ix), lt(ix, 11))
    body = apply("where", inside, read(0, b, iy, ix), num(0.0))
    return plain((2, 11, 11), [(dt.f32, (2, 11, 11))], Reduce("sum", (3, 3), (body,)))


def _rows(combiner: str, n: int, dtype: dt.DType = dt.f32) -> Kernel:
    i, r = axes(2)
    return plain((7,), [(dtype, (7, n))], Reduce(combiner, (n,), (read(0, i, r, dtype=dtype),)))


def _columns(combiner: str, n: int) -> Kernel:
    i, r = axes(2)
    return plain((n,), [(dt.f32, (11, n))], Reduce(combiner, (11,), (read(0, r, i),)))


def _softmax_sums(n: int) -> Kernel:
    i, r = axes(2)
    body = apply("exp", apply("sub", read(0, i, r), read(1, i)))
    return plain((5,), [(dt.f32, (5, n)), (dt.f32, (5,))], Reduce("sum", (n,), (body,)))


def _whole() -> Kernel:
    i, r, s = axes(3)
    return plain((3,), [(dt.f32, (30, 3, 41))], Reduce("sum", (30, 41), (read(0, r, i, s),)))


def _statistics() -> Kernel:
    c, b, x = axes(3)
    v = read(0, b, c, x)
    total = Reduce("sum", (4, 37), (v, apply("mul", v, v)))
    return kernel_of(Template((6,), ((dt.f32, (4, 6, 37)),), (Piece((0,), (1,), (6,), total),)))


def _embedding() -> Kernel:
    t, d = axes(2)
    s = Scatter((20, 35), (mod(mul(t, 7), 11), d), read(0, t, d))
    return kernel_of(Template((11, 35), ((dt.f32, (20, 35)),), (s,)))


def _sum(shape, params, extents, body) -> Kernel:
    return plain(shape, params, Reduce("sum", extents, (body,)))


def _product(m: int, n: int, k: int, kind: str, dtype: dt.DType = dt.f32) -> Kernel:
    i, j, r = axes(3)
    a = read(0, i, r, dtype=dtype) if kind[0] == "N" else read(0, r, i, dtype=dtype)
    b = read(1, r, j, dtype=dtype) if kind[1] == "N" else read(1, j, r, dtype=dtype)
    shapes = [(m, k) if kind[0] == "N" else (k, m), (k, n) if kind[1] == "N" else (n, k)]
    return _sum((m, n), [(dtype, s) for s in shapes], (k,), apply("mul", a, b))


def _inside(x: Expr, n: int) -> Expr:
    return both(le(0, x), lt(x, n))


def _conv(direction: str, stride: int = 1) -> Kernel:
    """A 3x3 convolution of 9x10 pictures, 3 to 5 channels, padded by 1; its two gradients (stride 1)."""
    n, c, o, h, w = 2, 3, 5, 9, 10
    p, q = (h - 1) // stride + 1, (w - 1) // stride + 1
    picture, taps, result = (n, c, h, w), (o, c, 3, 3), (n, o, p, q)
    a = [Axis(x) for x in range(7)]
    if direction == "forward":
        y, x = sub(add(mul(stride, a[2]), a[5]), 1), sub(add(mul(stride, a[3]), a[6]), 1)
        body = apply("mul", read(0, a[0], a[4], y, x), read(1, a[1], a[4], a[5], a[6]))
        shape, params, extents, top = result, (picture, taps), (c, 3, 3), (h, w)
    elif direction == "dx":
        y, x = add(sub(a[2], a[5]), 1), add(sub(a[3], a[6]), 1)
        body = apply("mul", read(0, a[0], a[4], y, x), read(1, a[4], a[1], a[5], a[6]))
        shape, params, extents, top = picture, (result, taps), (o, 3, 3), (p, q)
    else:
        y, x = sub(add(a[5], a[2]), 1), sub(add(a[6], a[3]), 1)
        body = apply("mul", read(0, a[4], a[0], a[5], a[6]), read(1, a[4], a[1], y, x))
        shape, params, extents, top = taps, (result, picture), (n, p, q), (h, w)
    guard = both(_inside(y, top[0]), _inside(x, top[1]))
    return _sum(shape, [(dt.f32, s) for s in params], extents, apply("where", guard, body, num(0.0)))


def _depthwise() -> Kernel:
    a = axes(6)
    body = apply("mul", read(0, a[0], a[1], add(a[2], a[4]), add(a[3], a[5])), read(1, a[1], a[4], a[5]))
    return _sum((2, 3, 6, 7), [(dt.f32, (2, 3, 8, 9)), (dt.f32, (3, 3, 3))], (3, 3), body)


def _capsule() -> Kernel:
    a = axes(10)
    pose = read(0, a[0], a[6], add(a[2], a[7]), add(a[3], a[8]), a[4], a[9])
    body = apply("mul", pose, read(1, a[1], a[6], a[7], a[8], a[9], a[5]))
    return _sum((1, 3, 4, 4, 4, 4), [(dt.f32, (1, 2, 6, 6, 4, 4)), (dt.f32, (3, 2, 3, 3, 4, 4))], (2, 3, 3, 4), body)


CASES: dict[str, dict[str, Callable[[], Kernel]]] = {
    "pointwise": {
        **{f"bias_relu_{n}": (lambda n=n: _bias_relu(n)) for n in (1, 4, 7, 17, 64)},
        "functions_f32": lambda: _functions(dt.f32), "functions_f64": lambda: _functions(dt.f64), "types": _types,
        **{f"integers_{d.name}": (lambda d=d: _integers(d)) for d in (dt.i32, dt.i64)},
        "flags": _flags, "transpose": _transpose, "gather": _gather, "pool_backward": _pool_backward,
    },
    "reduction": {
        **{f"{c}_rows_{n}": (lambda c=c, n=n: _rows(c, n)) for c in ("sum", "argmax") for n in (1, 3, 16, 37)},
        **{f"{c}_columns_{n}": (lambda c=c, n=n: _columns(c, n)) for c in ("max", "argmin") for n in (1, 5, 33)},
        "prod_f64": lambda: _rows("prod", 19, dt.f64), "argmax_i32": lambda: _rows("argmax", 19, dt.i32),
        "max_pool": lambda: _pool("max"), "argmax_pool": lambda: _pool("argmax"), "halo": _halo,
        "softmax_sums": lambda: _softmax_sums(45), "whole": _whole, "statistics": _statistics,
    },
    "contraction": {
        **{f"product_{t}_{'x'.join(map(str, s))}": (lambda s=s, t=t: _product(*s, t))
           for t, s in (("NN", (17, 31, 13)), ("NT", (9, 33, 21)), ("TN", (15, 16, 5)), ("TT", (7, 18, 3)),
                        ("NN", (1, 19, 40)), ("NN", (23, 1, 17)), ("NN", (1, 1, 7)), ("NT", (6, 4, 301)))},
        "product_f64": lambda: _product(9, 17, 7, "NT", dt.f64),
        "conv": lambda: _conv("forward"), "conv_strided": lambda: _conv("forward", 2), "conv_dx": lambda: _conv("dx"),
        "conv_dw": lambda: _conv("dw"), "depthwise": _depthwise, "capsule": _capsule,
    },
    "scatter": {"embedding": _embedding},
}  # fmt: skip


class Run(NamedTuple):
    """One kernel in one configuration: its launches, fresh arrays, and what its results must be."""

    name: str
    lowered: Lowered
    arrays: list[np.ndarray]
    want: dict[int, np.ndarray]

    def check(self) -> None:
        """The arrays hold the results."""
        for n, expected in self.want.items():
            got = self.arrays[n]
            if got.dtype.kind == "f":
                scale = np.abs(expected).max(initial=1.0)
                np.testing.assert_allclose(got, expected, rtol=3e-5, atol=1e-5 * scale, err_msg=f"{self.name} {n}")
            else:
                np.testing.assert_array_equal(got, expected, err_msg=f"{self.name} buffer {n}")


def runs(group: str, target: Target, rng: np.random.Generator, count: int = 4) -> Iterator[Run]:
    """Each kernel of a group, by every pattern that takes it, in up to `count` configurations spread over its list."""
    for name, make in CASES[group].items():
        kernel = make()
        base = [random_array(rng, b) for b in kernel.buffers]
        if name == "gather":
            base[1] = rng.integers(0, 6, base[1].shape).astype(np.int32)
        if name.startswith("integers"):
            base[1][base[1] == 0] = 7
        want = reference(kernel, base)
        taken = [pattern for pattern in autoconfig.PATTERNS if pattern.match(kernel)]
        assert group in {pattern.name for pattern in taken}, f"{name} is no {group}"
        for pattern in taken:
            configs = list(pattern.configs(kernel, target))
            picked = sorted({round(x) for x in np.linspace(0, len(configs) - 1, min(count, len(configs)))})
            for n in picked:
                lowered = pattern.lower(kernel, configs[n], target)
                yield Run(f"{pattern.name} {name} {configs[n]}", lowered, [a.copy() for a in base], want)


def renamed(items: list[Run]) -> list[Run]:
    """The same runs, every function with a name of its own."""
    out = []
    for n, item in enumerate(items):
        launches = [
            replace(x, function=replace(x.function, name=f"kernel_{n}_{m}"))
            for m, x in enumerate(item.lowered.launches)
        ]
        out.append(item._replace(lowered=replace(item.lowered, launches=launches)))
    return out
