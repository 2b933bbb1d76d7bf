"""What is measured for AutoConfig: prices and times of algorithms, of vector lengths, of instructions, of choosing."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import algorithms, choices, constants, kernel_cases, models
from benchmarks.convolutions import Conv
from benchmarks.worker import find
from einsmith.base.system import processors
from einsmith.codegen.cache.native import host_target
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Builder, Function
from einsmith.cost import facts
from einsmith.cost.facts import Target
from einsmith.cost.microarchitectures import VECTORS, core
from einsmith.driver.cpu import CPU
from einsmith.kernels import autoconfig
from einsmith.kernels.contraction.config import Tiled
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.pattern import Cost, Pattern, cost_of
from einsmith.runtime import buffers
from einsmith.tuning.calibration import calibrate
from einsmith.tuning.calibration.probes import probe
from einsmith.tuning.kernels.measure import prepare

SETS = ("avx512", "avx2")
"""Instruction sets whose code is run, where this machine has them."""
LENGTHS = (16, 32, 64, 128, 256)
"""The paper's lengths of vectors (float32): as many of a row's results as a register tile computes."""
MOST_ROWS = 14
"""Most rows of a tile that are priced."""
ELEMENTS, CALLS = 1 << 20, 10_000
"""The size (float32) and the iterations of the paper's programs."""
COEFFICIENTS = {
    "multiply-add": "12x2 tiles (6x2 with 16 registers) of packed panels in L1",
    "load": "sums of 16 KiB in L1, aligned",
    "unaligned load": "the same from the second element on",
    "store": "constants to 16 KiB in L1",
    "broadcast": "sums of elements in L1, each to all lanes",
    "gathered element": "sums of elements in L1 at random places",
}
"""What is measured of a vector, and the program."""


@cache
def machine(name: str) -> Target | None:
    """Return one core of this machine with its vectors of an instruction set, with measured coefficients; None where it
    has no such vectors."""
    host = replace(host_target(), cores=1)
    vector, registers = VECTORS[name]
    if (host.vector_bytes, host.vector_registers) == (vector, registers):
        return calibrate.target(1)
    if name != "avx2" or not {"avx2", "fma"} <= processors.flags():
        return None
    narrow = replace(
        host, cpu="haswell", features="", vector_bytes=vector, vector_registers=registers, dots=(), tiles=()
    )
    narrow = facts.with_core(narrow, core(host.cpu, vector, registers))
    for _ in range(calibrate.ATTEMPTS):
        figures = calibrate.measure(narrow, calibrate.BUDGET)
        if not figures.disturbance:
            break
    return calibrate.assemble(narrow, calibrate.plausible(narrow, figures.seconds)[0])


def kernel_of(name: str) -> Any:
    """Return the kernel of a case that is one kernel."""
    (kernel,) = choices.kernels_of(find(name))  # type: ignore[arg-type]
    return kernel


# ---------------------------------------------------------------------------------------------- the paper's algorithms


def tiles(kernel: Any, target: Target, length: int = 0) -> dict[str, tuple[Configs, Cost]]:
    """Return the cheapest register tiles that read the left operand, an image, in place ("broadcast"), and that read a
    packed copy of it ("im2col"); with vectors of so many elements, or of any number."""
    bases = [
        replace(c.pieces[0], mr=1, nv=1)
        for name, c, _ in autoconfig.choose(kernel, target).alternatives
        if name == CONTRACTION.name and len(c.pieces) == 1 and isinstance(c.pieces[0], Tiled)
    ]
    bases = [replace(c, b=how) if c.swap else replace(c, a=how) for c in bases for how in ("inline", "panel", "buffer")]
    out: dict[str, tuple[Configs, Cost]] = {}
    for nv in [length // target.lanes()] if length else range(1, 9):
        for base in dict.fromkeys(bases):
            name = "broadcast" if (base.b if base.swap else base.a) == "inline" else "im2col"
            for mr in range(1, min(MOST_ROWS, target.vector_registers // max(1, nv)) + 1):
                config = Configs((replace(base, mr=mr, nv=nv),))
                if nv and not CONTRACTION.legal(kernel, config, target):
                    cost = cost_of(CONTRACTION, kernel, config, target)
                    if name not in out or cost.rank < out[name][1].rank:
                        out[name] = config, cost
    return out


def _by_length(kernel: Any, target: Target) -> Iterator[tuple[int, tuple[str, Any, Any, Cost]]]:
    """Yield (length, algorithm as `algorithms.ways`) of each length of vectors that the registers hold."""
    for length in LENGTHS:
        for name, (config, cost) in sorted(tiles(kernel, target, length).items()):
            yield length, (name, CONTRACTION, config, cost)


def counted(name: str) -> dict[str, Any]:
    """Return the instructions that scalar code and both algorithms execute on this machine, and the float32 of one of
    its vectors."""
    kernel, target = kernel_of(name), calibrate.target(1)
    out: dict[str, Any] = {"lanes": target.lanes()}
    scalar = autoconfig.SCALAR
    found: dict[str, tuple[Pattern, Any]] = {"scalar": (scalar, scalar.configs(kernel, target)[0])}
    found |= {n: (CONTRACTION, config) for n, (config, _) in tiles(kernel, target).items()}
    return out | {n: CPU.count_instructions(kernel, *x, target) for n, x in found.items()}


def compared(conv: Conv, set_name: str, seconds: float) -> dict[str, Any] | None:
    """Return what is predicted and measured of a convolution: of every algorithm, and of both of the paper's algorithms
    by the length of vectors. seconds: of measuring."""
    target = machine(set_name)
    if target is None:
        return None
    kernel = kernel_of(kernel_cases.of_one_image(conv).name)
    every = list(algorithms.ways(kernel, target))[:-1]
    by_length = [] if conv.depthwise else list(_by_length(kernel, target))
    rows = algorithms.rows_of(kernel, target, [*every, *(x for _, x in by_length)], seconds)
    rows = [{k: v if isinstance(v, str) else float(f"{v:.4g}") for k, v in row.items()} for row in rows]
    lengths = zip(by_length, rows[len(every) :], strict=True)
    return {"algorithms": rows[: len(every)], "lengths": [{"length": n} | row for (n, _), row in lengths]}


# ----------------------------------------------------------------------------------------------------------------- NEON


def on_neon(conv: Conv) -> dict[str, Any]:
    """Return what is predicted of a convolution for NEON, and whether the code of each row is right where it is
    emulated: None where nothing emulates it."""
    target = facts.of_instruction_set("neon")
    kernel = kernel_of(kernel_cases.of_one_image(conv).name)
    choice = autoconfig.choose(kernel, target)
    by_length = [] if conv.depthwise else list(_by_length(kernel, target))
    chosen = next(algorithms.ways(kernel, target))
    found = [(0, (chosen[0], choice.pattern, choice.config, choice.cost)), *by_length]
    right = emulated(kernel, target, [x[1:3] for _, x in found])
    rows = [
        {"length": n, "algorithm": x[0], "predicted": x[3].seconds, "right": None if right is None else right[i]}
        for i, (n, x) in enumerate(found)
    ]
    scalar = autoconfig.price_scalar(kernel, target)
    return {"choice": rows[0], "lengths": rows[1:], "scalar": None if scalar is None else scalar.seconds}


def emulated(kernel: Any, target: Target, found: list[tuple[Any, Any]]) -> list[bool] | None:
    """Return whether the code of each (pattern, configuration) for AArch64 gives, under qemu, what scalar code gives on
    this machine, of small integers; None without a compiler or an aarch64."""
    import pytest

    from tests.kernels.runner import fresh
    from tests.machines import aarch64
    from tests.machines.jobs import Job

    scalar = autoconfig.SCALAR
    start = fresh(kernel, 0)
    want = [x.copy() for x in start]
    prepare(kernel, scalar, scalar.configs(kernel, target)[0], replace(host_target(), cores=1), 1, want)
    jobs = []
    for n, (pattern, config) in enumerate(found):
        lowered = pattern.lower(kernel, config, target)
        named = [
            (replace(x.function, name=f"kernel_{n}_{m}"), x.tasks) for m, x in enumerate(lowered.launches)
        ]  # each with a name of its own in the program
        jobs.append(Job(named, [x.copy() for x in start], lowered.workspace))
    try:
        with tempfile.TemporaryDirectory() as folder:
            aarch64.execute(Path(folder), jobs)
    except pytest.skip.Exception:
        return None
    return [all(map(np.array_equal, job.arrays, want)) for job in jobs]


# ------------------------------------------------------------------------------------------------------- coefficients


def coefficients(set_name: str) -> dict[str, Any] | None:
    """Return the seconds of a vector's instructions by `COEFFICIENTS`, measured, and as they are known without."""
    target = machine(set_name)
    if target is None:
        return None
    static = facts.with_core(target, core(host_target().cpu, target.vector_bytes, target.vector_registers))
    return {
        "lanes": target.lanes(),
        **{
            name: dict(
                zip(
                    COEFFICIENTS,
                    (
                        t.lanes() / t.fma_per_second, t.load_seconds, t.unaligned_seconds, t.store_seconds,
                        t.broadcast_seconds, t.gather_seconds,
                    ),
                    strict=True,
                )
            )
            for name, t in (("measured", target), ("static", static))
        },
    }  # fmt: skip


def _program(kind: str, length: int) -> Function:
    """Build the paper's program: a copy z = y, a multiply-add z = x * y + z, or z = x[0] * y + z with the element
    broadcast for each vector."""
    b = Builder(f"{kind}_{length}", 4)
    x, y, z, _ = b.buffers
    with b.loop(0, ELEMENTS, length) as loop:
        value = b.load(y, loop.var, "f32", length)
        if kind != "copy":
            is_vector = kind == "multiply-add"
            other = b.load(x, loop.var, "f32", length) if is_vector else b.splat(b.load(x, loop.var, "f32"), length)
            value = b.fma(other, value, b.load(z, loop.var, "f32", length))
        b.store(value, z, loop.var)
    return b.finish()


PROGRAMS = ("copy", "multiply-add", "broadcast multiply-add")


def programs(set_name: str, rounds: int) -> dict[str, dict[str, float]] | None:
    """Return the seconds of each of the paper's programs by the length of vectors, the shortest of the rounds."""
    target = machine(set_name)
    if target is None:
        return None
    arrays = [buffers.zeros((ELEMENTS,), np.float32) for _ in range(3)]
    every = {
        (kind, length): probe(kind, _program(kind.replace(" ", "_"), length), target, arrays, 1.0)
        for kind in PROGRAMS
        for length in LENGTHS
    }
    for _ in range(rounds):
        for p in every.values():
            p.run()
    return {kind: {str(n): every[kind, n].seconds for n in LENGTHS} for kind in PROGRAMS}


# ---------------------------------------------------------------------------------------------------- network, choices

OF_TRAINING = ("add_.Tensor", "cross_entropy_loss", "dropout")
"""Operators of a training step that inference has not: batch norms count their batches in place."""


def operators(network: str) -> dict[str, dict[str, int]]:
    """Return how often each of PyTorch's operators occurs in a network, and each kind of convolution."""
    graph = models.NETWORKS[network](1).graph()
    shapes = dict(graph.shapes) | {n.name: n.shape for n in graph.nodes}
    kinds = Counter[str]()
    for node in graph.nodes:
        if node.op == "conv2d":
            out, depth, size, _ = shapes[node.args[1].name]
            kinds[f"depthwise {size}x{size}" if depth == 1 and out == node.args[-1] else f"{size}x{size}"] += 1
    ops = Counter(n.op.partition(".")[0] for n in graph.nodes if n.op not in OF_TRAINING)
    return {"operators": dict(ops.most_common()), "convolutions": dict(kinds.most_common())}


def configured(name: str, seconds: float) -> dict[str, float]:
    """Return the seconds of scalar code and of the chosen code of a case on one thread, and those of choosing it and of
    compiling it without any cache."""
    kernel, target = kernel_of(name), calibrate.target(1)
    autoconfig.choose(kernel, target)  # modules are imported
    constants.clear()
    choice = autoconfig.choose(kernel, target)
    start = time.perf_counter()
    functions = choice.pattern.lower(kernel, choice.config, target).functions
    jit.emit_object(emit_module(functions, target), target)
    compiled = time.perf_counter() - start
    *_, scalar = algorithms.ways(kernel, target)
    chosen = ("chosen", choice.pattern, choice.config, choice.cost)
    ours, baseline = algorithms.rows_of(kernel, target, [chosen, scalar], seconds)
    return {
        "scalar": baseline["measured"], "chosen": ours["measured"], "choosing": choice.took, "compiling": compiled,
    }  # fmt: skip


def predicted(name: str) -> Mapping[str, Any]:
    """Return the algorithm that is chosen for a case on NEON, its predicted seconds and those of scalar code."""
    found = list(algorithms.ways(kernel_of(name), facts.of_instruction_set("neon")))
    return {"algorithm": found[0][0], "chosen": found[0][3].seconds, "scalar": found[-1][3].seconds}
