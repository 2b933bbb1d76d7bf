"""The usual optimizers, with torch.optim's hyperparameters and arithmetic, each an update rule.

What is off when one is made (momentum 0, no weight decay) has no part in its rule: it costs nothing and keeps no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsmith.errors import ArgumentError
from einsmith.optim.rule import Hyper, Rule


def _check(**values: Any) -> None:
    for name, value in values.items():
        if not callable(value) and not value >= 0:
            raise ArgumentError(f"{name}={value!r} must not be negative")


def _betas(betas: tuple[float, float]) -> tuple[float, float]:
    if len(betas) != 2 or not all(0 <= b < 1 for b in betas):
        raise ArgumentError(f"betas={betas!r} must be two numbers in [0, 1)")
    return betas[0], betas[1]


_DECAY = "g[i] = g[i] + weight_decay*p[i]"


def _first(maximize: bool, weight_decay: float, hyper: dict[str, Hyper], decay: str = _DECAY) -> list[str]:
    """The lines that a rule begins with: the direction of g, and weight decay, which becomes a hyperparameter."""
    lines = ["g[i] = -g[i]"] if maximize else []
    if weight_decay:
        hyper["weight_decay"] = weight_decay
        lines.append(decay)
    return lines


class _Standard(Rule):
    """A rule that is made again from its own arguments. `_options`: those that shape the text."""

    def __init__(self, lines: list[str], options: dict[str, Any], hyper: dict[str, Hyper], init: float | None = None):
        super().__init__("\n".join(lines), init, **hyper)
        self._options = options
        self._made = {n: 1.0 if callable(v) else v for n, v in self.hyper.items()}

    def describe(self) -> dict[str, Any] | None:
        base = super().describe()
        if base is None:
            return None
        # What the rule was made with decides its text and state; what was set since are numbers in it.
        arguments = self._options | {n: v for n, v in self._made.items() if not n.startswith("beta")}
        if "beta1" in self._made:
            arguments["betas"] = [self._made["beta1"], self._made["beta2"]]
        return {"name": type(self).__name__, "arguments": arguments, "hyper": dict(self.hyper)}


class SGD(_Standard):
    """p - lr*g, with momentum (state `momentum_buffer`), Nesterov's form of it, and weight decay added to g."""

    def __init__(
        self,
        *,
        lr: Hyper = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ):
        _check(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ArgumentError("nesterov=True needs a momentum and no dampening")
        hyper: dict[str, Hyper] = {"lr": lr}
        lines = _first(maximize, weight_decay, hyper)
        if momentum:
            hyper["momentum"] = momentum
            if dampening:
                hyper["dampening"] = dampening
                lines.append(
                    "momentum_buffer[i] = where(step == 1, g[i], momentum*momentum_buffer[i] + (1 - dampening)*g[i])"
                )
            else:
                lines.append("momentum_buffer[i] = momentum*momentum_buffer[i] + g[i]")
            lines.append("g[i] = g[i] + momentum*momentum_buffer[i]" if nesterov else "g[i] = momentum_buffer[i]")
        lines.append("p[i] = p[i] - lr*g[i]")
        super().__init__(lines, {"nesterov": nesterov, "maximize": maximize}, hyper)


class _Moments(_Standard):
    """Running means of g and g*g, corrected for their start at zero; `decay`: what weight decay does, as a line."""

    def __init__(self, decay: str, lr: Hyper, betas: tuple[float, float], eps: float, weight_decay: float,
                 amsgrad: bool, maximize: bool):
        _check(lr=lr, eps=eps, weight_decay=weight_decay)
        b1, b2 = _betas(betas)
        hyper: dict[str, Hyper] = {"lr": lr, "beta1": b1, "beta2": b2, "eps": eps}
        lines = _first(maximize, weight_decay, hyper, decay)
        lines.append("exp_avg[i] = exp_avg[i] + (1 - beta1)*(g[i] - exp_avg[i])")
        lines.append("exp_avg_sq[i] = beta2*exp_avg_sq[i] + (1 - beta2)*g[i]*g[i]")
        second = "exp_avg_sq"
        if amsgrad:
            lines.append("max_exp_avg_sq[i] = max(max_exp_avg_sq[i], exp_avg_sq[i])")
            second = "max_exp_avg_sq"
        lines.append(f"d[i] = sqrt({second}[i])/sqrt(1 - beta2**step) + eps")
        lines.append("p[i] = p[i] - (lr/(1 - beta1**step))*exp_avg[i]/d[i]")
        super().__init__(lines, {"amsgrad": amsgrad, "maximize": maximize}, hyper)

    @property
    def betas(self) -> tuple[Hyper, Hyper]:
        """The decay rates of the two running means."""
        return self.hyper["beta1"], self.hyper["beta2"]

    @betas.setter
    def betas(self, value: tuple[float, float]) -> None:
        self.hyper["beta1"], self.hyper["beta2"] = map(float, _betas(value))


class Adam(_Moments):
    """Adam; weight decay is added to g. State: exp_avg, exp_avg_sq, and with `amsgrad` max_exp_avg_sq.

    Source: arXiv 1412.6980; amsgrad 1904.09237.
    """

    def __init__(
        self,
        *,
        lr: Hyper = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
    ):
        super().__init__(_DECAY, lr, betas, eps, weight_decay, amsgrad, maximize)


class AdamW(_Moments):
    """Adam with weight decay applied to p itself, p*(1 - lr*weight_decay). Source: arXiv 1711.05101."""

    def __init__(
        self,
        *,
        lr: Hyper = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        maximize: bool = False,
    ):
        super().__init__("p[i] = p[i]*(1 - lr*weight_decay)", lr, betas, eps, weight_decay, amsgrad, maximize)


class RMSprop(_Standard):
    """g divided by the root of a running mean of g*g (state `square_avg`); `centered` subtracts the mean's square
    (`grad_avg`); momentum as `momentum_buffer`. Source: Hinton's lecture notes and arXiv 1308.0850."""

    def __init__(
        self,
        *,
        lr: Hyper = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        maximize: bool = False,
    ):
        _check(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
        hyper: dict[str, Hyper] = {"lr": lr, "alpha": alpha, "eps": eps}
        lines = _first(maximize, weight_decay, hyper)
        lines.append("square_avg[i] = alpha*square_avg[i] + (1 - alpha)*g[i]*g[i]")
        spread = "square_avg[i]"
        if centered:
            lines.append("grad_avg[i] = grad_avg[i] + (1 - alpha)*(g[i] - grad_avg[i])")
            spread = "square_avg[i] - grad_avg[i]*grad_avg[i]"
        lines.append(f"d[i] = sqrt({spread}) + eps")
        if momentum:
            hyper["momentum"] = momentum
            lines.append("momentum_buffer[i] = momentum*momentum_buffer[i] + g[i]/d[i]")
            lines.append("p[i] = p[i] - lr*momentum_buffer[i]")
        else:
            lines.append("p[i] = p[i] - lr*g[i]/d[i]")
        super().__init__(lines, {"centered": centered, "maximize": maximize}, hyper)


class Adagrad(_Standard):
    """g divided by the root of the sum of all g*g so far (state `square_sum`); lr falls as 1/(1 + (step-1)*lr_decay).

    Source: Duchi, Hazan and Singer 2011.
    """

    def __init__(
        self,
        *,
        lr: Hyper = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        maximize: bool = False,
    ):
        _check(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)
        _check(initial_accumulator_value=initial_accumulator_value)
        hyper: dict[str, Hyper] = {"lr": lr, "eps": eps}
        lines = _first(maximize, weight_decay, hyper)
        rate = "lr"
        if lr_decay:
            hyper["lr_decay"] = lr_decay
            rate = "(lr/(1 + (step - 1)*lr_decay))"
        lines.append("square_sum[i] = square_sum[i] + g[i]*g[i]")
        lines.append(f"p[i] = p[i] - {rate}*g[i]/(sqrt(square_sum[i]) + eps)")
        options = {"initial_accumulator_value": initial_accumulator_value, "maximize": maximize}
        super().__init__(lines, options, hyper, initial_accumulator_value)


STANDARD: dict[str, Callable[..., Rule]] = {c.__name__: c for c in (SGD, Adam, AdamW, RMSprop, Adagrad)}
