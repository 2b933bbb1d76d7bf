"""Compile LLVM IR text to object code, and load object code to get addresses, by llvmlite.

Only this file and compile_worker.py import llvmlite. Objects are position independent, of the small code model, and
linked by JITLink, which puts an object's code and constants side by side; so constants are one short address away and
an object loads in about 0.1 ms.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import count
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm

from einsmith.base import locks
from einsmith.base.errors import CompileError
from einsmith.codegen.llvm.elf import make_constants_executable

VERSION = f"{llvmlite.__version__}/{'.'.join(map(str, llvm.llvm_version_info))}"

OPT = 2
"""Code generation level. Level 3 makes no faster kernels."""

# LLVM aborts the process on some names it does not know, so only these and the host's own are let through.
_CPUS = {
    "x86_64": "generic x86-64 x86-64-v2 x86-64-v3 x86-64-v4 haswell broadwell skylake skylake-avx512 cascadelake "
    "icelake-client icelake-server sapphirerapids emeraldrapids graniterapids alderlake "
    "znver1 znver2 znver3 znver4 znver5",
    "aarch64": "generic cortex-a57 cortex-a72 cortex-a76 neoverse-n1 neoverse-n2 neoverse-v1 neoverse-v2 "
    "apple-m1 apple-m2",
}

_X86 = ("x86_64", "i386", "i486", "i586", "i686")
_WASM = ("wasm32",)

_lock = locks.Awaited("compiling")
"""The lock held in every use of LLVM, which has locks of its own that a forked child would find held."""
_numbers = count()
_OBJECTS_PER_LINKER = 64
"""Most objects that one linker loads. It keeps 9 KB of each until it is freed, which happens with its last object;
making a linker takes a millisecond."""
_loaded: dict[int, tuple[Any, Any]] = {}
"""Objects in memory by number: their linker, and the tracker that keeps them in memory."""
_provided: dict[str, Callable[[], int]] = {}
"""Symbols of this process that loaded code may refer to by name: a few names, see `provide`."""
_released: deque[int] = deque()
"""Numbers of objects without references. They are unloaded later: a finalizer may run at any time and in any thread,
and must not wait for a lock."""


def host() -> tuple[str, str, str]:
    """Return the CPU name, features (`+avx2,-avx512f,...`) and triple of this machine."""
    with _lock:
        _start()
        return _host()


class Machine(NamedTuple):
    """The facts about a target that LLVM needs."""

    cpu: str
    features: str
    triple: str
    vector_bytes: int


def resolve(target: Any) -> Machine:
    """Return a target's names for LLVM, with "host" replaced by this machine's."""
    host_names = host() if "host" in (target.cpu, target.features, target.triple) else ("", "", "")
    names = (target.cpu, target.features, target.triple)
    cpu, features, triple = (own if name == "host" else name for name, own in zip(names, host_names, strict=True))
    return Machine(cpu, features, triple, getattr(target, "vector_bytes", 0))


def has_fma(machine: Machine) -> bool:
    """Return whether the machine has an instruction for the fused multiply-add, which is a slow library call
    otherwise."""
    arch, features = machine.triple.split("-")[0], machine.features.split(",")
    if arch not in _X86:
        return arch not in _WASM
    if "+fma" in features or "-fma" in features:
        return "+fma" in features
    return machine.cpu in _CPUS["x86_64"].split() and machine.cpu not in ("generic", "x86-64", "x86-64-v2")


def has_halves(machine: Machine) -> bool:
    """Return whether the machine has instructions that convert float16 from and to float32. Otherwise LLVM calls a
    library that may be missing."""
    arch, features = machine.triple.split("-")[0], machine.features.split(",")
    if arch not in _X86:
        return arch in ("aarch64", "arm64")
    if "+f16c" in features or "-f16c" in features:
        return "+f16c" in features
    return has_fma(machine)  # every processor with FMA has F16C


def list_features(machine: Machine) -> frozenset[str]:
    """Return the names of the features that a machine is said to have."""
    return frozenset(x[1:] for x in machine.features.split(",") if x.startswith("+"))


@cache
def _host() -> tuple[str, str, str]:
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), llvm.get_process_triple()


@cache
def _start() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def _start_all() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def machine(cpu: str, features: str, triple: str, opt: int = OPT) -> Any:
    """Return the llvmlite target machine for a code generation level. Raises CompileError for a CPU name that is not
    known to be safe."""
    with _lock:
        return _machine(cpu, features, triple, opt)


@lru_cache(maxsize=64)
def _machine(cpu: str, features: str, triple: str, opt: int) -> Any:
    _start()
    arch = triple.split("-")[0]
    if arch != _host()[2].split("-")[0]:
        _start_all()
    elif cpu == _host()[0]:
        arch = ""
    if arch and cpu not in _CPUS.get({"arm64": "aarch64"}.get(arch, arch), "generic").split():
        raise CompileError(f"the CPU name {cpu!r} is not known for {triple}; use 'generic' or the host's own")
    target = llvm.Target.from_triple(triple)
    reloc = "static" if arch in _WASM else "pic"
    return target.create_target_machine(cpu=cpu, features=features, opt=opt, reloc=reloc, codemodel="small")


def emit_object(text: str, target: Any, opt: int = OPT) -> bytes:
    """Compile a module to object code. Raises CompileError where LLVM rejects the text."""
    target = resolve(target)
    try:
        with _lock:
            target_machine = machine(target.cpu, target.features, target.triple, opt)
            with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:  # both are freed
                return target_machine.emit_object(module)
    except RuntimeError as e:
        raise CompileError(f"LLVM rejects the generated code: {e}") from None


def emit_hidden(texts: Sequence[str], target: Any) -> bytes:
    """Compile several modules to one linked object whose definitions are hidden outside the library that it becomes a
    part of. Raises CompileError where LLVM rejects the texts."""
    target = resolve(target)
    try:
        with _lock:
            target_machine = machine(target.cpu, target.features, target.triple)
            with llvm.create_context() as context:
                first, *others = [llvm.parse_assembly(text, context) for text in texts]
                for module in others:
                    first.link_in(module)
                with first:
                    for defined in (*first.functions, *first.global_variables):
                        if not defined.is_declaration and defined.linkage == llvm.Linkage.external:
                            defined.visibility = "hidden"
                    return target_machine.emit_object(first)
    except RuntimeError as e:
        raise CompileError(f"LLVM rejects the generated code: {e}") from None


def emit_assembly(text: str, target: Any) -> str:
    """Return the machine code of a module as text, for reading and tests."""
    target = resolve(target)
    try:
        with _lock:
            return machine(target.cpu, target.features, target.triple).emit_assembly(llvm.parse_assembly(text))
    except RuntimeError as e:
        raise CompileError(f"LLVM rejects the generated code: {e}") from None


class Code:
    """Object code in memory: the addresses of its functions, its bytes, and its maker's metadata. It is unloaded some
    time after the last reference to it or to one of its addresses has gone (see `unload`)."""

    __slots__ = ("_places", "_number", "nbytes", "metadata", "__weakref__")

    def __init__(self, places: dict[str, int], number: int, nbytes: int, metadata: dict[str, Any]):
        self._places, self._number = places, number
        self.nbytes, self.metadata = nbytes, metadata

    def addresses(self) -> dict[str, Address]:
        """Return the addresses by the functions' names, in the order in which the names were given."""
        return {name: Address(place, self) for name, place in self._places.items()}

    def __del__(self, released: Callable[[int], None] = _released.append) -> None:
        released(self._number)


class Address(int):
    """The address of a function. Its code stays in memory as long as the address is referenced."""

    code: Code

    def __new__(cls, place: int, code: Code) -> Address:
        self = super().__new__(cls, place)
        self.code = code
        return self


@lru_cache(maxsize=1)
def _linker(group: int) -> Any:
    cpu, features, triple = host()
    return llvm.create_lljit_compiler(machine(cpu, features, triple), use_jit_link=True)


def provide(name: str, address: Callable[[], int]) -> None:
    """Make an object of this process available by name to code that is loaded from now on. `address` is called when
    such code is loaded."""
    _provided[name] = address


_float_mark = ctypes.c_int(0)
provide("_fltused", lambda: ctypes.addressof(_float_mark))  # Windows's objects with floating point refer to it


def load(code: bytes, names: Sequence[str], metadata: dict[str, Any] | None = None) -> Code:
    """Link object code into the process, and unload code without references. Raises CompileError if it does not
    link."""
    provided = {n: address() for n, address in _provided.items() if n not in names and n.encode() in code}
    with _lock:
        unload()
        library = llvm.JITLibraryBuilder().add_object_img(make_constants_executable(code)).add_current_process()
        for name in names:
            library.export_symbol(name)
        for name, address in provided.items():
            library.import_symbol(name, address)
        number = next(_numbers)
        linker = _linker(number // _OBJECTS_PER_LINKER)
        try:
            tracker = library.link(linker, f"einsmith{number}")
            places = {name: int(tracker[name]) for name in names}
        except (RuntimeError, KeyError) as e:
            raise CompileError(f"generated code does not link: {e}") from None
        _loaded[number] = linker, tracker
        return Code(places, number, len(code), metadata or {})


def unload() -> None:
    """Free the memory of all code without references; `load` does this too."""
    with _lock:
        while _released:
            linker, tracker = _loaded.pop(_released.popleft())
            tracker.close()
            del linker, tracker  # frees them inside the lock
