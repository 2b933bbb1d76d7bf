"""Let programs take parameters that do not train for constants, and keep them in fewer bits (option `frozen`).

A tensor's storage owns what programs keep of it: their memory is free once the tensor is. A change that PyTorch counts
(`Tensor._version`) reaches the programs before their next run; one through `.data` does so after `refresh`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch

from einsmith.base import dtypes as dt
from einsmith.base import locks
from einsmith.base.errors import ArgumentError
from einsmith.frontends import torch_device
from einsmith.frontends.torch_compile import layout
from einsmith.frontends.torch_compile.reused import inputs_of
from einsmith.frontends.torch_compile.saved import overwritten
from einsmith.frontends.torch_nodes import TYPES
from einsmith.nn.frozen import KINDS, KeptWeight
from einsmith.nn.parameter import Buffer
from einsmith.runtime import buffers
from einsmith.runtime.memory import Clock, Memory

FROZEN = "einsmith_frozen"
"""Key of a graph node's meta under which a weak reference to an input's `FrozenWeight` stands."""
Programs = TypeVar("Programs")


class _OutsideMemory(Memory):
    """Memory of PyTorch's, whose changes `version` tells: programs take it for constant in between."""

    __slots__ = ()

    def is_shared(self) -> bool:
        """Return False: changes are followed only where PyTorch counts them or `refresh` reports them."""
        return False


class _OutsideBuffer(Buffer):
    """A tensor of PyTorch's as programs read it, in its own memory."""

    def __init__(self, memory: Memory):
        self.memory = memory


class FrozenWeight:
    """A tensor of PyTorch's that programs take for constant until its version changes.

    value: what traces read, of the shape in which the elements lie in memory. It does not keep the tensor alive.

    Args:
        x: the tensor.
        placed: how its memory is read.
        keep: "bf16" or "int8" for float32 of two dimensions and more; None: read in place.
    Raises:
        ArgumentError: a value that is kept in fewer bits is not finite.
    """

    def __init__(self, x: torch.Tensor, placed: layout.Placed, keep: str | None):
        self._storage = ref(x.untyped_storage())
        self._address, self._version = x.data_ptr(), x._version
        self.value: Buffer
        if keep is not None and placed.dtype is dt.f32 and len(placed.physical) > 1:
            self.value = KeptWeight(placed.physical, KINDS[keep])
            self._store()
        else:
            elements = self._elements(placed.physical, placed.dtype)
            self.value = _OutsideBuffer(_OutsideMemory(placed.physical, elements.dtype, place=elements))

    def _elements(self, shape: tuple[int, ...], dtype: dt.DType) -> Any:
        """Return the tensor's elements as an array that is not written to, and that does not keep them alive."""
        out = buffers.array_at(self._address, shape, dtype)
        out.flags.writeable = False
        return out

    def _store(self) -> None:
        try:
            self.value.store(self._elements(self.value.shape, dt.f32))
        except ArgumentError as e:
            raise ArgumentError(f"a frozen parameter of shape {list(self.value.shape)}: {e}") from None

    @property
    def memories(self) -> list[Memory]:
        """The memory that traces read."""
        scale = self.value.scale if isinstance(self.value, KeptWeight) else None
        return [self.value.memory] if scale is None else [self.value.memory, scale.memory]

    @property
    def storage(self) -> Any:
        """The storage of the tensor, None once there is none."""
        return self._storage()

    def is_of(self, x: torch.Tensor) -> bool:
        """Return whether a tensor has the memory of this one."""
        return x.untyped_storage() is self._storage() and x.data_ptr() == self._address

    def follow(self, x: torch.Tensor) -> None:
        """Have programs read the values of the tensor anew if it has changed. Raises ArgumentError as at first."""
        version = x._version
        if version == self._version:
            return
        with self.value.memory.guard:
            if isinstance(self.value, KeptWeight):
                self._store()
            else:
                self.value.memory.version = Clock.note()
            self._version = version


class _OfStorage:
    """What belongs to a storage. weights: by place and options; programs: of each region whose first frozen input is
    in this storage."""

    def __init__(self) -> None:
        self.weights: dict[tuple, FrozenWeight] = {}
        self.programs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


_owned: WeakKeyDictionary[Any, _OfStorage] = WeakKeyDictionary()
_guard = locks.lock()


def _of_storage(storage: Any) -> _OfStorage:
    with _guard:
        return _owned.setdefault(storage, _OfStorage())


def weight_of(x: torch.Tensor, keep: str | None) -> FrozenWeight:
    """Return the constant that stands for a tensor in programs; all programs share it. Raises ArgumentError."""
    owned = _of_storage(x.untyped_storage())
    key = x.data_ptr(), tuple(x.shape), x.stride(), x.dtype, keep
    weight = owned.weights.get(key)
    if weight is None:
        placed = layout.memory_order(tuple(x.shape), x.stride(), TYPES[x.dtype])
        weight = owned.weights.setdefault(key, FrozenWeight(x, placed, keep))
    weight.follow(x)
    return weight


def programs_of(storage: Any, region: Any, make: Callable[[], Programs]) -> Programs:
    """Return what a region keeps for weights of which the first is in a storage, made at first; it goes with the
    storage."""
    owned = _of_storage(storage)
    out = owned.programs.get(region)
    return owned.programs.setdefault(region, make()) if out is None else out


def find_frozen(inputs: Sequence[Any], keep: bool | str) -> dict[int, ref[FrozenWeight]]:
    """Return the weights among a graph's inputs by their numbers: parameters on the CPU that do not train.

    keep: the option `frozen`. Raises ArgumentError as `FrozenWeight`.
    """
    if not keep:
        return {}
    kind = keep if isinstance(keep, str) else None
    return {n: ref(weight_of(x, kind)) for n, x in enumerate(inputs) if _is_frozen(x)}


def _is_frozen(x: Any) -> bool:
    if type(x) is not torch.nn.Parameter or x.requires_grad or not x.is_cpu or x.layout is not torch.strided:
        return False
    if x.dtype not in TYPES or x.is_inference() or not x.numel():
        return False
    return torch_device.in_memory([x])[0] is x


def mark(graph: torch.fx.Graph, weights: dict[int, ref[FrozenWeight]]) -> None:
    """Note at a graph's inputs which of them are frozen; inputs that the graph writes into are not."""
    written = overwritten(graph) if weights else ()
    for n, node in enumerate(inputs_of(graph)):
        if n in weights and node not in written:
            node.meta[FROZEN] = weights[n]


def weight_at(node: torch.fx.Node) -> FrozenWeight | None:
    """Return the weight that a graph's input is, None where it is none, or no longer there."""
    known = node.meta.get(FROZEN)
    return None if known is None else known()
