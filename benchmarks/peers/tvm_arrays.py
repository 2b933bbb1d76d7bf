"""Arrays of Apache TVM's Relax, and the functions of them that `benchmarks.graphs.interpreter` and the kernels need.

Only what Relax's gradient pass can differentiate is used, as far as there is a way: slices are splits, einsum is a
matrix product between exchanges of axes, GELU's tanh and norms are spelled out. What has no such way (`erf` of GELU,
slices with a step) ends in an error of the pass that names the operator (`tvm_programs.Undifferentiable`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op


class RelaxArray:
    """A value of the function that the current BlockBuilder makes, with arithmetic and slices."""

    def __init__(self, value: Any):
        self.value = relax.BlockBuilder.current().emit(value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the extents."""
        return tuple(int(n) for n in self.value.ty.shape)

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def _with(self, other: Any, f: Callable[[Any, Any], Any], is_right: bool = False) -> RelaxArray:
        b = other.value if isinstance(other, RelaxArray) else relax.const(other, self.value.ty.dtype)
        return RelaxArray(f(b, self.value) if is_right else f(self.value, b))

    def __add__(self, other: Any) -> RelaxArray:
        return self._with(other, op.add)

    def __radd__(self, other: Any) -> RelaxArray:
        return self._with(other, op.add, True)

    def __sub__(self, other: Any) -> RelaxArray:
        return self._with(other, op.subtract)

    def __rsub__(self, other: Any) -> RelaxArray:
        return self._with(other, op.subtract, True)

    def __mul__(self, other: Any) -> RelaxArray:
        return self._with(other, op.multiply)

    def __rmul__(self, other: Any) -> RelaxArray:
        return self._with(other, op.multiply, True)

    def __truediv__(self, other: Any) -> RelaxArray:
        return self._with(other, op.divide)

    def __rtruediv__(self, other: Any) -> RelaxArray:
        return self._with(other, op.divide, True)

    def __neg__(self) -> RelaxArray:
        return RelaxArray(op.negative(self.value))

    def __pow__(self, exponent: int) -> RelaxArray:
        if exponent != 2:
            raise NotImplementedError(f"powers of {exponent}")
        return self * self

    def __getitem__(self, key: Any) -> RelaxArray:
        """Return a part: integers and slices without a step along axes, None for a new one."""
        keys = list(key) if isinstance(key, tuple) else [key]
        axes = self.ndim - sum(k is not None and k is not Ellipsis for k in keys)
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys[at : at + 1] = [slice(None)] * axes
        out, shape, axis = self, list[int](), 0
        for k in keys:
            if k is None:
                shape.append(1)
                continue
            extent = self.shape[axis]
            start, stop = (k % extent, k % extent + 1) if isinstance(k, int) else _bounds(k, extent)
            out = out.cut(axis, start, stop)
            shape += [] if isinstance(k, int) else [stop - start]
            axis += 1
        shape += self.shape[axis:]
        return out if out.shape == tuple(shape) else RelaxArray(op.reshape(out.value, shape))

    def cut(self, axis: int, start: int, stop: int) -> RelaxArray:
        """Return a range along an axis: a split, whose gradient is registered, where that of a slice is not."""
        extent = self.shape[axis]
        if (start, stop) == (0, extent):
            return self
        at = [n for n in (start, stop) if 0 < n < extent]
        return RelaxArray(RelaxArray(op.split(self.value, at, axis)).value[int(start > 0)])


def _bounds(k: slice, extent: int) -> tuple[int, int]:
    start, stop, step = k.indices(extent)
    if step != 1:
        raise NotImplementedError("slices with a step: relax.strided_slice has no gradient")
    return start, stop


class RelaxArrays:
    """Relax's functions of arrays (`graphs.interpreter.Library`, `formulations`). Images have their channels first: the
    gradient of convolutions exists for these alone."""

    images, filters = (0, 1, 2, 3), (0, 1, 2, 3)

    def reshape(self, a, shape):
        return RelaxArray(op.reshape(a.value, [int(n) for n in shape]))

    def transpose(self, a, axes):
        return RelaxArray(op.permute_dims(a.value, [int(n) for n in axes]))

    def concat(self, parts, axis):
        return RelaxArray(op.concat([p.value for p in parts], axis))

    def broadcast(self, a, shape):
        return RelaxArray(op.broadcast_to(a.value, shape))

    def constant(self, a):
        return RelaxArray(relax.const(a))

    def exp(self, a):
        return RelaxArray(op.exp(a.value))

    def sqrt(self, a):
        return RelaxArray(op.sqrt(a.value))

    def tanh(self, a):
        return RelaxArray(op.tanh(a.value))

    def sigmoid(self, a):
        return RelaxArray(op.sigmoid(a.value))

    def relu(self, a):
        return RelaxArray(op.nn.relu(a.value))

    def elu(self, a):
        return self.where(a, a, self.exp(a) - 1.0)

    def where(self, a, b, c):
        """b where a is positive, else c."""
        return RelaxArray(op.where(op.greater(a.value, relax.const(0.0)), b.value, c.value))

    def maximum(self, a, b):
        return RelaxArray(op.maximum(a.value, b.value if isinstance(b, RelaxArray) else relax.const(b, "float32")))

    def clip(self, a, low, high):
        high = relax.const(high, "float32")
        return RelaxArray(op.minimum(self.maximum(a, low).value, high))

    def softmax(self, a, axis):
        return RelaxArray(op.nn.softmax(a.value, axis))

    def one_hot(self, a, classes):
        """By comparing: the pass asks for gradients of labels, too, and `relax.one_hot` has none."""
        numbers = relax.const(np.arange(classes, dtype=np.int32))
        return RelaxArray(op.where(op.equal(op.expand_dims(a.value, -1), numbers), relax.const(1.0), relax.const(0.0)))

    def gelu(self, a, tanh):
        """By the hyperbolic tangent, or the operator itself, whose gradient is missing."""
        if not tanh:
            return RelaxArray(op.nn.gelu(a.value))
        return a * 0.5 * (self.tanh((a + a * a * a * 0.044715) * math.sqrt(2 / math.pi)) + 1.0)

    def gather(self, table, ids):
        return RelaxArray(op.take(table.value, ids.value, 0))

    def cumsum(self, a, axis):
        return RelaxArray(op.cumsum(a.value, axis))

    def total(self, parts):
        return reduce(add, parts)

    def sum(self, a, axes, keep):
        return RelaxArray(op.sum(a.value, list(axes), keep))

    def mean(self, a, axes, keep):
        return RelaxArray(op.mean(a.value, list(axes), keep))

    def dense(self, x, w, turned):
        return self.product(x, w, False, turned)

    def product(self, a, b, ta, tb):
        a, b = (self._turned(x) if turned else x for x, turned in ((a, ta), (b, tb)))
        return RelaxArray(op.matmul(a.value, b.value))

    def _turned(self, a):
        return self.transpose(a, [*range(a.ndim - 2), a.ndim - 1, a.ndim - 2])

    def biased(self, x, bias):
        return x + bias

    def einsum(self, spec, a, b):
        """Contract two arrays by a product of matrices, a batch of them over the axes that both have and that stay."""
        (left, right), out = spec.partition("->")[0].split(","), spec.partition("->")[2]
        size = dict(zip(left + right, a.shape + b.shape, strict=True))
        batch = [c for c in left if c in right and c in out]
        summed = [c for c in left if c in right and c not in out]
        rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
        m, n, k = (math.prod(size[c] for c in part) for part in (rows, columns, summed))
        lead = [size[c] for c in batch]
        x = self.reshape(self.transpose(a, [left.index(c) for c in batch + rows + summed]), [*lead, m, k])
        w = self.reshape(self.transpose(b, [right.index(c) for c in batch + summed + columns]), [*lead, k, n])
        given = batch + rows + columns
        y = self.reshape(self.product(x, w, False, False), [size[c] for c in given])
        return y if given == list(out) else self.transpose(y, [given.index(c) for c in out])

    def layer_norm(self, x, scale, shift, eps):
        off = x - self.mean(x, [-1], True)
        return off / self.sqrt(self.mean(off * off, [-1], True) + eps) * scale + shift

    def batch_norm(self, x, scale, shift, eps):
        """By means and a square root: the operator itself has no gradient."""
        axes = [k for k in range(x.ndim) if k != 1]
        n, wide = math.prod(x.shape) // x.shape[1], [1, x.shape[1]] + [1] * (x.ndim - 2)
        mean = self.mean(x, axes, True)
        off = x - mean
        variance = self.mean(off * off, axes, True)
        y = off * (self.reshape(scale, wide) / self.sqrt(variance + eps)) + self.reshape(shift, wide)
        return y, self.reshape(mean, [-1]), self.reshape(variance, [-1]) * (n / (n - 1))

    def conv(self, x, w, stride, padding, dilation, groups):
        return RelaxArray(op.nn.conv2d(x.value, w.value, stride, _sides(padding), dilation, groups))

    def conv_transpose(self, x, w):
        return RelaxArray(op.nn.conv2d_transpose(x.value, w.value, w.shape[2:]))

    def max_pool(self, x, size, stride, padding):
        return RelaxArray(op.nn.max_pool2d(x.value, size, stride, _sides(padding)))

    def average_pool(self, x, size, stride, padding):
        return RelaxArray(op.nn.avg_pool2d(x.value, size, stride, _sides(padding), count_include_pad=True))

    def attention(self, q, k, v, causal):
        q, k, v = (self.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
        scores = self.product(q, k, False, True) * (1 / math.sqrt(q.shape[-1]))
        if causal:
            t = scores.shape[-1]
            scores = scores + self.constant(np.triu(np.full((t, t), -1e30, np.float32), 1))
        return self.transpose(self.product(self.softmax(scores, -1), v, False, False), (0, 2, 1, 3))

    def cross_entropy(self, logits, labels):
        return RelaxArray(op.nn.nll_loss(op.nn.log_softmax(logits.value, -1), labels.value))


def _sides(padding: Sequence[tuple[int, int]]) -> list[int]:
    """Return top, left, bottom and right."""
    (top, bottom), (left, right) = padding
    return [top, left, bottom, right]
