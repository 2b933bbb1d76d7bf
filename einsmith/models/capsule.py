"""Define capsule networks. Source: Sabour et al. 2017, arXiv 1710.09829."""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.nn import Conv2d, Linear, Module, ReLU, Sequential, Sigmoid, init
from einsmith.nn.linear import empty

ROUTING = ("inputs", "classes")


class RoutedCapsules(Module):
    """Capsules [B, inputs, width] -> [B, classes, features], by routing. weight [classes, inputs, width, features].

    Each input capsule predicts each class's, u_hat = u W. Couplings c, a softmax of logits that begin at zero, weigh
    the predictions; v is the squashed sum; logits grow by u_hat.v, `iterations` - 1 times. over: what the softmax sums
    to 1 over, "classes" as in the paper (each input capsule shares itself out), or "inputs" (each class collects).
    Gradients flow through all iterations. Source: arXiv 1710.09829, procedure 1.
    """

    def __init__(
        self,
        inputs: Count,
        width: Count,
        classes: Count,
        features: Count,
        iterations: Count = 3,
        over: str = "classes",
        *,
        dtype: Any = "float32",
    ):
        if over not in ROUTING:
            raise ArgumentError(f"RoutedCapsules: over={over!r} must be 'classes' or 'inputs'")
        self.iterations, self.over = iterations, over
        self.weight = empty((classes, inputs, width, features), dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values, normal with deviation 0.1, or 1 for over="inputs", where the sum is a small mean."""
        init.normal_(self.weight, 0.0, 0.1 if self.over == "classes" else 1.0)

    def forward(self, input: Value) -> Value:
        u, w = builder.as_value(input), builder.as_value(self.weight)
        classes, inputs, width, features = w.shape
        if u.shape[1:] != (inputs, width):
            raise ShapeError(f"RoutedCapsules: 'input' has shape {u.shape}, needs [B, {inputs}, {width}]")
        predicted = F.einsum("bik,jikf->bjif", u, w)
        logits: Any = None
        for n in range(self.iterations):
            if logits is None:
                summed = predicted.sum(axis=2) * (1.0 / (classes if self.over == "classes" else inputs))
            else:
                couplings = F.softmax(logits, 1 if self.over == "classes" else 2)
                summed = F.einsum("bji,bjif->bjf", couplings, predicted)
            v = F.squash(summed)
            if n + 1 < self.iterations:
                agreement = F.einsum("bjif,bjf->bji", predicted, v)
                logits = agreement if logits is None else logits + agreement
        return v


class CapsuleNet(Module):
    """Images [B, channels, size, size] -> the class capsules' lengths [B, classes], each in [0, 1).

    A convolution 9x9 with ReLU, `capsules` capsules of `width` features at each place by a convolution 9x9 of stride 2,
    squashed, and routed to one capsule of `features` features a class; its length says whether the class is there.
    Trained with `functional.margin_loss`. routing: `over` of RoutedCapsules. `capsules_of(input)` returns the capsules,
    `reconstruct(capsules, labels)`, with `decoder`, the image that the paper's decoder makes of the labelled capsule.
    Source: arXiv 1710.09829, figures 1 and 2.
    """

    def __init__(
        self,
        classes: Count = 10,
        routing: str = "inputs",
        iterations: Count = 3,
        filters: Count = 256,
        capsules: Count = 32,
        width: Count = 8,
        features: Count = 16,
        size: Count = 28,
        channels: Count = 1,
        decoder: bool = False,
        *,
        dtype: Any = "float32",
    ):
        place = (size - 8 - 8 + 1) // 2
        if place < 1:
            raise ArgumentError(f"CapsuleNet: size={size} must be at least 17")
        self.width, self.size, self.channels, self.classes = width, size, channels, classes
        self.conv1 = Conv2d(channels, filters, 9)
        self.primary = Conv2d(filters, width * capsules, 9, 2)
        self.routed = RoutedCapsules(capsules * place * place, width, classes, features, iterations, routing)
        layers = (
            Sequential(
                Linear(classes * features, 512),
                ReLU(),
                Linear(512, 1024),
                ReLU(),
                Linear(1024, channels * size * size),
                Sigmoid(),
            )
            if decoder
            else None
        )
        self.add_module("decoder", layers)
        self.to(dtype)

    def capsules_of(self, input: Value) -> Value:
        """Return the class capsules [B, classes, features] of images [B, channels, size, size]."""
        x = self.primary(F.relu(self.conv1(input)))
        # Channel n*capsules + m at a place is feature n of the place's capsule m.
        x = x.reshape((x.shape[0], self.width, -1)).permute((0, 2, 1))
        return self.routed(F.squash(x))

    def forward(self, input: Value) -> Value:
        return lengths(self.capsules_of(input))

    def reconstruct(self, capsules: Value, labels: Value) -> Value:
        """Decode the labelled one of class capsules [B, classes, features] to images [B, channels, size, size].

        Raises ArgumentError without `decoder`."""
        if self.decoder is None:
            raise ArgumentError("CapsuleNet: there is no decoder; make the network with decoder=True")
        labels = builder.as_value(labels)
        kept = builder.compute(capsules.shape, lambda b, c, k: builder.where(labels[b] == c, capsules[b, c, k], 0.0))
        return self.decoder(F.flatten(kept, 1)).reshape((-1, self.channels, self.size, self.size))


def lengths(capsules: Value) -> Value:
    """Return the lengths of vectors [..., features]; the derivative at zero is zero."""
    return F.norm(capsules, dim=-1)
