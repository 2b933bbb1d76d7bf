"""Define the table of operators. A row says an operator once: its formula, its settings, and its names elsewhere.

`einsmith.functional`, the layers of `einsmith.nn` that have no parameters, the operators of ATen and ONNX that are the
same functions, and the documents' tables are made from these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from types import ModuleType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from einsmith.base import dtypes as dt
from einsmith.base import locks
from einsmith.base.locks import cached_property
from einsmith.ops.call import accept_arrays
from einsmith.ops.common import in_double, pointwise, tensor
from einsmith.ops.intermediates import keep_wide
from einsmith.tracing.builder import Value

F = TypeVar("F", bound=Callable[..., Any])

Tensor = Annotated[Any, "tensor"]
"""An operand that the operator's function gets as a traced tensor."""
Floats = Annotated[Any, "floats"]
"""A `Tensor` of floats; integers and truth values raise DtypeError."""
AsFloats = Annotated[Any, "as floats"]
"""A `Tensor` whose integers and truth values become float32, as in PyTorch."""


@dataclass(frozen=True)
class OperatorRow:
    """A row of the table.

    Attributes:
        name: name in `einsmith.functional`, which is PyTorch's where PyTorch has the operator.
        call: the function, which takes arrays and traced tensors.
        family: what operators of one kind have in common: the name without its number of dimensions, or the module.
        layer: name of the layer in `einsmith.nn`, "" if there is none.
        aten: names of ATen's overloads with the same arguments, as in "softplus.default", separated by blanks. One
            followed by a colon and a setting's name does what the operator does where that setting is true. The last of
            several results are places, which ATen gives as int64.
        converts: whether ATen converts the operands to their common type, which is then the results'.
        onnx: name of ONNX's operator, "" if it has none of the same meaning.
        attributes: settings -> names of ONNX's attributes, where these differ from the settings' names.
        options: further arguments of the layer's class: see `einsmith.nn.operator_layer.OperatorLayer`.
    """

    name: str
    call: Callable[..., Any]
    family: str
    layer: str = ""
    aten: str = ""
    converts: bool = True
    onnx: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Return the names of the tensors that every call gives, in order."""
        hints = get_type_hints(self.call, include_extras=True)
        required = [n for n, p in signature(self.call).parameters.items() if p.default is p.empty]
        return tuple(n for n in required if hints.get(n) is Any or _kind(hints.get(n)))

    @cached_property
    def settings(self) -> dict[str, Parameter]:
        """Return the other parameters by name."""
        return {n: p for n, p in signature(self.call).parameters.items() if n not in self.operands}

    @property
    def formula(self) -> str:
        """Return the result in a line: the docstring's first sentence without the verb."""
        text = " ".join((self.call.__doc__ or "").partition("\n\n")[0].split())
        text = text.partition(". ")[0].removesuffix(".").removeprefix("Return ")
        return text.removesuffix(", elementwise")


MODULES = """
    activation elementwise tensor product statistics arrangement creation conv padding softmaxes normalization distance
    random group resize window sampling fractional special inverse bessel attention multihead losses.regression
    losses.margin losses.classes indexing embeddings pooling ordering counting losses.ctc linear_recurrence
""".split()
"""The modules of operators, in the order of import: first what most programs use, last what parses formulas."""

ROWS: dict[str, OperatorRow] = {}
"""The operators of the modules that are imported (`table.OPERATORS`: of all)."""
_OTHERS = {"__getitem__": ("indexing", "select_by_keys"), "_windows": ("arrangement", "windows")}
"""Further methods of traced tensors: (module, function)."""


def find(name: str) -> Callable[..., Any]:
    """Return an operator, or another method of traced tensors. Modules are imported, in order, until one has it.

    It holds a lock, so modules must not call it while they are imported (`base.late.names_of`): they import an
    operator from the module that defines it. Raises AttributeError if none has the operator.
    """
    if name in _OTHERS:
        module, function = _OTHERS[name]
        return getattr(_import(module), function)
    for module in MODULES:
        if name in ROWS:
            break
        _import(module)
    if name not in ROWS:
        raise AttributeError(f"module 'einsmith.ops' has no attribute {name!r}", name=name)
    return ROWS[name].call


def all_operators() -> Mapping[str, OperatorRow]:
    """Return all operators by name, after the modules of all of them are imported."""
    return _import("table").OPERATORS


def _import(module: str) -> ModuleType:
    with locks.IMPORTING:
        return import_module(f"{__package__}.{module}")


def _kind(hint: Any) -> str:
    """Return the kind of an operand's annotation, "" for others."""
    return str(hint.__metadata__[0]) if get_origin(hint) is Annotated and get_args(hint)[0] is Any else ""


def operator(
    layer: str = "",
    aten: str = "",
    converts: bool = True,
    onnx: str = "",
    attributes: Mapping[str, str] | None = None,
    also: str = "",
    family: str = "",
    **options: Any,
) -> Callable[[F], F]:
    """Return a decorator that adds a function to the table and makes it callable on arrays; see `OperatorRow`.

    The function's operands that are annotated `Tensor`, `Floats` or `AsFloats` are traced tensors, which are checked.
    also: another name of the function.
    """

    def enter(function: F) -> F:
        call = accept_arrays(_convert_operands(function))
        for name in (function.__name__, *also.split()):
            assert name not in ROWS, name
            names = (layer, aten, converts, onnx, attributes or {}, options) if name == function.__name__ else ()
            ROWS[name] = OperatorRow(name, call, family or _module(function), *names)
        return call

    return enter


def _module(function: Callable[..., Any]) -> str:
    """Return the package or module of `ops` in which an operator stands."""
    return function.__module__.split(".")[2]


def _convert_operands(function: F) -> F:
    """Make a function of traced tensors check and convert the operands that its annotations say are tensors."""
    name = function.__name__
    kinds: dict[str, str] = {}
    order: list[str] = []

    def convert(n: str, x: Any) -> Any:
        kind = kinds.get(n)
        if kind is None:
            return x
        value = tensor(x, name, n, kind="float" if kind == "floats" else None)
        return value.astype(dt.f32) if kind == "as floats" and not value.dtype.is_float else value

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not order:  # at the first call: annotations may name classes that are defined further down
            hints = get_type_hints(function, include_extras=True)
            kinds.update({n: kind for n, hint in hints.items() if (kind := _kind(hint))})
            order.extend(signature(function).parameters)
        placed = [convert(n, x) for n, x in zip(order, args, strict=False)]
        placed += args[len(placed) :]
        named = {n: convert(n, x) for n, x in kwargs.items()}
        return keep_wide((placed, named), function(*placed, **named))

    return call  # type: ignore[return-value]


def pointwise_operator(
    name: str,
    meaning: str,
    formula: Callable[[Any], Any],
    onnx: str = "",
    of: str = "AsFloats",
    aten: str = "",
    family: str = "elementwise",
    double: bool = False,
) -> Callable[..., Value]:
    """Add an operator of one tensor to the table, and return it.

    Args:
        name: the operator's name
        meaning: the result as a formula of x, for documents
        formula: function of an element
        onnx: ONNX's name
        of: annotation of the tensor: "Tensor", "Floats" or "AsFloats"
        aten: ATen's names, where its name is not the operator's
        family: family of operators, as in `OperatorRow`
        double: whether float64 is computed with, whatever the operand's type, since digits cancel on the way; "special"
            ones always are
    """

    def call(input: Any) -> Value:
        return pointwise(input, in_double(formula, input.dtype) if double or family == "special" else formula)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Return {meaning}, elementwise."
    call.__annotations__ = {"input": of, "return": "Value"}
    return operator(aten=aten or f"{name}.default", onnx=onnx, family=family)(call)
