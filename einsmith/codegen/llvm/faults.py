"""List the faults of LLVM and how emission avoids them.

Each fault has a text that shows it; a test compiles the texts, so that a version without the fault is noticed. The
emitters named here are the only ones that may make the instructions concerned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from einsmith.codegen.llvm.jit import Machine
from einsmith.codegen.ssa import Op, SSAValue


@dataclass(frozen=True)
class LlvmFault:
    """A fault of LLVM. `wrong`: a regular expression that the assembly of `text` for `machine` matches where the fault
    exists. Versions from `first` to `last` inclusive have it (`last` None: every version since, as far as is
    known)."""

    name: str
    what: str
    first: tuple[int, int]
    last: tuple[int, int] | None
    machine: Machine
    text: str
    wrong: str
    emitter: str

    def is_in(self, version: Sequence[int]) -> bool:
        """Return whether this version of LLVM is known to have the fault."""
        return self.first <= tuple(version[:2]) and (self.last is None or tuple(version[:2]) <= self.last)


_AVX512 = Machine("skylake-avx512", "", "x86_64-unknown-linux-gnu", 64)

NARROWED = LlvmFault(
    "narrowed lane",
    "A truncated vector of i32 or i64 is stored under a constant mask with one true lane: the lane is stored with the "
    "width that it had before, over what lies behind the element.",
    (22, 1),
    None,
    _AVX512,
    """
define void @f(ptr %from, ptr %to) {
  %wide = load <16 x i32>, ptr %from, align 4
  %x = trunc <16 x i32> %wide to <16 x i8>
  call void @llvm.masked.store.v16i8.p0(<16 x i8> %x, ptr align 1 %to, <16 x i1> <i1 true, i1 false, i1 false, \
i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, \
i1 false, i1 false>)
  ret void
}
declare void @llvm.masked.store.v16i8.p0(<16 x i8>, ptr, <16 x i1>)
""",
    r"mov[lq]\s+%\w+, \(%rsi\)",
    "llvm_memory.MemoryEmitter.do_store",
)

UNMASKED = LlvmFault(
    "unmasked operand",
    "A masked load is an operand of a fused multiply-add, which is chosen against zero by the same mask, and the other "
    "operands are used again: the load is put into the multiply-add, taken out of it again, and loses its mask.",
    (22, 1),
    None,
    _AVX512,
    """
define void @f(ptr %from, ptr %to, <16 x float> %w, <16 x float> %c, i16 %bits) {
  %mask = bitcast i16 %bits to <16 x i1>
  %x = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %from, <16 x i1> %mask, <16 x float> zeroinitializer)
  %sum = call <16 x float> @llvm.fma.v16f32(<16 x float> %x, <16 x float> %w, <16 x float> %c)
  %chosen = select <16 x i1> %mask, <16 x float> %sum, <16 x float> zeroinitializer
  store <16 x float> %chosen, ptr %to, align 4
  %to1 = getelementptr float, ptr %to, i64 16
  store <16 x float> %w, ptr %to1, align 4
  %to2 = getelementptr float, ptr %to, i64 32
  store <16 x float> %c, ptr %to2, align 4
  ret void
}
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
""",
    r"vmovups\s+\(%rdi\), %zmm\d+\n",
    "llvm._Emitter.do_fma",
)

WIDENED = LlvmFault(
    "widened mask",
    "The mask of a masked load or store of eight bytes is widened to the sixteen lanes of a register by a move that "
    "clears the others. The move is taken for a copy where masks wait in memory, and the mask is stored as it was "
    "before: lanes 8 to 15 of a comparison of bytes, or bits that no constant set, are loaded and stored.",
    (22, 1),
    None,
    _AVX512,
    """
define void @f(ptr %from, ptr %to, ptr %bytes, i64 %n) {
entry:
"""
    + "".join(
        f"""
  %p{k} = getelementptr i8, ptr %bytes, i64 {8 * k}
  %b{k} = load <8 x i8>, ptr %p{k}, align 1
  %m{k} = icmp eq <8 x i8> %b{k}, zeroinitializer
"""
        for k in range(4)
    )
    + """
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
"""
    + "".join(
        f"""
  %from{k} = getelementptr [64 x i8], ptr %from, i64 %i, i64 {16 * k}
  %to{k} = getelementptr [64 x i8], ptr %to, i64 %i, i64 {16 * k}
  %x{k} = call <8 x i8> @llvm.masked.load.v8i8.p0(ptr align 1 %from{k}, <8 x i1> %m{k}, <8 x i8> zeroinitializer)
  %y{k} = select <8 x i1> %m{k}, <8 x i8> %x{k}, <8 x i8> zeroinitializer
  store <8 x i8> %y{k}, ptr %to{k}, align 1
"""
        for k in range(4)
    )
    + """
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}
declare <8 x i8> @llvm.masked.load.v8i8.p0(ptr, <8 x i1>, <8 x i8>)
""",
    r"vptestnmb\s.*, %k(\d)\n\s+(kmovw\s+%k\1, -?\d+\(%rsp\)\n\s+){2}",
    "llvm_memory.MemoryEmitter.widen_mask",
)
EMPTY = LlvmFault(
    "empty register",
    "A masked load is cut into registers, in one of which a mask that is no constant can hold in no lane, as it is the"
    " conjunction of another one with a constant: that register is loaded without its mask, or an assertion of LLVM's"
    " fails.",
    (22, 1),
    None,
    Machine("haswell", "", "x86_64-unknown-linux-gnu", 32),
    """
define void @f(ptr %flags, ptr %from, ptr %to) {
  %b = load <16 x i8>, ptr %flags, align 1
  %some = icmp ne <16 x i8> %b, zeroinitializer
  %mask = and <16 x i1> %some, <i1 false, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, \
i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>
  %x = call <16 x i32> @llvm.masked.load.v16i32.p0(ptr align 4 %from, <16 x i1> %mask, <16 x i32> zeroinitializer)
  call void @llvm.masked.store.v16i8.p0(<16 x i8> %b, ptr align 1 %to, <16 x i1> %mask)
  %rest = getelementptr i8, ptr %to, i64 16
  store <16 x i32> %x, ptr %rest, align 4
  ret void
}
declare <16 x i32> @llvm.masked.load.v16i32.p0(ptr, <16 x i1>, <16 x i32>)
declare void @llvm.masked.store.v16i8.p0(<16 x i8>, ptr, <16 x i1>)
""",
    r"v?movup[sd]\s+32\(%rsi\)",
    "llvm_memory.MemoryEmitter.emit_masked_load",
)
LANES_KEPT = "<" + ", ".join(f"i1 {str(n < 8).lower()}" for n in range(16)) + ">"
"""Constant that limits a widened mask to its first eight lanes, in an instruction that is not a move (see WIDENED)."""

FAULTS = (NARROWED, UNMASKED, WIDENED, EMPTY)


def only_lane(mask: Sequence[Any] | None) -> int | None:
    """Return the only lane that a constant mask allows, which is then stored as a scalar (see NARROWED); else None."""
    allowed = [n for n, x in enumerate(mask or ()) if x]
    return allowed[0] if len(allowed) == 1 else None


def find_selected_sums(ops: Sequence[Op]) -> dict[int, list[SSAValue]]:
    """Return the values that the results of each fused multiply-add of a function are selected against (see
    UNMASKED)."""
    sums: set[int] = set()
    out: dict[int, list[SSAValue]] = {}
    for x in ops:
        if x.name == "fma":
            sums.add(x.result.id)
        elif x.name == "select":
            _, a, b = x.operands
            out.setdefault(a.id, []).append(b)
            out.setdefault(b.id, []).append(a)
    return {n: others for n, others in out.items() if n in sums}
