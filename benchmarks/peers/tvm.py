"""Apache TVM: problems as functions of Relax with its own gradients, one call of its virtual machine a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from benchmarks.graphs import interpreter
from benchmarks.kernel_cases import Case
from benchmarks.models import NetworkCase
from benchmarks.peers import Form, applicable, forms_of
from benchmarks.peers.formulations import Kernels, Operators
from benchmarks.peers.recurrent_cells import Arrays, CellLibrary, State, Step, networks, to_peer
from benchmarks.peers.tvm_arrays import RelaxArray, RelaxArrays
from benchmarks.peers.tvm_expressions import capsule_conv
from benchmarks.peers.tvm_programs import After, Body, compiled, lowered, program, target_of
from benchmarks.peers.tvm_tuning import trials, tuned
from benchmarks.recurrent_steps import LR, Recurrent, RecurrentForward
from einsmith.bench.networks import LR as NETWORK_LR

LIB = RelaxArrays()
PLAIN, SHARED = Kernels(LIB), Operators(LIB)


def conv_relu_pool(x, w, bias, padding):
    """The same with the bias of channels that come first."""
    return PLAIN.relu_pool(PLAIN.conv(x, w, 1, padding, 1, 1) + LIB.reshape(bias, [-1, 1, 1]))


def is_differentiable(shapes: Mapping[str, tuple[int, ...]], options: Mapping[str, Any]) -> bool:
    """Return whether a convolution needs no gradient, or has no dilation, with which Relax's gradient fails."""
    return "G" not in shapes or options["dilation"] == 1


def conv_of_spread_filter(x, w, stride, padding, dilation, groups):
    """A dilated convolution as one of a filter with zeros between its taps."""
    for axis in (2, 3):
        shape = list(w.shape)
        gaps = LIB.constant(np.zeros([*shape[: axis + 1], dilation - 1, *shape[axis + 1 :]], np.float32))
        taps = LIB.reshape(w, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
        wide = LIB.reshape(LIB.concat([taps, gaps], axis + 1), [*shape[:axis], -1, *shape[axis + 1 :]])
        w = wide.cut(axis, 0, dilation * (shape[axis] - 1) + 1)
    return PLAIN.conv(x, w, stride, padding, 1, groups)


KERNELS: dict[str, dict[str, Form]] = {
    "product": {"library": Form(LIB.product)},
    "conv": {
        "library": Form(PLAIN.conv, applies=is_differentiable),
        "spread filter": Form(conv_of_spread_filter, applies=lambda shapes, options: options["dilation"] > 1),
    },
    "conv_relu_pool": {"library": Form(conv_relu_pool)},
    "softmax": {"library": Form(PLAIN.softmax)},
    "layer_norm": {"library": Form(PLAIN.layer_norm)},
    "batch_norm": {"library": Form(PLAIN.batch_norm)},
    "relu_pool": {"library": Form(PLAIN.relu_pool)},
    "bias_gelu": {"library": Form(PLAIN.bias_gelu)},
}


def capsule_as_conv(a: RelaxArray, w: RelaxArray, stride: int) -> RelaxArray:
    """One convolution: (b, i) are its batch, (c, m) its input channels, (k, j) its output channels."""
    (b, c, h, wd, i, m), (k, _, r, s, _, j) = a.shape, w.shape
    x = LIB.reshape(LIB.transpose(a, (0, 4, 1, 5, 2, 3)), (b * i, c * m, h, wd))
    f = LIB.reshape(LIB.transpose(w, (0, 5, 1, 4, 2, 3)), (k * j, c * m, r, s))
    y = LIB.conv(x, f, (stride, stride), [(0, 0), (0, 0)], (1, 1), 1)
    return LIB.transpose(LIB.reshape(y, (b, i, k, j, *y.shape[2:])), (0, 2, 4, 5, 1, 3))


OPERATORS: dict[str, dict[str, Callable]] = {
    "capsule_conv": {"expression": capsule_conv, "convolution": capsule_as_conv},
    "pairwise": {"product": SHARED.pairwise_product, "differences": SHARED.pairwise_differences},
    "gaussian_kernel": {"product": SHARED.gaussian_product, "differences": SHARED.gaussian_differences},
    "bilinear": {"matrix": SHARED.bilinear_matrix, "outer": SHARED.bilinear_outer},
    "running_sum": {"library": SHARED.running_sum},
}


class TvmProgram:
    """A compiled program: a function of arrays by name, some of which its results replace at each step.

    replaced: the arrays that the results after the first one are, in order; the others stay in `out`
    """

    def __init__(
        self, name: str, arrays: Mapping[str, np.ndarray], wrt: Sequence[str], body: Body, after: After, threads: int,
        peer: str, replaced: Sequence[str] = (), is_network: bool = False,
    ):  # fmt: skip
        target = target_of(threads)
        mod = lowered(program(arrays, wrt, body, after), target)
        self.described: dict[str, Any] = {}
        if peer == "tvm-tuned":
            mod, self.described = tuned(mod, target, name, trials(is_network or replaced != ()))
        self._machine = compiled(mod, target)
        self._main = self._machine["main"]
        self._replaced = tuple(replaced)
        self.start(arrays)

    def describe(self) -> dict[str, Any]:
        """Return what tuning took, where there was any."""
        return self.described

    def start(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Begin again from these values."""
        self.held = {n: tvm.runtime.tensor(np.ascontiguousarray(a)) for n, a in arrays.items()}

    def __call__(self) -> float:
        """Run the program and return its first result."""
        loss, *self.out = self._main(*self.held.values())
        self.held |= zip(self._replaced, self.out, strict=False)
        return float(loss.numpy())


class TvmKernel:
    """The forward of a kernel, or the gradients of sum(output * G) without the unused parts of the forward."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str):
        self._form = form = forms_of(case.network, KERNELS, OPERATORS)[variant]
        self._names, self._is_loss = case.results, case.is_loss
        options = dict(case.options)
        has_output = case.with_forward and not case.is_loss or not case.wrt

        def body(xs: Mapping[str, RelaxArray]) -> tuple[RelaxArray, Sequence[RelaxArray]]:
            y = form.function(*(xs[n] for n in case.inputs), **options)
            loss = LIB.sum(y * xs["G"], range(y.ndim), False) if case.wrt else LIB.constant(np.float32(0))
            return loss, (y,)

        def after(
            loss: RelaxArray, more: Sequence[RelaxArray], d: Mapping[str, RelaxArray], _: Any
        ) -> list[RelaxArray]:
            told = loss if case.is_loss else LIB.constant(np.float32(0))
            return [told, *(more if has_output else ()), *(d[n] for n in case.wrt)]

        held = {n: form.to_peer(n, a) for n, a in arrays.items()}
        self._program = TvmProgram(f"{case.name}-{variant}", held, case.wrt, body, after, threads, peer)
        self.describe = self._program.describe

    def step(self) -> float:
        """Return the loss, where the problem has one."""
        return self._program()

    def results(self) -> dict[str, np.ndarray]:
        """Return the output and the gradients."""
        out = zip(self._names, self._program.out, strict=True)
        return {n: self._form.from_peer(n, x.numpy()) for n, x in out}


def sgd(names: Sequence[str], rate: float) -> After:
    """Return what follows a gradient: the loss, and parameters that have made a step."""

    def after(
        loss: RelaxArray, more: Sequence[RelaxArray], d: Mapping[str, RelaxArray], given: Mapping[str, RelaxArray]
    ) -> list[RelaxArray]:
        return [loss, *(given[n] - d[n] * rate for n in names), *more]

    return after


class TvmTraining:
    """A training step of a network's graph: forward, loss, gradient and SGD's update in one function."""

    def __init__(self, problem: NetworkCase, arrays: dict[str, np.ndarray], threads: int, peer: str):
        graph = problem.graph()
        self._held = orders = interpreter.orders(graph, LIB)
        given = interpreter.held_arrays(arrays, orders)
        self._names = [*graph.parameters]

        def body(xs: Mapping[str, RelaxArray]) -> tuple[RelaxArray, Sequence[RelaxArray]]:
            loss, updates = interpreter.loss(graph, LIB, xs, orders)
            self._names.extend(updates)
            return loss, list(updates.values())

        after, wrt = sgd(graph.parameters, NETWORK_LR), graph.parameters
        self._program = TvmProgram(problem.name, given, wrt, body, after, threads, peer, self._names)
        self.describe = self._program.describe

    def restart(self, arrays: dict[str, np.ndarray]) -> None:
        """Begin again from these values."""
        self._program.start(interpreter.held_arrays(arrays, self._held))

    def step(self) -> float:
        """Train on the batch and return the loss."""
        return self._program()

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters and the running statistics."""
        return interpreter.told_arrays({n: self._program.held[n].numpy() for n in self._names}, self._held)


def _loop(step: Step, p: Arrays, state: State, xs: tuple, collect: bool) -> tuple[State, Any]:
    """Unroll a loop: Relax cannot differentiate one."""
    out = []
    for t in range(xs[0].shape[0]):
        state = step(p, state, tuple(x[t] for x in xs))
        out.append(LIB.reshape(state[0], [1, *state[0].shape]))
    return state, LIB.concat(out, 0) if collect else None


CELLS = CellLibrary(
    linear=lambda x, w, b: LIB.dense(x, w, False) if b is None else LIB.dense(x, w, False) + b,
    inputs=lambda w, start, stop: w[start:stop],
    sigmoid=LIB.sigmoid,
    tanh=LIB.tanh,
    elu=LIB.elu,
    muladd=lambda a, b, c: a * b + c,
    concat=lambda parts: LIB.concat(parts, -1),
    loop=_loop,
)


class TvmRecurrent:
    """A training step of a recurrent network, whose loop is unrolled."""

    def __init__(self, problem: Recurrent, arrays: dict[str, np.ndarray], threads: int, peer: str):
        if problem.network == "lstm_lm":
            raise NotImplementedError("the language model, whose table of embeddings is updated whole")
        network = networks(CELLS)[problem.network]
        given = {n: np.ascontiguousarray(to_peer(n, a)) if n in problem.results else a for n, a in arrays.items()}
        given["y"] = given["y"].astype(np.int32)

        def body(xs: Mapping[str, RelaxArray]) -> tuple[RelaxArray, Sequence[RelaxArray]]:
            logits = network(xs, xs["x"], tuple(xs[n] for n in problem.states))
            return LIB.cross_entropy(logits, xs["y"]), ()

        self._names = problem.results
        after = sgd(self._names, LR)
        self._program = TvmProgram(problem.name, given, self._names, body, after, threads, peer, self._names)
        self.describe = self._program.describe

    def step(self) -> float:
        """Train on the batch and return the loss."""
        return self._program()

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        return {n: to_peer(n, self._program.held[n].numpy()) for n in self._names}


class TvmForward:
    """The output of a network in evaluation."""

    def __init__(self, problem: NetworkCase | RecurrentForward, arrays: dict[str, np.ndarray], threads: int, peer: str):
        if isinstance(problem, RecurrentForward):
            states, network = problem.states, networks(CELLS)[problem.network]
            given = {n: np.ascontiguousarray(to_peer(n, arrays[n])) for n in problem.weights}
            given |= {n: arrays[n] for n in ("x", *states)}

            def output(xs: Mapping[str, RelaxArray]) -> RelaxArray:
                return network(xs, xs["x"], tuple(xs[n] for n in states))

        else:
            graph = problem.graph()
            orders = interpreter.orders(graph, LIB)
            given = interpreter.held_arrays(arrays, orders)
            del given["y"]

            def output(xs: Mapping[str, RelaxArray]) -> RelaxArray:
                return interpreter.loss(graph, LIB, xs, orders)[0]

        def body(xs: Mapping[str, RelaxArray]) -> tuple[RelaxArray, Sequence[RelaxArray]]:
            return LIB.constant(np.float32(0)), (output(xs),)

        after: After = lambda loss, more, d, given: [loss, *more]  # noqa: E731
        self._program = TvmProgram(problem.name, given, (), body, after, threads, peer, is_network=True)
        self.describe = self._program.describe

    def step(self) -> float:
        """Run the forward pass; there is no loss."""
        return self._program()

    def results(self) -> dict[str, np.ndarray]:
        """Return the output."""
        return {"output": self._program.out[0].numpy()}


def variants(problem: Any, peer: str) -> tuple[str, ...]:
    """Return the names of the formulations to choose from; none of an operator that is not written for TVM.
    Tuned is the first one alone, as each takes minutes."""
    if not isinstance(problem, Case):
        return ("",)
    names = applicable(forms_of(problem.network, KERNELS, OPERATORS), problem.shapes or {}, problem.options)
    return names[:1] if peer == "tvm-tuned" else names


def build(problem: Any, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Any:
    """Return the problem's session."""
    if isinstance(problem, NetworkCase | RecurrentForward) and not problem.training:
        return TvmForward(problem, arrays, threads, peer)
    if isinstance(problem, NetworkCase):
        return TvmTraining(problem, arrays, threads, peer)
    if isinstance(problem, Recurrent):
        return TvmRecurrent(problem, arrays, threads, peer)
    return TvmKernel(problem, arrays, threads, peer, variant)
