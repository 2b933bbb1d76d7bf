"""Implement ONNX's backend interface: `prepare(model).run(inputs)`, and the tests that come with the package onnx.

import onnx.backend.test
tests = onnx.backend.test.BackendTest(Backend, __name__)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend import base
from onnx.backend.base import namedtupledict

from einsmith.base.errors import ArgumentError, EinsmithError
from einsmith.frontends.onnx import load
from einsmith.frontends.onnx.module import OnnxModule


class Prepared(base.BackendRep):
    """A model that is ready to run."""

    def __init__(self, module: OnnxModule):
        self.module = module
        self._outputs = namedtupledict("Outputs", list(module.outputs))

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model and return its outputs, which are also accessible by name. inputs: in order, or by name."""
        if isinstance(inputs, dict):
            results = self.module(**inputs)
        else:
            results = self.module(*inputs) if isinstance(inputs, (list, tuple)) else self.module(inputs)
        return self._outputs(*(results if len(self.module.outputs) > 1 else (results,)))


class Backend(base.Backend):
    """Einsmith as a backend of ONNX, on the CPU."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether `load` takes the model (it has every operator and type) and the device is supported."""
        try:
            load(model)
        except EinsmithError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Return the loaded model, ready to run; raise ArgumentError for any device but the CPU."""
        if not cls.supports_device(device):
            raise ArgumentError(f"device {device!r} is not supported; use 'CPU'")
        return Prepared(load(model))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Run a model once on inputs and return its outputs."""
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node on arrays and return its outputs."""
        arrays = inputs if isinstance(inputs, (list, tuple)) else list(inputs.values())
        names = [x for x in node.input if x]
        infos = [
            onnx.helper.make_tensor_value_info(x, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for x, a in zip(names, map(np.asarray, arrays), strict=True)
        ]
        outs = [onnx.helper.make_empty_tensor_value_info(o) for o in node.output if o]
        graph = onnx.helper.make_graph([node], "node", infos, outs)
        imports = [onnx.helper.make_opsetid(node.domain, kwargs.get("opset_version", 21))]
        return cls.prepare(onnx.helper.make_model(graph, opset_imports=imports), device).run(list(arrays))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] == "CPU"


prepare, run_model, run_node = Backend.prepare, Backend.run_model, Backend.run_node
supports_device, is_compatible = Backend.supports_device, Backend.is_compatible
