"""Programs that sizes share beside each size's own: values and gradients of the gallery, of papers, of the operators'
samples and of drawn formulas, at five sizes in random order, with poison beyond the size and forbidden pages behind
each array.

The default run takes a few of each; the slow one takes all, and 2,000 drawn formulas.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest
from numpy.random import Generator, default_rng

import einsmith as es
from tests.driver import shared_sizes
from tests.fuzz import generate, sizes
from tests.fuzz.sizes import Subject
from tests.gallery.entries import ENTRIES
from tests.gallery.entry import Ints
from tests.operators.samples import SAMPLES
from tests.papers.collection import OPERATORS

DRAWN = 2000
PARTS = 40
"""Tests into which all subjects of a kind are divided."""


def _kind(rng: Generator) -> str:
    return str(rng.choice(["float32", "float64"]))


def gallery(rng: Generator) -> Iterator[Callable[[], Subject]]:
    for entry in ENTRIES:
        for case, inputs in enumerate(entry.cases):
            shapes = [x.shape if isinstance(x, Ints) else x for x in inputs.values() if isinstance(x, (Ints, tuple))]
            for n in sizes.extents_of(shapes):
                yield lambda entry=entry, case=case, n=n: shared_sizes.by_extent(entry, case, n, _kind(rng))


def papers(rng: Generator) -> Iterator[Callable[[], Subject]]:
    for operator in OPERATORS:
        for letter in shared_sizes.letters_of(operator):
            size = int(rng.integers(0, 3))
            yield lambda operator=operator, letter=letter, size=size: shared_sizes.by_letters(
                operator, letter, size, _kind(rng)
            )


def samples(rng: Generator) -> Iterator[Callable[[], Subject]]:
    for case in SAMPLES:
        options = case.draws[-1] if case.draws else {}
        arrays, kind = [np.asarray(a) for a in case.arrays(rng)], _kind(rng)
        arrays = [a.astype(kind) if a.dtype.kind == "f" else a for a in arrays]
        for n in sizes.extents_of([a.shape for a in arrays]):
            yield lambda case=case, options=options, arrays=arrays, n=n: shared_sizes.of_arrays(
                f"{case.name} {options}", lambda *xs: case.function(*xs, **options), arrays, n
            )


def drawn(rng: Generator) -> Iterator[Callable[[], Subject]]:
    for k in range(DRAWN):
        made = generate.Generator(random.Random(k).randrange, smooth=k % 2 == 0)

        def subject(made: generate.Generator = made) -> Subject:
            case = made.case()
            extents = sizes.extents_of([i.shape for i in case.inputs.values()])
            return sizes.of_case(case, int(rng.choice(extents or [0])))

        yield subject


SOURCES = {"gallery": (gallery, 420), "papers": (papers, 1180), "samples": (samples, 620), "drawn": (drawn, 250)}
"""Subjects by source, and every which one the default run takes."""


def run(name: str, first: int, step: int, mode: str) -> None:
    shared = done = 0
    for k, make in islice(enumerate(SOURCES[name][0](default_rng(first))), first, None, step):
        try:
            subject = make()
        except es.EinsmithError:
            continue
        chosen = sizes.draw_sizes(default_rng(k), subject)
        if not sizes.fits(subject, chosen):
            continue
        with sizes.guarded_memory() as guards:
            try:
                shared += bool(sizes.compare(subject, chosen, mode, guards, name != "drawn" or k % 2 == 0))
            except AssertionError as e:
                raise AssertionError(f"{subject.name}: {e}") from None
        done += 1
    assert mode == "auto" or shared >= done / 2, f"{shared} of {done} shared a program"


def test_a_subject_whose_index_is_out_of_bounds_at_one_size_does_not_fit() -> None:
    rows = es.op("y[i] = x[n[i]]")
    subject = Subject("rows", rows, lambda n: [np.ones(3, np.float32), np.full(n, 3 if n == 5 else 2)])
    assert sizes.fits(subject, [2, 9, 4]) and not sizes.fits(subject, [2, 5, 9])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", SOURCES)
def test_some(name, rng) -> None:
    run(name, int(rng.integers(0, SOURCES[name][1])), SOURCES[name][1], "shared")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", ["shared", "auto"])
@pytest.mark.parametrize("name", SOURCES)
def test_all(name, mode, part) -> None:
    run(name, part, PARTS, mode)
