"""Call libcuda, the driver of NVIDIA's cards, by ctypes alone; each result is checked, and errors say the remedy.

The library is loaded at the first use, never by an import. Layouts and numbers are those of cuda.h of CUDA 12; the
functions that have versions are called by the names that they have in the library.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from einsmith.base import forks, locks
from einsmith.base.errors import DeviceError, OutOfMemoryError

LIBRARY = "libcuda.so.1"
NEEDED = 12000
"""Least CUDA version of a driver. The assemblers of Triton 3.6 are those of CUDA 12.8 and 12.9; their machine code runs
on every driver of CUDA 12 or later (NVIDIA's minor version compatibility)."""

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, DEINITIALIZED, NO_DEVICE = 1, 2, 3, 4, 100
CONTEXT_IS_DESTROYED = 709
LOST = frozenset((214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721))
"""Failures after which every call of the process fails: of memory (ECC, NVLink), and of a kernel that accessed memory
it must not, took too long, or executed what the card does not know."""
GONE = LOST | {NOT_INITIALIZED, DEINITIALIZED, CONTEXT_IS_DESTROYED}
"""Failures that say that the context's memory and handles exist no longer."""
_RESTART = "the context on the card is lost with all that lies there: restart the process"
_REMEDIES = dict.fromkeys(LOST, _RESTART) | {
    OUT_OF_MEMORY: "free memory, or use smaller batches; other processes, and the memory that PyTorch keeps "
    "(torch.cuda.empty_cache()), count as well",
    DEINITIALIZED: "the process is ending",
    34: f"the {LIBRARY} that was loaded is the stub of a toolkit: take its folder out of LD_LIBRARY_PATH",
    46: "another process uses the card exclusively (nvidia-smi shows its compute mode)",
    NO_DEVICE: "see whether nvidia-smi lists a card, whether CUDA_VISIBLE_DEVICES hides it, and, in a container, "
    "whether it was started with the cards",
    200: "the driver may be older than the code's compiler: install a newer driver",
    600: "wait for the event first",
    701: "the kernel needs more registers, threads or shared memory than a multiprocessor has",
    CONTEXT_IS_DESTROYED: "another library has reset the card: restart the process",
    720: "programs that wait for each other must be resident at once: launch fewer",
    802: "the machine is still starting the card's services (on systems with NVSwitch, the fabric manager)",
    803: "the driver's library and its kernel module differ in version: restart the machine",
    804: "the library of a compatibility package does not support this card: install a newer driver instead",
    999: "the driver's kernel modules may not be loaded (nvidia_uvm): see whether nvidia-smi works",
}

NON_BLOCKING = 1
"""Flag of a stream that does not wait for the legacy default stream (handle 0)."""
UNTIMED = 2
"""Flag of an event that has no time."""
PORTABLE = 1
"""Flag of host memory that is pinned for all cards."""
MULTIPROCESSORS, L2, MAJOR, MINOR, SHARED, POOLS = 16, 38, 75, 76, 97, 115
"""Attributes of a device; SHARED is the most that a block may opt in to."""
DYNAMIC_SHARED = 8
"""Attribute of a function: most bytes of dynamic shared memory that a launch may ask for."""
UNASKED_SHARED = 48 << 10
"""Bytes of shared memory up to which no function need ask."""
MEMORY_TYPE = 2
"""Attribute of an address."""
HOST, DEVICE = 1, 2
"""Values of MEMORY_TYPE."""
COOPERATIVE = 2
"""Attribute of a launch."""
THREAD_LOCAL = 1
"""Mode of a capture that forbids nothing to other threads."""


class KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2: a launch in a graph."""

    _fields_ = [
        ("func", c_void_p),
        *((name, c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("params", c_void_p),
        ("extra", c_void_p),
        ("kern", c_void_p),
        ("ctx", c_void_p),
    ]


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: the value is a union of 64 bytes, whose first int is all that is needed here."""

    _fields_ = [("id", c_int), ("pad", c_int), ("value", c_int), ("rest", c_int * 15)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig: a launch by itself."""

    _fields_ = [
        *((name, c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", c_void_p),
        ("attrs", POINTER(LaunchAttribute)),
        ("count", c_uint),
    ]


_ADDRESS = c_uint64
FIRST: dict[str, tuple[Any, ...]] = {
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}
"""Argument types of the functions that every driver has."""
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAllocAsync": (POINTER(_ADDRESS), c_size_t, c_void_p),
    "cuMemFreeAsync": (_ADDRESS, c_void_p),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, _ADDRESS, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, c_size_t, c_void_p),
    "cuPointerGetAttribute": (c_void_p, c_int, _ADDRESS),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernelEx": (POINTER(LaunchConfig), c_void_p, c_void_p, c_void_p),
    "cuGraphCreate": (POINTER(c_void_p), c_uint),
    "cuGraphAddKernelNode_v2": (POINTER(c_void_p), c_void_p, c_void_p, c_size_t, POINTER(KernelNodeParams)),
    "cuGraphAddChildGraphNode": (POINTER(c_void_p), c_void_p, c_void_p, c_size_t, c_void_p),
    "cuGraphAddEventRecordNode": (POINTER(c_void_p), c_void_p, c_void_p, c_size_t, c_void_p),
    "cuGraphKernelNodeSetAttribute": (c_void_p, c_int, c_void_p),
    "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_uint64),
    "cuGraphExecKernelNodeSetParams_v2": (c_void_p, c_void_p, POINTER(KernelNodeParams)),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphDestroy": (c_void_p,),
}
"""Argument types of the functions that a driver of the version NEEDED has."""


class LibCuda:
    """The loaded library, initialised. It serves the process that has loaded it, but no fork of that process.

    version: CUDA version that the driver supports, as 1000 times major plus 10 times minor
    """

    def __init__(self, loaded: Any):
        self._pid = os.getpid()
        self._functions: dict[str, Any] = {}
        self._bind(loaded, FIRST)
        version = c_int()
        self.call("cuDriverGetVersion", version)
        self.version = version.value
        if self.version < NEEDED:
            raise DeviceError(
                f"the NVIDIA driver supports CUDA {spell_version(self.version)}, but machine code of GPUs needs one of "
                f"CUDA {spell_version(NEEDED)} or later: install driver 525 or later"
            )
        self.call("cuInit", 0)
        self._bind(loaded, SIGNATURES)

    def _bind(self, loaded: Any, signatures: dict[str, tuple[Any, ...]]) -> None:
        for name, arguments in signatures.items():
            try:
                function = getattr(loaded, name)
            except AttributeError:
                raise DeviceError(
                    f"{LIBRARY} has no function {name}: the installation of the NVIDIA driver is damaged, or the "
                    f"library is not NVIDIA's; install the driver anew"
                ) from None
            function.argtypes, function.restype = arguments, c_int
            self._functions[name] = function

    def refuse_fork(self) -> None:
        """Raise DeviceError in a child that was forked after the library was loaded."""
        if os.getpid() != self._pid:
            raise DeviceError(
                "this process was forked from one that uses CUDA, which does not survive a fork: start processes by "
                "'spawn' or 'forkserver', or use the card in the child alone",
                NOT_INITIALIZED,
            )

    def result(self, name: str, *arguments: Any) -> int:
        """Call a function and return its result, for callers that expect failures. Raises DeviceError in a forked
        child."""
        self.refuse_fork()
        return self._functions[name](*arguments)

    def check(self, name: str, result: int, about: str = "", remedy: str = "") -> None:
        """Raise the error of a function's result, if it is one.

        Args:
            name: the function
            result: what it has returned
            about: what was to be done, as in "<name> <about> failed"
            remedy: what helps, where it is known better than from the result alone
        """
        if not result:
            return
        meaning = f"{self._text('cuGetErrorName', result)} ({self._text('cuGetErrorString', result)})"
        remedy = remedy or self._remedy(result)
        message = f"{' '.join(filter(None, (name, about)))} failed: {meaning}{remedy and '; '}{remedy}"
        raise OutOfMemoryError(message) if result == OUT_OF_MEMORY else DeviceError(message, result)

    def call(self, name: str, *arguments: Any, about: str = "") -> None:
        """Call a function. Raises DeviceError or OutOfMemoryError where it fails."""
        self.check(name, self.result(name, *arguments), about)

    def _text(self, function: str, result: int) -> str:
        """Return what the driver calls a result; drivers do not know those of later versions."""
        text = c_char_p()
        return str(result) if self.result(function, result, text) else (text.value or b"?").decode()

    def _remedy(self, result: int) -> str:
        if result == NOT_INITIALIZED and forks.is_forked():
            return "the process may be forked from one that uses CUDA, which does not survive a fork: use 'spawn'"
        return _REMEDIES.get(result, "")

    def new(self, name: str, *arguments: Any, about: str = "", kind: Any = c_void_p) -> int:
        """Call a function that returns a value, of a type of ctypes, through its first argument."""
        out = kind()
        self.call(name, out, *arguments, about=about)
        return out.value or 0


def spell_version(version: int) -> str:
    """Return a driver's CUDA version in the usual notation, as in "12.8"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _load() -> Any:
    """Load the library. Raises OSError."""
    return ctypes.CDLL(LIBRARY)


_lock = locks.lock()
_loaded: list[LibCuda] = []


def library() -> LibCuda:
    """Return the library, loaded at the first use. Raises DeviceError where there is none, or none that works, and in
    a forked child."""
    with _lock:
        if not _loaded:
            try:
                loaded = _load()
            except OSError as e:
                raise DeviceError(f"no NVIDIA driver is installed: {e}") from None
            _loaded.append(LibCuda(loaded))
        _loaded[0].refuse_fork()
        return _loaded[0]


def architecture(cubin: bytes) -> str | None:
    """Return the architecture that machine code was compiled for, as in "sm_90a". Return None if it is unknown.

    It is in the flags of the ELF header: in the lowest byte in version 7 of the binary interface, in the second one in
    version 8, which cards from compute capability 10.0 on have.
    """
    if len(cubin) < 64 or cubin[:4] != b"\x7fELF" or cubin[18:20] != b"\xbe\x00":  # EM_CUDA
        return None
    flags = int.from_bytes(cubin[48:52], "little")
    if cubin[8] == 7:
        return f"sm_{flags & 0xFF}{'a' * bool(flags & 0x800)}"
    return f"sm_{flags >> 8 & 0xFF}{'a' * bool(flags & 8)}" if cubin[8] == 8 else None
