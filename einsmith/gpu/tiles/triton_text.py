"""Print functions of the tile IR as the source text of Triton kernels; Triton is not imported here.

Extents and offsets are literals in the text: a kernel receives pointers and nothing else. Types that Triton would
infer are spelled out: literals other than i32 have a type, minima and maxima keep NaN, quotients and square roots are
rounded to the nearest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from einsmith.base.errors import CompileError
from einsmith.codegen.ssa import BYTES, Loop, Op, SSAValue, Type, operations
from einsmith.gpu.tiles.ir import TileFunction
from einsmith.gpu.tiles.operations import FLOATS, HALVES

_TYPES = {
    "i1": "tl.int1",
    "i8": "tl.int8",
    "u8": "tl.uint8",
    "i16": "tl.int16",
    "i32": "tl.int32",
    "i64": "tl.int64",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "f32": "tl.float32",
    "f64": "tl.float64",
}
_POINTERS = {
    "i8": "*i8",
    "u8": "*u8",
    "i16": "*i16",
    "i32": "*i32",
    "i64": "*i64",
    "f16": "*fp16",
    "bf16": "*bf16",
    "f32": "*fp32",
    "f64": "*fp64",
}
ALIGNED = 16
"""Bytes at a multiple of which memory may be loaded and stored by that many bytes at once."""
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "quot": "//",
    "rem": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
    "shl": "<<",
    "sar": ">>",
}
_HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
_COMBINERS = {
    "sum": "def _sum(a, b):\n    return a + b",
    "prod": "def _prod(a, b):\n    return a * b",
    "max": "def _max(a, b):\n    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "min": "def _min(a, b):\n    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    **{
        f"arg{name}": f"def _arg{name}(a, i, b, j):\n"
        f"    first = (a {sign} b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))\n"
        "    return tl.where(first, a, b), tl.where(first, i, j)"
        for name, sign in (("max", ">"), ("min", "<"))
    },
}
"""Functions by which `reduce` combines two elements; a NaN goes before every number."""
_GRID_BARRIER = """@triton.jit
def _grid_barrier(arrived, step):
    tl.debug_barrier()
    before = tl.atomic_add(arrived, step, sem="acq_rel", scope="gpu")
    while (tl.atomic_add(arrived, 0, sem="acquire", scope="gpu") ^ before) >= 0:
        pass
    tl.debug_barrier()
"""
"""Function in which all programs wait for each other. The steps of all add up to 2^31, so that the highest bit of
`arrived` changes when the last one arrives, and the other bits are 0 again: no launch need reset it."""
_PAD = "    "


def triton_text(functions: Sequence[TileFunction]) -> str:
    """Return a module of kernels, whose arguments are their parameters p0, p1, ... in order."""
    used = {x.attrs[0] for f in functions for x in operations(f.body) if x.name == "reduce"}
    parts = [_HEAD, *(f"@triton.jit\n{text}\n" for name, text in _COMBINERS.items() if name in used)]
    if any(x.name == "grid_barrier" for f in functions for x in operations(f.body)):
        parts.append(_GRID_BARRIER)
    return "\n\n".join([*parts, *(_Text(f).text() for f in functions)])


def signature(f: TileFunction, launches: Iterable[Sequence[int]]) -> list[str]:
    """Return the types of a function's arguments as Triton spells them; `*fp32:16` promises that a pointer is a
    multiple of 16 bytes. An access faults where it is not, so that it must be one in every launch.

    launches: for each launch the addresses of the kernel's buffers and, last, of the workspace. Raises CompileError
    where there is no launch.
    """
    launch_addresses = list(launches)
    if not launch_addresses:
        raise CompileError(f"{f.name}: nothing is known of where its arguments lie")
    starts = [[p.address(addresses) for addresses in launch_addresses] for p in f.parameters]
    return [pointer_type(p.elem, all(n % ALIGNED == 0 for n in s)) for p, s in zip(f.parameters, starts, strict=True)]


def pointer_type(elem: str, is_aligned: bool) -> str:
    """Return the type of a pointer as Triton spells it, with the promise that it is a multiple of ALIGNED bytes."""
    return _POINTERS[elem] + f":{ALIGNED}" * is_aligned


def _literal(value: float | int | bool, elem: str) -> str:
    if elem == "i32":
        return repr(value)
    x = repr(value)
    if isinstance(value, float) and value == 0 and math.copysign(1.0, value) < 0:
        # Triton takes a zero of either sign for +0.0.
        bits = 8 * BYTES[elem]
        return f"tl.full((), {-(1 << (bits - 1))}, tl.int{bits}).to({_TYPES[elem]}, bitcast=True)"
    if isinstance(value, float) and not math.isfinite(value):
        x = f'float("{value}")'
    return f"tl.full((), {x}, {_TYPES[elem]})"


class _Text:
    """The text of one function, line by line."""

    def __init__(self, f: TileFunction):
        self.f = f
        self.names: dict[SSAValue, str] = {}
        self.lines: list[str] = []
        self.exchanged = {x.memory for x in operations(f.body) if x.name == "store"} if f.cooperative else set()
        """Parameters through which programs pass elements to each other."""

    def text(self) -> str:
        f = self.f
        parameters = ", ".join(f"p{n}" for n in range(len(f.parameters)))
        self.lines = ["@triton.jit", f"def {f.name}({parameters}):"]
        for x in f.constants:
            (out,) = x.results
            literal = _literal(x.attrs[0], out.elem)
            self.names[out] = literal if out.elem == "i32" else self._let(out, literal, 1)
        self._block(f.body, 1)
        return "\n".join(self.lines) + "\n"

    def _let(self, v: SSAValue, text: str, depth: int) -> str:
        name = self.names[v] = f"v{v.id}"
        self.lines.append(f"{_PAD * depth}{name} = {text}")
        return name

    def _block(self, body: Sequence[Op | Loop], depth: int) -> None:
        for x in body:
            if isinstance(x, Loop):
                self._loop(x, depth)
            elif x.results:
                names = [self.names.setdefault(v, f"v{v.id}") for v in x.results]
                self.lines.append(f"{_PAD * depth}{', '.join(names)} = {self._expression(x)}")
            elif x.name == "end_if":
                self.lines += [f"{_PAD * depth}if {self._name(x.args[0])}:", f"{_PAD * (depth + 1)}return"]
            else:
                self.lines.append(_PAD * depth + self._expression(x))

    def _loop(self, x: Loop, depth: int) -> None:
        """Print a loop. A carried tile is one name before, in and after the loop, as Triton requires."""
        for carried, result, first in zip(x.carried, x.results, x.init, strict=True):
            self.names[result] = self._let(carried, self._name(first), depth)
        self.names[x.var] = f"v{x.var.id}"
        lo, hi = self._name(x.lo), self._name(x.hi)
        if any(isinstance(i, Op) and i.name == "dot" for i in x.body):
            # The assembler unrolls a loop whose turns it can count, up to hundreds of them. Here it cannot: it does not
            # know that there is one program along the second axis.
            hi += " + tl.program_id(1)"
        self.lines.append(f"{_PAD * depth}for v{x.var.id} in range({lo}, {hi}, {x.step}):")
        self._block(x.body, depth + 1)
        for carried, after in zip(x.carried, x.next, strict=True):
            if after in x.carried and after is not carried:
                raise CompileError(f"{self.f.name}: a loop exchanges what it carries")
            self.lines.append(f"{_PAD * (depth + 1)}{self._name(carried)} = {self._name(after)}")
        if not x.body and not x.next:
            self.lines.append(f"{_PAD * (depth + 1)}pass")

    def _name(self, v: SSAValue | None) -> str:
        assert v is not None
        return self.names[v]

    def _expression(self, x: Op) -> str:
        special = _SPECIAL.get(x.name)
        if special is not None:
            return special(self, x)
        a = [self._name(v) for v in x.args]
        elem = x.args[0].elem if x.args and x.args[0] is not None else ""
        if x.name in ("min", "max"):
            nan = ", propagate_nan=tl.PropagateNan.ALL" if elem in FLOATS else ""
            return f"tl.{x.name}imum({a[0]}, {a[1]}{nan})"
        if x.name == "rem" and elem in FLOATS:  # `%` is x - trunc(x/y)*y, or a floor, of a quotient that is rounded
            return f"libdevice.fmod({a[0]}, {a[1]})"
        if x.name in _INFIX:
            return f"{a[0]} {_INFIX[x.name]} {a[1] if len(a) > 1 else x.attrs[0]}"
        if x.name == "div":
            return f"tl.div_rn({a[0]}, {a[1]})" if elem == "f32" else f"{a[0]} / {a[1]}"
        if x.name == "sqrt":
            return f"tl.sqrt_rn({a[0]})" if elem == "f32" else f"tl.sqrt({a[0]})"
        raise CompileError(f"{self.f.name}: Triton has no {x.name}")

    # -- instructions whose text is their own

    def _call(self, name: str) -> Callable[[Op], str]:
        return lambda x: f"{name}({', '.join(self._name(v) for v in x.args)})"

    def _cast(self, x: Op) -> str:
        return f"{self._name(x.args[0])}.to({_TYPES[x.result.elem]})"

    def _bitcast(self, x: Op) -> str:
        return f"{self._name(x.args[0])}.to({_TYPES[x.result.elem]}, bitcast=True)"

    def _neg(self, x: Op) -> str:
        """Print a negation. Triton's minus is 0 - x, which leaves +0.0 unchanged, so floats are multiplied by -1.0."""
        name = self._name(x.args[0])
        return f"{name} * -1.0" if x.result.elem in FLOATS else f"-{name}"

    def _shr(self, x: Op) -> str:
        """Print a logical right shift through an unsigned type, as Triton shifts copies of the sign into signed
        integers."""
        elem = x.result.elem
        unsigned = f"{self._name(x.args[0])}.to(tl.u{_TYPES[elem][3:]}, bitcast=True)"
        return f"({unsigned} >> {x.attrs[0]}).to({_TYPES[elem]}, bitcast=True)"

    def _expand(self, x: Op) -> str:
        index = ["None" if d == x.attrs[0] else ":" for d in range(len(x.result.shape))]
        return f"{self._name(x.args[0])}[{', '.join(index)}]"

    def _broadcast(self, x: Op) -> str:
        (v,), out = x.args, x.result
        assert v is not None
        if v.shape:
            return f"tl.broadcast_to({self._name(v)}, {_shape(out.type)})"
        return f"tl.full({_shape(out.type)}, {self._name(v)}, {_TYPES[out.elem]})"

    def _dot(self, x: Op) -> str:
        a, b, total = map(self._name, x.args)
        elem, precision = x.result.elem, x.attrs[0]
        if x.args[0] is not None and x.args[0].elem in HALVES:
            return f"tl.dot({a}, {b}, {total}, out_dtype={_TYPES[elem]})"
        if precision == "bf16":
            return f"tl.dot({a}.to(tl.bfloat16), {b}.to(tl.bfloat16), {total}, out_dtype={_TYPES[elem]})"
        return f'tl.dot({a}, {b}, {total}, input_precision="{precision}", out_dtype={_TYPES[elem]})'

    def _reduce(self, x: Op) -> str:
        combiner, axis = x.attrs
        tiles = ", ".join(map(self._name, x.args))
        return f"tl.reduce({f'({tiles})' if len(x.args) > 1 else tiles}, {axis}, _{combiner})"

    def _load(self, x: Op) -> str:
        offset, mask, other = x.args
        masked = "" if mask is None else f", mask={self._name(mask)}, other={self._name(other)}"
        # What another multiprocessor has stored is in the level 2 cache, and may be older in the level 1 cache.
        cached = ', cache_modifier=".cg"' if x.memory in self.exchanged else ""
        return f"tl.load(p{x.memory} + {self._name(offset)}{masked}{cached})"

    def _grid_barrier(self, x: Op) -> str:
        """Print a grid barrier: program 0 steps to 2^31 less the steps of 1 of the others."""
        others = self.f.programs - 1
        if not others:
            return "tl.debug_barrier()"
        first = f"tl.where(tl.program_id(0) == 0, {2**31 - others}, 1)"
        return f"_grid_barrier(p{x.memory}, {first})"

    def _store(self, x: Op) -> str:
        offset, value, mask = x.args
        masked = "" if mask is None else f", mask={self._name(mask)}"
        return f"tl.store(p{x.memory} + {self._name(offset)}, {self._name(value)}{masked})"


def _shape(type: Type) -> str:
    return f"({', '.join(map(str, type.shape))}{',' if len(type.shape) == 1 else ''})"


def _call_named(name: str) -> Callable[[_Text, Op], str]:
    return lambda text, x: text._call(name)(x)


_SPECIAL: dict[str, Callable[[_Text, Op], str]] = {
    "program": lambda text, x: "tl.program_id(0)",
    "arange": lambda text, x: f"tl.arange(0, {x.result.shape[0]})",
    "barrier": lambda text, x: "tl.debug_barrier()",
    "grid_barrier": _Text._grid_barrier,
    "neg": _Text._neg,
    "not": lambda text, x: f"{text._name(x.args[0])} == 0",
    "abs": _call_named("tl.abs"),
    "floor": _call_named("tl.floor"),
    "sin": _call_named("libdevice.sin"),
    "cos": _call_named("libdevice.cos"),
    "pow": _call_named("libdevice.pow"),
    "select": _call_named("tl.where"),
    "fma": _call_named("tl.fma"),
    "cast": _Text._cast,
    "bitcast": _Text._bitcast,
    "shr": _Text._shr,
    "expand": _Text._expand,
    "broadcast": _Text._broadcast,
    "dot": _Text._dot,
    "reduce": _Text._reduce,
    "load": _Text._load,
    "store": _Text._store,
}
