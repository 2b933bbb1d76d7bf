"""onnxruntime: networks in evaluation, exported from PyTorch."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch.onnx import symbolic_helper

from benchmarks import worker
from benchmarks.peers.torch_networks import TorchForward
from benchmarks.recurrent_steps import RecurrentForward


def _shuffle_channels(graph: Any, x: Any, groups: Any) -> Any:
    """Return the nodes of torch.channel_shuffle, which the exporter lacks."""
    b, c, *image = symbolic_helper._get_tensor_sizes(x)
    n = symbolic_helper._get_const(groups, "i", "groups")

    def reshape(a: Any, shape: list[int]) -> Any:
        return graph.op("Reshape", a, graph.op("Constant", value_t=torch.tensor(shape)))

    parts = reshape(x, [b, n, c // n, *image])
    return reshape(graph.op("Transpose", parts, perm_i=[0, 2, 1, 3, 4]), [b, c, *image])


torch.onnx.register_custom_op_symbolic("aten::channel_shuffle", _shuffle_channels, 20)


class Exported(torch.nn.Module):
    """What a session of PyTorch runs, as a module of its inputs alone. weights: an argument before them, if any."""

    def __init__(self, session: TorchForward, weights: Any = None):
        super().__init__()
        self.f, self.weights = session.f, weights

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        return self.f(x) if self.weights is None else self.f(self.weights, x, states)


class OnnxForward:
    """The output of an exported module."""

    def __init__(self, module: Exported, inputs: tuple[torch.Tensor, ...], threads: int):
        file, names = io.BytesIO(), [f"x{n}" for n in range(len(inputs))]
        torch.onnx.export(module.eval(), inputs, file, dynamo=False, input_names=names)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        how = {"providers": ["CPUExecutionProvider"]}
        self.session = onnxruntime.InferenceSession(file.getvalue(), options, **how)
        self.inputs = {n: x.numpy() for n, x in zip(names, inputs, strict=True)}

    def step(self) -> float:
        """Run the forward pass; there is no loss."""
        (self.output,) = self.session.run(None, self.inputs)
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        """Return the output."""
        return {"output": self.output}


def variants(problem: Any, peer: str) -> tuple[str, ...]:
    """Return the one formulation of an output in evaluation; nothing else is exported."""
    return ("",) if problem.results == ("output",) else ()


def build(problem: Any, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> OnnxForward:
    """Return the problem's session."""
    session = worker.build(problem, arrays, threads, "torch")
    if isinstance(problem, RecurrentForward):
        weights, x, states = session.inputs
        return OnnxForward(Exported(session, weights), (x, *states), threads)
    return OnnxForward(Exported(session), tuple(session.inputs), threads)
