"""Find a C compiler, compile a library's run time and link it with the object file of the library's kernels."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from einsmith.base.errors import CompileError

_SECONDS = 300
FLAGS = ("-std=c99", "-O2", "-fPIC", "-fvisibility=hidden")


def compiler(arch: str, command: str | None) -> list[str]:
    """Return the command of a C compiler for a family of processors, `command` or one that this machine has.

    Raises CompileError where there is none."""
    if command is not None:
        if shutil.which(command) is None:
            raise CompileError(f"compiler={command!r} is not a command on the PATH; name a C compiler for {arch}")
        return [command]
    here = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    own = ["cc", "gcc", "clang"] if arch == here else [f"{arch.replace('_', '-')}-linux-gnu-gcc"]
    for name in (*own, f"{arch}-linux-gnu-gcc"):
        if shutil.which(name):
            return [name]
    package = "gcc" if arch == here else f"gcc-{arch.replace('_', '-')}-linux-gnu"
    raise CompileError(
        f"no C compiler for {arch} was found ({', '.join(own)}) to link the library; install one (Debian: apt "
        f"install {package}), name one with compiler=, or pass link=False to get the object file of the kernels and "
        "the source to compile elsewhere"
    )


def link(command: Sequence[str], folder: Path, name: str, kernels: Path) -> None:
    """Make NAME.o and libNAME.so from NAME.c and the kernels' object file. Raises CompileError with the compiler's
    message."""
    runtime = folder / f"{name}_runtime.o"
    whole, shared = folder / f"{name}.o", folder / f"lib{name}.so"
    run_command([*command, *FLAGS, "-Wall", "-Wextra", "-c", f"{name}.c", "-o", runtime.name], folder)
    run_command([*command, "-r", "-nostdlib", "-o", whole.name, runtime.name, kernels.name], folder)
    run_command(
        [*command, "-shared", f"-Wl,-soname,{shared.name}", "-o", shared.name, whole.name, "-lpthread", "-lm"], folder
    )
    runtime.unlink()


def run_command(command: Sequence[str], folder: Path) -> None:
    """Run a compiler in a folder. Raises CompileError with its message."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise CompileError(f"the C compiler {command[0]} cannot be run: {e}") from e
    if done.returncode:
        raise CompileError(
            f"the C compiler {command[0]} failed with status {done.returncode}: {done.stderr.strip()[-2000:]}"
        )
