"""Compile Triton kernels to machine code in a process of its own.

The process is given this file by its path and imports nothing of Einsmith, so that it starts fast.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_PROBLEM: Exception | None = None
"""The reason why Triton cannot be imported, which answers the first request; a process that ended at once could not
report it."""
try:
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
except Exception as e:  # a damaged installation raises anything
    _PROBLEM = e


class TritonCompiler:
    """The server (`base.servers`) that compiles for one kind of device."""

    def begin(self, folder: str, capability: tuple[int, int], options: dict[str, Any]) -> None:
        """Set the target.

        Args:
            folder: an existing folder for files that are not needed any more when the process ends
            capability: the device's compute capability, major and minor
            options: options of Triton that hold for every kernel
        """
        if _PROBLEM is not None:
            raise _PROBLEM
        # As are Triton's own, variables of LLVM that change what is made are hidden from it.
        for name in get_cache_invalidating_env_vars():
            os.environ.pop(name, None)
        tempfile.tempdir = triton.knobs.cache.dir = folder
        triton.knobs.compilation.disable_line_info = True
        self.target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
        self.options = options
        self.reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

    def compile(self, text: str, name: str, signature: tuple[str, ...], warps: int, stages: int) -> dict[str, Any]:
        """Return the machine code of a function of a text, and the resources that it takes, by name.

        Raises RuntimeError with Triton's reason where it refuses the function.
        """
        types = [t.partition(":") for t in signature]
        aligned = {(n,): [["tt.divisibility", int(end)]] for n, (_, _, end) in enumerate(types) if end}
        arguments = {f"p{n}": start for n, (start, _, _) in enumerate(types)}
        options = {"num_warps": warps, "num_stages": stages, **self.options}
        try:
            source = ASTSource(_function(text, name), arguments, {}, aligned)
            compiled = triton.compile(source, target=self.target, options=options)
        except Exception as e:
            raise RuntimeError(_explain(e)) from e
        finally:
            linecache.clearcache()
        registers, stack = self._resources(compiled.asm["cubin"])
        return {
            "cubin": compiled.asm["cubin"],
            "name": compiled.metadata.name,
            "shared": compiled.metadata.shared,
            "registers": registers,
            "stack": stack,
            "scratch": compiled.metadata.global_scratch_size + compiled.metadata.profile_scratch_size,
        }

    def _resources(self, cubin: bytes) -> tuple[int, int]:
        """Return the registers and the bytes of local memory of a thread."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            command = [str(self.reader), "-res-usage", file.name]
            shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        use = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", shown)
        if use is None:
            raise RuntimeError(f"cuobjdump does not tell of registers: {shown}")
        return int(use[1]), int(use[2]) + int(use[3])


def _function(text: str, name: str) -> Any:
    """Return the function that a source text defines. Triton looks for its source, and for the functions that it calls
    by their module."""
    file = f"<kernels {hashlib.sha256(text.encode()).hexdigest()[:24]}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    space: dict[str, Any] = {"__name__": "einsmith_kernels"}
    exec(compile(text, file, "exec"), space)
    return space[name]


def _explain(e: BaseException) -> str:
    """Return the text of an error of Triton, whose last line says what is wrong: the text of its first cause and, of
    the assembler, whose text ends with advice, once more the first error."""
    while e.__cause__ is not None:
        e = e.__cause__
    lines = str(e).rstrip().splitlines() or [type(e).__name__]
    of_assembler = [line for line in lines if line.startswith("ptxas") and ("error" in line or "fatal" in line)]
    return "\n".join([*lines, *of_assembler[:1]])
