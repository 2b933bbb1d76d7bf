"""Nested row blocks that end at the extents of a run, with what is no number beyond them in all operands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_shapes
from einsmith.base import dtypes as dt
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Axis
from einsmith.kernels.rows import rows_cost
from einsmith.passes.capacity import SizedGraph, size_graph
from einsmith.passes.size_traces import TracedSize
from einsmith.schedule import limited_calls
from einsmith.schedule.kernel import KernelBuffer, Rows, limits_of, row_major
from einsmith.tuning.calibration import calibrate
from tests.fuzz.variants import STREAMED, streaming
from tests.passes.test_capacity import pad
from tests.schedule.test_row_nests import BATCHED, gradients_of, row_blocks_in

CAPACITY, PROBE = 41, 38
SIZES = 1, 2, 7, 16, 17, 33, 40, CAPACITY
n = "n"  # the extent that varies
HEADS = [(6, n, 4)] * 3
OTHER_QUERIES = [(6, 9, 4), (6, n, 4), (6, n, 4)]


def softmax_gradient(x: es.Array, w: es.Array) -> es.Array:
    return es.grad(lambda x, w: (F.softmax(x @ w, -1) ** 2).sum(), (0, 1))(x, w)


def norm(x: es.Array, w: es.Array, b: es.Array) -> es.Array:
    return F.layer_norm(x * 2.0, (5,), w, b)


WINDOW = """s[i,j] = where(abs(i - j) <= 5, sum[d](x[i,d]*y[j,d]) + c[i], -inf)
m[i] = max[j](s[i,j])
l[i] = sum[j](exp(s[i,j] - m[i]))
o[i] = sum[j](exp(s[i,j] - m[i])*b[j,1])
return l, o"""
"""Of 65 queries, some see none of the keys: each of their terms, exp(-inf - -inf), is no number, and so is the sum."""
CASES: dict[str, tuple[Callable, list]] = {
    "queries without a key": (es.op(WINDOW, inputs=("x", "y", "b", "c")), [(65, 3), (n, 3), (n, 2), (65,)]),
    **{name: (BATCHED[name], HEADS) for name in ("attention", "attention's gradients", "window's gradients")},
    "soft cap's gradients": (BATCHED["soft cap's gradients"], HEADS),
    "gaussian's gradients": (BATCHED["gaussian's gradients"], HEADS),
    "slices's gradients": (BATCHED["slices' gradients"], HEADS),
    "grouped heads' gradients": (BATCHED["grouped heads' gradients"], HEADS),
    "formula": (BATCHED["formula"], HEADS),
    "keys": (F.scaled_dot_product_attention, OTHER_QUERIES),
    "gradients by keys": (gradients_of(F.scaled_dot_product_attention), OTHER_QUERIES),
    "heads of a batch": (gradients_of(F.scaled_dot_product_attention), [(2, 3, n, 4)] * 3),
    "softmax": (lambda x: F.softmax(x * 2.0, -1), [(3, 2, n, 8)]),
    "softmax along it": (lambda x: F.softmax(x * 2.0, -1), [(3, 2, 8, n)]),
    "softmax inside of it": (lambda x: F.softmax(x * 2.0, -1), [(3, n, 2, 8)]),
    "softmax of the first": (lambda x: F.softmax(x * 2.0, -1), [(n, 2, 3, 8)]),
    "norm": (norm, [(3, n, 5), (5,), (5,)]),
    "norm's gradients": (gradients_of(norm), [(3, n, 5), (5,), (5,)]),
    "norm's gradients inside of it": (gradients_of(norm), [(3, n, 2, 5), (5,), (5,)]),
    "softmax of a product": (softmax_gradient, [(5, n, 6), (6, n)]),
}


def size_to(capacity: int, f: Callable, shapes: Sequence[tuple]) -> SizedGraph:
    """Return the graph of the capacity."""

    def trace(extent: int) -> TracedSize:
        t = trace_shapes(f, [(tuple(extent if x == n else x for x in s), dt.f32) for s in shapes])
        return TracedSize(t.graph, t.bind)

    return size_graph(trace(capacity), trace(PROBE))


def compile_to(general: SizedGraph, threads: int) -> Executable:
    target = replace(calibrate.target(threads), l3=1)
    return Executable(general.graph, general.capacity.bind, threads, target=target, limits=general.limits)


def check(run: Executable, general: SizedGraph, shapes: Sequence[tuple], end: int, rng: np.random.Generator) -> None:
    """Compare results below the limit with the evaluator's, where what lies beyond it is no number."""
    capacity = general.limits[0].extent
    whole = [tuple(capacity if x == n else x for x in s) for s in shapes]
    arrays = [
        pad(rng.standard_normal(tuple(end if x == n else x for x in s), np.float32), shape)
        for s, shape in zip(shapes, whole, strict=True)
    ]
    inputs = [*arrays, *(np.asarray(end, np.int32) for _ in general.numbers)]
    captured = [general.capacity.bind[x] for x in general.graph.inputs if x in general.capacity.bind]
    with np.errstate(all="ignore"):
        wanted, _ = evaluate(general.graph, [*arrays, *captured, *inputs[len(arrays) :]])
    for k, (a, want) in enumerate(zip(run(inputs)[1], wanted, strict=True)):
        ends = {d for limit in general.limits for m, d in limit.outputs if m == k}
        below = tuple(slice(end if d in ends else x) for d, x in enumerate(want.shape))
        np.testing.assert_allclose(a[below], want[below], rtol=2e-4, atol=2e-4, err_msg=f"result {k} to {end}")


@pytest.mark.thinned(11)
@pytest.mark.parametrize("blocks", [*STREAMED, ""])
@pytest.mark.parametrize("name", CASES)
def test_nests_agree_with_the_evaluator(name: str, blocks: str, rng, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    f, shapes = CASES[name]
    general = size_to(CAPACITY, f, shapes)
    with streaming(blocks):
        run = compile_to(general, 1 + list(CASES).index(name) % 2)
        for end in rng.permutation(SIZES):
            check(run, general, shapes, int(end), rng)


def ends_of(kernel: Rows, target) -> set[str]:
    """Return how the row blocks in a kernel end at limits, in any configuration: as "sweeps", as "members"."""
    out = set()
    for k in row_blocks_in(kernel, target):
        if k is not kernel and k.active is not None and not k.active.block:
            out.add("sweeps")
        if k is not kernel and any(limits_of(m.kernel) for m in k.members):
            out.add("members")
    return out


@pytest.mark.parametrize("name", ["attention", "attention's gradients", "heads of a batch"])
def test_sweeps_and_their_members_end_at_limits(name: str, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    with streaming(list(STREAMED)[0]):
        run = compile_to(size_to(CAPACITY, *CASES[name]), 1)
        kinds = [ends_of(call.kernel, run.target) for call in run.plan.calls]
    assert set().union(*kinds) == {"sweeps", "members"}


def test_configurations_of_a_limit_are_priced_as_of_whole_rows(tmp_path, monkeypatch) -> None:
    """A sweep that ends at a limit is no sweep over tiles of a mask: the capacity is what a price is for."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    with streaming(list(STREAMED)[0]):
        run = compile_to(size_to(CAPACITY, *CASES["heads of a batch"]), 1)
        kernels = [k for call in run.plan.calls for k in row_blocks_in(call.kernel, run.target)]
    limited = [k for k in kernels if k.active is not None and not k.active.block]
    assert limited
    for k in limited:
        plain = replace_active(k)
        assert rows_cost.configs(k, run.target) == rows_cost.configs(plain, run.target)


def replace_active(rows: Rows) -> Rows:
    """Return the row block without its condition."""
    return Rows(rows.rows, rows.members, rows.buffers, rows.local, None, rows.takes_sums)


@pytest.mark.parametrize(
    "name, condition",
    [
        ("softmax", "i0%41 < x[]"),
        ("softmax inside of it", "i0//2%41 < x[]"),
        ("softmax of the first", "i0 < x[]*6"),
        ("norm's gradients inside of it", "i0//2%41 < x[]"),
    ],
)
def test_rows_merged_of_several_dimensions_end_at_limits(name: str, condition: str) -> None:
    """Rows that a result is summed over are left out, too."""
    run = compile_to(size_to(CAPACITY, *CASES[name]), 1)
    kernels = [call.kernel for call in run.plan.calls if isinstance(call.kernel, Rows)]
    assert [re.sub(r"x\d+", "x", str(k.active.condition)) for k in kernels if k.active] == [condition]


@pytest.mark.parametrize(
    "index, shape, stored, dimension, position",
    [
        ((0, 1, 2), (40, 4, 9), (160, 9), 0, "i0*4 + i1"),
        ((0, 1, 2), (40, 4, 9), (160, 9), 1, "i2"),
        ((0, 1, 2), (3, 40, 4), (3, 160), 1, "i1*4 + i2"),
        ((0, 1), (160, 9), (40, 4, 9), 0, None),
        ((0, 1), (160, 9), (160, 9), 1, "i1"),
    ],
)
def test_positions_in_buffers_of_another_shape(index, shape, stored, dimension, position) -> None:
    buffers = [KernelBuffer(dt.f32, s, False, row_major(s)) for s in (shape, stored)]
    at = limited_calls.position_along([Axis(a) for a in index], *buffers, dimension)
    assert (None if at is None else str(at)) == position
