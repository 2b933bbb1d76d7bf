"""Scatters whose terms are sorted: each element combines the terms that fall on it, in their order."""

from __future__ import annotations

import pytest
from numpy.random import default_rng

from einsmith.base import dtypes as dt
from einsmith.gpu.tiles import segments
from einsmith.gpu.tiles.lower import lower
from einsmith.ir.nodes import Scatter, Template
from einsmith.schedule.kernel import Kernel
from tests.kernels import samples as s
from tests.tiles.memory import Memory
from tests.tiles.running import SMALL, WATCHED, backward, check


def at_two_indices(combiner: str) -> Kernel:
    """out[a[t], d, b[t]] combined with x[t, d], where d is longer in the output."""
    t, d = s.axes(2)
    index = (s.read(0, t, dtype=dt.i32), d, s.read(1, t, dtype=dt.i32))
    scatter = Scatter(combiner, (23, 5), index, s.read(2, t, d))
    params = ((dt.i32, (23,)), (dt.i32, (23,)), (dt.f32, (23, 5)))
    return s.kernel_of(Template((3, 7, 4), params, (scatter,)))


KERNELS = {
    "embedding": (lambda: s.embedding(5, 19, 7), {0: 5}),
    "onto a computed start": (lambda: s.embedding(5, 19, 7, "computed"), {0: 5}),
    "onto memory": (lambda: s.embedding(5, 19, 7, "memory"), {0: 5}),
    "of one element": (lambda: s.embedding(1, 17, 1), {0: 1}),
    "more rows than terms": (lambda: s.embedding(67, 3, 16), {0: 67}),
    "histogram": (lambda: s.histogram(11, 70), {0: 11}),
    "sums at two indices": (lambda: at_two_indices("sum"), {0: 3, 1: 4}),
    "maxima at two indices": (lambda: at_two_indices("max"), {0: 3, 1: 4}),
}


@pytest.mark.parametrize("way", WATCHED)
@pytest.mark.parametrize("name", KERNELS)
def test_scatters(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "FEWEST_TERMS", 1)
    make, limits = KERNELS[name]
    kernel = make()
    assert [x.function.name.partition("_")[0] for x in lower(kernel, SMALL).launches][-1] == "segments"
    check(kernel, default_rng(), SMALL, ways=[way], limits=limits)
    check(kernel, default_rng(), SMALL, ways=[way], limits=limits, order=backward)


def test_work_grows_with_terms_and_not_with_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop over the terms of a block of elements ends with the element that has most."""
    loads = []
    plain = Memory.load
    monkeypatch.setattr(Memory, "load", lambda m, at, *a: (loads.append(at.size), plain(m, at, *a))[1])
    counts = []
    for rows in (200, 800):
        loads.clear()
        check(s.embedding(rows, 100, 8), default_rng(3), SMALL, ways=["interpreter"], limits={0: 50})
        counts.append(sum(loads))
    assert counts[1] < counts[0] + 3 * 600  # their own counts and begins


def test_terms_that_depend_on_the_elements_are_not_sorted() -> None:
    assert segments.sorted_scatter(s.scatter_window(67, 65, 1)) is None
    assert segments.sorted_scatter(s.embedding(5, 63, 7)) is None  # too few
    assert segments.sorted_scatter(s.embedding(5, 64, 7)) is not None
