"""Count the instructions of machine code for GPUs (SASS), as a measure of its quality that needs no device.

nvdisasm, which comes with Triton, writes the code as text. Its instructions are described in "CUDA Binary Utilities"
(NVIDIA), by name only.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from einsmith.base.errors import CompileError
from einsmith.codegen.triton.compile import find_tool

TENSOR = ("HGMMA", "HMMA", "DMMA")
"""Instructions of tensor cores for floats: those of four warps together, and those of one."""
_SHAPES = {"16816": (16, 8, 16), "1688": (16, 8, 8), "1684": (16, 8, 4), "884": (8, 8, 4)}
"""M, N and K of an instruction of one warp, by how they are written."""
_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_]+)((?:\.\w+)*)\s*(.*?);")
_LABEL = re.compile(r"^(\.L\w*):")
_TARGET = re.compile(r"`\((\.L\w*)\)")
_WIDE = re.compile(r"\.(?:U|S|)(8|16|64|128)\b")
_LANES = 32


class Instruction(NamedTuple):
    """An instruction without its registers.

    name: its first name; modifiers: the names behind it, each with a dot before it; target: the number of the
    instruction that a branch goes to
    """

    name: str
    modifiers: str
    target: int | None = None

    @property
    def bits(self) -> int:
        """Bits that a lane of an access to memory transfers."""
        wide = _WIDE.search(self.modifiers)
        return int(wide[1]) if wide else 32

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds of floats that a warp does by the instruction, as a share where four warps work together."""
        shape = self.modifiers.split(".")[1] if self.modifiers else ""
        if self.name == "HGMMA":
            return prod(map(int, shape.split("x"))) / 4
        if self.name in TENSOR:
            return prod(_SHAPES[shape] if shape in _SHAPES else map(int, shape.split("x")))
        return _LANES if self.name in ("FFMA", "DFMA") else 0


@dataclass(frozen=True)
class InstructionCounts:
    """Numbers of instructions in a piece of machine code, as they stand in it, for one warp.

    Attributes:
        total: all instructions. In a loop it is the issue slots of a warp in a turn, of which each of a
            multiprocessor's four schedulers has one per cycle.
        by_name: instructions by name without modifiers: HGMMA and HMMA are those of tensor cores, FFMA multiplies and
            adds floats, BAR waits for the other warps
        copies: asynchronous copies from memory to shared memory (LDGSTS), by the bits of a lane
        loads: loads from memory (LDG), by the bits of a lane
        stores: stores to memory (STG), by the bits of a lane
        multiply_adds: multiply-adds of a warp's share, by tensor cores where there are any, else by FFMA and DFMA
    """

    total: int
    by_name: Mapping[str, int]
    copies: Mapping[int, int]
    loads: Mapping[int, int]
    stores: Mapping[int, int]
    multiply_adds: float

    def count(self, *names: str) -> int:
        """Return the number of instructions of certain names."""
        return sum(self.by_name.get(name, 0) for name in names)

    @property
    def spills(self) -> int:
        """Accesses to local memory, which holds registers that do not suffice."""
        return self.count("LDL", "STL")

    @property
    def barriers(self) -> int:
        """Barriers of a program's warps, and of asynchronous copies."""
        return self.count("BAR", "SYNCS", "LDGDEPBAR", "DEPBAR", "WARPGROUP")


@dataclass(frozen=True)
class SassStatistics:
    """Instructions of a kernel, and those of its main loop: the innermost loop with instructions of tensor cores or,
    where there are none, with most multiply-adds, then with most accesses to memory. None where it has no loop.

    The assembler may unroll the main loop: `main_loop.multiply_adds` says how much one turn of the code does.
    """

    whole: InstructionCounts
    main_loop: InstructionCounts | None


def disassemble(cubin: bytes) -> str:
    """Return machine code as text. Raises CompileError for bytes that are none."""
    tool = find_tool("nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"nvdisasm does not read the machine code: {done.stderr.strip()}")
    return done.stdout


def count_instructions(cubin: bytes) -> SassStatistics:
    """Return the statistics of a kernel's machine code (`Binary.cubin`)."""
    return statistics_of(parse(disassemble(cubin)))


def parse(text: str) -> list[Instruction]:
    """Return the instructions of a text that nvdisasm has written."""
    labels: dict[str, int] = {}
    lines: list[re.Match[str]] = []
    for line in text.splitlines():
        if (label := _LABEL.match(line)) is not None:
            labels[label[1]] = len(lines)
        elif (instruction := _LINE.match(line)) is not None:
            lines.append(instruction)
    out = []
    for x in lines:
        target = _TARGET.search(x[3]) if x[1] == "BRA" else None
        out.append(Instruction(x[1], x[2], None if target is None else labels.get(target[1])))
    return out


def statistics_of(code: Sequence[Instruction]) -> SassStatistics:
    """Return the statistics of instructions."""
    loops = [code[x.target : n + 1] for n, x in enumerate(code) if x.target is not None and x.target < n]
    main = min(loops, key=_rank, default=None)
    return SassStatistics(_count(code), None if main is None else _count(main))


def _rank(loop: Sequence[Instruction]) -> tuple[float, ...]:
    """Return the place of a loop among candidates for the main loop. The smallest that has what counts is innermost:
    code that is rarely run lies behind the end and jumps back, which looks like a loop around all in between."""
    names = Counter(x.name for x in loop)
    if any(name in names for name in TENSOR):
        return 0, len(loop)
    products = sum(x.multiply_adds for x in loop)
    accesses = sum(names[name] for name in ("LDG", "LDGSTS", "STG"))
    return 1, -products, -accesses, len(loop)


def _count(code: Sequence[Instruction]) -> InstructionCounts:
    def widths(name: str) -> Counter[int]:
        return Counter(x.bits for x in code if x.name == name)

    names = Counter(x.name for x in code)
    tensor = [x for x in code if x.name in TENSOR]
    products = sum(x.multiply_adds for x in tensor or code)
    return InstructionCounts(len(code), names, widths("LDGSTS"), widths("LDG"), widths("STG"), products)
