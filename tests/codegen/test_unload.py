"""Machine code is unloaded when nobody has an address of it, and shares memory maps with other code."""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einsmith.codegen.cache.native import compile_functions
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.elf import make_constants_executable
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Builder, Function
from einsmith.runtime.program import Program
from einsmith.runtime.steps import RunLaunch
from tests.caches import count_objects
from tests.codegen.test_llvm_ops import TARGET
from tests.codegen.test_native import called
from tests.threads import inside

MAPS = Path("/proc/self/maps")
needs_maps = pytest.mark.skipif(not MAPS.exists(), reason="needs /proc/self/maps")


def maps() -> list[tuple[int, int]]:
    """Where the process has memory."""
    found = [line.split()[0].split("-") for line in MAPS.read_text().splitlines()]
    return [(int(lo, 16), int(hi, 16)) for lo, hi in found]


def scaled(by: float) -> Function:
    """buffer[task] = by * buffer[task] + by, by a vector of constants: an object with code and constants."""
    b = Builder("scaled", 1)
    at = b.mul(b.task, b.const(4))
    factors = b.literal([by] * 4, "f32")
    b.store(b.add(b.mul(b.load(b.buffers[0], at, "f32", 4), factors), factors), b.buffers[0], at)
    return b.finish()


def call(address: int) -> float:
    return float(called(address, np.ones(4, np.float32)))


def loaded(by: float) -> jit.Address:
    return compile_functions([scaled(by)], TARGET)["scaled"]


@needs_maps
def test_code_goes_with_its_last_address(new_objects) -> None:
    address = loaded(0.5)
    also = compile_functions([scaled(0.5)], TARGET)["scaled"]
    assert also == address and call(address) == 1.0
    place = int(address)
    del address
    gc.collect(), jit.unload()
    assert any(lo <= place < hi for lo, hi in maps()) and call(also) == 1.0
    known = count_objects()
    del also
    assert count_objects() == known  # not in a finalizer
    jit.unload()
    assert count_objects() == known - 1


@needs_maps
def test_objects_share_maps_and_give_them_back(new_objects) -> None:
    code = [jit.emit_object(emit_module([scaled(n / 8)], TARGET), TARGET) for n in range(48)]
    gc.collect(), jit.unload()
    before = len(maps())
    held = [jit.load(c, ["scaled"]) for c in code]
    assert len(maps()) - before < len(held) // 2  # each alone takes one for code and one for constants
    assert [call(c.addresses()["scaled"]) for c in held] == [n / 4 for n in range(48)]
    del held
    jit.unload()
    assert len(maps()) - before < 4


def test_linkers_go_with_their_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    linkers: list[Any] = []
    make = jit.llvm.create_lljit_compiler
    monkeypatch.setattr(
        jit.llvm, "create_lljit_compiler", lambda *a, **k: (linkers.append(make(*a, **k)), linkers[-1])[1]
    )
    code = jit.emit_object(emit_module([scaled(3)], TARGET), TARGET)
    while not linkers:  # one that others have nothing of
        first = jit.load(code, ["scaled"])
    linker = linkers.pop()
    while len(linkers) < 2:
        jit.load(code, ["scaled"])
    assert call(first.addresses()["scaled"]) == 6 and not linker.closed
    del first
    jit.unload()
    assert sys.getrefcount(linker) == 2


def test_unloading_ends_before_other_threads_enter_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork waits for who is inside; a linker takes long to end."""
    ended: list[bool] = []

    class Part:
        def close(self) -> None:
            ended.append(threading.get_ident() in inside())

        def __del__(self) -> None:
            ended.append(threading.get_ident() in inside())

    monkeypatch.setattr(jit, "_loaded", {-1: (Part(), Part()), -2: (Part(), Part())})
    jit.Code({}, -1, 0, {}), jit.Code({}, -2, 0, {})
    jit.unload()
    assert len(ended) == 6 and all(ended)


def test_other_object_formats_are_left_alone() -> None:
    assert make_constants_executable(b"\xcf\xfa\xed\xfe" + bytes(60)) == b"\xcf\xfa\xed\xfe" + bytes(60)
    code = jit.emit_object(emit_module([scaled(3)], TARGET), TARGET)
    once = make_constants_executable(code)
    assert make_constants_executable(once) == once and len(once) == len(code)


def test_a_program_keeps_its_code_while_another_thread_runs_it() -> None:
    data = np.zeros(4 * 64, np.float32)
    program = Program([RunLaunch(loaded(0.25), 64, [data.ctypes.data])] * 200, 1)
    ended, failed = threading.Event(), []

    def run(program: Program = program) -> None:
        try:
            for _ in range(200):
                program.run()
        except BaseException as e:
            failed.append(e)
        finally:
            ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    del program, run
    n = 0
    while not ended.is_set():
        n += 1
        assert call(loaded(float(n % 64))) == 2 * (n % 64)
        jit.unload()
    thread.join()
    assert not failed
    np.testing.assert_allclose(data, 1 / 3, rtol=1e-6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_unloads_for_itself() -> None:
    mine, other = loaded(0.125), loaded(0.375)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            del other
            jit.unload()
            code = 0 if call(mine) == 0.25 and call(loaded(0.625)) == 1.25 else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert call(mine) == 0.25 and call(other) == 0.75
