"""Draw initial values of parameters, under torch.nn.init's names and formulas, from one seeded generator.

Draws are made in float64 and rounded to the parameter's type, so that a float64 model starts from the same numbers
(up to that rounding) as a float32 one with the same seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil, isfinite, prod, sqrt

import numpy as np

from einsmith.base import locks
from einsmith.base.arguments import Count, Magnitude, Share, Size, check_arguments
from einsmith.base.errors import ArgumentError
from einsmith.nn.parameter import Stored
from einsmith.ops import random

_generator = np.random.Generator(np.random.PCG64())
_seeded: ContextVar[np.random.Generator | None] = ContextVar("the generator of `seeded`", default=None)
_drawing = locks.Awaited("drawing random numbers")
"""Held while numbers are drawn: a generator has a lock of NumPy's, which a forked child would find held."""


@check_arguments
def manual_seed(seed: Size) -> None:
    """Restart Einsmith's random numbers from `seed`, a non-negative int. Unseeded, they differ in every process."""
    global _generator
    _generator = np.random.Generator(np.random.PCG64(seed))
    random.manual_seed(seed)


def generator() -> np.random.Generator:
    """Return the generator of the innermost `seeded` of this thread; elsewhere the one that `manual_seed` seeds."""
    return _seeded.get() or _generator


@contextmanager
def seeded(seed: Size) -> Iterator[None]:
    """Context in which this thread draws initial values from `seed`. Draws outside of it, and those of other threads,
    stay what they would be without it."""
    token = _seeded.set(np.random.Generator(np.random.PCG64(seed)))
    try:
        yield
    finally:
        _seeded.reset(token)


class _Zeros:
    """A generator whose draws are zeros, without memory for them."""

    def normal(self, mean: float, std: float, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(0.0, shape)

    uniform = normal


@contextmanager
def undrawn() -> Iterator[None]:
    """Context in which this thread fills parameters with zeros instead of draws, since a file's values follow."""
    token = _seeded.set(_Zeros())  # type: ignore[arg-type]
    try:
        yield
    finally:
        _seeded.reset(token)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (fan in, fan out) of a weight [out, in, *window]. Raises ArgumentError below two dimensions."""
    if len(shape) < 2:
        raise ArgumentError(f"fan-in and fan-out need a weight of two dimensions or more, got shape {shape}")
    window = prod(shape[2:])
    return shape[1] * window, shape[0] * window


@check_arguments
def uniform_(tensor: Stored, a: float = 0.0, b: float = 1.0) -> None:
    """Fill a parameter with uniform draws from [a, b). Raises ArgumentError unless b is at least a."""
    if not a <= b:
        raise ArgumentError(f"uniform_: a={a!r} must not be above b={b!r}")
    if not isfinite(b - a):
        raise ArgumentError(f"uniform_: the range from a={a!r} to b={b!r} must be finite")
    with _drawing:
        tensor.data = generator().uniform(a, b, tensor.data.shape)


@check_arguments
def normal_(tensor: Stored, mean: float = 0.0, std: Magnitude = 1.0) -> None:
    """Fill a parameter with normal draws of the given mean and standard deviation."""
    with _drawing:
        tensor.data = generator().normal(mean, std, tensor.data.shape)


@check_arguments
def constant_(tensor: Stored, val: float) -> None:
    """Set every element to `val`."""
    tensor.data = np.full(tensor.data.shape, val)


@check_arguments
def zeros_(tensor: Stored) -> None:
    """Set every element to 0."""
    constant_(tensor, 0)


@check_arguments
def ones_(tensor: Stored) -> None:
    """Set every element to 1."""
    constant_(tensor, 1)


@check_arguments
def trunc_normal_(tensor: Stored, mean: float = 0.0, std: Magnitude = 1.0, a: float = -2.0, b: float = 2.0) -> None:
    """Fill a parameter with normal draws, drawn again until they lie in [a, b].

    Raises ArgumentError for a range of which hardly any draw is part: a is not below b, or all of the range is more
    than 4 standard deviations from the mean.
    """
    if not a < b or max(a - mean, mean - b) > 4 * std:
        raise ArgumentError(
            f"trunc_normal_: a={a!r} must be below b={b!r}, and the range within 4 std of mean={mean!r}, std={std!r}"
        )
    with _drawing:
        drawn = _generator.normal(mean, std, tensor.data.shape)
        while (outside := ~((a <= drawn) & (drawn <= b))).any():
            drawn[outside] = _generator.normal(mean, std, int(outside.sum()))
        tensor.data = drawn


@check_arguments
def orthogonal_(tensor: Stored, gain: float = 1.0) -> None:
    """Fill with a random orthogonal matrix times `gain`: rows, or columns if they are fewer, of a weight [out, ...].

    Raises ArgumentError below two dimensions. Source: Saxe et al. 2013, arXiv 1312.6120; Mezzadri 2006.
    """
    shape = tensor.data.shape
    if len(shape) < 2:
        raise ArgumentError(f"orthogonal_: a weight of two dimensions or more is needed, got shape {shape}")
    rows, columns = shape[0], prod(shape[1:])
    with _drawing:
        drawn = _generator.normal(size=(max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)  # all orthogonal matrices are equally likely
    tensor.data = gain * (q if rows >= columns else q.T).reshape(shape)


@check_arguments
def eye_(tensor: Stored) -> None:
    """Fill a matrix with ones on the diagonal and zeros elsewhere. Raises ArgumentError for other ranks."""
    if tensor.ndim != 2:
        raise ArgumentError(f"eye_: a matrix is needed, got shape {tensor.shape}")
    tensor.data = np.eye(tensor.shape[0], tensor.shape[1])


@check_arguments
def dirac_(tensor: Stored, groups: Count = 1) -> None:
    """Fill the weight of a convolution [out, in, *window] so that it keeps the channels of its input, in each group.

    Raises ArgumentError for other than one to three dimensions of window, or groups that do not divide `out`.
    """
    shape = tensor.shape
    if not 3 <= len(shape) <= 5 or shape[0] % groups:
        raise ArgumentError(
            f"dirac_: a weight of a convolution whose {groups} groups divide its first extent is needed, got {shape}"
        )
    filled, rows = np.zeros(shape), shape[0] // groups
    middle = tuple(n // 2 for n in shape[2:])
    for g in range(groups):
        for d in range(min(rows, shape[1])):
            filled[(g * rows + d, d, *middle)] = 1
    tensor.data = filled


@check_arguments
def sparse_(tensor: Stored, sparsity: Share, std: Magnitude = 0.01) -> None:
    """Fill a matrix with normal draws, of which a part `sparsity` of each column is zero.

    Raises ArgumentError for other ranks. Source: Martens 2010.
    """
    if tensor.ndim != 2:
        raise ArgumentError(f"sparse_: a matrix is needed, got shape {tensor.shape}")
    rows, columns = tensor.shape
    with _drawing:
        drawn = _generator.normal(0.0, std, (rows, columns))
        for c in range(columns):
            drawn[_generator.permutation(rows)[: ceil(sparsity * rows)], c] = 0
    tensor.data = drawn


def gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the recommended standard deviation ratio of a nonlinearity (torch.nn.init.calculate_gain)."""
    if nonlinearity == "leaky_relu":
        return sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    table = {
        "linear": 1.0,
        "conv1d": 1.0,
        "conv2d": 1.0,
        "sigmoid": 1.0,
        "tanh": 5.0 / 3,
        "relu": sqrt(2.0),
        "selu": 0.75,
    }
    if nonlinearity not in table:
        raise ArgumentError(f"no gain is known for {nonlinearity!r}; known: leaky_relu, {', '.join(table)}")
    return table[nonlinearity]


calculate_gain = gain


def _fan(tensor: Stored, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f"mode is 'fan_in' or 'fan_out', not {mode!r}")
    return fans(tensor.data.shape)[mode == "fan_out"]


@check_arguments
def kaiming_uniform_(tensor: Stored, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> None:
    """Fill with uniform draws from +-gain*sqrt(3/fan). Source: He et al. 2015, arXiv 1502.01852."""
    bound = gain(nonlinearity, a) * sqrt(3.0 / max(1, _fan(tensor, mode)))
    uniform_(tensor, -bound, bound)


@check_arguments
def kaiming_normal_(tensor: Stored, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> None:
    """Fill with normal draws of standard deviation gain/sqrt(fan). Source: He et al. 2015, arXiv 1502.01852."""
    normal_(tensor, 0.0, gain(nonlinearity, a) / sqrt(max(1, _fan(tensor, mode))))


@check_arguments
def xavier_uniform_(tensor: Stored, gain: Magnitude = 1.0) -> None:
    """Fill with uniform draws from +-gain*sqrt(6/(fan in + fan out)). Source: Glorot and Bengio 2010."""
    bound = gain * sqrt(6.0 / sum(fans(tensor.data.shape)))
    uniform_(tensor, -bound, bound)


@check_arguments
def xavier_normal_(tensor: Stored, gain: Magnitude = 1.0) -> None:
    """Fill with normal draws of standard deviation gain*sqrt(2/(fan in + fan out)). Source: Glorot and Bengio 2010."""
    normal_(tensor, 0.0, gain * sqrt(2.0 / sum(fans(tensor.data.shape))))
