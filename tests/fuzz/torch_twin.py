"""An independent meaning of cases, in PyTorch: a formula is read by Python's own parser and every point of a statement
is computed at once by broadcasting; a function of tensors is called with torch's operators of the same names.

Nothing of Einsmith takes part: neither parser, nor inference of extents, nor gradients.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.fuzz.case import Case


class NoTwin(Exception):
    """PyTorch has no plain way to say this case."""


class Functions:
    """torch.nn.functional, and torch where that has no such name."""

    def sort(self, x: Any, dim: int, descending: bool) -> Any:
        """Return (values, positions); equal elements keep their order, which decides whose derivative is whose."""
        import torch

        return torch.sort(x, dim=dim, descending=descending, stable=True)

    def topk(self, x: Any, k: int, dim: int, largest: bool) -> Any:
        """Return (values, positions) of the first `k` in order; PyTorch's own takes any of those that are equal."""
        return [y.narrow(dim, 0, k) for y in self.sort(x, dim, largest)]

    def __getattr__(self, name: str) -> Any:
        import torch

        found = getattr(torch.nn.functional, name, None) if name not in ("tanh", "sigmoid") else None
        return found or getattr(torch, name)


def run(case: Case, arrays: Sequence[np.ndarray], cotangents: Callable[[Sequence[Any]], Sequence[Any]] | None = None):
    """(results, gradients by the float inputs) in float64, as arrays; no gradients where `cotangents`, which is told
    the results, is None. The gradient is of the sum of results times cotangents; None stands for no cotangent."""
    import torch

    given = []
    for a in arrays:
        x = torch.from_numpy(np.array(a, np.float64 if a.dtype.kind == "f" else a.dtype))
        given.append(x.to(torch.int64) if a.dtype.kind in "iu" else x)
    floats = [x.requires_grad_() for x in given if x.dtype == torch.float64]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # also of what integers and numbers make together
    try:
        if case.is_python:
            outs = case.python()(Functions(), *given)
        else:
            outs = _Formula(case, dict(zip(case.inputs, given, strict=True))).results()
    finally:
        torch.set_default_dtype(before)
    outs = outs if isinstance(outs, tuple) else (outs,)
    values = [o.detach().numpy() for o in outs]
    if cotangents is None:
        return values, None
    total = torch.zeros((), dtype=torch.float64)
    for o, c in zip(outs, cotangents(values), strict=True):
        if c is not None and o.dtype == torch.float64:
            total = total + (o * torch.from_numpy(c)).sum()
    if not total.requires_grad:
        return values, [np.zeros(x.shape) for x in floats]
    found = torch.autograd.grad(total, floats, allow_unused=True)
    return values, [np.zeros(x.shape) if g is None else g.numpy() for x, g in zip(floats, found, strict=True)]


_BINARY: Mapping[type, Callable] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Div: operator.truediv,
}  # fmt: skip
_COMPARE: Mapping[type, Callable] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "argmax", "argmin", "logsumexp")
_CASTS = ("f16", "bf16", "f32", "f64", "u8", "i8", "i16", "i32", "i64", "bool")


_EXTREMES = {"max": ("|=", ast.BitOr, -math.inf), "min": ("&=", ast.BitAnd, math.inf)}
"""Statements that keep the largest or smallest: as what Python's parser knows, and what they start from."""


class _Formula:
    def __init__(self, case: Case, tensors: dict[str, Any]):
        self.case, self.known = case, tensors
        self.axes = case.axes
        self.scope: dict[str, int] = {}  # axis -> place in the broadcast shape
        text = case.text.replace("[]", "[()]").replace("return ", "__out = ")
        for combiner, (sign, _, _) in _EXTREMES.items():
            text = text.replace(f"] {combiner}= ", f"] {sign} ")
        self.tree = ast.parse(text)

    def results(self) -> tuple:
        import torch

        left: dict[str, list] = {}
        read: set[str] = set()
        out: list[str] | None = None
        order: list[str] = []
        for s in self.tree.body:
            target = s.targets[0] if isinstance(s, ast.Assign) else getattr(s, "target", None)
            if isinstance(target, ast.Name) and isinstance(s, ast.Assign):
                names = s.value.elts if isinstance(s.value, ast.Tuple) else [s.value]
                out = [n.id for n in names]  # type: ignore[attr-defined]
                continue
            assert isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
            if target.value.id not in left:
                order.append(target.value.id)
            left.setdefault(target.value.id, []).append((target, s))
            read |= {n.id for n in ast.walk(s.value) if isinstance(n, ast.Name)}  # type: ignore[attr-defined]
        for name in order:
            for _, s in left[name]:
                if any(isinstance(n, ast.Name) and n.id not in self.known and n.id in left for n in ast.walk(s.value)):
                    raise NoTwin("a recurrence, or statements out of order")
            self.known[name] = self.tensor(name, left[name])
        out = out or [n for n in order if n not in read]
        return tuple(self.known[n] if torch.is_tensor(self.known[n]) else torch.tensor(self.known[n]) for n in out)

    def tensor(self, name: str, parts: list) -> Any:
        import torch

        whole = None
        added = [p for p in parts if isinstance(p[1], ast.AugAssign)]
        made = []
        for target, s in parts:
            index = _items(target.slice)
            names = [n.id for i in index for n in ast.walk(i) if isinstance(n, ast.Name) and n.id in self.axes]
            axes = list(dict.fromkeys(names))
            if isinstance(s, ast.AugAssign):
                inside = [n.id for n in ast.walk(s.value) if isinstance(n, ast.Name) and n.id in self.axes]
                hidden = {a for n in ast.walk(s.value) if _is_reduction(n) for a in _axes_of(n)}
                axes = list(dict.fromkeys([*axes, *(a for a in inside if a not in hidden)]))
            self.scope = {a: k for k, a in enumerate(axes)}
            value = self.full(self.value(s.value), axes)
            at = [self.full(self.value(i), axes) for i in index]
            made.append((at, value, type(s.op) if isinstance(s, ast.AugAssign) else None))
            if not added and len(parts) == 1 and all(isinstance(i, ast.Name) for i in index):
                return value
        dtype = torch.float64 if any(v.dtype == torch.float64 for _, v, _ in made) else made[0][1].dtype
        rank = len(made[0][0])
        shape = [max(int(at[d].max()) + 1 for at, _, _ in made) for d in range(rank)]
        for d in range(rank):
            shape[d] = self.case.extents.get(f"{name}.shape[{d}]", shape[d])
        extremes = {op: (f"a{name}", start) for name, (_, op, start) in _EXTREMES.items()}
        start = extremes[made[0][2]][1] if made[0][2] in extremes else 0
        if start and not dtype.is_floating_point:
            start = torch.iinfo(dtype).min if start < 0 else torch.iinfo(dtype).max
        whole = torch.full(shape, start, dtype=dtype)
        for at, value, how in made:
            places, put = tuple(i.reshape(-1) for i in at), value.to(dtype).reshape(-1)
            if how in extremes:
                flat = torch.arange(whole.numel()).reshape(whole.shape)[places]
                whole = whole.reshape(-1).scatter_reduce(0, flat, put, extremes[how][0]).reshape(whole.shape)
                if whole.isnan().any():
                    raise NoTwin("PyTorch divides the derivative by how many elements equal NaN, which are none")
            else:
                whole = whole.index_put(places, put, accumulate=how is not None)
        return whole

    def full(self, x: Any, axes: Sequence[str]) -> Any:
        """A value at every point of the axes, which are all that are in scope."""
        import torch

        shape = [self.axes[a] for a in axes]
        if not torch.is_tensor(x):
            x = torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None)
        return x.broadcast_to(shape) if x.ndim == len(shape) else x.reshape([1] * len(shape)).broadcast_to(shape)

    # -- expressions: tensors whose dimension k is the axis at place k of the scope, or Python numbers

    def value(self, e: ast.AST) -> Any:
        import torch

        if isinstance(e, ast.Constant):
            return e.value
        if isinstance(e, ast.Name):
            if e.id in self.scope:
                shape = [1] * len(self.scope)
                shape[self.scope[e.id]] = -1
                return torch.arange(self.axes[e.id]).reshape(shape)
            if e.id == "inf":
                raise NoTwin("derivatives where there are no numbers depend on their form")
            return self.case.parameters[e.id]
        if isinstance(e, ast.UnaryOp):
            x = self.value(e.operand)
            if isinstance(e.op, ast.Not):
                return torch.logical_not(x) if torch.is_tensor(x) else not x
            return -x
        if isinstance(e, ast.BinOp):
            a, b = self.value(e.left), self.value(e.right)
            if isinstance(e.op, ast.FloorDiv):
                return _divided(a, b)
            if isinstance(e.op, ast.Div):  # of integers PyTorch makes float32
                a, b = (x.to(torch.float64) if torch.is_tensor(x) else float(x) for x in (a, b))
            if isinstance(e.op, ast.Mod) and (_is_float(a) or _is_float(b)):
                return a - b * _divided(a, b).detach()
            return _BINARY[type(e.op)](a, b)
        if isinstance(e, ast.BoolOp):
            found = self.value(e.values[0])
            for x in e.values[1:]:
                found = (operator.and_ if isinstance(e.op, ast.And) else operator.or_)(found, self.value(x))
            return found
        if isinstance(e, ast.Compare):
            return self.compared(e)
        if isinstance(e, ast.Subscript):
            return self.element(e)
        if isinstance(e, ast.Call):
            return self.reduced(e) if _is_reduction(e) else self.called(e)
        raise NoTwin(ast.dump(e))

    def compared(self, e: ast.Compare) -> Any:
        found, left = None, self.value(e.left)
        for op, right in zip(e.ops, e.comparators, strict=True):
            value = self.value(right)
            one = _COMPARE[type(op)](left, value)
            found, left = one if found is None else found & one, value
        return found

    def element(self, e: ast.Subscript) -> Any:
        import torch

        if isinstance(e.value, ast.Attribute):
            return self.known[e.value.value.id].shape[self.value(e.slice)]  # type: ignore[attr-defined]
        tensor = self.known[e.value.id]  # type: ignore[attr-defined]
        at = []
        for i, n in zip(_items(e.slice), tensor.shape, strict=True):
            x = self.value(i)
            x = x if torch.is_tensor(x) else torch.tensor(x)
            at.append(x.clamp(0, max(n - 1, 0)).to(torch.int64))  # outside only where the value is not used
        return tensor[tuple(at)] if at else tensor.reshape([1] * len(self.scope))

    def reduced(self, e: ast.Call) -> Any:
        import torch

        name, axes = e.func.value.id, _axes_of(e)  # type: ignore[attr-defined]
        before = dict(self.scope)
        inner = [a for a in axes if a not in before]
        if len(inner) != len(axes):
            raise NoTwin("an axis twice")
        self.scope = before | {a: len(before) + k for k, a in enumerate(axes)}
        x = self.value(e.args[0])
        shape = [1] * len(before) + [self.axes[a] for a in axes]
        if not torch.is_tensor(x):
            x = torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else torch.int64)
        x = x.reshape([1] * len(self.scope)) if x.ndim == 0 else x
        x = x.broadcast_to([max(a, b) for a, b in zip(x.shape, shape, strict=True)]).flatten(len(before))
        self.scope = before
        if name in ("sum", "prod"):
            return getattr(x, name)(-1)
        if name == "mean":
            return x.to(torch.float64).mean(-1)
        if name == "logsumexp":
            return x.to(torch.float64).logsumexp(-1)
        found = getattr(x, name.removeprefix("arg"))(-1)
        return found.indices if name.startswith("arg") else found.values

    def called(self, e: ast.Call) -> Any:
        import torch

        name = e.func.id  # type: ignore[attr-defined]
        if name == "size":
            return self.axes[e.args[0].id]  # type: ignore[attr-defined]
        args = [self.value(a) for a in e.args]
        if not any(torch.is_tensor(a) for a in args):
            args[0] = torch.tensor(args[0])
        if name in ("min", "max", "where", "pow"):
            numbers = args[name == "where" :]
            dtype = torch.float64 if any(map(_is_float, numbers)) else torch.int64
            values = [a.to(dtype) if torch.is_tensor(a) else torch.tensor(a, dtype=dtype) for a in numbers]
            if name == "where":
                return torch.where(args[0] if torch.is_tensor(args[0]) else torch.tensor(args[0]), *values)
            return {"min": torch.minimum, "max": torch.maximum, "pow": torch.pow}[name](*values)
        (x,) = args
        if name in _CASTS:
            if name.startswith(("f", "bf")):
                return x.to(torch.float64)
            return x != 0 if name == "bool" else x.to(torch.int64)
        if name == "stop_gradient":
            return x.detach()
        if name in ("abs", "sign", "relu"):
            return getattr(torch, name)(x)
        return getattr(torch, name)(x.to(torch.float64))


def _is_float(x: Any) -> bool:
    import torch

    return x.dtype == torch.float64 if torch.is_tensor(x) else isinstance(x, float)


def _divided(a: Any, b: Any) -> Any:
    import torch

    if torch.is_tensor(a) or torch.is_tensor(b):
        return torch.div(a, b, rounding_mode="floor")
    return a // b


def _items(s: ast.AST) -> list:
    return list(s.elts) if isinstance(s, ast.Tuple) else [s]


def _is_reduction(n: ast.AST) -> bool:
    return (
        isinstance(n, ast.Call) and isinstance(n.func, ast.Subscript) and isinstance(n.func.value, ast.Name)
        and n.func.value.id in _REDUCTIONS
    )  # fmt: skip


def _axes_of(n: Any) -> list[str]:
    return [x.id for x in _items(n.func.slice)]
