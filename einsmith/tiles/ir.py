"""Define the tile IR, which patterns for a GPU produce and a printer reads.

A Function is run by many programs at once, none of which waits for another unless the function is cooperative. A
program works on tiles: arrays whose extents are powers of two, in static single assignment, with nested loops that
carry tiles. Offsets are counted in elements. The meaning of each operation is fixed here, independently of any
compiler:

- Integers wrap modulo 2^bits. `quot` truncates and `rem` has the sign of its dividend (a float's too, as C's fmod); of
  integers neither is defined where the divisor is 0, nor for the least integer over -1. `shr` shifts in zeros, `sar`
  copies of the sign, each by a literal.
- `add`, `sub`, `mul`, `div`, `sqrt` and `fma` of floats are rounded once, to the nearest. `min` and `max` are NaN
  where an operand is, and either zero where +0.0 meets -0.0. `neg` changes the sign of a zero too. `lt`, `le` and `eq`
  do not hold where an operand is NaN, `ne` does.
- `cast` to an integer truncates, and is defined where the result lies in that type; between integers it wraps; to a
  float it rounds to the nearest.
- A load accesses the lanes where its mask holds, and gives `other` in the rest. A store accesses the lanes where its
  mask holds; no two of them may be one element.
- An element that one program stores may not be loaded or stored by another program of the function. A program may
  load an element that it has stored after a `barrier`. A program may store to an element
  that it has loaded since the last barrier only in the lane that has loaded it, or with a value that a `reduce` or
  `dot` has made of the loaded tile: other lanes may have yet to load it.
- In a cooperative function all programs are resident at once, and wait for each other at each `grid_barrier`. An
  element that any program has stored before it may be loaded and stored by any program after it: rules on what other
  programs and lanes do to an element hold between two grid barriers. All programs must come to the same ones: loops
  around a `grid_barrier` have bounds that are equal in all programs, and so is what an `end_if` looks at. The parameter
  that it names is an i32 that only grid barriers access; its 31 lower bits are 0 before and after the function.
- `dot` multiplies matrices and adds them to a third; its precision says how float32 operands are rounded first. The
  products of operands of 16 bits are exact, and are added to float32.
- A program ends at an `end_if` whose scalar holds; it stands outside of loops.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import CompileError
from einsmith.ir.analysis.ranges import wrapped


class TileType(NamedTuple):
    """Element type and extents of a tile; a scalar has no extents."""

    elem: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.elem}{list(self.shape)}" if self.shape else self.elem


FLOATS = ("f32", "f64")
"""Element types of arithmetic; f16 and bf16 are only moved, converted and multiplied by `dot`, and u8 is moved and
converted."""
HALVES = ("bf16", "f16")
INTEGERS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
BYTES = {"i1": 1} | {d.name: d.itemsize for d in dt.ALL if not d.is_bool}
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16", "bf16x3")
"""Precisions of a dot of float32. ieee: products of the operands as they are; tf32, bf16: products of the operands in
that format; x3: three such products, whose error is the square of the operands' rounding."""
ROUNDINGS = {"ieee": 1.0, "tf32": 2.0**15, "tf32x3": 64.0, "bf16": 2.0**17, "bf16x3": 1024.0}
"""Factor by which a product of each precision rounds more than one of float32, whose error is 2**-24 of it: tf32 cuts
operands to 11 bits, bf16 rounds them to 8. A power of two above the bound of both operands' errors."""


def elem_of(dtype: DType) -> str:
    """Return the name of a DType's element type in registers; a bool is i1 there."""
    return "i1" if dtype.is_bool else dtype.name


def memory_elem(elem: str) -> str:
    """Return the element type in memory: a bool is a byte, 0 or 1."""
    return "i8" if elem == "i1" else elem


class TileValue:
    """The result of an instruction, or a loop's variable."""

    __slots__ = ("id", "type")

    def __init__(self, id: int, type: TileType):
        self.id, self.type = id, type

    @property
    def elem(self) -> str:
        """The element type."""
        return self.type.elem

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the tile."""
        return self.type.shape

    def __repr__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True)
class TileParameter:
    """A pointer that every program receives: to `size` elements of a kernel's buffer, or, where `buffer` is None, of
    the workspace from byte `offset` on."""

    elem: str
    size: int
    buffer: int | None
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return self.size * BYTES[self.elem]

    def address(self, addresses: Sequence[int]) -> int:
        """Return where it points to, given the addresses of the kernel's buffers and, last, of the workspace."""
        return addresses[-1] + self.offset if self.buffer is None else addresses[self.buffer]


@dataclass(slots=True)
class TileOp:
    """An instruction `results = name(args)`; `attrs` are literals, `memory` is the number of the parameter that a load,
    store or grid barrier accesses."""

    name: str
    args: tuple[TileValue | None, ...]
    results: tuple[TileValue, ...]
    attrs: tuple = ()
    memory: int | None = None


@dataclass(slots=True)
class TileLoop:
    """A loop `for var in range(lo, hi, step)` that carries tiles. `step` is a positive literal, the bounds are scalars
    of i32 or i64, and hi may be below lo (no turn)."""

    var: TileValue
    lo: TileValue
    hi: TileValue
    step: int
    init: tuple[TileValue, ...]
    carried: tuple[TileValue, ...]
    results: tuple[TileValue, ...]
    body: list[TileOp | TileLoop] = field(default_factory=list)
    next: Sequence[TileValue] = ()


@dataclass
class TileFunction:
    """A finished function. `constants` are visible everywhere in `body`; `cooperative`: its programs may wait for each
    other."""

    name: str
    parameters: tuple[TileParameter, ...]
    programs: int
    constants: list[TileOp]
    body: list[TileOp | TileLoop]
    cooperative: bool = False


UNARY = ("neg", "abs", "not", "floor", "sqrt", "sin", "cos")
BINARY = ("add", "sub", "mul", "div", "quot", "rem", "min", "max", "pow", "and", "or", "xor")
COMPARE = ("lt", "le", "eq", "ne")
SHIFTS = ("shl", "shr", "sar")
COMBINERS = ("sum", "prod", "max", "min", "argmax", "argmin")
"""Combiners of `reduce`. argmax and argmin take values and their places (i32), and return the first place of the
extreme or of a NaN."""


def _quot(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_FOLD: dict[str, Callable[..., int | bool]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max, "lt": operator.lt,
    "le": operator.le, "eq": operator.eq, "ne": operator.ne, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "neg": operator.neg, "abs": abs, "quot": _quot, "rem": lambda a, b: a - _quot(a, b) * b,
    "shl": operator.lshift, "sar": operator.rshift,
}  # fmt: skip
"""Functions of integer literals that are folded, so that no printer need spell them."""
_PACKED = {"i32": "<i", "i64": "<q", "f32": "<f", "f64": "<d"}
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "quot": 1}
"""Second operands that change nothing."""


def common_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the common shape of tiles that are combined: of one rank, with extents that are equal or 1; scalars
    combine with any shape. Raises CompileError."""
    ranks = {len(s) for s in shapes if s}
    if len(ranks) > 1:
        raise CompileError(f"tiles of the shapes {shapes} do not meet")
    out = tuple(max(n) for n in zip(*(s for s in shapes if s), strict=True))
    if any(n not in (1, most) for s in shapes if s for n, most in zip(s, out, strict=True)):
        raise CompileError(f"tiles of the shapes {shapes} do not meet")
    return out


class TileBuilder:
    """Builder of a TileFunction, which appends each instruction to the innermost open loop. Python integers become
    literals of the type of the other operands (i32 where there are none). Repeated computations are shared."""

    def __init__(self, name: str):
        self.name = name
        self.parameters: list[TileParameter] = []
        self._count = 0
        self._constants: dict[tuple, TileValue] = {}
        self._known: dict[TileValue, int | float | bool] = {}
        self._constant_ops: list[TileOp] = []
        self._blocks: list[list[TileOp | TileLoop]] = [[]]
        self._shared: list[dict[tuple, tuple[TileValue, ...]]] = [{}]

    def finish(self, programs: int, cooperative: bool = False) -> TileFunction:
        """Return the function, which a number of programs run."""
        return TileFunction(
            self.name, tuple(self.parameters), programs, self._constant_ops, self._blocks[0], cooperative
        )

    def continue_from(self, f: TileFunction) -> None:
        """Begin with the parameters and constants of a finished function, whose values stay known."""
        self.parameters = list(f.parameters)
        self._constant_ops = list(f.constants)
        self._count = 1 + max((v.id for v in _defined(f)), default=-1)

    def parameter(self, p: TileParameter) -> int:
        """Return the number of a parameter, which is added where there is none equal to it."""
        if p not in self.parameters:
            self.parameters.append(p)
        return self.parameters.index(p)

    def _new(self, type: TileType) -> TileValue:
        self._count += 1
        return TileValue(self._count - 1, type)

    def _pure(
        self, name: str, args: Sequence[TileValue], types: Sequence[TileType], attrs: tuple = ()
    ) -> tuple[TileValue, ...]:
        key = (name, tuple(args), tuple(types), attrs)
        for shared in self._shared:
            if key in shared:
                return shared[key]
        results = tuple(map(self._new, types))
        self._blocks[-1].append(TileOp(name, tuple(args), results, attrs))
        self._shared[-1][key] = results
        return results

    # -- literals

    def const(self, value: float | int | bool, elem: str = "i32") -> TileValue:
        """Return a scalar literal; an integer wraps."""
        if elem in INTEGERS:
            value = wrapped(int(value), INTEGERS[elem])
        key = (repr(value), elem)
        if key not in self._constants:
            out = self._constants[key] = self._new(TileType(elem))
            self._known[out] = value
            self._constant_ops.append(TileOp("const", (), (out,), (value,)))
        return self._constants[key]

    def known(self, x: TileValue | int) -> int | float | bool | None:
        """Return the number that a value is known to be; None where it is not known."""
        return x if isinstance(x, int) else self._known.get(x)

    def _values(self, args: Sequence[TileValue | int]) -> list[TileValue]:
        elem = next((a.elem for a in args if isinstance(a, TileValue)), "i32")
        return [a if isinstance(a, TileValue) else self.const(a, elem) for a in args]

    # -- arithmetic

    def op(self, fn: str, *args: TileValue | int) -> TileValue:
        """Emit a function of UNARY, BINARY or COMPARE, lane by lane. Raises CompileError for types that do not fit."""
        a = self._values(args)
        folded = self._fold(fn, a)
        if folded is not None:
            return folded
        elem = a[0].elem
        fits = (fn in UNARY and len(a) == 1) or (fn in (*BINARY, *COMPARE) and len(a) == 2)
        if not fits or any(x.elem != elem for x in a):
            raise CompileError(f"{fn} of {', '.join(str(x.type) for x in a)}")
        type = TileType("i1" if fn in COMPARE else elem, common_shape([x.shape for x in a]))
        return self._pure(fn, a, [type])[0]

    def _fold(self, fn: str, a: Sequence[TileValue]) -> TileValue | None:
        """Fold a function of literals to a literal or to one of its arguments; None where it cannot be folded."""
        elem, numbers = a[0].elem, [self.known(v) for v in a]
        if elem in INTEGERS and fn in _FOLD and None not in numbers and not (fn in ("quot", "rem") and numbers[1] == 0):
            return self.const(_FOLD[fn](*numbers), "i1" if fn in COMPARE else elem)
        if len(a) != 2 or not (elem in INTEGERS or elem == "i1"):
            return None
        x, y = numbers
        if elem == "i1":
            for one, other in ((x, a[1]), (y, a[0])):
                if one is not None and fn in ("and", "or"):
                    return other if one == (fn == "and") else self.const(one, "i1")
            return None
        if y is not None and y == _NEUTRAL.get(fn):
            return a[0]
        if fn in ("add", "mul") and x == _NEUTRAL[fn]:
            return a[1]
        if (fn == "mul" and 0 in (x, y)) or (fn == "rem" and y == 1):
            return self.const(0, elem)
        return None

    def shift(self, fn: str, x: TileValue, bits: int) -> TileValue:
        """Emit a function of SHIFTS."""
        value = self.known(x)
        if value is not None:
            mask = (1 << INTEGERS[x.elem]) - 1
            return self.const((int(value) & mask) >> bits if fn == "shr" else _FOLD[fn](value, bits), x.elem)
        return self._pure(fn, [x], [x.type], (bits,))[0]

    def select(self, c: TileValue, a: TileValue | int, b: TileValue | int) -> TileValue:
        """Emit a where c holds, else b; both are computed."""
        a, b = self._values([a, b])
        if self.known(c) is not None:
            return a if self.known(c) else b
        if c.elem != "i1" or a.elem != b.elem:
            raise CompileError(f"where of {c.type}, {a.type} and {b.type}")
        if a is b:
            return a
        return self._pure("select", [c, a, b], [TileType(a.elem, common_shape([c.shape, a.shape, b.shape]))])[0]

    def fma(self, a: TileValue, b: TileValue, c: TileValue) -> TileValue:
        """Emit a*b + c of floats, rounded once."""
        return self._pure("fma", [a, b, c], [TileType(a.elem, common_shape([a.shape, b.shape, c.shape]))])[0]

    def cast(self, x: TileValue, elem: str) -> TileValue:
        """Emit a conversion to another type. The module's docstring says for which numbers it is defined."""
        value = self.known(x)
        if x.elem == elem:
            return x
        if isinstance(value, int) and elem in (*INTEGERS, *FLOATS):
            return self.const(value if elem in INTEGERS else float(value), elem)
        return self._pure("cast", [x], [TileType(elem, x.shape)])[0]

    def bitcast(self, x: TileValue, elem: str) -> TileValue:
        """Reinterpret the bits of a value as another type of equal size."""
        value = self.known(x)
        if value is not None and x.elem in INTEGERS and elem in FLOATS:
            return self.const(struct.unpack(_PACKED[elem], struct.pack(_PACKED[x.elem], value))[0], elem)
        return self._pure("bitcast", [x], [TileType(elem, x.shape)])[0]

    def conjoin(self, conditions: Sequence[TileValue]) -> TileValue | None:
        """Emit the conjunction of conditions; None where it holds everywhere."""
        out: TileValue | None = None
        for c in dict.fromkeys(conditions):
            out = c if out is None else self.op("and", out, c)
        return None if out is not None and self.known(out) is True else out

    # -- tiles

    def program(self) -> TileValue:
        """Emit the number of this program, an i32 scalar."""
        return self._pure("program", [], [TileType("i32")])[0]

    def arange(self, n: int) -> TileValue:
        """Emit 0, 1, ..., n-1 as an i32 tile of one dimension."""
        return self._pure("arange", [], [TileType("i32", (n,))])[0]

    def expand(self, x: TileValue, axis: int) -> TileValue:
        """Insert a dimension of extent 1 before dimension `axis` of a tile; a scalar stays one."""
        if not x.shape:
            return x
        return self._pure("expand", [x], [TileType(x.elem, (*x.shape[:axis], 1, *x.shape[axis:]))], (axis,))[0]

    def broadcast(self, x: TileValue, shape: tuple[int, ...]) -> TileValue:
        """Repeat a scalar, or a tile along its extents of 1, to `shape`."""
        return x if x.shape == shape else self._pure("broadcast", [x], [TileType(x.elem, shape)])[0]

    def full(self, shape: tuple[int, ...], value: float | int | bool, elem: str) -> TileValue:
        """Emit a tile of one literal."""
        return self.broadcast(self.const(value, elem), shape)

    def dot(self, a: TileValue, b: TileValue, total: TileValue, precision: str) -> TileValue:
        """Emit total[m, n] + sum over k of a[m, k]*b[k, n]."""
        return self._pure("dot", [a, b, total], [total.type], (precision,))[0]

    def reduce(self, combiner: str, axis: int, *tiles: TileValue) -> tuple[TileValue, ...]:
        """Combine tiles along a dimension, which is removed: one tile, or, for argmax and argmin, values and
        places."""
        types = [TileType(x.elem, (*x.shape[:axis], *x.shape[axis + 1 :])) for x in tiles]
        return self._pure("reduce", tiles, types, (combiner, axis))

    # -- memory

    def load(self, parameter: int, offset: TileValue, mask: TileValue | None = None) -> TileValue:
        """Load the elements at offsets; zero where the mask does not hold."""
        elem = self.parameters[parameter].elem
        shape = offset.shape if mask is None else common_shape([offset.shape, mask.shape])
        out = self._new(TileType(elem, shape))
        other = None if mask is None else self.const(0.0 if elem[0] in "fb" else 0, elem)
        args = (self.broadcast(offset, shape), None if mask is None else self.broadcast(mask, shape), other)
        self._blocks[-1].append(TileOp("load", args, (out,), (), parameter))
        return out

    def store(self, parameter: int, offset: TileValue, value: TileValue, mask: TileValue | None = None) -> None:
        """Emit a store to a parameter at offsets (elements), where the mask holds (None: everywhere)."""
        shape = common_shape([offset.shape, value.shape, () if mask is None else mask.shape])
        args = [None if x is None else self.broadcast(x, shape) for x in (offset, value, mask)]
        self._blocks[-1].append(TileOp("store", tuple(args), (), (), parameter))

    def barrier(self) -> None:
        """Emit a barrier: loads after it see what the program has stored before it."""
        self._blocks[-1].append(TileOp("barrier", (), ()))

    def grid_barrier(self, parameter: int) -> None:
        """Emit a barrier of all programs of a cooperative function, which count themselves in a parameter."""
        self._blocks[-1].append(TileOp("grid_barrier", (), (), (), parameter))

    # -- control

    def end_if(self, condition: TileValue) -> None:
        """End the program where a scalar holds."""
        self._blocks[-1].append(TileOp("end_if", (condition,), ()))

    @contextmanager
    def loop(
        self, lo: TileValue | int, hi: TileValue | int, step: int, init: Sequence[TileValue] = ()
    ) -> Iterator[TileLoop]:
        """Build a loop: `with b.loop(0, n, 16, [x]) as l: ...; l.next = [y]`, then `l.results`. Raises CompileError
        where a carried value changes its type."""
        lo, hi = self._values([lo, hi]) if isinstance(lo, TileValue) else reversed(self._values([hi, lo]))
        types = [v.type for v in init]
        var, carried, results = self._new(lo.type), tuple(map(self._new, types)), tuple(map(self._new, types))
        out = TileLoop(var, lo, hi, step, tuple(init), carried, results)
        self._blocks[-1].append(out)
        self._blocks.append(out.body)
        self._shared.append({})
        yield out
        self._blocks.pop()
        self._shared.pop()
        if [v.type for v in out.next] != types:
            raise CompileError(f"a loop yields {[str(v.type) for v in out.next]} where it carries {types}")

    # -- other functions

    def inline(self, f: TileFunction, program: TileValue, places: Sequence[tuple[int, TileValue]]) -> None:
        """Inline the body of a finished function, as one of its programs runs it.

        Args:
            f: the function.
            program: the number of the program, an i32.
            places: for each of its parameters, the corresponding parameter of this builder and the number of its first
                element there.

        Raises:
            CompileError: its programs may end early, or wait for each other.
        """
        values = {x.results[0]: self.const(x.attrs[0], x.results[0].elem) for x in f.constants}
        self._inline(f, f.body, program, places, values)

    def _inline(
        self,
        f: TileFunction,
        body: Sequence[TileOp | TileLoop],
        program: TileValue,
        places: Sequence[tuple[int, TileValue]],
        values: dict[TileValue, TileValue],
    ) -> None:
        for x in body:
            if isinstance(x, TileLoop):
                with self.loop(values[x.lo], values[x.hi], x.step, [values[v] for v in x.init]) as loop:
                    values[x.var] = loop.var
                    values.update(zip(x.carried, loop.carried, strict=True))
                    self._inline(f, x.body, program, places, values)
                    loop.next = [values[v] for v in x.next]
                values.update(zip(x.results, loop.results, strict=True))
                continue
            if x.name in ("end_if", "grid_barrier"):
                raise CompileError(f"{f.name} becomes no part of {self.name}: it has the instruction {x.name}")
            if x.name == "program":
                values[x.results[0]] = program
                continue
            args = [None if v is None else values[v] for v in x.args]
            memory = x.memory
            if memory is not None:
                memory, first = places[memory]
                offset = args[0]
                assert offset is not None
                args[0] = self.op("add", first, self.cast(offset, first.elem))
            results = tuple(self._new(v.type) for v in x.results)
            values.update(zip(x.results, results, strict=True))
            self._blocks[-1].append(TileOp(x.name, tuple(args), results, x.attrs, memory))


def _defined(f: TileFunction) -> Iterator[TileValue]:
    """Yield all values that a function defines."""
    pending: list[TileOp | TileLoop] = [*f.constants, *f.body]
    while pending:
        x = pending.pop()
        yield from x.results
        if isinstance(x, TileLoop):
            yield from (x.var, *x.carried)
            pending += x.body
