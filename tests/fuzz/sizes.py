"""Compare programs that several sizes share with each size's own, on memory whose ends cannot be touched.

A subject is a function and its arrays at any size. It is called at five sizes in random order; what lies beyond the
size is poison: bytes that are NaN or a large number as floats, and no index as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.random import Generator

import einsmith as es
from einsmith.api.tracing import trace_shapes
from einsmith.base.dtypes import dtype_of
from einsmith.driver.runs import Runs
from einsmith.ir.nodes import Compute, postorder
from einsmith.runtime import buffers
from tests.fuzz.case import Case
from tests.kernels.runner import Guarded

POISON = 0x4B, 0xFF
"""Bytes that fill memory: 1.3e7 and 1263225675, or NaN (of which a kernel may rid a sum) and -1."""
STREAMED = 1 << 20
"""Bytes from which on arrays begin on a cache line: results as large may be stored around the caches, line by line."""
LONGEST = 44, 44, 220
"""Sizes are drawn below one of these."""
SHORT, POINTS = (12, 7), 10**7
"""Sizes are drawn below one of SHORT where at longer ones the statements have more points: the reference evaluator
visits each, 10**11 in a convolution all of whose extents become 38; and float32 sums of so many terms are inexact."""


class Subject(NamedTuple):
    """A function of arrays. arrays: its arrays where the extent that varies is so long."""

    name: str
    function: Callable[..., Any]
    arrays: Callable[[int], Sequence[np.ndarray]]


# -------------------------------------------------------------------------------------------------------------- memory


class Guards:
    """Memory that calls allocate, and arrays that they are passed: behind each lies a page that cannot be touched."""

    def __init__(self) -> None:
        self.poison, self.blocks = POISON[0], list[Guarded]()

    def recycle(self, shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> tuple[np.ndarray, int]:
        block = Guarded(nbytes, on_line=nbytes >= STREAMED)
        block.bytes[:] = self.poison
        self.blocks.append(block)
        array = block.bytes.view(dtype).reshape(shape)
        return array, array.ctypes.data

    def place(self, a: np.ndarray) -> np.ndarray:
        out, _ = self.recycle(a.shape, a.dtype, a.nbytes)
        out[...] = a
        return out

    def check(self) -> None:
        for block in self.blocks:
            block.check("array")
        self.blocks.clear()


@contextmanager
def guarded_memory() -> Iterator[Guards]:
    """Within, calls allocate guarded memory, and intermediate results of shared programs begin as poison."""
    guards, run = Guards(), Runs.run

    def poisoned(self: Runs, places: Any, binding: Any, *rest: Any) -> int:
        if self.fit is not None and binding.preparation is None:  # else the arena keeps what was prepared
            binding.arena.block.array[:] = binding.program.scratch[:] = guards.poison
        return run(self, places, binding, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runs, "run", poisoned)
        patch.setattr(buffers, "recycle", guards.recycle)
        yield guards


# ---------------------------------------------------------------------------------------------------------- comparison


def loss_of(f: Callable, outputs: Sequence[np.ndarray]) -> Callable | None:
    """Return a scalar function of f's results; None where none of them is a float."""
    floats = [n for n, y in enumerate(outputs) if y.dtype.kind == "f"]

    def loss(*xs: Any) -> Any:
        ys = f(*xs)
        ys = ys if isinstance(ys, tuple) else (ys,)
        # The gradient of the sum of squares of what is normalised is rounding alone.
        terms = [(abs(ys[n]) * ys[n]).sum() for n in floats if n < len(ys)]  # `unbind` has results by its size
        return sum(terms[1:], terms[0])

    return loss if floats else None


def compare(subject: Subject, sizes: Sequence[int], mode: str, guards: Guards, gradients: bool = True) -> int:
    """Compare values, and gradients, at sizes; return how many calls shared a program. Raises AssertionError."""
    arrays = subject.arrays(sizes[0])
    functions = {"values": subject.function}
    at = tuple(n for n, a in enumerate(arrays) if a.dtype.kind == "f")
    with np.errstate(all="ignore"):
        outputs = es.interpret(subject.function)(*arrays)
    loss = loss_of(subject.function, _as_tuple(outputs)) if gradients and at else None
    if loss is not None:
        functions["gradients"] = es.grad(loss, at)
    floats = [a.dtype.itemsize for a in (*arrays, *_as_tuple(outputs)) if a.dtype.kind == "f"]
    tolerance = {2: 2e-2, 4: 2e-4}.get(min(floats, default=8), 1e-8)
    count = 0
    for what, f in functions.items():
        shared, each = es.jit(f, sizes=mode), es.jit(f, sizes="each")
        for k, size in enumerate(sizes):
            arrays = subject.arrays(size)
            want = _as_tuple(each(*arrays))
            guards.poison = POISON[k % 2]
            got = _as_tuple(shared(*map(guards.place, arrays)))
            exact: tuple = ()
            for n, (a, b) in enumerate(zip(got, want, strict=True)):
                try:
                    _agree(a, b, f"{what} {n} at {size} of {list(sizes)}", tolerance)
                except AssertionError:
                    with np.errstate(all="ignore"):
                        exact = exact or _as_tuple(es.interpret(f)(*arrays))
                    if not _is_as_exact(a, b, exact[n]):
                        raise
            guards.check()
        count += shared.plan.count("that other sizes share")
    return count


def _as_tuple(x: Any) -> tuple:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _agree(a: np.ndarray, b: np.ndarray, what: str, tolerance: float) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{what}: {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
    if b.dtype.kind != "f":
        np.testing.assert_array_equal(a, b, err_msg=what)
        return
    with np.errstate(all="ignore"):
        # Terms of about 1 cancel in what is smaller, up to their rounding.
        scale = float(np.nanmax(np.abs(np.where(np.isfinite(b), b, 0)), initial=0.01))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale, err_msg=what)


def _is_as_exact(a: np.ndarray, b: np.ndarray, exact: np.ndarray) -> bool:
    """Return whether floats `a` are as near the exact numbers as `b`, up to the luck of rounding (a ratio of 3 was
    seen): where terms cancel, both may be far off."""
    if a.dtype.kind != "f" or not (np.isfinite(a) == np.isfinite(b)).all():
        return False
    finite = np.isfinite(a) & np.isfinite(exact)
    error, other = (np.abs(x[finite] - exact[finite]).max(initial=0) for x in (a, b))
    return bool(error <= 8 * other)


# ------------------------------------------------------------------------------------------------------------ subjects


def of_case(case: Case, extent: int) -> Subject:
    """Return a drawn formula of which all dimensions of an extent vary."""

    def swap(x: Any, n: int) -> Any:
        return n if type(x) is int and x == extent else x

    def arrays(n: int) -> list[np.ndarray]:
        inputs = {
            k: replace(i, shape=tuple(swap(d, n) for d in i.shape), high=swap(i.high, n))
            for k, i in case.inputs.items()
        }
        return replace(case, inputs=inputs, seed=case.seed + n).arrays()

    return Subject(f"{case.text}, {extent}", partial(case.function(), **case.parameters), arrays)


def extents_of(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the extents that shapes have, above one point."""
    return sorted({n for s in shapes for n in s if n > 1})


def draw_sizes(rng: Generator, subject: Subject) -> list[int]:
    """Return five sizes in random order at which to call a function."""
    for longest in rng.choice(LONGEST), *SHORT:
        drawn = [int(n) for n in rng.choice(np.arange(2, longest), 5, replace=False)]
        with suppress(es.EinsmithError, ValueError, IndexError, MemoryError):  # which `fits` tells
            if _count_points(subject, max(drawn)) <= POINTS:
                break
    return drawn


def _count_points(subject: Subject, size: int) -> int:
    """Return how many points all statements of a function have together, those of sums included."""
    arrays = subject.arrays(size)
    graph = trace_shapes(subject.function, [(a.shape, dtype_of(a)) for a in arrays]).graph
    templates = [
        t
        for node in postorder(graph.roots)
        for t in ([node.template] if isinstance(node, Compute) else getattr(node, "members", ()))
    ]
    return sum(prod(part.domain) for t in templates for part in t.parts)


def fits(subject: Subject, sizes: Sequence[int]) -> bool:
    """Return whether the function can be called at these sizes: drawn indices may be in bounds at some of them only."""
    try:
        with np.errstate(all="ignore"):
            for n in sizes:
                arrays = subject.arrays(n)
                es.interpret(subject.function)(*arrays)
    except (es.EinsmithError, ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError, MemoryError):
        return False
    return True
