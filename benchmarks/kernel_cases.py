"""The single kernels that are timed: products, convolutions in three directions, capsule convolutions, normalizations
and updates, in groups that each have a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.convolutions import Conv, distinct
from benchmarks.models import TRAINING
from benchmarks.problem import Workload

BATCH = 16
"""Images a convolution of a network gets."""
SIZES = {"1MB": ((256, 1024), (16, 64, 16, 16)), "64MB": ((16384, 1024), (64, 64, 64, 64))}
"""The tensors that a memory-bound kernel reads, in rows and as images."""
LIBRARIES = ("torch", "jax", "tensorflow")
COMPILERS = ("torch", "compile", "jax", "tensorflow", "xla")
"""With the compilers, where those may be ahead."""


@dataclass(frozen=True)
class Case(Workload):
    """One kernel: the operator `network` of `inputs`, forward, or the gradients of the inputs `wrt` for the output's
    cotangent G.

    with_forward: a gradient is timed together with the forward, as it needs what the forward finds (pooling); else on
    its own. is_loss: the loss sum(output * G) is timed, and not the output, with the gradients of `wrt`. shapes: of all
    arrays by name, G's too. winograd: whether Einsmith may use Winograd's form.
    """

    kind = "kernels"
    has_reference = True

    shapes: Mapping[str, tuple[int, ...]] | None = None
    wrt: tuple[str, ...] = ()
    with_forward: bool = True
    is_loss: bool = False
    winograd: bool = False


class Line(NamedTuple):
    """What a group must show: `measure` is "ratio" (to the best peer; or, if that is nearer, 85 % of the roofline),
    "torch" (the ratio to PyTorch, where its library runs below 60 % of the peak) or "peak" (percent of the multiply-add
    peak); `target` its least value."""

    measure: str
    target: float


class Group(NamedTuple):
    """Cases that are judged together, on `threads` threads, timed against `peers`."""

    name: str
    cases: tuple[Workload, ...]
    lines: tuple[Line, ...]
    threads: int = 2
    peers: tuple[str, ...] = LIBRARIES


def _values(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Callable[[], dict[str, np.ndarray]]:
    def make() -> dict[str, np.ndarray]:
        # A period that is prime and long: cheap, and no two rows or channels are alike.
        block = np.random.default_rng(seed).standard_normal(1_000_003, np.float32)
        out, start = {}, 0
        for name, shape in shapes.items():
            n = math.prod(shape)
            out[name] = np.resize(np.roll(block, start), n).reshape(shape)
            start += 99_991
        return out

    return make


def kernel_case(
    name: str,
    network: str,
    shapes: Mapping[str, tuple[int, ...]],
    output: tuple[int, ...],
    macs: int = 0,
    wrt: tuple[str, ...] = (),
    with_forward: bool = False,
    options: Mapping[str, object] | None = None,
    specials: tuple[tuple[str, int], ...] = (),
    needs: tuple[str, ...] = (),
    kind: type[Case] = Case,
) -> Case:
    """Return a kernel as a case of a kind. needs: the inputs that it reads besides G (all, where nothing is named)."""
    whole = {**shapes, "G": output} if wrt else dict(shapes)
    read = sum(math.prod(shapes[n]) for n in (needs or shapes))
    moved = read + math.prod(output) * (1 + (with_forward and bool(wrt))) + sum(math.prod(shapes[n]) for n in wrt)
    results = (*(("Y",) if with_forward or not wrt else ()), *(f"d{n}" for n in wrt))
    batch, values = next(iter(shapes.values()))[0], _values(whole, len(shapes))
    how: dict[str, Any] = {"training": False, "options": options or {}, "inputs": tuple(shapes), "specials": specials}
    how |= {"shapes": whole, "wrt": wrt, "with_forward": with_forward, "nbytes": 4 * moved}
    return kind(name, network, batch, 2 * macs, results, values, **how)


def product(m: int, n: int, k: int, transposed: str = "nn", batch: int = 0) -> Case:
    """Y[m,n] = A[m,k] B[k,n], each operand as it is (n) or stored transposed (t)."""
    a, b = ((k, m) if transposed[0] == "t" else (m, k)), ((n, k) if transposed[1] == "t" else (k, n))
    lead = (batch,) if batch else ()
    size = f"{m}" if m == k == n else f"{m}x{n}x{k}"
    name = f"product-{f'{batch}x' if batch else ''}{size}-{transposed}"
    options = {"ta": transposed[0] == "t", "tb": transposed[1] == "t"}
    macs = max(batch, 1) * m * k * n
    return kernel_case(name, "product", {"A": (*lead, *a), "B": (*lead, *b)}, (*lead, m, n), macs, options=options)


def convolution(conv: Conv, batch: int = BATCH) -> Iterator[Case]:
    """Y = conv(X, W), dX and dW."""
    x = (batch, conv.c_in, conv.size, conv.size)
    w = (conv.c_out, conv.c_in // conv.groups, conv.kernel, conv.kernel)
    y = (batch, conv.c_out, conv.out, conv.out)
    options = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation, "groups": conv.groups}
    for direction, wrt, needs in (("forward", (), ()), ("dX", ("X",), ("W",)), ("dW", ("W",), ("X",))):
        name = f"conv-{conv}-{direction}"
        yield kernel_case(name, "conv", {"X": x, "W": w}, y, conv.macs(batch), wrt, options=options, needs=needs)


def of_one_image(conv: Conv) -> Case:
    """Return the forward of a convolution at batch 1."""
    case = next(convolution(conv, 1))
    return replace(case, name=f"{case.name}-b1")


def in_winograd_form(case: Case) -> Case:
    """The same with Winograd's form allowed; what counts is F(4x4, 3x3)'s arithmetic, a quarter of the direct one."""
    return replace(case, name=f"{case.name}-winograd", winograd=True, flops=case.flops // 4)


def lenet_convolution(layer: int, batch: int = 256) -> Iterator[Case]:
    """max_pool(relu(conv(X, W) + bias), 2): the first or the second layer of LeNet-5; gradients with the forward."""
    c_in, c_out, size, padding = ((1, 6, 28, 2), (6, 16, 14, 0))[layer - 1]
    n = size + 2 * padding - 4
    shapes = {"X": (batch, c_in, size, size), "W": (c_out, c_in, 5, 5), "bias": (c_out,)}
    macs = batch * c_out * n * n * c_in * 25
    for direction, wrt in (("forward", ()), ("dX", ("X",)), ("dW", ("W", "bias"))):
        name = f"lenet-conv{layer}-{direction}"
        output = (batch, c_out, n // 2, n // 2)
        parts = 2 if wrt else 1
        yield kernel_case(name, "conv_relu_pool", shapes, output, parts * macs, wrt, True, {"padding": padding})


def capsule(stride: int, batch: int = 16, kinds: int = 32, size: int = 14) -> Iterator[Case]:
    """The capsule convolution of `problems.capsule_conv`, each direction on its own."""
    n = (size - 3) // stride + 1
    macs = batch * kinds * n * n * 16 * (kinds * 9 * 4)
    shapes = {"A": (batch, kinds, size, size, 4, 4), "W": (kinds, kinds, 3, 3, 4, 4)}
    for direction, wrt, needs in (("forward", (), ()), ("dA", ("A",), ("W",)), ("dW", ("W",), ("A",))):
        name = f"capsule-s{stride}-{direction}"
        output, options = (batch, kinds, n, n, 4, 4), {"stride": stride}
        yield kernel_case(name, "capsule_conv", shapes, output, macs, wrt, options=options, needs=needs)


def streaming(tag: str, rows: tuple[int, int], image: tuple[int, int, int, int]) -> Iterator[Case]:
    """Softmax, layer norm, batch norm, ReLU with pooling, bias with GELU, and Adam's update, of equally many numbers as
    rows and as images."""
    n, row, channels = math.prod(rows), rows[1], image[1]
    pooled = (*image[:2], image[2] // 2, image[3] // 2)
    yield kernel_case(f"softmax-{tag}", "softmax", {"X": rows}, rows, specials=(("exp", n),))
    yield kernel_case(f"layer_norm-{tag}", "layer_norm", {"X": rows, "scale": (row,), "shift": (row,)}, rows)
    shapes = {"X": image, "scale": (channels,), "shift": (channels,)}
    yield kernel_case(f"batch_norm-{tag}", "batch_norm", shapes, image)
    yield kernel_case(f"relu_pool-{tag}", "relu_pool", {"X": image}, pooled)
    yield kernel_case(f"bias_gelu-{tag}", "bias_gelu", {"X": rows, "bias": (row,)}, rows, specials=(("erf", n),))
    yield adam(f"adam-{tag}", n)


def adam(name: str, n: int) -> Case:
    """Adam's update of one parameter and its two moments, in place: p, m, v and g read, p, m and v written."""
    shapes = dict.fromkeys("pgmv", (n,))

    def make() -> dict[str, np.ndarray]:
        values = _values(shapes, 4)()
        # Far from zero, where libraries differ in what they add epsilon to.
        return values | {"m": 0.1 * values["m"], "v": 0.01 * values["v"] ** 2 + np.float32(1e-4)}

    plain, specials = kernel_case(name, "adam", shapes, (n,)), (("sqrt", n), ("div", n))
    return replace(plain, batch=1, results=("p", "m", "v"), make=make, nbytes=4 * 7 * n, specials=specials)


def _convolutions(networks: Sequence[str], take: Callable[[Conv], bool]) -> tuple[Case, ...]:
    return tuple(case for conv in distinct(*networks) if take(conv) for case in convolution(conv))


def _groups() -> Iterator[Group]:
    ways = ("nn", "nt", "tn", "tt")
    products = tuple(product(n, n, n, way) for n in (256, 512, 1024, 2048) for way in ways)
    for threads, percent in ((1, 92), (2, 86)):
        lines = (Line("peak", percent), Line("ratio", 1.0), Line("torch", 2.0))
        yield Group(f"products, {threads} thread{'s'[: threads - 1]}", products, lines, threads)
    skinny = ((64, 4096, 1024), (64, 1024, 256), (256, 10, 84), (1, 4096, 1024))
    few = (*(product(*size) for size in skinny), product(64, 64, 64, batch=96), product(16, 16, 8, batch=1152))
    yield Group("skinny and batched products", few, (Line("ratio", 1.3),))
    both = ("resnet18", "resnet50")
    wide = _convolutions(both, lambda c: (c.kernel, c.stride) == (3, 1) and c.c_in >= 128)
    winograd = tuple(in_winograd_form(c) for c in wide if c.wrt in ((), ("X",)))
    yield Group("ResNet 3x3 in Winograd's form", winograd, (Line("ratio", 1.4),))
    for name, target, take in (
        ("3x3 stride 1", 1.0, lambda c: (c.kernel, c.stride) == (3, 1)),
        ("3x3 stride 2", 1.1, lambda c: (c.kernel, c.stride) == (3, 2)),
        ("stem and 1x1 stride 2", 1.5, lambda c: c.kernel == 7 or (c.kernel, c.stride) == (1, 2)),
    ):
        yield Group(f"ResNet {name}", _convolutions(both, take), (Line("ratio", target),))
    mobile = ("mobilenet_v2", "efficientnet_lite0")
    for name, networks, take in (
        ("depthwise 3x3", mobile, lambda c: c.depthwise and c.kernel == 3),
        ("depthwise 5x5", mobile, lambda c: c.depthwise and c.kernel == 5),
        ("grouped", ("shufflenet",), lambda c: c.groups > 1 and not c.depthwise),
        ("1x1", ("resnet50", "mobilenet_v2"), lambda c: (c.kernel, c.stride, c.groups) == (1, 1, 1)),
    ):
        yield Group(f"{name} convolutions", _convolutions(networks, take), (Line("ratio", 1.5),))
    lenet = tuple(case for layer in (1, 2) for case in lenet_convolution(layer))
    yield Group("LeNet-5 convolutions", lenet, (Line("ratio", 2.5),), peers=COMPILERS)
    capsules = tuple(case for stride in (1, 2) for case in capsule(stride))
    yield Group("capsule convolution", capsules, (Line("ratio", 1.7),), peers=COMPILERS)
    sweeps = tuple(case for tag, (rows, image) in SIZES.items() for case in streaming(tag, rows, image))
    yield Group("norms, pooling, updates", sweeps, (Line("ratio", 1.3),), peers=COMPILERS)
    for network, target in (("lenet5", 2.5), ("mlp3", 1.15)):
        yield Group(f"{network} step", (TRAINING[f"{network}-b256"],), (Line("ratio", target),), peers=COMPILERS)


GROUPS: dict[str, Group] = {g.name: g for g in _groups()}
CASES: dict[str, Workload] = {c.name: c for g in GROUPS.values() for c in g.cases}
OF_ONE_IMAGE: dict[str, Case] = {c.name: c for c in map(of_one_image, distinct("efficientnet_lite0"))}
