"""What follows the sum: the root's own steps, the later stages, and the stores, for one row of a register tile."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from einsmith.expr.kernel import Kernel
from einsmith.expr.nodes import Apply, Axis, Const, Expr, Piece, Read, apply, postorder
from einsmith.expr.rewrite import rebuild
from einsmith.expr.simplify import simplify
from einsmith.kernels.contraction_lanes import State
from einsmith.kernels.contraction_problem import Problem
from einsmith.kernels.contraction_sample import Part, Pointer, Sampler
from einsmith.loops.nest import Builder, Value


def operations(exprs: Sequence[Expr]) -> int:
    return sum(1 for e in postorder(exprs) if isinstance(e, (Apply, Read)))


def epilogue(kernel: Kernel, p: Problem) -> list[tuple[Expr, int]]:
    """(expression, buffer) of every result that is stored, over the piece's axes; slots are buffers, -1 the sum."""
    total: Expr = Read(-1, (), p.dtype)
    root = kernel.stages[0]
    buffers = {slot: ref[1] for slot, ref in enumerate(root.args)}

    def relabel(x: Expr, slots: dict[int, Any], axes: dict[int, Expr]) -> Expr:
        def rule(e):
            if isinstance(e, Axis):
                return axes.get(e.position, e)
            if isinstance(e, Read):
                to = slots[e.slot]
                return Read(to, e.index, e.dtype) if isinstance(to, int) else to
            return None

        return rebuild([x], rule)[0]

    for fn, x in p.finish:
        if fn == "neg":
            total = apply("neg", total)
            continue
        assert x is not None
        x = relabel(x, buffers, {})
        if fn == "where":
            total = apply("where", x, total, Const(0.0, p.dtype))
        else:
            total = apply(fn, total, x)
    piece = p.piece
    place: dict[int, Expr] = {}
    for d in range(len(piece.extents)):
        x = Axis(d)
        if piece.step[d] != 1:
            x = apply("mul", x, Const(piece.step[d], x.dtype))
        if piece.offset[d]:
            x = apply("add", x, Const(piece.offset[d], x.dtype))
        place[d] = x
    results: list[list[Expr]] = [[total]]
    for stage in kernel.stages[1:]:
        slots: dict[int, Any] = {}
        for slot, ref in enumerate(stage.args):
            slots[slot] = ref[1] if ref[0] == "buffer" else results[ref[1]][ref[2]]
        part = stage.template.parts[0]
        assert isinstance(part, Piece)
        results.append([relabel(x, slots, place) for x in part.bodies])
    out = []
    for stage, exprs in zip(kernel.stages, results, strict=True):
        out += [(x, n) for x, n in zip(exprs, stage.outputs, strict=True) if n is not None]
    if len(kernel.stages) > 1:  # guards that the root and a later stage both have
        out = [(simplify(x, p.extents), n) for x, n in out]
    return out


def addresses(kernel: Kernel, p: Problem, outputs: Sequence[int]) -> list[tuple[int, dict[int, int]]]:
    """(constant, coefficient by axis) of the place of a result in each output buffer."""
    out = []
    for n in outputs:
        shape = kernel.buffers[n].shape
        strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
        const = sum(o * s for o, s in zip(p.piece.offset, strides, strict=True))
        out.append((const, {d: p.piece.step[d] * strides[d] for d in range(len(shape))}))
    return out


class Epilogue:
    """Finishes rows of sums: the root's steps, the later stages, the stores."""

    def __init__(
        self, b: Builder, kernel: Kernel, p: Problem, pointers: dict[int, Pointer], axes: Sequence[int], lanes: int,
        row: int,
    ):
        self.b = b
        results = epilogue(kernel, p)
        self.outputs = [n for _, n in results]
        self.far = [kernel.buffers[n].far for n in self.outputs]
        exprs = [x for x, _ in results]
        self.size = operations(exprs)
        extra = addresses(kernel, p, self.outputs)
        self.sampler = Sampler(b, exprs, (), p.extents, pointers, axes, lanes, extra, (-1,), row)

    def row(self, states: Sequence[State], row: Part, sums: Sequence[Value]) -> None:
        """One row of the tile: `states` are its vectors with all but the row bound."""
        done = []
        for state, x in zip(states, sums, strict=True):
            at = state.bind(row)
            done.append((at, at.values(given={-1: x})))
        for at, values in done:
            for i, value in enumerate(values):
                at.store(i, self.b.buffers[self.outputs[i]], value, self.far[i])
