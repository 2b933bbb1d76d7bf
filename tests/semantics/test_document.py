"""`docs/semantics.md` says what Einsmith and PyTorch compute, and every difference in it is one on purpose."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import einsmith as es
from tests.semantics.document import PATH, document
from tests.semantics.rows import SECTIONS, agree, errors, results, sums


def test_the_page_is_what_is_computed(torch) -> None:
    found, want = PATH.read_text().splitlines(), document(torch).splitlines()
    wrong = [f"- {a}\n+ {b}" for a, b in zip(found, want, strict=False) if a != b]
    assert not wrong and len(found) == len(want), (
        "docs/semantics.md differs; look why, then run python -m tests.semantics --update\n" + "\n".join(wrong)
    )


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: s.title)
def test_values_are_pytorchs_but_where_the_table_says_why(torch, section) -> None:
    for row in section.rows:
        mine, evaluated, theirs = results(torch, row)
        what = f"{row.what} of {row.arrays}: {mine}, evaluated {evaluated}, PyTorch {theirs}"
        assert agree(mine, evaluated, section.signed) != bool(row.exact), what
        if not isinstance(mine, str) and not isinstance(theirs, str):
            assert agree(mine, theirs, section.signed) != bool(row.reason), what
        else:
            assert row.reason, what


@pytest.mark.thinned(4)
@pytest.mark.parametrize("s", sums(), ids=lambda s: f"{s.what}-{s.n}")
def test_sums_are_as_exact_as_the_table_says(torch, rng, s) -> None:
    worst = np.max([errors(torch, s, rng) for _ in range(3)], axis=0)
    assert worst[0] <= s.ours and worst[1] <= s.theirs, worst


FREE = {
    "a factor free of the sum": ("z[i,j] = sum[k,l](x[i,k,l]*y[j,l,k]*w[i,j])", ((7, 5, 3), (9, 3, 5), (7, 9))),
    "a divisor free of it": ("z[i,j] = sum[k](x[i,k]*y[k,j]/w[i])", ((7, 5), (5, 9), (7,))),
    "a product of sums": ("z[i,j] = sum[k,l](x[i,k]*y[j,l]*w[i])", ((31, 33), (29, 35), (31,))),
    "a chain": ("z[i,l] = sum[j,k](x[i,j]*y[j,k]*w[k,l])", ((31, 33), (33, 29), (29, 35))),
}


@pytest.mark.parametrize("case", FREE)
def test_sums_of_products_in_any_order_are_finite_for_the_same_numbers(case, rng) -> None:
    text, shapes = FREE[case]
    run = es.op(text)
    for n, special in product(range(3), (np.inf, -np.inf, np.nan)):
        arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        for a in arrays:
            a[tuple(rng.integers(0, m) for m in a.shape)] = 0
        arrays[n][tuple(rng.integers(0, m) for m in shapes[n])] = special
        got, want = run(*arrays), es.interpret(run)(*arrays)
        finite = np.isfinite(want)
        assert np.array_equal(np.isfinite(got), finite)
        np.testing.assert_allclose(got[finite], want[finite], rtol=1e-4, atol=1e-4)
