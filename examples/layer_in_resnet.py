"""A layer of one's own inside ResNet-18: an operator written as an index formula takes the place of a convolution.

    python examples/layer_in_resnet.py [epochs]

Learns CIFAR-10, which is fetched where it is not on this machine, with a quarter of the network's channels.
"""

from __future__ import annotations

import sys

import numpy as np

import einsmith as es

# Involution (arXiv 2103.06255): each place has a 3x3 filter of its own, which all channels of a group share.
INVOLUTION = es.op("""
    Y[b,g,c,h,w] = sum[r,s](K[b,g,r,s,h,w] * where(0 <= h+r-1 and h+r-1 < size(h) and 0 <= w+s-1 and w+s-1 < size(w),
                                                   X[b,g,c,h+r-1,w+s-1], 0))
""")


class Involution(es.nn.Module):
    """[B, channels, H, W] -> the same; the filters are two linear maps of the place's own channels."""

    def __init__(self, channels: int, groups: int, hidden: int):
        self.groups = groups
        self.reduce = es.nn.Sequential(es.nn.Conv2d(channels, hidden, 1), es.nn.BatchNorm2d(hidden), es.nn.ReLU())
        self.span = es.nn.Conv2d(hidden, groups * 9, 1)

    def forward(self, x):
        b, _, h, w = x.shape
        filters = self.span(self.reduce(x)).reshape((b, self.groups, 3, 3, h, w))
        return INVOLUTION(K=filters, X=x.reshape((b, self.groups, -1, h, w))).reshape(x.shape)


def network(width: int = 16, depths: tuple[int, ...] = (2, 2, 2, 2)) -> es.nn.Module:
    """ResNet-18 for small images; the second convolution of each stage's last block is an involution."""
    model = es.models.resnet18_cifar(width=width, depths=depths)
    for n, depth in enumerate(depths):
        channels, stage = width * 2**n, getattr(model, f"layer{n + 1}")
        stage[depth - 1].conv2 = Involution(channels, groups=max(1, channels // 16), hidden=width)
    return model


def train(x, y, test_x, test_y, epochs: int = 1, batch: int = 128, **sizes) -> es.TrainStep:
    """Images [N, 3, H, W] scaled to 0..1 and their labels [N]."""
    a = es.data.augment
    scale = a.normalize([0.491, 0.482, 0.447], [0.247, 0.243, 0.262])
    change = a.compose(scale, a.random_crop(x.shape[-1] // 8), a.random_flip())
    batches = es.data.batches(x, y, batch, seed=0, transform=change, threads=1)
    es.manual_seed(0)
    rate = es.optim.lr_scheduler.CosineAnnealingLR(0.05, epochs * len(batches))
    step = es.TrainStep(network(**sizes), es.functional.cross_entropy, es.optim.SGD(lr=rate, momentum=0.9))
    step.fit(batches, epochs, validation=es.data.batches(test_x, test_y, 2 * batch, transform=scale))
    return step


def check() -> None:
    """The operator's gradients are derived; here they stand beside differences of its values."""
    rng = np.random.default_rng(0)
    k, x, dy = (rng.standard_normal(s) for s in ((1, 2, 3, 3, 4, 5), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5)))
    _, pullback = es.vjp(lambda k, x: INVOLUTION(K=k, X=x), k, x)
    for n, (given, found) in enumerate(zip((k, x), pullback(dy), strict=True)):
        step = 1e-5 * rng.standard_normal(given.shape)
        ahead, behind = (INVOLUTION(K=k + s * step if n == 0 else k, X=x + s * step if n == 1 else x) for s in (1, -1))
        np.testing.assert_allclose((found * step).sum(), ((ahead - behind) * dy).sum() / 2, rtol=1e-6)


def main(epochs: str = "1") -> None:
    check()
    try:
        (x, y), (test_x, test_y) = (es.data.cifar10(split, say=print) for split in ("train", "test"))
    except es.DataError as e:
        sys.exit(str(e))
    step = train(x, y, test_x, test_y, int(epochs))
    print(f"accuracy {100 * step.history[-1]['val_accuracy']:.2f} %")


if __name__ == "__main__":
    main(*sys.argv[1:])
