"""Define Adadelta, NAdam, RAdam, Adamax, with torch.optim's hyperparameters and arithmetic, and Lion."""

from __future__ import annotations

from einsmith.base.errors import ArgumentError
from einsmith.optim.rule import Hyper
from einsmith.optim.standard import COUPLED, DECOUPLED, MOMENTS, Standard, check, decay_rates, first


class Adadelta(Standard):
    """Steps along g times the root of the ratio of running means of p's squared changes (state `acc_delta`) and of g*g
    (`square_avg`). Source: arXiv 1212.5701."""

    def __init__(
        self,
        *,
        lr: Hyper = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: Hyper = 0.0,
        maximize: bool = False,
    ):
        check(lr=lr, eps=eps, weight_decay=weight_decay)
        if not callable(rho) and not 0 <= rho <= 1:
            raise ArgumentError(f"rho={rho!r} must be between 0 and 1")
        hyper: dict[str, Hyper] = {"lr": lr, "rho": rho, "eps": eps}
        lines = [
            *first(maximize, weight_decay, hyper),
            "square_avg[i] = rho*square_avg[i] + (1 - rho)*g[i]*g[i]",
            "d[i] = sqrt(acc_delta[i] + eps)/sqrt(square_avg[i] + eps)*g[i]",
            "acc_delta[i] = rho*acc_delta[i] + (1 - rho)*d[i]*d[i]",
            "p[i] = p[i] - lr*d[i]",
        ]
        super().__init__(lines, {"maximize": maximize}, hyper)


class NAdam(Standard):
    """Adam with Nesterov's momentum, whose rate rises with the step. State: exp_avg, exp_avg_sq and the product of all
    rates so far, `mu_product`, a number. Source: Dozat 2016, Incorporating Nesterov Momentum into Adam."""

    def __init__(
        self,
        *,
        lr: Hyper = 2e-3,
        betas: tuple[Hyper, Hyper] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Hyper = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
    ):
        check(lr=lr, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        hyper: dict[str, Hyper] = {
            "lr": lr,
            **decay_rates(betas),
            "eps": eps,
            "momentum_decay": momentum_decay,
        }
        mu = "(beta1*(1 - 0.5*0.96**(step*momentum_decay)))"
        after = "(beta1*(1 - 0.5*0.96**((step + 1)*momentum_decay)))"
        lines = [
            *first(maximize, weight_decay, hyper, DECOUPLED if decoupled_weight_decay else COUPLED),
            f"mu_product[] = mu_product[]*{mu}",
            *MOMENTS,
            "d[i] = sqrt(exp_avg_sq[i]/(1 - beta2**step)) + eps",
            f"p[i] = p[i] - lr*(1 - {mu})/(1 - mu_product[])*g[i]/d[i]"
            f" - lr*{after}/(1 - mu_product[]*{after})*exp_avg[i]/d[i]",
        ]
        options = {"decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize}
        super().__init__(lines, options, hyper, {"mu_product": 1.0})


class RAdam(Standard):
    """Adam without its second moment in the first steps, where the moment's variance is not known, and with a rectified
    rate afterwards. State: exp_avg, exp_avg_sq. Source: arXiv 1908.03265."""

    def __init__(
        self,
        *,
        lr: Hyper = 1e-3,
        betas: tuple[Hyper, Hyper] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Hyper = 0.0,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
    ):
        check(lr=lr, eps=eps, weight_decay=weight_decay)
        hyper: dict[str, Hyper] = {"lr": lr, **decay_rates(betas), "eps": eps}
        limit = "(2/(1 - beta2) - 1)"
        rho = f"({limit} - 2*step*beta2**step/(1 - beta2**step))"
        rectified = f"sqrt(({rho} - 4)*({rho} - 2)*{limit}/(({limit} - 4)*({limit} - 2)*{rho}))*sqrt(1 - beta2**step)"
        lines = [
            *first(maximize, weight_decay, hyper, DECOUPLED if decoupled_weight_decay else COUPLED),
            *MOMENTS,
            f"r[i] = where({rho} > 5, {rectified}/(sqrt(exp_avg_sq[i]) + eps), 1)",
            "p[i] = p[i] - lr/(1 - beta1**step)*exp_avg[i]*r[i]",
        ]
        options = {"decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize}
        super().__init__(lines, options, hyper)


class Adamax(Standard):
    """Adam with the largest decayed magnitude of g (state `exp_inf`) in place of its second moment.

    Source: arXiv 1412.6980, section 7.1.
    """

    def __init__(
        self,
        *,
        lr: Hyper = 2e-3,
        betas: tuple[Hyper, Hyper] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Hyper = 0.0,
        maximize: bool = False,
    ):
        check(lr=lr, eps=eps, weight_decay=weight_decay)
        hyper: dict[str, Hyper] = {"lr": lr, **decay_rates(betas), "eps": eps}
        lines = [
            *first(maximize, weight_decay, hyper),
            MOMENTS[0],
            "exp_inf[i] = max(beta2*exp_inf[i], abs(g[i]) + eps)",
            "p[i] = p[i] - lr/(1 - beta1**step)*exp_avg[i]/exp_inf[i]",
        ]
        super().__init__(lines, {"maximize": maximize}, hyper)


class Lion(Standard):
    """The sign of a running mean of g (state `exp_avg`); weight decay as in AdamW. Source: arXiv 2302.06675."""

    def __init__(
        self,
        *,
        lr: Hyper = 1e-4,
        betas: tuple[Hyper, Hyper] = (0.9, 0.99),
        weight_decay: Hyper = 0.0,
        maximize: bool = False,
    ):
        check(lr=lr, weight_decay=weight_decay)
        hyper: dict[str, Hyper] = {"lr": lr, **decay_rates(betas)}
        lines = [
            *first(maximize, weight_decay, hyper, DECOUPLED),
            "p[i] = p[i] - lr*sign(beta1*exp_avg[i] + (1 - beta1)*g[i])",
            "exp_avg[i] = beta2*exp_avg[i] + (1 - beta2)*g[i]",
        ]
        super().__init__(lines, {"maximize": maximize}, hyper)
