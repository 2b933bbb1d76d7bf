"""Bind the values of a loop nest to operands of LLVM IR, and record what is known of constants and masks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from einsmith.codegen.llvm.text import FLOATS, constant, lanes_constant, literal
from einsmith.codegen.ssa import FOLD, Op, SSAValue

Number = float | int | bool


def _and(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def _not(a: bool | None) -> bool | None:
    return None if a is None else not a


_LANES: dict[str, Callable[..., bool | None]] = {
    "and": _and,
    "not": _not,
    "or": lambda a, b: _not(_and(_not(a), _not(b))),
    "select": lambda c, a, b: a if c or (c is None and a is b) else b if c is False else None,
}
"""Logic that derives a lane of a mask from the lanes that it is computed from; None stands for an unknown lane."""


SCALAR_INTS = ("i64", "i32")
_LOGIC: dict[str, Callable[..., bool]] = {
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": operator.not_,
    "eq": operator.eq,
    "ne": operator.ne,
}
"""Functions of conditions that are known."""


class ValueOperands:
    """The operands of one function's values, and the constants among them.

    mask_registers: masks are in registers of their own (AVX-512)
    """

    def __init__(self, mask_registers: bool):
        self.mask_registers = mask_registers
        self.operand: dict[int, str] = {}
        self.literal: dict[int, Number] = {}
        self.lanes: dict[str, tuple[Number, ...]] = {}  # by operand that is a constant vector
        self.partial_masks: dict[str, tuple[bool | None, ...]] = {}  # known lanes of masks that are not constant

    def put(self, value: SSAValue, operand: str, number: Number | None = None) -> None:
        """Bind a value to an operand, and to the number that it is known to be (None: not known)."""
        self.operand[value.id] = operand
        if number is None:
            self.literal.pop(value.id, None)
        else:
            self.literal[value.id] = number

    def put_int(self, value: SSAValue, number: Number) -> None:
        """Bind an integer value to a literal."""
        self.put(value, literal(number, value.type.elem), number)

    def put_lanes(self, value: SSAValue, lanes: Sequence[Number]) -> None:
        """Bind a value to a vector constant with the given lanes."""
        if all(x == lanes[0] for x in lanes) and value.type.elem not in FLOATS:
            self.put(value, constant(lanes[0], value.type), lanes[0])
            return
        operand = lanes_constant(lanes, value.type.elem)
        self.lanes[operand] = tuple(lanes)
        self.put(value, operand)

    def lanes_of(self, value: SSAValue | None) -> tuple[Number, ...] | None:
        """Return the lanes of a constant vector; None where they are not known."""
        if value is None:
            return None
        number = self.number(value)
        return self.lanes.get(self.get(value)) if number is None else (number,) * value.type.lanes

    def known_lanes(self, mask: SSAValue) -> tuple[bool | None, ...]:
        """Return for each lane of a mask whether it is known to be True or False, else None."""
        lanes = self.lanes_of(mask)
        if lanes is not None:
            return tuple(map(bool, lanes))
        return self.partial_masks.get(self.get(mask), (None,) * mask.type.lanes)

    def note_mask(self, op: Op) -> None:
        """Record the known lanes of a mask that is computed from others, where they decide how memory is read."""
        logic = None if self.mask_registers else _LANES.get(op.name)
        if logic is None or not op.results or op.result.type.elem != "i1" or not op.result.type.lanes:
            return
        lanes = tuple(logic(*x) for x in zip(*map(self.known_lanes, op.operands), strict=True))
        if any(x is not None for x in lanes):
            self.partial_masks[self.get(op.result)] = lanes

    def get(self, value: SSAValue) -> str:
        """Return the operand of a value."""
        return self.operand[value.id]

    def number(self, value: SSAValue | None) -> Number | None:
        """Return the number that a value is known to be; None: not known, or no value."""
        return None if value is None else self.literal.get(value.id)

    def fold_lanes(self, op: Op, args: Sequence[SSAValue]) -> bool:
        """Fold an instruction on constant integer vectors, such as masks, which LLVM would find to be constants, too.
        Return whether the instruction was folded."""
        t, result = args[-1].type, op.result
        known = [self.lanes_of(a) for a in args]
        if result is None or t.elem in FLOATS or not all(known):
            return False
        columns = zip(*known, strict=True)
        if op.name == "select":
            lanes: list[Any] = [a if c else b for c, a, b in columns]
        elif t.elem == "i1" and op.name in _LOGIC:
            lanes = [_LOGIC[op.name](*x) for x in columns]
        elif t.elem in SCALAR_INTS and op.name in FOLD:
            lanes = [compute(op.name, x) for x in columns]
            if not all(isinstance(x, bool) or fits(x, t.elem) for x in lanes):
                return False
        else:
            return False
        self.put_lanes(result, lanes)
        return True


def fits(x: int, elem: str) -> bool:
    """Return whether a scalar integer type holds a number."""
    half = 2 ** (63 if elem == "i64" else 31)
    return -half <= x < half


def compute(name: str, args: Sequence[int]) -> int | bool:
    """Compute an instruction of FOLD on constants, as Python defines it; a division by 0 gives 0."""
    return 0 if name in ("floordiv", "mod") and args[1] == 0 else FOLD[name](*args)
