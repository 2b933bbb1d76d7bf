"""Hold the accumulated gradients of all parameters in few flat arrays, which a group of processes sums one by one.

Gradients lie in the reverse order of the parameters, in which a backward pass completes them, roughly. A bucket is
summed as soon as it is complete, overlapped with the rest of the backward pass (Li et al. 2020, "PyTorch Distributed",
section 3.2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from einsmith.base.dtypes import dtype_of
from einsmith.distributed.collectives import CARRIED_BYTES
from einsmith.driver.binding import LeafSum, Notice
from einsmith.ir.nodes import Leaf, leaf
from einsmith.runtime import buffers
from einsmith.runtime.memory import Memory
from einsmith.runtime.store import ParameterStore
from einsmith.training.exchanges import MOST, Notices
from einsmith.training.state import GRADIENT

PARTS = 8
"""Buckets of which the gradients make at least so many, unless they were smaller than FIRST_BYTES or larger than
BUCKET_BYTES. The last bucket is complete at the end of the backward pass, so that its sum is never hidden: a step of a
GPT of 3.5 MB (16 samples, one Zen 4 core, 1 Gb/s, two processes) takes 115 ms with 2 buckets, 96 ms with 4."""
FIRST_BYTES = 1 << 20
"""Most bytes of the first bucket, so that communication begins early (PyTorch's default), and the least limit of the
others: smaller ones pay the network's latency more often (the same GPT: 98 ms with half of it)."""
BUCKET_BYTES = 4 << 20
"""Most bytes of a bucket in a small group, but for a larger gradient: a step of ResNet-18 (CIFAR, 45 MB, as above)
takes 1.06 s with 25 MiB (PyTorch's default), 0.92 s with 4, 0.95 s with 1."""
MOST_BYTES = 25 << 20
"""Most bytes of a bucket in any group, but for a larger gradient (PyTorch's default)."""


class Shard(NamedTuple):
    """Elements of a parameter's memory, with their accumulated gradient.

    name: the parameter; part: the elements, in the order of its memory; gradient: their gradient [n]; is_whole: whether
    the parameter is updated as a whole, in its own shape."""

    name: str
    part: slice
    gradient: np.ndarray
    is_whole: bool

    def select(self, memory: np.ndarray) -> np.ndarray:
        """Return the piece's elements of memory in the parameter's layout, as a view [n]."""
        return memory.reshape(-1)[self.part]


@dataclass
class Bucket:
    """Gradients in one flat array.

    number: position among the buckets; flat: the array, empty where each gradient has memory of its own; names: their
    parameters; memories: the memory of each, part of the array; offsets: its first element in the array."""

    number: int
    flat: np.ndarray
    names: tuple[str, ...]
    memories: tuple[Memory, ...]
    offsets: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of all gradients."""
        return self.flat.nbytes or sum(m.host.nbytes for m in self.memories)

    def pieces(self, first: int, end: int) -> Iterator[Shard]:
        """Yield the pieces of parameters whose gradients are elements `first` to `end` of the array."""
        for name, memory, at in zip(self.names, self.memories, self.offsets, strict=True):
            start, stop = max(first, at), min(end, at + memory.physical.size)
            if start < stop:
                yield Shard(name, slice(start - at, stop - at), self.flat[start:stop], False)

    def wholes(self) -> Iterator[Shard]:
        """Yield the parameters as wholes."""
        for name, memory in zip(self.names, self.memories, strict=True):
            yield Shard(name, slice(None), memory.host, True)


class GradientBuckets:
    """The accumulated gradients of a store's parameters, arranged in buckets, and the notices of their completion.

    store: the parameters, to whose state the gradients belong; multiple: number of equal parts of a bucket; apart:
    whether each gradient has memory of its own, of which a device can have the newest copy, in the place of a part of
    an array."""

    def __init__(self, store: ParameterStore, multiple: int):
        self._store, self._multiple, self.apart = store, multiple, False
        self.buckets: list[Bucket] = []
        self.names: tuple[str, ...] = ()
        self._form: tuple = ()
        self.completed = Notices()
        """Numbers of the buckets that a run has completed, when it has."""

    def _parameters(self) -> dict[str, Any]:
        """Return the parameters that require a gradient in the order of the buckets."""
        pairs = [(n, p) for n, p in reversed(self._store.parameters.items()) if p.requires_grad]
        return dict(sorted(pairs, key=lambda pair: pair[1].memory.dtype.str))

    def _form_of(self, parameters: Mapping[str, Any]) -> tuple:
        memories = {n: p.memory for n, p in parameters.items()}
        return self.apart, *((n, m.host.shape, m.dtype.str, m.layout) for n, m in memories.items())

    def is_arranged(self) -> bool:
        """Return whether the buckets hold the gradients of all parameters that require one. The caller holds the guard
        of the store, as for `arrange`."""
        if self._form_of(self._parameters()) != self._form:
            return False
        slots = self._store.state
        return all(
            f"{n}/{GRADIENT}" in slots and slots[f"{n}/{GRADIENT}"].memory is memory
            for bucket in self.buckets
            for n, memory in zip(bucket.names, bucket.memories, strict=True)
        )

    def arrange(self) -> None:
        """Arrange the gradients anew, with the values that they have. Programs that hold the old memory are invalid."""
        parameters = self._parameters()
        most = bucket_bytes(sum(p.memory.host.nbytes for p in parameters.values()), self._multiple)
        parts = divide(parameters, most)
        while len(parts) > MOST:
            most *= 2
            parts = divide(parameters, most)
        self.buckets = [self._make_bucket(n, part) for n, part in enumerate(parts)]
        self.names, self._form = tuple(parameters), self._form_of(parameters)

    def clear_others(self, trained: Collection[str]) -> None:
        """Set the gradients of all but the named parameters to zero."""
        for bucket in self.buckets:
            for name, memory in zip(bucket.names, bucket.memories, strict=True):
                if name not in trained:
                    if self.apart:
                        memory.store(0.0)
                    else:
                        memory.physical[...] = 0

    def _make_bucket(self, number: int, parameters: Mapping[str, Any]) -> Bucket:
        dtype = next(iter(parameters.values())).memory.dtype
        line = buffers.ALIGNMENT // dtype.itemsize
        offsets, end = [], 0
        for p in parameters.values():
            offsets.append(end)
            end += -(-p.memory.host.size // line) * line
        if self.apart:
            apart = [
                self._store.place(f"{name}/{GRADIENT}", Memory(p.shape, dtype, p.memory.layout, self._store.guard))
                for name, p in parameters.items()
            ]
            return Bucket(number, np.empty(0, dtype), tuple(parameters), tuple(apart), tuple(offsets))
        unit = line * self._multiple
        flat = buffers.zeros((-(-end // unit) * unit,), dtype)
        memories = []
        for (name, p), at in zip(parameters.items(), offsets, strict=True):
            shape, layout = p.memory.host.shape, p.memory.layout
            place = flat[at : at + p.memory.host.size].reshape(shape)
            memories.append(
                self._store.place(f"{name}/{GRADIENT}", Memory(p.shape, dtype, layout, self._store.guard, place))
            )
        return Bucket(number, flat, tuple(parameters), tuple(memories), tuple(offsets))

    def shards(self, rank: int | None, stage: slice = slice(None)) -> list[Shard]:
        """Return the pieces of parameters, of the buckets in a slice, whose gradients the process `rank` adds up; whole
        parameters for None."""
        out: list[Shard] = []
        for bucket in self.buckets[stage]:
            count = bucket.flat.size // self._multiple
            if rank is None:
                out += bucket.wholes()
            else:
                out += bucket.pieces(rank * count, (rank + 1) * count)
        return out

    # -- notices

    def sums(self, bind: dict[Leaf, np.ndarray], communicator: Any) -> list[LeafSum]:
        """Return the sums of all buckets over devices by a program, to whose leaves the gradients are added of which it
        computes nothing. bind: the memory of the program's leaves."""
        leaves = {id(array): x for x, array in bind.items()}
        out = []
        for bucket in self.buckets:
            summed = [leaves.get(id(m.host)) or leaf(m.host.shape, dtype_of(m.dtype)) for m in bucket.memories]
            bind |= {x: m.host for x, m in zip(summed, bucket.memories, strict=True)}
            out.append(LeafSum(tuple(summed), communicator))
        return out

    def notices(self, bind: Mapping[Leaf, np.ndarray]) -> list[Notice]:
        """Return what a program says of the buckets. bind: the memory of the program's leaves."""
        leaves = {id(array): x for x, array in bind.items()}
        out = []
        for bucket in self.buckets:
            stored = frozenset(leaves[id(m.host)] for m in bucket.memories if id(m.host) in leaves)
            if stored:
                out.append(Notice(stored, self.completed.writer, self.completed.message(bucket.number)))
        return out


def bucket_bytes(total: int, ranks: int) -> int:
    """Return the most bytes of a bucket (a larger gradient is a bucket of its own) for `total` bytes of gradients in a
    group of `ranks`. Its messages, one for each rank, are large enough that latency is a small part of their time."""
    least = max(FIRST_BYTES, ranks * CARRIED_BYTES)
    return min(MOST_BYTES, max(least, min(BUCKET_BYTES, total // PARTS)))


def divide(parameters: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    """Divide parameters into consecutive groups of one element type, of at most `most` bytes each (the first one: of at
    most FIRST_BYTES, if that is less). A larger parameter is a group of its own."""
    parts: list[dict[str, Any]] = []
    nbytes = 0
    for name, p in parameters.items():
        limit = min(FIRST_BYTES, most) if len(parts) <= 1 else most
        last: Sequence[Any] = list(parts[-1].values())[-1:] if parts else ()
        if not last or nbytes + p.memory.host.nbytes > limit or last[0].memory.dtype != p.memory.dtype:
            parts.append({})
            nbytes = 0
        parts[-1][name] = p
        nbytes += p.memory.host.nbytes
    return parts
