"""The driver of NVIDIA's cards, on a stand-in for libcuda: no card is needed, and none is tested."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einsmith.base.errors import DeviceError, OutOfMemoryError
from einsmith.gpu.cuda import driver, libcuda
from einsmith.gpu.cuda.device import CollectiveNode, DeviceCode, DeviceFacts, LaunchNode
from einsmith.gpu.cuda.driver import CudaDriver
from einsmith.gpu.cuda.libcuda import KernelNodeParams, LaunchAttribute, LaunchConfig
from einsmith.gpu.tiles.ir import TileFunction
from einsmith.gpu.triton.binary import Binary
from tests.runtime.cuda.fake_libcuda import GONE, PROTOTYPES, Card, FakeLibCuda, Launch, cubin

ROOT = Path(__file__).resolve().parents[3]
Install = Callable[..., FakeLibCuda]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A function that makes a stand-in the library of this process; nothing may have gone wrong there in the end."""
    made: list[FakeLibCuda] = []

    def install(*cards: Card, **settings: Any) -> FakeLibCuda:
        made.append(FakeLibCuda(*cards, **settings))
        monkeypatch.setattr(libcuda, "_load", lambda: made[-1])
        monkeypatch.setattr(libcuda, "_loaded", [])
        monkeypatch.setattr(driver, "_devices", {})
        return made[-1]

    yield install
    gc.collect()
    for fake in made:
        assert fake.faults == []
        if not (fake.lost or fake.fail_at):
            fake.finish()
            assert fake.faults == [] and not any(fake.contexts.values()), "a context was left current"


@pytest.fixture
def cuda(install: Install) -> FakeLibCuda:
    return install()


@pytest.fixture
def card(cuda: FakeLibCuda) -> CudaDriver:
    return driver.device(0)


def code(entry: str = "k", pointers: int = 2, warps: int = 4, shared: int = 0, architecture: int = 90) -> DeviceCode:
    """Machine code whose parameters are pointers and the two that Triton adds."""
    image = cubin(entry, pointers + 2, architecture)
    return DeviceCode(TileFunction(entry, (), 1, [], []), Binary(image, entry, warps, shared, 32, 0))


def node(card: CudaDriver, what: DeviceCode, programs: int, *pointers: int, cooperative: bool = False) -> LaunchNode:
    return LaunchNode(card.load(what), what, programs, pointers, cooperative)


def launch(entry: str, programs: int, *pointers: int, **others: Any) -> Launch:
    """What the driver gets for a node of 4 warps."""
    made = Launch(entry, (programs, 1, 1), (128, 1, 1), 0, (*pointers, 0, 0), False)
    return made._replace(**others)


# -- the library

LAYOUT = {
    "CUDA_KERNEL_NODE_PARAMS_v2": (KernelNodeParams, "func:func gridDimX:grid_x gridDimZ:grid_z blockDimX:block_x "
                                   "sharedMemBytes:shared kernelParams:params extra:extra kern:kern ctx:ctx"),
    "CUlaunchConfig": (LaunchConfig, "gridDimX:grid_x gridDimZ:grid_z blockDimX:block_x sharedMemBytes:shared "
                       "hStream:stream attrs:attrs numAttrs:count"),
    "CUlaunchAttribute": (LaunchAttribute, "id:id value:value"),
}  # fmt: skip
NUMBERS = {
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": libcuda.MULTIPROCESSORS,
    "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE": libcuda.L2,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": libcuda.MAJOR,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": libcuda.MINOR,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": libcuda.SHARED,
    "CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED": libcuda.POOLS,
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": libcuda.DYNAMIC_SHARED,
    "CU_POINTER_ATTRIBUTE_MEMORY_TYPE": libcuda.MEMORY_TYPE, "CU_MEMORYTYPE_HOST": libcuda.HOST,
    "CU_MEMORYTYPE_DEVICE": libcuda.DEVICE, "CU_LAUNCH_ATTRIBUTE_COOPERATIVE": libcuda.COOPERATIVE,
    "CU_STREAM_NON_BLOCKING": libcuda.NON_BLOCKING, "CU_EVENT_DISABLE_TIMING": libcuda.UNTIMED,
    "CU_MEMHOSTALLOC_PORTABLE": libcuda.PORTABLE, "CUDA_ERROR_INVALID_VALUE": libcuda.INVALID_VALUE,
    "CUDA_ERROR_OUT_OF_MEMORY": libcuda.OUT_OF_MEMORY, "CUDA_ERROR_NOT_INITIALIZED": libcuda.NOT_INITIALIZED,
    "CUDA_ERROR_DEINITIALIZED": libcuda.DEINITIALIZED, "CUDA_ERROR_NO_DEVICE": libcuda.NO_DEVICE,
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": libcuda.CONTEXT_IS_DESTROYED,
}  # fmt: skip


def measured() -> list[int]:
    """Sizes and offsets of the structures, as ctypes lays them out."""
    out = []
    for kind, fields in LAYOUT.values():
        out += [ctypes.sizeof(kind), *(getattr(kind, f.partition(":")[2]).offset for f in fields.split())]
    return out


def test_structures_are_laid_out_as_in_cuda_12() -> None:
    assert measured() == [72, 0, 8, 16, 20, 32, 40, 48, 56, 64, 56, 0, 8, 12, 24, 32, 40, 48, 72, 0, 8]


WIDTHS = """
template <class F> struct widths;
template <class... A> struct widths<CUresult (*)(A...)> {
  static void print() {
    printf("%d ", (int)sizeof...(A));
    (void)std::initializer_list<int>{printf("%d ", (int)sizeof(A))...};
  }
};
"""


def test_the_library_is_called_as_its_header_says(tmp_path: Path) -> None:
    """Structures, numbers and the widths of arguments are those that a compiler finds in cuda.h of CUDA 12.8."""
    triton = pytest.importorskip("triton", reason="the header comes with Triton")
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    signatures = libcuda.FIRST | libcuda.SIGNATURES
    constants = []
    for name, (_, fields) in LAYOUT.items():
        constants += [f"sizeof({name})", *(f"offsetof({name}, {f.partition(':')[0]})" for f in fields.split())]
    lines = [f'printf("%ld ", (long)({x}));' for x in (*constants, *NUMBERS)]
    lines += [f"widths<decltype(&{name})>::print();" for name in signatures]
    (tmp_path / "a.cc").write_text(
        "#include <cuda.h>\n#include <cstddef>\n#include <cstdio>\n#include <initializer_list>\n"
        + "\n".join([WIDTHS, "int main() {", *lines, "}"])
    )
    include = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    subprocess.run([compiler, "-std=c++14", f"-I{include}", "-o", "a", "a.cc"], check=True, cwd=tmp_path, timeout=60)
    printed = subprocess.run([tmp_path / "a"], capture_output=True, text=True, check=True).stdout.split()
    widths = [n for types in signatures.values() for n in (len(types), *map(ctypes.sizeof, types))]
    assert list(map(int, printed)) == measured() + list(NUMBERS.values()) + widths


def test_the_architecture_of_machine_code(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton", reason="the assembler comes with Triton")
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    for name in ("sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120a"):
        text = f".version {'8.7' if '_1' in name else '8.0'}\n.target {name}\n.address_size 64\n.entry k(){{ ret; }}\n"
        (tmp_path / "k.ptx").write_text(text)
        subprocess.run([assembler, f"-arch={name}", "k.ptx", "-o", "k"], check=True, cwd=tmp_path, timeout=60)
        assert libcuda.architecture((tmp_path / "k").read_bytes()) == name
    assert libcuda.architecture(b"nothing") is None and libcuda.architecture(b"\x7fELF" + bytes(99)) is None


def test_the_stand_in_has_all_functions() -> None:
    assert PROTOTYPES.keys() == libcuda.FIRST.keys() | libcuda.SIGNATURES.keys()


def run(text: str) -> str:
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_an_import_does_not_load_the_library() -> None:
    text = """
import ctypes, sys
def refuse(name, *_, **__):
    assert name is None or "cuda" not in str(name), name
    return kept(name)
kept, ctypes.CDLL = ctypes.CDLL, refuse
from einsmith.gpu.cuda import driver
print(bool(driver.libcuda._loaded), "torch" in sys.modules, "triton" in sys.modules)
"""
    assert run(text).split() == ["False"] * 3


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(libcuda, "_loaded", [])
    for use in (driver.devices, lambda: driver.device(0)):
        with pytest.raises(DeviceError, match=r"no NVIDIA driver is installed: libcuda\.so\.1: cannot open"):
            use()


def test_an_old_driver(install: Install) -> None:
    cuda = install(version=11080)
    with pytest.raises(DeviceError, match=r"supports CUDA 11\.8, but .* CUDA 12\.0 or later: install driver 525"):
        driver.devices()
    assert not cuda.named("cuInit")
    install(version=12000)
    assert driver.devices()[0].driver == 12000


def test_a_library_without_a_function(install: Install) -> None:
    del install().cuLaunchKernelEx
    with pytest.raises(DeviceError, match="has no function cuLaunchKernelEx: .* install the driver anew"):
        driver.devices()


# -- devices


def test_devices_and_their_facts(install: Install) -> None:
    cuda = install(Card("First", memory=80 << 30), Card("Second", (8, 6)))
    first, second = driver.devices()
    assert first == DeviceFacts("First", (9, 0), 132, 80 << 30, 50 << 20, 227 << 10, 12080)
    assert (second.name, second.capability) == ("Second", (8, 6))
    assert not cuda.named("cuDevicePrimaryCtxRetain") and len(cuda.named("cuInit")) == 1
    assert driver.device(1).facts == second and driver.device(1).ordinal == 1


def test_a_device_is_one_object_for_all_threads(install: Install) -> None:
    cuda = install()
    found: list[CudaDriver] = []
    threads = [threading.Thread(target=lambda: found.append(driver.device(0))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert cuda.named("cuDevicePrimaryCtxRetain")[0][1] == 40 and len(cuda.named("cuDevicePrimaryCtxRetain")) == 1


def test_cards_that_cannot_be_used(install: Install) -> None:
    install(Card("Old", (7, 5)), Card("Virtual", pools=0))
    assert [driver.why_unusable(f) is None for f in driver.devices()] == [False, True]
    with pytest.raises(DeviceError, match=r"card 0 \(Old\) cannot be used: its compute capability 7.5 is below 8.0"):
        driver.device(0)
    with pytest.raises(DeviceError, match=r"card 1 \(Virtual\) cannot be used: its driver has no memory pools"):
        driver.device(1)
    for wrong in (2, -1):
        with pytest.raises(DeviceError, match=f"there is no card {wrong}: the driver finds 2 cards, 0 to 1"):
            driver.device(wrong)
    install()
    with pytest.raises(DeviceError, match="there is no card 1: the driver finds one card, 0"):
        driver.device(1)


def test_a_driver_that_finds_no_card(install: Install) -> None:
    cuda = install()
    cuda.failing["cuInit"] = 100
    with pytest.raises(DeviceError, match="cuInit failed: 100 .*nvidia-smi .*CUDA_VISIBLE_DEVICES") as e:
        driver.devices()
    assert e.value.code == 100
    cuda.cards, cuda.failing = (), {}
    with pytest.raises(DeviceError, match="cuDeviceGetCount failed: 100 .*CUDA_VISIBLE_DEVICES"):
        driver.device(0)


# -- memory


def test_memory_goes_there_and_back(cuda: FakeLibCuda, card: CudaDriver) -> None:
    a, b = card.allocate(4000), card.allocate(4000)
    assert a % 256 == b % 256 == 0 and cuda.used() == 8000
    x = np.arange(1000, dtype=np.float32)
    card.upload(a, x, card.stream)
    card.copy(b, a, x.nbytes, card.stream)
    y = np.zeros((10, 100), np.float32)
    card.download(y, b, card.stream)
    assert (y.ravel() == x).all()
    assert cuda.named("cuMemcpyHtoDAsync_v2") == [(a, x.ctypes.data, 4000, card.stream)]
    assert cuda.named("cuMemcpyDtoDAsync_v2") == [(b, a, 4000, card.stream)]
    assert cuda.named("cuMemcpyDtoHAsync_v2") == [(y.ctypes.data, b, 4000, card.stream)]
    card.free(a)
    card.free(b)
    cuda.finish()
    assert cuda.used() == 0


def test_nothing_is_copied_for_no_bytes(cuda: FakeLibCuda, card: CudaDriver) -> None:
    address, none = card.allocate(0), np.empty(0)
    card.upload(address, none, card.stream)
    card.download(none, address, card.stream)
    card.copy(address, address, 0, card.stream)
    assert card.pinned(0).size == 0
    assert not [name for name, _ in cuda.calls if name.startswith(("cuMemcpy", "cuMemHost"))]


def test_memory_of_the_host_may_change_after_a_copy_but_pinned_memory(cuda: FakeLibCuda, card: CudaDriver) -> None:
    a, b = card.allocate(8), card.allocate(8)
    pinned, pageable = card.pinned(8), np.ones(8, np.uint8)
    pinned[:] = 1
    card.upload(a, pinned, card.copies)
    card.upload(b, pageable, card.stream)
    pageable[:] = pinned[:] = 2  # too early for the pinned memory, whose copy runs late
    out = card.pinned(16)
    card.download(out[:8], a, card.copies)
    card.download(out[8:], b, card.stream)
    card.synchronize(card.stream)
    assert (out[:8] == 0).all()
    card.synchronize(card.copies)
    assert (out == [2] * 8 + [1] * 8).all()


def test_arrays_that_cannot_be_copied(card: CudaDriver) -> None:
    x = np.zeros((4, 4))
    with pytest.raises(DeviceError, match="C-contiguous"):
        card.upload(card.allocate(128), x[:, :2], card.stream)
    x.flags.writeable = False
    with pytest.raises(DeviceError, match="read-only"):
        card.download(x, card.allocate(128), card.stream)


def test_memory_is_freed_after_the_work_that_uses_it(cuda: FakeLibCuda, card: CudaDriver) -> None:
    """In either stream, in streams of others, by graphs and copies. The stand-in frees as early as it may."""
    foreign, what = cuda.handle(), code()
    cuda.streams[foreign] = deque()
    for work in ("stream", "copies", "foreign", "legacy"):
        stream = {"foreign": foreign, "legacy": 0}.get(work) or getattr(card, work, 0)
        for use in ("run", "graph", "copy", "download"):
            a, out = card.allocate(64), card.pinned(64)
            one = node(card, what, 1, a, a)
            if use == "run":
                card.run(one, stream)
            elif use == "graph":
                card.launch(card.graph([one], []), stream)
            elif use == "copy":
                card.copy(a, a, 64, stream)
            else:
                card.download(out, a, stream)
            card.free(a)
            assert a in cuda.memory, "freed at once"
            cuda.finish()
            assert a not in cuda.memory and cuda.faults == [], (work, use)


def test_an_allocation_does_not_wait_for_work(cuda: FakeLibCuda, card: CudaDriver) -> None:
    a, what = card.allocate(64), code()
    card.run(node(card, what, 1, a, a), card.stream)
    card.free(a)
    card.allocate(64)
    assert not cuda.executed


def test_too_much_memory(cuda: FakeLibCuda, card: CudaDriver) -> None:
    card.allocate(1 << 19)
    with pytest.raises(OutOfMemoryError, match="out of memory.*free memory, or use smaller batches") as e:
        card.allocate(1_000_000)
    start = "cuMemAllocAsync of 1,000,000 bytes on card 0 (Stand-in), of whose 1,048,576 bytes 524,288 are free, failed"
    assert str(e.value).startswith(start)


def test_memory_that_is_being_freed_is_waited_for(cuda: FakeLibCuda, card: CudaDriver) -> None:
    a, what = card.allocate(1 << 20), code()
    card.run(node(card, what, 1, a, a), card.stream)
    card.free(a)
    assert not cuda.executed and card.allocate(1 << 20) and len(cuda.executed) == 1 and cuda.used() == 1 << 20


def test_pinned_memory_lives_as_long_as_views_of_it(cuda: FakeLibCuda, card: CudaDriver) -> None:
    x = card.pinned(64)
    assert x.dtype == np.uint8 and x.shape == (64,) and x.flags.writeable and x.flags.c_contiguous
    view = x[16:32].view(np.float32)
    address = x.ctypes.data
    assert cuda.named("cuMemHostAlloc")[0][1:] == (64, 1)
    del x
    gc.collect()
    view[:] = 3
    assert not cuda.named("cuMemFreeHost") and (view == 3).all()
    del view
    gc.collect()
    assert cuda.named("cuMemFreeHost") == [(address,)] and not cuda.pinned


def test_pinned_memory_is_freed_after_the_copies(cuda: FakeLibCuda, card: CudaDriver) -> None:
    a, out = card.allocate(64), np.zeros(64, np.uint8)
    x = card.pinned(64)
    x[:] = 5
    card.upload(a, x, card.copies)
    del x
    gc.collect()
    assert cuda.named("cuMemFreeHost")
    card.download(out, a, card.stream)
    assert (out == 5).all() and GONE != 5


def test_a_host_without_memory(cuda: FakeLibCuda, card: CudaDriver) -> None:
    cuda.failing["cuMemHostAlloc"] = 2
    with pytest.raises(OutOfMemoryError, match="cuMemHostAlloc of 4,096 bytes failed: .*; the host cannot lock"):
        card.pinned(4096)


# -- streams and events


def test_streams_are_numbers_and_wait_for_events(cuda: FakeLibCuda, card: CudaDriver) -> None:
    assert type(card.stream) is type(card.copies) is int and card.stream != card.copies
    a, x = card.allocate(8), card.pinned(8)
    x[:] = 7
    card.upload(a, x, card.copies)
    ready = card.event()
    card.record(ready, card.copies)
    card.wait(card.stream, ready)
    out = card.pinned(8)
    card.download(out, a, card.stream)
    done = card.event()
    card.record(done, card.stream)
    card.await_event(done)
    assert (out == 7).all()
    assert card.elapsed(ready, done) == pytest.approx(2.5e-3)
    number = cuda.named("cuEventRecord")[0][0]
    del ready
    gc.collect()
    assert cuda.named("cuEventDestroy_v2") == [(number,)]


def test_events_of_others_are_numbers(cuda: FakeLibCuda, card: CudaDriver) -> None:
    """As `torch.cuda.Event().cuda_event` is one."""
    theirs = cuda.handle()
    cuda.events[theirs] = [0, None]
    card.record(theirs, 0)
    card.wait(card.stream, theirs)
    card.await_event(theirs)
    assert cuda.named("cuEventRecord") == [(theirs, 0)] and cuda.named("cuEventSynchronize") == [(theirs,)]


def test_the_time_of_an_event_that_has_not_happened(card: CudaDriver) -> None:
    first, second = card.event(), card.event()
    card.record(first, card.stream)
    card.record(second, card.stream)
    with pytest.raises(DeviceError, match="cuEventElapsedTime failed: 600 .*; wait for the event first"):
        card.elapsed(first, second)


def test_the_context_is_current_in_each_thread_and_its_own_one_restored(cuda: FakeLibCuda, card: CudaDriver) -> None:
    found: list[Any] = []

    def use() -> None:
        me = threading.get_ident()
        cuda.contexts[me] = [123]  # of another card, as of torch.cuda.set_device
        address = card.allocate(8)
        with pytest.raises(DeviceError):
            card.free(address + 1)
        found.append(cuda.contexts.pop(me))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [[123]]


# -- machine code and launches


def test_code_is_loaded_once_and_unloaded_with_its_last_user(cuda: FakeLibCuda, card: CudaDriver) -> None:
    what = code(shared=100 << 10)
    one = node(card, what, 3, 0, 0)
    assert card.load(what) is one.function and len(cuda.named("cuModuleLoadData")) == 1
    assert cuda.named("cuFuncSetAttribute") == [(one.function.value, 8, 100 << 10)]
    card.load(code("small", shared=48 << 10))
    assert len(cuda.named("cuFuncSetAttribute")) == 1
    card.run(one, card.stream)
    graph = card.graph([one], [])
    del what, one
    gc.collect()
    assert len(cuda.modules) == 1
    card.launch(graph, card.stream)
    del graph
    gc.collect()
    assert not cuda.modules and not cuda.graphs and not cuda.executables and len(cuda.executed) == 2


def test_code_that_cannot_be_loaded(cuda: FakeLibCuda, card: CudaDriver) -> None:
    with pytest.raises(DeviceError) as e:
        card.load(code("k", architecture=80))
    assert str(e.value) == (
        "cuModuleLoadData of the kernel 'k', compiled for sm_80, on card 0 (Stand-in), which is sm_90, failed: "
        "209 (209); compile it for sm_90"
    )
    bad = code()
    with pytest.raises(DeviceError, match="for an unknown architecture, .* failed: 200 .*; compile it for sm_90"):
        card.load(DeviceCode(bad.function, bad.binary._replace(cubin=b"text" * 20)))
    with pytest.raises(DeviceError, match="cuModuleGetFunction of the kernel 'other' failed: 500"):
        card.load(DeviceCode(bad.function, bad.binary._replace(name="other")))
    gc.collect()
    assert not cuda.modules
    with pytest.raises(DeviceError, match="needs 300,000 bytes of shared memory, but a program may have 232,448 on"):
        card.load(code(shared=300_000))
    cuda.failing["cuModuleLoadData"] = 200
    with pytest.raises(DeviceError, match="compiled for sm_90, .* failed: 200 .*; the driver may be older"):
        card.load(code())


def test_a_launch_by_itself(cuda: FakeLibCuda, card: CudaDriver) -> None:
    a, b = card.allocate(64), card.allocate(64)
    card.run(node(card, code("k"), 1 << 20, a, b), card.copies)
    card.run(node(card, code("c", 1, warps=8, shared=1000), 5, a, cooperative=True), 0)
    cuda.finish()
    assert sorted(cuda.executed) == [
        launch("c", 5, a, block=(256, 1, 1), shared=1000, cooperative=True),
        launch("k", 1 << 20, a, b),
    ]


def test_a_graph_runs_in_the_order_of_its_edges(cuda: FakeLibCuda, card: CudaDriver) -> None:
    a, b = card.allocate(64), card.allocate(64)
    nodes = [node(card, code(f"k{n}", 1), n + 1, (a, b)[n % 2], cooperative=n == 2) for n in range(4)]
    free = card.graph(nodes, [])
    graph = card.graph(nodes, [(0, 1), (1, 2), (0, 2), (1, 2), (2, 3)])
    wanted = [launch(f"k{n}", n + 1, (a, b)[n % 2], cooperative=n == 2) for n in range(4)]
    card.launch(graph, card.stream)
    card.synchronize(card.stream)
    assert cuda.executed == wanted
    cuda.executed.clear()
    card.launch(free, card.stream)
    card.synchronize(card.stream)
    assert cuda.executed == wanted[::-1]  # the stand-in turns round what no edge orders


class Sums:
    """A group of cards that launches its sums where it is told to."""

    handle, launched = 1, 0

    def __init__(self, cuda: FakeLibCuda):
        self.cuda, self.fails = cuda, False

    def all_reduce(self, addresses: tuple, counts: tuple, elem: str, stream: int) -> None:
        if self.fails:
            raise DeviceError("NCCL failed")
        self.cuda.launch_by_others(Launch(f"sum of {counts} {elem}", (1, 1, 1), (1, 1, 1), 0, addresses, False), stream)


def test_a_sum_over_cards_is_a_node(cuda: FakeLibCuda, card: CudaDriver) -> None:
    """It is captured in a stream that nothing else uses, and copied; it has its place in the order."""
    a, b = card.allocate(64), card.allocate(64)
    sums = Sums(cuda)
    total = CollectiveNode(sums, (a, b), (3, 4), "f32")
    first, last = (node(card, code(name, 1), 1, a) for name in ("first", "last"))
    streams, graphs = len(cuda.streams), len(cuda.graphs)
    graph = card.graph([first, total, last], [(0, 1), (1, 2)])
    assert (len(cuda.streams), len(cuda.graphs)) == (streams, graphs + 1)
    card.launch(graph, card.stream)
    card.run(total, card.copies)
    cuda.finish()
    assert [x.entry for x in cuda.executed if x.entry != "sum of (3, 4) f32"] == ["first", "last"]
    entries = [x.entry for x in cuda.executed]
    assert entries.count("sum of (3, 4) f32") == 2 and "first sum of (3, 4) f32 last" in " ".join(entries)
    with pytest.raises(DeviceError, match="node 1 cannot be replaced"):
        card.swap(graph, 1, first)
    sums.fails = True
    with pytest.raises(DeviceError, match="NCCL failed"):
        card.graph([total], [])
    assert not cuda.captures and len(cuda.streams) == streams


def test_events_between_the_nodes_of_a_graph(cuda: FakeLibCuda, card: CudaDriver) -> None:
    a = card.allocate(64)
    nodes = [node(card, code(f"k{n}", 1), n + 1, a) for n in range(3)]
    events = [card.event() for _ in range(4)]
    graph = card.graph(nodes, [], events)
    numbers = [e.value for e in events]
    (recorded,) = cuda.graphs.values()
    assert [what for _, what, x in recorded.values() if x is None] == numbers
    assert [len(before) for before, *_ in recorded.values()] == [0, *[1] * 6]
    card.swap(graph, 1, node(card, code("two", 1), 7, a))
    del events
    gc.collect()
    card.launch(graph, card.stream)
    card.synchronize(card.stream)
    assert cuda.executed == [launch("k0", 1, a), launch("two", 7, a), launch("k2", 3, a)]
    assert card.elapsed(graph.events[0], graph.events[3]) == pytest.approx(2.5e-3)
    del graph
    gc.collect()
    assert not set(numbers) & set(cuda.events)


def test_a_swapped_node(cuda: FakeLibCuda, card: CudaDriver) -> None:
    a, b = card.allocate(64), card.allocate(64)
    one = node(card, code("one", 1), 1, a)
    graph = card.graph([one, one], [(0, 1)])
    card.launch(graph, card.stream)
    card.swap(graph, 1, node(card, code("two", 2, warps=1, shared=60_000), 7, a, b))
    gc.collect()
    card.launch(graph, card.stream)
    card.synchronize(card.stream)
    two = launch("two", 7, a, b, block=(32, 1, 1), shared=60_000)
    assert cuda.executed == [launch("one", 1, a)] * 3 + [two]
    assert len(cuda.named("cuGraphInstantiateWithFlags")) == 1
    with pytest.raises(DeviceError, match="node 0 cannot be replaced by the kernel 'k', 9 programs .* cooperative"):
        card.swap(graph, 0, node(card, code(), 9, a, b, cooperative=True))


def test_edges_that_lead_to_no_later_node(cuda: FakeLibCuda, card: CudaDriver) -> None:
    nodes = [node(card, code(), 1, 0, 0)] * 2
    for edge in ((1, 0), (0, 0), (0, 2), (-1, 1)):
        with pytest.raises(DeviceError, match=f"the edge from node {edge[0]} to node {edge[1]} of 2 leads to no later"):
            card.graph(nodes, [edge])
    cuda.failing["cuGraphAddKernelNode_v2"] = 1
    with pytest.raises(DeviceError, match="cuGraphAddKernelNode_v2 of the kernel 'k', 1 programs of 4 warps, failed"):
        card.graph(nodes, [])
    gc.collect()
    assert not cuda.graphs


# -- failures


@pytest.mark.parametrize(
    ("result", "remedy"),
    [
        (34, "stub of a toolkit"), (46, "exclusively"), (100, "CUDA_VISIBLE_DEVICES"), (802, "fabric manager"),
        (803, "restart the machine"), (804, "compatibility package"), (999, "nvidia_uvm"),
    ],
)  # fmt: skip
def test_what_helps_where_the_driver_does_not_start(result: int, remedy: str, install: Install) -> None:
    install().failing["cuInit"] = result
    with pytest.raises(DeviceError, match=f"^cuInit failed: {result} .*; .*{remedy}") as e:
        driver.devices()
    assert e.value.code == result


def test_a_lost_context(cuda: FakeLibCuda, card: CudaDriver, capfd: pytest.CaptureFixture[str]) -> None:
    """All that follows is refused with the remedy, and objects end without a word."""
    a = card.allocate(64)
    kept = [card.graph([node(card, code(), 1, a, a)], []), card.pinned(64), card.event()]
    cuda.lost = 700
    text = r"failed: CUDA_ERROR_ILLEGAL_ADDRESS \(an illegal memory access was encountered\); .*restart the process"
    for use in (lambda: card.synchronize(card.stream), lambda: card.launch(kept[0], 0), lambda: card.allocate(8)):
        with pytest.raises(DeviceError, match=text):
            use()
    card.free(a)
    kept.clear()
    gc.collect()
    assert capfd.readouterr().err == ""


def test_freeing_what_is_not_there_is_an_error(card: CudaDriver) -> None:
    address = card.allocate(64)
    with pytest.raises(DeviceError, match="cuMemFreeAsync failed: CUDA_ERROR_INVALID_VALUE"):
        card.free(address + 8)


def use_all(card: CudaDriver) -> None:
    """Everything that a program does with a card."""
    a, x = card.allocate(64), np.zeros(64, np.uint8)
    pinned = card.pinned(64)
    for array in (x, pinned):
        card.upload(a, array, card.stream)
        card.download(array, a, 0)
    card.copy(a, a, 64, card.copies)
    first, second = card.event(), card.event()
    card.record(first, card.stream)
    card.record(second, card.stream)
    card.wait(card.copies, second)
    card.await_event(second)
    card.elapsed(first, second)
    one = node(card, code(shared=60_000), 1, a, a, cooperative=True)
    graph = card.graph([one, one], [(0, 1)])
    card.swap(graph, 0, one)
    card.launch(graph, card.stream)
    card.launch(card.graph([one], [], [first, second]), card.stream)
    card.run(one, card.stream)
    card.launch(card.graph([CollectiveNode(Sums(libcuda._load()), (a,), (1,), "f32")], []), card.stream)
    card.free(a)
    card.synchronize(card.stream)


def test_every_call_is_checked(install: Install, monkeypatch: pytest.MonkeyPatch, new_objects: None) -> None:
    """Each call in turn fails, and is named by the error; where an object ends, by what Python reports."""
    unraised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: unraised.append(u.exc_value))

    def attempt(fail_at: int) -> tuple[FakeLibCuda, list[str]]:
        cuda = install()
        unraised.clear()
        cuda.fail_at = fail_at
        try:
            use_all(driver.device(0))
        except DeviceError as e:
            unraised.append(e.with_traceback(None))
        gc.collect()
        return cuda, [str(e) for e in unraised]

    cuda, errors = attempt(0)
    assert not errors
    called = [name for name, _ in cuda.calls]
    rare = {"cuGetErrorName", "cuGetErrorString", "cuMemGetInfo_v2"}  # where something has failed
    assert set(called) == PROTOTYPES.keys() - rare
    for number, name in enumerate(called, 1):
        _, errors = attempt(number)
        assert any(e.startswith(f"{name} ") and "failed: 801 (801)" in e for e in errors), (number, name, errors)


def forked(what: Callable[[], str]) -> str:
    """What a forked child returns."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            text = what()
        except BaseException as e:
            text = f"{type(e).__name__}: {e}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        text = file.read().decode()
    os.waitpid(pid, 0)
    return text


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")


@needs_fork
def test_a_forked_child_is_refused(cuda: FakeLibCuda, card: CudaDriver) -> None:
    a, kept = card.allocate(64), [card.pinned(64), card.event()]
    before = len(cuda.calls)

    def child() -> str:
        errors = []
        for use in (lambda: card.allocate(8), lambda: driver.device(0), lambda: driver.device(1), driver.devices):
            with pytest.raises(DeviceError, match="does not survive a fork: start processes by 'spawn'") as e:
                use()
            errors.append(str(e.value))
        card.free(a)
        kept.clear()
        gc.collect()
        return f"{len(errors)} {len(cuda.calls) - before}"

    assert forked(child) == "4 0"


@needs_fork
def test_a_child_may_use_a_card_alone(install: Install) -> None:
    install()
    assert forked(lambda: driver.device(0).facts.name) == "Stand-in"


@needs_fork
def test_a_child_of_a_process_where_others_used_cuda(install: Install) -> None:
    """PyTorch in the parent: the driver itself refuses."""
    install().failing["cuInit"] = 3
    assert "cuInit failed: 3 (3); the process may be forked" in forked(lambda: str(driver.devices()))


def test_the_end_of_the_process() -> None:
    """Objects of all kinds are alive, some in modules, some in circles; nothing is called, printed or raised."""
    text = """
import atexit, sys
atexit.register(lambda: print(len(fake.calls) - before, "calls"))  # after those that are registered later
from einsmith.gpu.cuda import driver, libcuda
from tests.runtime.cuda.test_driver import code, node
from tests.runtime.cuda.fake_libcuda import FakeLibCuda

fake = FakeLibCuda()
libcuda._load = lambda: fake
card = driver.device(0)
class Arena:
    def __init__(self): self.address, self.card, self.me = card.allocate(64), card, self
    def __del__(self): self.card.free(self.address)
sys.arena = Arena()
one = node(card, code(), 1, sys.arena.address, 0)
sys.kept = [card.pinned(64), card.event(), card.graph([one], [])]
sys.kept.append(sys.kept)
sys.device = card
card.launch(sys.kept[2], card.stream)
before = len(fake.calls)
print("end")
"""
    assert run(text) == "end\n0 calls\n"
