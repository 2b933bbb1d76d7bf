"""Define capsule networks. Sources: Sabour et al. 2017, arXiv 1710.09829; Hinton et al. 2018, Matrix capsules."""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count, Size
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.lang.op import op
from einsmith.nn import Conv2d, Linear, Module, ReLU, Sequential, Sigmoid, init
from einsmith.nn.linear import empty
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

ROUTING = ("inputs", "classes")

capsule_conv = op("C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j])")
capsule_votes = op("V[b,k,c,p,q,i,j] = sum[r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j])")


def route(votes: Value, iterations: int, over: str = "classes") -> Value:
    """Return capsules [B, classes, ..., features] from votes [B, classes, inputs, ..., features] by dynamic routing.

    Couplings c, a softmax of logits that begin at zero, weigh the votes; v is the squashed sum; logits grow by the
    agreement of a vote with v, `iterations` - 1 times. Source: arXiv 1710.09829, procedure 1.

    Args:
        votes: the vectors that each input capsule predicts for each class, at one place or at each of two dimensions.
        iterations: the number of sums.
        over: what the softmax sums to 1 over, "classes" or "inputs".
    """
    classes, inputs = votes.shape[1:3]
    at = "pq"[: votes.ndim - 4]
    logits: Any = None
    for n in range(iterations):
        if logits is None:
            summed = votes.sum(axis=2) * (1.0 / (classes if over == "classes" else inputs))
        else:
            couplings = F.softmax(logits, 1 if over == "classes" else 2)
            summed = F.einsum(f"bji{at},bji{at}f->bj{at}f", couplings, votes)
        v = F.squash(summed)
        if n + 1 < iterations:
            agreement = F.einsum(f"bji{at}f,bj{at}f->bji{at}", votes, v)
            logits = agreement if logits is None else logits + agreement
    return v


class RoutedCapsules(Module):
    """Capsules [B, inputs, width] -> [B, classes, features], by routing. weight [classes, inputs, width, features].

    Each input capsule predicts each class's, u W, and `route` weighs these votes. over: what the couplings sum to 1
    over, "classes" as in the paper (each input capsule shares itself out), or "inputs" (each class collects).
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
        inputs, width = w.shape[1:3]
        if u.shape[1:] != (inputs, width):
            raise ShapeError(f"RoutedCapsules: 'input' has shape {u.shape}, needs [B, {inputs}, {width}]")
        return route(F.einsum("bik,jikf->bjif", u, w), self.iterations, self.over)


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


class CapsuleConv2d(Module):
    """Capsules of poses [B, inputs, H, W, pose, pose] -> [B, capsules, P, Q, pose, pose], of lengths below 1.

    weight [capsules, inputs, kernel, kernel, pose, pose]. iterations=0: the sum over all inputs and places of the
    window, C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j]), squashed; otherwise the
    sums over the window are each input's votes, which `route` weighs. Source: Hinton et al. 2018, section 4.
    """

    def __init__(
        self,
        inputs: Count,
        capsules: Count,
        kernel_size: Count,
        stride: Count = 1,
        pose: Count = 4,
        iterations: Size = 0,
        *,
        dtype: Any = "float32",
    ):
        self.stride, self.iterations = stride, iterations
        self.weight = empty((capsules, inputs, kernel_size, kernel_size, pose, pose), dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values, normal, by which the poses' lengths are about those of the inputs."""
        capsules, inputs, kernel, _, pose, _ = self.weight.shape
        init.normal_(self.weight, 0.0, (capsules if self.iterations else 1) * (inputs * kernel * kernel * pose) ** -0.5)

    def forward(self, input: Value) -> Value:
        a, w = builder.as_value(input), builder.as_value(self.weight)
        _, inputs, kernel, _, pose, _ = w.shape
        if len(a.shape) != 6 or (a.shape[1], *a.shape[4:]) != (inputs, pose, pose) or min(a.shape[2:4]) < kernel:
            raise ShapeError(
                f"CapsuleConv2d: 'input' has shape {tuple(a.shape)}, needs [B, {inputs}, H, W, {pose}, {pose}] with H "
                f"and W at least {kernel}"
            )
        if self.iterations:
            v = route(F.flatten(capsule_votes(A=a, W=w, stride=self.stride), 5), self.iterations)
        else:
            v = F.squash(F.flatten(capsule_conv(A=a, W=w, stride=self.stride), 4))
        return v.reshape((*v.shape[:4], pose, pose))


class CapsuleConvNet(Module):
    """Images [B, channels, size, size] -> the class capsules' lengths [B, classes], each in [0, 1).

    A convolution 5x5 of stride 2 with ReLU makes `capsules` capsules of pose x pose features at each place. Two layers
    of capsule convolutions 3x3 follow, the first of stride 2; between them each of the first layer's capsules routes
    itself to the classes in three iterations. A class's capsule is the mean of its capsules at all places. Trained with
    `functional.margin_loss`. Sources: Hinton et al. 2018, Matrix capsules with EM routing, figure 1; arXiv 1710.09829.
    """

    def __init__(
        self,
        classes: Count = 10,
        iterations: Count = 3,
        capsules: Count = 32,
        pose: Count = 4,
        size: Count = 28,
        channels: Count = 1,
        *,
        dtype: Any = "float32",
    ):
        if size < 17:
            raise ArgumentError(f"CapsuleConvNet: size={size} must be at least 17")
        self.capsules, self.pose = capsules, pose
        self.stem = Conv2d(channels, capsules * pose * pose, 5, 2)
        self.conv1 = CapsuleConv2d(capsules, capsules, 3, 2, pose)
        self.conv2 = CapsuleConv2d(capsules, classes, 3, 1, pose, iterations)
        self.to(dtype)

    def forward(self, input: Value) -> Value:
        x = F.relu(self.stem(input))
        x = x.reshape((x.shape[0], self.capsules, -1, *x.shape[2:])).permute((0, 1, 3, 4, 2))
        x = F.squash(x).reshape((*x.shape[:4], self.pose, self.pose))
        return lengths(F.flatten(self.conv2(self.conv1(x)).mean((2, 3)), 2))


def lengths(capsules: Value) -> Value:
    """Return the lengths of vectors [..., features]; the derivative at zero is zero."""
    return F.norm(capsules, dim=-1)
