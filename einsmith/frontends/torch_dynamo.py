"""Make TorchDynamo pass nn.LSTM, nn.GRU and nn.RNN to the backend "einsmith", as calls of torch.lstm and the like.

Dynamo leaves these layers, and the function that calls them, to eager PyTorch, unless `torch._dynamo.config.allow_rnn`
is set. That is a setting for all backends; others would unroll every step. Here it holds where this backend compiles.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from einsmith.base import locks
from einsmith.base.errors import EinsmithWarning

_PACKAGE = "einsmith.frontends."
"""Beginning of the names of the modules that define the backend's functions."""


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


def _is_ours(compiler: Any) -> bool:
    """Return whether a compiler of Dynamo's, or the function that it wraps, is Einsmith's backend."""
    while compiler is not None:
        if str(getattr(compiler, "__module__", "")).startswith(_PACKAGE):
            return True
        compiler = getattr(compiler, "compiler_fn", None) or getattr(compiler, "__wrapped__", None)
    return False
