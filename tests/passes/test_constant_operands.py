"""Sums over axes of constants have terms only where the constants are not zero, in values and in gradients."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base import environment
from einsmith.base.captured import FrozenArray
from einsmith.base.numerics import Numerics
from einsmith.driver.constant_values import use_constants
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, Leaf, postorder, size
from einsmith.ir.origins import Origins
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.constant_operands import MAX_TERMS, constant_operands
from einsmith.passes.context import PassContext

UNROLLS = PassContext(cost=lambda kernel, target: float(sum(size(p.domain) for p in kernel.root.parts)))
"""A machine where time is spent on points alone, however many terms are added at each."""
SEGMENTS = PassContext(
    cost=lambda kernel, target: 10.0 * (len(kernel.root.parts) > 1) + sum(len(b.shape) == 3 for b in kernel.buffers)
)
"""A machine where pieces take time, and to read C."""
STAYS = PassContext(cost=lambda kernel, target: float(sum(len(p.domain) > 0 for p in kernel.root.parts)))
"""A machine where pieces take time, so that to unroll never pays."""

PRODUCT = """
m[e,u,k] = sum[i,j](C[i,j,k]*w[e,P[i,j,k],u]*x[src[e],u,i]*Y[e,j])
out[dst[e],u,k] += m[e,u,k]
return out
"""
TYPES = """
m[e,u,k] = sum[i,j](C[i,j,k]*w[t[e],P[i,j,k],u]*x[e,u,i]*Y[e,j])
return m
"""
SHARED = "m[e,k] = sum[i,j](C[i,j,k]*w[P[i,j,k]]*x[e,i]*Y[e,j])"
TWICE = "m[e,k] = sum[i,j](C[i,j,k]*D[j]*x[e,i]*Y[e,j]) - sum[i](D[i]*x[e,i])*D[k]"
SHIFTED = "m[e,i,k] = sum[j](where(j <= i, C[i-j,j,k]*x[e,j], 0)) + sum[j](where(j < i, C[i,j,k], Y[e,j])*x[e,i])"
SCALED = "m[e,k] = sum[i,j](C[i,j,k]*D[1]*x[e,i]*Y[e,j]*D[k])"
PLAIN = "m[e,k] = sum[i,j](C[i,j,k]*x[e,i]*Y[e,j])"


def sparse(rng, shape: tuple[int, ...], kept: float) -> np.ndarray:
    c = rng.standard_normal(shape)
    c[rng.random(shape) >= kept] = 0
    return c


def arguments(rng, edges: int, channels: int, extent: int, kept: float) -> dict[str, np.ndarray]:
    """The arrays of all formulas above."""
    n = extent
    return {
        "C": sparse(rng, (n, n, n), kept),
        "D": sparse(rng, (n,), 0.5),
        "P": rng.integers(0, 4, (n, n, n)).astype(np.int32),
        "w": rng.standard_normal((edges, 4, channels)),
        "x": rng.standard_normal((edges, channels, n)),
        "Y": rng.standard_normal((edges, n)),
        "src": rng.integers(0, edges, edges).astype(np.int32),
        "dst": rng.integers(0, edges, edges).astype(np.int32),
        "t": rng.integers(0, edges, edges).astype(np.int32),
    }


CASES = {
    "product": PRODUCT,
    "types": TYPES,
    "shared": SHARED,
    "twice": TWICE,
    "shifted": SHIFTED,
    "scaled": SCALED,
    "plain": PLAIN,
}
CONSTANTS = ("C", "D", "P")


def call_of(name: str, rng, edges: int = 5, channels: int = 3, extent: int = 3, kept: float = 0.3):
    """An operator, its arrays by name, and those of them that are differentiated."""
    every = arguments(rng, edges, channels, extent, kept)
    text = CASES[name]
    if "x[e,i]" in text or "x[e,j]" in text:
        every["x"] = np.ascontiguousarray(every["x"][:, 0])
    if "w[P" in text:
        every["w"] = np.ascontiguousarray(every["w"][0, :, 0])
    f = es.op(text, extents={"product": {"out.shape[0]": "x.shape[0]"}, "shifted": {"i": "x.shape[1]"}}.get(name))
    arrays = {n: every[n] for n in f.inputs}
    return f, arrays, [n for n in arrays if n in ("w", "x", "Y")]


def squares(f, names):
    """The sum of squares of an operator's result, which depends on the first arguments, named so."""

    def loss(*args):
        y = f(**dict(zip(names, args, strict=True)))
        return (y * y).sum()

    return loss


def traced(f, args, frozen):
    """The graph of a call, its inputs' arrays, and the values of its constants."""
    call = trace_call(f, tuple(args), {})
    inputs = [x for x in call.graph.inputs if x not in call.bind]
    arrays = dict(zip(inputs, frozen, strict=True)) | call.bind
    values = {x: a for x, a in call.bind.items() if isinstance(a, FrozenArray)}
    return call.graph, [np.asarray(arrays[x]) for x in call.graph.inputs], values


def derivatives(f, names, count: int, order: int):
    loss = squares(f, names)
    at = tuple(range(count))
    if order == 0:
        return lambda *args: f(**dict(zip(names, args, strict=True)))
    gradient = es.grad(loss, argnums=at)
    if order == 1:
        return gradient
    return es.grad(lambda *args: sum((g * g).sum() for g in gradient(*args)), argnums=at)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kept", [0.3, 0.02])
@pytest.mark.parametrize("context", [UNROLLS, SEGMENTS], ids=["unrolled", "segments"])
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("name", CASES)
def test_sparse_graphs_compute_the_same(name, order, context, kept, rng):
    f, arrays, by = call_of(name, rng, kept=kept)
    names = [*by, *(n for n in arrays if n not in by)]
    args = [es.constant(arrays[n]) if n in CONSTANTS else arrays[n] for n in names]
    g = derivatives(f, names, len(by), order)
    graph, inputs, values = traced(g, args, [arrays[n] for n in names if n not in CONSTANTS])
    assert values
    sparse_graph, more = constant_operands(graph, values, context)
    verify_graph(sparse_graph)
    assert sparse_graph is not graph or context is SEGMENTS
    assert bool(more) <= (context is SEGMENTS)
    results, _ = evaluate(sparse_graph, [*inputs, *more.values()])
    for got, want in zip(results, evaluate(graph, inputs)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12 * np.abs(want).max())
    assert constant_operands(graph, values, STAYS)[0] is graph


def points(graph: Graph) -> int:
    return sum(size(p.domain) for n in postorder(graph.roots) if isinstance(n, Compute) for p in n.template.parts)


def reads_constant(graph: Graph, values) -> bool:
    return any(x in values for x in postorder(graph.roots) if isinstance(x, Leaf))


@pytest.mark.parametrize("kept", [0.0, 0.04, 0.3])
def test_constants_are_not_read_by_values_and_gradients(kept, rng):
    f, arrays, by = call_of("product", rng, kept=kept)
    names = [*by, *(n for n in arrays if n not in by)]
    args = [es.constant(arrays[n]) if n in CONSTANTS else arrays[n] for n in names]
    gradient = es.value_and_grad(squares(f, names), argnums=tuple(range(len(by))))
    graph, _, values = traced(gradient, args, [arrays[n] for n in names if n not in CONSTANTS])
    plain = Graph(graph.inputs, graph.outputs, graph.updates, ())
    unrolled, _ = constant_operands(plain, values, UNROLLS)
    assert reads_constant(plain, values) and not reads_constant(unrolled, values)
    assert points(unrolled) < points(plain) / 2


def test_a_constant_without_zeros_is_an_operand(rng):
    f, arrays, _ = call_of("plain", rng, kept=1.1)
    args = [es.constant(arrays["C"]), arrays["x"], arrays["Y"]]
    graph, _, values = traced(f, args, [arrays["x"], arrays["Y"]])
    assert constant_operands(graph, values, UNROLLS)[0] is graph


def test_a_constant_of_many_elements_is_a_list_of_them(rng):
    n = 2 * int(MAX_TERMS**0.5)
    c = np.triu(np.ones((n, n)))
    args = [es.constant(c), rng.standard_normal((3, n))]
    graph, inputs, values = traced(es.op("y[b,k] = sum[j](c[j,k]*x[b,j])"), args, args[1:])
    by_rank = PassContext(cost=lambda kernel, target: float(sum(b.shape == (n, n) for b in kernel.buffers)))
    sparse_graph, more = constant_operands(graph, values, by_rank)
    assert sorted(a.size for a in more.values()) == [n, n, n * (n + 1) // 2, n * (n + 1) // 2]
    (y,), _ = evaluate(sparse_graph, [*inputs, *more.values()])
    np.testing.assert_allclose(y, args[1] @ c)


@pytest.mark.parametrize("n", [127, 300])
def test_programs_of_sparse_matrices(n, rng):
    c = sparse(rng, (n, n), 3 / n)
    c[:, 1] = 0
    x = rng.standard_normal((n, 17))
    f = es.op("y[i,f] = sum[j](c[i,j]*x[j,f])")
    gradient = es.jit(es.value_and_grad(lambda c, x: (f(c, x) ** 3).sum(), argnums=1))
    value, dx = gradient(es.constant(c), x)
    np.testing.assert_allclose(value, ((c @ x) ** 3).sum(), rtol=1e-10)
    np.testing.assert_allclose(dx, 3 * c.T @ (c @ x) ** 2, rtol=1e-10, atol=1e-10)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("edges, channels, extent", [(1, 1, 1), (7, 1, 2), (1, 17, 3), (67, 16, 4), (131, 15, 5)])
@pytest.mark.parametrize("name", CASES)
def test_programs_agree_with_arrays_that_are_not_constant(name, edges, channels, extent, rng):
    f, arrays, by = call_of(name, rng, edges, channels, extent)
    names = [*by, *(n for n in arrays if n not in by)]
    constants = [es.constant(arrays[n]) if n in CONSTANTS else arrays[n] for n in names]
    for order in (0, 1, 2):
        g = es.jit(derivatives(f, names, len(by), order))
        got, want = g(*constants), g(*(arrays[n] for n in names))
        for a, b in zip(got if order else [got], want if order else [want], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * max(1, np.abs(b).max()))


def test_zeros_of_a_constant_are_absent_terms():
    f = es.op("y[b,k] = sum[j](c[j,k]*x[b,j])")
    c, x = np.array([[1.0, 0.0], [0.0, 2.0]]), np.zeros((4000, 2))
    x[:, 0], x[:, 1] = np.inf, 3.0
    args = [es.constant(c), x]
    graph, inputs, values = traced(f, args, [x])
    (y,), _ = evaluate(constant_operands(graph, values, UNROLLS)[0], inputs)
    assert np.array_equal(y, np.tile([np.inf, 6.0], (4000, 1)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_of_a_constant_that_are_not_finite_are_terms(value):
    c = np.array([[1.0, 0.0], [0.0, value]])
    f = es.op("y[b,k] = sum[j](c[j,k]*x[b,j])")
    x = np.full((3, 2), 2.0)
    graph, inputs, values = traced(f, [es.constant(c), x], [x])
    (y,), _ = evaluate(constant_operands(graph, values, UNROLLS)[0], inputs)
    np.testing.assert_array_equal(y, np.tile([2.0, 2 * value], (3, 1)))


@pytest.mark.parametrize("wrong", [-1, 4])
def test_indices_of_a_constant_are_checked_when_a_program_is_compiled(wrong, rng):
    f, arrays, _ = call_of("product", rng)
    arrays["P"][1, 2, 0] = wrong
    given = {n: es.constant(a) if n in CONSTANTS else a for n, a in arrays.items()}
    with pytest.raises(es.IndexOutOfRange, match=rf"element \[1, 2, 0\] of P.* is {wrong}, .*dimension 1 of w"):
        f(**given)


def test_indices_of_arrays_are_still_explained(rng):
    f, arrays, _ = call_of("product", rng, edges=300, channels=16, extent=4)
    arrays["src"][3] = 1000
    given = {n: es.constant(a) if n in CONSTANTS else a for n, a in arrays.items()}
    with pytest.raises(es.IndexOutOfRange, match=r"element \[3\] of src.* is 1000, .*dimension 0 of x"):
        f(**given)


def test_equal_constants_share_a_program_and_others_have_their_own(rng):
    f, x = es.jit(es.op("y[b,k] = sum[j](c[j,k]*x[b,j])")), rng.standard_normal((50, 3))
    c = sparse(rng, (3, 3), 0.4)
    for matrix in (c, c.copy(), 2 * c, c.astype(np.float32)):
        np.testing.assert_allclose(f(es.constant(matrix), x), x @ matrix, rtol=1e-6)
    assert len(f._cache) == 3


def test_values_of_constants_are_left_out_by_name(rng, monkeypatch):
    c, x = es.constant(sparse(rng, (4, 4), 0.3)), rng.standard_normal((4000, 4))
    call = trace_call(es.op("y[b,k] = sum[j](c[j,k]*x[b,j])"), (c, x), {})
    results = []
    for without in (None, "constants"):
        if without is not None:
            monkeypatch.setenv(environment.WITHOUT.name, without)
        graph, *_ = use_constants(call.graph, None, call.bind, 1, None, Numerics(), Origins())
        results.append(graph is call.graph)
        np.testing.assert_allclose(es.op("y[b,k] = sum[j](c[j,k]*x[b,j])")(c, x), x @ np.asarray(c), rtol=1e-12)
    assert results == [False, True]


def test_constants_are_copies_that_know_their_content(rng):
    a = sparse(rng, (3, 4), 0.5)
    c = es.constant(a)
    again = pickle.loads(pickle.dumps(c))
    assert c == again and hash(c) == hash(again) and es.constant(c) is c
    assert c != es.constant(a.reshape(4, 3)) and c != es.constant(a.astype(np.float32))
    kept = a.copy()
    a[:] = 7
    np.testing.assert_array_equal(np.asarray(c), kept)
    assert (c.shape, c.ndim, c.dtype) == ((3, 4), 2, np.float64)
    with pytest.raises(ValueError):
        np.asarray(c)[0, 0] = 1


def test_a_traced_function_reads_constants_around_it(rng):
    c = es.constant(sparse(rng, (4, 4), 0.3))
    x = rng.standard_normal((100, 4))
    f = es.jit(es.grad(lambda x: ((es.functional.einsum("jk,bj->bk", c, x) + x @ c) ** 2).sum()))
    m = np.asarray(c)
    np.testing.assert_allclose(f(x), 8 * (x @ m) @ m.T, rtol=1e-12)


def read_only(a: np.ndarray) -> np.ndarray:
    a.setflags(write=False)
    return a


@pytest.mark.parametrize(
    "of, constant",
    [
        (read_only, True),
        (lambda a: read_only(a)[:, :3], True),
        (lambda a: a, False),
        (lambda a: read_only(a[:, :3]), False),  # the owner of the memory may write to it
        (lambda a: np.broadcast_to(a[:1], (4, 4)), False),
        (lambda a: read_only(np.frombuffer(bytearray(a.tobytes())).reshape(4, 4)), False),
    ],
    ids=["read-only", "view of it", "writable", "read-only view", "broadcast", "of another library"],
)
def test_an_array_around_a_function_is_a_constant_where_nobody_can_write_to_it(of, constant, rng):
    c, x = of(sparse(rng, (4, 4), 0.3)), rng.standard_normal((100, 4))
    f = es.grad(lambda x: ((x @ c) ** 2).sum())
    (bound,) = trace_call(f, (x,), {}).bind.values()
    assert isinstance(bound, FrozenArray) == constant and bound.flags.c_contiguous
    if c.flags.c_contiguous:
        assert np.shares_memory(bound, c)  # large ones are not held twice
    f = es.jit(f)
    for n in (100, 7):
        np.testing.assert_allclose(f(x[:n]), 2 * x[:n] @ c @ c.T, rtol=1e-12, atol=1e-12)


class Layer(es.nn.Module):
    """A linear layer, then a matrix that is a constant."""

    def __init__(self, c):
        super().__init__()
        self.c, self.linear = c, es.nn.Linear(4, 4)

    def forward(self, x):
        return es.functional.einsum("jk,bj->bk", self.c, self.linear(x))


def layer_of(rng) -> tuple[Layer, np.ndarray, np.ndarray]:
    c = sparse(rng, (4, 4), 0.3).astype(np.float32)
    return Layer(es.constant(c)), c, rng.standard_normal((64, 4)).astype(np.float32)


def test_a_training_step_with_a_constant_is_saved_and_goes_on(rng, tmp_path):
    layer, _, x = layer_of(rng)
    again = Layer(layer.c)
    again.load_state_dict(layer.state_dict())
    again.c = np.asarray(layer.c)
    loss, optimizer = es.functional.mse_loss, es.optim.SGD(lr=0.1)
    step, plain = es.TrainStep(layer, loss, optimizer), es.TrainStep(again, loss, es.optim.SGD(lr=0.1))
    for _ in range(2):
        assert step(x, x) == pytest.approx(plain(x, x), rel=1e-5)
    es.save(step, tmp_path / "run")
    loaded = es.load(tmp_path / "run", model=Layer(layer.c), loss=loss, optimizer=optimizer)
    assert loaded(x, x) == step(x, x)


def test_an_exported_program_has_the_constant_in_it(rng, tmp_path):
    layer, c, x = layer_of(rng)
    es.export(layer, tmp_path / "layer", x)
    library = es.load_library(tmp_path / "layer")
    want = (x @ layer.linear.weight.numpy().T + layer.linear.bias.numpy()) @ c
    np.testing.assert_allclose(library(x), want, rtol=1e-5, atol=1e-5)


def test_sizes_share_a_program_with_a_constant(rng):
    c = es.constant(sparse(rng, (4, 4), 0.3))
    x = rng.standard_normal((64, 4))
    f = es.jit(es.value_and_grad(lambda x: ((x @ c) ** 2).sum()), sizes="shared")
    for n in (64, 17, 1):
        m = np.asarray(c)
        np.testing.assert_allclose(f(x[:n])[1], 2 * (x[:n] @ m) @ m.T, rtol=1e-12, atol=1e-12)


def test_the_gradient_by_a_constant_is_dense(rng):
    c, x = es.constant(sparse(rng, (4, 3), 0.3)), rng.standard_normal((50, 4))
    f = es.op("y[b,k] = sum[j](c[j,k]*x[b,j])")
    np.testing.assert_allclose(es.grad(lambda c, x: (f(c, x) ** 2).sum())(c, x), 2 * x.T @ (x @ np.asarray(c)))
