"""Generate the declarations of operators and of the layers made from them, for type checkers, from the table."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterable
from inspect import Parameter, signature
from pathlib import Path

import einsmith.ops
from einsmith import nn
from einsmith.ops.table import OPERATORS

ROOT = Path(einsmith.ops.__file__).parents[1]
FUNCTIONS, LAYERS = ROOT / "ops" / "__init__.pyi", ROOT / "nn" / "operators.pyi"
NOTE = "# Generated from the table of operators: python -m tests.docs --update\n"


def functions() -> str:
    """Return the declarations of `einsmith.ops`: each operator from the module that defines it."""
    lines = []
    for module in sorted(m.name for m in pkgutil.walk_packages(einsmith.ops.__path__, "einsmith.ops.")):
        path = ROOT.joinpath(*module.split(".")[1:])
        text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        lines += [f"from {module} import {n} as {n}\n" for n in _defined(text) if n in OPERATORS]
    return _formatted(f"{NOTE}\n{''.join(lines)}\n{_public(OPERATORS)}", FUNCTIONS)


def _defined(text: str) -> list[str]:
    """Return the names that a module's functions and assignments define."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)]
    return found


def layers() -> str:
    """Return the declarations of the layers that are made from operators."""
    lines = []
    for _, row in sorted(OPERATORS.items()):
        if row.layer:
            layer = getattr(nn, row.layer)
            settings = list(signature(layer.__init__).parameters.values())
            operands = list(signature(layer.forward).parameters.values())
            lines += [
                f'class {row.layer}(OperatorLayer):\n    """The layer of `functional.{row.name}`."""\n\n',
                *(f"    {p.name}: {_annotation(p)}\n" for p in settings[1:]),
                f"    def __init__({_declared(settings)}) -> None: ...\n",
                f"    def forward({_declared(operands)}) -> Any: ...\n",
            ]
    names = (row.layer for row in OPERATORS.values() if row.layer)
    return _formatted(f"{NOTE}\n{IMPORTS}\n{''.join(lines)}\n{_public(names)}", LAYERS)


def _declared(parameters: Iterable[Parameter]) -> str:
    found = []
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        kind = "" if p.name == "self" else f": {_annotation(p)}"
        found.append(p.name + kind + ("" if p.default is p.empty else f" = {p.default!r}"))
    return ", ".join(found)


def _annotation(p: Parameter) -> str:
    return "Any" if p.annotation is p.empty else p.annotation


def _formatted(text: str, path: Path) -> str:
    """Return a file's text as ruff leaves it: imports that are used, in order, and the layout."""
    for command in (["check", "--quiet", "--select", "I,F401", "--fix"], ["format"]):
        command = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


IMPORTS = """from collections.abc import Callable, Sequence
from typing import Any

from einsmith.base.arguments import Count, Magnitude, Share, Size
from einsmith.tracing.builder import Value
from einsmith.nn.conv import Amounts, Ints
from einsmith.nn.operator_layer import OperatorLayer
from einsmith.nn.pooling import Sizes
"""


def _public(names: Iterable[str]) -> str:
    return "__all__ = [\n" + "".join(f'    "{n}",\n' for n in sorted(names)) + "]\n"
