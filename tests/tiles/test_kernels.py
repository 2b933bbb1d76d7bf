"""Small kernels of every kind at awkward sizes: what they are lowered to equals the evaluator, by the interpreter and
as printed text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, product
from math import prod
from typing import Any

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import CompileError
from einsmith.codegen.ssa import Op, operations
from einsmith.gpu.tiles.contraction import in_memory_order
from einsmith.gpu.tiles.ir import TileFunction
from einsmith.gpu.tiles.lower import lower, patterns
from einsmith.gpu.tiles.pieces import Functions, Tiling
from einsmith.ir.nodes import Piece, Scatter, Template, apply
from einsmith.schedule.contraction_problem import problems
from einsmith.schedule.kernel import Kernel
from tests.kernels import cover
from tests.kernels import samples as s
from tests.kernels.cover import pairwise
from tests.kernels.layouts import LAYOUTS, laid_out
from tests.kernels.runner import replaceable
from tests.tiles import interp
from tests.tiles.memory import Memory
from tests.tiles.running import SMALL, SPLIT, backward, check, functions_of, in_double

SELECTED = "selected"
"""A sample that no pattern takes: compared in pairs before it comes here."""
SAMPLES = {name: sample for name, sample in cover.SAMPLES.items() if name != SELECTED}
SIZES = {"0": 0, "1": 1, "w-1": 7, "w": 8, "w+1": 9, "prime": 19}
"""Of the samples, around the extents of SMALL."""
MOST = 20_000
"""Points of a kernel that is run in tiles as small as SMALL's."""
LARGE = (Tiling(64, 64, 64), Tiling(64, 32, 64, split=3))
ORDERS = (range, backward)


@dataclass(frozen=True)
class Case:
    """A sample at one choice of its parameters."""

    sample: str
    values: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.sample} {', '.join(f'{k}={v}' for k, v in self.values)}"

    @property
    def sized(self) -> dict[str, Any]:
        return {k: SIZES.get(v, v) if isinstance(v, str) else v for k, v in self.values}

    @property
    def kernel(self) -> Kernel | None:
        return _kernel(self)

    @property
    def limits(self) -> Mapping[int, int]:
        """Below what the elements of buffers lie that are positions."""
        found = SAMPLES[self.sample].limits or {}
        return {n: self.sized[x] if isinstance(x, str) else x for n, x in found.items()}


@lru_cache(maxsize=1024)
def _kernel(case: Case) -> Kernel | None:
    return SAMPLES[case.sample].make(**case.sized)


def cases(sample: str, of: int = 1) -> Iterator[Case]:
    """Choices of a sample's parameters that have every value of each (of 2: every pair)."""
    parameters = SAMPLES[sample].parameters
    rows = [tuple(zip(parameters, v, strict=True)) for v in product(*parameters.values())]
    for n in pairwise(rows, of):
        if _kernel(Case(sample, rows[n])) is not None:
            yield Case(sample, rows[n])


def points(kernel: Kernel) -> int:
    return sum(prod(p.domain) for stage in kernel.stages for p in stage.template.parts)


def tilings(kernel: Kernel) -> tuple[Tiling, ...]:
    return (SMALL, SPLIT) if points(kernel) < MOST else LARGE


@pytest.mark.thinned(12)
@pytest.mark.parametrize("sample", SAMPLES)
def test_samples(sample: str, rng: np.random.Generator) -> None:
    """In turns: every pattern that takes the kernel, whole and split, in f32 and f64, programs in both orders."""
    turns = cycle(product((0, 1), (0, 1), (0, 1, 2)))
    ran = set()
    found = list(cases(sample))
    for case, (double, split, turn) in zip(found * (1 + (len(found) < 4)), turns, strict=False):
        kernel = case.kernel
        assert kernel is not None
        able = patterns(kernel) if points(kernel) < MOST else patterns(kernel)[:1]
        pattern = able[turn % len(able)]
        tiling = tilings(kernel)[split]
        order = ORDERS[split ^ double]
        check(in_double(kernel) if double else kernel, rng, tiling, pattern, limits=case.limits, order=order)
        ran.add(pattern)
    assert ran


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_every_pair(sample: str, rng: np.random.Generator) -> None:
    for case in cases(sample, of=2):
        kernel = case.kernel
        assert kernel is not None
        for pattern, tiling, made in product(patterns(kernel), tilings(kernel), (kernel, in_double(kernel))):
            check(made, rng, tiling, pattern, limits=case.limits)


@pytest.mark.parametrize("make", [s.bias_relu, s.transpose])
def test_empty_functions_are_not_launched(make: Any) -> None:
    assert not lower(make(0, 5), Tiling()).launches
    to = Functions()
    to.add(to.begin("rows"), 0)
    assert not to.done


def test_terms_of_stencils_are_written_out() -> None:
    """Nine products, each added in one instruction, of which those in the middle ask of no border."""
    (launch,) = lower(s.depthwise(1, 3, 9, 16, 3, 1), Tiling(m=16), "stencil").launches
    found = [x.name for x in operations(launch.function.body)]
    assert found.count("fma") == 9 and "reduce" not in found and "mul" not in _of_floats(launch.function)
    loads = [x for x in operations(launch.function.body) if x.name == "load"]
    assert sum(x.args[1] is None for x in loads) == 9 + 1  # the weights, and the window's middle


def test_conditions_do_not_widen_loads() -> None:
    """Rows of an operand that is in bounds by itself are loaded once, though the window's condition is on columns."""
    (launch,) = lower(s.conv_dw(2, 16, 8, 8, 16, 3, 3, 1), Tiling(16, 16, 16), "contraction").launches
    shapes = [x.results[0].shape for x in operations(launch.function.body) if x.name == "load"]
    assert sorted(shapes) == [(1, 16), (16, 1), (16, 16), (16, 16)]


def _of_floats(f: TileFunction) -> set[str]:
    return {x.name for x in operations(f.body) if x.results and x.results[0].elem == "f32"}


@pytest.mark.thinned(8)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: x.name)
def test_layouts(layout: Any, rng: np.random.Generator) -> None:
    """Dimensions in other orders, gaps between rows and elements; what is between elements is left alone."""
    for kernel in (
        s.product(9, 19, 17), s.padded_conv(2, 3, 5, 7, 9, 3, 3, 1), s.bias_relu(7, 9), s.transpose(3, 5),
        s.columns("argmax", 9, 7), s.halo(7), s.biased(s.strided_conv_dx(2, 3, 4, 6, 5), 1, True),
        s.embedding(5, 9, 7, "computed"),
    ):  # fmt: skip
        for tiling in (SMALL, SPLIT):
            check(laid_out(kernel, layout), rng, tiling, limits={0: 5})


def test_terms_are_numbered_as_their_memory_lies() -> None:
    """Of an image with its channels inside, neighbouring terms are channels, else columns of the window."""
    inside = next(x for x in LAYOUTS if x.name == "channels last")
    kernel = s.conv(2, 3, 5, 7, 9, 3, 3, 1)
    for made, fastest in ((kernel, 6), (laid_out(kernel, inside), 4)):
        (p,) = problems(made.root) or ()
        assert in_memory_order(made, p).k[-1] == fastest and sorted(in_memory_order(made, p).k) == sorted(p.k)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("sample", ["bias relu", "updated product", "updated sums", "zeros between", "functions"])
def test_results_in_the_place_of_what_is_read(sample: str, rng: np.random.Generator) -> None:
    over = 0
    for case in cases(sample):
        kernel = case.kernel
        assert kernel is not None
        found = replaceable(kernel)
        over += bool(found)
        for tiling in (SMALL, SPLIT):
            check(kernel, rng, tiling, over=found)
    assert over


@pytest.mark.thinned(2)
@pytest.mark.parametrize("sample", ["softmax", "softmax gradient", "centred", "numbered channels"])
def test_rows_in_the_place_of_what_is_read(sample: str, rng: np.random.Generator) -> None:
    for case in cases(sample):
        assert case.kernel is not None
        check(case.kernel, rng, SMALL, over=replaceable(case.kernel))


def test_guarded_terms_ignore_infinities(rng: np.random.Generator) -> None:
    """Terms under a guard are none, whatever the operands are; what is NaN without a guard stays so."""
    kernel = s.conv(2, 3, 5, 7, 9, 3, 3, 1)
    for value in (np.inf, np.nan):
        x, w = rng.standard_normal((2, 3, 5, 7)), rng.standard_normal((9, 3, 3, 3))
        w[4, 1, 0, 2] = value
        arrays = [x.astype(np.float32), w.astype(np.float32), np.zeros((2, 9, 5, 7), np.float32)]
        for tiling in (SMALL, SPLIT):
            check(kernel, rng, tiling, "contraction", arrays=arrays)


@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_infinities_and_nan_in_reductions(combiner: str, rng: np.random.Generator) -> None:
    x = rng.integers(-2, 3, (7, 37)).astype(np.float32)
    x[1], x[2], x[3, 30] = -np.inf, np.inf, np.nan
    x[4, 5], x[4, 20] = np.nan, np.nan
    x[5, :] = -np.inf
    x[5, 36] = 1
    kernel = s.rows(combiner, 37)
    results = [np.zeros(7, b.dtype.numpy) for b in kernel.buffers[1:]]
    for tiling in (SMALL, SPLIT):
        check(kernel, rng, tiling, arrays=[x, *results])


SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, np.inf, -np.inf, np.nan, 88.9, -104.5, 1e-40, 1e30, -1e30, 0.625,
           9.1)  # fmt: skip


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
@pytest.mark.parametrize(
    "fn", ["exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "sqrt", "rsqrt", "abs", "sign", "floor", "neg"]
)
def test_functions_of_one(fn: str, dtype: dt.DType, rng: np.random.Generator) -> None:
    x = np.concatenate([SPECIAL, rng.standard_normal(46) * 3]).astype(dtype.numpy)
    kernel = s.plain((64,), [(dtype, (64,))], apply(fn, s.read(0, s.Axis(0), dtype=dtype)))
    check(kernel, rng, Tiling(m=64), arrays=[x, np.zeros_like(x)], relative=2e-6 if dtype is dt.f32 else 1e-14)


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
@pytest.mark.parametrize("value", [0.0, -0.0, 0.5, -np.inf, np.nan])
def test_literals(value: float, dtype: dt.DType, rng: np.random.Generator) -> None:
    body = apply("where", apply("lt", s.read(0, s.Axis(0), dtype=dtype), s.num(1.0, dtype)), s.num(value, dtype),
                 s.num(2.0, dtype))  # fmt: skip
    x = np.arange(5).astype(dtype.numpy)
    check(s.plain((5,), [(dtype, (5,))], body), rng, arrays=[x, np.zeros_like(x)], relative=0.0)


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64, dt.i32, dt.i64], ids=str)
@pytest.mark.parametrize("fn", ["div", "floordiv", "mod", "pow", "min", "max"])
def test_functions_of_two(fn: str, dtype: dt.DType, rng: np.random.Generator) -> None:
    if dtype.is_int and fn in ("div", "pow"):
        return
    values = SPECIAL if dtype.is_float else (0, 1, -1, 2, -2, 3, 7, -7, dtype.range[0], dtype.range[1], 100)
    if fn in ("min", "max"):  # of two zeros either may come out
        values = tuple(v for v in values if v or np.signbit(v) or dtype.is_int)
    x, y = (a.reshape(-1) for a in np.meshgrid(np.array(values, dtype.numpy), np.array(values, dtype.numpy)))
    i = s.Axis(0)
    body = apply(fn, s.read(0, i, dtype=dtype), s.read(1, i, dtype=dtype))
    kernel = s.plain(x.shape, [(dtype, x.shape)] * 2, body)
    check(kernel, rng, Tiling(m=512), arrays=[x, y, np.zeros_like(x)], relative=2e-6 if dtype is dt.f32 else 1e-14)


@pytest.mark.parametrize("to", [dt.i8, dt.u8, dt.i16, dt.i32, dt.i64, dt.bool_, dt.f64, dt.f16, dt.bf16], ids=str)
def test_casts(to: dt.DType, rng: np.random.Generator) -> None:
    values = (0.0, -0.5, 0.5, 1.9, -1.9, 127.5, 128.0, -128.7, -129.0, 255.0, 256.0, 3e4, 4e4, 2.0**31, -(2.0**31), 3e9,
              2.0**63, -(2.0**63), -1e19, np.inf, -np.inf, np.nan)  # fmt: skip
    x = np.array(values, np.float32)
    kernel = s.plain(x.shape, [(dt.f32, x.shape)], s.cast(s.read(0, s.Axis(0)), to))
    check(kernel, rng, arrays=[x, np.zeros(x.shape, to.numpy)], relative=1e-12)


@pytest.mark.parametrize("of", [dt.f16, dt.bf16, dt.u8, dt.i8, dt.bool_], ids=str)
def test_formats_of_memory(of: dt.DType, rng: np.random.Generator) -> None:
    """Read, converted, computed with and stored again."""
    i, j = s.axes(2)
    x = s.cast(s.cast(s.read(0, i, j, dtype=of), of.arithmetic), dt.f32)
    kernel = s.plain((5, 19), [(of, (5, 19))], s.cast(s.times(x, s.num(0.75)), dt.f16))
    check(kernel, rng)


def test_random_bits(rng: np.random.Generator) -> None:
    words = [s.read(0, s.Axis(0), s.Const(k, dt.i32), dtype=dt.i32) for k in range(4)]
    kernel = s.plain((37,), [(dt.i32, (37, 4))], apply("random_bits", *words))
    x = rng.integers(-(2**31), 2**31, (37, 4)).astype(np.int32)
    check(kernel, rng, arrays=[x, np.zeros(37, np.int32)])


def test_literals_in_every_place(rng: np.random.Generator) -> None:
    """An axis of one point is a literal, and what is made of literals is one."""
    i, j = s.axes(2)
    bits = apply("random_bits", s.int_(-5), s.int_(1 << 30), j, i)
    number = apply("div", s.cast(apply("floordiv", s.sub(j, 7), s.int_(-3)), dt.f32), s.cast(s.add(i, 2), dt.f32))
    body = apply("add", number, s.cast(apply("mod", bits, s.int_(17)), dt.f32))
    for shape in ((1, 1), (5, 1), (1, 5)):
        check(s.plain(shape, [(dt.f32, shape)], apply("add", body, s.read(0, i, j))), rng)


def test_a_condition_reduced(rng: np.random.Generator) -> None:
    for combiner in ("max", "min"):
        body = apply("lt", s.read(0, s.Axis(0), s.Axis(1)), s.num(0.0))
        check(s.plain((9,), [(dt.f32, (9, 3))], s.over(combiner, (3,), body)), rng)


@pytest.mark.parametrize("combiner", ["sum", "max", "min"])
def test_a_scatter_whose_start_is_in_pieces(rng: np.random.Generator, combiner: str) -> None:
    i = s.Axis(0)
    start = tuple(
        Piece((k,), (2,), (5 - k,), apply("mul", s.read(2, s.lin((2, 0), const=k)), s.num(0.5 + k))) for k in (0, 1)
    )
    scatter = Scatter(combiner, (13,), (s.read(0, i, dtype=dt.i32),), s.read(1, i))
    t = Template((9,), ((dt.i32, (13,)), (dt.f32, (13,)), (dt.f32, (9,))), (*start, scatter))
    for tiling in (SMALL, SPLIT):
        check(s.biased(s.kernel_of(t), 0, True), rng, tiling, limits={0: 9})


@pytest.mark.parametrize("combiner", ["sum", "max"])
def test_scatters_that_miss_the_end_of_a_dimension(rng: np.random.Generator, combiner: str) -> None:
    """An axis that is an index alone may be shorter than the output is."""
    i, j = s.axes(2)
    scatter = Scatter(combiner, (3, 5), (i, s.read(0, i, j, dtype=dt.i32)), s.read(1, i, j))
    kernel = s.kernel_of(Template((7, 6), ((dt.i32, (3, 5)), (dt.f32, (3, 5))), (scatter,)))
    check(kernel, rng, limits={0: 6})


def _dots(kernel: Kernel, tiling: Tiling) -> list[Op]:
    (launch,) = lower(kernel, tiling, "contraction").launches
    return [x for x in operations(launch.function.body) if x.name == "dot"]


@pytest.mark.parametrize("dtype", [dt.bf16, dt.f16], ids=str)
def test_operands_of_16_bits_are_multiplied_as_they_are(dtype: dt.DType, rng: np.random.Generator) -> None:
    i, j, k = s.axes(3)
    x, y = (s.cast(s.read(n, *at, dtype=dtype), dt.f32) for n, at in enumerate(((i, k), (k, j))))
    kernel = s.sum_of((19, 21), [(dtype, (19, 37)), (dtype, (37, 21))], (37,), s.times(x, y))
    tiling = Tiling(16, 32, 16)
    (dot,) = _dots(kernel, tiling)
    assert {v.elem for v in dot.args[:2] if v is not None} == {dtype.name} and dot.results[0].elem == "f32"
    check(kernel, rng, tiling, "contraction")


def test_operands_under_conditions_stay_in_16_bits(rng: np.random.Generator) -> None:
    """Padding, and a number that is rounded beforehand."""
    i, j, k = s.axes(3)
    at = s.sub(s.add(i, k), 3)
    x = s.zero_unless(s.inside(at, 19), s.cast(s.read(0, at, dtype=dt.bf16), dt.f32))
    y = s.cast(s.cast(s.read(1, k, j), dt.bf16), dt.f32)
    kernel = s.sum_of((19, 21), [(dt.bf16, (19,)), (dt.f32, (7, 21))], (7,), s.times(x, y))
    (dot,) = _dots(kernel, SMALL)
    assert {v.elem for v in dot.args[:2] if v is not None} == {"bf16"}
    check(kernel, rng, SMALL, "contraction")


def test_operands_of_two_types_are_multiplied_in_float32(rng: np.random.Generator) -> None:
    i, j, k = s.axes(3)
    x, y = s.cast(s.read(0, i, k, dtype=dt.bf16), dt.f32), s.read(1, k, j)
    kernel = s.sum_of((19, 21), [(dt.bf16, (19, 37)), (dt.f32, (37, 21))], (37,), s.times(x, y))
    tiling = Tiling(16, 32, 16)
    (dot,) = _dots(kernel, tiling)
    assert {v.elem for v in dot.args[:2] if v is not None} == {"f32"} and dot.attrs == ("tf32x3",)
    check(kernel, rng, tiling, "contraction")


IMAGES = {
    "pointwise": lambda: s.plain((2, 5, 3, 4), [(dt.f32, (2, 5, 3, 4))], s.times(s.read(0, *s.axes(4)), s.num(2.0))),
    "stencil": lambda: s.depthwise(2, 5, 7, 6, 3, 1),
    "reduction": lambda: s.depthwise(2, 5, 7, 6, 3, 1),
}


@pytest.mark.parametrize("pattern", IMAGES)
def test_lanes_run_along_memory(pattern: str, rng: np.random.Generator) -> None:
    """Results are numbered as they lie: neighbouring lanes access neighbouring channels where these come last."""
    kernel = laid_out(IMAGES[pattern](), LAYOUTS[0])
    tiling = Tiling(16, 1, 16)
    check(kernel, rng, tiling, pattern)
    (launch,) = lower(kernel, tiling, pattern).launches
    order: list[int] = []

    class Seen(Memory):
        def store(self, at, values, program, epoch):
            order.extend(at.tolist())
            super().store(at, values, program, epoch)

    last = len(kernel.buffers) - 1
    held = {
        p: (Seen if p.buffer == last else Memory)(np.zeros(p.nbytes, np.uint8), p.elem, "a buffer")
        for p in launch.function.parameters
    }
    interp.run([launch.function], held.__getitem__)
    assert order == list(range(kernel.buffers[last].size))


@pytest.mark.parametrize("n", [2**31 + 5, 2**31 - 5])
def test_offsets_beyond_32_bits(n: int) -> None:
    """Of 64 bits, where elements lie that far or lanes behind the last would wrap; the last program is run alone, on
    memory that is never touched else."""
    kernel = s.plain((n,), [(dt.i8, (n,))], s.read(0, s.Axis(0), dtype=dt.i8))
    (launch,) = lower(kernel, Tiling(m=16)).launches
    assert {v.elem for x in launch.function.body if x.name in ("load", "store") for v in x.args[:1]} == {"i64"}

    class Sparse(Memory):
        def __init__(self) -> None:
            self.elem, self.what, self.held = "i8", "a buffer", {}

        def begin(self) -> None:
            pass

        def load(self, at, program, epoch):
            assert at.min() >= 0 and at.max() < n
            return (at % 100).astype(np.int8)

        def store(self, at, values, program, epoch):
            assert at.min() >= 0 and at.max() < n
            self.held.update(zip(at.tolist(), values.tolist(), strict=True))

    out = Sparse()
    interp.run([launch.function], lambda p: out, lambda programs: [programs - 1])
    assert out.held == {k: k % 100 for k in range(n - n % 16, n)}


FAR = {
    "points": lambda: s.bias_relu(1 << 20, 1 << 12),
    "a sum of many terms": lambda: s.rows("sum", 1 << 29),
    "many sums": lambda: s.columns("sum", 1 << 30, 5),
    "few terms of many rows": lambda: s.columns("max", 5, 1 << 30),
    "a product": lambda: s.product(1 << 16, 1 << 16, 32),
    "a product of long rows": lambda: s.product(32, 32, 1 << 31),
    "a scatter": lambda: s.embedding(1 << 20, 19, 1 << 12, "computed"),
    "rows": lambda: SAMPLES["softmax"].make(m=1 << 20, n=1 << 12),
    "rows of more points than sums": lambda: SAMPLES["softmax"].make(m=1 << 20, n=1 << 11),
}


@pytest.mark.parametrize("tiling", [Tiling(), Tiling(split=4)], ids=["whole", "split"])
@pytest.mark.parametrize("name", FAR)
def test_more_points_than_32_bits_count(name: str, tiling: Tiling) -> None:
    """Lowered and verified by every pattern."""
    kernel = FAR[name]()
    for pattern in patterns(kernel):
        functions_of(lower(kernel, tiling, pattern))


# -------------------------------------------------------------------------------------------------------- what is not


def _sum_of_halves() -> Kernel:
    return s.rows("sum", 5, dt.f16)


REFUSED = {"a sum of f16": (_sum_of_halves, "a sum of f16, a storage type, is not lowered to tiles")}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_kernels_are_reported(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(CompileError, match=message):
        lower(make(), SMALL)


def test_a_pattern_that_does_not_match_is_reported() -> None:
    with pytest.raises(CompileError, match="the pattern 'contraction' on tiles does not take the kernel pointwise"):
        lower(s.bias_relu(3, 5), SMALL, "contraction")


def test_selections_by_rank_are_not_taken() -> None:
    kernel = cover.SAMPLES[SELECTED].make(combiner="argkmin", m=5, n=19, dtype=dt.f32)
    assert kernel is not None and patterns(kernel) == ()
    with pytest.raises(CompileError, match="does not take"):
        lower(kernel, SMALL, "stencil")


def test_every_sample_is_taken(capsys: pytest.CaptureFixture) -> None:
    """Counted and listed, so that nobody takes a refusal for a pass."""
    counts: dict[str, int] = {}
    refused = []
    for sample in SAMPLES:
        for case in cases(sample):
            assert case.kernel is not None
            for pattern in patterns(case.kernel):
                try:
                    lower(case.kernel, SMALL, pattern)
                    counts[pattern] = counts.get(pattern, 0) + 1
                except CompileError as e:
                    refused.append(f"{case}: {e}")
    print(counts)
    plain = {"pointwise", "reduction", "stencil", "contraction", "rows", "members", "scatter"}
    assert not refused and set(counts) == plain
    assert min(counts.values()) >= 15
