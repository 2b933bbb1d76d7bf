"""Build the wheel and the source archive, check them, and try the wheel out in empty environments without a compiler.

    python -m tests.package [PYTHON ...]

PYTHON: interpreters to try besides this one, such as python3.12. What is built lies in `dist/`. The checks of an
environment are `smoke.py`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.cli.digits import write_digits

ROOT = Path(__file__).resolve().parents[2]
MAX_WHEEL_BYTES = 4 << 20
"""Most bytes of the wheel, which has no binaries and no data."""


def run(*command: str | Path, **options) -> None:
    """Run a command; end the program with its output where it fails."""
    done = subprocess.run(
        [str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    if said := [line for line in done.stdout.splitlines() if line.startswith("Python ")]:
        print(*said, sep="\n", flush=True)


def build(dist: Path) -> Path:
    """Build both archives anew, check them, and return the wheel."""
    shutil.rmtree(dist, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    archives = sorted(dist.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *archives)
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert top == {"einsmith", next(t for t in top if t.endswith(".dist-info"))}, top
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert wheel.stat().st_size < MAX_WHEEL_BYTES, wheel.stat().st_size
    for archive in archives:
        print(f"{archive.name}: {archive.stat().st_size / 1e6:.2f} MB", flush=True)
    return wheel


def try_out(wheel: Path, python: str) -> None:
    """Install the wheel for an interpreter in an environment of its own, and run `smoke.py` there."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        # Without paths to other copies of the package, which would count as installed.
        environment = {n: v for n, v in os.environ.items() if not n.startswith(("EINSMITH_", "PYTHON"))}
        run(python, "-m", "venv", folder / "env", env=environment)
        binaries = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        install = [binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
        run(*install, env=environment)
        (folder / "data").mkdir()
        (folder / "work").mkdir()
        write_digits(folder / "data", 512, 128)
        environment |= {"PATH": str(binaries), "HOME": str(folder), "EINSMITH_CACHE_DIR": str(folder / "cache")}
        smoke = Path(__file__).with_name("smoke.py")
        run(binaries / "python", "-P", smoke, folder / "data", cwd=folder / "work", env=environment)


def main() -> None:
    """Build, check and try out."""
    parser = argparse.ArgumentParser(prog="python -m tests.package", description=__doc__.partition("\n")[0])
    parser.add_argument("python", nargs="*", help="interpreters to try besides this one")
    wheel = build(ROOT / "dist")
    for python in dict.fromkeys([sys.executable, *parser.parse_args().python]):
        try_out(wheel, python)


if __name__ == "__main__":
    main()
