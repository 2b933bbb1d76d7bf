"""Small graphs drawn at random: what training graphs are made of, a few tensors each."""

from __future__ import annotations

import random

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Leaf,
    Read,
    Reduce,
    Tensor,
    apply,
    leaf,
    postorder,
    template,
)

F = dt.f32
SIZES = ((24, 40), (64, 48), (200, 96), (256, 512), (512, 384), (1024, 1024), (4096, 768), (2048, 4096))
"""Rows and columns, from some kilobytes to what no cache holds."""


def _own(t: Tensor, slot: int) -> Read:
    return Read(slot, tuple(Axis(d) for d in range(len(t.shape))), t.dtype)


def _made(shape: tuple[int, ...], body: Expr | Reduce, *args: Tensor) -> Compute:
    return Compute(template(shape, [(a.dtype, a.shape) for a in args], body), args)


def _number(x: float) -> Const:
    return Const(x, F)


class Drawing:
    """One graph of `count` tensors over matrices of one size, their rows, columns and transposes."""

    def __init__(self, rng: random.Random, count: int):
        self.rng = rng
        self.rows, self.columns = rng.choice(SIZES)
        self.inputs: list[Leaf] = []
        self.pool: list[Tensor] = [self.input(self.rows, self.columns) for _ in range(rng.randint(1, 2))]
        self.updates: list[tuple[Leaf, Tensor]] = []
        kinds = (self.unary, self.unary, self.binary, self.binary, self.spread, self.spread, self.reduction,
                 self.reduction, self.product, self.transpose, self.shifted)  # fmt: skip
        while sum(isinstance(t, Compute) for t in self.pool) < count:
            new = rng.choice(kinds)()
            if new is not None and new not in self.pool:
                self.pool.append(new)

    def input(self, *shape: int) -> Leaf:
        self.inputs.append(leaf(shape, F))
        return self.inputs[-1]

    def some(self, rank: int = 0) -> Tensor | None:
        """A tensor, a late one rather than an early one."""
        found = [t for t in self.pool if not rank or len(t.shape) == rank]
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))] if found else None

    def unary(self) -> Tensor | None:
        t = self.some()
        assert t is not None
        x = _own(t, 0)
        fn = self.rng.choice(("relu", "exp", "tanh", "scale", "square"))
        if fn == "relu":
            return _made(t.shape, apply("where", apply("le", x, _number(0)), _number(0), x), t)
        if fn == "scale":
            return _made(t.shape, apply("add", apply("mul", x, _number(0.5)), _number(1)), t)
        return _made(t.shape, apply("mul", x, x) if fn == "square" else apply(fn, x), t)

    def binary(self) -> Tensor | None:
        a = self.some()
        others = [t for t in self.pool if t.shape == a.shape and t is not a] if a is not None else []
        if a is None or not others:
            return None
        b = self.rng.choice(others)
        return _made(a.shape, apply(self.rng.choice(("add", "sub", "mul")), _own(a, 0), _own(b, 1)), a, b)

    def spread(self) -> Tensor | None:
        """A vector with every row, or every column."""
        a = self.some(2)
        if a is None:
            return None
        axis = self.rng.randrange(2)
        vectors = [t for t in self.pool if t.shape == (a.shape[axis],)]
        v = self.rng.choice(vectors) if vectors and self.rng.random() < 0.7 else self.input(a.shape[axis])
        fn = self.rng.choice(("add", "sub", "mul"))
        return _made(a.shape, apply(fn, _own(a, 0), Read(1, (Axis(axis),), F)), a, v)

    def reduction(self) -> Tensor | None:
        a = self.some(2)
        if a is None:
            return None
        axis = self.rng.randrange(2)  # what stays
        index = (Axis(0), Axis(1)) if axis == 0 else (Axis(1), Axis(0))
        x: Expr = Read(0, index, F)
        args = [a]
        others = [t for t in self.pool if t.shape == a.shape and t is not a]
        combiner = self.rng.choice(("sum", "sum", "sum", "max"))
        if combiner == "sum" and others and self.rng.random() < 0.4:
            args.append(self.rng.choice(others))
            x = apply("mul", x, Read(1, index, F))
        return _made((a.shape[axis],), Reduce(combiner, (a.shape[1 - axis],), (x,)), *args)

    def product(self) -> Tensor | None:
        """With a matrix of weights, or a gradient's: over the rows of two matrices."""
        a = self.some(2)
        if a is None:
            return None
        i, j, k = Axis(0), Axis(1), Axis(2)
        others = [t for t in self.pool if len(t.shape) == 2 and t.shape[0] == a.shape[0] and t is not a]
        if others and self.rng.random() < 0.3:
            b, x = self.rng.choice(others), apply("mul", Read(0, (k, i), F), Read(1, (k, j), F))
            return _made((a.shape[1], b.shape[1]), Reduce("sum", (a.shape[0],), (x,)), a, b)
        b = self.input(a.shape[1], self.rng.choice((16, 64, a.shape[1])))
        x = apply("mul", Read(0, (i, k), F), Read(1, (k, j), F))
        return _made((a.shape[0], b.shape[1]), Reduce("sum", (a.shape[1],), (x,)), a, b)

    def transpose(self) -> Tensor | None:
        a = self.some(2)
        return None if a is None else _made(a.shape[::-1], Read(0, (Axis(1), Axis(0)), F), a)

    def shifted(self) -> Tensor | None:
        """An element and the one before it, in the row above or in the same row."""
        a = self.some(2)
        if a is None:
            return None
        d = self.rng.randrange(2)
        before = tuple(apply("sub", Axis(k), Const(1, dt.i32)) if k == d else Axis(k) for k in range(2))
        guard = apply("le", Const(1, dt.i32), Axis(d))
        return _made(a.shape, apply("add", _own(a, 0), apply("where", guard, Read(0, before, F), _number(0))), a)

    def graph(self) -> Graph:
        """What nobody reads is a result, or what a parameter is updated by; now and then another tensor is too."""
        read = {a for t in self.pool for a in t.args}
        ends = [t for t in self.pool if isinstance(t, Compute) and t not in read]
        made = [t for t in self.pool if isinstance(t, Compute) and t in read]
        outputs = [t for t in made if self.rng.random() < 0.15]
        for t in ends:
            if self.rng.random() < 0.3:
                p = self.input(*t.shape)
                step = apply("sub", _own(p, 0), apply("mul", _number(0.1), _own(t, 1)))
                self.updates.append((p, _made(t.shape, step, p, t)))
            else:
                outputs.append(t)
        roots = [*outputs, *(t for _, t in self.updates)]
        used = set(postorder(roots))
        inputs = tuple(x for x in self.inputs if x in used)
        return Graph(inputs, tuple(outputs), tuple(self.updates), ())


def drawn(seed: int) -> Graph:
    """The graph of a seed, of 3 to 8 tensors."""
    rng = random.Random(f"graph {seed}")
    return Drawing(rng, rng.randint(3, 8)).graph()
