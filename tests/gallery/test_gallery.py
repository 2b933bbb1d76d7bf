"""The gallery's values, gradients of first and second order, and the work that they take.

With a twin, everything is compared with PyTorch in double; without, with central differences of the evaluator.
"""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import einsmith as es
from einsmith.autodiff.reverse import gradients
from einsmith.base import dtypes as dt
from einsmith.ir import template_evaluator
from einsmith.ir.nodes import Apply, Compute, Graph, Item, Leaf, Read, leaf, postorder, size
from einsmith.ir.rewrite.simplify import values_only
from einsmith.passes.pipeline import run_passes
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import Trace, tracing
from tests.gallery.entries import ENTRIES, Entry

CASES = [(e, n) for e in ENTRIES for n in range(len(e.cases))]
every_case = pytest.mark.parametrize("entry,case", CASES, ids=[f"{e.name}-{n}" for e, n in CASES])
every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=[e.name for e in ENTRIES])


def test_the_gallery_has_no_entry_twice_and_two_sizes_of_each():
    assert len({e.name for e in ENTRIES}) == len(ENTRIES)
    assert all(len(e.cases) >= 2 for e in ENTRIES)


class Problem:
    """An entry at one size: `f` of its float arrays `x`."""

    def __init__(self, entry: Entry, case: int, rng: np.random.Generator):
        self.op = es.op(entry.formula, extents=entry.extents)
        arrays = entry.inputs(entry.cases[case], rng)
        self.arrays = {n: arrays[n] for n in self.op.inputs}
        self.parameters = entry.parameters(entry.cases[case])
        self.floats = [n for n, a in self.arrays.items() if a.dtype.kind == "f"]
        self.x = [self.arrays[n] for n in self.floats]

    def f(self, *x):
        return self.op(**{**self.arrays, **dict(zip(self.floats, x, strict=True))}, **self.parameters)

    def twin(self, torch, entry, x):
        given = {n: torch.from_numpy(a) for n, a in self.arrays.items()} | dict(zip(self.floats, x, strict=True))
        return entry.twin(torch, **given, **self.parameters)

    def value_and_pull(self, c, *x):
        y, pull = es.vjp(self.f, *x)
        return y, pull(c)

    def second(self, c, v):
        """<v, gradients for the cotangent c>, as a function of the arrays."""

        def scalar(*x):
            return sum(((g * w).sum() for g, w in zip(es.vjp(self.f, *x)[1](c), v, strict=True)), start=0.0)

        return es.grad(scalar, tuple(range(len(self.x))))


@pytest.mark.thinned(4)
@every_case
def test_values_and_gradients(entry, case, rng, torch):
    p = Problem(entry, case, rng)
    if entry.twin is None:
        es.check_gradients(p.f, *p.x, order=2)
        return
    xs = [torch.from_numpy(a).requires_grad_() for a in p.x]
    want = p.twin(torch, entry, xs)
    c = rng.standard_normal(tuple(want.shape))
    v = [rng.standard_normal(a.shape) for a in p.x]
    grads = torch.autograd.grad(want, xs, torch.from_numpy(c), create_graph=True)
    got, pulled = es.interpret(p.value_and_pull)(c, *p.x)
    check(got, want, entry.tol)
    for g, w in zip(pulled, grads, strict=True):
        check(g, w, entry.tol)
    along = sum((g * torch.from_numpy(w)).sum() for g, w in zip(grads, v, strict=True))
    seconds = torch.autograd.grad(along, xs, allow_unused=True) if along.requires_grad else [None] * len(xs)
    for g, w, x in zip(es.interpret(p.second(c, v))(*p.x), seconds, xs, strict=True):
        check(g, torch.zeros_like(x) if w is None else w, entry.tol)


def check(got, want, tol):
    want = want.detach().numpy()
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol * max(1.0, float(np.abs(want).max(initial=0))))


@pytest.mark.thinned(6)
@every_entry
def test_compiled_equals_evaluated(entry, rng):
    p = Problem(entry, 0, rng)
    p.arrays = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in p.arrays.items()}
    p.x = [p.arrays[n] for n in p.floats]
    c = rng.standard_normal(np.shape(es.interpret(p.f)(*p.x))).astype(np.float32)
    want, pulled = es.interpret(p.value_and_pull)(c, *p.x)
    got, grads = es.jit(p.value_and_pull)(c, *p.x)
    for a, b in zip([got, *grads], [want, *pulled], strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5 * max(1.0, float(np.abs(b).max(initial=0))))


@pytest.mark.thinned(6)
@every_case
def test_forward_mode(entry, case, rng):
    """<c, jvp(v)> = <pullback(c), v>, in the evaluator."""
    p = Problem(entry, case, rng)
    v = [rng.standard_normal(a.shape) for a in p.x]
    n = len(p.x)
    y, move = es.interpret(lambda *a: es.jvp(p.f, a[:n], a[n:]))(*p.x, *v)
    c = rng.standard_normal(y.shape)
    value, pulled = es.interpret(p.value_and_pull)(c, *p.x)
    np.testing.assert_allclose(y, value, rtol=1e-12, atol=1e-12)
    left, right = np.vdot(c, move), sum(np.vdot(g, w) for g, w in zip(pulled, v, strict=True))
    assert abs(left - right) <= 1e-9 * (1 + np.abs(c).sum() * max(1.0, float(np.abs(move).max(initial=0))))


# ----------------------------------------------------------------------------------------------------------- work


_FREE = ("where", "cast", "stop_gradient")


def work(nodes, values) -> int:
    """Scalar operations of templates for their arguments' values: at every point of a box one, for what is written or
    accumulated there (of several results together, in one sweep), and the float operations of the body where the
    enclosing conditions ask for them."""
    total = 0
    for n in nodes:
        inputs = [values[a] for a in n.args]
        for part in n.template.parts:
            box = [(0, e) for e in part.domain]
            if prod(part.domain) == 0:
                continue
            total += prod(part.domain)
            order = list(postorder(part.bodies))
            known: dict = {}
            for e in order:  # with every read, wherever it points, inside its tensor
                if isinstance(e, Read):
                    known[e] = template_evaluator.read_elements(
                        e, [known[i] for i in e.index], inputs[e.slot], [], len(box)
                    )
                elif isinstance(e, Apply):
                    known[e] = template_evaluator.apply_function(e, [known[a] for a in e.args])
                else:
                    known[e] = template_evaluator.evaluate_expressions([e], box, inputs)[0]
            needed = template_evaluator.mask_needed(part.bodies, order, known)
            for e in order:
                if isinstance(e, Apply) and e.dtype.is_float and e.fn not in _FREE:
                    total += int(np.broadcast_to(needed[e], part.domain).sum())
    return total


def computes(tensors) -> set[Compute]:
    return {n for n in postorder(tensors) if isinstance(n, Compute)}


def derive(p: Problem, floats):
    """The result before and after the gradients by `floats` were taken, these, and the values of all nodes."""
    leaves = {n: leaf(a.shape, dt.dtype_of(a)) for n, a in p.arrays.items()}
    with tracing(Trace()):
        (before,) = [p.op(**{n: Value(x) for n, x in leaves.items()}, **p.parameters).tensor]
    c = leaf(before.shape, before.dtype)
    (new,), grads = gradients([before], [c], [leaves[n] for n in floats])
    before, new, *grads = values_only(Graph((), (before, new, *grads), (), ())).outputs
    values = {x: (template_evaluator.to_wide(p.arrays[n], x.dtype, x.shape, n),) for n, x in leaves.items()}
    values[c] = (np.ones(c.shape),)
    for node in postorder([before, new, *grads]):
        if isinstance(node, Item):
            values[node] = (values[node.node][node.member],)
        elif isinstance(node, Compute):
            values[node] = template_evaluator.evaluate_template(node.template, [values[a][0] for a in node.args])
    return before, new, grads, {n: v[0] for n, v in values.items()}


def count(entry: Entry, case: int):
    """(operations of the forward, those that its gradient adds, elements of the gradient, inputs, the largest tensor of
    the forward, inputs and result among them, and the largest of both together as they are compiled)."""
    p = Problem(entry, case, np.random.default_rng(0))
    before, new, grads, values = derive(p, p.floats)
    forward, both = computes([before]), computes([new, *grads])
    allowed = max(a.size for a in p.arrays.values())
    allowed = max(allowed, *(size(n.shape) for n in computes([before])))
    compiled = run_passes(Graph(tuple(n for n in values if isinstance(n, Leaf)), (new, *grads), (), ()))
    largest = max(size(n.shape) for n in computes(compiled.outputs))
    made = sum(size(g.shape) for g in grads)
    once = work(forward, values)
    return once, work(both, values) - once, made, len(p.floats), allowed, largest


def test_the_work_of_gradients():
    """Printed for every entry at its sizes, and bounded, beyond writing the gradient's elements once. No
    tensor of a gradient is larger than the largest of the forward's."""
    rows, wrong = [], []
    for entry, case in CASES:
        forward, backward, made, inputs, allowed, largest = count(entry, case)
        each = max(0, backward - made) / forward / inputs
        rows.append(
            f"{entry.name:<50}{case:>2}{forward:>9}{backward:>9}{made:>7}{inputs:>7}{each:>6.2f}{largest:>8}{allowed:>8}"
        )
        if each > entry.most:
            wrong.append(f"{entry.name} {case}: {each:.2f} operations an input for one of the forward")
        if largest > allowed:
            wrong.append(f"{entry.name} {case}: an intermediate of {largest} elements, the largest other is {allowed}")
    print(f"\n{'entry':<50}size forward gradient elements inputs each largest allowed")
    print("\n".join(rows))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_gradients_cost_what_the_forward_costs(stride):
    """dX and dW are one tensor each and cost about 1.0 at sizes where edges count little."""
    text = "Y[b,k,p,q] = sum[c,r,s](X[b,c,stride*p+r,stride*q+s] * W[k,c,r,s])"
    sizes = {"X": (2, 3, 29, 29), "W": (4, 3, 3, 3), "stride": stride}
    p = Problem(Entry("", text, [sizes]), 0, np.random.default_rng(0))
    for name in ("X", "W"):
        before, _, grads, values = derive(p, [name])
        (made,) = computes(grads)
        assert 0.9 <= work([made], values) / work([before], values) <= 1.15
