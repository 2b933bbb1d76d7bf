"""Export a training step or a function of tensors as a library, or a module of WebAssembly, that needs neither Python
nor a compiler: es.export.

The kernels and the native entry are LLVM's object code, as in this process. The code around them (memory, threads,
files, the counters of a step) is C, `runtime/*.c`, followed by the library's tables as data: a C compiler links the
library anyway, and C can be read. Without a compiler, the object file of the kernels and the C source are exported.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any

from einsmith.api.jit import Jitted
from einsmith.api.settings import DEFAULTS
from einsmith.base import VERSION, environment, files, folders
from einsmith.base.arguments import Count, check_arguments, describe, refuse_torch, show
from einsmith.base.arrays import detached
from einsmith.base.errors import ArgumentError, CheckError, SaveError
from einsmith.base.trees import map_tree
from einsmith.cost.facts import MAX_THREADS
from einsmith.driver import registry
from einsmith.export import build, traces, wasm
from einsmith.export.calls import calls
from einsmith.export.exported import ExportSubject
from einsmith.export.header import header
from einsmith.export.processors import Processor, find_processor, of_target
from einsmith.export.relocatable import Portable
from einsmith.export.source import LibrarySource, saved_tensors, weights
from einsmith.runtime.thread_count import get_threads
from einsmith.tracing import trace
from einsmith.training import TrainStep
from einsmith.training.manifest import has_format

FORMAT, FORMAT_VERSION = "einsmith-export", 1
MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"
_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_SYSTEM = frozenset(
    "assert complex ctype dlfcn errno fcntl fenv float inttypes limits locale math pthread sched semaphore setjmp "
    "signal stdarg stdatomic stdbool stddef stdint stdio stdlib string strings tgmath threads time unistd wchar wctype "
    "c dl gcc m rt stdc util f r w x".split()
)
"""Names that a library cannot have: those of the system's headers, libraries or constants (F_OK)."""


@check_arguments
def export(
    what: Any,
    folder: Any,
    *example: Any,
    name: str | None = None,
    target: str = "host",
    threads: Annotated[int, 1, MAX_THREADS] | None = None,
    schedule: Count | None = None,
    compiler: str | None = None,
    link: bool = True,
    overwrite: bool = False,
) -> Path:
    """Write `what` into a new folder as a library for C, and return the folder, which holds NAME.h, NAME.o, libNAME.so,
    weights.safetensors and manifest.json; for WebAssembly NAME.wasm, NAME.js, NAME.d.ts and index.html in the place of
    the first three. Run time needs neither Python, nor LLVM, nor a compiler.

    what: a TrainStep, exported with its training step, evaluation and prediction, or a function of tensors, jitted or
    not; results equal those in Python bit for bit, but for sums of bfloat16 where Python's use AMX. example: a batch
    (inputs..., target), or the function's arguments; shapes and types of arrays matter. Without one, a step is exported
    for all batch shapes that it is compiled for (TrainStep.compile). name: name of the library, by default the model's
    or the function's. target: processor to run on, "host" for this machine, else x86-64 to x86-64-v4 or aarch64; the
    library refuses a processor that lacks a feature; or "wasm", WebAssembly 2.0, or "wasm-relaxed", which multiplies
    and adds in one instruction of WebAssembly 3.0. threads: the library's threads, by default the step's; of
    WebAssembly one. schedule: number of steps for which hyperparameters that are callables of the step are tabulated.
    compiler: the C compiler that links, by default cc, gcc or clang, for WebAssembly clang with wasm-ld, or zig;
    link=False: write NAME_kernels.o, NAME.c and NAME.h, to be compiled elsewhere, and no library. overwrite: replace
    the files of an export; others in its folder stay.

    Raises ArgumentError where shapes are not known or something cannot be exported, CompileError where there is no
    compiler, SaveError where the folder exists; the folder is then as it was.
    """
    example = map_tree(detached, example)
    place = _folder(folder, overwrite)
    if environment.check_level():
        raise CheckError("EINSMITH_CHECK checks only programs of this process, no exported ones; unset it")
    refuse_torch(what, "the object to export")
    if not callable(what) or isinstance(what, type):
        raise ArgumentError(f"{_show(what)} is neither a TrainStep nor a function; only these can be exported")
    if isinstance(what, TrainStep):
        settings = what.compilation
    else:
        settings = what.settings if isinstance(what, Jitted) else DEFAULTS
    is_wasm = isinstance(target, str) and target.startswith("wasm")
    count = threads or (1 if is_wasm else settings.threads or get_threads())
    processor = of_target(registry.DEFAULT.target(count)) if target == "host" else find_processor(target, count)
    if processor.is_wasm and count > 1:
        raise ArgumentError(f"threads={count}: a module of WebAssembly has one thread")
    command: list[str] | wasm.Toolchain | None = None
    if link:
        command = wasm.toolchain(compiler) if processor.is_wasm else build.compiler(processor.arch, compiler)
    if isinstance(what, TrainStep):
        with what.store.guard:  # a consistent state between two steps of other threads
            subject = traces.of_step(what, example, count, schedule)
            state = weights(subject)
    else:
        subject = traces.of_function(what, example, count)
        state = weights(subject)
    called = _name(name, subject.name)
    library = CompiledLibrary(called, subject, processor)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with folders.turn(place):
            folders.restore(place, is_export)
            _folder(place, overwrite)  # check again: another process may have written it
            with folders.replacing(place) as work:
                files.write(work / WEIGHTS, state)
                library.write(work, command)
                folders.copy_others(place, work, _written(place))
    except SaveError:
        raise
    except folders.TakenError as e:
        raise SaveError(f"cannot export to {place}: {e}; export to another folder, or end that process") from e
    except OSError as e:
        raise SaveError(f"cannot export to {place}: {e}; choose a folder that can be written") from e
    return place


def _folder(path: Any, overwrite: bool) -> Path:
    """Return the folder to export to. Raises SaveError where it has content that may not be replaced."""
    try:
        place = Path(path).resolve()
    except (TypeError, ValueError, OSError, RuntimeError) as e:
        raise SaveError(f"{show(path)} is not the path of a folder: {e}") from e
    if not files.exists(place):
        return place
    try:
        is_empty = files.is_folder(place) and not any(place.iterdir())
    except OSError as e:
        raise SaveError(f"{place} cannot be read: {e.strerror or e}; choose another folder") from e
    if not is_empty and not is_export(place):
        raise SaveError(f"{place} exists and is not an export; choose another folder or remove it")
    if not overwrite and not is_empty:
        raise SaveError(f"{place} exists already; choose another folder, or pass overwrite=True to replace it")
    return place


def _written(place: Path) -> set[str]:
    """Return the names of the files that `export` wrote into a folder, by its manifest."""
    try:
        return {MANIFEST, *json.loads(files.read_bytes(place / MANIFEST))["files"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def is_export(folder: Path) -> bool:
    """Return whether `export` wrote a folder, by its manifest."""
    return has_format(folder / MANIFEST, FORMAT)


def _name(name: str | None, subject: str) -> str:
    """Return the prefix of the C functions: `name`, or an identifier made of the subject's name.

    Raises ArgumentError where `name` is not an identifier of small letters or is a name of the system."""
    if name is None:
        plain = re.sub(r"\W+", "_", subject, flags=re.ASCII).strip("_").lower()
        return plain if _NAME.fullmatch(plain) and plain not in _SYSTEM else f"es_{plain}"
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"name={name!r} must be small letters, digits and _, as it begins the names of C functions")
    if name in _SYSTEM:
        raise ArgumentError(f"name={name!r} is the name of a header, a library or a constant of C; choose another one")
    return name


class CompiledLibrary:
    """A compiled library as C texts and object code."""

    def __init__(self, name: str, subject: ExportSubject, processor: Processor):
        self.name, self.subject, self.processor = name, subject, processor
        backend = registry.DEFAULT.exporter()
        with trace.compiling():
            programs = [
                Portable(
                    t.graph,
                    t.bind,
                    subject.threads,
                    backend,
                    processor.target,
                    t.numerics,
                    t.finite,
                    t.memory,
                    t.max_stored,
                )
                for t in subject.graphs
            ]
        data = [p.data() for p in programs]
        self.arena = max(d.scratch + d.stride * subject.threads for d in data)
        self.seconds = [d.seconds for d in data]
        self.calls = calls(name, subject, [d.inputs for d in data], [d.outputs for d in data])
        self.source = LibrarySource(name, subject, data, self.calls, processor, backend.pool_bytes)
        self.code = backend.object_code(name, self.source.functions, self.source.constants, programs[0].target)
        text = self.source.text("")
        self.identity = hashlib.blake2b(self.code + text.encode(), digest_size=16).hexdigest()

    def write(self, folder: Path, command: list[str] | wasm.Toolchain | None) -> None:
        """Write everything but the weights, the manifest last. command: the C compiler that links, or None."""
        name, source = self.name, self.source
        files.write(folder / f"{name}.c", source.text(self.identity))
        kernels = folder / f"{name}_kernels.o"
        files.write(kernels, self.code)
        if self.processor.is_wasm:
            wasm.write_module(folder, name, self.manifest(), self.calls)
        else:
            text = header(name, self.subject, self.calls, self.processor, VERSION, source.violations)
            files.write(folder / f"{name}.h", text)
        if command is not None:
            if isinstance(command, wasm.Toolchain):
                training = self.subject.training
                reports = bool(training and training.reports)
                public = wasm.public_functions(name, self.calls, training is not None, reports)
                wasm.link(command, folder, name, kernels, public)
            else:
                build.link(command, folder, name, kernels)
            for part in (kernels, folder / f"{name}.c"):
                part.unlink()
        sizes = {p.name: p.stat().st_size for p in sorted(folder.iterdir())}
        files.write(folder / MANIFEST, json.dumps(self.manifest() | {"files": sizes}, indent=1) + "\n")

    def manifest(self) -> dict[str, Any]:
        """Return the content of manifest.json without the list of files."""
        training, memories, processor = self.subject.training, self.subject.memories, self.processor
        settings, reports = (training.settings, training.reports) if training else ((), ())
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "einsmith": VERSION,
            "name": self.name,
            "what": self.subject.name,
            "identity": self.identity,
            "target": {
                "triple": processor.triple,
                "cpu": processor.cpu,
                "features": [f.name for f in processor.features],
            },
            "threads": self.subject.threads,
            "intermediate_bytes": self.arena,
            "kernels": len(self.source.functions),
            "functions": [c.describe() | {"predicted_seconds": self.seconds[c.program]} for c in self.calls],
            "tensors": [
                {"name": t.name, "kind": t.kind, "type": t.array.dtype.name, "shape": list(t.array.shape)}
                for t in saved_tensors(self.subject)
            ],
            "aliases": memories.aliases,
            "settings": [{"name": s.name, "value": s.value, "steps_in_table": len(s.table)} for s in settings],
            "reports": list(reports),
            "accumulate": training.accumulate if training else 1,
            "checks": self.source.violations,
        }


def _show(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 60 else describe(x)
