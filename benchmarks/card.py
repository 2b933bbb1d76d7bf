"""A back end whose machine is a graphics card: kernels as Triton compiles their text, a program as one CUDA graph.

It is what measurements on a card need and no more: a program's memory lies on the host, and is copied to the card and
back around every run.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch

from einsmith.cost.facts import Target
from einsmith.ir.nodes import Reduce
from einsmith.kernels.contraction.problem import problems
from einsmith.kernels.pattern import Lowered
from einsmith.runtime.assemble import Assembler, CompiledKernel
from einsmith.runtime.steps import BeginLoop, CheckFinite, CheckZero
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.tiles.ir import BYTES, TileFunction
from einsmith.tiles.lower import lower, patterns
from einsmith.tiles.pieces import Tiling
from einsmith.tiles.triton_text import pointer_type, signature, triton_text
from tests.driver.evaluated import Evaluated, Steps
from tests.tiles.card import Mirror, Shape, compiled

PROGRAMS = 264
"""Two programs for each of a Hopper card's 132 multiprocessors."""
ROUNDS = 5
"""Timed launches of a candidate, of which the fastest counts."""


@dataclass(frozen=True)
class Choice:
    """How a kernel is lowered and compiled."""

    pattern: str
    tiling: Tiling
    shape: Shape


@dataclass(frozen=True)
class Code:
    """A kernel for the card: its functions, the text of them all, and how it was chosen. seconds: 0 where it was not
    timed."""

    functions: tuple[TileFunction, ...]
    text: str
    choice: Choice
    seconds: float


def candidates(kernel: Kernel | Rows, precision: str) -> Iterator[Choice]:
    """Ways to lower a kernel that are worth timing. Extents of the tiles beyond the kernel's are cut by the lowering,
    so that small kernels have few different ones."""
    for pattern in patterns(kernel)[:2]:
        if pattern == "contraction":
            (p, *_) = problems(kernel.root) or ()
            batch, m, n, k = p.sizes
            for tm, tn, tk, warps in (
                (128, 128, 32, 8),
                (128, 64, 32, 4),
                (64, 64, 32, 4),
                (32, 64, 64, 4),
                (16, 64, 64, 2),
                (64, 16, 64, 2),
            ):
                if tm // 2 >= max(m, 16) or tn // 2 >= max(n, 16):
                    continue
                tiles = batch * -(-m // tm) * -(-n // tn)
                for split in sorted({1, min(64, -(-PROGRAMS // tiles), max(1, k // (4 * tk)))}):
                    yield Choice(pattern, Tiling(tm, tn, tk, split, precision), Shape(warps, 3))
        elif pattern in ("pointwise", "stencil"):
            for m, warps in ((256, 4), (1024, 4)):
                yield Choice(pattern, Tiling(m=m), Shape(warps))
        elif pattern == "reduction":
            for m, k in ((1, 2048), (4, 256), (32, 32), (128, 8)):
                results = sum(prod(x.extents) for x in kernel.root.parts if isinstance(x.body, Reduce))
                terms = max(prod(x.body.extents) for x in kernel.root.parts if isinstance(x.body, Reduce))
                for split in sorted({1, max(1, min(PROGRAMS * m // max(1, results), terms // (2 * k)))}):
                    yield Choice(pattern, Tiling(m=m, k=k, split=split), Shape(4))
        elif pattern == "rows":
            for m, k in ((1024, 64), (1, 1024), (4096, 64)):
                yield Choice(pattern, Tiling(m=m, k=k, precision=precision), Shape(4))
        else:
            for m, k in ((256, 16), (32, 128)):
                yield Choice(pattern, Tiling(m=m, k=k), Shape(4))


def lowered_candidates(kernel: Kernel | Rows, precision: str) -> list[tuple[Choice, Lowered, str]]:
    """The candidates with what they are lowered to, of those with one text and shape the first."""
    out: dict[tuple[str, Shape], tuple[Choice, Lowered, str]] = {}
    for choice in candidates(kernel, precision):
        lowered = lower(kernel, choice.tiling, None if isinstance(kernel, Rows) else choice.pattern)
        text = triton_text([x.function for x in lowered.launches])
        out.setdefault((text, choice.shape), (choice, lowered, text))
    return list(out.values())


def types_of(f: TileFunction) -> tuple[str, ...]:
    """Of a function whose memory begins at multiples of 16 bytes."""
    return tuple(pointer_type(p.elem, True) for p in f.parameters)


Job = tuple[str, str, tuple[str, ...], Shape]


def jobs_of(choice: Choice, lowered: Lowered, text: str) -> list[Job]:
    """What is compiled for a candidate: a text, and of it the function of each launch."""
    return [(text, x.function.name, types_of(x.function), choice.shape) for x in lowered.launches]


def _compile(job: Job) -> str:
    """In a worker: leaves the machine code on disk; returns what went wrong."""
    try:
        compiled(*job)
    except Exception as e:  # whatever Triton raises is an answer: that candidate is none
        return f"{type(e).__name__}: {str(e).strip().splitlines()[-1:]}"
    return ""


class _Compiler(threading.local):
    """A process of a thread of its own, begun anew where a fault of the compiler has ended it."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def compile(self, job: Job) -> str:
        try:
            return self.process.submit(_compile, job).result()
        except BrokenProcessPool:
            self._begin()
            return "the compiler ended its process"


def compile_all(jobs: Sequence[Job], until: float) -> dict[Job, str]:
    """Compiles in processes of their own; returns what went wrong with each job, empty where nothing did. Jobs that are
    not done at the time `until` are missing."""
    count, compiler, out = os.cpu_count() or 1, _Compiler(), {}
    pool = ThreadPoolExecutor(count)
    waiting = {job: pool.submit(compiler.compile, job) for job in dict.fromkeys(jobs)}
    for job, result in waiting.items():
        with suppress(TimeoutError):
            out[job] = result.result(max(0.0, until - time.monotonic()))
    pool.shutdown(wait=False, cancel_futures=True)
    for child in multiprocessing.active_children():
        child.kill()
    return out


def timed(start: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Seconds of what is started on the card: the least of several runs."""
    times = []
    for _ in range(rounds + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        start()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return min(times[1:])


def replayed(graph: torch.cuda.CUDAGraph, rounds: int = 20) -> float:
    """Seconds of a graph: the median."""
    return sorted(timed(graph.replay, 1) for _ in range(rounds))[rounds // 2]


def captured(start: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    start()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        start()
    return graph


class Workbench:
    """Kernels' candidates on random numbers, timed."""

    def __init__(self) -> None:
        self._random = torch.randn(1 << 20, device="cuda")

    def seconds(self, kernel: Kernel | Rows, lowered: Lowered, text: str, shape: Shape) -> float:
        """Of all launches in order, as a graph."""
        held = [self._filled(b.size, b.dtype.name, b.nbytes) for b in kernel.buffers]
        starts, _ = _starts(lowered, text, shape, held)
        return timed(captured(lambda: [s() for s in starts]).replay)

    def result(
        self, kernel: Kernel, lowered: Lowered, text: str, shape: Shape, arguments: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[Any]]:
        """The last buffer after all launches on arguments of the buffers before it, and the machine code. Buffers have
        no gaps."""
        held = []
        for b, a in zip(kernel.buffers, arguments, strict=False):
            held.append(torch.empty(b.size, device="cuda"))
            held[-1].as_strided(b.shape, b.strides).copy_(a)
        last = kernel.buffers[-1]
        held.append(torch.full((last.size,), float("nan"), device="cuda"))
        starts, codes = _starts(lowered, text, shape, held)
        for start in starts:
            start()
        torch.cuda.synchronize()
        return held[-1].as_strided(last.shape, last.strides), codes

    def _filled(self, size: int, dtype: str, nbytes: int) -> torch.Tensor:
        """Random numbers; whole numbers are zero, so that they are positions in whatever they are positions of."""
        if dtype != "f32" or not size:
            return torch.zeros(max(nbytes, 1), dtype=torch.uint8, device="cuda")
        return self._random[: min(size, self._random.numel())].repeat(-(-size // self._random.numel()))[:size]


def _starts(
    lowered: Lowered, text: str, shape: Shape, held: Sequence[torch.Tensor]
) -> tuple[list[Callable[[], Any]], list[Any]]:
    """What starts each launch, and its machine code. held: the memory of the kernel's buffers."""
    work = torch.empty(max(lowered.workspace, 1), dtype=torch.uint8, device="cuda")
    starts: list[Callable[[], Any]] = []
    codes = []
    for x in lowered.launches:
        f = x.function
        tensors = [held[p.buffer] if p.buffer is not None else work[p.offset :] for p in f.parameters]
        codes.append(compiled(text, f.name, types_of(f), shape))
        starts.append(partial(codes[-1][(f.programs, 1, 1)], *tensors))
    return starts, codes


@dataclass(frozen=True)
class Card(Target):
    backend = "card"
    __hash__ = Target.__hash__


class CardSteps(Steps):
    """A program whose first run records its launches as a graph. What checks ask about is put aside within it, as its
    memory may be used again, and is looked at after the run."""

    def __init__(self, made: Assembler):
        super().__init__(made)
        self.launches: list[tuple[Code | CheckZero | CheckFinite, tuple[int, ...]]] = []
        self.checks: list[tuple[CheckZero | CheckFinite, torch.Tensor]] = []
        self.graph: torch.cuda.CUDAGraph | None = None
        self.mirror: Mirror | None = None

    def run(self) -> int:
        if self.graph is None:
            self.part(0, len(self.steps))
            self._capture()
        assert self.mirror is not None and self.graph is not None
        self.mirror.upload()
        self.graph.replay()
        torch.cuda.synchronize()
        self.mirror.download()
        return self._status()

    def seconds(self) -> float:
        """Of a run, without its copies."""
        assert self.graph is not None
        return replayed(self.graph)

    def part(self, n: int, end: int) -> int:
        while n < end:
            step = self.steps[n]
            if isinstance(step, CheckZero | CheckFinite):
                self.launches.append((step, (self.at(n),)))
            else:
                super().part(n, n + 1)
            n = (self.end_of(n) if isinstance(step, BeginLoop) else n) + 1
        return 0

    def _status(self) -> int:
        """The code of the first check that fails."""
        for step, value in self.checks:
            if value.item() != 0 if isinstance(step, CheckZero) else not value.isfinite().item():
                return step.code
        return 0

    def launch(self, code: Code, pointers: Sequence[int]) -> None:
        self.launches.append((code, tuple(pointers)))

    @property
    def calls(self) -> list[tuple[Code, tuple[int, ...]]]:
        """The launches that are no checks."""
        return [(code, pointers) for code, pointers in self.launches if isinstance(code, Code)]

    def _capture(self) -> None:
        ranges: list[tuple[int, int]] = []
        addressed: dict[str, list[tuple[int, ...]]] = {}
        for code, pointers in self.calls:
            addressed.setdefault(code.text, []).append(pointers)
            for f in code.functions:
                at = [p.address(pointers) for p in f.parameters]
                ranges += [(a, a + p.nbytes) for p, a in zip(f.parameters, at, strict=True)]
        self.mirror = mirror = Mirror(ranges)
        mirror.upload()
        starts: list[Callable[[], Any]] = []
        for step, pointers in self.launches:
            if not isinstance(step, Code):
                elem = "i32" if isinstance(step, CheckZero) else step.elem
                watched = mirror.tensor(pointers[0], BYTES[elem], elem)
                self.checks.append((step, torch.empty_like(watched)))
                starts.append(partial(self.checks[-1][1].copy_, watched))
                continue
            for f in step.functions:
                types = tuple(signature(f, addressed[step.text]))
                made = compiled(step.text, f.name, types, step.choice.shape)
                tensors = [mirror.tensor(p.address(pointers), p.nbytes, p.elem) for p in f.parameters]
                starts.append(partial(made[(f.programs, 1, 1)], *tensors))
        self.graph = captured(lambda: [s() for s in starts])


class CardBackend(Evaluated):
    """Chooses the fastest of a kernel's candidates on the card, as many as are compiled in time.

    precision: of products of float32. limit: seconds to compile candidates of a program.
    """

    name = "card"

    def __init__(self, precision: str, limit: float):
        super().__init__()
        self.precision, self.limit = precision, limit
        self.bench = Workbench()
        self.known: dict[Any, CompiledKernel] = {}
        self.made: list[CardSteps] = []
        self.faults: dict[str, str] = {}

    def target(self, threads: int) -> Target:
        return Card(cores=threads)

    def compile(self, kernels: Sequence[Kernel | Rows], target: Target) -> list[CompiledKernel]:
        new = [k for k in dict.fromkeys(kernels) if k not in self.known]
        tried = {kernel: lowered_candidates(kernel, self.precision) for kernel in new}
        # Each kernel's first candidate before anybody's second.
        in_turn = [x for turn in itertools.zip_longest(*tried.values()) for x in turn if x is not None]
        done = compile_all([job for x in in_turn for job in jobs_of(*x)], time.monotonic() + self.limit)
        for kernel in new:
            self.known[kernel] = self._best(kernel, tried[kernel], done)
        return [self.known[k] for k in kernels]

    def _best(self, kernel: Any, tried: Sequence[tuple[Choice, Lowered, str]], done: dict) -> CompiledKernel:
        best: tuple[float, Choice, Lowered, str] | None = None
        for choice, lowered, text in tried:
            faults = [done.get(j, "not compiled in time") for j in jobs_of(choice, lowered, text)]
            if any(faults):
                self.faults[f"{choice}"] = next(filter(None, faults))
                continue
            try:
                seconds = self.bench.seconds(kernel, lowered, text, choice.shape) if len(tried) > 1 else 0.0
            except Exception as e:  # too much shared memory, say: that candidate is none
                self.faults[f"{choice}"] = f"{type(e).__name__}: {str(e)[:200]}"
                continue
            if best is None or seconds < best[0]:
                best = seconds, choice, lowered, text
        if best is None:  # the smallest tiles fit in any case
            choice, lowered, text = min(tried, key=lambda x: x[0].tiling.m * x[0].tiling.k)
            best = 0.0, replace(choice, shape=Shape(4, 1)), lowered, text
        seconds, choice, lowered, text = best
        code = Code(tuple(x.function for x in lowered.launches), text, choice, seconds)
        return CompiledKernel(((code, 1, False),), 0, lowered.workspace, choice.pattern, str(choice), seconds, 0)

    def program(self, made: Assembler, threads: int, scratch_bytes: int, scratch: int) -> CardSteps:
        self.made.append(CardSteps(made))
        return self.made[-1]
