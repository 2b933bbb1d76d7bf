"""Adapt linear layers by a product of two small matrices (LoRA; Hu et al. 2021, arXiv 2106.09685).

An adapted layer computes W x + b + (alpha/rank) B A x. W and b are frozen: a training step computes no gradients for
them, and changes A and B alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.adapters.config import ALL_LINEAR, LoRAConfig
from einsmith.base.arguments import Count, Share, Size, check_arguments, refuse_torch, show
from einsmith.base.errors import ArgumentError, KindError
from einsmith.models import transformer
from einsmith.nn import Dropout, KeptWeight, Linear, LinearCrossEntropyLoss, Module, Parameter, init
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


class LowRank(Module):
    """Base of adapted linear layers. Weight and bias have the names that they have in the layer that it replaces.

    lora_A.weight [rank, inputs], lora_B.weight [outputs, rank]; lora_magnitude_vector [outputs] in DoRA, else None;
    scale: the number by which the product is multiplied; merged: whether the weight contains the product.
    """

    is_transposed = False
    """Whether the weight is [inputs, outputs]."""

    def __init__(self, layer: Module, rank: Count, scale: float, dropout: Share, dora: bool):
        self.__dict__.update(copy(layer).__dict__)
        outputs, inputs = row_shape(self)
        self.scale, self.merged = float(scale), False
        self.lora_A = Linear(inputs, rank, bias=False, dtype=self.weight.dtype)
        self.lora_B = Linear(rank, outputs, bias=False, dtype=self.weight.dtype)
        init.zeros_(self.lora_B.weight)
        self.add_module("lora_dropout", Dropout(dropout) if dropout else None)
        self.register_parameter("lora_magnitude_vector", Parameter(_row_norms(self._rows())) if dora else None)
        self.train(layer.training)

    def forward(self, input: Value) -> Value:
        y = super().forward(input)
        if self.merged:
            return y
        x = input if self.lora_dropout is None else self.lora_dropout(input)
        change = self.lora_B(self.lora_A(x)) * self.scale
        if self.lora_magnitude_vector is None:
            return y + change
        # The norm counts as a constant (DoRA, section 4.3), and the bias has no part in it.
        weight = F.transpose(self.weight, 0, 1) if self.is_transposed else builder.as_value(self.weight)
        adapted = weight + F.matmul(self.lora_B.weight, self.lora_A.weight) * self.scale
        factor = self.lora_magnitude_vector / builder.stop_gradient(F.sqrt(F.sum(adapted * adapted, 1)))
        return y + (factor - 1) * F.linear(x, weight) + factor * change

    def merge(self) -> None:
        """Add the product to the weight; in DoRA give its rows the learned norms, and keep by what they changed."""
        rows = self._rows() + self._product()
        if self.lora_magnitude_vector is not None:
            self._factors = (self.lora_magnitude_vector.numpy() / _row_norms(rows))[:, None]
            rows *= self._factors
        self._store(rows, merged=True)

    def unmerge(self) -> None:
        """Subtract the product from the weight, up to roundings."""
        rows = self._rows() if self.lora_magnitude_vector is None else self._rows() / self._factors
        self._store(rows - self._product(), merged=False)

    def _product(self) -> np.ndarray:
        return self.scale * (self.lora_B.weight.numpy() @ self.lora_A.weight.numpy())

    def _rows(self) -> np.ndarray:
        """Return the weight as [outputs, inputs]."""
        weight = self.weight.numpy()
        return weight.T if self.is_transposed else weight

    def _store(self, rows: np.ndarray, merged: bool) -> None:
        self.weight.data = rows.T if self.is_transposed else rows
        self.merged = merged

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale:g}".removeprefix(", ")


def _row_norms(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(rows, dtype=np.float64).sum(1)).astype(rows.dtype)


class LoRALinear(LowRank, Linear):
    """`Linear` with an adapter of low rank."""


class LoRAConv1D(LowRank, transformer._Conv1D):
    """GPT-2's linear layer with an adapter of low rank."""

    is_transposed = True


_ADAPTED: Mapping[type, type[LowRank]] = {Linear: LoRALinear, transformer._Conv1D: LoRAConv1D}
"""The class of the adapted layer, by the layer's."""


def row_shape(layer: Module) -> tuple[int, int]:
    """Return (outputs, inputs) of a linear layer, adapted or not."""
    kind = type(layer) if isinstance(layer, LowRank) else _ADAPTED[type(layer)]
    shape = layer.weight.shape
    return shape[::-1] if kind.is_transposed else shape


def published_path(model: Module, path: str) -> str:
    """Return the path of a layer in the files that are published for a network's class."""
    return getattr(model, "published_prefix", "") + path


def adapted_layers(model: Module) -> Iterator[tuple[str, LowRank]]:
    """Yield (published path, layer) of a network's adapted layers."""
    return ((published_path(model, path), m) for path, m in model.named_modules() if isinstance(m, LowRank))


def linear_layers(model: Module) -> dict[str, tuple[Module, str, Module]]:
    """Return (the module that has it, its name there, the layer) of all that can be adapted, by published path."""
    owners = {id(child): (owner, name) for owner in model.modules() for name, child in owner.named_children()}
    return {
        published_path(model, path): (*owners[id(m)], m)
        for path, m in model.named_modules()
        if type(m) in _ADAPTED and id(m) in owners
    }


def _reads_weights(owner: Module) -> bool:
    """Return whether a module reads the weights of its linear layers without calling them."""
    return isinstance(owner, LinearCrossEntropyLoss)


def _chosen_layers(model: Module, config: LoRAConfig) -> list[str]:
    """Return the published paths of the layers that a configuration adapts. Raises ArgumentError, KindError."""
    linear = linear_layers(model)
    if config.is_all_linear:
        head = getattr(model, "lm_head", None)
        chosen = [path for path, (owner, _, m) in linear.items() if m is not head and not _reads_weights(owner)]
    else:
        paths = [published_path(model, path) for path, _ in model.named_modules() if path]
        chosen = [path for path in paths if config.matches(path)]
        for path in chosen:
            if path not in linear:
                kind = type(model.get_submodule(path.removeprefix(getattr(model, "published_prefix", ""))))
                raise KindError(f"targets={show(config.targets)}: {path} is {kind.__name__}; linear layers are adapted")
            if _reads_weights(linear[path][0]):
                raise KindError(f"{path} is a part of {type(linear[path][0]).__name__}, which cannot be adapted")
    if not chosen:
        names = dict.fromkeys(path.rpartition(".")[2] for path in linear)
        raise ArgumentError(
            f"targets={show(config.targets)}: {type(model).__name__} has no such layers; its linear layers are named "
            f"{', '.join(names) or '(it has none)'}"
        )
    return chosen


def attach(model: Module, config: LoRAConfig, paths: Sequence[str]) -> None:
    """Replace the linear layers at published paths by adapted ones, and freeze everything else."""
    linear = linear_layers(model)
    model.requires_grad_(False)
    for path in paths:
        owner, name, layer = linear[path]
        arguments = layer, config.rank_of(path), config.scale_of(path), config.dropout, config.dora
        owner.add_module(name, _ADAPTED[type(layer)](*arguments))
    model.adapter = config


@check_arguments
def lora(
    model: Any,
    rank: Count,
    alpha: float | None = None,
    targets: str | Sequence[str] = ALL_LINEAR,
    *,
    dropout: Share = 0.0,
    rank_pattern: Mapping[str, int] | None = None,
    alpha_pattern: Mapping[str, float] | None = None,
    rslora: bool = False,
    dora: bool = False,
    seed: Size | None = None,
) -> Any:
    """Give linear layers of a network adapters of low rank, and freeze everything else; return the network.

    The network computes what it did before, as B is zero at first. Layers keep their paths, and weights their names.

    Args:
        model: the network, which changes
        rank: rank of the product B A that is added to a weight
        alpha: the product is multiplied by alpha/rank; rank where it is None
        targets: layers, as PEFT's target_modules: names, of which a layer's path is one or ends in one; a regular
            expression that matches whole paths; or "all-linear", for all but the layer that makes the logits
        dropout: probability with which an element of the adapter's input is zero in training
        rank_pattern: other ranks, by regular expressions of the ends of paths
        alpha_pattern: other alphas, likewise
        rslora: multiply by alpha/sqrt(rank) instead
        dora: learn the norm of each row of the adapted weight, too
        seed: seed of the initial values of A; None: the numbers of `es.manual_seed`
    Raises:
        ArgumentError: no layer is a target, or the network has an adapter already.
        KindError: a target is no linear layer.
    """
    refuse_torch(model, "model")
    if not isinstance(model, Module):
        raise ArgumentError(f"model={show(model)} is not a network; pass an es.nn.Module")
    config = LoRAConfig(
        rank, rank if alpha is None else alpha, targets, dropout, rank_pattern or {}, alpha_pattern or {}, rslora, dora
    )
    refuse_adapted(model)
    paths = _chosen_layers(model, config)
    if seed is None:
        attach(model, config, paths)
    else:
        with init.seeded(seed):
            attach(model, config, paths)
    return model


def refuse_adapted(model: Module) -> None:
    """Raise ArgumentError for a network that has an adapter."""
    if any(adapted_layers(model)):
        raise ArgumentError(
            f"{type(model).__name__} has an adapter already; `es.adapters.merge` and `remove` take it away"
        )


@check_arguments
def merge(model: Any) -> Any:
    """Add the adapters' products to the weights, so that the network computes no more than without; return it.

    Raises ArgumentError where there is no adapter, or it is merged, where a weight is a part of other layers, too, and
    where it is kept in fewer bits.
    """
    layers = _layers_of(model, merged=False)
    for path, layer in layers:
        if isinstance(layer.weight, KeptWeight):
            raise ArgumentError(f"the weight of {path} is kept in fewer bits, which round products; merge, then freeze")
    users: dict[int, int] = {}
    for module in model.modules():
        for p in module._parameters.values():
            users[id(p)] = users.get(id(p), 0) + 1
    for path, layer in layers:
        if users[id(layer.weight)] > 1:
            raise ArgumentError(f"the weight of {path} is a part of another layer, too, which merging would change")
    for _, layer in layers:
        layer.merge()
    return model


@check_arguments
def unmerge(model: Any) -> Any:
    """Subtract the adapters' products, which `merge` has added, up to roundings; return the network.

    Raises ArgumentError where there is no merged adapter.
    """
    for _, layer in _layers_of(model, merged=True):
        layer.unmerge()
    return model


def _layers_of(model: Any, merged: bool) -> list[tuple[str, LowRank]]:
    """Return (path, layer) of the adapted layers. Raises ArgumentError unless all are merged, or not, as asked."""
    if not isinstance(model, Module):
        raise ArgumentError(f"model={show(model)} is not a network; pass an es.nn.Module")
    layers = list(adapted_layers(model))
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no adapter; `es.adapters.lora` adds one")
    if any(layer.merged is not merged for _, layer in layers):
        raise ArgumentError(f"the adapter of {type(model).__name__} is {'not ' if merged else ''}merged already")
    return layers


@check_arguments
def remove(model: Any) -> Any:
    """Replace the adapted layers by plain ones with their weights, merged or not; return the network.

    What was frozen stays frozen. Raises ArgumentError where there is no adapter.
    """
    layers = dict(adapted_layers(model)) if isinstance(model, Module) else {}
    if not layers:
        raise ArgumentError(f"{show(model)} has no adapter; `es.adapters.lora` adds one")
    plain = {adapted: kind for kind, adapted in _ADAPTED.items()}
    for owner in list(model.modules()):
        for name, layer in list(owner.named_children()):
            if isinstance(layer, LowRank):
                other: Module = object.__new__(plain[type(layer)])
                other.__dict__.update(copy(layer).__dict__)
                for part in ("lora_A", "lora_B", "lora_dropout", "lora_magnitude_vector", "scale", "merged"):
                    delattr(other, part)
                other.__dict__.pop("_factors", None)
                owner.add_module(name, other)
    del model.adapter
    return model
