"""Lower kernels of the plan to functions of the tile IR, by the patterns that take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from math import prod

from einsmith.base.errors import CompileError
from einsmith.gpu.tiles.chain_search import find_chain
from einsmith.gpu.tiles.chains import SweepPhase
from einsmith.gpu.tiles.contraction import find_products, is_full, lower_contraction
from einsmith.gpu.tiles.pieces import Functions, Tiling, lower_pointwise, member_tiling, own_memory
from einsmith.gpu.tiles.points import TileMemory
from einsmith.gpu.tiles.reduction import lower_reduction
from einsmith.gpu.tiles.rows import are_row_wise, lower_joined, lower_row_wise, places_of
from einsmith.gpu.tiles.scatter import scatter_to_reductions
from einsmith.gpu.tiles.segments import lower_sorted, sorted_scatter
from einsmith.gpu.tiles.stencil import has_few_terms, is_contiguous_along_results, lower_stencil
from einsmith.gpu.tiles.sweeps import lower_phase
from einsmith.ir.functions import SELECTIONS
from einsmith.ir.nodes import Piece, Reduce
from einsmith.kernels.pattern import Launch, Lowered, describe
from einsmith.schedule.kernel import Kernel, Rows

FEWEST_ROWS = 64
"""Fewest rows that are shared out among programs where they are long; fewer leave most of a GPU idle."""
LONG_ROW = 1 << 12
"""Points of a row that one program computes in about the time that a launch takes."""


def patterns(kernel: Kernel) -> tuple[str, ...]:
    """Return the names of the patterns that take a kernel; the first one is used by default. Selections by rank are
    comparisons of pairs before they come here (the pass "compare pairs")."""
    if isinstance(kernel, Rows):
        return _row_patterns(kernel)
    if kernel.root.is_scatter:
        return ("scatter",)
    if not any(isinstance(p.body, Reduce) for p in kernel.root.parts):
        return ("pointwise",)
    if any(isinstance(p.body, Reduce) and p.body.combiner in SELECTIONS for p in kernel.root.parts):
        return ()
    terms: tuple[str, ...] = ("reduction",)
    if has_few_terms(kernel):
        terms = ("stencil", "reduction") if is_contiguous_along_results(kernel) else ("reduction", "stencil")
    products = find_products(kernel)
    if products is None:
        return terms
    full = all(is_full(p) for p in products.pieces if p is not None)
    return ("contraction", *terms) if full else (*terms, "contraction")


def _row_patterns(rows: Rows) -> tuple[str, ...]:
    """Return the names of the patterns that can lower a row-block fusion; the first is the default.

    joined: independent members in one function. sweeps: a chain of reductions without stored tiles. rows: all members
    in one function, row block by row block. members: a function for each member.
    """
    if rows.is_joined:
        return ("joined",)
    chain = ("sweeps",) if find_chain(rows) is not None else ()
    if not are_row_wise(rows):
        return (*chain, "members")
    longest = max(prod(p.domain) for m in rows.members for p in m.kernel.root.parts) // rows.rows
    alone = rows.reuses or (rows.rows < FEWEST_ROWS and longest > LONG_ROW)
    return (*chain, *(("members", "rows") if alone else ("rows", "members")))


def lower(kernel: Kernel, tiling: Tiling, pattern: str | None = None) -> Lowered:
    """Lower a kernel to its launches, in order. Each is a function of the tile IR, of as many tasks as it has
    programs, whose parameters are buffers of the kernel and parts of the workspace. pattern: one of `patterns`; None
    for the first. Raises CompileError for a kernel that the pattern does not take."""
    functions = Functions()
    if isinstance(kernel, Rows):
        _lower_rows(functions, kernel, tiling, pattern or patterns(kernel)[0])
    else:
        _lower_kernel(functions, kernel, own_memory(kernel), tiling, pattern or patterns(kernel)[0])
    return Lowered([Launch(f, f.programs) for f in functions.done], functions.workspace)


def _lower_kernel(
    functions: Functions, kernel: Kernel, places: Sequence[TileMemory], tiling: Tiling, pattern: str
) -> None:
    """Lower a kernel whose buffers lie at `places`."""
    if pattern not in patterns(kernel):
        raise CompileError(f"the pattern {pattern!r} on tiles does not take the kernel {describe(kernel)}")
    if pattern == "scatter" and (scatter := sorted_scatter(kernel)) is not None:
        lower_sorted(functions, kernel, scatter, places, tiling)
    elif pattern == "scatter":
        for part in scatter_to_reductions(kernel):
            _lower_pieces(functions, part, part.root.parts, places, tiling)
    elif pattern == "contraction":
        products = find_products(kernel)
        assert products is not None
        split = products.kernel
        places = [memory._replace(layout=b) for memory, b in zip(places, split.buffers, strict=True)]
        for p, piece in zip(products.pieces, split.root.parts, strict=True):
            if p is None:
                _lower_pieces(functions, split, [piece], places, tiling)
            else:
                lower_contraction(functions, split, p, places, tiling)
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


def _lower_rows(functions: Functions, rows: Rows, tiling: Tiling, pattern: str) -> None:
    """Lower members that share their rows."""
    if pattern not in patterns(rows):
        raise CompileError(f"the pattern {pattern!r} on tiles does not take the kernel {describe(rows)}")
    if pattern == "joined":
        lower_joined(functions, rows, tiling)
        return
    chain = find_chain(rows) if pattern == "sweeps" else None
    if chain is not None:
        places = places_of(functions, rows, chain.members, chain.makers.keys() - chain.stored)
        for step in chain.steps:
            if isinstance(step, SweepPhase):
                lower_phase(functions, chain, step, places, tiling)
            else:
                kernel = chain.members[step].kernel
                kind = patterns(kernel)[0]
                _lower_kernel(functions, kernel, places[step], member_tiling(tiling, kind), kind)
        return
    places = places_of(functions, rows, rows.members)
    numbered = list(enumerate(rows.members))
    for reduces, members in groupby(numbered, key=lambda x: x[1].reduces):
        group = list(members)
        if pattern == "rows" and not reduces:
            lower_row_wise(functions, rows.rows, [m for _, m in group], [places[n] for n, _ in group], tiling)
            continue
        for n, m in group:
            kind = patterns(m.kernel)[0]
            _lower_kernel(
                functions, m.kernel, places[n], tiling if pattern == "rows" else member_tiling(tiling, kind), kind
            )
