"""Buffers whose dimensions are permuted or have gaps: every pattern, as machine code, against the evaluator; what lies
between elements is neither read nor written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import VerifyError
from einsmith.codegen.loopnest.address import address, comparison_form, store_address
from einsmith.codegen.loopnest.nest_text import show
from einsmith.ir.analysis.linear import LinearForm, affine_of
from einsmith.ir.nodes import Piece, Scatter, Template, template
from einsmith.kernels import autoconfig
from einsmith.kernels.scan import Scan
from einsmith.kernels.scatter.scatter_pattern import ScatterAdd
from einsmith.kernels.stencil.match import stencils
from einsmith.kernels.stencil.stencil_pattern import StencilPattern
from einsmith.kernels.stencil.write_combining import combined_buffers
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows, row_major
from einsmith.schedule.serial import from_data, to_data
from einsmith.schedule.split_axes import split_kernels
from einsmith.tuning.kernels.decisions import lower_choice
from tests.kernels import runner
from tests.kernels import samples as s
from tests.kernels.cover import NAMES, Case, cases, pairwise
from tests.kernels.layouts import LAYOUTS, Layout, channels_last, in_order, laid_out
from tests.kernels.runner import WIDE, check, compare, fresh, host, reference, sampled

PADDED, LAST = Layout("padded", in_order, 3), Layout("channels last", channels_last)
WAYS = {**{x.name: (x,) for x in LAYOUTS}, "mixed": (LAST, PADDED)}
"""Layouts of a kernel's buffers, in turn."""

every_way = pytest.mark.parametrize("way", WAYS)
every_pattern = pytest.mark.parametrize("name", NAMES)


def some(name: str, way: str) -> Iterator[Case]:
    """The cases one after the other: of thousands, the first ones may do."""
    return cases([host()], name, change=partial(_changed, way))


@cache
def pool(name: str, way: str) -> list[Case]:
    return list(some(name, way))


def _changed(way: str, kernel: Kernel) -> Kernel:
    return laid_out(kernel, *WAYS[way])


def run(found: Iterable[Case]) -> None:
    wrong = []
    for n, case in enumerate(found):
        if not runner.SAMPLE.includes_next():
            continue
        try:
            case.run(backward=n % 2 == 1)
        except AssertionError as e:
            wrong.append(f"{case}\n{str(e)[:300]}")
    assert not wrong, f"{len(wrong)} cases are wrong; the first ones:\n" + "\n".join(wrong[:10])


def _is_slow(name: str, way: str, number: int) -> bool:
    """Whether a pair is left to slow runs: every other one, and of contractions, which are many, all."""
    return name == "contraction" or bool(number % 2)


@sampled(4)
@pytest.mark.thinned(10)
@pytest.mark.parametrize(
    "name, way",
    [
        pytest.param(name, way, marks=[pytest.mark.slow] * _is_slow(name, way, n + m))
        for n, name in enumerate(NAMES)
        for m, way in enumerate(WAYS)
    ],
)
def test_patterns(name, way):
    """Every sample, size and value of a gene that there is of a pattern in a layout; half of the pairs are slow."""
    found = pool(name, way)
    run(found[n] for n in pairwise([c.traits for c in found], of=1))


@sampled(6)
def test_contractions_of_mixed_layouts():
    """Every size and value of a gene that there is of a few samples."""
    found = [*cases([host()], "contraction", ("product", "conv", "conv dx", "depthwise"), partial(_changed, "mixed"))]
    run(found[n] for n in pairwise([c.traits for c in found], of=1))


@pytest.mark.slow
@every_way
@every_pattern
def test_pairs(name, way):
    found = pool(name, way)
    run(found[n] for n in pairwise([c.traits for c in found]))


@pytest.mark.thinned(2)
@every_way
def test_every_pattern_has_cases(way):
    """Of kernels some of whose buffers really are not row-major; the samples of scans and scatters are no images."""
    few = [n for n in NAMES if all(x.row_major for c in some(n, way) for x in c.kernel.buffers)]
    assert few == (["scan", "scatter"] if way == "batch inside" else [])


@sampled(2)
@pytest.mark.thinned(6)
@every_way
@pytest.mark.parametrize("n", [1, 13, *(host().lanes() + i for i in (-1, 0, 1))])
def test_scans_of_images(n, way):
    """Along each dimension of an image; a scan of one element is none."""
    *at, j = s.axes(5)
    shape = (2, 3, n, 5)
    for d in (d for d in range(1, 4) if shape[d] > 1):
        body = s.read(0, *at[:d], j, *at[d + 1 :])
        kernel = s.kernel_of(template(shape, [(dt.f32, shape)], s.scanned(shape[d], body, at[d], j)))
        assert check(Scan(), laid_out(kernel, *WAYS[way]), n, native=True)


@sampled(2)
@pytest.mark.thinned(5)
@every_way
@pytest.mark.parametrize("n", [1, 13, *(host().lanes() + i for i in (-1, 0, 1))])
def test_scatters_into_images(n, way):
    """Rows of two dimensions, and of one where the other belongs to the place that they go to."""
    t, c, x = s.axes(3)
    ids = s.read(0, t, dtype=dt.i32)
    params = ((dt.i32, (9,)), (dt.f32, (9, 3, n)))
    for index, shape in (((ids, c, x), (5, 3, n)), ((c, ids, x), (3, 5, n))):
        kernel = s.kernel_of(Template(shape, params, (Scatter("sum", (9, 3, n), index, s.read(1, t, c, x)),)))
        places = np.random.default_rng(n).integers(0, 5, 9).astype(np.int32)
        check(ScatterAdd(), laid_out(kernel, *WAYS[way]), n, inputs=[places], tolerance=0, native=True)


# ----------------------------------------------------------------------------------------- what the tests above can see


def _run_as(made: Kernel, at: Kernel) -> None:
    """The code of one kernel on the buffers of another one."""
    base = fresh(at, 0)
    compare(lower_choice(autoconfig.choose(made, host())), at, base, reference(at, base), "", host())


SIMPLE = s.bias_relu(5, 17)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: x.name)
def test_another_layout_is_seen(layout):
    at = laid_out(SIMPLE, layout)
    assert not isinstance(at, Rows)
    _run_as(at, at)
    if any(not x.row_major for x in at.buffers):
        with pytest.raises(AssertionError):
            _run_as(SIMPLE, at)


def test_a_store_between_elements_is_seen():
    """Rows of 17 elements stored as if they had 20; the last one of a plane, behind which memory ends, is left out."""
    padded, bias = PADDED.buffer(SIMPLE.buffers[-1]), KernelBuffer(dt.f32, (4,))
    rows = KernelBuffer(padded.dtype, (3, 4, 20), False, padded.strides)
    wider = s.plain((3, 4, 20), [(dt.f32, (3, 4, 20)), (dt.f32, (4,))], SIMPLE.root.parts[0].bodies[0])
    made = Kernel(wider.stages, (rows, bias, rows))
    at = Kernel(SIMPLE.stages, (padded, SIMPLE.buffers[1], padded))
    with pytest.raises(AssertionError, match="between the elements of buffer 2"):
        _run_as(made, at)


@pytest.mark.thinned(2)
@every_pattern
def test_code_that_ignores_strides_is_seen(name):
    """Code for row-major buffers, where rows have gaps between them."""
    case = next(c for c in some(name, "padded") if _written_with_gaps(c))
    dense = laid_out(case.kernel, Layout("dense", in_order))
    config = case.pattern.configs(dense, case.target)[0]
    base, want = case.data()
    with pytest.raises(AssertionError):
        compare(case.pattern.lower(dense, config, case.target), case.kernel, base, want, "", case.target)


def _written_with_gaps(case: Case) -> bool:
    return any(not case.kernel.buffers[n].row_major for n in case.data()[1])


# -------------------------------------------------------------------------------------------------------------- buffers


def test_row_major_is_the_default_and_one_node():
    x = KernelBuffer(dt.f32, (3, 1, 5))
    assert x.strides == (5, 5, 1) == row_major((3, 1, 5)) and x.row_major and x.size == 15 and x.nbytes == 60
    assert KernelBuffer(dt.f32, (3, 1, 5), False, (5, 77, 1)) is x, "no address depends on the stride of one point"
    assert KernelBuffer(dt.f32, (3, 1, 5), False, (8, 8, 1)) is not x
    assert KernelBuffer(dt.f32, (), False, ()) is KernelBuffer(dt.f32, ()) and KernelBuffer(dt.f32, ()).size == 1
    assert (
        KernelBuffer(dt.f32, (3, 0), False, (1, 3)) is KernelBuffer(dt.f32, (3, 0))
        and KernelBuffer(dt.f32, (3, 0)).size == 0
    )


def test_permuted_and_padded_buffers():
    x = KernelBuffer(dt.f64, (2, 3, 4), True, (20, 1, 5))
    assert not x.row_major and x.size == 20 + 2 + 15 + 1 and x.nbytes == 8 * x.size
    assert x.flat is KernelBuffer(dt.f64, (x.size,), True)
    assert x.part(1, 2) is KernelBuffer(dt.f64, (2, 2, 4), True, (20, 1, 5)) and not x.part(0, 1, False).non_temporal
    assert x.split(2, 2) is KernelBuffer(dt.f64, (2, 3, 2, 2), True, (20, 1, 10, 5))
    assert from_data(to_data(x)) is x
    assert x.digest != KernelBuffer(dt.f64, (2, 3, 4), True).digest


@pytest.mark.parametrize("shape, strides", [((2, 3), (3,)), ((2, 3), (2, 1)), ((2, 3), (3, 0)), ((2, 3), (3, -1))])
def test_strides_that_are_refused(shape, strides):
    with pytest.raises(VerifyError, match="stride"):
        KernelBuffer(dt.f32, shape, False, strides)


def test_axes_split_by_digits_keep_their_place():
    """A result of which a dimension becomes two lies where it lay."""
    kernel = laid_out(s.shuffled(3, 5), LAST)
    assert not isinstance(kernel, Rows)
    before = kernel.buffers[-1]
    for split in split_kernels(kernel):
        after, extents = split.buffers[-1], split.buffers[-1].shape
        assert after.size == before.size
        if len(extents) > len(before.shape):
            flat = np.lib.stride_tricks.as_strided(np.arange(before.size), before.shape, np.array(before.strides) * 8)
            same = np.lib.stride_tricks.as_strided(np.arange(after.size), extents, np.array(after.strides) * 8)
            assert np.array_equal(same.reshape(before.shape), flat)


def test_planes_stored_in_whole_lines_are_dense():
    """Rows with gaps between them are stored row by row."""
    dense = s.non_temporal(s.depthwise(1, 2, 28, 28, 3, 1))
    (found,) = [x for x in stencils(dense) if not x.along_k]
    assert combined_buffers(dense, found, WIDE)
    padded = laid_out(dense, PADDED)
    assert not isinstance(padded, Rows) and padded.buffers[-1].non_temporal
    (found,) = [x for x in stencils(padded) if not x.along_k]
    assert not combined_buffers(padded, found, WIDE)


def test_a_stencil_needs_rows_side_by_side():
    """Its vectors run along rows of images, which have other channels between them here; other patterns take it."""
    kernel = laid_out(s.depthwise(1, 8, 9, 17, 3, 1), LAST)
    assert not stencils(kernel)
    _run_as(kernel, kernel)


def _rows_outside(rank: int) -> tuple[int, ...]:
    return (2, 0, 1, 3) if rank == 4 else tuple(range(rank))


def test_rows_of_all_images_together():
    """Rows of an image that lie far apart are read and stored, and what is between them is not asked for."""
    way, small, large = Layout("rows outside", _rows_outside), s.depthwise(2, 3, 9, 17, 3, 1), (2, 64, 56, 56, 3, 1)
    check(StencilPattern(), laid_out(small, way), 3, tolerance=0, native=True)

    def asked(kernel: Kernel) -> int:
        pattern = StencilPattern()
        lowered = pattern.lower(kernel, pattern.configs(kernel, WIDE)[0], WIDE)
        return "".join(show(x.function) for x in lowered.launches).count("prefetch")

    dense = s.depthwise(*large)
    assert asked(dense) > 0 and asked(laid_out(dense, PADDED)) > 0 and asked(laid_out(dense, way)) == 0


# ------------------------------------------------------------------------------------------------------------ addresses


def test_addresses_by_axis():
    """Of results, without axes of one point, and of comparisons; None where there are other atoms than axes."""
    x = KernelBuffer(dt.f32, (8, 9, 10), False, (1, 160, 16))
    piece = Piece((1, 0, 2), (2, 1, 3), (3, 9, 2), s.num(0.0))
    at = store_address(piece, x)
    assert at == LinearForm.of_axes(1 + 32, {0: 2, 1: 160, 2: 48})
    assert at.at_point({0: 2, 2: 1}) == LinearForm.of_axes(33 + 4 + 48, {1: 160})
    i, j = s.axes(2)
    flat = address((s.add(i, 1), s.div(j, 2), j), x.strides)
    assert affine_of(flat) is None and flat.coefficient(s.div(j, 2)) == 160 and flat.const == 1
    assert affine_of(address((i, j, s.int_(3)), x.strides), (8, 1, 1)) == LinearForm.of_axes(48, {0: 1})
    assert comparison_form(s.lt(s.mul(2, i), s.add(j, 5))) == LinearForm.of_axes(-5, {0: 2, 1: -1})
    assert comparison_form(s.lt(s.div(i, 2), j)) is None
