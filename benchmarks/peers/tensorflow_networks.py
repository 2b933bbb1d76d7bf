"""Run training steps in TensorFlow: forward, gradients and update in one tf.function, with and without XLA."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.graphs import forms, interpreter
from benchmarks.models import NetworkCase
from einsmith.bench.networks import LR


class TensorFlowArrays:
    """TensorFlow's functions of arrays, in one of the formulations."""

    def __init__(self, form: forms.Formulation, xla: bool):
        self.form, self.xla = form, xla

    reshape, transpose = staticmethod(tf.reshape), staticmethod(tf.transpose)
    concat, broadcast = staticmethod(tf.concat), staticmethod(tf.broadcast_to)
    einsum, sqrt, relu = staticmethod(tf.einsum), staticmethod(tf.sqrt), staticmethod(tf.nn.relu)
    softmax, one_hot = staticmethod(tf.nn.softmax), staticmethod(tf.one_hot)

    def dense(self, x, w, turned):
        return tf.matmul(x, w, transpose_b=turned)

    def sum(self, a, axes, keep):
        return tf.reduce_sum(a, axes, keep)

    def mean(self, a, axes, keep):
        return tf.reduce_mean(a, axes, keep)

    def clip(self, a, low, high):
        return tf.nn.relu6(a) if (low, high) == (0.0, 6.0) else tf.clip_by_value(a, low, high)

    def gelu(self, a, tanh):
        return tf.nn.gelu(a, approximate=tanh)

    def gather(self, table, ids):
        return tf.gather(table, ids)

    def layer_norm(self, x, scale, shift, eps):
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, shift, scale, eps)

    def batch_norm(self, x, scale, shift, eps):
        y = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=scale, offset=shift, mean=[], variance=[], epsilon=eps, is_training=True
        )
        return y.y, y.batch_mean, y.batch_variance

    def conv(self, x, w, stride, padding, dilation, groups):
        pads = [(0, 0), *padding, (0, 0)]
        if w.shape[:2] == (1, 1) and groups < x.shape[3] and (groups > 1 or self.form.products):
            # Its grouped convolution has no gradient on processors.
            return forms.product(self, x, w, stride, groups)
        if groups == x.shape[3] == w.shape[3] and groups > 1:
            if self.form.slices:
                return forms.taps(tf.pad(x, pads), w, stride)
            turned = tf.reshape(w, (*w.shape[:2], groups, 1))
            return tf.nn.depthwise_conv2d(x, turned, (1, *stride, 1), pads, dilations=dilation)
        if groups > 1:
            raise NotImplementedError("a grouped convolution that is neither depthwise nor 1x1")
        return tf.nn.conv2d(x, w, stride, pads, dilations=dilation)

    def conv_transpose(self, x, w):
        b, h, v, _ = x.shape
        _, o, k, m = w.shape
        turned = tf.transpose(w, (2, 3, 1, 0))
        return tf.nn.conv2d_transpose(x, turned, (b, h * k, v * m, o), (k, m), "VALID")

    def max_pool(self, x, size, stride, padding):
        if any(n for pair in padding for n in pair):
            x = tf.pad(x, [(0, 0), *padding, (0, 0)], constant_values=x.dtype.min)
        if self.form.slices:
            return forms.pooled(x, size, stride, tf.maximum)
        return tf.nn.max_pool2d(x, size, stride, "VALID")

    def average_pool(self, x, size, stride, padding):
        return tf.nn.avg_pool2d(tf.pad(x, [(0, 0), *padding, (0, 0)]), size, stride, "VALID")

    def attention(self, q, k, v, causal):
        q, k, v = (tf.transpose(a, (0, 2, 1, 3)) for a in (q * q.shape[-1] ** -0.5, k, v))
        scores = tf.matmul(q, k, transpose_b=True)
        if causal:
            allowed = np.tri(scores.shape[-2], scores.shape[-1], dtype=np.bool_)
            scores = tf.where(allowed, scores, scores.dtype.min)
        return tf.transpose(tf.nn.softmax(scores) @ v, (0, 2, 1, 3))

    def cross_entropy(self, logits, labels):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def variants(problem: NetworkCase, peer: str) -> tuple[str, ...]:
    """Return the names of the formulations to choose from."""
    return tuple(f.name for f in forms.applicable(problem.graph()) if peer == "xla" or not f.slices)


class TensorFlowTraining:
    """A training step of a network's graph by `tf.GradientTape`."""

    def __init__(self, problem: NetworkCase, arrays: dict[str, np.ndarray], xla: bool, variant: str):
        graph, lib = problem.graph(), TensorFlowArrays(forms.by_name(variant), xla)
        self.held = held = interpreter.orders(graph)
        given = interpreter.held_arrays(arrays, held)
        self.x, self.y = tf.constant(given.pop("x")), tf.constant(given.pop("y"))
        self.state = {n: tf.Variable(a, trainable=n in graph.parameters) for n, a in given.items()}
        trained = list(graph.parameters)

        @tf.function(jit_compile=xla)
        def step(x, y):
            with tf.GradientTape() as tape:
                state = {n: v.value() if xla else v for n, v in self.state.items()}
                arrays = {n: tf.convert_to_tensor(v) for n, v in state.items()}
                loss, updates = interpreter.loss(graph, lib, {**arrays, "x": x, "y": y}, held)
            for n, g in zip(trained, tape.gradient(loss, [self.state[n] for n in trained]), strict=True):
                if isinstance(g, tf.IndexedSlices):
                    self.state[n].scatter_sub(tf.IndexedSlices(LR * g.values, g.indices))
                else:
                    self.state[n].assign_sub(LR * g)
            for n, v in updates.items():
                self.state[n].assign(v)
            return loss

        self._step = step

    def restart(self, arrays: dict[str, np.ndarray]) -> None:
        """Begin again from these values."""
        given = interpreter.held_arrays(arrays, self.held)
        for n, v in self.state.items():
            v.assign(given[n])

    def step(self) -> float:
        """Train on the batch and return the loss."""
        return float(self._step(self.x, self.y))

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters and the running statistics."""
        return interpreter.told_arrays({n: v.numpy() for n, v in self.state.items()}, self.held)


def build(
    problem: NetworkCase, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str
) -> TensorFlowTraining:
    """Return the problem's session."""
    return TensorFlowTraining(problem, arrays, peer == "xla", variant)
