"""Factorize and solve by blocks of rows, so that most of the work is products of matrices.

Steps of elimination and substitution are left within blocks, or within parts of a single block. Substitution multiplies
by the inverses of blocks (Golub, Van Loan 2013, sections 3.1.4 and 4.2.6). Larger triangles are not inverted: an
explicit inverse loses digits where they are ill-conditioned. Triangles are halved until they are blocks; Cholesky
factors are computed from left to right and joined once, as copies have kernels too. The number of kernels grows with
the number of blocks. Derivatives are those of the products, to any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from einsmith import ops as F
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

BLOCK = 64
"""Most rows of a triangle that is inverted, in matrices of up to `MOST` blocks (measured: the Cholesky
factorization of 300 rows by blocks of 38, 50, 60 and 75 takes 0.25, 0.25, 0.24 and 0.31 ms and 1.5, 1.1, 0.9 and 0.9 s
to compile; Xeon of 2 cores, November 2026)."""
MOST = 8
"""Most blocks of a matrix. Kernels of each size take 20 to 40 ms to compile, so large matrices have larger blocks."""

Steps = Callable[[Value], Value]
"""Function that returns the result of elimination or substitution row by row, for matrices [.., n, n]."""


class BlockSizes(NamedTuple):
    """Sizes of the blocks of a matrix. rows: rows of a block; parts: parts of a block, which steps run over; whole: the
    rows of the matrix, rounded up to blocks."""

    rows: int
    parts: int
    whole: int


def divide(n: int) -> BlockSizes:
    """Return the blocks of a matrix of n rows, of sizes by which few rows are added."""
    count = min(-(-n // BLOCK), MOST)
    parts = 4 if count == 1 else 1  # batches of small matrices gain by small parts; of large ones, kernels are many
    rows = parts * -(-n // (parts * count))
    return BlockSizes(rows, parts, -(-n // rows) * rows)


def extend(t: Value, rows: int) -> Value:
    """Add rows and columns of the identity to matrices [.., n, n]."""
    n = t.shape[-1]
    if n == rows:
        return t

    def element(*i: Any) -> Any:
        return builder.where((i[-2] < n) & (i[-1] < n), t[i], builder.where(i[-2] == i[-1], 1, 0))

    return builder.compute((*t.shape[:-2], rows, rows), element)


def _transpose(x: Value) -> Value:
    return F.transpose(x, -1, -2)


def _part(x: Value, rows: tuple[int, int], columns: tuple[int, int]) -> Value:
    return x[(..., slice(*rows), slice(*columns))]


def _join(a: Value, b: Value, c: Value) -> Value:
    """Return the lower triangles [[a, 0], [b, c]]."""
    zeros = builder.full((*a.shape[:-1], c.shape[-1]), 0.0, a.dtype)
    return F.cat([F.cat([a, zeros], -1), F.cat([b, c], -1)], -2)


def _take_blocks(t: Value, size: int, below: int, step: int) -> Value:
    """Return blocks [.., number, size, size] of matrices: every `step` rows, `below` rows below the diagonal."""
    shape = (*t.shape[:-2], t.shape[-1] // step, size, size)
    return builder.compute(shape, lambda *i: t[(*i[:-3], i[-3] * step + below + i[-2], i[-3] * step + i[-1])])


def invert_blocks(t: Value, sizes: BlockSizes, steps: Steps) -> list[Value]:
    """Return the inverses of the diagonal blocks [.., rows, rows] of lower triangles [.., whole, whole].

    All parts of all blocks are inverted at once, and neighbouring ones are joined.
    """
    size = sizes.rows // sizes.parts
    known = steps(_take_blocks(t, size, 0, size))
    while size < sizes.rows:
        first, second = (known[(..., slice(n, None, 2), slice(None), slice(None))] for n in range(2))
        below = F.matmul(F.matmul(second, _take_blocks(t, size, size, 2 * size)), first)
        size, known = 2 * size, _join(first, -below, second)
    return [known[(..., n, slice(None), slice(None))] for n in range(known.shape[-3])]


def substitute(t: Value, of_blocks: list[Value], b: Value) -> Value:
    """Solve t*x = b for lower triangles [.., n, n], of which the inverses of the diagonal blocks are known."""
    if len(of_blocks) == 1:
        return F.matmul(of_blocks[0], b)
    n, half = t.shape[-1], len(of_blocks) // 2
    rows = half * of_blocks[0].shape[-1]
    top = substitute(_part(t, (0, rows), (0, rows)), of_blocks[:half], b[(..., slice(0, rows), slice(None))])
    rest = b[(..., slice(rows, n), slice(None))] - F.matmul(_part(t, (rows, n), (0, rows)), top)
    return F.cat([top, substitute(_part(t, (rows, n), (rows, n)), of_blocks[half:], rest)], -2)


def factorize(a: Value, sizes: BlockSizes, steps: Steps, invert: Steps) -> Value:
    """Return the Cholesky factors of symmetric matrices [.., n, n], part by part of columns.

    steps, invert: factorize matrices, and invert lower triangles, row by row.
    """
    rows, columns, rest = sizes.rows // sizes.parts, [], a
    for start in range(0, a.shape[-1], rows):
        n = rest.shape[-1]
        root = steps(_part(rest, (0, rows), (0, rows)))
        if n > rows:
            below = F.matmul(_part(rest, (rows, n), (0, rows)), _transpose(invert(root)))
            rest = _part(rest, (rows, n), (rows, n)) - F.matmul(below, _transpose(below))
            root = F.cat([root, below], -2)
        columns.append(F.pad(root, (0, 0, start, 0)))
    return F.cat(columns, -1)
