"""Compiled functions on an AArch64 processor: this one, or the one that qemu emulates."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from einsmith.codegen.llvm import jit
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Function
from einsmith.cost.facts import Target
from tests.machines.jobs import Job

TARGET = Target(
    cpu="neoverse-n1", features="", triple="aarch64-unknown-linux-gnu", vector_bytes=16, vector_registers=32, cores=2
)
HERE = Path(__file__).parent
_NATIVE = platform.machine().lower() in ("aarch64", "arm64") and platform.system() == "Linux"


def compiler() -> str:
    """The C compiler for AArch64. Skips the test where there is none."""
    name = "gcc" if _NATIVE else "aarch64-linux-gnu-gcc"
    if shutil.which(name) is None:
        pytest.skip(f"{name} is missing (Debian: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross)")
    return name


def emulator() -> list[str]:
    """The command that runs a program. Skips the test where neither this processor nor qemu can."""
    if _NATIVE:
        return []
    for name in ("qemu-aarch64-static", "qemu-aarch64"):
        if shutil.which(name):
            return [name]
    pytest.skip("qemu-aarch64 is missing (Debian: apt install qemu-user-static)")


def _call(command: Sequence[str | Path], seconds: float = 300) -> None:
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{command[0]} ends with {done.returncode}: {done.stderr.strip() or done.stdout}"


def skip() -> None:
    """Skip the test where functions can be neither linked nor run."""
    compiler()
    emulator()


def link(
    folder: Path,
    main: str,
    functions: Sequence[Function],
    more: Sequence[bytes] = (),
    text: str = "",
    target: Target = TARGET,
) -> Path:
    """A program of tests/machines/`main`, the functions' code (a table of them), other objects, and lines of C."""
    gcc = compiler()
    code = emit_module(functions, target)
    parts = [jit.emit_object(code, target), *more]
    objects = []
    for n, data in enumerate(parts):
        objects.append(folder / f"part{n}.o")
        objects[-1].write_bytes(data)
    lines = ["#include <stdint.h>", "typedef void (*kernel)(void **, void *, int64_t);"]
    lines += [f"void {f.name}(void **, void *, int64_t);" for f in functions]
    lines += [f"const kernel einsmith_functions[] = {{{', '.join(f.name for f in functions)}}};", text]
    (folder / "table.c").write_text("\n".join(lines) + "\n")
    program = folder / "program"
    _call([gcc, "-O1", "-static", "-o", program, HERE / main, folder / "table.c", *objects, "-lm", "-lpthread"])
    return program


def start(program: Path, *arguments: Path) -> None:
    """Runs a program; fails unless it ends with 0."""
    _call([*emulator(), program, *arguments])


def execute(folder: Path, jobs: Sequence[Job], target: Target = TARGET) -> None:
    """Runs the jobs in one process; every function needs a name of its own. Fails where a kernel faults or writes
    outside of its buffers."""
    functions = list({f.name: f for job in jobs for f, _ in job.launches}.values())
    program = link(folder, "main.c", functions, target=target)
    where = {f.name: n for n, f in enumerate(functions)}
    with open(folder / "jobs", "wb") as file:
        file.write(np.int64(len(jobs)).tobytes())
        for job in jobs:
            head = [len(job.arrays), job.workspace, len(job.launches)]
            for f, tasks in job.launches:
                head += [where[f.name], tasks, f.scratch_bytes]
            file.write(np.array(head, np.int64).tobytes())
            for a in job.arrays:
                file.write(np.int64(a.nbytes).tobytes() + a.tobytes())
    start(program, folder / "jobs", folder / "results")
    data = (folder / "results").read_bytes()
    at = 0
    for job in jobs:
        for a in job.arrays:
            a[...] = np.frombuffer(data, a.dtype, a.size, at).reshape(a.shape)
            at += a.nbytes
    assert at == len(data)
