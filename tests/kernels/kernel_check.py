"""Small kernels, and the check that every configuration of a pattern agrees with the evaluator."""

from __future__ import annotations

import numpy as np

from einsmith import dtypes as dt
from einsmith.expr.interp import evaluate_template
from einsmith.expr.kernel import Buffer, Kernel, Stage
from einsmith.expr.nodes import Apply, Axis, Const, Expr, Read, Template, apply, template
from einsmith.target.facts import Target
from tests.nest_interp import run

NARROW = Target(vector_bytes=16, cores=2)
WIDE = Target(vector_bytes=64, cores=2)


def axes(n: int) -> list[Axis]:
    return [Axis(i) for i in range(n)]


def num(x: float, dtype: dt.DType = dt.f32) -> Const:
    return Const(x, dtype)


def int_(x: Expr | int) -> Expr:
    return Const(x, dt.i32) if isinstance(x, int) else x


def add(a, b) -> Apply:
    return apply("add", int_(a), int_(b))


def sub(a, b) -> Apply:
    return apply("sub", int_(a), int_(b))


def mul(a, b) -> Apply:
    return apply("mul", int_(a), int_(b))


def div(a, k: int) -> Apply:
    return apply("floordiv", int_(a), int_(k))


def mod(a, k: int) -> Apply:
    return apply("mod", int_(a), int_(k))


def both(*conds: Expr) -> Expr:
    out = conds[0]
    for c in conds[1:]:
        out = apply("and", out, c)
    return out


def le(a, b) -> Apply:
    return apply("le", int_(a), int_(b))


def lt(a, b) -> Apply:
    return apply("lt", int_(a), int_(b))


def read(slot: int, *index, dtype: dt.DType = dt.f32) -> Read:
    return Read(slot, tuple(int_(i) for i in index), dtype)


def kernel_of(t: Template) -> Kernel:
    """One template, its arguments and then its results as buffers."""
    buffers = [Buffer(d, s) for d, s in t.params] + [Buffer(d, t.shape) for d in t.dtypes]
    n = len(t.params)
    outputs = tuple(range(n, n + len(t.dtypes)))
    return Kernel((Stage(t, tuple(("buffer", i) for i in range(n)), outputs),), tuple(buffers))


def random_array(rng: np.random.Generator, buffer: Buffer) -> np.ndarray:
    if buffer.dtype.is_float:
        return rng.standard_normal(buffer.shape).astype(buffer.dtype.numpy)
    if buffer.dtype.is_bool:
        return rng.integers(0, 2, buffer.shape).astype(bool)
    return rng.integers(-5, 6, buffer.shape).astype(buffer.dtype.numpy)


def reference(kernel: Kernel, arrays: list[np.ndarray]) -> dict[int, np.ndarray]:
    """What each written buffer must hold, by the evaluator."""
    results: list[tuple[np.ndarray, ...]] = []
    out = {}
    for stage in kernel.stages:
        args = [arrays[w[0]] if kind == "buffer" else results[w[0]][w[1]] for kind, *w in stage.args]
        results.append(evaluate_template(stage.template, args))
        for member, buffer in enumerate(stage.outputs):
            if buffer is not None:
                out[buffer] = results[-1][member]
    return out


def check(pattern, kernel: Kernel, rng: np.random.Generator, targets=(NARROW, WIDE), inputs=None, tolerance=2e-5,
          configs=None) -> int:
    """Runs every configuration; returns how many. Integers must agree exactly."""
    assert pattern.match(kernel)
    base = [random_array(rng, b) for b in kernel.buffers]
    for i, a in enumerate(inputs or []):
        if a is not None:
            base[i] = np.ascontiguousarray(a)
    want = reference(kernel, base)
    read_only = {n for n in range(len(base)) if n not in want}
    count = 0
    for target in targets:
        for config in configs or pattern.configs(kernel, target):
            assert pattern.cost(kernel, config, target).seconds > 0
            arrays = [a.copy() for a in base]
            run(pattern.lower(kernel, config, target), kernel, arrays, reverse=count % 2 == 1)
            for n, expected in want.items():
                got = arrays[n]
                if got.dtype.kind == "f":
                    scale = np.nanmax(np.abs(np.where(np.isfinite(expected), expected, 0)), initial=1.0)
                    np.testing.assert_allclose(
                        got, expected, rtol=tolerance, atol=tolerance * scale, err_msg=f"{config} buffer {n}"
                    )
                else:
                    np.testing.assert_array_equal(got, expected, err_msg=f"{config} buffer {n}")
            for n in read_only:
                np.testing.assert_array_equal(arrays[n], base[n])
            count += 1
    assert count
    return count


def plain(shape, params, body) -> Kernel:
    return kernel_of(template(shape, params, body))
