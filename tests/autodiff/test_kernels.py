"""What differentiation adds to a program, counted in kernels."""

import numpy as np

import einsmith as es


def kernels(f, *args):
    """The kernels of a transformed or jitted function's program."""
    jitted = f if hasattr(f, "_cache") else f._jitted
    jitted(*args)
    ((run, _),) = jitted._cache.values()
    return run.plan.calls


def test_the_gradient_of_cross_entropy_is_two_kernels_more():
    """(p - onehot)/B from the row maximum and the row sum that the loss has made already; no position of a maximum."""
    rng = np.random.default_rng()
    x, y = rng.standard_normal((17, 10)).astype(np.float32), rng.integers(0, 10, 17)
    forward = kernels(es.jit(es.functional.cross_entropy), x, y)
    both = kernels(es.value_and_grad(es.functional.cross_entropy), x, y)
    assert len(both) - len(forward) <= 2
    combiners = [getattr(c.kernel.root.parts[0].body, "combiner", None) for c in both]
    assert "max" in combiners and "argmax" not in combiners
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(17), y] -= 1
    np.testing.assert_allclose(es.grad(es.functional.cross_entropy)(x, y), p / 17, rtol=1e-4, atol=1e-6)


def test_the_gradients_of_a_product_are_plain_products():
    a, b = np.ones((5, 7), np.float32), np.ones((7, 3), np.float32)
    calls = kernels(es.grad(lambda a, b, g: ((a @ b) * g).sum(), (0, 1)), a, b, np.ones((5, 3), np.float32))
    assert len(calls) == 2 and all(len(c.nodes) == 1 for c in calls)
