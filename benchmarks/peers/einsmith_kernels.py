"""The single kernels as any user writes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import einsmith as es
from benchmarks.kernel_cases import Case
from benchmarks.peers.einsmith_operators import OPERATORS, by_name
from einsmith.lang.builder import as_value

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


def build(case: Case, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Kernel | Adam:
    return Adam(case, arrays, threads) if case.network == "adam" else Kernel(case, arrays, threads, variant)
