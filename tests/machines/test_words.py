"""Dot products of words by the instructions of Armv8.6, on such a processor or under qemu: bfdot, usdot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.codegen.llvm.dot_products import find_instruction
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.dots import DOTS
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from tests.codegen.test_dots import function, points
from tests.kernels.cover import each_value
from tests.kernels.runner import agree, fresh, poisoned, reference
from tests.kernels.samples import biased, conv, product
from tests.kernels.test_contraction_words import as_integers, configs_in_words, narrowed
from tests.machines.aarch64 import TARGET, compiler, emulator, execute
from tests.machines.jobs import Job
from tests.machines.test_kernels import renamed

FEATURES = "+neon,+bf16,+i8mm,+dotprod"
MACHINE = replace(TARGET, features=FEATURES, dots=(("bf16", 2.0), ("u8i8", 2.0)))


@pytest.fixture(autouse=True)
def _tools():
    compiler()
    emulator()


@pytest.mark.parametrize("name", DOTS)
def test_sums_of_products(tmp_path, name):
    dot, jobs, wanted = DOTS[name], [], []
    for lanes in (0, 2, 4, 8):
        rng = np.random.default_rng(lanes)
        (a, x), (b, y) = (points(rng, elem, (dot.points, max(1, lanes))) for elem in (dot.left, dot.right))
        c = rng.integers(-1000, 1000, max(1, lanes)).astype(np.float32 if dot.sum == "f32" else np.int32)
        wanted.append(c + (x * y).sum(0))
        jobs.append(Job([(function(name, lanes), 1)], [a, b, c]))
    execute(tmp_path, jobs, MACHINE)
    for job, sums in zip(jobs, wanted, strict=True):
        np.testing.assert_array_equal(job.arrays[2], sums.astype(job.arrays[2].dtype))


@pytest.mark.parametrize("types", [(dt.bf16, dt.bf16), (dt.u8, dt.i8)])
@pytest.mark.parametrize("most", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_products_and_convolutions(tmp_path, types, most):
    """In configurations that differ most, by the instruction."""
    kernels = [product(13, 17, 37, "NT"), product(9, 33, 16), conv(2, 6, 7, 7, 5, 3, 3, 1)]
    jobs, checks = [], []
    for n, kernel in enumerate(kernels):
        kernel = narrowed(kernel if types[0] is dt.bf16 else as_integers(kernel), *types)
        kernel = biased(kernel, 1) if n == 0 and types[0] is dt.bf16 else kernel
        base = fresh(kernel, n)
        want = reference(kernel, base)
        for m, config in enumerate(each_value(configs_in_words(kernel, MACHINE))[:most]):
            lowered = renamed(CONTRACTION.lower(kernel, Configs((config,)), MACHINE), f"{n}_{m}")
            arrays = poisoned(kernel, base, want)
            jobs.append(Job([(x.function, x.tasks) for x in lowered.launches], arrays, lowered.workspace))
            checks.append((base, want, str(config)))
    found = find_instruction(
        "bf16" if types[0] is dt.bf16 else "u8i8", 4, frozenset(FEATURES.replace("+", "").split(","))
    )
    assert found is not None
    assert found.names[4] in emit_module([f for job in jobs for f, _ in job.launches], MACHINE)
    execute(tmp_path, jobs, MACHINE)
    for job, (base, want, what) in zip(jobs, checks, strict=True):
        agree(job.arrays, base, want, what, 0)
