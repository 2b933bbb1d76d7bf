"""Programs that several sizes share: the numbers of programs for each size, and few compilations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
from einsmith import functional as F
from einsmith import nn
from einsmith.api import jit
from einsmith.base.trees import flatten
from einsmith.driver import executable, runs
from einsmith.runtime import buffers
from einsmith.schedule.kernel import LimitedKernel, Rows
from tests.kernels.runner import Guarded

SIZES = 5, 7, 2, 40, 41, 1


@pytest.fixture
def compiled(monkeypatch):
    """Shapes of the first input of every graph that is compiled."""
    out = []
    compile_graph = executable.compile_graph

    def count(graph, *args, **kwargs):
        out.append(graph.inputs[0].shape)
        return compile_graph(graph, *args, **kwargs)

    monkeypatch.setattr(executable, "compile_graph", count)
    return out


@pytest.fixture(autouse=True)
def memory_of_others(monkeypatch):
    """Memory for arrays holds what others have left there: no number, and no index."""
    recycle = buffers.recycle

    def used(shape, dtype, nbytes):
        array, at = recycle(shape, dtype, nbytes)
        array[...] = np.nan if dtype.kind == "f" else 1 << 30 if dtype.kind == "i" else 0
        return array, at

    monkeypatch.setattr(buffers, "recycle", used)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_200_lengths_compile_three_programs(order, compiled) -> None:
    w, rng = default_rng(0).normal(size=(8, 3)).astype("f"), default_rng(1)
    f = es.jit(lambda x, w: F.softmax(F.relu(x @ w), 0), sizes="shared")
    lengths = {"ascending": np.arange(2, 202), "descending": np.arange(201, 1, -1)}.get(order)
    lengths = rng.permutation(np.arange(2, 202)) if lengths is None else lengths
    for n in lengths:
        x = rng.normal(size=(n, 8)).astype("f")
        y = np.maximum(x.astype("d") @ w, 0)
        want = np.exp(y - y.max(0)) / np.exp(y - y.max(0)).sum(0)
        np.testing.assert_allclose(f(x, w), want, rtol=2e-5, atol=1e-7)
    assert len(set(lengths)) == 200 and len(compiled) <= 3


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def loss_gradients(x, w):
    return es.grad(lambda x, w: (F.gelu(x @ w) ** 2).mean(), argnums=(0, 1))(x, w)


def recurrence(x, h, w):
    return es.op("H[b,t,i] = where(t > 0, tanh(X[b,t,i] + sum[j](W[i,j]*H[b,t-1,j])), h[b,i])")(X=x, h=h, W=w)


def second_half(a, z):
    f = es.op("t[j] = sum[k](a[size(k)+k]*z[j,k])")
    return es.grad(lambda a, z: (f(a=a, z=z) ** 2).sum(), argnums=(0, 1))(a, z)


FUNCTIONS = {
    "attention": (attention, [(2, "n", 4)] * 3),
    "gradients of attention": (
        lambda q, k, v: es.grad(lambda q, k, v: (attention(q, k, v) ** 2).sum(), argnums=(0, 1, 2))(q, k, v),
        [(2, "n", 4)] * 3,
    ),
    "gradients": (loss_gradients, [("n", 4), (4, 6)]),
    "a batch of recurrences": (recurrence, [("n", 3, 4), ("n", 4), (4, 4)]),
    "reversed": (lambda x: F.flip(x, (0,)), [("n", 3)]),
    "gradients of reads behind it": (second_half, [("2n",), (3, "n")]),
    "a number beside columns": (lambda x: (x.sum(), F.relu(x)), [(3, "n")]),
    "convolution along it": (lambda x, w: F.conv1d(x, w, padding=1), [(2, 3, "n"), (4, 3, 3)]),
}  # fmt: skip


def shape_at(shape, n: int) -> list[int]:
    """Return a shape in which a size and twice that size are named."""
    return [{"n": n, "2n": 2 * n}.get(x, x) for x in shape]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", FUNCTIONS)
def test_results_are_those_of_a_program_for_each_size(case, compiled) -> None:
    f, shapes = FUNCTIONS[case]
    shared, rng = es.jit(f, sizes="shared"), default_rng(0)
    count = 0
    for n in SIZES:
        if n == 2:  # what was beyond the limits in an earlier run must not matter
            shared(*(np.full(shape_at(s, 40), np.nan) for s in shapes))
        arrays = [rng.normal(size=shape_at(s, n)) for s in shapes]
        before = len(compiled)
        got = shared(*arrays)
        count += len(compiled) - before
        want = es.interpret(f)(*arrays)
        for a, b in zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]:
            assert a.shape == b.shape and b.flags.c_contiguous
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-11)
    assert count <= 4  # the first size, one point, and two capacities


@pytest.mark.parametrize("sizes", ["auto", "shared"])
@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("second", [0, 1, 4])
def test_empty_arrays_and_those_of_one_row_may_come_first(first, second, sizes) -> None:
    f = es.jit(lambda x, y, z: (x * 2, y + 1, z - 1, x.sum()), sizes=sizes)
    for n in (first, second, 6, 0, 3, 1, 7):
        x, y, z = np.arange(float(n)), np.ones((2 * n, 3)), np.ones(n + 3)
        for got, want in zip(f(x, y, z), (x * 2, y + 1, z - 1, x.sum()), strict=True):
            np.testing.assert_array_equal(got, want)


def test_arrays_that_are_long_to_copy_share_no_program(compiled) -> None:
    """A scatter reads rows of its operands in any order, so that they are copied into memory of the capacity."""
    text, extents = "y[rcv[e],k] += w[e,k]*h[snd[e],k]", {"y.shape[0]": 20}
    f, rng = es.jit(es.op(text, extents=extents), sizes="auto"), default_rng(0)
    for n in (5000, 6000, 7000):
        rcv, snd = rng.integers(0, 20, (2, n))
        f(rcv, np.ones((n, 64), "f"), np.ones((20, 64), "f"), snd)
    assert {5000, 6000, 7000} <= {x[0] for x in compiled} and "are copied" in f.plan


def test_two_dimensions_vary(compiled) -> None:
    f, rng = es.jit(lambda q, k, v: attention(q, k, v).mean(0), sizes="shared"), default_rng(0)
    count = 0
    for b, n in ((3, 7), (5, 9), (12, 3), (7, 7)):
        x = [rng.normal(size=(b, n, 4)) for _ in range(3)]
        before = len(compiled)
        y = f(*x)
        count += len(compiled) - before
        np.testing.assert_allclose(y, es.interpret(f)(*x), rtol=1e-9, atol=1e-12)
    assert count <= 3


def test_lengths_of_a_recurrence_that_are_read_as_wide_integers() -> None:
    """Joined targets of connectionist temporal classification, of as many labels as there are steps."""
    rng = default_rng(0)

    def loss(x, targets, lengths, counts):
        return F.ctc_loss(F.log_softmax(x, 2), targets, lengths, counts, reduction="none")

    shared, each = (es.jit(es.grad(lambda *x: (loss(*x) ** 2).sum()), sizes=s) for s in ("shared", "each"))
    for n in (42, 26, 31, 27, 29):
        x, targets, lengths = rng.normal(size=(n, 2, 6)), rng.integers(1, 5, n), np.array([n, n - 2])
        arrays = x, targets, lengths, np.array([5, 4])
        np.testing.assert_allclose(shared(*arrays), each(*arrays), rtol=1e-9, atol=1e-12)


def test_steps_beyond_a_length_that_later_ones_read() -> None:
    """Time that runs backwards begins beyond the last position, where integers are 0, as an end of a loop may be."""
    f, rng = es.op("y[i] = min(3, max(-3, where(i < size(i) - 2, y[i+2], 0) + x[i]))"), default_rng(0)
    shared = es.jit(f, sizes="shared")
    for n in (60, 111, 68, 10, 138, 2):
        x = rng.integers(-3, 4, n).astype("i1")
        assert np.array_equal(shared(x), es.interpret(f)(x))


FILTERS = """d[i,j] = sqrt(sum[c]((p[i,c] - p[j,c])**2) + 0.01)
g[i,j,m] = exp(-2.0*(d[i,j] - 0.5*m)**2)
w[i,j,k] = log(0.5 + 0.5*exp(sum[m](g[i,j,m]*W[m,k])))
y[i,k] = sum[j](x[j,k]*w[i,j,k])"""


def test_kernels_have_no_rows_in_common_without_a_sum() -> None:
    """Gradients of continuous filters (Schuett et al. 2017): a sum is offered to the kernel whose results it is of."""
    f, rng = es.op(FILTERS, inputs=("p", "W", "x")), default_rng(0)
    g = es.grad(lambda *x: (abs(f(*x)) * f(*x)).sum(), (0, 1, 2))
    shared, each = es.jit(g, sizes="shared"), es.jit(g, sizes="each")
    for n in (22, 28, 3, 37):
        arrays = [rng.uniform(-1, 1, s).astype("f") for s in ((5, 3), (5, n), (5, n))]
        for a, b in zip(shared(*arrays), each(*arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_batches_and_lengths_of_a_recurrence(compiled) -> None:
    f, rng = es.jit(recurrence, sizes="shared"), default_rng(0)
    count = 0
    for b, t in ((3, 4), (3, 6), (5, 6), (8, 6), (2, 6), (7, 4)):
        x = [rng.normal(size=s) for s in ((b, t, 4), (b, 4), (4, 4))]
        before = len(compiled)
        y = f(*x)
        count += len(compiled) - before
        np.testing.assert_allclose(y, es.interpret(f)(*x), rtol=1e-9)
    assert count == 3  # the first one, one for lengths, one for batches and lengths


CHUNKED = {
    "gates": """S[t,h,k,v] = where(t > 0, S[t-1,h,k,v], 0)*exp(g[t,h,k]) + q[t,h,k]*x[t,h,v]
y[t,h,v] = sum[k](S[t,h,k,v]*q[t,h,k])
return y""",
    "corrections": """p[t,h,k,v] = where(t > 0, S[t-1,h,k,v], 0.5)*exp(g[t,h,0])
u[t,h,v] = x[t,h,v] - sum[k](p[t,h,k,v]*q[t,h,k])
S[t,h,k,v] = p[t,h,k,v] + q[t,h,k]*u[t,h,v]
y[t,h,v] = sum[k](S[t,h,k,v]*g[t,h,k])
last[h,k,v] = S[x.shape[0]-1,h,k,v]
return y, last""",
    "backwards": """S[t,h,k,v] = where(t < x.shape[0]-1, S[t+1,h,k,v], 0)*g[t,h,0] + q[t,h,k]*x[t,h,v]
y[t,h,v] = sum[k](S[t,h,k,v]*q[t,h,k])
return y""",
}


@pytest.mark.parametrize("name", CHUNKED)
def test_lengths_of_chunked_recurrences(name: str, compiled) -> None:
    """The last chunks of a recurrence are padded to whole ones in every size, also where nothing is left of one."""
    op = es.op(CHUNKED[name], inputs=("q", "g", "x"), chunk=4)
    steps = es.op(CHUNKED[name], inputs=("q", "g", "x"), chunk=1)

    def gradient(f):
        def loss(*x):
            y = f(*x)
            return sum((part**2).sum() for part in (y if isinstance(y, tuple) else (y,)))

        return es.grad(loss, (0, 1, 2))

    shared, rng = es.jit(gradient(op), sizes="shared"), default_rng(0)
    for n in (9, 14, 8, 12, 33, 2, 17, 3, 40, 5):
        x = [rng.uniform(-1, 1, (n, 2, 3)), rng.uniform(-1, 0.2, (n, 2, 3)), rng.normal(size=(n, 2, 4))]
        for a, b in zip(shared(*x), es.interpret(gradient(steps))(*x), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert len(compiled) <= 3


FORMULAS = {
    "products": ("y[i,j] = tanh(sum[k](x[i,k]*w[k,j]))*x.shape[0]", lambda n: ((n, 3), (3, 4))),
    "steps": ("h[0,i] = 0.0\nh[t+1,i] = tanh(x[t,i] + sum[j](h[t,j]*w[j,i]))", lambda n: ((n, 3), (3, 3))),
    "softmax": ("m[i] = max[j](x[i,j])\ny[i,j] = exp(x[i,j] - m[i])/sum[k](exp(x[i,k] - m[i]))", lambda n: ((3, n),)),
}


DERIVED = {
    "formula": lambda f: es.jit(f, sizes="shared"),
    "call": lambda f: f,
    "nested": lambda f: es.jit(es.jit(f), sizes="shared"),
    "gradient": lambda f: es.jit(es.grad(f), sizes="shared"),
    "function": lambda f: es.jit(es.grad(lambda *x: (f(*x) ** 2).sum()), sizes="shared"),
}


@pytest.mark.parametrize("how", DERIVED)
@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_run_at_other_sizes_without_a_trace(name: str, how: str, compiled, monkeypatch) -> None:
    """A function of the user's is traced at each size."""
    text, shapes = FORMULAS[name]
    total = "\nz[] = sum[a,b]({0}[a,b]*{0}[a,b])".format("h" if name == "steps" else "y")
    op = es.op(text + (total if how == "gradient" else ""))
    f, traced = DERIVED[how](op), list[Any]()
    monkeypatch.setenv("EINSMITH_SIZES", "shared")
    trace_arguments = jit.trace_arguments
    monkeypatch.setattr(jit, "trace_arguments", lambda *a: traced.append(a) or trace_arguments(*a))
    counts, results = [], {}
    for n in (7, 12, 9, 40, 4, 39, 12, 7, 23, 9):
        x = [default_rng(n).normal(size=s).astype("f") for s in shapes(n)]
        y = f(*x)
        counts.append((len(compiled), len(traced)))
        np.testing.assert_allclose(y, es.interpret(f)(*x), rtol=1e-4, atol=1e-5)
        if n in results and n not in (7, 12):  # the first of which have programs of their own, or are traced
            assert np.array_equal(results[n], y)
        results[n] = y
    assert counts[1][0] == counts[-1][0] and (counts[1] == counts[-1]) == (how != "function")


@pytest.mark.parametrize("how", ["jit", "call"])
def test_modules_run_at_other_sizes_without_a_trace(how: str, compiled, monkeypatch) -> None:
    """What a module consists of, its modes, hooks and memory are those of the trace; else it is traced anew."""
    traced, trace_arguments = list[Any](), jit.trace_arguments
    monkeypatch.setattr(jit, "trace_arguments", lambda *a: traced.append(a) or trace_arguments(*a))
    monkeypatch.setenv("EINSMITH_SIZES", "shared")
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.ReLU(), nn.LSTM(5, 4, batch_first=True)).eval()
    f = es.jit(model) if how == "jit" else model

    def count(b: int, n: int) -> int:
        before, x = len(traced), default_rng(b).normal(size=(b, n, 3)).astype(model[0].weight.data.dtype)
        y, z = f(x)[0], es.interpret(model)(x)[0] if not model.training else None
        if z is not None:
            np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-5)
        return len(traced) - before

    assert [count(*x) for x in ((9, 7), (12, 5), (7, 11), (4, 3), (13, 12), (24, 15))] == [1, 4, 0, 0, 0, 0]
    model.train()
    assert count(8, 3) > 0
    model.eval()
    assert count(6, 4) == 0
    model[0] = nn.Linear(3, 5)
    assert count(5, 4) > 0
    handle = model[2].register_forward_hook(lambda m, a, y: y * 3)
    assert [count(*x) for x in ((11, 4), (10, 4), (3, 9))] == [3, 1, 1]  # hooks are called in each
    handle.remove()
    model.double()
    assert count(15, 4) > 0


def test_an_index_error_shows_the_call() -> None:
    """Its shapes and values, not those of the capacity."""
    table, messages = np.eye(4), []
    for sizes in ("each", "shared"):
        f = es.jit(lambda index, table: F.embedding(index, table) * 2, sizes=sizes)
        for n in (3, 5):
            f(np.arange(n) % 4, table)
        with pytest.raises(IndexError) as error:
            f(np.array([0, 1, 9, 2, 3]), table)
        messages.append(str(error.value))
    assert messages[0] == messages[1] and "9" in messages[0]


def test_indices_beyond_a_size_are_refused() -> None:
    """Padded rows hold no index, and the check is that of the size."""
    f = es.jit(lambda i, w: F.embedding(i, w), sizes="shared")
    w = np.eye(4)[:, :3]
    for n in (3, 5, 8):
        assert f(np.full((n,), 3, np.int32), w).shape == (n, 3)
    with pytest.raises(es.IndexOutOfRange):
        f(np.array([0, 1, 2, 4], np.int32), w)
    g = es.jit(lambda i, x: F.embedding(i, x), sizes="shared")
    for n in (3, 5, 8):
        with pytest.raises(es.IndexOutOfRange):
            g(np.array([n], np.int32), np.ones((n, 2)))


class Captured(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 3)

    def forward(self, x):
        return self.lin(x)


def test_new_weights_are_read(compiled) -> None:
    model = Captured()
    f = es.jit(model, sizes="shared")
    x = default_rng(0).normal(size=(9, 4)).astype("f")
    for n in (3, 5, 9):
        f(x[:n])
    for replaced in (False, True):
        if replaced:
            model.lin.weight = nn.Parameter(np.ones((3, 4), "f"))
        else:
            model.lin.weight.data[...] = 2.0
        for n in (5, 9):
            want = x[:n] @ np.asarray(model.lin.weight.data).T + np.asarray(model.lin.bias.data)
            np.testing.assert_allclose(f(x[:n]), want, rtol=1e-5, atol=1e-5)


def test_a_function_with_a_largest_size() -> None:
    table = np.arange(40.0).reshape(10, 4)

    def f(x):
        if x.shape[0] > 10:
            raise ValueError("at most 10")
        return x + table[: x.shape[0]].sum() if x.shape[0] == 9 else x * 2.0

    g = es.jit(f, sizes="shared")
    for n in (4, 6, 9, 10):
        want = 1.0 + table[:9].sum() if n == 9 else 2.0
        np.testing.assert_allclose(g(np.ones((n, 4))), np.full((n, 4), want))
    with pytest.raises(ValueError, match="at most 10"):
        g(np.ones((11, 4)))


def test_a_size_of_its_own_kind_does_not_prevent_sharing(compiled) -> None:
    f = es.jit(lambda x: x * 2.0 if x.shape[0] == 6 else x * 3.0, sizes="shared")
    for n in (4, 6, 9, 11, 6):
        np.testing.assert_array_equal(f(np.ones((n, 3))), np.full((n, 3), 2.0 if n == 6 else 3.0))
    assert len(compiled) == 3


def test_the_plan_says_why_sizes_share_no_program(compiled) -> None:
    f = es.jit(lambda x: F.argmax(x), sizes="shared")
    for n in (4, 6, 9):
        np.testing.assert_array_equal(f(np.ones((3, n))), 0)
    assert len(compiled) == 3 and "argmax counts positions along an axis of this size" in f.plan
    g = es.jit(lambda x: x * 2.0, sizes="shared")
    for n in (4, 6):
        g(np.ones((n, 3)))
    assert "in a program that other sizes share" in g.plan


def test_the_environment(monkeypatch, compiled) -> None:
    """What `es.jit` and `TrainStep` leave open, and calls of modules and operators."""
    monkeypatch.setenv("EINSMITH_SIZES", "shared")
    model, double = nn.Linear(4, 3), es.op("Y[i,j] = 2*X[i,j]")
    for n in (3, 5, 9, 12):
        x = np.ones((n, 4), "f")
        np.testing.assert_allclose(model.predict(x)[0], model.predict(x[:2])[0], rtol=1e-6)
        np.testing.assert_array_equal(double(X=x), 2 * x)
    assert len(compiled) <= 5
    monkeypatch.setenv("EINSMITH_SIZES", "some")
    with pytest.raises(es.KnobError):
        double(X=np.ones((6, 4)))


TRANSFORMER = {"width": 16, "heads": 2, "layers": 1, "inner": 32, "positions": 8}
WEIGHTS = np.linspace(-1, 1, 18).reshape(6, 3)
FREE: dict[str, tuple] = {
    "a product": (lambda x: F.softmax(F.gelu(x) @ WEIGHTS, 1), lambda rng, n: rng.normal(size=(n, 6))),
    "a convolution to points": (  # the operand of so many channels is packed by a launch of its own
        nn.Conv2d(512, 40, 3, padding=1), lambda rng, n: rng.normal(size=(n, 512, 1, 1)).astype("f"),
    ),
    "a transformer": (
        es.models.bert_base(vocabulary=50, **TRANSFORMER), lambda rng, n: rng.integers(0, 50, (n, 7)),
    ),
    "capsules": (es.models.capsulenet(), lambda rng, n: rng.normal(size=(n, 1, 28, 28)).astype("f")),
}  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(x, marks=[pytest.mark.slow] * (x == "capsules")) for x in FREE])
def test_batches_of_what_stores_nothing_share_a_program(case, compiled) -> None:
    f, make = FREE[case]
    if isinstance(f, nn.Module):
        f.eval()
    shared, rng, count = es.jit(f, sizes="auto"), default_rng(0), 0
    for n in (3, 16, 9, 15, 2, 40, 13):
        x, before = make(rng, n), len(compiled)
        got = shared(x)
        count += len(compiled) - before
        for a, b in zip(flatten(got)[0], flatten(es.interpret(f)(x))[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    assert count <= 4 and "in a program that other sizes share" in shared.plan  # some have a program for constants


@pytest.mark.parametrize(
    ("f", "shapes", "why"),
    [
        (attention, ((2, "n", 4),) * 3, ""),  # another dimension than the first
        (lambda x: x.T @ x, (("n", 3),), "f64[3, 3]|another dimension"),
        (lambda x: x @ x.T, (("n", 3),), "another dimension"),
    ],
)
def test_what_would_take_longer_has_a_program_for_each_size(f, shapes, why, compiled) -> None:
    f = es.jit(f, sizes="auto")
    for k, n in enumerate((5, 8, 6), 1):
        f(*(np.ones([n if x == "n" else x for x in s]) for s in shapes))
        assert len(compiled) >= k
    assert "that other sizes share" not in f.plan and any(x in f.plan for x in why.split("|"))


def test_functions_that_store_and_checked_runs_have_a_program_for_each_size(monkeypatch, compiled) -> None:
    norm = es.jit(nn.BatchNorm1d(3), sizes="auto")
    for n in (5, 8):
        norm(np.ones((n, 3), "f"))
    assert len(compiled) == 2
    monkeypatch.setenv("EINSMITH_CHECK", "1")
    f = es.jit(lambda x: x * 2.0, sizes="auto")
    for n in (5, 8, 7):
        f(np.ones((n, 3)))
    assert len(compiled) == 5


def test_each_size_has_a_program_by_default(compiled) -> None:
    """Functions, modules, operators and training."""
    double = es.op("Y[i,j] = 2*X[i,j]")
    calls = [
        es.jit(lambda x: x * 2.0),
        lambda x: nn.Linear(4, 3)(x),
        lambda x: double(X=x),
        lambda x: train(x, np.zeros(len(x), np.int32)),
    ]
    train = es.TrainStep(nn.Linear(4, 3), F.cross_entropy, es.optim.SGD(lr=0.1))
    for f in calls:
        del compiled[:]
        for n in (5, 8, 7):
            f(np.ones((n, 4), "f"))
        assert [x[0] for x in compiled if len(x) == 2 and x[1] == 4] == [5, 8, 7]


def test_a_size_that_is_used_often_gets_its_own_program(monkeypatch, compiled) -> None:
    monkeypatch.setattr(runs, "OUTGROWN_RUNS", 3)
    f = es.jit(lambda x: x * 2.0, sizes="auto")
    for n in (4, 6, 9, 6, 4):
        for _ in range(2 - (n == 6)):
            np.testing.assert_array_equal(f(np.ones((n, 3))), np.full((n, 3), 2.0))
    f(np.ones((6, 3)))
    assert [x[0] for x in compiled] == [4, 40]
    np.testing.assert_array_equal(f(np.ones((6, 3))), np.full((6, 3), 2.0))
    assert [x[0] for x in compiled] == [4, 40, 6]
    assert f.plan.count("that other sizes share") == 1


def test_the_argument() -> None:
    for make in (lambda s: es.jit(lambda x: x, sizes=s), lambda s: step(nn.Linear(3, 2), s)):
        with pytest.raises(es.ArgumentError, match="sizes='all' is not available"):
            make("all")


def step(model, sizes: str, **settings) -> es.TrainStep:
    return es.TrainStep(model, F.cross_entropy, es.optim.Adam(lr=0.01), sizes=sizes, **settings)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("settings", [{"clip_grad_norm": 0.5, "ema": 0.9}, {"accumulate": 2}])
def test_training_steps(settings, compiled) -> None:
    a, b = network(), network()
    b.load_state_dict(a.state_dict())
    shared, each, rng, count = step(a, "shared", **settings), step(b, "each", **settings), default_rng(0), 0
    for n in (6, 9, 3, 40):
        if n == 3:
            with pytest.raises(es.NonFiniteError):
                shared(np.full((40, 1, 8, 8), np.nan, "f"), np.zeros(40, np.int64))
        x, t = rng.normal(size=(n, 1, 8, 8)).astype("f"), rng.integers(0, 5, n)
        before = len(compiled)
        loss = shared(x, t)
        count += len(compiled) - before
        assert loss == pytest.approx(each(x, t), rel=2e-4, abs=1e-5)
    assert count <= (4 if settings.get("accumulate") else 2)
    after = b.state_dict()
    for name, value in a.state_dict().items():
        np.testing.assert_allclose(value, after[name], rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.slow
def test_members_of_a_fusion_by_channels_leave_out_images(monkeypatch) -> None:
    """Batch norm is fused channel by channel, where images are no rows of the fusion."""
    programs, compile_graph = [], executable.compile_graph

    def keep(*args, **kwargs):
        programs.append(compile_graph(*args, **kwargs))
        return programs[-1]

    monkeypatch.setattr(executable, "compile_graph", keep)

    def layers():
        return nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(144, 5)
        )

    a, b = layers(), layers()  # smooth: rounding decides which side of 0 a value of 1e-6 has
    b.load_state_dict(a.state_dict())
    shared, each, rng = (*(es.TrainStep(m, F.cross_entropy, es.optim.SGD(lr=0.1), sizes=s)
                           for m, s in ((a, "shared"), (b, "each"))), default_rng(0))  # fmt: skip
    for n in (3, 12, 17, 2):
        x, t = rng.normal(size=(n, 3, 8, 8)).astype("f"), rng.integers(0, 5, n)
        assert shared(x, t) == pytest.approx(each(x, t), rel=1e-4)
    after = b.state_dict()
    for name, value in a.state_dict().items():
        np.testing.assert_allclose(value, after[name], rtol=2e-3, atol=2e-5, err_msg=name)
    largest = max(programs, key=lambda p: p.inputs[0].shape)
    fusions = [c.kernel for _, c, _ in largest.plan.kernel_calls() if isinstance(c.kernel, Rows)]
    assert any(isinstance(m.kernel, LimitedKernel) for rows in fusions for m in rows.members)


def small_network(*layers):
    network = nn.Sequential(*layers)
    network.eval()
    return network


NETWORKS = {
    "elementwise": (lambda x: F.gelu(x) * 2, (48,)),
    "rows": (lambda x: F.softmax(x, 1), (32,)),
    "products": (small_network(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16)), (32,)),
    "padded windows": (lambda x: F.max_pool2d(x, 3, stride=2, padding=1, ceil_mode=True), (3, 7, 8)),
    "padded windows of short rows": (lambda x: F.max_pool1d(x, 3, stride=1, padding=1), (1, 5)),
    "convolution": (small_network(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)), (2, 8, 8)),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", NETWORKS)
def test_arrays_are_read_and_written_within_their_size(case, monkeypatch) -> None:
    """Beyond an array lies a page that cannot be touched."""
    network, shape = NETWORKS[case]
    shared, each = (es.jit(network, sizes=sizes) for sizes in ("shared", "each"))
    guards = []

    def guarded(shape, dtype, nbytes):
        guards.append(Guarded(nbytes, on_line=False))
        array = guards[-1].bytes.view(dtype).reshape(shape)
        return array, array.ctypes.data

    monkeypatch.setattr(buffers, "recycle", guarded)
    for n in (3, 40, 37, 4, 16, 17, 2):
        x, at = guarded((n, *shape), np.dtype("f"), 4 * n * int(np.prod(shape)))
        x[...] = default_rng(n).normal(size=x.shape)
        np.testing.assert_allclose(shared(x), each(x), rtol=1e-5, atol=1e-6)
        for guard in guards:
            guard.check("an array")


@pytest.mark.parametrize("level", ["", "1"])
def test_kernels_leave_out_rows(level, monkeypatch) -> None:
    """Checked runs compare all rows of results, and compute them therefore."""
    monkeypatch.setenv("EINSMITH_CHECK", level)
    programs, compile_graph = [], executable.compile_graph

    def keep(*args, **kwargs):
        programs.append(compile_graph(*args, **kwargs))
        return programs[-1]

    monkeypatch.setattr(executable, "compile_graph", keep)
    f = es.jit(lambda x, w: F.relu(x @ w), sizes="shared")
    for n in SIZES[:2]:
        f(np.ones((n, 8), "f"), np.ones((8, 3), "f"))
    kernels = [c.kernel for _, c, _ in programs[-1].plan.kernel_calls()]
    assert {isinstance(k, LimitedKernel) for k in kernels} == {not level}
