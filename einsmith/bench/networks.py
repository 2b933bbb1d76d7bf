"""Define training steps of the networks of `einsmith.models`: shapes, starting values, and the arithmetic of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import default_rng

from einsmith import models
from einsmith.nn.init import manual_seed

LR = 0.002
"""Learning rate: plain SGD."""
SMALL = ("mlp3", "lenet5")
"""Networks that are compared where none is named."""


@dataclass(frozen=True)
class NetworkStep:
    """A training step of a network: forward, loss, backward and SGD's update.

    Nothing is dropped, so that all peers compute the same. Batch norm's running statistics are part of a step.

    arguments: those of the network, the defaults for all others. part: the module of the network that is trained, the
    whole network where it is empty. loss: cross_entropy (also of the tokens of sequences), margin_loss or mse_loss.
    sample, target: shapes of a sample of the input and of its target. words: number of different tokens, where the
    input is tokens. classes: number of classes of the target, 0 where it is numbers.
    """

    name: str
    network: str
    batch: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    part: str = ""
    loss: str = "cross_entropy"
    sample: tuple[int, ...] = ()
    target: tuple[int, ...] = ()
    words: int = 0
    classes: int = 0

    def make_network(self) -> Any:
        """Return the network, or the part of it, that is trained."""
        network = models.get(self.network, **self.arguments)
        for name in filter(None, self.part.split(".")):
            network = getattr(network, name)
        return network

    @property
    def is_of_images(self) -> bool:
        """True if the input is images, whose memory may have the channels first or last."""
        return len(self.sample) == 3 and self.network != "mlp3"

    def inputs_and_targets(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a batch."""
        rng = default_rng(1)
        shape, wanted = (self.batch, *self.sample), (self.batch, *self.target)
        x = rng.integers(0, self.words, shape) if self.words else rng.standard_normal(shape, np.float32)
        y = rng.integers(0, self.classes, wanted) if self.classes else rng.standard_normal(wanted, np.float32)
        return x, y

    def state(self) -> dict[str, np.ndarray]:
        """Return parameters and buffers by name.

        They are the network's own initial values, except that tensors of zeros or ones get random values, as after some
        training: zeros in the last layer would hide every earlier gradient.
        """
        manual_seed(0)
        rng = default_rng(2)
        out = {}
        for name, value in self.make_network().state_dict().items():
            a = np.array(value)
            if a.dtype.kind == "f" and not name.endswith(("running_mean", "running_var")) and not np.ptp(a):
                a = a + 0.02 * rng.standard_normal(a.shape, np.float32)
            out[name] = a
        return out

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state, and the batch as "x" and "y"."""
        return dict(zip(("x", "y"), self.inputs_and_targets(), strict=True)) | self.state()


def _image(network: str, channels: int, size: int, classes: int, **more: Any) -> Callable[[int], NetworkStep]:
    def make(batch: int) -> NetworkStep:
        return _step(network, batch, **({"sample": (channels, size, size), "classes": classes} | more))

    return make


def _step(network: str, batch: int, **more: Any) -> NetworkStep:
    return NetworkStep(f"{network}-b{batch}", network, batch, **more)


DROPLESS: dict[str, Any] = {"arguments": {"dropout": 0.0}}
NETWORKS: dict[str, Callable[[int], NetworkStep]] = {
    "mlp3": _image("mlp3", 1, 28, 10),
    "lenet5": _image("lenet5", 1, 28, 10),
    "capsulenet": _image("capsulenet", 1, 28, 10, loss="margin_loss"),
    "capsulenet_conv": _image("capsulenet_conv", 1, 28, 10, loss="margin_loss"),
    "resnet18_cifar": _image("resnet18_cifar", 3, 32, 10),
    "resnet18": _image("resnet18", 3, 224, 1000),
    "resnet50": _image("resnet50", 3, 224, 1000),
    "mobilenet_v1": _image("mobilenet_v1", 3, 224, 1000, **DROPLESS),
    "mobilenet_v2": _image("mobilenet_v2", 3, 224, 1000, **DROPLESS),
    "shufflenet_v1": _image("shufflenet_v1", 3, 224, 1000),
    "squeezenet": _image("squeezenet", 3, 224, 1000, **DROPLESS),
    "efficientnet_lite0": _image(
        "efficientnet_lite0", 3, 224, 1000, arguments={"dropout": 0.0, "drop_path": 0.0}
    ),
    "vit_small": _image("vit_small", 3, 224, 1000),
    "unet": _image("unet", 1, 224, 2, target=(224, 224)),
    "bert_base": lambda batch: _step(
        "bert_base", batch, arguments={"dropout": 0.0, "pooler": False}, part="encoder", loss="mse_loss",
        sample=(512, 768), target=(512, 768),
    ),
    "gpt_small": lambda batch: _step(
        "gpt_small", batch, **DROPLESS, loss="cross_entropy", sample=(256,), target=(256,), words=50257, classes=50257
    ),
    "llama": lambda batch: _step(
        "llama", batch, loss="cross_entropy", sample=(256,), target=(256,), words=49152, classes=49152
    ),
}  # fmt: skip
"""Training step of each network, by its name in `einsmith.models`, as a function of the batch size.

Images have the sizes of the papers, but 224x224 in place of U-Net's 572x572. BERT is its encoder, of embedded tokens;
GPT and Llama read 256 tokens."""
