"""Kernels lowered for a processor with AVX2 and no AVX-512 keep to its registers (test_cover runs them)."""

from __future__ import annotations

import pytest

from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.cost.facts import Target
from tests.kernels.cover import cases, pairwise

AVX2 = Target(
    cpu="haswell", features="", triple="x86_64-unknown-linux-gnu", vector_bytes=32, vector_registers=16, cores=2
)


@pytest.mark.parametrize("of", [1, pytest.param(2, marks=pytest.mark.slow)], ids=["values", "pairs"])
def test_the_code_keeps_to_the_processor(of):
    """No register or mask of AVX-512, and fused multiply-adds, although this processor may know more."""
    pool = list(cases([AVX2], "contraction", ["product", "padded conv"]))
    text = ""
    for n in pairwise(
        [[t for t in c.traits if t[0] in ("sample", "config a", "config b", "config nv")] for c in pool], of
    ):
        for x in pool[n].lower().launches:
            text += jit.emit_assembly(emit_module([x.function], AVX2), AVX2)
    assert "%zmm" not in text and "%k1" not in text and "vfmadd" in text and "%ymm" in text
