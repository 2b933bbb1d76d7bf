"""Emit loop nests as LLVM IR text.

The text needs no pass pipeline: values are in SSA form already, loops are emitted with phis and the test at the
bottom, vectors as vectors. Integer scalars are folded and shared during emission, so that addresses stay short. The
text is written directly; building it through objects costs as much as generating the code.

A kernel is `void @name(ptr buffers, ptr scratch, i64 task)`. Buffers may be one memory (updates in place), so nothing
is marked `noalias`. A bool is i1 in registers and one byte in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from einsmith.base.errors import CompileError
from einsmith.codegen.llvm import dot_products, faults, lockstep, signal_checks
from einsmith.codegen.llvm.jit import has_fma, has_halves, list_features, resolve
from einsmith.codegen.llvm.memory import MemoryEmitter
from einsmith.codegen.llvm.operands import SCALAR_INTS, Number, compute, fits
from einsmith.codegen.llvm.ops import SELDOM, LaneArithmetic
from einsmith.codegen.llvm.text import FLOATS, FunctionText, constant, mangle, spell
from einsmith.codegen.llvm.tile_registers import TileRegisters, used_dot
from einsmith.codegen.loopnest.nest import Function
from einsmith.codegen.ssa import FOLD, If, Loop, Op, SSAValue, Type, operations
from einsmith.ir.functions import has_lanes


def emit_module(functions: Sequence[Function], target: Any) -> str:
    """Return the LLVM IR text of functions with distinct names for `target` (cpu, features, triple: each may be
    "host"; vector_bytes).

    Raises CompileError for an instruction that has no form in LLVM.
    """
    target = resolve(target)
    declarations: dict[str, str] = {}
    # A chain has three or four live values, and coefficients take registers, too: there are 32, or 16.
    chains = 2 if target.triple.startswith("x86_64") and target.vector_bytes < 64 else 4
    fold = target.triple.startswith("x86_64")
    masks = fold and (target.vector_bytes >= 64 or "+avx512bw" in target.features.split(","))
    has = has_fma(target), has_halves(target), list_features(target)
    bodies = [
        _Emitter(f, FunctionText(declarations, *has), chains, fold, masks, target.vector_bytes).run() for f in functions
    ]
    width = f' "prefer-vector-width"="{target.vector_bytes * 8}"' if target.vector_bytes >= 32 else ""
    parts = [f'target triple = "{target.triple}"', "", *bodies, *declarations.values(), ""]
    parts += [f"attributes #0 = {{ nounwind{width} }}", "!0 = !{i32 1}"]
    # Seldom: below what LLVM takes for the turns of three loops, one in another, that the branch leads to.
    parts.append('!1 = !{!"branch_weights", i32 1, i32 1048576}')
    return "\n".join(parts) + "\n"


class _Emitter(MemoryEmitter):
    """Emitter of one function. `chains`: how many special functions may be interleaved; `folds`: loads may become
    operands of arithmetic; `text`, `masks` and `register`: as a MemoryEmitter's."""

    def __init__(self, function: Function, text: FunctionText, chains: int, folds: bool, masks: bool, register: int):
        super().__init__(text, masks, max(16, register))
        self.chains = chains
        self.function = function
        self.instructions = operations(function.body)
        self.carried_vectors = 0
        """Number of vectors carried by the loops around the current instruction."""
        self.selected_against = faults.find_selected_sums(self.instructions) if text.fma and folds else {}
        self.sums: dict[str, tuple[str, int]] = {}  # operand -> (operand, constant) that it is the sum of

    def run(self) -> str:
        """Return the text of the function."""
        f = self.function
        for n, buffer in enumerate(f.buffers):
            at = self.text.emit(f"getelementptr i64, ptr %buffers, i64 {n}")
            self.operand[buffer.id] = self.text.emit(f"load ptr, ptr {at}, align 8")
        self.operand[f.scratch.id] = "%scratch"
        self.operand[f.task.id] = "%task"
        dot = used_dot(self.instructions)
        self.tiles = None if dot is None else TileRegisters(self.text, dot)
        if self.tiles is not None:
            self.tiles.begin()
        self.emit_region(f.body)
        if self.tiles is not None:
            self.tiles.end()
        self.text.emit_void("ret void")
        head = f'define void @"{f.name}"(ptr %buffers, ptr %scratch, i64 %task) #0 {{\nentry:\n'
        return head + "\n".join(self.text.lines) + "\n}\n"

    # -- regions

    def emit_region(self, block: Sequence[Any]) -> None:
        """Emit the instructions, loops and branches of a region."""
        interleaves = sum(has_lanes(x.name) for x in block if isinstance(x, Op)) > 1
        for is_interleaved, run in groupby(block, lambda x: interleaves and isinstance(x, Op)):
            if is_interleaved:
                for group in lockstep.group_instructions(list(run), self.chains):
                    self.emit_interleaved(group)
                continue
            for x in run:
                if isinstance(x, Loop):
                    self.emit_loop(x)
                elif isinstance(x, If):
                    self.emit_branch(x)
                else:
                    self.emit_instruction(x)

    def emit_interleaved(self, group: Sequence[Op]) -> None:
        """Emit instructions that do not need each other's results, interleaved."""
        if len(group) == 1:
            self.emit_instruction(group[0])
            return
        before, parts = self.text.lines, []
        for op in group:
            self.text.lines = []
            self.emit_instruction(op)
            parts.append(self.text.lines)
        self.text.lines = before
        before += lockstep.interleave(parts)

    def emit_branch(self, x: If) -> None:
        """Emit a branch; where its condition is known, the body alone or nothing."""
        known = self.number(x.cond)
        if known is not None:
            if known:
                self.emit_region(x.body)
            return
        then, end = self.text.fresh("then"), self.text.fresh("end")
        weights = f", {SELDOM}" if x.seldom else ""
        self.text.emit_void(f"br i1 {self.get(x.cond)}, label %{then}, label %{end}{weights}")
        self.text.label(then)
        self.text.open_region()
        self.emit_region(x.body)
        self.text.close_region()
        self.text.emit_void(f"br label %{end}")
        self.text.label(end)

    def emit_loop(self, x: Loop) -> None:
        """Emit a loop: nothing where it has no turn, its turns one after another where it is unrolled whole."""
        lo, hi = self.number(x.lo), self.number(x.hi)
        trips = None if lo is None or hi is None else max(0, -(-(int(hi) - int(lo)) // x.step))
        if trips == 0:
            for out, init in zip(x.results, x.init, strict=True):
                self.put(out, self.get(init), self.number(init))
            return
        if x.unroll > 1 and (trips is None or trips % x.unroll):
            raise CompileError(f"{self.function.name}: a loop unrolled by {x.unroll} runs {trips} times")
        if trips == x.unroll:
            state = [(self.get(v), self.number(v)) for v in x.init]
            for turn in range(trips):
                self.put_int(x.var, int(lo or 0) + turn * x.step)
                state = self.emit_turn(x, state)
            for out, (operand, number) in zip(x.results, state, strict=True):
                self.put(out, operand, number)
            return
        if x.seldom:
            self.emit_single_turn(x)
        else:
            self.emit_counted_loop(x, trips)

    def emit_turn(self, x: Loop, state: Sequence[tuple[str, Number | None]]) -> list[tuple[str, Number | None]]:
        """Emit a loop's body once, with its variable set and the carried values `state`; return the values it
        yields."""
        for carried, (operand, number) in zip(x.carried, state, strict=True):
            self.put(carried, operand, number)
        self.emit_region(x.body)
        return [(self.get(v), self.number(v)) for v in x.next]

    def emit_single_turn(self, x: Loop) -> None:
        """Emit a loop of one turn or none."""
        text = self.text
        body, end, before = text.fresh("once"), text.fresh("done"), text.block
        runs = text.emit(f"icmp slt i64 {self.get(x.lo)}, {self.get(x.hi)}")
        text.emit_void(f"br i1 {runs}, label %{body}, label %{end}, {SELDOM}")
        text.label(body)
        text.open_region()
        self.put(x.var, self.get(x.lo), self.number(x.lo))
        self.carried_vectors += (vectors := count_vectors(x))
        state = self.emit_turn(x, [(self.get(v), self.number(v)) for v in x.init])
        self.carried_vectors -= vectors
        back = text.block
        text.emit_void(f"br label %{end}")
        text.close_region()
        self.emit_loop_end(x, end, state, (before, back))

    def emit_counted_loop(self, x: Loop, trips: int | None) -> None:
        """Emit a loop with its test at the bottom, behind a guard unless it is known to run."""
        text = self.text
        body, end = text.fresh("loop"), text.fresh("done")
        lo, hi, before = self.get(x.lo), self.get(x.hi), self.text.block
        guarded = trips is None and not x.runs
        if guarded:
            runs = text.emit(f"icmp slt i64 {lo}, {hi}")
            text.emit_void(f"br i1 {runs}, label %{body}, label %{end}")
        else:
            text.emit_void(f"br label %{body}")
        self.text.label(body)
        text.open_region()
        var = "%" + text.fresh("i")
        names = ["%" + text.fresh("c") for _ in x.init]
        phis = len(text.lines)  # the phis are written last, when the carried values are known
        self.put(x.var, var)
        state: list[tuple[str, Number | None]] = [(name, None) for name in names]
        self.carried_vectors += (vectors := count_vectors(x))
        for turn in range(x.unroll):
            if turn:
                self.put(x.var, self.add_constant(var, turn * x.step, "i64"))
            state = self.emit_turn(x, state)
        turns = self.emit_signal_check(x, trips)
        self.carried_vectors -= vectors
        back = self.text.block
        following = text.emit(f"add nsw i64 {var}, {x.step * x.unroll}")
        again = text.emit(f"icmp slt i64 {following}, {hi}")
        text.emit_void(f"br i1 {again}, label %{body}, label %{end}")
        text.close_region()
        lines = [f"  {var} = phi i64 [ {lo}, %{before} ], [ {following}, %{back} ]"]
        for name, init, (operand, _) in zip(names, x.init, state, strict=True):
            lines.append(f"  {name} = phi {spell(init.type)} [ {self.get(init)}, %{before} ], [ {operand}, %{back} ]")
        if turns:
            turn_before, turn_after = turns
            lines.append(f"  {turn_before} = phi i64 [ 0, %{before} ], [ {turn_after}, %{back} ]")
        text.lines[phis:phis] = lines
        self.emit_loop_end(x, end, state, (before, back) if guarded else ())

    def emit_loop_end(
        self, x: Loop, end: str, state: Sequence[tuple[str, Number | None]], blocks: Sequence[str]
    ) -> None:
        """Emit the block behind a loop, which the blocks before it and at its end lead to; none given: the latter
        alone."""
        self.text.label(end)
        for out, init, (operand, _) in zip(x.results, x.init, state, strict=True):
            if blocks:
                before, back = blocks
                pairs = f"[ {self.get(init)}, %{before} ], [ {operand}, %{back} ]"
                operand = self.text.emit(f"phi {spell(init.type)} {pairs}")
            self.put(out, operand)

    def emit_signal_check(self, x: Loop, trips: int | None) -> tuple[str, str] | None:
        """Emit a check for signals in some of a loop's turns; return the names of its turn counter before and after
        this turn."""
        checks = self.function.checks_signals
        has_sums = any(isinstance(op, Op) and op.name == "tile_dot" for op in x.body)  # which a handler may overwrite
        every = signal_checks.period(x, trips, self.carried_vectors, self.number) if checks and not has_sums else 0
        if not every:
            return None
        text = self.text
        text.declarations[signal_checks.CHECK_FUNCTION] = f"declare i32 @{signal_checks.CHECK_FUNCTION}()"
        ask, stop, on = text.fresh("ask"), text.fresh("stop"), text.fresh("on")
        turn = "%" + text.fresh("t")
        after = text.emit(f"add i64 {turn}, 1")
        due = text.emit(f"icmp eq i64 {text.emit(f'and i64 {after}, {every - 1}')}, 0")
        text.emit_void(f"br i1 {due}, label %{ask}, label %{on}, {SELDOM}")
        text.label(ask)
        stopped = text.emit(f"icmp ne i32 {text.emit(f'call i32 @{signal_checks.CHECK_FUNCTION}()')}, 0")
        if self.tiles is not None:
            self.tiles.configure()
        text.emit_void(f"br i1 {stopped}, label %{stop}, label %{on}, {SELDOM}")
        text.label(stop)
        if self.tiles is not None:
            self.tiles.end()
        text.emit_void("ret void")
        text.label(on)
        return turn, after

    # -- instructions

    def emit_instruction(self, op: Op) -> None:
        """Emit an instruction: by its method `do_...` if there is one, else folded, else by `Ops.apply`."""
        special = getattr(self, "do_" + op.name, None)
        if special is not None:
            special(op)
            return
        args = op.operands
        t = args[-1].type
        numbers = [self.number(a) for a in args]
        if not t.lanes and t.elem in SCALAR_INTS and op.name in FOLD and self.fold(op, args, numbers):
            return
        if op.name == "select" and numbers[0] is not None:
            chosen = args[1] if numbers[0] else args[2]
            self.put(op.result, self.get(chosen), self.number(chosen))
            return
        if t.lanes and self.fold_lanes(op, args):
            return
        operands = [self.get(a) for a in args]
        self.put(op.result, self.ops.apply(op.name, t, operands, numbers))
        self.note_mask(op)
        if op.name == "neg" and operands[0] in self.masked:  # a sign is part of a fused multiply-add
            self.masked.add(self.get(op.result))

    def fold(self, op: Op, args: Sequence[SSAValue], numbers: Sequence[Number | None]) -> bool:
        """Fold an instruction on integer scalars: constants are computed, x+0, x*1, x//1 vanish, x+c+d becomes
        x+(c+d). Return whether the instruction was folded."""
        result = op.result
        elem = args[0].type.elem
        known = [int(n) for n in numbers if n is not None]
        if len(known) == len(args):
            value = compute(op.name, known)
            if isinstance(value, bool) or fits(value, elem):
                self.put_int(result, value)
                return True
            return False
        if len(args) != 2 or not known:
            return False
        x = self.get(args[0] if numbers[0] is None else args[1])
        c, on_right = known[0], numbers[1] is not None
        if op.name == "add" or (op.name == "sub" and on_right):
            self.put(result, self.add_constant(x, c if op.name == "add" else -c, elem))
            return True
        if op.name == "mul" and c in (0, 1) or op.name in ("floordiv", "mod") and on_right and c == 1:
            if c == 0 or op.name == "mod":
                self.put_int(result, 0)
            else:
                self.put(result, x)
            return True
        if op.name == "mul":
            self.put(result, self.text.emit_shared(f"mul {elem} {x}, {c}"))
            return True
        return False

    def add_constant(self, x: str, c: int, elem: str) -> str:
        """Emit x + c, with chains of constants summed (integers wrap, so that the order is free)."""
        base, already = self.sums.get(x, (x, 0))
        total = already + c
        half = 2 ** (31 if elem == "i32" else 63)
        total = (total + half) % (2 * half) - half
        if total == 0:
            return base
        name = self.text.emit_shared(f"add {elem} {base}, {total}")
        self.sums[name] = (base, total)
        return name

    def do_const(self, op: Op) -> None:
        value = op.attrs[0]
        self.put(op.result, constant(value, op.result.type), value)

    def do_literal(self, op: Op) -> None:
        self.put_lanes(op.result, op.attrs[0])

    def do_splat(self, op: Op) -> None:
        (x,), result = op.operands, op.result
        number = self.number(x)
        if number is not None:
            self.put(result, constant(number, result.type), number)
            return
        v, s = spell(result.type), spell(x.type)
        one = self.text.emit_shared(f"insertelement {v} poison, {s} {self.get(x)}, i32 0")
        mask = f"<{result.type.lanes} x i32> zeroinitializer"
        self.put(result, self.text.emit_shared(f"shufflevector {v} {one}, {v} poison, {mask}"))

    def do_cast(self, op: Op) -> None:
        (x,), result = op.operands, op.result
        number, elem = self.number(x), result.type.elem
        if number is not None and elem in SCALAR_INTS and x.type.elem in SCALAR_INTS and abs(number) < 2**31:
            self.put(result, constant(int(number), result.type), int(number))
            return
        lanes = self.lanes_of(x) if {elem, x.type.elem} <= {*SCALAR_INTS} else None
        if lanes and all(fits(int(n), elem) for n in lanes):
            self.put_lanes(result, lanes)
            return
        if number is None and not x.type.lanes and x.type.elem == "i32" and elem == "i64":
            self.put(result, self.text.emit_shared(f"sext i32 {self.get(x)} to i64"))
            return
        self.put(result, self.ops.cast(self.get(x), x.type, elem))

    def do_fma(self, op: Op) -> None:
        args = op.operands
        operands, numbers = [self.get(a) for a in args], [self.number(a) for a in args]
        t = op.result.type
        others = self.selected_against.get(op.result.id, ())
        if t.elem in FLOATS and any(self.number(x) == 0 or x.id not in self.operand for x in others):
            # A masked load stays an instruction of its own: see faults.UNMASKED.
            operands = [self.ops.intrinsic("arithmetic.fence", t, x) if x in self.masked else x for x in operands]
        self.put(op.result, self.ops.apply("fma", t, operands, numbers))

    def do_dot(self, op: Op) -> None:
        args = [self.get(a) for a in op.operands]
        self.put(op.result, dot_products.multiply_add(LaneArithmetic(self.ops, op.result.type), op.attrs[0], *args))

    def tile_registers(self) -> TileRegisters:
        """Return the emitter of tile-register operations. Raises CompileError where they multiply nothing."""
        if self.tiles is None:
            raise CompileError(f"{self.function.name} uses tile registers, but has no dot product of them")
        return self.tiles

    def do_tile_zero(self, op: Op) -> None:
        self.tile_registers().zero(op.attrs[0])

    def do_tile_load(self, op: Op) -> None:
        self.move_tile(op, stores=False)

    def do_tile_store(self, op: Op) -> None:
        self.move_tile(op, stores=True)

    def move_tile(self, op: Op, stores: bool) -> None:
        """Emit a load or a store of a tile register."""
        ptr, offset, stride = op.operands
        number = self.number(stride)
        in_bytes = 4 * int(number) if number is not None else self.text.emit_shared(f"mul i64 {self.get(stride)}, 4")
        self.tile_registers().move(op.attrs[0], self.address(ptr, offset, "i32"), str(in_bytes), stores)

    def do_tile_dot(self, op: Op) -> None:
        dot, *registers = op.attrs
        tiles = self.tile_registers()
        if dot != tiles.dot:
            raise CompileError(f"{self.function.name} has two dot products of tile registers: {tiles.dot} and {dot}")
        tiles.multiply_add(*registers)

    def do_pack(self, op: Op) -> None:
        points = [(self.get(a), a.type) for a in op.operands]
        self.put(op.result, dot_products.pack(LaneArithmetic(self.ops, op.result.type), points))

    def do_bitcast(self, op: Op) -> None:
        (x,) = op.operands
        self.put(op.result, self.text.emit(f"bitcast {spell(x.type)} {self.get(x)} to {spell(op.result.type)}"))

    def do_add(self, op: Op) -> None:
        """Emit add, sub or mul. 64-bit scalars are addresses mostly, and are computed once a region."""
        a, b = op.operands
        numbers = [self.number(a), self.number(b)]
        if a.type.lanes and self.fold_lanes(op, (a, b)):
            return
        if a.type.lanes or a.type.elem not in SCALAR_INTS:
            self.put(op.result, self.ops.apply(op.name, a.type, [self.get(a), self.get(b)], numbers))
            return
        if self.fold(op, [a, b], numbers):
            return
        x, y = self.get(a), self.get(b)
        (x_base, c), (y_base, d) = self.sums.get(x, (x, 0)), self.sums.get(y, (y, 0))
        if op.name == "add" and (c or d):
            inner = self.text.emit_shared(f"add {a.type.elem} {x_base}, {y_base}")
            self.put(op.result, self.add_constant(inner, c + d, a.type.elem))
            return
        self.put(op.result, self.text.emit_shared(f"{op.name} {a.type.elem} {x}, {y}"))

    do_sub = do_mul = do_add

    def do_shuffle(self, op: Op) -> None:
        a, b = op.operands
        lanes = ", ".join("i32 poison" if n < 0 else f"i32 {n}" for n in op.attrs[0])
        v = spell(a.type)
        self.put(
            op.result,
            self.text.emit(f"shufflevector {v} {self.get(a)}, {v} {self.get(b)}, <{len(op.attrs[0])} x i32> <{lanes}>"),
        )

    def do_extract(self, op: Op) -> None:
        x, *more = op.operands
        lane = more[0] if more else None
        where = f"{spell(lane.type)} {self.get(lane)}" if lane is not None else f"i32 {op.attrs[0]}"
        self.put(op.result, self.text.emit(f"extractelement {spell(x.type)} {self.get(x)}, {where}"))

    def do_insert(self, op: Op) -> None:
        x, value = op.operands
        parts = f"{spell(x.type)} {self.get(x)}, {spell(value.type)} {self.get(value)}, i32 {op.attrs[0]}"
        self.put(op.result, self.text.emit(f"insertelement {parts}"))

    def do_any(self, op: Op) -> None:
        (x,) = op.operands
        name = f"llvm.vector.reduce.or.{mangle(x.type)}"
        self.put(op.result, self.text.call(name, Type("i1"), [(x.type, self.get(x))]))

    def do_barrier(self, op: Op) -> None:
        self.text.emit_void('call void asm sideeffect "", "~{memory}"()')


def count_vectors(x: Loop) -> int:
    """Return the number of vectors among a loop's carried values."""
    return sum(v.type.lanes > 1 for v in x.carried)
