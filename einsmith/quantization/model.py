"""Quantize networks: integers of 8 bits for inference, after calibration or after training that knows of them.

Sources: Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference"
(2018); the operators' arithmetic is that of ONNX (QuantizeLinear, QLinearConv).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from einsmith.api.jit import Jitted
from einsmith.base.arguments import check_arguments, refuse_torch, show
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import ArgumentError
from einsmith.base.trees import flatten, unflatten
from einsmith.ir.nodes import Tensor
from einsmith.nn.module import Module
from einsmith.nn.parameter import Parameter, Stored
from einsmith.quantization import integers
from einsmith.quantization.integers import Coefficients, QuantizationPlan
from einsmith.quantization.scales import METHODS, AffineScale, Observed, quantize_weight
from einsmith.quantization.sites import find_sites
from einsmith.quantization.weights import QuantizedWeight, replace_weight
from einsmith.tracing.builder import Value, as_value
from einsmith.tracing.trace import recording_order

INT8 = "int8"
"""Text in `Quantized.layers` for products that integers compute."""
STORED = "float32, from factors of 8 bits: no factor has an axis of its own"
SKIPPED = "float32, as `skip` says"


class _Coefficients(Module):
    """The scale, its inverse and the zero point of one tensor. A zero point of 0 has no buffer."""

    scale: Any
    inverse: Any
    zero: Any

    def __init__(self, s: Any, kind: str):
        self.register_buffer("scale", np.float32(s.scale))
        self.register_buffer("inverse", np.float32(1 / np.float64(s.scale)))
        if s.zero:
            self.register_buffer("zero", np.asarray(s.zero, dtype_of(kind).numpy))

    def traced(self) -> Coefficients:
        """Return the numbers in the current trace."""
        scale, inverse = (as_value(x).tensor for x in (self.scale, self.inverse))
        return Coefficients(scale, inverse, as_value(self.zero).tensor if "zero" in self._buffers else None)


def name_of(key: str) -> str:
    """Return the name of a submodule for a key, which may have dots."""
    return key.replace(".", "/").replace(" ", "_")


class Quantized(Module):
    """A network for inference whose products are computed by integers of 8 bits (`quantize`).

    layers: for each product, by the name of its layer, "int8" or why it is in float32
    """

    layers: dict[str, str]

    def __init__(self, network: Any, coefficients: dict, layers: dict):
        self.network, self.ranges = network, Module()
        for key, (scale, kind) in coefficients.items():
            self.ranges.add_module(name_of(key), _Coefficients(scale, kind))
        self.layers = dict(layers)
        self.eval()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the network's outputs. Raises ArgumentError in training mode."""
        if self.training:
            raise ArgumentError("a quantized network is for inference: call eval(), or train one of `prepare_qat`")
        roots, structure, order = trace_network(self.network, *inputs, **named)
        weights = {w.tensor: (name, w) for name, w in _quantized_weights(self.network)}
        named_weights = named_tensors(self.network) | {t: name for t, (name, _) in weights.items()}
        sites = [s for s in find_sites(roots, named_weights, order) if self.layers.get(s.name) in (INT8, STORED)]
        plan = integers.assign(sites)
        coefficients = {e.key: getattr(self.ranges, name_of(e.key)).traced() for e in {*plan.encodings.values()}}
        by_tensor = {t: w for t, (_, w) in weights.items()}
        out = integers.rewrite(roots, plan, coefficients, by_tensor)
        return unflatten(structure, [Value(t) for t in out])

    def extra_repr(self) -> str:
        count = sum(v == INT8 for v in self.layers.values())
        return f"{count} of {len(self.layers)} products in int8"


def trace_network(network: Any, *inputs: Any, **named: Any) -> tuple[list[Tensor], Any, dict[Tensor, int]]:
    """Trace a call of a network; return its outputs, their structure, and the numbers of the tensors in order."""
    with recording_order() as order:
        leaves, structure = flatten(network(*inputs, **named))
    return [as_value(x).tensor for x in leaves], structure, order


def _quantized_weights(network: Any) -> list[tuple[str, QuantizedWeight]]:
    """Return the weights of 8 bits of a network, with the names of their layers."""
    weights = []
    for path, module in network.named_modules():
        for name, w in module._buffers.items():
            if isinstance(w, QuantizedWeight):
                weights.append((_layer_name(path, name), w))
    return weights


def _layer_name(path: str, name: str) -> str:
    """Return the name by which a weight is known: its layer's, or its own where it is not called weight."""
    return path if name == "weight" and path else f"{path}.{name}" if path else name


def candidate_weights(network: Any) -> dict[int, tuple[str, Any, str]]:
    """Return (name, module, attribute) of each parameter of two dimensions or more, by its id."""
    out: dict[int, tuple[str, Any, str]] = {}
    for path, module in network.named_modules():
        for name, p in module._parameters.items():
            if p is not None and p.ndim >= 2 and p.dtype.name == "f32":
                out.setdefault(id(p), (_layer_name(path, name), module, name))
    return out


def named_tensors(network: Any) -> dict[Tensor, str]:
    """Return the names of the layers of a network's float32 weights, by their tensors in the current trace."""
    weights = candidate_weights(network).values()
    return {as_value(parameter_of(module, attribute)).tensor: name for name, module, attribute in weights}


class Survey:
    """The parts of a network that can be quantized, determined during tracing.

    skip: patterns of names of products that stay in float32; weights_alone: so do products without a weight
    layers: for each product, "int8" or why it is in float32; kinds: the integer type of each tensor that is observed;
    channels: names of the weights whose channels can have scales of their own
    """

    def __init__(self, network: Any, skip: Sequence[str] = (), weights_alone: bool = False):
        self.network, self.skip, self.weights_alone = network, skip, weights_alone
        self.layers: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.channels: set[str] = set()

    def plan(self, roots: list[Tensor], order: Mapping[Tensor, int]) -> QuantizationPlan:
        """Return the plan of the products in the current trace, and record the description of each."""
        sites, layers = [], {}
        for s in find_sites(roots, named_tensors(self.network), order):
            if any(fnmatchcase(s.name, pattern) for pattern in self.skip):
                layers[s.name] = SKIPPED
            elif s.weight is None and self.weights_alone:
                layers[s.name] = "float32: a product of activations"
            elif not integers.has_plain_steps(s.problem):
                layers[s.name] = "float32: its formula reads other tensors after the sum"
            else:
                sites.append(s)
                layers[s.name] = INT8 if s.is_separable else STORED
                if s.weight is not None and integers.scale_follows_results(s, s.weight):
                    self.channels.add(s.name)
        out = integers.assign(sites)
        self.layers = layers | {name: f"float32: {why}" for name, why in out.reasons.items()}
        self.kinds = {e.key: e.kind for e in out.encodings.values()}
        return out


class _Calibration(Survey):
    """A survey of a network, with the statistics of the tensors that its products read in calibration batches."""

    def __init__(self, network: Any, skip: Sequence[str], batches: list[tuple], method: str):
        super().__init__(network, skip)
        self.observed: dict[str, Observed] = {}
        with network.in_mode(training=False):
            self._observe(batches, method)

    def _values(self, *inputs: Any) -> dict[str, Value]:
        """Return the tensors that decide the ranges."""
        roots, _, order = trace_network(self.network, *inputs)
        plan = self.plan(roots, order)
        return {key: Value(t) for key, t in integers.observed(plan.encodings).items()}

    def _observe(self, batches: list[tuple], method: str) -> None:
        def extremes(*inputs: Any) -> dict[str, Any]:
            return {key: (x.min(), x.max()) for key, x in self._values(*inputs).items()}

        run = Jitted(extremes)
        for batch in batches:
            for key, (low, high) in run(*batch).items():
                self.observed.setdefault(key, Observed()).widen(float(low), float(high))
        if not self.observed:
            raise ArgumentError(
                f"{type(self.network).__name__} has no product that integers can compute: {self.layers or 'none'}"
            )
        for key, seen in self.observed.items():
            seen.check(key)
        if method != "minmax":
            values = Jitted(self._values)
            for batch in batches:
                for key, x in values(*batch).items():
                    self.observed[key].count(x)


def parameter_of(module: Any, name: str) -> Parameter:
    """Return a module's own parameter of a name."""
    p = module._parameters[name]
    assert p is not None
    return p


def _batches_of(batches: Iterable[Any]) -> list[tuple]:
    """Return the network's inputs of each batch: arrays, or tuples of arrays."""
    if isinstance(batches, (np.ndarray, str, bytes)) or not isinstance(batches, Iterable):
        raise ArgumentError(
            f"batches={show(batches)} must be a sequence of batches of inputs, each an array or a tuple of arrays"
        )
    out = [tuple(b) if isinstance(b, (tuple, list)) else (b,) for b in batches]
    if not out:
        raise ArgumentError("batches is empty; calibration needs some typical inputs, a few hundred samples")
    return out


@check_arguments
def quantize(
    model: Any, batches: Any, *, method: str = "minmax", per_channel: bool = True, skip: Any = ()
) -> Quantized:
    """Return a copy of a network for inference that computes with integers of 8 bits. `model` does not change.

    Products with weights, and of activations with each other, are computed by integers, with sums of int32. The tensors
    between them have 8 bits if a product reads them. Everything else is computed in float32.

    Args:
        model: the network
        batches: typical inputs, each an array or a tuple of arrays as `model` takes them, which decide the ranges of
            activations
        method: "minmax" for the whole range; "percentile" to leave out the most extreme numbers, 1 in 10,000 at either
            end; "mse" for the least squared error
        per_channel: whether each index of a weight's first dimension has a scale of its own
        skip: patterns of the names of layers that stay in float32, such as "head" or "layers.0.*"
    Raises:
        ArgumentError: no batches; numbers that are not finite; an unknown method; no product that integers can compute;
            or a pattern that no layer has.
    """
    refuse_torch(model, "model")
    if not isinstance(model, Module):
        raise ArgumentError(f"model={show(model)} is not a network; pass an es.nn.Module")
    if method not in METHODS:
        raise ArgumentError(f"method={method!r} must be one of {', '.join(METHODS)}")
    patterns = (skip,) if isinstance(skip, str) else tuple(skip)
    network = deepcopy(model)
    seen = _Calibration(network, patterns, _batches_of(batches), method)
    unknown = [p for p in patterns if not any(fnmatchcase(name, p) for name in seen.layers)]
    if unknown:
        raise ArgumentError(f"skip={unknown[0]!r}: no product has this name; the names are {', '.join(seen.layers)}")
    scales = {key: o.choose(method, seen.kinds[key]) for key, o in seen.observed.items()}
    return build(network, seen, scales, per_channel)


def build(network: Any, seen: Survey, scales: dict[str, AffineScale], per_channel: bool) -> Quantized:
    """Return the network with the weights of its products replaced by integers."""
    for name, module, attribute in candidate_weights(network).values():
        if seen.layers.get(name) in (INT8, STORED):
            weight: Stored = parameter_of(module, attribute)
            values, scale = quantize_weight(weight.numpy(), per_channel and name in seen.channels)
            replace_weight(module, attribute, values, scale)
    coefficients = {key: (scale, seen.kinds[key]) for key, scale in scales.items()}
    return Quantized(network, coefficients, seen.layers)
