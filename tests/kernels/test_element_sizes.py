"""What kernels cost by the bytes of their elements: each access has its own, arithmetic fills vectors of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einsmith.base import dtypes as dt
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Reduce, apply, cast, template
from einsmith.kernels.pointwise import Pointwise, PointwiseConfig
from einsmith.kernels.reduction import reduction_cost as costs
from einsmith.kernels.reduction.axes import ReductionConfig, boxes_of, schedule
from einsmith.kernels.reduction.reduction_pattern import Reduction
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from tests.kernels.runner import WIDE
from tests.kernels.samples import axes, plain, read

TYPES = (dt.f64, dt.i64, dt.f32, dt.i16, dt.i8)
BYTES = (dt.u8, dt.bool_)
"""Of which nothing is computed, but the largest is found."""
ROW, COLUMN = ReductionConfig("row", 16, 4, 1, 1), ReductionConfig("column", 16, 4, 1, 1)
TILE = COLUMN._replace(rows=4)


def larger(target: Target, factor: float) -> Target:
    """A machine all of whose registers and memories hold so many times the bytes: with elements so many times as large
    it does the same."""
    sizes = {n: int(getattr(target, n) * factor) for n in ("vector_bytes", "l1", "l2", "l3")}
    return replace(target, **sizes, fma_per_second=target.fma_per_second * factor)


def rows(dtype, m: int = 64, n: int = 4096) -> Kernel:
    i, r = axes(2)
    return plain((m,), [(dtype, (m, n))], Reduce("max", (n,), (read(0, i, r, dtype=dtype),)))


def columns(dtype, m: int = 4096, n: int = 1024) -> Kernel:
    i, r = axes(2)
    return plain((n,), [(dtype, (m, n))], Reduce("max", (m,), (read(0, r, i, dtype=dtype),)))


def pairs(dtype, n: int = 1024) -> Kernel:
    """The least of the largest of two: products' shape, in any type."""
    i, j, r = axes(3)
    body = apply("max", read(0, i, r, dtype=dtype), read(1, r, j, dtype=dtype))
    return plain((n, n), [(dtype, (n, n))] * 2, Reduce("min", (n,), (body,)))


@pytest.mark.parametrize("make,config,dtype", [
    *((make, c, t) for make, c in ((rows, ROW), (columns, COLUMN)) for t in (*TYPES, *BYTES)),
    *((pairs, c, t) for c in (COLUMN, TILE) for t in TYPES),
])  # fmt: skip
def test_memory_takes_its_bytes(make, config, dtype):
    """A float64 twice the seconds of a float32, a byte a quarter; what is read again, too."""
    factor = dtype.itemsize / 4
    pattern, mine = Reduction(), larger(WIDE, factor)
    want = pattern.cost(make(dt.f32), config, WIDE)
    assert pattern.cost(make(dtype), config, mine).memory == pytest.approx(factor * want.memory)
    (box,), (other,) = boxes_of(make(dtype)), boxes_of(make(dt.f32))
    again = costs.reloaded_bytes(schedule(other, config), WIDE)
    assert (again > 0) == (make is pairs)
    assert costs.reloaded_bytes(schedule(box, config), mine) == factor * again


@pytest.mark.parametrize(
    "make,dtype", [(rows, dt.i64), (rows, dt.i16), (rows, dt.f64), (columns, dt.f64), (pairs, dt.f64)]
)
def test_a_vector_instruction_takes_as_long_in_every_type(make, dtype):
    """Where vectors hold as many elements, kernels take as many instructions."""
    pattern, factor = Reduction(), dtype.itemsize / 4
    for config in (COLUMN, TILE, ROW):
        want = pattern.cost(make(dt.f32), config, WIDE).arithmetic
        assert pattern.cost(make(dtype), config, larger(WIDE, factor)).arithmetic == pytest.approx(want)


def test_reads_of_a_point_have_their_own_bytes():
    """A mask of bytes beside float32."""
    i, j, r = axes(3)
    n = 1024

    def again(*masks) -> float:
        body = apply("max", read(0, i, r), read(1, r, j))
        for m in masks:
            body = apply("mul", body, cast(read(2, i, r, dtype=m), dt.f32))
        kernel = plain((n, n), [(t, (n, n)) for t in (dt.f32, dt.f32, *masks)], Reduce("max", (n,), (body,)))
        (box,) = boxes_of(kernel)
        return costs.reloaded_bytes(schedule(box, COLUMN), replace(WIDE, l2=1 << 9))

    of_bytes, of_floats = again(dt.u8) - again(), again(dt.f64) - again()
    assert of_bytes > 0 and of_floats == 8 * of_bytes


@pytest.mark.parametrize("n", [1024, 1040, 2934])
def test_rows_as_long_in_bytes_jump_as_far(n):
    """Half as many float64: the same lines and parts of them. Lanes along the reduction take an element of a
    line, which is worth its bytes."""
    (box,), (other,) = boxes_of(columns(dt.f64, 1 << 16, n)), boxes_of(columns(dt.f32, 1 << 16, 2 * n))
    for config, part in ((COLUMN, 1), (ROW, 0.5)):
        s, t = schedule(box, config._replace(lanes=8)), schedule(other, config)
        assert costs.conflict_fraction(s) == part * costs.conflict_fraction(t) > 0


def test_lines_of_results():
    """Eight float64 fill a line, eight float32 half of one, which is fetched before it is written."""

    def fetched(dtype, n: int) -> int:
        i, j, r = axes(3)
        t = template((512, n), [(dtype, (512, 7, n))], Reduce("max", (7,), (read(0, i, r, j, dtype=dtype),)))
        buffers = (KernelBuffer(dtype, (512, 7, n)), KernelBuffer(dtype, (512, n), non_temporal=True))
        kernel = Kernel((Stage(t, (("buffer", 0),), (1,)),), buffers)
        (box,) = boxes_of(kernel)
        return costs.fetched_bytes(kernel, schedule(box, COLUMN))

    assert [fetched(dt.f64, n) for n in (8, 12, 16)] == [0, 512 * 12 * 8, 0]
    assert [fetched(dt.f32, n) for n in (8, 12, 16)] == [512 * 8 * 4, 512 * 12 * 4, 0]
    assert [fetched(dt.u8, n) for n in (16, 64)] == [512 * 16, 0]


def test_strips_of_results():
    waited = {}
    for dtype, n in ((dt.f32, 4096), (dt.f64, 2048), (dt.f32, 4100), (dt.f64, 2050)):
        i, j, r = axes(3)
        body = apply("max", read(0, i, r, dtype=dtype), read(1, r, j, dtype=dtype))
        kernel = plain((512, n), [(dtype, (512, 9)), (dtype, (9, n))], Reduce("min", (9,), (body,)))
        (box,) = boxes_of(kernel)
        waited[dtype, n] = costs.stalled_bytes(kernel, schedule(box, TILE), WIDE)
    assert waited[dt.f64, 2048] == waited[dt.f32, 4096] and waited[dt.f64, 2050] == waited[dt.f32, 4100]
    assert max(waited.values()) > 0


def test_parts_of_a_result():
    """That a second launch merges: as many bytes more."""
    config = ReductionConfig("row", 16, 4, 1, 8)
    beside = {}
    for dtype in (dt.f64, dt.f32, dt.u8):
        kernel = rows(dtype, 1 << 14, 1024)
        pattern, target = Reduction(), larger(WIDE, dtype.itemsize / 4)
        whole, parts = (pattern.cost(kernel, config._replace(splits=n), target).launch for n in (1, 8))
        beside[dtype] = parts - whole
    fixed = beside[dt.f32] - (beside[dt.f64] - beside[dt.f32])
    assert beside[dt.f64] > 1.5 * beside[dt.f32]
    assert beside[dt.u8] - fixed == pytest.approx((beside[dt.f32] - fixed) / 4)


@pytest.mark.parametrize("dtype", [dt.f64, dt.f32, dt.i16])
def test_elementwise(dtype):
    i, n = axes(1)[0], 1 << 14
    x = read(0, i, dtype=dtype)
    pattern, factor = Pointwise(), dtype.itemsize / 4

    def cost(fn, x, target):
        config = PointwiseConfig(target.lanes(x.dtype.itemsize), 1, 1)
        return pattern.cost(plain((n,), [(x.dtype, (n,))], apply(fn, x)), config, target)

    assert cost("neg", x, larger(WIDE, factor)).memory == pytest.approx(factor * cost("neg", read(0, i), WIDE).memory)
    if dtype.is_float:
        mine, other = (cost("exp", a, WIDE) for a in (x, read(0, i)))
        assert mine.arithmetic == pytest.approx(factor * other.arithmetic, rel=0.01)
        assert mine.special == factor * other.special > 0
    kernel = plain((n,), [(dtype, (n,))], apply("neg", x))
    assert (
        0
        < pattern.floor(kernel, WIDE)
        <= min(pattern.cost(kernel, c, WIDE).seconds for c in pattern.configs(kernel, WIDE))
    )


def test_elements_at_positions_from_data_are_read_again_in_outer_loops():
    """All rows of x for each position, or all positions for each row."""
    rows, positions = 512, 64
    params = [(dt.f32, (rows, 8, 16)), (dt.i32, (positions,))]

    def again(first) -> float:
        i, j, u = axes(3)
        row, at = (j, i) if first == "positions" else (i, j)
        body = read(0, row, read(1, at, dtype=dt.i32), u)
        shape = (positions, rows) if first == "positions" else (rows, positions)
        (box,) = boxes_of(plain(shape, params, Reduce("sum", (16,), (body,))))
        return costs.reloaded_bytes(schedule(box, ROW), replace(WIDE, l2=1 << 14))

    tensor = 4 * rows * 8 * 16
    assert again("rows") == 0 and again("positions") == pytest.approx((positions / 8 - 1) * tensor)
