"""Store the overheads of the cost model that are fitted to a machine's tuning measurements (`tuning.kernels.refit`).

A fit is one JSON file beside the machine's calibration, checked and replaced whole like it (`store`). It holds for the
calibrated coefficients and for the sources of the cost model that it was made with; with others it counts as absent.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple

from einsmith.base import environment, private
from einsmith.base.private import PrivateFolder
from einsmith.cost.facts import Target
from einsmith.cost.overheads import Overheads
from einsmith.tuning.calibration import store

UNFITTED = (
    "latency", "in_registers", "shared_rows", "held", "panel", "call_seconds", "parallel_seconds",
    "task_seconds",
)  # fmt: skip
"""Coefficients that are not fitted, as they are no costs of a kernel's code: `latency` is a fact of the core by which
calibration counts multipliers, the seconds are of launches, the others are capacities. Whole
numbers are not fitted either."""
FITTED = tuple(f.name for f in fields(Overheads) if isinstance(f.default, float) and f.name not in UNFITTED)
"""Coefficients that a fit may change."""
MAX_FACTOR = 8.0
"""Largest factor by which a fit changes a coefficient, up or down: beyond it the formula is at fault, not the
coefficient."""

SHOWN_FACTORS = 6
"""Most coefficients of a fit that are described."""


class OverheadFit(NamedTuple):
    """A fit to a machine.

    Attributes:
        overheads: the table of the code, with the fitted coefficients.
        kernels, measurements: numbers of kernels and measured candidates behind the fit.
        error: root mean square of the logarithms of predicted to measured times, relative to a kernel's other
            candidates; on kernels left out in cross-validation, with the table of the code and with fits.
        regret: mean regret of the predicted best of a kernel's candidates; on the same kernels, likewise.
        when: seconds since 1970.
    """

    overheads: Overheads
    kernels: int
    measurements: int
    error: tuple[float, float]
    regret: tuple[float, float]
    when: float

    @property
    def factors(self) -> dict[str, float]:
        """Return the factors of the coefficients that the fit changes, the largest change first."""
        table = Overheads()
        factors = {name: getattr(self.overheads, name) / getattr(table, name) for name in FITTED}
        ordered = sorted(factors.items(), key=lambda x: -abs(math.log(x[1])))
        return {name: x for name, x in ordered if x != 1.0}

    def describe_factors(self) -> str:
        """Return, as text for people, the factors of the coefficients that change most."""
        factors = list(self.factors.items())
        rest = len(factors) - SHOWN_FACTORS
        more = f", and {rest} more" if rest > 0 else ""
        return ", ".join(f"{name} x {x:.2f}" for name, x in factors[:SHOWN_FACTORS]) + more


def version() -> str:
    """Return a hash of the sources of the cost model: coefficients of other formulas do not apply."""
    return store.sources("kernels/**/*.py", "cost/**/*.py")


def find(static: Target) -> OverheadFit | None:
    """Return the fit of a machine, of which only the facts are known, for its stored calibration; None without."""
    return load((store.load(static) if environment.CALIBRATE.get() else None) or static)


def is_recorded(target: Target) -> bool:
    """Return whether later processes find the coefficients of a target in the store, so that they use a fit to them.
    Static figures, of a machine that was busy or is not calibrated, are not there."""
    recorded = store.load(target) if environment.CALIBRATE.get() else None
    return recorded is not None and _rates(recorded) == _rates(target)


def load(target: Target) -> OverheadFit | None:
    """Return the fit of a machine with calibrated coefficients; None where there is no sound one for them."""
    body = store.read_record(target, store.path_of(target, store.FIT))
    try:
        if body is None or body["model"] != version() or body["rates"] != _rates(target):
            return None
        changed: dict[str, Any] = {str(name): float(value) for name, value in body["overheads"].items()}
        table = Overheads()
        if not all(name in FITTED and _is_plausible(getattr(table, name), x) for name, x in changed.items()):
            return None
        numbers = int(body["kernels"]), int(body["measurements"])
        (error, error_after), (regret, regret_after) = body["error"], body["regret"]
        pairs = (float(error), float(error_after)), (float(regret), float(regret_after))
        return OverheadFit(replace(table, **changed), *numbers, *pairs, float(body["when"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _is_plausible(default: float, value: float) -> bool:
    return default / MAX_FACTOR * 0.99 <= value <= default * MAX_FACTOR * 1.01


def _rates(target: Target) -> str:
    """Return the calibrated coefficients as text. A pattern's own are no part of it, as they are found later."""
    coefficients = asdict(target)
    return repr([coefficients[name] for name in store.COEFFICIENTS])


def save(target: Target, fit: OverheadFit) -> None:
    """Store the fit of a machine with calibrated coefficients, in the place of an earlier one. Raises OSError where it
    cannot be written."""
    changed = {name: getattr(fit.overheads, name) for name in fit.factors}
    content: dict[str, Any] = fit._asdict() | {"overheads": changed, "model": version(), "rates": _rates(target)}
    store.write_record(target, store.path_of(target, store.FIT), content, overwrite=True)


def forget(target: Target) -> bool:
    """Remove the fit of a machine, whatever it was made with; return whether there was one. Raises OSError where it
    cannot be removed."""
    path = store.path_of(target, store.FIT)
    if private.distrust(path.parent):
        return False
    try:
        with PrivateFolder(path.parent, create=False) as folder:
            folder.remove(path.name)
    except FileNotFoundError:
        return False
    return True
