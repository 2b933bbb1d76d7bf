"""`einsmith info` and `einsmith cache`."""

from __future__ import annotations

import inspect
import json
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from einsmith import knobs, models
from einsmith.codegen import objects
from einsmith.runtime.pool import get_threads
from einsmith.target.facts import host

LIBRARIES = ("einsmith", "numpy", "llvmlite")


def info(as_json: bool) -> None:
    """Prints what a report of a fault should hold."""
    facts = gather()
    if as_json:
        click.echo(json.dumps(facts))
        return
    for section, rows in facts.items():
        click.echo(section)
        for name, value in rows.items() if isinstance(rows, dict) else [("", rows)]:
            click.echo(f"  {name:<22} {value}")


def gather() -> dict[str, Any]:
    """Versions, machine, folders, models and knobs, ready for JSON."""
    target = asdict(host())
    machine = {n: target[n] for n in ("vector_bytes", "vector_registers", "l1", "l2", "l3", "cores")}
    return {
        "versions": {name: _version(name) for name in LIBRARIES} | {"python": platform.python_version()},
        "machine": {"system": platform.platform(), "cpu": _cpu_name(), **machine, "threads": get_threads()},
        "folders": {"cache": str(knobs.cache_dir()), "data": str(knobs.data_dir())},
        "models": {name: _first_line(type(models.get(name))) for name in models.names()},
        "environment variables": {k.name: _shown(k.get()) for k in knobs.ALL},
    }


def cache(clear: bool, as_json: bool) -> None:
    """Prints, or empties, the cache of compiled code; fetched data is only counted: it may not be to be had again."""
    entries, size = objects.usage()
    data_files, data_size = _count(knobs.cache_dir() / "data")
    if clear:
        entries, size = objects.clear()
    if as_json:
        click.echo(
            json.dumps(
                {
                    "folder": str(knobs.cache_dir()),
                    "removed" if clear else "code": {"entries": entries, "bytes": size},
                    "data": {"entries": data_files, "bytes": data_size},
                }
            )
        )
        return
    if clear:
        click.echo(f"removed {entries} entries of compiled code, {_megabytes(size)}")
        return
    click.echo(f"{knobs.cache_dir()}")
    click.echo(f"  compiled code  {entries} entries, {_megabytes(size)}")
    click.echo(f"  data sets      {data_files} files, {_megabytes(data_size)}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _first_line(documented: type) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _shown(value: object) -> Any:
    return str(value) if isinstance(value, Path) else value


def _count(folder: Path) -> tuple[int, int]:
    sizes = []
    for path in folder.rglob("*") if folder.is_dir() else ():
        try:
            if path.is_file():
                sizes.append(path.stat().st_size)
        except OSError:
            continue
    return len(sizes), sum(sizes)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
