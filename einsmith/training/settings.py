"""Check and hold the settings of a training step: clipping, accumulation, weight averages, several losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from einsmith.base.errors import ArgumentError


def _positive(x: Any) -> bool:
    return _is_number(x) and x > 0


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) < 2.0**1023


ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "clip_grad_norm": (lambda x: x is None or _positive(x), "a positive number or None"),
    "norm_type": (lambda x: x == math.inf or _positive(x), "a positive number, or float('inf')"),
    "clip_grad_value": (lambda x: x is None or _positive(x), "a positive number or None"),
    "accumulate": (lambda x: _is_number(x) and isinstance(x, int) and 1 <= x < 2**31, "an integer of at least 1"),
    "ema": (lambda x: x is None or (_is_number(x) and 0 <= x < 1), "a number in [0, 1) or None"),
    "trained": (lambda x: x in ("first", "sum"), "'first' or 'sum'"),
}


@dataclass(frozen=True)
class Settings:
    """Settings of a TrainStep, which documents them. Raises ArgumentError for values that are not allowed."""

    clip_grad_norm: float | None = None
    norm_type: float = 2.0
    clip_grad_value: float | None = None
    accumulate: int = 1
    ema: float | None = None
    trained: str = "first"

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            allowed, what = ALLOWED[f.name]
            try:
                fits = allowed(value)
            except (TypeError, ValueError, OverflowError):
                fits = False
            if not fits:
                raise ArgumentError(f"{f.name}={value!r} must be {what}")

    @property
    def structure(self) -> tuple:
        """The settings that programs are compiled for; all others are numbers that programs read at each run."""
        return (
            self.clip_grad_norm is not None,
            self.norm_type,
            self.clip_grad_value is not None,
            self.accumulate > 1,
            self.ema is not None,
            self.trained,
        )

    @property
    def numbers(self) -> dict[str, float]:
        """The settings that programs read at each run, by name, where they are given."""
        values = {"clip_grad_norm": self.clip_grad_norm, "clip_grad_value": self.clip_grad_value, "ema": self.ema}
        return {n: float(v) for n, v in values.items() if v is not None}


class Setting:
    """An attribute of a step that is a field of its settings: checked when it is set, and used by the next step."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, step: Any, owner: type | None = None) -> Any:
        return self if step is None else getattr(step.settings, self.name)

    def __set__(self, step: Any, value: Any) -> None:
        step.change(**{self.name: value})


def delegate(path: str, doc: str) -> Any:
    """Return a property that reads and sets an attribute of a part of its object, such as "epochs.position".

    Reading it calls no Python function. The annotation of the class attribute gives its type."""
    part, _, name = path.rpartition(".")
    find_part = attrgetter(part)
    return property(attrgetter(path), lambda self, value: setattr(find_part(self), name, value), doc=doc)
