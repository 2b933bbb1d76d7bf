"""The single kernels in TensorFlow: by name, the formulations among which the fastest is chosen."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.kernel_cases import Case
from benchmarks.peers import LAST, Form, applicable, depthwise, of_one_element
from benchmarks.peers.tensorflow_operators import PLAIN

FILTER = (2, 3, 1, 0)  # [height, width, in, out]
IMAGE = {"X": LAST, "Y": LAST}


def product(a, b, ta, tb):
    return tf.matmul(a, b, transpose_a=ta, transpose_b=tb)


def conv(x, w, stride, padding, dilation, groups):
    """A depthwise convolution by its own operation."""
    pads = [[0, 0], [padding, padding], [padding, padding], [0, 0]]
    if groups == x.shape[3] > 1:
        strides, w = (1, stride, stride, 1), tf.transpose(w, (0, 1, 3, 2))
        return tf.nn.depthwise_conv2d(x, w, strides, pads, dilations=(dilation, dilation))
    return tf.nn.conv2d(x, w, stride, pads, dilations=dilation)


def conv_product(x, w, stride, padding, dilation, groups):
    """A kernel of one element as products, a batch of them where there are groups."""
    x = x[:, ::stride, ::stride]
    if groups == 1:
        return tf.reshape(tf.reshape(x, (-1, x.shape[3])) @ w[0, 0], (*x.shape[:3], -1))
    x3 = tf.transpose(tf.reshape(x, (-1, groups, x.shape[3] // groups)), (1, 0, 2))
    w3 = tf.transpose(tf.reshape(w[0, 0], (w.shape[2], groups, -1)), (1, 0, 2))
    return tf.reshape(tf.transpose(x3 @ w3, (1, 0, 2)), (*x.shape[:3], -1))


def _as_convolution(shapes, options):
    """Its convolution has no gradients where there are groups, its depthwise one takes a stride or a dilation."""
    if options["groups"] == 1:
        return True
    return depthwise(shapes, options) and 1 in (options["stride"], options["dilation"])


def pool(x):
    return tf.nn.max_pool2d(x, 2, 2, "VALID")


def conv_relu_pool(x, w, bias, padding):
    return pool(tf.nn.relu(tf.nn.bias_add(conv(x, w, 1, padding, 1, 1), bias)))


def layer_norm(x, scale, shift):
    mean, variance = tf.nn.moments(x, 1, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-5)


def batch_norm(x, scale, shift):
    return tf.compat.v1.nn.fused_batch_norm(x, scale, shift, epsilon=1e-5)[0]


def relu_pool(x):
    return pool(tf.nn.relu(x))


def bias_gelu(x, bias):
    return tf.nn.gelu(tf.nn.bias_add(x, bias), approximate=False)


KERNELS: dict[str, dict[str, Form]] = {
    "product": {"library": Form(product)},
    "conv": {
        "library": Form(conv, IMAGE | {"W": FILTER}, _as_convolution),
        "product": Form(conv_product, IMAGE | {"W": FILTER}, of_one_element),
    },
    "conv_relu_pool": {"library": Form(conv_relu_pool, IMAGE | {"W": FILTER})},
    "softmax": {"library": Form(tf.nn.softmax)},
    "layer_norm": {"library": Form(layer_norm)},
    "batch_norm": {"channels last": Form(batch_norm, IMAGE)},
    "relu_pool": {"channels last": Form(relu_pool, IMAGE)},
    "bias_gelu": {"library": Form(bias_gelu)},
    "capsule_conv": {name: Form(f) for name, f in PLAIN["capsule_conv"].items()},
}


class Kernel:
    """The forward, or gradients of which the graph keeps only what they need, or both."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray], xla: bool, variant: str):
        form = KERNELS[case.network][variant]
        xs = {n: tf.constant(form.to_peer(n, a)) for n, a in arrays.items()}
        options = dict(case.options)

        @tf.function(jit_compile=xla)
        def step(xs):
            wrt = [xs[n] for n in case.wrt]
            with tf.GradientTape() as tape:
                tape.watch(wrt)
                y = form.function(*(xs[n] for n in case.inputs), **options)
            if not wrt:
                return (y,)
            return (*((y,) if case.with_forward else ()), *tape.gradient(y, wrt, xs["G"]))

        self._step, self._xs, self._form, self._names = step, xs, form, case.results

    def step(self) -> float:
        self._out = self._step(self._xs)
        # A view of a result waits for it and copies nothing; .numpy() would copy.
        for t in self._out:
            memoryview(t)
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        return {n: self._form.from_peer(n, t.numpy()) for n, t in zip(self._names, self._out, strict=True)}


class Adam:
    """The library's fused update of a variable and its two moments."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray], xla: bool):
        self._state = {n: tf.Variable(arrays[n]) for n in "pmv"}
        self._g, self._t = tf.constant(arrays["g"]), 0

        @tf.function(jit_compile=xla)
        def step(g, b1_power, b2_power):
            p, m, v = (self._state[n] for n in "pmv")
            tf.raw_ops.ResourceApplyAdam(
                var=p.handle, m=m.handle, v=v.handle, beta1_power=b1_power, beta2_power=b2_power, lr=1e-3, beta1=0.9,
                beta2=0.999, epsilon=1e-8, grad=g,
            )  # fmt: skip
            return p.read_value()[:1]

        self._step = step

    def step(self) -> float:
        self._t += 1
        done = self._step(self._g, tf.constant(0.9**self._t, tf.float32), tf.constant(0.999**self._t, tf.float32))
        return float(done[0])

    def results(self) -> dict[str, np.ndarray]:
        return {n: v.numpy() for n, v in self._state.items()}


def variants(case: Case, peer: str) -> tuple[str, ...]:
    return ("",) if case.network == "adam" else applicable(KERNELS[case.network], case.shapes or {}, case.options)


def build(case: Case, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Kernel | Adam:
    xla = peer == "xla"
    return Adam(case, arrays, xla) if case.network == "adam" else Kernel(case, arrays, xla, variant)
