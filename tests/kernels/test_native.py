"""Chosen configurations as machine code against the evaluator: the whole way from a kernel to its numbers."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from einsmith import dtypes as dt
from einsmith.codegen import native
from einsmith.expr.kernel import Kernel
from einsmith.expr.nodes import Piece, Reduce, Scatter, Template, apply
from einsmith.kernels import autoconfig
from einsmith.kernels.kernel import Lowered
from einsmith.target.facts import host
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

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def run_native(lowered: Lowered, arrays: list[np.ndarray]) -> None:
    addresses = native.compile_functions([x.function for x in lowered.launches], host())
    workspace = np.full(lowered.workspace + 64, 0xFF, np.uint8)
    pointers = np.array([a.ctypes.data for a in (*arrays, workspace)], np.uint64)
    for launch in lowered.launches:
        scratch = np.full(launch.function.scratch_bytes + 64, 0xFF, np.uint8)
        function = _SIGNATURE(addresses[launch.function.name])
        for task in range(launch.tasks):
            function(pointers.ctypes.data, scratch.ctypes.data + -scratch.ctypes.data % 64, task)


def _bias_relu() -> Kernel:
    b, c, h, w = axes(4)
    shape = (17, 6, 13, 9)
    body = apply("max", apply("add", read(0, b, c, h, w), read(1, c)), num(0.0))
    return plain(shape, [(dt.f32, shape), (dt.f32, (6,))], body)


def _activations() -> Kernel:
    i, j = axes(2)
    x = read(0, i, j)
    body = apply("add", apply("tanh", x), apply("mul", apply("sigmoid", x), apply("log", apply("abs", x))))
    return plain((31, 37), [(dt.f32, (31, 37))], body)


def _pool_backward() -> Kernel:
    b, h, w = axes(3)
    picked = apply("eq", read(0, b, div(h, 2), div(w, 2), dtype=dt.i32), add(mul(mod(h, 2), 2), mod(w, 2)))
    body = apply("where", picked, read(1, b, div(h, 2), div(w, 2)), num(0.0))
    return plain((19, 28, 28), [(dt.i32, (19, 14, 14)), (dt.f32, (19, 14, 14))], body)


def _pool(combiner: str) -> Kernel:
    b, y, x, r, s = axes(5)
    body = read(0, b, add(mul(2, y), r), add(mul(2, x), s))
    return plain((23, 14, 14), [(dt.f32, (23, 28, 28))], Reduce(combiner, (2, 2), (body,)))


def _halo() -> Kernel:
    b, y, x, r, s = axes(5)
    iy, ix = sub(add(y, r), 1), sub(add(x, s), 1)
    inside = both(le(0, iy), lt(iy, 17), le(0, ix), lt(ix, 17))
    body = apply("where", inside, read(0, b, iy, ix), num(0.0))
    return plain((5, 17, 17), [(dt.f32, (5, 17, 17))], Reduce("sum", (3, 3), (body,)))


def _rows(n: int) -> Kernel:
    i, r = axes(2)
    body = apply("exp", apply("sub", read(0, i, r), read(1, i)))
    return plain((67,), [(dt.f32, (67, n)), (dt.f32, (67,))], Reduce("sum", (n,), (body,)))


def _whole() -> Kernel:
    i, r, s = axes(3)
    return plain((3,), [(dt.f32, (300, 3, 401))], Reduce("sum", (300, 401), (read(0, r, i, s),)))


def _phases() -> Kernel:
    i, j, r = axes(3)
    parts = (
        Piece((0, 0), (1, 2), (5, 40), Reduce("sum", (3,), (read(0, i, add(j, r)),))),
        Piece((0, 1), (1, 2), (5, 40), Reduce("sum", (2,), (apply("neg", read(0, i, add(j, r))),))),
    )
    return kernel_of(Template((5, 80), ((dt.f32, (5, 42)),), parts))


def _embedding() -> Kernel:
    t, d = axes(2)
    s = Scatter((90, 35), (mod(mul(t, 7), 11), d), read(0, t, d))
    return kernel_of(Template((11, 35), ((dt.f32, (90, 35)),), (s,)))


def _mixed() -> Kernel:
    i, j = axes(2)
    wide = apply("mul", read(0, i, sub(44, j), dtype=dt.f64), apply("sin", read(1, j, dtype=dt.f64)))
    body = apply("where", read(2, i, dtype=dt.bool_), wide, read(0, i, j, dtype=dt.f64))
    return plain((7, 45), [(dt.f64, (7, 45)), (dt.f64, (45,)), (dt.bool_, (7,))], body)


def _max_plus(combiner: str, turned: bool) -> Kernel:
    i, j, r = axes(3)
    m, n, k = 37, 131, 45
    other = read(1, j, r) if turned else read(1, r, j)
    params = [(dt.f32, (m, k)), (dt.f32, (n, k) if turned else (k, n))]
    return plain((m, n), params, Reduce(combiner, (k,), (apply("add", read(0, i, r), other),)))


def _transpose() -> Kernel:
    i, j, k = axes(3)
    body = apply("add", read(0, k, i, j), read(1, i, j, k))
    return plain((5, 67, 45), [(dt.f32, (45, 5, 67)), (dt.f32, (5, 67, 45))], body)


def _diagonals() -> Kernel:
    i, h, r = axes(3)
    row = sub(r, sub(i, 40))
    body = apply("where", both(le(0, row), lt(row, 41)), read(0, h, row, r), num(0.0))
    return plain((81, 3), [(dt.f32, (3, 41, 41))], Reduce("sum", (41,), (body,)))


CASES = {
    "bias_relu": _bias_relu(),
    "activations": _activations(),
    "pool_backward": _pool_backward(),
    "max_pool": _pool("max"),
    "argmax_pool": _pool("argmax"),
    "halo": _halo(),
    "rows_10": _rows(10),
    "rows_1001": _rows(1001),
    "whole": _whole(),
    "phases": _phases(),
    "embedding": _embedding(),
    "mixed_types": _mixed(),
    "max_plus": _max_plus("max", False),
    "argmax_plus": _max_plus("argmax", False),
    "max_plus_of_rows": _max_plus("max", True),
    "transpose": _transpose(),
    "diagonals": _diagonals(),
}


@pytest.mark.parametrize("name", CASES)
def test_chosen_and_last_configuration(rng, name):
    kernel = CASES[name]
    base = [random_array(rng, b) for b in kernel.buffers]
    want = reference(kernel, base)
    chosen = autoconfig.choose(kernel, host())
    configs = [chosen.config, chosen.pattern.configs(kernel, host())[-1]]
    for config in dict.fromkeys(configs):
        arrays = [a.copy() for a in base]
        run_native(chosen.pattern.lower(kernel, config, host()), arrays)
        for n, expected in want.items():
            scale = np.abs(expected).max()
            np.testing.assert_allclose(arrays[n], expected, rtol=3e-5, atol=3e-6 * scale, err_msg=str(config))
