"""Runs printed kernels on a graphics card, by Triton. Memory of the host has a copy on the card, so that what runs
there finds and leaves the bytes that the interpreter would."""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from einsmith.gpu.tiles.ir import TileFunction
from einsmith.gpu.tiles.triton_text import ALIGNED as PROMISED
from einsmith.gpu.tiles.triton_text import pointer_type, triton_text
from einsmith.gpu.triton.binary import OPTIONS
from einsmith.runtime.buffers import bytes_at
from tests.tiles.interp import Find

ALIGNED = 256
"""Bytes at a multiple of which the card's memory begins; an address keeps its remainder."""


@cache
def missing() -> str | None:
    """Why nothing can run on a card here; None where it can."""
    try:
        import triton  # noqa: F401, I001  (first, as it is what is missing where PyTorch is made for the processor)
        import torch
    except ImportError as e:
        return f"no card: {e}"
    return None if torch.cuda.is_available() else "no card: PyTorch finds none"


@dataclass(frozen=True)
class Shape:
    """How a program is spread over the card: its warps, and the turns of a loop that are loaded ahead."""

    warps: int = 4
    stages: int = 3


class Mirror:
    """Copies on the card of ranges of the host's memory, given as first and last address. Ranges that overlap lie in
    one piece."""

    def __init__(self, ranges: Iterable[tuple[int, int]]):
        import torch

        self._pieces: list[tuple[int, int, Any]] = []
        merged: list[list[int]] = []
        for first, end in sorted(r for r in ranges if r[1] > r[0]):
            if merged and first < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([first, end])
        for first, end in merged:
            shift = first % ALIGNED
            piece = torch.empty(shift + end - first, dtype=torch.uint8, device="cuda")
            self._pieces.append((first, end, piece[shift:]))

    def tensor(self, address: int, nbytes: int, elem: str) -> Any:
        """The copy of a part of a range, as a tensor of `elem`."""
        import torch

        if not nbytes:
            return torch.empty(0, dtype=getattr(torch, _TORCH[elem]), device="cuda")
        first, _, piece = next(p for p in self._pieces if p[0] <= address and address + nbytes <= p[1])
        return piece[address - first : address - first + nbytes].view(getattr(torch, _TORCH[elem]))

    def upload(self) -> None:
        import torch

        for first, end, piece in self._pieces:
            piece.copy_(torch.from_numpy(bytes_at(first, end - first)))

    def download(self) -> None:
        import torch

        for first, end, piece in self._pieces:
            torch.from_numpy(bytes_at(first, end - first)).copy_(piece)


_TORCH = {
    "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
}  # fmt: skip


@cache
def module(text: str) -> ModuleType:
    """A module of printed kernels; Triton reads their source from its file."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    path = Path(tempfile.mkdtemp()) / f"kernels_{digest}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@cache
def compiled(text: str, name: str, types: tuple[str, ...], shape: Shape) -> Any:
    """A function of a text in machine code, which Triton keeps on disk. types: see `triton_text.signature`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    parts = [t.partition(":") for t in types]
    aligned = {(n,): [["tt.divisibility", int(end)]] for n, (_, _, end) in enumerate(parts) if end}
    arguments = {f"p{n}": start for n, (start, _, _) in enumerate(parts)}
    source = ASTSource(getattr(module(text), name), arguments, {}, aligned)
    options = {"num_warps": shape.warps, "num_stages": shape.stages, **OPTIONS}
    return triton.compile(source, target=GPUTarget("cuda", *architecture()), options=options)


@cache
def architecture() -> tuple[int, int]:
    """The card's compute capability (10 times its number) and the lanes of a warp; Hopper's where there is no card."""
    import torch

    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    return 10 * major + minor, 32


def run(functions: Sequence[TileFunction], find: Find, shape: Shape = Shape()) -> None:  # noqa: B008
    """Runs functions one after the other on memory that is copied to the card and back."""
    import torch

    where = {p: find(p).elements for f in functions for p in f.parameters}
    mirror = Mirror((a.ctypes.data, a.ctypes.data + a.nbytes) for a in where.values())
    mirror.upload()
    text = triton_text(functions)
    for f in functions:
        tensors = [mirror.tensor(where[p].ctypes.data, p.nbytes, p.elem) for p in f.parameters]
        starts = [t.data_ptr() for t in tensors]
        types = tuple(pointer_type(p.elem, n % PROMISED == 0) for p, n in zip(f.parameters, starts, strict=True))
        compiled(text, f.name, types, shape)[(f.programs, 1, 1)](*tensors)
    torch.cuda.synchronize()
    mirror.download()
