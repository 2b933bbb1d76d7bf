"""Kernels lowered and compiled for a processor with AVX2 and no AVX-512, run on this one."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.codegen import llvm_jit
from einsmith.codegen.llvm import emit_module
from einsmith.codegen.native import compile_functions
from einsmith.target import facts
from tests.codegen.cover import CASES, Run, runs
from tests.codegen.test_llvm_ops import _cache, signature  # noqa: F401

CPU, FEATURES, TRIPLE = llvm_jit.host()
AVX2 = facts.Target(cpu="haswell", features="", triple=TRIPLE, vector_bytes=32, vector_registers=16, cores=2)

pytestmark = pytest.mark.skipif(not {"avx2", "fma"} <= facts.cpu_flags(), reason="this processor has no AVX2")


def aligned(size: int) -> np.ndarray:
    raw = np.full(size + 64, 0xFF, np.uint8)
    at = -raw.ctypes.data % 64
    return raw[at : at + size]


def execute(run: Run) -> None:
    """All tasks of all launches; results and scratch begin as NaN."""
    addresses = compile_functions([x.function for x in run.lowered.launches], AVX2)
    work = aligned(run.lowered.workspace + 64)
    arrays = []
    for n, a in enumerate(run.arrays):
        copy = aligned(a.nbytes).view(a.dtype).reshape(a.shape)
        if n not in run.want:
            copy[...] = a
        arrays.append(copy)
    pointers = np.array([a.ctypes.data for a in (*arrays, work)], np.uint64)
    for launch in run.lowered.launches:
        scratch = aligned(launch.function.scratch_bytes + 64)
        for task in reversed(range(launch.tasks)):
            signature(addresses[launch.function.name])(pointers.ctypes.data, scratch.ctypes.data, task)
    for a, copy in zip(run.arrays, arrays, strict=True):
        a[...] = copy


@pytest.mark.parametrize("group", CASES)
def test_kernels(rng, group):
    for run in runs(group, AVX2, rng):
        execute(run)
        run.check()


def test_the_code_keeps_to_the_processor(rng):
    """No register or mask of AVX-512, and fused multiply-adds, although this processor may know more."""
    items = list(runs("contraction", AVX2, rng, count=1))
    text = "".join(
        llvm_jit.emit_assembly(emit_module([x.function], AVX2), AVX2) for run in items for x in run.lowered.launches
    )
    assert "%zmm" not in text and "%k1" not in text and "vfmadd" in text and "%ymm" in text
