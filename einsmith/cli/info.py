"""Implement the commands `einsmith info`, `einsmith calibrate` and `einsmith cache`."""

from __future__ import annotations

import inspect
import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from einsmith import distributed, models
from einsmith.base import environment, files
from einsmith.base.errors import DeviceError
from einsmith.base.system import processors
from einsmith.codegen.cache import native, objects
from einsmith.cost.facts import Target
from einsmith.gpu.cuda import driver, libcuda
from einsmith.gpu.cuda.device import DeviceFacts
from einsmith.runtime.thread_count import get_threads
from einsmith.tuning.calibration import store

LIBRARIES = ("einsmith", "numpy", "llvmlite", "triton")


def info(as_json: bool) -> None:
    """Print the facts that a bug report should contain; in a group of processes, those of rank 0."""
    with distributed.init() as group:
        if group.rank:
            return
        facts = gather()
        facts["group"] = {"launcher": group.engine, "processes": group.size, "on this machine": group.local_size}
    if as_json:
        click.echo(json.dumps(facts))
        return
    for section, rows in facts.items():
        click.echo(section)
        for name, value in rows.items():
            click.echo(f"  {name:<22} {_readable(name, value)}")


def gather() -> dict[str, Any]:
    """Return versions, machine, graphics cards, folders, models and environment variables, ready for JSON."""
    static = native.host_target()
    target = asdict(static)
    machine = {n: target[n] for n in ("vector_bytes", "vector_registers", "l1", "l2", "l3", "cores")}
    recorded = store.load(static)
    used = recorded if environment.CALIBRATE.get() and recorded is not None else static
    names = store.measured(static) if recorded is not None else []
    return {
        "versions": {name: _version(name) for name in LIBRARIES} | {"python": platform.python_version()},
        "machine": {"system": platform.platform(), "cpu": processors.model(), **machine, "threads": get_threads()},
        "graphics cards": _cards(),
        "coefficients": {"source": _source(recorded), **coefficients(used)},
        "measured": {"probes": names},
        "measured but not used": store.rejected(static) if recorded is not None else {},
        "folders": {"cache": str(environment.cache_dir()), "data": str(environment.data_dir())},
        "models": {name: _first_line(models.maker(name)) for name in models.names()},
        "environment variables": {k.name: _to_json(k.get()) for k in environment.ALL},
    }


def _cards() -> dict[str, str]:
    """Return a line on each card, by its name as a device, or the reason why there is none."""
    try:
        return {f"cuda:{n}": _describe_card(facts) for n, facts in enumerate(driver.devices())}
    except DeviceError as e:
        return {"none": str(e)}


def _describe_card(facts: DeviceFacts) -> str:
    reason = driver.why_unusable(facts)
    return (
        f"{facts.name}, compute capability {driver.spell_capability(facts.capability)}, {facts.multiprocessors} "
        f"multiprocessors, {facts.memory / 1e9:.1f} GB, driver of CUDA {libcuda.spell_version(facts.driver)}"
        f"{f'; cannot be used: {reason}' if reason else ''}"
    )


def _source(recorded: Target | None) -> str:
    if not environment.CALIBRATE.get():
        return "static (EINSMITH_CALIBRATE is 0)"
    return "static (not calibrated yet)" if recorded is None else "measured"


def coefficients(target: Target) -> dict[str, Any]:
    """Return the coefficients of predictions by name: seconds, bytes per second and multiply-adds per second."""
    fields = asdict(target)
    several = ("bytes_per_second", "special_seconds", "dots", "tiles")
    out = {name: fields[name] for name in store.COEFFICIENTS if name not in several}
    levels = zip(("l1", "l2", "l3"), target.bytes_per_second, strict=True)
    out |= {f"{level}_bandwidth_per_core": rate for level, rate in levels}
    out |= {f"{name}_dots": rate for name, rate in target.dots}
    out |= {f"{name}_tile_dots": rate for name, rate in target.tiles}
    return out | {f"{fn}_seconds": seconds for fn, seconds in target.special_seconds}


def _readable(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    if not isinstance(value, float):
        return value
    if name.endswith("_seconds"):
        return f"{value * 1e9:.3g} ns"
    if name.endswith("_share"):
        return f"{value:.0%}"
    if name == "multiplies" or name.endswith("_dots"):
        return f"{value:g} per cycle"
    return f"{value / 1e9:.4g} G/s" if name.startswith("fma") else f"{value / 1e9:.4g} GB/s"


def calibrate(as_json: bool) -> None:
    """Measure the machine, store the coefficients, and print them next to the static ones."""
    from einsmith.tuning.calibration import calibrate

    try:
        target = calibrate.calibrate()
    except OSError as e:
        raise click.ClickException(
            f"the figures cannot be stored: {e}; set EINSMITH_CACHE_DIR to another folder"
        ) from e
    static = native.host_target()
    measured, default = coefficients(target), coefficients(static)
    path, rejected = str(store.path_of(static)), store.rejected(static)
    if as_json:
        report = {"path": path, "measured": store.measured(static), "rejected": rejected, "coefficients": measured}
        click.echo(json.dumps(report))
        return
    click.echo(f"{'':<24} {'measured':>12} {'static':>12}")
    for name, value in measured.items():
        click.echo(f"{name:<24} {_readable(name, value):>12} {_readable(name, default.get(name, 0.0)):>12}")
    for name, why in rejected.items():
        click.echo(f"{name}: not used, {why}")
    click.echo(f"stored in {path}")
    if not environment.CALIBRATE.get():
        click.echo("EINSMITH_CALIBRATE is 0: the static figures are used")


def cache(clear: bool, as_json: bool) -> None:
    """Print or clear the cache of compiled code. Fetched data is only counted, as it may not be available again."""
    entries, size = objects.usage()
    data_files, data_size = _count(environment.cache_dir() / "data")
    if clear:
        entries, size = objects.clear()
    if as_json:
        click.echo(
            json.dumps(
                {
                    "folder": str(environment.cache_dir()),
                    "removed" if clear else "code": {"entries": entries, "bytes": size},
                    "data": {"entries": data_files, "bytes": data_size},
                }
            )
        )
        return
    if clear:
        click.echo(f"removed {entries} entries of compiled code, {_megabytes(size)}")
        return
    click.echo(f"{environment.cache_dir()}")
    click.echo(f"  compiled code  {entries} entries, {_megabytes(size)}")
    click.echo(f"  data sets      {data_files} files, {_megabytes(data_size)}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _first_line(documented: Callable) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _to_json(value: object) -> Any:
    return str(value) if isinstance(value, Path) else value


def _count(folder: Path) -> tuple[int, int]:
    sizes = []
    for path in folder.rglob("*") if files.is_folder(folder) else ():
        try:
            if files.is_file(path):
                sizes.append(path.stat().st_size)
        except OSError:
            continue
    return len(sizes), sum(sizes)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
