"""The backend: what torch.compile hands over, through AOTAutograd, to `split`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import cache, partial
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.nn.attention import SDPBackend, sdpa_kernel

from einsmith.errors import ArgumentError, UnknownOptionError
from einsmith.frontends import torch_linalg
from einsmith.frontends.aten import TABLE
from einsmith.frontends.torch_compile.saved import partition
from einsmith.frontends.torch_compile.split import Options, split
from einsmith.frontends.torch_nodes import operator_name

_APART = [
    getattr(torch.ops.aten, name)
    for name in ("_native_batch_norm_legit_functional", "native_layer_norm", "native_group_norm",
                 "native_layer_norm_backward", "native_batch_norm_backward", "native_group_norm_backward",
                 "_batch_norm_with_update_functional", "batch_norm_backward", "dist", "narrow_copy", "permute_copy",
                 "unbind_copy")
]  # fmt: skip


@cache
def decompositions() -> dict:
    """PyTorch's of operators that are not in the table, and of those whose parts the backward can compute again."""
    known = torch._decomp.core_aten_decompositions()
    found = {op: f for op, f in known.items() if operator_name(op) not in TABLE}
    return found | torch._decomp.get_decompositions(_APART) | torch_linalg.APART


def backend(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """What torch.compile calls for `backend="einsmith"`: a graph of PyTorch's operators, compiled.

    options: `fallback`, "warn" (an operator that Einsmith has not runs in PyTorch, which is said once) or "error";
    `fallback_random`, whether random numbers are PyTorch's own, as those of eager execution; `winograd`, as `es.jit`
    has it. mode: None or "default". Raises UnknownOptionError and ArgumentError.
    """
    settings = _options(options or {})
    if mode not in (None, "default"):
        raise ArgumentError(f"mode={mode!r} is not built for backend='einsmith'; leave it out")

    def compiler(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        try:
            return make_boxed_func(split(graph, settings))
        except Exception as e:  # nothing of PyTorch's may fail for what a graph is like
            if settings.fallback == "error":
                raise
            settings.say("a graph", f"{type(e).__name__}: {e}", "")
            return make_boxed_func(graph.forward)

    def made(apart: dict) -> Callable[..., Any]:
        traced = aot_autograd(
            fw_compiler=compiler, decompositions=apart, partition_fn=partial(partition, options=settings),
            keep_inference_input_mutations=True,
        )  # fmt: skip
        with ExitStack() as stack:
            # A graph may go backward twice; what it has saved is not written into.
            stack.enter_context(functorch_config.patch(donated_buffer=False))
            # Attention in parts that have formulas, not as one operator of PyTorch's and another for its gradient.
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            return traced(gm, example_inputs)

    try:
        return made(decompositions())
    except (DataDependentOutputException, DynamicOutputShapeException):  # of what a decomposition asks for
        return made({})


def _options(given: Mapping[str, Any]) -> Options:
    known = {f.name for f in fields(Options)}
    for name in given:
        if name not in known:
            raise UnknownOptionError(f"backend='einsmith' has no option {name!r}; there are {', '.join(sorted(known))}")
    found = Options(**given)
    if found.fallback not in ("warn", "error"):
        raise ArgumentError(f"fallback={found.fallback!r}: it is 'warn' or 'error'")
    return found
