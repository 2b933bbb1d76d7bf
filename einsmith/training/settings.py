"""Hold the settings of a training step: how it updates the weights, and how its programs are tuned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from einsmith.base.arguments import check_fields, show
from einsmith.base.errors import ArgumentError
from einsmith.tuning.programs import kernel_search

MODES = "static", "dynamic"


@check_fields
@dataclass(frozen=True)
class UpdateSettings:
    """How a training step updates the weights, for `es.TrainStep(..., updates=)`.

    `TrainStep` also takes each of these settings as a keyword of its own. A new value is used by the next step.

    Attributes:
        clip_grad_norm: limit of the norm of all gradients together, as in torch.nn.utils; `step.grad_norm` is that norm
            before it is clipped, in the last step. None: no limit.
        norm_type: order of that norm; may be infinite.
        clip_grad_value: limit of each element of the gradients, which comes before that of the norm. None: no limit.
        accumulate: number of batches whose gradients make one update, that of one batch as large as all: a batch weighs
            as much as its loss divides by, such as the labels that are not ignored or the sum of their class weights,
            or else its samples. Between updates nothing but buffers changes.
        ema: decay of an exponential moving average of the weights, which `step.averaged`, `step.evaluate` and
            `step.averages` give. None: no average.
        trained: "first" of several losses, or their "sum".

    Raises:
        ArgumentError: a value is not allowed.
    """

    clip_grad_norm: float | None = None
    norm_type: float = 2.0
    clip_grad_value: float | None = None
    accumulate: Annotated[int, 1, 2**31 - 1] = 1
    ema: float | None = None
    trained: str = "first"

    def __post_init__(self) -> None:
        for name in ("clip_grad_norm", "clip_grad_value"):
            _check(self, name, lambda x: x is None or 0 < x < 2.0**1023, "a positive number or None")
        _check(self, "norm_type", lambda x: x == math.inf or 0 < x < 2.0**1023, "a positive number, or float('inf')")
        _check(self, "ema", lambda x: x is None or 0 <= x < 1, "a number in [0, 1) or None")
        _check(self, "trained", lambda x: x in ("first", "sum"), "'first' or 'sum'")

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
        """The settings that programs read at each run, by name, where they are set."""
        values = {"clip_grad_norm": self.clip_grad_norm, "clip_grad_value": self.clip_grad_value, "ema": self.ema}
        return {n: float(v) for n, v in values.items() if v is not None}


@check_fields
@dataclass(frozen=True)
class TuningSettings:
    """How the programs of a training step are tuned, for `es.TrainStep(..., tuning=)` (docs/tuning.md).

    `TrainStep` also takes each of these settings as a keyword of its own. A new value is used for programs that are
    compiled from then on. Tuning changes only the order in which sums are added; its results are kept for later
    processes.

    Attributes:
        mode: "static" searches for faster kernel configurations when a batch shape is first compiled; "dynamic" while a
            program trains: other configurations are tried in some of the steps, and faster ones stay. `step.explored`
            shows the results.
        tune: seconds of the search, for all batch shapes together; 0 searches nothing in static mode, and in dynamic
            mode as long as something is to be gained. "graph" also searches a minute for better graphs before.
            "first-call" races the six candidates of each kernel that promise most once, for at most as long again as
            the compilation of each program took, or two seconds.
        executor: an executor as in `concurrent.futures` that measures kernels for the search of static mode, on other
            hosts of this kind.

    Raises:
        ArgumentError: a value is not allowed.
    """

    mode: str = "static"
    tune: kernel_search.Seconds | str = 0.0
    executor: Any = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ArgumentError(f"mode={self.mode!r} is not available; use {' or '.join(map(repr, MODES))}")
        kernel_search.parse_tune(self.tune)
        if self.mode != "static" and self.tune == kernel_search.FIRST_CALL:
            raise ArgumentError(f"tune={self.tune!r} races kernels before the first step: it needs mode='static'")
        if self.executor is not None and not callable(getattr(self.executor, "submit", None)):
            raise ArgumentError(
                f"executor={show(self.executor)} has no method submit, as executors of concurrent.futures do"
            )


def _check(settings: Any, name: str, allows: Any, what: str) -> None:
    """Raise ArgumentError where a setting has a value that `allows` does not."""
    value = getattr(settings, name)
    if not allows(value):
        raise ArgumentError(f"{name}={value!r} must be {what}")
