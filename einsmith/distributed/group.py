"""A group of processes that train one model: sums, broadcasts and agreement between them, whatever engine carries them.

All operations of a group run on one thread, in the order in which they were requested, so that every process executes
them in the same order.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from einsmith.base.arguments import show
from einsmith.base.arrays import as_numpy
from einsmith.base.errors import ArgumentError, GroupError
from einsmith.base.threads import start
from einsmith.base.trees import flatten, unflatten
from einsmith.distributed.collectives import Collectives
from einsmith.distributed.transport import Transport
from einsmith.runtime import signals

T = TypeVar("T")
LOOK = 0.5
"""Seconds between two looks of a wait for other processes at signals that have come."""
GRACE = 2.0
"""Seconds for which a step goes on to wait for other processes after Ctrl-C: those that live finish it."""
SAY = 60.0
"""Seconds of waiting for other processes after which a line says so; again each time that they have doubled."""


class ProcessGroup:
    """The processes that a launcher has started together (`es.distributed.init`).

    rank: number of this process, from 0; size: number of processes; local_rank, local_size: the same on this host;
    engine: "MPI", "torchrun", or "none" for a process that is alone, on which every operation is the identity.

    Every process calls the same operations in the same order. GroupError ends an operation where another process has
    ended or failed; the group cannot be used afterwards.
    """

    def __init__(self, transport: Transport, local_rank: int = 0, local_size: int = 1):
        collectives = Collectives(transport)
        self._collectives: Collectives | None = collectives
        self.engine, self.rank, self.size = transport.name, transport.rank, transport.size
        self.local_rank, self.local_size = local_rank, local_size
        self._requests: SimpleQueue[tuple[Future, Callable[[Collectives], Any]] | None] = SimpleQueue()
        if self.size > 1:  # a daemon: the end of a process does not wait for what the others do not answer
            self._thread = Thread(target=self._serve, args=(collectives,), name="einsmith-group", daemon=True)
            start(self._thread)
        self._failure: BaseException | None = None
        self._interruption: BaseException | None = None
        """The exception that a signal handler raised during a wait for an operation that has not ended yet."""
        self._twin: ProcessGroup | None = None
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"ProcessGroup(rank={self.rank}, size={self.size}, engine={self.engine!r})"

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.close()
        elif self._collectives is not None:
            self._collectives.transport.fail()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ArgumentError("a group belongs to its process and can be neither copied nor pickled; call init there")

    def twin(self) -> ProcessGroup:
        """Return a group of the same processes, whose operations have an order of their own. It is made once, when all
        processes call this, and is closed with the group."""
        if self._twin is None:
            if self.size == 1:
                return self
            transport = self.wait(self.submit(lambda collectives: collectives.transport.duplicate()))
            self._twin = ProcessGroup(transport, self.local_rank, self.local_size)
        return self._twin

    def close(self) -> None:
        """Leave the group, which cannot be used afterwards. Every process calls it."""
        if self._twin is not None:
            self._twin._failure = self._twin._failure or self._failure
            self._failure = self._failure or self._twin._failure
            self._twin.close()
        if self._collectives is not None:
            if self._failure is None:
                self.wait(self.submit(lambda collectives: collectives.transport.close()))
            if self.size > 1 and self._interruption is None:
                self._requests.put(None)
                self._thread.join()
        self._collectives = None

    # -- operations on the group's thread

    def submit(self, operation: Callable[[Collectives], T]) -> Future[T]:
        """Start an operation, after all those that were started before; return its future result, for `wait`."""
        collectives = self._collectives
        if collectives is None:
            raise GroupError("the group was closed and cannot be used any more; call es.distributed.init once per run")
        if self._failure is not None:
            raise self._broken()
        future: Future[T] = Future()
        if self.size == 1:
            future.set_result(operation(collectives))
            return future
        if self._process != os.getpid():
            raise GroupError("a forked process is not part of its parent's group; start it by the launcher")
        self._requests.put((future, operation))
        return future

    def wait(self, future: Future[T]) -> T:
        """Return the result of an operation. Ctrl-C ends the wait: in a step, whose signals are deferred, after GRACE
        seconds in which other processes may finish it; the group is broken then."""
        start, came, said = time.monotonic(), 0.0, SAY
        while True:
            try:
                return future.result(LOOK)
            except TimeoutError:
                now = time.monotonic()
            if now - start > said:
                print(
                    f"einsmith: rank {self.rank} of {self.size} has waited {said:.0f} s for the others", file=sys.stderr
                )
                said *= 2
            if self._interruption is not None:  # nobody waits for the operation under way
                raise self._broken() from self._interruption
            came = came or now * signals.have_come()
            if came and now - came >= GRACE:
                try:
                    signals.handle_now()
                except BaseException as e:
                    self._interruption = e
                    self._failure = GroupError(f"{type(e).__name__} ended a wait for them")
                    raise
                came = 0.0

    def _serve(self, collectives: Collectives) -> None:
        while (request := self._requests.get()) is not None:
            self._execute(collectives, *request)

    def _execute(self, collectives: Collectives, future: Future[T], operation: Callable[[Collectives], T]) -> None:
        try:
            if self._failure is not None:  # of an operation that was requested before
                raise self._failure
            future.set_result(operation(collectives))
        except Exception as e:
            self._failure = e
            error = self._broken()
            error.__cause__ = e
            future.set_exception(error)

    def _broken(self) -> GroupError:
        reason = str(self._failure).strip().partition("\n")[0] or type(self._failure).__name__
        return GroupError(
            f"rank {self.rank} of {self.size} lost the others ({reason}): a process has ended or cannot be reached. "
            "Look at the first error that any rank has printed; the last save is whole"
        )

    # -- collective operations

    def barrier(self) -> None:
        """Wait until every process is here."""
        self.wait(self.submit(lambda collectives: collectives.transport.barrier()))

    def broadcast(self, tree: Any, root: int = 0) -> Any:
        """Return the tree (nested tuples, lists and dictionaries of arrays and numbers) of the rank `root`.

        The trees of all ranks have one structure; arrays have one shape and type. Raises ArgumentError for another
        root or leaf, GroupError where the trees of the ranks differ."""
        if not 0 <= root < self.size:
            raise ArgumentError(f"root={root!r} must be a rank, from 0 to {self.size - 1}")
        return self._exchange(tree, "broadcast", lambda flat: self.broadcast_flat(flat, root))

    def all_reduce(self, tree: Any) -> Any:
        """Return the tree with each array and number replaced by its sum over all ranks, as `broadcast` says."""
        return self._exchange(tree, "all_reduce", lambda flat: self.wait(self.all_reduce_flat(flat)))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order. value: what JSON can express."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self.gather_rows(np.array([text.size], np.int64))[:, 0]
        rows = self.gather_rows(np.pad(text, (0, int(sizes.max()) - text.size)))
        return [json.loads(bytes(row[:n])) for row, n in zip(rows, sizes, strict=True)]

    def agree(self, what: str, value: Any) -> None:
        """Check that all ranks have one value. Raises GroupError, on every rank, which names the difference.

        what: name of the value, for the message; value: what JSON can express."""
        values = self.gather(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise GroupError(f"{what} differs between the ranks: {_difference(values[0], other, rank)}")

    def broadcast_flat(self, flat: np.ndarray, root: int = 0) -> None:
        """Overwrite an array [n] by that of the rank `root`."""
        self.wait(self.submit(lambda collectives: collectives.transport.broadcast(flat, root)))

    def all_reduce_flat(self, flat: np.ndarray) -> Future[None]:
        """Start to overwrite an array [n] by its sum over all ranks, in the order of the ranks."""
        return self.submit(lambda collectives: collectives.all_reduce(flat))

    def gather_numbers(self, value: float) -> np.ndarray:
        """Return a number of each rank, in order [size]."""
        return self.gather_rows(np.array([value], np.float64))[:, 0]

    def gather_rows(self, row: np.ndarray) -> np.ndarray:
        """Return the arrays [n] of all ranks as rows [size, n]."""
        return self.wait(self.submit(lambda collectives: collectives.gather_rows(row)))

    def _exchange(self, tree: Any, what: str, exchange: Callable[[np.ndarray], None]) -> Any:
        leaves, structure = flatten(tree)
        arrays = [_as_leaf(x, what) for x in leaves]
        if self.size > 1:
            self.agree(f"the argument of {what}", [str(structure), [[str(a.dtype), list(a.shape)] for a in arrays]])
        results = list(arrays)
        for dtype in dict.fromkeys(a.dtype for a in arrays):
            chosen = [n for n, a in enumerate(arrays) if a.dtype == dtype]
            flat = np.concatenate([arrays[n].reshape(-1) for n in chosen])
            if flat.size:
                exchange(flat)
            ends = np.cumsum([arrays[n].size for n in chosen])[:-1]
            for n, part in zip(chosen, np.split(flat, ends), strict=True):
                results[n] = part.reshape(arrays[n].shape)
        plain = [a.item() if isinstance(x, (bool, int, float)) else a for x, a in zip(leaves, results, strict=True)]
        return unflatten(structure, plain)


def _as_leaf(x: Any, what: str) -> np.ndarray:
    array = as_numpy(x, f"an argument of {what}")
    if array.dtype.kind not in "biuf":
        raise ArgumentError(f"{what} takes arrays of numbers, not {show(x)} of type {array.dtype}")
    return np.ascontiguousarray(array).reshape(array.shape)


def _difference(first: Any, other: Any, rank: int, path: str = "") -> str:
    """Return where two values differ first, for a message."""
    at = f" at {path}" if path else ""
    if isinstance(first, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*first, *other)):
            if first.get(key) != other.get(key):
                return _difference(first.get(key), other.get(key), rank, f"{path}.{key}" if path else str(key))
    if isinstance(first, Sequence) and isinstance(other, Sequence) and not isinstance(first, str):
        if len(first) != len(other):
            return f"rank 0 has {len(first)}{at} and rank {rank} has {len(other)}"
        for n, (a, b) in enumerate(zip(first, other, strict=True)):
            if a != b:
                return _difference(a, b, rank, f"{path}[{n}]")
    return f"rank 0 has {show(first)}{at} and rank {rank} has {show(other)}"
