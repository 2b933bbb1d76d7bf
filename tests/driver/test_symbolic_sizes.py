"""What a trace on symbolic extents says of other sizes is what a trace at these sizes says: of the gallery, of papers,
of the operators' samples and of drawn formulas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
from einsmith.api.tracing import trace_shapes
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import dtype_of
from einsmith.base.symbolic import Scope
from einsmith.passes.capacity import SymbolicSizes, size_graph
from einsmith.passes.size_traces import SizeDependentError, TracedSize
from tests.driver.test_shared_sizes import SOURCES
from tests.fuzz import sizes
from tests.fuzz.sizes import Subject

CAPACITY = 40
OTHERS = 2, 3, 4, 5, 7, 8, 12, 13, 16, 24, 31, 32, 33, 37, 39
PARTS = 40


def trace(f: Callable, shapes: Any, types: Any) -> TracedSize:
    t = trace_shapes(f, list(zip(shapes, types, strict=True)))
    return TracedSize(t.graph, t.bind)


def functions_of(subject: Subject) -> dict[str, Callable]:
    """The function and the gradient of what it gives, by all floats."""
    arrays = subject.arrays(13)
    with np.errstate(all="ignore"):
        outputs = es.interpret(subject.function)(*arrays)
    at = tuple(n for n, a in enumerate(arrays) if a.dtype.kind == "f")
    loss = (
        sizes.loss_of(subject.function, outputs if isinstance(outputs, (tuple, list)) else (outputs,)) if at else None
    )
    return {"value": subject.function} | ({} if loss is None else {"gradient": es.grad(loss, at)})


def shapes_of(subject: Subject) -> Callable[[int], list[tuple[int, ...]]]:
    """Return the shapes of a subject's arrays at a size, of which each extent is a multiple and some more."""
    first, second = ([a.shape for a in subject.arrays(n)] for n in (13, 17))

    def at(n: int) -> list[tuple[int, ...]]:
        return [
            tuple(p if p == q else n * ((q - p) // 4) + (p - 13 * ((q - p) // 4)) for p, q in zip(x, y, strict=True))
            for x, y in zip(first, second, strict=True)
        ]

    return at


def compare(name: str, f: Callable, shapes: Callable, types: Any, count: Counter) -> None:
    """Compare what is said of each size. Counted: what is proven, and how many sizes."""
    try:
        graph = size_graph(*(trace(f, shapes(n), types) for n in (CAPACITY, CAPACITY - 2)))
    except (SizeDependentError, es.EinsmithError):
        return
    count["shared"] += 1
    scope = Scope([CAPACITY])
    try:
        symbolic = SymbolicSizes(graph, trace(f, shapes(scope.symbols[0]), types), scope, [CAPACITY - 2])
    except Exception as e:  # of code that takes no symbolic numbers, too
        count[f"unproven: {type(e).__name__}"] += 1
        return
    count["proven"] += 1
    for n in OTHERS:
        at = scope.at([n])
        fit = None if at is None else symbolic.fit(at)
        if fit is None:
            count["other sizes"] += 1
            continue
        traced = trace(f, shapes(n), types)
        assert fit.outputs == tuple(t.shape for t in traced.graph.outputs), f"{name} at {n}"
        try:
            numbers = graph.fit(traced)
        except SizeDependentError:  # a constant that is folded at some sizes only, say
            count["of other structure"] += 1
            continue
        count["sizes"] += 1
        for a, b in zip(fit.numbers, numbers, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{name} at {n}")


def run(source: str, first: int, step: int) -> Counter:
    count: Counter = Counter()
    for make in islice(SOURCES[source][0](default_rng(first)), first, None, step):
        try:
            subject = make()
            functions, shapes = functions_of(subject), shapes_of(subject)
            types = [dtype_of(a) for a in subject.arrays(13)]
        except (es.EinsmithError, ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
            continue  # not at every size
        for what, f in functions.items():
            compare(f"{what} of {subject.name}", f, shapes, types, count)
    return count


def check(count: Counter) -> None:
    assert count["proven"] >= 0.75 * count["shared"] and count["sizes"] >= 8 * count["proven"], count
    assert count["of other structure"] <= 0.03 * count["sizes"], count


@pytest.mark.parametrize("source, step", [("gallery", 120), ("papers", 180), ("samples", 250), ("drawn", 200)])
def test_some(source: str, step: int, rng: np.random.Generator) -> None:
    check(run(source, int(rng.integers(step)), step))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("source", SOURCES)
def test_all(source: str, part: int) -> None:
    check(run(source, part, PARTS))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: sum((x[k] for k in range(x.shape[0])), 0.0),
        lambda x: x * float(np.arange(x.shape[0]).sum()),
        lambda x: x + np.ones(x.shape),
        lambda x: x * (2.0 if x.shape[0] in {CAPACITY, CAPACITY - 2} else 3.0),
    ],
)
def test_values_that_are_taken_without_a_record_are_seen(f: Callable) -> None:
    """Python's own loops and NumPy read a number that no trace at the capacity has."""
    scope = Scope([CAPACITY])
    with pytest.raises(Exception):  # noqa: B017 - a SizeDependentError, or what the function raises
        graph = size_graph(*(trace(f, [(n, 3)], [dt.f64]) for n in (CAPACITY, CAPACITY - 2)))
        symbolic = SymbolicSizes(graph, trace(f, [(scope.symbols[0], 3)], [dt.f64]), scope, [CAPACITY - 2])
        assert scope.at([7]) is None and symbolic
        raise SizeDependentError
