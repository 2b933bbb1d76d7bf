"""Provide native helpers of checked runs: a runner of single tasks and a handler of segmentation faults, which Linux
and macOS have.

The runner runs tasks one by one on scratch that is poisoned before each. The handler notes the address, opens the page
and resumes the code, so that an access to a forbidden page becomes an error that names it instead of the end of the
process.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from einsmith.base import locks
from einsmith.base.errors import CheckError
from einsmith.base.system.sources import system
from einsmith.codegen.cache import native

NAMES = ("einsmith_each", "einsmith_trap", "einsmith_trap_state")
_PLACE = 64
"""Byte of the state at which the actions begin that the handler has replaced, one for each signal."""


class FaultSignals(NamedTuple):
    """How a system tells of an access to a forbidden page (signal.h).

    signals: those that it sends; address_at: byte of siginfo_t that has the address; action: bytes of struct sigaction;
    flags_at: byte of its flags; flags: SA_SIGINFO, SA_ONSTACK and SA_NODEFER."""

    signals: tuple[int, ...]
    address_at: int
    action: int
    flags_at: int
    flags: int


LINUX = FaultSignals((11,), 16, 152, 136, 0x4 | 0x08000000 | 0x40000000)  # SIGSEGV
MACOS = FaultSignals((11, 10), 24, 16, 12, 0x40 | 0x1 | 0x10)  # SIGSEGV, SIGBUS


def fault_signals() -> FaultSignals:
    """Return how this system tells of accesses to forbidden pages. Raises CheckError on other systems than Linux and
    macOS."""
    known = {"linux": LINUX, "darwin": MACOS}.get(system())
    if known is None:
        raise CheckError(
            "EINSMITH_CHECK and searches run kernels on guarded pages, of which only Linux and macOS tell; unset it, "
            "and search there"
        )
    return known


_BODY = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @einsmith_fp_enter()
declare void @einsmith_fp_leave(i64)
declare i32 @mprotect(ptr, i64, i32)
declare i32 @sigaction(i32, ptr, ptr)

; low, high, first address that was touched, and the actions before this one
@state = internal global [32 x i64] zeroinitializer, align 64

define ptr @einsmith_trap_state() #0 {
  ret ptr @state
}

define void @einsmith_each(ptr %f, ptr %buffers, ptr %scratch, i64 %bytes, i64 %tasks, i64 %down, i64 %fill) #0 {
entry:
  %fp = call i64 @einsmith_fp_enter()
  %byte = trunc i64 %fill to i8
  %reverse = icmp ne i64 %down, 0
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %do ]
  %more = icmp ult i64 %k, %tasks
  br i1 %more, label %do, label %out
do:
  %left = sub i64 %tasks, %k
  %last = sub i64 %left, 1
  %task = select i1 %reverse, i64 %last, i64 %k
  call void @llvm.memset.p0.i64(ptr %scratch, i8 %byte, i64 %bytes, i1 false)
  call void %f(ptr %buffers, ptr %scratch, i64 %task)
  %k1 = add i64 %k, 1
  br label %head
out:
  call void @einsmith_fp_leave(i64 %fp)
  ret void
}

define void @einsmith_trap(i32 %signal, ptr %info, ptr %context) #0 {
entry:
  %p = getelementptr i8, ptr %info, i64 {address_at}
  %at = load i64, ptr %p, align 8
  %low = load i64, ptr @state, align 8
  %high_at = getelementptr i64, ptr @state, i64 1
  %high = load i64, ptr %high_at, align 8
  %above = icmp uge i64 %at, %low
  %below = icmp ult i64 %at, %high
  %ours = and i1 %above, %below
  br i1 %ours, label %note, label %theirs
note:
  %first = getelementptr i64, ptr @state, i64 2
  %swap = cmpxchg ptr %first, i64 0, i64 %at seq_cst seq_cst
  %page = and i64 %at, -{page}
  %page_at = inttoptr i64 %page to ptr
  %r = call i32 @mprotect(ptr %page_at, i64 {page}, i32 3)
  ret void
theirs:
{restore}
  ret void
}

attributes #0 = { nounwind }
"""


class TrapHelpers(NamedTuple):
    """The compiled helpers: their addresses by name, and the words that they share."""

    each: Callable[..., None]
    trap: int
    state: Any
    addresses: Mapping[str, int]  # they keep the code in memory


@cache
def _native() -> TrapHelpers:
    of, target = fault_signals(), native.host_target()
    text = emit_helpers(target.triple, of, mmap.PAGESIZE)
    addresses = native.compile_text(text, NAMES, target).addresses
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    each = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, word, word, word, word)(addresses[NAMES[0]])
    state = ctypes.CFUNCTYPE(pointer)(addresses[NAMES[2]])()
    return TrapHelpers(each, addresses[NAMES[1]], (ctypes.c_uint64 * 32).from_address(state), addresses)


def emit_helpers(triple: str, of: FaultSignals, page: int) -> str:
    """Return the helpers' LLVM text. page: the system's page size in bytes."""
    restore = "\n".join(
        f"  %old{n} = getelementptr i8, ptr @state, i64 {_PLACE + n * of.action}\n"
        f"  %q{n} = call i32 @sigaction(i32 {signal}, ptr %old{n}, ptr null)"
        for n, signal in enumerate(of.signals)
    )
    body = _BODY.replace("{page}", str(page)).replace("{address_at}", str(of.address_at))
    return f'target triple = "{triple}"\n' + body.replace("{restore}", restore)


LOCK = locks.Awaited("in a checked run")
"""The lock of checked runs: one at a time, as the handler knows one guarded range."""


def run_each(f: int, buffers: int, scratch: int, nbytes: int, tasks: int, down: bool, fill: int) -> None:
    """Run the tasks 0 .. tasks-1 of the function at `f`, downward if `down`, with scratch filled with the byte `fill`
    before each."""
    _native().each(f, buffers, scratch, nbytes, tasks, down, fill)


@contextmanager
def trap_accesses(low: int, high: int) -> Iterator[Callable[[], int]]:
    """Record accesses to forbidden pages in low .. high inside the `with` block. The yielded function returns the first
    such address, or 0."""
    of, helpers = fault_signals(), _native()
    sigaction = ctypes.CDLL(None).sigaction
    action = ctypes.create_string_buffer(of.action)
    struct.pack_into("=Q", action, 0, helpers.trap)
    struct.pack_into("=I", action, of.flags_at, of.flags)
    helpers.state[0], helpers.state[1], helpers.state[2] = low, high, 0
    before = [ctypes.byref(helpers.state, _PLACE + n * of.action) for n in range(len(of.signals))]
    if any([sigaction(signal, action, old) for signal, old in zip(of.signals, before, strict=True)]):
        raise CheckError("the system does not let a handler of segmentation faults be set")
    try:
        yield lambda: int(helpers.state[2])
    finally:
        for signal, old in zip(of.signals, before, strict=True):
            sigaction(signal, old, None)
