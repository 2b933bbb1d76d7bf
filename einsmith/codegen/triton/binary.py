"""Describe sources of GPU kernels and the machine code made of them."""

from __future__ import annotations

from typing import NamedTuple


class TritonSource(NamedTuple):
    """A function of a Triton text, and how it is compiled.

    text: the text, in which the function is `name`; signature: the types of its arguments as Triton spells them
    (`tiles.triton_text.signature`); warps: warps of a program; stages: turns of a loop that are loaded ahead
    """

    text: str
    name: str
    signature: tuple[str, ...]
    warps: int
    stages: int


class Binary(NamedTuple):
    """Machine code of a kernel.

    cubin: the code; name: its entry; warps: warps of a program; shared: bytes of shared memory of a program; registers:
    registers of a thread; stack: bytes of a thread's memory for registers that do not suffice (spills)
    """

    cubin: bytes
    name: str
    warps: int
    shared: int
    registers: int
    stack: int
