"""Hash the structure of a kernel without its extents, so that a tuning result starts the search at other sizes."""

from __future__ import annotations

import hashlib
from typing import Any

from einsmith.base.dtypes import DType
from einsmith.ir.interned import Node, nodes_in
from einsmith.ir.nodes import Const, Piece, Reduce, Scatter, Template
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows

_SIZES: dict[type, tuple[str, ...]] = {
    Const: ("value",),
    Template: ("shape", "params"),
    Piece: ("offset", "extents"),
    Reduce: ("extents",),
    Scatter: ("extents",),
    KernelBuffer: ("shape", "strides"),
    Rows: ("rows",),
}
"""Fields whose numbers depend on extents (the count of numbers does not); constants, as those of guards, are included.
"""


def structure(kernel: Kernel) -> str:
    """Return the kernel's digest without its extents, in hex: `sum[k](A[i,k]*B[k,j])` has the same one at all sizes."""
    known: dict[Node, bytes] = {}
    stack: list[Node] = [kernel]
    while stack:
        node = stack[-1]
        fields = [getattr(node, f) for f in node.fields]
        missing = [n for n in nodes_in(fields) if n not in known]
        stack += missing
        if not missing:
            stack.pop()
            sizes = _SIZES.get(type(node), ())
            text = b"|".join(_text(v, f in sizes, known) for f, v in zip(node.fields, fields, strict=True))
            known[node] = hashlib.blake2b(type(node).__name__.encode() + b"|" + text, digest_size=16).digest()
    return known[kernel].hex()


def extents(kernel: Kernel) -> tuple[int, ...]:
    """Return the extents of all buffers and of the results; kernels of one structure have equally many."""
    return (*(n for b in kernel.buffers for n in b.shape), *kernel.shape)


def _text(value: Any, size: bool, known: dict[Node, bytes]) -> bytes:
    if isinstance(value, Node):
        return known[value]
    if isinstance(value, tuple):
        return b"(" + b",".join(_text(v, size, known) for v in value) + b")"
    if isinstance(value, DType):
        return value.name.encode()
    return b"n" if size and isinstance(value, (int, float)) else repr(value).encode()
