"""Short names for expressions, and small kernels of every kind, at whatever sizes a test wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.ir.functions import identity
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Piece, Read, Reduce, Scatter, Template, apply, cast, template
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage

F = dt.f32


def axes(n: int) -> list[Axis]:
    return [Axis(i) for i in range(n)]


def num(x: float, dtype: dt.DType = F) -> Const:
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


def inside(x: Expr, n: int) -> Apply:
    return apply("and", le(0, x), lt(x, n))


def zero_unless(guard: Expr, x: Expr) -> Apply:
    return apply("where", guard, x, Const(0.0, x.dtype))


def times(*factors: Expr) -> Expr:
    out = factors[0]
    for f in factors[1:]:
        out = apply("mul", out, f)
    return out


def lin(*terms: tuple[int, int], const: int = 0) -> Expr:
    """The sum of coefficient * axis over the terms, and a constant."""
    out: Expr | None = None
    for c, a in terms:
        t = Axis(a) if c == 1 else mul(c, Axis(a))
        out = t if out is None else add(out, t)
    assert out is not None
    return add(out, const) if const else out


def read(slot: int, *index, dtype: dt.DType = F) -> Read:
    """An element of an argument; whole numbers of the index are themselves."""
    return Read(slot, tuple(int_(i) for i in index), dtype)


def load(slot: int, *index, dtype: dt.DType = F) -> Read:
    """An element of an argument; whole numbers of the index are positions of axes."""
    return Read(slot, tuple(Axis(i) if isinstance(i, int) else i for i in index), dtype)


def over(combiner: str, extents: Sequence[int], *bodies: Expr) -> Reduce:
    return Reduce(combiner, tuple(extents), bodies)


def kernel_of(t: Template) -> Kernel:
    """One template, its arguments and then its results as buffers."""
    buffers = [KernelBuffer(d, s) for d, s in t.params] + [KernelBuffer(d, t.shape) for d in t.dtypes]
    n = len(t.params)
    outputs = tuple(range(n, n + len(t.dtypes)))
    return Kernel((Stage(t, tuple(("buffer", i) for i in range(n)), outputs),), tuple(buffers))


def plain(shape, params, body) -> Kernel:
    return kernel_of(template(shape, params, body))


def sum_of(shape, params, extents, body) -> Kernel:
    return plain(shape, params, over("sum", extents, body))


# ------------------------------------------------------------------------------------------------- sums of products


def product(m: int, n: int, k: int, kind: str = "NN", dtype: dt.DType = F) -> Kernel:
    a = load(0, 0, 2, dtype=dtype) if kind[0] == "N" else load(0, 2, 0, dtype=dtype)
    b = load(1, 2, 1, dtype=dtype) if kind[1] == "N" else load(1, 1, 2, dtype=dtype)
    shapes = ((m, k) if kind[0] == "N" else (k, m), (k, n) if kind[1] == "N" else (n, k))
    return sum_of((m, n), tuple((dtype, s) for s in shapes), (k,), times(a, b))


def batched(b: int, m: int, n: int, k: int) -> Kernel:
    return sum_of((b, m, n), ((F, (b, m, k)), (F, (b, k, n))), (k,), times(load(0, 0, 1, 3), load(1, 0, 3, 2)))


def conv(b, c, h, w, o, r, s, pad, stride=1) -> Kernel:
    """A guard around the product: terms in the border are skipped."""
    p, q = (h + 2 * pad - r) // stride + 1, (w + 2 * pad - s) // stride + 1
    y, x = lin((stride, 2), (1, 5), const=-pad), lin((stride, 3), (1, 6), const=-pad)
    body = times(load(0, 0, 4, y, x), load(1, 1, 4, 5, 6))
    if pad:
        body = zero_unless(apply("and", inside(y, h), inside(x, w)), body)
    return sum_of((b, o, p, q), ((F, (b, c, h, w)), (F, (o, c, r, s))), (c, r, s), body)


def padded_conv(b, c, h, w, o, r, s, pad, stride=1) -> Kernel:
    """A guard around the image: what is read in the border is zero."""
    p, q = (h + 2 * pad - r) // stride + 1, (w + 2 * pad - s) // stride + 1
    y, x = lin((stride, 2), (1, 5), const=-pad), lin((stride, 3), (1, 6), const=-pad)
    body = times(zero_unless(both(inside(y, h), inside(x, w)), load(0, 0, 4, y, x)), load(1, 1, 4, 5, 6))
    return sum_of((b, o, p, q), ((F, (b, c, h, w)), (F, (o, c, r, s))), (c, r, s), body)


def conv_dx(b, c, h, w, o, r, s, pad) -> Kernel:
    p, q = h + 2 * pad - r + 1, w + 2 * pad - s + 1
    y, x = lin((1, 2), (-1, 5), const=pad), lin((1, 3), (-1, 6), const=pad)
    guard = apply("and", inside(y, p), inside(x, q))
    body = zero_unless(guard, times(load(0, 0, 4, y, x), load(1, 4, 1, 5, 6)))
    return sum_of((b, c, h, w), ((F, (b, o, p, q)), (F, (o, c, r, s))), (o, r, s), body)


def conv_dw(b, c, h, w, o, r, s, pad) -> Kernel:
    p, q = h + 2 * pad - r + 1, w + 2 * pad - s + 1
    y, x = lin((1, 5), (1, 2), const=-pad), lin((1, 6), (1, 3), const=-pad)
    body = times(load(0, 4, 0, 5, 6), load(1, 4, 1, y, x))
    if pad:
        body = zero_unless(apply("and", inside(y, h), inside(x, w)), body)
    return sum_of((o, c, r, s), ((F, (b, o, p, q)), (F, (b, c, h, w))), (b, p, q), body)


def strided_dx(b, h, k, o) -> Kernel:
    """out[b, y] = sum of dy[b, o, p] * w[o, r] with 2p + r = y: one piece for even y, one for odd."""
    p = (h - k) // 2 + 1
    parts = []
    for phase in (0, 1):
        taps = (k - phase + 1) // 2  # r = 2t + phase
        at = lin((1, 1), (-1, 3))
        body = times(load(0, 0, 2, at), load(1, 2, lin((2, 3), const=phase)))
        n = (h - phase + 1) // 2
        parts.append(Piece((0, phase), (1, 2), (b, n), over("sum", (o, taps), zero_unless(inside(at, p), body))))
    return kernel_of(Template((b, h), ((F, (b, o, p)), (F, (o, k))), tuple(parts)))


def strided_conv_dx(b, c, h, w, o) -> Kernel:
    """The gradient of a 3x3 convolution with stride 2 and padding 1, of an even image, by its input: four phases."""
    p, q = h // 2, w // 2
    parts = []
    for fy in (0, 1):
        for fx in (0, 1):  # r = 1 at even rows; r = 0 and 2 at odd ones, of the row after and of this one
            y, x = lin((1, 2), *([(-1, 5)] if fy else []), const=fy), lin((1, 3), *([(-1, 6)] if fx else []), const=fx)
            r, s = (lin((2, a)) if odd else Const(1, dt.i32) for a, odd in ((5, fy), (6, fx)))
            body = times(load(0, 0, 4, y, x), load(1, 4, 1, r, s))
            guards = [lt(i, n) for i, n, odd in ((y, p, fy), (x, q, fx)) if odd]
            body = zero_unless(both(*guards), body) if guards else body
            parts.append(Piece((0, 0, fy, fx), (1, 1, 2, 2), (b, c, p, q), over("sum", (o, 1 + fy, 1 + fx), body)))
    return kernel_of(Template((b, c, h, w), ((F, (b, o, p, q)), (F, (o, c, 3, 3))), tuple(parts)))


def pointwise_dx(b, c, h, w, o, stride, batch_last=False) -> Kernel:
    """The gradient of a 1x1 convolution with a stride by its input: one phase has all that arrives, the others are
    zero; axes (b, c, y, x), or (c, y, x, b) where `batch_last`."""
    parts = []
    order = (1, 2, 3, 0) if batch_last else (0, 1, 2, 3)

    def turned(x):
        return tuple(x[i] for i in order)

    at = {axis: place for place, axis in enumerate(order)}
    for fy in range(stride):
        for fx in range(stride):
            dy = load(0, at[0], 4, at[2], at[3])
            body = over("sum", (o,), times(dy, load(1, 4, at[1]))) if fy == fx == 0 else Const(0.0, F)
            offset, step = (0, 0, fy, fx), (1, 1, stride, stride)
            extents = (b, c, -(-(h - fy) // stride), -(-(w - fx) // stride))
            parts.append(Piece(turned(offset), turned(step), turned(extents), body))
    shape = turned((b, c, h, w))
    return kernel_of(Template(shape, ((F, (b, o, -(-h // stride), -(-w // stride))), (F, (o, c))), tuple(parts)))


def capsule(b, c, h, k, stride) -> Kernel:
    p = (h - 3) // stride + 1
    a = load(0, 0, 6, lin((stride, 2), (1, 7)), lin((stride, 3), (1, 8)), 4, 9)
    body = times(a, load(1, 1, 6, 7, 8, 9, 5))
    params = ((F, (b, c, h, h, 4, 4)), (F, (k, c, 3, 3, 4, 4)))
    return sum_of((b, k, p, p, 4, 4), params, (c, 3, 3, 4), body)


def capsule_da(b, c, h, k, stride) -> Kernel:
    """The gradient of `capsule` by its first operand: one piece a phase, in which only matching taps remain."""
    p = (h - 3) // stride + 1
    parts = []
    for fy in range(stride):
        for fx in range(stride):
            ny, nx = (h - fy + stride - 1) // stride, (h - fx + stride - 1) // stride
            nr, ns = (3 - fy + stride - 1) // stride, (3 - fx + stride - 1) // stride
            y, x = lin((1, 2), (-1, 7)), lin((1, 3), (-1, 8))
            w = load(1, 6, 1, lin((stride, 7), const=fy), lin((stride, 8), const=fx), 5, 9)
            guard = apply("and", inside(y, p), inside(x, p))
            body = zero_unless(guard, times(load(0, 0, 6, y, x, 4, 9), w))
            step = (1, 1, stride, stride, 1, 1)
            total = over("sum", (k, nr, ns, 4), body)
            parts.append(Piece((0, 0, fy, fx, 0, 0), step, (b, c, ny, nx, 4, 4), total))
    params = ((F, (b, k, p, p, 4, 4)), (F, (k, c, 3, 3, 4, 4)))
    return kernel_of(Template((b, c, h, h, 4, 4), params, tuple(parts)))


def depthwise(b, c, h, w, k, pad, stride=1) -> Kernel:
    """out[b, c, p, q] = sum over r, s of x[b, c, stride*p + r - pad, stride*q + s - pad] * w[c, r, s]"""
    p, q = (h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1
    y, x = lin((stride, 2), (1, 4), const=-pad), lin((stride, 3), (1, 5), const=-pad)
    body = times(zero_unless(apply("and", inside(y, h), inside(x, w)), load(0, 0, 1, y, x)), load(1, 1, 4, 5))
    return sum_of((b, c, p, q), ((F, (b, c, h, w)), (F, (c, k, k))), (k, k), body)


def depthwise_dw(b, c, h, w, k, pad, stride=1) -> Kernel:
    p, q = (h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1
    y, x = lin((stride, 4), (1, 1), const=-pad), lin((stride, 5), (1, 2), const=-pad)
    body = times(load(0, 3, 0, 4, 5), zero_unless(apply("and", inside(y, h), inside(x, w)), load(1, 3, 0, y, x)))
    return sum_of((c, k, k), ((F, (b, c, p, q)), (F, (b, c, h, w))), (b, p, q), body)


def depthwise_dx(b, c, h, w, k, pad) -> Kernel:
    """The gradient of `depthwise` at stride 2 by x, y and x by phases: out[2i + f] has taps 2t + (f + pad) % 2."""
    p, q = (h + 2 * pad - k) // 2 + 1, (w + 2 * pad - k) // 2 + 1
    parts = []
    for fy in (0, 1):
        for fx in (0, 1):
            ry, rx = (fy + pad) % 2, (fx + pad) % 2
            y = lin((1, 2), (-1, 4), const=(fy + pad - ry) // 2)
            x = lin((1, 3), (-1, 5), const=(fx + pad - rx) // 2)
            tap = load(1, 1, lin((2, 4), const=ry), lin((2, 5), const=rx))
            body = zero_unless(apply("and", inside(y, p), inside(x, q)), times(load(0, 0, 1, y, x), tap))
            total = over("sum", ((k - ry + 1) // 2, (k - rx + 1) // 2), body)
            parts.append(Piece((0, 0, fy, fx), (1, 1, 2, 2), (b, c, (h - fy + 1) // 2, (w - fx + 1) // 2), total))
    return kernel_of(Template((b, c, h, w), ((F, (b, c, p, q)), (F, (c, k, k))), tuple(parts)))


def slanted(b, h, w, n, lane) -> Kernel:
    """out[b, h, w] = sum over r of x[b, h + r + lane*w] * k[r] where h + r < n: rows lie over each other in memory"""
    row = lin((1, 1), (1, 3))
    body = zero_unless(inside(row, n), times(load(0, 0, lin((1, 1), (lane, 2), (1, 3))), load(1, 3)))
    return sum_of((b, h, w), ((F, (b, n + lane * (w - 1))), (F, (3,))), (3,), body)


def involution(b, c, h, w, k, pad) -> Kernel:
    y, x = lin((1, 2), (1, 4), const=-pad), lin((1, 3), (1, 5), const=-pad)
    body = times(load(0, 0, 4, 5, 2, 3), zero_unless(apply("and", inside(y, h), inside(x, w)), load(1, 0, 1, y, x)))
    return sum_of((b, c, h, w), ((F, (b, k, k, h, w)), (F, (b, c, h, w))), (k, k), body)


def involution_dx(b, c, h, w, k, pad) -> Kernel:
    y, x = lin((1, 2), (-1, 4), const=pad), lin((1, 3), (-1, 5), const=pad)
    guard = apply("and", inside(y, h), inside(x, w))
    body = zero_unless(guard, times(load(0, 0, 4, 5, y, x), load(1, 0, 1, y, x)))
    return sum_of((b, c, h, w), ((F, (b, k, k, h, w)), (F, (b, c, h, w))), (k, k), body)


def involution_dk(b, c, h, w, k, pad) -> Kernel:
    y, x = lin((1, 3), (1, 1), const=-pad), lin((1, 4), (1, 2), const=-pad)
    body = times(load(0, 0, 5, 3, 4), zero_unless(apply("and", inside(y, h), inside(x, w)), load(1, 0, 5, y, x)))
    return sum_of((b, k, k, h, w), ((F, (b, c, h, w)), (F, (b, c, h, w))), (c,), body)


def shuffled(m: int = 3, n: int = 5) -> Kernel:
    """Y[c, h, w] = sum[k](W[4*c + 2*(h%2) + w%2, k] * X[k, h//2, w//2]): a product whose result is shuffled."""
    c, h, w, k = axes(4)
    row = add(add(mul(4, c), mul(2, mod(h, 2))), mod(w, 2))
    body = mul(read(0, row, k), read(1, k, div(h, 2), div(w, 2)))
    return sum_of((m, 6, 2 * n), ((F, (4 * m, 4)), (F, (4, 3, n))), (4,), body)


def biased(kernel: Kernel, axis: int, keep: bool = False) -> Kernel:
    """max(result + bias[axis], 0) as a second stage; the sum itself is stored too where `keep`."""
    shape, n = kernel.shape, len(kernel.buffers)
    here = axes(len(shape))
    body = apply("max", apply("add", read(0, *here), read(1, here[axis])), num(0.0))
    t = template(shape, [(F, shape), (F, (shape[axis],))], body)
    first = Stage(kernel.root, kernel.stages[0].args, kernel.stages[0].outputs if keep else (None,))
    buffers = (*kernel.buffers, KernelBuffer(F, (shape[axis],)), KernelBuffer(F, shape))
    return Kernel((first, Stage(t, (("stage", 0, 0), ("buffer", n)), (n + 1,))), buffers)


def updated(kernel: Kernel) -> Kernel:
    """old - result / 4 as a second stage, which may be stored where `old` was."""
    shape, n = kernel.shape, len(kernel.buffers)
    here = axes(len(shape))
    body = apply("sub", read(1, *here), apply("mul", read(0, *here), num(0.25)))
    t = template(shape, [(F, shape), (F, shape)], body)
    first = Stage(kernel.root, kernel.stages[0].args, (None,))
    buffers = (*kernel.buffers, KernelBuffer(F, shape), KernelBuffer(F, shape))
    return Kernel((first, Stage(t, (("stage", 0, 0), ("buffer", n)), (n + 1,))), buffers)


def non_temporal(kernel: Kernel, stored: bool = True) -> Kernel:
    """The last buffer, a result, is too large to be found in a cache afterwards, or not."""
    x = kernel.buffers[-1]
    return Kernel(kernel.stages, (*kernel.buffers[:-1], KernelBuffer(x.dtype, x.shape, stored)), kernel.loop_invariant)


# --------------------------------------------------------------------------------------------------------- pointwise


def bias_relu(m: int, n: int) -> Kernel:
    b, c, x = axes(3)
    body = apply("max", apply("add", read(0, b, c, x), read(1, c)), num(0.0))
    return plain((3, m, n), [(F, (3, m, n)), (F, (m,))], body)


def functions(n: int, dtype: dt.DType = F) -> Kernel:
    i, j = axes(2)
    x, y = read(0, i, j, dtype=dtype), read(1, j, dtype=dtype)
    size = apply("add", apply("abs", x), num(0.25, dtype))
    functions = ("exp", "tanh", "sigmoid", "erf", "sin", "cos", "floor", "round", "sign", "neg")
    parts: list[Expr] = [apply(f, x) for f in functions]
    parts += [apply(f, size) for f in ("log", "sqrt", "rsqrt")]
    parts += [apply("pow", size, y), apply("mod", x, size), apply("floordiv", x, size), apply("div", x, size)]
    parts += [apply("min", x, y), apply("max", x, y)]
    body = parts[0]
    for k, part in enumerate(parts[1:]):
        body = apply("add", body, apply("mul", part, num(1 + k / 8, dtype)))
    return plain((2, n), [(dtype, (2, n)), (dtype, (n,))], body)


def mixed_types(n: int) -> Kernel:
    i, j = axes(2)
    wide = apply("mul", read(0, i, sub(n - 1, j), dtype=dt.f64), apply("sin", read(1, j, dtype=dt.f64)))
    small = cast(read(3, i, j, dtype=dt.i8), dt.f64)
    body = apply("where", read(2, i, j, dtype=dt.bool_), wide, small)
    return plain((7, n), [(dt.f64, (7, n)), (dt.f64, (n,)), (dt.bool_, (7, n)), (dt.i8, (7, n))], body)


def integers(n: int, dtype: dt.DType) -> Kernel:
    i, j = axes(2)
    x, y = read(0, i, j, dtype=dtype), read(1, j, dtype=dtype)
    body = apply("add", apply("floordiv", x, Const(3, dtype)), apply("mul", apply("mod", x, Const(4, dtype)), y))
    divisor = apply("add", apply("mul", y, y), Const(1, dtype))
    return plain((5, n), [(dtype, (5, n)), (dtype, (n,))], apply("max", body, apply("floordiv", x, divisor)))


def flags(n: int) -> Kernel:
    i, j = axes(2)
    x, y = read(0, i, j), read(1, j, i)
    body = apply("or", apply("lt", x, y), apply("and", apply("ne", x, x), apply("not", apply("le", y, x))))
    return plain((9, n), [(F, (9, n)), (F, (n, 9))], body)


def transpose(m: int, n: int) -> Kernel:
    i, j, k = axes(3)
    body = apply("add", read(0, k, i, j), read(1, i, j, k))
    return plain((2, m, n), [(F, (n, 2, m)), (F, (2, m, n))], body)


def gather(rows: int, n: int) -> Kernel:
    i, j = axes(2)
    return plain((9, n), [(F, (rows, n)), (dt.i32, (9,))], read(0, read(1, i, dtype=dt.i32), j))


def strided_read(n: int, stride: int) -> Kernel:
    i, j = axes(2)
    return plain((3, n), [(F, (3, stride * n))], read(0, i, add(mul(stride, j), stride - 1)))


def pool_backward(n: int) -> Kernel:
    b, h, w = axes(3)
    picked = apply("eq", read(0, b, div(h, 2), div(w, 2), dtype=dt.i32), add(mul(mod(h, 2), 2), mod(w, 2)))
    body = zero_unless(picked, read(1, b, div(h, 2), div(w, 2)))
    return plain((3, 10, 2 * n), [(dt.i32, (3, 5, n)), (F, (3, 5, n))], body)


# -------------------------------------------------------------------------------------------------------- reductions


def rows(combiner: str, n: int, dtype: dt.DType = F) -> Kernel:
    i, r = axes(2)
    return plain((7,), [(dtype, (7, n))], over(combiner, (n,), read(0, i, r, dtype=dtype)))


def selected(combiner: str, m: int, n: int, dtype: dt.DType = F) -> Kernel:
    """The positions of every rank of m rows of n keys."""
    i, k, r = axes(3)
    return plain((m, n), [(dtype, (m, n))], over(combiner, (n,), read(0, i, r, dtype=dtype), k))


def columns(combiner: str, n: int, k: int) -> Kernel:
    i, r = axes(2)
    return plain((n,), [(F, (k, n))], over(combiner, (k,), read(0, r, i)))


def scanned(n: int, body: Expr, t: Axis, j: Axis, combiner: str = "sum", is_backward: bool = False) -> Reduce:
    """The scan of a body at position j of n, up to t or from t on."""
    nothing = Const(identity(combiner, body.dtype), body.dtype)
    return over(combiner, (n,), apply("where", le(t, j) if is_backward else le(j, t), body, nothing))


def scan(combiner: str, m: int, n: int, along: str, is_backward: bool, dtype: dt.DType = F) -> Kernel:
    """Of m rows of n, or as many columns."""
    i, t, j = axes(3)
    if along == "rows":
        x = scanned(n, read(0, i, j, dtype=dtype), t, j, combiner, is_backward)
        return plain((m, n), [(dtype, (m, n))], x)
    x = scanned(n, read(0, j, t, dtype=dtype), i, j, combiner, is_backward)
    return plain((n, m), [(dtype, (n, m))], x)


def whole(combiner: str, m: int, n: int) -> Kernel:
    i, r, s = axes(3)
    return plain((3,), [(F, (m, 3, n))], over(combiner, (m, n), read(0, r, i, s)))


def softmax_sums(n: int) -> Kernel:
    i, r = axes(2)
    body = apply("exp", apply("sub", read(0, i, r), read(1, i)))
    return plain((5,), [(F, (5, n)), (F, (5,))], over("sum", (n,), body))


def statistics(m: int, n: int) -> Kernel:
    """The sum and the sum of squares of each channel, in one sweep."""
    c, b, x = axes(3)
    v = read(0, b, c, x)
    total = over("sum", (m, n), v, apply("mul", v, v))
    return kernel_of(Template((6,), ((F, (m, 6, n)),), (Piece((0,), (1,), (6,), total),)))


def pool(combiner: str, n: int) -> Kernel:
    b, y, x, r, s = axes(5)
    body = read(0, b, add(mul(2, y), r), add(mul(2, x), s))
    return plain((3, 5, n), [(F, (3, 10, 2 * n))], over(combiner, (2, 2), body))


def halo(n: int) -> Kernel:
    b, y, x, r, s = axes(5)
    iy, ix = sub(add(y, r), 1), sub(add(x, s), 1)
    body = zero_unless(both(inside(iy, 6), inside(ix, n)), read(0, b, iy, ix))
    return plain((2, 6, n), [(F, (2, 6, n))], over("sum", (3, 3), body))


def max_plus(combiner: str, m: int, n: int, k: int, turned: bool) -> Kernel:
    i, j, r = axes(3)
    other = read(1, j, r) if turned else read(1, r, j)
    params = [(F, (m, k)), (F, (n, k) if turned else (k, n))]
    return plain((m, n), params, over(combiner, (k,), apply("add", read(0, i, r), other)))


def diagonals(n: int) -> Kernel:
    i, h, r = axes(3)
    row = sub(r, sub(i, n - 1))
    return plain((2 * n - 1, 3), [(F, (3, n, n))], over("sum", (n,), zero_unless(inside(row, n), read(0, h, row, r))))


def phases(n: int) -> Kernel:
    """Two reductions of different extents that fill the even and the odd columns."""
    i, j, r = axes(3)
    parts = (
        Piece((0, 0), (1, 2), (5, n), over("sum", (3,), read(0, i, add(j, r)))),
        Piece((0, 1), (1, 2), (5, n), over("sum", (2,), apply("neg", read(0, i, add(j, r))))),
    )
    return kernel_of(Template((5, 2 * n), ((F, (5, n + 2)),), parts))


def numbered_phases(b: int, c: int, n: int) -> Kernel:
    """out[b, c, 2x + f] = c * the sum of 3 - f elements of row (b, c) from x on."""
    term = times(read(0, Axis(0), Axis(1), add(Axis(2), Axis(3))), cast(Axis(1), F))
    parts = tuple(Piece((0, 0, f), (1, 1, 2), (b, c, n), over("sum", (3 - f,), term)) for f in (0, 1))
    return kernel_of(Template((b, c, 2 * n), ((F, (b, c, n + 2)),), parts))


def sums_and_zeros(n: int, k: int) -> Kernel:
    """Pieces with and without a reduction: the border of a strided backward pass, where nothing arrives."""
    i, j, r = axes(3)
    sums = over("sum", (k,), times(read(0, i, r), read(1, r, j)))
    parts = (Piece((0, 0), (2, 1), (3, n), sums), Piece((1, 0), (2, 1), (3, n), num(0.0)))
    return kernel_of(Template((6, n), ((F, (3, k)), (F, (k, n))), parts))


# ---------------------------------------------------------------------------------------------------------- scatters


def embedding(count: int, tokens: int, width: int, start: str = "zeros") -> Kernel:
    """out[ids[t], d] += x[t, d]; `start`: "zeros", "computed", or "memory", where only the destinations are touched."""
    t, d = axes(2)
    s = Scatter("sum", (tokens, width), (read(0, t, dtype=dt.i32), d), read(1, t, d))
    params: Any = ((dt.i32, (tokens,)), (F, (tokens, width)))
    if start == "zeros":
        return kernel_of(Template((count, width), params, (s,)))
    params = (*params, (F, (count, width)))
    old = read(2, t, d)
    first = Piece((0, 0), (1, 1), (count, width), old if start == "memory" else apply("exp", old))
    kernel = kernel_of(Template((count, width), params, (first, s)))
    if start != "memory":
        return kernel
    (stage,) = kernel.stages
    return Kernel((Stage(stage.template, stage.args, (2,)),), kernel.buffers[:3])


def histogram(bins: int, n: int) -> Kernel:
    s = Scatter("sum", (n,), (read(0, Axis(0), dtype=dt.i32),), num(1.0))
    return kernel_of(Template((bins,), ((dt.i32, (n,)),), (s,)))


def scatter_window(m: int, n: int, along: int) -> Kernel:
    """out[i, a[i, j]] += x[i, j], or the same along the other dimension."""
    i, j = axes(2)
    a = read(0, i, j, dtype=dt.i32)
    index, shape = ((i, a), (m, 5)) if along else ((a, j), (5, n))
    return kernel_of(Template(shape, ((dt.i32, (m, n)), (F, (m, n))), (Scatter("sum", (m, n), index, read(1, i, j)),)))
