"""Products and convolutions of shapes that nobody has chosen: drawn from a seed, the same in every process."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from benchmarks import kernel_cases
from benchmarks.convolutions import Conv
from benchmarks.kernel_cases import Case

MACS = 3e5, 3e9
"""Multiply-adds of a case: below, a call takes longer than its kernels; above, a run longer than anybody waits."""
ELEMENTS = 64 << 20
"""Of all arrays of a case at most: a quarter of a gigabyte of float32."""
_NAME = re.compile(r"random-(\d+)-(\d+)-.*")


def draw(seed: int, number: int) -> Case:
    """Case `number` of a seed, whatever the others are. Three of four are convolutions, in a drawn direction."""
    rng = np.random.default_rng((seed, number))
    while True:
        case = _product(rng) if rng.random() < 0.25 else _convolution(rng)
        elements = sum(math.prod(s) for s in (case.shapes or {}).values())
        if MACS[0] <= case.flops / 2 <= MACS[1] and elements <= ELEMENTS:
            return replace(case, name=f"random-{seed}-{number}-b{case.batch}-{case.name}")


def named(name: str) -> Case | None:
    """The case of that name; None where it is no drawn one's."""
    match = _NAME.fullmatch(name)
    return draw(int(match[1]), int(match[2])) if match else None


def around(rng: np.random.Generator, low: int, high: int) -> int:
    """A number whose logarithm is drawn evenly."""
    return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))


def _channels(rng: np.random.Generator, low: int, high: int) -> int:
    """Half of those from 8 on are multiples of 8, as in most networks."""
    n = around(rng, low, high)
    return n // 8 * 8 if n >= 8 and rng.random() < 0.5 else n


def _product(rng: np.random.Generator) -> Case:
    m, n, k = (around(rng, 1, 4096) for _ in range(3))
    way = "".join(rng.choice(["n", "t"], 2))
    return kernel_cases.product(m, n, k, way, around(rng, 2, 128) if rng.random() < 0.25 else 0)


def _convolution(rng: np.random.Generator) -> Case:
    while True:
        kernel, batch, size = int(rng.integers(1, 12)), around(rng, 1, 32), around(rng, 5, 224)
        stride = 1 if rng.random() < 0.7 else 2
        dilation = int(rng.integers(2, 4)) if kernel > 1 and rng.random() < 0.15 else 1
        kind, groups = rng.random(), 1
        c_in, c_out = _channels(rng, 1, 512), _channels(rng, 1, 512)
        if kind < 0.2:
            groups, c_out = c_in, c_in
        elif kind < 0.35:
            groups = around(rng, 2, 16)
            c_in, c_out = groups * max(1, c_in // groups), groups * max(1, c_out // groups)
        pad = None if rng.random() < 0.7 else 0
        conv = Conv(c_in, c_out, kernel, stride, groups, size, pad, dilation)
        if size + 2 * conv.padding > dilation * (kernel - 1):
            return list(kernel_cases.convolution(conv, batch))[int(rng.integers(3))]
