"""Describe the processors that libraries are compiled for, and the features that a library checks when it starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from einsmith.base.errors import ArgumentError, CompileError
from einsmith.cost.facts import Target, of_instruction_set
from einsmith.cost.microarchitectures import VECTORS, WASM_TRIPLE


class Feature(NamedTuple):
    """A feature that a processor may lack, and where the processor reports it.

    On x86-64: the CPUID leaf and subleaf, the register (place: 0 to 3 for EAX, EBX, ECX, EDX) and the bit. Where place
    is 4, leaf holds bits of XCR0: register sets that the system has to save. On AArch64: the key of the auxiliary
    vector (leaf) and the bit."""

    name: str
    leaf: int
    subleaf: int
    place: int
    bit: int


def _table(rows: dict[tuple[int, int, int], str]) -> dict[str, Feature]:
    return {
        name: Feature(name, *at, int(bit))
        for at, text in rows.items()
        for name, _, bit in (word.partition(":") for word in text.split())
    }


_EAX, _EBX, _ECX, _EDX, _SAVED = range(5)
_X86 = _table(
    {
        (1, 0, _ECX): "sse3:0 pclmul:1 ssse3:9 fma:12 cx16:13 sse4.1:19 sse4.2:20 crc32:20 movbe:22 popcnt:23 aes:25 "
        "avx:28 f16c:29",
        (7, 0, _EBX): "bmi:3 avx2:5 bmi2:8 avx512f:16 avx512dq:17 adx:19 avx512ifma:21 avx512cd:28 sha:29 avx512bw:30 "
        "avx512vl:31",
        (7, 0, _ECX): "avx512vbmi:1 avx512vbmi2:6 gfni:8 vaes:9 vpclmulqdq:10 avx512vnni:11 avx512bitalg:12 "
        "avx512vpopcntdq:14",
        (7, 0, _EDX): "avx512vp2intersect:8 avx512fp16:23",
        (7, 1, _EAX): "sha512:0 sm3:1 sm4:2 avxvnni:4 avx512bf16:5 avxifma:23",
        (7, 1, _EDX): "avxvnniint8:4 avxneconvert:5 avxvnniint16:10",
        (0x80000001, 0, _ECX): "sahf:0 lzcnt:5 sse4a:6 prfchw:8 xop:11 fma4:16 tbm:21",
    }
)
_AT_HWCAP, _AT_HWCAP2 = 16, 26
_AARCH64 = _table(
    {
        (
            _AT_HWCAP,
            0,
            0,
        ): "fp-armv8:0 neon:1 aes:3 sha2:6 crc:7 lse:8 fullfp16:10 rdm:12 jsconv:13 complxnum:14 rcpc:15 "
        "ccpp:16 sha3:17 sm4:19 dotprod:20 sve:22 fp16fml:23 dit:24 lse2:25 rcpc-immo:26 flagm:27 "
        "ssbs:28 sb:29 pauth:30",
        (_AT_HWCAP2, 0, 0): "ccdp:0 sve2:1 sve-aes:2 sve-bitperm:4 sve-sha3:5 sve-sm4:6 altnzcv:7 fptoint:8 i8mm:13 "
        "bf16:14 rand:16 bti:17 mte:18",
    }
)
_UNUSED = frozenset(
    "64bit cmov cx8 fxsr mmx sse sse2 x87 clflushopt clwb clzero fsgsbase invpcid mwaitx pku rdpid rdpru rdrnd rdseed "
    "rtm shstk wbnoinvd xsave xsavec xsaveopt xsaves cldemote enqcmd hreset kl movdir64b movdiri pconfig prefetchi "
    "ptwrite serialize sgx tsxldtrk uintr usermsr waitpkg widekl cmpccxadd raoint lwp "
    "amx-bf16 amx-complex amx-fp16 amx-fp8 amx-int8 amx-movrs amx-tf32 amx-tile amx-avx512 perfmon".split()
)
"""Features that need no check: the code generator never chooses them by itself, or every processor has them."""

_LEVELS = {
    "x86-64": "",
    "x86-64-v2": "cx16 popcnt sahf sse3 ssse3 sse4.1 sse4.2 crc32",
    "x86-64-v3": "avx avx2 bmi bmi2 f16c fma lzcnt movbe",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}
"""Features of each level of x86-64 that the level before lacks."""
_SETS = dict(zip(_LEVELS, ("sse", "sse", "avx2", "avx512"), strict=True))
"""Instruction set of each level's vectors (`microarchitectures.VECTORS`)."""
_AVX = Feature("a system that saves the registers of AVX", 0x6, 0, _SAVED, 0)
_AVX512 = Feature("a system that saves the registers of AVX-512", 0xE6, 0, _SAVED, 0)
_WASM_2 = "bulk-memory mutable-globals nontrapping-fptoint sign-ext simd128"
_WASM_FEATURES = {"wasm": _WASM_2, "wasm-relaxed": f"{_WASM_2} relaxed-simd"}
"""What a module may use: of WebAssembly 2.0, which all browsers since 2023 have, or of 3.0, whose multiply-add rounds
once or twice as the processor likes."""
NAMES = ("host", *_LEVELS, "aarch64", *_WASM_FEATURES)


@dataclass(frozen=True)
class Processor:
    """The processor that a library is compiled for. target: None for this machine with all of its features."""

    target: Target | None
    cpu: str
    triple: str
    features: tuple[Feature, ...]

    @property
    def arch(self) -> str:
        """The architecture, the first part of the target triple."""
        return self.triple.split("-")[0]

    @property
    def is_wasm(self) -> bool:
        """Whether the processor is WebAssembly's virtual machine, which has no threads and files."""
        return self.triple == WASM_TRIPLE


def find_processor(name: str, threads: int) -> Processor:
    """Return the processor of a target's name other than "host". Raises ArgumentError for an unknown name."""
    if name in _WASM_FEATURES:
        features = ",".join(f"+{f}" for f in _WASM_FEATURES[name].split())
        return Processor(replace(of_instruction_set("wasm"), features=features), "generic", WASM_TRIPLE, ())
    if name == "aarch64":
        triple, table, wanted, vectors = "aarch64-unknown-linux-gnu", _AARCH64, ["fp-armv8", "neon"], VECTORS["neon"]
        cpu = "generic"
    elif name in _LEVELS:
        levels = list(_LEVELS)
        wanted = " ".join(_LEVELS[x] for x in levels[: levels.index(name) + 1]).split()
        triple, table, vectors, cpu = "x86_64-unknown-linux-gnu", _X86, VECTORS[_SETS[name]], name
    else:
        raise ArgumentError(f"target={name!r} is not a target for exports; choose one of {', '.join(NAMES)}")
    target = Target(
        cpu=cpu, features="", triple=triple, vector_bytes=vectors[0], vector_registers=vectors[1], cores=threads
    )
    return Processor(target, cpu, triple, _features(table, wanted))


def of_target(target: Target) -> Processor:
    """Return the processor of this machine's target, with the features that a library can check.

    Raises CompileError for a system or family of processors that a library cannot query."""
    arch = target.triple.split("-")[0]
    table = {"x86_64": _X86, "aarch64": _AARCH64, "arm64": _AARCH64}.get(arch)
    if table is None or "linux" not in target.triple:
        raise CompileError(f"a library cannot be exported for {target.triple}; choose a target: {', '.join(NAMES[1:])}")
    has = [f[1:] for f in target.features.split(",") if f.startswith("+")]
    unknown = [f for f in has if f not in table and f not in _UNUSED]
    lowered = None
    if unknown and table is _X86:  # code is compiled without features that cannot be checked
        lowered = replace(target, features=",".join([target.features, *(f"-{f}" for f in unknown)]))
    if target.tiles:  # the program that calls a library may not have asked the system for tile registers
        lowered = replace(lowered or target, tiles=())
    return Processor(lowered, target.cpu, target.triple, _features(table, has))


def _features(table: Mapping[str, Feature], names: Iterable[str]) -> tuple[Feature, ...]:
    """Select the named features of a table, and add the register sets that the system has to save for them."""
    features = tuple(table[n] for n in names if n in table)
    wide = {f.name for f in features}
    return (*features, *([_AVX512] if "avx512f" in wide else [_AVX] if "avx" in wide else []))
