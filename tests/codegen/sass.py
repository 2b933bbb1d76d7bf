"""Count the instructions of machine code for GPUs (SASS), as a measure of its quality that needs no device.

nvdisasm, which comes with Triton, writes the code as text: "CUDA Binary Utilities" (NVIDIA) lists its instructions.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

TENSOR = ("HGMMA", "HMMA")
"""Instructions of tensor cores for floats: those of four warps together, and those of one."""
_SHAPES = {"16816": (16, 8, 16), "1688": (16, 8, 8)}
"""M, N and K of an instruction of one warp, by how they are written."""
_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_]+)((?:\.\w+)*)\s*(.*?);")
_LABEL = re.compile(r"^(\.L\w*):")
_TARGET = re.compile(r"`\((\.L\w*)\)")
_WIDE = re.compile(r"\.(?:U|S|)(8|16|64|128)\b")


class Instruction(NamedTuple):
    """An instruction without its registers: its first name, the names behind it, each with a dot before it, and the
    number of the instruction that a branch goes to."""

    name: str
    modifiers: str
    target: int | None

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds that a warp does by the instruction, as a share where four warps work together."""
        if self.name not in TENSOR:
            return 0
        shape = self.modifiers.split(".")[1]
        size = prod(_SHAPES[shape] if shape in _SHAPES else map(int, shape.split("x")))
        return size / 4 if self.name == "HGMMA" else size


def disassemble(cubin: bytes, folder: Path) -> list[Instruction]:
    """Return the instructions of machine code, which is written to a file in `folder`."""
    spec = importlib.util.find_spec("triton")
    assert spec is not None and spec.submodule_search_locations
    (folder / "code.cubin").write_bytes(cubin)
    tool = Path(spec.submodule_search_locations[0]) / "backends" / "nvidia" / "bin" / "nvdisasm"
    done = subprocess.run([tool, "-c", folder / "code.cubin"], capture_output=True, text=True, check=True)
    return parse(done.stdout)


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


def main_loop(code: Sequence[Instruction]) -> Sequence[Instruction]:
    """Return the smallest loop with instructions of tensor cores."""
    loops = [code[x.target : n + 1] for n, x in enumerate(code) if x.target is not None and x.target < n]
    return min((x for x in loops if count(x, *TENSOR)), key=len)


def count(code: Sequence[Instruction], *names: str) -> int:
    """Return the number of instructions of certain names."""
    return sum(x.name in names for x in code)


def spills(code: Sequence[Instruction]) -> int:
    """Return the accesses to local memory, which holds registers that do not suffice."""
    return count(code, "LDL", "STL")


def bits(code: Sequence[Instruction], name: str) -> Counter[int]:
    """Return how often each number of bits is what a lane transfers by an instruction (LDGSTS: copies, STG: stores)."""
    wide = (_WIDE.search(x.modifiers) for x in code if x.name == name)
    return Counter(int(w[1]) if w else 32 for w in wide)
