"""Define rules that read a whole tensor, its rows and its columns: LAMB, Adafactor, Muon."""

from __future__ import annotations

from math import sqrt

import numpy as np

from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.optim.rule import Hyper
from einsmith.optim.standard import DECOUPLED, MOMENTS, Standard, check, decay_rates, first


class LAMB(Standard):
    """Adam's step with weight decay, scaled for each tensor by the ratio of the norms of p and of the step (1 where a
    norm is 0). State: exp_avg, exp_avg_sq. Source: arXiv 1904.00962, algorithm 2."""

    def __init__(
        self,
        *,
        lr: Hyper = 1e-3,
        betas: tuple[Hyper, Hyper] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: Hyper = 1e-2,
        maximize: bool = False,
    ):
        check(lr=lr, eps=eps, weight_decay=weight_decay)
        hyper: dict[str, Hyper] = {"lr": lr, **decay_rates(betas), "eps": eps}
        lines = [
            *first(maximize, 0.0, hyper),
            *MOMENTS,
            "r[i] = exp_avg[i]/(1 - beta1**step)/(sqrt(exp_avg_sq[i]/(1 - beta2**step)) + eps)",
        ]
        if weight_decay:
            hyper["weight_decay"] = weight_decay
            lines.append("r[i] = r[i] + weight_decay*p[i]")
        lines += [
            "size_p[] = sqrt(sum[i](p[i]*p[i]))",
            "size_r[] = sqrt(sum[i](r[i]*r[i]))",
            "p[i] = p[i] - lr*where(size_p[] > 0, where(size_r[] > 0, size_p[]/size_r[], 1), 1)*r[i]",
        ]
        super().__init__(lines, {"maximize": maximize}, hyper)


class Adafactor(Standard):
    """Adam's second moment of a matrix as an outer product of statistics of its rows and columns (state `row_var`,
    `col_var`, of the last two axes; of fewer axes `variance`), a step relative to p's size and clipped at `d`.

    eps: the least squared gradient's root (None: the type's epsilon) and the least size of p. Arithmetic as in
    torch.optim.Adafactor. Source: arXiv 1804.04235.
    """

    def __init__(
        self,
        *,
        lr: Hyper = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float | None] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: Hyper = 0.0,
        maximize: bool = False,
    ):
        check(lr=lr, weight_decay=weight_decay)
        if not callable(beta2_decay) and not beta2_decay <= 0:
            raise ArgumentError(f"beta2_decay={beta2_decay!r} must not be positive")
        if not callable(d) and not d >= 1:
            raise ArgumentError(f"d={d!r} must be at least 1")
        eps1, eps2 = eps
        check(eps=0.0 if eps1 is None else eps1, eps2=eps2)
        hyper: dict[str, Hyper] = {"lr": lr, "beta2_decay": beta2_decay, "d": d}
        if weight_decay:
            hyper["weight_decay"] = weight_decay
        super().__init__(None, {"eps": [eps1, eps2], "maximize": maximize}, hyper)

    def text_for(self, shape: tuple[int, ...], dtype: DType) -> str:
        eps1, eps2 = self._options["eps"]
        floor = float(np.finfo(dtype.numpy).eps if eps1 is None else eps1)
        matrix = len(shape) > 1
        batch = ",".join(f"b{n}" for n in range(len(shape) - 2))
        row, column = (f"{batch}," if batch else "") + "i", (f"{batch}," if batch else "") + "j"
        at = f"{row},j" if matrix else "i"
        every = f"sum[{at}]"
        count = "*".join(f"size({axis})" for axis in at.split(","))
        lines = [f"g[{at}] = -g[{at}]"] if self._options["maximize"] else []
        lines.append(f"alpha[] = max({eps2!r}, sqrt({every}(p[{at}]*p[{at}])/({count})))*min(lr, 1/sqrt(step))")
        if "weight_decay" in self.hyper:
            lines.append(f"p[{at}] = p[{at}]*(1 - lr*weight_decay)")
        square = f"g[{at}]*g[{at}]"
        if matrix:
            total = f"mean[r](row_var[{f'{batch},' if batch else ''}r])"
            lines += [
                f"row_var[{row}] = row_var[{row}] + step**beta2_decay*(mean[j]({square}) - row_var[{row}])",
                f"col_var[{column}] = col_var[{column}] + step**beta2_decay*(mean[i]({square}) - col_var[{column}])",
                f"v[{at}] = row_var[{row}]*col_var[{column}]/max({total}, {floor!r})",
            ]
        else:
            lines += [f"variance[i] = variance[i] + step**beta2_decay*({square} - variance[i])", "v[i] = variance[i]"]
        lines += [
            f"u[{at}] = g[{at}]/sqrt(max(v[{at}], {floor * floor!r}))",
            f"clip[] = max(1, sqrt({every}(u[{at}]*u[{at}])/({count}))/d)",
            f"p[{at}] = p[{at}] - alpha[]/clip[]*u[{at}]",
        ]
        return "\n".join(lines)


class Muon(Standard):
    """The momentum of a matrix's gradient (state `momentum_buffer`), made nearly orthogonal by `ns_steps` steps of
    Newton and Schulz; weight decay as in AdamW. It applies only to matrices: other parameters need a rule of their own,
    as in `es.optim.Groups(es.optim.AdamW(), matrices=es.optim.Group(ndim=2, rule=es.optim.Muon()))`.

    adjust_lr_fn: "original" (None) scales the rate by sqrt(max(1, rows/columns)), "match_rms_adamw" by
    0.2*sqrt(max(rows, columns)). torch.optim.Muon computes the steps in bfloat16; here they are in the parameter's
    type. Source: Jordan, https://kellerjordan.github.io/posts/muon; arXiv 2502.16982.
    """

    def __init__(
        self,
        *,
        lr: Hyper = 1e-3,
        weight_decay: Hyper = 0.1,
        momentum: Hyper = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ):
        check(lr=lr, weight_decay=weight_decay, momentum=momentum, eps=eps)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ArgumentError(f"adjust_lr_fn={adjust_lr_fn!r} is neither 'original' nor 'match_rms_adamw'")
        if not 0 <= ns_steps < 100:
            raise ArgumentError(f"ns_steps={ns_steps!r} must be an integer from 0 to 99")
        hyper: dict[str, Hyper] = {"lr": lr, "momentum": momentum, "eps": eps}
        if weight_decay:
            hyper["weight_decay"] = weight_decay
        options = {
            "nesterov": nesterov,
            "ns_coefficients": [float(c) for c in ns_coefficients],
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(None, options, hyper)

    def text_for(self, shape: tuple[int, ...], dtype: DType) -> str:
        if len(shape) != 2:
            raise ShapeError(
                f"Muon updates matrices, and this parameter has shape {shape}; give the others a rule of their own: "
                "es.optim.Groups(es.optim.AdamW(), matrices=es.optim.Group(ndim=2, rule=es.optim.Muon()))"
            )
        rows, columns = shape
        ratio = sqrt(max(1.0, rows / columns))
        if self._options["adjust_lr_fn"] == "match_rms_adamw":
            ratio = 0.2 * sqrt(max(rows, columns))
        a, b, c = self._options["ns_coefficients"]
        # The products of the smaller side: x.x' where rows are fewer, x'.x else, which is the same polynomial of x.
        wide = rows <= columns
        gram = "s[i,k] = sum[j](x[i,j]*x[k,j])" if wide else "s[j,k] = sum[i](x[i,j]*x[i,k])"
        at = "i,k" if wide else "j,k"
        product = f"sum[l](s[{at[0]},l]*s[l,k])"
        turn = "sum[k](q[i,k]*x[k,j])" if wide else "sum[k](x[i,k]*q[k,j])"
        buffer = "momentum_buffer[i,j]"
        return "\n".join(
            [
                f"{buffer} = {buffer} + (1 - momentum)*(g[i,j] - {buffer})",
                f"u[i,j] = g[i,j] + momentum*({buffer} - g[i,j])"
                if self._options["nesterov"]
                else f"u[i,j] = {buffer}",
                "n[] = max(sqrt(sum[i,j](u[i,j]*u[i,j])), eps)",
                "x[i,j] = u[i,j]/n[]",
                *[gram, f"q[{at}] = {b!r}*s[{at}] + {c!r}*{product}", f"x[i,j] = {a!r}*x[i,j] + {turn}"]
                * self._options["ns_steps"],
                *([DECOUPLED.replace("[i]", "[i,j]")] if "weight_decay" in self.hyper else []),
                f"p[i,j] = p[i,j] - lr*{ratio!r}*x[i,j]",
            ]
        )
