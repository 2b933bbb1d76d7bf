"""Lower kernels of the plan to functions of the tile IR, by the patterns that take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from math import prod

from einsmith.base.errors import CompileError
from einsmith.ir.nodes import Piece, Reduce
from einsmith.kernels.contraction.problem import problems
from einsmith.kernels.pattern import Launch, Lowered, describe
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.tiles.contraction import LEAST_DOT_EXTENT, lower_contraction
from einsmith.tiles.pieces import Functions, Tiling, lower_pointwise, own_memory
from einsmith.tiles.points import TileMemory
from einsmith.tiles.reduction import lower_reduction
from einsmith.tiles.rows import lower_row_wise, places_of
from einsmith.tiles.scatter import scatter_to_reductions
from einsmith.tiles.segments import lower_sorted, sorted_scatter
from einsmith.tiles.stencil import has_few_terms, is_contiguous_along_results, lower_stencil


def patterns(kernel: Kernel | Rows) -> tuple[str, ...]:
    """Return the names of the patterns that take a kernel; the first one is used by default."""
    if isinstance(kernel, Rows):
        return ("rows",)
    if kernel.root.is_scatter:
        return ("scatter",)
    if not any(isinstance(p.body, Reduce) for p in kernel.root.parts):
        return ("pointwise",)
    terms: tuple[str, ...] = ("reduction",)
    if has_few_terms(kernel):
        terms = ("stencil", "reduction") if is_contiguous_along_results(kernel) else ("reduction", "stencil")
    products = problems(kernel.root)
    if products is None:
        return terms
    # A dot with mostly unused rows or columns takes longer than its terms one by one.
    full = all(min(p.count(p.left), p.count(p.right)) >= LEAST_DOT_EXTENT // 2 for p in products)
    return ("contraction", *terms) if full else (*terms, "contraction")


def lower(kernel: Kernel | Rows, tiling: Tiling, pattern: str | None = None) -> Lowered:
    """Lower a kernel to its launches, in order. Each is a function of the tile IR, of as many tasks as it has
    programs, whose parameters are buffers of the kernel and parts of the workspace. pattern: one of `patterns`; None
    for the first. Raises CompileError for a kernel that the pattern does not take."""
    functions = Functions()
    if isinstance(kernel, Rows):
        _lower_rows(functions, kernel, tiling)
    else:
        _lower_kernel(functions, kernel, own_memory(kernel), tiling, pattern or patterns(kernel)[0])
    return Lowered([Launch(f, f.programs) for f in functions.done], functions.workspace)


def _lower_kernel(
    functions: Functions, kernel: Kernel, places: Sequence[TileMemory], tiling: Tiling, pattern: str
) -> None:
    """Lower a kernel whose buffers lie at `places`."""
    if pattern not in patterns(kernel):
        raise CompileError(f"the pattern {pattern!r} on tiles does not take the kernel {describe(kernel)}")
    if pattern == "scatter" and (found := sorted_scatter(kernel)) is not None:
        lower_sorted(functions, kernel, found, places, tiling)
    elif pattern == "scatter":
        for part in scatter_to_reductions(kernel):
            _lower_pieces(functions, part, part.root.parts, places, tiling)
    elif pattern == "contraction":
        products = problems(kernel.root) or ()
        for p in products:
            lower_contraction(functions, kernel, p, places, tiling)
        _lower_pieces(functions, kernel, [piece for p in products for piece in p.constant_pieces], places, tiling)
    else:
        lower_reduce = lower_stencil if pattern == "stencil" else lower_reduction
        _lower_pieces(functions, kernel, kernel.root.parts, places, tiling, lower_reduce)


def _lower_pieces(
    functions: Functions,
    kernel: Kernel,
    parts: Sequence,
    places: Sequence[TileMemory],
    tiling: Tiling,
    lower_reduce: Callable[..., None] = lower_reduction,
) -> None:
    """Lower each piece on its own; `lower_reduce` lowers a piece with a Reduce."""
    for piece in parts:
        assert isinstance(piece, Piece)
        if prod(piece.extents):
            (lower_reduce if isinstance(piece.body, Reduce) else lower_pointwise)(
                functions, kernel, piece, places, tiling
            )


def _lower_rows(functions: Functions, rows: Rows, tiling: Tiling) -> None:
    """Lower the members in order; consecutive members that do not sum over the rows become one function."""
    places = places_of(functions, rows)
    numbered = list(enumerate(rows.members))
    for reduces, members in groupby(numbered, key=lambda x: x[1].reduces):
        group = list(members)
        if not reduces:
            lower_row_wise(functions, rows.rows, [m for _, m in group], [places[n] for n, _ in group], tiling)
            continue
        for n, m in group:
            _lower_kernel(functions, m.kernel, places[n], tiling, patterns(m.kernel)[0])
