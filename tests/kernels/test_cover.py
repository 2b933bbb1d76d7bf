"""Every pattern as machine code at awkward sizes (1, a vector's width and its neighbours, primes, nothing to sum),
for AVX-512 where there is one, AVX2 and vectors of 16 bytes, and caches of a few lines: every pair of parameters,
sizes and fields of configurations, or of large patterns every one; and, marked slow, all of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from typing import Any

import pytest

from einsmith.base.errors import CompileError
from tests.kernels import runner
from tests.kernels.cover import EDGE, NAMES, SAMPLES, Case, cases, pairwise
from tests.kernels.runner import host, sampled


def targets():
    """This machine, as it is and with caches that hold next to nothing, and the narrower ones that it can be."""
    here = host()
    out = [here]
    if here.triple.startswith("x86_64"):
        out += [replace(here, vector_bytes=n, vector_registers=16) for n in (32, 16) if n < here.vector_bytes]
        out[1:] = [replace(t, cpu="haswell", features="") if t.vector_bytes == 32 else t for t in out[1:]]
    return [*out, replace(here, l1=1 << 9, l2=1 << 12, l3=1 << 14)]


@cache
def pool(name: str) -> list[Case]:
    return list(cases(targets(), name))


LARGE = "reduction", "stencil", "winograd"
"""Patterns whose pairs take long: by default every parameter, size and field has each of its values."""


LONG = *LARGE, "contraction"


@sampled(8)
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in NAMES])
def test_pairs(name):
    check(pool(name)[n] for n in pairwise([c.traits for c in pool(name)]))


@sampled(4)
@pytest.mark.parametrize("name", LARGE)
def test_values(name):
    check(pool(name)[n] for n in pairwise([c.traits for c in pool(name)], of=1))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("sample", SAMPLES)
def test_all(sample, part):
    """Every pattern's every configuration of a sample, in parts of a minute at most."""
    check(islice(chain.from_iterable(cases(targets(), name, [sample]) for name in NAMES), part, None, 4))


def check(found: Iterable[Case]) -> None:
    """Runs them all; those that are wrong are named."""
    wrong, count = [], 0
    for case in found:
        count += 1
        if not runner.SAMPLE.includes_next():
            continue
        try:
            case.run(backward=count % 2 == 1)
        except (AssertionError, CompileError) as e:
            wrong.append(f"{case}\n{str(e)[:300]}")
    assert count and not wrong, f"{len(wrong)} of {count} cases are wrong; the first ones:\n" + "\n".join(wrong[:20])


FEW, SOME = {1, 2}, {1, 2, "many"}
WAYS: dict[str, dict[str, set[Any]]] = {
    "pointwise": {"unroll": FEW, "tasks": SOME, "turn": {False, True}},
    "stencil": {"along_k": {False, True}, "pairs": {False, True}, "passes": FEW, "tile": FEW, "tasks": FEW},
    "contraction": {
        "swap": {False, True}, "mr": SOME, "nv": SOME, "a": {"inline", "panel", "buffer"},
        "b": {"inline", "panel", "buffer"}, "order": {"n", "m"}, "kc": {0, "many"}, "split": SOME, "tm": SOME,
        "tn": SOME, "rows": {False, True}, "kind": {"Tiled", "Direct"},
        "direct vectors": FEW, "direct k_outer": {0, 1}, "direct split": {1, "many"},
        "depth": {1, 2, "some"}, "joint": {False, True}, "form": {"straight", "stacked", "turned", "lines"},
        "windows": {(), *(((0, x),) for x in ("all", "side", "k", "cut")), *(((1, x),) for x in ("all", "side", "k"))},
    },
    "by digits": {"way": {0, 1}},
    "by kind": {},
    "reduction": {"mode": {"row", "column"}, "unroll": SOME, "tasks": SOME, "splits": SOME, "rows": SOME,
                  "turn": {False, True}},
    "scan": {"mode": {"row", "column"}, "unroll": SOME, "tasks": SOME, "parts": SOME},
    "scatter": {"axis": {None, 0, 1}, "along": {None, 1}, "tasks": SOME},
    "selection": {"bits": {8, 11}, "narrow": {False, True}, "tasks": SOME},
    "col2im": {},
    "winograd": {},
    "rows": {"block": SOME, "tasks": {1, "many"}, "share": {False, True}},
}  # fmt: skip


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in NAMES])
def test_every_way_is_there(name):
    """Every pattern meets every awkward size and the values of each field of its configurations."""
    assert set(WAYS) == set(NAMES)
    seen = {t for c in pool(name) for t in c.traits}
    assert {x for _, x in seen if isinstance(x, str)} >= set(EDGE)
    missing = [(k, x) for k, values in WAYS[name].items() for x in values if (f"config {k}", x) not in seen]
    assert not missing


@pytest.mark.slow
def test_every_sample_is_there():
    """Every sample is taken by some pattern, sums of nothing by those that take them."""
    nothing = {("m", "0"), ("n", "0"), ("k", "0"), ("b", 0), ("tokens", "0")}
    empty = {name for name in NAMES if any(nothing.intersection(c.traits) for c in pool(name))}
    assert empty == {"pointwise", "reduction", "scatter"}, "the others leave empty kernels to these"
    assert {dict(c.traits)["sample"] for name in NAMES for c in pool(name)} == set(SAMPLES)


def test_pairs_are_all_chosen():
    items = [(("a", i), ("b", j), ("c", k)) for i in range(4) for j in range(3) for k in range(3) if i != j]
    chosen = pairwise(items)
    assert {(x, y) for n in chosen for x in items[n] for y in items[n]} == {(x, y) for n in items for x in n for y in n}
    assert len(chosen) < len(items) / 2


@pytest.mark.parametrize("before, place", [(False, 24), (True, -1)])
def test_guards(before, place):
    """What lies beside the runner's buffers cannot be read."""
    code = (
        f"from tests.kernels.runner import Guarded; import ctypes; x = Guarded(24, {before}, False)\n"
        f"ctypes.string_at(x.bytes.ctypes.data + 23, 1); ctypes.string_at(x.bytes.ctypes.data + {place}, 1)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGSEGV
