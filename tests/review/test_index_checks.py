"""Indices are checked before anything reads at them."""

import subprocess
import sys

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Axis, Compute, Graph, Read, apply, leaf, template
from einsmith.passes.analysis.index_checks import index_checks
from einsmith.schedule.planner import fuse

_GATHER = """
import numpy as np, einsmith as es
g = es.op("Y[b] = X[I[b]]")
h = es.op("Y[b] = X[I[b]] + Z[b]")
x = np.ones(5, np.float32)
big = np.full(7, 2**29, np.int64)
zero = np.zeros(7, np.int64)
f = es.jit(lambda x, a, b: g(x, a + b))
k = es.jit(lambda x, a, b: (h(x, a * b + b, x[0] + es.functional.sum(x) * (a + b)), a * b + b))
two = es.jit(lambda x, i, a, b: g(x, g(i, a + b)))
count = 0
for call in (lambda: f(x, big, big), lambda: k(x, big, big), lambda: two(x, np.full(5, 2**29), zero, zero),
             lambda: two(x, np.zeros(5, np.int64), big, big)):
    try:
        call()
    except IndexError:
        count += 1
print(count)
"""


def test_far_out_of_range_indices_are_never_read():
    """An index computed by a kernel that the read could join."""
    done = subprocess.run([sys.executable, "-c", _GATHER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.split() == ["4"]


def test_read_does_not_join_the_kernel_that_computes_its_index():
    x, a, b = leaf((5,), dt.f32), leaf((7,), dt.i64), leaf((7,), dt.i64)
    i = (Axis(0),)
    pair = [(dt.i64, (7,))] * 2
    index = Compute(template((7,), pair, apply("add", Read(0, i, dt.i64), Read(1, i, dt.i64))), (a, b))
    gather = Read(0, (Read(1, i, dt.i64),), dt.f32)
    y = Compute(template((7,), [(dt.f32, (5,)), (dt.i64, (7,))], gather), (x, index))
    plan = fuse(Graph((x, a, b), (y,), (), index_checks([y])))
    ((checked, _, _),) = plan.checks
    (reading,) = [n for n, c in enumerate(plan.calls) if y in c.nodes]
    assert checked < reading


def test_failed_check_leaves_buffers_as_they_are():
    class Lookup(es.nn.Module):
        def __init__(self):
            self.register_buffer("last", np.zeros(4, np.float32))
            self.gather = es.op("Y[b] = X[I[b]]")

        def forward(self, x, i):
            self.last = self.gather(x, i)
            return self.last * 2

    m, x = Lookup(), np.arange(5, dtype=np.float32)
    m(x, np.array([1, 2, 3, 4]))
    with pytest.raises(IndexError):
        m(x, np.array([0, 0, 0, 5]))
    np.testing.assert_array_equal(m.last.data, [1, 2, 3, 4])
