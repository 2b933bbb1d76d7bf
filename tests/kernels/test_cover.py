"""Every pattern as machine code at awkward sizes (1, a vector's width and its neighbours, primes, nothing to sum),
for AVX-512 where there is one, AVX2 and vectors of 16 bytes: every pair of parameters, sizes and vectors; and,
marked slow, all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernels.cover import NAMES, SAMPLES, cases, pairwise
from tests.kernels.runner import host


def targets():
    """This machine, and the narrower ones that it can be."""
    here = host()
    out = [here]
    if here.triple.startswith("x86_64"):
        out += [replace(here, vector_bytes=n, vector_registers=16) for n in (32, 16) if n < here.vector_bytes]
        out[1:] = [replace(t, cpu="haswell", features="") if t.vector_bytes == 32 else t for t in out[1:]]
    return out


@pytest.mark.parametrize("name", NAMES)
def test_pairs(name):
    pool = list(cases(targets(), name))
    for n in pairwise([c.traits for c in pool]):
        pool[n].run(backward=n % 2 == 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all(name):
    for n, case in enumerate(cases(targets(), name)):
        case.run(backward=n % 2 == 1)


def test_every_sample_is_taken():
    """By some pattern, and every pattern has samples; the choice has every pair."""
    seen = set()
    for name in NAMES:
        pool = list(cases([host()], name))
        assert pool, name
        seen |= {dict(c.traits)["sample"] for c in pool}
    assert seen == set(SAMPLES)


def test_pairs_are_all_chosen():
    items = [(("a", i), ("b", j), ("c", k)) for i in range(4) for j in range(3) for k in range(3) if i != j]
    chosen = pairwise(items)
    assert {(x, y) for n in chosen for x in items[n] for y in items[n]} == {(x, y) for n in items for x in n for y in n}
    assert len(chosen) < len(items) / 2
