"""Find out on which device PyTorch's tensors lie, and use PyTorch's memory and streams there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from einsmith.cost.facts import CPU, Target
from einsmith.cost.gpu import CUDA
from einsmith.driver import registry
from einsmith.runtime.arena import Allocate, Arena, Block

SUPPORTED = CPU, CUDA
"""Kinds of devices on whose tensors programs run."""


def device_of(x: torch.Tensor) -> str:
    """Return the name of the device on which a tensor lies, as PyTorch calls it: "cpu", "cuda:0"."""
    return CPU if x.is_cpu else str(x.device)


def is_supported(device: str) -> bool:
    """Return whether programs can run on tensors of a device."""
    return device.partition(":")[0] in SUPPORTED


class TensorPlace:
    """A device as the programs of PyTorch's tensors use it: its target, memory of PyTorch's allocator, and PyTorch's
    current stream. `name`: see `device_of`."""

    def __init__(self, name: str):
        self.name = name
        self.arena = Arena() if name == CPU else _DeviceArena(name)

    def target(self, threads: int) -> Target | None:
        """Return what programs are compiled for; None for this machine. Raises DeviceError."""
        return None if self.name == CPU else registry.target_of(registry.check_device(self.name), threads)

    def stream(self) -> int | None:
        """Return PyTorch's current stream of the device; None for the CPU."""
        return None if self.name == CPU else _current_stream(self.name)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a contiguous tensor that is not initialised."""
        return torch.empty(tuple(shape), dtype=dtype, device=_torch_device(self.name))


class _DeviceArena(Arena):
    """An arena in memory of PyTorch's allocator."""

    def __init__(self, device: str):
        super().__init__()
        self._device = device

    def reserve(self, nbytes: int, allocate: Allocate = lambda n: Block(None, 0, 0)) -> Block:
        return super().reserve(nbytes, self._allocate)

    def _allocate(self, nbytes: int) -> Block:
        _synchronize(self._device)  # programs in other streams may still use the block that this one replaces
        with unset_fake_temporarily():  # graphs are compiled while PyTorch makes tensors without memory
            memory = torch.empty(nbytes, dtype=torch.uint8, device=_torch_device(self._device))
        return Block(memory, memory.data_ptr(), nbytes)


def _current_stream(device: str) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def _synchronize(device: str) -> None:
    torch.cuda.synchronize(device)


def _torch_device(device: str) -> torch.device:
    return torch.device(device)


@lru_cache(maxsize=64)
def place(device: str) -> TensorPlace:
    """Return the place of a device, by its name."""
    return TensorPlace(device)


def common(tensors: Iterable[torch.Tensor]) -> str:
    """Return the device of tensors: that of those that lie on no CPU, where there are any, as PyTorch's operators take
    0-d tensors of the CPU beside them."""
    found = dict.fromkeys(map(device_of, tensors))
    return next((d for d in found if d != CPU), CPU)


def moved(x: torch.Tensor, device: str) -> Any:
    """Return a 0-d tensor of the CPU on another device."""
    return x.to(_torch_device(device))
