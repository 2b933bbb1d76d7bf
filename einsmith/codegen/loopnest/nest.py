"""Define the loop nest, the intermediate representation that patterns build and code generators read.

A Function is a list of instructions in static single assignment with nested regions. Values are scalars or vectors
of f32, f64, i1, i8, i16, i32, i64, or `ptr`; those of f16, bf16 and u8 are only moved, chosen and converted. Offsets
are counted in elements, never in bytes. Nothing here knows a backend.

A kernel's function runs once per task: it gets the pointers of its buffers, a scratch area of its own thread, and the
number of its task.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import CompileError
from einsmith.codegen.loopnest.dots import DOTS, TILE_REGISTERS, WORD, WORD_BYTES
from einsmith.ir.functions import FUNCTIONS, has_lanes


class Type(NamedTuple):
    """Element type name and number of lanes (0: a scalar; a vector has 2 lanes or more)."""

    elem: str
    lanes: int = 0

    def __str__(self) -> str:
        return f"{self.elem}x{self.lanes}" if self.lanes else self.elem


I64, I32, I1, PTR = Type("i64"), Type("i32"), Type("i1"), Type("ptr")


def elem_of(dtype: DType) -> str:
    """Return the element type name of a DType. bool is i1 in registers and one byte (0 or 1) in memory."""
    return "i1" if dtype.is_bool else dtype.name


BYTES = {elem_of(d): d.itemsize for d in dt.ALL}
"""Bytes of an element in memory, by element type name."""
_MEMORY_ONLY = frozenset(elem_of(d) for d in dt.ALL if d.in_memory_only)
"""Element types that are loaded, stored, selected and converted, but not computed in."""


class SSAValue:
    """The result of an instruction, a parameter, or a loop's variable."""

    __slots__ = ("id", "type")

    def __init__(self, id: int, type: Type):
        self.id, self.type = id, type

    def __repr__(self) -> str:
        return f"%{self.id}"


@dataclass(slots=True)
class Op:
    """`result = name(args)`, `attrs` being literals (constants, lane lists, alignment)."""

    name: str
    args: tuple[SSAValue | None, ...]
    result: SSAValue | None
    attrs: tuple = ()


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
        self._builder = None  # without reference cycles a nest is freed with its last reference
        if kind is None:
            yielded, carried = [v.type for v in self.next], [v.type for v in self.init]
            if yielded != carried:
                raise CompileError(f"a loop yields {yielded} where it carries {carried}")


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


@dataclass
class Function:
    """A finished kernel body. Parameters: `buffers` pointers, `scratch` pointer, `task` number.

    checks_signals: the task may take long, so it checks for signals, and ends if its run has been stopped."""

    name: str
    buffers: tuple[SSAValue, ...]
    scratch: SSAValue
    task: SSAValue
    body: list
    scratch_bytes: int
    checks_signals: bool = False


_COMPARE = {"lt", "le", "eq", "ne"}
FOLD: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "neg": operator.neg,
}
"""Functions of constant integers that are folded."""
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "floordiv": 1}
"""The neutral second argument of each function, by which it is folded."""


class Builder:
    """A builder of a Function that appends each instruction to the innermost open region."""

    def __init__(self, name: str, buffers: int):
        self._ids = count()
        self.body: list = []
        self._blocks = [self.body]
        self.name = name
        self.buffers = tuple(self._new(PTR) for _ in range(buffers))
        self.scratch_base = self._new(PTR)
        self.task = self._new(I64)
        self._scratch = 0
        self._consts: dict[tuple, SSAValue] = {}
        self._const_ops: list[Op] = []
        self._known: dict[SSAValue, int] = {}  # i64 and i1 scalars

    def _new(self, type: Type) -> SSAValue:
        return SSAValue(next(self._ids), type)

    def _emit(self, name: str, args: Sequence[SSAValue | None], type: Type | None, attrs: tuple = ()) -> Any:
        result = None if type is None else self._new(type)
        self._blocks[-1].append(Op(name, tuple(args), result, attrs))
        return result

    def finish(self) -> Function:
        """Return the Function; constants stand at its beginning, so that every region sees them."""
        return Function(
            self.name, self.buffers, self.scratch_base, self.task, self._const_ops + self.body, self._scratch
        )

    # -- constants and shapes of values

    def const(self, value: float | int | bool, elem: str = "i64", lanes: int = 0) -> SSAValue:
        """Return a literal, splatted where lanes > 0. Equal literals are one value."""
        out = self._constant(("const", repr(value), elem, lanes), Type(elem, lanes), (value,))
        if out.type in (I64, I1):
            self._known[out] = int(value)
        return out

    def known(self, x: SSAValue | int) -> int | None:
        """Return the constant value of an i64 or i1 scalar; None where it is not known."""
        return x if isinstance(x, int) else self._known.get(x)

    def index(self, value: SSAValue | int) -> SSAValue:
        """Return an index or count as a value; an int becomes an i64 constant."""
        return self.const(value) if isinstance(value, int) else value

    def iota(self, lanes: int, elem: str = "i64") -> SSAValue:
        """Return the vector 0, 1, ..., lanes-1."""
        return self.literal(range(lanes), elem)

    def literal(self, values: Sequence[float | int | bool], elem: str) -> SSAValue:
        """Return the vector of these numbers, lane by lane."""
        return self._constant(("literal", tuple(values), elem), Type(elem, len(values)), (tuple(values),))

    def _constant(self, key: tuple, type: Type, attrs: tuple = ()) -> SSAValue:
        """Return the constant of a key, whose first element names its instruction. Equal keys have one value."""
        if key not in self._consts:
            out = self._consts[key] = self._new(type)
            self._const_ops.append(Op(key[0], (), out, attrs))
        return self._consts[key]

    def splat(self, x: SSAValue, lanes: int) -> SSAValue:
        """Return a vector of x in every lane (x itself where lanes is 0 or it is a vector already)."""
        if lanes == 0 or x.type.lanes:
            return x
        return self._emit("splat", [x], Type(x.type.elem, lanes))

    def _splat_all(self, args: Sequence[SSAValue | int]) -> list[SSAValue]:
        values = [self.index(a) for a in args]
        lanes = max(a.type.lanes for a in values)
        return [self.splat(a, lanes) for a in values]

    def _fold(self, fn: str, args: Sequence[SSAValue | int]) -> SSAValue | None:
        """Fold a function of constants or with a neutral argument; return the result, or None if it does not fold."""
        numbers = [self.known(a) for a in args]
        if fn == "select":
            return None if numbers[0] is None else self.index(args[1 if numbers[0] else 2])
        if len(args) != 2:
            return None
        x, y = numbers
        if x is not None and y is not None and fn in FOLD and not (fn in ("floordiv", "mod") and y <= 0):
            folded = FOLD[fn](x, y)
            return self.const(folded, "i1" if fn in _COMPARE else "i64") if -(2**63) <= folded < 2**63 else None
        if y is not None and y == _NEUTRAL.get(fn):
            return self.index(args[0])
        if fn in ("add", "mul") and x == _NEUTRAL[fn]:
            return self.index(args[1])
        return self.const(0) if fn == "mul" and 0 in (x, y) or fn == "mod" and y == 1 else None

    # -- arithmetic; scalars meeting vectors are splatted

    def op(self, fn: str, *args: SSAValue | int) -> SSAValue:
        """Emit a scalar function of the IR (ir.functions) on scalars or vectors.

        Also fma(a, b, c) = a*b + c, and where(c, a, b), a select whose sides have both been evaluated. floordiv and mod
        follow Python. An int argument is an i64 constant; functions of constants are folded.

        Raises:
            CompileError: the argument types do not match, or there is no such instruction."""
        fn = "select" if fn == "where" else fn
        if any(isinstance(a, int) or a in self._known for a in args):
            folded = self._fold(fn, args)
            if folded is not None:
                return folded
        a = self._splat_all(args)
        if fn == "select":
            type = a[1].type
            if a[1].type != a[2].type or a[0].type.elem != "i1":
                raise CompileError(f"where of {[str(x.type) for x in a]}")
            return self._emit("select", a, type)
        if len({x.type for x in a}) != 1:
            raise CompileError(f"{fn} of {[str(x.type) for x in a]}")
        if a[0].type.elem in _MEMORY_ONLY:
            raise CompileError(f"{fn} in {a[0].type.elem}, a storage type")
        if fn in _COMPARE:
            return self._emit(fn, a, Type("i1", a[0].type.lanes))
        spec = FUNCTIONS.get(fn)
        arity = 3 if fn == "fma" else spec.arity if spec is not None and not spec.is_identity else 0
        if len(a) == arity and (arity < 3 or fn == "fma" or has_lanes(fn)):
            return self._emit(fn, a, a[0].type)
        if fn == "random_bits" and len(a) == 4 and a[0].type.elem == "i32":
            return self._emit(fn, a, a[0].type)
        raise CompileError(f"no instruction {fn} of {len(a)} arguments")

    def add(self, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """Emit a + b."""
        return self.op("add", a, b)

    def sub(self, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """Emit a - b."""
        return self.op("sub", a, b)

    def mul(self, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """Emit a*b."""
        return self.op("mul", a, b)

    def fma(self, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
        """Emit a*b + c."""
        return self.op("fma", a, b, c)

    def dot(self, name: str, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
        """Emit c + the products of the points of the words a and b: the dot product of this name (`dots.DOTS`)."""
        lanes, sums = c.type.lanes, DOTS[name].sum
        if [a.type, b.type, c.type] != [Type(WORD, lanes), Type(WORD, lanes), Type(sums, lanes)]:
            raise CompileError(f"the dot product {name} of {[str(x.type) for x in (a, b, c)]}")
        return self._emit("dot", [a, b, c], c.type, (name,))

    def pack(self, points: Sequence[SSAValue]) -> SSAValue:
        """Emit words of these points, the first in the lowest bits, of types that fill a word together."""
        points = self._splat_all(points)
        if len({x.type for x in points}) != 1 or len(points) * BYTES[points[0].type.elem] != WORD_BYTES:
            raise CompileError(f"a word of {[str(x.type) for x in points]}")
        return self._emit("pack", points, Type(WORD, points[0].type.lanes))

    def bitcast(self, x: SSAValue, elem: str) -> SSAValue:
        """Return the bits of x as elements of another type, of which a vector may hold more or fewer."""
        size, new = BYTES[x.type.elem] * max(x.type.lanes, 1), BYTES[elem]
        if size % new or (not x.type.lanes and size != new):
            raise CompileError(f"the bits of {x.type} as {elem}")
        return self._emit("bitcast", [x], Type(elem, size // new if x.type.lanes else 0))

    def select(self, c: SSAValue, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """Emit `a` where c holds, else `b`."""
        return self.op("select", c, a, b)

    def cast(self, x: SSAValue, elem: str) -> SSAValue:
        """Convert x to another element type.

        Float to integer rounds towards zero; a bool gives 0 or 1; to i1 by != 0; to f16 and bf16 to the nearest, ties
        to even, by way of f32."""
        return x if x.type.elem == elem else self._emit("cast", [x], Type(elem, x.type.lanes))

    # -- lanes

    def shuffle(self, a: SSAValue, b: SSAValue, lanes: Sequence[int]) -> SSAValue:
        """Return lanes selected from those of a followed by those of b, by literal numbers (-1: any value)."""
        return self._emit("shuffle", [a, b], Type(a.type.elem, len(lanes)), (tuple(lanes),))

    def extract(self, x: SSAValue, lane: int | SSAValue) -> SSAValue:
        """Emit one lane of a vector as a scalar."""
        if isinstance(lane, SSAValue):
            return self._emit("extract", [x, lane], Type(x.type.elem))
        return self._emit("extract", [x], Type(x.type.elem), (lane,))

    def insert(self, x: SSAValue, value: SSAValue, lane: int) -> SSAValue:
        """Emit a vector with one lane replaced by a scalar."""
        return self._emit("insert", [x, value], x.type, (lane,))

    def any(self, mask: SSAValue) -> SSAValue:
        """Return a scalar i1: whether some lane of an i1 vector holds."""
        return mask if not mask.type.lanes else self._emit("any", [mask], I1)

    # -- memory

    def load(
        self,
        ptr: SSAValue,
        offset: SSAValue | int,
        elem: str,
        lanes: int = 0,
        mask: SSAValue | None = None,
        other: SSAValue | None = None,
    ) -> SSAValue:
        """Load elements offset, offset+1, ... A masked-off lane (or scalar) is not touched and gives `other` (or 0)."""
        return self._emit("load", [ptr, self.index(offset), mask, other], Type(elem, lanes))

    def store(self, value: SSAValue, ptr: SSAValue, offset: SSAValue | int, mask: SSAValue | None = None) -> None:
        """Emit a store at `offset` (elements) after `ptr`, of the lanes in `mask` (None: all)."""
        self._emit("store", [ptr, self.index(offset), value, mask], None)

    def stream(self, value: SSAValue, ptr: SSAValue, offset: SSAValue) -> None:
        """Emit a non-temporal store; the address must be aligned to the vector."""
        self._emit("stream", [ptr, offset, value], None)

    def gather(self, ptr: SSAValue, offsets: SSAValue, elem: str, mask: SSAValue | None = None) -> SSAValue:
        """Load the element at offsets[l] (i32 or i64) into lane l; masked-off lanes are not touched and give 0."""
        return self._emit("gather", [ptr, offsets, mask], Type(elem, offsets.type.lanes))

    def scatter(self, value: SSAValue, ptr: SSAValue, offsets: SSAValue, mask: SSAValue | None = None) -> None:
        """Store lane l at offsets[l]; offsets are distinct."""
        self._emit("scatter", [ptr, offsets, value, mask], None)

    def prefetch(self, ptr: SSAValue, offset: SSAValue | int, elem: str) -> None:
        """Emit a prefetch of the cache line of the element at `offset` after `ptr`."""
        self._emit("prefetch", [ptr, self.index(offset)], None, (elem,))

    # -- tile registers, numbered, of 16 rows of 16 words each

    def tile_zero(self, register: int) -> None:
        """Set a tile register to zero."""
        self._emit("tile_zero", [], None, (register,))

    def tile_load(self, register: int, ptr: SSAValue, offset: SSAValue | int, stride: SSAValue | int) -> None:
        """Load a tile register; offset: elements of 32 bits after `ptr`; stride: such elements from row to row."""
        self._emit("tile_load", [ptr, self.index(offset), self.index(stride)], None, (register,))

    def tile_store(self, register: int, ptr: SSAValue, offset: SSAValue | int, stride: SSAValue | int) -> None:
        """Store a tile register; the arguments are those of `tile_load`."""
        self._emit("tile_store", [ptr, self.index(offset), self.index(stride)], None, (register,))

    def tile_dot(self, name: str, total: int, left: int, right: int, is_reversed: bool = False) -> None:
        """Add a product of matrices of words: total[i, j] += dot(left[i, k], right[k, j]), summed over k.

        name: the dot product; is_reversed: it takes the words of `right` first. A function uses one dot product.
        """
        if not {total, left, right} <= set(range(TILE_REGISTERS)) or total in (left, right):
            raise CompileError(f"tile registers {total}, {left} and {right}")
        self._emit("tile_dot", [], None, (name, total, left, right, is_reversed))

    def alloc(self, elem: str, n: int) -> SSAValue:
        """Return a pointer to n elements of the thread's scratch, aligned to 64 bytes, uninitialised at each task."""
        offset = self._scratch
        self._scratch += (n * BYTES[elem] + 63) // 64 * 64
        return self._emit("address", [self.scratch_base], PTR, (offset,))

    def address(self, ptr: SSAValue, offset: SSAValue | int, elem: str) -> SSAValue:
        """Return ptr advanced by offset elements."""
        return self._emit("advance", [ptr, self.index(offset)], PTR, (elem,))

    # -- control

    def loop(
        self,
        lo: SSAValue | int,
        hi: SSAValue | int,
        step: int = 1,
        init: Sequence[SSAValue] = (),
        unroll: int = 1,
        runs: bool = False,
        seldom: bool = False,
    ) -> Loop:
        """Open a loop: `with b.loop(0, n, init=[x]) as l: ...; l.next = [y]`, then `l.results`. Its variable is i64.

        unroll: above 1, the code generator repeats the body; the trip count must then be a known multiple of it. runs:
        lo < hi is certain, so no branch around the loop is generated; carried values then stay in registers from one
        run of the loop to the next, however many they are. seldom: there is one turn at most, and mostly none.
        """
        lo, hi = self.index(lo), self.index(hi)
        types = [v.type for v in init]
        var, carried, results = self._new(I64), tuple(map(self._new, types)), tuple(map(self._new, types))
        out = Loop(var, lo, hi, step, tuple(init), carried, results, unroll=unroll, runs=runs, seldom=seldom)
        out._builder = self
        self._blocks[-1].append(out)
        return out

    def if_(self, cond: SSAValue, seldom: bool = False) -> If:
        """Open a branch that runs where a condition holds (`seldom`: which it mostly does not); use the result in a
        `with` statement."""
        out = If(cond, seldom=seldom)
        out._builder = self
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

    def barrier(self) -> None:
        """Emit a barrier that loop-invariant code does not cross (keeps broadcasts from being hoisted and spilled)."""
        self._emit("barrier", [], None)
