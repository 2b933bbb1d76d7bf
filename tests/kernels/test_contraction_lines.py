"""Sums and the constants between them, stored in whole lines: every way to walk over tiles and tasks, native."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.nodes import Piece, Template, apply, template
from einsmith.kernels.contraction import epilogue
from einsmith.kernels.contraction.config import Tiled
from einsmith.kernels.contraction.contraction_pattern import Configs
from einsmith.kernels.contraction.emission.tile_epilogue import form_of
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.units import find_unit
from einsmith.schedule.contraction_problem import problems
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage
from tests.kernels.runner import check_exact as check
from tests.kernels.runner import host
from tests.kernels.samples import kernel_of, load, non_temporal, num, over, pointwise_dx, times


def added(kernel: Kernel) -> Kernel:
    """Followed by an addition of what another branch sends back: nothing is constant."""
    f, shape, n = dt.f32, kernel.shape, len(kernel.buffers)
    total = template(shape, ((f, shape), (f, shape)), apply("add", load(0, 0, 1, 2, 3), load(1, 0, 1, 2, 3)))
    first = Stage(kernel.root, kernel.stages[0].args, (None,))
    stage = Stage(total, (("stage", 0, 0), ("buffer", n)), kernel.stages[0].outputs)
    return Kernel((first, stage), (*kernel.buffers, KernelBuffer(f, shape)))


def configs(kernel: Kernel, base: Tiled) -> Configs:
    """With pixels as N."""
    (p,) = problems(kernel.root)
    return Configs((replace(base, swap=0 in p.operands[0].axes),))


BASES = [
    Tiled(False, 3, 2, "inline", "inline", tn=3),  # tasks end within units
    Tiled(False, 2, 1, "panel", "panel", "m", tm=2),  # a unit may be several panels; rows wait one tile at a time
    Tiled(False, 4, 3, "inline", "panel", kc=2, tm=2, tn=2),  # sums come from scratch
    Tiled(False, 5, 4, "inline", "inline"),
]


@pytest.fixture
def always(monkeypatch):
    """Results are stored in lines, whatever it costs."""
    epilogue._choose_form.cache_clear()
    monkeypatch.setattr(epilogue, "cycles", lambda *_: 1e6)
    yield
    epilogue._choose_form.cache_clear()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", [
    (2, 9, 8, 56, 5, 2),  # rows of 28: seven lines of two rows
    (3, 5, 28, 28, 4, 2),  # rows of 14
    (3, 7, 14, 14, 6, 2),  # planes that are no whole lines
    (2, 4, 9, 15, 3, 3),
    (2, 3, 8, 32, 3, 2),  # panels of whole units
    (1, 5, 4, 8, 3, 2),
])  # fmt: skip
def test_units_of_results(case, always):
    for number, base in enumerate(BASES):
        kernel = pointwise_dx(*case)
        kernel = non_temporal(kernel) if number % 2 else kernel
        for k in (kernel, added(kernel)) if number in (0, 2) else (kernel,):
            c = configs(k, base)
            (p,) = problems(k.root)
            in_lines = form_of(Geometry(k, c.pieces[0], host(), p)) == "lines"
            assert in_lines or host().vector_bytes < 64
            check(k, [c])


def two_axes_of_k(b: int, c: int, h: int, w: int, o: int, r: int) -> Kernel:
    """As `pointwise_dx` at a stride of 2, but the weights' channels are two axes of K that do not stand together."""
    parts = []
    for fy, fx in product((0, 1), repeat=2):
        body = over("sum", (o, r), times(load(0, 0, 4, 5, 2, 3), load(1, 5, 4, 1))) if fy == fx == 0 else num(0.0)
        parts.append(Piece((0, 0, fy, fx), (1, 1, 2, 2), (b, c, h, w), body))
    return kernel_of(Template((b, c, 2 * h, 2 * w), ((dt.f32, (b, o, r, h, w)), (dt.f32, (r, o, c))), tuple(parts)))


def test_several_axes_of_k(always):
    kernel = two_axes_of_k(2, 9, 4, 14, 3, 2)
    for base in BASES:
        check(kernel, [configs(kernel, replace(base, a="inline"))])


def test_units_of_whole_lines():
    """Of rows of 28 sums two apart it is a row and the one of zeros after it; of 7 by 7 the plane, as no whole lines
    are to be had; where a phase is missing there is a gap."""
    for size, points, vectors, aligned in ((28, 28, 7, True), (14, 28, 7, True), (7, 49, 13, False)):
        width = 2 * size
        coef = {0: 64 * width * width, 1: width * width, 2: 2 * width, 3: 2}
        places = [LinearForm.of_axes(y * width + x, coef) for y in (0, 1) for x in (0, 1)]
        extents = (16, 64, size, size)
        unit = find_unit([0] * 4, places, extents, (0, 2, 3), 16)
        assert unit is not None and unit.points == points
        (s,) = unit.stretches
        assert (len(s.vectors), s.aligned, s.first) == (vectors, aligned, 0)
        assert s.vectors[0][:3] == ((0, 0), (1, 0), (0, 1))
        assert find_unit([0] * 3, places[:3], extents, (0, 2, 3), 16) is None
    assert find_unit([0], places[:1], extents, (0, 2, 3), 16) is None
