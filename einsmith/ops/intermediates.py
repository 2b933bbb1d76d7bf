"""Keep what an operator computes on the way from operands of 16 bits in float32; only its results are rounded.

A formula is computed in float32 and rounded where its tensor is stored. An operator of several formulas would round in
between, and overflow where no result does: a sum of squares of float16 is infinite from norms of 256 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from einsmith.base import trees
from einsmith.base.dtypes import DType
from einsmith.ir.nodes import (
    Apply,
    Compute,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Tensor,
    cast,
    postorder,
    read_whole,
    template,
)
from einsmith.ir.rebuild import map_bodies, rebuild, types_of, with_args
from einsmith.tracing.builder import Value, traced_tensors


def keep_wide(operands: Any, results: Any) -> Any:
    """Return an operator's results computed from float32 in place of tensors of 16 bits that the operator made.

    Conversions and choices of operands stay as they are: a number that the operator rounds to 16 bits is rounded.

    Args:
        operands: the operator's arguments, a tree with Values
        results: what the operator returns for them, a tree with Values
    """
    ends = traced_tensors(operands)
    if not any(_is_narrow(t.dtype) for t in ends):
        return results
    leaves, structure = trees.flatten(results)
    places = [n for n, x in enumerate(leaves) if isinstance(x, Value) and x.literal is None]
    for n, new in zip(places, _widen([leaves[n].tensor for n in places], ends), strict=True):
        old = leaves[n]
        leaves[n] = old if new is old.tensor else Value(new, old.weak, name=old.name, wide=old.wide)
    return trees.unflatten(structure, leaves)


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.in_memory_only


def _widen(results: Sequence[Tensor], operands: Iterable[Tensor]) -> list[Tensor]:
    new: dict[Tensor, Tensor] = {t: t for t in operands}
    """Nodes -> their replacements of the same type."""
    wide: dict[Tensor, Tensor] = {}
    """Nodes of 16 bits -> their values in float32, for what reads them."""
    inside = list(postorder(results, new))
    read = {a for node in inside if isinstance(node, Compute) for a in node.args}
    computed: set[Tensor] = set()
    for node in inside:
        if not isinstance(node, Compute) or len(node.template.dtypes) != 1:
            new[node] = with_args(node, tuple([new[a] for a in node.args])) if node.args else node
            computed |= {node} if node.args else set()
            continue
        args = tuple([wide.get(a, new[a]) for a in node.args])
        if not _is_copy(node, computed):
            computed.add(node)
            if node in read and _is_narrow(node.dtype) and _is_pointwise(node):
                kind = node.dtype.arithmetic
                wide[node] = _reading(node, args, _unrounded)
                whole = cast(read_whole(0, node.shape, kind), node.dtype)
                new[node] = Compute(template(node.shape, [(kind, node.shape)], whole), (wide[node],))
                continue
        new[node] = _reading(node, args, lambda body: body)
    return [new[t] for t in results]


def _is_pointwise(node: Compute) -> bool:
    return all(isinstance(part, Piece) and not isinstance(part.body, Reduce) for part in node.template.parts)


def _is_copy(node: Compute, computed: set[Tensor]) -> bool:
    """Return whether every element is a number, or an element of a tensor that is not `computed`, perhaps converted."""
    stack: list[Expr] = [b for part in node.template.parts for b in part.bodies]
    while stack and _is_pointwise(node):
        e = stack.pop()
        if isinstance(e, Apply) and e.fn in ("where", "cast", "stop_gradient"):
            stack += e.args[1:] if e.fn == "where" else e.args
        elif not isinstance(e, Const) and not (isinstance(e, Read) and node.args[e.slot] not in computed):
            return False
    return _is_pointwise(node)


def _reading(node: Compute, args: tuple[Tensor, ...], change: Callable[[Expr], Expr]) -> Compute:
    """Return the node with its bodies changed and these arguments, some of which are in float32 in place of 16 bits."""

    def rule(e: Any) -> Any:
        if isinstance(e, Read) and args[e.slot].dtype is not e.dtype:
            return cast(Read(e.slot, e.index, args[e.slot].dtype), e.dtype)
        rounded = e.args[0] if isinstance(e, Apply) and e.fn == "cast" else None
        value = rounded.args[0] if isinstance(rounded, Apply) and rounded.fn == "cast" else None
        if isinstance(value, Read) and args[value.slot].dtype is not node.args[value.slot].dtype:
            return cast(value, e.dtype)
        return None

    def body(b: Expr) -> Expr:
        return rebuild([change(b)], rule)[0]

    return Compute(map_bodies(node.template, body, types_of(args)), args)


def _unrounded(body: Expr) -> Expr:
    """Return a body of 16 bits in the type in which it is computed."""
    kind = body.dtype.arithmetic
    if isinstance(body, Apply) and body.fn == "where":
        return Apply("where", (body.args[0], *map(_unrounded, body.args[1:])), kind)
    is_rounded = isinstance(body, Apply) and body.fn == "cast" and body.args[0].dtype is kind
    return body.args[0] if is_rounded else cast(body, kind)
