"""Name the calls whose arguments PyTorch's kernels check, where neither a formula nor a decomposition does.

PyTorch runs such a call itself, so that it raises the error that eager execution raises. Checks of types, sizes and
numbers leave only calls to PyTorch that fail; where the elements decide, every call of the operator is PyTorch's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

Arguments = Mapping[str, Any]
Rule = Callable[[Arguments], bool]

_SIXTEEN = (torch.float16, torch.bfloat16)


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [x for x in values if isinstance(x, torch.Tensor)]


def _is_integer(x: Any) -> bool:
    """Return whether a tensor or number is an integer or a bool."""
    return not (x.is_floating_point() or x.is_complex()) if isinstance(x, torch.Tensor) else not isinstance(x, float)


def _differ(*names: str) -> Rule:
    """Return a rule against tensors of several types: those of these names, or all of them."""
    return lambda a: len({x.dtype for x in _tensors([a.get(n) for n in names] if names else a.values())}) > 1


def _integers(*names: str) -> Rule:
    """Return a rule against integers in all arguments of these names."""
    return lambda a: all(_is_integer(a[n]) for n in names)


def _outside(name: str) -> Rule:
    """Return a rule against a number that is no probability."""
    return lambda a: isinstance(a[name], (int, float)) and not 0 <= a[name] <= 1


def _either(*rules: Rule) -> Rule:
    return lambda a: any(rule(a) for rule in rules)


def _grows(shape: Callable[[Arguments], tuple]) -> Rule:
    """Return a rule against an added tensor that does not broadcast to a product of a shape."""

    def rule(a: Arguments) -> bool:
        x, wanted = tuple(a["self"].shape), shape(a)
        known = all(type(n) is int for n in (*x, *wanted))
        late = wanted[len(wanted) - len(x) :]
        return len(x) > len(wanted) or (known and any(n not in (1, m) for n, m in zip(x, late, strict=True)))

    return rule


def _mixed_norm(a: Arguments) -> bool:
    """Return whether parameters of a norm have another type than its input: float32 for a 16-bit input is allowed."""
    x, *others = _tensors(a.values())
    allowed = {x.dtype, torch.float32} if x.dtype in _SIXTEEN else {x.dtype}
    return any(y.dtype not in allowed for y in others)


def _divides_by_zero(a: Arguments) -> bool:
    """Return whether integers are divided by a tensor, which may hold zeros, or by zero."""
    if a.get("rounding_mode", "floor") is None or not (_is_integer(a["self"]) and _is_integer(a["other"])):
        return False
    return isinstance(a["other"], torch.Tensor) or (type(a["other"]) is int and a["other"] == 0)


def _overflows(a: Arguments) -> bool:
    """Return whether a number is outside the range of the integers of the result."""
    value, dtype = a["fill_value"], a.get("dtype")
    if dtype is None or dtype.is_floating_point or dtype.is_complex or dtype is torch.bool or type(value) is not int:
        return False
    return not torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max


def _power(a: Arguments) -> bool:
    x, y = a["self"], a["exponent"]
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        return x.dtype is y.dtype is torch.bool
    return type(y) is int and y < 0 and _is_integer(x)


def _is_bool(*names: str) -> Rule:
    """Return a rule against tensors of bools in an argument of these names."""
    return lambda a: any(x.dtype is torch.bool for x in _tensors(a.get(n) for n in names))


def _boolean_alpha(a: Arguments) -> bool:
    alpha, tensors = a.get("alpha"), _tensors(a.values())
    return isinstance(alpha, bool) and any(x.dtype is not torch.bool for x in tensors)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "mv", "dot", "vdot", "bmm", "linear"), _differ()),
    **dict.fromkeys(("grid_sampler_2d", "grid_sampler_3d", "linalg_cross", "heaviside"), _differ()),
    "addmm": _either(_differ(), _grows(lambda a: (a["mat1"].shape[0], a["mat2"].shape[1]))),
    "addmv": _either(_differ(), _grows(lambda a: (a["mat"].shape[0],))),
    "addbmm": _either(_differ(), _grows(lambda a: (a["batch1"].shape[1], a["batch2"].shape[2]))),
    "baddbmm": _either(_differ(), _grows(lambda a: (*a["batch1"].shape[:2], a["batch2"].shape[2]))),
    **dict.fromkeys(("index_add", "index_copy", "put"), _differ("self", "source")),
    **dict.fromkeys(("index_put", "_unsafe_index_put"), _differ("self", "values")),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _differ("self", "weight")),
    **dict.fromkeys(("native_layer_norm", "native_group_norm"), _mixed_norm),
    **dict.fromkeys(("_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training"), _mixed_norm),
    **dict.fromkeys(("_native_batch_norm_legit", "_batch_norm_with_update_functional"), _mixed_norm),
    **dict.fromkeys(("binary_cross_entropy", "multilabel_margin_loss_forward"), lambda a: True),
    "bernoulli": lambda a: "p" not in a or _outside("p")(a),
    "native_dropout": _outside("p"),
    "uniform": lambda a: isinstance(a["from"], (int, float)) and a["from"] > a["to"],
    "celu": _either(_integers("self"), lambda a: a["alpha"] == 0),
    **dict.fromkeys(("hardswish", "hardsigmoid", "hardshrink", "glu", "_prelu_kernel"), _integers("self")),
    **dict.fromkeys(("log_sigmoid", "log_sigmoid_forward"), _integers("self")),
    "hypot": _integers("self", "other"),
    **dict.fromkeys(("lerp", "soft_margin_loss"), _integers("self")),
    "addcdiv": _integers("tensor1", "tensor2"),
    "searchsorted": _is_bool("sorted_sequence"),
    "bucketize": _either(_is_bool("boundaries"), lambda a: a["boundaries"].ndim != 1),
    **dict.fromkeys(("median", "kthvalue", "topk"), _is_bool("self")),
    "bitwise_not": lambda a: not _is_integer(a["self"]),
    **dict.fromkeys(
        ("bitwise_and", "bitwise_or", "bitwise_xor"), lambda a: not all(map(_is_integer, (a["self"], a["other"])))
    ),
    **dict.fromkeys(("remainder", "fmod", "div", "floor_divide"), _divides_by_zero),
    "pow": _power,
    "add": _boolean_alpha,
    "sub": _either(_boolean_alpha, _is_bool("self", "other")),
    **dict.fromkeys(("full", "full_like"), _overflows),
}
"""Name of an operator -> whether PyTorch's kernel is to check a call of it."""


def is_checked(target: torch._ops.OpOverload, args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether PyTorch is to run a call, as it may refuse its arguments (tensors, which may be fake, and
    numbers)."""
    schema = target._schema
    rule = _RULES.get(schema.name.partition("::")[2]) if schema.name.startswith("aten::") else None
    if rule is None:
        return False
    known = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    known |= {a.name: x for a, x in zip(schema.arguments, args, strict=False)} | dict(kwargs)
    return rule(known)


def checking(target: torch._ops.OpOverload, decomposition: Callable) -> Callable:
    """Return a decomposition that returns NotImplemented, which leaves the call whole, for arguments that PyTorch may
    refuse, and where the original decomposition reads elements."""

    @wraps(decomposition)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        if is_checked(target, args, kwargs):
            return NotImplemented
        try:
            return decomposition(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return NotImplemented

    return decompose


_ARITHMETIC = {f"{n}_": n for n in ("add", "sub", "mul", "div", "true_divide", "pow", "fmod", "remainder")}
_OPERATORS = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow, operator.imod)


def is_refused(gm: torch.nn.Module) -> bool:
    """Return whether a graph of Dynamo's holds a call that PyTorch's kernels refuse though its decompositions, applied
    before a backend sees them, do not."""
    nodes = [n for m in gm.modules() if isinstance(m, torch.fx.GraphModule) for n in m.graph.nodes]
    return any(_is_refused(n) for n in nodes if n.op in ("call_function", "call_method"))


def _is_refused(n: torch.fx.Node) -> bool:
    args = [a.meta.get("example_value") if isinstance(a, torch.fx.Node) else a for a in n.args]
    if not args or not isinstance(x := args[0], torch.Tensor):
        return False
    name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
    if name in ("hardshrink", "max_pool1d"):
        return _is_integer(x)
    if name == "interpolate":
        mode = n.kwargs.get("mode", args[3] if len(args) > 3 else "nearest")
        return _is_integer(x) and mode != "area" and (x.dtype is not torch.uint8 or mode in ("linear", "trilinear"))
    if len(args) > 1 and (name in _ARITHMETIC or n.target in _OPERATORS):
        other = args[1] if isinstance(args[1], (torch.Tensor, int, float, bool)) else 0
        divides = name in ("div_", "true_divide_", "itruediv") and not n.kwargs.get("rounding_mode")
        common = torch.result_type(x, 1.0 if divides and _is_integer(other) else other)
        return not torch.can_cast(common, x.dtype)
    return False
