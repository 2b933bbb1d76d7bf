"""Take neighbouring points of K together in words of 32 bits, which one instruction multiplies and adds.

Where both operands are tensors of 16 bits, a word holds two points of an axis of K; of 8 bits, four. A problem in words
has that axis with fewer points, and operands whose elements are words:

    sum[k](f32(a[i, k])*f32(b[k, j]))  ->  sum[k](dot(word(a[i, 2*k], a[i, 2*k+1]), word(b[2*k, j], b[2*k+1, j])))

Packing, halo copies and tiles treat words as they treat elements of 32 bits. An operand that has the axis innermost in
memory is read in words as it lies there, without packing (a view).
Source: Georganas et al., "Tensor Processing Primitives" (2021), whose layout for bfloat16 is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np

from einsmith.base.dtypes import DType, dtype_of, i32
from einsmith.codegen.loopnest.address import BufferMemory, address, arguments_of, memories_of
from einsmith.codegen.loopnest.dots import DOTS, TILE_ROWS, WORD_BYTES, DotProduct
from einsmith.ir.analysis.linear import LinearForm, affine_of, without_points
from einsmith.ir.analysis.ranges import leaves, range_by_types
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Piece, Read, Reduce, apply, axes_of, outermost
from einsmith.ir.rebuild import guarded, retyped, substitute
from einsmith.schedule.contraction_problem import VIEW_SLOT, Operand, Problem, affine, end_of_k
from einsmith.schedule.kernel import Kernel, KernelBuffer

MAX_WORD_AXES = 2
"""Most axes of K whose points are tried as those of words."""


def narrow(x: Expr, dtype: DType) -> Expr | None:
    """Return an expression of type `dtype` that equals x; None if x was not converted from that type.

    An integer expression is converted if the types of the elements that it reads bound its value.
    """
    if isinstance(x, Const):
        return Const(x.value, dtype) if dtype.rounded(np.asarray(x.value)) == x.value else None
    if not isinstance(x, Apply):
        return None
    if dtype.is_int:
        reach = range_by_types(x)
        if reach is None or leaves(reach, dtype):
            return None
        return retyped(x, dtype)
    if x.fn == "cast":
        return x.args[0] if x.args[0].dtype is dtype else None
    if x.fn == "where":
        a, b = (narrow(side, dtype) for side in x.args[1:])
        return None if a is None or b is None else Apply("where", (x.args[0], a, b), dtype)
    return None


@lru_cache(maxsize=4096)
def dot_of(p: Problem, target: Any) -> tuple[DotProduct, int] | None:
    """Return the first dot product of the target that computes a problem's terms, and the operand that it takes first.

    None where the target has none.
    """
    for dot in DOTS.values():
        if dot.sum != p.dtype.name or not target.dots_per_cycle(dot.name):
            continue
        for first in (0, 1) if dot.left != dot.right else (0,):
            types = dtype_of(dot.left), dtype_of(dot.right)
            if all(narrow(p.operands[i ^ first].expr, x) is not None for i, x in enumerate(types)):
                return dot, first
    return None


def view_of(m: BufferMemory) -> BufferMemory | None:
    """Return a tensor of narrow elements as one of words; None where the words of a row are not whole words apart."""
    inner = _inner_dimension(m.buffer) if m.dtype.itemsize < WORD_BYTES else None
    if inner is None:
        return None
    points = WORD_BYTES // m.dtype.itemsize
    shape = tuple(n // points if d == inner else n for d, n in enumerate(m.buffer.shape))
    strides = [1 if d == inner else s // points for d, s in enumerate(m.buffer.strides)]
    apart = [s for d, (n, s) in enumerate(zip(m.buffer.shape, m.buffer.strides, strict=True)) if n > 1 and d != inner]
    if 0 in shape or any(s % points for s in apart):
        return None
    return BufferMemory(m.value, KernelBuffer(i32, shape, False, tuple(strides)))


def _inner_dimension(buffer: KernelBuffer) -> int | None:
    """Return the dimension along which elements are adjacent."""
    dense = (d for d, (n, s) in enumerate(zip(buffer.shape, buffer.strides, strict=True)) if n > 1 and s == 1)
    return next(dense, None)


def with_views(memories: Mapping[int, BufferMemory]) -> dict[int, BufferMemory]:
    """Return the memories of slots, and of the views of those that have one."""
    views = {VIEW_SLOT + slot: view_of(m) for slot, m in memories.items()}
    return {**memories, **{slot: m for slot, m in views.items() if m is not None}}


@lru_cache(maxsize=1024)
def operand_memories(kernel: Kernel) -> Mapping[int, BufferMemory]:
    """Return the memories of the root's arguments and their views by slot, without values."""
    return with_views(arguments_of(kernel, memories_of(kernel)))


@lru_cache(maxsize=4096)
def in_words(kernel: Kernel, p: Problem, axis: int | None, target: Any, tiles: bool = False) -> Problem | None:
    """Return a problem with points of `axis`, of K, in words; the problem itself for None. tiles: tile registers
    multiply the words.

    None where no dot product of the target computes its terms, or where a guard depends on the axis.
    """
    if tiles:
        q = None if axis is None else in_words(kernel, p, axis, target)
        if q is None or q.dot is None or not target.tile_dots_per_cycle(q.dot) or target.lanes(WORD_BYTES) != TILE_ROWS:
            return None
        if p.companion is not None:
            return None
        left, right = q.operands
        if (end := end_of_k(q)) is not None and end not in left.guards:  # tile registers take all points of K
            left = replace(left, guards=(*left.guards, end))
        return replace(q, operands=(left, right), in_tiles=True)
    if axis is None:
        return p
    match = dot_of(p, target)
    guards = {*p.exact, *(g for o in p.operands for g in o.guards)}
    if match is None or axis not in p.k or any(axis in axes_of(g) for g in guards):
        return None
    dot, first = match
    extent, points = p.extents[axis], dot.points
    is_whole = extent % points == 0
    places = [_place(axis, points, j) for j in range(points)]

    def at(x: Expr, j: int) -> Expr:
        """Return x at point `j` of a word; zero past the end."""
        moved = substitute(x, {axis: places[j]})
        return moved if is_whole or j == 0 else guarded((apply("lt", places[j], Const(extent, i32)),), moved)

    operands = []
    for i, o in enumerate(p.operands):
        x = narrow(o.expr, dtype_of(dot.left if i == first else dot.right))
        assert x is not None
        view = _read_view(kernel, p, x, axis, points) if is_whole else None
        word = view or Apply("pack", tuple(at(x, j) for j in range(points)), i32)
        operands.append(Operand(word, o.guards, o.axes))
    term = at(p.term, 0)
    for j in range(1, points):
        term = apply("add", term, at(p.term, j))
    extents = tuple(ceil(extent / points) if a == axis else p.extents[a] for a in sorted(p.k))
    piece = Piece(p.piece.offset, p.piece.step, p.piece.extents, Reduce("sum", extents, (term,)))
    # Vectors along K read neighbouring words where the axis is innermost in the order of K, too.
    is_innermost = any(_lies_innermost(kernel, p, o, axis) for o in p.operands)
    k = (*(a for a in p.k if a != axis), axis) if is_innermost else p.k
    both = operands[0], operands[1]
    return replace(p, piece=piece, operands=both, k=k, term=term, dot=dot.name, dot_first=first, word_axis=axis)


def _lies_innermost(kernel: Kernel, p: Problem, o: Operand, axis: int) -> bool:
    """Return whether an operand's elements are neighbours in memory along an axis."""
    memories = operand_memories(kernel)
    for r in outermost([o.expr], Read):
        form = affine_of(address(r.index, memories[r.slot].buffer.strides), p.extents)
        if form is not None and form.coef.get(axis) == 1:
            return True
    return False


def _place(axis: int, points: int, j: int) -> Expr:
    """Return the point `j` of a word as a point of the axis."""
    first = apply("mul", Axis(axis), Const(points, i32))
    return apply("add", first, Const(j, i32)) if j else first


def _read_view(kernel: Kernel, p: Problem, x: Expr, axis: int, points: int) -> Read | None:
    """Return the read of words as they lie in memory; None where they do not."""
    forms = affine(x) if isinstance(x, Read) else None
    if forms is None or not isinstance(x, Read) or x.dtype.itemsize * points != WORD_BYTES:
        return None
    memories = operand_memories(kernel)
    if VIEW_SLOT + x.slot not in memories:
        return None
    inner = _inner_dimension(memories[x.slot].buffer)
    index = []
    for d, form in enumerate(forms):
        coef = dict(without_points(form, p.extents).coef)
        step = coef.pop(axis, 0)
        if step != (d == inner) or d == inner and any(c % points for c in (form.const, *coef.values())):
            return None
        by = points if d == inner else 1
        terms: dict[Expr, int] = {Axis(a): c // by for a, c in coef.items()}
        index.append(LinearForm(form.const // by, terms | ({Axis(axis): 1} if d == inner else {})).expr())
    return Read(VIEW_SLOT + x.slot, tuple(index), i32)


def word_axes(kernel: Kernel, p: Problem, target: Any) -> tuple[int, ...]:
    """Return the axes of K whose points are worth taking in words, the best first.

    Those that fill words best come first; of these, those along which operands are read as they lie in memory.
    """
    match = dot_of(p, target)
    if match is None:
        return ()
    points, ranked = match[0].points, []
    for axis in p.k:
        q = in_words(kernel, p, axis, target) if p.extents[axis] > 1 else None
        if q is not None:
            views = sum(isinstance(o.expr, Read) for o in q.operands)
            ranked.append((ceil(p.extents[axis] / points) * points / p.extents[axis], -views, axis))
    return tuple(axis for *_, axis in sorted(ranked)[:MAX_WORD_AXES])
