"""Count the instructions and bytes of kernels' expressions at a point, whatever the tiles, once for all
configurations that are priced (`gpu.tiles.price`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from einsmith.gpu.tiles.access import LaneAccess, LaneRun, read_access, store_access
from einsmith.gpu.tiles.contraction import find_products, in_memory_order, narrow_operands
from einsmith.gpu.tiles.pieces import memory_order
from einsmith.ir.analysis.predicates import guarded_reads
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import Apply, Expr, Piece, Read, axes_of, cached_postorder, reads
from einsmith.schedule.contraction_problem import Operand, Problem
from einsmith.schedule.kernel import Kernel


@lru_cache(maxsize=4096)
def products_of(kernel: Kernel) -> tuple[Kernel, tuple[Problem, ...], tuple[Piece, ...]]:
    """Return a contraction's kernel with the axes that its products have, the products, with axes in the order of
    memory, and its other pieces (`contraction.find_products`)."""
    split = find_products(kernel)
    assert split is not None
    k = split.kernel
    products = tuple(in_memory_order(k, p) for p in split.pieces if p is not None)
    others = (x for p, x in zip(split.pieces, k.root.parts, strict=True) if p is None)
    return k, products, tuple(x for x in others if isinstance(x, Piece))


class TileRead(NamedTuple):
    """A read of an operand that varies along both dimensions of its tile. is_along_k: whether its lanes run along K
    rather than the other dimension, whichever has the wider accesses."""

    itemsize: int
    is_along_k: bool
    run: LaneRun


class OperandFacts(NamedTuple):
    """Costs of an operand's tile, whatever its size. ops: instructions for an element apart from its reads; is_plain:
    whether it is a read alone."""

    tiles: tuple[TileRead, ...]
    ops: float
    is_guarded: bool
    is_plain: bool


class ProductFacts(NamedTuple):
    """Costs of a product that do not depend on its tiles. divisions: quotients by numbers that are not powers of two to
    find K's axes; is_narrow: whether operands of 16 bits are multiplied without conversion."""

    operands: tuple[OperandFacts, OperandFacts]
    divisions: float
    is_narrow: bool
    epilogue: float
    stores: tuple[tuple[int, LaneRun], ...]


@lru_cache(maxsize=4096)
def product_facts(kernel: Kernel, p: Problem) -> ProductFacts:
    """Return the costs of a product."""
    extents = p.extents
    sides = (p.left, p.right)
    narrow = narrow_operands(p)
    expressions = narrow or (p.operands[0].expr, p.operands[1].expr)
    facts = tuple(
        _operand_facts(kernel, p, o, e, side) for o, e, side in zip(p.operands, expressions, sides, strict=True)
    )
    lanes = [a for a in p.right if extents[a] > 1] or list(p.left)
    stores = tuple((a.itemsize, a.along(lanes, extents)) for a in _stores(kernel, p.piece))
    return ProductFacts(
        (facts[0], facts[1]), _divisions(p.k, extents), narrow is not None, _epilogue_ops(kernel), stores
    )


def _operand_facts(kernel: Kernel, p: Problem, o: Operand, e: Expr, side: Sequence[int]) -> OperandFacts:
    tiles = []
    of_side, of_k = frozenset(side), frozenset(p.k)
    operand_reads = dict.fromkeys(reads(e))
    guards = [*o.guards, *(g for _, gs in guarded_reads(e, lambda r: True) for g in gs)] if operand_reads else []
    for r in operand_reads:
        a = read_access(kernel.stages[0], kernel.buffers, r, guards)
        if a is not None and a.axes & of_k and (a.axes & of_side or not side):
            by_k, by_side = a.along(p.k, p.extents), a.along(side, p.extents)
            is_along_k = (-by_k.vector, by_k.fetched) <= (-by_side.vector, by_side.fetched)
            tiles.append(TileRead(a.itemsize, is_along_k, by_k if is_along_k else by_side))
    conditions = axes_of(*guards)
    is_guarded = bool(conditions & of_k) and bool(conditions & of_side)
    return OperandFacts(tuple(tiles), _ops((e,)), is_guarded, isinstance(e, Read) and len(tiles) == 1)


def _divisions(axes: Sequence[int], extents: Sequence[int]) -> float:
    """Return the quotients by which a number becomes the positions along axes; shifts count as a tenth of one."""
    inner = [extents[a] for a in axes if extents[a] > 1][1:]
    return sum(1.0 if n & (n - 1) else 0.1 for n in inner)


@lru_cache(maxsize=8192)
def _ops(bodies: tuple[Expr, ...]) -> float:
    """Return the instructions for an element of expressions, apart from reads and their indices."""
    inside: set[Expr] = set()
    for e in cached_postorder(bodies):
        if isinstance(e, Read):
            inside.update(cached_postorder(tuple(e.index)))
    return float(
        sum(FUNCTIONS[e.fn].instructions for e in cached_postorder(bodies) if isinstance(e, Apply) and e not in inside)
    )


def _epilogue_ops(kernel: Kernel) -> float:
    return 3.0 + sum(_ops(tuple(s.template.parts[0].bodies)) for s in kernel.stages[1:])


def _stores(kernel: Kernel, piece: Piece) -> list[LaneAccess]:
    """Return the accesses of a piece's stores, and of the epilogue's reads, whose axes are the output's."""
    out = [store_access(n, kernel.buffers[n], piece) for n in kernel.outputs]
    for s in kernel.stages[1:]:
        for body in s.template.parts[0].bodies:
            accesses = (read_access(s, kernel.buffers, r) for r in reads(body))
            out += [a for a in accesses if a is not None]
    return out


class BodyFacts(NamedTuple):
    """Costs of a piece's body per point, for lanes along its results and along its terms.

    reads: (bytes of an element, accesses along results, accesses along terms, whether the place depends on results,
        whether on terms)
    """

    reads: tuple[tuple[int, LaneRun, LaneRun, bool, bool], ...]
    ops: float
    divisions: float
    term_divisions: float
    epilogue: float
    stores: tuple[tuple[int, LaneRun], ...]


@lru_cache(maxsize=4096)
def body_facts(kernel: Kernel, piece: Piece) -> BodyFacts:
    """Return the costs of a piece's body per point."""
    domain, rank = piece.domain, len(piece.extents)
    order = memory_order(kernel, piece)
    terms = tuple(range(rank, len(domain)))
    body_reads = []
    for r in dict.fromkeys(r for body in piece.bodies for r in reads(body)):
        a = read_access(kernel.stages[0], kernel.buffers, r)
        if a is not None:
            on_results, on_terms = (not a.axes.isdisjoint(x) for x in (order, terms))
            body_reads.append((a.itemsize, a.along(order, domain), a.along(terms, domain), on_results, on_terms))
    stores = tuple((a.itemsize, a.along(order, domain)) for a in _stores(kernel, piece))
    return BodyFacts(
        tuple(body_reads),
        _ops(tuple(piece.bodies)),
        _divisions(order, domain),
        _divisions(terms, domain),
        _epilogue_ops(kernel),
        stores,
    )
