"""Axes under quotients and remainders become digits or pieces: the same values in the same memory, from products."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Apply, Piece, Reduce, Template, apply, postorder, template
from einsmith.kernels import autoconfig
from einsmith.kernels.autoconfig import choose, pattern_of
from einsmith.kernels.composite.parts import CompositeConfig
from einsmith.schedule.contraction_problem import problems
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from einsmith.schedule.split_axes import split_buffer, split_kernels
from tests.kernels.runner import NARROW, WIDE, check, reference
from tests.kernels.samples import add, axes, div, int_, kernel_of, lt, mod, mul, num, plain, read, shuffled, sub
from tests.programs import program_of

GROUPS, INNER, PER = 3, 5, 7


def of_sum(shape, extents, params, body) -> Kernel:
    return plain(shape, params, Reduce("sum", tuple(extents), (body,)))


def params_of(*shapes) -> list:
    return [(dt.f32, s) for s in shapes]


def grouped(groups: int, inner: int, per: int, space: int) -> tuple:
    """dX[b, c, h] = sum[k](W[per*(c//inner) + k, c%inner] * dY[b, c//inner, k, h]): what `of_sum` takes."""
    b, c, h, k = axes(4)
    w, dy = (groups * per, inner), (2, groups, per, space)
    body = mul(read(0, add(mul(per, div(c, inner)), k), mod(c, inner)), read(1, b, div(c, inner), k, h))
    return (2, groups * inner, space), (per,), params_of(w, dy), body


def grouped_dx() -> Kernel:
    return of_sum(*grouped(GROUPS, INNER, PER, 11))


def grouped_dw() -> Kernel:
    """dW[k, c] = sum[b, h](X[b, 5*(k//7) + c, h] * dY[b, k//7, k%7, h])"""
    k, c, b, h = axes(4)
    x, dy = (2, GROUPS * INNER, 11), (2, GROUPS, PER, 11)
    body = mul(read(0, b, add(mul(INNER, div(k, PER)), c), h), read(1, b, div(k, PER), mod(k, PER), h))
    return of_sum((GROUPS * PER, INNER), (2, 11), params_of(x, dy), body)


def flattened_k() -> Kernel:
    """Y[i, j] = sum[k](A[i, k//6, k//3 % 2, k%3] * B[k, j]), k in 0..29: digits of digits, in K."""
    i, j, k = axes(3)
    body = mul(read(0, i, div(k, 6), mod(div(k, 3), 2), mod(k, 3)), read(1, k, j))
    return of_sum((7, 13), (30,), params_of((7, 5, 2, 3), (30, 13)), body)


def sums_of_axes() -> Kernel:
    """Y[i, j] = sum[k](A[(3*i + j)//6, k] * B[k, (3*i + j) % 6]), i < 8, j < 3: i is split, j is not."""
    i, j, k = axes(3)
    at = add(mul(3, i), j)
    return of_sum((8, 3), (5,), params_of((4, 5), (5, 6)), mul(read(0, div(at, 6), k), read(1, k, mod(at, 6))))


def two_pieces() -> Kernel:
    """Columns before 4 and those from 4 on by different formulas; the rows are split in both."""
    i, j, k = axes(3)
    product = mul(read(0, div(i, 3), k), read(1, k, mod(i, 3), j))
    later = mul(read(0, div(i, 3), k), read(1, k, mod(i, 3), add(j, 4)))
    parts = (
        Piece((0, 0), (1, 1), (6, 4), Reduce("sum", (5,), (product,))),
        Piece((0, 4), (1, 1), (6, 3), Reduce("sum", (5,), (mul(num(2.0), later),))),
    )
    return kernel_of(Template((6, 7), tuple([(dt.f32, (2, 5)), (dt.f32, (5, 3, 7))]), parts))


def with_epilogue() -> Kernel:
    """The gradient of a grouped convolution where its input was positive, plus a bias of each channel, both stored."""
    k = grouped_dx()
    shape = k.shape
    b, c, h = axes(3)
    body = Apply("where", (lt(num(0.0), read(1, b, c, h)), add(read(0, b, c, h), read(2, c)), num(0.0)), dt.f32)
    t = template(shape, [(dt.f32, shape), (dt.f32, shape), (dt.f32, shape[1:2])], body)
    buffers = (*k.buffers, KernelBuffer(dt.f32, shape), KernelBuffer(dt.f32, shape[1:2]), KernelBuffer(dt.f32, shape))
    return Kernel((k.stages[0], Stage(t, (("stage", 0, 0), ("buffer", 3), ("buffer", 4)), (5,))), buffers)


def strided(shape: tuple[int, int, int], channels: int, shift: int, depthwise: bool = False) -> tuple:
    """dX[c, i, j] = sum[o, u, v](W[o, c, 2*u + (i+s)%2, 2*v + (j+s)%2] * dY[o, (i+s)//2 - u + 1, (j+s)//2 - v + 1]):
    what `of_sum` takes; dY is so large that no index leaves it. Depthwise: c stands for o."""
    c, i, j, *k = axes(5 if depthwise else 6)
    (u, v), o = k[-2:], c if depthwise else k[0]
    i, j = add(i, shift), add(j, shift)
    w = read(0, o, c, add(mul(2, u), mod(i, 2)), add(mul(2, v), mod(j, 2)))
    dy = read(1, o, add(sub(div(i, 2), u), 1), add(sub(div(j, 2), v), 1))
    sizes = [(n - 1 + shift) // 2 + 2 for n in shape[1:]]
    params = params_of((channels, shape[0], 4, 4), (channels, *sizes))
    return shape, (2, 2) if depthwise else (channels, 2, 2), params, mul(w, dy)


def strided_dx() -> Kernel:
    return of_sum(*strided((5, 17, 12), 7, 0))


def shifted_dx() -> Kernel:
    return of_sum(*strided((3, 8, 33), 4, 1))


def depthwise_dx() -> Kernel:
    return of_sum(*strided((5, 18, 16), 5, 0, depthwise=True))


def strided_with_epilogue() -> Kernel:
    """Both the sum, and where it is positive and times a number of its row and column."""
    k = strided_dx()
    c, i, j = axes(3)
    total = read(0, c, i, j)
    body = Apply("where", (lt(num(0.0), total), mul(total, read(1, i, j)), num(0.0)), dt.f32)
    t = template(k.shape, [(dt.f32, k.shape), (dt.f32, k.shape[1:])], body)
    buffers = (*k.buffers, KernelBuffer(dt.f32, k.shape[1:]), KernelBuffer(dt.f32, k.shape))
    return Kernel((k.stages[0], Stage(t, (("stage", 0, 0), ("buffer", 3)), (4,))), buffers)


KERNELS = {f.__name__: f for f in (
    grouped_dx, grouped_dw, flattened_k, shuffled, sums_of_axes, two_pieces, with_epilogue, strided_dx, shifted_dx,
    depthwise_dx, strided_with_epilogue,
)}  # fmt: skip


def divisions(kernel: Kernel) -> int:
    bodies = [b for s in kernel.stages for p in s.template.parts for b in p.bodies]
    return sum(isinstance(e, Apply) and e.fn in ("floordiv", "mod") for e in postorder(bodies))


@pytest.mark.parametrize("name", KERNELS)
def test_values_stay_where_they_are(name, rng):
    kernel = KERNELS[name]()
    arrays = [rng.standard_normal(b.shape).astype(np.float32) for b in kernel.buffers]
    want = reference(kernel, arrays)
    every = split_kernels(kernel)
    assert divisions(kernel) and every and len(set(every)) == len(every)
    for split in every:
        assert not divisions(split)
        got = reference(split, [a.reshape(b.shape) for a, b in zip(arrays, split.buffers, strict=True)])
        assert want.keys() == got.keys()
        for n in want:
            np.testing.assert_array_equal(got[n].reshape(want[n].shape), want[n])


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", KERNELS)
def test_compiled_in_every_pattern(name, rng):
    kernel, pattern = KERNELS[name](), pattern_of("by digits")
    for target in (NARROW, WIDE):
        configs: dict[tuple[int, str], CompositeConfig] = {}
        for config in pattern.configs(kernel, target):
            configs.setdefault((config.way, config.parts[0].pattern), config)
        assert {way for way, _ in configs} == set(range(len(split_kernels(kernel))))
        assert {"contraction", "stencil"} & {pattern for _, pattern in configs}
        check(pattern, kernel, rng, targets=(target,), configs=list(configs.values()))


def test_digits_and_pieces():
    """An odd extent, or one that is shifted, has pieces alone; an even one both."""
    kernels = strided_dx(), shifted_dx(), depthwise_dx()
    assert [[len(k.root.parts) for k in split_kernels(kernel)] for kernel in kernels] == [[2, 4], [4], [1, 4]]


def test_too_many_pieces():
    """Each of them is code of its own."""
    i, j, k = axes(3)
    for by, pieces in ((16, 16), (17, 0)):
        kernel = of_sum((50, 7), (5,), params_of((4, 5), (17, 7)), mul(read(0, div(i, by), k), read(1, mod(i, by), j)))
        assert [len(x.root.parts) for x in split_kernels(kernel)] == [pieces] * bool(pieces)


@pytest.mark.parametrize("name", ["grouped_dx", "grouped_dw", "with_epilogue"])
def test_a_group_is_a_batch_axis(name):
    kernel = KERNELS[name]()
    split = split_kernels(kernel)[0]
    (problem,) = problems(split.root)
    assert GROUPS in [problem.extents[a] for a in problem.batch]


def test_kernels_that_cannot_be_split():
    i, j, k = axes(3)
    params = params_of((4, 5), (5, 7))
    for at, extent in ((sub(12, i), 12), (i, 3), (mul(i, i), 4)):  # backwards, nothing to split, no sum
        kernel = of_sum((extent, 7), (5,), params, mul(read(0, div(at, 4), k), read(1, k, j)))
        assert not split_kernels(kernel)
    for fn, by in itertools.product((div, mod), (-4, -1, 0)):  # digits are of positive numbers
        inside = apply("and", apply("le", int_(0), fn(i, by)), lt(fn(i, by), 4))
        body = apply("where", inside, mul(read(0, fn(i, by), k), read(1, k, j)), num(0.0))
        assert not split_kernels(of_sum((12, 7), (5,), params, body))
    moved = plain((12,), params_of((3, 4)), read(0, div(i, 4), mod(i, 4)))  # nothing is reduced
    assert not split_kernels(moved)


def test_pieces_that_end_within_a_digit():
    i, k = axes(2)
    parts = tuple(
        Piece((o,), (1,), (n,), Reduce("sum", (5,), (mul(read(0, div(add(i, o), 4), k), read(1, k)),)))
        for o, n in ((0, 6), (6, 6))
    )
    kernel = kernel_of(Template((12,), tuple(params_of((3, 5), (5,))), parts))
    (split,) = split_kernels(kernel)
    assert [p.extents for p in split.root.parts] == [(2,), (2,), (1,), (1,)] * 2


@pytest.mark.thinned(2)
@pytest.mark.parametrize("stride,padding,kernel", [(1, 0, 1), (1, 1, 3), (2, 1, 3)])
def test_gradients_of_grouped_convolutions(stride, padding, kernel, rng, torch):
    x = rng.standard_normal((2, 18, 9, 9), np.float32)
    w = rng.standard_normal((33, 6, kernel, kernel), np.float32)

    def convolved(x, w):
        return es.functional.conv2d(x, w, groups=3, stride=stride, padding=padding)

    xt, wt = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, w))
    y = torch.nn.functional.conv2d(xt, wt, groups=3, stride=stride, padding=padding)
    dy = rng.standard_normal(tuple(y.shape)).astype(np.float32)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    for n, want in enumerate((xt.grad, wt.grad)):
        f = es.jit(lambda x, w, dy, n=n: es.vjp(convolved, x, w)[1](dy)[n])
        np.testing.assert_allclose(f(x, w, dy), want.numpy(), rtol=1e-4, atol=1e-4)
        run = program_of(f)
        (call,) = run.plan.calls
        split = (split_kernels(call.kernel) or (call.kernel,))[0]
        assert all(GROUPS in [p.extents[a] for a in p.batch] for p in problems(split.root) or [])
        assert stride > 1 or problems(split.root)


def test_large_ones_are_contractions():
    kernel = of_sum(*grouped(3, 80, 200, 280))
    choice = choose(kernel, WIDE)
    assert choice.pattern.name == "by digits" and choice.config.parts[0].pattern == "contraction"


@pytest.mark.parametrize("cores", [1, 2, 4, 6])
def test_every_core_has_as_many_tasks(cores):
    """Groups are tasks of their own; that there are three must not leave a core without work at the end."""
    target = Target(vector_bytes=64, cores=cores)
    choice = choose(of_sum(*grouped(3, 80, 40, 3136)), target)
    (part,) = choice.config.parts
    (config,) = part.config.pieces
    assert part.pattern == "contraction" and 3 * config.tm * config.tn * config.split % cores == 0


def test_a_product_of_digits_is_asked_alone(monkeypatch):
    """Nothing else is looked at for the kernel whose axes are not split, and nothing else would cost much less."""
    seen = []

    def spy(old):
        def best(self, kernel, target, limit=float("inf")):
            seen.append(kernel)
            return old(self, kernel, target, limit)

        return best

    for pattern in map(type, (autoconfig.CONTRACTION, autoconfig.pattern_of("reduction"))):
        monkeypatch.setattr(pattern, "best", spy(pattern.best))
    kernel = of_sum(*grouped(3, 24, 40, 196))
    chosen = choose(kernel, Target(cores=2, l2=(1 << 20) + 64))
    assert chosen.pattern.name == "by digits" and chosen.config.parts[0].pattern == "contraction"
    assert set(seen) == {split_kernels(kernel)[0]}
    assert chosen.cost.rank < 1.25 * min(cost.rank for _, _, cost in chosen.alternatives)


def test_positions_of_32_bits_are_divided_in_their_own_type() -> None:
    """x[idx[i]] -> x[idx[i] // 3, idx[i] % 3], whose divisions are then too many."""
    (i,) = axes(1)
    kernel = plain((7,), [(dt.f32, (6,)), (dt.i32, (7,))], read(0, read(1, i, dtype=dt.i32)))
    assert split_buffer(kernel, 0, 0, 3) is None
