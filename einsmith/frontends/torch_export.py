"""Convert modules of PyTorch to Einsmith, by torch.export, core ATen and formulas, and copy weights back."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
import torch.fx.experimental._config as _sizes
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from einsmith.api.tracing import trace_shapes
from einsmith.base.arguments import describe
from einsmith.base.arrays import to_array
from einsmith.base.dtypes import ALL, dtype_of
from einsmith.base.errors import ArgumentError, DtypeError, KindError, ShapeError, TraceError, UnknownNameError
from einsmith.frontends.aten import check
from einsmith.frontends.aten.aten_graph import AtenNode, Guards, Kind, OperatorGraph, Ref
from einsmith.frontends.aten.module import AtenModule
from einsmith.frontends.graph import ModulePart
from einsmith.frontends.torch_decompositions import decompositions
from einsmith.frontends.torch_nodes import KNOWN, addresses_memory, kind_of, line_of, node_of, operator_name
from einsmith.frontends.torch_symbolic import FIXED, describe_fixed
from einsmith.frontends.torch_whole import keep_whole
from einsmith.nn.module import Module
from einsmith.nn.parameter import Buffer, Parameter
from einsmith.tracing import trace

TELLS_GUARDS = "_guards_code" in torch.export.ExportedProgram.__annotations__
_STORED = KNOWN - {"bfloat16", "float16"}


def from_torch(module: torch.nn.Module, *example: Any, dynamic_shapes: Any = None) -> AtenModule:
    """Convert `module` to Einsmith: equal names, shapes and values of parameters and buffers, and an equal forward.

    example: arguments of its forward, tensors or nested tuples, lists and dicts of them; numbers and None become
    settings. One tuple of all of them, as onnx.export takes, is the same where forward needs several. The module is
    exported twice (torch.export), in training mode, in which parts that are in evaluation mode stay so, and in
    evaluation mode; it is not changed. What changes buffers in place, as batch norm does, is an update of the step.
    Dropout and other random numbers are Einsmith's own, of the seed, the layer's path and the step.

    Operators that `operator` made of an es.op become the formula again. torch.onnx.export refuses such modules;
    einsmith.frontends.onnx.export writes what from_torch returns.

    The first dimension of each tensor may differ from call to call where nothing in the module fixes it, and where the
    example has more than one there; dynamic_shapes says otherwise, as torch.export takes it. Weights are copies:
    `to_torch` gives them back. Raises DtypeError for weights of a type that no step updates, TraceError where
    torch.export fails, and for operators that are not in the table (docs/aten.md), with the user's own lines.
    """
    if not TELLS_GUARDS:
        raise TraceError(
            f"from_torch needs a newer PyTorch than {torch.__version__}, whose torch.export gives its guards"
        )
    if not isinstance(module, torch.nn.Module):
        raise KindError(f"from_torch takes a torch.nn.Module, not {describe(module)}")
    example = _spread(module, example)
    tensors = tree_map(
        lambda x: torch.as_tensor(to_array(x, "an example")) if isinstance(x, np.ndarray) else x, example
    )
    name = type(module).__name__
    with _modes(module):
        if not module.training:
            module.train()
        graphs = {True: _graph(module, tensors, dynamic_shapes, name)}
        module.eval()
        graphs[False] = _graph(module, tensors, dynamic_shapes, name)
    if graphs[True][1] != graphs[False][1]:
        raise TraceError(f"{name} returns other outputs in training than in evaluation, which is not supported")
    takes = _plain(tree_unflatten(range(len(graphs[True][0].inputs)), tree_flatten(tensors)[1]), name)
    network = AtenModule(name, {mode: graph for mode, (graph, _) in graphs.items()}, takes, graphs[True][1])
    _with_parts(network, module, {})
    _try(network, tensors)
    return network


def _spread(module: torch.nn.Module, example: tuple) -> tuple:
    """Return the arguments of a module's forward: those of a single tuple, where forward does not take it as one."""
    if len(example) != 1 or not isinstance(example[0], tuple):
        return example
    signature = inspect.signature(module.forward)
    for arguments in (example, example[0]):
        with suppress(TypeError):
            signature.bind(*arguments)
            return arguments
    return example


def to_torch(model: Module, module: torch.nn.Module) -> torch.nn.Module:
    """Copy the parameters and buffers of `model` into those of `module` with equal names, and return `module`.

    Types and devices stay the module's. Raises UnknownNameError and ShapeError, before anything is changed, where names
    or shapes differ.
    """
    for argument, name, kind in ((model, "model", Module), (module, "module", torch.nn.Module)):
        if not isinstance(argument, kind):
            raise KindError(f"to_torch: {name} is {describe(argument)}, and must be a Module of its own library")
    ours = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    theirs = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    apart = sorted(ours.keys() ^ theirs.keys())
    if apart:
        raise UnknownNameError(f"only one of {type(model).__name__} and {type(module).__name__} has {', '.join(apart)}")
    for name, place in theirs.items():
        if ours[name].shape != tuple(place.shape):
            raise ShapeError(f"{name!r} has shape {ours[name].shape} here and {tuple(place.shape)} in the module")
    with torch.no_grad():
        for name, place in theirs.items():
            place.copy_(torch.from_numpy(ours[name].numpy()))
    return module


def _try(network: AtenModule, example: tuple) -> None:
    """Trace both graphs for the example's shapes, so that arguments which a formula does not take are errors now."""
    leaves, structure = tree_flatten(example)
    at = [n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    kinds = [(tuple(leaves[n].shape), dtype_of(str(leaves[n].dtype).removeprefix("torch."))) for n in at]

    def call(*values: Any) -> Any:
        tensors = dict(zip(at, values, strict=True))
        return network(*tree_unflatten([tensors.get(n, x) for n, x in enumerate(leaves)], structure))

    for training in (False, True):
        network.train(training)
        with trace.compiling():
            trace_shapes(call, kinds)


@contextmanager
def _modes(module: torch.nn.Module) -> Iterator[None]:
    """Restore the training modes of a module and its parts on exit."""
    before = {m: m.training for m in module.modules()}
    try:
        yield
    finally:
        for m, training in before.items():
            m.training = training


def _with_parts(ours: ModulePart, theirs: torch.nn.Module, known: dict[int, Any], path: str = "") -> ModulePart:
    """Fill `ours` with the parameters, buffers and parts of `theirs`, sharing what `theirs` shares, and return it."""
    known[id(theirs)] = ours
    for name, x in (*theirs._parameters.items(), *theirs._buffers.items()):
        if x is not None and str(x.dtype).removeprefix("torch.") not in _STORED:
            raise DtypeError(f"{path}{name} is {x.dtype}, which no step updates; convert the module, as with .float()")
    for name, p in theirs._parameters.items():
        if p is not None and id(p) not in known:
            known[id(p)] = Parameter(p.detach().cpu(), requires_grad=p.requires_grad)
        ours.register_parameter(name, None if p is None else known[id(p)])
    for name, b in theirs._buffers.items():
        if b is not None and id(b) not in known:
            known[id(b)] = Buffer(b.detach().cpu())
        persistent = name not in theirs._non_persistent_buffers_set
        ours.register_buffer(name, None if b is None else known[id(b)], persistent)
    for name, part in theirs._modules.items():
        if part is not None and id(part) not in known:
            _with_parts(ModulePart(type(part).__name__), part, known, f"{path}{name}.")
        ours.add_module(name, None if part is None else known[id(part)])
    return ours


# ------------------------------------------------------------------------------------------------------------- export


def _first(x: Any) -> Any:
    """Return the dynamic shape by which a tensor's first dimension may differ, None if its extent is at most 1."""
    return {0: torch.export.Dim.AUTO} if isinstance(x, torch.Tensor) and x.ndim and x.shape[0] > 1 else None


def _graph(module: torch.nn.Module, example: tuple, dynamic_shapes: Any, name: str) -> tuple[OperatorGraph, Any]:
    """Export a module in its current mode: (its graph, the structure of its result)."""
    if dynamic_shapes is None:
        try:
            arguments = inspect.signature(module.forward).bind(*example).arguments
        except TypeError as e:
            raise ArgumentError(f"{name}'s forward does not take the example: {e}") from None
        dynamic_shapes = {n: tree_map(_first, x) for n, x in arguments.items()}
    fixed: dict[str, list[str]] = {}
    token = FIXED.set(fixed)
    try:
        # Oblivious: a branch on whether a size is 0 or 1 becomes a guard; sizes are else taken to be neither.
        with keep_whole(), warnings.catch_warnings(), _sizes.patch(backed_size_oblivious=True), _no_own_backward():
            warnings.simplefilter("ignore", FutureWarning)
            exported = torch.export.export(module, example, dynamic_shapes=dynamic_shapes)
            _detach_without_gradients(exported, name)
            core = exported.run_decompositions(decompositions())
    except TraceError:
        raise
    except Exception as e:
        remedy = f"{describe_fixed(fixed)}\n" if fixed else ""
        raise TraceError(f"{remedy}torch.export cannot export {name}: {str(e).strip() or type(e).__name__}") from e
    finally:
        FIXED.reset(token)
    return _convert(core, _guards(exported, module, describe_fixed(fixed)), name)


@contextmanager
def _no_own_backward() -> Iterator[None]:
    """Make functions with a custom backward an error in this context: torch.export traces only their forward."""
    known = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith(("torch._functorch", "torch._dynamo")):
            raise TraceError(
                f"{cls.__qualname__} is an autograd.Function, whose backward torch.export drops; write its forward as "
                "plain operators, of which the derivative is formed (checkpoint: with use_reentrant=False)"
            )
        return known.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        torch.autograd.Function.apply = known


def _detach_without_gradients(exported: Any, name: str) -> None:
    """Detach the results of parts under torch.no_grad, since decomposition inlines these parts and drops the mode."""
    graph = exported.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or getattr(node.target, "__name__", "") != "wrap_with_set_grad_enabled":
            continue
        inner = getattr(exported.graph_module, node.args[1].target)
        if any(getattr(n.target, "__name__", "") == "wrap_with_set_grad_enabled" for n in inner.graph.nodes):
            raise TraceError(
                f"{name} enables gradients under torch.no_grad, which is not supported\n    {line_of(node)}"
            )
        for part in list(node.users) if node.args[0] is False else ():
            if isinstance(part.meta.get("val"), torch.Tensor) and part.meta["val"].is_floating_point():
                with graph.inserting_after(part):
                    constant = graph.call_function(torch.ops.aten.detach.default, (part,))
                constant.meta = dict(part.meta)
                part.replace_all_uses_with(constant, delete_user_cb=lambda user, new=constant: user is not new)
                exported.graph_signature.replace_all_uses(part.name, constant.name)
    exported.graph_module.recompile()


def _guards(exported: Any, module: torch.nn.Module, remedy: str) -> Guards:
    """Return the conditions on input sizes that torch.export assumed."""
    parameters = inspect.signature(module.forward).parameters.values()
    return Guards(tuple((p.name, p.kind is p.VAR_POSITIONAL) for p in parameters), tuple(exported._guards_code), remedy)


def _convert(exported: Any, guards: Guards, name: str) -> tuple[OperatorGraph, Any]:
    signature = exported.graph_signature
    nodes: list[AtenNode] = []
    values: dict[str, Any] = {}
    for n in exported.graph.nodes:
        values[n.name] = n.meta.get("val")
        if n.op == "call_function":
            if addresses_memory(n):
                raise TraceError(
                    f"{name}: {operator_name(n.target)} reads by places in memory, and its tensor is not contiguous; "
                    f"write .contiguous() before it, or an index\n    {line_of(n)}"
                )
            nodes.append(node_of(n, values[n.name]))
        elif n.op == "get_attr":
            raise TraceError(
                f"{name} has a part that torch.export keeps as a separate function, which is not supported"
                f"\n    {line_of(n)}"
            )
    check(nodes, name)
    for node in nodes:
        if node.kind is not None and node.kind.dtype not in {d.name for d in ALL}:
            raise TraceError(
                f"{name}: aten.{node.operator} gives {node.kind.dtype}, which Einsmith does not support"
                f"\n    {node.line}"
            )
    inputs: list[tuple[str, Any]] = []
    stored: dict[str, tuple[str, Kind]] = {}
    constants: dict[str, Any] = {}
    for spec in signature.input_specs:
        at = spec.arg.name
        if spec.kind is InputKind.USER_INPUT:
            inputs.append((at, _input_kind(spec.arg, values, name)))
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            kind = kind_of(values[at])
            assert kind is not None
            stored[at] = spec.target, kind
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            constants[at] = exported.constants[spec.target].detach().cpu().numpy()
        elif spec.kind is InputKind.TOKEN:  # tokens only order the checks
            constants[at] = np.zeros(0, np.float32)
        else:
            raise TraceError(f"{name} holds {spec.target!r}, of a kind that torch.export calls {spec.kind.name}")
    updates, outputs = _results(signature, name)
    ranges = {str(k): (_bound(r.lower), _bound(r.upper)) for k, r in exported.range_constraints.items()}
    graph = OperatorGraph(tuple(nodes), tuple(inputs), stored, constants, tuple(outputs), updates, ranges, guards)
    return graph, _plain(tree_unflatten(range(len(outputs)), exported.call_spec.out_spec), name)


def _bound(n: Any) -> int:
    """Return a bound of a size as an int; infinity becomes a number above any size."""
    return int(n) if getattr(n, "is_Integer", True) else 2**62


def _input_kind(arg: Any, values: Mapping[str, Any], name: str) -> Any:
    """Return what an input must be: the kind of a tensor, or a number. Raises ArgumentError for anything else."""
    if isinstance(arg, ConstantArgument):
        return arg.value
    kind = kind_of(values[arg.name]) if isinstance(arg, TensorArgument) else None
    if kind is None:
        raise ArgumentError(f"{name}: the input {arg.name!r} is neither a tensor nor a number")
    for n in kind.shape:
        if isinstance(n, str) and not n.isidentifier():
            raise ArgumentError(
                f"{name}: the input {arg.name!r} has a size {n}, computed from others; give the size a name"
            )
    return kind


def _results(signature: Any, name: str) -> tuple[dict[str, Ref], list[Any]]:
    """Return (new values of buffers by path, outputs)."""
    updates: dict[str, Ref] = {}
    outputs: list[Any] = []
    for spec in signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION:
            updates[spec.target] = Ref(spec.arg.name)
        elif spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else Ref(spec.arg.name))
        elif spec.kind is OutputKind.TOKEN:
            continue
        else:
            raise TraceError(
                f"{name} changes {spec.target!r} in place ({spec.kind.name}); a forward may change only buffers"
            )
    return updates, outputs


def _plain(x: Any, name: str) -> Any:
    """Return the structure of a result as tuples, lists and dicts."""
    if isinstance(x, Mapping):
        return {k: _plain(v, name) for k, v in x.items()}
    if isinstance(x, (tuple, list)):
        return (list if type(x) is list else tuple)(_plain(v, name) for v in x)
    if not isinstance(x, int):
        raise TraceError(f"{name} returns {describe(x)}; a forward may return tensors, tuples, lists and dicts")
    return x
