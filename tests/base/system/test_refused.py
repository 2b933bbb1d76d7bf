"""What Windows and other systems lack is refused with a reason, and code that can do without does."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

from einsmith.base import servers, workers
from einsmith.base.errors import CheckError, EinsmithWarning, GroupError
from einsmith.checking import guarded, trap
from einsmith.checking.guarded import Guarded, GuardedBlock
from einsmith.cli import main
from einsmith.codegen.cache import build
from einsmith.codegen.llvm import jit
from einsmith.distributed.launch import init
from einsmith.training.compiler import ProgramSearch
from einsmith.training.exchanges import Exchanges
from einsmith.training.settings import TuningSettings
from tests.base.system import systems
from tests.codegen import object_symbols


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    systems.windows(monkeypatch)


def test_other_processes(windows: None) -> None:
    with workers.Worker("no.such.module:Server") as worker, pytest.raises(workers.Failed, match="on Linux or macOS"):
        worker.ask("anything")
    assert not worker.starts


def test_kernels_are_compiled_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.processors, "allowed", lambda: [0, 1, 2, 3])
    assert build.count_workers(100) == 3
    systems.windows(monkeypatch)
    assert build.count_workers(100) == 0


@pytest.mark.parametrize(("mode", "tune"), [("dynamic", 0), ("static", 60)])
def test_programs_are_not_tuned(monkeypatch: pytest.MonkeyPatch, mode: str, tune: int) -> None:
    search = ProgramSearch(TuningSettings(mode, tune))
    assert search.can_tune()
    systems.windows(monkeypatch)
    with pytest.warns(EinsmithWarning, match="not tuned on Windows"):
        assert not search.can_tune()


def test_steps_over_several_processes(windows: None) -> None:
    with pytest.raises(GroupError, match="use Linux or macOS"):
        Exchanges(init())


def test_comparisons_with_other_libraries(windows: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["bench", "mlp3"]) == 1
    assert "Windows waits for no process with a time limit" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["win32", "sunos5"])
def test_guarded_pages(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "platform", name)
    monkeypatch.delattr(guarded.mmap, "MAP_PRIVATE")
    with pytest.raises(CheckError, match="only Linux and macOS"):
        Guarded([GuardedBlock("a", 8)], before=False)
    with pytest.raises(CheckError, match="only Linux and macOS"), trap.trap_accesses(0, 1):
        pass


@pytest.mark.parametrize("name", ["win32", "darwin"])
def test_the_end_of_a_parent_is_told_on_linux_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "platform", name)
    monkeypatch.setattr(ctypes, "CDLL", None)
    servers.end_with(1)  # the input's end tells it there


@pytest.mark.parametrize("triple", ["arm64-apple-darwin23.0.0", "x86_64-apple-darwin"])
def test_the_handler_of_macos(triple: str) -> None:
    """It compiles, and refers to what is there."""
    text = trap.emit_helpers(triple, trap.MACOS, 16384)
    code = jit.emit_object(text, SimpleNamespace(cpu="generic", features="", triple=triple))
    assert object_symbols.undefined(code) - {"_memset", "_bzero"} == {
        "_mprotect",
        "_sigaction",
        "_einsmith_fp_enter",
        "_einsmith_fp_leave",
    }


def test_the_handler_reads_macos_structures(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a simulation of sigaction(2), called with a signal's description as macOS lays it out."""
    page = trap.mmap.PAGESIZE
    memory = trap.mmap.mmap(-1, 2 * page)
    low = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    target = trap.native.host_target()
    addresses = trap.native.compile_text(
        trap.emit_helpers(target.triple, trap.MACOS, page), trap.NAMES, target
    ).addresses
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(addresses["einsmith_trap"])
    state = ctypes.CFUNCTYPE(ctypes.c_void_p)(addresses["einsmith_trap_state"])()
    words = (ctypes.c_uint64 * 32).from_address(state)
    helpers = trap.TrapHelpers(lambda *_: None, addresses["einsmith_trap"], words, addresses)
    calls: list[tuple[int, bytes | None]] = []

    def sigaction(signal: int, action: object, old: object) -> int:
        calls.append((signal, action.raw if isinstance(action, ctypes.Array) else None))
        return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(trap, "_native", lambda: helpers)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: type("Library", (), {"sigaction": staticmethod(sigaction)}))
    with trap.trap_accesses(low, low + 2 * page) as first:
        assert first() == 0
        handler(10, (b"\0" * 24 + (low + page + 5).to_bytes(8, "little")).ljust(104, b"\0"), None)
        assert first() == low + page + 5
    wanted = addresses["einsmith_trap"].to_bytes(8, "little") + bytes(4) + (0x51).to_bytes(4, "little")
    assert calls == [(11, wanted), (10, wanted), (11, None), (10, None)]
