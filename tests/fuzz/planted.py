"""`python -m tests.fuzz.planted [--only NAME,NAME] [--minutes M] [--seed S] [--by WAY,WAY]`: are faults found?

Each fault of `tests.fuzz.plants` is planted in a copy of the package, which is then searched by the fuzzer and by the
programs of `tests.fuzz.checked`, by each until something is found or its time is over; one that names its tests is
searched by these alone. A find counts where it is none of the package as it is. Prints a table and, with --report,
writes it as JSON; ends with status 1 where a fault was found in no way.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import einsmith
from tests.fuzz.plants import PLANTS, Plant

PACKAGE = Path(einsmith.__file__).resolve().parent
ROOT = Path(__file__).resolve().parent.parent.parent
WAYS = ("fuzzer", "check", "tests")
AGAIN = 60.0
"""Seconds that a find may take in the package as it is."""


@dataclass
class Search:
    """What a search came to: whether the fault was found, after how many seconds and cases (or programs), by which
    case, and how."""

    found: bool
    seconds: float
    cases: int = 0
    case: str = ""
    message: str = ""
    others: int = 0
    """Finds that the package as it is has too."""


def plant(p: Plant, folder: Path) -> None:
    """Copies the package into a folder, with the fault. Raises ValueError unless the line to change is there once."""
    shutil.copytree(PACKAGE, folder / "einsmith", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "einsmith" / p.file
    lines = file.read_text().splitlines(keepends=True)
    at = [n for n, line in enumerate(lines) if line.strip() == p.before]
    if len(at) != 1:
        raise ValueError(f"{p.name}: {p.file} has {len(at)} lines {p.before!r}; say another in tests/fuzz/plants.py")
    lines[at[0]] = lines[at[0]].replace(p.before, p.after)
    file.write_text("".join(lines))


def environment(folder: Path, *paths: Path) -> dict[str, str]:
    """That of a process which imports from these paths and keeps its cache in the folder."""
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "EINSMITH_CACHE_DIR": str(folder / "cache"),
        "EINSMITH_CALIBRATE": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip


def by_fuzzer(folder: Path, seconds: float, seed: str, themes: str = "") -> Search:
    """Runs the fuzzer on the package in a folder, with another seed after each find that is none of the fault."""
    start, out, n = time.monotonic(), Search(False, 0.0), 0
    report = folder / "report.json"
    while not out.found and (left := seconds - (time.monotonic() - start)) > 1:
        report.unlink(missing_ok=True)
        begin = time.monotonic() - start
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tests.fuzz", "--checkout", str(folder), "--seed", f"{seed}.{n}", "--finds",
             "1", "--minutes", str(left / 60), "--shrink", "10", "--report", str(report), "--themes", themes],
            env=environment(folder, ROOT), cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
        if not report.exists():
            raise RuntimeError(f"the fuzzer itself failed:\n{done.stdout}{done.stderr}")
        told = json.loads(report.read_text())
        out.cases, n = out.cases + told["cases"], n + 1
        if done.returncode:
            find = told["finds"][0]
            if _passes(find["test"], folder):
                out.found, out.seconds = True, round(begin + find["second"], 1)
                out.case = f"{find['theme']}, {find['what']}, case {find['number']} of seed {seed}.{n - 1}"
                out.message = f"{find['kind']}: {find['message'].splitlines()[0] if find['message'] else ''}"
            else:
                out.others += 1
    if not out.found:
        out.seconds = round(time.monotonic() - start, 1)
    return out


def _passes(test: str, folder: Path) -> bool:
    """Whether the test of a find passes in the package as it is."""
    file = folder / "find.py"
    file.write_text(test + "\n\ntest_found()\n")
    try:
        done = subprocess.run([sys.executable, "-P", str(file)], env=environment(folder / "plain", ROOT), cwd=folder,
                              capture_output=True, timeout=AGAIN)  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def by_check(folder: Path, seconds: float) -> Search:
    """Runs the programs on the package in a folder, until one of them fails."""
    start = time.monotonic()
    try:
        # what surrounds this process may ask for no checks, and without them few faults are seen
        done = subprocess.run([sys.executable, "-P", "-m", "tests.fuzz.checked"], cwd=folder, capture_output=True,
                              env=environment(folder, folder, ROOT) | {"EINSMITH_CHECK": "1"}, text=True,
                              timeout=seconds)  # fmt: skip
        said, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as e:
        said, status = (e.stdout or b"").decode(), 0
    out = Search(status != 0, round(time.monotonic() - start, 1))
    lines = said.splitlines()
    out.cases = sum(line.startswith("program ") for line in lines)
    if out.found:
        last = [line for line in lines if line.startswith("program ")]
        out.case = last[-1].removeprefix("program ") if last else "import"
        tail = [line for line in lines if line.startswith("fault: ")] or done.stderr.strip().splitlines()[-1:]
        out.message = (tail or [f"exit status {status}"])[0].removeprefix("fault: ")
    return out


def by_tests(folder: Path, seconds: float, tests: str) -> Search:
    """Runs tests on the package in a folder until one fails, and on the package as it is, where all have to pass."""
    start = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--tb=line"]
    cache = {"EINSMITH_CACHE_DIR": str(folder / "cache")}

    def run(package: Path) -> tuple[int, str]:
        try:
            done = subprocess.run([*command, "-o", f"pythonpath={package} {ROOT}", *shlex.split(tests)], cwd=ROOT,
                                  env=environment(package, package, ROOT) | cache, capture_output=True, text=True,
                                  timeout=max(seconds, 60))  # fmt: skip
        except subprocess.TimeoutExpired:
            return -1, "no end"
        return done.returncode, done.stdout.strip() or done.stderr.strip()

    (planted, said), (plain, passed) = run(folder), run(ROOT)
    # Other statuses than 1 and those of signals: no test was selected, or collected.
    out = Search((planted == 1 or planted < 0) and plain == 0, round(time.monotonic() - start, 1))
    failed = [line for line in said.splitlines() if line.startswith("FAILED ")]
    out.case = (failed or [f"exit status {planted}"])[0].removeprefix("FAILED ").partition(" - ")[0]
    out.message = passed.splitlines()[-1]
    return out


def ways_of(p: Plant) -> tuple[str, ...]:
    """Those of WAYS in which a fault is searched."""
    return ("tests",) if p.tests else ("fuzzer", "check")


def search(p: Plant, way: str, seconds: float, seed: str = "0", themes: str = "") -> Search:
    """Plants a fault and searches for it in one of WAYS."""
    with tempfile.TemporaryDirectory(prefix="einsmith-planted-", ignore_cleanup_errors=True) as d:
        folder = Path(d)
        plant(p, folder)
        if way == "tests":
            return by_tests(folder, seconds, p.tests)
        return by_fuzzer(folder, seconds, seed, themes) if way == "fuzzer" else by_check(folder, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 where a fault was found in no way."""
    a = argparse.ArgumentParser(prog="python -m tests.fuzz.planted", description=__doc__)
    a.add_argument("--only", default="", help="comma-separated names of faults, or kinds")
    a.add_argument("--minutes", type=float, default=30.0, help="for each fault and each way (default 30)")
    a.add_argument("--seed", default="0", help="of the fuzzer")
    a.add_argument("--by", default=",".join(WAYS), help="comma-separated ways of search")
    a.add_argument("--report", default="", help="a file for the table, JSON")
    o = a.parse_args(arguments)
    names = [x for x in o.only.split(",") if x]
    ways = o.by.split(",")
    chosen = [p for p in PLANTS if (not names or p.name in names or p.kind in names) and {*ways} & {*ways_of(p)}]
    print(f"{'fault':<20}{'kind':<12}{'by':<8}{'seconds':>8}{'cases':>7}  case")
    rows, missed = [], []
    for p in chosen:
        made = {}
        for way in [w for w in ways if w in ways_of(p)]:
            made[way] = s = search(p, way, 60 * o.minutes, o.seed)
            told = "" if s.found else "NOT FOUND "
            told += f"{s.case}: {s.message[:100]}"
            told += f" ({s.others} other finds)" if s.others else ""
            print(f"{p.name:<20}{p.kind:<12}{way:<8}{s.seconds:>8.0f}{s.cases:>7}  {told}", flush=True)
        rows.append({**asdict(p), "searches": {way: asdict(s) for way, s in made.items()}})
        missed += [p.name] * (bool(made) and not any(s.found for s in made.values()))
        if o.report:
            Path(o.report).write_text(json.dumps(rows, indent=1))
    print(f"{len(chosen) - len(missed)} of {len(chosen)} found" + (f"; not {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
