"""LLVM has the faults that emission keeps clear of, as the list says, and what is emitted does not show them."""

from __future__ import annotations

import re

import llvmlite.binding as llvm
import numpy as np
import pytest

from einsmith.codegen.llvm import emitter, faults, jit, memory
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.llvm.faults import FAULTS, NARROWED, UNMASKED
from einsmith.codegen.loopnest.nest import Builder
from einsmith.kernels.pattern import Launch, Lowered
from tests.codegen.test_masked import TARGETS
from tests.kernels.runner import run_native

VERSION = llvm.llvm_version_info


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_llvm_still_has_the_fault(fault):
    """Fails where a new LLVM is right: its entry then gets a `last` version, and the emitter may be simpler."""
    shown = re.search(fault.wrong, jit.emit_assembly(fault.text, fault.machine))
    assert bool(shown) == fault.is_in(VERSION), f"LLVM {VERSION} {'has' if shown else 'no longer has'}: {fault.what}"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_the_list_names_emitters(fault):
    module, owner, method = fault.emitter.split(".")
    assert hasattr(getattr({"llvm": emitter, "llvm_memory": memory}[module], owner), method)
    assert fault.last is None or fault.first <= fault.last


def _instructions(b: Builder, machine) -> list[str]:
    text = jit.emit_assembly(emit_module([b.finish()], machine), machine)
    return [x.strip() for x in text.splitlines() if x.startswith("\t") and not x.strip().startswith(".")]


def _narrowing(of: str, to: str, lanes: int, mask) -> Builder:
    b = Builder("f", 2)
    x = b.cast(b.load(b.buffers[0], b.const(0), of, lanes), to)
    b.store(x, b.buffers[1], b.const(0), mask(b, lanes))
    return b


MASKS = {
    "literal": lambda b, n: b.literal([k == 1 for k in range(n)], "i1"),
    "prefix": lambda b, n: b.op("lt", b.iota(n, "i32"), b.const(1, "i32", n)),
    "sum": lambda b, n: b.op("lt", b.op("add", b.iota(n), b.const(16)), b.const(17)),
    "both": lambda b, n: b.op("and", b.op("lt", b.iota(n), b.const(2)), b.op("not", b.op("lt", b.iota(n), b.const(1)))),
    "cast": lambda b, n: b.op("eq", b.cast(b.iota(n), "i32"), b.const(1, "i32")),
    "chosen": lambda b, n: b.op("where", b.op("lt", b.iota(n), b.const(1)), b.const(True, "i1"),
                                b.const(False, "i1", n)),
}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("of,to,lanes", [("i32", "i8", 16), ("i64", "i8", 8), ("i64", "i32", 8), ("i32", "i8", 4)])
def test_the_only_lane_is_stored_with_its_own_width(mask, of, to, lanes):
    """And in no more instructions than LLVM takes for a masked store of one lane."""
    code = _instructions(_narrowing(of, to, lanes, MASKS[mask]), NARROWED.machine)
    stores = [x for x in code if re.search(r"^v?(mov|pextr)\S*\s.*, \d*\(%r\w+\)$", x)]
    assert len(stores) == 1
    assert stores[0].split()[0] in {"i8": ("movb", "vpextrb"), "i32": ("movl", "vmovd", "vmovss", "vextractps")}[to]
    assert len(code) <= 6 and not any("%k" in x for x in code), code


@pytest.mark.parametrize("cpu,bytes_of", [("haswell", 32), ("x86-64-v2", 16)])
def test_other_processors_store_the_lane_as_cheaply(monkeypatch, cpu, bytes_of):
    machine = NARROWED.machine._replace(cpu=cpu, vector_bytes=bytes_of)
    for of, to, lanes in (("i32", "i8", 16), ("i64", "i32", 8), ("f64", "f32", 8), ("f32", "f32", 8)):
        scalar = _instructions(_narrowing(of, to, lanes, MASKS["literal"]), machine)
        with monkeypatch.context() as m:
            m.setattr(memory, "only_lane", lambda mask: None)
            assert len(scalar) <= len(_instructions(_narrowing(of, to, lanes, MASKS["literal"]), machine))


def _storing(mask) -> Builder:
    b = Builder("f", 3)
    b.store(b.load(b.buffers[0], b.const(0), "f32", 8), b.buffers[1], b.const(0), mask(b))
    return b


PREFIXES = {1: 1, 2: 1, 3: 2, 4: 1, 5: 2, 6: 2, 7: 3}
"""Stores that so many lanes take: a store for every power of two."""


@pytest.mark.parametrize("count", PREFIXES)
def test_constant_masks_without_mask_registers_need_no_masked_store(count):
    machine = NARROWED.machine._replace(cpu="haswell", vector_bytes=32)
    code = _instructions(_storing(lambda b: b.op("lt", b.iota(8, "i32"), b.const(count, "i32", 8))), machine)
    stores = [x for x in code if re.search(r"^v\S+\s.*%[xy]mm\d+, \d*\(%r\w+\)$", x)]
    assert len(stores) == PREFIXES[count] and not any("vmaskmov" in x for x in code), code


def test_masks_of_all_lanes_are_tried_first_without_mask_registers():
    """A masked store follows a branch; with mask registers it is as fast as any store, so that there is no branch."""

    def mask(b):
        return b.op("lt", b.iota(8, "i32"), b.splat(b.load(b.buffers[2], b.const(0), "i32"), 8))

    code = _instructions(_storing(mask), NARROWED.machine._replace(cpu="haswell", vector_bytes=32))
    masked = next(n for n, x in enumerate(code) if x.startswith("vmaskmov"))
    assert any(x.startswith("j") for x in code[:masked]) and any(re.match(r"vmovups\s+%ymm\d+, \(", x) for x in code)
    assert not any(x.startswith("j") for x in _instructions(_storing(mask), NARROWED.machine))


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("sign", ["plus", "minus"])
@pytest.mark.parametrize("place", ["factor", "addend"])
@pytest.mark.parametrize("elem,lanes", [("f32", 16), ("f64", 8), ("f32", 8), ("f64", 4), ("f64", 16), ("f32", 32)])
def test_masked_loads_keep_their_mask(elem, lanes, place, sign, turns):
    """Of sums that are chosen against zero, or in an unrolled loop's first turn against a carried zero."""
    b = Builder("f", 4)
    mask = b.load(b.buffers[1], b.const(0), "i1", lanes)
    w, c = (b.load(b.buffers[2], b.const(k * lanes), elem, lanes) for k in (0, 1))
    zero = b.const(0.0, elem, lanes)
    with b.loop(0, turns, init=[zero], unroll=turns) as loop:
        x = b.load(b.buffers[0], b.mul(loop.var, b.const(lanes)), elem, lanes, mask)
        x = b.op("neg", x) if sign == "minus" else x
        added = b.fma(x, w, c) if place == "factor" else b.fma(w, c, x)
        loop.next = [b.op("where", mask, added, loop.carried[0])]
    for k, value in enumerate((loop.results[0], w, c)):
        b.store(value, b.buffers[3], b.const(k * lanes))
    code = _instructions(b, UNMASKED.machine)
    source = next(x.split()[-1] for x in code if re.match(r"movq\s+\(%rdi\)", x))
    read = [x for x in code if f"({source}), " in x and "movq" not in x]
    assert read and all("%k" in x for x in read), code


def test_loads_stay_operands_elsewhere():
    """Where a sum is chosen against what it is added to, the load is an operand of it."""
    b = Builder("f", 4)
    mask = b.load(b.buffers[1], b.const(0), "i1", 16)
    w, c = (b.load(b.buffers[2], b.const(k * 16), "f32", 16) for k in (0, 1))
    x = b.load(b.buffers[0], b.const(0), "f32", 16, mask)
    b.store(b.op("where", mask, b.fma(x, w, c), c), b.buffers[3], b.const(0))
    code = _instructions(b, UNMASKED.machine)
    assert any(re.match(r"vfmadd\S+\s+\(%\w+\), .*%k", x) for x in code), code
    assert faults.find_selected_sums(b.finish().body)


CONJUNCTIONS = {
    "one": lambda n: {1}, "high half": lambda n: set(range(n // 2, n)), "ends": lambda n: {0, n - 1},
    "few": lambda n: set(range(3)), "quarter": lambda n: set(range(n // 4)), "none": lambda n: set(),
}  # fmt: skip


@pytest.mark.thinned(4)
@pytest.mark.skipif("AVX2" not in TARGETS, reason="needs a processor with AVX2")
@pytest.mark.parametrize("lanes_of", CONJUNCTIONS)
@pytest.mark.parametrize("elem,lanes", [("f32", 16), ("i32", 32), ("f64", 8), ("i64", 16), ("i8", 64), ("f32", 8)])
def test_masks_that_leave_registers_empty(elem, lanes, lanes_of, rng):
    """A literal and another mask, negated and chosen, too; beside what must not be read."""
    allowed = CONJUNCTIONS[lanes_of](lanes)
    b = Builder("f", 3)
    some = b.load(b.buffers[1], b.const(0), "i1", lanes)
    mask = b.op("and", b.literal([n in allowed for n in range(lanes)], "i1"), some)
    no = b.op("not", b.op("or", b.literal([n not in allowed for n in range(lanes)], "i1"), some))
    chosen = b.op("where", b.literal([n in allowed for n in range(lanes)], "i1"), some, b.const(False, "i1", lanes))
    for n, m in enumerate((mask, no, chosen)):
        other = b.const(3, elem, lanes) if n else None
        b.store(b.load(b.buffers[0], b.const(0), elem, lanes, m, other), b.buffers[2], b.const(n * lanes))
    f, kind = b.finish(), {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64, "i8": np.int8}[elem]
    for target in TARGETS.values():
        for _ in range(4):
            x, flags = rng.integers(5, 99, lanes).astype(kind), rng.integers(0, 2, lanes).astype(bool)
            out, inside = np.zeros(3 * lanes, kind), np.isin(np.arange(lanes), list(allowed))
            run_native(Lowered([Launch(f, 1)]), arrays := [x, flags, out], target)
            held = [inside & flags, inside & ~flags, inside & flags]
            want = [np.where(h, x, 3 if n else 0) for n, h in enumerate(held)]
            np.testing.assert_array_equal(arrays[2], np.concatenate(want))
