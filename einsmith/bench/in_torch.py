"""Run networks of Einsmith's layers in PyTorch.

The layers of `einsmith.nn` are those of torch.nn by name, arguments and state, and the `forward` of a network calls
operators and methods that PyTorch's tensors have as well. So a network becomes a module of PyTorch layer by layer, and
the functions of its own module run over PyTorch's in place of `einsmith.ops`.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from inspect import signature
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from einsmith import nn
from einsmith.base.errors import ArgumentError

IN_PLACE = ("ReLU", "ReLU6")
"""Layers that overwrite their input, as published networks have them."""


def in_torch(layer: nn.Module) -> torch.nn.Module:
    """Return a layer or a network as a module of PyTorch with the same state under the same names.

    Raises ArgumentError for a layer that torch.nn does not have."""
    kind: Any = type(layer)
    if kind.__module__.startswith("einsmith.nn.") and not isinstance(layer, nn.Sequential | nn.ModuleList):
        return _torch_layer(layer)
    out: Any = getattr(torch.nn, kind.__name__)() if kind.__module__.startswith("einsmith.nn.") else _class_of(kind)()
    for name, child in layer._modules.items():
        out.add_module(name, None if child is None else in_torch(child))
    for name, value in layer._parameters.items():
        out.register_parameter(name, None if value is None else torch.nn.Parameter(torch.tensor(np.asarray(value))))
    for name, buffer in layer._buffers.items():
        out.register_buffer(name, torch.tensor(np.asarray(buffer)), persistent=name not in layer._transient)
    for name, value in vars(layer).items():
        if not name.startswith("_"):
            setattr(out, name, value)
    return out


def _torch_layer(layer: nn.Module) -> torch.nn.Module:
    """Return the layer of torch.nn with the name of a layer, its settings and its state."""
    kind = getattr(torch.nn, type(layer).__name__, None)
    if kind is None:
        raise ArgumentError(f"PyTorch has no layer {type(layer).__name__}")
    state = {n: torch.tensor(np.asarray(v)) for n, v in layer.state_dict().items()}
    settings = vars(layer) | {
        "bias": any(n.endswith("bias") for n in state),
        "inplace": type(layer).__name__ in IN_PLACE,
    }
    out = kind(**{n: settings[n] for n in signature(kind).parameters if n in settings})
    out.load_state_dict(state)
    return out


@lru_cache(maxsize=64)
def _class_of(kind: type[nn.Module]) -> type[torch.nn.Module]:
    """Return the class of PyTorch's modules with the methods that a class of networks and its bases define."""
    names = _names_of(kind.__module__)
    methods: dict[str, Any] = {}
    for base in reversed([b for b in kind.__mro__ if b.__module__ == kind.__module__]):
        own = {n: f for n, f in vars(base).items() if isinstance(f, FunctionType) and not f.__closure__}
        methods |= {n: _over(f, names) for n, f in own.items() if not n.startswith("_")}
    return type(kind.__name__, (torch.nn.Module,), methods)


@lru_cache(maxsize=64)
def _names_of(module: str) -> dict[str, Any]:
    """Return the global names of a module of networks, its own functions and operators running over PyTorch's."""
    names = dict(vars(sys.modules[module]))
    own = {n: f for n, f in names.items() if isinstance(f, FunctionType) and f.__module__ == module}
    operators = SimpleNamespace(**{**vars(torch), **vars(functional), **OPERATORS})
    names |= {n: _over(f, names) for n, f in own.items()}
    names |= {"F": operators, "builder": SimpleNamespace(as_value=lambda x: x)}
    names |= {n: f for n, f in FORMULAS.items() if n in names}
    return names


def _over(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """Return a function whose global names are others."""
    out = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    out.__kwdefaults__ = function.__kwdefaults__
    return out


def _squash(x: torch.Tensor) -> torch.Tensor:
    n = x.norm(dim=-1, keepdim=True)
    return x * (n / (1 + n * n))


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return functional.gelu(x, approximate=approximate)


OPERATORS: dict[str, Any] = {"squash": _squash, "gelu": _gelu, "expand": torch.Tensor.expand}
"""Operators that PyTorch has not, has as a method, or with other arguments."""


def _capsule_conv(A: torch.Tensor, W: torch.Tensor, stride: int) -> torch.Tensor:
    """Compute a capsule convolution as one convolution of the images of all rows of poses."""
    (b, c, h, w, i, m), (k, _, r, s, _, j) = A.shape, W.shape
    x = A.permute(0, 4, 1, 5, 2, 3).reshape(b * i, c * m, h, w)
    y = functional.conv2d(x, W.permute(0, 5, 1, 4, 2, 3).reshape(k * j, c * m, r, s), stride=stride)
    return y.reshape(b, i, k, j, *y.shape[2:]).permute(0, 2, 4, 5, 1, 3)


def _capsule_votes(A: torch.Tensor, W: torch.Tensor, stride: int) -> torch.Tensor:
    """Compute the part of a capsule convolution that each input capsule has, by groups of channels."""
    (b, c, h, w, i, m), (k, _, r, s, _, j) = A.shape, W.shape
    x = A.permute(0, 4, 1, 5, 2, 3).reshape(b * i, c * m, h, w)
    y = functional.conv2d(x, W.permute(1, 0, 5, 4, 2, 3).reshape(c * k * j, m, r, s), stride=stride, groups=c)
    return y.reshape(b, i, c, k, j, *y.shape[2:]).permute(0, 3, 2, 5, 6, 1, 4)


def _turn(rates: torch.Tensor, scale: float, ids: torch.Tensor, places: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the cosines and sines of rotary positions."""
    angles = torch.arange(ids.shape[1]).to(rates.dtype)[None, :, None] * rates
    return angles.cos() * scale, angles.sin() * scale


def _rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Turn pairs of features, as transformers does."""
    low, high = x.chunk(2, -1)
    c, s = (torch.cat((t, t), -1)[:, None] for t in (cosines, sines))
    return x * c + torch.cat((-high, low), -1) * s


FORMULAS: dict[str, Any] = {
    "capsule_conv": _capsule_conv,
    "capsule_votes": _capsule_votes,
    "turn": _turn,
    "rotate": _rotate,
    "tensor": lambda x, *_, **__: x,
}
"""Operators that a module of networks defines by formulas, in PyTorch."""
