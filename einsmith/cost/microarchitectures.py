"""Tabulate the throughput of one core by microarchitecture, for machines that are not calibrated.

Port widths are public: Agner Fog's microarchitecture manual, uops.info, and the vendors' optimization guides (AMD
56305, 56665, 57647 and 58455; Intel 248966; Arm's of Neoverse N1, V1, N2 and V2). Bandwidths of the memory levels are
below their widths: those of Zen 4, and its clock, are measured by the probes of `tuning.calibration.calibrate` on an
EPYC; the others have not been measured and are round guesses from widths and clocks, which calibration replaces.
"""

from __future__ import annotations

from typing import NamedTuple


class Core(NamedTuple):
    """The throughput of one core.

    Attributes:
        clock: cycles per second while all cores compute with their widest vectors.
        fma_bytes: bytes of vectors multiplied and added per cycle.
        load_bytes: bytes of vectors loaded from L1 per cycle.
        store_bytes: bytes of vectors stored to L1 per cycle.
        l1: bytes read and written per cycle at that level; `l2` and `l3` likewise (L3: while one core is active).
        gather_cycles: cycles per gathered element.
        memory: bytes per second of memory bandwidth that one core can use.
    """

    clock: float
    fma_bytes: int
    load_bytes: int
    store_bytes: int
    l1: float
    l2: float
    l3: float
    gather_cycles: float = 1.5
    memory: float = 2e10


_ZEN_2 = Core(3.4e9, 64, 64, 32, 72, 24, 20, 2.0, 2.2e10)
_ZEN_4 = Core(3.5e9, 64, 64, 32, 80, 26, 26, 1.5, 2.5e10)
_ZEN_5 = Core(3.8e9, 128, 128, 64, 150, 48, 28, 1.5, 3.5e10)
_HASWELL = Core(3.2e9, 64, 64, 32, 72, 25, 10, 1.5, 1.6e10)
_SKYLAKE = Core(3.6e9, 64, 64, 32, 80, 30, 12, 0.8, 2e10)
_ALDER_LAKE = Core(4.5e9, 64, 96, 64, 110, 40, 12, 0.8, 3e10)
_SKYLAKE_X = Core(2.6e9, 128, 128, 64, 140, 40, 6, 0.8, 1.3e10)
_ICE_LAKE = Core(2.8e9, 128, 128, 64, 150, 45, 7, 0.8, 1.4e10)
_ICE_LAKE_CLIENT = Core(3.5e9, 64, 128, 64, 150, 45, 12, 0.8, 2e10)
_SAPPHIRE_RAPIDS = Core(2.8e9, 128, 128, 64, 150, 45, 6, 0.8, 1.3e10)
_NEOVERSE_N1 = Core(2.8e9, 32, 32, 32, 40, 18, 9, 2.0, 1.6e10)
_NEOVERSE_V1 = Core(2.6e9, 64, 48, 32, 60, 25, 10, 2.0, 2.5e10)
_WASM = Core(3.0e9, 16, 32, 16, 24, 12, 6, memory=1e10)
"""What a compiler of WebAssembly makes of vectors of four floats: a multiplication and an addition, no gathers."""
_APPLE = Core(3.2e9, 64, 48, 32, 64, 32, 20, 2.0, 6e10)

CORES: dict[str, Core] = {
    **dict.fromkeys(("znver2", "znver3"), _ZEN_2),
    "znver4": _ZEN_4,  # multiplies 64 bytes as 2 x 32
    "znver5": _ZEN_5,
    **dict.fromkeys(("haswell", "broadwell"), _HASWELL),
    "skylake": _SKYLAKE,
    **dict.fromkeys(("alderlake", "raptorlake", "meteorlake", "arrowlake", "arrowlake-s", "lunarlake"), _ALDER_LAKE),
    **dict.fromkeys(("skylake-avx512", "cascadelake", "cooperlake"), _SKYLAKE_X),
    "icelake-server": _ICE_LAKE,
    **dict.fromkeys(("icelake-client", "rocketlake", "tigerlake"), _ICE_LAKE_CLIENT),
    **dict.fromkeys(("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d"), _SAPPHIRE_RAPIDS),
    **dict.fromkeys(("neoverse-n1", "cortex-a76"), _NEOVERSE_N1),
    "neoverse-n2": _NEOVERSE_N1._replace(clock=3e9, load_bytes=48, l1=56),
    **dict.fromkeys(("neoverse-v1", "neoverse-v2", "neoverse-512tvb"), _NEOVERSE_V1),
    "wasm": _WASM,
    **dict.fromkeys(("apple-m1", "apple-m2", "apple-m3", "apple-m4"), _APPLE),
}
"""Cores by LLVM's processor names."""


WASM_TRIPLE = "wasm32-unknown-unknown"
VECTORS = {"sse": (16, 16), "avx2": (32, 16), "avx512": (64, 32), "neon": (16, 32), "wasm": (16, 16)}
"""Bytes of a vector register, and the number of these registers, by instruction set."""


def core(name: str, vector_bytes: int, registers: int) -> Core:
    """Return the core of an LLVM processor name; for an unknown name, a common core with this vector width (bytes)."""
    if name in CORES:
        return CORES[name]
    if vector_bytes == 64:
        return _SKYLAKE_X
    if vector_bytes == 32:
        return _HASWELL
    # AArch64, and SSE, whose processors have no multiply-add: one multiplication and one addition in a cycle.
    return _NEOVERSE_N1 if registers == 32 else Core(3e9, 16, 16, 16, 24, 12, 6, memory=1e10)
