"""Define small networks for digit recognition: a perceptron of three layers, and LeNet-5."""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count
from einsmith.nn import Conv2d, Linear, Module
from einsmith.tracing.builder import Value


class MLP3(Module):
    """784-512-256-10 with ReLU between: images [B, 1, 28, 28] or rows [B, 784] -> logits [B, classes]."""

    def __init__(self, classes: Count = 10, *, dtype: Any = "float32"):
        self.fc1 = Linear(784, 512, dtype=dtype)
        self.fc2 = Linear(512, 256, dtype=dtype)
        self.fc3 = Linear(256, classes, dtype=dtype)

    def forward(self, input: Value) -> Value:
        x = F.flatten(input, 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class LeNet5(Module):
    """Images [B, 1, 28, 28] -> logits [B, classes].

    Convolutions 5x5 with 6 channels (padding 2) and 16 channels, each with ReLU and max pooling by 2; then linear
    layers of 120, 84 and the classes. Source: LeCun et al. 1998, "Gradient-based learning applied to document
    recognition", with ReLU and max pooling in place of its squashing and subsampling.
    """

    def __init__(self, classes: Count = 10, *, dtype: Any = "float32"):
        self.conv1 = Conv2d(1, 6, 5, padding=2, dtype=dtype)
        self.conv2 = Conv2d(6, 16, 5, dtype=dtype)
        self.fc1 = Linear(16 * 5 * 5, 120, dtype=dtype)
        self.fc2 = Linear(120, 84, dtype=dtype)
        self.fc3 = Linear(84, classes, dtype=dtype)

    def forward(self, input: Value) -> Value:
        x = F.max_pool2d(F.relu(self.conv1(input)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(F.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))
