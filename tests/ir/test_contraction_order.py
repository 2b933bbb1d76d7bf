"""Products of several factors in steps: the same values, the least work of all trees, and what is left in one."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.autodiff import reverse
from einsmith.autodiff.reverse import gradients
from einsmith.base import dtypes as dt
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Axis, Compute, Const, Graph, Read, Reduce, apply, cast, leaf, postorder, template
from einsmith.ir.rewrite import contraction_order as order
from einsmith.ir.rewrite.contraction_order import order_contraction
from einsmith.ir.rewrite.factors import split_sum
from einsmith.ir.rewrite.named_operands import name_operands
from einsmith.ir.verify import verify_graph
from einsmith.passes.pipeline import run_passes


def points(roots) -> int:
    """Of all sums and other tensors below some roots, each once."""
    return sum(prod(p.domain) for x in postorder(roots) if isinstance(x, Compute) for p in x.template.parts)


def tensor_of(t) -> Compute:
    return Compute(t, tuple(leaf(shape, dtype) for dtype, shape in t.params))


def value_of(tensor, leaves, arrays) -> np.ndarray:
    graph = Graph(leaves, (tensor,), (), ())
    verify_graph(graph)
    return evaluate(graph, arrays)[0][0]


@pytest.fixture
def free(monkeypatch):
    """Steps that cost nothing but their multiply-adds, and may be of any size."""
    monkeypatch.setattr(order, "LOAD_COST", 0)
    monkeypatch.setattr(order, "TRANSFER_COST", 0)
    monkeypatch.setattr(order, "KERNEL_COST", 0)


def index_of(rng, axes, extents):
    """A sum of axes, and how far it reaches."""
    terms = [(int(rng.choice([1, 1, 1, 2, -1])), int(a)) for a in axes]
    least = sum(min(0, c * (extents[a] - 1)) for c, a in terms)
    most = sum(max(0, c * (extents[a] - 1)) for c, a in terms)
    form = Const(int(rng.integers(0, 2)) - least, dt.i32)
    for c, a in terms:
        form = apply("add", form, Axis(a) if c == 1 else apply("mul", Const(c, dt.i32), Axis(a)))
    return form, most - least + 2


def drawn(rng):
    """A sum of a product of 2 to 5 factors: reads at sums of axes, guarded ones, functions of axes."""
    rank, summed = int(rng.integers(0, 4)), int(rng.integers(2, 5))
    extents = [int(n) for n in rng.integers(1, 5, rank + summed)]
    params, factors = [], []
    plan = [None] * int(rng.integers(2, 6))
    if rng.random() < 0.5:  # a window over two axes beside a third, which is summed with another factor
        one, other, third = map(int, rng.choice(rank + summed, 3, replace=False)) if rank + summed > 2 else (0, 0, 1)
        plan[:2] = [[[one, other], [third]], [[third]]]
    for indices in plan:
        axes = list(rng.choice(rank + summed, size=int(rng.integers(1, min(4, rank + summed) + 1)), replace=False))
        indices = indices or [
            rng.choice(axes, min(len(axes), int(n)), False) for n in rng.integers(1, 4, rng.integers(1, 3))
        ]
        index, shape = zip(*(index_of(rng, x, extents) for x in indices), strict=True)
        factor = Read(len(params), tuple(index), dt.f64)
        params.append((dt.f64, tuple(shape)))
        kind = rng.random()
        if kind < 0.15:
            guard = apply("lt", Axis(int(axes[0])), Const(2, dt.i32))
            factor = apply("where", guard, factor, Const(0.0, dt.f64))
        elif kind < 0.25:
            factor = apply("mul", factor, cast(Axis(int(axes[-1])), dt.f64))
        factors.append(factor)
    body = factors[0]
    for x in factors[1:]:
        body = apply("mul", body, x)
    return template(extents[:rank], params, Reduce("sum", tuple(extents[rank:]), (body,)))


def test_steps_have_the_values_of_the_sum_at_once(free, rng):
    split = merged = 0
    for _ in range(300):
        t = drawn(rng)
        whole = tensor_of(t)
        steps = order_contraction(whole)
        if steps is None:
            continue
        split += 1
        arrays = [rng.integers(-2, 3, shape).astype(np.float64) for _, shape in t.params]
        leaves = whole.args
        np.testing.assert_array_equal(value_of(steps, leaves, arrays), value_of(whole, leaves, arrays))
        inner = {x for x in postorder([steps]) if isinstance(x, Compute) and x is not steps}
        merged += any(n > 4 for x in inner for n in x.shape)  # which no axis has
        assert points([steps]) < max(2, len(t.params)) * points([whole])  # each factor but one is multiplied
    assert split >= 40 and merged >= 3


def trees_of(terms, extents, out):
    """Multiply-adds of every binary tree of products, each axis summed as soon as nothing outside has it."""
    if len(terms) == 1:
        yield 0
        return
    for i in range(len(terms)):
        for j in range(i + 1, len(terms)):
            others = [t for n, t in enumerate(terms) if n not in (i, j)]
            both = terms[i] | terms[j]
            kept = both & set(out).union(*others)
            work = prod(extents[a] for a in both)
            yield from (work + rest for rest in trees_of([*others, kept], extents, out))


@pytest.mark.parametrize("factors", [3, 4, 5])
def test_the_tree_is_the_best_of_all(factors, free, rng):
    checked = 0
    for _ in range(200):
        extents = [int(n) for n in rng.integers(2, 9, factors + 1)]
        out = list(range(int(rng.integers(0, 3))))
        terms = [set(map(int, rng.choice(factors + 1, size=3, replace=False))) for _ in range(factors)]
        terms[0] |= set(range(factors + 1)) - set().union(*terms)
        summed = [a for a in range(factors + 1) if a not in out]
        # No axis of one factor alone: a tree of pairs sums it only with another one.
        if any(sum(a in t for t in terms) < 2 for a in summed):
            continue
        if checked == 6:
            return
        checked += 1
        params = [(dt.f64, tuple(extents[a] for a in sorted(t))) for t in terms]
        body = None
        for n, t in enumerate(terms):
            x = Read(n, tuple(Axis(a) for a in sorted(t)), dt.f64)
            body = x if body is None else apply("mul", body, x)
        t = template([extents[a] for a in out], params, Reduce("sum", tuple(extents[a] for a in summed), (body,)))
        ((_, total),) = order.sums_of(t)
        found = order._ContractionOrder(total, {}, float("inf"))
        if len(total.factors) < factors:
            continue  # one multiplies the sum
        best = min(trees_of(terms, extents, out))
        # What sums nothing is multiplied where it is used: its points count here too.
        assert found.trees[total.all].work == best
    raise AssertionError(f"{checked} products are few")


def formula(text, shapes, **extents):
    op = es.op(text, extents=extents or None)
    return trace_call(lambda *a: op(*a), tuple(np.zeros(s) for s in shapes), {}).graph


def test_a_chain_of_matrices_is_multiplied_pair_by_pair():
    graph = formula("Y[i,l] = sum[j,k](A[i,j]*B[j,k]*C[k,l])", [(50, 40), (40, 30), (30, 60)])
    assert points(run_passes(graph).roots) == 50 * 40 * 30 + 50 * 30 * 60
    graph = formula("Y[i,l] = sum[j,k](A[i,j]*B[j,k]*C[k,l])", [(50, 40), (40, 30), (30, 7)])
    assert points(run_passes(graph).roots) == 40 * 30 * 7 + 50 * 40 * 7


def test_sums_over_separate_axes_are_two_sums():
    graph = formula("y[i] = sum[j,k](A[i,j]*B[i,k])", [(300, 200), (300, 210)])
    assert points(run_passes(graph).roots) <= 300 * (200 + 210 + 1)


def test_a_separable_window_is_two_passes():
    text = "Y[i,j] = sum[r,s](X[i+r,j+s]*f[r]*g[s])"
    graph = formula(text, [(106, 107), (7,), (9,)], r=7, s=9)
    assert points(run_passes(graph).roots) <= 106 * 99 * 9 + 100 * 99 * 7


@pytest.mark.parametrize("text, shapes", [
    ("Y[i,k] = sum[j](A[i,j]*s[j]*B[j,k])", [(50, 40), (40,), (40, 60)]),
    ("M[i,r] = sum[j,k](X[i,j,k]*B[j,r]*C[k,r])", [(20, 21, 22), (21, 8), (22, 8)]),
    ("Y[i,l] = sum[j,k](A[i,j]*B[j,k]*C[k,l])", [(5, 4), (4, 3), (3, 6)]),
])  # fmt: skip
def test_sums_that_splitting_does_not_speed_up_stay_whole(text, shapes):
    """A factor of K alone, a product whose pairs sum nothing by themselves, and what is less than a kernel takes."""
    assert sum(isinstance(x, Compute) for x in postorder(run_passes(formula(text, shapes)).roots)) == 1


def test_no_step_is_larger_than_what_the_sum_reads_and_writes():
    """T[i, l] would have 10 million elements, of which 4 million are summed at once."""
    graph = formula("y[j] = sum[i,l](a[i]*b[l]*M[i,j]*N[l,j]*c[i,l])", [(900,), (900,), (900, 4), (900, 4), (900, 900)])
    room = 2 * 900 + 2 * 900 * 4 + 900 * 900 + 4
    assert all(prod(x.shape) <= room for x in postorder(run_passes(graph).roots))


def test_a_larger_step_is_taken_where_it_saves_half_of_the_work():
    """A tensor train: each step has four times as many elements as the sum reads and writes together."""
    n, r, b = 16, 8, 64
    shapes = [(b, n, n, n), (n, n, r), (r, n, n, r), (r, n, n)]
    text = "Y[b,m,n,o] = sum[i,j,k,p,q](X[b,i,j,k] * A[i,m,p] * B[p,j,n,q] * C[q,k,o])"
    roots = run_passes(formula(text, shapes)).roots
    assert points(roots) <= 2 * b * n**3 * n * r + b * n**2 * (n * r) ** 2
    room = sum(prod(s) for s in shapes) + b * n**3
    assert room < max(prod(x.shape) for x in postorder(roots)) <= order.LARGER_ROOM * room


def test_gradients_of_all_factors_share_the_steps():
    """Each matrix's gradient takes as much as its own products, not the chain again."""
    sizes = (40, 37, 31, 29, 33, 41)
    op = es.op("Y[i,n] = sum[j,k,l,m](A[i,j]*B[j,k]*C[k,l]*D[l,m]*E[m,n])")
    given = tuple(np.zeros(s) for s in zip(sizes, sizes[1:], strict=False))
    forward = trace_call(lambda *a: op(*a), given, {}).graph
    graph = trace_call(es.value_and_grad(lambda *a: op(*a).sum(), tuple(range(5))), given, {}).graph
    assert points(run_passes(graph).roots) <= 3 * points(run_passes(forward).roots) + 2 * sizes[0] * sizes[-1]


def test_a_gradient_by_a_tensor_that_is_taken_apart(rng):
    """The tensor that a gradient is asked for may itself become steps."""
    xs = [leaf((60, 50), dt.f64), leaf((50, 40), dt.f64), leaf((40, 60), dt.f64)]
    body = apply("mul", apply("mul", Read(0, (Axis(0), Axis(2)), dt.f64), Read(1, (Axis(2), Axis(3)), dt.f64)),
                 Read(2, (Axis(3), Axis(1)), dt.f64))  # fmt: skip
    y = Compute(template((60, 60), [(x.dtype, x.shape) for x in xs], Reduce("sum", (50, 40), (body,))), tuple(xs))
    assert order_contraction(y) is not None
    square = Read(0, (Axis(0), Axis(1)), dt.f64)
    z = Compute(template((60, 60), [(dt.f64, (60, 60))], apply("mul", square, square)), (y,))
    ones = Compute(template((60, 60), (), Const(1.0, dt.f64)), ())
    (out,), (found,) = gradients([z], [ones], [y])
    arrays = [rng.standard_normal(x.shape) for x in xs]
    got = evaluate(Graph(tuple(xs), (out, found), (), ()), arrays)[0]
    want = arrays[0] @ arrays[1] @ arrays[2]
    np.testing.assert_allclose(got[0], want**2, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(got[1], 2 * want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("equation, shapes", [
    ("ij,jk,kl,lm,mn,no,op,pq,qr->ir", [(9, 10), (10, 8), (8, 7), (7, 9), (9, 12), (12, 5), (5, 9), (9, 11), (11, 8)]),
    ("ab,cd,bd,aec,ef->f", [(11, 12), (13, 14), (12, 14), (11, 9, 13), (9, 10)]),
    ("iij,jk,k->i", [(5, 5, 6), (6, 7), (7,)]),
])  # fmt: skip
def test_einsum_of_many_operands_is_numpys(equation, shapes, rng):
    given = [rng.standard_normal(s) for s in shapes]
    got = es.jit(lambda *a: es.functional.einsum(equation, *a))(*given)
    np.testing.assert_allclose(got, np.einsum(equation, *given, optimize=True), rtol=1e-9, atol=1e-9)


def sums_of(graph) -> list[Compute]:
    nodes = (x for x in postorder(run_passes(graph).roots) if isinstance(x, Compute))
    return [x for x in nodes if any(isinstance(p.body, Reduce) for p in x.template.parts)]


def test_a_sum_that_no_tile_multiplies_becomes_a_product_and_a_dot():
    """All three factors have m; at once each point waits for loads of its own."""
    text = "y[m,h,i] = sum[p,n](W[m,h,p,n]*B[m,i,n]*x[m,i,h,p])"
    graph = formula(text, [(4, 6, 16, 20), (4, 12, 20), (4, 12, 6, 16)])
    assert sorted(prod(p.domain) for x in sums_of(graph) for p in x.template.parts) == [
        4 * 6 * 12 * 16, 4 * 6 * 12 * 16 * 20,
    ]  # fmt: skip


@pytest.mark.parametrize("body", [
    "W[m,h,p,n]*B[m,i,n]*x[m,i,h,p]", "-(W[m,h,p,n]*B[m,i,n]*x[m,i,h,p])", "W[m,h,p,n]*B[m,i,n]/(2 + x[m,i,h,p])",
    "where(i <= p, W[m,h,p,n]*B[m,i,n]*x[m,i,h,p], 0)", "where(m < 3, W[m+1,h,p,n], 0)*B[m,i,n]*x[m,i,h,p]",
    "where(m < 3, -where(n > p, W[m+1,h,p,n]*B[m,i,n]*x[m,i,h,p], 0), 0)",
    "where(i + n < size(p), W[m,h,i+n,n]*B[m,i,n]*x[m,i,h,p], 0)",
])  # fmt: skip
def test_steps_under_guards_have_the_values_of_the_sum_at_once(body, free, rng):
    shapes = {"W": (4, 6, 16, 5), "B": (4, 9, 5), "x": (4, 9, 6, 16)}
    op = es.op(f"y[m,h,i] = sum[p,n]({body})", inputs="W, B, x", extents={"m": 4, "n": 5, "i": 9})
    arrays = [rng.standard_normal(s) for s in shapes.values()]
    if "i <= p" in body:  # what a guard excludes adds nothing, whatever is there
        arrays[2][:] = np.where(np.arange(9)[:, None, None] <= np.arange(16), arrays[2], np.inf)
    graph = trace_call(lambda *a: op(*a), tuple(arrays), {}).graph
    steps = run_passes(graph)
    verify_graph(steps)
    got, want = (evaluate(g, arrays)[0][0] for g in (steps, graph))
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("terms", [
    "w[o,i]*(s[b,i]*dy[b,o]) + dy[b,o]*(w[o,i]*x[b,i])*(s[b,i]*(1 - s[b,i]))",
    "w[o,i]*dy[b,o]*s[b,i] - x[b,i]*w[o,i]*dy[b,o]",
    "(w[o,i]*x[b,i] + w[o,i])*dy[b,o]/s[b,i]",
    "(dy[b,o]*s[b,i]*w[o,i] + dy[b,o]*w[o,i]) + w[o,i]*x[b,i]*dy[b,o]",
])  # fmt: skip
def test_common_factors_leave_a_sum_of_terms(terms, rng):
    shapes = {"w": (40, 50), "x": (30, 50), "dy": (30, 40), "s": (30, 50)}
    op = es.op(f"y[b,i] = sum[o]({terms})", inputs="w, x, dy, s")
    arrays = [rng.uniform(0.5, 1.5, s) for s in shapes.values()]
    graph = trace_call(lambda *a: op(*a), tuple(arrays), {}).graph
    (found,) = sums_of(graph)
    body = found.template.parts[0].body.bodies[0]
    assert len(split_sum(body).product.factors) >= 3 and not split_sum(body).is_factored
    got, want = (evaluate(g, arrays)[0][0] for g in (run_passes(graph), graph))
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_gradients_share_the_product_that_each_of_them_needs(rng):
    """da and db are sums of one tensor, dy times W, over different axes."""
    op = es.op("y[i,j,v] = sum[k](tanh(a[i,k]+b[j,k])*W[v,k])", inputs="a, b, W")
    arrays = [rng.standard_normal(s) for s in ((30, 24), (20, 24), (40, 24), (30, 20, 40))]

    def f(a, b, w, c):
        return es.value_and_grad(lambda a, b, w: (op(a, b, w) * c).sum(), (0, 1, 2))(a, b, w)

    graph = trace_call(f, tuple(arrays), {}).graph
    products = [x for x in sums_of(graph) if prod(x.template.parts[0].domain) == 30 * 20 * 24 * 40]
    assert len(products) == 3  # y, dW, and that of da and db
    for got, want in zip(evaluate(run_passes(graph), arrays)[0], evaluate(graph, arrays)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("text, extents", [
    ("y[b,o] = sum[i](w[o,i]*x[b,i]*sigmoid(x[b,i]))", {}),
    ("y[b,o] = sum[i](w[o,i]*v[i]*tanh(x[b,i]))", {}),
    ("y[b,o] = sum[i](where(i < b, w[o,i]*exp(x[b,i]), 0))", {}),
    ("y[b,o] = sum[r](w[o,r]*tanh(x[b,o+r]))", {"r": 5}),
    ("y[b,o] = sum[r](where(o > 2, w[o,r]*tanh(x[b,o+r]), 0))", {"r": 5}),
    ("y[b,o] = sum[r](where(o > r, w[o,r]*tanh(x[b,o+r])*exp(x[b,r]), 0))", {"r": 5}),
    ("S[t,o] = sum[i](w[o,i]*exp(x[t,i])*where(t > 0, S[t-1,i], 0.1))*0.1\nreturn S", {}),
    ("p[t,i] = where(t > 0, S[t-1,i], 0.1)\nS[t,o] = sum[i](x[t,i]*exp(x[t,o])*p[t,i])*0.1\nreturn S", {}),
    ("p[t] = where(t > 0, S[t-1], 0.1)\nS[t] = tanh(sum[i](x[t,i]*exp(w[t,i])*p[t]))\nreturn S", {}),
])  # fmt: skip
def test_gradients_by_named_operands_are_those_by_the_formula(text, extents, rng, monkeypatch):
    op = es.op(text, extents=extents)
    sizes = {"w": (9, 9), "x": (9, 9 + 4 * ("r" in extents)), "v": (9,)}
    sizes["w"] = (9, 5) if extents else sizes["w"]
    arrays = [0.3 * rng.standard_normal(sizes[n]) for n in op.inputs]

    def both():
        f = es.jit(es.value_and_grad(lambda *a: (op(*a) ** 2).sum(), tuple(range(len(arrays)))))
        return f(*arrays)

    named = both()
    monkeypatch.setattr(reverse, "name_operands", lambda node: None)
    value, grads = both()
    np.testing.assert_allclose(named[0], value, rtol=1e-10)
    for got, want in zip(named[1], grads, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_an_operand_that_is_computed_becomes_a_tensor_only_where_there_is_room():
    x, w = (leaf(s, dt.f64) for s in ((30, 20), (40, 20)))
    product = apply("mul", Read(1, (Axis(1), Axis(2)), dt.f64), apply("exp", Read(0, (Axis(0), Axis(2)), dt.f64)))
    y = Compute(template((30, 40), [(x.dtype, x.shape), (w.dtype, w.shape)], Reduce("sum", (20,), (product,))), (x, w))
    named = name_operands(y)
    assert [a.shape for a in named.args if a is not x and a is not w] == [(30, 20)]
    assert name_operands(named) is None
    graph = formula("y[i,c] = sum[j](exp(a[i] - b[j])*V[j,c])", [(500,), (500,), (500, 3)])
    (whole,) = (n for n in postorder(graph.roots) if isinstance(n, Compute))
    assert name_operands(whole) is None  # 250,000 elements of 4,000
