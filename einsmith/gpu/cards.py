"""Describe graphics cards as data: the facts and coefficients by which kernels for them are configured and priced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from einsmith.base.errors import ArgumentError
from einsmith.base.numerics import Numerics
from einsmith.base.precisions import PRECISIONS
from einsmith.cost.facts import LayoutRules, Target

CUDA = "cuda"
"""Name of NVIDIA's cards; that of the first card is "cuda:0"."""
_DOTS = {
    "fp32": ("tf32x3", "tf32x3"),
    "tf32": ("tf32", "tf32"),
    "bf16": ("tf32x3", "bf16"),
    "fp16": ("tf32x3", "bf16"),
}
"""By precision of a program, how dots of float32 round their operands, and the precision of its fastest dots. With
activations of 16 bits, operands that are float32 all the same are those that stay in full precision."""


@dataclass(frozen=True)
class GpuTarget(Target):
    """A graphics card. The fields of a Target describe it to the passes: `cores` are its multiprocessors, `l2` and `l3`
    its level 2 cache.

    Attributes:
        device: the name of its back end (`driver.registry`)
        card: its name
        capability: compute capability, major and minor
        shared: most bytes of shared memory of a block, and of all blocks on a multiprocessor
        registers: 32-bit registers of a multiprocessor
        resident: most threads of a multiprocessor
        clock: cycles a second
        rates: products a second, as multiply-adds counted twice, by precision of a dot (PRECISIONS of
            `gpu.tiles.operations`; "bf16" is also that of operands that are f16) and of "f64", on all multiprocessors
        level1_bandwidth: bytes a second from the level 1 caches of all multiprocessors
        precision: how dots of float32 round their operands
        launch_gap: seconds from the end of a launch in a graph to the beginning of one that waits for it
    """

    precisions: ClassVar[tuple[str, ...]] = PRECISIONS
    layouts: ClassVar[LayoutRules] = LayoutRules(
        0.05, 0.05, gain_queries=16, loss_queries=8, small_filter=1 << 10, tries_channels_last=True
    )
    # The persistent kernel that runs a loop moves its pointers by equal distances, and all steps of what is outside of
    # it run at once.
    changes_loops: ClassVar[bool] = False
    identity = ("card", "capability", "cores", "precision", "winograd", "kept")

    device: str = f"{CUDA}:0"
    card: str = "H100"
    capability: tuple[int, int] = (9, 0)
    shared: int = 227 << 10
    registers: int = 65536
    resident: int = 2048
    clock: float = 1.7e9
    rates: tuple[tuple[str, float], ...] = (
        ("ieee", 50e12),
        ("f64", 25e12),
        ("tf32x3", 145e12),
        ("tf32", 410e12),
        ("bf16x3", 210e12),
        ("bf16", 780e12),
    )
    level1_bandwidth: float = 28e12
    precision: str = "tf32x3"
    launch_gap: float = 1e-6

    __hash__ = Target.__hash__

    @property
    def backend(self) -> str:  # type: ignore[override]
        """The name of its back end."""
        return self.device

    def describe_shares(self, threads: int) -> str:
        """Describe what executes a program: the card."""
        return f"one {self.card}"

    @property
    def multiprocessors(self) -> int:
        """Number of multiprocessors of the card."""
        return self.cores

    @property
    def cycles(self) -> float:
        """Cycles a second of all multiprocessors."""
        return self.clock * self.cores

    def for_numerics(self, numerics: Numerics) -> GpuTarget:
        """Return the card with the multiply rates of a precision.

        "fp32" has the accuracy of float32, by three products in tf32 each; "tf32" rounds operands to tf32. With "bf16"
        and "fp16", operands that are stored in 16 bits are multiplied without conversion, and others have the accuracy
        of float32."""
        target = super().for_numerics(numerics)
        precision, fastest = _DOTS[numerics.precision]
        return replace(target, precision=precision, fma_per_second=self.rate(fastest) / 2 / self.cores)

    def rate(self, precision: str) -> float:
        """Return the products a second of dots of a precision, as multiply-adds counted twice."""
        return dict(self.rates)[precision]


def _card(name: str, memory_bandwidth: float) -> GpuTarget:
    """Return a card of 132 multiprocessors, described by the fields of a Target. They have these meanings:

    l1, l2, bytes_per_second: between kernels no level below the shared one keeps data. All cores have equal parts of
        the shared cache, at its bandwidth. `fits_l2` therefore asks whether a tensor stays in it, and no kernel is
        priced by the speed of a private cache. l1 is the longest row that kernels always share: the registers of a warp
        hold one of 1024 numbers. Longer rows are shared if that is predicted to be faster, as there may be too few rows
        for all multiprocessors.
    l3, l3_bandwidth: the shared cache.
    fma_per_second: of the fastest dots, as a lower bound of products (`GpuTarget.for_numerics`).
    core_bandwidth: 40 multiprocessors that load and store take all of the memory's bandwidth.
    dots: operands of 16 bits are multiplied without conversion.
    special_seconds: exponentials and other special functions overlap with loads and stores, so no pass stores a result
        in memory to save one.
    """
    shared_cache, cores, shared_bandwidth = 50 << 20, 132, 5.5e12
    each = shared_bandwidth / cores
    return GpuTarget(
        cpu=name,
        card=name,
        vector_bytes=128,
        vector_registers=255,
        l1=4 << 10,
        l2=shared_cache // cores,
        l3=shared_cache,
        cores=cores,
        fma_per_second=145e12 / 2 / cores,
        dots=(("bf16", 1.0), ("f16", 1.0)),
        bytes_per_second=(each, each, each),
        l3_bandwidth=shared_bandwidth,
        memory_bandwidth=memory_bandwidth,
        core_bandwidth=memory_bandwidth / 40,
        launch_seconds=1e-6,
        special_seconds=(),
    )


CARDS: dict[str, GpuTarget] = {"h100": _card("H100", 2.9e12), "h200": _card("H200", 4.3e12)}
"""Cards that programs can be compiled for without one, by name. Bandwidths (bytes a second) are of copies: that of the
H100 is measured (docs/gpu.md), that of the H200 estimated."""


def card(name: str) -> GpuTarget:
    """Return the card of a name. Raises ArgumentError."""
    if name.lower() not in CARDS:
        raise ArgumentError(f"no card {name!r} is known; there are {', '.join(CARDS)}")
    return CARDS[name.lower()]
