"""Hash the code of a pattern, as part of the keys under which compiled code and measurements are cached.

Einsmith's own sources are part of every key. A user's pattern adds the files of its class and of the modules that these
import, directly or not, from outside Einsmith, the standard library and installed packages; the version of installed
packages; and the values that its instance, class and closures hold. Its `version` covers all other code.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from einsmith.base import files
from einsmith.base.errors import CompileError

_PACKAGE = __name__.partition(".")[0]
_PROCESS_SALT = os.urandom(16)
"""Random bytes that make a key unique to this process."""
_DYNAMIC_IMPORTS = frozenset(
    (
        "__import__",
        "import_module",
        "exec",
        "spec_from_file_location",
        "SourceFileLoader",
        "run_path",
        "run_module",
    )
)
"""Functions that run code of files that only their arguments name."""
_INSTALL_FOLDERS = frozenset(("site-packages", "dist-packages"))
_MAX_DEPTH = 20
"""Most nested levels of a value that an instance holds."""


class _UntraceableError(Exception):
    """The error that some code or value cannot be part of the key. Its text names it."""


class _Code(NamedTuple):
    """A hash of a pattern's code, and the files that it was read from with their stamps
    (time of the last change in ns, size in bytes)."""

    hash: bytes
    files: Mapping[Path, tuple[int, int]]


class _Identity:
    """A pattern as a cache key that compares by identity, whatever equality its class defines."""

    def __init__(self, pattern: Any):
        self.pattern = pattern

    def __hash__(self) -> int:
        return id(self.pattern)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.pattern is self.pattern


def is_builtin(pattern: Any) -> bool:
    """Return whether a pattern is part of Einsmith."""
    return type(pattern).__module__.partition(".")[0] == _PACKAGE


def code_of(pattern: Any) -> bytes | None:
    """Return a hash of a pattern's code: empty for Einsmith's own patterns, None where no key holds across processes.

    No key holds if its class has no file, or files have changed since they were first read.

    Raises:
        CompileError: the code imports modules that cannot be traced, and the pattern has no `version`.
    """
    if is_builtin(pattern):
        return b""
    code = _read_code(_Identity(pattern))
    if code is None or any(_stamp_file(path) != stamp for path, stamp in code.files.items()):
        return None
    return code.hash


def key_of(pattern: Any) -> bytes:
    """Return `code_of`, or where that is None a key valid in this process alone, for the files' current state."""
    code = code_of(pattern)
    if code is not None:
        return code
    known = _read_code(_Identity(pattern))
    stamps = [] if known is None else [_stamp_file(path) for path in known.files]
    return hashlib.blake2b(_PROCESS_SALT + repr(stamps).encode(), digest_size=16).digest()


def _stamp_file(path: Path) -> tuple[int, int]:
    """Return (time of the last change in ns, size in bytes) of a file; zeros where there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=64)
def _read_code(identity: _Identity) -> _Code | None:
    """Read the code of a pattern. Files are read once: what a process has imported does not change with them."""
    pattern = identity.pattern
    classes = [c for c in type(pattern).__mro__ if c.__module__.partition(".")[0] not in (_PACKAGE, "builtins", "abc")]
    modules = [sys.modules.get(c.__module__) for c in classes]
    if any(m is None or getattr(m, "__file__", None) is None for m in modules):
        return None
    version = getattr(pattern, "version", None)
    trusting = version is not None
    walk = _Walk(trusting)
    out = hashlib.blake2b(repr(version).encode(), digest_size=16)
    try:
        walk.visit([m.__name__ for m in modules if m is not None])
        for line in (*walk.lines, *_list_values(pattern, classes, trusting)):
            out.update(len(line).to_bytes(8, "little") + line)
    except _UntraceableError as e:
        raise CompileError(
            f"changes of the code of the pattern {pattern.name!r} cannot be detected: {e}. Code that was compiled "
            f"before a change would be used after it; write `version = 1` into the class {type(pattern).__qualname__}, "
            "and raise the number with every change"
        ) from None
    return _Code(out.digest(), walk.files)


# ------------------------------------------------------------------------------------------------------ modules


class _Walk:
    """A traversal of modules and their imports. trusting: skip code that cannot be seen; the version covers it."""

    def __init__(self, trusting: bool):
        self.trusting = trusting
        self.lines: list[bytes] = []
        self.files: dict[Path, tuple[int, int]] = {}

    def visit(self, names: Sequence[str]) -> None:
        """Read modules and all modules that they import.

        Raises:
            _UntraceableError: some code cannot be read, and the walk is not trusting."""
        own_packages = {name.partition(".")[0] for name in names}
        pending, seen = list(reversed(names)), set(names)
        while pending:
            name = pending.pop()
            for imported in self._read_module(name, own_packages):
                if imported not in seen:
                    seen.add(imported)
                    pending.append(imported)

    def _read_module(self, name: str, own_packages: set[str]) -> Iterator[str]:
        """Read a module and yield the names of the modules that it imports.

        own: top-level packages of the pattern itself, which are read even if they are installed."""
        top = name.partition(".")[0]
        if top == _PACKAGE:
            return
        module, spec, path = sys.modules.get(name), _find_spec(name), _find_file(name)
        package_path = _find_file(top)
        if package_path is not None and top not in own_packages and not _INSTALL_FOLDERS.isdisjoint(package_path.parts):
            if top == name:
                self.lines.append(f"{top} {getattr(module, '__version__', '')}".encode())
            return
        if path is None:
            if module is not None and spec is None and not self.trusting:
                raise _UntraceableError(f"the module {name} stands in no file")
            if module is None and spec is None:
                self.lines.append(f"no {name}".encode())
            return  # a built-in module, or a folder without code of its own
        if _is_standard(top, path):
            return
        self.files[path] = _stamp_file(path)
        data = _read(path, spec)
        self.lines += [name.encode(), data]
        if path.suffix in (".py", ".pyw") or name == "__main__":
            package = getattr(module, "__package__", None) or (spec.parent if spec is not None else None) or ""
            yield from self._find_imports(path, data, package)
        elif not self.trusting:
            raise _UntraceableError(f"the module {name} is {path}, which is no Python source")

    def _find_imports(self, path: Path, data: bytes, package: str) -> Iterator[str]:
        try:
            tree = ast.parse(data)
        except (SyntaxError, ValueError) as e:
            if self.trusting:
                return
            raise _UntraceableError(f"{path} cannot be read: {e}") from None
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (part for alias in node.names for part in _list_with_parents(alias.name))
            elif isinstance(node, ast.ImportFrom):
                yield from _list_imported_modules(node, package)
            elif isinstance(node, ast.Call) and (called := _called_name(node)) in _DYNAMIC_IMPORTS:
                literal = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
                if (
                    called in ("__import__", "import_module")
                    and isinstance(literal, str)
                    and not literal.startswith(".")
                ):
                    yield from _list_with_parents(literal)
                elif not self.trusting:
                    raise _UntraceableError(f"{path}:{node.lineno} runs {called}(...), which may bring in any code")


def _called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Name):
        return node.func.id
    if isinstance(node.func, ast.Attribute) and node.func.attr != "exec":  # a method of something else
        return node.func.attr
    return ""


def _list_with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def _list_imported_modules(node: ast.ImportFrom, package: str) -> Iterator[str]:
    """Yield the modules of `from x import a, b`: x, its parents, and x.a and x.b where they are modules."""
    base = node.module or ""
    if node.level:
        parts = package.split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
    if not base:
        return
    yield from _list_with_parents(base)
    namespace = vars(sys.modules[base]) if isinstance(sys.modules.get(base), ModuleType) else {}
    names = [alias.name for alias in node.names]
    if names == ["*"]:
        names = [str(n) for n in namespace.get("__all__", ())]
    for name in names:
        full = f"{base}.{name}"
        if isinstance(sys.modules.get(full), ModuleType) or (name not in namespace and _find_spec(full) is not None):
            yield full


def _find_spec(name: str) -> ModuleSpec | None:
    """Find the spec of a module without importing it or its parents; None where there is none."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    parent, path = name.rpartition(".")[0], None
    if parent:
        parent_spec = _find_spec(parent)
        path = parent_spec.submodule_search_locations if parent_spec is not None else None
        if path is None:
            return None
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, path) if find is not None else None
        if spec is not None:
            return spec
    return None


def _find_file(name: str) -> Path | None:
    """Return the file of a module; None where there is none."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        spec = _find_spec(name)
        file = spec.origin if spec is not None and spec.has_location else None
    return None if file is None else Path(file)


@cache
def _standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"]).resolve()


def _is_standard(top: str, path: Path) -> bool:
    if top not in sys.stdlib_module_names or top == "__main__":
        return False
    return path.resolve().is_relative_to(_standard_library()) or "lib-dynload" in path.parts


def _read(path: Path, spec: ModuleSpec | None) -> bytes:
    try:
        get_data = getattr(getattr(spec, "loader", None), "get_data", None)  # of an archive
        return files.read_bytes(path) if get_data is None else get_data(str(path))
    except OSError as e:
        raise _UntraceableError(f"{path} cannot be read: {e.strerror or e}") from None


# ------------------------------------------------------------------------------------------------------ values


def _list_values(pattern: Any, classes: Sequence[type], trusting: bool) -> Iterator[bytes]:
    """Yield the values that a pattern's answers may depend on, other than its files.

    These are the attributes of the instance, plain attributes of its classes (other files may set them), and variables
    of the functions in which the classes were defined."""
    for name, x in sorted(getattr(pattern, "__dict__", {}).items()):
        yield from _write_line(f"its attribute {name!r}", x, trusting)
    for c in classes:
        for name, x in sorted(vars(c).items()):
            f = getattr(x, "__func__", x)
            if isinstance(f, FunctionType):
                for n, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
                    if n != "__class__":
                        yield from _write_line(f"the variable {n!r} of {f.__qualname__}", cell.cell_contents, trusting)
            elif not name.startswith("__"):  # a value without a text is covered by the class's file
                yield from _write_line(name, x, True)


def _write_line(what: str, value: Any, trusting: bool) -> Iterator[bytes]:
    try:
        yield f"{what}: {_serialize(value)}".encode()
    except _UntraceableError as e:
        if not trusting:
            raise _UntraceableError(f"{what} is {e}") from None


def _serialize(value: Any, depth: int = 0) -> str:
    """Return a text that is equal only for equal values.

    Raises:
        _UntraceableError: the value has no such text."""
    if depth > _MAX_DEPTH:
        raise _UntraceableError("a value of many levels")
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic, np.dtype, Enum)):
        return f"{type(value).__qualname__} {value!r}"
    if isinstance(value, (type, FunctionType)) and "<" not in value.__qualname__:  # defined in a file that is read
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, ModuleType):
        return value.__name__
    parts: list[Any]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        parts = [value.dtype.str, value.shape, value.tobytes()]
    elif isinstance(value, (set, frozenset)):
        return f"{type(value).__qualname__} {sorted(_serialize(x, depth + 1) for x in value)}"
    elif isinstance(value, Mapping):
        parts = [x for pair in value.items() for x in pair]
    elif isinstance(value, (tuple, list)):
        parts = list(value)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, f.name) for f in fields(value)]
    elif is_builtin(value) and hasattr(value, "__dict__"):
        parts = [x for pair in sorted(vars(value).items()) for x in pair]
    else:
        raise _UntraceableError(f"of the type {type(value).__qualname__}, whose content is not seen")
    return f"{type(value).__qualname__} {[_serialize(x, depth + 1) for x in parts]}"
