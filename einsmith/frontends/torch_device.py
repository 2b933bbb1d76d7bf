"""Find out where and how PyTorch's tensors lie in memory, and use PyTorch's memory and streams there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd import forward_ad

from einsmith.base.errors import DtypeError
from einsmith.cost.facts import CPU, Target
from einsmith.driver import registry
from einsmith.gpu.cards import CUDA
from einsmith.runtime.arena import Allocate, Arena, Block

SUPPORTED = CPU, CUDA
"""Kinds of devices on whose tensors programs run."""
_MEMORY = frozenset(f"{before}{kind}" for before in ("", "Autograd", "Autocast") for kind in ("CPU", "CUDA"))
"""Dispatch keys of tensors whose elements stand in memory as they are."""
_LAZY = frozenset(("Negative", "Conjugate", "ZeroTensor"))
"""Dispatch keys of tensors to whose elements PyTorch has yet to do something, or that have no memory."""


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
    """Return the device of tensors. If some are not on the CPU, it is their device, because PyTorch's operators accept
    0-d tensors of the CPU in addition."""
    devices = dict.fromkeys(map(device_of, tensors))
    return next((d for d in devices if d != CPU), CPU)


@lru_cache(maxsize=64)
def _keys(raw: int) -> frozenset[str]:
    """Return the names of the dispatch keys in a set that bar a tensor's memory from being read as its elements."""
    names = str(torch._C.DispatchKeySet.from_raw_repr(raw)).partition("(")[2].rstrip(")").split(", ")
    return frozenset(names) - _MEMORY - {"ADInplaceOrView"}


def in_memory(values: Sequence[Any]) -> Sequence[Any]:
    """Return values whose tensors have their elements in memory: copies of those that PyTorch negates lazily or that
    have no memory, the others as they are.

    Raises DtypeError for tensors that are no memory of elements (wrappers of torch.func and torch.vmap, subclasses with
    operators of their own, sparse, quantized, nested and meta tensors) and for those with a tangent.
    """
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    sets = {torch._C._dispatch_keys(x).raw_repr() for x in tensors}
    keys = frozenset().union(*map(_keys, sets))
    if not keys <= _LAZY:
        raise DtypeError(f"a tensor has elements that only PyTorch can read ({', '.join(sorted(keys - _LAZY))})")
    if have_tangents(tensors):
        raise DtypeError("a tensor has a tangent of forward-mode differentiation, which a program does not carry on")
    return [x.clone() if isinstance(x, torch.Tensor) and _is_lazy(x) else x for x in values] if keys else values


def _is_lazy(x: torch.Tensor) -> bool:
    return x.is_neg() or x.is_conj() or x._is_zerotensor()


def have_tangents(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether some strided tensor has a tangent. Tensors of other layouts are refused later."""
    # Asking takes longer than a small operator; outside of every level of forward mode there is nothing to ask.
    active = torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling()
    if forward_ad._current_level < 0 and not active:
        return False
    floats = (x for x in tensors if x.is_floating_point() and x.layout is torch.strided)
    return any(forward_ad.unpack_dual(x, level=0).tangent is not None for x in floats)


def moved(x: torch.Tensor, device: str) -> Any:
    """Return a 0-d tensor of the CPU on another device."""
    return x.to(_torch_device(device))
