"""Compile kernels to tiles, then to machine code by Triton, and run programs as graphs: the back end of NVIDIA's
cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from einsmith.base import environment, locks, messages
from einsmith.base.caches import Bound, Cache
from einsmith.base.errors import CompileError
from einsmith.cost.facts import Target
from einsmith.driver.backend import Backend, Runnable
from einsmith.driver.tuned import Decision, TunedBackend, follow, warn_unfollowed
from einsmith.gpu.cards import CARDS, CUDA, GpuTarget, card
from einsmith.gpu.cuda import driver
from einsmith.gpu.cuda.card import Card
from einsmith.gpu.cuda.card_program import CudaProgram
from einsmith.gpu.cuda.device import CudaDevice, DeviceCode, DeviceFacts
from einsmith.gpu.cuda.launches import TileCode
from einsmith.gpu.cuda.offline import OfflineDevice
from einsmith.gpu.tiles.ir import rounding_of, show
from einsmith.gpu.tiles.patterns import TILE_PATTERNS
from einsmith.gpu.tiles.triton_text import pointer_type, triton_text
from einsmith.gpu.tiles.verify import verify
from einsmith.gpu.triton.binary import Binary, TritonSource
from einsmith.gpu.triton.compile_triton import compile_sources
from einsmith.kernels.pattern import Pattern
from einsmith.runtime.arena import Block
from einsmith.runtime.assemble import Assembler
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels import decisions
from einsmith.tuning.kernels.measure import KernelRunner

_KERNELS = Bound("kernels of cards", 1024)
"""Bound of the kernels that a back end keeps with their machine code, which takes some 10 KB each."""


class Cuda(TunedBackend):
    """The back end of one card: see the module's docstring.

    Args:
        device: the card.
        described: what the card is to the cost model.
        compiles: function that makes machine code of texts for the card's compute capability.
        make: function that can be pickled, and returns this back end in any process.
    """

    in_process, overlaps = False, True
    request_seconds = 120.0
    patterns: Sequence[Pattern] = TILE_PATTERNS

    def __init__(self, device: CudaDevice, described: GpuTarget, compiles: Any, make: Callable[[], Backend]):
        self.name, self.described, self._compiles, self._make = described.device, described, compiles, make
        self.card: Card = Card(device, self._build)
        self._compiled: Cache[tuple[Kernel, Target, Decision], CompiledKernel] = Cache(_KERNELS)

    def target(self, threads: int) -> GpuTarget:
        return self.described

    def static_target(self, cores: int) -> Target:
        return self.described

    @property
    def make(self) -> Callable[[], Backend]:
        self.card.device.event()  # a card that is not there refuses
        return self._make

    @property
    def runner(self) -> KernelRunner:
        with locks.IMPORTING:
            from einsmith.gpu.card_runner import CardRunner  # imported late: few programs measure kernels

        return CardRunner(self.card, self.described, self.compile_as)

    def compile_decided(
        self, kernels: Sequence[Kernel], decided: Mapping[Kernel, Decision], target: Target
    ) -> list[CompiledKernel]:
        return [self._compile(k, target, decided[k]) for k in kernels]

    def _compile(self, kernel: Kernel, target: Target, decision: Decision) -> CompiledKernel:
        """Lower a kernel. Equal calls return one object while it is in use, so that its machine code is compiled once
        (`Card.codes`)."""
        key = kernel, target, decision
        known = self._compiled.get(key)
        if known is not None:
            return known
        followed, choice, lowered, unfollowed = follow(kernel, target, decision)
        if environment.debug() >= 3:
            messages.say(decisions.explain(kernel, target))
        if environment.debug() >= 4:
            for x in lowered.launches:
                messages.say(show(x.function))
                verify(x.function)
        config = choice.config
        launches = [(TileCode(x.function, config.warps, config.stages), x.tasks, False) for x in lowered.launches]
        compiled = CompiledKernel(
            tuple(launches),
            0,
            lowered.workspace,
            choice.pattern.name,
            str(config),
            choice.cost.seconds,
            0,
            followed.text,
            followed.recorded,
            unfollowed,
            lowered.beyond,
            rounding_of([x.function for x in lowered.launches]),
        )
        self._compiled.put(key, compiled)
        warn_unfollowed(kernel, decision, compiled)
        return compiled

    def _build(self, codes: Sequence[tuple[TileCode, tuple[bool, ...]]]) -> list[DeviceCode]:
        """Return machine code of functions, whose pointers are multiples of 16 bytes or not. As many turns of loops are
        loaded ahead as shared memory has room for. Raises CompileError where it has none for one turn."""
        sources = []
        for code, aligned in codes:
            f = code.function
            types = tuple(pointer_type(p.elem, yes) for p, yes in zip(f.parameters, aligned, strict=True))
            sources.append(TritonSource(triton_text([f]), f.name, types, code.warps, code.stages))
        binaries: list[Binary] = self._compiles(sources, self.described.capability)
        while over := [n for n, x in enumerate(binaries) if x.shared > self.described.shared]:
            for n in over:
                if sources[n].stages == 1:
                    raise CompileError(
                        f"the kernel {sources[n].name} takes {binaries[n].shared} bytes of shared memory, of which the "
                        f"{self.described.card} has {self.described.shared}; `einsmith explain --override` gives it "
                        "smaller tiles"
                    )
                sources[n] = sources[n]._replace(stages=sources[n].stages - 1)
            fewer = self._compiles([sources[n] for n in over], self.described.capability)
            for n, x in zip(over, fewer, strict=True):
                binaries[n] = x
        return [DeviceCode(code.function, binary) for (code, _), binary in zip(codes, binaries, strict=True)]

    def allocate(self, nbytes: int) -> Block:
        return self.card.memory.block(nbytes)

    def program(self, assembler: Assembler, threads: int, scratch_bytes: int, scratch: int) -> Runnable:
        return CudaProgram(assembler, self.card)

    def derive(
        self, origin: Runnable, assembler: Assembler, threads: int, scratch_bytes: int, scratch: int
    ) -> Runnable:
        assert isinstance(origin, CudaProgram)
        return CudaProgram(assembler, self.card, origin)

    def describe_code(self, program: Runnable, steps: Sequence[int]) -> list[str]:
        assert isinstance(program, CudaProgram)
        return program.describe(steps)


def described(facts: DeviceFacts, device: str) -> GpuTarget:
    """Return what a card is to the cost model: the known card whose name its own contains, else the first known one
    with the multiprocessors and sizes that the driver tells, and rates in proportion."""
    known = next((c for c in CARDS.values() if c.card in facts.name), None)
    if known is not None:
        return replace(known, device=device)
    base = next(iter(CARDS.values()))
    share = facts.multiprocessors / base.multiprocessors
    return replace(
        base,
        device=device,
        card=facts.name,
        capability=facts.capability,
        cores=facts.multiprocessors,
        shared=facts.shared,
        l3=facts.l2,
        l2=facts.l2 // facts.multiprocessors,
        rates=tuple((name, rate * share) for name, rate in base.rates),
        memory_bandwidth=base.memory_bandwidth * share,
    )


def of_card(ordinal: int, make: Callable[[], Backend]) -> Cuda:
    """Return the back end of a card by its number. make: as for `Cuda`. Raises DeviceError where it cannot be used."""
    device = driver.device(ordinal)
    return Cuda(device, described(device.facts, f"{CUDA}:{ordinal}"), compile_sources, make)


def of_kind(name: str, make: Callable[[], Backend]) -> Cuda:
    """Return the back end of a kind of card (`gpu.cards.CARDS`) that need not be there: its programs do not run. make:
    as for `Cuda`."""
    kind = replace(card(name), device=name)
    facts = DeviceFacts(kind.card, kind.capability, kind.cores, 1 << 50, kind.l3, kind.shared, 0)
    return Cuda(OfflineDevice(facts), kind, compile_sources, make)
