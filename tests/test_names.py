"""One name for one thing, and a docstring for each: modules keep theirs where they are imported, and a class name means
one thing."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from types import ModuleType
from typing import Any

import einsmith
from tests.sources import trees

SHORT = {"dt", "F"}
"""Names of `dtypes` and `functional` that every file knows."""
TWICE = {"Backend", "Library", "Prepared"}
"""Class names that may stand twice: exported libraries do without Einsmith; ONNX names the classes of a back end."""


def test_modules_keep_their_names_where_they_are_imported() -> None:
    renamed = [
        f"{path}:{node.lineno}: {a.name} as {a.asname}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("einsmith")
        for a in node.names
        if a.asname and a.asname != a.name and not a.asname.startswith("_") and a.asname not in SHORT
    ]
    assert not renamed


def modules_named_alike(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the paths of each name that several modules of one package have. The front ends name their modules of the
    same families of operators alike."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        package, module = path.split("/")[0], path.rpartition("/")[2]
        if module != "__init__.py" and package not in ("frontends", module):
            places[f"{package}/{module}"].append(path)
    return {name: files for name, files in places.items() if len(files) > 1}


def test_a_module_name_means_one_thing_in_its_package() -> None:
    assert len(trees()) > 500
    assert not modules_named_alike(map(str, trees()))


def test_module_names_used_twice_are_seen() -> None:
    paths = ["a/x.py", "a/b/x.py", "a/b/__init__.py", "c/x.py", "frontends/onnx/y.py", "frontends/aten/y.py"]
    assert modules_named_alike([*paths, "top.py"]) == {"a/x.py": ["a/x.py", "a/b/x.py"]}


def classes_named_alike(modules: Iterable[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """Return the places of each class name, underscored or not, that several classes have."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    return {name: lines for name, lines in places.items() if len(lines) > 1}


def test_a_class_name_means_one_thing() -> None:
    alike = classes_named_alike(trees().items())
    assert not {name: lines for name, lines in alike.items() if name not in TWICE}


def test_class_names_used_twice_are_seen() -> None:
    modules = [("a.py", ast.parse("class A: ...\nclass _B: ...")), ("b.py", ast.parse("class _B: ...\nclass C: ..."))]
    assert classes_named_alike(modules) == {"_B": ["a.py:2", "b.py:1"]}


OPTIONAL = {"torch", "onnx", "triton", "nccl", "jax", "tensorflow", "sklearn", "accelerate"}
"""Libraries without which some modules cannot be imported."""


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public functions and properties that the body of a class defines."""
    for name, value in vars(cls).items():
        if not name.startswith("_"):
            value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            if inspect.isfunction(value) or isinstance(value, (property, cached_property)):
                yield name, value


def is_documented(cls: type, name: str) -> bool:
    """Return whether a class, or the nearest base class with a docstring, documents a member, as `help` shows it."""
    return any(inspect.getdoc(vars(base)[name]) for base in cls.__mro__ if name in vars(base))


def has_own_docstring(cls: type) -> bool:
    """Return whether the body of a class has a docstring; dataclasses and enumerations make one up otherwise."""
    doc = vars(cls).get("__doc__")
    return bool(doc) and not doc.startswith(f"{cls.__name__}(")


def undocumented(module: ModuleType) -> list[str]:
    """Return the public classes, functions, methods and properties of a module without a docstring."""
    missing = [] if module.__doc__ else [module.__name__]
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value) and value.__name__ == name:
            missing += [] if has_own_docstring(value) else [f"{module.__name__}.{name}"]
            missing += [f"{module.__name__}.{name}.{m}" for m, _ in members(value) if not is_documented(value, m)]
        elif inspect.isfunction(value) and value.__name__ == name and not inspect.getdoc(value):
            missing.append(f"{module.__name__}.{name}")
    return missing


def test_public_names_are_documented() -> None:
    missing = []
    for info in pkgutil.walk_packages(einsmith.__path__, "einsmith."):
        try:
            missing += undocumented(importlib.import_module(info.name))
        except ImportError as e:
            cause = e.__cause__ if isinstance(e.__cause__, ImportError) else e
            if (cause.name or "").partition(".")[0] not in OPTIONAL:
                raise
    assert not missing, "\n".join(missing)


PLANTED = """
from dataclasses import dataclass
from functools import cached_property

class Base:
    'A base.'
    def method(self):
        'Do it.'

class Derived(Base):
    'A class that inherits a docstring.'
    def method(self): ...
    def other(self): ...
    @property
    def size(self): ...
    @cached_property
    def cached(self): ...
    @classmethod
    def make(cls): ...
    def _private(self): ...

@dataclass
class Bare: ...

def function(): ...
def _hidden(): ...
"""


def test_undocumented_names_are_seen() -> None:
    module = ModuleType("planted", "A module.")
    exec(PLANTED, vars(module))
    names = ["Derived.other", "Derived.size", "Derived.cached", "Derived.make", "Bare", "function"]
    assert undocumented(module) == [f"planted.{name}" for name in names]
