"""`docs/semantics.md` says what Einsmith and PyTorch compute, and every difference in it is one on purpose."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("s", sums(), ids=lambda s: f"{s.what}-{s.n}")
def test_sums_are_as_exact_as_the_table_says(torch, rng, s) -> None:
    worst = np.max([errors(torch, s, rng) for _ in range(3)], axis=0)
    assert worst[0] <= s.ours and worst[1] <= s.theirs, worst
