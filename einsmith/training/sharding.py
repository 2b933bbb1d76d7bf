"""Divide the state of an optimizer among the processes of a group (ZeRO, Rajbhandari et al. 2020, stages 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from operator import methodcaller
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.distributed.group import ProcessGroup
from einsmith.ir.nodes import Axis, Compute, Piece, Read, Reduce, leaf, postorder
from einsmith.runtime.memory import Clock, Memory
from einsmith.tracing import trace
from einsmith.tracing.builder import Value
from einsmith.training.gradient_buckets import GradientBuckets
from einsmith.training.state import GRADIENT, TrainingState


class ShardedState:
    """The state of parameters, each rank of a group keeping that of its part of every bucket of gradients.

    Raises ArgumentError for a rule that computes an element from others."""

    def __init__(self, group: ProcessGroup, state: TrainingState, buckets: GradientBuckets):
        check_divisible(state)
        self._group, self._store, self._buckets = group, state.store, buckets

    def send_parameters(self, stage: slice) -> list[Future[None]]:
        """Start to give all ranks those parameters of some buckets that this one has updated. The buckets, whose
        gradients are used up, carry them."""
        for piece in self._buckets.shards(self._group.rank, stage):
            piece.gradient[...] = piece.select(self._store.parameters[piece.name].memory.physical)
        return [self._group.submit(methodcaller("all_gather", x.flat)) for x in self._buckets.buckets[stage]]

    def receive_parameters(
        self, trained: Collection[str], pending: Sequence[Future[None]], wait: Callable[[Future[None]], None]
    ) -> None:
        """Take the parameters that the other ranks have updated, after `wait` for each bucket of them."""
        for bucket, future in zip(self._buckets.buckets, pending, strict=True):
            wait(future)
            for piece in bucket.pieces(0, bucket.flat.size):
                if piece.name in trained:
                    piece.select(self._store.parameters[piece.name].memory.physical)[...] = piece.gradient
        Clock.note_store()

    def drop_whole(self, trained: Collection[str]) -> None:
        """Remove the state, such as that of a save, of which every rank has taken its part."""
        state = self._store.state
        for name in [n for n in state if parameter_name(n) in trained and not n.endswith(f"/{GRADIENT}")]:
            del state[name]

    def unite(self) -> None:
        """Put divided state together on every rank, before it is divided anew. All ranks call it."""
        store = self._store
        for name, values in self.gather().items():
            p = store.parameters[parameter_name(name)]
            layout = p.memory.layout if values.shape == p.shape else None
            store.state.pop(name, None)
            store.slot(name, values.shape, values.dtype, values, layout)
        store.shards.clear()

    def gather(self, kind: str | None = None) -> dict[str, np.ndarray]:
        """Return the state that is divided among the ranks as a whole, by `parameter/state`. All ranks call it.

        kind: the state to gather; all by default."""
        store, out = self._store, {}
        mine = {
            n: bool(shard.memory.shape)
            for n, shard in sorted(store.shards.items())
            if kind is None or n.endswith(f"/{kind}")
        }
        known: dict[str, bool] = {}
        for states in self._group.gather(mine):
            known |= states
        parts = {piece.name: piece.part for piece in self._buckets.shards(self._group.rank)}
        for name in sorted(known):
            parameter, shard = store.parameters[parameter_name(name)], store.shards.get(name)
            if not known[name]:
                values = self._group.gather(None if shard is None else float(shard.data))
                out[name] = np.asarray(next(v for v in values if v is not None), parameter.memory.dtype)
                continue
            whole = Memory(parameter.shape, parameter.memory.dtype, parameter.memory.layout)
            flat = np.zeros(whole.physical.size, whole.dtype)
            if shard is not None:
                flat[parts[parameter_name(name)]] = shard.data
            self._group.wait(self._group.all_reduce_flat(flat))
            whole.physical.reshape(-1)[...] = flat
            out[name] = whole.logical()
        return out


def parameter_name(state: str) -> str:
    """Return the parameter of a state's name, `parameter/state`."""
    return state.rpartition("/")[0]


def check_divisible(state: TrainingState) -> None:
    """Check that a part of each parameter can be updated by itself. Raises ArgumentError, which names the rule."""
    for name, p in state.store.parameters.items():
        rule = state.rules[name][1]
        kind = type(rule).__name__
        if not p.requires_grad:
            continue
        shapes = rule.states(p.shape, p.dtype)
        odd = [s for s, shape in shapes.items() if shape not in (p.shape, ())]
        if odd:
            raise ArgumentError(
                f"shard_optimizer: {kind} keeps {odd[0]} of shape {list(shapes[odd[0]])} for {name} of shape "
                f"{list(p.shape)}, which cannot be divided among processes; leave the option out"
            )
        try:
            coupling = find_coupling(rule, p.dtype)
        except ShapeError as e:
            raise ArgumentError(f"shard_optimizer: {kind} updates {name} as a whole only; leave the option out") from e
        if coupling is not None:
            raise ArgumentError(
                f"shard_optimizer: {kind}, the rule of {name}, computes one element from others by {coupling}; leave "
                "the option out"
            )


def find_coupling(rule: Any, dtype: DType) -> str | None:
    """Return what couples the elements of a parameter in an update rule, for a message: a reduction, or a read of
    another element; None where every element is updated by itself. Raises ShapeError for a rule of matrices only."""
    shape = (3,)
    with trace.tracing(trace.Trace()):
        p, g = Value(leaf(shape, dtype)), Value(leaf(shape, dtype))
        state = {s: Value(leaf(x, dtype)) for s, x in rule.states(shape, dtype).items()}
        hyper = {n: Value(leaf((), dt.f64), weak=True) for n in rule.hyper}
        new, after = rule.update(p, g, state, hyper, Value(leaf((), dt.f64), weak=True))
    for t in postorder([v.tensor for v in (new, *after.values())]):
        if not isinstance(t, Compute):
            continue
        own = tuple(map(Axis, range(len(t.shape))))
        for part in t.template.parts:
            if not isinstance(part, Piece):
                return "scattered results"
            if isinstance(part.body, Reduce):
                return f"a {part.body.combiner}"
            if any(isinstance(e, Read) and e.index not in ((), own) for e in postorder([part.body])):
                return "a read of another element"
    return None
