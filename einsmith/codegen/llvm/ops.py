"""Emit the arithmetic instructions of loop nests as LLVM IR text.

`FunctionText` collects the lines of a function, names its values and declares what it calls; `Ops` has a method for
each instruction of the nest. Operands are strings, as LLVM spells them: `%12`, `7`, `splat (float 0x...)`. Types are
`codegen.loopnest.nest.Type`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from einsmith.base.errors import CompileError
from einsmith.codegen.llvm import half
from einsmith.codegen.llvm.saturate import saturate
from einsmith.codegen.llvm.text import BITS, FLOATS, FunctionText, constant, mangle, spell
from einsmith.codegen.ssa import Type, vector
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.random import threefry
from einsmith.ir.vecmath import polynomials

SELDOM = "!prof !1"
_WASM_BITS = 128
"""Bits of a vector of WebAssembly."""
"""Of a branch that mostly goes to its second target: the weights that `nest.emit_module` defines."""


class Ops:
    """The arithmetic instructions of the nest, emitted into the text of one function. Methods return the operand of the
    result; their parameter `t` is the type of the operands."""

    def __init__(self, text: FunctionText):
        self.text = text

    def emit_binary(self, op: str, t: Type, a: str, b: str) -> str:
        """Emit the LLVM instruction `op`, such as `fadd`, of two operands."""
        return self.text.emit(f"{op} {spell(t)} {a}, {b}")

    def compare(self, predicate: str, t: Type, a: str, b: str) -> str:
        """Emit the condition `a predicate b`, by a predicate of `fcmp` or `icmp` such as `olt`."""
        return self.text.emit(f"{'fcmp' if t.elem in FLOATS else 'icmp'} {predicate} {spell(t)} {a}, {b}")

    def select(self, t: Type, c: str, a: str, b: str) -> str:
        """Emit the selection of a in the lanes where the condition c holds, and of b in the others."""
        return self.text.emit(f"select {spell(vector('i1', t.lanes))} {c}, {spell(t)} {a}, {spell(t)} {b}")

    def intrinsic(self, name: str, t: Type, *args: str) -> str:
        """Emit a call of the intrinsic `llvm.name`, whose operands and result are of type t."""
        return self.text.call(f"llvm.{name}.{mangle(t)}", t, [(t, a) for a in args])

    # -- one method per instruction

    def apply(self, name: str, t: Type, args: Sequence[str], literals: Sequence[float | int | bool | None]) -> str:
        """Emit an instruction of the nest.

        Args:
            name: the nest's name of the instruction
            t: the type of the operands
            args: the operands
            literals: for each operand the number that it is known to be, else None

        Raises:
            CompileError: the instruction has no form in LLVM.
        """
        if name in _FLOAT_BINARY and t.elem in FLOATS:
            return self.emit_binary(_FLOAT_BINARY[name], t, args[0], args[1])
        if name in _INT_BINARY and t.elem not in FLOATS:
            return self.emit_binary(_INT_BINARY[name], t, args[0], args[1])
        if name in _COMPARE:
            by_float, by_int = _COMPARE[name]
            if t.elem == "i1":  # as a signed number, true would be -1
                by_int = by_int.replace("s", "u")
            return self.compare(by_float if t.elem in FLOATS else by_int, t, args[0], args[1])
        if name in ("min", "max"):
            return self.extremum(name, t, args, literals)
        if name in ("floordiv", "mod"):
            return (
                self.float_division(name, t, *args)
                if t.elem in FLOATS
                else self.int_division(name, t, args[0], args[1], literals[1])
            )
        lanes = FUNCTIONS[name].lanes if name in FUNCTIONS else None
        if lanes is not None:
            return lanes(LaneArithmetic(self, t), *args)
        method = getattr(self, "op_" + name, None)
        if method is None:
            raise CompileError(f"no LLVM form of {name} on {t}")
        return method(t, *args)

    def op_neg(self, t: Type, x: str) -> str:
        """Emit -x."""
        if t.elem in FLOATS:
            return self.text.emit(f"fneg {spell(t)} {x}")
        return self.emit_binary("sub", t, constant(0, t), x)

    def op_not(self, t: Type, x: str) -> str:
        """Emit the complement of a condition or of all bits."""
        return self.emit_binary("xor", t, x, constant(1 if t.elem == "i1" else -1, t))

    def op_abs(self, t: Type, x: str) -> str:
        """Emit |x|; the absolute value of the least integer is itself, as overflow wraps."""
        if t.elem in FLOATS:
            return self.intrinsic("fabs", t, x)
        return self.text.call(f"llvm.abs.{mangle(t)}", t, [(t, x), (Type("i1"), "false")])

    def op_sign(self, t: Type, x: str) -> str:
        """Emit the sign: -1, 0 or 1; NaN for NaN, and +0 for a zero of either sign."""
        zero, one, minus = (constant(v, t) for v in (0, 1, -1))
        if t.elem not in FLOATS:
            low = self.select(t, self.compare("slt", t, x, zero), minus, x)
            return self.select(t, self.compare("sgt", t, x, zero), one, low)
        same = self.emit_binary("fadd", t, x, zero)  # NaN stays, and -0 becomes 0
        low = self.select(t, self.compare("olt", t, x, zero), minus, same)
        return self.select(t, self.compare("ogt", t, x, zero), one, low)

    def op_floor(self, t: Type, x: str) -> str:
        """Emit the greatest whole number that is not above x."""
        return self.intrinsic("floor", t, x)

    def op_round(self, t: Type, x: str) -> str:
        """Emit the nearest whole number, halves to the even one: the rounding that every program starts with."""
        return self.intrinsic("rint", t, x)

    def op_sqrt(self, t: Type, x: str) -> str:
        """Emit the square root."""
        return self.intrinsic("sqrt", t, x)

    def op_rsqrt(self, t: Type, x: str) -> str:
        """Emit 1/sqrt(x); the root and the quotient are both rounded."""
        return self.emit_binary("fdiv", t, constant(1.0, t), self.op_sqrt(t, x))

    def op_random_bits(self, t: Type, *words: str) -> str:
        """Emit 32 random bits from two words of a key and two of a counter (`ir.random.threefry`)."""
        return threefry(
            words,
            add=lambda a, b: self.emit_binary("add", t, a, b),
            xor=lambda a, b: self.emit_binary("xor", t, a, b),
            rotate=lambda x, n: self.intrinsic("fshl", t, x, x, constant(n, t)),
            const=lambda n: constant(n, t),
        )

    def op_select(self, t: Type, c: str, a: str, b: str) -> str:
        """Emit the selection of a where the condition c holds, else of b."""
        return self.select(t, c, a, b)

    def op_fma(self, t: Type, a: str, b: str, c: str) -> str:
        """Emit a*b + c; floats are rounded once where the target has an fma instruction, else twice."""
        if t.elem not in FLOATS:
            return self.emit_binary("add", t, self.emit_binary("mul", t, a, b), c)
        if self.text.fma:
            return self.intrinsic("fma", t, a, b, c)
        if "relaxed-simd" in self.text.features and t.lanes * BITS[t.elem] == _WASM_BITS:
            return self.text.call(f"llvm.wasm.relaxed.madd.{mangle(t)}", t, [(t, a), (t, b), (t, c)])
        # Here llvm.fma would become a call of the C library.
        return self.emit_binary("fadd", t, self.emit_binary("fmul", t, a, b), c)

    def extremum(self, name: str, t: Type, args: Sequence[str], literals: Sequence[float | int | bool | None]) -> str:
        """Emit the maximum or minimum of two operands; NaN if either operand is NaN.

        Args:
            name: "max" or "min"
            t: the type of the operands
            args: the two operands
            literals: for each operand the number that it is known to be, else None; an operand that is known not to be
                NaN saves a comparison
        """
        a, b = args
        if t.elem not in FLOATS:
            return self.intrinsic(("u" if t.elem == "i1" else "s") + name, t, a, b)
        predicate = "ogt" if name == "max" else "olt"
        is_number = [x is not None and not math.isnan(x) for x in literals]
        if is_number[1] and not is_number[0]:
            a, b, is_number = b, a, [True, False]
        # Where either operand is NaN the select gives b, which is right unless a is NaN; x86 has an instruction for it.
        out = self.select(t, self.compare(predicate, t, a, b), a, b)
        return out if is_number[0] else self.select(t, self.compare("uno", t, a, a), a, out)

    def int_division(self, name: str, t: Type, a: str, b: str, divisor: float | int | bool | None) -> str:
        """Emit the quotient of integers a and b rounded towards minus infinity (floordiv), or its remainder (mod).

        Division by zero gives 0, as in NumPy, and traps nowhere; the least integer over -1 wraps to itself. divisor:
        the number that b is known to be, else None.
        """
        zero = constant(0, t)
        if divisor is not None and divisor > 0:
            n = int(divisor)
            if n & (n - 1) == 0:  # a power of two
                if name == "mod":
                    return self.emit_binary("and", t, a, constant(n - 1, t))
                return a if n == 1 else self.emit_binary("ashr", t, a, constant(n.bit_length() - 1, t))
            if name == "mod":
                r = self.emit_binary("srem", t, a, b)
                return self.select(t, self.compare("slt", t, r, zero), self.emit_binary("add", t, r, b), r)
            q = self.emit_binary("sdiv", t, a, b)
            r = self.emit_binary("sub", t, a, self.emit_binary("mul", t, q, b))
            return self.emit_binary("add", t, q, self.emit_binary("ashr", t, r, constant(BITS[t.elem] - 1, t)))
        # Divisors 0 and -1 are replaced by 1, and the results corrected: x86 traps at a division by zero, and at the
        # overflow of the least integer over -1.
        minus, one = constant(-1, t), constant(1, t)
        is_zero, is_minus = self.compare("eq", t, b, zero), self.compare("eq", t, b, minus)
        is_replaced = self.emit_binary("or", vector("i1", t.lanes), is_zero, is_minus)
        d = self.select(t, is_replaced, one, b)
        r = self.emit_binary("srem", t, a, d)
        signs_differ = self.compare("slt", t, self.emit_binary("xor", t, r, d), zero)
        adjust = self.emit_binary("and", vector("i1", t.lanes), self.compare("ne", t, r, zero), signs_differ)
        if name == "mod":
            return self.emit_binary("add", t, r, self.select(t, adjust, d, zero))
        q = self.emit_binary("sub", t, self.emit_binary("sdiv", t, a, d), self.select(t, adjust, one, zero))
        q = self.select(t, is_minus, self.op_neg(t, a), q)
        return self.select(t, is_zero, zero, q)

    def float_division(self, name: str, t: Type, a: str, b: str) -> str:
        """Emit the quotient of floats a and b rounded towards minus infinity (floordiv), or its remainder (mod).

        The algorithm is that of NumPy's `npy_divmod`: the exact fmod, given the sign of the divisor, is the remainder,
        from which the quotient follows. floordiv by zero is a/b.
        """
        zero, flag = constant(0.0, t), vector("i1", t.lanes)
        m = self.remainder(t, a, b)
        # `wrong`: the remainder is not zero, and its sign is not the divisor's.
        wrong = self.emit_binary(
            "and",
            flag,
            self.compare("une", t, m, zero),
            self.emit_binary("xor", flag, self.compare("olt", t, b, zero), self.compare("olt", t, m, zero)),
        )
        if name == "mod":
            out = self.select(t, wrong, self.emit_binary("fadd", t, m, b), m)
            is_multiple = self.compare("oeq", t, m, zero)
            return self.select(t, is_multiple, self.intrinsic("copysign", t, zero, b), out)
        div = self.emit_binary("fdiv", t, self.emit_binary("fsub", t, a, m), b)
        div = self.select(t, wrong, self.emit_binary("fsub", t, div, constant(1.0, t)), div)
        # `div` is a whole number but for its rounding, so that it is rounded to the nearest one.
        floor = self.op_floor(t, div)
        is_below = self.compare("ogt", t, self.emit_binary("fsub", t, div, floor), constant(0.5, t))
        out = self.select(t, is_below, self.emit_binary("fadd", t, floor, constant(1.0, t)), floor)
        quotient = self.emit_binary("fdiv", t, a, b)
        out = self.select(t, self.compare("oeq", t, div, zero), self.intrinsic("copysign", t, zero, quotient), out)
        return self.select(t, self.compare("oeq", t, b, zero), quotient, out)

    def remainder(self, t: Type, a: str, b: str) -> str:
        """Emit C's fmod(a, b), which is exact; a result of zero may have either sign.

        Where the target has an fma instruction, the result is |a| - q |b| with q = floor(|a| / |b|), which one fma
        computes exactly. The rounding of the quotient can only make q one too large; the result is then negative, and
        |b| is added. Quotients too large for this are left to the C library.
        """
        if not self.text.fma:
            return self.emit_binary("frem", t, a, b)
        v = LaneArithmetic(self, t)
        x, y = v.abs(a), v.abs(b)
        quotient = v.div(x, y)
        r = v.fma(v.neg(v.floor(quotient)), y, x)
        r = v.select(v.lt(r, v.f(0.0)), v.add(r, y), r)
        r = v.select(v.lt(x, y), x, r)  # covers an infinite divisor
        largest = v.f(2.0**22 if t.elem == "f32" else 2.0**51)  # largest quotient for which this holds
        return v.replace_rare(
            v.lt(largest, quotient), v.copysign(r, a), "fmod", lambda w, *z: w.library("fmod", *z), a, b
        )

    def replace_rare(
        self, t: Type, where: str, value: str, name: str, slow: Callable[..., str], args: Sequence[str]
    ) -> str:
        """Emit a value in which the lanes that satisfy a rare condition are replaced by a slower computation.

        The slower computation is an internal function of the module, called behind a branch if a lane needs it.

        Args:
            t: the type of the value and of `args`
            where: the condition, lane by lane
            value: the result where the condition does not hold
            name: the name of the slower computation; the module has one function for each name and type
            slow: emits the body of the function: it takes an arithmetic and the parameters, and returns the result
            args: the arguments of the function
        """
        text, flags = self.text, vector("i1", t.lanes)
        needed = text.call(f"llvm.vector.reduce.or.{mangle(flags)}", Type("i1"), [(flags, where)]) if t.lanes else where
        function = f"einsmith.{name}.{mangle(t)}"
        if function not in text.declarations:
            inner = FunctionText(text.declarations, text.fma, text.halves, text.features)
            names = [f"%x{n}" for n in range(len(args))]
            parameters = ", ".join(f"{spell(t)} {x}" for x in names)
            text.declarations[function] = ""  # reserves its place before the declarations that its body adds
            inner.emit_void(f"ret {spell(t)} {slow(LaneArithmetic(Ops(inner), t), *names)}")
            head = f"define internal {spell(t)} @{function}({parameters}) #0 {{\nentry:\n"
            text.declarations[function] = head + "\n".join(inner.lines) + "\n}"
        rare, end, before = text.fresh("rare"), text.fresh("end"), text.block
        text.emit_void(f"br i1 {needed}, label %{rare}, label %{end}, {SELDOM}")
        text.label(rare)
        replacement = text.call(function, t, [(t, a) for a in args])
        chosen = self.select(t, where, replacement, value)
        text.emit_void(f"br label %{end}")
        text.label(end)
        return text.emit(f"phi {spell(t)} [ {value}, %{before} ], [ {chosen}, %{rare} ]")

    def libm(self, name: str, t: Type, args: Sequence[str]) -> str:
        """Emit calls of a function of the C library, one for each lane; `name` is the function's name for doubles."""
        scalar, symbol = Type(t.elem), name + ("f" if t.elem == "f32" else "")
        if not t.lanes:
            return self.text.call(symbol, scalar, [(scalar, a) for a in args])
        out = "poison"
        for lane in range(t.lanes):
            parts = [self.text.emit(f"extractelement {spell(t)} {a}, i32 {lane}") for a in args]
            result = self.text.call(symbol, scalar, [(scalar, p) for p in parts])
            out = self.text.emit(f"insertelement {spell(t)} {out}, {spell(scalar)} {result}, i32 {lane}")
        return out

    def cast(self, x: str, source: Type, elem: str) -> str:
        """Emit the conversion of x from the type `source` to lanes of the element type `elem`.

        The rules are those of `loopnest.nest.Builder.cast`. On every machine, a float beyond the range of an integer
        type becomes the nearest integer that the type has, and NaN becomes 0.
        """
        to, single, of = vector(elem, source.lanes), vector("f32", source.lanes), source.elem
        if elem == of:
            return x
        if of in half.FORMATS:
            return self.cast(half.widen(LaneArithmetic(self, single), x, of), single, elem)
        if elem in half.FORMATS:
            return half.narrow(LaneArithmetic(self, single), self.cast(x, source, "f32"), elem)
        if elem == "i1":
            return self.compare("une" if of in FLOATS else "ne", source, x, constant(0, source))
        if of in FLOATS and elem in FLOATS:
            op = "fpext" if elem == "f64" else "fptrunc"
        elif of in FLOATS:
            if source.lanes and BITS[elem] == BITS[of]:
                return saturate(LaneArithmetic(self, source), x)
            sign = "u" if elem == "u8" else "s"
            return self.text.call(f"llvm.fpto{sign}i.sat.{mangle(to)}.{mangle(source)}", to, [(source, x)])
        elif elem in FLOATS:
            op = "uitofp" if of in ("i1", "u8") else "sitofp"
        elif BITS[elem] == BITS[of]:
            return x
        elif of in ("i1", "u8") and BITS[elem] > BITS[of]:
            op = "zext"
        else:
            op = "sext" if BITS[elem] > BITS[of] else "trunc"
        if op == "trunc" and source.lanes == 3:  # LLVM's AArch64 back end aborts at <3 x i64> to <3 x i8>
            four = self.resize(source, x, 4)
            return self.resize(vector(elem, 4), self.cast(four, vector(of, 4), elem), 3)
        return self.text.emit(f"{op} {spell(source)} {x} to {spell(to)}")

    def resize(self, t: Type, x: str, lanes: int) -> str:
        """Emit a vector of `lanes` lanes that begins with the lanes of x; lanes that x lacks are undefined."""
        picked = ", ".join(f"i32 {n}" if n < t.lanes else "i32 poison" for n in range(lanes))
        return self.text.emit(f"shufflevector {spell(t)} {x}, {spell(t)} poison, <{lanes} x i32> <{picked}>")


def _emit_on(operands: str, emit: Callable[..., str], *first: str) -> Callable[..., str]:
    """Return a method of LaneArithmetic that emits by a method of Ops. operands: its attribute with the operands' type;
    first: arguments before that type."""
    return lambda self, *args: emit(self.ops, *first, getattr(self, operands), *args)


def _emit_shift(instruction: str) -> Callable[..., str]:
    """Return a method of LaneArithmetic that shifts an integer by a number of bits."""
    return lambda self, a, n: self.ops.emit_binary(instruction, self.int, a, constant(n, self.int))


def _emit_conversion(instruction: str, source: str, to: str) -> Callable[..., str]:
    """Return a method of LaneArithmetic that converts a value. source, to: its attributes with the types."""
    return lambda self, x: self.ops.text.emit(
        f"{instruction} {spell(getattr(self, source))} {x} to {spell(getattr(self, to))}"
    )


class LaneArithmetic(polynomials.Arith):
    """The arithmetic in which `ir.vecmath` writes functions, as LLVM instructions: floats of the type `t`, and
    integers `int` of the same width and number of lanes. Methods take and return operands."""

    def __init__(self, ops: Ops, t: Type):
        self.ops, self.t, self.elem, self.fused = ops, t, t.elem, ops.text.fma
        self.flag = vector("i1", t.lanes)
        self.int = vector(f"i{BITS[t.elem]}", t.lanes)
        self.long = vector("i64", t.lanes)

    def f(self, value: float) -> str:
        return constant(value, self.t)

    def i(self, value: int) -> str:
        return constant(value, self.int)

    add, sub, mul, div = (_emit_on("t", Ops.emit_binary, x) for x in ("fadd", "fsub", "fmul", "fdiv"))
    lt, eq = (_emit_on("t", Ops.compare, x) for x in ("olt", "oeq"))
    fma, neg, abs, floor, select = (
        _emit_on("t", x) for x in (Ops.op_fma, Ops.op_neg, Ops.op_abs, Ops.op_floor, Ops.select)
    )
    copysign = _emit_on("t", Ops.intrinsic, "copysign")
    iadd, isub, imul = (_emit_on("int", Ops.emit_binary, x) for x in ("add", "sub", "mul"))
    iand, ior, ixor = (_emit_on("int", Ops.emit_binary, x) for x in ("and", "or", "xor"))
    shl, ashr, lshr = (_emit_shift(x) for x in ("shl", "ashr", "lshr"))
    ieq = _emit_on("int", Ops.compare, "eq")
    iselect = _emit_on("int", Ops.select)
    both, either = (_emit_on("flag", Ops.emit_binary, x) for x in ("and", "or"))
    negate = _emit_on("flag", Ops.op_not)
    bits, unbits = _emit_conversion("bitcast", "t", "int"), _emit_conversion("bitcast", "int", "t")
    from_int = _emit_conversion("sitofp", "int", "t")
    extend_int, narrow_int = _emit_conversion("zext", "int", "long"), _emit_conversion("trunc", "long", "int")

    def less_unsigned(self, a: str, b: str) -> str:
        """Emit the condition a < b of unsigned integers."""
        return self.ops.compare("ult", self.int, a, b)

    def wide(self) -> LaneArithmetic:
        return LaneArithmetic(self.ops, vector("f64", self.t.lanes))

    def extend(self, x: str) -> str:
        return self.ops.cast(x, self.t, "f64")

    def narrow(self, x: str) -> str:
        return self.ops.cast(x, vector("f64", self.t.lanes), "f32")

    def replace_rare(self, where: str, value: str, name: str, slow: Callable[..., str], *args: str) -> str:
        return self.ops.replace_rare(self.t, where, value, name, slow, args)

    def library(self, name: str, *args: str) -> str:
        return self.ops.libm(name, self.t, args)


_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
"""LLVM's instructions on two floats, by the nest's name."""
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or"}
"""LLVM's instructions on two integers or conditions, by the nest's name."""
_COMPARE = {"lt": ("olt", "slt"), "le": ("ole", "sle"), "eq": ("oeq", "eq"), "ne": ("une", "ne")}
"""LLVM's predicates for floats and for signed integers, by the nest's name. Of floats, only `ne` is true for NaN."""
