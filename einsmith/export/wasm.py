"""Link a library as a module of WebAssembly, and write the ES module that calls it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from einsmith.base import files
from einsmith.base.errors import CompileError
from einsmith.base.templates import render
from einsmith.export import exported
from einsmith.export.build import run_command
from einsmith.export.calls import ArrayArgument, LibraryCall

WEB = Path(__file__).parent / "web"
FLAGS = ("-std=c99", "-Os", "-fno-builtin", "-Wall", "-Wextra")
IMPORTS = ("pow", "sin", "cos", "fmod", "fmodf")
"""Functions of C's library that kernels call seldom; the ES module provides JavaScript's."""
STACK_BYTES = 1 << 20
_LIFE = ("create", "allocate", "tensor", "error")
_TRAINING = ("steps", "set", "get")


class Toolchain(NamedTuple):
    """Commands that compile C to an object file of WebAssembly and that link such files, up to their file names."""

    compile: Sequence[str]
    link: Sequence[str]


def toolchain(command: str | None) -> Toolchain:
    """Return the commands of a C compiler, `command` or one that this machine has, and of the linker wasm-ld.

    Raises CompileError where one of them is missing."""
    package = [sys.executable, "-m", "ziglang"] if importlib.util.find_spec("ziglang") else None
    zig = [command] if command and Path(command).name.startswith("zig") else package
    if command is not None and shutil.which(command) is None:
        raise CompileError(f"compiler={command!r} is not a command on the PATH; name clang or zig")
    linker = next((x for x in ("wasm-ld", *(f"wasm-ld-{n}" for n in range(25, 12, -1))) if shutil.which(x)), None)
    clang = command if command and zig != [command] else shutil.which("clang")
    if clang and (linker or zig) and zig != [command]:
        return Toolchain([clang, "--target=wasm32", "-msimd128", "-mbulk-memory"], _linker(linker, zig))
    if zig:
        features = "-mcpu=generic+simd128+bulk_memory"
        return Toolchain([*zig, "cc", "-target", "wasm32-freestanding", features], [*zig, "wasm-ld"])
    raise CompileError(
        "a module of WebAssembly is compiled by clang and linked by wasm-ld, and this machine lacks "
        f"{'wasm-ld' if clang else 'clang' if linker else 'both'}; install the Python package ziglang, which has both "
        "(pip install ziglang), or Debian's packages clang and lld, or pass link=False to get the object file of the "
        "kernels and the source"
    )


def _linker(command: str | None, zig: Sequence[str] | None) -> list[str]:
    return [command] if command else [*(zig or ()), "wasm-ld"]


def link(tools: Toolchain, folder: Path, name: str, kernels: Path, functions: Iterable[str]) -> None:
    """Make NAME.wasm from NAME.c and the kernels' object file. functions: names of the exported functions. Raises
    CompileError with the compiler's message."""
    runtime, imports = folder / f"{name}_runtime.o", folder / f"{name}_imports.txt"
    files.write(imports, "\n".join(IMPORTS) + "\n")
    run_command([*tools.compile, *FLAGS, "-c", f"{name}.c", "-o", runtime.name], folder)
    options = ["--no-entry", "--gc-sections", "--strip-all", "-z", f"stack-size={STACK_BYTES}", "--stack-first"]
    exports = [f"--export={f}" for f in functions]
    objects = [runtime.name, kernels.name, "-o", f"{name}.wasm"]
    run_command([*tools.link, *options, f"--allow-undefined-file={imports.name}", *exports, *objects], folder)
    for part in (runtime, imports):
        part.unlink()


def public_functions(name: str, calls: Sequence[LibraryCall], trains: bool, reports: bool) -> list[str]:
    """Return the names of the functions that a module exports."""
    own = (*_LIFE, *(_TRAINING if trains else ()), *(["reports"] if reports else []))
    return [*(f"{name}_{f}" for f in own), *(c.function for c in calls)]


def write_module(folder: Path, name: str, manifest: Mapping[str, Any], calls: Sequence[LibraryCall]) -> None:
    """Write NAME.js, which loads and calls NAME.wasm, its types NAME.d.ts, and the example index.html."""
    kept = ("name", "functions", "tensors", "aliases", "settings", "reports", "checks", "predicted_seconds")
    facts = {k: manifest[k] for k in kept if k in manifest}
    facts["trains"] = any(c.role == exported.TRAIN for c in calls)
    title = f"{name}: {manifest['what']}, compiled by Einsmith {manifest['einsmith']} to WebAssembly."
    fields = {"name": name, "what": manifest["what"], "title": title.replace("*/", "* /")}
    for template, file in (("module.js", f"{name}.js"), ("index.html", "index.html")):
        text = files.read_text(WEB / template)
        for key, value in fields.items():
            text = text.replace(f"__{key.upper()}__", value)
        files.write(folder / file, text.replace("__MANIFEST__", json.dumps(facts)))
    files.write(folder / f"{name}.d.ts", declarations(name, calls))


def declarations(name: str, calls: Sequence[LibraryCall]) -> str:
    """Return the TypeScript declarations of NAME.js."""
    ordered = sorted(calls, key=lambda call: [c.role for c in calls].index(call.role))
    return render(WEB / "module.d.ts", name=name, calls=ordered, type_of=_type, result_of=_result)


def _result(call: LibraryCall) -> str:
    """Return the type of a function's result in TypeScript."""
    results = [_type(r) for r in call.results] or ["number"]
    return results[0] if len(results) == 1 else f"[{', '.join(results)}]"


def _type(a: ArrayArgument) -> str:
    """Return the typed array of TypeScript that holds an argument's elements."""
    names = {
        "f64": "Float64Array",
        "f32": "Float32Array",
        "i64": "BigInt64Array",
        "i32": "Int32Array",
        "i16": "Int16Array",
        "i8": "Int8Array",
        "f16": "Uint16Array",
        "bf16": "Uint16Array",
    }
    return names.get(a.dtype.name, "Uint8Array")
