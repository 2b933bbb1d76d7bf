"""The networks of `einsmith bench` at sizes that a test can afford."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.models import NETWORKS, NetworkCase

SMALL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mlp3": ({}, {}),
    "lenet5": ({}, {}),
    "capsulenet": ({"classes": 3, "filters": 4, "capsules": 2, "width": 3, "size": 18}, {"sample": (1, 18, 18)}),
    "capsulenet_conv": ({"classes": 3, "capsules": 5, "pose": 2, "size": 19}, {"sample": (1, 19, 19)}),
    "resnet18_cifar": ({"depths": (1, 1), "width": 4, "classes": 5}, {"sample": (3, 9, 9)}),
    "resnet18": ({"depths": (1, 1), "width": 3, "classes": 5}, {"sample": (3, 17, 17)}),
    "resnet50": ({"depths": (1, 1), "width": 2, "classes": 5}, {"sample": (3, 17, 17)}),
    "mobilenet_v1": (
        {"width": 0.125, "blocks": [(48, 1), (64, 2)], "dropout": 0.0, "classes": 5}, {"sample": (3, 9, 9)},
    ),
    "mobilenet_v2": (
        {"width": 0.125, "blocks": [(1, 32, 1, 1), (3, 64, 2, 2)], "dropout": 0.0, "divisor": 4, "last": 24},
        {"sample": (3, 9, 9)},
    ),
    "shufflenet_v1": ({"stages": [(24, 2), (36, 1)], "stem": 6, "classes": 5}, {"sample": (3, 17, 17)}),
    "squeezenet": ({"width": 0.125, "fires": 2, "dropout": 0.0, "classes": 5}, {"sample": (3, 25, 25)}),
    "efficientnet_lite0": (
        {"blocks": [(1, 4, 1, 1, 3), (3, 6, 2, 2, 5)], "stem": 4, "last": 16, "dropout": 0.0, "drop_path": 0.0},
        {"sample": (3, 13, 13)},
    ),
    "vit_small": (
        {"classes": 5, "width": 6, "layers": 1, "heads": 3, "inner": 9, "size": 8, "patch": 4}, {"sample": (3, 8, 8)},
    ),
    "unet": ({"classes": 3, "depth": 2, "width": 3}, {"sample": (1, 12, 8), "target": (12, 8)}),
    "bert_base": (
        {"vocabulary": 11, "width": 6, "layers": 1, "heads": 2, "inner": 10, "dropout": 0.0, "pooler": False},
        {"sample": (5, 6), "target": (5, 6)},
    ),
    "gpt_small": (
        {"vocabulary": 11, "width": 6, "layers": 2, "heads": 3, "positions": 8, "inner": 7, "dropout": 0.0},
        {"sample": (5,), "target": (5,), "words": 11, "classes": 11},
    ),
    "llama": (
        {"config": {
            "vocab_size": 11, "hidden_size": 12, "intermediate_size": 7, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 1,
        }},
        {"sample": (5,), "target": (5,), "words": 11, "classes": 11},
    ),
}  # fmt: skip


def small(name: str) -> NetworkCase:
    arguments, more = SMALL[name]
    more = {"classes": arguments.get("classes", 10)} | more if NETWORKS[name](1).classes else more
    return dataclasses.replace(NETWORKS[name](3), arguments=arguments, **more)
