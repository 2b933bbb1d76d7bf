"""Rows of a table, chosen by integers."""

from __future__ import annotations

from typing import Any

from einsmith.errors import ArgumentError
from einsmith.functional.call import traced
from einsmith.functional.common import tensor
from einsmith.lang import builder as fb
from einsmith.lang.builder import Value


@traced
def embedding(input: Any, weight: Any, padding_idx: int | None = None) -> Value:
    """Row input[i] of weight [V, K] at each place i: integers [...] -> [..., K].

    padding_idx: a row (negative ones count from the end) that is read as any other, but gets no gradient. An integer
    outside [0, V) is an IndexError at the call.
    """
    i, w = tensor(input, "embedding", "input", kind="int"), tensor(weight, "embedding", "weight", rank=2, kind="float")
    rows = w.shape[0]
    if padding_idx is not None and (not isinstance(padding_idx, int) or not -rows <= padding_idx < rows):
        raise ArgumentError(f"embedding: padding_idx={padding_idx!r} is no row of 'weight' {w.shape}")
    padding = None if padding_idx is None else padding_idx % rows

    def row(*at: Any) -> Any:
        n = i[at[:-1]] if i.ndim else i
        element = w[(n, at[-1])]
        return element if padding is None else fb.where(n == padding, fb.stop_gradient(element), element)

    return fb.compute((*i.shape, w.shape[1]), row)
