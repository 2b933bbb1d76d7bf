"""Define what the intermediate representations in static single assignment share: the loop nests of CPUs and the tiles
of GPUs.

A value has an element type and a shape: a scalar, a vector of lanes, or a tile. A body is a list of instructions,
loops that carry values, and branches. A set of operations is the methods of a builder.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import CompileError
from einsmith.ir.analysis.ranges import wrapped


class Type:
    """Element type and extents of a value; a scalar has no extents, a vector has one: its lanes (a scalar's are 0).

    There is one instance of each type, so that types are compared by identity."""

    __slots__ = ("elem", "lanes", "shape")
    elem: str
    shape: tuple[int, ...]
    lanes: int

    def __new__(cls, elem: str, shape: tuple[int, ...] = ()) -> Type:
        out = _TYPES.get((elem, shape))
        if out is None:
            out = object.__new__(cls)
            out.elem, out.shape, out.lanes = elem, shape, shape[0] if shape else 0
            out = _TYPES.setdefault((elem, shape), out)
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        return Type, (self.elem, self.shape)

    def __repr__(self) -> str:
        return "x".join((self.elem, *map(str, self.shape)))


_TYPES: dict[tuple[str, tuple[int, ...]], Type] = {}


@lru_cache(maxsize=512)
def vector(elem: str, lanes: int = 0) -> Type:
    """Return the type of vectors of `lanes` lanes; of scalars where that is 0."""
    return Type(elem, (lanes,) if lanes else ())


def elem_of(dtype: DType) -> str:
    """Return the element type name of a DType. bool is i1 in registers and one byte (0 or 1) in memory."""
    return "i1" if dtype.is_bool else dtype.name


BYTES = {elem_of(d): d.itemsize for d in dt.ALL}
"""Bytes of an element in memory, by element type name."""
INTEGERS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
"""Bits of the integers that are computed with, by element type name."""


class SSAValue:
    """The result of an instruction, a parameter, or a loop's variable."""

    __slots__ = ("id", "type")

    def __init__(self, id: int, type: Type):
        self.id, self.type = id, type

    @property
    def elem(self) -> str:
        """The element type."""
        return self.type.elem

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.type.shape

    def __repr__(self) -> str:
        return f"%{self.id}"


@dataclass(slots=True)
class Op:
    """An instruction `results = name(args)`, `attrs` being literals (constants, lane lists, axes).

    args: operands, None where an optional one is omitted. memory: the number of the parameter that an instruction on
    tiles accesses."""

    name: str
    args: tuple[SSAValue | None, ...]
    results: tuple[SSAValue, ...]
    attrs: tuple = ()
    memory: int | None = None

    @property
    def result(self) -> SSAValue:
        """The only result."""
        return self.results[0]

    @property
    def operands(self) -> list[SSAValue]:
        """The arguments without the omitted ones."""
        return [a for a in self.args if a is not None]


@dataclass(slots=True)
class Loop:
    """A loop `for var in range(lo, hi, step)` that carries values.

    `step` is a positive literal. hi may be below lo (no iteration), unless `runs`. `seldom`: the loop is an unlikely
    branch that yields values, with one iteration or none; register allocation favours the code around it."""

    var: SSAValue
    lo: SSAValue
    hi: SSAValue
    step: int
    init: tuple[SSAValue, ...]
    carried: tuple[SSAValue, ...]
    results: tuple[SSAValue, ...]
    body: list = field(default_factory=list)
    next: Sequence[SSAValue] = ()
    unroll: int = 1
    runs: bool = False
    seldom: bool = False
    _builder: Any = None

    def __enter__(self) -> Loop:
        self._builder._blocks.append(self.body)
        return self

    def __exit__(self, kind, value, trace) -> None:
        self._builder._blocks.pop()
        self._builder = None  # without reference cycles a body is freed with its last reference
        if kind is None:
            yielded, carried = [v.type for v in self.next], [v.type for v in self.init]
            if yielded != carried:
                raise CompileError(f"a loop yields {[*map(str, yielded)]} where it carries {[*map(str, carried)]}")


@dataclass(slots=True)
class If:
    """A branch that runs `body` where the scalar i1 `cond` holds. It yields no values: use select, or memory.
    `seldom`: as a Loop's."""

    cond: SSAValue
    body: list = field(default_factory=list)
    seldom: bool = False
    _builder: Any = None

    def __enter__(self) -> If:
        self._builder._blocks.append(self.body)
        return self

    def __exit__(self, *_) -> None:
        self._builder._blocks.pop()
        self._builder = None


def operations(body: Sequence[Any]) -> list[Op]:
    """Return all instructions of a body, those of loops and branches at their positions."""
    out: list[Op] = []
    for x in body:
        if isinstance(x, Op):
            out.append(x)
        else:
            out += operations(x.body)
    return out


def quotient(a: int, b: int) -> int:
    """Return a/b rounded towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


COMPARE = ("lt", "le", "eq", "ne")
FOLD: dict[str, Callable[..., int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max, "lt": operator.lt,
    "le": operator.le, "eq": operator.eq, "ne": operator.ne, "neg": operator.neg, "abs": abs,
    "floordiv": operator.floordiv, "mod": operator.mod, "quot": quotient, "rem": lambda a, b: a - quotient(a, b) * b,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "not": lambda a: not a if isinstance(a, bool) else ~a,
    "shl": operator.lshift, "sar": operator.rshift,
}  # fmt: skip
"""Functions of integer and boolean literals that are folded; those of `DIVISIONS` not by 0."""
DIVISIONS = ("floordiv", "mod", "quot", "rem")
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "floordiv": 1, "quot": 1}
"""The neutral second argument of each function, by which it is folded."""


class SSABuilder:
    """A builder of bodies, which appends each instruction to the innermost open region and folds functions of integer
    literals."""

    def __init__(self) -> None:
        self._ids = count()
        self.body: list = []
        self._blocks = [self.body]
        self._constants: dict[Hashable, SSAValue] = {}
        self._constant_ops: list[Op] = []
        self._known: dict[SSAValue, Any] = {}

    def _new(self, type: Type) -> SSAValue:
        return SSAValue(next(self._ids), type)

    def _emit(
        self,
        name: str,
        args: Sequence[SSAValue | None],
        types: Sequence[Type] = (),
        attrs: tuple = (),
        memory: int | None = None,
    ) -> tuple[SSAValue, ...]:
        """Append an instruction with results of these types; return them."""
        results = tuple(map(self._new, types))
        self._blocks[-1].append(Op(name, tuple(args), results, attrs, memory))
        return results

    def _result(self, name: str, args: Sequence[SSAValue | None], type: Type, attrs: tuple = ()) -> SSAValue:
        """Append an instruction of one result; return it."""
        result = SSAValue(next(self._ids), type)
        self._blocks[-1].append(Op(name, tuple(args), (result,), attrs))
        return result

    # -- literals

    def _constant(self, key: Hashable, name: str, type: Type, value: Any) -> SSAValue:
        """Return the literal of a key, which every region sees. Equal keys have one value."""
        if key not in self._constants:
            out = self._constants[key] = self._new(type)
            self._constant_ops.append(Op(name, (), (out,), (value,)))
        return self._constants[key]

    def const(self, value: float | int | bool, elem: str) -> SSAValue:
        """Return a scalar literal. Equal literals are one value."""
        raise NotImplementedError

    def known(self, x: SSAValue | int) -> Any:
        """Return the number that a scalar is known to be; None where it is not known."""
        return x if isinstance(x, int) else self._known.get(x)

    def index(self, value: SSAValue | int) -> SSAValue:
        """Return an index or count as a value; an int becomes an i64 constant."""
        return self.const(value, "i64") if isinstance(value, int) else value

    def _fold(self, fn: str, args: Sequence[SSAValue | int]) -> SSAValue | None:
        """Fold a function of integer literals, or with a neutral argument; return the result, or None if it does not
        fold."""
        numbers = [self.known(a) for a in args]
        if fn == "select":
            return None if numbers[0] is None else self.index(args[1 if numbers[0] else 2])
        elem = "i64" if isinstance(args[0], int) else args[0].type.elem
        if not (elem in INTEGERS or elem == "i1"):
            return None
        if fn in FOLD and None not in numbers and not (fn in DIVISIONS and not numbers[1]):
            out, is_flag = FOLD[fn](*numbers), fn in COMPARE or elem == "i1"
            return self.const(out, "i1") if is_flag else self.const(wrapped(out, INTEGERS[elem]), elem)
        if len(args) != 2:
            return None
        x, y = numbers
        if elem == "i1":
            for one, other in ((x, args[1]), (y, args[0])):
                if one is not None and fn in ("and", "or"):
                    return self.index(other) if one == (fn == "and") else self.const(one, "i1")
            return None
        if y is not None and y == _NEUTRAL.get(fn):
            return self.index(args[0])
        if fn in ("add", "mul") and x == _NEUTRAL[fn]:
            return self.index(args[1])
        return self.const(0, elem) if fn == "mul" and 0 in (x, y) or fn in ("mod", "rem") and y == 1 else None

    def find_shared(self, table: MutableMapping[Hashable, SharedResult], key: Hashable) -> Any:
        """Return the shared result of a key; None where there is none, or where its region is closed."""
        entry = table.get(key)
        if entry is None or entry.depth >= len(self._blocks) or self._blocks[entry.depth] is not entry.block:
            return None
        return entry.result

    def share(self, table: MutableMapping[Hashable, SharedResult], key: Hashable, result: Any, depth: int) -> None:
        """Share a result that was emitted into the open region `depth`."""
        table[key] = SharedResult(result, depth, self._blocks[depth])

    # -- control

    def _loop(self, lo: SSAValue, hi: SSAValue, step: int, init: Sequence[SSAValue], *flags: Any) -> Loop:
        """Open a loop. flags: unroll, runs and seldom."""
        types = [v.type for v in init]
        var, carried, results = self._new(lo.type), tuple(map(self._new, types)), tuple(map(self._new, types))
        out = Loop(var, lo, hi, step, tuple(init), carried, results, [], (), *flags)
        out._builder = self
        self._blocks[-1].append(out)
        return out

    def if_(self, cond: SSAValue, seldom: bool = False) -> If:
        """Open a branch that runs where a condition holds (`seldom`: which it mostly does not); use the result in a
        `with` statement."""
        out = If(cond, [], seldom, self)
        self._blocks[-1].append(out)
        return out

    @property
    def depth(self) -> int:
        """Number of open regions; 0 at the function's top."""
        return len(self._blocks) - 1

    @contextmanager
    def at(self, depth: int) -> Iterator[None]:
        """Emit instructions into the open region `depth`, right before the deeper region that is open in it."""
        inner = self._blocks[depth + 1 :]
        if not inner:
            yield
            return
        region = self._blocks[depth].pop()
        del self._blocks[depth + 1 :]
        try:
            yield
        finally:
            self._blocks[depth].append(region)
            self._blocks.extend(inner)

    def copy(
        self, body: Sequence[Any], values: dict[SSAValue, SSAValue], replace: Callable[[Op], Op | None] = lambda x: x
    ) -> None:
        """Copy the body of another function into the open region.

        Args:
            body: The body.
            values: The values here of the other function's, which is extended.
            replace: Returns the instruction itself, or one of the same results whose arguments are values here; None
                where it has entered the results into `values`.
        """
        for x in body:
            if isinstance(x, Loop):
                init = [values[v] for v in x.init]
                with self._loop(values[x.lo], values[x.hi], x.step, init, x.unroll, x.runs, x.seldom) as loop:
                    values[x.var] = loop.var
                    values.update(zip(x.carried, loop.carried, strict=True))
                    values.update(zip(x.results, loop.results, strict=True))
                    self.copy(x.body, values, replace)
                    loop.next = tuple(values[v] for v in x.next)
            elif isinstance(x, If):
                with self.if_(values[x.cond], x.seldom):
                    self.copy(x.body, values, replace)
            elif (op := replace(x)) is not None:
                args = [None if v is None else values[v] for v in x.args] if op is x else op.args
                results = self._emit(op.name, args, [v.type for v in x.results], op.attrs, op.memory)
                values.update(zip(x.results, results, strict=True))


class SharedResult(NamedTuple):
    """The result of a computation, which may be used again while its region is open."""

    result: Any
    depth: int
    block: list
