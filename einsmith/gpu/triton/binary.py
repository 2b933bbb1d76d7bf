"""Describe sources of GPU kernels and the machine code made of them."""

from __future__ import annotations

from typing import NamedTuple

OPTIONS = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
"""Options with which Triton must compile a text. By default it fuses a product and a sum to one `fma`, which differs
from a product that memory holds; in the tile IR each is rounded. By default its library of functions takes subnormal
numbers for zero: the remainder of a division by one would be NaN."""


class TritonSource(NamedTuple):
    """A function of a Triton text, and how it is compiled.

    text: the text, in which the function is `name`; signature: the types of its arguments as Triton spells them
    (`gpu.tiles.triton_text.signature`); warps: warps of a program; stages: turns of a loop that are loaded ahead
    """

    text: str
    name: str
    signature: tuple[str, ...]
    warps: int
    stages: int


class Binary(NamedTuple):
    """Machine code of a kernel. A launch gives it the function's pointers and two null pointers more, for Triton's
    scratch memory, and `shared` bytes of dynamic shared memory; all programs lie along the first axis of the grid.

    cubin: the code; name: its entry; warps: warps of a program; shared: bytes of shared memory of a program; registers:
    registers of a thread; stack: bytes of a thread's memory for registers that do not suffice (spills)
    """

    cubin: bytes
    name: str
    warps: int
    shared: int
    registers: int
    stack: int
