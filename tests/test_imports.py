"""Third-party libraries stay in their own files; import-linter's contracts (pyproject.toml) see what they forbid."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tests.sources import ROOT, trees

# Where a library may be imported, as patterns of paths below einsmith/. Others may be imported nowhere.
THIRD_PARTY = {
    "numpy": ["*"],
    "llvmlite": ["codegen/llvm/jit.py", "codegen/llvm/compile_worker.py"],
    "threadpoolctl": ["runtime/thread_limits.py"],
    "triton": ["gpu/triton*"],
    "torch": [
        "frontends/torch*",
        "frontends/transformers/*",
        "distributed/gloo.py",
        "bench/in_torch.py",
        "bench/torch_steps.py",
        "bench/server.py",
    ],
    "transformers": ["frontends/transformers/*"],
    "nccl": ["gpu/cuda/nccl.py"],
    "mpi4py": ["distributed/mpi.py", "cli/workers.py"],
    "distributed": ["cli/workers.py"],
    "onnx": ["frontends/onnx*"],
    "ml_dtypes": ["base/dtypes.py", "frontends/onnx/types.py"],
    "google": ["frontends/onnx/protos.py"],
    "safetensors": ["models/tensor_files.py", "training/checkpoint.py"],
    "rich": ["base/bars.py", "tuning/*", "cli/*", "bench/compare.py"],
    "click": ["cli/*"],
    "matplotlib": ["cli/*"],
    "jinja2": ["base/templates.py"],
    "markupsafe": ["base/templates.py"],
    "platformdirs": ["base/environment.py"],
    "psutil": ["base/system/sources.py"],
    "PIL": ["data/images.py"],
    "sklearn": ["sklearn.py"],
    "accelerate": ["frontends/accelerate.py"],
    "tokenizers": ["data/tokenizer.py"],
}


def files() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@cache
def imports_of(path: Path) -> list[tuple[int, str]]:
    """(line, absolute name) of everything that a file imports, a module or what is in one, inside functions too."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    package = ["einsmith", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(trees()[path.relative_to(ROOT).as_posix()]):
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


def test_the_package_imports_its_modules() -> None:
    """`from einsmith import x` inside the package would go through the public names, and so upward."""
    modules = {p.name.removesuffix(".py") for p in ROOT.iterdir()}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module} is no module of the package"
        for path in files()
        if path.relative_to(ROOT).parts[0] != "cli"
        for line, module in imports_of(path)
        if module.split(".")[0] == "einsmith" and (module.split(".") + [""])[1] not in modules
    ]
    assert not wrong, "\n".join(wrong)


def contracts_kept(folder: Path) -> bool:
    """Whether import-linter finds nothing in the package in a folder that has the project's contracts."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()",
         "pyproject.toml", "--no-cache"], cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode in (0, 1) and "Contracts:" in done.stdout, done.stdout + done.stderr
    return done.returncode == 0


PLANTED = {
    "ir/components.py": "def f():\n    from einsmith.kernels import pattern\n    return pattern\n",
    "training/fit.py": "def f():\n    from einsmith.runtime import pool\n    return pool\n",
    "kernels/pattern.py": "from einsmith.kernels import autoconfig\n",
}


def test_the_contracts_see_what_is_planted(tmp_path: Path) -> None:
    """An import upward, of machine code above the back ends, and in a circle are found (contracts: pyproject.toml)."""
    shutil.copy(ROOT.parent / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT, tmp_path / "einsmith", ignore=shutil.ignore_patterns("__pycache__"))
    assert contracts_kept(tmp_path)
    for module, planted in PLANTED.items():
        path = tmp_path / "einsmith" / module
        text = path.read_text()
        path.write_text(text + planted)
        assert not contracts_kept(tmp_path), module
        path.write_text(text)


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


@pytest.mark.parametrize("module", ["torch", "jax", "tensorflow", "triton", "onnx", "matplotlib", "click", "sklearn"])
def test_import_of_the_package_is_light(module: str, loaded_by_import: set[str]) -> None:
    assert module not in loaded_by_import


@pytest.fixture(scope="module")
def loaded_by_import() -> set[str]:
    code = "import sys, einsmith; print(*{m.split('.')[0] for m in sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, timeout=60)
    assert out.returncode == 0, out.stderr
    return set(out.stdout.split())
