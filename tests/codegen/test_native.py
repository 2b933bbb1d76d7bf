"""Compilation and the cache of object code: hits, damage, unusable directories, worker processes, refusals."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest

from einsmith.base import files, workers
from einsmith.base.errors import CompileError, StoreError
from einsmith.codegen.cache import build, native, objects
from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Builder, Function
from tests.caches import forget, forget_code
from tests.codegen.test_llvm_ops import TARGET

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache directory, nothing loaded, nothing warned about."""
    where = tmp_path / "cache"
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(where))
    monkeypatch.setattr(native, "_loaded", WeakValueDictionary())
    forget("reasons not to keep compiled code")
    monkeypatch.setattr(objects, "_written", {})
    return where


def constant(value: int, name: str = "k") -> Function:
    """Stores a number: shows which code runs."""
    b = Builder(name, 1)
    b.store(b.const(value), b.buffers[0], b.const(0))
    return b.finish()


def called(address: int, out: np.ndarray) -> Any:
    """The first element of a buffer that the function at an address has written."""
    pointers = (ctypes.c_void_p * 1)(out.ctypes.data)
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    signature(address)(ctypes.addressof(pointers), None, 0)
    return out[0]


def call(address: int) -> int:
    return int(called(address, np.zeros(1, np.int64)))


class Maker:
    """Counts how often it is asked."""

    def __init__(self, value: int, metadata: dict | None = None):
        self.value, self.metadata, self.calls = value, metadata or {}, 0

    def __call__(self):
        self.calls += 1
        return [constant(self.value)], self.metadata


def compiled(make: Maker, key: bytes = b"key"):
    forget_code()
    return native.compile_many([(key, make)], TARGET)[0]


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "objects").iterdir())


def test_functions_share_code_and_names_do_not_clash():
    first = native.compile_functions([constant(1, "a"), constant(2, "b")], TARGET)
    again = native.compile_functions([constant(1, "a")], TARGET)
    other = native.compile_functions([constant(3, "a")], TARGET)
    assert list(first) == ["a", "b"] and again["a"] == first["a"]
    assert [call(first["a"]), call(first["b"]), call(other["a"])] == [1, 2, 3]


def test_a_warm_cache_needs_no_maker(cache):
    make = Maker(7, {"tasks": 3, "names": ["x"], "scratch": 1 << 20})
    cold = compiled(make)
    assert stat.S_IMODE((cache / "objects").stat().st_mode) == 0o700
    assert len(entries(cache)) == 1 and objects.usage()[0] == 1
    warm = compiled(make)
    assert make.calls == 1 and call(warm.addresses["k"]) == 7
    assert warm.metadata == cold.metadata == {"tasks": 3, "names": ["x"], "scratch": 1 << 20}
    compiled(Maker(8), b"other")
    assert objects.clear()[0] == 2 and objects.usage() == (0, 0)
    compiled(make)
    assert make.calls == 2


def test_the_key_depends_on_everything(monkeypatch):
    names = {native.digest(b"a", b"x", TARGET), native.digest(b"b", b"x", TARGET), native.digest(b"a", b"y", TARGET)}
    for field in ("cpu", "features", "triple"):
        changed = SimpleNamespace(**{**vars(TARGET), field: "else"})
        names.add(native.digest(b"a", b"x", changed))
    monkeypatch.setattr(jit, "VERSION", "other")
    names.add(native.digest(b"a", b"x", TARGET))
    monkeypatch.setattr(objects, "source_hash", lambda: b"changed")
    names.add(native.digest(b"a", b"x", TARGET))
    assert len(names) == 8


def test_every_damage_is_a_miss_and_is_repaired(cache, rng):
    make = Maker(5, {"tasks": 1})
    compiled(make)
    (path,) = entries(cache)
    good = path.read_bytes()
    bad = [b"", good[:10], good[:-1], good + b"x", b"X" + good[1:], os.urandom(500), objects.FORMAT]
    for at in rng.integers(0, len(good), 20):
        bad.append(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    for n, data in enumerate(bad):
        path.write_bytes(data)
        assert call(compiled(make).addresses["k"]) == 5
        assert make.calls == n + 2
        assert path.read_bytes() == good
    path.unlink()
    path.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert call(compiled(make).addresses["k"]) == 5


def test_an_entry_under_another_name_is_a_miss(cache):
    one, two = Maker(1), Maker(2)
    compiled(one, b"one")
    (first,) = entries(cache)
    compiled(two, b"two")
    second = next(p for p in entries(cache) if p != first)
    second.write_bytes(first.read_bytes())
    assert call(compiled(two, b"two").addresses["k"]) == 2 and two.calls == 2


def test_unusable_directories_are_said_once_and_worked_without(cache, monkeypatch):
    cache.mkdir()
    (cache / "objects").write_text("a file stands here")
    with pytest.warns(RuntimeWarning, match="is not kept on disk") as found:
        assert call(compiled(Maker(3)).addresses["k"]) == 3
        assert call(compiled(Maker(4)).addresses["k"]) == 4
    assert len(found) == 1
    (cache / "objects").unlink()
    (cache / "objects").mkdir(mode=0o777)
    (cache / "objects").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="can be written by others"):
        assert call(compiled(Maker(6)).addresses["k"]) == 6
    assert not entries(cache)
    if hasattr(os, "geteuid"):
        (cache / "objects").chmod(0o700)
        monkeypatch.setattr(os, "geteuid", lambda: (cache / "objects").stat().st_uid + 1)
        with pytest.warns(RuntimeWarning, match="belongs to another user"):
            compiled(Maker(6))


def test_a_full_disk_is_worked_without(cache, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write_all", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert call(compiled(Maker(9)).addresses["k"]) == 9
    assert not entries(cache)


def aged(cache: Path, key: str, days: float) -> Path:
    """The entry's file, made to look as if last used so long ago."""
    path = cache / "objects" / key
    os.utime(path, (path.stat().st_mtime - 86400 * days,) * 2)
    return path


def stored(key: str, size: int = 100_000) -> None:
    objects.write(key, objects.CachedObject(os.urandom(size), ("f",), {}))


def test_beyond_the_limit_what_was_used_least_recently_goes(cache, monkeypatch):
    monkeypatch.setenv("EINSMITH_CACHE_LIMIT", "1")
    for n in range(9):
        stored(f"old{n}")
        aged(cache, f"old{n}", 20 - n)
    assert objects.read("old0") is not None, "a use, which makes it the latest"
    begun = f".key.00000000-{os.getpid()}-{0:016x}.new"  # another machine's
    (cache / "objects" / begun).write_bytes(b"x")
    (cache / "objects" / "folder").mkdir()
    monkeypatch.setattr(objects, "_written", {})
    stored("new")
    left = {p.name for p in entries(cache)}
    assert left == {"old0", *(f"old{n}" for n in range(2, 9)), "new", begun, "folder"}
    for n in range(30):
        stored(f"more{n}")
        assert sum(p.stat().st_size for p in entries(cache) if p.is_file()) <= 1 << 20
        assert objects.read(f"more{n}") is not None and objects.read("old0") is not None
    assert objects.read("old8") is None


def test_processes_that_write_and_remove_at_once_read_whole_entries_or_none(cache, monkeypatch):
    monkeypatch.setenv("EINSMITH_CACHE_LIMIT", "1")
    code = (
        "import sys\n"
        "from einsmith.codegen.cache import objects\n"
        "for n in range(60):\n"
        "    key = f'k{n * 7 % 20}'\n"
        "    found = objects.read(key)\n"
        "    assert found is None or found.code == key.encode() * 20000\n"
        "    objects.write(key, objects.CachedObject(key.encode() * 20000, ('f',), {}))\n"
    )
    runs = [subprocess.Popen([sys.executable, "-W", "error", "-c", code], cwd=ROOT) for _ in range(3)]
    assert [run.wait() for run in runs] == [0, 0, 0]
    assert not [p for p in entries(cache) if files.is_begun(p.name)]
    assert objects.usage()[1] <= 1.25 * (1 << 20), "each of them may exceed the limit by a sixteenth"


def test_a_folder_that_cannot_be_cleared_is_worked_with(cache, monkeypatch):
    monkeypatch.setenv("EINSMITH_CACHE_LIMIT", "1")

    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(files.Folder, "touch", refuse)
    monkeypatch.setattr(files.Folder, "remove", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(12):
            stored(f"k{n}")
    assert objects.read("k0") is not None and len(entries(cache)) == 12


def test_what_cannot_be_cleared_is_said(cache, monkeypatch):
    stored("k")
    (cache / "objects" / "folder").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(files.Folder, "remove", lambda *_: os.rmdir(cache / "none" / "x"))
        assert objects.clear() == (0, 0), "another process has removed it"
        patched.setattr(files.Folder, "remove", lambda *_: os.rmdir(cache / "objects"))
        with pytest.raises(StoreError, match="k cannot be removed"):
            objects.clear()
    assert objects.clear()[0] == 1 and [p.name for p in entries(cache)] == ["folder"]


@pytest.mark.parametrize("parallel", [False, True])
def test_many_kernels_with_and_without_worker_processes(parallel, monkeypatch):
    monkeypatch.setattr(build, "PARALLEL_FROM", 4 if parallel else 10**6)
    monkeypatch.setattr(build, "count_workers", (lambda n: 2) if parallel else (lambda n: 0))
    makers = [Maker(n, {"n": n}) for n in range(20)]
    items = [(b"%d" % n, m) for n, m in enumerate(makers)]
    out = native.compile_many([*items, items[3]], TARGET)
    assert [call(c.addresses["k"]) for c in out] == [*range(20), 3]
    assert [c.metadata["n"] for c in out] == [*range(20), 3]
    assert [m.calls for m in makers] == [1] * 20
    forget_code()
    native.compile_many(items, TARGET)
    assert [m.calls for m in makers] == [1] * 20


def test_workers_and_this_process_make_the_same_code(monkeypatch):
    f = constant(12345)
    here = jit.emit_object(emit_module([f], TARGET), TARGET)
    crew = build.Crew(1, TARGET)
    try:
        crew.waiting.put(build.Job("key", emit_module([f], TARGET), ("k",), {}))
        job, data = crew.ready.get(timeout=30)
    finally:
        crew.close()
    assert job.key == "key" and data == here


def test_a_worker_that_dies_leaves_its_job_to_us(monkeypatch):
    real = subprocess.Popen
    monkeypatch.setattr(workers.subprocess, "Popen", lambda args, **kw: real([sys.executable, "-c", "pass"], **kw))
    monkeypatch.setattr(build, "count_workers", lambda n: 1)
    out = native.compile_many([(b"%d" % n, Maker(n)) for n in range(9)], TARGET)
    assert [call(c.addresses["k"]) for c in out] == list(range(9))


def test_a_text_that_a_worker_rejects_is_a_compile_error():
    """This process compiles it again, for its error; other jobs are done all the same."""
    crew = build.Crew(1, TARGET)
    texts = ["define void @k( {", emit_module([constant(1)], TARGET)]
    try:
        crew.waiting.put(build.Job("wrong", texts[0], ("k",), {}))
        crew.threads[0].join(30)
        assert not crew.threads[0].is_alive() and crew.workers[0].process is None
        crew.waiting.put(build.Job("right", texts[1], ("k",), {}))
        with pytest.raises(CompileError, match="LLVM rejects"):
            crew.finish_job()
        assert crew.finish_job()[0].key == "right"
    finally:
        crew.close()


def test_a_crew_that_is_closed_leaves_no_process():
    """Whatever it does: starting, waiting for a job, compiling."""
    for n in range(6):
        crew = build.Crew(1, TARGET)
        if n > 2:
            crew.waiting.put(build.Job("key", emit_module([constant(n)], TARGET), ("k",), {}))
        time.sleep(0.02 * n)
        crew.close()
        assert all(w.process is None for w in crew.workers) and not any(t.is_alive() for t in crew.threads)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_kernel_that_cannot_be_made_raises_and_nothing_hangs(workers, monkeypatch):
    monkeypatch.setattr(build, "count_workers", lambda n: workers)

    def broken():
        raise CompileError("no pattern takes it")

    with pytest.raises(CompileError, match="no pattern"):
        native.compile_many([(b"1", Maker(1)), (b"2", broken), (b"3", Maker(3))], TARGET)
    assert call(compiled(Maker(1), b"1").addresses["k"]) == 1


def test_wrong_text_is_a_compile_error():
    with pytest.raises(CompileError, match="LLVM rejects"):
        native.compile_text("define void @k( {", ["k"], TARGET)


def test_unknown_cpu_names_are_refused_before_llvm_sees_them():
    for cpu in ("z80", "", "skylake-avx9000"):
        with pytest.raises(CompileError, match="CPU name"):
            jit.emit_object("", SimpleNamespace(cpu=cpu, features="", triple=TARGET.triple))


@pytest.mark.parametrize(
    "triple,cpu",
    [
        ("aarch64-unknown-linux-gnu", "neoverse-n1"),
        ("x86_64-unknown-linux-gnu", "x86-64"),
        ("x86_64-unknown-linux-gnu", "x86-64-v3"),
    ],
)
def test_other_machines(triple, cpu):
    """Every kind of instruction has a form on machines without masks, gathers or fused products."""
    b = Builder("k", 2)
    mask = b.op("lt", b.iota(16), b.splat(b.task, 16))
    x = b.load(b.buffers[0], b.const(0), "f32", 16, mask=mask)
    for fn in ("exp", "log", "tanh", "sigmoid", "erf", "floor", "round"):
        x = b.op("max", b.op(fn, x), b.op("fma", x, x, x))
    y = b.gather(b.buffers[0], b.cast(x, "i32"), "f32", mask)
    b.store(b.op("mod", x, y), b.buffers[1], b.const(0), mask=mask)
    target = SimpleNamespace(cpu=cpu, features="", triple=triple, vector_bytes=16)
    assert len(jit.emit_object(emit_module([b.finish()], target), target)) > 1000
