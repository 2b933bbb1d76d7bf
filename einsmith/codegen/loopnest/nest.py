"""Define the loop nest, the intermediate representation that patterns build and code generators read.

A Function is a list of instructions in static single assignment with nested regions. Values are scalars or vectors
of f32, f64, i1, i8, i16, i32, i64, or `ptr`; those of f16, bf16 and u8 are only moved, chosen and converted. Offsets
are counted in elements, never in bytes. Nothing here knows a backend.

A kernel's function runs once per task: it gets the pointers of its buffers, a scratch area of its own thread, and the
number of its task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from einsmith.base import dtypes as dt
from einsmith.base.errors import CompileError
from einsmith.codegen.loopnest.dots import DOTS, TILE_REGISTERS, WORD, WORD_BYTES
from einsmith.codegen.ssa import BYTES, COMPARE, Loop, SSABuilder, SSAValue, Type, elem_of, vector
from einsmith.ir.functions import FUNCTIONS, has_lanes

I64, I32, I1, PTR = Type("i64"), Type("i32"), Type("i1"), Type("ptr")
_MEMORY_ONLY = frozenset(elem_of(d) for d in dt.ALL if d.in_memory_only)
"""Element types that are loaded, stored, selected and converted, but not computed in."""


@lru_cache(maxsize=4096)
def function_type(fn: str, *types: Type) -> Type:
    """Return the type of a function of the IR, of fma or of select on values of these types. Raises CompileError."""
    first = types[0]
    if fn == "select":
        if len(types) != 3 or types[1] != types[2] or first.elem != "i1" or first.lanes not in (0, types[1].lanes):
            raise CompileError(f"where of {[*map(str, types)]}")
        return types[1]
    if len({*types}) != 1:
        raise CompileError(f"{fn} of {[*map(str, types)]}")
    if first.elem in _MEMORY_ONLY:
        raise CompileError(f"{fn} in {first.elem}, a storage type")
    if fn in COMPARE and len(types) == 2:
        return vector("i1", first.lanes)
    spec = FUNCTIONS.get(fn)
    arity = 3 if fn == "fma" else spec.arity if spec is not None and not spec.is_identity else 0
    if len(types) == arity and (arity < 3 or fn == "fma" or has_lanes(fn)):
        return first
    if fn == "random_bits" and len(types) == 4 and first.elem == "i32":
        return first
    raise CompileError(f"no instruction {fn} of {len(types)} arguments")


def dot_type(name: str, *types: Type) -> Type:
    """Return the type of a dot product of words (`dots.DOTS`). Raises CompileError."""
    total = types[-1]
    if types != (*[vector(WORD, total.lanes)] * 2, vector(DOTS[name].sum, total.lanes)):
        raise CompileError(f"the dot product {name} of {[*map(str, types)]}")
    return total


def word_type(*types: Type) -> Type:
    """Return the type of words of points of these types. Raises CompileError where they do not fill a word."""
    if len({*types}) != 1 or len(types) * BYTES[types[0].elem] != WORD_BYTES:
        raise CompileError(f"a word of {[*map(str, types)]}")
    return vector(WORD, types[0].lanes)


def bits_type(x: Type, elem: str) -> Type:
    """Return the type of the bits of a value as elements of another type. Raises CompileError where none fits."""
    size, new = BYTES[x.elem] * max(x.lanes, 1), BYTES[elem]
    if size % new or (not x.lanes and size != new):
        raise CompileError(f"the bits of {x} as {elem}")
    return vector(elem, size // new if x.lanes else 0)


def check_tile_registers(total: int, left: int, right: int) -> None:
    """Raise CompileError unless these are registers of tiles, and the product is none of its factors."""
    if not {total, left, right} <= set(range(TILE_REGISTERS)) or total in (left, right):
        raise CompileError(f"tile registers {total}, {left} and {right}")


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


class Builder(SSABuilder):
    """A builder of a Function."""

    def __init__(self, name: str, buffers: int):
        super().__init__()
        self.name = name
        self.buffers = tuple(self._new(PTR) for _ in range(buffers))
        self.scratch_base = self._new(PTR)
        self.task = self._new(I64)
        self._scratch = 0

    def finish(self) -> Function:
        """Return the Function; constants stand at its beginning, so that every region sees them."""
        return Function(
            self.name, self.buffers, self.scratch_base, self.task, self._constant_ops + self.body, self._scratch
        )

    # -- constants and shapes of values

    def const(self, value: float | int | bool, elem: str = "i64", lanes: int = 0) -> SSAValue:
        """Return a literal, splatted where lanes > 0. Equal literals are one value."""
        out = self._constant(("const", repr(value), elem, lanes), "const", vector(elem, lanes), value)
        if out.type in (I64, I1):
            self._known[out] = bool(value) if out.type is I1 else int(value)
        return out

    def iota(self, lanes: int, elem: str = "i64") -> SSAValue:
        """Return the vector 0, 1, ..., lanes-1."""
        return self.literal(range(lanes), elem)

    def literal(self, values: Sequence[float | int | bool], elem: str) -> SSAValue:
        """Return the vector of these numbers, lane by lane."""
        key = ("literal", tuple(values), elem)
        return self._constant(key, "literal", vector(elem, len(values)), tuple(values))

    def splat(self, x: SSAValue, lanes: int) -> SSAValue:
        """Return a vector of x in every lane (x itself where lanes is 0 or it is a vector already)."""
        if lanes == 0 or x.type.lanes:
            return x
        return self._result("splat", [x], vector(x.type.elem, lanes))

    def _splat_all(self, args: Sequence[SSAValue | int]) -> list[SSAValue]:
        values = [self.index(a) for a in args]
        lanes = max(a.type.lanes for a in values)
        return [self.splat(a, lanes) for a in values]

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
        return self._result(fn, a, function_type(fn, *[x.type for x in a]))

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
        return self._result("dot", [a, b, c], dot_type(name, a.type, b.type, c.type), (name,))

    def pack(self, points: Sequence[SSAValue]) -> SSAValue:
        """Emit words of these points, the first in the lowest bits, of types that fill a word together."""
        points = self._splat_all(points)
        return self._result("pack", points, word_type(*[x.type for x in points]))

    def bitcast(self, x: SSAValue, elem: str) -> SSAValue:
        """Return the bits of x as elements of another type, of which a vector may hold more or fewer."""
        return self._result("bitcast", [x], bits_type(x.type, elem))

    def select(self, c: SSAValue, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """Emit `a` where c holds, else `b`."""
        return self.op("select", c, a, b)

    def cast(self, x: SSAValue, elem: str) -> SSAValue:
        """Convert x to another element type.

        Float to integer rounds towards zero; a bool gives 0 or 1; to i1 by != 0; to f16 and bf16 to the nearest, ties
        to even, by way of f32."""
        return x if x.type.elem == elem else self._result("cast", [x], vector(elem, x.type.lanes))

    # -- lanes

    def shuffle(self, a: SSAValue, b: SSAValue, lanes: Sequence[int]) -> SSAValue:
        """Return lanes selected from those of a followed by those of b, by literal numbers (-1: any value)."""
        return self._result("shuffle", [a, b], vector(a.type.elem, len(lanes)), (tuple(lanes),))

    def extract(self, x: SSAValue, lane: int | SSAValue) -> SSAValue:
        """Emit one lane of a vector as a scalar."""
        if isinstance(lane, SSAValue):
            return self._result("extract", [x, lane], Type(x.type.elem))
        return self._result("extract", [x], Type(x.type.elem), (lane,))

    def insert(self, x: SSAValue, value: SSAValue, lane: int) -> SSAValue:
        """Emit a vector with one lane replaced by a scalar."""
        return self._result("insert", [x, value], x.type, (lane,))

    def any(self, mask: SSAValue) -> SSAValue:
        """Return a scalar i1: whether some lane of an i1 vector holds."""
        return mask if not mask.type.lanes else self._result("any", [mask], I1)

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
        return self._result("load", [ptr, self.index(offset), mask, other], vector(elem, lanes))

    def store(self, value: SSAValue, ptr: SSAValue, offset: SSAValue | int, mask: SSAValue | None = None) -> None:
        """Emit a store at `offset` (elements) after `ptr`, of the lanes in `mask` (None: all)."""
        self._emit("store", [ptr, self.index(offset), value, mask])

    def stream(self, value: SSAValue, ptr: SSAValue, offset: SSAValue) -> None:
        """Emit a non-temporal store; the address must be aligned to the vector."""
        self._emit("stream", [ptr, offset, value])

    def gather(self, ptr: SSAValue, offsets: SSAValue, elem: str, mask: SSAValue | None = None) -> SSAValue:
        """Load the element at offsets[l] (i32 or i64) into lane l; masked-off lanes are not touched and give 0."""
        return self._result("gather", [ptr, offsets, mask], vector(elem, offsets.type.lanes))

    def scatter(self, value: SSAValue, ptr: SSAValue, offsets: SSAValue, mask: SSAValue | None = None) -> None:
        """Store lane l at offsets[l]; offsets are distinct."""
        self._emit("scatter", [ptr, offsets, value, mask])

    def prefetch(self, ptr: SSAValue, offset: SSAValue | int, elem: str) -> None:
        """Emit a prefetch of the cache line of the element at `offset` after `ptr`."""
        self._emit("prefetch", [ptr, self.index(offset)], (), (elem,))

    # -- tile registers, numbered, of 16 rows of 16 words each

    def tile_zero(self, register: int) -> None:
        """Set a tile register to zero."""
        self._emit("tile_zero", [], (), (register,))

    def tile_load(self, register: int, ptr: SSAValue, offset: SSAValue | int, stride: SSAValue | int) -> None:
        """Load a tile register; offset: elements of 32 bits after `ptr`; stride: such elements from row to row."""
        self._emit("tile_load", [ptr, self.index(offset), self.index(stride)], (), (register,))

    def tile_store(self, register: int, ptr: SSAValue, offset: SSAValue | int, stride: SSAValue | int) -> None:
        """Store a tile register; the arguments are those of `tile_load`."""
        self._emit("tile_store", [ptr, self.index(offset), self.index(stride)], (), (register,))

    def tile_dot(self, name: str, total: int, left: int, right: int, is_reversed: bool = False) -> None:
        """Add a product of matrices of words: total[i, j] += dot(left[i, k], right[k, j]), summed over k.

        name: the dot product; is_reversed: it takes the words of `right` first. A function uses one dot product.
        """
        check_tile_registers(total, left, right)
        self._emit("tile_dot", [], (), (name, total, left, right, is_reversed))

    def alloc(self, elem: str, n: int) -> SSAValue:
        """Return a pointer to n elements of the thread's scratch, aligned to 64 bytes, uninitialised at each task."""
        offset = self._scratch
        self._scratch += (n * BYTES[elem] + 63) // 64 * 64
        return self._result("address", [self.scratch_base], PTR, (offset,))

    def address(self, ptr: SSAValue, offset: SSAValue | int, elem: str) -> SSAValue:
        """Return ptr advanced by offset elements."""
        return self._result("advance", [ptr, self.index(offset)], PTR, (elem,))

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
        return self._loop(self.index(lo), self.index(hi), step, init, unroll, runs, seldom)

    def barrier(self) -> None:
        """Emit a barrier that loop-invariant code does not cross (keeps broadcasts from being hoisted and spilled)."""
        self._emit("barrier", [])
