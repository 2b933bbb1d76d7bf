"""The operators in JAX: by name, the formulations among which the fastest is chosen. Inputs as in `problems`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.problem import Workload


def capsule_conv(a, w, stride):
    """Windows stacked from slices, then one matrix product: the fastest here of gather + einsum, convolution, and a
    sum of products, at both strides."""
    b, c, h, _, i, m = a.shape
    k, _, r, s, _, j = w.shape
    n = (h - r) // stride + 1
    end = stride * (n - 1) + 1
    x = a.transpose(0, 2, 3, 4, 1, 5)
    x = jnp.stack([x[:, y : y + end : stride, z : z + end : stride] for y in range(r) for z in range(s)], 4)
    f = w.transpose(2, 3, 1, 4, 0, 5).reshape(r * s * c * m, k * j)
    y = x.reshape(b * n * n * i, r * s * c * m) @ f
    return y.reshape(b, n, n, i, k, j).transpose(0, 4, 1, 2, 3, 5)


def _sums_of_squares(x, y):
    """|x_i|^2 + |y_j|^2 of all rows."""
    return (x * x).sum(1)[:, None] + (y * y).sum(1)


def gaussian_kernel_product(x, y, b):
    """The expanded square, by one matrix product."""
    squares = _sums_of_squares(x, y)
    return jnp.exp((x @ y.T) - squares / 2) @ b


def gaussian_kernel_differences(x, y, b):
    """The differences themselves, which the compiler may fuse."""
    return jnp.exp(-((x[:, None] - y) ** 2).sum(2) / 2) @ b


def pairwise_product(x, y):
    """The expanded square, by one matrix product."""
    squares = _sums_of_squares(x, y)
    return jnp.sqrt(jnp.maximum(squares - 2 * (x @ y.T), 0) + 1e-6)


def pairwise_differences(x, y):
    """All differences, which the compiler need not store."""
    return jnp.sqrt(((x[:, None] - y) ** 2).sum(2) + 1e-6)


def _gathered(a, b, chosen):
    return jnp.take_along_axis(a, chosen, 1) + jnp.take_along_axis(b, chosen, 0)


def max_plus_steps(a, b):
    """The chosen k by one step for each k over the whole matrix, then two gathers, whose gradients are scatters."""
    left, right = lax.stop_gradient(a), lax.stop_gradient(b)

    def step(k, state):
        best, chosen = state
        c = lax.dynamic_slice_in_dim(left, k, 1, 1) + lax.dynamic_slice_in_dim(right, k, 1, 0)
        return jnp.maximum(best, c), jnp.where(c > best, k, chosen)

    start = (jnp.full((a.shape[0], b.shape[1]), -jnp.inf), jnp.zeros((a.shape[0], b.shape[1]), jnp.int32))
    _, chosen = lax.fori_loop(0, a.shape[1], step, start)
    return _gathered(a, b, chosen)


def max_plus_rows(a, b):
    """The same for eight rows at a time, which stay in the cache over all k."""
    left, right = lax.stop_gradient(a), lax.stop_gradient(b)

    def rows(block):
        def step(state, k_and_b):
            best, chosen = state
            k, row, column = k_and_b
            c = column[:, None] + row
            return (jnp.maximum(best, c), jnp.where(c > best, k, chosen)), None

        start = (jnp.full((8, b.shape[1]), -jnp.inf), jnp.zeros((8, b.shape[1]), jnp.int32))
        return lax.scan(step, start, (jnp.arange(a.shape[1]), right, block.T))[0][1]

    chosen = lax.map(rows, left.reshape(-1, 8, a.shape[1])).reshape(a.shape[0], b.shape[1])
    return _gathered(a, b, chosen)


def max_plus_argmax(a, b):
    """The chosen k of all sums, then two gathers."""
    return _gathered(a, b, jnp.argmax(lax.stop_gradient(a)[:, :, None] + lax.stop_gradient(b), 1))


def max_plus_whole(a, b):
    """The maximum of all sums."""
    return (a[:, :, None] + b).max(1)


def _band(n):
    block, i, j = np.arange(n)[:, None, None], np.arange(64)[:, None], np.arange(192)
    key = 64 * block + j - 64
    return (i <= j) & (j <= i + 128) & (0 <= key) & (key < 64 * n)


def _three_blocks(k):
    h, t, d = k.shape
    k = jnp.pad(k, ((0, 0), (64, 64), (0, 0))).reshape(h, t // 64 + 2, 64, d)
    return jnp.concatenate([k[:, :-2], k[:, 1:-1], k[:, 2:]], 2)


def local_attention_blocks(q, k, v):
    """Blocks of 64 queries against three blocks of keys: two batched products and a masked softmax."""
    h, t, d = q.shape
    scores = jnp.einsum("hnid,hnjd->hnij", q.reshape(h, t // 64, 64, d), _three_blocks(k)) * 0.125
    p = jax.nn.softmax(jnp.where(_band(t // 64), scores, -jnp.inf), -1)
    return jnp.einsum("hnij,hnjd->hnid", p, _three_blocks(v)).reshape(h, t, d)


def _distance(t):
    return np.arange(t) - np.arange(t)[:, None] + t - 1


def relative_bias_gather(q, k, v, r):
    """The bias gathered from its table, then plain attention."""
    bias = r.T[:, _distance(q.shape[2])]
    return jax.nn.softmax(jnp.einsum("bhid,bhjd->bhij", q, k) * 0.125 + bias, -1) @ v


def _skew(x, t):
    """[..., i, j] = x[..., i, j - i + t - 1] by padding and two reshapes."""
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)])
    x = x.reshape(*x.shape[:-2], -1)[..., t - 1 : t - 1 + t * (2 * t - 1)]
    return x.reshape(*x.shape[:-1], t, 2 * t - 1)[..., :t]


def relative_bias_skewed(q, k, v, r):
    """The bias by padding and reshapes of its table repeated for each i: a gradient without a scatter."""
    t = q.shape[2]
    bias = _skew(jnp.broadcast_to(r.T[:, None], (r.shape[1], t, 2 * t - 1)), t)
    return jax.nn.softmax(jnp.einsum("bhid,bhjd->bhij", q, k) * 0.125 + bias, -1) @ v


def relative_keys_skewed(q, k, v, r):
    """The products with all 2T-1 relative keys, then row i moved by i: padding and two reshapes (Music Transformer)."""
    relative = _skew(q @ r.T, q.shape[2])
    return jax.nn.softmax((jnp.einsum("bhid,bhjd->bhij", q, k) + relative) * 0.125, -1) @ v


def relative_keys_table(q, k, v, r):
    """The relative keys gathered to [i, j, d], one product for each i (Shaw et al.)."""
    relative = jnp.einsum("bhid,ijd->bhij", q, r[_distance(q.shape[2])])
    return jax.nn.softmax((jnp.einsum("bhid,bhjd->bhij", q, k) + relative) * 0.125, -1) @ v


def depthwise_taps(x, k):
    """A sum over the 49 taps of shifted images."""
    h, w = x.shape[2:]
    x = jnp.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)))
    taps = [(r, s) for r in range(7) for s in range(7)]
    return sum(x[:, :, r : r + h, s : s + w] * k[:, r, s, None, None] for r, s in taps)


def depthwise_conv(x, k):
    """A grouped convolution with the channels last."""
    y = lax.conv_general_dilated(
        x.transpose(0, 2, 3, 1),
        k.transpose(1, 2, 0)[:, :, None],
        (1, 1),
        [(3, 3), (3, 3)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=k.shape[0],
    )
    return y.transpose(0, 3, 1, 2)


def bilinear_matrix(x, w, y):
    """x against W as a [i, (o, j)] matrix, then the product with y."""
    u = (x @ w.transpose(1, 0, 2).reshape(x.shape[1], -1)).reshape(x.shape[0], w.shape[0], -1)
    return (u * y[:, None, :]).sum(2)


def bilinear_outer(x, w, y):
    """The outer products of x and y against W as an [o, (i, j)] matrix."""
    return (x[:, :, None] * y[:, None, :]).reshape(x.shape[0], -1) @ w.reshape(w.shape[0], -1).T


def involution_taps(x, k):
    """A sum over the 49 taps of shifted images."""
    h, w = x.shape[3:]
    x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (3, 3), (3, 3)))
    taps = [(r, s) for r in range(7) for s in range(7)]
    return sum(x[..., r : r + h, s : s + w] * k[:, :, None, r, s] for r, s in taps)


def involution_stacked(x, k):
    """All windows stacked from slices, then a product and a sum."""
    b, g, _, h, w = x.shape
    x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (3, 3), (3, 3)))
    windows = jnp.stack([x[..., r : r + h, s : s + w] for r in range(7) for s in range(7)], 3)
    return (windows * k.reshape(b, g, 1, 49, h, w)).sum(3)


def tensor_train(x, a, b, c):
    """The library's contraction, in the order that it finds."""
    return jnp.einsum("bijk,imp,pjnq,qko->bmno", x, a, b, c, optimize="optimal")


def running_sum(x):
    return jnp.cumsum(x, 1)


def running_sum_scan(x):
    """The library's parallel scan."""
    return lax.associative_scan(jnp.add, x, axis=1)


def _sampled(x, p, q):
    """Bilinear samples of x[n, c, h, w] at p (down) and q (across), [n, ...]; zero outside: [n, ..., c]."""
    n, _, h, w = x.shape
    batch = jnp.arange(n).reshape((n,) + (1,) * (p.ndim - 1))
    t, left = jnp.floor(p), jnp.floor(q)
    out = 0
    for dy, weight in ((0, 1 - (p - t)), (1, p - t)):
        for dx, other in ((0, 1 - (q - left)), (1, q - left)):
            row, column = t.astype(int) + dy, left.astype(int) + dx
            inside = (0 <= row) & (row < h) & (0 <= column) & (column < w)
            found = x[batch, :, row.clip(0, h - 1), column.clip(0, w - 1)]
            out = out + jnp.where(inside, weight * other, 0)[..., None] * found
    return out


def grid_sample(x, g):
    h, w = x.shape[2:]
    return jnp.moveaxis(_sampled(x, ((g[..., 1] + 1) * h - 1) / 2, ((g[..., 0] + 1) * w - 1) / 2), -1, 1)


def deformable(x, o, w):
    """All taps gathered, then a product."""
    k, (h, wd) = jnp.arange(9), x.shape[2:]
    p = o[:, :, 0] + jnp.arange(h)[:, None] + (k // 3 - 1)[:, None, None]
    q = o[:, :, 1] + jnp.arange(wd) + (k % 3 - 1)[:, None, None]
    return jnp.einsum("mck,nkhwc->nmhw", w, _sampled(x, p, q))


OPERATORS: dict[str, dict[str, Callable]] = {
    "capsule_conv": {"windows and a product": capsule_conv},
    "pairwise": {"product": pairwise_product, "differences": pairwise_differences},
    "max_plus": {
        "a step for each k": max_plus_steps,
        "steps by rows": max_plus_rows,
        "argmax": max_plus_argmax,
        "maximum": max_plus_whole,
    },
    "local_attention": {"blocks": local_attention_blocks},
    "relative_bias": {"gather": relative_bias_gather, "skewed": relative_bias_skewed},
    "relative_keys": {"skewed": relative_keys_skewed, "table": relative_keys_table},
    "depthwise": {"taps": depthwise_taps, "grouped convolution": depthwise_conv},
    "bilinear": {"matrix": bilinear_matrix, "outer": bilinear_outer},
    "gaussian_kernel": {"product": gaussian_kernel_product, "differences": gaussian_kernel_differences},
    "involution": {"taps": involution_taps, "stacked windows": involution_stacked},
    "tensor_train": {"einsum": tensor_train},
    "running_sum": {"library": running_sum, "scan": running_sum_scan},
    "grid_sample": {"gather": grid_sample},
    "deformable": {"gather and a product": deformable},
}


def variants(problem: Workload, peer: str) -> tuple[str, ...]:
    return tuple(OPERATORS.get(problem.network, ()))


class Operator:
    def __init__(self, problem: Workload, arrays: dict[str, np.ndarray], variant: str):
        operator = OPERATORS[problem.network][variant]
        self.inputs, self.g = tuple(jnp.asarray(arrays[n]) for n in problem.inputs), jnp.asarray(arrays["G"])
        self.names = problem.results

        def loss(xs, g):
            return (operator(*xs, **problem.options) * g).sum()

        self._step = jax.jit(jax.value_and_grad(loss))

    def step(self) -> float:
        loss, self.grads = self._step(self.inputs, self.g)
        jax.block_until_ready(self.grads)
        return float(loss)

    def results(self) -> dict[str, np.ndarray]:
        return {n: np.asarray(g) for n, g in zip(self.names, self.grads, strict=True)}


def build(problem: Workload, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Operator:
    return Operator(problem, arrays, variant)
