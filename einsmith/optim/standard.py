"""Provide the common base of the optimizers of `torch.optim`, their argument checks and shared formulas.

A feature that is off when an optimizer is made (momentum 0, no weight decay) has no part in its rule: it costs nothing
and keeps no state.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from einsmith.base.arguments import check_arguments
from einsmith.base.errors import ArgumentError, KindError
from einsmith.optim.rule import Hyper, Rule


def check(**values: Any) -> None:
    """Check hyperparameters. Raises ArgumentError for values that are negative or no numbers."""
    for name, value in values.items():
        if callable(value):
            continue
        try:
            fits = value >= 0
        except TypeError:
            raise ArgumentError(f"{name}={value!r} must be a number or a callable of the step") from None
        if not fits:
            raise ArgumentError(f"{name}={value!r} must not be negative, or NaN")


def decay_rates(betas: Any) -> dict[str, Hyper]:
    """Return two decay rates in [0, 1) as the hyperparameters beta1 and beta2. Raises ArgumentError."""
    try:
        b1, b2 = betas
        fits = all(callable(b) or 0 <= b < 1 for b in (b1, b2))
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ArgumentError(f"betas={betas!r} must be two numbers in [0, 1)")
    return {"beta1": b1, "beta2": b2}


COUPLED = "g[i] = g[i] + weight_decay*p[i]"
DECOUPLED = "p[i] = p[i]*(1 - lr*weight_decay)"


def first(maximize: bool, weight_decay: Hyper, hyper: dict[str, Hyper], decay: str = COUPLED) -> list[str]:
    """Return the first lines of a rule: the sign of g, and weight decay, which is added to `hyper`."""
    lines = ["g[i] = -g[i]"] if maximize else []
    if weight_decay:
        hyper["weight_decay"] = weight_decay
        lines.append(decay)
    return lines


MOMENTS = (
    "exp_avg[i] = exp_avg[i] + (1 - beta1)*(g[i] - exp_avg[i])",
    "exp_avg_sq[i] = beta2*exp_avg_sq[i] + (1 - beta2)*g[i]*g[i]",
)
"""Lines of rules that update the running means of g and g*g."""


class Standard(Rule):
    """A rule that can be reconstructed from its constructor's arguments.

    lines: the rule's text, None where `text_for` returns it; options: arguments that are not hyperparameters."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = check_arguments(cls.__init__)  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any) -> Standard:
        if args:
            raise KindError(
                f"{cls.__name__} takes its hyperparameters by name, as in {cls.__name__}(lr=0.01), and no parameters: "
                "es.TrainStep(model, loss, optimizer) gives it the model's"
            )
        return super().__new__(cls)

    def __init__(
        self,
        lines: list[str] | None,
        options: Mapping[str, Any],
        hyper: Mapping[str, Hyper],
        init: float | Mapping[str, float] | None = None,
    ):
        super().__init__(None if lines is None else "\n".join(lines), init, **hyper)
        self._options = dict(options)
        self._initial = dict(self.hyper)

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments of this rule, which determine its text and state."""
        off = dict.fromkeys(inspect.signature(type(self)).parameters, 0.0)
        out = off | self._options | {n: v for n, v in self._initial.items() if n in off}
        if "beta1" in self._initial:
            out["betas"] = (self._initial["beta1"], self._initial["beta2"])
        return out

    def altered(self, changes: Mapping[str, Any]) -> Rule:
        """Return a rule of this class with some arguments changed. Raises ArgumentError for unknown ones."""
        known = list(inspect.signature(type(self)).parameters)
        unknown = [n for n in changes if n not in known]
        if unknown:
            raise ArgumentError(f"{type(self).__name__} has no argument {unknown[0]!r}, only {', '.join(known)}")
        return type(self)(**(self.arguments() | dict(changes)))

    def describe(self) -> dict[str, Any] | None:
        base = super().describe()
        if base is None:
            return None
        # The text depends on whether a hyperparameter is given, not on its value, so 1.0 replaces a callable.
        arguments = {n: 1.0 if callable(v) else v for n, v in self.arguments().items()}
        if "beta1" in self._initial:
            arguments["betas"] = [0.5 if callable(b) else b for b in (self._initial["beta1"], self._initial["beta2"])]
        return {"name": type(self).__name__, "arguments": arguments, "hyper": base["arguments"]}

    @property
    def betas(self) -> tuple[Hyper, Hyper]:
        """Decay rates of the two running means."""
        return self.beta1, self.beta2

    @betas.setter
    def betas(self, value: tuple[Hyper, Hyper]) -> None:
        self.beta1, self.beta2 = decay_rates(value).values()
