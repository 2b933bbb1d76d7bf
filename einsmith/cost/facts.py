"""Describe a machine as data: the facts and coefficients by which patterns configure and price kernels.

Sizes are static facts read from the operating system; the coefficients (operations and bytes per second) have static
defaults that calibration may replace with measured ones. Nothing here knows a code generator: `cpu`, `features` and
`triple` may be "host", which the code generator resolves.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from einsmith.base.errors import ArgumentError
from einsmith.base.locks import cached_property
from einsmith.base.numerics import Numerics
from einsmith.base.system import processors
from einsmith.cost.microarchitectures import VECTORS, WASM_TRIPLE, Core, core
from einsmith.cost.overheads import Overheads
from einsmith.ir.functions import FUNCTIONS

LINE = 64
"""Bytes of a cache line."""
REUSED_L3_FRACTION, SHARED_L3_FRACTION = 0.65, 0.15
"""Fraction of L3 that still holds data on reuse. REUSED_L3_FRACTION: data that is walked repeatedly (measured: sums of
24 to 96 MB, 32 MB of cache). SHARED_L3_FRACTION: data that two kernels share, in a program that touches more than L3
holds."""
_SPECIAL_SECONDS = tuple((f.name, f.seconds) for f in FUNCTIONS.values() if f.seconds)
"""Seconds per f32 element of functions that are not one instruction, with vectors of 64 bytes at about 4 GHz."""


CPU = "cpu"
"""Name of the CPU back end."""
MAX_THREADS = 4096
"""Most threads that share a program's work."""


class LayoutRules(NamedTuple):
    """Rules by which the layout pass chooses the dimension orders of tensors for a machine.

    margin: fraction added to the predicted seconds of kernels whose tensors are not row-major, because the model is
        less accurate there
    margin_of_sums: the same for sums whose operands change order. They gather at strides for which the model of
        contractions was not calibrated. Measured with `python -m benchmarks.layouts`: kernels of networks ran at 0.93
        times the predicted speed in the median, and at less than 0.2 times in one case of ten, all of them such sums;
        windows with stride 2 were faster than predicted.
    gain_queries: most kernels of a plan that the cost model prices because they might gain by other orders
    loss_queries: most kernels that it prices because they have to change with them
    small_operand, small_filter: a tensor smaller than the largest one of a kernel by this factor is not copied for it;
        small_filter: of four or more dimensions
    tries_channels_last: whether every kernel is priced with all images channels last, so that a network all of whose
        kernels gain together can change, however many there are
    """

    margin: float = 0.3
    margin_of_sums: float = 1.0
    gain_queries: int = 40
    loss_queries: int = 24
    small_operand: int = 8
    small_filter: int = 8
    tries_channels_last: bool = False


@dataclass(frozen=True)
class Target:
    """A machine: sizes, rates and overheads. Hashable, so that it can be part of a cache key.

    `backend` names the back end that compiles and runs code for it (`driver.registry`); another kind of machine is a
    subclass with another `backend`. `identity` names the fields that tell machines of the kind apart, and the options
    of their programs: what was measured on one machine does not hold for another. Empty: all fields that are not
    measured.

    vector_bytes: bytes of one vector register; vector_registers: how many there are; l1, l2: bytes per core; l3: bytes
    that all cores share; cores: physical cores that may be used.

    Coefficients: `fma_per_second` f32 multiply-adds per core; `multiplies`: vector multiply-adds per clock cycle, a
    power of two; `dots`, `tiles`: by the name of a dot product of words (`loopnest.dots`), vectors of them per clock
    cycle, in vector registers and in tile registers;
    `bytes_per_second` read and written per core from (L1, L2, L3); of all cores together from a shared
    level: `l3_bandwidth`, `memory_bandwidth`, of which one core can use `core_bandwidth`; `load_seconds`,
    `unaligned_seconds` (of vectors that begin anywhere), `store_seconds`, `broadcast_seconds` per vector in L1;
    `gather_seconds` per element; `special_seconds` per f32 element and core of a function that is not one instruction;
    `launch_seconds` to start one parallel sweep.

    `measured`: coefficients that registered patterns have measured for themselves, read by `coefficient`.

    `overheads`: costs of kernels beyond the measured coefficients, in clock cycles.

    `winograd`: whether the user allows convolutions to be computed in Winograd's form, which rounds differently.

    `l3_share`: the fraction of L3 that data of this process gets; on a machine that others share, they take the rest.

    `kept`: the fraction of the last level of cache that holds data of a kernel when it begins.

    `precisions`: the precisions of programs (`base.numerics`) that it can compute in.

    `layouts`: how the orders of tensors' dimensions are chosen (`schedule.layout`).

    `changes_loops`: whether loops may take in the steps around them, and keep states in circular buffers.
    """

    backend: ClassVar[str] = CPU
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "bf16", "fp16")
    layouts: ClassVar[LayoutRules] = LayoutRules()
    changes_loops: ClassVar[bool] = True
    identity: ClassVar[tuple[str, ...]] = ()

    cpu: str = "host"
    features: str = "host"
    triple: str = "host"
    vector_bytes: int = 32
    vector_registers: int = 16
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20
    cores: int = 1
    fma_per_second: float = 4e10
    multiplies: float = 2.0
    dots: tuple[tuple[str, float], ...] = ()
    tiles: tuple[tuple[str, float], ...] = ()
    bytes_per_second: tuple[float, float, float] = (1.5e11, 7e10, 3e10)
    l3_share: float = 1.0
    l3_bandwidth: float = 6e10
    memory_bandwidth: float = 4e10
    core_bandwidth: float = 2.8e10
    load_seconds: float = 1.25e-10
    unaligned_seconds: float = 1.9e-10
    store_seconds: float = 2.5e-10
    broadcast_seconds: float = 1.25e-10
    gather_seconds: float = 2.5e-10
    special_seconds: tuple[tuple[str, float], ...] = _SPECIAL_SECONDS
    launch_seconds: float = 2e-6
    measured: tuple[tuple[str, float], ...] = ()
    winograd: bool = False
    kept: float = REUSED_L3_FRACTION
    overheads: Overheads = Overheads()

    def __hash__(self) -> int:  # computed once: a target is part of every cache key
        value = self.__dict__.get("_hash")
        if value is None:
            value = hash(tuple(getattr(self, f.name) for f in fields(self)))
            object.__setattr__(self, "_hash", value)
        return value

    def __getstate__(self) -> dict:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # no hash: strings hash differently per process

    def for_numerics(self, numerics: Numerics) -> Self:
        """Return the machine as it computes for programs that round so. Raises ArgumentError where it cannot."""
        if numerics.precision not in self.precisions:
            raise ArgumentError(
                f"precision={numerics.precision!r} is one of graphics cards alone (device='cuda'); this machine "
                f"computes in {', '.join(self.precisions)}, of which 'fp32' is at least as accurate"
            )
        return replace(self, winograd=numerics.winograd)

    def describe_shares(self, threads: int) -> str:
        """Describe what executes a program: the number of threads, or a card."""
        return f"{threads} threads"

    def lanes(self, itemsize: int = 4) -> int:
        """Return the elements of `itemsize` bytes in one vector register; at least 2."""
        return max(2, self.vector_bytes // itemsize)

    @property
    def loads_operands(self) -> bool:
        """True if multiply-adds take no operand from memory, as on AArch64 (32 registers of 16 bytes)."""
        return (self.vector_bytes, self.vector_registers) == (16, 32)

    @property
    def sum_registers(self) -> int:
        """Registers for accumulators and the vectors that they share.

        One other register is kept for elements broadcast from memory; three where operands must be loaded first."""
        return self.vector_registers - (3 if self.loads_operands else 1)

    def special(self, fn: str) -> float:
        """Return the seconds per element and core of the scalar function `fn`; 0 for functions of one instruction."""
        known = self._specials.get(fn)
        return known if known is not None else FUNCTIONS[fn].seconds if fn in FUNCTIONS else 0.0

    @cached_property
    def _specials(self) -> dict[str, float]:
        return dict(self.special_seconds)

    def dots_per_cycle(self, name: str) -> float:
        """Return the vectors of dot products of this name per clock cycle; 0 where the machine has no instruction."""
        return dict(self.dots).get(name, 0.0)

    def tile_dots_per_cycle(self, name: str) -> float:
        """Return the vectors of dot products of this name that tile registers compute per clock cycle; 0 without."""
        return dict(self.tiles).get(name, 0.0)

    @property
    def last_level(self) -> int:
        """Bytes of L3 that this process can fill; other processes have the rest."""
        return int(self.l3_share * self.l3)

    def fits_l2(self, nbytes: int) -> bool:
        """Return whether data of this size, which all cores share out, stays in their L2."""
        return nbytes <= self.l2 * self.cores

    @property
    def cycle_seconds(self) -> float:
        """Seconds of a clock cycle."""
        return self.lanes() * self.multiplies / self.fma_per_second

    def coefficient(self, name: str, default: float) -> float:
        """Return the seconds per unit measured by a registered pattern's program of this name; else `default`."""
        return dict(self.measured).get(name, default)

    def seconds_for_bytes(self, moved: float, footprint: float, tasks: int) -> float:
        """Return the seconds to move `moved` bytes of data of `footprint` bytes in all while `tasks` run at once."""
        return float(moved / self.transfer_rate(float(footprint), tasks))

    def transfer_rate(self, footprint: Any, tasks: Any) -> Any:
        """Return the bytes a second of data of `footprint` bytes in all while `tasks` run at once (numbers or arrays).

        The level is the smallest one that holds the footprint; private levels serve each core on its own. Of a
        footprint beyond L3, the fraction kept * last_level / footprint comes from L3 all the same.
        """
        cores = np.maximum(1, np.minimum(self.cores, tasks))
        l1, l2, l3 = self.bytes_per_second
        near = np.maximum(l3, np.minimum(l3 * cores, self.l3_bandwidth))
        far = np.minimum(self.memory_bandwidth, self.core_bandwidth * cores)
        missed = np.maximum(0.0, 1 - self.kept * self.last_level / np.maximum(footprint, 1))
        beyond = 1 / ((1 - missed) / near + missed / far)
        private = np.where(footprint <= self.l1 * cores, l1 * cores, l2 * cores)
        return np.where(footprint <= self.l2 * cores, private, beyond)


def target_of(known: Mapping[str, Any]) -> Target:
    """Return the machine from fields that `dataclasses.asdict` returned, also after a round trip through JSON, which
    has no tuples. Without `overheads` it has those of the table."""

    def tuples(x: Any) -> Any:
        return tuple(map(tuples, x)) if isinstance(x, list | tuple) else x

    plain = {name: tuples(x) for name, x in known.items() if name != "overheads"}
    return Target(**plain, overheads=Overheads(**known.get("overheads", {})))


MOST_L3 = 32 << 20
"""Most bytes of L3 for each core of this process: no processor has more (EPYC 9175F), but a virtual machine, and a
container with some of the cores, tell of the L3 of all, of which others use the rest. With 480 MiB for two cores, as
one tells, a LoRA step of three layers at 1,024 tokens in bfloat16 stores its attention and takes 1.1 times as long."""


@lru_cache(maxsize=16)
def host(cpu: str = "host", features: frozenset[str] = frozenset()) -> Target:
    """Return the machine that this process runs on, with static coefficients (cached). cpu, features: LLVM's names for
    it; without features, those of which the system tells count."""
    flags, machine = features or processors.flags(), platform.machine().lower()
    if "avx512f" in flags and "avx512vl" in flags:
        vector, registers = 64, 32
    elif "avx2" in flags and "fma" in flags:
        vector, registers = 32, 16
    elif machine in ("aarch64", "arm64"):
        vector, registers = 16, 32
    else:
        vector, registers = 16, 16
    caches, cores = processors.caches(), processors.physical_cores()
    target = Target(
        vector_bytes=vector,
        vector_registers=registers,
        l1=caches.get(1) or 32 << 10,
        l2=caches.get(2) or 512 << 10,
        l3=min(caches.get(3) or 8 << 20, MOST_L3 * cores),
        cores=cores,
    )
    return with_core(target, core(cpu, vector, registers))


def of_instruction_set(name: str) -> Target:
    """Return a machine of one core with the vectors of an instruction set (`microarchitectures.VECTORS`), and with the
    rates of a common processor that has it."""
    triple = {"neon": "aarch64-unknown-linux-gnu", "wasm": WASM_TRIPLE}.get(name, "x86_64-unknown-linux-gnu")
    vector, registers = VECTORS[name]
    cpu = "generic" if name == "wasm" else name
    target = Target(cpu=cpu, features="", triple=triple, vector_bytes=vector, vector_registers=registers)
    return with_core(target, core("wasm" if name == "wasm" else "", vector, registers))


def with_core(target: Target, c: Core) -> Target:
    """Return the target with the coefficients of cores of this microarchitecture."""
    vector, cycle = target.vector_bytes, 1 / c.clock
    load = vector / c.load_bytes * cycle
    return replace(
        target,
        fma_per_second=c.fma_bytes / 4 * c.clock,
        multiplies=c.fma_bytes / vector,
        bytes_per_second=(c.l1 * c.clock, c.l2 * c.clock, c.l3 * c.clock),
        l3_bandwidth=c.l3 * c.clock * target.cores,
        memory_bandwidth=max(target.memory_bandwidth, 1.5 * c.memory),
        core_bandwidth=c.memory,
        load_seconds=load,
        unaligned_seconds=load * (2.0 if vector >= LINE else 1.5),  # every load crosses a line, or every second one
        store_seconds=vector / c.store_bytes * cycle,
        broadcast_seconds=load,
        gather_seconds=c.gather_cycles * cycle,
        special_seconds=tuple((name, seconds * 64 / vector * 4e9 / c.clock) for name, seconds in _SPECIAL_SECONDS),
    )
