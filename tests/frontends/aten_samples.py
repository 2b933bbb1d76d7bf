"""PyTorch's operators against the table: a call is taken apart as torch.export does it, evaluated by the reference
evaluator, and compared in value and in derivative."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import einsmith as es
from einsmith.base.errors import EinsmithError
from einsmith.frontends.aten import evaluate
from einsmith.frontends.aten.aten_graph import AtenNode, Guards, OperatorGraph, missing
from einsmith.frontends.torch_decompositions import decompositions
from einsmith.frontends.torch_nodes import KNOWN, PLACES, argument, kind_of, operator_name
from einsmith.tracing.builder import Value, as_value


@dataclass
class Missing(Exception):
    """An operator that the table has not, or a type that Einsmith has not."""

    reason: str


def graph_of(f: Callable, tensors: list) -> tuple[OperatorGraph, Any]:
    """(f of these tensors as a graph, the structure of its result)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Taken apart first: what that makes is not yet free of changes in place.
            apart = make_fx(f, decompositions(), "real")(*tensors)
            gm = make_fx(torch.func.functionalize(apart), decompositions(), "real")(*tensors)
        except RuntimeError as e:  # it depends on values, or cannot be run here
            raise Missing(str(e)[:160]) from e
    gm.graph.eliminate_dead_code()
    nodes, inputs, constants, out = [], [], {}, ()
    for n in gm.graph.nodes:
        value = n.meta.get("val", n.meta.get("tensor_meta"))
        if n.op == "placeholder":
            inputs.append((n.name, None))
        elif n.op == "get_attr":
            constants[n.name] = getattr(gm, n.target).numpy()
        elif n.op == "output":
            out = n.args[0]
        else:
            kwargs = tuple((k, argument(v)) for k, v in n.kwargs.items() if k not in PLACES)
            kind = kind_of(value) if isinstance(value, torch.Tensor) else None
            nodes.append(AtenNode(n.name, operator_name(n.target), tuple(map(argument, n.args)), kwargs, "", "", kind))
    gone = missing(nodes)
    if gone:
        raise Missing(gone[0][0].operator)
    leaves = tuple(map(argument, out if isinstance(out, (tuple, list)) else (out,)))
    return OperatorGraph(tuple(nodes), tuple(inputs), {}, constants, leaves, {}, {}, Guards((), ())), None


def ours(graph: OperatorGraph) -> Callable[..., tuple]:
    def run(*arrays: Any) -> tuple:
        values = {name: as_value(x) for (name, _), x in zip(graph.inputs, arrays, strict=True)}
        values |= {name: as_value(x) for name, x in graph.constants.items()}
        out = evaluate(graph, values, {})[0]
        return tuple(x if isinstance(x, Value) else as_value(x) for x in _flat(out))

    return run


def _flat(x: Any) -> list:
    if isinstance(x, (list, tuple)):
        return [v for e in x for v in _flat(e)]
    return [x] if x is not None else []


def close(a: Any, b: Any, rtol: float) -> bool:
    kinds = [{"u": "i"}.get(x.dtype.kind, x.dtype.kind) for x in (a, b)]
    if a.shape != b.shape or kinds[0] != kinds[1]:  # the evaluator knows wide types; the graph checks the others
        return False
    if kinds[0] != "f":
        return bool((a == b).all())
    rtol = max(rtol, {2: 1e-2, 4: 1e-5}.get(b.dtype.itemsize, 0.0))
    scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= rtol * (np.abs(b) + 1e-3 * scale) + 1e-12
    return bool((near | (a == b) | (np.isnan(a) & np.isnan(b))).all())


def _array(x: Any) -> np.ndarray:
    x = (x if x.layout is torch.strided else x.to_dense()).detach().resolve_neg()
    return (x.float() if x.dtype is torch.bfloat16 else x).numpy(force=True)


def compare(f: Callable, tensors: list, gradients: bool = True, rtol: float = 1e-9, mode: Any = es.interpret) -> str:
    """Raises AssertionError where values or derivatives differ, Missing for what is refused; says what was compared."""
    for x in tensors:
        if str(x.dtype).removeprefix("torch.") not in KNOWN or x.layout is not torch.strided:
            raise Missing(str(x.dtype))
    graph, _ = graph_of(f, [x.detach() for x in tensors])
    arrays = [x.detach().numpy() for x in tensors]
    want = [x for x in _flat(f(*[x.detach().clone() for x in tensors])) if isinstance(x, torch.Tensor)]
    for x in want:
        if str(x.dtype).removeprefix("torch.") not in KNOWN or x.layout is not torch.strided:
            raise Missing(f"{x.dtype} {x.layout}")
    run = ours(graph)
    try:
        got = mode(run)(*arrays)
    except EinsmithError as e:
        raise Missing(f"{type(e).__name__}: {str(e)[:160]} {getattr(e, '__notes__', '')}") from e
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        assert close(np.asarray(a), _array(b), rtol), f"output {n}: {a} ({a.dtype}), PyTorch {b}"
    moving = [n for n, x in enumerate(tensors) if x.dtype is torch.float64 and x.numel()]
    if not gradients or not moving:
        return "values"
    theirs = [x.detach().clone().requires_grad_(n in moving) for n, x in enumerate(tensors)]
    try:
        out = [x for x in _flat(f(*theirs)) if isinstance(x, torch.Tensor)]
    except RuntimeError:
        return "values"
    paths = [n for n, x in enumerate(out) if x.requires_grad and x.is_floating_point() and x.numel()]
    if not paths:
        return "values"
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal(tuple(out[n].shape)) for n in paths}
    total = sum((out[n] * torch.tensor(weights[n])).sum() for n in paths)
    try:
        wanted = torch.autograd.grad(total, [theirs[n] for n in moving], allow_unused=True)
    except RuntimeError:  # PyTorch has no derivative
        return "values"

    def loss(*args: Any) -> Any:
        made = run(*args)
        return sum((made[n] * weights[n]).sum() for n in paths)

    derived = mode(es.grad(loss, argnums=tuple(moving)))(*arrays)
    for n, a, b in zip(moving, derived, wanted, strict=True):
        b = np.zeros(a.shape) if b is None else _array(b)
        found = np.where(np.isnan(b), b, a)  # where PyTorch's is NaN, ours may be a number
        assert close(found, b, 10 * rtol), f"derivative by input {n}: {a}, PyTorch {b}"
    return "values and derivatives"
