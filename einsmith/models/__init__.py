"""Provide networks ready to train, by name: `einsmith.models.get("lenet5")` is `einsmith.models.lenet5()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

from einsmith.base.arguments import check_arguments
from einsmith.base.errors import ArgumentError, UnknownNameError
from einsmith.models.capsule import CapsuleConv2d, CapsuleConvNet, CapsuleNet, RoutedCapsules
from einsmith.models.classic import MLP3, LeNet5
from einsmith.models.compact import (
    EfficientNetLite0,
    MobileNetV1,
    MobileNetV2,
    ShuffleNetV1,
    SqueezeNet,
    StochasticDepth,
)
from einsmith.models.generation import Decoder, generate, stream
from einsmith.models.llama import Llama
from einsmith.models.llama_config import LlamaConfig
from einsmith.models.published import from_folder, llama
from einsmith.models.recurrent import (
    LLTMClassifier,
    LSTMLanguageModel,
    MILSTMClassifier,
    SCRNClassifier,
    SubLSTMClassifier,
)
from einsmith.models.resnet import CIFARResNet18, ResNet18, ResNet50
from einsmith.models.transformer import GPT, Bert, BertEncoder, ViT
from einsmith.models.unet import UNet
from einsmith.nn import Module

_MODELS: dict[str, Callable[..., Module]] = {}
_M = TypeVar("_M", bound=Module)


def names() -> Iterator[str]:
    """Return an iterator over the names that `get` knows, in alphabetical order."""
    return iter(sorted(_MODELS))


@check_arguments
def register(name: str, make: Callable[..., Module]) -> None:
    """Add a network under `name`; `make(**arguments)` builds it with fresh weights. Raises ArgumentError."""
    if name in _MODELS:
        raise ArgumentError(f"there is a model named {name!r} already")
    _MODELS[name] = make


@check_arguments
def maker(name: str) -> Callable[..., Module]:
    """Return the class or function that builds the networks of a name. Raises UnknownNameError."""
    if name not in _MODELS:
        near = get_close_matches(name, _MODELS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UnknownNameError(f"no model is named {name!r}; {hint}known: {', '.join(names())}")
    return _MODELS[name]


@check_arguments
def get(name: str, **arguments: Any) -> Module:
    """Build a new network by name; its attribute `spec` holds the name and the arguments. Raises UnknownNameError."""
    model = maker(name)(**arguments)
    model.spec = {"name": name, "arguments": arguments}
    return model


def _register(name: str, kind: type[_M]) -> Callable[..., _M]:
    """Register a class, and return a function that builds a network of it from the class's arguments."""
    register(name, kind)

    def make(**arguments: Any) -> _M:
        return get(name, **arguments)  # type: ignore[return-value]

    make.__name__ = make.__qualname__ = name.replace("-", "_")
    make.__doc__ = f"A new {kind.__name__}; see the class for its arguments."
    return make


bert_base = _register("bert_base", Bert)
capsulenet = _register("capsulenet", CapsuleNet)
capsulenet_conv = _register("capsulenet_conv", CapsuleConvNet)
efficientnet_lite0 = _register("efficientnet_lite0", EfficientNetLite0)
gpt_small = _register("gpt_small", GPT)
lenet5 = _register("lenet5", LeNet5)
register("llama", Llama)
lltm = _register("lltm", LLTMClassifier)
lstm_lm = _register("lstm-lm", LSTMLanguageModel)
milstm = _register("milstm", MILSTMClassifier)
mlp3 = _register("mlp3", MLP3)
mobilenet_v1 = _register("mobilenet_v1", MobileNetV1)
mobilenet_v2 = _register("mobilenet_v2", MobileNetV2)
resnet18 = _register("resnet18", ResNet18)
resnet18_cifar = _register("resnet18_cifar", CIFARResNet18)
resnet50 = _register("resnet50", ResNet50)
scrn = _register("scrn", SCRNClassifier)
shufflenet_v1 = _register("shufflenet_v1", ShuffleNetV1)
squeezenet = _register("squeezenet", SqueezeNet)
sublstm = _register("sublstm", SubLSTMClassifier)
unet = _register("unet", UNet)
vit_small = _register("vit_small", ViT)

__all__ = [
    "GPT",
    "MLP3",
    "Bert",
    "BertEncoder",
    "CIFARResNet18",
    "CapsuleConv2d",
    "CapsuleConvNet",
    "CapsuleNet",
    "Decoder",
    "EfficientNetLite0",
    "LLTMClassifier",
    "LSTMLanguageModel",
    "LeNet5",
    "Llama",
    "LlamaConfig",
    "MILSTMClassifier",
    "MobileNetV1",
    "MobileNetV2",
    "ResNet18",
    "ResNet50",
    "RoutedCapsules",
    "SCRNClassifier",
    "ShuffleNetV1",
    "SqueezeNet",
    "StochasticDepth",
    "SubLSTMClassifier",
    "UNet",
    "ViT",
    "bert_base",
    "capsulenet",
    "capsulenet_conv",
    "efficientnet_lite0",
    "from_folder",
    "generate",
    "get",
    "gpt_small",
    "lenet5",
    "llama",
    "lltm",
    "lstm_lm",
    "maker",
    "milstm",
    "mlp3",
    "mobilenet_v1",
    "mobilenet_v2",
    "names",
    "register",
    "resnet18",
    "resnet18_cifar",
    "resnet50",
    "scrn",
    "shufflenet_v1",
    "squeezenet",
    "stream",
    "sublstm",
    "unet",
    "vit_small",
]
