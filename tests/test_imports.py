"""Imports point one way, and third-party libraries stay in their own files (docs: CONTRIBUTING.md, "Layers")."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "einsmith"

# Lowest first. A module imports from its own layer or from lower ones; packages of one layer form no cycle.
LAYERS = [
    ["base"],
    ["ir"],
    ["cost"],
    ["schedule"],
    ["lang", "autodiff", "passes"],
    ["codegen.loopnest"],
    ["kernels"],
    ["codegen"],
    ["tiles"],
    ["runtime"],
    ["checking"],
    ["tuning.calibration"],
    ["tuning.kernels"],
    ["driver"],
    ["tuning.programs"],
    ["api"],
    ["ops", "functional", "nn", "optim", "models", "data", "metrics"],
    ["training"],
    ["export"],
    ["callbacks"],
    ["frontends", "cli"],
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

# Where a library may be imported, as patterns of paths below einsmith/. Others may be imported nowhere.
THIRD_PARTY = {
    "numpy": ["*"],
    "llvmlite": ["codegen/llvm/jit.py", "codegen/llvm/worker.py"],
    "triton": ["codegen/triton*"],
    "torch": ["frontends/torch*"],
    "onnx": ["frontends/onnx*"],
    "ml_dtypes": ["frontends/onnx/types.py"],
    "google": ["frontends/onnx/reader.py"],
    "safetensors": ["training/checkpoint.py"],
    "rich": ["training/progress.py", "tuning/*", "cli/*"],
    "click": ["cli/*"],
    "matplotlib": ["cli/*"],
    "platformdirs": ["base/environment.py"],
    "PIL": ["data/images.py"],
}


def files() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py" and p.stat().st_size)


@cache
def imports_of(path: Path) -> list[tuple[int, str]]:
    """(line, absolute name) of everything that a file imports, a module or what is in one, inside functions too."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    package = ["einsmith", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "einsmith":
                for alias in node.names:
                    yield node.lineno, f"einsmith.{alias.name}"
            else:
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"


def layer_of(module: str) -> str:
    """The longest prefix of a module's name, without `einsmith.`, that has a layer, else its first word."""
    words = module.split(".")
    prefixes = (".".join(words[:n]) for n in range(len(words), 0, -1))
    return next((p for p in prefixes if p in RANK), words[0])


def layer_name(path: Path) -> str:
    return layer_of(".".join(path.relative_to(ROOT).with_suffix("").parts))


def package_edges() -> Iterator[tuple[Path, int, str, str]]:
    for path in files():
        for line, module in imports_of(path):
            if module.split(".")[0] == "einsmith" and module != "einsmith":
                yield path, line, layer_name(path), layer_of(module.removeprefix("einsmith."))


def test_every_module_has_a_layer() -> None:
    unknown = sorted({layer_name(p) for p in files()} - set(RANK))
    assert not unknown, f"give these a place in LAYERS: {unknown}"


def test_imports_point_down() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {importer} imports {imported}, which lies above it"
        for path, line, importer, imported in package_edges()
        if importer in RANK and RANK.get(imported, -1) > RANK[importer]
    ]
    assert not wrong, "\n".join(wrong)


def test_only_known_modules_are_imported() -> None:
    """`from einsmith import x` inside the package would go through the public names, and so upward."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: einsmith.{imported} is no module of the package"
        for path, line, importer, imported in package_edges()
        if importer != "cli" and imported not in RANK
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_of_one_layer_form_no_cycle() -> None:
    edges: dict[str, set[str]] = {}
    for _, _, importer, imported in package_edges():
        if importer != imported and RANK.get(importer) == RANK.get(imported):
            edges.setdefault(importer, set()).add(imported)
    reach = {a: set(b) for a, b in edges.items()}
    for _ in reach:
        for a in reach:
            reach[a] |= {c for b in reach[a] for c in reach.get(b, ())}
    cyclic = sorted(a for a in reach if a in reach[a])
    assert not cyclic, f"these import each other: { {a: sorted(edges[a]) for a in cyclic} }"


BELOW_BACKENDS = [
    "codegen",
    "tuning.calibration",
    "tuning.kernels",
    "checking",
    "runtime.program",
    "runtime.pool",
    "driver.cpu",
]
"""What is the CPU's own: everything above knows back ends by what they answer."""


BACK_ENDS = [f"driver/{module}.py" for module in ("backend", "cpu", "cpu_kernels", "objects", "registry", "workshop")]
"""The CPU's back end, and what says which one a target has."""


OF_ALL_BACK_ENDS = ["einsmith.tuning.kernels.decisions", "einsmith.tuning.kernels.override"]
"""What stands among them and holds for every back end: decisions are texts."""


OF_THE_MACHINE = ["cli/info.py", "cli/main.py", "cli/tune.py"]
"""The commands that measure it, and say what it is."""


def test_nothing_above_the_back_ends_knows_the_cpu() -> None:
    own = [f"einsmith.{m}" for m in BELOW_BACKENDS]
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module} belongs to one back end"
        for path in files()
        if RANK[layer_name(path)] >= RANK["driver"]
        and path.relative_to(ROOT).as_posix() not in (*OF_THE_MACHINE, *BACK_ENDS)
        for line, module in imports_of(path)
        if any(module == m or module.startswith(f"{m}.") for m in own)
        and not any(module == m or module.startswith(f"{m}.") for m in OF_ALL_BACK_ENDS)
    ]
    assert not wrong, "\n".join(wrong)


def test_third_party_libraries_stay_in_their_files() -> None:
    wrong = []
    for path in files():
        where = path.relative_to(ROOT).as_posix()
        for line, module in imports_of(path):
            top = module.split(".")[0]
            if top == "einsmith" or top in sys.stdlib_module_names:
                continue
            if not any(fnmatch(where, pattern) for pattern in THIRD_PARTY.get(top, [])):
                wrong.append(f"{where}:{line}: {top} may be imported only in {THIRD_PARTY.get(top, 'no file')}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", ["torch", "jax", "tensorflow", "triton", "onnx", "matplotlib", "click"])
def test_import_of_the_package_is_light(module: str, loaded_by_import: set[str]) -> None:
    assert module not in loaded_by_import


@pytest.fixture(scope="module")
def loaded_by_import() -> set[str]:
    code = "import sys, einsmith; print(*{m.split('.')[0] for m in sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, timeout=60)
    assert out.returncode == 0, out.stderr
    return set(out.stdout.split())


def test_the_check_sees_an_upward_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule itself is tested: a planted upward import, relative and lazy, is found."""
    root = tmp_path / "einsmith"
    (root / "ir").mkdir(parents=True)
    (root / "ir" / "bad.py").write_text("def f():\n    from ..kernels.kernel import Kernel\n    return Kernel\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", root)
    with pytest.raises(AssertionError, match="ir imports kernels"):
        test_imports_point_down()


def test_the_check_sees_machine_code_above_the_back_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "einsmith"
    (root / "cli").mkdir(parents=True)
    (root / "training.py").write_text("def f():\n    from einsmith.runtime import pool\n    return pool\n")
    (root / "cli" / "info.py").write_text("from einsmith.codegen.cache import native\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", root)
    with pytest.raises(AssertionError, match="^training.py:2: einsmith.runtime.pool belongs to one back end"):
        test_nothing_above_the_back_ends_knows_the_cpu()
