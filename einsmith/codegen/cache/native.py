"""Compile functions to machine code in this process, through the cache on disk.

`compile_functions` is keyed by the LLVM IR text. `compile_many` is keyed by what the caller
knows beforehand (a kernel's digest and configuration), so that a warm process neither lowers a kernel nor builds text.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from einsmith.base import environment, locks, messages, recording
from einsmith.base.system import processors
from einsmith.codegen.cache import build, objects
from einsmith.codegen.cache.objects import CachedObject
from einsmith.codegen.llvm import jit, tile_registers
from einsmith.codegen.llvm.dot_products import find_instruction
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.llvm.jit import Address, Code, Machine
from einsmith.codegen.loopnest.dots import DOTS
from einsmith.codegen.loopnest.nest import Function
from einsmith.cost import facts
from einsmith.cost.facts import Target


class NativeCode(NamedTuple):
    """Addresses of functions by name, in the order they were given, the metadata stored with them, and the bytes of
    their object code. The code stays in memory as long as one of the addresses is referenced."""

    addresses: dict[str, Address]
    metadata: dict[str, Any]
    nbytes: int


TILE_RATE = 9.0
"""Vectors of 16 words that tile registers multiply and add per clock cycle, operands loaded from L1 and L2: 700 billion
multiply-adds of bfloat16 a second at 2.34 GHz (a core of an Emerald Rapids)."""

Maker = Callable[[], tuple[Sequence[Function], dict[str, Any]]]
"""Function that lowers a kernel: returns its functions, and a small dictionary that JSON can hold (task counts, bytes
of scratch, ...)."""

_loaded: WeakValueDictionary[str, Code] = WeakValueDictionary()
_lock = locks.lock()


@cache
def host_target() -> Target:
    """Return this machine as a target: its hardware facts, and the names by which LLVM knows it."""
    cpu, features, triple = jit.host()
    known = jit.list_features(Machine(cpu, features, triple, 0))
    target = dataclasses.replace(facts.host(cpu, known), cpu=cpu, features=features, triple=triple)
    dots = (name for name in DOTS if find_instruction(name, target.lanes(), known))
    tiles = tuple((x, TILE_RATE) for x in tile_registers.NAMES if tile_registers.has_tiles(x, known))
    return dataclasses.replace(
        target,
        dots=tuple((name, target.multiplies) for name in dots),
        tiles=tiles if tiles and processors.permit_tile_registers() else (),
    )


def compile_functions(functions: Sequence[Function], target: Any) -> dict[str, Address]:
    """Compile functions; return their addresses by name, which keep the code in memory. Each function is one object,
    so that equal functions are shared.

    Raises CompileError where a function has no native form.
    """
    out: dict[str, Address] = {}
    for f in functions:
        out.update(compile_text(emit_module([f], target), [f.name], target).addresses)
    return out


def compile_text(text: str, names: Sequence[str], target: Any, opt: int = jit.OPT) -> NativeCode:
    """Compile LLVM IR text at a code generation level; return the addresses of the named functions."""
    key = digest(b"text", text.encode(), target, opt)
    loaded = _find(key)
    return loaded or _keep(key, CachedObject(_object(text, names, target, opt), tuple(names), {}))


def compile_many(
    items: Sequence[tuple[bytes, Maker]], target: Any, prepare: Callable[[Sequence[int]], None] | None = None
) -> list[NativeCode]:
    """Return the compiled functions of each (key, make); worker processes share the work where many are missing.

    `make` is called only if no code is cached under its key, which must determine the functions (with Einsmith's
    sources, the CPU and LLVM, which are added here).
    `prepare` is called with the numbers of the missing items before the first of them is lowered."""
    keys = [digest(b"kernel", key, target) for key, _ in items]
    codes = {key: _find(key) for key in dict.fromkeys(keys)}
    missing = {key: make for key, (_, make) in zip(keys, items, strict=True) if codes[key] is None}
    start = time.perf_counter()
    if missing:
        if prepare is not None:
            with recording.phase("choose configurations", kernels=len(missing)):
                prepare([n for n, key in enumerate(keys) if key in missing])
        for key, entry in build.build(missing, target):
            codes[key] = _keep(key, entry)
        if environment.debug() >= 1:
            seconds = time.perf_counter() - start
            messages.say(f"einsmith: compiled {len(missing)} kernels in {seconds:.2f} s")
    return [codes[key] for key in keys]  # type: ignore[misc]


def digest(kind: bytes, key: bytes, target: Any, opt: int = jit.OPT) -> str:
    """Return the name of a cache entry, a digest of everything that the object code depends on."""
    machine = jit.resolve(target)
    # A pattern may look at any fact of the target, so all are part of the key.
    parts = (kind, key, *machine[:3], repr(target), jit.VERSION, f"O{opt}")
    return objects.name_of(*(part.encode() if isinstance(part, str) else part for part in parts))


def _find(key: str) -> NativeCode | None:
    """Return code that is loaded already or cached on disk; None where there is none."""
    with _lock:
        code = _loaded.get(key)
    if code is not None:
        return _to_native(code)
    entry = objects.read(key)
    return None if entry is None else _load(key, entry)


def _load(key: str, entry: CachedObject) -> NativeCode:
    code = jit.load(entry.code, entry.names, entry.metadata)
    with _lock:
        return _to_native(_loaded.setdefault(key, code))


def _to_native(code: Code) -> NativeCode:
    return NativeCode(code.addresses(), code.metadata, code.nbytes)


def _keep(key: str, entry: CachedObject) -> NativeCode:
    out = _load(key, entry)
    objects.write(key, entry)
    return out


def _object(text: str, names: Sequence[str], target: Any, opt: int) -> bytes:
    """Compile a text to object code, printing the text first at EINSMITH_DEBUG >= 5."""
    if environment.debug() >= 5:
        messages.say(f"; {', '.join(names)}\n{text}")
    return jit.emit_object(text, target, opt)
