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

import struct
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from einsmith.base.errors import CompileError
from einsmith.codegen.ssa import (
    BYTES,
    FOLD,
    INTEGERS,
    Loop,
    Op,
    SharedResult,
    SSABuilder,
    SSAValue,
    Type,
    operations,
)
from einsmith.codegen.ssa_text import show_body
from einsmith.gpu.tiles.operations import FLOATS, ROUNDINGS, common_shape, result_types
from einsmith.ir.analysis.ranges import wrapped


def memory_elem(elem: str) -> str:
    """Return the element type in memory: a bool is a byte, 0 or 1."""
    return "i8" if elem == "i1" else elem


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


@dataclass
class TileFunction:
    """A finished function. `constants` are visible everywhere in `body`; `cooperative`: its programs may wait for each
    other."""

    name: str
    parameters: tuple[TileParameter, ...]
    programs: int
    constants: list[Op]
    body: list[Op | Loop]
    cooperative: bool = False


_PACKED = {"i32": "<i", "i64": "<q", "f32": "<f", "f64": "<d"}


class TileBuilder(SSABuilder):
    """Builder of a TileFunction, which appends each instruction to the innermost open loop. Python integers become
    literals of the type of the other operands (i32 where there are none). Repeated computations are shared."""

    def __init__(self, name: str):
        super().__init__()
        self.name = name
        self.parameters: list[TileParameter] = []
        self._shared: dict[Hashable, SharedResult] = {}

    def finish(self, programs: int, cooperative: bool = False) -> TileFunction:
        """Return the function, which a number of programs run."""
        return TileFunction(self.name, tuple(self.parameters), programs, self._constant_ops, self.body, cooperative)

    def continue_from(self, f: TileFunction) -> None:
        """Begin with the parameters and constants of a finished function, whose values stay known."""
        self.parameters = list(f.parameters)
        self._constant_ops = list(f.constants)
        self._ids = count(1 + max((v.id for v in _defined(f)), default=-1))

    def parameter(self, p: TileParameter) -> int:
        """Return the number of a parameter, which is added where there is none equal to it."""
        if p not in self.parameters:
            self.parameters.append(p)
        return self.parameters.index(p)

    def _pure(self, name: str, args: Sequence[SSAValue], attrs: tuple = ()) -> tuple[SSAValue, ...]:
        """Emit an operation without effects; an equal one that is known here is shared."""
        key = (name, tuple(args), attrs)
        results = self.find_shared(self._shared, key)
        if results is None:
            results = self._emit(name, args, result_types(name, tuple(a.type for a in args), attrs), attrs)
            self.share(self._shared, key, results, self.depth)
        return results

    # -- literals

    def const(self, value: float | int | bool, elem: str = "i32") -> SSAValue:
        """Return a scalar literal; an integer wraps."""
        if elem in INTEGERS:
            value = wrapped(int(value), INTEGERS[elem])
        out = self._constant((repr(value), elem), "const", Type(elem), value)
        self._known[out] = value
        return out

    def _values(self, args: Sequence[SSAValue | int]) -> list[SSAValue]:
        elem = next((a.elem for a in args if isinstance(a, SSAValue)), "i32")
        return [a if isinstance(a, SSAValue) else self.const(a, elem) for a in args]

    # -- arithmetic

    def op(self, fn: str, *args: SSAValue | int) -> SSAValue:
        """Emit a function of UNARY, BINARY or COMPARE, lane by lane. Raises CompileError for types that do not fit."""
        a = self._values(args)
        folded = self._fold(fn, a)
        if folded is not None:
            return folded
        return self._pure(fn, a)[0]

    def shift(self, fn: str, x: SSAValue, bits: int) -> SSAValue:
        """Emit a function of SHIFTS."""
        value = self.known(x)
        if value is not None:
            mask = (1 << INTEGERS[x.elem]) - 1
            return self.const((int(value) & mask) >> bits if fn == "shr" else FOLD[fn](value, bits), x.elem)
        return self._pure(fn, [x], (bits,))[0]

    def select(self, c: SSAValue, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """Emit a where c holds, else b; both are computed."""
        a, b = self._values([a, b])
        if self.known(c) is not None:
            return a if self.known(c) else b
        return a if a is b else self._pure("select", [c, a, b])[0]

    def fma(self, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
        """Emit a*b + c of floats, rounded once."""
        return self._pure("fma", [a, b, c])[0]

    def cast(self, x: SSAValue, elem: str) -> SSAValue:
        """Emit a conversion to another type. The module's docstring says for which numbers it is defined."""
        value = self.known(x)
        if x.elem == elem:
            return x
        if isinstance(value, int) and elem in (*INTEGERS, *FLOATS):
            return self.const(value if elem in INTEGERS else float(value), elem)
        return self._pure("cast", [x], (elem,))[0]

    def bitcast(self, x: SSAValue, elem: str) -> SSAValue:
        """Reinterpret the bits of a value as another type of equal size."""
        value = self.known(x)
        if value is not None and x.elem in INTEGERS and elem in FLOATS:
            return self.const(struct.unpack(_PACKED[elem], struct.pack(_PACKED[x.elem], value))[0], elem)
        return self._pure("bitcast", [x], (elem,))[0]

    def conjoin(self, conditions: Sequence[SSAValue]) -> SSAValue | None:
        """Emit the conjunction of conditions; None where it holds everywhere."""
        out: SSAValue | None = None
        for c in dict.fromkeys(conditions):
            out = c if out is None else self.op("and", out, c)
        return None if out is not None and self.known(out) is True else out

    # -- tiles

    def program(self) -> SSAValue:
        """Emit the number of this program, an i32 scalar."""
        return self._pure("program", [])[0]

    def arange(self, n: int) -> SSAValue:
        """Emit 0, 1, ..., n-1 as an i32 tile of one dimension."""
        return self._pure("arange", [], (n,))[0]

    def expand(self, x: SSAValue, axis: int) -> SSAValue:
        """Insert a dimension of extent 1 before dimension `axis` of a tile; a scalar stays one."""
        return self._pure("expand", [x], (axis,))[0] if x.shape else x

    def broadcast(self, x: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        """Repeat a scalar, or a tile along its extents of 1, to `shape`."""
        return x if x.shape == shape else self._pure("broadcast", [x], shape)[0]

    def full(self, shape: tuple[int, ...], value: float | int | bool, elem: str) -> SSAValue:
        """Emit a tile of one literal."""
        return self.broadcast(self.const(value, elem), shape)

    def dot(self, a: SSAValue, b: SSAValue, total: SSAValue, precision: str) -> SSAValue:
        """Emit total[m, n] + sum over k of a[m, k]*b[k, n]."""
        return self._pure("dot", [a, b, total], (precision,))[0]

    def reduce(self, combiner: str, axis: int, *tiles: SSAValue) -> tuple[SSAValue, ...]:
        """Combine tiles along a dimension, which is removed: one tile, or, for argmax and argmin, values and
        places."""
        return self._pure("reduce", tiles, (combiner, axis))

    # -- memory

    def load(self, parameter: int, offset: SSAValue, mask: SSAValue | None = None) -> SSAValue:
        """Load the elements at offsets; zero where the mask does not hold."""
        elem = self.parameters[parameter].elem
        shape = offset.shape if mask is None else common_shape([offset.shape, mask.shape])
        other = None if mask is None else self.const(0.0 if elem[0] in "fb" else 0, elem)
        args = (self.broadcast(offset, shape), None if mask is None else self.broadcast(mask, shape), other)
        return self._emit("load", args, (Type(elem, shape),), (), parameter)[0]

    def store(self, parameter: int, offset: SSAValue, value: SSAValue, mask: SSAValue | None = None) -> None:
        """Emit a store to a parameter at offsets (elements), where the mask holds (None: everywhere)."""
        shape = common_shape([offset.shape, value.shape, () if mask is None else mask.shape])
        args = [None if x is None else self.broadcast(x, shape) for x in (offset, value, mask)]
        self._emit("store", args, memory=parameter)

    def barrier(self) -> None:
        """Emit a barrier: loads after it see what the program has stored before it."""
        self._emit("barrier", ())

    def grid_barrier(self, parameter: int) -> None:
        """Emit a barrier of all programs of a cooperative function, which count themselves in a parameter."""
        self._emit("grid_barrier", (), memory=parameter)

    # -- control

    def end_if(self, condition: SSAValue) -> None:
        """End the program where a scalar holds."""
        self._emit("end_if", (condition,))

    def loop(self, lo: SSAValue | int, hi: SSAValue | int, step: int, init: Sequence[SSAValue] = ()) -> Loop:
        """Open a loop: `with b.loop(0, n, 16, [x]) as l: ...; l.next = [y]`, then `l.results`."""
        lo, hi = self._values([lo, hi]) if isinstance(lo, SSAValue) else reversed(self._values([hi, lo]))
        return self._loop(lo, hi, step, init)

    # -- other functions

    def inline(self, f: TileFunction, program: SSAValue, places: Sequence[tuple[int, SSAValue]]) -> None:
        """Inline the body of a finished function, as one of its programs runs it.

        Args:
            f: the function.
            program: the number of the program, an i32.
            places: for each of its parameters, the corresponding parameter of this builder and the number of its first
                element there.

        Raises:
            CompileError: its programs may end early, or wait for each other.
        """
        values = {x.result: self.const(x.attrs[0], x.result.elem) for x in f.constants}

        def place(x: Op) -> Op | None:
            if x.name in ("end_if", "grid_barrier"):
                raise CompileError(f"{f.name} becomes no part of {self.name}: it has the instruction {x.name}")
            if x.name == "program":
                values[x.result] = program
                return None
            if x.memory is None:
                return x
            memory, first = places[x.memory]
            offset, *args = (None if v is None else values[v] for v in x.args)
            assert offset is not None
            return replace(x, args=(self.op("add", first, self.cast(offset, first.elem)), *args), memory=memory)

        self.copy(f.body, values, place)


def _defined(f: TileFunction) -> Iterator[SSAValue]:
    """Yield all values that a function defines."""
    pending: list[Op | Loop] = [*f.constants, *f.body]
    while pending:
        x = pending.pop()
        yield from x.results
        if isinstance(x, Loop):
            yield from (x.var, *x.carried)
            pending += x.body


def show(f: TileFunction) -> str:
    """Return a function as text, one instruction a line; constants stand where they are used."""
    parameters = ", ".join(f"p{n}: {p.elem}[{p.size}]" for n, p in enumerate(f.parameters))
    head = f"function {f.name}({parameters}) of {f.programs} programs{', cooperative' * f.cooperative}"
    return show_body(head, [*f.constants, *f.body], Type("i32"))


def rounding_of(functions: Sequence[TileFunction]) -> float:
    """Return the factor by which products of some functions round more than arithmetic of their types."""
    precisions = {x.attrs[0] for f in functions for x in operations(f.body) if x.name == "dot"}
    return max((ROUNDINGS[p] for p in precisions), default=1.0)
