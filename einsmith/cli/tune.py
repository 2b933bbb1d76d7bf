"""Show, remove, export and import the records of tuning, for `einsmith tune` without a program."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click

from einsmith.codegen.cache import native
from einsmith.cost.facts import REUSED_L3_FRACTION, SHARED_L3_FRACTION
from einsmith.tuning.calibration import store
from einsmith.tuning.kernels import database, records
from einsmith.tuning.kernels.override import MIN_DIGITS
from einsmith.tuning.kernels.records import StoredRecord

ALL = "all"


def manage(
    *, listed: bool, forget: str | None, export_to: Path | None, import_from: Path | None, as_json: bool
) -> None:
    """Do the one requested action on the records. Raises click's usage errors and StoreError."""
    asked = [listed, forget is not None, export_to is not None, import_from is not None]
    if sum(asked) != 1:
        raise click.UsageError(
            "give a MODEL or FILE to tune, or exactly one of --list, --forget, --export and --import"
        )
    if listed:
        show(as_json)
    elif forget is not None:
        digits = "" if forget == ALL else forget.lower()
        if digits or forget != ALL:
            _check(digits)
        count = records.forget(digits)
        if not count and forget != ALL:
            raise click.ClickException(f"nothing is recorded for a kernel {forget}; see einsmith tune --list")
        _say({"forgotten": count}, f"{_count(count)} forgotten", as_json)
    elif export_to is not None:
        count = records.export_file(export_to)
        _say({"exported": count, "file": str(export_to)}, f"{_count(count)} written to {export_to}", as_json)
    elif import_from is not None:
        count = records.import_file(import_from)
        _say({"imported": count}, f"{_count(count)} imported, as starting points of a search", as_json)


def _check(digits: str) -> None:
    if len(digits) < MIN_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise click.BadParameter(
            f"{digits!r} does not name a kernel: give {MIN_DIGITS} or more of the hexadecimal digits "
            f"that --list prints, or {ALL}",
            param_hint="--forget",
        )


def show(as_json: bool) -> None:
    """Print every record, newest first."""
    here = _machines()
    rows = [row(x, here) for x in records.list_records()]
    if as_json:
        for found in rows:
            click.echo(json.dumps(found))
        return
    if not rows:
        click.echo(f"nothing is recorded in {database.path_of()}")
        return
    for x in rows:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(x["when"]))
        gain = f"{x['prior'] / x['seconds']:.2f} times as fast" if x["seconds"] > 0 else ""
        click.echo(
            f"{x['kernel'][:8]}  {x['seconds'] * 1e6:10.1f} us  {gain} as the model's choice, +-{x['spread']:.1%}, "
            f"confirmed {x['confirmed']} times, {when}{'' if x['used'] else ', a starting point only: ' + x['origin']}"
        )
        click.echo(f"          {x['described']}")
        click.echo(f"          {x['text']}")


def row(x: StoredRecord, here: set[str]) -> dict[str, Any]:
    """Return a record ready for JSON. here: identifiers of this machine; `used`: whether programs here follow it."""
    current = x.version == records.version()
    origin = (
        "imported"
        if not x.own
        else "another machine"
        if x.machine not in here
        else "other sources"
        if not current
        else "never confirmed in a program"
        if not x.record.confirmed
        else "this machine"
    )
    used = origin == "this machine"
    return x.record._asdict() | {"machine": x.machine, "version": x.version, "used": used, "origin": origin}


def _machines() -> set[str]:
    """Return the identifiers of this machine in the store, for all thread counts and program options."""
    host = native.host_target()
    ways = product(range(1, host.cores + 1), (False, True), (REUSED_L3_FRACTION, SHARED_L3_FRACTION))
    return {store.machine_of(replace(host, cores=n, winograd=w, kept=k)) for n, w, k in ways}


def _count(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _say(found: dict[str, Any], text: str, as_json: bool) -> None:
    click.echo(json.dumps(found) if as_json else text)
