"""The operators in TensorFlow: by name, the formulations among which the fastest is chosen. Inputs as in `problems`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from benchmarks.problem import Workload


def capsule_conv(a, w, stride):
    """One convolution: (b, i) are its batch, (c, m) its input channels, (k, j) its output channels."""
    b, c, h, wd, i, m = a.shape
    k, _, r, s, _, j = w.shape
    x = tf.reshape(tf.transpose(a, (0, 4, 2, 3, 1, 5)), (b * i, h, wd, c * m))
    f = tf.reshape(tf.transpose(w, (2, 3, 1, 4, 0, 5)), (r, s, c * m, k * j))
    y = tf.nn.conv2d(x, f, stride, "VALID")
    return tf.transpose(tf.reshape(y, (b, i, y.shape[1], y.shape[2], k, j)), (0, 4, 2, 3, 1, 5))


def _sums_of_squares(x, y):
    """|x_i|^2 + |y_j|^2 of all rows."""
    return tf.reduce_sum(x * x, 1)[:, None] + tf.reduce_sum(y * y, 1)


def gaussian_kernel(x, y, b):
    """The expanded square, by one matrix product."""
    squares = _sums_of_squares(x, y)
    return tf.exp(tf.matmul(x, y, transpose_b=True) - squares / 2) @ b


def pairwise(x, y):
    """The expanded square, by one matrix product."""
    squares = _sums_of_squares(x, y)
    return tf.sqrt(tf.maximum(squares - 2 * tf.matmul(x, y, transpose_b=True), 0.0) + 1e-6)


def _gathered(a, b, chosen):
    left = tf.gather(a, chosen, axis=1, batch_dims=1)
    right = tf.gather(tf.transpose(b), tf.transpose(chosen), axis=1, batch_dims=1)
    return left + tf.transpose(right)


def max_plus_rows(a, b):
    """The chosen k, eight rows at a time, the largest sum along the last axis; then two gathers, whose gradients are
    scatters of the chosen points alone."""
    left, right = tf.stop_gradient(a), tf.transpose(tf.stop_gradient(b))
    blocks = tf.split(left, a.shape[0] // 8)
    chosen = tf.concat([tf.argmax(x[:, None, :] + right, 2, tf.int32) for x in blocks], 0)
    return _gathered(a, b, chosen)


def max_plus_steps(a, b):
    """The chosen k by one step for each k over the whole matrix, then two gathers."""
    left, right = tf.transpose(tf.stop_gradient(a)), tf.stop_gradient(b)

    def step(k, best, chosen):
        c = left[k][:, None] + right[k]
        return k + 1, tf.maximum(best, c), tf.where(c > best, k, chosen)

    shape = (a.shape[0], b.shape[1])
    start = (tf.constant(0), tf.fill(shape, -np.float32(np.inf)), tf.zeros(shape, tf.int32))
    limit = a.shape[1]
    _, _, chosen = tf.while_loop(lambda k, *_: k < limit, step, start, maximum_iterations=limit)
    return _gathered(a, b, tf.stop_gradient(chosen))


def max_plus_argmax(a, b):
    """The chosen k of all sums, which a compiler need not store, then two gathers."""
    chosen = tf.argmax(tf.stop_gradient(a)[:, :, None] + tf.stop_gradient(b), 1, tf.int32)
    return _gathered(a, b, chosen)


def _band(n):
    block, i, j = np.arange(n)[:, None, None], np.arange(64)[:, None], np.arange(192)
    key = 64 * block + j - 64
    inside = (i <= j) & (j <= i + 128) & (0 <= key) & (key < 64 * n)
    return np.where(inside, np.float32(0), np.float32(-1e30))


def _three_blocks(k):
    h, t, d = k.shape
    k = tf.reshape(tf.pad(k, ((0, 0), (64, 64), (0, 0))), (h, t // 64 + 2, 64, d))
    return tf.concat([k[:, :-2], k[:, 1:-1], k[:, 2:]], 2)


def local_attention_blocks(q, k, v):
    """Blocks of 64 queries against three blocks of keys: two batched products and a masked softmax."""
    h, t, d = q.shape
    scores = tf.matmul(tf.reshape(q, (h, t // 64, 64, d)), _three_blocks(k), transpose_b=True)
    p = tf.nn.softmax(scores * 0.125 + _band(t // 64))
    return tf.reshape(p @ _three_blocks(v), (h, t, d))


def _distance(t):
    return np.arange(t) - np.arange(t)[:, None] + t - 1


def relative_bias_gather(q, k, v, r):
    """The bias gathered from its table, then plain attention."""
    bias = tf.transpose(tf.gather(r, _distance(q.shape[2])), (2, 0, 1))
    return tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * 0.125 + bias) @ v


def _skew(x, t):
    """[..., i, j] = x[..., i, j - i + t - 1] by padding and two reshapes."""
    lead = x.shape[:-2]
    x = tf.reshape(tf.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(0, 1)]), (*lead, -1))
    x = x[..., t - 1 : t - 1 + t * (2 * t - 1)]
    return tf.reshape(x, (*lead, t, 2 * t - 1))[..., :t]


def relative_bias_skewed(q, k, v, r):
    """The bias by padding and reshapes of its table repeated for each i: a gradient without a scatter."""
    t = q.shape[2]
    bias = _skew(tf.repeat(tf.transpose(r)[:, None], t, 1), t)
    return tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * 0.125 + bias) @ v


def relative_keys_skewed(q, k, v, r):
    """The products with all 2T-1 relative keys, then row i moved by i: padding and two reshapes (Music Transformer)."""
    b, h, t, d = q.shape
    product = tf.matmul(tf.reshape(q, (-1, d)), r, transpose_b=True)
    relative = _skew(tf.reshape(product, (b, h, t, 2 * t - 1)), t)
    return tf.nn.softmax((tf.matmul(q, k, transpose_b=True) + relative) * 0.125) @ v


def relative_keys_table(q, k, v, r):
    """The relative keys gathered to [i, j, d], one product for each i (Shaw et al.)."""
    b, h, t, d = q.shape
    rows = tf.reshape(tf.transpose(q, (2, 0, 1, 3)), (t, b * h, d))
    relative = tf.matmul(rows, tf.gather(r, _distance(t)), transpose_b=True)
    relative = tf.transpose(tf.reshape(relative, (t, b, h, t)), (1, 2, 0, 3))
    return tf.nn.softmax((tf.matmul(q, k, transpose_b=True) + relative) * 0.125) @ v


def depthwise_library(x, k):
    """The library's own, which wants the channels last."""
    y = tf.nn.depthwise_conv2d(
        tf.transpose(x, (0, 2, 3, 1)), tf.transpose(k, (1, 2, 0))[..., None], (1, 1, 1, 1), "SAME"
    )
    return tf.transpose(y, (0, 3, 1, 2))


def depthwise_taps(x, k):
    """A sum over the 49 taps of shifted images."""
    h, w = x.shape[2:]
    x = tf.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)))
    taps = [(r, s) for r in range(7) for s in range(7)]
    return tf.add_n([x[:, :, r : r + h, s : s + w] * k[:, r, s, None, None] for r, s in taps])


def bilinear_matrix(x, w, y):
    """x against W as a [i, (o, j)] matrix, then the product with y."""
    u = tf.reshape(x @ tf.reshape(tf.transpose(w, (1, 0, 2)), (x.shape[1], -1)), (x.shape[0], w.shape[0], -1))
    return tf.reduce_sum(u * y[:, None, :], 2)


def bilinear_outer(x, w, y):
    """The outer products of x and y against W as an [o, (i, j)] matrix."""
    outer = tf.reshape(x[:, :, None] * y[:, None, :], (x.shape[0], -1))
    return tf.matmul(outer, tf.reshape(w, (w.shape[0], -1)), transpose_b=True)


def involution_taps(x, k):
    """A sum over the 49 taps of shifted images."""
    h, w = x.shape[3:]
    x = tf.pad(x, ((0, 0), (0, 0), (0, 0), (3, 3), (3, 3)))
    taps = [(r, s) for r in range(7) for s in range(7)]
    return tf.add_n([x[..., r : r + h, s : s + w] * k[:, :, None, r, s] for r, s in taps])


def involution_patches(x, k):
    """All windows by extract_patches with the channels last, then a product and a sum."""
    b, g, c, h, w = x.shape
    last = tf.transpose(tf.reshape(x, (b * g, c, h, w)), (0, 2, 3, 1))
    windows = tf.image.extract_patches(last, (1, 7, 7, 1), (1, 1, 1, 1), (1, 1, 1, 1), "SAME")
    windows = tf.reshape(windows, (b * g, h, w, 49, c))
    weights = tf.transpose(tf.reshape(k, (b * g, 49, h, w)), (0, 2, 3, 1))
    y = tf.matmul(weights[..., None, :], windows)[..., 0, :]
    return tf.reshape(tf.transpose(y, (0, 3, 1, 2)), x.shape)


def tensor_train(x, a, b, c):
    """The library's contraction, in the order that it finds."""
    return tf.einsum("bijk,imp,pjnq,qko->bmno", x, a, b, c, optimize="optimal")


def running_sum(x):
    return tf.cumsum(x, 1)


def _sampled(x, p, q):
    """Bilinear samples of x[n, c, h, w] at p (down) and q (across), [n, ...]; zero outside: [n, ..., c]."""
    (h, w), last = x.shape[2:], tf.transpose(x, (0, 2, 3, 1))
    t, left, out = tf.floor(p), tf.floor(q), 0.0
    for dy, weight in ((0, 1 - (p - t)), (1, p - t)):
        for dx, other in ((0, 1 - (q - left)), (1, q - left)):
            row, column = tf.cast(t, tf.int32) + dy, tf.cast(left, tf.int32) + dx
            inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
            at = tf.stack([tf.clip_by_value(row, 0, h - 1), tf.clip_by_value(column, 0, w - 1)], -1)
            found = tf.gather_nd(last, at, batch_dims=1)
            out += tf.where(inside, weight * other, 0.0)[..., None] * found
    return out


def grid_sample(x, g):
    h, w = x.shape[2:]
    y = _sampled(x, ((g[..., 1] + 1) * h - 1) / 2, ((g[..., 0] + 1) * w - 1) / 2)
    return tf.transpose(y, (0, 3, 1, 2))


def deformable(x, o, w):
    """All taps gathered, then a product."""
    k, (h, wd) = tf.range(9), x.shape[2:]
    p = o[:, :, 0] + tf.cast(tf.range(h)[:, None] + (k // 3 - 1)[:, None, None], o.dtype)
    q = o[:, :, 1] + tf.cast(tf.range(wd) + (k % 3 - 1)[:, None, None], o.dtype)
    return tf.einsum("mck,nkhwc->nmhw", w, _sampled(x, p, q))


_SHARED: dict[str, dict[str, Callable]] = {
    "capsule_conv": {"convolution": capsule_conv},
    "pairwise": {"product": pairwise},
    "local_attention": {"blocks": local_attention_blocks},
    "relative_bias": {"gather": relative_bias_gather, "skewed": relative_bias_skewed},
    "relative_keys": {"skewed": relative_keys_skewed, "table": relative_keys_table},
    "depthwise": {"library": depthwise_library, "taps": depthwise_taps},
    "bilinear": {"matrix": bilinear_matrix, "outer": bilinear_outer},
    "gaussian_kernel": {"product": gaussian_kernel},
    "involution": {"taps": involution_taps, "patches": involution_patches},
    "tensor_train": {"einsum": tensor_train},
    "running_sum": {"library": running_sum},
    "grid_sample": {"gather": grid_sample},
    "deformable": {"gather and a product": deformable},
}

PLAIN = _SHARED | {"max_plus": {"argmax by rows": max_plus_rows, "a step for each k": max_plus_steps}}
XLA = _SHARED | {"max_plus": {"a step for each k": max_plus_steps, "argmax": max_plus_argmax}}


def formulations(peer: str) -> dict[str, dict]:
    return XLA if peer == "xla" else PLAIN


def variants(problem: Workload, peer: str) -> tuple[str, ...]:
    return tuple(formulations(peer).get(problem.network, ()))


class Operator:
    def __init__(self, problem: Workload, arrays: dict[str, np.ndarray], peer: str, variant: str):
        operator = formulations(peer)[problem.network][variant]
        self.inputs, self.g = tuple(tf.constant(arrays[n]) for n in problem.inputs), tf.constant(arrays["G"])
        self.names = problem.results

        @tf.function(jit_compile=peer == "xla")
        def step(xs, g):
            with tf.GradientTape() as tape:
                tape.watch(xs)
                loss = tf.reduce_sum(operator(*xs, **problem.options) * g)
            # The gradient of a gather is a sparse one until it is asked for.
            return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, xs)]

        self._step = step

    def step(self) -> float:
        loss, self.grads = self._step(self.inputs, self.g)
        # A view of a result waits for it and copies nothing; .numpy() would copy.
        for g in self.grads:
            memoryview(g)
        return float(loss)

    def results(self) -> dict[str, np.ndarray]:
        return {n: g.numpy() for n, g in zip(self.names, self.grads, strict=True)}


def build(problem: Workload, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Operator:
    return Operator(problem, arrays, peer, variant)
