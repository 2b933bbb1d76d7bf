"""Train a network that rounds as its quantized form will: quantisation-aware training.

Source: Jacob et al. 2018, section 3.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

from einsmith.base.arguments import check_arguments, refuse_torch, show
from einsmith.base.errors import ArgumentError
from einsmith.base.trees import unflatten
from einsmith.ir.nodes import Tensor, postorder
from einsmith.ir.rebuild import with_args
from einsmith.nn.fake_quantize import FakeQuantize, range_of, round_within
from einsmith.nn.module import Module
from einsmith.quantization.model import (
    Quantized,
    Survey,
    build,
    candidate_weights,
    name_of,
    named_tensors,
    trace_network,
)
from einsmith.quantization.scales import LEVELS, Observed
from einsmith.tracing.builder import Value


class QuantizationAware(Module):
    """A network whose weights, and the activations that they multiply, are rounded as integers of 8 bits.

    It is trained like the network itself; `convert` makes the integers.
    """

    def __init__(self, network: Any, per_channel: bool):
        self.network, self.per_channel = network, per_channel
        self.inputs = Module()
        for name, _, _ in candidate_weights(network).values():
            self.inputs.add_module(name_of(f"{name}.input"), FakeQuantize(*LEVELS["u8"]))
        object.__setattr__(self, "survey", Survey(network, weights_alone=True))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the outputs of the rounded network."""
        roots, structure, order = trace_network(self.network, *inputs, **named)
        plan, names = self.survey.plan(roots, order), named_tensors(self.network)
        rounded = {s.factors[s.weight].tensor for s in plan.sites if s.weight is not None}
        floats: dict[Tensor, Tensor] = {}
        read: dict[Tensor, Tensor] = {}
        seen: set[str] = set()
        for node in postorder(roots):
            new = with_args(node, tuple([read[a] for a in node.args])) if node.args else node
            floats[node] = read[node] = new
            encoding = plan.encodings.get(node)
            if node in rounded:
                channels = node.shape[0] if self.per_channel and names[node] in self.survey.channels else None
                weight = Value(new)
                read[node] = round_within(weight, *range_of(weight, channels), LEVELS["i8"], symmetric=True).tensor
            elif encoding is not None and encoding.key not in seen:
                # Of several tensors with one key, the others hold the largest elements of the first (max pooling).
                seen.add(encoding.key)
                read[node] = getattr(self.inputs, name_of(encoding.key))(Value(new)).tensor
        return unflatten(structure, [Value(floats[t]) for t in roots])


@check_arguments
def prepare_qat(model: Any, *, per_channel: bool = True) -> QuantizationAware:
    """Return a copy of a network that rounds weights, and what they multiply, as `convert` will; train it.

    per_channel: whether each index of a weight's first dimension has a scale of its own. Raises ArgumentError for what
    is not a network, or has no weight of two dimensions or more.
    """
    refuse_torch(model, "model")
    if not isinstance(model, Module):
        raise ArgumentError(f"model={show(model)} is not a network; pass an es.nn.Module")
    if not candidate_weights(model):
        raise ArgumentError(f"{type(model).__name__} has no weight of two dimensions or more to quantize")
    return QuantizationAware(deepcopy(model), per_channel)


@check_arguments
def convert(model: Any) -> Quantized:
    """Return a trained network of `prepare_qat` as one of integers of 8 bits, for inference.

    Raises ArgumentError for another network, one that no batch has passed, and ranges that are not finite.
    """
    if not isinstance(model, QuantizationAware):
        raise ArgumentError(f"model={show(model)} is not a network of prepare_qat; train one of these first")
    survey = model.survey
    if not survey.layers:
        raise ArgumentError("no batch has passed the network since prepare_qat; train it first")
    scales = {}
    for key, kind in survey.kinds.items():
        fake = getattr(model.inputs, name_of(key))
        if not fake.num_batches.data:
            raise ArgumentError(f"no training batch has passed {key}; train the network, in training mode, first")
        seen = Observed(float(np.asarray(fake.min_val.data)), float(np.asarray(fake.max_val.data)))
        seen.check(key)
        scales[key] = seen.choose("minmax", kind)
    network = deepcopy(model.network)
    return build(network, survey, scales, model.per_channel)
