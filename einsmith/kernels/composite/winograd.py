"""Winograd's minimal filtering for 3x3 windows at stride 1: F(4x4,3x3).

`Y = A'[(G w G') * (B' x B)]A` for every tile of 4x4 results (Lavin and Gray, "Fast algorithms for convolutional
neural networks", 2016, section 4): the channels are summed for each of the 36 products, as one batched matrix product.
That takes 4 times fewer multiplications than the sum itself, and rounds differently: the error of an element is at
most `(C + 40) * eps` times the value of the transformed computation on absolute values,
`|A|'[sum |G||w||G'| * |B|'|x||B|]|A|`. An infinity or NaN among the 36 pixels of a tile makes its results NaN. Used
only where the target allows it (`Target.winograd`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod

from einsmith import dtypes as dt
from einsmith.dtypes import DType
from einsmith.expr.analysis import obvious
from einsmith.expr.analysis.bounds import prove
from einsmith.expr.analysis.linear import Linear, linear
from einsmith.expr.nodes import Axis, Const, Expr, Piece, Read, Reduce, Template, apply, template
from einsmith.expr.rewrite.rebuild import substitute
from einsmith.kernels.composite.parts import Composite, CompositeConfig, PartConfig, Place, Staged
from einsmith.kernels.contraction.pattern import PATTERN as CONTRACTION
from einsmith.kernels.contraction.pattern import Configs
from einsmith.kernels.contraction.problem import Operand, Problem, affine, problems
from einsmith.kernels.emit.vector import VectorEmitter
from einsmith.kernels.pattern import Cost, Launch, Lowered
from einsmith.loops.address import address
from einsmith.loops.nest import Builder, Value, elem_of
from einsmith.plan.kernel import Buffer, Kernel, Stage
from einsmith.target.facts import Target

M = 4
"""Results of a tile's side."""
B = ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0), (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0),
     (0, 4, 0, -5, 0, 1))  # fmt: skip
G = ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6), (1 / 24, 1 / 12, 1 / 6),
     (1 / 24, -1 / 12, 1 / 6), (0, 0, 1))  # fmt: skip
A = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))
"""What images, weights and results are transformed by: B', G and A'."""

REACHED = 0.85
"""The part of the peak that the contraction without transforms is expected to reach."""
SLICES = 8
"""Most slices of the filters: each has launches of its own."""


@dataclass(frozen=True)
class _Window:
    """One of the two windowed dimensions: `out` axis p and `tap` axis r of the piece; the image is read at
    p + first + t for t = 0, 1, 2, which is tap r = t, or r = 2 - t where `turned`."""

    out: int
    tap: int
    dim: int
    first: int
    turned: bool


@dataclass(frozen=True)
class _Conv:
    """What is convolved: the reads of image and weights, the two windows, and the piece's other axes: summed ones, the
    image's own, and the weights' own (filters)."""

    image: Read
    weights: Read
    windows: tuple[_Window, _Window]
    summed: tuple[int, ...]
    batch: tuple[int, ...]
    filters: tuple[int, ...]
    problem: Problem

    @property
    def dtype(self) -> DType:
        return self.image.dtype


@dataclass(frozen=True, eq=False)
class _Parts:
    """The kernels that a convolution is made of, and the tensors between them (T tiles of all images; channels C and
    filters F filled up to whole vectors): `padded` [images, rows, columns, C], `taps` [C, 3, 3, F], transformed
    `u` [points, C + 1, f], `v` [points, T + 1, C], `y` [points, T, f], and `tiled` [images, rows, columns, F]. One row
    more, so that the places of a tile's points do not share cache sets. The filters are taken in `slices` of f, one
    after the other, whose `u` stay in the caches until they are multiplied."""

    image: Kernel
    weights: Kernel
    multiply: Kernel
    result: Kernel
    padded: Buffer
    taps: Buffer
    u: Buffer
    v: Buffer
    y: Buffer
    tiled: Buffer
    tiles: tuple[int, int]  # of an image
    slices: int


class Winograd(Composite):
    """Sums of 3x3 windows times weights over channels, whose image counts as zero outside of its tensor."""

    name = "winograd"

    def allowed(self, target: Target) -> bool:
        return target.winograd

    def match(self, kernel: Kernel) -> bool:
        return _conv(kernel) is not None

    def best(self, kernel: Kernel, target: Target, limit: float = float("inf")) -> CompositeConfig | None:
        """The configuration of the lowest cost; None where it is not below `limit`."""
        p, most = _parts(kernel, target), CONTRACTION.bound(kernel, target) / REACHED
        transforms, products = _transforms(p, target), _products(p, target)
        if transforms + products >= limit:
            return None
        rest = transforms + sum(self.chooser.choose(k, target).cost.seconds for k in (p.image, p.weights, p.result))
        if rest + products >= most:
            return None
        # A rank is more than the seconds by a twentieth at most.
        multiply = CONTRACTION.best(p.multiply, target, 1.05 * (limit - rest) / p.slices)
        config = None if multiply is None else self._config(p, target, multiply)
        return config if config is not None and self.cost(kernel, config, target).rank < limit else None

    def _config(self, p: _Parts, target: Target, multiply: Configs) -> CompositeConfig:
        found = [self.chooser.choose(k, target) for k in (p.image, p.weights, p.result)]
        image, weights, result = (PartConfig(x.pattern.name, x.config) for x in found)
        products = [PartConfig(CONTRACTION.name, multiply)] * p.slices
        return CompositeConfig(0, (image, weights, *products, result))

    def configs(self, kernel: Kernel, target: Target) -> list[CompositeConfig]:
        if not target.winograd:
            return []
        p = _parts(kernel, target)
        return [self._config(p, target, c) for c in CONTRACTION.configs(p.multiply, target)[:2]]

    def ways(self, kernel: Kernel, target: Target) -> list[list[Kernel]]:
        p = _parts(kernel, target)
        return [[p.image, p.weights, *[p.multiply] * p.slices, p.result]]

    def cost(self, kernel: Kernel, config: CompositeConfig, target: Target) -> Cost:
        found = super().cost(kernel, config, target)
        return replace(found, arithmetic=found.arithmetic + _transforms(_parts(kernel, target), target))

    def lower(self, kernel: Kernel, config: CompositeConfig, target: Target) -> Lowered:
        p = _parts(kernel, target)
        image, weights, multiply, *_, result = self.lowered(kernel, config, target)
        out = Staged(f"winograd_{kernel.digest.hex()[:8]}", len(kernel.buffers))
        own = [Place(n) for n in range(len(kernel.buffers))]
        padded, taps, u, v, y, tiled = (out.room(b.nbytes) for b in (p.padded, p.taps, p.u, p.v, p.y, p.tiled))
        emit = _Emit(p, target)
        out.add(weights, [*own, taps])
        out.add(image, [*own, padded])
        out.add(emit.images(), [padded, v])
        for n in range(p.slices):
            out.add(emit.weights(n), [taps, u])
            out.add(multiply, [v, u, y])
            out.add(emit.results(n), [y, tiled])
        out.add(result, [*own, tiled])
        return out.lowered


def _products(p: _Parts, target: Target) -> float:
    """Seconds of the products at the peak."""
    count = p.slices * sum(prod(x.extents) for x in problems(p.multiply.root) or ())
    return count / (target.fma_per_second * 4 / p.u.dtype.itemsize) / target.cores


def _transforms(p: _Parts, target: Target) -> float:
    """Seconds of the three transforms."""
    lanes = target.lanes(p.u.dtype.itemsize)
    vector = lanes / target.fma_per_second * (p.u.dtype.itemsize / 4)  # seconds of one vector instruction
    seconds = 0.0
    for one, other, times in ((p.taps, p.u, p.slices), (p.padded, p.v, 1), (p.tiled, p.y, p.slices)):
        vectors = max(one.size, times * other.size) / lanes
        moved = one.nbytes + times * other.nbytes
        arithmetic = vectors * (6 * vector + target.load_seconds + target.store_seconds) / target.cores
        bytes_seconds = target.seconds_for_bytes(moved, moved // times, target.cores)
        seconds += max(arithmetic, bytes_seconds) + times * target.launch_seconds
    return seconds


# ------------------------------------------------------------------------------------------------------- matching


@lru_cache(maxsize=1024)
def _conv(kernel: Kernel) -> _Conv | None:
    root = kernel.stages[0]
    if any(ref[0] != "buffer" for ref in root.args):
        return None
    found = problems(kernel.root)
    if found is None or len(found) > 1 or found[0].finish or found[0].batch or found[0].beside:
        return None
    for i in (0, 1):
        c = _convolved(kernel, found[0], found[0].operands[i], found[0].operands[1 - i])
        if c is not None:
            return c
    return None


def _convolved(kernel: Kernel, p: Problem, x: Operand, w: Operand) -> _Conv | None:
    """The two operands as image and weights; None where they are not."""
    if not isinstance(x.expr, Read) or not isinstance(w.expr, Read) or w.guards:
        return None
    of_x, of_w = affine(x.expr), affine(w.expr)
    if of_x is None or of_w is None:
        return None
    rank = len(p.piece.extents)
    windows: list[_Window] = []
    plain: set[int] = set()
    for d, (const, terms) in enumerate(of_x):
        outs, taps = [a for a in terms if a < rank], [a for a in terms if a >= rank]
        if len(outs) == len(taps) == 1 and p.extents[taps[0]] == 3:
            (out,), (tap,) = outs, taps
            if terms[out] != 1 or abs(terms[tap]) != 1:
                return None
            windows.append(_Window(out, tap, d, const + min(0, 2 * terms[tap]), terms[tap] < 0))
        else:
            plain |= set(terms)
    used = {a for v in windows for a in (v.out, v.tap)}
    of_weights = {a for _, terms in of_w for a in terms}
    if len(windows) != 2 or len(used) != 4 or used & plain or used & of_weights != {v.tap for v in windows}:
        return None
    summed = tuple(a for a in p.k if a not in used)
    outputs = [a for a in range(rank) if a not in used and p.extents[a] > 1]
    if any(a not in plain or a not in of_weights for a in summed):
        return None
    if any((a in plain) == (a in of_weights) for a in outputs):
        return None
    index = [x.expr.index[v.dim] for v in windows]
    inside = _inside(index, _extents(kernel, x.expr, windows))
    known = obvious.given(inside)
    if not all(obvious.holds(g, p.extents, known) or prove(g, p.extents, inside) for g in x.guards):
        return None  # zero elsewhere than outside of the tensor
    return _Conv(
        x.expr, w.expr, (windows[0], windows[1]), summed,
        tuple(a for a in outputs if a in plain), tuple(a for a in outputs if a in of_weights), p,
    )


def _extents(kernel: Kernel, image: Read, windows: Sequence[_Window]) -> list[int]:
    return [kernel.root.params[image.slot][1][v.dim] for v in windows]


def _inside(index: Sequence[Expr], extents: Sequence[int]) -> list[Expr]:
    """That each index lies in 0 .. extent-1."""
    out: list[Expr] = []
    for i, n in zip(index, extents, strict=True):
        out += [apply("le", Const(0, i.dtype), i), apply("lt", i, Const(n, i.dtype))]
    return out


# ---------------------------------------------------------------------------------------------------------- parts


@lru_cache(maxsize=1024)
def _parts(kernel: Kernel, target: Target) -> _Parts:
    c = _conv(kernel)
    assert c is not None
    p, lanes, root = c.problem, target.lanes(c.dtype.itemsize), kernel.stages[0]
    own, last = kernel.buffers, len(kernel.buffers)

    def whole(axes: Sequence[int]) -> int:
        return ceil(prod(p.extents[a] for a in axes) / lanes) * lanes

    channels, filters, images = whole(c.summed), whole(c.filters), prod(p.extents[a] for a in c.batch)
    tiles = (ceil(p.extents[c.windows[0].out] / M), ceil(p.extents[c.windows[1].out] / M))
    total, points = images * prod(tiles), (M + 2) ** 2
    padded = Buffer(c.dtype, (images, tiles[0] * M + 2, tiles[1] * M + 2, channels))
    taps = Buffer(c.dtype, (channels, 3, 3, filters))
    slices = _slices(filters // lanes, points * channels * filters * c.dtype.itemsize, taps.nbytes, target)
    u = Buffer(c.dtype, (points, channels + 1, filters // slices))
    v = Buffer(c.dtype, (points, total + 1, channels))
    y = Buffer(c.dtype, (points, total, filters // slices))
    tiled = Buffer(c.dtype, (images, tiles[0] * M, tiles[1] * M, filters))

    def copied(read: Read, places: Mapping[int, Expr], guards: Sequence[Expr], to: Buffer) -> Kernel:
        body: Expr = substitute(read, places)
        for g in guards:
            body = apply("where", g, body, Const(0, c.dtype))
        return Kernel((Stage(template(to.shape, kernel.root.params, body), root.args, (last,)),), (*own, to))

    zero: dict[int, Expr] = {a: Const(0, dt.i32) for a in range(len(p.extents))}
    places = zero | _digits(Axis(0), c.batch, p) | _digits(Axis(3), c.summed, p)
    for d, w in enumerate(c.windows, start=1):  # the tap that the image is read at first, whatever its direction
        places |= {w.out: Axis(d), w.tap: Const(2 if w.turned else 0, dt.i32)}
    index = [substitute(c.image.index[w.dim], places) for w in c.windows]
    guards = _inside(index, _extents(kernel, c.image, c.windows)) + _below(Axis(3), c.summed, channels, p)
    image = copied(c.image, places, guards, padded)
    places = zero | _digits(Axis(0), c.summed, p) | _digits(Axis(3), c.filters, p)
    for d, w in enumerate(c.windows, start=1):
        places[w.tap] = apply("sub", Const(2, dt.i32), Axis(d)) if w.turned else Axis(d)
    guards = _below(Axis(0), c.summed, channels, p) + _below(Axis(3), c.filters, filters, p)
    weights = copied(c.weights, places, guards, taps)

    at, row, column, k = (Axis(n) for n in range(4))
    product = apply("mul", Read(0, (at, row, k), c.dtype), Read(1, (at, k, column), c.dtype))
    t = template(y.shape, [(b.dtype, b.shape) for b in (v, u)], Reduce("sum", (channels,), (product,)))
    multiply = Kernel((Stage(t, (("buffer", 0), ("buffer", 1)), (2,)),), (v, u, y))

    at_result = (_flat(c.batch, p), Axis(c.windows[0].out), Axis(c.windows[1].out), _flat(c.filters, p))
    piece = Piece(p.piece.offset, p.piece.step, p.piece.extents, Read(0, at_result, c.dtype))
    t = Template(kernel.root.shape, ((c.dtype, tiled.shape),), (piece,))
    stage = Stage(t, (("buffer", last),), root.outputs)
    result = Kernel((stage, *kernel.stages[1:]), (*own, tiled))
    return _Parts(image, weights, multiply, result, padded, taps, u, v, y, tiled, tiles, slices)


def _slices(vectors: int, u: int, taps: int, target: Target) -> int:
    """Slices of the filters, of whole vectors: one, where the last level holds all transformed weights (`u` bytes)
    beside those they are made of, else as many as let one of them leave most of it to the images, at most SLICES."""
    if u + taps <= target.l3:
        return 1
    found = [n for n in range(1, SLICES + 1) if vectors % n == 0]
    return next((n for n in found if u <= n * target.l3 // 3), found[-1])


def _digits(flat: Expr, axes: Sequence[int], p: Problem) -> dict[int, Expr]:
    """The axes as digits of a flattened point."""
    out: dict[int, Expr] = {}
    for i, a in reversed(list(enumerate(axes))):
        extent = Const(p.extents[a], dt.i32)
        out[a] = apply("mod", flat, extent) if i else flat
        flat = apply("floordiv", flat, extent)
    return out


def _flat(axes: Sequence[int], p: Problem) -> Expr:
    total: Expr = Const(0, dt.i32)
    for i, a in enumerate(axes):
        step = apply("mul", total, Const(p.extents[a], dt.i32))
        total = apply("add", step, Axis(a)) if i else Axis(a)
    return total


def _below(flat: Expr, axes: Sequence[int], filled: int, p: Problem) -> list[Expr]:
    count = prod(p.extents[a] for a in axes)
    return [] if count == filled else [apply("lt", flat, Const(count, dt.i32))]


# ------------------------------------------------------------------------------------------------------- transforms


class _Emit:
    """The loops of the three transforms; lanes run along channels or filters, which are whole vectors."""

    def __init__(self, parts: _Parts, target: Target):
        self.parts = parts
        self.elem = elem_of(parts.u.dtype)
        self.lanes = target.lanes(parts.u.dtype.itemsize)

    def weights(self, number: int) -> Lowered:
        """U[a,b,c,f] = sum over the taps of G[a,r] G[b,s] W[c,r,s,f], of a slice of the filters; a task is a channel.
        """
        taps, u = self.parts.taps, self.parts.u
        channel, f = Axis(0), linear(Axis(2))
        at = address([channel, Linear(), Linear(), f + Linear(number * u.shape[-1])], taps.strides)
        to = address([Linear(), channel, f], u.strides)
        return self._transform("weights", G, (taps.shape[0], 1, u.shape[-1]), at, taps.strides[1:3], to,
                               ((M + 2) * u.strides[0], u.strides[0]))  # fmt: skip

    def images(self) -> Lowered:
        """V[a,b,t,c] = sum over tile t of B'[a,i] B'[b,j] X[i,j,c]; a task is a row of tiles."""
        v, padded = self.parts.v, self.parts.padded
        tile, pixel = self._tile(v), self._pixel(padded, 0)
        return self._transform("images", B, self._tiles(v), pixel, padded.strides[1:3], *tile)

    def results(self, number: int) -> Lowered:
        """out[p,q,f] of tile t = sum over the points of A'[p,a] A'[q,b] Y[a,b,t,f], of a slice of the filters."""
        y, tiled = self.parts.y, self.parts.tiled
        pixel = self._pixel(tiled, number * y.shape[-1])
        return self._transform("results", A, self._tiles(y), *self._tile(y), pixel, tiled.strides[1:3])

    def _tiles(self, transformed: Buffer) -> tuple[int, int, int]:
        """Rows of tiles of all images, tiles of a row, and elements of each of the points."""
        return self.parts.y.shape[1] // self.parts.tiles[1], self.parts.tiles[1], transformed.shape[-1]

    def _tile(self, transformed: Buffer) -> tuple[Linear, tuple[int, int]]:
        """The address of a tile's first point, and the steps to the next row and column of points."""
        number = linear(Axis(0)) * self.parts.tiles[1] + linear(Axis(1))
        point = transformed.strides[0]
        return address([Linear(), number, Axis(2)], transformed.strides), ((M + 2) * point, point)

    def _pixel(self, pixels: Buffer, start: int) -> Linear:
        """The address of a tile's first pixel, from element `start` of its depth on."""
        rows = Const(self.parts.tiles[0], dt.i32)
        image, row = (linear(apply(fn, Axis(0), rows)) for fn in ("floordiv", "mod"))
        place = [image, row * M, linear(Axis(1)) * M, linear(Axis(2)) + Linear(start)]
        return address(place, pixels.strides)

    def _transform(
        self, name: str, matrix: Sequence[Sequence[float]], extents: tuple[int, int, int], source: Linear,
        steps: Sequence[int], to: Linear, to_steps: Sequence[int],
    ) -> Lowered:  # fmt: skip
        """matrix * x * transpose of matrix, of a square x of vectors of buffer 0, into buffer 1, for every task (axis
        0), column (1) and vector of the depth (2). source, to: addresses; steps: between rows and between columns."""
        b, n = Builder(name, 3), len(matrix[0])
        em = VectorEmitter(b, extents, self.lanes)
        em.bind(0, b.task)
        with b.loop(0, extents[1]) as column:
            em.bind(1, column.var)
            with b.loop(0, extents[2], self.lanes) as depth:
                em.bind(2, depth.var)
                at, into = em.shared(source), em.shared(to)
                places = [[b.add(at, i * steps[0] + j * steps[1]) for j in range(n)] for i in range(n)]
                square = [[b.load(b.buffers[0], x, self.elem, self.lanes) for x in row] for row in places]
                for i, made in enumerate(self._both(b, matrix, square)):
                    for j, x in enumerate(made):
                        b.store(x, b.buffers[1], b.add(into, i * to_steps[0] + j * to_steps[1]))
        return Lowered([Launch(b.finish(), extents[0])])

    def _both(self, b: Builder, matrix: Sequence[Sequence[float]], x: list[list[Value]]) -> list[list[Value]]:
        """matrix * x * transpose of matrix."""
        columns = [[self._dot(b, row, column) for row in matrix] for column in zip(*x, strict=True)]
        return [[self._dot(b, row, line) for row in matrix] for line in zip(*columns, strict=True)]

    def _dot(self, b: Builder, row: Sequence[float], x: Sequence[Value]) -> Value:
        total: Value | None = None
        for k, v in sorted(zip(row, x, strict=True), key=lambda t: t[0] != 1):  # no negation where some sign is plus
            if k == 0:
                continue
            if total is None:
                total = v if k == 1 else b.mul(v, b.const(k, self.elem, self.lanes))
            elif abs(k) == 1:
                total = b.op("add" if k == 1 else "sub", total, v)
            else:
                total = b.fma(v, b.const(k, self.elem, self.lanes), total)
        assert total is not None
        return total
