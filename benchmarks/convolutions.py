"""The convolutions of well-known networks, generated from the networks' definitions, for images of 224 x 224."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple


class Conv(NamedTuple):
    """A square convolution: channels, kernel, stride, groups, and height and width of its input; `pad` points of zeros
    on every side, where none is said as many as keep ceil(size / stride); points of the kernel lie `dilation` apart."""

    c_in: int
    c_out: int
    kernel: int
    stride: int
    groups: int
    size: int
    pad: int | None = None
    dilation: int = 1

    @property
    def padding(self) -> int:
        return self.dilation * (self.kernel // 2) if self.pad is None else self.pad

    @property
    def out(self) -> int:
        """Height and width of the output."""
        return (self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def depthwise(self) -> bool:
        return self.groups == self.c_in == self.c_out > 1

    def macs(self, batch: int) -> int:
        """Multiply-adds, counted as is usual: with those on the zero border."""
        return batch * self.c_out * self.out**2 * (self.c_in // self.groups) * self.kernel**2

    def __str__(self) -> str:
        kind = "dw" if self.depthwise else f"g{self.groups}" if self.groups > 1 else ""
        apart = f"d{self.dilation}" if self.dilation > 1 else ""
        pad = "" if self.pad is None else f"p{self.pad}"
        return f"{self.kernel}x{self.kernel}{kind}s{self.stride}{apart}{pad}-{self.c_in}-{self.c_out}-{self.size}"


def resnet(bottleneck: bool, depths: tuple[int, ...]) -> Iterator[Conv]:
    """He et al., arXiv 1512.03385; the stride of a bottleneck in its 3x3, as in torchvision."""
    yield Conv(3, 64, 7, 2, 1, 224)
    c_in, size = 64, 56
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for n in range(depth):
            stride = 2 if stage and not n else 1
            c_out = 4 * width if bottleneck else width
            if bottleneck:
                yield Conv(c_in, width, 1, 1, 1, size)
                yield Conv(width, width, 3, stride, 1, size)
                yield Conv(width, c_out, 1, 1, 1, size // stride)
            else:
                yield Conv(c_in, width, 3, stride, 1, size)
                yield Conv(width, width, 3, 1, 1, size // stride)
            if stride > 1 or c_in != c_out:
                yield Conv(c_in, c_out, 1, stride, 1, size)
            c_in, size = c_out, size // stride


def _inverted_residuals(blocks: tuple[tuple[int, int, int, int, int], ...]) -> Iterator[Conv]:
    """A stem of 32 channels, blocks (expansion, kernel, channels, repeats, stride), and a head of 1280 channels."""
    yield Conv(3, 32, 3, 2, 1, 224)
    c_in, size = 32, 112
    for expansion, kernel, c_out, repeats, first in blocks:
        for n in range(repeats):
            stride, hidden = (1 if n else first), expansion * c_in
            if expansion > 1:
                yield Conv(c_in, hidden, 1, 1, 1, size)
            yield Conv(hidden, hidden, kernel, stride, hidden, size)
            yield Conv(hidden, c_out, 1, 1, 1, size // stride)
            c_in, size = c_out, size // stride
    yield Conv(c_in, 1280, 1, 1, 1, size)


def mobilenet_v2() -> Iterator[Conv]:
    """Sandler et al., arXiv 1801.04381, table 2."""
    yield from _inverted_residuals(
        ((1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 3, 32, 3, 2), (6, 3, 64, 4, 2), (6, 3, 96, 3, 1), (6, 3, 160, 3, 2),
         (6, 3, 320, 1, 1))
    )  # fmt: skip


def efficientnet_lite0() -> Iterator[Conv]:
    """Tan and Le, arXiv 1905.11946, table 1, without squeeze and excitation."""
    yield from _inverted_residuals(
        ((1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2), (6, 5, 112, 3, 1), (6, 5, 192, 4, 2),
         (6, 3, 320, 1, 1))
    )  # fmt: skip


def shufflenet() -> Iterator[Conv]:
    """Zhang et al., arXiv 1707.01083, table 1, three groups; the first pointwise layer of stage 2 is not grouped."""
    yield Conv(3, 24, 3, 2, 1, 224)
    c_in, size = 24, 56
    for c_out, repeats in ((240, 4), (480, 8), (960, 4)):
        for n in range(repeats):
            stride, hidden = (1 if n else 2), c_out // 4
            yield Conv(c_in, hidden, 1, 1, 1 if c_in == 24 else 3, size)
            yield Conv(hidden, hidden, 3, stride, hidden, size)
            # A unit of stride 2 is joined with its pooled input.
            yield Conv(hidden, c_out if n else c_out - c_in, 1, 1, 3, size // stride)
            c_in, size = c_out, size // stride


NETWORKS: dict[str, Callable[[], Iterator[Conv]]] = {
    "resnet18": lambda: resnet(False, (2, 2, 2, 2)),
    "resnet50": lambda: resnet(True, (3, 4, 6, 3)),
    "mobilenet_v2": mobilenet_v2,
    "efficientnet_lite0": efficientnet_lite0,
    "shufflenet": shufflenet,
}


def distinct(*networks: str) -> list[Conv]:
    """Every convolution that occurs in any of the networks, once."""
    return list(dict.fromkeys(conv for name in networks for conv in NETWORKS[name]()))
