"""Emit loads, stores, gathers and scatters of the loop nest as LLVM IR text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from einsmith.codegen.llvm.faults import LANES_KEPT, only_lane
from einsmith.codegen.llvm.operands import ValueOperands
from einsmith.codegen.llvm.ops import Ops
from einsmith.codegen.llvm.text import LLVM_ELEM, FunctionText, constant, mangle, spell
from einsmith.codegen.loopnest.lanes import whole_powers
from einsmith.codegen.ssa import BYTES, Op, SSAValue, Type, vector

_SIZE = BYTES | {"ptr": 8}


class MemoryEmitter(ValueOperands):
    """The instructions of one function that access memory.

    mask_registers: as of `ValueOperands`; register: bytes of a vector register
    """

    def __init__(self, text: FunctionText, mask_registers: bool = False, register: int = 16):
        super().__init__(mask_registers)
        self.text, self.register = text, register
        self.ops = Ops(text)
        self.masked: set[str] = set()  # operands that are masked loads

    def address(self, ptr: SSAValue | None, offset: SSAValue | None, elem: str) -> str:
        """Return the address of the element `offset` (elements) after `ptr`."""
        assert ptr is not None and offset is not None
        base = self.get(ptr)
        if self.number(offset) == 0:
            return base
        memory = LLVM_ELEM["i8" if elem == "i1" else elem]
        return self.text.emit_shared(f"getelementptr {memory}, ptr {base}, {spell(offset.type)} {self.get(offset)}")

    def convert_to_memory(self, value: SSAValue) -> tuple[Type, str]:
        """Return a value's type and operand in memory, where bools are bytes."""
        t = value.type
        if t.elem != "i1":
            return t, self.get(value)
        return vector("i8", t.lanes), self.ops.cast(self.get(value), t, "i8")

    def bind_loaded(self, result: SSAValue, operand: str) -> None:
        """Bind a result to an operand in its type in memory, where a condition is a byte."""
        t = result.type
        if t.elem == "i1":
            operand = self.ops.cast(operand, vector("i8", t.lanes), "i1")
        self.put(result, operand)

    def emit_guarded(self, mask: SSAValue, emit: Any, other: tuple[Type, str] | None) -> str:
        """Emit a branch: the value of `emit()` where the scalar mask holds, else `other`."""
        then, end, before = self.text.fresh("then"), self.text.fresh("end"), self.text.block
        self.text.emit_void(f"br i1 {self.get(mask)}, label %{then}, label %{end}")
        self.text.label(then)
        self.text.open_region()
        value = emit()
        self.text.close_region()
        self.text.emit_void(f"br label %{end}")
        self.text.label(end)
        if other is None:
            return ""
        return self.text.emit(f"phi {spell(other[0])} [ {value}, %{then} ], [ {other[1]}, %{before} ]")

    def do_load(self, op: Op) -> None:
        """Emit a load, a masked one unless the mask is known to be true."""
        ptr, offset, mask, other = op.args
        result = op.result
        memory = vector("i8" if result.type.elem == "i1" else result.type.elem, result.type.lanes)
        allowed = self.number(mask)
        if other is not None and mask is not None:
            rest = self.convert_to_memory(other)[1]
        else:
            rest = constant(0, memory)
        if mask is not None and allowed is not None and not allowed:
            self.bind_loaded(result, rest)
            return
        plain = f"load {spell(memory)}, ptr {{}}, align {_SIZE[memory.elem]}"
        if mask is None or allowed:
            loaded = self.text.emit(plain.format(self.address(ptr, offset, memory.elem)))
        elif not memory.lanes:
            loaded = self.emit_guarded(
                mask, lambda: self.text.emit(plain.format(self.address(ptr, offset, memory.elem))), (memory, rest)
            )
        else:
            where = self.address(ptr, offset, memory.elem)
            loaded = self.emit_by_mask(
                memory,
                mask,
                lambda: self.text.emit(plain.format(where)),
                lambda: self.emit_masked_load(memory, where, mask, rest),
            )
            self.masked.add(loaded)
        self.bind_loaded(result, loaded)

    def emit_by_mask(
        self, memory: Type, mask: SSAValue, whole: Callable[[], str], masked: Callable[[], str], yields: bool = True
    ) -> str:
        """Emit an access under a mask; return its value, if it `yields` one.

        Where the target has no instruction for elements of this size, the access is a branch for each lane, and without
        mask registers a masked store is slow; one branch for all lanes comes first, as few vectors are at a border.
        """
        if self.mask_registers or (yields and _SIZE[memory.elem] >= 4) or self.lanes_of(mask) is not None:
            return masked()
        text = self.text
        every = text.call(f"llvm.vector.reduce.and.{mangle(mask.type)}", Type("i1"), [(mask.type, self.get(mask))])
        then, other, end = text.fresh("whole"), text.fresh("part"), text.fresh("end")
        text.emit_void(f"br i1 {every}, label %{then}, label %{other}")
        ends = []
        for label, emit in ((then, whole), (other, masked)):
            text.label(label)
            text.open_region()
            value = emit()
            text.close_region()
            ends.append(f"[ {value}, %{text.block} ]")
            text.emit_void(f"br label %{end}")
        text.label(end)
        return text.emit(f"phi {spell(memory)} {', '.join(ends)}") if yields else ""

    def emit_masked_load(self, memory: Type, where: str, mask: SSAValue, rest: str) -> str:
        """Load a vector from `where`, with the lanes of `rest` where the mask does not hold. Registers for which no
        lane of the mask can hold are not loaded (see faults.EMPTY)."""

        def load(t: Type, at: str, allows: str, other: str) -> str:
            return self.emit_memory_call(
                f"llvm.masked.load.{mangle(t)}.p0",
                t,
                [("ptr", f"align {_SIZE[t.elem]} {at}"), (spell(vector("i1", t.lanes)), allows), (spell(t), other)],
            )

        n, can_hold = max(1, self.register // _SIZE[memory.elem]), [True]
        if not self.mask_registers and self.lanes_of(mask) is None:
            known = self.known_lanes(mask)
            can_hold = [any(x is not False for x in known[i : i + n]) for i in range(0, memory.lanes, n)]
        if all(can_hold):
            whole, allows = self.widen_mask(memory, mask)
            loaded = load(whole, where, allows, self.resize(memory, rest, whole.lanes))
            return self.resize(whole, loaded, memory.lanes)
        out, part = rest, vector(memory.elem, n)
        for i in (n * at for at, is_loaded in enumerate(can_hold) if is_loaded):
            at = self.text.emit_shared(f"getelementptr {LLVM_ELEM[memory.elem]}, ptr {where}, i64 {i}") if i else where
            loaded = load(
                part, at, self.slice_lanes(mask.type, self.get(mask), i, n), self.slice_lanes(memory, rest, i, n)
            )
            picks = [memory.lanes + k - i if i <= k < i + n else k for k in range(memory.lanes)]
            out = self.emit_shuffle(memory, out, self.resize(part, loaded, memory.lanes), picks)
        return out

    def slice_lanes(self, t: Type, operand: str, first: int, count: int) -> str:
        """Return `count` lanes of a vector from lane `first` on."""
        return self.emit_shuffle(t, operand, "poison", range(first, first + count))

    def emit_shuffle(self, t: Type, a: str, b: str, picks: Sequence[int | None]) -> str:
        """Return the lanes `picks` of two concatenated vectors; None picks an undefined value."""
        lanes = ", ".join(f"i32 {'poison' if n is None else n}" for n in picks)
        return self.text.emit_shared(f"shufflevector {spell(t)} {a}, {spell(t)} {b}, <{len(picks)} x i32> <{lanes}>")

    def do_store(self, op: Op) -> None:
        """Emit a store, a masked one unless the mask is known to be true; none where it is known to be false.

        Without mask registers, the lanes of a constant mask are stored as shorter vectors: a masked store takes up to
        20 cycles (AMD before Zen 4)."""
        ptr, offset, value, mask = op.args
        assert value is not None
        allowed = self.number(mask)
        if mask is not None and allowed is not None and not allowed:
            return
        memory, operand = self.convert_to_memory(value)
        size = _SIZE[memory.elem]

        def plain() -> str:
            self.text.emit_void(
                f"store {spell(memory)} {operand}, ptr {self.address(ptr, offset, memory.elem)}, align {size}"
            )
            return ""

        lanes = self.lanes_of(mask)
        if mask is None or allowed:
            plain()
        elif lanes is not None and (only_lane(lanes) is not None or not self.mask_registers):
            where = self.address(ptr, offset, memory.elem)
            for first, count in whole_powers(lanes):
                self.store_lanes(memory, operand, where, first, count)
        elif not memory.lanes:
            self.emit_guarded(mask, plain, None)
        else:
            self.emit_by_mask(memory, mask, plain, partial(self.emit_masked_store, op, memory, operand), False)

    def store_lanes(self, memory: Type, operand: str, where: str, first: int, count: int) -> None:
        """Store `count` lanes of a vector from lane `first` on; lane 0 would be stored to `where`."""
        if count == 1:
            part, t = self.text.emit(f"extractelement {spell(memory)} {operand}, i32 {first}"), LLVM_ELEM[memory.elem]
        else:
            part, t = self.slice_lanes(memory, operand, first, count), spell(vector(memory.elem, count))
        if first:
            where = self.text.emit_shared(f"getelementptr {LLVM_ELEM[memory.elem]}, ptr {where}, i64 {first}")
        self.text.emit_void(f"store {t} {part}, ptr {where}, align {_SIZE[memory.elem]}")

    def emit_masked_store(self, op: Op, memory: Type, operand: str) -> str:
        """Store the lanes of a vector in which the mask holds."""
        ptr, offset, _, mask = op.args
        assert mask is not None
        whole, allows = self.widen_mask(memory, mask)
        at = f"align {_SIZE[memory.elem]} {self.address(ptr, offset, memory.elem)}"
        arguments = [
            (spell(whole), self.resize(memory, operand, whole.lanes)),
            ("ptr", at),
            (spell(vector("i1", whole.lanes)), allows),
        ]
        return self.emit_memory_call(f"llvm.masked.store.{mangle(whole)}.p0", None, arguments)

    def widen_mask(self, memory: Type, mask: SSAValue) -> tuple[Type, str]:
        """Return the type to load or store under a mask, and the mask. Both are widened to a whole register where LLVM
        would widen the access itself and might lose the mask's limit (see faults.WIDENED)."""
        operand = self.get(mask)
        eight_bytes = (LLVM_ELEM[memory.elem], memory.lanes) == ("i8", 8)
        if not self.mask_registers or not eight_bytes or self.lanes_of(mask) is not None:
            return memory, operand
        wider = self.resize(mask.type, operand, 16)
        return vector("i8", 16), self.text.emit_shared(f"and <16 x i1> {wider}, {LANES_KEPT}")

    def resize(self, t: Type, operand: str, lanes: int) -> str:
        """Return a vector's first lanes, or all of them followed by undefined ones."""
        if lanes == t.lanes:
            return operand
        return self.emit_shuffle(t, operand, "poison", [n if n < t.lanes else None for n in range(lanes)])

    def emit_memory_call(self, name: str, result: Type | None, args: Sequence[tuple[str, str]]) -> str:
        """Emit a call of an intrinsic and declare it; return the result's operand.

        Args:
            name: the name of the intrinsic
            result: the type of the result; None for a function without one
            args: type and operand of each argument
        """
        back = "void" if result is None else spell(result)
        if name not in self.text.declarations:
            self.text.declarations[name] = f"declare {back} @{name}({', '.join(t for t, _ in args)})"
        call = f"call {back} @{name}({', '.join(f'{t} {a}' for t, a in args)})"
        if result is not None:
            return self.text.emit(call)
        self.text.emit_void(call)
        return ""

    def do_stream(self, op: Op) -> None:
        """Emit a non-temporal store, which bypasses the caches."""
        ptr, offset, value = op.operands
        memory, operand = self.convert_to_memory(value)
        align = _SIZE[memory.elem] * max(1, memory.lanes)
        where = self.address(ptr, offset, memory.elem)
        self.text.emit_void(f"store {spell(memory)} {operand}, ptr {where}, align {align}, !nontemporal !0")

    def lane_addresses(self, ptr: SSAValue | None, offsets: SSAValue, elem: str) -> str:
        """Return the vector of addresses `offsets` (elements) after `ptr`, one for each lane."""
        assert ptr is not None
        return self.text.emit(
            f"getelementptr {LLVM_ELEM[elem]}, ptr {self.get(ptr)}, {spell(offsets.type)} {self.get(offsets)}"
        )

    def do_gather(self, op: Op) -> None:
        """Emit a gather; a scalar offset makes it a load."""
        ptr, offsets, mask = op.args
        result = op.result
        assert offsets is not None
        if not offsets.type.lanes:
            self.do_load(Op("load", (ptr, offsets, mask, None), op.results))
            return
        memory = vector("i8" if result.type.elem == "i1" else result.type.elem, result.type.lanes)
        pointers = vector("ptr", memory.lanes)
        allowed = self.get(mask) if mask is not None else constant(True, vector("i1", memory.lanes))
        where = self.lane_addresses(ptr, offsets, memory.elem)
        loaded = self.emit_memory_call(
            f"llvm.masked.gather.{mangle(memory)}.{mangle(pointers)}",
            memory,
            [
                (spell(pointers), f"align {_SIZE[memory.elem]} {where}"),
                (f"<{memory.lanes} x i1>", allowed),
                (spell(memory), constant(0, memory)),
            ],
        )
        self.bind_loaded(result, loaded)

    def do_scatter(self, op: Op) -> None:
        """Emit a scatter of lanes; a scalar offset makes it a store."""
        ptr, offsets, value, mask = op.args
        assert offsets is not None and value is not None
        if not offsets.type.lanes:
            self.do_store(Op("store", (ptr, offsets, value, mask), ()))
            return
        memory, operand = self.convert_to_memory(value)
        pointers = vector("ptr", memory.lanes)
        allowed = self.get(mask) if mask is not None else constant(True, vector("i1", memory.lanes))
        where = self.lane_addresses(ptr, offsets, memory.elem)
        self.emit_memory_call(
            f"llvm.masked.scatter.{mangle(memory)}.{mangle(pointers)}",
            None,
            [
                (spell(memory), operand),
                (spell(pointers), f"align {_SIZE[memory.elem]} {where}"),
                (f"<{memory.lanes} x i1>", allowed),
            ],
        )

    def do_prefetch(self, op: Op) -> None:
        """Emit a prefetch of the cache line of an element, for reading."""
        where = self.address(op.args[0], op.args[1], op.attrs[0])
        self.emit_memory_call("llvm.prefetch.p0", None, [("ptr", where), ("i32", "0"), ("i32", "3"), ("i32", "1")])

    def do_address(self, op: Op) -> None:
        """Emit the address a fixed number of bytes after a pointer."""
        where = f"getelementptr i8, ptr {self.get(op.operands[0])}, i64 {op.attrs[0]}"
        self.put(op.result, self.text.emit_shared(where))

    def do_advance(self, op: Op) -> None:
        """Bind the result to the address an offset (elements) after a pointer."""
        self.put(op.result, self.address(op.args[0], op.args[1], op.attrs[0]))
