"""Describe graphics cards as data: the facts and coefficients by which kernels for them are configured and priced."""

from __future__ import annotations

from dataclasses import dataclass

from einsmith.base.errors import ArgumentError
from einsmith.cost.facts import Target

CUDA = "cuda"
"""Name of NVIDIA's cards; that of the first card is "cuda:0"."""


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
        rates: products a second, as multiply-adds counted twice, by precision of a dot (`tiles.ir.PRECISIONS`), on all
            multiprocessors
        precision: how dots of float32 round their operands
        launch_gap: seconds from the end of a launch in a graph to the beginning of one that waits for it
    """

    device: str = f"{CUDA}:0"
    card: str = "H100"
    capability: tuple[int, int] = (9, 0)
    shared: int = 227 << 10
    registers: int = 65536
    resident: int = 2048
    clock: float = 1.7e9
    rates: tuple[tuple[str, float], ...] = (
        ("ieee", 50e12),
        ("tf32x3", 125e12),
        ("tf32", 370e12),
        ("bf16x3", 210e12),
        ("bf16", 700e12),
    )
    precision: str = "tf32x3"
    launch_gap: float = 2e-6

    __hash__ = Target.__hash__

    @property
    def backend(self) -> str:  # type: ignore[override]
        """The name of its back end."""
        return self.device

    @property
    def multiprocessors(self) -> int:
        """How many multiprocessors the card has."""
        return self.cores

    def rate(self, precision: str) -> float:
        """Return the products a second of dots of a precision, as multiply-adds counted twice."""
        return dict(self.rates)[precision]


def _card(name: str, memory_bandwidth: float) -> GpuTarget:
    return GpuTarget(
        cpu=name,
        card=name,
        vector_bytes=128,
        vector_registers=255,
        l1=256 << 10,
        l2=(50 << 20) // 132,
        l3=50 << 20,
        cores=132,
        fma_per_second=25e12 / 132,
        bytes_per_second=(2e11, 4e10, 4e10),
        l3_bandwidth=5.5e12,
        memory_bandwidth=memory_bandwidth,
        core_bandwidth=memory_bandwidth / 40,
        launch_seconds=2e-6,
        special_seconds=(),
    )


CARDS: dict[str, GpuTarget] = {"h100": _card("H100", 2.8e12), "h200": _card("H200", 4.3e12)}
"""Cards that programs can be compiled for without one, by name. Bandwidths (bytes a second) are of copies."""


def card(name: str) -> GpuTarget:
    """Return the card of a name. Raises ArgumentError."""
    if name.lower() not in CARDS:
        raise ArgumentError(f"no card {name!r} is known; there are {', '.join(CARDS)}")
    return CARDS[name.lower()]
