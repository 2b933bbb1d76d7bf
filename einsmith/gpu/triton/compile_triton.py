"""Compile Triton kernels to machine code, ahead of their launch and without a device.

Triton runs in worker processes, one for each core. Machine code is kept on disk (`codegen.cache.objects`), where Triton
is not needed again.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import queue
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from einsmith.base import environment, files, messages, recording
from einsmith.base.errors import CompileError, DeviceError
from einsmith.base.system import processors
from einsmith.base.threads import submit
from einsmith.base.workers import Failed, Lost, Worker
from einsmith.codegen.cache import objects
from einsmith.codegen.cache.objects import CachedObject
from einsmith.gpu.triton.binary import OPTIONS, Binary, TritonSource

VERSION = "3.6.0"
"""The version of Triton that compiles: others understand other texts and make other code."""
LIMIT = 600.0
"""Most seconds that a kernel takes. It takes about one; a text whose tiles are much too large may take forever."""
_WORKER = Path(__file__).with_name("compile_server.py")
_SERVER = f"{_WORKER}:TritonCompiler"
_REMEDY = "run pip install 'einsmith[gpu]'"


def missing() -> str | None:
    """Return why Triton cannot be used, and the remedy; None where it can."""
    if sys.platform != "linux":
        return f"kernels for GPUs are compiled by Triton, which runs on Linux and not on {sys.platform}"
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return f"kernels for GPUs are compiled by Triton, which is not installed; {_REMEDY}"
    if version != VERSION:
        return f"kernels for GPUs are compiled by Triton {VERSION}, and {version} is installed; {_REMEDY}"
    return None


def compile_sources(sources: Sequence[TritonSource], capability: tuple[int, int]) -> list[Binary]:
    """Return the machine code of each source, for devices of a compute capability (major, minor).

    Each distinct source that is not on disk is compiled once. Raises DeviceError where Triton cannot be used, and
    CompileError where it refuses a kernel.
    """
    keys = {source: _key(source, capability) for source in sources}
    codes = {source: code for source, key in keys.items() if (code := _read(key)) is not None}
    absent = {source: key for source, key in keys.items() if source not in codes}
    if absent:
        start = time.perf_counter()
        with recording.phase("Triton", kernels=len(absent)):
            codes |= _compile(absent, capability)
        if environment.debug() >= 1:
            seconds = time.perf_counter() - start
            messages.say(f"einsmith: compiled {len(absent)} kernels for a GPU in {seconds:.2f} s")
    return [codes[source] for source in sources]


def _key(source: TritonSource, capability: tuple[int, int]) -> str:
    parts = ("triton", VERSION, repr(OPTIONS), repr(capability), repr(tuple(source)))
    # Of Einsmith, machine code depends on the worker alone: the text is all that the rest has to say.
    return objects.name_of(*(part.encode() for part in parts), sources=files.read_bytes(_WORKER))


def _read(key: str) -> Binary | None:
    entry = objects.read(key)
    return None if entry is None else Binary(entry.code, entry.names[0], **entry.metadata)


def _write(key: str, code: Binary) -> None:
    resources = {k: v for k, v in code._asdict().items() if k not in ("cubin", "name")}
    objects.write(key, CachedObject(code.cubin, (code.name,), resources))


def _compile(keys: Mapping[TritonSource, str], capability: tuple[int, int]) -> dict[TritonSource, Binary]:
    """Compile sources in worker processes, and store each one's code under its key. An error ends the processes."""
    if (reason := missing()) is not None:
        raise DeviceError(reason)
    count = min(processors.physical_cores(), len(keys))
    # Triton's own variables would change what it makes, and are not part of the key of the cache.
    workers = [Worker(_SERVER, limit=LIMIT, hidden="TRITON_") for _ in range(count)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()

    def compile_one(source: TritonSource) -> Binary:
        worker = idle.get()
        try:
            return _ask(worker, source)
        finally:
            idle.put(worker)

    out: dict[TritonSource, Binary] = {}
    with tempfile.TemporaryDirectory(prefix="einsmith-") as folder:
        for worker in workers:
            worker.set_up(folder, capability, OPTIONS)
            idle.put(worker)
        try:
            # A process ends with the thread that has started it, which is one of the pool.
            with ThreadPoolExecutor(count) as pool:
                futures = {source: submit(pool, compile_one, source) for source in keys}
                try:
                    for source, future in futures.items():
                        out[source] = future.result()
                        _write(keys[source], out[source])
                finally:
                    for future in futures.values():
                        future.cancel()
                    for worker in workers:
                        worker.kill()
        finally:
            for worker in workers:
                worker.close()
    return out


def _ask(worker: Worker, source: TritonSource) -> Binary:
    """Compile a source in a worker. A worker that dies is replaced once, because one of many may have run out of
    memory."""
    try:
        try:
            compiled = _request(worker, source)
        except Lost:
            compiled = _request(worker, source)
    except Lost as e:
        raise CompileError(f"Triton compiles the kernel {source.name} in a process that was lost twice: {e}") from e
    except OSError as e:
        raise CompileError(f"Triton compiles the kernel {source.name} in a process that cannot be started: {e}") from e
    if scratch := compiled.pop("scratch"):
        raise CompileError(
            f"the kernel {source.name} needs {scratch} bytes of scratch memory, which launches do not give"
        )
    return Binary(warps=source.warps, **compiled)


def _request(worker: Worker, source: TritonSource) -> dict[str, Any]:
    try:
        worker.start()
    except Failed as e:
        raise DeviceError(f"Triton {VERSION} cannot be imported: {e}; {_REMEDY}") from e
    try:
        return worker.ask("compile", *source)
    except Failed as e:
        raise CompileError(f"Triton refuses the kernel {source.name}: {str(e).splitlines()[-1]}") from e
