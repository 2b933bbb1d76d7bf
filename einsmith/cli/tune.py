"""Show, remove, export and import the records of tuning, for `einsmith tune` without a program."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from einsmith.base.errors import DeviceError, escape_text
from einsmith.codegen.cache import native
from einsmith.driver import cuda
from einsmith.gpu.cards import CUDA
from einsmith.gpu.cuda import driver
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
        raise click.UsageError("give a MODEL or FILE to tune, or one of --list, --forget, --export and --import")
    if listed:
        show(as_json)
    elif forget is not None:
        digits = "" if forget == ALL else forget.lower()
        if digits or forget != ALL:
            _check(digits)
        count = records.forget(digits)
        if digits and not count:
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
    here = _machines_here()
    rows = [row(x, here) for x in records.list_records()]
    if as_json:
        for x in rows:
            click.echo(json.dumps(x))
        return
    if not rows:
        click.echo(f"nothing is recorded in {database.path_of()}")
    for x in rows:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(x["when"]))
        gain = f"{x['prior'] / x['seconds']:.2f} times as fast" if x["seconds"] > 0 else ""
        click.echo(
            f"{escape_text(x['kernel'][:8])}  {x['seconds'] * 1e6:10.1f} us  {gain} as the model's choice, "
            f"+-{x['spread']:.1%}, confirmed {x['confirmed']} times, {when}"
            f"{'' if x['used'] else ', a starting point only: ' + x['origin']}"
        )
        click.echo(f"          {escape_text(x['described'])}")
        click.echo(f"          {escape_text(x['text'])}")


def _machines_here() -> set[str]:
    """Return the digests of this machine's processors and cards, with every option of programs."""
    targets = [native.host_target()]
    with suppress(DeviceError):  # there is no card, or no driver for one
        targets += [cuda.described(facts, f"{CUDA}:{n}") for n, facts in enumerate(driver.devices())]
    return {digest for target in targets for digest in store.list_variants(target)}


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


def _count(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _say(report: dict[str, Any], text: str, as_json: bool) -> None:
    click.echo(json.dumps(report) if as_json else text)
