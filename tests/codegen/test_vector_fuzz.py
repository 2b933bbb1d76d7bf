"""Random straight-line vector code (casts, masks, selects, sums, stores) at two optimisation levels and for several
instruction sets, beside the interpreter of nests. Numbers are small integers, so that floats are exact."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue
from tests.codegen.test_masked import TARGETS
from tests.nest_interp import NestRun

SIZE, SLOT = 256, 1024
"""Elements of the sources, and bytes of each result."""
ELEMS = ("f32", "f64", "i32", "i64", "i8")
_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def nest(seed: int, steps: int = 25) -> Builder:
    """Buffers: sources of each type, bools, results of all types in slots of bytes."""
    r = random.Random(seed)
    lanes = r.choice([4, 8, 16, 32])
    b = Builder(f"vectors{seed}", len(ELEMS) + 2)
    flags, out = b.buffers[-2:]
    source = dict(zip(ELEMS, b.buffers, strict=False))
    known: dict[str, list[SSAValue]] = {e: [] for e in ELEMS}
    masks = [b.load(flags, b.const(0), "i1", lanes), b.literal([n == 1 for n in range(lanes)], "i1")]
    slots = 0

    def load(elem: str, mask: SSAValue | None = None) -> SSAValue:
        other = b.const(r.choice([0, 1]), elem, lanes) if mask is not None and r.random() < 0.3 else None
        return b.load(source[elem], b.const(r.randrange(SIZE - lanes)), elem, lanes, mask, other)

    def pick(elem: str) -> SSAValue:
        return r.choice(known[elem]) if known[elem] and r.random() < 0.8 else load(elem)

    for _ in range(steps):
        kind = r.choice(["load", "load", "mask", "fma", "add", "cast", "select", "store", "store"])
        elem = r.choice(ELEMS)
        if kind == "load":
            known[elem].append(load(elem, r.choice(masks)))
        elif kind == "mask":
            some = [
                b.op("lt", b.iota(lanes), b.const(r.randrange(lanes + 1))),
                b.op("not", r.choice(masks)),
                b.op(r.choice(["and", "or"]), r.choice(masks), r.choice(masks)),
                b.op(r.choice(["lt", "le", "eq"]), pick(elem), pick(elem)),
            ]
            masks.append(r.choice(some))
        elif kind == "fma":
            x = load(elem, r.choice([None, r.choice(masks)]))
            a, c = r.choice([load(elem), b.const(r.choice([0, 1]), elem, lanes)]), pick(elem)
            value = b.fma(x, a, r.choice([c, b.const(0, elem, lanes)]))
            known[elem].append(b.op("where", r.choice(masks), value, r.choice([c, b.const(0, elem, lanes)])))
        elif kind == "add":
            known[elem].append(b.op(r.choice(["add", "sub", "min", "max"]), pick(elem), pick(elem)))
        elif kind == "cast":
            known[elem].append(b.cast(pick(r.choice(ELEMS)), elem))
        elif kind == "select":
            known[elem].append(b.op("where", r.choice(masks), pick(elem), pick(elem)))
        else:
            to = r.choice(ELEMS)
            at = b.address(out, b.const(slots * SLOT), "i8")
            b.store(b.cast(pick(elem), to), at, b.const(1), r.choice(masks))
            slots += 1
    for elem in ELEMS:
        for value in known[elem][-2:]:
            b.store(value, b.address(out, b.const(slots * SLOT), "i8"), b.const(1))
            slots += 1
    return b


def machine_code(text: str, target, level: int, monkeypatch) -> bytes:
    """Object code at an optimisation level."""
    with monkeypatch.context() as m:
        m.setattr(jit, "OPT", level)
        m.setattr(jit, "_machine", jit._machine.__wrapped__)
        return jit.emit_object(text, target)


def differing(seeds, monkeypatch) -> list[str]:
    functions = {seed: nest(seed).finish() for seed in seeds}
    rng = np.random.default_rng(0)
    kinds = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64, "i8": np.int8}
    sources = [rng.integers(-3, 4, SIZE).astype(kinds[e]) for e in ELEMS] + [rng.integers(0, 2, SIZE).astype(bool)]
    held = [x.view(np.uint8) for x in sources]
    want = {}
    for seed, f in functions.items():
        want[seed] = np.full(SLOT * 64, 77, np.uint8)
        with np.errstate(all="ignore"):
            NestRun([*held, want[seed]], np.zeros(64, np.uint8)).call(f, 0)
    out = []
    for (name, target), level in ((t, n) for t in TARGETS.items() for n in (2, 0)):
        code = machine_code(emit_module(list(functions.values()), target), target, level, monkeypatch)
        addresses = jit.load(code, [f.name for f in functions.values()]).addresses()
        for seed, f in functions.items():
            got, scratch = np.full(SLOT * 64, 77, np.uint8), np.zeros(64, np.uint8)
            pointers = np.array([x.ctypes.data for x in (*held, got)], np.uint64)
            _SIGNATURE(addresses[f.name])(pointers.ctypes.data, scratch.ctypes.data, 0)
            if not np.array_equal(got, want[seed]):
                out.append(f"seed {seed}, {name}, level {level}: bytes {np.flatnonzero(got != want[seed])[:9]}")
    return out


@pytest.mark.thinned(3)
@pytest.mark.parametrize("first", range(0, 24, 8))
def test_all_machines_agree(first, monkeypatch):
    failed = differing(range(first, first + 8), monkeypatch)
    assert not failed, "\n".join(failed)


def test_machines_that_lost_masks_agree(monkeypatch):
    """See faults.EMPTY: the first seeds at which LLVM failed, and those that loaded without a mask."""
    failed = differing((1028, 1093, 1099, 1194, 1366, 1544), monkeypatch)
    assert not failed, "\n".join(failed)


@pytest.mark.slow
def test_all_machines_agree_on_many(monkeypatch):
    for first in range(1000, 3000, 50):
        failed = differing(range(first, first + 50), monkeypatch)
        assert not failed, "\n".join(failed)
