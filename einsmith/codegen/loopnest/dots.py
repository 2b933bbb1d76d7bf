"""Define the dot products of words: 32-bit words hold neighbouring points of a sum, which one instruction multiplies
and adds.

A word's first point is in its lowest bits. `c + dot(a, b)` adds the products of all points of the words a and b to a
sum of 32 bits.
"""

from __future__ import annotations

from typing import NamedTuple


class DotProduct(NamedTuple):
    """A dot product of words.

    name: its name; points: points of a word; left, right: element types of the points of the two words; sum: element
    type of the sum; temporaries: registers that hold products before they are added
    """

    name: str
    points: int
    left: str
    right: str
    sum: str
    temporaries: int = 0


WORD = "i32"
"""The element type of words in the loop nest."""
WORD_BYTES = 4
TILE_ROWS = 16
"""Rows of a tile register, and words of a row."""
TILE_REGISTERS = 8
DOTS = {
    d.name: d
    for d in (
        DotProduct("bf16", 2, "bf16", "bf16", "f32"),
        DotProduct("u8i8", 4, "u8", "i8", "i32"),
        DotProduct("i16", 2, "i16", "i16", "i32", 1),
    )
}
"""The dot products by name, those of more points first.

Sums of integers wrap. In `bf16`, products are exact, and every processor adds them to the sum in its own order and
rounding; instructions for it take denormal numbers as zeros.
"""
