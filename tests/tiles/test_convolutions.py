"""Convolutions with groups, strides and dilations, transposed ones, and both gradients: dots in which the group is an
axis of the batch, stencils by channel, and sums that many programs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.codegen.ssa import operations
from einsmith.gpu.tiles.contraction import find_products
from einsmith.gpu.tiles.lower import lower, patterns
from einsmith.gpu.tiles.pieces import Tiling
from einsmith.schedule.kernel import Kernel
from tests.tiles.plans import planned
from tests.tiles.running import SMALL, SPLIT, WATCHED, check, functions_of, in_double


@dataclass(frozen=True)
class Convolution:
    """An operator, the shapes of image and weights, and its options; batch: the groups that are axes of the batch."""

    function: Callable
    image: tuple[int, ...]
    weights: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    batch: int = 1


CONVOLUTIONS = {
    "grouped": Convolution(F.conv2d, (2, 16, 5, 7), (24, 8, 3, 3), {"padding": 1, "groups": 2}, 2),
    "grouped, stride 2": Convolution(
        F.conv2d, (2, 16, 9, 7), (16, 8, 3, 3), {"padding": 1, "groups": 2, "stride": 2}, 2
    ),
    "grouped, dilated": Convolution(
        F.conv2d, (2, 16, 5, 7), (16, 8, 3, 1), {"padding": 2, "groups": 2, "dilation": 2}, 2
    ),
    "grouped, of one pixel": Convolution(F.conv2d, (11, 24, 1, 1), (24, 8, 1, 1), {"groups": 3}, 3),
    "few channels a group": Convolution(F.conv2d, (2, 6, 5, 7), (4, 3, 3, 3), {"padding": 1, "groups": 2}),
    "by channel": Convolution(F.conv2d, (2, 5, 11, 13), (5, 1, 3, 3), {"padding": 1, "groups": 5}),
    "by channel, stride 2": Convolution(
        F.conv2d, (2, 5, 11, 13), (5, 1, 3, 3), {"padding": 1, "groups": 5, "stride": 2}
    ),
    "by channel, two of each": Convolution(F.conv2d, (1, 3, 7, 5), (6, 1, 3, 3), {"padding": 1, "groups": 3}),
    "one image of one channel": Convolution(F.conv2d, (1, 1, 7, 1), (1, 1, 3, 1), {"padding": (1, 0)}),
    "transposed": Convolution(F.conv_transpose2d, (2, 7, 3, 5), (7, 11, 3, 3), {"stride": 2, "padding": 1}),
    "transposed, grouped": Convolution(
        F.conv_transpose2d, (2, 16, 3, 5), (16, 9, 3, 3), {"stride": 2, "padding": 1, "groups": 2}, 2
    ),
    "transposed, by channel": Convolution(
        F.conv_transpose2d, (2, 5, 3, 5), (5, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 5}
    ),
    "stride and dilation": Convolution(
        F.conv2d, (2, 7, 9, 7), (11, 7, 3, 3), {"padding": 2, "stride": 2, "dilation": 2}
    ),
    "a line": Convolution(F.conv1d, (3, 16, 19), (16, 8, 5), {"padding": 2, "groups": 2}, 2),
}
DIRECTIONS = ("forward", "by the image", "by the weights")


@cache
def kernels(name: str, direction: str) -> tuple[Kernel, ...]:
    c = CONVOLUTIONS[name]

    def forward(x, w):
        return c.function(x, w, **c.options)

    y = es.interpret(forward)(np.zeros(c.image, np.float32), np.zeros(c.weights, np.float32))
    f = {
        "forward": lambda x, w, g: forward(x, w),
        "by the image": lambda x, w, g: es.vjp(lambda x: forward(x, w), x)[1](g)[0],
        "by the weights": lambda x, w, g: es.vjp(lambda w: forward(x, w), w)[1](g)[0],
    }[direction]
    return tuple(planned(f, c.image, c.weights, y.shape))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_agree_with_the_evaluator(name: str, direction: str, rng: np.random.Generator) -> None:
    """By every pattern, in turns in f32 and f64, whole and split, by the interpreter and as text."""
    for n, kernel in enumerate(kernels(name, direction)):
        for m, pattern in enumerate(patterns(kernel)):
            turn = n + m + list(CONVOLUTIONS).index(name)
            made = in_double(kernel) if turn % 2 else kernel
            tiling = replace((SMALL, SPLIT)[turn // 2 % 2], m=32)
            check(made, rng, tiling, pattern, ways=WATCHED[turn // 3 % 2 :][:1])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", [n for n, c in CONVOLUTIONS.items() if c.batch > 1])
def test_groups_are_an_axis_of_the_batch(name: str, direction: str) -> None:
    """With 8 channels each, which fill half of a dot."""
    for kernel in kernels(name, direction):
        assert patterns(kernel)[0] == "contraction"
        products = find_products(kernel)
        assert products is not None
        every = [p for p in products.pieces if p is not None]
        assert every and all(p.sizes[0] == CONVOLUTIONS[name].batch for p in every)
        dots = [x for f in functions_of(lower(kernel, Tiling())) for x in operations(f.body) if x.name == "dot"]
        assert len(dots) == len(every)


@pytest.mark.parametrize("direction", DIRECTIONS[:2])
@pytest.mark.parametrize("name", ["by channel", "by channel, stride 2", "by channel, two of each"])
def test_convolutions_by_channel_are_stencils(name: str, direction: str) -> None:
    assert [patterns(k)[0] for k in kernels(name, direction)] == ["stencil"]


def test_gradients_by_few_weights_are_shared_out() -> None:
    """45 sums of 286 products: as many programs as parts, whose sums a second function adds."""
    (kernel,) = kernels("by channel", "by the weights")
    assert patterns(kernel)[0] == "reduction"
    first, second = lower(kernel, Tiling(m=64, k=16, split=18)).launches
    assert first.tasks == 18 and second.tasks == 1
