"""Define SGD, Adam, AdamW, RMSprop and Adagrad, with torch.optim's hyperparameters and arithmetic."""

from __future__ import annotations

from einsmith.base.errors import ArgumentError
from einsmith.optim.rule import Hyper
from einsmith.optim.standard import COUPLED, DECOUPLED, MOMENTS, Standard, check, decay_rates, first


class SGD(Standard):
    """p - lr*g, with momentum (state `momentum_buffer`), Nesterov's form of it, and weight decay added to g."""

    def __init__(
        self,
        *,
        lr: Hyper = 1e-3,
        momentum: Hyper = 0.0,
        dampening: float = 0.0,
        weight_decay: Hyper = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ):
        check(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (not momentum or dampening != 0):
            raise ArgumentError("nesterov=True needs a momentum and no dampening")
        hyper: dict[str, Hyper] = {"lr": lr}
        lines = first(maximize, weight_decay, hyper)
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


def _moments(
    decay: str, lr: Hyper, betas: tuple[Hyper, Hyper], eps: float, weight_decay: Hyper, amsgrad: bool, maximize: bool
) -> tuple[list[str], dict[str, Hyper]]:
    """Return the lines and hyperparameters of Adam and AdamW: bias-corrected running means.

    decay: the line of weight decay, coupled or decoupled."""
    check(lr=lr, eps=eps, weight_decay=weight_decay)
    hyper: dict[str, Hyper] = {"lr": lr, **decay_rates(betas), "eps": eps}
    lines = [*first(maximize, weight_decay, hyper, decay), *MOMENTS]
    second = "exp_avg_sq"
    if amsgrad:
        lines.append("max_exp_avg_sq[i] = max(max_exp_avg_sq[i], exp_avg_sq[i])")
        second = "max_exp_avg_sq"
    lines.append(f"d[i] = sqrt({second}[i])/sqrt(1 - beta2**step) + eps")
    lines.append("p[i] = p[i] - (lr/(1 - beta1**step))*exp_avg[i]/d[i]")
    return lines, hyper


class Adam(Standard):
    """Adam; weight decay is added to g. State: exp_avg, exp_avg_sq, and with `amsgrad` max_exp_avg_sq.

    Source: arXiv 1412.6980; amsgrad 1904.09237.
    """

    def __init__(
        self,
        *,
        lr: Hyper = 1e-3,
        betas: tuple[Hyper, Hyper] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Hyper = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
    ):
        lines, hyper = _moments(COUPLED, lr, betas, eps, weight_decay, amsgrad, maximize)
        super().__init__(lines, {"amsgrad": amsgrad, "maximize": maximize}, hyper)


class AdamW(Standard):
    """Adam with weight decay applied to p itself, `p*(1 - lr*weight_decay)`. Source: arXiv 1711.05101."""

    def __init__(
        self,
        *,
        lr: Hyper = 1e-3,
        betas: tuple[Hyper, Hyper] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Hyper = 1e-2,
        amsgrad: bool = False,
        maximize: bool = False,
    ):
        lines, hyper = _moments(DECOUPLED, lr, betas, eps, weight_decay, amsgrad, maximize)
        super().__init__(lines, {"amsgrad": amsgrad, "maximize": maximize}, hyper)


class RMSprop(Standard):
    """Steps along g divided by the root of a running mean of g*g (state `square_avg`).

    `centered` subtracts the square of g's running mean (`grad_avg`); the momentum's state is `momentum_buffer`. Source:
    Hinton's lecture notes and arXiv 1308.0850."""

    def __init__(
        self,
        *,
        lr: Hyper = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: Hyper = 0.0,
        momentum: Hyper = 0.0,
        centered: bool = False,
        maximize: bool = False,
    ):
        check(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
        hyper: dict[str, Hyper] = {"lr": lr, "alpha": alpha, "eps": eps}
        lines = first(maximize, weight_decay, hyper)
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


class Adagrad(Standard):
    """Steps along g divided by the root of the sum of all g*g so far (state `square_sum`).

    lr falls as 1/(1 + (step-1)*lr_decay).

    Source: Duchi, Hazan and Singer 2011.
    """

    def __init__(
        self,
        *,
        lr: Hyper = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: Hyper = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        maximize: bool = False,
    ):
        check(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)
        check(initial_accumulator_value=initial_accumulator_value)
        hyper: dict[str, Hyper] = {"lr": lr, "eps": eps}
        lines = first(maximize, weight_decay, hyper)
        rate = "lr"
        if lr_decay:
            hyper["lr_decay"] = lr_decay
            rate = "(lr/(1 + (step - 1)*lr_decay))"
        lines.append("square_sum[i] = square_sum[i] + g[i]*g[i]")
        lines.append(f"p[i] = p[i] - {rate}*g[i]/(sqrt(square_sum[i]) + eps)")
        options = {"initial_accumulator_value": initial_accumulator_value, "maximize": maximize}
        super().__init__(lines, options, hyper, initial_accumulator_value)
