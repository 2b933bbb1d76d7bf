"""Products and convolutions of bfloat16 and of 8-bit integers: python -m benchmarks.narrow_kernels [bf16] [int8]

Each kernel beside PyTorch (oneDNN), onnxruntime and JAX where these have it, in one process and in turns, on tensors of
the narrow type; results are verified first: integers exactly, bfloat16 with the products of the rounded numbers in
double precision. "of the peak" counts against the rate of the processor's dot product (vdpbf16ps, vpdpbusd, ...) of
Einsmith's register tile, measured in the same run.

On some processors PyTorch and onnxruntime use tile registers (AMX); ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 keeps PyTorch's
library from them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console

from benchmarks import random_cases
from benchmarks.choices import calls_of
from benchmarks.convolutions import Conv
from benchmarks.driver import Parser, geometric_mean, in_turns, table
from benchmarks.kernel_cases import Case, convolution, product
from benchmarks.peers import torch_kernels
from einsmith.base import dtypes as dt
from einsmith.codegen.loopnest.dots import DOTS
from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from einsmith.kernels.contraction.config import Tiled
from einsmith.runtime import buffers
from einsmith.tuning.calibration import calibrate, probes
from einsmith.tuning.kernels.measure import Prepared, compile_kernel, prepare_code

ROUNDS = 7
"""In each of which every library has a turn; the shortest call counts."""
TURN = 0.02
"""Seconds of a turn at least."""
DOTS_OF = {"bf16": ("bf16",), "int8": ("u8i8", "i16")}
"""The dot products that compute with a type, the best first."""
PEERS = ("PyTorch", "onnxruntime", "JAX")
BF16_TOLERANCE = 0.02
"""Of the largest element: half a unit in the last place of the result is 0.004 of it."""


def cases(what: str, seed: int, count: int) -> Iterator[Case]:
    """Products and convolutions that were chosen, and as many as are asked for that are drawn."""
    for n in (256, 512, 1024, 2048):
        yield product(n, n, n, "nt")
    yield product(512, 3072, 768, "nt")
    yield product(128, 4096, 1024, "nt")
    for conv in (Conv(64, 64, 3, 1, 1, 56), Conv(256, 64, 1, 1, 1, 56), Conv(128, 128, 3, 2, 1, 56),
                 Conv(256, 256, 3, 1, 1, 14), Conv(3, 64, 7, 2, 1, 224)):  # fmt: skip
        yield from (c for c in convolution(conv, 8) if what == "bf16" or not c.wrt)
    number = drawn = 0
    while drawn < count:
        case, number = random_cases.draw(seed, number), number + 1
        if not (what == "int8" and case.wrt) and case.flops > 2e7:
            drawn += 1
            yield case


def arrays_of(case: Case, what: str) -> dict[str, np.ndarray]:
    """Random arguments: numbers that bfloat16 holds; bytes, unsigned in the first argument."""
    rng, out = np.random.default_rng(0), dict[str, np.ndarray]()
    assert case.shapes is not None
    for n, (name, shape) in enumerate(case.shapes.items()):
        if what == "bf16":
            out[name] = dt.bf16.rounded(rng.standard_normal(shape, np.float32)).astype(np.float32)
        else:
            low, high, dtype = (-128, 128, np.int8) if n else (0, 256, np.uint8)
            out[name] = np.asarray(rng.integers(low, high, shape, dtype))
    return out


# --------------------------------------------------------------------------------------------------------- libraries


def of_torch(case: Case, xs: Sequence[torch.Tensor]) -> torch.Tensor:
    """A case's operator in PyTorch."""
    options: dict[str, Any] = dict(case.options)
    if not case.wrt:
        return (torch_kernels.product if case.network == "product" else torch_kernels.conv)(*xs, **options)
    how = [options[n] for n in ("stride", "padding", "dilation", "groups")]
    *others, g = xs
    assert case.shapes is not None
    shape = case.shapes[case.wrt[0]]
    if case.wrt == (case.inputs[0],):
        return torch.nn.grad.conv2d_input(shape, others[-1], g, *how)
    return torch.nn.grad.conv2d_weight(others[0], shape, g, *how)


def torch_call(case: Case, arrays: Sequence[np.ndarray], what: str) -> Callable[[], Any] | None:
    """PyTorch has products and convolutions of bfloat16, of int8 products alone, of signed bytes, and its quantized
    convolution, which rescales to bytes."""
    tensors = [torch.from_numpy(a) for a in arrays]
    if what == "bf16":
        tensors = [t.bfloat16() for t in tensors]
        if case.network == "conv":
            tensors = [t.contiguous(memory_format=torch.channels_last) for t in tensors]
        return lambda: of_torch(case, tensors)
    if case.network == "product" and tensors[0].ndim == 2:
        signed = [tensors[0].view(torch.int8), tensors[1]]
        options = dict(case.options)
        a, b = (t.mT if options[n] else t for t, n in zip(signed, ("ta", "tb"), strict=True))
        return lambda: torch._int_mm(a, b)
    if case.network == "conv":
        options = dict(case.options)
        x = torch._make_per_tensor_quantized_tensor(tensors[0], 1.0, 0).contiguous(memory_format=torch.channels_last)
        w = torch._make_per_tensor_quantized_tensor(tensors[1], 1.0, 0)
        how = [[options[n]] * 2 for n in ("stride", "padding", "dilation")]
        packed = torch.ops.quantized.conv2d_prepack(w, None, *how, options["groups"])
        return lambda: torch.ops.quantized.conv2d(x, packed, 1e4, 0)
    return None


def onnxruntime_call(case: Case, arrays: Sequence[np.ndarray], what: str, threads: int) -> Callable[[], Any] | None:
    """MatMulInteger and ConvInteger, which sum in int32; weights are initializers."""
    if what != "int8":
        return None
    try:
        import onnxruntime
    except ImportError:
        return None
    from onnx import TensorProto, helper, numpy_helper

    options = dict(case.options)
    x, w = arrays
    nodes = []
    if case.network == "product":
        w = np.ascontiguousarray(np.swapaxes(w, -1, -2)) if options["tb"] else w
        if options["ta"]:
            nodes.append(helper.make_node("Transpose", ["x"], ["t"], perm=[*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]))
        nodes.append(helper.make_node("MatMulInteger", ["t" if options["ta"] else "x", "w"], ["y"]))
    else:
        how: dict[str, Any] = {"strides": [options["stride"]] * 2, "pads": [options["padding"]] * 4,
                "dilations": [options["dilation"]] * 2, "group": options["groups"]}  # fmt: skip
        nodes.append(helper.make_node("ConvInteger", ["x", "w"], ["y"], **how))
    graph = helper.make_graph(
        nodes, "case", [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others have their turns
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})[0]


def jax_call(case: Case, arrays: Sequence[np.ndarray], what: str) -> Callable[[], Any] | None:
    """Products, with sums of float32 or int32."""
    if case.network != "product":
        return None
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return None
    options = dict(case.options)
    a, b = (jnp.asarray(x, jnp.bfloat16 if what == "bf16" else x.dtype) for x in arrays)

    @jax.jit
    def f(a: Any, b: Any) -> Any:
        a, b = (jnp.swapaxes(x, -1, -2) if options[n] else x for x, n in ((a, "ta"), (b, "tb")))
        return jnp.matmul(a, b, preferred_element_type=jnp.bfloat16 if what == "bf16" else jnp.int32)

    return lambda: f(a, b).block_until_ready()


# ---------------------------------------------------------------------------------------------------------- Einsmith


class Ours:
    """The kernel in the configuration that is chosen for it, on memory of its own."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray], what: str, target: Target, threads: int):
        types = (dt.bf16,) * (len(arrays) + 1) if what == "bf16" else (dt.u8, dt.i8, dt.i32)
        calls, names = calls_of(case, types)
        if len(calls) != 1:
            raise ValueError(f"{case.name} is {len(calls)} kernels")
        ((kernel, tensors),) = ((c.kernel, c.tensors) for c in calls)
        pattern, config, _ = autoconfig.choose(kernel, target).alternatives[0]
        self.is_in_words = any(isinstance(p, Tiled) and p.words is not None for p in getattr(config, "pieces", ()))
        self._dtype = kernel.buffers[-1].dtype
        held, seen = [], []
        for b, tensor in zip(kernel.buffers, tensors, strict=True):
            held.append(buffers.zeros((max(1, b.size),), b.dtype.numpy))
            strides = [s * held[-1].itemsize for s in b.strides]
            seen.append(np.lib.stride_tricks.as_strided(held[-1], b.shape, strides))
            if tensor in names:
                seen[-1][...] = b.dtype.narrow(arrays[names[tensor]])
        code = compile_kernel(kernel, autoconfig.pattern_of(pattern), config, target)
        self._ready: Prepared = prepare_code(code, held, buffers.empty((code.workspace,), np.uint8), threads)
        self._result = seen[-1]

    def __call__(self) -> None:
        self._ready.program.run()

    @property
    def result(self) -> np.ndarray:
        """Of the last call."""
        return self._dtype.wide(self._result)


class Peaks:
    """Multiply-adds a second of the register tile, of float32 and of each dot product: of one thread, times the
    threads; the best of runs before and between the cases."""

    def __init__(self, target: Target, threads: int):
        every = {"f32": None, **{n: DOTS[n] for n, _ in target.dots}}
        self._tiles = {name: probes.tile(target, dot) for name, dot in every.items()}
        self._points = {name: threads * (1 if dot is None else dot.points) for name, dot in every.items()}

    def run(self) -> None:
        for _ in range(ROUNDS):
            for tile in self._tiles.values():
                tile.run()

    @property
    def rates(self) -> dict[str, float]:
        return {name: self._points[name] / tile.seconds for name, tile in self._tiles.items()}


# ------------------------------------------------------------------------------------------------------------ timing


def check(case: Case, arrays: dict[str, np.ndarray], what: str, got: np.ndarray) -> None:
    """Raises AssertionError where a result is not what double precision gives."""
    wanted = of_torch(case, [torch.from_numpy(a.astype(np.float64)) for a in arrays.values()]).numpy()
    if what == "int8":
        np.testing.assert_array_equal(got, wanted)
    else:
        np.testing.assert_allclose(got, wanted, rtol=0, atol=BF16_TOLERANCE * np.abs(wanted).max())


class Measured(NamedTuple):
    """A case, whether its operands lie as the dot product's words, and the seconds of a call in each library."""

    case: Case
    is_in_words: bool
    seconds: dict[str, float]

    @property
    def rate(self) -> float:
        """Multiply-adds a second."""
        return self.case.flops / 2 / self.seconds["einsmith"]

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the fastest other library."""
        others = [t for n, t in self.seconds.items() if n != "einsmith"]
        return min(others) / self.seconds["einsmith"] if others else None


def measure(case: Case, what: str, target: Target, threads: int, console: Console) -> Measured:
    """Verify and time a case in every library. Raises ValueError where it is more than one kernel."""
    arrays = arrays_of(case, what)
    ours = Ours(case, arrays, what, target, threads)
    check(case, arrays, what, ours.result)
    values = list(arrays.values())
    others = (torch_call(case, values, what), onnxruntime_call(case, values, what, threads),
              jax_call(case, values, what))  # fmt: skip
    calls: dict[str, Callable[[], Any]] = {"einsmith": ours}
    for name, call in zip(PEERS, others, strict=True):
        try:
            if call is not None:
                call()
                calls[name] = call
        except Exception as e:  # a peer that has not this operator is none
            console.print(f"{case.name}: {name}: {str(e).splitlines()[0][:120]}")
    seconds = {name: min(times) for name, times in in_turns(calls, ROUNDS, TURN).items()}
    return Measured(case, ours.is_in_words, seconds)


def show(what: str, seed: int, count: int, threads: int, console: Console) -> None:
    """Measure all cases of a type, and print the table."""
    target = replace(calibrate.target(threads), cores=threads)
    peaks, ran = Peaks(target, threads), list[Measured]()
    for case in cases(what, seed, count):
        peaks.run()
        try:
            ran.append(measure(case, what, target, threads, console))
        except ValueError as e:
            console.print(str(e))
    peaks.run()
    rates = peaks.rates
    peak = next((rates[n] for n in DOTS_OF[what] if n in rates), None)
    names = ("", "ms", "words", "of the peak", "of float32's", *(f"{n} ms" for n in PEERS), "ratio")
    rows = (
        (
            x.case.name, f"{1e3 * x.seconds['einsmith']:.3f}", "yes" if x.is_in_words else "no",
            f"{100 * x.rate / peak:.0f} %" if peak else "", f"{100 * x.rate / rates['f32']:.0f} %",
            *(f"{1e3 * x.seconds[n]:.3f}" if n in x.seconds else "" for n in PEERS),
            "" if x.ratio is None else f"{x.ratio:.2f}",
        )
        for x in ran
    )  # fmt: skip
    console.print(table(f"{what}, {threads} threads", names, rows))
    console.print("multiply-adds in billions a second: " + ", ".join(f"{n} {r / 1e9:.0f}" for n, r in rates.items()))
    if peak and ran:
        console.print(f"of the peak: geometric mean {geometric_mean([100 * x.rate / peak for x in ran]):.0f} %")
    if ratios := [x.ratio for x in ran if x.ratio is not None]:
        console.print(f"ratio to the fastest other library: geometric mean {geometric_mean(ratios):.2f}")


def main() -> int:
    """Run what the command line asks for."""
    parser = Parser(
        __doc__, DOTS_OF, threads=(2, ""), seed=(1, "what cases are drawn from"), count=(12, "random cases")
    )
    args = parser.read()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if hasattr(os, "sched_setaffinity"):  # JAX takes as many threads as there are processors
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    torch.set_num_threads(args.threads)
    for what in args.names or DOTS_OF:
        show(what, args.seed, args.count, args.threads, Console(width=150))
    return 0


if __name__ == "__main__":
    sys.exit(main())
