"""Compiled code of a user's pattern is found again by the same code alone: its files, their imports, what it holds."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.kernels import autoconfig, sources
from einsmith.kernels.sources import code_of, key_of

ROOT = Path(__file__).parents[2]

# y[i] = sqrt(x[i]) times what `factor()` says: wrong on purpose, so that values tell which code has run.
PATTERN = """
from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Axis, Read, apply
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.codegen.loopnest.nest import Builder
{imports}

class Scaled(Pattern):
    name = "scaled roots"
    {body}

    def match(self, kernel):
        root = kernel.root
        return len(kernel.stages) == 1 and root.parts[0].bodies == (apply("sqrt", Read(0, (Axis(0),), dt.f32)),)

    def configs(self, kernel, target):
        return [1]

    def cost(self, kernel, config, target):
        return Cost(1e-12, 0.0)

    def lower(self, kernel, config, target):
        b = Builder("scaled_roots", len(kernel.buffers) + 1)
        x, y = b.buffers[kernel.stages[0].args[0][1]], b.buffers[kernel.stages[0].outputs[0]]
        with b.loop(0, kernel.shape[0], 1) as i:
            b.store(b.op("mul", b.op("sqrt", b.load(x, i.var, "f32", 1)), b.const({factor}, "f32")), y, i.var)
        return Lowered([Launch(b.finish(), tasks=1)])
"""
PROGRAM = """
import sys
import numpy as np
import einsmith as es
from einsmith.kernels import autoconfig
from {module} import Scaled
autoconfig.register(Scaled())
x = np.arange(1, 14, dtype=np.float32) ** 2
print(float((es.op("y[i] = sqrt(x[i])")(x) / np.sqrt(x)).mean()))
"""


def pattern(factor: str, imports: str = "", body: str = "") -> str:
    return PATTERN.format(factor=factor, imports=imports, body=body or "pass")


def run(folder: Path, module: str = "mine") -> float:
    """What the program computes in a process of its own, with the cache of the folder."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM.format(module=module)], capture_output=True, text=True, timeout=300,
        cwd=folder, env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}", "EINSMITH_CACHE_DIR": str(folder / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_a_changed_helper_is_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(pattern("FACTOR", "from helper import FACTOR"))
    (tmp_path / "helper.py").write_text("FACTOR = 2.0")
    assert run(tmp_path) == pytest.approx(2.0)
    entries = sorted((tmp_path / "cache" / "objects").iterdir())
    assert run(tmp_path) == pytest.approx(2.0) and sorted((tmp_path / "cache" / "objects").iterdir()) == entries
    (tmp_path / "helper.py").write_text("FACTOR = 3.0")
    assert run(tmp_path) == pytest.approx(3.0)


@pytest.mark.slow
def test_a_change_far_from_the_class_is_compiled_anew(tmp_path: Path) -> None:
    """In a package: a module that a function imports, by a relative name, from what another helper imports."""
    inner = tmp_path / "own" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "own" / "__init__.py").write_text("")
    (inner / "__init__.py").write_text("")
    (tmp_path / "own" / "mine.py").write_text(pattern("helper.factor()", "from . import helper"))
    helper = "def factor():\n    from .inner.deep import FACTOR\n    return FACTOR\n"
    (tmp_path / "own" / "helper.py").write_text(helper)
    for factor in (2.0, 5.0):
        (inner / "deep.py").write_text(f"FACTOR = {factor}")
        assert run(tmp_path, "own.mine") == pytest.approx(factor)


# ------------------------------------------------------------------------------------------- in one process


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Writes modules into a new folder, imports one and gives it. They are forgotten before the next ones."""
    known = set(sys.modules)
    numbers = itertools.count()

    def forget() -> None:
        for name in set(sys.modules) - known:
            module = sys.modules[name]
            path = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", "/")))
            if Path(path).is_relative_to(tmp_path):
                del sys.modules[name]
        importlib.invalidate_caches()

    def load(name: str, **files: str) -> Any:
        forget()
        folder = tmp_path / str(next(numbers))
        for module, text in files.items():
            path = folder / f"{module.replace('_in_', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        return importlib.import_module(name)

    yield load
    forget()


def code(module: Any) -> bytes:
    digest = code_of(module.Scaled())
    assert digest
    return digest


USES = {
    "constant": ("from helper import FACTOR", {}),
    "module": ("import helper", {}),
    "other name": ("import helper as h", {}),
    "star": ("from helper import *", {}),
    "within a function": ("def f():\n    import helper", {}),
    "perhaps": ("try:\n    import helper\nexcept ImportError:\n    helper = None", {}),
    "by its name": ("import importlib\nhelper = importlib.import_module('helper')", {}),
    "by another": ("import between", {"between": "from helper import FACTOR"}),
    "in a circle": ("import between", {"between": "import mine, helper"}),
    "that is not loaded": ("def f():\n    import between", {"between": "import helper"}),
}


@pytest.mark.parametrize("way", USES)
def test_imported_files_change_the_key(way: str, imported) -> None:
    imports, more = USES[way]
    text = pattern("2.0", imports)
    one, same = (code(imported("mine", mine=text, helper="FACTOR = 2.0", **more)) for _ in range(2))
    other = code(imported("mine", mine=text, helper="FACTOR = 3.0", **more))
    assert one == same != other


def test_a_helper_that_is_missing_counts(imported) -> None:
    text = pattern("2.0", "try:\n    import helper\nexcept ImportError:\n    helper = None")
    assert code(imported("mine", mine=text)) != code(imported("mine", mine=text, helper=""))


def test_files_not_imported_leave_the_key(imported) -> None:
    one, other = (code(imported("mine", mine=pattern("2.0"), helper=f"F = {n}")) for n in (2, 3))
    assert one == other


@pytest.mark.parametrize("folder", [False, True], ids=["package", "folder without a file"])
def test_a_submodule_of_a_package_counts(folder: bool, imported) -> None:
    def code_after(n: int, text: str) -> bytes:
        package = {} if folder else {"pack_in___init__": ""}
        return code(imported("pack.mine", pack_in_mine=text, pack_in_helper=f"F = {n}", **package))

    for imports in ("from . import helper", "from .helper import F", "from pack import helper", "import pack.helper"):
        assert code_after(2, pattern("2.0", imports)) != code_after(3, pattern("2.0", imports))


def test_the_class_above_counts(imported) -> None:
    text = "import base\nclass Scaled(base.Scaled):\n    name = 'another'\n"
    one, other = (code(imported("mine", mine=text, base=pattern(factor))) for factor in ("2.0", "3.0"))
    assert one != other


INIT = "def __init__(self, x=2):\n        self.factor = x"


def test_instance_values_change_the_key(imported) -> None:
    module = imported("mine", mine=pattern("self.factor", body=INIT))
    values = [2, 3, 2.0, "2", (2,), [2], {"a": 2}, {"a": 3}, np.float32(2), np.arange(2), np.arange(3), {2}, None, dict]
    codes = [code_of(module.Scaled(x)) for x in values]
    assert len(set(codes)) == len(values)
    assert code_of(module.Scaled(np.arange(2))) == codes[9] and code_of(module.Scaled({"a": 2})) == codes[6]


def test_class_attributes_change_the_key(imported) -> None:
    text = pattern("self.factor", body="factor = 2.0")
    module = imported("mine", mine=text)
    before = code(module)
    module.Scaled.factor = 3.0
    assert code(module) != before


def test_closure_values_change_the_key(imported) -> None:
    head, _, cls = pattern("factor").partition("class Scaled")
    module = imported("mine", mine=f"{head}def make(factor):\n" + textwrap.indent(f"class Scaled{cls}", "    ")
                      + "\n    return Scaled")  # fmt: skip
    two, again, three, unknown = (module.make(x)() for x in (2.0, 2.0, 3.0, object()))
    assert code_of(two) == code_of(again) != code_of(three)
    with pytest.raises(es.CompileError, match=r"'scaled roots'.*variable 'factor' of make.*type object.*`version = 1`"):
        code_of(unknown)


UNSEEN = {
    "import importlib\nname = 'hel' + 'per'\nh = importlib.import_module(name)": r"mine.py:\d+ runs import_module",
    "h = __import__('hel' + 'per')": r"mine.py:\d+ runs __import__",
    "exec(open(__file__[:-7] + 'helper.py').read())": r"mine.py:\d+ runs exec",
    "import importlib.util as u\ns = u.spec_from_file_location('h', __file__)": "runs spec_from_file_location",
}


@pytest.mark.parametrize("imports", UNSEEN)
def test_unreadable_code_needs_a_version(imports: str, imported) -> None:
    module = imported("mine", mine=pattern("2.0", imports), helper="FACTOR = 2.0")
    before = [p.name for p in autoconfig.PATTERNS]
    remedy = "`version = 1` into the class Scaled"
    with pytest.raises(es.CompileError, match=f"'scaled roots'.*{UNSEEN[imports]}.*{remedy}"):
        autoconfig.register(module.Scaled())
    assert [p.name for p in autoconfig.PATTERNS] == before
    codes = [code(imported("mine", mine=pattern("2.0", imports, f"version = {n}"), helper="")) for n in (1, 1, 2)]
    assert codes[0] == codes[1] != codes[2]


def test_an_object_that_is_held_needs_a_version(imported) -> None:
    module = imported("mine", mine=pattern("2.0", body=INIT))
    with pytest.raises(es.CompileError, match="its attribute 'factor' is of the type object"):
        code_of(module.Scaled(object()))
    module.Scaled.version = 1
    assert code_of(module.Scaled(object()))


def test_files_that_change_while_a_process_runs_give_a_key_of_its_own(imported) -> None:
    """Nobody knows which of them it runs: nothing is found in other processes' names, and nothing left there."""
    module = imported("mine", mine=pattern("2.0", "import helper"), helper="FACTOR = 2.0")
    mine = module.Scaled()
    keys = [key_of(mine)]
    assert keys == [code_of(mine)]
    path = Path(module.helper.__file__)
    for n in range(2):
        path.write_text(f"FACTOR = {3**9 ** (n + 1)}")
        assert code_of(mine) is None
        keys.append(key_of(mine))
    assert len(set(keys)) == 3


def test_a_class_without_a_file_has_a_key_of_this_process() -> None:
    names: dict = {"__name__": "nowhere"}
    exec(pattern("2.0"), names)
    mine = names["Scaled"]()
    assert code_of(mine) is None and len(key_of(mine)) == 16


def test_einsmiths_own_patterns_are_known_by_its_sources() -> None:
    assert {key_of(p) for p in autoconfig.PATTERNS if sources.is_builtin(p)} == {b""}
