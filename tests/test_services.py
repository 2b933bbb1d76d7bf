"""Processes without a standard error, a home folder or a place to write, as services and containers are: every program
runs, and says once what it cannot keep."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import numpy as np, einsmith as es
x = np.ones((8, 3), np.float32)
assert es.op("y[i] = x[i] + 1")(x[0]).tolist() == [2, 2, 2]
step = es.TrainStep(es.nn.Linear(3, 2), es.functional.mse_loss, es.optim.SGD(lr=0.1))
data = es.data.batches(x, np.ones((8, 2), np.float32), 4, seed=0)
step.fit(data, epochs=1)
"""
END = "open(os.environ['DONE'], 'w').write('done')\n"
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="runs as another user")


def run(
    folder: Path, before: str = "", shell: str = "", prepare: Callable[[], None] | None = None, **variables: str | None
) -> str:
    """What a process says on its standard error that runs the program; it must end well."""
    done = folder / "done"
    folder.chmod(0o1777)
    environ = {"EINSMITH_CACHE_DIR": str(folder / "cache"), "DONE": str(done), **variables}
    environ = {n: v for n, v in {**os.environ, **environ}.items() if v is not None}
    code = f"import os, sys\n{before}\n{PROGRAM}\n{END}"
    command = ["sh", "-c", f'exec "$0" "$@" {shell}', sys.executable, "-c", code]
    told = subprocess.run(
        command, env=environ, preexec_fn=prepare, stderr=subprocess.PIPE, text=True, cwd=folder, timeout=200
    )
    assert done.exists() and told.returncode == 0, told.stderr
    return told.stderr


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("before", "shell", "debug"),
    [
        ("sys.stderr = None", "", "7"),
        ("", "2>/dev/full", "7"),
        ("", "<&- >&- 2>&-", "7"),
        ("", "2>&-", "0"),
        ("os.close(2)", "", "7"),
        ("sys.stdout = sys.stderr = None", "", "0"),
        ("import warnings; warnings.simplefilter('ignore'); sys.stderr.close()", "", "0"),
    ],
)
def test_no_standard_error_is_needed(tmp_path: Path, before: str, shell: str, debug: str) -> None:
    run(tmp_path, before, shell, EINSMITH_DEBUG=debug, PYTHONPATH=str(ROOT))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("home", ["/nonexistent", "relative", "/dev/null", "", "/proc"])
def test_no_home_folder_is_needed(tmp_path: Path, home: str) -> None:
    variables = {"EINSMITH_CACHE_DIR": None, "XDG_CACHE_HOME": None, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    said = run(tmp_path, HOME=home, **variables)
    assert said.count("is not kept on disk") <= 1 and not {"~", "relative"} & set(os.listdir(tmp_path))


# Modules that a process cannot import any more once it is another user, who may not read the environment's files.
IMPORTS = "import einsmith as es, numpy as np; exec(os.environ['FIRST']); os.setgid(54321); os.setuid(54321)"


@pytest.mark.thinned(2)
@needs_root
@pytest.mark.parametrize("cache", [None, "hidden/cache", "hidden"])
def test_a_user_without_a_name_or_with_a_cache_out_of_reach(cache: str | None) -> None:
    other = PROGRAM.replace("8, 3", "8, 4").replace("(3,", "(4,").replace("[2, 2, 2]", "[2, 2, 2, 2]")
    first = f"import glob, concurrent.futures.thread\n{other}"
    with tempfile.TemporaryDirectory() as place:  # that of pytest is out of reach itself
        folder = Path(place)
        (folder / "hidden").mkdir(mode=0o700)
        variables = {"HOME": None, "XDG_CACHE_HOME": None, "TMPDIR": place, "PYTHONPATH": str(ROOT)}
        said = run(folder, IMPORTS, EINSMITH_CACHE_DIR=cache and str(folder / cache), FIRST=first, **variables)
        assert cache is None or "Permission denied" in said or "belongs to another user" in said
        assert cache is not None or (folder / "einsmith-54321" / "objects").is_dir()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("cache", ["/proc/einsmith", "/sys/einsmith", "/dev/null", "n" * 300, "/dev/null/x", "loop"])
def test_a_cache_that_cannot_be_made(tmp_path: Path, cache: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    said = run(tmp_path, EINSMITH_CACHE_DIR=str(tmp_path / cache), PYTHONPATH=str(ROOT))
    assert said.count("is not kept on disk") == 1 and "EINSMITH_CACHE_DIR" in said


def test_a_full_disk(tmp_path: Path) -> None:
    import resource

    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # noqa: E731
    said = run(tmp_path, prepare=limit, PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1")
    assert said.count("is not kept on disk") == 1 and not [p for p in tmp_path.rglob("*.new")]
