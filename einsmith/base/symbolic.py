"""Numbers that remember how they follow from sizes, and what was decided by them.

A trace on such extents gives one graph, and the conditions under which other sizes have it too: like PyTorch's SymInts,
a comparison decides by the value at hand and records itself as a guard. Two integers of unlike forms are never equal,
whatever their values are, which is recorded as well. Whatever takes the value alone, `int` or `float` or a shift,
records that it needs this value. So does C: numbers say that they are of the class `int` or `float`, but no object of
theirs has a value that C could read without calling a method, as `range`, NumPy and repetitions of lists do. Two ways
leave no record: a set or dictionary with plain numbers, in which no symbolic one is found, and a text, which is that of
no other number.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeVar

Form = tuple[tuple[tuple[int, ...], int], ...]
"""A polynomial with integer coefficients: (numbers of the atoms of a product, coefficient), each product once, in
order. Atoms are symbols, quotients and remainders."""
N = TypeVar("N", int, float)

if TYPE_CHECKING:
    from builtins import float as _Real
    from builtins import int as _Whole
else:
    _Whole = _Real = object

_POSITIVE, _NONZERO, _ZERO = "> 0", "!= 0", "== 0"
_NUMBERS = itertools.count()


SIZES_VARY: ContextVar[bool] = ContextVar("sizes vary", default=False)
"""Whether what is traced is to be one graph for several sizes: choices by the sizes at hand are to be left out."""


class Scope:
    """The symbols of one trace.

    symbols: in the order of their values in the trace; guards: what was decided, as (relation, form)
    """

    def __init__(self, values: Sequence[int]):
        self._numbers = [next(_NUMBERS) for _ in values]
        self._atoms: dict[tuple[Callable[[int, int], int], Form, Form], int] = {}
        self.symbols = [SymbolicInt(self, (((n,), 1),), x) for n, x in zip(self._numbers, values, strict=True)]
        self.guards: dict[tuple[str, Form], None] = {}

    def note(self, relation: str, form: Form) -> None:
        """Record that a form has a relation to 0."""
        self.guards.setdefault((relation, form))

    def atom(self, function: Callable[[int, int], int], a: Form, b: Form) -> Form:
        """Return the form of a quotient or of a remainder."""
        key = function, a, b
        number = self._atoms.get(key)
        if number is None:
            number = self._atoms[key] = next(_NUMBERS)
        return (((number,), 1),)

    def at(self, values: Sequence[int]) -> At | None:
        """Return what other values of the symbols give; None where something would be decided otherwise."""
        known = dict(zip(self._numbers, values, strict=True))
        try:
            for (function, a, b), number in self._atoms.items():
                known[number] = function(_evaluate(a, known), _evaluate(b, known))
        except ZeroDivisionError:
            return None
        for relation, form in self.guards:
            x = _evaluate(form, known)
            if not (x > 0 if relation == _POSITIVE else (x == 0) == (relation == _ZERO)):
                return None
        return At(known)


class At:
    """Values of the symbols and other atoms, by their numbers, at which everything is decided as in the trace."""

    def __init__(self, known: Mapping[int, int]):
        self._known, self._values = known, dict[Form, int]()

    def value(self, x: N) -> N:
        """Return the value of a number; one that follows from no symbol is what it is."""
        if isinstance(x, SymbolicFloat):
            return x.function(*map(self.value, x.arguments))
        if not isinstance(x, SymbolicInt):
            return x
        value = self._values.get(x.form)
        if value is None:
            value = self._values[x.form] = _evaluate(x.form, self._known)
        return value


def _evaluate(form: Form, known: Mapping[int, int]) -> int:
    total = 0
    for atoms, factor in form:
        for atom in atoms:
            factor *= known[atom]
        total += factor
    return total


def hint(x: N) -> N:
    """Return the value that a number has in its trace, which decides nothing but what takes less time."""
    return x.value if isinstance(x, (SymbolicInt, SymbolicFloat)) else x


def is_same(a: N, b: N) -> bool:
    """Return whether two numbers follow from the symbols in one way; nothing is recorded."""
    if isinstance(a, SymbolicInt) or isinstance(b, SymbolicInt):
        return isinstance(a, int) and isinstance(b, int) and form_of(a) == form_of(b)
    return type(a) is type(b) and a == b


def is_symbolic(x: Any) -> bool:
    """Return whether a number follows from a symbol."""
    return isinstance(x, SYMBOLIC)


def literal(x: Any, is_float: bool) -> Any:
    """Return a symbolic number as a float or as an integer."""
    if isinstance(x, SymbolicInt):
        return SymbolicFloat(x.scope, float, (x,), float(x.value)) if is_float else x
    return x if is_float else int(x)


def to_whole(x: Any) -> int:
    """Return `int(x)`, which a symbolic integer is itself."""
    return x if isinstance(x, SymbolicInt) else int(x)


def index(x: Any) -> int:
    """Return `operator.index(x)`, which a symbolic integer is itself."""
    return x if isinstance(x, SymbolicInt) else operator.index(x)


def gcd(*numbers: int) -> int:
    """Return a common divisor: the greatest one where no number is symbolic, else that of all coefficients."""
    return math.gcd(*(c for x in numbers for _, c in form_of(x)))


def slice_indices(s: slice, extent: int) -> tuple[int, int, int]:
    """Return `s.indices(extent)`, for symbolic numbers too."""
    if not any(map(is_symbolic, (s.start, s.stop, s.step, extent))):
        return s.indices(extent)
    step = 1 if s.step is None else s.step
    if step == 0:
        raise ValueError("slice step cannot be zero")
    low, high = (0, extent) if step > 0 else (-1, extent - 1)

    def inside(x: Any, otherwise: int) -> int:
        return otherwise if x is None else max(low, x + extent if x < 0 else x) if x < high else high

    first, last = (low, high) if step > 0 else (high, low)
    return inside(s.start, first), inside(s.stop, last), step


def count_steps(start: int, stop: int, step: int) -> int:
    """Return `len(range(start, stop, step))`, for symbolic numbers too."""
    return max(0, -((start - stop) // step) if step > 0 else -((stop - start) // -step))


def form_of(x: int) -> Form:
    """Return the form of an integer."""
    return x.form if isinstance(x, SymbolicInt) else (((), x),) if x else ()


def _sum(terms: Iterable[tuple[tuple[int, ...], int]]) -> Form:
    total: dict[tuple[int, ...], int] = {}
    for atoms, factor in terms:
        total[atoms] = total.get(atoms, 0) + factor
    return tuple(sorted((a, c) for a, c in total.items() if c))


def _negative(a: Form) -> Form:
    return tuple((atoms, -c) for atoms, c in a)


def _product(a: Form, b: Form) -> Form:
    return _sum((tuple(sorted((*x, *y))), c * d) for x, c in a for y, d in b)


def _quotient(a: Form, b: Form) -> Form | None:
    """Return a/b where b divides a; None elsewhere."""
    atoms, divisor = max(b, key=_degree)
    out: Form = ()
    while a:
        own, factor = max(a, key=_degree)
        left = list(own)
        for atom in atoms:
            if atom not in left:
                return None
            left.remove(atom)
        if factor % divisor:
            return None
        term: Form = ((tuple(left), factor // divisor),)
        out += term
        a = _sum((*a, *_negative(_product(term, b))))
    return _sum(out)


def _degree(term: tuple[tuple, int]) -> tuple[int, tuple]:
    """Return a key by which products are ordered, so that the largest of two forms' product is that of theirs."""
    return len(term[0]), term[0]


def make(scope: Scope, form: Form, value: int) -> int:
    """Return the integer of a form: symbolic where an atom is left."""
    return SymbolicInt(scope, form, value) if any(atoms for atoms, _ in form) else value


class SymbolicInt(_Whole):
    """An integer with the form of which it is the value in its trace."""

    __class__ = int  # type: ignore[assignment]  # for isinstance
    __array_ufunc__ = None  # NumPy's numbers leave operators to those below

    def __init__(self, scope: Scope, form: Form, value: int):
        self.scope, self.form, self.value = scope, form, value

    def fixed(self) -> int:
        """Return the value, and record that it is needed."""
        self.scope.note(_ZERO, _sum((*self.form, ((), -self.value))))
        return self.value

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return _with_other(operator.add, self, other)
        return make(self.scope, _sum((*self.form, *form_of(other))), self.value + hint(other))

    __radd__ = __add__

    def __neg__(self) -> int:
        return make(self.scope, _negative(self.form), -self.value)

    def __sub__(self, other: Any) -> Any:
        is_number = isinstance(other, Number)
        return self + -other if is_number else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        is_number = isinstance(other, Number)
        return -self + other if is_number else NotImplemented

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return _with_other(operator.mul, self, other)
        return make(self.scope, _product(self.form, form_of(other)), self.value * hint(other))

    __rmul__ = __mul__

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __abs__(self) -> int:
        return max(self, -self)

    def __pos__(self) -> int:
        return self

    def __round__(self, ndigits: Any = None) -> int:
        return self if ndigits is None else round(self.fixed(), ndigits)

    __floor__ = __ceil__ = __trunc__ = __pos__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int):
            return isinstance(other, float) and math.isfinite(other) and self.fixed() == other
        apart = _sum((*form_of(other), *_negative(self.form)))
        if any(atoms for atoms, _ in apart):
            self.scope.note(_NONZERO, apart)
        return not apart

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash(self.form)

    def __repr__(self) -> str:
        return f"{self.value} of {self.form}"  # a text that is a key is that of no other number

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __reduce__(self) -> tuple:
        return int, (self.value,)

    def __int__(self) -> int:
        return self.fixed()

    __index__ = __int__

    def __float__(self) -> float:
        return float(self.fixed())

    def bit_length(self) -> int:
        """Return the number of bits, which need the value."""
        return self.fixed().bit_length()


class SymbolicFloat(_Real):
    """A float that a function gives of numbers, some of them symbolic. value: its value in its trace."""

    __class__ = float  # type: ignore[assignment]
    __array_ufunc__ = None

    def __init__(self, scope: Scope, function: Callable[..., float], arguments: tuple, value: float):
        self.scope, self.function, self.arguments, self.value = scope, function, arguments, value

    def fixed(self) -> float:
        """Return the value, and record that it is needed."""
        for x in self.arguments:
            if is_symbolic(x):
                x.fixed()
        return self.value

    def __float__(self) -> float:
        return self.fixed()

    def __int__(self) -> int:
        return int(self.fixed())

    def __bool__(self) -> bool:
        return bool(self.fixed())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SymbolicFloat):
            return False
        return (self.function, self.arguments) == (other.function, other.arguments)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.function, self.arguments))

    def __reduce__(self) -> tuple:
        return float, (self.value,)

    def __repr__(self) -> str:
        return f"{self.value} of {self.function} of {self.arguments}"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)


SYMBOLIC = SymbolicInt, SymbolicFloat
"""The types of symbolic numbers, for what is asked often."""


def _define(of: type, names: str, compute: Callable[[Callable[..., Any], Any, Any], Any]) -> None:
    """Give a class operators; `compute` gets the function, the number and the other operand, in their order.

    Operands that are no numbers have operators of their own, or take the number as an index."""
    for name in names.split():
        is_reversed = name[0] == "r" and name[1:] in _REVERSED
        function = getattr(operator, f"__{name[1:] if is_reversed else name}__")

        def apply(self: Any, *other: Any, function: Any = function, is_reversed: bool = is_reversed) -> Any:
            if not all(isinstance(x, Number) for x in other):
                return NotImplemented
            return compute(function, *((*other, self) if is_reversed else (self, *other)))

        setattr(of, f"__{name}__", apply)


def _take_values(function: Callable[..., Any], *numbers: Any) -> Any:
    """Return a function that has no form, of the values, which it needs."""
    return function(*(x.fixed() if is_symbolic(x) else x for x in numbers))


def _keep(function: Callable[..., float], *numbers: Any) -> SymbolicFloat:
    """Return a function of numbers that follows from sizes as they do."""
    scope = next(x.scope for x in numbers if is_symbolic(x))
    return SymbolicFloat(scope, function, numbers, function(*map(hint, numbers)))


def _with_other(function: Callable[..., float], x: int, other: Any) -> Any:
    """Return a function of an integer and of an operand that is none."""
    if isinstance(other, float):
        return _keep(function, x, other)
    return _take_values(function, x, other) if isinstance(other, Number) else NotImplemented


def _divide(function: Callable[[int, int], int], a: Any, b: Any) -> Any:
    """Return a quotient or a remainder of integers, rounded down."""
    scope, over, under = next(x.scope for x in (a, b) if is_symbolic(x)), form_of(a), form_of(b)
    if is_symbolic(b):
        scope.note(_NONZERO, under)
        apart = _sum((*under, *_negative(over)))
        if is_symbolic(a) and hint(a) >= 0 and len(apart) == 1 and apart[0][0] == () and apart[0][1] > 0:  # n - 1 by n
            scope.note(_POSITIVE, _sum((*over, ((), 1))))
            return 0 if function is operator.floordiv else a
    value, exact, is_quotient = function(hint(a), hint(b)), _quotient(over, under), function is operator.floordiv
    if exact is not None and is_quotient:
        return make(scope, exact, value)
    atom = scope.atom(function, over, under)
    if is_quotient or value:
        return SymbolicInt(scope, atom, value)
    if exact is None:
        scope.note(_ZERO, atom)
    return 0


def _compare(function: Callable[[Any, Any], bool], a: Any, b: Any) -> bool:
    """Decide which of two numbers is the smaller one."""
    if not is_symbolic(b) and isinstance(b, float) and isinstance(a, int) and math.isfinite(b):
        b = math.ceil(b) if function in (operator.lt, operator.ge) else math.floor(b)
    if not (isinstance(a, int) and isinstance(b, int)):
        return _take_values(function, a, b)
    if function in (operator.gt, operator.le):
        a, b = b, a
    apart, is_less = _sum((*form_of(b), *_negative(form_of(a)))), hint(a) < hint(b)
    if any(atoms for atoms, _ in apart):
        scope = next(x.scope for x in (a, b) if is_symbolic(x))
        scope.note(_POSITIVE, apart if is_less else _sum((*_negative(apart), ((), 1))))
    return is_less if function in (operator.lt, operator.gt) else not is_less


_REVERSED = ("floordiv", "mod", "add", "sub", "mul", "truediv", "pow", "and", "or", "xor", "lshift", "rshift")
_define(SymbolicInt, "pow rpow and rand or ror xor rxor lshift rlshift rshift rrshift invert", _take_values)
_define(SymbolicInt, "truediv rtruediv", _keep)
_define(SymbolicInt, "floordiv rfloordiv mod rmod", _divide)
_define(SymbolicInt, "lt le gt ge", _compare)
_define(SymbolicFloat, "add radd sub rsub mul rmul truediv rtruediv neg abs", _keep)
_define(SymbolicFloat, "lt le gt ge pow rpow floordiv rfloordiv mod rmod", _take_values)
