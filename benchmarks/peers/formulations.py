"""Formulations of operators and single kernels that several libraries run, by the functions of a library.

Beside the functions of `graphs.interpreter.Library` a library has

exp(a), maximum(a, b), floor(a), where(condition, a, b), cumsum(a, axis), pad(a, pads): as in NumPy
constant(a): a NumPy array as the library's own
integer(a): a float as an integer
total(parts): the sum of arrays
product(a, b, ta, tb): products of matrices, those of a or b transposed
biased(x, bias): x plus a bias along the last axis
pick(x, row, column): x[n, :, row, column], [n, ..., c], of images [n, c, h, w] at positions [n, ...]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.graphs.forms import Formulation
from benchmarks.peers import LAST, Form, depthwise, of_one_element

IMAGE = {"X": LAST, "Y": LAST}
FILTERED = IMAGE | {"W": (2, 3, 1, 0)}
"""Filters as [height, width, in, out]."""
BLOCK = 64
"""Queries of a block of local attention, which see as many keys on either side."""


def band(blocks: int) -> np.ndarray:
    """Return [blocks, 64, 192]: 0 where a query may see a key of its three blocks of keys, else -1e30."""
    block, i, j = np.arange(blocks)[:, None, None], np.arange(BLOCK)[:, None], np.arange(3 * BLOCK)
    key = BLOCK * block + j - BLOCK
    inside = (i <= j) & (j <= i + 2 * BLOCK) & (0 <= key) & (key < BLOCK * blocks)
    return np.where(inside, np.float32(0), np.float32(-1e30))


def distances(steps: int) -> np.ndarray:
    """Return j - i + steps - 1 for all i and j: a row of a table of relative positions."""
    return np.arange(steps) - np.arange(steps)[:, None] + steps - 1


class Operators:
    """Formulations by the functions of `lib`, of inputs in the order of `benchmarks.problems`."""

    def __init__(self, lib: Any):
        self.lib = lib

    def capsule_conv(self, a, w, stride):
        """One convolution: (b, i) are its batch, (c, m) its input channels, (k, j) its output channels."""
        o, (b, c, h, wd, i, m), (k, _, r, s, _, j) = self.lib, a.shape, w.shape
        x = o.reshape(o.transpose(a, (0, 4, 2, 3, 1, 5)), (b * i, h, wd, c * m))
        f = o.reshape(o.transpose(w, (2, 3, 1, 4, 0, 5)), (r, s, c * m, k * j))
        y = o.conv(x, f, (stride, stride), [(0, 0), (0, 0)], (1, 1), 1)
        return o.transpose(o.reshape(y, (b, i, *y.shape[1:3], k, j)), (0, 4, 2, 3, 1, 5))

    def capsule_composed(self, a, w, stride):
        """Eight such convolutions, of an eighth of the output's channels each, concatenated."""
        o, (b, c, h, wd, i, m), (k, _, r, s, _, j) = self.lib, a.shape, w.shape
        x = o.reshape(o.transpose(a, (0, 4, 2, 3, 1, 5)), (b * i, h, wd, c * m))
        f, n = o.reshape(o.transpose(w, (2, 3, 1, 4, 0, 5)), (r, s, c * m, k * j)), k * j // 8
        parts = [f[..., at : at + n] for at in range(0, k * j, n)]
        y = o.concat([o.conv(x, p, (stride, stride), [(0, 0), (0, 0)], (1, 1), 1) for p in parts], 3)
        return o.transpose(o.reshape(y, (b, i, *y.shape[1:3], k, j)), (0, 4, 2, 3, 1, 5))

    def _squares(self, x, y):
        """|x_i|^2 + |y_j|^2 of all rows."""
        return self.lib.sum(x * x, (1,), True) + self.lib.sum(y * y, (1,), False)

    def gaussian_product(self, x, y, b):
        """The expanded square, by one matrix product."""
        o = self.lib
        return o.dense(o.exp(o.dense(x, y, True) - self._squares(x, y) / 2), b, False)

    def gaussian_differences(self, x, y, b):
        """The differences themselves, which a compiler may fuse."""
        o = self.lib
        return o.dense(o.exp(o.sum((x[:, None] - y) ** 2, (2,), False) / -2), b, False)

    def pairwise_product(self, x, y):
        """The expanded square, by one matrix product."""
        o = self.lib
        return o.sqrt(o.maximum(self._squares(x, y) - 2 * o.dense(x, y, True), 0.0) + 1e-6)

    def pairwise_differences(self, x, y):
        """All differences, which a compiler need not store."""
        return self.lib.sqrt(self.lib.sum((x[:, None] - y) ** 2, (2,), False) + 1e-6)

    def _three_blocks(self, k):
        o, (h, t, d) = self.lib, k.shape
        k = o.reshape(o.pad(k, ((0, 0), (BLOCK, BLOCK), (0, 0))), (h, t // BLOCK + 2, BLOCK, d))
        return o.concat([k[:, :-2], k[:, 1:-1], k[:, 2:]], 2)

    def local_attention(self, q, k, v):
        """Blocks of 64 queries against three blocks of keys: two batched products and a masked softmax."""
        o, (h, t, d) = self.lib, q.shape
        scores = o.product(o.reshape(q, (h, t // BLOCK, BLOCK, d)), self._three_blocks(k), False, True)
        p = o.softmax(scores * 0.125 + o.constant(band(t // BLOCK)), -1)
        return o.reshape(o.product(p, self._three_blocks(v), False, False), (h, t, d))

    def _attention(self, q, k, v, scaled_bias):
        """Plain attention with a bias of the scaled scores."""
        p = self.lib.softmax(self.lib.product(q, k, False, True) * 0.125 + scaled_bias, -1)
        return self.lib.product(p, v, False, False)

    def _skew(self, x, t):
        """[..., i, j] = x[..., i, j - i + t - 1] by padding and two reshapes (Music Transformer)."""
        o, lead = self.lib, tuple(x.shape[:-2])
        x = o.reshape(o.pad(x, [(0, 0)] * (len(lead) + 1) + [(0, 1)]), (*lead, -1))
        x = x[..., t - 1 : t - 1 + t * (2 * t - 1)]
        return o.reshape(x, (*lead, t, 2 * t - 1))[..., :t]

    def relative_bias_gather(self, q, k, v, r):
        """The bias gathered from its table."""
        bias = self.lib.gather(r, self.lib.constant(distances(q.shape[2])))
        return self._attention(q, k, v, self.lib.transpose(bias, (2, 0, 1)))

    def relative_bias_skewed(self, q, k, v, r):
        """The bias by padding and reshapes of its table repeated for each i: a gradient without a scatter."""
        o, t = self.lib, q.shape[2]
        bias = o.broadcast(o.transpose(r, (1, 0))[:, None], (r.shape[1], t, 2 * t - 1))
        return self._attention(q, k, v, self._skew(bias, t))

    def relative_keys_skewed(self, q, k, v, r):
        """The products with all 2T-1 relative keys, then row i moved by i."""
        o, (b, h, t, d) = self.lib, q.shape
        relative = o.reshape(o.dense(o.reshape(q, (b * h * t, d)), r, True), (b, h, t, 2 * t - 1))
        return self._attention(q, k, v, self._skew(relative, t) * 0.125)

    def relative_keys_table(self, q, k, v, r):
        """The relative keys gathered to [i, j, d], one product for each i (Shaw et al.)."""
        o, (b, h, t, d) = self.lib, q.shape
        rows = o.reshape(o.transpose(q, (2, 0, 1, 3)), (t, b * h, d))
        relative = o.product(rows, o.gather(r, o.constant(distances(t))), False, True)
        return self._attention(q, k, v, o.transpose(o.reshape(relative, (t, b, h, t)), (1, 2, 0, 3)) * 0.125)

    def depthwise_taps(self, x, k):
        """A sum over the 49 taps of shifted images."""
        (h, w), x = x.shape[2:], self.lib.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)))
        taps = [(r, s) for r in range(7) for s in range(7)]
        return self.lib.total([x[:, :, r : r + h, s : s + w] * k[:, r, s, None, None] for r, s in taps])

    def depthwise_conv(self, x, k):
        """A grouped convolution with the channels last."""
        o, w = self.lib, self.lib.transpose(k, (1, 2, 0))[:, :, None]
        y = o.conv(o.transpose(x, (0, 2, 3, 1)), w, (1, 1), [(3, 3), (3, 3)], (1, 1), k.shape[0])
        return o.transpose(y, (0, 3, 1, 2))

    def bilinear_matrix(self, x, w, y):
        """x against W as a [i, (o, j)] matrix, then the product with y."""
        o, (m, i, j) = self.lib, w.shape
        u = o.dense(x, o.reshape(o.transpose(w, (1, 0, 2)), (i, m * j)), False)
        return o.sum(o.reshape(u, (x.shape[0], m, j)) * y[:, None, :], (2,), False)

    def bilinear_outer(self, x, w, y):
        """The outer products of x and y against W as an [o, (i, j)] matrix."""
        o, (m, i, j) = self.lib, w.shape
        return o.dense(o.reshape(x[:, :, None] * y[:, None, :], (x.shape[0], i * j)), o.reshape(w, (m, i * j)), True)

    def involution_taps(self, x, k):
        """A sum over the 49 taps of shifted images."""
        (h, w), x = x.shape[3:], self.lib.pad(x, ((0, 0), (0, 0), (0, 0), (3, 3), (3, 3)))
        taps = [(r, s) for r in range(7) for s in range(7)]
        return self.lib.total([x[..., r : r + h, s : s + w] * k[:, :, None, r, s] for r, s in taps])

    def tensor_train(self, x, a, b, c):
        """The library's contraction, in the order that it finds."""
        return self.lib.einsum("bijk,imp,pjnq,qko->bmno", x, a, b, c)

    def running_sum(self, x):
        """The library's own."""
        return self.lib.cumsum(x, 1)

    def _samples(self, x, p, q):
        """Bilinear samples of x[n, c, h, w] at p (down) and q (across), [n, ...]; zero outside: [n, ..., c]."""
        o, (h, w), parts = self.lib, x.shape[2:], []
        t, left = o.floor(p), o.floor(q)
        for dy, down in ((0, 1 - (p - t)), (1, p - t)):
            for dx, across in ((0, 1 - (q - left)), (1, q - left)):
                row, column = o.integer(t) + dy, o.integer(left) + dx
                inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
                corner = o.pick(x, o.clip(row, 0, h - 1), o.clip(column, 0, w - 1))
                parts.append(o.where(inside, down * across, 0.0)[..., None] * corner)
        return o.total(parts)

    def grid_sample(self, x, g):
        """Four gathers."""
        h, w = x.shape[2:]
        y = self._samples(x, ((g[..., 1] + 1) * h - 1) / 2, ((g[..., 0] + 1) * w - 1) / 2)
        return self.lib.transpose(y, (0, 3, 1, 2))

    def deformable(self, x, offsets, w):
        """All taps gathered, then a product."""
        (h, wd), k = x.shape[2:], np.arange(9)
        rows = (np.arange(h)[:, None] + (k // 3 - 1)[:, None, None]).astype(np.float32)
        columns = (np.arange(wd) + (k % 3 - 1)[:, None, None]).astype(np.float32)
        p, q = offsets[:, :, 0] + self.lib.constant(rows), offsets[:, :, 1] + self.lib.constant(columns)
        return self.lib.einsum("mck,nkhwc->nmhw", w, self._samples(x, p, q))


class Kernels:
    """The single kernels of `benchmarks.kernel_cases` by the functions of `lib`; images have their channels last."""

    def __init__(self, lib: Any):
        self.lib = lib

    def conv(self, x, w, stride, padding, dilation, groups):
        pads = [(padding, padding)] * 2
        return self.lib.conv(x, w, (stride, stride), pads, (dilation, dilation), groups)

    def relu_pool(self, x):
        return self.lib.max_pool(self.lib.relu(x), (2, 2), (2, 2), [(0, 0), (0, 0)])

    def conv_relu_pool(self, x, w, bias, padding):
        return self.relu_pool(self.lib.biased(self.conv(x, w, 1, padding, 1, 1), bias))

    def softmax(self, x):
        return self.lib.softmax(x, 1)

    def layer_norm(self, x, scale, shift):
        return self.lib.layer_norm(x, scale, shift, 1e-5)

    def batch_norm(self, x, scale, shift):
        return self.lib.batch_norm(x, scale, shift, 1e-5)[0]

    def bias_gelu(self, x, bias):
        return self.lib.gelu(self.lib.biased(x, bias), False)


def _is_product(shapes: Mapping[str, tuple[int, ...]], options: Mapping[str, Any]) -> bool:
    return of_one_element(shapes, options) and options["groups"] == 1


def _is_cut(shapes: Mapping[str, tuple[int, ...]], options: Mapping[str, Any]) -> bool:
    """Return whether the formulation in slices differs from the library's own."""
    return options["groups"] > 1 and (depthwise(shapes, options) or of_one_element(shapes, options))


def kernels(lib_of: Callable[[Formulation], Any], pooling: Formulation) -> dict[str, dict[str, Form]]:
    """Return the formulations of each kernel by name.

    lib_of: makes the library of a formulation; pooling: that of pooling, in which the library's gradient is fast
    """
    plain, pooled = Kernels(lib_of(Formulation())), Kernels(lib_of(pooling))
    slices, products = Kernels(lib_of(Formulation(slices=True))), Kernels(lib_of(Formulation(products=True)))
    return {
        "product": {"library": Form(plain.lib.product)},
        "conv": {
            "library": Form(plain.conv, FILTERED),
            "product": Form(products.conv, FILTERED, _is_product),
            "slices": Form(slices.conv, FILTERED, _is_cut),
        },
        "conv_relu_pool": {"library": Form(pooled.conv_relu_pool, FILTERED)},
        "softmax": {"library": Form(plain.softmax)},
        "layer_norm": {"library": Form(plain.layer_norm)},
        "batch_norm": {"channels last": Form(plain.batch_norm, IMAGE)},
        "relu_pool": {"channels last": Form(pooled.relu_pool, IMAGE)},
        "bias_gelu": {"library": Form(plain.bias_gelu)},
    }
