"""The single kernels in PyTorch: by name, the formulations among which the fastest is chosen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch import config as _functorch_config

from benchmarks.kernel_cases import Case
from benchmarks.peers import LAST, Form, forms_of
from benchmarks.peers.torch_operators import COMPILED, EAGER

_functorch_config.donated_buffer = False  # a backward is run again and again on what one forward has kept


def product(a: Tensor, b: Tensor, ta: bool, tb: bool) -> Tensor:
    return (a.mT if ta else a) @ (b.mT if tb else b)


def conv(x: Tensor, w: Tensor, stride: int, padding: int, dilation: int, groups: int) -> Tensor:
    return F.conv2d(x, w, None, stride, padding, dilation, groups)


def conv_relu_pool(x: Tensor, w: Tensor, bias: Tensor, padding: int) -> Tensor:
    return F.max_pool2d(F.relu(F.conv2d(x, w, bias, padding=padding)), 2)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, 1)


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[1],), scale, shift, 1e-5)


def batch_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, scale, shift, training=True, eps=1e-5)


def relu_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(x), 2)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def own_sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def multiply_add(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x * a + b


IMAGE = {"X": LAST, "Y": LAST}
BOTH = {"channels first": {}, "channels last": IMAGE}
FILTERS = {"channels first": {}, "channels last": IMAGE | {"W": LAST}}

KERNELS: dict[str, dict[str, Form]] = {
    "product": {"library": Form(product)},
    "conv": {name: Form(conv, axes) for name, axes in FILTERS.items()},
    "conv_relu_pool": {name: Form(conv_relu_pool, axes) for name, axes in FILTERS.items()},
    "softmax": {"library": Form(softmax)},
    "layer_norm": {"library": Form(layer_norm)},
    "batch_norm": {name: Form(batch_norm, axes) for name, axes in BOTH.items()},
    "relu_pool": {name: Form(relu_pool, axes) for name, axes in BOTH.items()},
    "bias_gelu": {"library": Form(bias_gelu)},
    "sigmoid": {"library": Form(torch.sigmoid)},
    "own_sigmoid": {"composed": Form(own_sigmoid)},
    "multiply_add": {"operators": Form(multiply_add)},
}


def forms(network: str, peer: str) -> Mapping[str, Form]:
    """Return the formulations of a kernel or an operator by name."""
    return forms_of(network, KERNELS, COMPILED if peer == "compile" else EAGER)


def _tensor(form: Form, name: str, a: np.ndarray) -> Tensor:
    """In the problem's shape, its memory in the formulation's order."""
    t, order = torch.from_numpy(form.to_peer(name, a)), form.order(name)
    return t if order is None else t.permute(tuple(np.argsort(order)))


class Kernel:
    """The forward, or gradients by a backward that is run on one forward's graph, or both."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray], peer: str, variant: str):
        form = forms(case.network, peer)[variant]
        tensors = {n: _tensor(form, n, a).requires_grad_(n in case.wrt) for n, a in arrays.items()}
        self._inputs = [tensors[n] for n in case.inputs]
        self._wrt, self._g = [tensors[n] for n in case.wrt], tensors.get("G")
        options = dict(case.options)

        def f(*xs: Tensor) -> Tensor:
            y = form.function(*xs, **options)
            return (y * tensors["G"]).sum() if case.is_loss else y

        self._f = torch.compile(f, dynamic=False) if peer == "compile" else f
        self._names, self._again, self._is_loss = case.results, not case.wrt or case.with_forward, case.is_loss
        if not self._again:
            self._y = self._f(*self._inputs)

    def step(self) -> float:
        if not self._wrt:
            with torch.no_grad():
                self._out = (self._f(*self._inputs),)
        elif self._is_loss:
            loss = self._f(*self._inputs)
            self._out = torch.autograd.grad(loss, self._wrt)
            return loss.item()
        elif self._again:
            y = self._f(*self._inputs)
            self._out = (y, *torch.autograd.grad(y, self._wrt, self._g))
        else:
            self._out = torch.autograd.grad(self._y, self._wrt, self._g, retain_graph=True)
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        return {n: t.detach().numpy() for n, t in zip(self._names, self._out, strict=True)}


ADAM = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "plain": {"foreach": False},
}
MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}


class Adam:
    """The library's optimizer on one parameter, or on several, whose arrays have numbers."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray], peer: str, variant: str):
        ends = range(case.options["count"]) if case.network == "adam_of" else [""]
        self._p = {f"{n}": torch.from_numpy(arrays[f"p{n}"].copy()).requires_grad_() for n in ends}
        self._optimizer = torch.optim.Adam(self._p.values(), lr=1e-3, **ADAM[variant])
        for n, p in self._p.items():
            p.grad = torch.from_numpy(arrays[f"g{n}"])
            state = {k: torch.from_numpy(arrays[f"{key}{n}"].copy()) for key, k in MOMENTS.items()}
            self._optimizer.state[p] = {"step": torch.tensor(0.0), **state}
        self._step = torch.compile(self._optimizer.step) if peer == "compile" else self._optimizer.step

    def step(self) -> float:
        self._step()
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        out = {f"p{n}": p.detach().numpy() for n, p in self._p.items()}
        state = self._optimizer.state
        return out | {f"{key}{n}": state[p][k].numpy() for n, p in self._p.items() for key, k in MOMENTS.items()}


def variants(case: Case, peer: str) -> tuple[str, ...]:
    if case.network in ("adam", "adam_of"):
        return ("plain",) if case.options.get("form") == "plain" else ("fused", "foreach")
    return tuple(forms(case.network, peer))


def build(case: Case, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Kernel | Adam:
    return (Adam if case.network in ("adam", "adam_of") else Kernel)(case, arrays, peer, variant)
