"""Nested row blocks: a block of rows runs in sweeps over another axis; a batch of matrices runs matrix by matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.kernels import autoconfig
from einsmith.kernels.rows import rows_cost
from einsmith.kernels.rows.rows_pattern import RowBlocks
from einsmith.schedule import row_blocks, row_nests
from einsmith.schedule.kernel import Rows
from einsmith.schedule.shared_rows import share
from einsmith.tuning.calibration import calibrate
from tests.fuzz.case import Case, Input
from tests.fuzz.check import agree
from tests.fuzz.trial import Check, run_check
from tests.fuzz.variants import STREAMED, streaming
from tests.kernels.runner import check
from tests.kernels.test_rows import compiled
from tests.schedule.test_reduction_chains import CHAINS, arguments, compile_with

HEADS = "o[h,i,v] = sum[j](exp(-sum[d]((x[h,i,d]-y[h,j,d])**2)*0.5) * b[h,j,v])"


def attention(x, y, b):
    """Return causal attention of a batch of heads."""
    return F.scaled_dot_product_attention(x, y, b, is_causal=True)


def gradients_of(f):
    """Return the gradients of the sum of squares of f's result by all arguments."""
    return es.grad(lambda *args: (f(*args) ** 2).sum(), (0, 1, 2))


def flexible(score=None, mask=None):
    """Return attention of a batch of heads, [heads, steps, width] each, whose scores are changed by functions of the
    indices."""

    def f(x, y, b):
        q, k, v = (t.reshape(1, *t.shape) for t in (x, y, b))
        out = F.flex_attention(q, k, v, score, mask)
        return out.reshape(*out.shape[1:])

    return f


def in_documents(x, y, b):
    """Return attention within documents, whose numbers are an array that the program computes."""
    documents = F.cumsum((y[0, :, 0] > 1).astype("int32"), 0)
    return flexible(mask=lambda b, h, i, j: documents[i % y.shape[1]] == documents[j])(x, y, b)


MASKED = {
    "window": flexible(mask=lambda b, h, i, j: (j <= i) & (i - j < 25)),
    "documents": in_documents,
    "prefix": flexible(mask=lambda b, h, i, j: (j <= i) | (j < 5)),
    "nothing": flexible(mask=lambda b, h, i, j: j < 0),
    "soft cap": flexible(lambda s, b, h, i, j: es.tanh(s / 3) * 3, lambda b, h, i, j: j <= i),
    "distances": flexible(lambda s, b, h, i, j: s + (j - i) * 0.1),
}


def grouped(x, y, b):
    """Return causal attention of groups of three heads that share a key and a value."""
    q = x.reshape(x.shape[0] // 3, 3, *x.shape[1:]) if x.shape[0] % 3 == 0 else x.reshape(1, *x.shape)
    out = F.scaled_dot_product_attention(
        q, y[: q.shape[0]].reshape(q.shape[0], 1, *y.shape[1:]), b[: q.shape[0]].reshape(q.shape[0], 1, *b.shape[1:]),
        is_causal=x.shape[1] <= y.shape[1], enable_gqa=True,
    )  # fmt: skip
    return out.reshape(x.shape[0], *out.shape[-2:])


def self_attention(x, y, b):
    """Return causal attention within x of [heads, steps, width]; query, key and value are slices of one tensor."""
    t = F.cat([x, 2 * x, x - 1], -1)
    q, k, v = (t[..., n * x.shape[-1] : (n + 1) * x.shape[-1]] for n in range(3))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True) + 0 * y.sum() + 0 * b.sum()


def biased(x, y, b):
    """Return attention whose scores have a bias by distance, taken from y."""
    bias = es.compute((*x.shape[:2], y.shape[1]), lambda h, i, j: y[h, (i + j) % y.shape[1], 0])
    return F.scaled_dot_product_attention(x, y, b, bias)


FORMULA = """S[h,i,j] = where(j <= i, sum[d](x[h,i,d]*y[h,j,d]), -inf)
E[h,i,j] = exp(S[h,i,j] - max[k](S[h,i,k]))
o[h,i,v] = sum[j](E[h,i,j]*b[h,j,v])/sum[j](E[h,i,j])"""
"""Attention whose gradient takes the position of the maximum, too."""
BATCHED = {
    **MASKED,
    "formula": es.op(FORMULA),
    "formula's gradients": gradients_of(es.op(FORMULA)),
    "grouped heads": grouped,
    "slices of one tensor": self_attention,
    "bias": biased,
    **{f"{name}'s gradients": gradients_of(f) for name, f in MASKED.items() if name not in ("prefix", "distances")},
    "grouped heads' gradients": gradients_of(grouped),
    "slices' gradients": gradients_of(self_attention),
    "bias's gradients": gradients_of(biased),
    "gaussian": es.op(HEADS),
    "attention": attention,
    "gaussian's gradients": gradients_of(es.op(HEADS)),
    "attention's gradients": gradients_of(attention),
}


@pytest.fixture(params=STREAMED)
def nested(request, monkeypatch, tmp_path) -> Iterator[int]:
    """Row blocks cost nothing, are as small as given, and nest wherever they can, some with turned local buffers.
    Yields the number of the kind of blocks."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    with streaming(request.param):
        yield list(STREAMED).index(request.param)


def pair(*numbers: int) -> int:
    """Return 1 or 2 threads, so that a test that gives the numbers of its parameters has both with every other one."""
    return 1 + sum(numbers) % 2


def depth(kernel, target) -> int:
    """Return how many row blocks lie inside each other in the chosen configuration of a kernel."""
    if not isinstance(kernel, Rows):
        return 0
    config = autoconfig.choose(kernel, target).config
    inner = rows_cost.kernels_of(kernel, config)
    return 1 + max(depth(x.kernel, rows_cost.one_core(target)) for x in inner)


@pytest.mark.thinned(12)
@pytest.mark.parametrize("sizes", [(37, 43, 2, 1), (33, 40, 7, 3)])
@pytest.mark.parametrize("name", CHAINS)
def test_sweeps_over_columns_agree_with_the_evaluator(name: str, sizes, rng, nested) -> None:
    args, threads = arguments(rng, *sizes), pair(list(CHAINS).index(name), nested, sizes[0] == 37)
    run = compile_with(CHAINS[name], args, threads, 1)
    agree(run(args)[1], run.graph, args, f"{name}, {threads} threads")


@pytest.mark.thinned(15)
@pytest.mark.parametrize(
    "sizes",
    [
        (11, 37, 43, 2, 1),
        pytest.param((3, 40, 41, 5, 5), marks=pytest.mark.slow),
        pytest.param((8, 33, 32, 7, 3), marks=pytest.mark.slow),
        pytest.param((1, 35, 35, 4, 4), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", BATCHED)
def test_batches_agree_with_the_evaluator(name: str, sizes, rng, nested) -> None:
    heads, rows, columns, d, v = sizes
    args = [rng.standard_normal((heads, *s), np.float32) for s in ((rows, d), (columns, d), (columns, v))]
    run = compile_with(BATCHED[name], args, pair(list(BATCHED).index(name), nested), 1)
    results = run(args)[1]
    agree(results, run.graph, args, f"{name}, {run.threads} threads")
    for a, b in zip(results, run(args)[1], strict=True):
        np.testing.assert_array_equal(a, b)


def test_heads_nest_their_queries_which_nest_their_keys(rng, nested) -> None:
    """The innermost tiles have a block of queries and a block of keys."""
    args = [rng.standard_normal((16, 50, 4), np.float32) for _ in range(3)]
    run = compile_with(BATCHED["attention"], args, 1, 1)
    assert max(depth(call.kernel, run.target) for call in run.plan.calls) == 3


def row_blocks_in(kernel, target, picks=lambda config: True) -> Iterator[Rows]:
    """Yield the row blocks of a kernel, and those inside of them in the configurations that `picks` accepts."""
    if not isinstance(kernel, Rows):
        return
    yield kernel
    for config in filter(picks, rows_cost.configs(kernel, target)):
        rows = share(kernel) if config.share else kernel
        for x in rows_cost.kernels_of(rows, config):
            yield from row_blocks_in(x.kernel, rows_cost.one_core(target), picks)


MASKS = ["attention", "window", "documents", "soft cap"]


@pytest.mark.thinned(12)
@pytest.mark.parametrize("name", [*MASKS, "grouped heads", *(f"{name}'s gradients" for name in MASKS)])
def test_masks_skip_tiles(name: str, rng, nested) -> None:
    """The sweeps over keys know the condition of the mask."""
    args = [rng.standard_normal((6, 50, 4), np.float32) for _ in range(3)]
    run = compile_with(BATCHED[name], args, 1, 1 << 16)
    assert any(k.active is not None for call in run.plan.calls for k in row_blocks_in(call.kernel, run.target))


def test_tiles_are_chosen_by_the_dimensions_of_what_is_read(rng) -> None:
    """A derivative is that of the term at the position of a maximum. In sweeps over keys the rows, of heads and
    queries, are one axis, and the positions have two."""
    score = es.op("M[h,i] = max[j](where((i + j) % 2 == 0, 0.5*min[d](x[h,i,d] + y[d,h,j]), -1e9))")
    x, dx = (rng.standard_normal((2, 37, 2), np.float32) for _ in range(2))
    y = rng.standard_normal((2, 2, 65), np.float32)
    blocks = {
        37: rows_cost.RowsConfig(16, 1, nested=17, turned=True),
        65: rows_cost.RowsConfig(5, 8, nested=17, turned=True),
        32: rows_cost.RowsConfig(17, 1),
    }

    class Chooser:
        @staticmethod
        def choose(kernel, target):
            choice = autoconfig.choose(kernel, target)
            config = blocks.get(kernel.rows) if isinstance(kernel, Rows) else None
            return replace(choice, pattern=pattern, config=config) if config else choice

    pattern = RowBlocks(Chooser)  # type: ignore[arg-type]
    with streaming("16"):
        run = compile_with(lambda x, dx: es.jvp(lambda x: score(x, y), (x,), (dx,))[1], [x, dx], 1, 1)
        (kernel,) = (call.kernel for call in run.plan.calls if isinstance(call.kernel, Rows))
        assert (kernel.rows, len(kernel.members)) == (2, 4)
        check(pattern, kernel, rng, configs=[rows_cost.RowsConfig(2, 0, nested=17, turned=True)], native=True)


MASKS = {"window": "abs(i - j) <= 5", "below": "j <= i - 3", "above": "j - i >= 9", "none": "j >= 0"}
"""Conditions on the keys that a query sees. Of 65 queries, some or none see none of 37 keys."""


@pytest.mark.thinned(32)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("special", [0.0, -np.inf, np.inf, np.nan])
@pytest.mark.parametrize("mask", MASKS)
def test_rows_that_a_mask_excludes_whole(mask: str, special: float, dtype, rng, nested) -> None:
    """Every term exp(-inf - -inf) is no number: their sums are none, though all blocks of them could be skipped."""
    formula = f"""s[i,j] = where({MASKS[mask]}, sum[d](x[i,d]*y[j,d]) + c[i] + b[j,0], -inf)
    m[i] = max[j](s[i,j])
    l[i] = sum[j](exp(s[i,j] - m[i]))
    k[i] = m[i] + log(l[i])
    o[i] = sum[j](exp(s[i,j] - m[i])*b[j,1])
    g[i] = where(m[i] == -inf, 0, m[i])
    t[i] = sum[j](exp(s[i,j] - g[i]))
    z[i] = sum[j](where({MASKS[mask]}, exp(s[i,j] - m[i]), 0))
    return """
    x, y, b, c = (rng.standard_normal(s).astype(dtype) for s in ((65, 3), (37, 3), (37, 2), (65,)))
    b[17, 0], c[20:23] = special, special
    for threads, results in ((1, "l"), (3, "k, o"), (1, "t"), (3, "z")):
        f = es.op(formula + results, inputs=("x", "y", "b", "c"))
        run = compile_with(f, [x, y, b, c], threads, 1)
        kernels = [k for call in run.plan.calls for k in row_blocks_in(call.kernel, run.target)]
        assert mask == "none" or any(k.active is not None for k in kernels)
        agree(run([x, y, b, c])[1], run.graph, [x, y, b, c], f"{results}, {threads} threads")


def members_of(run, picks=lambda config: True) -> list:
    """Return the members of all row blocks of a program (`row_blocks_in`)."""
    return [m for call in run.plan.calls for k in row_blocks_in(call.kernel, run.target, picks) for m in k.members]


@pytest.mark.parametrize("combiner", ["argmax", "argmin"])
def test_positions_are_found_tile_by_tile(combiner: str, rng, nested) -> None:
    """The first of equal values wins, and the first that is no number; a row without any value has position 0."""
    x, y = (rng.integers(-1, 2, (n, 3)).astype(np.float32) for n in (45, 70))
    y[[31, 66], 0] = np.nan
    x[5] = np.nan
    worst = "-inf" if combiner == "argmax" else "inf"
    f = es.op(f"""s[i,j] = sum[d](x[i,d]*y[j,d])
    o[i] = 2*{combiner}[j](where(i % 7 < 5 and j != 31, s[i,j], {worst})) + 1""")
    run = compile_with(f, [x, y], 1, 1)
    assert any(map(row_blocks.finds_position, members_of(run)))
    agree(run([x, y])[1], run.graph, [x, y], combiner)


SOFTMAX = """s[i,j] = sum[d](x[i,d]*y[j,d]) + b[j,0]
m[i] = max[j](s[i,j])
o[i] = sum[j](exp(s[i,j] - m[i])*b[j,1])/sum[j](exp(s[i,j] - m[i]))"""
SOFTMIN = """s[i,j] = sum[d](x[i,d]*y[j,d]) + b[j,0]
m[i] = min[j](s[i,j])
l[i] = log(sum[j](exp(m[i] - s[i,j]))) - m[i]"""
MASKED_SUMS = """s[i,j] = where(j % 5 != i % 3, sum[d](x[i,d]*y[j,d]) + b[j,0], -inf)
m[i] = max[j](s[i,j])
l[i] = sum[j](where(j < 60, exp(s[i,j] - m[i]), 0)) + sum[j](2*exp(s[i,j] - m[i])*b[j,1])"""
VARIANCE = """s[i,j] = sum[d]((x[i,d]-y[j,d])**2) + 100 + b[j,0]
m[i] = sum[j](s[i,j])/90
v[i] = sum[j]((s[i,j] - m[i])**2)/89
return m, v"""
VARIANCES = (
    VARIANCE.replace("100", "0")
    .replace("/90", "*0.011111111111")
    .replace(
        "return m, v",
        """
u[i] = sum[j]((m[i] - s[i,j])**2)/90*b[0,1]
p[i] = max[j](s[i,j])
return u, v, p""",
    )
)
ONLINE = {"variance": VARIANCE, "variances": VARIANCES, "softmax": SOFTMAX, "softmin": SOFTMIN, "masked": MASKED_SUMS}


def running_sums(run) -> int:
    """Return how many sums follow a running result in the row blocks of a program, whose tiles are not made again."""
    return sum(m.follows is not None for m in members_of(run, lambda c: not c.again))


@pytest.mark.thinned(10)
@pytest.mark.parametrize("order", ["ascending", "descending", "any"])
@pytest.mark.parametrize("name", ONLINE)
def test_sums_follow_a_running_maximum(name: str, order: str, rng, nested) -> None:
    """Whatever the order of the tiles: a maximum of an early or a late one, tiles in which a row has none yet."""
    x, y, b = (rng.standard_normal(s, np.float32) for s in ((37, 3), (90, 3), (90, 2)))
    b[:, 0] = rng.permutation(90) - 45
    if order != "any":
        b[:, 0] = np.sort(b[:, 0])[:: 1 if order == "ascending" else -1]
    if name == "softmax":
        b[rng.random(90) < 0.3, 0] = -np.inf
        b[: 40 if order == "ascending" else 3, 0] = -np.inf
    f = es.op(ONLINE[name])
    threads = pair(list(ONLINE).index(name), nested, ("ascending", "descending", "any").index(order))
    run = compile_with(f, [x, y, b], threads, 1)
    assert running_sums(run), name
    agree(run([x, y, b])[1], run.graph, [x, y, b], f"{name}, {order}, {threads} threads")


WIDER = """s[i,j] = sum[d](x[i,d]*y[j,d])
m[i] = max[j](s[i,j])
o[i] = sum[j](exp(s[i,j] - m[i])*b[j,1])/sum[j](exp(s[i,j] - m[i]))"""


def arguments_of_two_types(rng, rows: int) -> list:
    """Return the arguments of WIDER: scores are of single, weighted sums of double precision."""
    return [*(rng.standard_normal((n, 3), np.float32) for n in (rows, 90)), rng.standard_normal((90, 2))]


def test_a_sum_follows_a_maximum_of_another_type(rng, nested) -> None:
    args = arguments_of_two_types(rng, 37)
    run = compile_with(es.op(WIDER), args, 1, 1)
    assert running_sums(run)
    agree(run(args)[1], run.graph, args, "wider sums")


def test_a_row_without_any_value_is_no_number(rng, nested) -> None:
    """As in the formula, in which the minimum is infinity."""
    x, y, b, c = (rng.standard_normal(s, np.float32) for s in ((37, 3), (90, 3), (90, 2), (37,)))
    c[7] = np.inf
    run = compile_with(es.op(SOFTMIN.replace("b[j,0]", "b[j,0] + c[i]")), [x, y, b, c], 1, 1)
    assert running_sums(run)
    (got,) = run([x, y, b, c])[1]
    assert np.isnan(got[7]) and np.isfinite(np.delete(got, 7)).all()


@pytest.mark.thinned(2)
def test_a_weight_that_is_no_number_stays_in_a_sum(rng, nested) -> None:
    """Its term is 0*NaN where its score is less than the maximum by more than exp can tell."""
    x, y, b = (rng.standard_normal(s, np.float32) for s in ((37, 3), (90, 3), (90, 2)))
    b[3, 1], b[80, 0] = np.nan, 300
    run = compile_with(es.op(SOFTMAX), [x, y, b], 1, 1)
    assert running_sums(run)
    assert np.isnan(run([x, y, b])[1][0]).all()


OTHERWISE = {
    "the weights are needed": """s[i,j] = sum[d](x[i,d]*y[j,d])
    m[i] = max[j](s[i,j])
    e[i,j] = exp(s[i,j] - m[i])
    l[i] = sum[j](e[i,j])
    o[i] = max[j](e[i,j]/l[i]*b[j,0])""",
    "another value": """s[i,j] = sum[d](x[i,d]*y[j,d])
    m[i] = max[j](s[i,j])
    o[i] = sum[j](exp(s[i,j]*0.5 - m[i])*b[j,0])""",
    "a square": """s[i,j] = sum[d](x[i,d]*y[j,d])
    m[i] = max[j](s[i,j])
    o[i] = sum[j](exp(s[i,j] - m[i])**2*b[j,0])""",
    "a difference": """s[i,j] = sum[d](x[i,d]*y[j,d])
    m[i] = max[j](s[i,j])
    o[i] = sum[j]((s[i,j] - m[i])*b[j,0])""",
    "a sum of deviations": """s[i,j] = sum[d](x[i,d]*y[j,d])
    m[i] = sum[j](s[i,j])/90
    o[i] = sum[j]((s[i,j] - m[i])*(s[i,j] - m[i])*b[j,0])""",
    "a sum that is no mean": """s[i,j] = sum[d](x[i,d]*y[j,d])
    m[i] = sum[j](s[i,j])/91
    o[i] = sum[j]((s[i,j] - m[i])**2) + sum[j](b[j,0])""",
    "another mean": """s[i,j] = sum[d](x[i,d]*y[j,d])
    m[i] = sum[j](2*s[i,j])/90
    o[i] = sum[j]((s[i,j] - m[i])**2) + sum[j](b[j,0])""",
    "a maximum": """s[i,j] = sum[d](x[i,d]*y[j,d])
    m[i] = max[j](s[i,j])
    o[i] = max[j](exp(s[i,j] - m[i])*b[j,0])""",
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", OTHERWISE)
def test_other_uses_wait_for_the_maximum(name: str, rng, nested) -> None:
    x, y, b = (rng.standard_normal(s, np.float32) for s in ((37, 3), (90, 3), (90, 2)))
    run = compile_with(es.op(OTHERWISE[name]), [x, y, b], 1, 1)
    assert not running_sums(run)
    agree(run([x, y, b])[1], run.graph, [x, y, b], name)


UNREAD = """s[i,j] = sum[d](x[i,d]*y[j,d])
e[i,j] = exp(min(s[i,j], 2))
o[i,v] = sum[j](e[i,j]*b[j,v])
t[i,j] = sum[v](o[i,v]*b[j,v])
p[i,v] = sum[j](tanh(s[i,j]*t[i,j])*b[j,v])"""
"""Scores and their exponentials are of one kernel; the sweep that computes it again reads the scores only."""
PARTLY_READ = """s[i,j] = sum[d](x[i,d]*y[j,d])
m[i] = max[j](s[i,j])
e[i,j] = exp(s[i,j] - m[i])*sum[d](abs(y[j,d] - x[i,d]))
l[i] = sum[j](e[i,j])
w[i,v] = sum[k](tanh(e[i,k+20]*b[k,v]))
return l, w"""
"""Weights of which a kernel reads some outside of any sweep, so that they wait for the maximum."""
AGAIN = {
    "unread result": es.op(UNREAD),
    "gradients": gradients_of(es.op(UNREAD)),
    "partly read result": es.op(PARTLY_READ, {"k": 50}, inputs=("x", "y", "b")),
}


@pytest.mark.parametrize("name", AGAIN)
def test_sweeps_that_compute_tiles_again(name: str, rng, nested, monkeypatch) -> None:
    configs, forced = rows_cost.configs, []

    def again(rows, target):
        every = configs(rows, target)
        some = [c for c in every if c.again]
        forced.extend(some)
        return some or every

    args = [rng.standard_normal(s, np.float32) for s in ((37, 3), (90, 3), (90, 2))]
    with monkeypatch.context() as m:  # ends before `nested` does
        m.setattr(rows_cost, "configs", again)
        run = compile_with(AGAIN[name], args, 1, 1)
        assert forced
        agree(run(args)[1], run.graph, args, name)


@pytest.mark.thinned(2)
def test_a_running_maximum_may_lie_anywhere(rng, nested) -> None:
    """It is a result of the program, of which a block of rows is no contiguous part."""
    x, y, b = (rng.standard_normal((2, n, 8, 3), np.float32) for n in (37, 90, 90))
    scores = es.op("s[a,h,i,j] = where(j <= i + 50, sum[d](x[a,i,h,d]*y[a,j,h,d]), -inf)")
    largest = es.op("m[a,h,i] = max[j](s[a,h,i,j])")
    exponentials = es.op("e[a,h,i,j] = exp(s[a,h,i,j] - m[a,h,i])")
    averages = es.op("o[a,h,i,v] = sum[j](e[a,h,i,j]*b[a,j,h,v])/sum[j](e[a,h,i,j])")

    def f(x, y, b):
        s = scores(x, y)
        m = largest(s)
        return averages(exponentials(s, m), b), m

    run = compile_with(f, [x, y, b], 2, 1)
    assert running_sums(run)
    agree(run([x, y, b])[1], run.graph, [x, y, b], "results")


@pytest.mark.parametrize("combiner", ["argmax", "argmin"])
@pytest.mark.parametrize("nested", ["3"], indirect=True)
def test_positions_are_found_row_by_row(combiner: str, rng, nested, monkeypatch) -> None:
    """A block of a single row, inside of which the nest sweeps over another axis, has one position only."""
    configs, single = rows_cost.configs, []

    def one_column(rows, target):
        every = configs(rows, target)
        if rows.rows != 37:
            return every
        ones = [c for c in every if c.nested and c.block == 1]
        single.extend(ones if any(map(row_blocks.finds_position, rows.members)) else [])
        return ones or [every[0]._replace(block=1, nested=0)]

    x, y, b = (rng.standard_normal(s, np.float32) for s in ((48, 3), (37, 3), (37, 3)))
    f = es.op(f"""s[i,j] = sum[d](x[i,d]*y[j,d])
    o[i] = {combiner}[j](s[i,j])
    p[i,v] = sum[j](tanh(s[i,j])*b[j,v])
    return o, p""")
    with monkeypatch.context() as m:  # ends before `nested` does
        m.setattr(row_nests, "MIN_SWEEP_ROWS", 8)
        m.setattr(rows_cost, "REUSING_BLOCKS", (16,))
        m.setattr(rows_cost, "configs", one_column)
        run = compile_with(f, [x, y, b], 1, 1)
        assert single
        agree(run([x, y, b])[1], run.graph, [x, y, b], combiner)


@pytest.mark.parametrize("mask", ["j > i", "j <= i"])
def test_tasks_merge_sums_behind_a_maximum_that_lies_in_another_order(mask):
    text = f"""
        S[h,i,j] = -0.3 * sum[d](x[h,i,d] * y[j,d])
        C[h,j,v] = sum[i](exp(min(2, where({mask}, S[h,i,j], -inf))) * u[i,v])
        T[v,j,h] = C[h,j,v]
        M[h,i] = max[j](where({mask}, S[h,i,j], -inf))
        L[h,i] = sum[j](exp(where({mask}, S[h,i,j], -inf) - M[h,i]))
        P[h,i,w] = sum[j](exp(where({mask}, S[h,i,j], -inf) - M[h,i]) * b[j,w])
        Q[h,i,w] = sum[j](exp(where({mask}, S[h,i,j], -inf) - M[h,i]) * c[j,w])
        return T, L, P, Q
    """
    shapes = {"x": (3, 37, 3), "y": (37, 3), "u": (37, 16), "b": (37, 3), "c": (37, 3)}
    case = Case(text, {}, {n: Input(shape, "float32") for n, shape in shapes.items()}, {}, exact=False, seed=0, axes={})
    run_check(case, Check("value", threads=2, target="avx2", streamed="16"))


@pytest.fixture
def shared_out(monkeypatch, tmp_path) -> Iterator[list]:
    """Few rows are one block, whose sweeps the cores share out; yields the kernels of sweeps in several tasks."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    with streaming("16"), monkeypatch.context() as m:
        configs, sweeps = rows_cost.configs, []

        def in_one_block(rows, target):
            every = configs(rows, target)
            whole = [c for c in every if c.nested and c.block == rows.rows and not c.tasks]
            split = [c for c in every if c.tasks > 1]
            if not whole and split:
                sweeps.append(rows)
            return whole or split or every

        m.setattr(rows_cost, "configs", in_one_block)
        yield sweeps


def compile_for_four(f, args):
    """Return the program for four cores, of which each would have fewer than four rows."""
    return compiled(f, args, 4, replace(calibrate.target(4), l3=1, cores=4))[0]


FEW = {
    **{name: f for name, f in CHAINS.items() if name not in ("gaussian", "laplacian", "gaussian's second gradient")},
    **{name: es.op(text) for name, text in ONLINE.items() if "variance" not in name},  # means take one task
    "positions": es.op("s[i,j] = sum[d](x[i,d]*y[j,d])\no[i,v] = argmax[j](s[i,j] + b[j,v])"),
}


@pytest.mark.thinned(10)
@pytest.mark.parametrize("columns", [90, 69])
@pytest.mark.parametrize("name", FEW)
def test_cores_share_out_the_columns_of_few_rows(name: str, columns: int, rng, shared_out) -> None:
    """Each task has results of its own, which are merged in order."""
    args = arguments(rng, 11, columns, 3, 2)
    run = compile_for_four(FEW[name], args)
    results = run(args)[1]
    assert shared_out
    agree(results, run.graph, args, name)
    for a, b in zip(results, run(args)[1], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("combiner", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_tasks_find_the_first_position(combiner: str, dtype, rng, shared_out) -> None:
    """The first of equal values wins, and the first that is no number, whichever task has it."""
    x, y = (rng.integers(-1, 2, (n, 3)).astype(dtype) for n in (11, 90))
    f = es.op(f"s[i,j] = sum[d](x[i,d]*y[j,d])\no[i] = 2*{combiner}[j](s[i,j]) + 1")
    for case in range(4):
        if dtype == np.float32 and case:
            y[rng.choice(90, 3), 0] = np.nan
            x[case] = np.nan
        run = compile_for_four(f, [x, y])
        agree(run([x, y])[1], run.graph, [x, y], combiner)
    assert any(row_blocks.finds_position(m) for rows in shared_out for m in rows.members)


def test_tasks_sum_in_another_type_than_the_maximum(rng, shared_out) -> None:
    args = arguments_of_two_types(rng, 11)
    run = compile_for_four(es.op(WIDER), args)
    assert any(m.follows is not None for rows in shared_out for m in rows.members)
    agree(run(args)[1], run.graph, args, "wider sums")


def test_tasks_without_any_value_count_for_nothing(rng, shared_out) -> None:
    """A row of one value, so that the maximum of most tasks is the identity; and one without any, as in the formula."""
    x, y, b, c = (rng.standard_normal(s, np.float32) for s in ((11, 3), (90, 3), (90, 2), (11,)))
    f = es.op(ONLINE["softmax"].replace("+ b[j,0]", "+ where(i < 9 or j == 41, c[i], -inf)"))
    c[2] = -np.inf
    args = [x, y, b, c] if f.inputs == ("x", "y", "b", "c") else [x, y, c, b]
    run = compile_for_four(f, args)
    assert any(m.follows is not None for rows in shared_out for m in rows.members)
    (got,) = run(args)[1]
    assert np.isnan(got[2])
    np.testing.assert_allclose(got[9], b[41, 1], rtol=1e-6)
    want = es.interpret(f)(*args)
    np.testing.assert_allclose(np.delete(got, 2), np.delete(want, 2), rtol=1e-4)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "term",
    [
        "exp(s[i,j] - m[i])",
        "exp(s[i,j] - where(m[i] == -inf, 0, m[i]))",
        "where(i != 2 and j < 80, exp(s[i,j] - m[i]), 0)",
    ],
)
def test_tasks_that_all_have_no_value(term: str, rng, shared_out) -> None:
    """The sum of a row of minus infinities is no number, or 0 where the formula guards it, and so are merged ones."""
    x, y, c = (rng.standard_normal(s, np.float32) for s in ((11, 3), (90, 3), (11,)))
    f = es.op(f"""s[i,j] = sum[d](x[i,d]*y[j,d]) + c[i]
    m[i] = max[j](s[i,j])
    l[i] = sum[j]({term})
    return l""")
    c[2] = -np.inf
    run = compile_for_four(f, [x, y, c])
    assert shared_out
    agree(run([x, y, c])[1], run.graph, [x, y, c], term)
