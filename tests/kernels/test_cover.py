"""Every pattern as machine code at awkward sizes (1, a vector's width and its neighbours, primes, nothing to sum),
for AVX-512 where there is one, AVX2 and vectors of 16 bytes: every pair of parameters, sizes and vectors; and,
marked slow, all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from einsmith.errors import CompileError
from tests.kernels.cover import NAMES, SAMPLES, Case, cases, pairwise
from tests.kernels.runner import forgotten, host


def targets():
    """This machine, as it is and with caches that hold next to nothing, and the narrower ones that it can be."""
    here = host()
    out = [here]
    if here.triple.startswith("x86_64"):
        out += [replace(here, vector_bytes=n, vector_registers=16) for n in (32, 16) if n < here.vector_bytes]
        out[1:] = [replace(t, cpu="haswell", features="") if t.vector_bytes == 32 else t for t in out[1:]]
    return [*out, replace(here, l1=1 << 9, l2=1 << 12, l3=1 << 14)]


@pytest.mark.parametrize("name", NAMES)
def test_pairs(name):
    pool = list(cases(targets(), name))
    chosen = [pool[n] for n in pairwise([c.traits for c in pool])]
    assert pairs(chosen) == pairs(pool)
    check(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_all(sample):
    """Every pattern's every configuration of a sample."""
    with forgotten():
        check(case for name in NAMES for case in cases(targets(), name, [sample]))


def check(found: Iterable[Case]) -> None:
    """Runs them all; those that are wrong are named."""
    wrong, count = [], 0
    for case in found:
        count += 1
        try:
            case.run(backward=count % 2 == 1)
        except (AssertionError, CompileError) as e:
            wrong.append(f"{case}\n{str(e)[:300]}")
    assert count and not wrong, f"{len(wrong)} of {count} cases are wrong; the first ones:\n" + "\n".join(wrong[:20])


def pairs(found: Iterable[Case]) -> set[tuple]:
    return {(x, y) for c in found for x in c.traits for y in c.traits}


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
