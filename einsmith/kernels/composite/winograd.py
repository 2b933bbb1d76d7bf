"""Compute 3x3 windows at stride 1 by Winograd's minimal filtering, F(4x4,3x3).

`Y = A'[(G w G') * (B' x B)]A` for every tile of 4x4 results (Lavin and Gray, "Fast algorithms for convolutional neural
networks", 2016, section 4): the channels are summed for each of the 36 products, as one batched matrix product. That
takes 4 times fewer multiplications than the sum itself, and rounds differently: the error of an element is at most `(C
+ 40) * eps` times the value of the transformed computation on absolute values, `|A|'[sum |G||w||G'| * |B|'|x||B|]|A|`.
An infinity or NaN among the 36 pixels of a tile makes its results NaN. Used only where the target allows it
(`Target.winograd`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.codegen.loopnest.address import address
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.cost.facts import Target
from einsmith.cost.roofline import launch_overhead
from einsmith.ir.analysis import obvious
from einsmith.ir.analysis.bounds import prove
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Axis, Const, Expr, Piece, Read, Reduce, Template, apply, template
from einsmith.ir.rebuild import guarded, substitute, types_of
from einsmith.kernels.composite.parts import BufferPlace, Composite, CompositeConfig, LaunchSequence, PartConfig
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.emit.vector import VectorEmitter
from einsmith.kernels.pattern import Cost, Launch, Lowered
from einsmith.schedule.contraction_problem import Operand, Problem, affine, k_limit, problems
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage, row_major

M = 4
"""Results along a side of a tile."""
B = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
G = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
A = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))
"""The matrices B', G and A' that transform images, weights and results."""

MAX_SLICES = 8
"""Most slices of the filters; each has launches of its own."""


class _Window(NamedTuple):
    """One of the two windowed dimensions.

    out, tap: the axes p and r of the piece
    dim: the image's dimension, which is read at p + r plus a constant, or at p - r plus a constant if `flipped`
    """

    out: int
    tap: int
    dim: int
    flipped: bool


class _MatchedConvolution(NamedTuple):
    """A convolution: the reads of image and weights, the two windows, and the piece's other axes.

    summed: axes of channels
    batch: axes of the image alone
    filters: axes of the weights alone
    """

    image: Read
    weights: Read
    windows: tuple[_Window, ...]
    summed: tuple[int, ...]
    batch: tuple[int, ...]
    filters: tuple[int, ...]
    problem: Problem


class _WinogradKernels(NamedTuple):
    """The kernels of a convolution, whose last buffers hold their intermediate results.

    There are T tiles in all images; channels C and filters F are padded to whole vectors. The filters are taken in
    `slices` of f filters, one after the other, whose u stay in the caches until they are multiplied.

    image: pads the image to [images, rows, columns, C]
    weights: makes taps [C, 3, 3, F]
    multiply: makes y [points, T, f] of the transformed v [points, T + 1, C] and u [points, C + 1, f]; the one row more
    keeps the places of a tile's points out of common cache sets
    result: reads [images, rows, columns, F]
    tiles: tiles of an image along rows and columns
    """

    image: Kernel
    weights: Kernel
    multiply: Kernel
    result: Kernel
    tiles: tuple[int, int]
    slices: int


class Winograd(Composite):
    """Sums of 3x3 windows times weights over channels, where the image counts as zero outside its tensor."""

    name = "winograd"

    def allowed(self, target: Target) -> bool:
        return target.winograd

    def match(self, kernel: Kernel) -> bool:
        return _find_convolution(kernel) is not None

    def best(self, kernel: Kernel, target: Target, limit: float = float("inf")) -> CompositeConfig | None:
        """Return the configuration with the lowest cost; None where that is not below `limit`."""
        p = _split_convolution(kernel, target)
        direct_seconds = CONTRACTION.bound(kernel, target)
        transforms, products = _transform_seconds(p, target), _product_seconds(p, target)
        if transforms + products >= limit:
            return None
        other_seconds = transforms + sum(
            self.chooser.choose(k, target).cost.seconds for k in (p.image, p.weights, p.result)
        )
        if other_seconds + products >= direct_seconds:
            return None
        # A rank exceeds the seconds by at most a twentieth.
        multiply = CONTRACTION.best(p.multiply, target, 1.05 * (limit - other_seconds) / p.slices)
        config = None if multiply is None else self._build_config(p, target, multiply)
        return config if config is not None and self.cost(kernel, config, target).rank < limit else None

    def _build_config(self, p: _WinogradKernels, target: Target, multiply: Configs) -> CompositeConfig:
        choices = [self.chooser.choose(k, target) for k in (p.image, p.weights, p.result)]
        image, weights, result = (PartConfig(x.pattern.name, x.config) for x in choices)
        products = [PartConfig(CONTRACTION.name, multiply)] * p.slices
        return CompositeConfig(0, (image, weights, *products, result))

    def configs(self, kernel: Kernel, target: Target) -> list[CompositeConfig]:
        if not self.allowed(target):
            return []
        p = _split_convolution(kernel, target)
        return [self._build_config(p, target, c) for c in CONTRACTION.configs(p.multiply, target)[:2]]

    def ways(self, kernel: Kernel, target: Target) -> list[list[Kernel]]:
        p = _split_convolution(kernel, target)
        return [[p.image, p.weights, *[p.multiply] * p.slices, p.result]]

    def limited_ways(self, kernel: Kernel, target: Target) -> list[list[Kernel]]:
        return self.ways(kernel, target)  # the transforms go through all images

    def cost(self, kernel: Kernel, config: CompositeConfig, target: Target) -> Cost:
        kernels_cost = super().cost(kernel, config, target)
        return kernels_cost._replace(
            arithmetic=kernels_cost.arithmetic + _transform_seconds(_split_convolution(kernel, target), target)
        )

    def lower(self, kernel: Kernel, config: CompositeConfig, target: Target) -> Lowered:
        p = _split_convolution(kernel, target)
        image, weights, multiply, *_, result = self.lower_parts(kernel, config, target)
        out = LaunchSequence(f"winograd_{kernel.digest.hex()[:8]}", len(kernel.buffers))
        own = [BufferPlace(n) for n in range(len(kernel.buffers))]
        buffers = [p.image.buffers[-1], p.weights.buffers[-1], *p.multiply.buffers, p.result.buffers[-1]]
        padded, taps, v, u, y, tiled = buffers
        at_padded, at_taps, at_v, at_u, at_y, at_tiled = (out.reserve(x.nbytes) for x in buffers)
        out.add(weights, [*own, at_taps])
        out.add(image, [*own, at_padded])
        out.add(_lower_transform("images", B, padded, v, p.tiles, target), [at_padded, at_v])
        for n in range(p.slices):
            first = n * u.shape[-1]
            out.add(_lower_transform("weights", G, taps, u, (1, 1), target, first), [at_taps, at_u])
            out.add(multiply, [at_v, at_u, at_y])
            out.add(_lower_transform("results", A, tiled, y, p.tiles, target, first, back=True), [at_y, at_tiled])
        out.add(result, [*own, at_tiled])
        return out.lowered


def _product_seconds(p: _WinogradKernels, target: Target) -> float:
    """Return the seconds of the products at the peak."""
    count = p.slices * sum(prod(x.extents) for x in problems(p.multiply.root) or ())
    return count / (target.fma_per_second * 4 / p.multiply.buffers[0].dtype.itemsize) / target.cores


def _transform_seconds(p: _WinogradKernels, target: Target) -> float:
    """Return the seconds of the three transforms."""
    v, u, y = p.multiply.buffers
    lanes = target.lanes(u.dtype.itemsize)
    vector = lanes / target.fma_per_second * (u.dtype.itemsize / 4)  # seconds of one vector instruction
    seconds = 0.0
    for part, other, times in ((p.weights, u, p.slices), (p.image, v, 1), (p.result, y, p.slices)):
        pixels = part.buffers[-1]
        vectors = max(pixels.size, times * other.size) / lanes
        moved = pixels.nbytes + times * other.nbytes
        arithmetic = vectors * (6 * vector + target.load_seconds + target.store_seconds) / target.cores
        bytes_seconds = target.seconds_for_bytes(moved, moved // times, target.cores)
        seconds += max(arithmetic, bytes_seconds) + times * launch_overhead(target.cores, target)
    return seconds


# ------------------------------------------------------------------------------------------------------- matching


@lru_cache(maxsize=1024)
def _find_convolution(kernel: Kernel) -> _MatchedConvolution | None:
    """Return the convolution that a kernel computes, or None."""
    pieces = problems(kernel.root)
    if pieces is None or len(pieces) > 1 or pieces[0].epilogue or pieces[0].batch or pieces[0].constant_pieces:
        return None
    (p,) = pieces
    if k_limit(p) is not None:
        return None
    return _match_convolution(kernel, p, *p.operands) or _match_convolution(kernel, p, *reversed(p.operands))


def _match_convolution(kernel: Kernel, p: Problem, x: Operand, w: Operand) -> _MatchedConvolution | None:
    """Return the convolution of image `x` with weights `w`; None if the operands do not form one."""
    if not isinstance(x.expr, Read) or not isinstance(w.expr, Read) or w.guards:
        return None
    of_x, of_w = affine(x.expr), affine(w.expr)
    if of_x is None or of_w is None:
        return None
    rank = len(p.piece.extents)
    windows: list[_Window] = []
    plain_axes: set[int] = set()
    for d, terms in enumerate(form.coef for form in of_x):
        outs, taps = [a for a in terms if a < rank], [a for a in terms if a >= rank]
        if len(outs) == len(taps) == 1 and p.extents[taps[0]] == 3:
            (out,), (tap,) = outs, taps
            if terms[out] != 1 or abs(terms[tap]) != 1:
                return None
            windows.append(_Window(out, tap, d, terms[tap] < 0))
        else:
            plain_axes |= set(terms)
    windowed = {a for v in windows for a in (v.out, v.tap)}
    of_weights = {a for form in of_w for a in form.coef}
    if (
        len(windows) != 2
        or len(windowed) != 4
        or windowed & plain_axes
        or windowed & of_weights != {v.tap for v in windows}
    ):
        return None
    summed = tuple(a for a in p.k if a not in windowed)
    outputs = [a for a in range(rank) if a not in windowed and p.extents[a] > 1]
    if any(a not in plain_axes or a not in of_weights for a in summed):
        return None
    if any((a in plain_axes) == (a in of_weights) for a in outputs):
        return None
    conditions = _guard_inside(kernel, x.expr, windows, {})
    assumptions = obvious.find_lower_bounds(conditions)
    if not all(obvious.holds(g, p.extents, assumptions) or prove(g, p.extents, conditions) for g in x.guards):
        return None  # zero at places inside the tensor too
    batch, filters = (tuple(a for a in outputs if (a in plain_axes) is images) for images in (True, False))
    return _MatchedConvolution(x.expr, w.expr, tuple(windows), summed, batch, filters, p)


def _guard_inside(kernel: Kernel, image: Read, windows: Sequence[_Window], places: Mapping[int, Expr]) -> list[Expr]:
    """Return the conditions that the image is read inside its windowed dimensions, with axes replaced by `places`."""
    out: list[Expr] = []
    for w in windows:
        i, n = substitute(image.index[w.dim], places), kernel.root.params[image.slot][1][w.dim]
        out += [apply("le", Const(0, i.dtype), i), apply("lt", i, Const(n, i.dtype))]
    return out


# ---------------------------------------------------------------------------------------------------------- parts


@lru_cache(maxsize=1024)
def _split_convolution(kernel: Kernel, target: Target) -> _WinogradKernels:
    """Return the kernels of a convolution."""
    c = _find_convolution(kernel)
    assert c is not None
    p, root, dtype = c.problem, kernel.stages[0], c.image.dtype
    lanes = target.lanes(dtype.itemsize)
    own, last, (first, second) = kernel.buffers, len(kernel.buffers), c.windows

    def pad_to_vectors(axes: Sequence[int]) -> int:
        return ceil(prod(p.extents[a] for a in axes) / lanes) * lanes

    channels, filters, images = pad_to_vectors(c.summed), pad_to_vectors(c.filters), prod(p.extents[a] for a in c.batch)
    rows, columns = tiles = ceil(p.extents[first.out] / M), ceil(p.extents[second.out] / M)
    total, points = images * rows * columns, (M + 2) ** 2
    padded = KernelBuffer(dtype, (images, rows * M + 2, columns * M + 2, channels))
    taps = KernelBuffer(dtype, (channels, 3, 3, filters))
    slices = _count_slices(filters // lanes, points * channels * filters * dtype.itemsize, taps.nbytes, target)
    u = KernelBuffer(dtype, (points, channels + 1, filters // slices))
    v = KernelBuffer(dtype, (points, total + 1, channels))
    y = KernelBuffer(dtype, (points, total, filters // slices))
    tiled = KernelBuffer(dtype, (images, rows * M, columns * M, filters))

    def copy_into(read: Read, places: Mapping[int, Expr], guards: Sequence[Expr], to: KernelBuffer) -> Kernel:
        body = guarded(guards, substitute(read, places))
        return Kernel((Stage(template(to.shape, kernel.root.params, body), root.args, (last,)),), (*own, to))

    zero: dict[int, Expr] = {a: Const(0, dt.i32) for a in range(len(p.extents))}
    places = zero | _digits(Axis(0), c.batch, p) | _digits(Axis(3), c.summed, p)
    for d, w in enumerate(c.windows, start=1):  # the tap at which the image is read first, in either direction
        places |= {w.out: Axis(d), w.tap: Const(2 if w.flipped else 0, dt.i32)}
    guards = [*_guard_padding(Axis(3), c.summed, channels, p), *_guard_inside(kernel, c.image, c.windows, places)]
    image = copy_into(c.image, places, guards, padded)
    places = zero | _digits(Axis(0), c.summed, p) | _digits(Axis(3), c.filters, p)
    for d, w in enumerate(c.windows, start=1):
        places[w.tap] = apply("sub", Const(2, dt.i32), Axis(d)) if w.flipped else Axis(d)
    guards = _guard_padding(Axis(0), c.summed, channels, p) + _guard_padding(Axis(3), c.filters, filters, p)
    weights = copy_into(c.weights, places, guards, taps)

    at, row, column, k = (Axis(n) for n in range(4))
    product = apply("mul", Read(0, (at, row, k), dtype), Read(1, (at, k, column), dtype))
    t = template(y.shape, types_of((v, u)), Reduce("sum", (channels,), (product,)))
    multiply = Kernel((Stage(t, (("buffer", 0), ("buffer", 1)), (2,)),), (v, u, y))

    at_result = (_flat(c.batch, p), Axis(first.out), Axis(second.out), _flat(c.filters, p))
    piece = Piece(p.piece.offset, p.piece.step, p.piece.extents, Read(0, at_result, dtype))
    t = Template(kernel.root.shape, ((dtype, tiled.shape),), (piece,))
    stage = Stage(t, (("buffer", last),), root.outputs)
    result = Kernel((stage, *kernel.stages[1:]), (*own, tiled))
    return _WinogradKernels(image, weights, multiply, result, tiles, slices)


def _count_slices(vectors: int, u: int, taps: int, target: Target) -> int:
    """Return the number of slices of the filters, each of whole vectors.

    It is 1 where L3 holds all transformed weights (`u` bytes) and their source (`taps` bytes). Otherwise a slice takes
    at most a third of L3, which leaves the rest to the images, with at most SLICES slices.
    """
    if u + taps <= target.last_level:
        return 1
    divisors = [n for n in range(1, MAX_SLICES + 1) if vectors % n == 0]
    return next((n for n in divisors if u <= n * target.last_level // 3), divisors[-1])


def _digits(flat: Expr, axes: Sequence[int], p: Problem) -> dict[int, Expr]:
    """Return the axes as digits of a flattened point."""
    out: dict[int, Expr] = {}
    for i, a in reversed(list(enumerate(axes))):
        extent = Const(p.extents[a], dt.i32)
        out[a] = apply("mod", flat, extent) if i else flat
        flat = apply("floordiv", flat, extent)
    return out


def _flat(axes: Sequence[int], p: Problem) -> Expr:
    """Return the flattened point of these axes."""
    return address([Axis(a) for a in axes], row_major(tuple(p.extents[a] for a in axes))).expr()


def _guard_padding(flat: Expr, axes: Sequence[int], filled: int, p: Problem) -> list[Expr]:
    """Return the guard that a flattened point lies within the axes; none where they need no padding."""
    count = prod(p.extents[a] for a in axes)
    return [] if count == filled else [apply("lt", flat, Const(count, dt.i32))]


# ------------------------------------------------------------------------------------------------------- transforms


def _lower_transform(
    name: str,
    matrix: Sequence[Sequence[float]],
    pixels: KernelBuffer,
    points: KernelBuffer,
    tiles: tuple[int, int],
    target: Target,
    first: int = 0,
    back: bool = False,
) -> Lowered:
    """Return a launch that computes matrix * x * transpose of matrix for the square x of vectors of every tile.

    Args:
        name: name of the function
        matrix: the transformation
        pixels: [images, rows, columns, depth], buffer 0, from element `first` of the depth on
        points: [places in a square, tiles, depth], buffer 1
        tiles: tiles of an image along rows and columns
        target: the target
        first: first element of the pixels' depth
        back: transform from points, then buffer 0, to pixels, then buffer 1

    The depth is whole vectors; a task is a row of tiles.
    """
    b, n, lanes = Builder(name, 3), len(matrix[0]), target.lanes(points.dtype.itemsize)
    rows, columns = tiles
    extents = pixels.shape[0] * rows, columns, points.shape[-1]
    em = VectorEmitter(b, extents, lanes)
    row, column, depth = (linear(Axis(a)) for a in range(3))
    image, place = (linear(apply(fn, Axis(0), Const(rows, dt.i32))) for fn in ("floordiv", "mod"))
    pixel = address([image, place * M, column * M, depth + LinearForm(first)], pixels.strides)
    point = address([LinearForm(), row * columns + column, depth], points.strides)
    ends = [(pixel, pixels.strides[1:3]), (point, ((M + 2) * points.strides[0], points.strides[0]))]
    (source, steps), (to, to_steps) = reversed(ends) if back else ends
    em.bind(0, b.task)
    with b.loop(0, extents[1]) as across:
        em.bind(1, across.var)
        with b.loop(0, extents[2], lanes) as inwards:
            em.bind(2, inwards.var)
            at, into = em.emit_uniform(source), em.emit_uniform(to)
            places = [[b.add(at, i * steps[0] + j * steps[1]) for j in range(n)] for i in range(n)]
            square = [[b.load(b.buffers[0], x, elem_of(points.dtype), lanes) for x in line] for line in places]
            for i, row_values in enumerate(_multiply_both_sides(b, matrix, square)):
                for j, x in enumerate(row_values):
                    b.store(x, b.buffers[1], b.add(into, i * to_steps[0] + j * to_steps[1]))
    return Lowered([Launch(b.finish(), extents[0])])


def _multiply_both_sides(
    b: Builder, matrix: Sequence[Sequence[float]], x: list[list[SSAValue]]
) -> list[list[SSAValue]]:
    """Return matrix * x * transpose of matrix."""
    columns = [[_dot(b, row, column) for row in matrix] for column in zip(*x, strict=True)]
    return [[_dot(b, row, line) for row in matrix] for line in zip(*columns, strict=True)]


def _dot(b: Builder, row: Sequence[float], x: Sequence[SSAValue]) -> SSAValue:
    """Return the dot product of a row of the matrix and vectors, without products by 0 and 1."""
    total: SSAValue | None = None
    for k, v in sorted(zip(row, x, strict=True), key=lambda t: t[0] != 1):  # ones first spare a negation
        if k == 0:
            continue
        factor = b.const(k, v.type.elem, v.type.lanes)
        if total is None:
            total = v if k == 1 else b.mul(v, factor)
        elif abs(k) == 1:
            total = b.op("add" if k == 1 else "sub", total, v)
        else:
            total = b.fma(v, factor, total)
    assert total is not None
    return total
