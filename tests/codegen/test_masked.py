"""Masked memory of every type, lane count and mask, against NumPy, as this processor and lesser ones do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from einsmith.codegen.cache.native import host_target
from einsmith.codegen.llvm import faults, jit
from einsmith.codegen.llvm import memory as llvm_memory
from tests.codegen.masked import ELEMS, FORMS, LANES, kept, loads, run_all, stores

X86 = jit.host()[2].startswith("x86_64")
TARGETS = {"host": host_target()}
if X86 and "+avx2" in jit.host()[1].split(","):
    TARGETS |= {
        "AVX2": replace(host_target(), cpu="haswell", features="", vector_bytes=32, vector_registers=16),
        "SSE": replace(host_target(), cpu="x86-64-v2", features="", vector_bytes=16, vector_registers=16),
    }
OTHERS = ("none", "zero", "one", "vector")

Parameters = tuple[Any, ...]


def _stores() -> list[Parameters]:
    """From, to, lanes, whether the mask is variable, whether it is a scatter."""
    return list(product(ELEMS, ELEMS, LANES, (False, True), (False, True)))


def _loads() -> list[Parameters]:
    """From, to, lanes, whether the mask is variable, what is made of it, what is elsewhere, whether it is a gather."""
    pairs = [("f32", "f32"), ("f64", "f64"), ("i32", "i32"), ("i8", "f32"), ("f32", "f64"), ("i64", "i64")]
    flags = (False, True)
    alone = product(ELEMS, ELEMS, LANES, flags, ("x",), OTHERS, flags)
    within = product(pairs, LANES, flags, FORMS, ("none",), flags)
    return [x for x in alone if x[5] == "none" or not x[6]] + [(*pair, *x) for pair, *x in within]


def _failures(parameters: Sequence[Parameters], target: Any, full: bool = False, at_once: int = 40) -> list[str]:
    """What differs; loads are told from stores by the number of their parameters."""
    out: list[str] = []
    rng = np.random.default_rng(len(parameters))
    for first in range(0, len(parameters), at_once):
        cases = []
        for x in parameters[first : first + at_once]:
            if len(x) == 5:
                of, to, lanes, variable, scatter = x
                cases.append(stores(rng, of, to, lanes, variable, full, scatter))
            else:
                of, to, lanes, variable, form, other, gather = x
                cases.append(loads(rng, of, to, lanes, variable, full, form, other, gather))
        out += run_all(cases, target)
    return out


def _covering(rng: np.random.Generator, parameters: Sequence[Parameters], most: int) -> list[Parameters]:
    """Some that hold every two values of the first three parameters, of as few lanes as `most` in the main."""
    seen: set[tuple] = set()
    out = []
    for n in rng.permutation(len(parameters)):
        x = parameters[n]
        new = {(i, j, x[i], x[j]) for i, j in ((0, 1), (0, 2), (1, 3), (4, 2))} - seen
        if new and x[2] <= most:
            seen |= new
            out.append(x)
    return out


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", TARGETS)
def test_masked_stores(rng, name):
    failed = _failures(_covering(rng, _stores(), 64 if name == "host" else 8), TARGETS[name])
    assert not failed, "\n".join(failed)


def test_narrowing_stores_under_known_masks():
    """All prefixes and single lanes."""
    narrowed = [("i32", "i8"), ("i64", "i8"), ("i64", "i32"), ("i32", "i1"), ("i32", "i16"), ("f32", "f16")]
    parameters = [(*x, lanes, False, False) for x in narrowed for lanes in LANES if lanes <= 16]
    failed = _failures(parameters, TARGETS["host"], full=True)
    assert not failed, "\n".join(failed)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", TARGETS)
def test_masked_loads(rng, name):
    failed = _failures(_covering(rng, _loads(), 16 if name == "host" else 4), TARGETS[name])
    assert not failed, "\n".join(failed)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("lanes", [x for x in LANES if x <= 16])
@pytest.mark.parametrize("name", [n if n == "host" else pytest.param(n, marks=pytest.mark.slow) for n in TARGETS])
def test_more_masks_than_registers(rng, name, lanes):
    """The lanes beyond a mask's stay masked off where it waits in memory, or is widened."""
    failed: list[str] = []
    for how in ("eq", "ne", "order", "loaded"):
        cases = [kept(rng, elem, lanes, how, store) for elem in ELEMS for store in (True, False)]
        failed += run_all(cases, TARGETS[name])
    assert not failed, "\n".join(failed)


@pytest.mark.skipif("avx512bw" not in jit.host()[1].replace("-avx512bw", ""), reason="AVX-512")
def test_the_sweep_notices_a_fault(monkeypatch):
    """As it is emitted without the cure."""
    if not faults.NARROWED.is_in(llvm.llvm_version_info):
        pytest.skip("this LLVM does not have the fault")
    monkeypatch.setattr(llvm_memory, "only_lane", lambda mask: None)
    assert _failures([("i32", "i8", 16, False, False)], TARGETS["host"], full=True)


@pytest.mark.skipif("avx512bw" not in jit.host()[1].replace("-avx512bw", ""), reason="AVX-512")
def test_the_sweep_notices_widened_masks(rng, monkeypatch):
    if not faults.WIDENED.is_in(llvm.llvm_version_info):
        pytest.skip("this LLVM does not have the fault")
    plain = llvm_memory.MemoryEmitter.get
    monkeypatch.setattr(llvm_memory.MemoryEmitter, "widen_mask", lambda self, memory, mask: (memory, plain(self, mask)))
    assert list(run_all([kept(rng, "i8", 8, "eq", True)], TARGETS["host"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_every_masked_store(name):
    failed = _failures(_stores(), TARGETS[name])
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_every_masked_load(name):
    failed = _failures([x for x in _loads() if name == "host" or x[2] <= 16], TARGETS[name])
    assert not failed, "\n".join(failed)
