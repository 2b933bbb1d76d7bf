"""Parse conditions of `torch.export` on the sizes of a module's inputs into functions of these inputs.

A condition is a text in Python's syntax, such as `(L['x'].size()[0] % 2) == 0`. Only comparisons, logic, arithmetic,
sizes of inputs and the functions that PyTorch's printer writes are parsed; nothing is handed to Python to execute.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import Any

from einsmith.base.errors import TraceError

Condition = Callable[[Any], Any]
"""A function of the inputs, as `describe_input` makes them of a dictionary of inputs by name."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: lambda a, b: a << _small(b),
    ast.RShift: operator.rshift,
    ast.Pow: lambda a, b: a ** _small(b),
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MATH = "acos asin atan ceil cos cosh exp floor isinf isnan log log2 sin sinh sqrt tan tanh trunc inf nan pi e".split()
_FUNCTIONS: dict[str, Any] = {
    "max": max,
    "min": min,
    "abs": abs,
    "int": int,
    "float": float,
    "bool": bool,
    "round": round,
    "len": len,
    "torch.sym_float": float,
    "torch.sym_int": int,
    "torch.sym_max": max,
    "torch.sym_min": min,
    "torch.sym_not": operator.not_,
    "torch._sym_sqrt": math.sqrt,
    **{f"math.{name}": getattr(math, name) for name in _MATH},
}
_MOST = 64
"""Greatest exponent and shift: sizes are below 2^63, and larger powers could take unbounded time."""


class Sized:
    """An input in a condition, of which only the shape is known."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape


def describe_input(x: Any) -> Any:
    """Return an input as conditions read it: in place of tensors, at any depth of lists and dictionaries, `Sized`."""
    if isinstance(x, (tuple, list)):
        return [describe_input(v) for v in x]
    if isinstance(x, Mapping):
        return {k: describe_input(v) for k, v in x.items()}
    return Sized(x.shape) if hasattr(x, "shape") else x


@lru_cache(maxsize=1024)
def parse(text: str) -> Condition:
    """Return a condition as a function. Raises TraceError for a text that is none."""
    try:
        return _parse(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as e:
        raise _refusal(text, e.msg) from None
    except _Unknown as e:
        raise _refusal(text, f"{ast.unparse(e.node)!r} is none of the comparisons and arithmetic of sizes") from None
    except (RecursionError, MemoryError, ValueError) as e:
        raise _refusal(text, f"it cannot be parsed ({e})") from None


def _refusal(text: str, why: str) -> TraceError:
    shown = text if len(text) < 200 else text[:200] + " ..."
    return TraceError(
        f"torch.export gives a condition on sizes that Einsmith cannot read: {shown}: {why}; export for fixed sizes "
        "(dynamic_shapes), or remove the part of the module that makes the condition"
    )


class _Unknown(Exception):
    def __init__(self, node: ast.AST):
        self.node = node


def _small(n: Any) -> Any:
    if abs(n) > _MOST:
        raise OverflowError(f"an exponent of {n}")
    return n


def _parse(node: ast.expr) -> Condition:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return lambda _: value
        case ast.BinOp():
            return _chain(node)
        case ast.UnaryOp(op=op, operand=operand):
            apply, x = _UNARY.get(type(op)), _parse(operand)
            if apply is not None:
                return lambda inputs: apply(x(inputs))
        case ast.BoolOp(op=op, values=values):
            parts, together = [_parse(v) for v in values], all if isinstance(op, ast.And) else any
            return lambda inputs: together(p(inputs) for p in parts)
        case ast.Compare(left=left, ops=ops, comparators=rest):
            return _comparison([left, *rest], ops)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            asked, yes, no = _parse(test), _parse(body), _parse(orelse)
            return lambda inputs: yes(inputs) if asked(inputs) else no(inputs)
        case ast.Attribute(value=ast.Name(id="math")) if callable(_FUNCTIONS.get(ast.unparse(node), len)) is False:
            number = _FUNCTIONS[ast.unparse(node)]
            return lambda _: number
        case ast.Call(keywords=[]):
            return _call(node)
        case ast.Attribute(attr="shape", value=value):
            return _shape(value)
        case ast.Subscript(value=value, slice=index):
            return _item(value, index)
    raise _Unknown(node)


def _chain(node: ast.BinOp) -> Condition:
    """Parse a chain of binary operators, which the syntax tree nests to the left, without recursion over its length."""
    rest: list[tuple[Callable[[Any, Any], Any], Condition]] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp):
        apply = _BINARY.get(type(left.op))
        if apply is None:
            raise _Unknown(left)
        rest.append((apply, _parse(left.right)))
        left = left.left
    first = _parse(left)
    rest.reverse()
    return lambda inputs: reduce(lambda x, term: term[0](x, term[1](inputs)), rest, first(inputs))


def _comparison(nodes: list[ast.expr], ops: list[ast.cmpop]) -> Condition:
    if any(type(op) not in _COMPARED for op in ops):
        raise _Unknown(ast.Compare(nodes[0], ops, nodes[1:]))
    terms, compare = [_parse(n) for n in nodes], [_COMPARED[type(op)] for op in ops]

    def holds(inputs: Any) -> bool:
        values = [term(inputs) for term in terms]
        return all(f(a, b) for f, a, b in zip(compare, values, values[1:], strict=False))

    return holds


def _call(node: ast.Call) -> Condition:
    """Parse calls of known functions, as `max(a, b)`, and an input's `x.size()` and `x.size(0)`."""
    function = _FUNCTIONS.get(ast.unparse(node.func)) if isinstance(node.func, (ast.Name, ast.Attribute)) else None
    if callable(function):
        arguments = [_parse(a) for a in node.args]
        return lambda inputs: function(*(a(inputs) for a in arguments))
    if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and len(node.args) <= 1:
        shape = _shape(node.func.value)
        if not node.args:
            return shape
        axis = _parse(node.args[0])
        return lambda inputs: shape(inputs)[axis(inputs)]
    raise _Unknown(node)


def _shape(node: ast.expr) -> Condition:
    """Return the shape of an expression that is an input or an element of one."""
    if not isinstance(node, ast.Subscript):
        raise _Unknown(node)
    x = _parse(node)
    return lambda inputs: x(inputs).shape


def _item(node: ast.expr, index: ast.expr) -> Condition:
    """Parse `L['x']`, an element of a list or dictionary in it, or an element of a shape."""
    match index:
        case ast.Constant(value=int() | str() as key):
            pass
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as below)):
            key = -below
        case _:
            raise _Unknown(index)
    if isinstance(node, ast.Name) and node.id == "L":
        return lambda inputs: inputs[key]
    if not isinstance(node, (ast.Subscript, ast.Call, ast.Attribute)):
        raise _Unknown(node)
    whole = _parse(node)
    return lambda inputs: whole(inputs)[key]
