"""Layers and the options that they are tried with, drawn so that every pair of values of two options occurs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.nn.twin import pairwise

SPACE = {1: (11,), 2: (7, 8), 3: (6, 5, 7)}
"""Extents of the inputs, by the number of dimensions."""


@dataclass
class Layer:
    """A layer of torch.nn and of einsmith.nn: the shapes of input that it takes, its arguments by name with their
    values, and its arguments by place."""

    name: str
    shapes: Sequence[tuple[int, ...]]
    options: dict[str, list] = field(default_factory=dict)
    args: tuple = ()
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
    """Draws in which every pair of values of two options occurs."""
    rows = pairwise({"shape": list(layer.shapes), "training": list(layer.modes), **layer.options})
    return [Draw(layer.name, layer.args, row, row.pop("shape"), row.pop("training")) for row in rows]


def _batched(channels: int, extents: Sequence[int]) -> list[tuple[int, ...]]:
    return [(2, channels, *extents), (channels, *extents)]


TABLE: list[Layer] = [
    Layer("Softmax2d", _batched(4, (6, 2))), Layer("RReLU", [(2, 4, 6)], {"lower": [0.125, 0.2]}, modes=(False,)),
    Layer("PReLU", [(2, 4, 6, 2)], {"num_parameters": [1, 4], "init": [0.25, 0.1]}),
]  # fmt: skip

for n in (1, 2, 3):
    mixed, sizes = (3, 2, 1)[:n], (3, 1, 2)[:n]
    weights = {"groups": [1, 2, 4], "bias": [True, False], "kernel_size": [1, 3, mixed]}
    common = weights | {
        "dilation": [1, (1, 2, 1)[:n] if n > 1 else 2], "padding_mode": ["zeros", "reflect", "replicate", "circular"],
    }  # fmt: skip
    small = {1: (5,), 2: (3, 4), 3: (3, 3, 2)}[n]
    transposed = weights | {"padding": [0, (1, 0, 0)[:n]], "dilation": [1, (2, 1, 1)[:n]]}
    amounts = [1, (2, 1, 0, 3, 1, 1)[: 2 * n], (1, -1, 2, 0, 0, 1)[: 2 * n]]
    channels = (3, 5, *{1: (4,), 2: (2, 3), 3: (2, 1, 3)}[n])
    norm = {"eps": [1e-5, 0.3], "momentum": [0.1, None], "affine": [True, False], "track_running_stats": [True, False]}
    window = 4 if n == 1 else (3, 2, 2)[:n]
    windows: dict[str, list] = {"kernel_size": [2, 3, window], "stride": [None, 2, 3 if n == 1 else (1, 3, 2)[:n]],
                                "ceil_mode": [False, True]}  # fmt: skip
    padded = windows | {"padding": [0, 1, (1, 0, 1)[:n]]}
    divisor: dict[str, list] = {} if n == 1 else {"divisor_override": [None, 3]}
    extents = [1, {1: 4, 2: (3, 8), 3: (2, 4, 5)}[n], 7 if n == 1 else (None, 5, 2)[:n]]
    plane = _batched(2, SPACE[n])
    TABLE += [
        Layer(f"Conv{n}d", _batched(4, SPACE[n]), common | {"stride": [1, 2, sizes], "padding": [0, 1, (2, 1, 0)[:n]]},
              (4, 8)),
        Layer(f"Conv{n}d", _batched(4, SPACE[n])[:1], {**common, "groups": [2], "bias": [True],
              "padding": ["same", "valid"]}, (4, 8)),
        Layer(f"ConvTranspose{n}d", _batched(4, small), transposed | {"stride": [1, 2, sizes]}, (4, 8)),
        Layer(f"ConvTranspose{n}d", _batched(4, small),
              {**transposed, "bias": [False], "stride": [3], "output_padding": [1, (2, 0, 1)[:n]]}, (4, 8)),
        *(Layer(f"{kind}Pad{n}d", plane, {"padding": amounts})
          for kind in ("Zero", "Reflection", "Replication", "Circular")),
        Layer(f"ConstantPad{n}d", plane, {"padding": amounts, "value": [0.0, -1.5]}),
        Layer(f"BatchNorm{n}d", [channels, *[(4, 5)] * (n == 1)], norm | {"bias": [True, False]}, (5,), (True, False)),
        Layer(f"InstanceNorm{n}d", [channels, channels[1:]], norm, (5,), (True, False)),
        Layer(f"MaxPool{n}d", plane, padded | {"dilation": [1, 2]}),
        Layer(f"AvgPool{n}d", plane, padded | {"count_include_pad": [True, False]} | divisor),
        Layer(f"AdaptiveAvgPool{n}d", plane, {"output_size": extents}),
        Layer(f"AdaptiveMaxPool{n}d", plane, {"output_size": extents}),
        Layer(f"LPPool{n}d", plane, {"norm_type": [2, 3.0, 1]} | windows),
    ]  # fmt: skip

TABLE += [
    Layer("LayerNorm", [(3, 4, 5), (4, 5)], {"normalized_shape": [5, (4, 5), [5]], "eps": [1e-5, 0.3],
                                             "elementwise_affine": [True, False], "bias": [True, False]}),
    Layer("RMSNorm", [(3, 4, 5), (4, 5)],
          {"normalized_shape": [5, (4, 5)], "eps": [None, 0.3], "elementwise_affine": [True, False]}),
    Layer("GroupNorm", [(3, 6), (2, 6, 5), (2, 6, 2, 3)], {"num_groups": [1, 2, 3], "num_channels": [6],
          "eps": [1e-5, 0.3], "affine": [True, False], "bias": [True, False]}),
    Layer("LocalResponseNorm", [(2, 5, 7), (1, 5, 3, 4), (3, 2, 4)],
          {"size": [1, 2, 3, 6], "alpha": [1e-4, 0.7], "beta": [0.75, 0.5], "k": [1.0, 2.0]}),
    *(Layer("Upsample", [shape], options)
      for shape, mode in (((2, 2, 7), "linear"), ((1, 2, 5, 4), "bilinear"), ((1, 2, 5, 4), "bicubic"),
                          ((1, 1, 3, 2, 4), "trilinear"))
      for size, factor in (((10, 3, 4)[: len(shape) - 2], (1.5, 2.3, 0.8)[: len(shape) - 2]),)
      for options in ({"size": [5, size], "mode": ["nearest", mode]},
                      {"scale_factor": [2, factor], "recompute_scale_factor": [None, True],
                       "mode": ["nearest-exact", "area"]},
                      {"scale_factor": [factor], "recompute_scale_factor": [None, True], "mode": [mode],
                       "align_corners": [True, False]})),
    Layer("UpsamplingNearest2d", [(1, 2, 3, 5)], {"scale_factor": [2, (3.0, 1.0)]}),
    Layer("UpsamplingBilinear2d", [(1, 2, 3, 5)], {"scale_factor": [2, (1.7, 0.9)]}),
    Layer("PixelShuffle", [(2, 18, 3, 2), (18, 1, 4)], {"upscale_factor": [1, 3]}),
    Layer("PixelUnshuffle", [(2, 2, 6, 3), (1, 3, 12)], {"downscale_factor": [1, 3]}),
    Layer("ChannelShuffle", [(2, 6, 5), (2, 6, 2, 3)], {"groups": [1, 2, 3]}),
    Layer("Unfold", [(2, 3, 7, 8), (3, 7, 8)],
          {"kernel_size": [2, (3, 1)], "dilation": [1, (1, 2)], "padding": [0, (1, 2)], "stride": [1, (3, 2)]}),
    Layer("Fold", [(2, 12, 42), (12, 42)], {"output_size": [(7, 8)], "kernel_size": [2]}),
    Layer("Fold", [(2, 6, 20), (6, 20)], {"output_size": [(7, 8)], "kernel_size": [(3, 1)], "padding": [(1, 1)],
                                         "stride": [2], "dilation": [(1, 2)]}),
]  # fmt: skip
