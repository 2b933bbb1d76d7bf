"""Provide the networks of `einsmith.models` in PyTorch, as its users write them, for comparisons.

`get("resnet18", classes=10)` is the twin of `einsmith.models.get("resnet18", classes=10)`: the same arguments, state
names and shapes. Arguments that no comparison needs are absent. The recurrent networks are in
`bench.peers.recurrent_cells`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from tests.models.twins.capsule import TorchCapsuleConvNet, TorchCapsuleNet
from tests.models.twins.classic import sequence
from tests.models.twins.compact import (
    TorchEfficientNetLite0,
    TorchMobileNetV1,
    TorchMobileNetV2,
    TorchShuffleNetV1,
    TorchSqueezeNet,
)
from tests.models.twins.resnet import TorchResNet
from tests.models.twins.transformer import TorchBert, TorchGPT, TorchViT
from tests.models.twins.unet import TorchUNet

TWINS: dict[str, Callable[..., nn.Module]] = {
    "bert_base": TorchBert,
    "capsulenet": TorchCapsuleNet,
    "capsulenet_conv": TorchCapsuleConvNet,
    "efficientnet_lite0": TorchEfficientNetLite0,
    "gpt_small": TorchGPT,
    "lenet5": partial(sequence, "lenet5"),
    "mlp3": partial(sequence, "mlp3"),
    "mobilenet_v1": TorchMobileNetV1,
    "mobilenet_v2": TorchMobileNetV2,
    "resnet18": TorchResNet,
    "resnet18_cifar": partial(TorchResNet, classes=10, small=True),
    "resnet50": partial(TorchResNet, depths=(3, 4, 6, 3), deep=True),
    "shufflenet_v1": TorchShuffleNetV1,
    "squeezenet": TorchSqueezeNet,
    "unet": TorchUNet,
    "vit_small": TorchViT,
}


def get(name: str, **arguments: Any) -> nn.Module:
    """Return the twin of `einsmith.models.get(name, **arguments)`, with PyTorch's initial values."""
    return TWINS[name](**arguments)
