"""What `import einsmith` loads, and that every name is there, however it is come by, in processes of their own."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import einsmith as es
from tests.sources import trees

PACKAGE = Path(es.__file__).resolve().parent
BARE = {
    "einsmith",
    "einsmith.base",
    "einsmith.base.errors",
    "einsmith.export",
    "einsmith.base.late",
    "einsmith.base.locks",
    "einsmith.base.forks",
}
"""Modules of Einsmith that a bare import loads."""
COMPILER = {"einsmith.driver.compile", "einsmith.passes", "einsmith.kernels", "einsmith.codegen", "llvmlite"}
NETWORK = {"urllib.request", "http.client", "ssl", "email"}
COMMANDS = {"click", "rich", "matplotlib", "jinja2"}
ALL = COMPILER | NETWORK | COMMANDS | {
    "numpy", "safetensors", "platformdirs", "psutil", "sqlite3", "hashlib", "ctypes", "tarfile", "csv", "logging",
    "PIL", "torch", "jax", "tensorflow", "triton", "onnx", "ml_dtypes", "asyncio", "multiprocessing", "subprocess",
    "concurrent.futures",
}  # fmt: skip
TRAINING = "s = es.TrainStep(es.nn.Linear(2, 1), es.functional.mse_loss, es.optim.SGD(lr=0.1)); "


def run(code: str) -> str:
    """What a new process prints that runs this with `import einsmith as es` before it."""
    words = [sys.executable, "-c", f"import einsmith as es, sys\n{code}"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=PACKAGE.parent, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(code: str) -> set[str]:
    return set(run(f"{code}\nprint(*sys.modules)").split())


def test_a_bare_import_is_light() -> None:
    found = loaded("")
    assert {m for m in found if m.partition(".")[0] == "einsmith"} == BARE
    before = subprocess.run([sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True)
    assert not (ALL & found) - set(before.stdout.split())


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("code", "without"),
    [
        (
            "es.nn.Linear(2, 3), es.op('Y[i] = X[i]'), es.optim.Adam(lr=0.1)",
            ALL - {"numpy", "hashlib", "ctypes", "platformdirs"},
        ),
        ("es.data.batches([[1.0]], [1.0], 1)", COMPILER | NETWORK | COMMANDS | {"PIL"}),
        ("es.models.lenet5()", COMPILER | NETWORK | COMMANDS),
        (f"{TRAINING}es.jit(lambda x: x + x)(1.0)", NETWORK | COMMANDS | {"safetensors"}),
        ("es.frontends", ALL),
        ("import einsmith.cli.main", ALL - {"click"}),
        ("import einsmith.cli.info", {"ssl", "rich", "matplotlib", "einsmith.kernels", "einsmith.passes"}),
    ],
)
def test_unused_modules_are_not_loaded(code: str, without: set[str]) -> None:
    assert not without & loaded(code)


def test_commands_start_without_what_they_do_not_use() -> None:
    """`einsmith --help` needs no arrays, `einsmith info` no compiler."""
    code = "from einsmith.cli import main; status = main.run([{!r}]); print(status, *sys.modules, sep='\\n')"
    for argument, without in (("--help", ALL - {"click"}), ("info", {"einsmith.kernels", "einsmith.passes", "rich"})):
        printed = run(code.format(argument)).splitlines()
        assert "0" in printed and not without & set(printed), argument


EACH = """
import os
import numpy, llvmlite.binding  # which know nothing of Einsmith: each child need not import them again
for group in {groups!r}:
    if os.fork() == 0:
        try:
            for name in group.split():
                {how}
        except BaseException as e:
            print(name, repr(e), flush=True)
            os._exit(1)
        os._exit(0)
    os.wait()
"""


few_or_all = pytest.mark.parametrize("nth", [12, pytest.param(1, marks=pytest.mark.slow)], ids=["few", "all"])


@few_or_all
def test_every_name_is_there_by_itself(nth: int) -> None:
    """Of the names that one module has, the first stands for the others, which follow it in its process; those that are
    modules' names, too, have processes of their own."""
    modules = {p.stem for p in PACKAGE.iterdir()}
    groups = [" ".join(n for n in text.split() if n not in modules) for text in es._PLACES.values()]
    names = [g for g in groups if g] + [n for n in (*es.__all__, "frontends") if n in modules]
    assert {n for g in names for n in g.split()} >= {*es.__all__, "frontends"} - {"__version__"}
    firsts = [text.split()[0] for text in es._PLACES.values()] + ["data", "nn", "frontends"]
    more = "; assert callable(value) != (type(value) is type(es)), value; assert getattr(es, name) is value"
    assert run(EACH.format(groups=names[::nth], how="value = getattr(es, name)" + more)) == ""
    assert run(EACH.format(groups=firsts[::nth], how="exec('from einsmith import ' + name + ' as value')" + more)) == ""


@few_or_all
def test_every_module_is_there_as_it_was(nth: int) -> None:
    """Attributes that were there because the package had loaded them."""
    modules = sorted({p.stem if p.suffix else p.name for p in PACKAGE.iterdir() if not p.name.startswith("_")} - {"py"})
    modules.remove("export")  # whose name is the function's
    how = "value = getattr(es, name); assert value.__name__ == 'einsmith.' + name, value"
    assert run(EACH.format(groups=modules[::nth], how=how)) == ""


def test_public_names_agree_in_all_three_places() -> None:
    """The list for type checkers, the table of places and `__all__`."""
    for package, extra in (("", {"frontends"}), ("export", set())):
        tree = ast.parse((PACKAGE / package / "__init__.py").read_text())
        block = next(n for n in tree.body if isinstance(n, ast.If) and isinstance(n.test, ast.Name))
        listed = {a.name: n.module for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
        module = sys.modules[f"einsmith.{package}".rstrip(".")]
        places = module._PLACES
        if not package:
            places = {name: place for place, names in places.items() for name in names.split()}
        assert {n: m for n, m in listed.items() if m != "einsmith" and n != "late"} == places
        assert set(listed) - {"late"} == set(module.__all__) | extra
    assert set(dir(es)) >= {*es.__all__, "frontends", "__version__"}
    assert run("from einsmith import *\nprint(op.__name__, nn.__name__, export.__name__)").split() == [
        "op", "einsmith.nn", "export",
    ]  # fmt: skip
    assert "TrainStep" in run("import pydoc\nprint(pydoc.render_doc(es))")


def test_a_function_that_is_named_as_its_module() -> None:
    before = ["", "import einsmith.export.library", "import einsmith.export", "es.load_library"]
    how = (
        f"exec({before!r}[int(name)]); from einsmith import export; "
        "assert es.export.__name__ == 'export' and export is es.export and callable(export), export"
    )
    assert run(EACH.format(groups=[str(n) for n in range(len(before))], how=how)) == ""


def test_a_name_that_is_not_there() -> None:
    for owner, name in ((es, "TrainStp"), (es, "_nothing"), (es, "nothing"), (es.frontends, "nothing")):
        with pytest.raises(AttributeError, match=f"module '{owner.__name__}' has no attribute '{name}'") as e:
            getattr(owner, name)
        assert e.value.name == name and e.value.obj is owner
    with pytest.raises(ImportError, match="nothing"):
        exec("from einsmith import nothing")


@pytest.mark.thinned(8)
@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("from einsmith.lang.op import op\nprint(op('Y[i] = 2*X[i]')(np.ones(2)))", "[2. 2.]"),
        ("from einsmith.functional import relu\nprint(relu(np.array([-1.0, 2.0])))", "[0. 2.]"),
        ("from einsmith.nn import ReLU\nprint(ReLU()(np.array([-1.0, 2.0])))", "[0. 2.]"),
        ("print(es.exp(np.zeros(2)))", "[1. 1.]"),
        ("import pickle\nprint(pickle.loads(pickle.dumps(es.op('Y[i] = 2*X[i]')))(np.ones(2)))", "[2. 2.]"),
        ("f = es.op('Y[i] = 2*X[i]')\nprint(f.plan[:7])", "nothing"),
        # The pullback draws what the output drew, also where the output is the first to draw anything.
        ("es.manual_seed(3)\ny, pull = es.vjp(lambda x: es.functional.dropout(x, 0.5), np.ones(99))\n"
         "print((pull(np.ones(99))[0] == y).all())", "True"),
        ("def f(x):\n    import einsmith.functional as F\n    return F.dropout(x, 0.5)\n"
         "y, pull = es.vjp(f, np.ones(99))\nprint((pull(np.ones(99))[0] == y).all())", "True"),
    ],
)  # fmt: skip
def test_any_name_can_be_used_first(code: str, wanted: str) -> None:
    """What traces, compiles and draws is loaded by the first that needs it."""
    assert run(f"import numpy as np\n{code}").strip() == wanted


def unguarded(source: str) -> list[int]:
    """Lines of the imports inside functions that do not hold IMPORTING."""
    found: list[int] = []

    def walk(node: ast.AST, inside: bool, held: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)) and inside and not held:
                found.append(child.lineno)
            holds = isinstance(child, ast.With) and any("IMPORTING" in ast.unparse(i) for i in child.items)
            walk(child, inside or isinstance(child, ast.FunctionDef), held or holds)

    walk(ast.parse(source), False, False)
    return found


def test_imports_within_functions_hold_back_forks() -> None:
    """NumPy imports parts of itself at their first use, which are imported by a statement therefore."""
    files = {p: p.read_text() for p in PACKAGE.rglob("*.py") if p.parent.name != "cli"}  # commands have one thread
    assert {str(p): lines for p, text in files.items() if (lines := unguarded(text))} == {}
    lazy = re.compile(r"\bnp\.(random\.default_rng|ma|fft|polynomial|ctypeslib|rec|char|strings)\b")
    assert [str(p) for p, text in files.items() if lazy.search(text)] == []
    late = "def f():\n    import a\n    with locks.IMPORTING:\n        import b\n    def g():\n        from c import d"
    assert unguarded(late) == [2, 6]


def test_cached_properties_hold_no_lock() -> None:
    """Python 3.11's own has one lock for all instances of a class, which a fork by another thread may find held."""
    shared = re.compile(r"from functools import .*\bcached_property\b|@functools\.cached_property")
    assert [str(p) for p in PACKAGE.rglob("*.py") if shared.search(p.read_text())] == []


NAMES = [
    "es.TrainStep", "es.nn.Linear", "es.functional.relu", "exec('from einsmith import functional, models, op')",
    "es.op('Y[i] = 2*X[i]')([1.0])", "es.data.batches",
]  # fmt: skip
STATEMENTS = [
    "exec('import einsmith.nn')",
    "exec('import einsmith.models')",
    "exec('import einsmith.training.checkpoint')",
]
"""Python holds locks of modules for as long, of which a fork leaves its child no key: forks are not for these."""
RACE = """
import os, threading, time
ways = [{ways}]
failed, children = [], []
barrier = threading.Barrier(len(ways) + 1)
def go(f):
    barrier.wait()
    try:
        f()
    except BaseException as e:
        failed.append(repr(e))
threads = [threading.Thread(target=go, args=(f,), daemon=True) for f in ways]
for t in threads:
    t.start()
barrier.wait()
while any(t.is_alive() for t in threads):
    if {forks}:
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if es.op("Y[i] = 3*X[i]")([1.0]).tolist() == [3.0] else 1)
            except BaseException as e:
                print("child", repr(e), flush=True)
                os._exit(2)
        children.append(pid)
    time.sleep(0.02)
print(failed, [s for s in (os.waitpid(p, 0)[1] for p in children) if s], len(children) > 0)
"""


def used_on_import(tree: ast.Module) -> list[str]:
    """The operators that a module reads from `ops` or `functional` while it is imported: outside of functions' bodies.

    Such a read takes IMPORTING within an import statement, so that two threads may wait for each other."""
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "einsmith"]
    names = {a.asname or a.name for n in imports for a in n.names if a.name in ("ops", "functional")}
    if not names:
        return []
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]
    bodies = [b for f in functions for b in (f.body if isinstance(f.body, list) else [f.body])]
    inside = {id(n) for b in bodies for n in ast.walk(b)}
    reads = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and id(n) not in inside]
    return [n.attr for n in reads if isinstance(n.value, ast.Name) and n.value.id in names]


def test_modules_use_no_operators_while_they_are_imported() -> None:
    wrong = "from einsmith import ops as F\ndef f(x, g=F.relu):\n    return F.exp(x)\nh = lambda x: F.log(x)\n"
    assert used_on_import(ast.parse(wrong)) == ["relu"]
    assert {p: used for p, tree in trees().items() if (used := used_on_import(tree))} == {}


def test_import_statements_take_no_lock() -> None:
    """Neither do those within the package, of modules and of names."""
    code = """
from einsmith.base import locks
entered, enter = [], locks.Awaited.__enter__
def note(lock):
    entered.append(lock is locks.IMPORTING)
    return enter(lock)
locks.Awaited.__enter__ = note
import einsmith.nn, einsmith.models, einsmith.training.checkpoint, einsmith.cli.tasks, einsmith.bench.steps
print(sum(entered))
es.hessian
print(any(entered))
"""
    assert run(code).split() == ["0", "True"]


def test_threads_that_import_do_not_wait_for_each_other() -> None:
    ways = ", ".join(f"lambda: {way}" for way in (*NAMES, *STATEMENTS))
    assert run(RACE.format(ways=ways, forks=False)).strip() == "[] [] False"


def test_forks_while_names_are_imported() -> None:
    """A child finds whole modules, and no lock that a thread of its parent holds."""
    ways = ", ".join(f"lambda: {way}" for way in NAMES)
    assert run(RACE.format(ways=ways, forks=True)).strip() == "[] [] True"
