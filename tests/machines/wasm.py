"""Compiled functions on the virtual machine of WebAssembly, by wasmtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.cost.facts import Target
from einsmith.export import wasm
from einsmith.export.build import run_command
from einsmith.export.processors import find_processor
from tests.export.wasm_module import library, skip_without_tools
from tests.machines.jobs import Job

TARGET = find_processor("wasm", 1).target
FREE = 1 << 20
"""First byte after the stack."""
GAP = 512
"""Bytes between buffers."""
BESIDE, UNSET = 0xA5, 0xFF
"""Bytes beside buffers, and of memory that nobody has written."""

skip = skip_without_tools


def execute(folder: Path, jobs: Sequence[Job], target: Target | None = None) -> None:
    """Run the jobs in one module; every function needs a name of its own. Fails where a kernel faults or writes
    outside of its buffers."""
    import wasmtime as w

    functions = list({f.name: f for job in jobs for f, _ in job.launches}.values())
    (folder / "kernels.o").write_bytes(jit.emit_object(emit_module(functions, target or TARGET), target or TARGET))
    (folder / "imports").write_text("\n".join(wasm.IMPORTS))
    options = ["--no-entry", "--stack-first", "-z", f"stack-size={FREE}", "--allow-undefined-file=imports"]
    exports = [f"--export={f.name}" for f in functions]
    run_command([*wasm.toolchain(None).link, *options, *exports, "kernels.o", "-o", "kernels.wasm"], folder)
    config = w.Config()
    config.wasm_relaxed_simd = True
    store = w.Store(w.Engine(config))
    module = w.Module.from_file(store.engine, str(folder / "kernels.wasm"))
    instance = w.Instance(store, module, [w.Func(store, i.type, library(i.name)) for i in module.imports])
    exported = instance.exports(store)
    memory = exported["memory"]
    start = memory.data_len(store)  # behind constants
    for n, job in enumerate(jobs):
        scratch = max((f.scratch_bytes for f, _ in job.launches), default=0)
        parts = [a.tobytes() for a in job.arrays]
        parts += [bytes([UNSET]) * job.workspace, bytes([UNSET]) * scratch]
        image, places = bytearray(), []
        for part in parts:
            image += bytes([BESIDE]) * (GAP + -len(image) % 64)
            places.append(start + len(image))
            image += part
        image += bytes([BESIDE]) * GAP
        table = start + len(image)
        image += np.array(places[:-1], np.uint64).tobytes()
        missing = start + len(image) - memory.data_len(store)
        if missing > 0:
            memory.grow(store, -(-missing // 65536))
        memory.write(store, bytes(image), start)
        for f, tasks in job.launches:
            for task in range(tasks):
                exported[f.name](store, table, places[-1], task)
        after = bytes(memory.read(store, start, start + len(image)))
        _check_beside(after, [(at - start, len(part)) for at, part in zip(places, parts, strict=True)], n)
        for a, at in zip(job.arrays, places, strict=False):
            a[...] = np.frombuffer(after, a.dtype, a.size, at - start).reshape(a.shape)


def _check_beside(image: bytes, buffers: Sequence[tuple[int, int]], job: int) -> None:
    """Fail where a byte beside buffers, which are (first byte, bytes), is not as it was."""
    end = 0
    for at, nbytes in buffers:
        assert image[end:at] == bytes([BESIDE]) * (at - end), f"job {job} ends with stores beside a buffer"
        end = at + nbytes
    assert image[end : end + GAP] == bytes([BESIDE]) * GAP, f"job {job} ends with stores beside a buffer"
