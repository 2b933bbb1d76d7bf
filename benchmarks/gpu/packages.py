"""Install what Einsmith needs where it is missing: from a package index, else from a folder of wheels."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

NEEDED = ("numpy", "llvmlite", "click", "rich", "safetensors", "platformdirs", "psutil", "pytest")
"""Packages of Einsmith itself, and pytest, whose decorators stand in the modules with the kernels' cases."""
ON_CARDS = ("triton",)
DRAWING = ("matplotlib",)
PEERS = ("torch", "jax", "jaxlib")
SECONDS = 120
"""Most seconds of an installation."""


class MissingError(Exception):
    """Packages are missing and cannot be installed."""


def missing(names: Sequence[str]) -> list[str]:
    """Return the packages that cannot be imported."""
    importlib.invalidate_caches()
    return [n for n in names if importlib.util.find_spec(n) is None]


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter, of those that are installed."""
    out = {"python": sys.version.partition(" ")[0]}
    for name in (*NEEDED, *ON_CARDS, *PEERS):
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def provide(names: Sequence[str], wheels: Path | None = None) -> list[str]:
    """Install the packages that are missing into a folder of their own, which this process and its children import
    from; return which were installed.

    wheels: folder of wheels that are installed where the package index cannot be reached. Raises MissingError.
    """
    wanted = missing(names)
    if not wanted:
        return []
    folder = Path(tempfile.gettempdir()) / f"einsmith-benchmark-{os.getuid()}-{_python()}"
    _import_from(folder)
    left, said = missing(names), ""
    ways = [["--retries", "0", "--timeout", "10"]]
    if wheels is not None:
        if not wheels.is_dir():
            raise MissingError(f"--wheels {wheels} is no folder")
        ways.append(["--no-index", "--find-links", str(wheels)])
    for way in ways:
        if left:
            said = _pip([*way, *left], folder) or said
            left = missing(names)
    if left:
        where = f"neither a package index nor {wheels} has them all" if wheels else "no package index can be reached"
        fetch = f"python -m pip download --only-binary=:all: --python-version {_python()} -d WHEELS {' '.join(left)}"
        raise MissingError(
            f"these packages are missing: {', '.join(left)}; {where}\n{said}\nOn a machine with a network run\n"
            f"  {fetch}\nand give the folder by --wheels WHEELS"
        )
    return wanted


def _python() -> str:
    """Return the version of Python that wheels are for."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _import_from(folder: Path) -> None:
    """Let this process, and those that it starts, import from a folder after all others."""
    folder.mkdir(parents=True, exist_ok=True)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(folder) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, known), str(folder)])


def _pip(arguments: Sequence[str], folder: Path) -> str:
    """Install by pip; return the last line of what it says where it fails. Packages that are there already, NumPy
    say, are not replaced: nothing of the folder comes before them."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", str(folder)]
    try:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"pip took longer than {SECONDS} s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]
