"""Make functions of which an extent varies, of papers' operators, of entries of the gallery, and of samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.random import default_rng

import einsmith as es
from tests.fuzz.sizes import Subject
from tests.gallery.entry import Entry, Ints
from tests.papers.operator import Operator


def by_letters(operator: Operator, letter: str, size: int, kind: str) -> Subject:
    """Return an operator of a paper, or a formula, of which the axis of a letter varies; others have size 0, 1, 2."""
    f = es.op(operator.text, extents=operator.extents)

    def arrays(n: int) -> list[np.ndarray]:
        at = replace(operator, sizes={**operator.sizes, letter: (n, n, n)})
        of = at.arrays(size, default_rng(n))
        return [of[x].astype(kind) if of[x].dtype.kind == "f" else of[x] for x in f.inputs]

    return Subject(f"{operator.name}, {letter}", partial(f, **operator.parameters), arrays)


def letters_of(operator: Operator) -> list[str]:
    """Return the letters of an operator's axes."""
    return sorted({x for text in operator.inputs.values() for x in re.findall(r"\b[a-z]\b", text.partition("|")[0])})


def by_extent(entry: Entry, case: int, extent: int, kind: str) -> Subject:
    """Return an entry of the gallery of which all dimensions of an extent vary."""
    f = es.op(entry.formula, extents=entry.extents)

    def swap(x: Any, n: int) -> Any:
        if isinstance(x, Ints):
            return replace(x, shape=swap(x.shape, n), high=n if x.high == extent else x.high)
        return tuple(n if d == extent else d for d in x) if isinstance(x, tuple) else x

    def arrays(n: int) -> list[np.ndarray]:
        of = entry.inputs({k: swap(x, n) for k, x in entry.cases[case].items()}, default_rng(n))
        return [of[x].astype(kind) if of[x].dtype.kind == "f" else of[x] for x in f.inputs]

    return Subject(f"{entry.name}-{case}, {extent}", partial(f, **entry.parameters(entry.cases[case])), arrays)


def of_arrays(name: str, function: Callable, arrays: Sequence[np.ndarray], extent: int) -> Subject:
    """Return a function of which all dimensions of an extent vary: elements are repeated or left out."""

    def at(n: int) -> list[np.ndarray]:
        out = []
        for a in arrays:
            for d, m in enumerate(a.shape):
                if m == extent:
                    a = np.take(a, np.arange(n) % m, d)
            if a.dtype.kind == "f":  # no two are equal
                a = (a + default_rng(n).normal(size=a.shape) * 1e-3).astype(a.dtype)
            out.append(np.ascontiguousarray(a))
        return out

    return Subject(f"{name}, {extent}", function, at)
