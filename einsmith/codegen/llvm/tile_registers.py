"""Emit operations of tile registers (`Builder.tile_dot`): AMX's instructions where a target has them, else calls of
functions that keep the registers in memory.

A register holds 16 rows of 16 words. The functions multiply by the dot products of vectors that a target has, or point
by point, which take denormal numbers as those do and add in another order than AMX. AMX is configured at the beginning
of a function that uses it, and released at the end.

Source: Intel, "Architecture Instruction Set Extensions", chapter 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.codegen.llvm import dot_products
from einsmith.codegen.llvm.ops import LaneArithmetic, Ops
from einsmith.codegen.llvm.text import FunctionText, spell
from einsmith.codegen.loopnest.dots import DOTS, TILE_REGISTERS, TILE_ROWS, WORD, WORD_BYTES
from einsmith.codegen.ssa import Op, vector

_ROW_BYTES = TILE_ROWS * WORD_BYTES
_TILE_BYTES = TILE_ROWS * _ROW_BYTES
_INSTRUCTIONS = {
    ("bf16", False): ("tdpbf16ps", "amx-bf16"),
    ("bf16", True): ("tdpbf16ps", "amx-bf16"),
    ("u8i8", False): ("tdpbusd", "amx-int8"),
    ("u8i8", True): ("tdpbsud", "amx-int8"),
}
"""By the dot product, and whether the words of the left tile are its second operand: instruction, feature."""
NAMES = tuple(sorted({dot for dot, _ in _INSTRUCTIONS}))
"""The dot products that tile registers compute."""


def has_tiles(dot: str, features: frozenset[str]) -> bool:
    """Return whether a target's tile registers compute a dot product."""
    return {"amx-tile", _INSTRUCTIONS[dot, False][1]} <= features


def used_dot(ops: Sequence[Op]) -> str | None:
    """Return the dot product for which a function uses tile registers; None where it uses none."""
    return next((x.attrs[0] for x in ops if x.name == "tile_dot"), None)


class TileRegisters:
    """Emits the operations of one function. text: the function's text; dot: the dot product that it uses."""

    def __init__(self, text: FunctionText, dot: str):
        self.text, self.dot, self.has_amx = text, dot, has_tiles(dot, text.features)

    def begin(self) -> None:
        """Emit the setup code that precedes the first operation."""
        if not self.has_amx:
            text = f"alloca [{TILE_REGISTERS * _TILE_BYTES} x i8], align 64"
            self.registers = self.text.emit(text)
            return
        self.config = self.text.emit("alloca <64 x i8>, align 64")
        config = [1, *[0] * 15, *[_ROW_BYTES, 0] * TILE_REGISTERS, *[0] * 16, *[TILE_ROWS] * TILE_REGISTERS, *[0] * 8]
        values = ", ".join(f"i8 {x}" for x in config)
        self.text.emit_void(f"store <64 x i8> <{values}>, ptr {self.config}, align 64")
        self.configure()

    def configure(self) -> None:
        """Emit the configuration of the registers, which are zero then: at the beginning, and after a call of what may
        use them itself."""
        if self.has_amx:
            self._call("llvm.x86.ldtilecfg", "ptr", f"ptr {self.config}")

    def end(self) -> None:
        """Emit the release code that follows the last operation."""
        if self.has_amx:
            self._call("llvm.x86.tilerelease", "", "")

    def zero(self, register: int) -> None:
        """Emit register = 0."""
        if self.has_amx:
            self._call("llvm.x86.tilezero", "i8 immarg", f"i8 {register}")
        else:
            text = f"store [{_TILE_BYTES} x i8] zeroinitializer, ptr {self._register(register)}, align 64"
            self.text.emit_void(text)

    def move(self, register: int, address: str, stride: str, stores: bool) -> None:
        """Emit a load or a store of a register; stride: bytes from row to row."""
        if self.has_amx:
            name = "llvm.x86.tilestored64" if stores else "llvm.x86.tileloadd64"
            self._call(name, "i8 immarg, ptr, i64", f"i8 {register}, ptr {address}, i64 {stride}")
            return
        name = "einsmith.tile.store" if stores else "einsmith.tile.load"
        self.text.declarations.setdefault(name, _move(name, stores))
        text = f"call void @{name}(ptr {self._register(register)}, ptr {address}, i64 {stride})"
        self.text.emit_void(text)

    def multiply_add(self, total: int, left: int, right: int, is_reversed: bool) -> None:
        """Emit total += left*right. is_reversed: the words of the left register are the dot product's second."""
        if self.has_amx:
            name = f"llvm.x86.{_INSTRUCTIONS[self.dot, is_reversed][0]}"
            self._call(name, "i8 immarg, i8 immarg, i8 immarg", f"i8 {total}, i8 {left}, i8 {right}")
            return
        name = f"einsmith.tile.{self.dot}{'.reversed' * is_reversed}"
        self.text.declarations.setdefault(name, _multiply_add(name, self.dot, is_reversed, self.text))
        args = ", ".join(f"ptr {self._register(x)}" for x in (total, left, right))
        self.text.emit_void(f"call void @{name}({args})")

    def _register(self, number: int) -> str:
        return self.text.emit(f"getelementptr i8, ptr {self.registers}, i64 {number * _TILE_BYTES}")

    def _call(self, name: str, types: str, args: str) -> None:
        self.text.declarations.setdefault(name, f"declare void @{name}({types})")
        self.text.emit_void(f"call void @{name}({args})")


def _loop(head: str, inner: str) -> str:
    """Return the text of a function that runs `inner` for every row, whose number is %r."""
    return (
        f"{head} {{\nentry:\n  br label %row\nrow:\n  %r = phi i64 [0, %entry], [%next, %after]\n{inner}\n"
        f"  br label %after\nafter:\n  %next = add i64 %r, 1\n  %done = icmp eq i64 %next, {TILE_ROWS}\n"
        "  br i1 %done, label %end, label %row\nend:\n  ret void\n}"
    )


def _move(name: str, stores: bool) -> str:
    """Return the text of a function that copies a register's rows."""
    source, to = ("%t", "%m") if stores else ("%m", "%t")
    inner = (
        f"  %a = mul i64 %r, {_ROW_BYTES}\n  %t = getelementptr i8, ptr %register, i64 %a\n"
        "  %b = mul i64 %r, %stride\n  %m = getelementptr i8, ptr %memory, i64 %b\n"
        f"  %x = load <{TILE_ROWS} x i32>, ptr {source}, align 4\n  store <{TILE_ROWS} x i32> %x, ptr {to}, align 4"
    )
    return _loop(f"define internal void @{name}(ptr %register, ptr %memory, i64 %stride) #0", inner)


def _multiply_add(name: str, dot: str, is_reversed: bool, of: FunctionText) -> str:
    """Return the text of a function that multiplies registers, one word of the left at a time. of: the text of a
    function for the same target."""
    sums = vector(DOTS[dot].sum, TILE_ROWS)
    words, t = spell(vector(WORD, TILE_ROWS)), spell(sums)
    text = FunctionText(of.declarations, of.fma, of.halves, of.features)
    operands = ("%vb", "%va") if is_reversed else ("%va", "%vb")
    last = dot_products.multiply_add(LaneArithmetic(Ops(text), sums), dot, *operands, "%c")
    lines = [
        f"  %o = mul i64 %r, {_ROW_BYTES}",
        "  %rowa = getelementptr i8, ptr %left, i64 %o",
        "  %rowc = getelementptr i8, ptr %total, i64 %o",
        f"  %first = load {t}, ptr %rowc, align 64",
        "  br label %word\nword:",
        "  %k = phi i64 [0, %row], [%k1, %word]",
        f"  %c = phi {t} [%first, %row], [{last}, %word]",
        "  %pa = getelementptr i32, ptr %rowa, i64 %k",
        "  %wa = load i32, ptr %pa, align 4",
        f"  %ia = insertelement {words} poison, i32 %wa, i32 0",
        f"  %va = shufflevector {words} %ia, {words} poison, {words} zeroinitializer",
        f"  %ob = mul i64 %k, {_ROW_BYTES}",
        "  %pb = getelementptr i8, ptr %right, i64 %ob",
        f"  %vb = load {words}, ptr %pb, align 64",
        *text.lines,
        f"  %k1 = add i64 %k, 1\n  %kdone = icmp eq i64 %k1, {TILE_ROWS}",
        "  br i1 %kdone, label %stored, label %word\nstored:",
        f"  store {t} {last}, ptr %rowc, align 64",
    ]
    return _loop(f"define internal void @{name}(ptr %total, ptr %left, ptr %right) #0", "\n".join(lines))
