"""The single kernels as any user writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import einsmith as es
from benchmarks import plans
from benchmarks.kernel_cases import Case
from benchmarks.peers.described import described_program
from benchmarks.peers.einsmith_operators import OPERATORS, by_name
from einsmith.tracing.builder import as_value

F = es.functional

LAYER_NORM = """
    mu[i] = mean[j](X[i,j])
    scaled[i] = rsqrt(mean[j]((X[i,j]-mu[i]) * (X[i,j]-mu[i])) + 1e-5)
    Y[i,j] = (X[i,j]-mu[i]) * scaled[i] * scale[j] + shift[j]
"""

BATCH_NORM = """
    mu[c] = mean[n,h,w](X[n,c,h,w])
    scaled[c] = rsqrt(mean[n,h,w]((X[n,c,h,w]-mu[c]) * (X[n,c,h,w]-mu[c])) + 1e-5)
    Y[n,c,h,w] = (X[n,c,h,w]-mu[c]) * (scaled[c] * scale[c]) + shift[c]
"""

ADAM_RULE = """
    m[i] = b1*m[i] + (1-b1)*g[i]
    v[i] = b2*v[i] + (1-b2)*g[i]*g[i]
    p[i] = p[i] - lr*sqrt(1-b2**step)/(1-b1**step) * m[i]/(sqrt(v[i]) + eps*sqrt(1-b2**step))
"""
"""TinyFlow's rule, with epsilon added where PyTorch adds it."""


def product(a, b, ta, tb):
    return F.matmul(a.transpose(*_swapped(a)) if ta else a, b.transpose(*_swapped(b)) if tb else b)


def _swapped(x) -> tuple[int, ...]:
    return (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)


def conv(x, w, stride, padding, dilation, groups):
    return F.conv2d(x, w, None, stride, padding, dilation, groups)


def conv_relu_pool(x, w, bias, padding):
    return F.max_pool2d(F.relu(F.conv2d(x, w, bias, padding=padding)), 2)


def relu_pool(x):
    return F.max_pool2d(F.relu(x), 2)


KERNELS: dict[str, Callable] = {
    "product": product,
    "conv": conv,
    "conv_relu_pool": conv_relu_pool,
    "softmax": lambda x: F.softmax(x, 1),
    "layer_norm": by_name(LAYER_NORM, "X scale shift"),
    "batch_norm": by_name(BATCH_NORM, "X scale shift"),
    "relu_pool": relu_pool,
    "bias_gelu": lambda x, bias: F.gelu(x + bias),
    "sigmoid": F.sigmoid,
    "own_sigmoid": lambda x: 1 / (1 + es.exp(-x)),
    "multiply_add": lambda x, a, b: x * a + b,
}


def variants(case: Case, peer: str) -> tuple[str, ...]:
    return tuple(OPERATORS.get(case.network, ("",)))


def function(case: Case, variant: str = "") -> tuple[Callable, tuple[str, ...]]:
    """The forward, or gradients alone, or both, and the names of its arguments."""
    operators, options = OPERATORS.get(case.network), dict(case.options)
    f = operators[variant or next(iter(operators))]() if operators else KERNELS[case.network]
    at = [case.inputs.index(n) for n in case.wrt]

    def forward(*xs):
        return (f(*xs, **options),)

    def gradients(*xs_and_g):
        *xs, g = xs_and_g

        def part(*some):
            every = list(xs)
            for n, x in zip(at, some, strict=True):
                every[n] = x
            return f(*every, **options)

        y, pull = es.vjp(part, *(xs[n] for n in at))
        return (*((y,) if case.with_forward else ()), *pull(g))

    def loss_and_gradients(*xs_and_g):
        *xs, g = xs_and_g
        loss, grads = es.value_and_grad(lambda *xs: (f(*xs, **options) * g).sum(), tuple(at))(*xs)
        return (loss, *grads)

    if not case.wrt:
        return forward, case.inputs
    return loss_and_gradients if case.is_loss else gradients, (*case.inputs, "G")


class Kernel:
    """A case, compiled."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray], threads: int, variant: str):
        es.set_threads(threads)
        f, names = function(case, variant)
        self._f = es.jit(f, winograd=case.winograd)
        self._arrays = [arrays[n] for n in names]
        self._names, self._is_loss = case.results, case.is_loss

    def step(self) -> float:
        out = self._f(*self._arrays)
        self._out = out[self._is_loss :]
        return float(out[0]) if self._is_loss else 0.0

    def results(self) -> dict[str, np.ndarray]:
        return dict(zip(self._names, self._out, strict=True))


class Update(es.nn.Module):
    """A parameter and its state, changed in place by a rule of the library."""

    def __init__(self, rule, arrays: dict[str, np.ndarray], names: dict[str, str]):
        super().__init__()
        self.rule, self.names = rule, names
        for name in ("p", *names):
            self.register_buffer(name, arrays[name].copy())

    def forward(self, g, hyper, step):
        p, *state = (as_value(getattr(self, name)) for name in ("p", *self.names))
        p, new = self.rule.update(p, g, dict(zip(self.names.values(), state, strict=True)), hyper, step)
        self.p = p
        for name, key in self.names.items():
            setattr(self, name, new[key])


class Adam:
    def __init__(self, case: Case, arrays: dict[str, np.ndarray], threads: int):
        es.set_threads(threads)
        self._module = Update(es.optim.Adam(lr=1e-3), arrays, {"m": "exp_avg", "v": "exp_avg_sq"})
        self._f, self._g, self._t = es.jit(self._module), arrays["g"], 0

    def step(self) -> float:
        self._t += 1
        self._f(self._g, self._module.rule.values(self._t), float(self._t))
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        return {n: np.array(getattr(self._module, n)) for n in "pmv"}


def composed_adam(p, g, state, hyper, step):
    """Return what ADAM_RULE does by operators of arrays, one after the other."""
    m = hyper["b1"] * state["m"] + (1 - hyper["b1"]) * g
    v = hyper["b2"] * state["v"] + (1 - hyper["b2"]) * g * g
    root = es.sqrt(1 - hyper["b2"] ** step)
    rate = hyper["lr"] * root / (1 - hyper["b1"] ** step)
    return p - rate * m / (es.sqrt(v) + hyper["eps"] * root), {"m": m, "v": v}


class Updates(es.nn.Module):
    """Several parameters and their moments, changed in place by a function."""

    def __init__(self, update: Callable, arrays: dict[str, np.ndarray], names: Sequence[str]):
        super().__init__()
        self.update = update
        for name in names:
            self.register_buffer(name, arrays[name].copy())

    def forward(self, gradients, hyper, step):
        for n, g in enumerate(gradients):
            p, m, v = (as_value(getattr(self, f"{key}{n}")) for key in "pmv")
            p, new = self.update(p, g, {"m": m, "v": v}, hyper, step)
            for key, value in {"p": p, **new}.items():
                setattr(self, f"{key}{n}", value)


class AdamOf:
    """All parameters of a network, updated by one program."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray], threads: int):
        es.set_threads(threads)
        self._rule = es.optim.Rule(ADAM_RULE, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8)
        update = composed_adam if case.options["form"] == "operators" else self._rule.update
        self._module, self._names, self._t = Updates(update, arrays, case.results), case.results, 0
        self._f, self._g = es.jit(self._module), [arrays[f"g{n}"] for n in range(case.options["count"])]

    def step(self) -> float:
        self._t += 1
        self._f(self._g, self._rule.values(self._t), float(self._t))
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        return {n: np.array(getattr(self._module, n)) for n in self._names}

    def describe(self) -> dict[str, Any]:
        """Return what the program says of itself."""
        return described_program(plans.function_program(self._f))


def build(case: Case, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Kernel | Adam | AdamOf:
    if case.network in ("adam", "adam_of"):
        return (Adam if case.network == "adam" else AdamOf)(case, arrays, threads)
    return Kernel(case, arrays, threads, variant)
