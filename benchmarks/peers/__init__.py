"""One file for each library, or for each library and kind of problem (see `benchmarks.worker.module_of`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

LAST = (0, 2, 3, 1)
"""Images with their channels last, from images with their channels first."""


class Form(NamedTuple):
    """A formulation of a kernel: the function of its inputs, and the order in which the axes of an input, of the output
    Y, and of their gradients lie in memory, where that is not the order of the problem. `applies`: to which problems,
    by the shapes of their arrays and their options."""

    function: Callable[..., Any]
    axes: Mapping[str, tuple[int, ...]] = {}
    applies: Callable[[Mapping[str, tuple[int, ...]], Mapping[str, Any]], bool] = lambda shapes, options: True

    def order(self, name: str) -> tuple[int, ...] | None:
        """The axes of the array of that name: an input, G, Y, or the gradient d... of an input."""
        key = {"G": "Y"}.get(name) or name.removeprefix("d")
        return self.axes.get(key)

    def to_peer(self, name: str, array: np.ndarray) -> np.ndarray:
        """An array of the problem as the formulation takes it, contiguous."""
        order = self.order(name)
        return array if order is None else np.ascontiguousarray(array.transpose(order))

    def from_peer(self, name: str, array: np.ndarray) -> np.ndarray:
        """A result of the formulation as the problem has it."""
        order = self.order(name)
        return array if order is None else array.transpose(np.argsort(order))


def applicable(
    forms: Mapping[str, Form], shapes: Mapping[str, tuple[int, ...]], options: Mapping[str, Any]
) -> tuple[str, ...]:
    """The names of the formulations that apply."""
    return tuple(name for name, form in forms.items() if form.applies(shapes, options))


def forms_of(
    network: str, kernels: Mapping[str, Mapping[str, Form]], operators: Mapping[str, Mapping[str, Callable[..., Any]]]
) -> Mapping[str, Form]:
    """Return the formulations of a kernel, or of an operator, whose arrays lie as in the problem; none of others."""
    return kernels.get(network) or {name: Form(f) for name, f in operators.get(network, {}).items()}


def of_one_element(shapes: Mapping[str, tuple[int, ...]], options: Mapping[str, Any]) -> bool:
    """Whether a convolution's kernel is one element."""
    return shapes["W"][2:] == (1, 1) and options["padding"] == 0


def depthwise(shapes: Mapping[str, tuple[int, ...]], options: Mapping[str, Any]) -> bool:
    """Whether each channel of a convolution is a group."""
    return options["groups"] == shapes["W"][0] == shapes["X"][1] > 1
