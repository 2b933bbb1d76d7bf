"""Layers and the options that they are tried with, drawn so that every pair of values of two options occurs."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SPACE = {1: (11,), 2: (7, 8), 3: (5, 4, 6)}
"""Extents of the inputs, by the number of dimensions."""


@dataclass
class Layer:
    """A layer of torch.nn and of einsmith.nn: its options with their values, the shapes of input that it takes, and
    `arguments`: what a draw means, (positional, keyword) arguments or None where it is not legal."""

    name: str
    shapes: list[tuple[int, ...]]
    options: dict[str, list] = field(default_factory=dict)
    arguments: Callable[[dict[str, Any]], tuple[tuple, dict] | None] = lambda o: ((), o)
    modes: tuple[bool, ...] = (True,)


@dataclass
class Draw:
    """A layer with arguments, an input's shape, and whether it is in training."""

    name: str
    args: tuple
    kwargs: dict[str, Any]
    shape: tuple[int, ...]
    training: bool

    def __str__(self) -> str:
        given = [*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs.items())]
        mode = "" if self.training else " eval"
        return f"{self.name}({','.join(given)}) {'x'.join(map(str, self.shape))}{mode}".replace(" ", "")


def draws(layer: Layer) -> list[Draw]:
    """Legal draws in which every pair of values occurs that some legal draw has."""
    options = {**layer.options, "shape": layer.shapes, "training": list(layer.modes)}
    rng = np.random.default_rng(zlib.crc32(layer.name.encode()))
    rows = list(itertools.product(*(range(len(v)) for v in options.values())))
    made = {}
    for n in rng.permutation(len(rows)):
        draw = _draw(layer, {k: v[i] for (k, v), i in zip(options.items(), rows[n], strict=True)})
        if draw is not None:
            made[rows[n]] = draw
    wanted = dict.fromkeys(pair for row in made for pair in _pairs(row))
    found = []
    while wanted:
        i, a, j, b = next(iter(wanted))
        some = itertools.islice((row for row in made if row[i] == a and row[j] == b), 20)
        best = max(some, key=lambda row: sum(pair in wanted for pair in _pairs(row)))
        for pair in _pairs(best):
            wanted.pop(pair, None)
        found.append(made[best])
    return found or list(made.values())[:1]


def _pairs(row: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    return [(i, a, j, b) for (i, a), (j, b) in itertools.combinations(enumerate(row), 2)]


def _draw(layer: Layer, row: dict[str, Any]) -> Draw | None:
    shape, training = row.pop("shape"), row.pop("training")
    made = layer.arguments({**row, "shape": shape})
    if made is None:
        return None
    args, kwargs = made
    return Draw(layer.name, args, {k: v for k, v in kwargs.items() if k != "shape"}, shape, training)


def spread(x: Any, n: int) -> tuple:
    return (x,) * n if isinstance(x, int) else tuple(x)


def fits(extents: tuple, kernel: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> bool:
    n = len(extents)
    rows = zip(extents, *(spread(v, n) for v in (kernel, padding, dilation)), strict=True)
    return all(e + 2 * p > g * (k - 1) for e, k, p, g in rows)


def _batched(n: int, channels: int) -> list[tuple[int, ...]]:
    return [(2, channels, *SPACE[n]), (channels, *SPACE[n])]


TABLE: list[Layer] = []

# --------------------------------------------------------------------------------------------------------- convolutions


def _conv(n: int) -> Callable:
    def arguments(o: dict) -> tuple[tuple, dict] | None:
        extents, pad = o["shape"][-n:], o["padding"]
        if pad == "same" and o["stride"] != 1:
            return None
        amount = 0 if isinstance(pad, str) else pad
        if o["padding_mode"] != "zeros" and any(p >= e for p, e in zip(spread(amount, n), extents, strict=True)):
            return None
        if pad != "same" and not fits(extents, o["kernel_size"], padding=amount, dilation=o["dilation"]):
            return None
        out = 6 if o["groups"] != 4 else 8
        return (4, out), o

    return arguments


def _transpose(n: int) -> Callable:
    def arguments(o: dict) -> tuple[tuple, dict] | None:
        more = spread(o["output_padding"], n)
        if any(m >= max(s, g) for m, s, g in zip(more, spread(o["stride"], n), spread(o["dilation"], n), strict=True)):
            return None
        return (4, 6 if o["groups"] != 4 else 8), o

    return arguments


for n in (1, 2, 3):
    mixed = (3, 2, 1)[:n]
    TABLE.append(
        Layer(
            f"Conv{n}d",
            _batched(n, 4),
            {
                "kernel_size": [1, 3, mixed],
                "stride": [1, 2, (3, 1, 2)[:n]],
                "padding": [0, 1, (2, 1, 0)[:n], "same", "valid"],
                "dilation": [1, (1, 2, 1)[:n] if n > 1 else 2],
                "groups": [1, 2, 4],
                "bias": [True, False],
                "padding_mode": ["zeros", "reflect", "replicate", "circular"],
            },
            _conv(n),
        )
    )
    small = {1: (5,), 2: (3, 4), 3: (2, 3, 2)}[n]
    TABLE.append(
        Layer(
            f"ConvTranspose{n}d",
            [(2, 4, *small), (4, *small)],
            {
                "kernel_size": [1, 3, mixed],
                "stride": [1, 2, (3, 1, 2)[:n]],
                "padding": [0, (1, 0, 0)[:n]],
                "output_padding": [0, 1, (2, 0, 1)[:n]],
                "dilation": [1, (2, 1, 1)[:n]],
                "groups": [1, 2, 4],
                "bias": [True, False],
            },
            _transpose(n),
        )
    )

# ---------------------------------------------------------------------------------------------------------- activations

TABLE += [
    Layer("Softmax2d", [(2, 4, 6, 2), (4, 6, 2)]), Layer("RReLU", [(2, 4, 6)], {"lower": [0.125, 0.2]}, modes=(False,)),
    Layer("PReLU", [(2, 4, 6, 2)], {"num_parameters": [1, 4], "init": [0.25, 0.1]}),
]  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- padding

for n in (1, 2, 3):
    amounts = [1, (2, 1, 0, 3, 1, 1)[: 2 * n], (1, -1, 2, 0, 0, 1)[: 2 * n]]
    for kind in ("Zero", "Reflection", "Replication", "Circular"):
        TABLE.append(Layer(f"{kind}Pad{n}d", _batched(n, 2), {"padding": amounts}))
    TABLE.append(Layer(f"ConstantPad{n}d", _batched(n, 2), {"padding": amounts, "value": [0.0, -1.5]}))

# -------------------------------------------------------------------------------------------------------- normalization

for n in (1, 2, 3):
    shapes = [(3, 5, *{1: (4,), 2: (2, 3), 3: (2, 1, 3)}[n])]
    common = {
        "eps": [1e-5, 0.3],
        "momentum": [0.1, None],
        "affine": [True, False],
        "track_running_stats": [True, False],
    }
    TABLE.append(
        Layer(f"BatchNorm{n}d", shapes + ([(4, 5)] if n == 1 else []), common | {"bias": [True, False]},
              lambda o: ((5,), o), (True, False))
    )  # fmt: skip
    TABLE.append(
        Layer(f"InstanceNorm{n}d", [*shapes, shapes[0][1:]], common, lambda o: ((5,), o), (True, False))
    )  # fmt: skip

TABLE += [
    Layer(
        "LayerNorm", [(3, 4, 5), (4, 5)],
        {
            "normalized_shape": [5, (4, 5), [5]], "eps": [1e-5, 0.3], "elementwise_affine": [True, False],
            "bias": [True, False],
        },
    ),
    Layer(
        "RMSNorm", [(3, 4, 5), (4, 5)],
        {"normalized_shape": [5, (4, 5)], "eps": [None, 0.3], "elementwise_affine": [True, False]},
    ),
    Layer(
        "GroupNorm", [(3, 6), (2, 6, 5), (2, 6, 2, 3)],
        {"groups": [1, 2, 3], "eps": [1e-5, 0.3], "affine": [True, False], "bias": [True, False]},
        lambda o: ((o["groups"], 6), {k: v for k, v in o.items() if k != "groups"}),
    ),
    Layer(
        "LocalResponseNorm", [(2, 5, 7), (1, 5, 3, 4), (3, 2, 4)],
        {"size": [1, 2, 3, 6], "alpha": [1e-4, 0.7], "beta": [0.75, 0.5], "k": [1.0, 2.0]},
    ),
]  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- pooling


def _pooling(n: int) -> Callable:
    def arguments(o: dict) -> tuple[tuple, dict] | None:
        kernel, pads = spread(o["kernel_size"], n), spread(o.get("padding", 0), n)
        if any(2 * p > k for p, k in zip(pads, kernel, strict=True)):
            return None
        if not fits(o["shape"][-n:], kernel, padding=pads, dilation=o.get("dilation", 1)):
            return None
        return (), o

    return arguments


for n in (1, 2, 3):
    mixed = 4 if n == 1 else (3, 2, 2)[:n]
    windows: dict[str, list] = {"kernel_size": [2, 3, mixed], "stride": [None, 2, 3 if n == 1 else (1, 3, 2)[:n]]}
    padded = windows | {"padding": [0, 1, (1, 0, 1)[:n]], "ceil_mode": [False, True]}
    divisor: dict[str, list] = {} if n == 1 else {"divisor_override": [None, 3]}
    sizes = [1, {1: 4, 2: (3, 8), 3: (2, 4, 5)}[n], {1: (7,), 2: (None, 5), 3: (5, None, 2)}[n]]
    TABLE += [
        Layer(f"MaxPool{n}d", _batched(n, 2), padded | {"dilation": [1, 2]}, _pooling(n)),
        Layer(f"AvgPool{n}d", _batched(n, 2), padded | {"count_include_pad": [True, False]} | divisor, _pooling(n)),
        Layer(f"AdaptiveAvgPool{n}d", _batched(n, 2), {"output_size": sizes}),
        Layer(f"AdaptiveMaxPool{n}d", _batched(n, 2), {"output_size": sizes if n > 1 else [1, 4, 7]}),
        Layer(
            f"LPPool{n}d", _batched(n, 2), {"norm_type": [2, 3.0, 1]} | windows | {"ceil_mode": [False, True]},
            _pooling(n),
        ),
    ]  # fmt: skip

# ----------------------------------------------------------------------------------------------------------- resolution


def _upsample(o: dict) -> tuple[tuple, dict] | None:
    rank, size = len(o["shape"]), o.pop("by")
    ranks = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}
    if ranks.get(o["mode"], rank) != rank or (o["mode"] not in ranks and o["align_corners"] is not None):
        return None
    if size[0] == "size" and o["recompute_scale_factor"]:
        return None
    what, value = size
    return (), o | {what: value if isinstance(value, (int, float)) else value[: rank - 2]}


TABLE += [
    Layer(
        "Upsample", [(2, 2, 7), (1, 2, 5, 4), (1, 1, 3, 2, 4)],
        {
            "by": [("size", 5), ("size", (10, 3, 4)), ("scale_factor", 2), ("scale_factor", (1.5, 2.3, 0.8))],
            "mode": ["nearest", "nearest-exact", "area", "linear", "bilinear", "bicubic", "trilinear"],
            "align_corners": [None, True, False],
            "recompute_scale_factor": [None, True],
        },
        _upsample,
    ),
    Layer("UpsamplingNearest2d", [(1, 2, 3, 5)], {"scale_factor": [2, (3.0, 1.0)]}),
    Layer("UpsamplingBilinear2d", [(1, 2, 3, 5)], {"scale_factor": [2, (1.7, 0.9)]}),
    Layer("PixelShuffle", [(2, 18, 3, 2), (18, 1, 4)], {"upscale_factor": [1, 3]}),
    Layer("PixelUnshuffle", [(2, 2, 6, 3), (1, 3, 12)], {"downscale_factor": [1, 3]}),
    Layer("ChannelShuffle", [(2, 6, 5), (2, 6, 2, 3)], {"groups": [1, 2, 3]}),
    Layer(
        "Unfold", [(2, 3, 7, 8), (3, 7, 8)],
        {"kernel_size": [2, (3, 1)], "dilation": [1, (1, 2)], "padding": [0, (1, 2)], "stride": [1, (3, 2)]},
    ),
    Layer(
        "Fold", [(2, 12, 42), (12, 42)],
        {"output_size": [(7, 8)], "kernel_size": [2], "dilation": [1]},
        lambda o: ((), o),
    ),
    Layer(
        "Fold", [(2, 6, 20), (6, 20)],
        {"output_size": [(7, 8)], "kernel_size": [(3, 1)], "padding": [(1, 1)], "stride": [2], "dilation": [(1, 2)]},
        lambda o: ((), o),
    ),
]  # fmt: skip
