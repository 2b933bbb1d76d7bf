"""Loops over what is summed keep their accumulators in registers: the emitted code of the main register tiles, of the
direct form and of reductions, for AVX-512, AVX2 and NEON, has no vector on the stack inside of them."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import pytest

from einsmith.base import dtypes as dt
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from einsmith.kernels.contraction.config import Direct, Tiled
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.contraction.search import candidates
from einsmith.schedule.contraction_problem import problems
from einsmith.schedule.kernel import Kernel
from tests.kernels import samples as s

LINUX = "x86_64-unknown-linux-gnu"
AVX512 = Target(cpu="skylake-avx512", features="-prefer-256-bit", triple=LINUX, vector_bytes=64, vector_registers=32)
AVX2 = replace(AVX512, cpu="haswell", features="", vector_bytes=32, vector_registers=16)
NEON = Target(cpu="neoverse-n1", features="", triple="aarch64-unknown-linux-gnu", vector_bytes=16, vector_registers=32)
TARGETS = {"avx512": AVX512, "avx2": AVX2, "neon": NEON}
WIDE = [(6, 4), (8, 3), (12, 2), (14, 2), (28, 1)]
TILES = {
    "avx512": WIDE,
    "avx2": [(4, 3), (6, 2), (12, 1), (14, 1)],
    "neon": [(6, 4), (8, 3), (12, 2), (13, 2), (28, 1)],
}

_X86 = re.compile(r"%[xyz]mm\d+.*\(%rsp|\(%rsp.*%[xyz]mm\d+")
_ARM = re.compile(r"^\s*(?:ldr|str|ldp|stp|ldur|stur|ld1|st1)\s+.*\b[qvd]\d+.*\[sp\b")
_ADDS = {
    "x86_64": re.compile(r"vfn?m(?:add|sub)\w*|vmaxp|vaddp"),
    "aarch64": re.compile(r"\bfml[as]\b|\bfmaxnm|\bfmax\b|\bfadd\b"),
}
_ENDS = {
    "x86_64": re.compile(r"^\s*j\w+\s+(\S+)"),
    "aarch64": re.compile(r"^\s*(?:b\.?\w*|cbn?z|tbn?z)\s.*?(\.LBB\S+)"),
}


def loops(text: str, machine: str) -> list[list[str]]:
    """The innermost loops of assembly text: blocks that end in a jump to their own beginning."""
    out = []
    label, body = "", []
    for line in text.splitlines():
        named = re.match(r"^(\.LBB\w+):", line)
        if named:
            label, body = named[1], []
            continue
        body.append(line)
        jump = _ENDS[machine].match(line)
        if jump and label and jump[1] == label:
            out.append(body)
            label, body = "", []
    return out


def spills(kernel: Kernel, config, target: Target, least: int, pattern=CONTRACTION) -> int:
    """Vectors that the loops with at least that many multiply-adds (maxima, sums) move to or from the stack."""
    machine = target.triple.partition("-")[0]
    stack = _X86 if machine == "x86_64" else _ARM
    found, count = 0, 0
    for x in pattern.lower(kernel, config, target).launches:
        for body in loops(jit.emit_assembly(emit_module([x.function], target), target), machine):
            if sum(1 for line in body if _ADDS[machine].search(line)) >= least:
                found += 1
                count += sum(1 for line in body if stack.search(line))
    assert found, f"no loop of {config} has {least} sums"
    return count


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", TARGETS)
def test_register_tiles(name):
    """Rows by vectors; operands read in place and packed, of a product and of a convolution in a window."""
    target = TARGETS[name]
    lanes = target.lanes()
    for mr, nv in TILES[name]:
        kernel = s.product(2 * mr, 2 * nv * lanes, 64, "NN")
        for a, b in (("inline", "inline"), ("panel", "inline"), ("panel", "panel")):
            config = Configs((Tiled(mr=mr, nv=nv, a=a, b=b),))
            assert spills(kernel, config, target, mr * nv) == 0, config


def test_every_other_pixel_of_whole_rows():
    """Two loads and a shuffle a vector, at filters so short that they are unrolled elsewhere."""
    of = s.conv(2, 4, 64, 64, 26, 3, 3, 1, 2), s.conv(2, 4, 64, 64, 26, 2, 2, 0, 2)
    for kernel, windows in ((of[0], "side"), (of[1], None)):
        (p,) = problems(kernel.root)
        image = int(0 in p.right)
        for mr, nv in ((13, 2), (11, 2), (8, 3)):
            config = Tiled(not image, mr, nv, "inline", "inline", windows=((image, windows),) if windows else ())
            assert spills(kernel, Configs((config,)), AVX512, mr * nv) == 0, config


def test_taps_that_are_unrolled_together():
    """Tiles of three vectors are not, of 5 and 7 taps: all of a row's products would wait for loads; nor are those with
    few registers to spare."""
    five, seven = s.conv_dx(2, 16, 14, 14, 12, 5, 5, 1), s.padded_conv(2, 4, 28, 28, 12, 7, 7, 1)
    tiles = [(five, 6, 3, 1), (five, 7, 3, 1), (seven, 4, 3, 1), (five, 12, 2, 1), (seven, 12, 2, 1), (five, 10, 2, 5)]
    for kernel, mr, nv, taps in tiles:
        config = Tiled(True, mr, nv, "inline", "inline", windows=((0, "side"),), rows=True)
        assert spills(kernel, Configs((config,)), AVX512, nv * mr * taps) == 0, config


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", TARGETS)
def test_sums_that_are_computed_again_where_they_are_nan(name):
    """The code for it is longer and deeper than the loop, and seldom runs: it takes no registers from the loop."""
    kernel, target = s.conv_dx(2, 56, 23, 23, 8, 5, 5, 2), TARGETS[name]
    for mr, nv in TILES[name]:
        config = Configs((Tiled(swap=True, mr=mr, nv=nv, a="buffer", b="panel"),))
        assert spills(kernel, config, target, mr * nv) == 0, config


def test_sums_along_rows_under_masks():
    """Rows of K that end within a vector: what a tile reads is in registers before it is multiplied, so tiles have few
    rows."""
    kernel = s.conv_dw(16, 8, 25, 25, 8, 6, 6, 0)
    (p,) = problems(kernel.root)
    found = [c for c in candidates(kernel, (p,), AVX512).others[0] if isinstance(c, Direct) and c.vector in p.k]
    assert found
    for config in found:
        assert spills(kernel, Configs((config,)), AVX512, prod(n for _, n in config.tile)) == 0, config


@pytest.mark.parametrize("name", TARGETS)
def test_elements_that_taps_share(name):
    """Tiles of one vector whose rows read the same pixels at different taps, which a turn takes together."""
    target = TARGETS[name]
    forward, gradient = s.conv(64, 6, 14, 14, 16, 5, 5, 0), s.conv_dw(64, 6, 14, 14, 16, 5, 5, 0)
    tiles = [(forward, False, 10), (forward, False, 20), (gradient, True, 25)]
    for kernel, swap, mr in {"avx512": tiles, "avx2": tiles[:1], "neon": tiles[::2]}[name]:
        assert spills(kernel, Configs((Tiled(swap, mr, 1, "inline", "buffer"),)), target, mr) == 0


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", TARGETS)
def test_chosen_products_and_convolutions(name):
    target = TARGETS[name]
    kernels = [
        s.product(256, 512, 784, "NT"),
        s.product(256, 512, 784, "TN"),
        s.product(64, 64, 96, dtype=dt.f64),
        s.conv(2, 64, 14, 14, 64, 3, 3, 1),
    ]
    if name != "avx2":  # with 16 registers, taps unrolled over 12 accumulators leave none for what they read
        kernels.append(s.conv(8, 1, 28, 28, 6, 5, 5, 2))
    few = 0 if name == "avx512" else 6  # of the elements that taps share, once a row of taps
    for kernel in kernels:
        config = CONTRACTION.configs(kernel, target)[0]
        assert spills(kernel, config, target, 8) <= (few if kernel is kernels[3] else 0), config


@pytest.mark.parametrize("name", TARGETS)
def test_direct_forms(name):
    """Depthwise convolutions and their weights' gradients. A vector loads in half a cycle, across lines in one."""
    cycle = TARGETS[name].cycle_seconds
    target = replace(TARGETS[name], load_seconds=cycle / 2, unaligned_seconds=cycle)
    for kernel in (s.depthwise(2, 8, 28, 28, 5, 2), s.depthwise_dw(8, 4, 28, 28, 3, 1)):
        (p,) = problems(kernel.root)
        found = [Configs((c,)) for c in candidates(kernel, (p,), target) if isinstance(c, Direct)]
        best = min(found, key=lambda c: CONTRACTION.cost(kernel, c, target).seconds)
        assert spills(kernel, best, target, 3) == 0, best


@pytest.mark.parametrize("name", TARGETS)
def test_reductions(name):
    """Rows, columns and a register tile of another semiring."""
    target = TARGETS[name]
    pattern = autoconfig.pattern_of("reduction")
    for kernel in (s.rows("sum", 4096), s.columns("sum", 1024, 256), s.max_plus("max", 64, 128, 64, False)):
        config = min(pattern.configs(kernel, target), key=lambda c: pattern.cost(kernel, c, target).seconds)
        assert spills(kernel, config, target, 1, pattern) == 0, config


def test_a_tile_beyond_the_registers_is_noticed():
    kernel = s.product(40, 64, 64)
    assert spills(kernel, Configs((Tiled(mr=20, nv=2),)), AVX512, 40) > 0
    assert spills(kernel, Configs((Tiled(mr=12, nv=2),)), AVX2, 24) > 0
    assert spills(kernel, Configs((Tiled(mr=20, nv=2),)), NEON, 40) > 0
