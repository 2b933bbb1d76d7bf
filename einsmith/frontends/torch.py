"""Formulas as PyTorch operators: `operator` (frontends/torch_operator.py). Modules of PyTorch as modules of Einsmith,
and their weights back: `from_torch`, `to_torch` (frontends/torch_export.py).

And `torch.compile(model, backend="einsmith")`, which an installed package has without this import (torch_compile/), and
`refresh` for weights that such a model takes for constant.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from einsmith.base import locks
from einsmith.frontends.torch_dynamo import extend_dynamo
from einsmith.frontends.torch_export import from_torch, to_torch
from einsmith.frontends.torch_operator import TorchOperator, operator

__all__ = ["TorchOperator", "from_torch", "operator", "refresh", "to_torch"]

BACKEND = "einsmith"
"""Name of the backend of torch.compile."""


def _register_backend() -> None:
    """Register torch.compile's backend "einsmith", unless an installed package's entry point does."""
    if not any(e.name == BACKEND for e in entry_points(group="torch_dynamo_backends")):
        with locks.IMPORTING:
            from torch._dynamo.backends.registry import register_backend

        def compiled(gm: Any, example_inputs: Any, **options: Any) -> Any:
            with locks.IMPORTING:
                from einsmith.frontends.torch_compile import backend  # imported late: it takes a while

            return backend(gm, example_inputs, **options)

        register_backend(compiled, name=BACKEND)
        extend_dynamo()


def refresh(module: Any) -> Any:
    """Tell compiled functions that parameters of a module have changed through `.data`, which PyTorch does not count;
    return the module.

    Functions compiled with the option `frozen` read frozen ones anew at their next call. The backward pass of an
    earlier call raises PyTorch's error of tensors changed in place. PEFT's `merge_adapter` and `unmerge_adapter` change
    weights so.
    """
    with locks.IMPORTING:
        from torch.autograd.graph import increment_version

    for x in module.parameters():
        if not x.is_inference():
            increment_version(x)
    return module


_register_backend()
