"""Build the formula tree that the language and the Python builder share, by its typing rules.

A formula is a tree of forms: Literal, Index (an axis), Load (an element of a tensor), FormulaOp (a scalar function),
Convert (a cast) and FormulaFold (a reduction, at any depth). The functions of this module build forms: they infer
types, fold literals and reject invalid operands, so that both front ends give equal trees. `tracing.lower` lowers a
formula to templates.

The type `ty` of a form is a DType or weak (`WeakForm`). A weak value takes the float type of the operands that it is
combined with, else that of the formula's tensors, else float32. A result that is computed only from numbers that a call
passed and from literals is int64 or float64, as in NumPy (`tracing.result_types`). `tracing.integers` determines the
widths of integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType, promote
from einsmith.base.errors import DtypeError, FormulaError, ShapeError
from einsmith.base.symbolic import to_whole
from einsmith.ir.analysis import ranges
from einsmith.ir.analysis.ranges import Range
from einsmith.ir.functions import FUNCTIONS, comparison, floats, logic, numbers
from einsmith.ir.nodes import Tensor
from einsmith.tracing.integers import function_interval, reduction_interval


class WeakForm(Enum):
    """A weak type: a form of a weak type takes the type of the forms that it is combined with.

    The values are the names of the types in messages.
    """

    INT = "an integer literal"  # also a run-time integer, and arithmetic on both
    SCALAR = "a number"  # from literals and run-time numbers alone; computed in float64
    FLOAT = "a float"  # not a number but without a float type of its own, such as the quotient of two axes


Ty = DType | WeakForm
"""The type of a form."""


class AxisVar:
    """An iteration variable: its name in messages, and its extent. Variables are compared by identity."""

    __slots__ = ("name", "extent")

    def __init__(self, name: str, extent: int):
        if extent < 0:
            raise FormulaError(f"axis {name} has the negative extent {extent}")
        self.name, self.extent = name, extent

    def __copy__(self) -> AxisVar:
        return self  # a copy would be another variable

    def __deepcopy__(self, memo: dict) -> AxisVar:
        return self

    def __repr__(self) -> str:
        return f"{self.name}<{self.extent}"


class Form:
    """A node of a formula, the base of all kinds.

    Attributes:
        ty: its type.
        args: the nodes that it is computed from.
        free: the axes that it depends on, without those that a reduction in it binds.
        folds: whether it contains a FormulaFold.
        loads: whether it contains a Load.
        at: (text of the formula, offset of the node in it) for messages; None where unknown.
        wraps: whether it is integer arithmetic on elements of tensors whose exact result may exceed `ty`.
    """

    __slots__ = ("ty", "free", "folds", "loads", "at", "args")
    wraps = False
    ty: Ty
    free: frozenset[AxisVar]
    folds: bool
    loads: bool
    at: tuple[str, int] | None
    args: tuple[Form, ...]

    def __init__(self, ty: Ty, args: Sequence[Form] = (), at: tuple[str, int] | None = None):
        self.ty, self.args, self.at = ty, tuple(args), at
        self.free = frozenset().union(*(a.free for a in self.args)) if self.args else frozenset()
        self.folds = any(a.folds for a in self.args)
        self.loads = any(a.loads for a in self.args)

    @property
    def reach(self) -> Range:
        """Return an interval (lowest, highest) that contains all values of this integer form: by default, its type's.

        Weak integers are in the interval of int64.
        """
        return (self.ty if isinstance(self.ty, DType) else dt.i64).range


def _describe_integer(value: int) -> str:
    """Return an integer for a message: its digits, or its number of bits where it has more than 20 digits."""
    return str(value) if abs(value) < 10**20 else f"of {value.bit_length()} bits"


class Literal(Form):
    """A number known at compile time.

    `passed` tells whether it was passed by a call, or computed from such a number, rather than written in the formula.
    """

    __slots__ = ("passed", "value")
    value: bool | int | float

    def __init__(self, value: bool | int | float, passed: bool = False):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise FormulaError(
                f"the integer {_describe_integer(value)} does not fit 64 bits", hint="write a float, as in 1e20"
            )
        ty: Ty = dt.bool_ if isinstance(value, bool) else WeakForm.INT if isinstance(value, int) else WeakForm.SCALAR
        super().__init__(ty)
        self.value, self.passed = value, passed

    @property
    def reach(self) -> Range:
        return to_whole(self.value), to_whole(self.value)


class Index(Form):
    """An axis used as a value: the position along it, from 0."""

    __slots__ = ("axis",)

    def __init__(self, axis: AxisVar):
        super().__init__(dt.i64 if axis.extent > 2**31 else dt.i32)
        self.axis = axis
        self.free = frozenset((axis,))

    @property
    def reach(self) -> Range:
        return 0, max(0, self.axis.extent - 1)


class Load(Form):
    """The element of a tensor at the index `args`.

    Attributes:
        tensor: the tensor, a node of the IR.
        weak: whether the tensor is a run-time number: 0-d, float64 or int64, with a weak type in formulas.
        wide: whether the tensor is a run-time integer that may exceed int32.
        name: name of the tensor in messages.
        computed: whether an index depends on elements of float tensors. No check at run time covers such an index, so
            its range must be proven.
    """

    __slots__ = ("tensor", "weak", "wide", "name", "computed")

    def __init__(
        self,
        tensor: Tensor,
        index: Sequence[Form],
        weak: bool,
        name: str,
        at: tuple[str, int] | None,
        wide: bool = False,
    ):
        number = WeakForm.INT if tensor.dtype.is_int else WeakForm.SCALAR
        super().__init__(number if weak else tensor.dtype, index, at)
        self.tensor, self.weak, self.wide, self.name = tensor, weak, wide, name
        self.computed = any(i.loads and _reads_floats(i) for i in index)
        self.loads = True

    @property
    def reach(self) -> Range:
        return dt.i32.range if self.weak and not self.wide else super().reach


def _reads_floats(index: Form) -> bool:
    """Return whether an index depends on elements of float tensors, reductions of them excepted."""
    stack = [index]
    while stack:
        node = stack.pop()
        if isinstance(node, Load) and isinstance(node.ty, DType) and node.ty.is_float:
            return True
        if not isinstance(node, FormulaFold):
            stack.extend(node.args)
    return False


class FormulaOp(Form):
    """The scalar function `fn` of the forms `args`.

    The type of integer arithmetic follows `tracing.integers.function_interval`. On axes and literals it is int64 where
    the given `ty` is too narrow; on elements of tensors it is `ty`, and `wraps` tells whether the exact result may
    exceed it.
    """

    __slots__ = ("_reach", "fn", "wraps")

    def __init__(self, fn: str, args: Sequence[Form], ty: Ty):
        super().__init__(ty, args)
        self.fn, self.wraps = fn, False
        self._reach: Range | None = None
        if is_integer(ty) and fn != "random_bits":
            self.ty, self.wraps, self._reach = function_interval(self)

    @property
    def reach(self) -> Range:
        return super().reach if self._reach is None else self._reach


def widen_index(index: Form) -> Form:
    """Return an integer form with its arithmetic widened to int64 if arithmetic in it might wrap, else the form."""
    if not index.loads or not any(n.wraps for n in _find_integers(index)):
        return index
    widened: dict[Form, Form] = {}
    for n in reversed(_find_integers(index)):
        if isinstance(n, FormulaOp):
            widened[n] = op(n.fn, *(widened.get(a, a) for a in n.args))
        elif isinstance(n.ty, DType) and not isinstance(n, Index):
            widened[n] = convert(n, dt.i64)
    return widened[index]


def _find_integers(root: Form) -> list[Form]:
    """Return `root` and the integer forms that scalar functions compute it from, users ahead of their operands."""
    order = postorder(root)
    reached = {root}
    for n in reversed(order):
        if n in reached and isinstance(n, FormulaOp):
            reached.update(a for a in n.args if is_integer(a.ty))
    return [n for n in reversed(order) if n in reached]


class Convert(Form):
    """A cast of `args[0]` to the element type `ty`."""

    __slots__ = ()

    def __init__(self, x: Form, ty: DType):
        super().__init__(ty, (x,))

    @property
    def reach(self) -> Range:
        (x,) = self.args
        keeps_values = is_integer(x.ty) and not ranges.leaves(x.reach, self.ty)  # type: ignore[arg-type]
        return x.reach if keeps_values else super().reach


class FormulaFold(Form):
    """A reduction: `combiner` (sum, prod, max, min, argmax or argmin) of `args[0]` over `axes`."""

    __slots__ = ("combiner", "axes")

    def __init__(self, combiner: str, axes: Sequence[AxisVar], body: Form, ty: Ty, at: tuple[str, int] | None):
        super().__init__(ty, (body,), at)
        self.combiner, self.axes = combiner, tuple(axes)
        self.free = self.free - frozenset(axes)
        self.folds = True

    @property
    def reach(self) -> Range:
        return reduction_interval(self, super().reach)


# ----------------------------------------------------------------------------------------------------------- typing


def join(types: Iterable[Ty]) -> Ty:
    """Return the common type of operands: the first of these kinds that occurs among them.

    1. Float types: the one that holds all of them (`promote`).
    2. WeakForm.FLOAT, also for a WeakForm.SCALAR together with an integer type or bool.
    3. WeakForm.SCALAR.
    4. Integer types: the one that holds all of them.
    5. WeakForm.INT.
    6. bool, also for no operands.
    """
    types = list(types)
    strong = [t for t in types if isinstance(t, DType)]
    floats = [t for t in strong if t.is_float]
    if floats:
        out = floats[0]
        for t in floats[1:]:
            out = promote(out, t)
        return out
    if WeakForm.FLOAT in types or (WeakForm.SCALAR in types and strong):
        return WeakForm.FLOAT
    if WeakForm.SCALAR in types:
        return WeakForm.SCALAR
    ints = [t for t in strong if t.is_int]
    if ints:
        out = ints[0]
        for t in ints[1:]:
            out = promote(out, t)
        return out
    return WeakForm.INT if WeakForm.INT in types else dt.bool_


def is_integer(ty: Ty) -> bool:
    """Return whether a type is an integer type or WeakForm.INT."""
    return ty is WeakForm.INT or (isinstance(ty, DType) and ty.is_int)


def is_bool(ty: Ty) -> bool:
    """Return whether a type is bool, the type of conditions."""
    return isinstance(ty, DType) and ty.is_bool


def type_name(ty: Ty) -> str:
    """Return the name of a type in messages."""
    return ty.name if isinstance(ty, DType) else ty.value


def identity(combiner: str, ty: Ty) -> bool | int | float:
    """Return the identity element of a combiner: combined with it, every value of the type is unchanged.

    For max and min, weak types count as floats: their identity elements are infinite.
    """
    if combiner in ("sum", "prod"):
        return 0 if combiner == "sum" else 1
    least = combiner in ("max", "argmax")
    if isinstance(ty, DType) and ty.is_bool:
        return not least
    if isinstance(ty, DType) and ty.is_int:
        info = np.iinfo(ty.numpy)
        return int(info.min if least else info.max)
    return -math.inf if least else math.inf


# ----------------------------------------------------------------------------------------------------- construction


def literal(value: Any) -> Literal:
    """Return the literal of a Python or NumPy scalar; raise FormulaError for another object."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise FormulaError(f"{value!r} is not a number")
    return Literal(value)


def load(
    tensor: Tensor, index: Sequence[Form], weak: bool = False, name: str = "the tensor", at=None, wide: bool = False
) -> Load:
    """Return the form of an element of a tensor.

    Args:
        tensor: the tensor, a node of the IR.
        index: one integer form for each dimension.
        weak: see `Load`.
        name: name of the tensor in messages.
        at: (text of the formula, offset in it) for messages.
        wide: see `Load`.

    Raises:
        ShapeError: the number of indices is not the number of dimensions.
        FormulaError: an index is not an integer.
    """
    if len(index) != len(tensor.shape):
        raise ShapeError(
            f"{name} has {len(tensor.shape)} dimensions, shape {tuple(tensor.shape)}, but is read with {len(index)} "
            f"{'index' if len(index) == 1 else 'indices'}"
        )
    for d, i in enumerate(index):
        if not is_integer(i.ty):
            raise FormulaError(
                f"index {d} of {name} is {type_name(i.ty)}, not an integer", hint="use // or i32(...) for an integer"
            )
    return Load(tensor, [widen_index(i) for i in index], weak, name, at, wide)


def _fold_literals(fn: str, values: list) -> Literal | None:
    """Return the literal `fn(*values)`: exact for integers, else in float64; None for a function that is not folded."""
    if fn in ("stop_gradient", "cast", "where"):
        return None
    if fn in ("floordiv", "mod") and values[1] == 0 and all(isinstance(v, int) for v in values):
        raise FormulaError("integer division by zero")
    spec = FUNCTIONS[fn]
    if spec.rule not in (comparison, logic) and all(isinstance(v, int) for v in values):
        of_integers: dict[str, Callable[..., int]] = {
            "add": lambda a, b: a + b,
            "sub": lambda a, b: a - b,
            "mul": lambda a, b: a * b,
            "floordiv": lambda a, b: a // b,
            "mod": lambda a, b: a % b,
            "neg": lambda a: -a,
            "min": min,
            "max": max,
            "abs": abs,
            "sign": lambda a: (a > 0) - (a < 0),
        }
        if fn in of_integers:
            return Literal(of_integers[fn](*values))
    with np.errstate(all="ignore"):
        result = spec.numpy(*(np.float64(v) if isinstance(v, float) else v for v in values))
    return Literal(result.item() if isinstance(result, (np.generic, np.ndarray)) else result)


def op(fn: str, *args: Form) -> Form:
    """Return the form `fn(*args)` with its type inferred, or a literal if all arguments are literals.

    Raises:
        FormulaError: there is no such function, an argument must be a condition and is none, or an integer is divided
            by the literal 0.
        DtypeError: a bool is an operand of arithmetic, or an argument of random_bits is not an integer.
    """
    types = [a.ty for a in args]
    if fn == "where":
        return _where(*args)
    if fn == "pow":
        return _pow(*args)
    if fn == "relu":
        return _relu(*args)
    if fn == "random_bits":
        if not all(is_integer(t) for t in types):
            raise DtypeError("random_bits takes integers: a key and a counter of two words each")
        return FormulaOp(fn, tuple(convert(a, dt.i32) for a in args), dt.i32)
    # A form that reads no tensor has no derivative, so stop_gradient and differentiate_as have no effect on it.
    if fn == "stop_gradient":
        return args[0] if not args[0].loads else FormulaOp(fn, args, types[0])
    if fn == "differentiate_as":
        return FormulaOp(fn, args, join(types)) if any(a.loads for a in args) else args[0]
    spec = FUNCTIONS.get(fn)
    rule = None if spec is None else spec.rule
    if rule is logic:
        for t in types:
            if not is_bool(t):
                word = fn if fn == "not" else f"`{fn}`"
                raise FormulaError(f"{word} needs conditions, not {type_name(t)}", hint="compare it, as in x != 0")
        ty: Ty = dt.bool_
    elif rule is comparison:
        ty = dt.bool_
    elif rule in (numbers, floats):
        ty = join(types)
        if is_bool(ty):
            raise DtypeError("a bool is not a number here; use where(c, 1, 0)")
        if fn in ("floor", "round") and is_integer(ty):
            return args[0]
        if rule is floats:  # integers become weak floats
            if ty is WeakForm.INT and all(isinstance(a, Literal) for a in args):
                ty = WeakForm.SCALAR
            elif is_integer(ty):
                ty = WeakForm.FLOAT
    else:
        raise FormulaError(f"there is no function {fn}")
    if fn in ("floordiv", "mod") and is_integer(ty) and isinstance(args[1], Literal) and args[1].value == 0:
        raise FormulaError("integer division by zero")
    if all(isinstance(a, Literal) for a in args):
        result = _fold_literals(fn, [a.value for a in args])  # type: ignore[attr-defined]
        if result is not None:
            result.passed = any(a.passed for a in args)  # type: ignore[attr-defined]
            return result
    return FormulaOp(fn, args, ty)


def _where(c: Form, a: Form, b: Form) -> Form:
    """Return `where(c, a, b)`; for a literal condition, the side that it chooses."""
    if not is_bool(c.ty):
        raise FormulaError(f"where needs a condition first, not {type_name(c.ty)}", hint="compare it, as in x != 0")
    ty = join((a.ty, b.ty))
    if ty is WeakForm.SCALAR and c.free:  # a choice that varies along axes is not one number
        ty = WeakForm.FLOAT
    if isinstance(c, Literal):
        chosen = a if c.value else b
        return Convert(chosen, ty) if isinstance(ty, DType) and chosen.ty is not ty else chosen
    return FormulaOp("where", (c, a, b), ty)


def _relu(x: Form) -> Form:
    """Return the form of relu: 0 where x <= 0, else x. Its derivative at 0 is 0; that of max(x, 0) would be 1/2.

    On floats, relu stays one operation until the formula is lowered. In `where(x <= 0, 0, x)`, a reduction in x would
    stand under a guard that contains the same reduction.
    """
    if is_bool(x.ty):
        raise DtypeError("a bool is not a number here; use where(c, 1, 0)")
    if is_integer(x.ty) or isinstance(x, Literal):
        return op("max", x, Literal(0))
    return FormulaOp("relu", (x,), x.ty)


def _pow(x: Form, y: Form) -> Form:
    """Return the form of x**y. A power with a literal integer exponent from -16 to 16 becomes products.

    Products are cheap, exact for integers, and correct for negative bases.
    """
    if isinstance(y, Literal) and not isinstance(y.value, bool) and float(y.value).is_integer() and abs(y.value) <= 16:
        n = int(y.value)
        if n >= 0 and not is_bool(x.ty):
            if n == 0:
                return Convert(Literal(1), x.ty) if isinstance(x.ty, DType) else Literal(1)
            out: Form | None = None
            square = x
            while n:
                if n & 1:
                    out = square if out is None else op("mul", out, square)
                n >>= 1
                square = op("mul", square, square) if n else square
            assert out is not None
            return out
        if n < 0 and isinstance(x, Literal):
            return op("div", Literal(1), _pow(x, Literal(-n)))
        if n < 0:  # (1/x)**-n, because derivatives of 1/x**-n are 0*inf or inf*0 where x is 0 or infinite
            return _pow(op("div", Literal(1), x), Literal(-n))
    if isinstance(y, Literal) and y.value == 0.5:
        return op("sqrt", x)
    ty = join((x.ty, y.ty))
    if is_bool(ty):
        raise DtypeError("a bool is not a number here; use where(c, 1, 0)")
    if isinstance(x, Literal) and isinstance(y, Literal):
        result = _fold_literals("pow", [float(x.value), float(y.value)])
        assert result is not None
        result.passed = x.passed or y.passed
        return result
    return FormulaOp("pow", (x, y), WeakForm.FLOAT if is_integer(ty) else ty)


def convert(x: Form, dtype: DType) -> Form:
    """Convert `x` to the element type `dtype`, which is not weak.

    Raises:
        FormulaError: `x` is a literal that the integer type `dtype` does not hold.
    """
    if isinstance(x, Literal) and dtype.is_int:
        ends = np.iinfo(dtype.numpy)
        if not int(ends.min) - 1 < x.value < int(ends.max) + 1:  # true for NaN, too
            raise FormulaError(f"{x.value} does not fit {dtype.name}", hint="use i64(...) or f64(...)")
    return x if x.ty is dtype else Convert(x, dtype)


def fold(combiner: str, axes: Sequence[AxisVar], body: Form, at=None) -> Form:
    """Return the reduction of `body` over the box of `axes`.

    Sums and products of integers and conditions are int64, argmax and argmin are int32. Nested sums, products, maxima
    or minima of one type are merged into one reduction.

    Args:
        combiner: sum, prod, max, min, argmax or argmin.
        axes: the axes that the reduction binds, at least one.
        body: the form that is reduced.
        at: (text of the formula, offset in it) for messages.

    Raises:
        FormulaError: there is no axis, an axis is repeated, the box is empty and the combiner is not sum or prod, or
            the positions that argmax or argmin chooses from exceed int32.
        DtypeError: a max, min, argmax or argmin of a condition.
    """
    axes = tuple(axes)
    if len(set(axes)) != len(axes):
        raise FormulaError(f"{combiner} names an axis twice")
    if not axes:
        raise FormulaError(f"{combiner} needs at least one axis")
    if combiner not in ("sum", "prod") and any(a.extent == 0 for a in axes):
        raise FormulaError(f"{combiner} over no elements: {show_extents(axes)}")
    ty = body.ty
    if combiner not in ("sum", "prod") and is_bool(ty):
        raise DtypeError(f"{combiner} of a bool; use where(c, 1, 0)")
    if combiner in ("argmax", "argmin"):
        if (points := math.prod(a.extent for a in axes)) > 2**31:
            raise FormulaError(
                f"{combiner} over {points} elements has positions that exceed int32, its type: {show_extents(axes)}",
                hint=f"take {combiner} over some of the axes, then over the others",
            )
        return FormulaFold(combiner, axes, body, dt.i32, at)
    if combiner in ("sum", "prod") and isinstance(ty, DType) and not ty.is_float:
        body, ty = convert(body, dt.i64), dt.i64
    if ty is WeakForm.SCALAR:
        ty = WeakForm.FLOAT
    if isinstance(body, FormulaFold) and body.combiner == combiner and body.ty is ty and not set(axes) & set(body.axes):
        return FormulaFold(combiner, axes + body.axes, body.args[0], ty, at)
    return FormulaFold(combiner, axes, body, ty, at)


def show_extents(axes: Sequence[AxisVar]) -> str:
    """Return the names and extents of axes for a message."""
    return ", ".join(f"axis {a.name} has extent {a.extent}" for a in axes)


def postorder(root: Form) -> list[Form]:
    """Return all nodes of a formula, each once, arguments ahead of users. Works without recursion."""
    out: list[Form] = []
    seen: set[Form] = set()
    stack: list[tuple[Form, bool]] = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            out.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args))
    return out


def replace_args(node: Form, args: Sequence[Form]) -> Form:
    """Return a node of the same kind with the arguments `args`, whose types are those of the arguments replaced.

    It is the node itself if no argument changes.
    """
    if all(a is b for a, b in zip(args, node.args, strict=True)):
        return node
    if isinstance(node, Load):
        return Load(node.tensor, args, node.weak, node.name, node.at, node.wide)
    if isinstance(node, Convert):
        assert isinstance(node.ty, DType)
        return Convert(args[0], node.ty)
    if isinstance(node, FormulaFold):
        return FormulaFold(node.combiner, node.axes, args[0], node.ty, node.at)
    assert isinstance(node, FormulaOp)
    return FormulaOp(node.fn, args, node.ty)


def exchange_tensors(root: Form, tensors: Mapping[Tensor, Tensor]) -> Form:
    """Return a formula that reads other tensors, of the same shapes and types: the values of `tensors`."""
    new: dict[Form, Form] = {}
    for node in postorder(root):
        args = [new[a] for a in node.args]
        if isinstance(node, Load):
            new[node] = Load(tensors[node.tensor], args, node.weak, node.name, node.at, node.wide)
        else:
            new[node] = replace_args(node, args)
    return new[root]
