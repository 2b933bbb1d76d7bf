"""The networks of `es.models` in PyTorch, as its users write them: the same names, arguments, state names and shapes.

`get("resnet18", classes=10)` is the twin of `es.models.get("resnet18", classes=10)`. The tests compare training with
them, and the benchmarks time them; the recurrent networks are in benchmarks.peers.recurrent_cells. Arguments that no
comparison needs are absent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from benchmarks.twins.capsule import CapsuleNet
from benchmarks.twins.classic import MLP3, LeNet5
from benchmarks.twins.compact import EfficientNetLite0, MobileNetV1, MobileNetV2, ShuffleNetV1, SqueezeNet
from benchmarks.twins.resnet import ResNet
from benchmarks.twins.transformer import GPT, Bert, ViT
from benchmarks.twins.unet import UNet

TWINS: dict[str, Callable[..., nn.Module]] = {
    "bert_base": Bert,
    "capsulenet": CapsuleNet,
    "efficientnet_lite0": EfficientNetLite0,
    "gpt_small": GPT,
    "lenet5": LeNet5,
    "mlp3": MLP3,
    "mobilenet_v1": MobileNetV1,
    "mobilenet_v2": MobileNetV2,
    "resnet18": ResNet,
    "resnet18_cifar": partial(ResNet, classes=10, small=True),
    "resnet50": partial(ResNet, depths=(3, 4, 6, 3), deep=True),
    "shufflenet_v1": ShuffleNetV1,
    "squeezenet": SqueezeNet,
    "unet": UNet,
    "vit_small": ViT,
}


def get(name: str, **arguments: Any) -> nn.Module:
    """The twin of `es.models.get(name, **arguments)`, with PyTorch's initial values."""
    return TWINS[name](**arguments)
