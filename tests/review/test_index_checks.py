"""Indices are checked before anything reads at them."""

import subprocess
import sys

_GATHER = """
import numpy as np, einsmith as es
g = es.op("Y[b] = X[I[b]]")
h = es.op("Y[b] = X[I[b]] + Z[b]")
x = np.ones(5, np.float32)
big = np.full(7, 2**40, np.int64)
zero = np.zeros(7, np.int64)
f = es.jit(lambda x, a, b: g(x, a + b))
k = es.jit(lambda x, a, b: (h(x, a * b + b, x[0] + es.functional.sum(x) * (a + b)), a * b + b))
two = es.jit(lambda x, i, a, b: g(x, g(i, a + b)))
count = 0
for call in (lambda: f(x, big, big), lambda: k(x, big, big), lambda: two(x, np.full(5, 2**40), zero, zero),
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
