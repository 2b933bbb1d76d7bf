"""Spell types and constants as LLVM IR text, and collect the lines of a function."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from einsmith.codegen.llvm import half
from einsmith.codegen.ssa import Type

_INTEGERS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
"""Bits of the integer types that the nest and LLVM name alike."""


BITS = {"f32": 32, "f64": 64, "f16": 16, "bf16": 16, "u8": 8} | _INTEGERS
"""Bits of an element, by element type name."""


LLVM_ELEM = {"f32": "float", "f64": "double", "ptr": "ptr", "f16": "i16", "bf16": "i16", "u8": "i8"} | {
    x: x for x in _INTEGERS
}
"""LLVM's element types by element type name. f16, bf16 and u8 are only moved, selected and converted, so that integers
hold their bits."""


FLOATS = ("f32", "f64")
"""The float types in which arithmetic is done."""


SUFFIX = LLVM_ELEM | {"f32": "f32", "f64": "f64", "ptr": "p0"}
"""How the names of overloaded intrinsics spell an element type, by element type name."""


def spell(type: Type) -> str:
    """Return the LLVM spelling of a type."""
    return f"<{type.lanes} x {LLVM_ELEM[type.elem]}>" if type.lanes else LLVM_ELEM[type.elem]


def mangle(type: Type) -> str:
    """Return the suffix of an overloaded intrinsic's name for a type."""
    return f"v{type.lanes}{SUFFIX[type.elem]}" if type.lanes else SUFFIX[type.elem]


def literal(value: float | int | bool, elem: str) -> str:
    """Return the spelling of a scalar constant of an element type.

    f32 and f64 are spelled as the bits of a double, after f32 is rounded to single precision: LLVM rounds nothing.
    """
    if elem in FLOATS:
        x = float(value)
        if math.isnan(x):
            return "0x7FF8000000000000"
        if elem == "f32":
            try:
                x = struct.unpack("<f", struct.pack("<f", x))[0]
            except OverflowError:
                x = math.copysign(math.inf, x)
        return f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}"
    if elem == "i1":
        return "true" if value else "false"
    if elem in half.FORMATS:
        return str(half.bits_of(float(value), elem))
    return str(int(value))


def constant(value: float | int | bool, type: Type) -> str:
    """Return the operand of a constant; a vector type has the value in every lane."""
    text = literal(value, type.elem)
    return f"splat ({LLVM_ELEM[type.elem]} {text})" if type.lanes else text


def lanes_constant(values: Sequence[float | int | bool], elem: str) -> str:
    """Return the operand of a constant vector with these lanes."""
    return "<" + ", ".join(f"{LLVM_ELEM[elem]} {literal(v, elem)}" for v in values) + ">"


class FunctionText:
    """The text of one function under construction.

    Args:
        declarations: text by name of the functions that the module declares or defines in addition; functions of one
            module share it
        fma: whether the target has an instruction that multiplies and adds
        halves: whether the target has instructions that convert between float16 and float32
        features: LLVM's names of the target's features, those that its processor has by definition left out

    Attributes:
        lines: the lines emitted so far
        block: label of the basic block to which lines are added
    """

    def __init__(self, declarations: dict[str, str], fma: bool, halves: bool, features: frozenset[str]):
        self.lines: list[str] = []
        self.declarations = declarations
        self.fma, self.halves, self.features = fma, halves, features
        self.block = "entry"
        self._count = 0
        self._shared: list[dict[str, str]] = [{}]  # results by instruction, per open region, the innermost last

    def fresh(self, prefix: str = "v") -> str:
        """Return a name for a value or a block that is new in this function, without LLVM's `%`."""
        self._count += 1
        return f"{prefix}{self._count}"

    def emit(self, text: str) -> str:
        """Emit an instruction, `text`, that has a result; return the operand of the result, a new name."""
        name = f"%{self.fresh()}"
        self.lines.append(f"  {name} = {text}")
        return name

    def emit_void(self, text: str) -> None:
        """Emit an instruction that has no result."""
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        """Begin the basic block `name`."""
        self.lines.append(f"{name}:")
        self.block = name

    def emit_shared(self, text: str) -> str:
        """Emit a pure instruction and return the operand of its result. Where this region or an enclosing one has an
        equal instruction emitted by `emit_shared`, its result is returned instead."""
        for region in self._shared:
            if text in region:
                return region[text]
        name = self.emit(text)
        self._shared[-1][text] = name
        return name

    def open_region(self) -> None:
        """Open a region, such as a branch. Code after it does not reuse the results that `emit_shared` emits in it, as
        the region may not have run."""
        self._shared.append({})

    def close_region(self) -> None:
        """Close the region that was opened last."""
        self._shared.pop()

    def call(self, name: str, result: Type, args: Sequence[tuple[Type, str]]) -> str:
        """Emit a call of a pure function or intrinsic, declared in the module if it is not yet; return its result.

        name: the function's name, without LLVM's `@`; result: the type of the result; args: type and operand of each
        argument.
        """
        if name not in self.declarations:
            types = ", ".join(spell(t) for t, _ in args)
            self.declarations[name] = f"declare {spell(result)} @{name}({types})"
        return self.emit(f"call {spell(result)} @{name}({', '.join(f'{spell(t)} {a}' for t, a in args)})")
