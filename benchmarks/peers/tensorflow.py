"""TensorFlow, with and without XLA: one tf.function for each step, in the formulations that are fastest there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.graphs import forms, interpreter
from benchmarks.graphs.forms import Formulation
from benchmarks.kernel_cases import Case
from benchmarks.models import NetworkCase
from benchmarks.peers import Form, applicable, forms_of
from benchmarks.peers.formulations import Operators, kernels
from benchmarks.peers.recurrent_cells import Arrays, CellLibrary, State, Step, lstm_layers, networks, to_peer
from benchmarks.recurrent_steps import LR, Recurrent, RecurrentForward
from einsmith.bench.networks import LR as NETWORK_LR


class TensorFlowArrays:
    """TensorFlow's functions of arrays, in one of the formulations (`graphs.interpreter.Library`, `formulations`)."""

    def __init__(self, form: forms.Formulation):
        self.form = form

    reshape, transpose = staticmethod(tf.reshape), staticmethod(tf.transpose)
    concat, broadcast = staticmethod(tf.concat), staticmethod(tf.broadcast_to)
    sqrt, relu, softmax = staticmethod(tf.sqrt), staticmethod(tf.nn.relu), staticmethod(tf.nn.softmax)
    one_hot, exp, maximum = staticmethod(tf.one_hot), staticmethod(tf.exp), staticmethod(tf.maximum)
    floor, where, cumsum = staticmethod(tf.floor), staticmethod(tf.where), staticmethod(tf.cumsum)
    pad, constant, total = staticmethod(tf.pad), staticmethod(tf.constant), staticmethod(tf.add_n)
    biased = staticmethod(tf.nn.bias_add)

    def einsum(self, spec, *arrays):
        return tf.einsum(spec, *arrays, optimize="optimal")

    def integer(self, a):
        return tf.cast(a, tf.int32)

    def product(self, a, b, ta, tb):
        return tf.matmul(a, b, transpose_a=ta, transpose_b=tb)

    def pick(self, x, row, column):
        return tf.gather_nd(tf.transpose(x, (0, 2, 3, 1)), tf.stack([row, column], -1), batch_dims=1)

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

    def normalize(self, x, scale, shift, mean, variance, eps):
        y = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=scale, offset=shift, mean=mean, variance=variance, epsilon=eps, is_training=False
        )
        return y.y

    def conv(self, x, w, stride, padding, dilation, groups):
        pads = [(0, 0), *padding, (0, 0)]
        is_depthwise = groups == x.shape[3] == w.shape[3] and groups > 1
        if w.shape[:2] == (1, 1) and not is_depthwise and (groups > 1 or self.form.products):
            # Its grouped convolution has no gradient on processors.
            return forms.product(self, x, w, stride, groups)
        if is_depthwise:
            if self.form.slices:
                return forms.taps(tf.pad(x, pads), w, stride, dilation)
            turned = tf.reshape(w, (*w.shape[:2], groups, 1))
            return tf.nn.depthwise_conv2d(x, turned, (1, *stride, 1), pads, dilations=dilation)
        if groups > 1:
            parts = zip(tf.split(x, groups, 3), tf.split(w, groups, 3), strict=True)
            return tf.concat([tf.nn.conv2d(a, b, stride, pads, dilations=dilation) for a, b in parts], 3)
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


# ------------------------------------------------------------------------------------------------------------ operators


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


def involution_patches(x, k):
    """All windows by extract_patches with the channels last, then a product and a sum."""
    b, g, c, h, w = x.shape
    last = tf.transpose(tf.reshape(x, (b * g, c, h, w)), (0, 2, 3, 1))
    windows = tf.image.extract_patches(last, (1, 7, 7, 1), (1, 1, 1, 1), (1, 1, 1, 1), "SAME")
    windows = tf.reshape(windows, (b * g, h, w, 49, c))
    weights = tf.transpose(tf.reshape(k, (b * g, 49, h, w)), (0, 2, 3, 1))
    y = tf.matmul(weights[..., None, :], windows)[..., 0, :]
    return tf.reshape(tf.transpose(y, (0, 3, 1, 2)), x.shape)


SHARED = Operators(TensorFlowArrays(Formulation()))
BOTH: dict[str, dict[str, Callable]] = {
    "capsule_conv": {"convolution": SHARED.capsule_conv},
    "capsule_composed": {"eight convolutions": SHARED.capsule_composed},
    "pairwise": {"product": SHARED.pairwise_product},
    "local_attention": {"blocks": SHARED.local_attention},
    "relative_bias": {"gather": SHARED.relative_bias_gather, "skewed": SHARED.relative_bias_skewed},
    "relative_keys": {"skewed": SHARED.relative_keys_skewed, "table": SHARED.relative_keys_table},
    "depthwise": {"library": SHARED.depthwise_conv, "taps": SHARED.depthwise_taps},
    "bilinear": {"matrix": SHARED.bilinear_matrix, "outer": SHARED.bilinear_outer},
    "gaussian_kernel": {"product": SHARED.gaussian_product},
    "involution": {"taps": SHARED.involution_taps, "patches": involution_patches},
    "tensor_train": {"einsum": SHARED.tensor_train},
    "running_sum": {"library": SHARED.running_sum},
    "grid_sample": {"gather": SHARED.grid_sample},
    "deformable": {"gather and a product": SHARED.deformable},
}
PLAIN = BOTH | {"max_plus": {"argmax by rows": max_plus_rows, "a step for each k": max_plus_steps}}
XLA = BOTH | {"max_plus": {"a step for each k": max_plus_steps, "argmax": max_plus_argmax}}


# -------------------------------------------------------------------------------------------------------------- kernels


KERNELS = kernels(TensorFlowArrays, Formulation())


def forms_by_name(network: str, xla: bool) -> Mapping[str, Form]:
    """Return the formulations of a kernel or an operator."""
    return forms_of(network, KERNELS, XLA if xla else PLAIN)


class Kernel:
    """The forward, or gradients of which the graph keeps only what they need, or both."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray], xla: bool, variant: str):
        form = forms_by_name(case.network, xla)[variant]
        xs = {n: tf.constant(form.to_peer(n, a)) for n, a in arrays.items()}
        options = dict(case.options)

        @tf.function(jit_compile=xla)
        def step(xs):
            wrt = [xs[n] for n in case.wrt]
            with tf.GradientTape() as tape:
                tape.watch(wrt)
                y = form.function(*(xs[n] for n in case.inputs), **options)
                if case.is_loss:
                    y = tf.reduce_sum(y * xs["G"])
            if not wrt:
                return (y,)
            gradients = tape.gradient(y, wrt, None if case.is_loss else xs["G"])
            # The gradient of a gather is a sparse one until it is asked for.
            dense = (tf.convert_to_tensor(g) for g in gradients)
            return (*((y,) if case.with_forward or case.is_loss else ()), *dense)

        self._step, self._xs, self._form = step, xs, form
        self._names, self._is_loss = case.results, case.is_loss

    def step(self) -> float:
        out = self._step(self._xs)
        self._out = out[self._is_loss :]
        # A view of a result waits for it and copies nothing; .numpy() would copy.
        for t in self._out:
            memoryview(t)
        return float(out[0]) if self._is_loss else 0.0

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


# ------------------------------------------------------------------------------------------------------------- training


class TensorFlowTraining:
    """A training step of a network's graph by `tf.GradientTape`."""

    def __init__(self, problem: NetworkCase, arrays: dict[str, np.ndarray], xla: bool, variant: str):
        graph, lib = problem.graph(), TensorFlowArrays(forms.by_name(variant))
        self.held = held = interpreter.orders(graph)
        given = interpreter.held_arrays(arrays, held)
        self.x, self.y = tf.constant(given.pop("x")), tf.constant(given.pop("y"))
        self.state = {n: tf.Variable(a, trainable=n in graph.parameters) for n, a in given.items()}
        trained = list(graph.parameters) if problem.task == "step" else []

        @tf.function(jit_compile=xla)
        def step(x, y):
            with tf.GradientTape() as tape:
                state = {n: v.value() if xla else v for n, v in self.state.items()}
                arrays = {n: tf.convert_to_tensor(v) for n, v in state.items()}
                loss, updates = interpreter.loss(graph, lib, {**arrays, "x": x, "y": y}, held)
            for n, g in zip(trained, tape.gradient(loss, [self.state[n] for n in trained]), strict=True):
                if isinstance(g, tf.IndexedSlices):
                    self.state[n].scatter_sub(tf.IndexedSlices(NETWORK_LR * g.values, g.indices))
                else:
                    self.state[n].assign_sub(NETWORK_LR * g)
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


def linear(x, w, b):
    """Return x times w, plus b where it is not None."""
    y = tf.tensordot(x, w, 1) if x.shape.rank > 2 else x @ w
    return y if b is None else y + b


def library(unrolled: bool) -> CellLibrary:
    """Return TensorFlow's operations with a while loop, or with the loop unrolled."""

    def loop(step: Step, p: Arrays, state: State, xs: tuple, collect: bool) -> tuple[State, Any]:
        steps = xs[0].shape[0]
        if unrolled:
            out = []
            for at in zip(*(tf.unstack(x) for x in xs), strict=True):
                state = step(p, state, at)
                out.append(state[0])
            return state, tf.stack(out) if collect else None
        given = [tf.TensorArray(x.dtype, steps, element_shape=x.shape[1:]).unstack(x) for x in xs]
        kept = tf.TensorArray(xs[0].dtype, steps if collect else 0, element_shape=state[0].shape)

        def body(t, state, kept):
            state = step(p, state, tuple(a.read(t) for a in given))
            return t + 1, state, kept.write(t, state[0]) if collect else kept

        _, state, kept = tf.while_loop(
            lambda t, *_: t < steps, body, (tf.constant(0), state, kept), maximum_iterations=steps
        )
        return state, kept.stack() if collect else None

    return CellLibrary(
        linear=linear,
        inputs=lambda w, start, stop: w[start:stop],
        sigmoid=tf.sigmoid,
        tanh=tf.tanh,
        elu=tf.nn.elu,
        muladd=lambda a, b, c: a * b + c,
        concat=lambda parts: tf.concat(parts, -1),
        loop=loop,
    )


class TensorFlowRecurrent:
    """A training step of a recurrent network."""

    def __init__(self, problem: Recurrent, arrays: dict[str, np.ndarray], xla: bool, unrolled: bool):
        words = problem.network == "lstm_lm"
        self.x = tf.constant(arrays["x"].astype(np.int32) if words else arrays["x"])
        self.y = tf.constant(arrays["y"].astype(np.int32))
        state = tuple(tf.constant(arrays[n]) for n in problem.states)
        self.p = {n: tf.Variable(to_peer(n, arrays[n])) for n in problem.results}
        names = list(self.p) if problem.task == "step" else []
        o = library(unrolled)
        layers = lstm_layers(o)

        def language_model(p, x, state):
            h = layers(p, tf.gather(p["embedding.weight"], x), state)
            return tf.reshape(h, (-1, h.shape[-1])) @ p["decoder.weight"] + p["decoder.bias"]

        network = language_model if words else networks(o)[problem.network]

        @tf.function(jit_compile=xla)
        def step(x, y):
            with tf.GradientTape() as tape:
                logits = network(
                    {n: v if words and n == "embedding.weight" else v.value() for n, v in self.p.items()}, x, state
                )
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
            for n, g in zip(names, tape.gradient(loss, [self.p[n] for n in names]), strict=True):
                if isinstance(g, tf.IndexedSlices):
                    self.p[n].scatter_sub(tf.IndexedSlices(LR * g.values, g.indices))
                else:
                    self.p[n].assign_sub(LR * g)
            return loss

        self._step = step

    def step(self) -> float:
        """Train on the batch and return the loss."""
        return float(self._step(self.x, self.y))

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        return {n: to_peer(n, v.numpy()) for n, v in self.p.items()}


class TensorFlowForward:
    """The output of a function of tensors in one tf.function."""

    def __init__(self, f: Callable[..., Any], xla: bool, *given: Any):
        self.f, self.given = tf.function(f, jit_compile=xla), given

    def step(self) -> float:
        """Run the forward pass; there is no loss."""
        self.output = self.f(*self.given)
        memoryview(self.output)  # waits for it and copies nothing
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        """Return the output."""
        return {"output": self.output.numpy()}


def forward(problem: Any, arrays: dict[str, np.ndarray], peer: str, variant: str) -> TensorFlowForward:
    """Return the session of a problem without training. Weights are constants of the program, as in a saved model."""
    xla = peer.startswith("xla")
    if isinstance(problem, RecurrentForward):
        p = {n: tf.constant(to_peer(n, arrays[n])) for n in problem.weights}
        network = networks(library(peer.endswith("unrolled")))[problem.network]
        states = tuple(tf.constant(arrays[n]) for n in problem.states)
        return TensorFlowForward(lambda x, states: network(p, x, states), xla, tf.constant(arrays["x"]), states)
    graph, lib = problem.graph(), TensorFlowArrays(forms.by_name(variant))
    held = interpreter.orders(graph)
    given = {n: tf.constant(a) for n, a in interpreter.held_arrays(arrays, held).items()}
    x = given.pop("x")
    return TensorFlowForward(lambda x: interpreter.loss(graph, lib, {**given, "x": x}, held)[0], xla, x)


def variants(problem: Any, peer: str) -> tuple[str, ...]:
    """Return the names of the formulations to choose from."""
    if isinstance(problem, NetworkCase):
        return tuple(f.name for f in forms.applicable(problem.graph()) if peer == "xla" or not f.slices)
    if isinstance(problem, Recurrent):
        return ("",)
    if problem.network == "adam":
        return ("",)
    return applicable(forms_by_name(problem.network, peer == "xla"), problem.shapes or {}, problem.options)


def build(problem: Any, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Any:
    """Return the problem's session."""
    if problem.task not in ("step", "loss"):
        raise NotImplementedError(f"TensorFlow has no session for the {problem.task} alone")
    if isinstance(problem, NetworkCase | Recurrent) and not problem.training:
        return forward(problem, arrays, peer, variant)
    xla = peer.startswith("xla")
    if isinstance(problem, NetworkCase):
        return TensorFlowTraining(problem, arrays, xla, variant)
    if isinstance(problem, Recurrent):
        return TensorFlowRecurrent(problem, arrays, xla, peer.endswith("unrolled"))
    return Adam(problem, arrays, xla) if problem.network == "adam" else Kernel(problem, arrays, xla, variant)
