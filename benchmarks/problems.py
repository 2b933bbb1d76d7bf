"""What is timed: the shapes, the starting arrays, and the arithmetic that cannot be avoided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from benchmarks.kernel_cases import Case, kernel_case


class Operator(Case):
    """An operator with the gradients of all inputs, whose results are compared among the libraries: where a maximum is
    taken, or a position falls into an element, rounding to float32 decides."""

    has_reference = False


def _operator(
    name: str,
    flops: int,
    shapes: Mapping[str, tuple[int, ...]],
    output: tuple[int, ...],
    seed: int,
    scale: dict[str, float] | None = None,
    stride: int = 0,
) -> Case:
    """The operator of that name on standard normal inputs (times `scale`), the loss sum(output * G) with fixed random
    weights G, so that every gradient is dense, and the gradients of all inputs."""

    def make() -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        out = {n: rng.standard_normal(s, np.float32) * np.float32((scale or {}).get(n, 1)) for n, s in shapes.items()}
        return out | {"G": rng.standard_normal(output, np.float32)}

    elements = 2 * sum(math.prod(s) for s in shapes.values()) + math.prod(output)
    options, full = {"stride": stride} if stride else {}, f"{name}-s{stride}" if stride else name
    plain = kernel_case(full, name, shapes, output, wrt=tuple(shapes), options=options, kind=Operator)
    return replace(plain, flops=flops, make=make, nbytes=4 * elements, is_loss=True)


def capsule_conv(stride: int) -> Case:
    """C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j]). Floor: the products of the
    forward and of both gradients."""
    n = (14 - 3) // stride + 1
    macs = 16 * 32 * n * n * 16 * (32 * 9 * 4)
    shapes = {"A": (16, 32, 14, 14, 4, 4), "W": (32, 32, 3, 3, 4, 4)}
    scale = {"W": 1 / np.sqrt(32 * 9 * 4)}
    return _operator("capsule_conv", 3 * 2 * macs, shapes, (16, 32, n, n, 4, 4), 3, scale, stride)


def capsule_composed(stride: int) -> Case:
    """The capsule convolution as frameworks without it have it: eight convolutions, each of an eighth of the output's
    channels, concatenated."""
    whole = capsule_conv(stride)
    return replace(whole, name=f"capsule_composed-s{stride}", network="capsule_composed")


def pairwise() -> Case:
    """D[i,j] = sqrt(sum[k]((X[i,k] - Y[j,k])^2) + 1e-6) of 1024 and 1024 points in 64 dimensions. Floor: one product
    for the forward (by the expanded square) and one for each gradient."""
    return _operator("pairwise", 3 * 2 * 1024 * 1024 * 64, {"X": (1024, 64), "Y": (1024, 64)}, (1024, 1024), 4)


def gaussian_kernel() -> Case:
    """O[i,v] = sum[j](exp(-sum[d]((X[i,d] - Y[j,d])^2)/2) * B[j,v]) of 8192 and 8192 points in 3 dimensions, 2 values
    each: a kernel method, whose matrix of 256 MB need not be stored. Floor: 5 multiply-adds a pair for the forward and
    for the gradient of each input; the exponentials are not counted."""
    shapes = {"X": (8192, 3), "Y": (8192, 3), "B": (8192, 2)}
    return _operator("gaussian_kernel", 4 * 2 * 8192 * 8192 * 5, shapes, (8192, 2), 16)


def max_plus() -> Case:
    """C[i,j] = max[k](A[i,k] + B[k,j]), 512 x 512 x 512. Floor: an addition and a maximum a point, each at the rate of
    a multiply-add, and so counted as two operations; the gradients touch only the chosen points."""
    return _operator("max_plus", 4 * 512**3, {"A": (512, 512), "B": (512, 512)}, (512, 512), 5)


def local_attention() -> Case:
    """Softmax attention of each of 2048 queries to the keys at most 64 away on either side, 8 heads of 64. Floor: two
    products forward and four backward over the pairs in the band."""
    pairs = 2048 * 129 - 64 * 65
    shapes = dict.fromkeys("QKV", (8, 2048, 64))
    return _operator("local_attention", 6 * 2 * 8 * pairs * 64, shapes, (8, 2048, 64), 6)


def relative_bias() -> Case:
    """Softmax attention with a learned bias R[j-i+T-1, h] for each distance and head; batch 4, 8 heads of 64, T = 256.
    Floor: two products forward, four backward."""
    shapes = dict.fromkeys("QKV", (4, 8, 256, 64)) | {"R": (511, 8)}
    return _operator("relative_bias", 6 * 2 * 32 * 256 * 256 * 64, shapes, (4, 8, 256, 64), 7)


def relative_keys() -> Case:
    """Softmax attention with a learned key R[j-i+T-1, :] for each distance (Shaw et al. 2018), shared by the heads;
    batch 4, 8 heads of 64, T = 256. Floor: three products forward, six backward."""
    shapes = dict.fromkeys("QKV", (4, 8, 256, 64)) | {"R": (511, 64)}
    return _operator("relative_keys", 9 * 2 * 32 * 256 * 256 * 64, shapes, (4, 8, 256, 64), 8, {"R": 0.5})


def _inside(n: int, k: int) -> int:
    """How many (position, tap) pairs of a centered filter of odd width k fall inside n positions."""
    return sum(n - abs(r - k // 2) for r in range(k))


def depthwise() -> Case:
    """Depthwise 7x7 convolution with padding 3, 16 images of 64 channels, 56x56. Floor: the products inside the image,
    forward and for both gradients."""
    macs = 16 * 64 * _inside(56, 7) ** 2
    return _operator(
        "depthwise", 3 * 2 * macs, {"X": (16, 64, 56, 56), "K": (64, 7, 7)}, (16, 64, 56, 56), 9, {"K": 1 / 7}
    )


def bilinear() -> Case:
    """Y[b,o] = sum[i,j](x[b,i] * W[o,i,j] * y[b,j]), b = 256, the others 64. Floor: three products of 256 x 64 x 4096
    (forward, dW, and one shared by dx and dy)."""
    shapes = {"x": (256, 64), "W": (64, 64, 64), "y": (256, 64)}
    return _operator("bilinear", 3 * 2 * 256 * 64**3, shapes, (256, 64), 10, {"W": 1 / 64})


def involution() -> Case:
    """Y[b,g,c,h,w] = sum[r,s](K[b,g,r,s,h,w] * X[b,g,c,h+r-3,w+s-3]), zero outside; b = 8, g = 4, c = 16, 32x32, 7x7.
    Floor: the products inside the image, forward and for both gradients, or the bytes of K and dK."""
    macs = 8 * 4 * 16 * _inside(32, 7) ** 2
    shapes = {"X": (8, 4, 16, 32, 32), "K": (8, 4, 7, 7, 32, 32)}
    return _operator("involution", 3 * 2 * macs, shapes, (8, 4, 16, 32, 32), 11, {"K": 1 / 7})


def tensor_train() -> Case:
    """Y[b,m,n,o] = sum[i,j,k,p,q](X[b,i,j,k] * A[i,m,p] * B[p,j,n,q] * C[q,k,o]), a matrix of 4096 x 4096 in three
    cores of rank 8 (Novikov et al. 2015, "Tensorizing Neural Networks"), b = 64. Floor: the products of the least work,
    from one end to the other, forward and twice for the gradients."""
    shapes = {"X": (64, 16, 16, 16), "A": (16, 16, 8), "B": (8, 16, 16, 8), "C": (8, 16, 16)}
    scale = {"A": 1 / 4, "B": 1 / 8, "C": 1 / 8}
    macs = 2 * 64 * 16**3 * 128 + 64 * 16**2 * 128 * 128
    return _operator("tensor_train", 3 * 2 * macs, shapes, (64, 16, 16, 16), 12, scale)


def running_sum() -> Case:
    """y[b,i] = sum[j](where(j <= i, x[b,j], 0)), 4 rows of 65536. Floor: an addition an element, forward and back."""
    return _operator("running_sum", 2 * 4 * 65536, {"x": (4, 65536)}, (4, 65536), 13)


def grid_sample() -> Case:
    """Bilinear samples of 4 images of 32 channels, 56x56, at as many positions (Jaderberg et al. 2015), zero outside;
    about one in twenty is. Floor: four products an element forward, four for the image, eight for the positions."""
    shapes = {"x": (4, 32, 56, 56), "g": (4, 56, 56, 2)}
    return _operator("grid_sample", 2 * 16 * 4 * 32 * 56**2, shapes, (4, 32, 56, 56), 14, {"g": 0.5})


def deformable() -> Case:
    """A 3x3 convolution of 32 by 32 channels whose taps are moved by offsets (Dai et al. 2017), 4 images of 28x28.
    Floor: the convolution's three products, and those of the samples as in `grid_sample`."""
    shapes = {"x": (4, 32, 28, 28), "o": (4, 9, 2, 28, 28), "W": (32, 32, 9)}
    samples = 4 * 32 * 9 * 28**2
    return _operator("deformable", (3 * 2 * 32 + 2 * 16) * samples, shapes, (4, 32, 28, 28), 15, {"W": 1 / 17})


OPERATORS = {
    p.name: p
    for p in (
        capsule_conv(1),
        capsule_conv(2),
        pairwise(),
        gaussian_kernel(),
        max_plus(),
        local_attention(),
        relative_bias(),
        relative_keys(),
        depthwise(),
        bilinear(),
        involution(),
        tensor_train(),
        running_sum(),
        grid_sample(),
        deformable(),
    )
}

COMPOSED = {p.name: p for p in (capsule_composed(1), capsule_composed(2))}
"""Operators that are written as compositions of others in every library."""
