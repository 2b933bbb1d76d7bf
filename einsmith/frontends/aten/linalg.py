"""Factorizations and linear systems. Elimination is a recurrence along the rows whose state is the matrix.

Leading dimensions are batch dimensions. Factorizations are packed as in LAPACK: the triangular factor on and above the
diagonal, the multipliers of the elimination or the Householder vectors below it. Sources: Golub, Van Loan 2013,
algorithms 3.1.1, 3.4.1, 4.2.1, 5.1.1 and 5.2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.frontends.aten import blocks
from einsmith.frontends.aten.table import aten
from einsmith.lang.op import op
from einsmith.tracing import builder, views
from einsmith.tracing.builder import Value

MIN_ROWS, MIN_SIDES = 32, 16
"""Fewest rows of matrices, and right sides, that are factorized and solved by blocks; fewer go row by row."""

PANEL, MOST_PANELS = 32, 5
"""Columns of a panel, which are eliminated one by one (the state of a step is a panel), and most panels of a matrix.

Panels have kernels of their own sizes (measured: solving 300 x 300 with 4, 5, 8, 10 panels takes 2.1, 1.7, 1.5, 1.4 ms
and 1.8, 1.9, 3.7, 4.4 s to compile, with the state of a step not transposed; Xeon of 2 cores, November 2026).
"""

# p: the matrix before step k, transposed so that columns are contiguous; t: the pivot's row; u: its elements; f: column
# k of L. Rows k and t are exchanged.
_LU = op(
    """
    p[k,b,j,i] = where(k > 0, m[k-1,b,j,i], A[b,i,j])
    t[k,b] = argmax[i](where(i >= k, abs(p[k,b,k,i]), -1))
    u[k,b,j] = sum[i](where(i == t[k,b], p[k,b,j,i], 0))
    f[k,b,i] = where(i > k, where(i == t[k,b], p[k,b,k,k], p[k,b,k,i]) / where(u[k,b,k] == 0, 1, u[k,b,k]), 0)
    m[k,b,j,i] = where(i == k, u[k,b,j], where((i > k) and (j == k), f[k,b,i],
                       where(i == t[k,b], p[k,b,j,k], p[k,b,j,i]) - where(j > k, f[k,b,i]*u[k,b,j], 0)))
    return m, t
    """,
    extents={"k": "min(A.shape[1], A.shape[2])"},
)
# Elimination without exchanges. f, u: column k of L, row k of U
_LU_IN_ORDER = op(
    """
    p[k,b,i,j] = where(k > 0, m[k-1,b,i,j], A[b,i,j])
    u[k,b,j] = where(j >= k, p[k,b,k,j], 0)
    f[k,b,i] = where(i > k, p[k,b,i,k] / where(u[k,b,k] == 0, 1, u[k,b,k]), where(i == k, 1, 0))
    m[k,b,i,j] = p[k,b,i,j] - f[k,b,i]*u[k,b,j]
    return f, u
    """,
    extents={"k": "A.shape[1]"},
)
# q: the permutation before step k, which exchanges entries k and t
_ORDER = op(
    """
    q[k,b,i] = where(k > 0, r[k-1,b,i], i)
    s[k,b] = sum[i](where(i == t[b,k], q[k,b,i], 0))
    r[k,b,i] = where(i == k, s[k,b], where(i == t[b,k], q[k,b,k], q[k,b,i]))
    return r
    """,
    extents={"k": "t.shape[1]", "i": "n"},
)
_FORWARD = op("x[i,b,j] = (B[b,i,j] - sum[l](where(l < i, T[b,i,l]*x[l,b,j], 0))) / d[b,i]\nreturn x")
_BACKWARD = op("x[i,b,j] = (B[b,i,j] - sum[l](where(l > i, T[b,i,l]*x[l,b,j], 0))) / d[b,i]\nreturn x")
_CHOLESKY = op(
    """
    p[k,b,i,j] = where(k > 0, m[k-1,b,i,j], A[b,i,j])
    d[k,b] = sqrt(p[k,b,k,k])
    c[k,b,i] = where(i > k, p[k,b,i,k] / d[k,b], where(i == k, d[k,b], 0))
    m[k,b,i,j] = p[k,b,i,j] - c[k,b,i]*c[k,b,j]
    return c
    """,
    extents={"k": "A.shape[1]"},
)
# a: the diagonal element, s: the sum of squares below it, e: their reflection, v: the reflector
_QR = op(
    """
    p[k,b,i,j] = where(k > 0, m[k-1,b,i,j], A[b,i,j])
    s[k,b] = sum[i](where(i > k, p[k,b,i,k]*p[k,b,i,k], 0))
    a[k,b] = p[k,b,k,k]
    e[k,b] = where(s[k,b] == 0, a[k,b], where(a[k,b] < 0, 1, -1)*sqrt(where(s[k,b] == 0, 1, a[k,b]*a[k,b] + s[k,b])))
    tau[k,b] = where(s[k,b] == 0, 0, (e[k,b] - a[k,b]) / where(e[k,b] == 0, 1, e[k,b]))
    v[k,b,i] = where(i < k, 0, where(i == k, 1, where(s[k,b] == 0, 0, p[k,b,i,k] / where(s[k,b] == 0, 1,
                     a[k,b] - e[k,b]))))
    z[k,b,j] = sum[i](v[k,b,i]*p[k,b,i,j])
    m[k,b,i,j] = where((i >= k) and (j > k), p[k,b,i,j] - tau[k,b]*v[k,b,i]*z[k,b,j], where((i >= k) and (j == k),
                       where(i == k, e[k,b], v[k,b,i]), p[k,b,i,j]))
    return m, tau
    """,
    extents={"k": "min(A.shape[1], A.shape[2])"},
)
# The reflections of the columns of V, the last one first, of C.
_REFLECTED = op(
    """
    p[k,b,i,j] = where(k < size(k)-1, m[k+1,b,i,j], C[b,i,j])
    v[k,b,i] = where(i < k, 0, where(i == k, 1, V[b,i,k]))
    z[k,b,j] = sum[i](v[k,b,i]*p[k,b,i,j])
    m[k,b,i,j] = p[k,b,i,j] - tau[b,k]*v[k,b,i]*z[k,b,j]
    return m
    """,
    extents={"k": "tau.shape[1]"},
)


def _join_batch_dims(x: Value, rank: int = 2) -> Value:
    """Join the leading dimensions of x into one; the last `rank` stay."""
    lead = x.shape[: x.ndim - rank]
    return x.reshape((prod(lead), *x.shape[x.ndim - rank :]))


def _transpose(x: Value) -> Value:
    return F.transpose(x, -1, -2)


def _diagonal(x: Value) -> Value:
    return F.diagonal(x, 0, -2, -1)


def _eye(like: Value, rows: int, columns: int) -> Value:
    """Return ones on the diagonal, for each matrix of a batch."""
    shape = *like.shape[:-2], rows, columns
    return builder.compute(shape, lambda *i: builder.where(i[-2] == i[-1], 1, 0)).astype(like.dtype)


def factorize(a: Value) -> tuple[Value, Value]:
    """Factorize matrices [.., m, n] by elimination with partial pivoting.

    Return (L below the diagonal and U, [.., m, n]; the row exchanged at each step, counted from 0, [.., min(m, n)]).
    """
    return eliminate(a)[:2]


def eliminate(a: Value, b: Value | None = None) -> tuple[Value, Value, Value]:
    """Eliminate in matrices [.., m, n] and right sides b [.., m, s] with partial pivoting, by panels of columns.

    Return (L below the diagonal and U, [.., m, n]; the row exchanged at each step, counted from 0, [.., min(m, n)];
    L^-1 times the first min(m, n) rows of the permuted b, without columns if there is no b). Of equal elements the
    first one is the pivot. The derivative is that of elimination in the order of the pivots; it does not exist where a
    column of zeros precedes others.
    """
    m, n = a.shape[-2:]
    k = min(m, n)
    sides = 0 if b is None else b.shape[-1]
    rest = a if b is None else F.cat([a, b], -1)
    if not a.size:
        return a, builder.full((*a.shape[:-2], k), 0, dt.i64), rest[(..., slice(0, k), slice(n, None))]
    width = -(-k // min(-(-k // PANEL), MOST_PANELS))
    left, strips, pivots = rest[(..., slice(0, 0))], [], []
    for start in range(0, k, width):
        w = min(width, k - start)
        steps, exchanged = _LU(_join_batch_dims(rest[(..., slice(0, w))]))
        panel = _transpose(steps[w - 1]).reshape((*a.shape[:-2], m - start, w))
        rows = F.transpose(exchanged, 0, 1).astype(dt.i64).reshape((*a.shape[:-2], w))
        pivots.append(rows + start)
        order = _order(rows, m - start)
        if a.dtype.is_float:
            panel = _differentiate_in_order(panel, _permute_rows(rest[(..., slice(0, w))], order))
        left, rest = _permute_rows(left, order), _permute_rows(rest[(..., slice(w, None))], order)
        top, under = (..., slice(0, w), slice(None)), (..., slice(w, None), slice(None))
        beside = _substitute_block(_with_unit_diagonal(panel[top]), rest[top])
        strips.append(F.cat([left[top], panel[top], beside], -1))
        left = F.cat([left[under], panel[under]], -1)
        if start + w < k:
            rest = rest[under] - F.matmul(panel[under], beside)
    done = F.cat(strips, -2)
    packed = done[(..., slice(0, n))]
    if k < m:
        packed = F.cat([packed, left], -2)
    return packed, F.cat(pivots, -1), done[(..., slice(n, n + sides))]


def _differentiate_in_order(packed: Value, a: Value) -> Value:
    """Return factors L and U of matrices [.., m, n], m >= n, whose rows are in the order of the pivots.

    The derivative is that of the factorization without exchanges of the first n rows, and of a substitution below them.
    """
    m, n = a.shape[-2:]
    top, under = (..., slice(0, n), slice(None)), (..., slice(n, m), slice(None))
    columns, rows = (
        F.permute(x, (1, 0, 2)).reshape((*a.shape[:-2], n, n)) for x in _LU_IN_ORDER(_join_batch_dims(a[top]))
    )
    square = builder.differentiate_as(packed[top], F.tril(_transpose(columns), -1) + rows)
    if m == n:
        return square
    below = _transpose(_substitute_block(_transpose(square), _transpose(a[under])))
    return F.cat([square, builder.differentiate_as(packed[under], below)], -2)


def _substitute_block(t: Value, b: Value) -> Value:
    """Solve t*x = b for one block of a lower triangle, by its inverse where that takes less time."""
    n, sides = b.shape[-2:]
    if not b.size or n < MIN_ROWS or sides < MIN_SIDES:
        return _substitute_rows(t, b, False, False) if b.size else b
    return F.matmul(_invert_rows(t), b)


def _order(rows: Value, n: int) -> Value:
    """Return the permutation [.., n] that row exchanges make: the original row at each place of a matrix [.., n, m]."""
    if not rows.size:
        return F.broadcast_to(F.arange(n), (*rows.shape[:-1], n))
    orders = _ORDER(_join_batch_dims(rows, 1), n=n)
    return orders[rows.shape[-1] - 1].astype(dt.i64).reshape((*rows.shape[:-1], n))


def _back(order: Value) -> Value:
    """Return the inverse of a permutation."""
    (k,) = builder.axes(order.shape[-1])
    undone = builder.compute(
        order.shape, lambda *i: builder.sum(builder.where(order[(*i[:-1], k)] == i[-1], k, 0), over=k)
    )
    return undone.astype(dt.i64)


def _permute_rows(x: Value, order: Value) -> Value:
    """Return the rows of x [.., n, m] in an order [.., n]."""
    whole = F.broadcast_to(order.reshape((*order.shape, 1)), x.shape)
    return F.gather(x, x.ndim - 2, whole) if x.size else x


def _broadcast_batch(x: Value, lead: Sequence[int], rank: int = 2) -> Value:
    """Broadcast x to the leading dimensions `lead`; the last `rank` stay."""
    return F.broadcast_to(x, (*lead, *x.shape[x.ndim - rank :]))


def triangular_solution(t: Value, b: Value, upper: bool, unit: bool = False) -> Value:
    """Solve t*x = b for a triangular t [.., n, n]; its other triangle is not read, nor its diagonal if `unit`.

    By blocks, a right side that is not finite reaches all rows of its block.
    """
    lead = views.broadcast([t.shape[:-2], b.shape[:-2]])
    t, b = _broadcast_batch(t, lead), _broadcast_batch(b, lead)
    if not b.size:
        return b
    n, sides = b.shape[-2:]
    if n < MIN_ROWS or sides < MIN_SIDES:
        return _substitute_rows(t, b, upper, unit)
    if upper:
        return F.flip(triangular_solution(F.flip(t, (-2, -1)), F.flip(b, (-2,)), False, unit), (-2,))
    if unit:
        t = _with_unit_diagonal(t)
    sizes = blocks.divide(n)
    t, b = blocks.extend(t, sizes.whole), F.pad(b, (0, 0, 0, sizes.whole - n)) if sizes.whole > n else b
    return blocks.substitute(t, blocks.invert_blocks(t, sizes, _invert_rows), b)[(..., slice(0, n), slice(None))]


def _with_unit_diagonal(t: Value) -> Value:
    return builder.compute(t.shape, lambda *i: builder.where(i[-2] == i[-1], 1, t[i]))


def _substitute_rows(t: Value, b: Value, upper: bool, unit: bool) -> Value:
    """Solve t*x = b row by row."""
    whole, sides = _join_batch_dims(t), _join_batch_dims(b)
    scale = F.ones_like(_diagonal(whole)) if unit else _diagonal(whole)
    rows = (_BACKWARD if upper else _FORWARD)(B=sides, T=whole, d=scale)
    return F.transpose(rows, 0, 1).reshape(b.shape)


def _invert_rows(t: Value) -> Value:
    """Invert lower triangles row by row."""
    return _substitute_rows(t, _eye(t, *t.shape[-2:]), False, False)


def _info(diagonal: Value, holds: Callable[[Value], Value]) -> Value:
    """Return the first place, counted from 1, on a diagonal [.., n] where `holds` is false; 0 if there is none."""
    n = diagonal.shape[-1]
    lead = diagonal.shape[:-1]
    if not diagonal.size:
        return builder.full(lead, 0, dt.i32)
    first = F.amin(builder.where(holds(diagonal), n, F.arange(n)), -1)
    return builder.where(first == n, 0, first + 1).astype(dt.i32)


# ------------------------------------------------------------------------------------------------------- elimination


@aten("linalg_lu_factor_ex.default")
def lu_factor(a: Value, pivot: bool = True, check_errors: bool = False) -> tuple[Value, Value, Value]:
    """(packed L and U of the row-permuted a, pivot row of each step from 1, position of the first zero pivot from 1)"""
    if not pivot:
        raise ArgumentError("elimination without pivots is not supported")
    packed, rows = factorize(a)
    return packed, *_report(packed, rows)


def _report(packed: Value, rows: Value) -> tuple[Value, Value]:
    """Return (the rows exchanged, counted from 1; the position of the first zero pivot, from 1)."""
    return (rows + 1).astype(dt.i32), _info(_diagonal(packed), lambda d: d != 0)


@aten("linalg_lu.default")
def lu(a: Value, pivot: bool = True) -> tuple[Value, Value, Value]:
    """(P, L, U) with a = P*L*U, by elimination with partial pivoting"""
    packed, pivots, _ = lu_factor(a, pivot)
    m, n = a.shape[-2:]
    k = min(m, n)
    unit = _eye(packed, m, k)
    lower = F.tril(packed[(..., slice(0, k))], -1) + unit if k else unit
    upper = F.triu(packed[(..., slice(0, k), slice(None))])
    order = _order(pivots.astype(dt.i64) - 1, m)
    p = builder.compute((*a.shape[:-2], m, m), lambda *i: builder.where(order[(*i[:-2], i[-1])] == i[-2], 1, 0)).astype(
        a.dtype
    )
    return p, lower, upper


@aten("linalg_lu_solve.default")
def lu_solve(packed: Value, pivots: Value, b: Value, left: bool = True, adjoint: bool = False) -> Value:
    """solution x of a*x = b from the results of linalg_lu_factor_ex; adjoint: a transposed; not left: x*a = b"""
    if not left:
        return _transpose(lu_solve(packed, pivots, _transpose(b), True, not adjoint))
    lead = views.broadcast([packed.shape[:-2], b.shape[:-2]])
    b = _broadcast_batch(b, lead)
    order = _broadcast_batch(_order(pivots.astype(dt.i64) - 1, packed.shape[-1]), lead, 1)
    if not adjoint:
        return triangular_solution(packed, triangular_solution(packed, _permute_rows(b, order), False, unit=True), True)
    return _permute_rows(
        triangular_solution(_transpose(packed), triangular_solution(_transpose(packed), b, False), True, unit=True),
        _back(order),
    )


@aten("_linalg_solve_ex.default")
def solve(a: Value, b: Value, left: bool = True, check_errors: bool = False) -> tuple[Value, Value, Value, Value]:
    """(solution x of a*x = b, or of x*a = b if not left; the results of linalg_lu_factor_ex)"""
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    sides = b.reshape((*b.shape, 1)) if vector else b
    if left and sides.shape[:-2] == a.shape[:-2]:
        packed, rows, below = eliminate(a, sides)
        pivots, info = _report(packed, rows)
        x = triangular_solution(packed, below, True)
    else:
        packed, pivots, info = lu_factor(a)
        x = lu_solve(packed, pivots, sides, left)
    return (x.reshape(x.shape[:-1]) if vector else x), packed, pivots, info


@aten("linalg_inv_ex.default")
def inverse(a: Value, check_errors: bool = False) -> tuple[Value, Value]:
    """(inverse of a, by elimination; position of the first zero pivot, from 1)"""
    x, _, _, info = solve(a, _eye(a, a.shape[-1], a.shape[-1]))
    return x, info


# --------------------------------------------------------------------------------------------------------- triangles


@aten("linalg_solve_triangular.default")
def solve_triangular(a: Value, b: Value, upper: bool, left: bool = True, unitriangular: bool = False) -> Value:
    """solution x of a*x = b by substitution, x[i] = (b[i] - sum[j](a[i, j]*x[j]))/a[i, i]; not left: x*a = b"""
    if not left:
        return _transpose(triangular_solution(_transpose(a), _transpose(b), not upper, unitriangular))
    return triangular_solution(a, b, upper, unitriangular)


@aten("triangular_solve.default")
def triangular_solve(
    b: Value, a: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Value, Value]:
    """(solution x of a*x = b, as linalg_solve_triangular; a)"""
    lead = views.broadcast([a.shape[:-2], b.shape[:-2]])
    x = triangular_solution(_transpose(a) if transpose else a, b, upper != transpose, unitriangular)
    return x, _broadcast_batch(a, lead)


# ---------------------------------------------------------------------------------------------------------- Cholesky


def _root(a: Value, upper: bool) -> Value:
    """Return L of the Cholesky factorization a = L*L^T, reading one triangle of a.

    The derivative is that by a symmetric matrix: it goes to both triangles.
    """
    if not a.size:
        return a
    side = _transpose(a) if upper else a
    half = F.tril(side)
    value = half + _transpose(F.tril(side, -1))
    symmetric = builder.differentiate_as(value, (side + _transpose(side)) * 0.5) if a.dtype.is_float else value
    n = a.shape[-1]
    if n < MIN_ROWS:
        return _factorize_columns(symmetric)
    sizes = blocks.divide(n)
    root = blocks.factorize(blocks.extend(symmetric, sizes.whole), sizes, _factorize_columns, _invert_rows)
    return root[(..., slice(0, n), slice(0, n))]


def _factorize_columns(a: Value) -> Value:
    """Return L of the Cholesky factorization a = L*L^T, column by column."""
    return F.permute(_CHOLESKY(_join_batch_dims(a)), (1, 2, 0)).reshape(a.shape)


@aten("linalg_cholesky_ex.default")
def cholesky_ex(a: Value, upper: bool = False, check_errors: bool = False) -> tuple[Value, Value]:
    """(L with a = L*L^T, or its transpose; order of the first leading minor that is not positive)"""
    lower = _root(a, upper)
    return (_transpose(lower) if upper else lower), _info(_diagonal(lower), lambda d: d > 0)


@aten("cholesky.default")
def cholesky(a: Value, upper: bool = False) -> Value:
    """L with a = L*L^T: L[i, j] = (a[i, j] - sum[l](L[i, l]*L[j, l]))/L[j, j] over columns l < j"""
    return cholesky_ex(a, upper)[0]


@aten("cholesky_solve.default _cholesky_solve_helper.default")
def cholesky_solve(b: Value, root: Value, upper: bool = False) -> Value:
    """solution x of L*L^T*x = b"""
    lower = _transpose(root) if upper else root
    return triangular_solution(_transpose(lower), triangular_solution(lower, b, False), True)


@aten("cholesky_inverse.default")
def cholesky_inverse(root: Value, upper: bool = False) -> Value:
    """inverse of L*L^T"""
    return cholesky_solve(_eye(root, root.shape[-1], root.shape[-1]), root, upper)


# -------------------------------------------------------------------------------------------------------- reflections


def _reflect(a: Value) -> tuple[Value, Value]:
    """Return (R, with the Householder vectors v of the reflections 1 - tau*v*v^T below the diagonal; tau)."""
    k = min(a.shape[-2:])
    lead = a.shape[:-2]
    if not a.size:
        return a, builder.full((*lead, k), 0.0, a.dtype)
    steps, tau = _QR(_join_batch_dims(a))
    return steps[k - 1].reshape(a.shape), F.transpose(tau, 0, 1).reshape((*lead, k))


def _apply_reflections(v: Value, tau: Value, c: Value) -> Value:
    """Apply the Householder reflections of v's columns [.., m, k] to c [.., m, n], the last one first."""
    k = tau.shape[-1]
    if not k or not c.size:
        return c
    steps = _REFLECTED(C=_join_batch_dims(c), V=_join_batch_dims(v[(..., slice(0, k))]), tau=_join_batch_dims(tau, 1))
    return steps[0].reshape(c.shape)


@aten("linalg_householder_product.default")
def householder_product(v: Value, tau: Value) -> Value:
    """the first columns of the product of the reflections 1 - tau*v*v^T, one for each column of v"""
    return _apply_reflections(v, tau, _eye(v, *v.shape[-2:]))


@aten("linalg_qr.default")
def qr(a: Value, mode: str = "reduced") -> tuple[Value, Value]:
    """(q, r) with a = q*r, by Householder reflections"""
    m, n = a.shape[-2:]
    k = min(m, n)
    packed, tau = _reflect(a)
    rows = m if mode == "complete" else k
    r = F.triu(packed[(..., slice(0, rows), slice(None))])
    if mode == "r":
        return builder.full((0,), 0.0, a.dtype), r
    return _apply_reflections(packed, tau, _eye(a, m, rows)), r
