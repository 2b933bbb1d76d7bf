"""Machine code for GPUs, made without one: what its instructions are, the cache, and what is said of failures."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from einsmith.base import workers
from einsmith.base.errors import CompileError, DeviceError
from einsmith.codegen.cache import objects
from einsmith.gpu.tiles.lower import lower
from einsmith.gpu.tiles.pieces import Tiling
from einsmith.gpu.tiles.triton_text import signature, triton_text
from einsmith.gpu.triton import compile_triton as triton_compile
from einsmith.gpu.triton.binary import Binary, TritonSource
from einsmith.gpu.triton.compile_triton import VERSION, compile_sources, missing
from einsmith.schedule.kernel import Kernel
from tests.codegen.sass import bits, count, disassemble, main_loop, parse, spills
from tests.kernels import samples as s

ROOT = Path(__file__).resolve().parents[2]
needs_triton = pytest.mark.skipif(missing() is not None, reason=str(missing()))
HOPPER, AMPERE = (9, 0), (8, 0)
HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "objects"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that workers have been asked for, in some order."""
    names: list[str] = []
    ask = workers.Worker.ask

    def noted(self: workers.Worker, request: str, *arguments: Any, **more: Any) -> Any:
        names.append(arguments[1])
        return ask(self, request, *arguments, **more)

    monkeypatch.setattr(workers.Worker, "ask", noted)
    return names


def sources(kernel: Kernel, tiling: Tiling, warps: int = 8, stages: int = 3, shift: int = 0) -> list[TritonSource]:
    """The launches of a contraction, whose buffers lie at multiples of 1024 bytes, all moved by `shift`."""
    functions = [x.function for x in lower(kernel, tiling, "contraction").launches]
    launches = [[1024 * n + shift for n in range(len(kernel.buffers) + 1)]]
    return [TritonSource(triton_text([f]), f.name, tuple(signature(f, launches)), warps, stages) for f in functions]


def copy(name: str = "copy", by: int = 1, warps: int = 4) -> TritonSource:
    """A small kernel that Triton takes."""
    body = f"    at = tl.arange(0, 128)\n    tl.store(p1 + at, tl.load(p0 + at) + {by})\n"
    return TritonSource(f"{HEAD}def {name}(p0, p1):\n{body}", name, ("*i32:16", "*i32:16"), warps, 1)


def refused(line: str) -> TritonSource:
    return TritonSource(f"{HEAD}def wrong(p0):\n    {line}\n", "wrong", ("*fp32",), 4, 1)


# ---------------------------------------------------------------------------------------------- what code consists of

SQUARE = Tiling(128, 128, 32, precision="tf32")
HALF = Tiling(128, 128, 32, precision="bf16")
CASES: dict[str, tuple[Kernel, Tiling]] = {
    "rows by rows": (s.product(512, 512, 512, "NT"), SQUARE),
    "rows by columns": (s.product(512, 512, 512, "NN"), HALF),
    "columns by rows, split": (s.product(128, 128, 4096, "TN"), Tiling(128, 128, 32, 4, "bf16")),
    "extents that tiles do not divide": (s.product(100, 100, 100, "NN"), Tiling(64, 64, 32, precision="tf32x3")),
    "a batch, then a bias and a maximum": (s.biased(s.batched(8, 64, 64, 64), 2), Tiling(64, 64, 32)),
}


@pytest.mark.thinned(2)
@needs_triton
@pytest.mark.parametrize("capability", [HOPPER, AMPERE], ids=["sm_90", "sm_80"])
def test_contractions_run_on_tensor_cores(capability: tuple[int, int], tmp_path: Path) -> None:
    """Their operands arrive by copies of 16 bytes, and nothing spills. Hopper's own instruction is in the code for it
    alone."""
    own, other = ("HGMMA", "HMMA") if capability == HOPPER else ("HMMA", "HGMMA")
    texts = [source for kernel, tiling in CASES.values() for source in sources(kernel, tiling)[:1]]
    for name, code in zip(CASES, compile_sources(texts, capability), strict=True):
        whole = disassemble(code.cubin, tmp_path)
        loop = main_loop(whole)
        assert count(loop, own) and not count(whole, other, "FFMA"), name
        assert bits(loop, "LDGSTS")[128], name
        assert not code.stack and not spills(whole), name
        assert bits(whole, "STG")[128] and count(whole, "BAR", "SYNCS", "LDGDEPBAR", "DEPBAR", "WARPGROUP"), name
        assert 0 < code.registers <= 255 and 0 < code.shared <= 227 << 10, name


@needs_triton
def test_operands_in_memory_order_are_copied_by_16_bytes_alone(tmp_path: Path) -> None:
    """Every copy of a turn has 16 bytes; where the pointers are not promised to be aligned, every one has 4."""
    kernel = s.product(512, 512, 512, "NT")
    for shift, width in ((0, 128), (4, 32)):
        (binary, *_) = compile_sources(sources(kernel, SQUARE, shift=shift), HOPPER)
        code = disassemble(binary.cubin, tmp_path)
        assert {*bits(code, "LDGSTS")} == {*bits(code, "STG")} == {width}


@pytest.mark.thinned(2)
@needs_triton
@pytest.mark.parametrize("capability", [HOPPER, AMPERE], ids=["sm_90", "sm_80"])
def test_the_main_loop_is_one_turn(capability: tuple[int, int], tmp_path: Path) -> None:
    """It is not unrolled, however few turns it has: its multiply-adds are those of a tile, three times of tf32x3."""
    kernel = s.product(256, 256, 256, "NT")
    texts = [sources(kernel, t)[0] for t in (SQUARE, HALF, Tiling(128, 64, 32, precision="tf32x3"))]
    loops = [main_loop(disassemble(c.cubin, tmp_path)) for c in compile_sources(texts, capability)]
    one, half, three = (sum(x.multiply_adds for x in loop) for loop in loops)
    assert one == half == 128 * 128 * 32 / 8 and three == 3 * 128 * 64 * 32 / 8
    assert max(map(len, loops[:2])) < 256


@needs_triton
def test_sums_that_may_be_computed_again_take_few_registers() -> None:
    """The loop that computes the sums of guarded products again, where one is NaN, must not take the registers of the
    main loop: two programs of 8 warps share 65536 registers."""
    kernel = s.conv(8, 64, 16, 16, 128, 3, 3, 1)
    (code,) = compile_sources(sources(kernel, SQUARE), HOPPER)
    assert code.registers <= 128 and not code.stack


@needs_triton
def test_tiles_that_are_too_large_spill(tmp_path: Path) -> None:
    """And it is seen: in the resources and in the instructions."""
    (code,) = compile_sources(sources(s.product(512, 512, 512), Tiling(64, 128, 16, precision="tf32"), warps=1), AMPERE)
    assert code.stack > 0 and spills(disassemble(code.cubin, tmp_path)) > 0


# ----------------------------------------------------------------------------------------------------- disassembly

LISTING = """
        .section        .text.k,"ax",@progbits
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/              @!P0 LDGSTS.E.BYPASS.LTC128B.128 [R7], desc[UR6][R16.64] ;
        /*0020*/                   LDG.E.U8.CONSTANT R2, desc[UR6][R2.64] ;
.L_x_2:
        /*0030*/                   HMMA.1688.F32.TF32 R24, R4, R8, R24 ;
        /*0040*/                   HMMA.16816.F32.BF16 R24, R4, R8, R24 ;
        /*0050*/                   STG.E.64 desc[UR6][R2.64], R4 ;
        /*0060*/             @!UP0 BRA `(.L_x_2) ;
        /*0070*/                   FFMA R0, R1, R2, R3 ;
        /*0080*/              @P1  BRA `(.L_x_1) ;
        /*0090*/                   STL [R1], R4 ;
        /*00a0*/                   EXIT ;
.L_x_3:
        /*00b0*/                   BRA `(.L_x_3);
        /*00c0*/                   NOP;
"""


def test_listings_are_counted() -> None:
    code = parse(LISTING)
    loop = main_loop(code)
    assert len(code) == 13 and spills(code) == 1
    assert bits(code, "LDGSTS") == {128: 1} and bits(code, "LDG") == {8: 1} and bits(code, "STG") == {64: 1}
    assert len(loop) == 4 and count(loop, "HMMA", "BRA") == 3
    assert sum(x.multiply_adds for x in loop) == 16 * 8 * (8 + 16)


# ------------------------------------------------------------------------------------------------------------- cache


@pytest.mark.slow
@needs_triton
def test_each_distinct_source_is_compiled_once(cache: Path, compiled: list[str]) -> None:
    a, b, more_warps = copy(by=1), copy(by=2), copy(by=1, warps=8)
    first = compile_sources([a, b, a, more_warps], HOPPER)
    assert len(compiled) == 3
    assert first[0] is first[2] and first[0].cubin != first[1].cubin
    assert [x.warps for x in first] == [4, 4, 4, 8] and all(isinstance(x, Binary) for x in first)
    assert compile_sources([more_warps, b, a], HOPPER) == [first[3], first[1], first[0]]
    assert len(compiled) == 3
    compile_sources([a], AMPERE)
    compile_sources([a._replace(signature=("*i32", "*i32:16"))], HOPPER)
    compile_sources([a._replace(stages=2)], HOPPER)
    assert len(compiled) == 6
    assert not compile_sources([], HOPPER)


@pytest.mark.thinned(3)
@needs_triton
@pytest.mark.parametrize("damage", [lambda x: x[:-1], lambda x: x[:200] + b"?" + x[201:], lambda x: b""])
def test_damaged_entries_are_compiled_again(cache: Path, compiled: list[str], damage: Callable[[bytes], bytes]) -> None:
    (first,) = compile_sources([copy()], HOPPER)
    (entry,) = cache.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    assert compile_sources([copy()], HOPPER) == [first] and len(compiled) == 2
    assert entry.read_bytes() == whole


def test_code_on_disk_needs_no_triton(cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code = Binary(b"code", "copy", 4, 0, 16, 0)
    triton_compile._write(triton_compile._key(copy(), HOPPER), code)
    monkeypatch.setattr(triton_compile, "missing", lambda: "there is no Triton")
    assert compile_sources([copy()], HOPPER) == [code] and not compiled
    assert objects.usage()[0] == 1


# ---------------------------------------------------------------------------------------------------------- failures


@pytest.mark.thinned(2)
@needs_triton
@pytest.mark.parametrize(
    "line, reason",
    [
        ("x = tl.arange(0, 3)", "arange's range must be a power of 2"),
        ("tl.store(p0, no_such_function())", "no_such_function is not defined"),
        ("tl.device_assert(p0)(", "'(' was never closed"),
        ('x = tl.inline_asm_elementwise("no code;", "=r", [], tl.int32, False, 1)\n    tl.store(p0, x)', "ptxas"),
    ],
)
def test_a_refused_kernel_is_named(cache: Path, line: str, reason: str) -> None:
    with pytest.raises(CompileError, match=rf"^Triton refuses the kernel wrong: [^\n]*{re.escape(reason)}[^\n]*$"):
        compile_sources([refused(line)], HOPPER)


@needs_triton
def test_other_kernels_stay_when_one_is_refused(cache: Path, compiled: list[str]) -> None:
    with pytest.raises(CompileError, match="wrong"):
        compile_sources([copy(), refused("foo()")], HOPPER)
    compiled.clear()
    compile_sources([copy()], HOPPER)
    assert not compiled


@needs_triton
def test_scratch_memory_is_refused(cache: Path) -> None:
    """Which Triton asks for where a kernel makes a descriptor of memory: nothing gives it any."""
    lines = "d = tl.make_tensor_descriptor(p0, [64, 64], [64, 1], [16, 16])\n    d.store([0, 0], d.load([16, 16]))"
    with pytest.raises(CompileError, match=r"the kernel wrong needs \d+ bytes of scratch memory"):
        compile_sources([refused(lines)], HOPPER)


@needs_triton
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_process_that_dies_is_replaced_once(cache: Path, monkeypatch: pytest.MonkeyPatch, deaths: int) -> None:
    ask, left = workers.Worker.ask, [None] * deaths

    def dying(self: workers.Worker, *arguments: Any) -> Any:
        if left:
            left.pop()
            assert self.process is not None
            os.kill(self.process.pid, signal.SIGKILL)
        return ask(self, *arguments)

    monkeypatch.setattr(workers.Worker, "ask", dying)
    if deaths == 1:
        assert compile_sources([copy()], HOPPER)[0].name == "copy"
    else:
        with pytest.raises(CompileError, match="the kernel copy in a process that was lost twice: .*SIGKILL"):
            compile_sources([copy()], HOPPER)


@needs_triton
def test_triton_that_cannot_be_imported(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('a library is missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DeviceError, match=r"a library is missing; run pip install 'einsmith\[gpu\]'"):
        compile_sources([copy()], HOPPER)


def _not_there(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


@pytest.mark.parametrize(
    "platform, version, reason",
    [
        ("linux", _not_there, "which is not installed; run pip install 'einsmith[gpu]'"),
        ("linux", lambda name: "2.1.0", f"{VERSION}, and 2.1.0 is installed; run pip install 'einsmith[gpu]'"),
        ("darwin", lambda name: VERSION, "runs on Linux and not on darwin"),
    ],
)
def test_missing_triton(
    cache: Path, monkeypatch: pytest.MonkeyPatch, platform: str, version: Callable[[str], str], reason: str
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(triton_compile.sys, "platform", platform)
    with pytest.raises(DeviceError, match=re.escape(reason)):
        compile_sources([copy()], HOPPER)


def test_the_extra_installs_the_version_that_compiles() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["gpu"] == [f"triton=={VERSION}; platform_system == 'Linux'"]


@needs_triton
def test_the_caller_does_not_import_triton(cache: Path, tmp_path: Path) -> None:
    """Nor do its variables reach the compiler: with this one, Triton would interpret kernels."""
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from tests.codegen.test_triton import HOPPER, compile_sources, copy\n"
        "print(compile_sources([copy()], HOPPER)[0].name, 'triton' in sys.modules)\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout == "copy False\n", done.stderr
    assert not (tmp_path / ".triton").exists()
