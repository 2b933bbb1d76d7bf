"""A tiny notation for building graphs in tests, without the formula language."""

from __future__ import annotations

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Axis, Compute, Const, Expr, Graph, Item, Read, Reduce, Tensor, apply, cast, template
from einsmith.ir.rebuild import prune_args


class F:
    """An expression with operators. Numbers take the type of the other operand."""

    def __init__(self, e: Expr):
        self.e = e

    def _with(self, fn: str, other, swap: bool = False) -> F:
        b = other.e if isinstance(other, F) else Const(other, self.e.dtype)
        return F(apply(fn, b, self.e) if swap else apply(fn, self.e, b))

    def __add__(self, o):
        return self._with("add", o)

    def __radd__(self, o):
        return self._with("add", o, True)

    def __sub__(self, o):
        return self._with("sub", o)

    def __rsub__(self, o):
        return self._with("sub", o, True)

    def __mul__(self, o):
        return self._with("mul", o)

    def __rmul__(self, o):
        return self._with("mul", o, True)

    def __truediv__(self, o):
        return self._with("div", o)

    def __rtruediv__(self, o):
        return self._with("div", o, True)

    def __floordiv__(self, o):
        return self._with("floordiv", o)

    def __mod__(self, o):
        return self._with("mod", o)

    def __pow__(self, o):
        return self._with("pow", o)

    def __lt__(self, o):
        return self._with("lt", o)

    def __le__(self, o):
        return self._with("le", o)

    def __gt__(self, o):
        return self._with("lt", o, True)

    def __ge__(self, o):
        return self._with("le", o, True)

    def eq(self, o):
        return self._with("eq", o)

    def __and__(self, o):
        return self._with("and", o)

    def __neg__(self):
        return F(apply("neg", self.e))

    def cast(self, dtype):
        return F(cast(self.e, dtype))


def fn(name: str, *args: F) -> F:
    like = next(a for a in args if isinstance(a, F) and not a.e.dtype.is_bool)
    return F(apply(name, *(a.e if isinstance(a, F) else Const(a, like.e.dtype) for a in args)))


def where(c: F, a, b) -> F:
    return fn("where", c, a, b)


class In:
    """Argument `slot` of the formula under construction: index it."""

    def __init__(self, slot: int, tensor: Tensor):
        self.slot, self.tensor = slot, tensor

    def __getitem__(self, index) -> F:
        index = index if isinstance(index, tuple) else (index,)
        at = tuple(i.e if isinstance(i, F) else Const(i, dt.i32) for i in index)
        return F(Read(self.slot, at, self.tensor.dtype))


def compute(shape, args, body, over=None, combiner="sum"):
    """The tensor `body(*arguments, *axes)`, reduced over a box of extents `over`."""
    ins = [In(n, t) for n, t in enumerate(args)]
    axes = [F(Axis(d)) for d in range(len(shape) + len(over or ()))]
    e = body(*ins, *axes)
    bodies = tuple(x.e for x in e) if isinstance(e, tuple) else (e.e,)
    whole = Reduce(combiner, tuple(over), bodies) if over is not None else bodies[0]
    node = prune_args(template(shape, [(t.dtype, t.shape) for t in args], whole), tuple(args))
    several = len(node.template.dtypes)
    return node if several == 1 else tuple(Item(node, m) for m in range(several))


def constant(value: float, shape=(), dtype=dt.f64) -> Compute:
    return Compute(template(shape, (), Const(value, dtype)), ())


def run(outputs, feed: dict) -> list[np.ndarray]:
    """The values of tensors for arrays at the leaves."""
    out, _ = evaluate(Graph(tuple(feed), tuple(outputs), (), ()), list(feed.values()))
    return out


def check_gradients(output: Tensor, wrt, feed: dict, order: int = 1, seed: int = 0, eps=1e-6, tol=1e-6):
    """Raises AssertionError "gradient of argument n" unless central differences along random directions agree, for
    <c, output> with a random c, and (order 2) for a random projection of its gradients. Returns the gradients."""
    from einsmith.autodiff.reverse import gradients
    from einsmith.ir.nodes import leaf

    rng = np.random.default_rng(seed)
    c = leaf(output.shape, output.dtype)
    feed = {**feed, c: rng.standard_normal(output.shape)}
    (new,), grads = gradients([output], [c], wrt)
    verify([new, *grads])
    before, after = run([output], feed)[0], run([new], feed)[0]
    np.testing.assert_array_equal(before, after)
    values = run(grads, feed)
    for n, (x, g) in enumerate(zip(wrt, values, strict=True)):
        assert g.shape == x.shape
        v = rng.standard_normal(x.shape)
        hi, lo = (run([output], {**feed, x: feed[x] + s * eps * v})[0] for s in (1, -1))
        numeric, exact = np.vdot(feed[c], (hi - lo) / (2 * eps)), np.vdot(g, v)
        scale = np.abs(feed[c]).sum() + np.abs(exact)
        assert abs(numeric - exact) <= tol * max(1.0, scale), f"gradient of argument {n}: {exact} is not {numeric}"
    if order > 1:
        for n, g in enumerate(grads):
            check_gradients(g, [*wrt, c], feed, order - 1, seed + n + 1, eps, tol)
    return grads


def verify(tensors) -> None:
    from einsmith.ir.verify import verify_graph

    leaves = {t for t in _below(tensors) if type(t).__name__ == "Leaf"}
    verify_graph(Graph(tuple(leaves), tuple(tensors), (), ()))


def _below(tensors):
    from einsmith.ir.nodes import postorder

    return list(postorder(tensors))
