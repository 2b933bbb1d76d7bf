"""Build a kernel in other ways to compare results: without optimisation, for older instruction sets, in other
configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from einsmith.base.dtypes import DType
from einsmith.checking.kernel_check import (
    BufferState,
    CheckedKernel,
    KernelFault,
    KernelSource,
    Outcome,
    RunMode,
    Written,
    replace_code,
    run,
)
from einsmith.codegen.cache import native
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Reduce
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Lowered
from einsmith.schedule.kernel import Kernel, Rows

OLDER = {"avx512f": (("haswell", 32, "AVX2"), ("x86-64", 16, "SSE")), "avx2": (("x86-64", 16, "SSE"),)}
"""Older instruction sets that a processor with a feature can run as well: for each LLVM's name, the bytes of a vector
and our name. The kernel is lowered for them anew: text for longer registers meets faults of LLVM (faults.EMPTY)."""


def source_of(choose: Callable[[], autoconfig.Choice]) -> KernelSource:
    """Return the LLVM text to which a kernel is lowered in the configuration that `choose` returns."""
    choice = choose()
    return _source(choice.pattern.lower(choice.kernel, choice.config, choice.target), choice.target)


def _source(lowered: Lowered, target: Target) -> KernelSource:
    functions = lowered.functions
    return KernelSource(
        emit_module(functions, target),
        tuple((x.function.name, x.tasks) for x in lowered.launches),
        max((f.scratch_bytes for f in functions), default=0),
        lowered.workspace,
    )


def compile_subject(subject: CheckedKernel, source: KernelSource, target: Target, opt: int, name: str) -> CheckedKernel:
    """Return the subject compiled from a text for a target, whose processor's code must run on this machine."""
    names = [name for name, _ in source.launches]
    addresses = native.compile_text(source.text, names, target, opt).addresses
    return replace_code(subject, [addresses[n] for n, _ in source.launches], source, name)


def build_variants(subject: CheckedKernel) -> Iterator[tuple[CheckedKernel, bool]]:
    """Yield the kernel built in other ways, and whether its results must be bit-identical. The kernel's own text
    without optimisation must give the same bits (True); another instruction set, configuration or pattern must give
    approximately equal numbers (False)."""
    source, target = subject.source(), subject.target
    yield compile_subject(subject, source, target, 0, "unoptimised"), True
    _, features, triple = native.jit.resolve(target)[:3]
    if triple.startswith("x86_64"):
        have = features.split(",")
        for feature, older in OLDER.items():
            if f"+{feature}" in have:
                for cpu, vector_bytes, name in older:
                    machine = replace(target, cpu=cpu, features="", vector_bytes=vector_bytes, vector_registers=16)
                    other = source_of(partial(autoconfig.choose, subject.kernel, machine))
                    yield compile_subject(subject, other, machine, native.jit.OPT, f"for {name}"), False
                break
    if not isinstance(subject.kernel, Rows):
        choice = autoconfig.choose(subject.kernel, target)
        for name, config, _ in choice.alternatives[1:2]:
            other = _source(autoconfig.pattern_of(name).lower(subject.kernel, config, target), target)
            opt = native.jit.OPT
            yield compile_subject(subject, other, target, opt, f"by the pattern {name} {config}"), False


def compare(subject: CheckedKernel, states: Sequence[BufferState], outcome: Outcome, written: Written) -> None:
    """Compare the kernel's results with those of other builds. Raises KernelFault where they differ."""
    for other, exact in build_variants(subject):
        try:
            other_outcome = run(other, states, None, RunMode(False, 0xFF), written)
        except KernelFault as e:
            raise KernelFault(f"{other.config}: {e.text}", e.buffer) from None
        for n in written:
            b = subject.kernel.buffers[n]
            x, y = (v.view(b.dtype.numpy).reshape(b.shape) for v in (outcome.values[n], other_outcome.values[n]))
            wrong = (x != y) & ~((x != x) & (y != y)) if exact else mask_differences(x, y, b.dtype, subject.kernel)
            if wrong.any():
                at = tuple(map(int, np.unravel_index(int(np.argmax(wrong)), wrong.shape)))
                raise KernelFault(
                    f"{int(wrong.sum())} of {wrong.size} elements are not those of the kernel {other.config}, the "
                    f"first at {list(at)}: {x[at].item()!r}, not {y[at].item()!r}",
                    n,
                )


def mask_differences(x: np.ndarray, y: np.ndarray, dtype: DType, kernel: Kernel) -> np.ndarray:
    """Return a mask of the elements in which two results differ by more than another order of summation explains,
    relative to the largest element."""
    if not dtype.is_float:
        positions = any(
            isinstance(p.body, Reduce) and p.body.combiner.startswith("arg")
            for s in kernel.stages
            for p in s.template.parts
        )
        return np.zeros(x.shape, bool) if positions else x != y  # near ties fall to either side
    with np.errstate(all="ignore"):
        x, y = dtype.wide(x), dtype.wide(y)
        scale = np.abs(np.where(np.isfinite(y), y, 0)).max(initial=dtype.tiny)
        unit = 1e4 * dtype.arithmetic.eps + (2 * dtype.eps if dtype.in_memory_only else 0)
        close = np.abs(x - y) <= unit * scale
        return ~(close | (x == y) | ~np.isfinite(x) | ~np.isfinite(y))
