"""Replace calls of torch.lstm, torch.gru and torch.rnn_* in a graph of Dynamo's by recurrences of Einsmith.

AOTAutograd would unroll them, step by step. A layer becomes one operator of `torch_operator`, whose derivatives
AOTAutograd takes as operators, too; compile time does not depend on the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from einsmith.frontends.aten import TABLE
from einsmith.frontends.torch_operator import TorchOperator, operator
from einsmith.nn.recurrence import run_layers


def replace_recurrences(gm: torch.nn.Module) -> None:
    """Replace the recurrent calls of a graph, in place. Those of packed sequences stay, and modules without a graph."""
    if not isinstance(gm, torch.fx.GraphModule):
        return
    for node in gm.graph.nodes:
        function = _FUNCTIONS.get(node.target) if node.op == "call_function" else None
        # (input, state, weights, has_biases, ...); packed sequences have (data, batch_sizes, state, weights, ...)
        if function is not None and not node.kwargs and isinstance(node.args[3], bool):
            node.target = function
    gm.recompile()


@lru_cache(maxsize=16)  # all that there are: 4 kinds, with and without biases, in one direction and in two
def _layer_operator(kind: str, states: int, has_biases: bool, bidirectional: bool) -> TorchOperator:
    """Return the operator of one layer, (x [T, B, I], initial states, weights) -> (outputs, last states)."""
    run = TABLE[f"{kind}.input"].run

    def layer(x: Any, *tensors: Any) -> tuple:
        initial = list(tensors[:states]) if kind == "lstm" else tensors[0]
        return run(x, initial, tensors[states:], has_biases, 1, 0.0, False, bidirectional, False)

    layer.__name__ = kind
    return operator(layer)


def _run(
    kind: str,
    x: torch.Tensor,
    initial: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute the layers one after the other. Dropout between them is PyTorch's, of which the backend knows."""
    run, each = _layer_operator(kind, len(initial), has_biases, bidirectional), len(weights) // num_layers

    def layer(x: torch.Tensor, tensors: Any, states: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Any]:
        y, *last = run(x, *states, *tensors)
        return y, last

    y, last = run_layers(
        layer,
        x.transpose(0, 1) if batch_first else x,  # here, so that strides of results and gradients are PyTorch's
        [weights[n : n + each] for n in range(0, len(weights), each)],
        initial,
        (lambda y, _: torch.dropout(y, dropout, True)) if dropout and train else None,
        torch.cat,
    )
    return y.transpose(0, 1) if batch_first else y, *last


def _define(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def recurrent(x: torch.Tensor, hx: Any, weights: Sequence[torch.Tensor], *settings: Any) -> Any:
        if not x.is_cpu:
            return original(x, hx, weights, *settings)
        results = _run(kind, x, hx if kind == "lstm" else (hx,), weights, *settings)
        if torch.is_autocast_enabled("cpu") and x.dtype is not torch.float64:  # which computes in float32
            dtype = x.dtype if kind == "gru" else torch.get_autocast_dtype("cpu")  # PyTorch's results
            return tuple(r.to(dtype) for r in results)
        return results

    recurrent.__name__ = recurrent.__qualname__ = kind  # by which a graph's code finds it
    recurrent.__doc__ = f"Compute torch.{kind} as recurrences, on CPUs."
    return recurrent


lstm, gru = _define("lstm", torch.lstm), _define("gru", torch.gru)
rnn_tanh, rnn_relu = _define("rnn_tanh", torch.rnn_tanh), _define("rnn_relu", torch.rnn_relu)
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.lstm: lstm,
    torch.gru: gru,
    torch.rnn_tanh: rnn_tanh,
    torch.rnn_relu: rnn_relu,
}
"""What replaces each function."""
