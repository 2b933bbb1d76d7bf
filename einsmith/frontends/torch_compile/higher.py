"""Differentiate the backward pass of a compiled graph, as energies need it whose forces are trained.

AOTAutograd makes forward and backward of a graph, and refuses to differentiate the backward. Where autograd asks for
it (`create_graph=True`), the gradients are computed by a graph of their own instead: that of the function which runs
the graph and differentiates it, of the inputs and of the incoming gradients. It is compiled as any other, and so is its
own backward pass, to any order; what the forward pass saved is not computed again. Where autograd does not ask, nothing
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch._functorch._aot_autograd.runtime_wrappers import RuntimeWrapper
from torch._functorch._aot_autograd.schemas import OutputType
from torch._functorch.autograd_function import AutogradFunctionApply
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx import Node as FxNode

from einsmith.base.caches import Bound, Cache
from einsmith.base.errors import GradientError
from einsmith.frontends.torch_compile.reused import Saved, inputs_of, is_random, take_saved
from einsmith.frontends.torch_compile.varying import ForSizes, Varies, symbolic, varies
from einsmith.frontends.torch_nodes import line_of, operator_name
from einsmith.frontends.torch_register import is_wanted

_OWN = OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view
"""Kinds of results whose gradients come in as they are."""
_VIEWS = OutputType.alias_of_intermediate_save_as_output, OutputType.alias_of_intermediate
"""Kinds of results that are views; the gradients of what they are views of come in last."""
_Result = tuple[int, bool]
"""The number of a result that gradients come in for; whether for what it is a view of."""
_MODE = torch._C._set_grad_enabled
_REFUSED = "the backward pass of a compiled function cannot be differentiated: "
_BACKWARDS = Bound("backward passes of PyTorch that are differentiated", 256)
_MOST_VARIANTS = 7
"""How many programs for other sizes are kept beside the newest, as Dynamo keeps 8 of a function."""
Compile = Callable[[Callable[..., Any], Sequence[Any], Saved], Callable[..., Any]]


class DifferentiableBackward:
    """The backward pass of one graph as a function of its inputs and of incoming gradients.

    graph: the graph, called with its inputs; compile: compiles a function for inputs, some of which are saved values;
    saved: which of the graph's own inputs are.
    """

    def __init__(self, graph: Callable[..., Any], compile: Compile, saved: Saved):
        self._graph, self._compile, self._saved = graph, compile, saved
        self._variants: Cache[tuple, list[ForSizes]] = Cache(_BACKWARDS)
        self._why = "AOTAutograd made no joint graph of it"
        self._results: list[_Result] = []
        self._incoming = 0
        self._changed: frozenset[int] = frozenset()
        self._kept: list[int | None] = []
        self._varying: list[Varies] = []

    def cut(self, joint: torch.fx.GraphModule, inputs: int, partition: Callable[[], Any]) -> Any:
        """Return the forward and the backward graph that `partition` makes of the joint graph, and note what the
        forward saves. inputs: how many the graph has."""
        take_saved(joint.graph, self._saved)
        joint.recompile()
        if drawn := [n for n in joint.graph.nodes if self._saved.positions and is_random(n)]:
            line = line_of(drawn[0])
            name = operator_name(drawn[0].target) + (line and f" ({line})")
            raise GradientError(f"{_REFUSED}{name} draws random numbers, which would be others")
        self._why = "" if has_inputs(joint, inputs) else "inputs share memory, and are changed in place"
        forward, backward = partition()
        numbers = {n.name: number for n, number in self._saved.numbers.of(joint.graph).items() if _is_computed(n)}
        self._incoming = len(inputs_of(joint.graph)) - len(_inputs(joint))
        kept = _inputs(backward)
        self._kept = [numbers.get(n.name) for n in kept]
        arguments = [*inputs_of(joint.graph), *(n for n in kept if n.name in numbers)]
        self._varying = [varies(n.meta.get("val")) for n in arguments]
        return forward, backward

    def attach(self, function: Any) -> None:
        """Let the gradients of AOTAutograd's function be differentiated."""
        known = function.metadata
        own = [k for k, x in enumerate(known.output_info) if x.output_type in _OWN and x.requires_grad_for_backward]
        bases = {x.base_idx: k for k, x in enumerate(known.output_info) if x.output_type in _VIEWS}
        self._results = [(k, False) for k in own]
        self._results += [(bases[k], True) for k in range(known.num_intermediate_bases)]
        if len(self._results) != self._incoming:
            self._why = self._why or "an input is changed in place that has a gradient"
        self._changed = frozenset(k for k, x in enumerate(known.input_info) if x.mutates_data or x.mutates_metadata)
        forward, backward, epilogue = function._fwd_fn, function._bwd_fn, function._bw_epilogue_fn
        first = known.num_mutated_inp_runtime_indices  # gradients of results come behind those of inputs' new values
        places = [first + k for k in own]
        places += range(first + known.num_outputs, first + known.num_outputs + known.num_intermediate_bases)

        def keep_inputs(ctx: Any, args: Sequence[Any], *more: Any) -> Any:
            ctx.inputs, ctx.versions = args, [getattr(x, "_version", 0) for x in args]
            return forward(ctx, args, *more)

        @torch._dynamo.disable  # which would trace it where the pass begins in a compiled function
        def run_backward(args: Any, ctx: Any, *more: Any) -> Any:
            if torch.is_grad_enabled():
                kept = *ctx.symints, *ctx.saved_tensors, *getattr(ctx, "_tensors_no_vc_check", ()), *ctx.opaque_objects
                gradients = self._run(ctx, [args[0][k] for k in places], kept)
                return epilogue([*gradients, *[None] * known.num_backward_tokens])
            out = backward(args, ctx, *more)
            if not torch._C._autograd._get_current_graph_task_keep_graph():
                ctx.inputs = None
            return out

        function._fwd_fn, function._bwd_fn = keep_inputs, run_backward

    def _run(self, ctx: Any, incoming: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
        """Return the gradients, as results of an operator that autograd knows."""
        if self._why:
            raise GradientError(_REFUSED + self._why)
        edges = iter(ctx.next_functions)  # one for each tensor; where none is needed, its node is None
        nodes = (next(edges)[0] if isinstance(x, torch.Tensor) else None for x in ctx.inputs)
        wrt = tuple(node is not None and is_wanted(node) for node in nodes)
        args = [*ctx.inputs, *incoming]
        first = len(args)
        args += [x.detach() for x, number in zip(kept, self._kept, strict=True) if number is not None]
        key = wrt, *map(_key, args, self._varying)
        variants = self._variants.get(key) or []
        variant = next((v for v in variants if v.holds(args)), None)
        if variant is None:
            numbers = (number for number in self._kept if number is not None)
            saved = {number: k for k, number in enumerate(numbers, first)}
            taken = Saved((*self._saved.positions, saved), self._saved.numbers)
            examples, guard = symbolic(args, self._varying)
            try:
                compiled = self._compile(_GradientsOf(self._graph, self._results, wrt, self._changed), examples, taken)
            except DataDependentOutputException as e:
                raise GradientError(f"{_REFUSED}its own derivative depends on values by {e.func}") from e
            variant = ForSizes(guard(), compiled, taken.read)
            self._variants.put(key, [variant, *variants[:_MOST_VARIANTS]])
        versions = enumerate(zip(ctx.inputs, ctx.versions, wrt, strict=True))
        if any((has or k in variant.read) and getattr(x, "_version", 0) != was for k, (x, was, has) in versions):
            raise GradientError(_REFUSED + "an input was changed in place since the forward pass")
        out = iter(variant.call(*args))
        return [next(out) if has else None for has in wrt]


def _key(x: Any, varying: Varies) -> Any:
    """Return what is constant of an argument; the sizes that vary are None."""
    if not isinstance(x, torch.Tensor):
        return None if any(varying) else x
    if not any(varying):
        return x.shape, x.stride(), x.dtype, x.requires_grad
    return tuple(None if v else n for n, v in zip(x.shape, varying, strict=True)), x.dtype, x.requires_grad


def _inputs(graph: torch.fx.GraphModule) -> list[FxNode]:
    """Return the inputs of a graph but incoming gradients."""
    return [n for n in inputs_of(graph.graph) if "tangents" not in str(n.target)]


def has_inputs(joint: torch.fx.GraphModule, inputs: int) -> bool:
    """Return whether a joint graph has the inputs of its function, whose number is given, one by one."""
    return len(_inputs(joint)) == inputs


def _is_computed(n: FxNode) -> bool:
    return n.op == "call_function" and isinstance(n.meta.get("val"), torch.Tensor)


class _GradientsOf(torch.nn.Module):
    """The function from inputs and incoming gradients to the gradients of some inputs. graph: whose results they are;
    results: those that gradients come in for; wrt: which inputs' gradients are returned; changed: numbers
    of inputs that it changes in place. What follows the incoming gradients among the arguments is not read."""

    def __init__(
        self, graph: Callable[..., Any], results: Sequence[_Result], wrt: Sequence[bool], changed: frozenset[int]
    ):
        super().__init__()
        self._of, self._results, self._wrt = (graph,), results, wrt  # a tuple, as the parameters are inputs
        self._changed = changed

    def forward(self, *args: Any) -> tuple[Any, ...]:
        """Return the gradients."""
        count = len(self._wrt)
        # What the forward pass changes in place is changed in a copy.
        inputs = [x.clone() if k in self._changed else x for k, x in enumerate(args[:count])]
        with patch.object(AutogradFunctionApply, "__call__", _apply):
            results = self._of[0](*inputs)
            return torch.autograd.grad(
                [results[k]._base if is_base else results[k] for k, is_base in self._results],
                [x for x, has in zip(inputs, self._wrt, strict=True) if has],
                args[count : count + len(self._results)],
                create_graph=True,
                allow_unused=True,
            )


class _Differentiable(torch.fx.Interpreter):
    """Runs the graph of a backward pass, all of which Dynamo has traced without gradients, with them."""

    def __init__(self, graph: torch.fx.GraphModule):
        super().__init__(graph)
        if len(graph.graph.find_nodes(op="call_function", target=_MODE)) > 2:
            raise GradientError(_REFUSED + "an autograd.Function turns gradients off in its backward")

    def run_node(self, n: FxNode) -> Any:
        """Return a node's value."""
        return None if n.target is _MODE else super().run_node(n)


def _apply(
    _: Any,
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    *inputs: Any,
    non_differentiable_idx: Sequence[int] = (),
    dirty_idx: Sequence[int] = (),
    **others: Any,
) -> Any:
    """Run a user's autograd.Function, of which Dynamo made two graphs. Inputs and results that it saves are part of
    what its backward pass is differentiated by, as in eager execution; in PyTorch's own form nothing saved is."""

    class Applied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            results, ctx.saved = torch.fx.Interpreter(forward).run(*args)
            every = results if isinstance(results, (tuple, list)) else (results,)
            ctx.mark_dirty(*(every[k] for k in dirty_idx))
            ctx.mark_non_differentiable(*(every[k] for k in non_differentiable_idx))
            ctx.save_for_backward(*(x for x in ctx.saved if isinstance(x, torch.Tensor)))
            ctx.saved = [None if isinstance(x, torch.Tensor) else x for x in ctx.saved]
            return results

        @staticmethod
        def backward(ctx: Any, *incoming: Any) -> Any:
            tensors = iter(ctx.saved_tensors)
            saved = (next(tensors) if x is None else x for x in ctx.saved)
            return _Differentiable(backward).run(*incoming, *saved)

    return Applied.apply(*inputs)


def attaching(backward: DifferentiableBackward) -> Any:
    """Return a context in which AOTAutograd's functions have a backward pass that can be differentiated."""
    own = RuntimeWrapper.post_compile

    def post_compile(self: RuntimeWrapper, compiled: Callable[..., Any], *args: Any, **options: Any) -> Any:
        function = getattr(compiled, "__self__", None)
        if hasattr(function, "_bwd_fn"):
            backward.attach(function)
        return own(self, compiled, *args, **options)

    return patch.object(RuntimeWrapper, "post_compile", post_compile)
