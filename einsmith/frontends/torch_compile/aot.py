"""Implement torch.compile's backend "einsmith": AOTAutograd makes forward and backward, `split` compiles them."""

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
from torch.nn.attention import SDPBackend, sdpa_kernel

from einsmith.base.errors import ArgumentError, UnknownOptionError
from einsmith.base.precisions import KEPT
from einsmith.driver.sizes import check_sizes
from einsmith.frontends import torch_device
from einsmith.frontends.torch_compile.frozen import find_frozen, mark
from einsmith.frontends.torch_compile.higher import DifferentiableBackward, attaching, has_inputs
from einsmith.frontends.torch_compile.options import Options
from einsmith.frontends.torch_compile.recurrences import replace_recurrences
from einsmith.frontends.torch_compile.reused import Saved, inputs_of
from einsmith.frontends.torch_compile.saved import partition
from einsmith.frontends.torch_compile.split import split
from einsmith.frontends.torch_compile.validation import checking, is_refused
from einsmith.frontends.torch_compile.writes import find_lost_write
from einsmith.frontends.torch_decompositions import NORMS, decompositions, decompositions_of
from einsmith.frontends.torch_nodes import line_of
from einsmith.frontends.torch_whole import keep_whole
from einsmith.tracing.trace import uncollected


@cache
def _decompositions() -> dict:
    """Return the decompositions that a graph is traced with: calls that PyTorch may refuse stay whole."""
    return {op: checking(op, f) for op, f in (decompositions() | decompositions_of(NORMS)).items()}


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of PyTorch's operators; torch.compile calls this for `backend="einsmith"`.

    options: `fallback`, "warn" (operators that Einsmith lacks run in PyTorch, with one warning each) or "error";
    `fallback_random`, whether PyTorch draws the random numbers, as in eager execution; `winograd` and
    `separate_exponentials`, as in `es.jit`; `sizes`, "auto" (graphs of dynamic sizes have one program for many sizes,
    docs/sizes.md), "shared" or "each"; by default as `torch_sizes.choose` says; `frozen`, True, "bf16" or "int8":
    parameters that do not train are constants (docs/finetuning.md).
    mode: None or "default". Raises UnknownOptionError and ArgumentError.
    """
    settings = _options(options or {})
    device = torch_device.common(x for x in example_inputs if isinstance(x, torch.Tensor))
    if torch_device.is_supported(device):
        settings = settings.on(device)
    if mode not in (None, "default"):
        raise ArgumentError(f"mode={mode!r} is not supported by backend='einsmith'; leave it out")

    if lost := find_lost_write(gm):
        node, why = lost
        settings.say("a graph", why, line_of(node))
        return gm.forward
    if is_refused(gm):
        return gm.forward

    replace_recurrences(gm)
    return _compiled(gm, example_inputs, Saved(), settings)


def _compiled(
    function: Callable[..., Any], example_inputs: Sequence[Any], saved: Saved, settings: Options
) -> Callable[..., Any]:
    """Return a function of PyTorch's operators compiled for inputs, with its backward pass, to any order.

    saved: which inputs are values that the function computes.
    """

    def compiler(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        try:
            with uncollected():
                return make_boxed_func(split(graph, settings))
        except Exception as e:  # a graph that cannot be split runs in PyTorch
            if settings.fallback == "error":
                raise
            settings.say("a graph", f"{type(e).__name__}: {e}", "")
            return make_boxed_func(graph.forward)

    gradients = DifferentiableBackward(function, partial(_compiled, settings=settings), saved)
    frozen = find_frozen(example_inputs, settings.frozen)
    parameters = {k for k, x in enumerate(example_inputs) if isinstance(x, torch.nn.Parameter)}

    def compile_inference(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if len(inputs_of(graph.graph)) == len(example_inputs):
            mark(graph.graph, frozen)
        return compiler(graph, inputs)

    def cut(joint: torch.fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int, **more: Any) -> Any:
        known = {"num_fwd_outputs": num_fwd_outputs, "options": settings, "constant": saved.constant, **more}
        known["parameters"] = ()
        if has_inputs(joint, len(example_inputs)):
            known["parameters"] = parameters
            mark(joint.graph, frozen)
        return gradients.cut(joint, len(example_inputs), partial(partition, joint, inputs, **known))

    traced = aot_autograd(
        fw_compiler=compiler,
        inference_compiler=compile_inference,
        decompositions=_decompositions(),
        partition_fn=cut,
        keep_inference_input_mutations=True,
    )
    with ExitStack() as stack:
        stack.enter_context(uncollected())
        stack.enter_context(keep_whole())
        stack.enter_context(attaching(gradients))
        # A graph may run its backward twice, so saved tensors must not be overwritten.
        stack.enter_context(functorch_config.patch(donated_buffer=False))
        # Decompose attention into operators that have formulas, instead of fused operators for it and its gradient.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        return traced(function, example_inputs)


def _options(keywords: Mapping[str, Any]) -> Options:
    known = {f.name for f in fields(Options) if f.init}
    for name in keywords:
        if name not in known:
            raise UnknownOptionError(f"backend='einsmith' has no option {name!r}; there are {', '.join(sorted(known))}")
    options = Options(**keywords)
    if options.fallback not in ("warn", "error"):
        raise ArgumentError(f"fallback={options.fallback!r} must be 'warn' or 'error'")
    check_sizes(options.sizes)
    if not (isinstance(options.frozen, bool) or options.frozen in KEPT):
        raise ArgumentError(f"frozen={options.frozen!r} must be one of False, True, {', '.join(map(repr, KEPT))}")
    return options
