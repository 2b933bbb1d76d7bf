"""Define U-Net, a network for the segmentation of images. Source: Ronneberger et al. 2015, arXiv 1505.04597."""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count, Share
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.nn import BatchNorm2d, Conv2d, ConvTranspose2d, Dropout, Module, ModuleList, ReLU, Sequential, init
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _double(channels: int, out: int, padding: int, batch_norm: bool) -> Sequential:
    """Return two blocks, each a 3x3 convolution, batch norm (with `batch_norm`) and ReLU."""
    layers: list[Module] = []
    for before in (channels, out):
        layers.append(Conv2d(before, out, 3, padding=padding, bias=not batch_norm))
        layers += [BatchNorm2d(out)] if batch_norm else []
        layers.append(ReLU())
    return Sequential(*layers)


class UNet(Module):
    """Images [B, channels, H, W] -> logits of each pixel [B, classes, H', W'].

    Down `depth` times: two 3x3 convolutions, max pooling by 2, twice the channels, beginning with `width`. Up again: a
    transposed 2x2 convolution of stride 2, the cropped feature map of the contracting path concatenated in front, two
    3x3 convolutions. padding=1 keeps the size, H' = H; padding=0 is the paper's, 572 -> 388 at depth 4. Every map that
    is pooled needs even extents. batch_norm: after each 3x3 convolution; dropout: on the lowest map. Source: arXiv
    1505.04597, figure 1.
    """

    def __init__(
        self,
        classes: Count = 2,
        depth: Count = 4,
        width: Count = 64,
        channels: Count = 1,
        padding: int = 1,
        batch_norm: bool = False,
        dropout: Share = 0.0,
        *,
        dtype: Any = "float32",
    ):
        if padding not in (0, 1):
            raise ArgumentError(f"UNet: padding={padding!r} must be 0 or 1")
        widths = [width * 2**n for n in range(depth + 1)]
        before = [channels, *widths]
        self.down = ModuleList(_double(a, b, padding, batch_norm) for a, b in zip(before, widths, strict=False))
        self.dropout = Dropout(dropout)
        self.up = ModuleList(ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.merge = ModuleList(_double(2 * w, w, padding, batch_norm) for w in reversed(widths[:-1]))
        self.head = Conv2d(width, classes, 1)
        for m in self.modules():
            if isinstance(m, Conv2d):
                init.kaiming_normal_(m.weight, nonlinearity="relu")
                if m.bias is not None:
                    init.zeros_(m.bias)
        self.to(dtype)

    def forward(self, input: Value) -> Value:
        x, kept = builder.as_value(input), []
        shape = x.shape
        for n, block in enumerate(self.down):
            if n:
                if any(extent % 2 for extent in x.shape[2:]):
                    raise ShapeError(
                        f"UNet: 'input' has shape {shape}, of which the map before pooling {n} has odd extents "
                        f"{x.shape[2:]}; pad or crop the images so that they are even there"
                    )
                x = F.max_pool2d(x, 2)
            x = block(x)
            kept.append(x)
        x = self.dropout(x)
        for grow, block, skip in zip(self.up, self.merge, reversed(kept[:-1]), strict=True):
            x = grow(x)
            top, left = ((a - b) // 2 for a, b in zip(skip.shape[2:], x.shape[2:], strict=True))
            x = block(F.cat([skip[:, :, top : top + x.shape[2], left : left + x.shape[3]], x], 1))
        return self.head(x)
