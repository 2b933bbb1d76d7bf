"""Make TorchDynamo trace for the backend "einsmith" what it leaves to PyTorch for others.

Dynamo leaves nn.LSTM, nn.GRU and nn.RNN, and the function that calls them, to eager PyTorch, unless
`torch._dynamo.config.allow_rnn` is set. That is a setting for all backends; others would unroll every step. Here it
holds where this backend compiles, and the layers are calls of torch.lstm and the like.

A graph ends where a function asks for the module of a class of PyTorch, as PEFT does for every weight of a DoRA layer
(`type(weight).__module__`): a model of 2 layers had 31 graphs. The name is a constant here.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from einsmith.base import locks
from einsmith.base.errors import EinsmithWarning

_PACKAGE = "einsmith.frontends."
"""Beginning of the names of the modules that define the backend's functions."""


def extend_dynamo() -> None:
    """Make Dynamo trace what this backend can take; once for the process."""
    allow_recurrent_layers()
    trace_module_names()


def allow_recurrent_layers() -> None:
    """Make Dynamo trace recurrent layers where the backend is Einsmith's; once for the process.

    Warns, and changes nothing, where Dynamo has no such setting or reads it elsewhere.
    """
    with locks.IMPORTING:
        from torch._dynamo import config  # imported late: it takes a while
        from torch._dynamo.variables.builder import VariableBuilder

    wrap: Any = getattr(VariableBuilder, "wrap_module", None)
    if wrap is None or not hasattr(config, "allow_rnn"):
        warnings.warn(
            "einsmith: nn.LSTM, nn.GRU and nn.RNN run in PyTorch under torch.compile: TorchDynamo of this version "
            "cannot be told to compile them; einsmith.frontends.torch.from_torch does",
            EinsmithWarning,
            stacklevel=2,
        )
        return
    if getattr(wrap, "__module__", "") == __name__:
        return

    def wrap_module(self: Any, value: Any) -> Any:
        if not isinstance(value, nn.RNNBase) or not _is_ours(self.tx.output.compiler_fn):
            return wrap(self, value)
        with config.patch(allow_rnn=True):
            return wrap(self, value)

    VariableBuilder.wrap_module = wrap_module


def trace_module_names() -> None:
    """Make Dynamo call methods of the `__module__` of PyTorch's classes, which is a constant, where the backend is
    Einsmith's; once for the process. Changes nothing where Dynamo has no such variables."""
    with locks.IMPORTING:
        from torch._dynamo import variables

    attribute: Any = getattr(variables, "GetAttrVariable", None)
    call: Any = getattr(attribute, "call_method", None)
    if call is None or getattr(call, "__module__", "") == __name__:
        return

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if self.name != "__module__" or not _is_ours(tx.output.compiler_fn):
            return call(self, tx, name, args, kwargs)
        return variables.ConstantVariable.create(self.as_python_constant()).call_method(tx, name, args, kwargs)

    attribute.call_method = call_method


def _is_ours(compiler: Any) -> bool:
    """Return whether a compiler of Dynamo's, or the function that it wraps, is Einsmith's backend."""
    while compiler is not None:
        if str(getattr(compiler, "__module__", "")).startswith(_PACKAGE):
            return True
        compiler = getattr(compiler, "compiler_fn", None) or getattr(compiler, "__wrapped__", None)
    return False
