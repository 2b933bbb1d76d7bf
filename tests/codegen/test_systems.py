"""Code for other operating systems: it refers only to functions that are there. No such system runs it here, except
that the functions for Windows are called with a simulation of what they call."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from einsmith.base.errors import CompileError
from einsmith.codegen.entry import entry_program, watch
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from einsmith.tuning.kernels.decisions import lower_choice
from tests.codegen import native_texts, object_symbols
from tests.kernels.samples import product

POSIX = {"clock_gettime", "sched_yield", "read", "write", "poll", "pthread_self"}
WINDOWS = {
    "QueryPerformanceCounter", "QueryPerformanceFrequency", "GetTickCount64", "GetCurrentThreadId", "SwitchToThread",
    "Sleep", "WaitOnAddress", "WakeByAddressAll", "PeekNamedPipe", "_get_osfhandle", "_write", "_read",
}  # fmt: skip
"""Functions of kernel32 and KernelBase, and those of the C runtime, under the names that its library exports."""
REFERENCES = {
    "x86_64-unknown-linux-gnu": POSIX | {"syscall", "sched_getcpu", "sched_getaffinity", "sched_setaffinity"},
    "aarch64-unknown-linux-gnu": POSIX | {"syscall", "sched_getcpu", "sched_getaffinity", "sched_setaffinity"},
    "arm64-apple-darwin23.0.0": {f"_{name}" for name in POSIX | {"nanosleep"}},
    "x86_64-apple-macosx13.0.0": {f"_{name}" for name in POSIX | {"nanosleep"}},
    "x86_64-pc-windows-msvc": WINDOWS,
    "aarch64-pc-windows-msvc": WINDOWS,
    "x86_64-unknown-freebsd": POSIX | {"nanosleep"},
}
RUNTIME = {"memcpy", "memset", "memmove", "_fltused", "__chkstk"}
"""What compilers' code refers to on any system: functions of the C library, and on Windows a mark of floating point,
which `jit` provides, and the check of large stacks, of ntdll."""


def target_of(triple: str) -> Target:
    arch = triple.split("-")[0]
    registers = 16 if arch == "x86_64" else 32
    return Target(cpu="generic", features="", triple=triple, vector_bytes=16, vector_registers=registers, cores=2)


@pytest.mark.parametrize("triple", REFERENCES)
def test_the_entry_refers_to_what_is_there(triple) -> None:
    code = jit.emit_object(entry_program.emit_entry(triple, own=True), target_of(triple))
    assert object_symbols.undefined(code) == REFERENCES[triple]


@pytest.mark.parametrize("triple", REFERENCES)
def test_kernels_call_no_system(triple) -> None:
    target, found = target_of(triple), set()
    for x in lower_choice(autoconfig.choose(product(17, 31, 40), target)).launches:
        found |= object_symbols.undefined(jit.emit_object(emit_module([x.function], target), target))
    prefix = "_" * ("apple" in triple)
    assert found <= {prefix + name for name in RUNTIME | {entry_program.LOOK}}
    assert ("_fltused" in found) == (triple == "x86_64-pc-windows-msvc") and "_fltused" in jit._provided


@pytest.mark.parametrize("triple", REFERENCES)
def test_the_handler_of_signals_calls_python_alone(triple) -> None:
    found = object_symbols.undefined(jit.emit_object(watch.HANDLER, target_of(triple)))
    assert {name.lstrip("_").split("_")[0] for name in found} == {"PyGILState", "PyErr", "einsmith"}


@pytest.mark.parametrize("name", native_texts.SYSTEMS)
def test_the_texts_are_what_the_c_gives(name) -> None:
    pytest.importorskip("ziglang", reason="the compiler that makes the texts is not installed")
    assert (entry_program.TEXTS / f"{name}.ll").read_text() == native_texts.make_text(name), "run make native"


def test_each_text_has_a_system() -> None:
    assert {path.stem for path in entry_program.TEXTS.iterdir()} == set(native_texts.SYSTEMS)
    with pytest.raises(CompileError, match="programs do not run on sparc64-sun-solaris: .*x86_64-linux"):
        entry_program.emit_entry("sparc64-sun-solaris")


def test_words_of_one_library_are_its_own() -> None:
    for triple in ("x86_64-unknown-linux-gnu", "wasm32-unknown-unknown"):
        shared, own = (entry_program.emit_entry(triple, own) for own in (False, True))
        assert (
            f"@{entry_program.WATCH} = external global" in shared and f"@{entry_program.WATCH} = internal global" in own
        )


@pytest.mark.parametrize(
    "name,numbers", [("aarch64-macos", {6, 5}), ("x86_64-linux", {1, 6}), ("x86_64-freebsd", {4, 12})]
)
def test_the_clocks_of_systems(name, numbers) -> None:
    """Numbers of time.h: CLOCK_MONOTONIC, and CLOCK_MONOTONIC_RAW_APPROX, CLOCK_MONOTONIC_COARSE or
    CLOCK_MONOTONIC_FAST."""
    text = (entry_program.TEXTS / f"{name}.ll").read_text()
    assert set(map(int, re.findall(r"@clock_gettime\(i32 (\d+)", text))) == numbers


class Simulated:
    """What the functions for Windows call, on this system."""

    def __init__(self) -> None:
        self.ticks = (1 << 40) * 10_000_000 + 1_234_567
        """Of a clock of 10 MHz that has run for thousands of years: no product may overflow."""
        self.milliseconds = 5_000
        self.slept = 0
        self.pipe = os.pipe()
        self.is_closed = False
        self.waits: list[tuple[int, int, int]] = []
        self.woken: list[int] = []
        i32, i64, pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
        self.functions = {
            "QueryPerformanceCounter": ctypes.CFUNCTYPE(i32, pointer)(lambda at: self.put(at, self.ticks)),
            "QueryPerformanceFrequency": ctypes.CFUNCTYPE(i32, pointer)(lambda at: self.put(at, 10_000_000)),
            "GetTickCount64": ctypes.CFUNCTYPE(i64)(lambda: self.milliseconds),
            "GetCurrentThreadId": ctypes.CFUNCTYPE(i32)(lambda: threading.get_ident() & 0x7FFFFFFF),
            "SwitchToThread": ctypes.CFUNCTYPE(i32)(lambda: 1),
            "Sleep": ctypes.CFUNCTYPE(None, i32)(self.sleep),
            "WaitOnAddress": ctypes.CFUNCTYPE(i32, pointer, pointer, i64, i32)(self.wait),
            "WakeByAddressAll": ctypes.CFUNCTYPE(None, pointer)(self.woken.append),
            "PeekNamedPipe": ctypes.CFUNCTYPE(i32, i64, pointer, i32, pointer, pointer, pointer)(self.peek),
            "_get_osfhandle": ctypes.CFUNCTYPE(i64, i32)(lambda descriptor: 1000 + descriptor),
            "_write": ctypes.CFUNCTYPE(i32, i32, pointer, i32)(
                lambda descriptor, at, count: os.write(descriptor, ctypes.string_at(at, count))
            ),
            "_read": ctypes.CFUNCTYPE(i32, i32, pointer, i32)(self.read),
        }

    def put(self, at: int, value: int) -> int:
        ctypes.c_int64.from_address(at).value = value
        return 1

    def sleep(self, milliseconds: int) -> None:
        self.milliseconds += milliseconds
        self.slept += milliseconds
        if self.slept == 7:
            os.write(self.pipe[1], b"x")

    def wait(self, at: int, same: int, count: int, limit: int) -> int:
        self.waits.append((at, int.from_bytes(ctypes.string_at(same, count), "little"), limit))
        return 1

    def peek(self, handle: int, buffer: int, size: int, got: int, count: int, left: int) -> int:
        assert handle == 1000 + self.pipe[0] and not buffer and not size and not got and not left
        ctypes.c_uint32.from_address(count).value = int(self.slept >= 7)
        return int(not self.is_closed)

    def read(self, descriptor: int, at: int, count: int) -> int:
        data = os.read(descriptor, count)
        ctypes.memmove(at, data, len(data))
        return len(data)


I32, I64, AT = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
WRAPPERS = {
    "now": (I64,), "roughly_now": (I64,), "thread_id": (I64,), "yield": (None,), "wake": (None, AT),
    "write_byte": (None, I32, AT), "read_byte": (None, I32, AT), "await_byte": (I32, I32, I32),
    "park": (None, AT, I32), "park_for": (None, AT, I32, I64),
}  # fmt: skip
"""Functions of system.c: what each returns, and its arguments."""


@pytest.fixture(scope="module")
def windows(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """The functions of system.c for Windows, compiled for this machine, on a simulation (`simulated`)."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    simulated, folder = Simulated(), tmp_path_factory.mktemp("windows")
    lines = ["#define _WIN32 1", "#include <stdint.h>", "#define static", '#include "system.c"']
    for name in simulated.functions:  # a call of Windows jumps to the address that its variable has
        lines.insert(2, f"#define {name} (*at_{name})")
    (folder / "windows.c").write_text("\n".join(lines) + "\n")
    library = folder / "windows.so"
    command = [compiler, "-std=c11", "-shared", "-fPIC", "-O1", f"-I{entry_program.HERE}", folder / "windows.c"]
    subprocess.run([*command, "-o", library], check=True, capture_output=True)
    code = ctypes.CDLL(str(library))
    for name, f in simulated.functions.items():
        ctypes.c_void_p.in_dll(code, f"at_{name}").value = ctypes.cast(f, ctypes.c_void_p).value
    functions: dict[str, Callable] = {}
    for name, (result, *arguments) in WRAPPERS.items():
        functions[name] = ctypes.CFUNCTYPE(result, *arguments)((name, code))
    yield SimpleNamespace(simulated=simulated, **functions)
    for descriptor in simulated.pipe:
        os.close(descriptor)


def test_the_clock_of_windows_does_not_overflow(windows) -> None:
    seconds, rest = divmod(windows.simulated.ticks, 10_000_000)
    wrapped = (seconds * 10**9 + rest * 100 + (1 << 63)) % (1 << 64) - (1 << 63)  # the words are of 64 bits
    assert windows.now() == wrapped
    before = windows.now()
    windows.simulated.ticks += 3
    assert windows.now() - before == 300
    assert windows.roughly_now() == windows.simulated.milliseconds * 1_000_000


def test_threads_of_windows_are_told_apart(windows) -> None:
    getattr(windows, "yield")()
    others: list[int] = []
    other = threading.Thread(target=lambda: others.append(windows.thread_id()))
    other.start()
    other.join()
    assert windows.thread_id() == windows.thread_id() != others[0]


def test_waiting_for_a_word_on_windows(windows) -> None:
    word = ctypes.c_uint32(3)
    at = ctypes.addressof(word)
    windows.park(at, 3)
    windows.park_for(at, 4, 50_000_000)
    windows.wake(at)
    assert windows.simulated.waits == [(at, 3, -1), (at, 4, 51)] and windows.simulated.woken == [at]


def test_waiting_for_a_pipe_on_windows(windows) -> None:
    simulated, byte = windows.simulated, ctypes.create_string_buffer(b"y")
    reader, writer = simulated.pipe
    assert windows.await_byte(reader, 5) == 0 and simulated.slept == 5
    assert windows.await_byte(reader, 5) == 1 and simulated.slept == 7
    windows.read_byte(reader, byte)
    assert byte.raw[:1] == b"x"
    windows.write_byte(writer, ctypes.create_string_buffer(b"z"))
    assert os.read(reader, 1) == b"z"
    simulated.is_closed = True
    assert windows.await_byte(reader, 5) == 1 and simulated.slept == 7, "to read tells that it is closed"
