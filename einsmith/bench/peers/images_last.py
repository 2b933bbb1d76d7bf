"""Move a network's arrays between the layout of `bench.networks` and one in which images have their channels last."""

from __future__ import annotations

import numpy as np

from einsmith.bench.networks import NetworkStep


class ChannelsLast:
    """The arrays of a problem as libraries take them whose images have their channels last.

    Filters are [height, width, in, out], weights of linear layers [in, out]; those of the layer after `flatten` have
    their inputs in the order of the flattened images.
    """

    def __init__(self, problem: NetworkStep, arrays: dict[str, np.ndarray]):
        self.channels: dict[str, tuple[int, int]] = {}
        """Channels and pixels of the images that a linear layer reads flattened, by the name of its weight."""
        channels = arrays["x"].shape[1]
        flat = False
        for layer in problem.layers:
            weight = f"{layer.name}.weight"
            if layer.kind == "conv":
                channels = arrays[weight].shape[0]
            elif layer.kind == "flatten":
                flat = True
            elif layer.kind == "linear" and flat:
                self.channels[weight] = channels, arrays[weight].shape[1] // channels
                flat = False

    def to_peer(self, name: str, a: np.ndarray) -> np.ndarray:
        """Return an array in the peer's layout, contiguous."""
        if name in self.channels:
            channels, pixels = self.channels[name]
            a = a.reshape(len(a), channels, pixels).transpose(0, 2, 1).reshape(a.shape)
        if a.ndim == 4:
            a = a.transpose(0, 2, 3, 1) if name == "x" else a.transpose(2, 3, 1, 0)
        return np.ascontiguousarray(a.T if a.ndim == 2 else a)

    def from_peer(self, name: str, a: np.ndarray) -> np.ndarray:
        """Return an array of the peer in the problem's layout."""
        a = a.transpose(3, 2, 0, 1) if a.ndim == 4 else a.T
        if name in self.channels:
            channels, pixels = self.channels[name]
            a = a.reshape(len(a), pixels, channels).transpose(0, 2, 1).reshape(a.shape)
        return np.ascontiguousarray(a)
