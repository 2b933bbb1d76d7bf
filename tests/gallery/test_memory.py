"""Peak memory of a formula whose forward pass makes a large matrix."""

import numpy as np

import einsmith as es
from tests.programs import program_of


def test_pairwise_distances_need_less_than_three_matrices():
    """4096 x 4096 points in 64 dimensions, forward and backward in one program: what it allocates, results included."""
    n, k = 4096, 64
    distance = es.op("D[i,j] = sqrt(sum[k]((X[i,k]-Y[j,k])*(X[i,k]-Y[j,k])) + 1e-6)")
    step = es.value_and_grad(lambda x, y: distance(x, y).mean(), (0, 1))
    rng = np.random.default_rng()
    x, y = rng.standard_normal((2, n, k)).astype(np.float32)
    value, (dx, dy) = step(x, y)
    run = program_of(step)
    allocated = run.arena.nbytes + value.nbytes + dx.nbytes + dy.nbytes
    assert allocated < 3 * n * n * 4
    rows = rng.integers(0, n, 5)
    for i in rows:
        d = np.sqrt(((x[i].astype(np.float64) - y) ** 2).sum(1) + 1e-6)
        want = ((x[i] - y) / d[:, None]).sum(0) / (n * n)
        np.testing.assert_allclose(dx[i], want, rtol=1e-3, atol=1e-9)
