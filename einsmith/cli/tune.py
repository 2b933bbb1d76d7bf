"""Show, remove, export and import the records of tuning, and fit the cost model to its measurements, for
`einsmith tune` without a program."""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from einsmith.base import environment
from einsmith.base.errors import DeviceError, escape_text
from einsmith.codegen.cache import native
from einsmith.cost.gpu import CUDA
from einsmith.driver import cuda
from einsmith.runtime.cuda import driver
from einsmith.tuning.calibration import calibrate, fitted, store
from einsmith.tuning.kernels import database, measurements, records, refit
from einsmith.tuning.kernels.override import MIN_DIGITS
from einsmith.tuning.kernels.records import StoredRecord

ALL = "all"
FIT = "fit"
"""The argument of --forget for the fit of the cost model."""


def manage(
    *, listed: bool, fit: bool, forget: str | None, export_to: Path | None, import_from: Path | None, as_json: bool
) -> None:
    """Do the one requested action on the records. Raises click's usage errors and StoreError."""
    asked = [listed, fit, forget is not None, export_to is not None, import_from is not None]
    if sum(asked) != 1:
        raise click.UsageError(
            "give a MODEL or FILE to tune, or exactly one of --list, --fit, --forget, --export and --import"
        )
    if listed:
        show(as_json)
    elif fit:
        fit_model(as_json)
    elif forget == FIT:
        if not _forget_fit():
            raise click.ClickException("there is no fit of the cost model; see einsmith tune --list")
        _say({"forgotten": 1}, "the fit of the cost model forgotten", as_json)
    elif forget is not None:
        digits = "" if forget == ALL else forget.lower()
        if digits or forget != ALL:
            _check(digits)
        count, measured = records.forget(digits)
        if forget == ALL:
            _forget_fit()
        elif not count and not measured.kernels:
            raise click.ClickException(f"nothing is recorded for a kernel {forget}; see einsmith tune --list")
        said = {"forgotten": count, "measurements": measured._asdict()}
        _say(said, f"{_count(count)} and {measured} forgotten", as_json)
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
            f"that --list prints, {ALL}, or {FIT}",
            param_hint="--forget",
        )


def show(as_json: bool) -> None:
    """Print every record, newest first, the fit of the cost model, and how many measurements are kept."""
    here = _machines_here()
    rows = [row(x, here) for x in records.list_records()]
    found = fitted.find(native.host_target())
    measured = records.count_measurements()
    if as_json:
        for x in rows:
            click.echo(json.dumps(x))
        if found is not None:
            click.echo(json.dumps({"fit": fit_row(found)}))
        if measured.kernels:
            click.echo(json.dumps({"measurements": measured._asdict()}))
        return
    if not rows:
        click.echo(f"nothing is recorded in {database.path_of()}")
    if found is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.when))
        click.echo(f"cost model fitted to {_size(found)}, {when}: {found.describe_factors()}")
    if measured.kernels:
        click.echo(f"{measured} kept")
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


def fit_model(as_json: bool) -> None:
    """Fit the cost model to the measurements of this machine, store an accepted fit, and print the result. Raises
    ClickException where the store holds too few kernels, or where no later process would use the fit."""
    target = calibrate.target()
    if not fitted.is_recorded(target):
        remedy = (
            "run `einsmith calibrate` while the machine does nothing else"
            if environment.CALIBRATE.get()
            else "unset EINSMITH_CALIBRATE"
        )
        raise click.ClickException(
            f"this machine's calibration is not in use, or not stored, so no other process would use a fit; {remedy}"
        )
    targets = store.list_variants(replace(target, measured=()))
    rows = measurements.list_measurements(targets)
    samples = [x for r in rows if (x := refit.sample_of(r.kernel, targets[r.machine], r.seconds)) is not None]
    with Console(stderr=True).status("fitting the cost model") as status:
        found = refit.fit(samples, status.update)
    if isinstance(found, int):
        raise click.ClickException(
            f"the store holds measurements of {found} kernel{'s' * (found != 1)} of use for a fit on this machine, and "
            f"{refit.MIN_KERNELS} are needed; tune programs with more kernels (einsmith tune MODEL), then fit again"
        )
    if found.accepted:
        try:
            fitted.save(target, found.fit)
        except OSError as e:
            raise click.ClickException(
                f"the fit cannot be stored: {e}; set EINSMITH_CACHE_DIR to another folder"
            ) from e
    if as_json:
        click.echo(json.dumps(fit_row(found.fit) | {"weight": found.weight, "accepted": found.accepted}))
        return
    fit = found.fit
    click.echo(f"{_size(fit)}; on kernels left out in cross-validation, with the table and with fits:")
    click.echo(f"  error of ratios   {math.expm1(fit.error[0]):6.1%} {math.expm1(fit.error[1]):8.1%}")
    click.echo(f"  regret, mean      {fit.regret[0]:6.1%} {fit.regret[1]:8.1%}")
    if found.accepted:
        click.echo(f"stored, for programs that begin from now on: {fit.describe_factors()}")
    else:
        click.echo("the coefficients stay as they are: fits do not lower the regret of kernels left out")


def fit_row(fit: fitted.OverheadFit) -> dict[str, Any]:
    """Return a fit ready for JSON."""
    return fit._asdict() | {"overheads": asdict(fit.overheads), "factors": fit.factors}


def _size(fit: fitted.OverheadFit) -> str:
    return f"{fit.measurements} measurements of {fit.kernels} kernels"


def _forget_fit() -> bool:
    """Remove the fit of this machine; return whether there was one. Raises ClickException where it cannot be
    removed."""
    try:
        return fitted.forget(native.host_target())
    except OSError as e:
        raise click.ClickException(f"the fit cannot be removed: {e}") from e


def _count(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _say(found: dict[str, Any], text: str, as_json: bool) -> None:
    click.echo(json.dumps(found) if as_json else text)
