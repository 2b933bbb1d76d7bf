"""Provide locks that stay usable after a fork. Every lock of Einsmith is made here.

A forked child has one thread, the one that forked; locks that other threads held are never released. So there are two
kinds of locks. `lock()` guards data that is consistent after every single change (a dictionary that is filled, a
program that writes all it reads at each run): in the child it is free, however it was held, and the data is usable.
`Awaited` guards data that is not: weights in the middle of a step, LLVM, registrations with another library. A fork
waits until no other thread holds one, and no thread acquires one until the fork is done, except a thread that a holder
waits for; so the fork is delayed by a step, or by the compilation of one kernel, not by that of a network. A holder
that takes longer than PATIENCE (it may itself wait for what the forking thread holds) is left behind: then the child
refuses to use the data that this thread was changing, and everything else works.

A thread that holds a `lock()` acquires no `Awaited` lock: who waits for a `lock()` is not known, so a fork could wait
for a holder that waits for this thread. A lock that is held around awaited ones is a `Reentrant`.

Threads wait for an `Awaited` lock and for a `Reentrant` one as long as its holder can make progress. Where the holder
waits, itself or through others, for what the waiting thread holds, the last to come gets an error instead of a
deadlock. Where a signal handler waits in the middle of its thread's turn to run a program (RUNNING), the handler gets
the error.

A `Guard` is the lock of values that programs use together: each tensor of parameters and state begins with one of its
own, and those of one program are joined, so that a holder of any of them holds all. Threads that only read the values
share a guard: a thread that acquires it waits until they have finished.

`undone` undoes, in the child, a temporary change made by a thread of the parent.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any, TypeVar
from weakref import WeakSet

from einsmith.base import forks
from einsmith.base.errors import EinsmithError

T = TypeVar("T")
PATIENCE = 30.0
"""Most seconds that a fork waits."""
_POLL = 2e-4
"""Seconds between two polls by a waiting fork: polling needs no lock that a fork could leave held."""

_free_in_child: WeakSet[Any] = WeakSet()
_inside: dict[int, list[Awaited]] = {}
"""The awaited locks that each thread holds or waits for, by thread id."""
_forking: set[int] = set()
_left: dict[int, list[Awaited]] = {}
"""Awaited locks that a forking thread found still held when its patience ended."""
_changed: dict[object, tuple[int, Callable[[], object]]] = {}
_waits: dict[int, Reentrant | Turn] = {}
"""The lock that each waiting thread waits for, by thread id."""
LOOK = 0.05
"""Seconds between two polls of a thread that waits in the middle of its turn."""
_guard_numbers = itertools.count()
"""Numbers of guards: their order when they are locked to be joined."""


def lock() -> Any:
    """Return a reentrant lock that is free in a forked child, unless the thread that forked holds it. Its holder
    acquires no Awaited lock."""
    rlock = threading.RLock()
    _free_in_child.add(rlock)
    return rlock


def _go_on(me: int, before: Reentrant | Turn | None) -> None:
    """Record that a thread's wait has ended.

    Args:
        me: the thread's id
        before: the lock whose wait a signal handler had interrupted, and for which the thread waits again; None if it
            waits for no lock
    """
    if before is None:
        _waits.pop(me, None)
    else:
        _waits[me] = before


def waits_for_run() -> bool:
    """Return whether this thread waits for a guard or for its turn to run a program; a signal handler may ask in the
    middle."""
    return isinstance(_waits.get(get_ident()), (Turn, _GuardLock))


def _leads_to(at: Reentrant | Turn | None, thread: int) -> bool:
    """Return whether a lock is held by `thread`, or by a thread that waits, directly or through others, for such a one.

    The thread that closes a cycle sees all of it, since the others have registered what they wait for before. In a
    cycle through RUNNING, whose holder polls, only that holder sees it.
    """
    for _ in range(len(_waits) + 1):
        if isinstance(at, Turn):
            return at.queue_of(thread) is not None
        owner = at._owner if at is not None else 0
        if owner == thread:
            return True
        awaited = _waits.get(owner)
        if awaited is None:
            return False
        if awaited is at and isinstance(at, _GuardLock):  # its owner waits for those that read
            return thread in at.readers
        at = awaited
    return False


class Reentrant:
    """A reentrant lock for `with`, free in a forked child unless the thread that forked holds it.

    `doing` describes in messages what its holders do. Acquiring raises EinsmithError instead of a deadlock where the
    holder waits, itself or through other threads, for a lock that the caller holds.
    """

    __slots__ = ("_doing", "_lock", "_waiting", "_owner", "_depth", "__weakref__")

    def __init__(self, doing: str):
        self._doing = doing
        self._lock = threading.RLock()
        self._waiting: list[int] = []
        self._owner, self._depth = 0, 0
        _free_in_child.add(self)

    def __enter__(self) -> Reentrant:
        me = get_ident()
        if not self._lock.acquire(blocking=False):
            self._wait(me)
        self._owner = me
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
        self._lock.release()
        if self._waiting:  # a thread that takes it repeatedly would starve the others
            time.sleep(_POLL)

    def _is_owned(self) -> bool:
        return self._lock._is_owned()  # type: ignore[attr-defined]

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]
        self._owner, self._depth = 0, 0

    def _wait(self, me: int) -> None:
        """Acquire the lock when its holder releases it."""
        self._waiting.append(me)
        before = _waits.get(me)
        _waits[me] = self
        try:
            if _leads_to(self, me):
                raise self._cycle()
            while not self._lock.acquire(timeout=LOOK if RUNNING.is_mine() else -1):
                if _leads_to(self, me):
                    raise self._cycle()
        finally:  # Ctrl-C too
            _go_on(me, before)
            if me in self._waiting:  # not in a child that a handler has forked
                self._waiting.remove(me)

    def _cycle(self) -> EinsmithError:
        remedy = (
            "let the signal handler set a flag instead of calling functions that other threads use"
            if RUNNING.is_mine()
            else "let each thread leave the `with` block of one model before it uses another model"
        )
        return EinsmithError(
            f"two threads would wait for each other forever: this thread waits for another one, which is {self._doing} "
            f"and waits for a lock of this thread; {remedy}"
        )


class Turn:
    """The turns of threads to run programs, in queues (runtime/queues.py) of one thread at a time.

    A queue's lock is the last in the lock order: only a signal handler takes others in the middle of a turn, and gets
    an error where it would deadlock; a thread that waits for its turn never does.

    holders: the queue whose lock each thread holds, by thread id
    """

    __slots__ = ("holders",)

    def __init__(self) -> None:
        self.holders: dict[int, Any] = {}

    def queue_of(self, thread: int) -> Any:
        """Return the queue whose lock the calling thread, of this id, holds; None where there is none."""
        queue = self.holders.get(thread)
        return queue if queue is not None and queue.lock._is_owned() else None

    def is_mine(self) -> bool:
        """Return whether this thread holds a turn."""
        return self.queue_of(get_ident()) is not None

    @contextmanager
    def awaited(self, lock: Any) -> Iterator[None]:
        """Hold the lock of a queue; until it is acquired, this thread counts as waiting for a turn."""
        me = get_ident()
        before = _waits.get(me)
        _waits[me] = self
        try:
            with lock:
                _go_on(me, before)
                yield
        finally:
            _go_on(me, before)

    def is_awaited_by(self, thread: int) -> bool:
        """Return whether a thread waits for a turn."""
        return _waits.get(thread) is self


RUNNING = Turn()
"""The turns to run a program."""


class Awaited(Reentrant):
    """A reentrant lock that a fork waits for until it is free."""

    __slots__ = ("_broken",)

    def __init__(self, doing: str):
        super().__init__(doing)
        self._broken = False

    def __enter__(self) -> Awaited:
        if self._broken:
            raise EinsmithError(
                f"this process was forked while another thread was {self._doing}, for more than {PATIENCE:.0f} s, and "
                f"has an incomplete state; fork earlier, or start processes by 'spawn'"
            )
        me = get_ident()
        held = _inside.get(me)
        if held is not None:
            held.append(self)
        else:
            _inside[me] = [self]
            # Checked after this thread is entered: a fork does it in the other order.
            while _forking and not any(_leads_to(_waits.get(t), me) for t in list(_inside) if t != me):
                del _inside[me]
                time.sleep(_POLL)
                _inside[me] = [self]
        try:
            if not self._lock.acquire(blocking=False):
                self._wait(me)
            self._owner = me
            self._depth += 1
        except BaseException:  # a signal may arrive after the lock was taken, too
            if _inside[me].count(self) == 1 and self._lock._is_owned():  # type: ignore[attr-defined]
                self._owner, self._depth = 0, 0
                self._lock.release()
            self._leave(me)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        me = get_ident()
        try:
            self._depth -= 1
            if not self._depth:
                self._owner = 0
        finally:
            try:
                self._lock.release()
            finally:
                self._leave(me)
        if self._waiting:
            time.sleep(_POLL)

    def restore(self, depth: int) -> None:
        """Release the lock until this thread holds it `depth` times: a signal, which may come anywhere, has prevented a
        release."""
        me = get_ident()
        while self._owner == me and self._depth > depth:
            self._depth -= 1
            if not self._depth:
                self._owner = 0
            self._lock.release()
        held = _inside.get(me, [])
        for at in [at for at, x in enumerate(held) if x is self][depth:][::-1]:
            del held[at]
        if not held:
            _inside.pop(me, None)

    @staticmethod
    def _leave(me: int) -> None:
        """Record that the thread `me` holds one awaited lock fewer."""
        held = _inside[me]
        held.pop()
        if not held:
            del _inside[me]


class _GuardLock(Awaited):
    """The lock of a Guard. Its holder is alone with the values, but for its own reads: it waits for `readers`, by
    thread id the number of reads under way."""

    __slots__ = ("readers",)

    def __init__(self, doing: str):
        super().__init__(doing)
        self.readers: dict[int, int] = {}

    def __enter__(self) -> _GuardLock:
        super().__enter__()
        if self.readers:
            try:
                self.await_readers()
            except BaseException:
                self.__exit__()
                raise
        return self

    def await_readers(self) -> None:
        """Wait, holding the lock, until no other thread reads the values.

        Raises EinsmithError in the middle of a run of this thread that a reader waits for.
        """
        me = get_ident()
        before = _waits.get(me)
        _waits[me] = self
        try:
            while others := [t for t in list(self.readers) if t != me]:
                if RUNNING.is_mine() and any(map(RUNNING.is_awaited_by, others)):
                    raise self._cycle()
                time.sleep(_POLL)
        finally:
            _go_on(me, before)


class Guard:
    """A lock of the parameters and the state that several programs share, used in a `with` statement.

    Every tensor begins with a guard of its own. Joined guards are one lock, permanently: a holder of one holds all.
    `others` are joined with this guard when it is first held. The guards form a union-find forest (Tarjan 1975) whose
    root owns the lock; a root is locked while it is made a child of another.
    """

    __slots__ = ("_lock", "_above", "_held", "_others", "_number")

    def __init__(self, others: Iterable[Guard] = ()):
        self._lock = _GuardLock("using parameters or state")
        self._above: Guard | None = None
        self._held: list[Awaited] = []  # the lock that each entry took: a join in between changes it
        self._others = tuple(others)
        self._number = next(_guard_numbers)

    def __enter__(self, is_alone: bool = True) -> Guard:
        if self._others:
            join((self, *self._others))
            self._others = ()
        while True:
            root = self._above or self
            if root._above is not None:
                root = self._root()
            lock = root._lock
            before = lock._depth if lock._owner == get_ident() else 0
            try:
                Awaited.__enter__(lock)
                if is_alone and lock.readers:
                    lock.await_readers()
                if root._above is None:
                    self._held.append(lock)
                    return self
            except BaseException:  # a signal, which may come after the lock was taken
                if lock._owner == get_ident() and lock._depth > before:
                    lock.__exit__()
                raise
            lock.__exit__()

    def __exit__(self, *_: object) -> None:
        self._held.pop().__exit__()

    def enter_beside_readers(self) -> None:
        """Acquire the lock, even while other threads read the values."""
        self.__enter__(False)

    def begin_reading(self) -> None:
        """Count this thread among those that read the values; it holds the lock now, and may release it."""
        me, readers = get_ident(), self._root()._lock.readers
        readers[me] = readers.get(me, 0) + 1

    def try_reading(self) -> bool:
        """Count this thread among those that read the values, without the lock; return False, and do nothing, where a
        thread holds it or this one reads already.

        A holder enters its name in the lock before it looks for readers, and a reader itself before it looks for the
        name, so that one of them sees the other (Dekker's algorithm; Dijkstra 1965).
        """
        root, me = self._root(), get_ident()
        lock = root._lock
        readers = lock.readers
        if self._others or lock._owner or lock._broken or me in readers:
            return False
        readers[me] = 1
        if lock._owner or root._above is not None:
            del readers[me]
            return False
        return True

    def end_reading(self) -> None:
        """Undo one `begin_reading` of this thread."""
        me, readers = get_ident(), self._root()._lock.readers
        if readers[me] == 1:
            del readers[me]
        else:
            readers[me] -= 1

    def await_readers(self) -> None:
        """Wait until no other thread reads the values; the caller holds the lock."""
        self._root()._lock.await_readers()

    def mark(self) -> tuple[int, int, int]:
        """Return how often this thread holds the lock and reads the values, for `restore`."""
        lock, me = (self._above or self)._lock, get_ident()
        reads = lock.readers.get(me, 0)
        return (lock._depth, len(self._held), reads) if lock._owner == me else (0, 0, reads)

    def restore(self, mark: tuple[int, int, int]) -> None:
        """Release the lock, and end reading, until this thread does both as often as at a `mark`.

        For a caller whose `with` was left by an error: a signal that raises within `__exit__` itself keeps that from
        finishing.
        """
        lock = self._root()._lock
        if lock._owner == get_ident():
            del self._held[mark[1] :]
        lock.restore(mark[0])
        if mark[2]:
            lock.readers[get_ident()] = mark[2]
        else:
            lock.readers.pop(get_ident(), None)

    def is_joined(self, other: Guard) -> bool:
        """Return whether this guard and another one are one lock."""
        return self._root() is other._root()

    def _root(self) -> Guard:
        """Return the guard whose lock is that of all that are joined with this one."""
        at = self._above
        if at is None:
            return self
        while at._above is not None:
            at = at._above
        self._above = at
        return at


def join(guards: Iterable[Guard]) -> None:
    """Make guards one lock. Waits until no other thread holds any of them."""
    known = list(guards)
    while True:
        roots = {id(root): root for root in map(Guard._root, known)}
        if len(roots) <= 1:
            return
        order = sorted(roots.values(), key=lambda root: root._number)
        with ExitStack() as stack:
            for root in order:
                stack.enter_context(root._lock)
            if any(root._above is not None for root in order):
                continue
            # The lock that this thread took first is released last.
            held = _inside[get_ident()]
            first = min(order, key=lambda root: held.index(root._lock))
            for root in order:
                if root is not first:
                    root._above = first
                    for thread, count in root._lock.readers.items():  # this one's: others have finished
                        first._lock.readers[thread] = first._lock.readers.get(thread, 0) + count
            return


IMPORTING = Awaited("importing a library")
"""Held while a module is imported late: otherwise Python's own import lock could stay held in a child."""


@contextmanager
def undone(f: Callable[[], object]) -> Iterator[None]:
    """Guard a temporary change: a child that another thread forks within the block calls `f` first, which undoes the
    change."""
    token = object()
    _changed[token] = get_ident(), f
    try:
        yield
    finally:
        _changed.pop(token, None)


class cached_property(functools.cached_property[T]):  # noqa: N801  # stands for the library's
    """A functools.cached_property without the lock that Python 3.11 has: two threads that ask first at one time both
    compute, and no fork leaves a lock held."""

    def __get__(self, instance: Any, owner: Any = None) -> T:  # type: ignore[override]
        if instance is None:
            return self  # type: ignore[return-value]
        value: T = self.func(instance)
        instance.__dict__[self.attrname] = value
        return value


def _others(me: int) -> list[Awaited]:
    return [x for thread, held in list(_inside.items()) if thread != me for x in list(held)]


def _before() -> None:
    me = get_ident()
    _forking.add(me)
    end = time.monotonic() + PATIENCE
    while (left := _others(me)) and time.monotonic() < end:
        time.sleep(_POLL)
    _left[me] = left


def _in_parent() -> None:
    me = get_ident()
    _left.pop(me, None)
    _forking.discard(me)


def _in_child() -> None:
    me = get_ident()
    for held in list(_free_in_child):
        if isinstance(held, Reentrant):
            held._waiting.clear()
        if isinstance(held, _GuardLock):
            held.readers = {me: held.readers[me]} if me in held.readers else {}
        if not held._is_owned():
            held._at_fork_reinit()
    for broken in _left.get(me, ()):
        broken._broken = True
    _waits.clear()
    RUNNING.holders = {me: RUNNING.holders[me]} if me in RUNNING.holders else {}
    mine = _inside.get(me)
    _inside.clear()
    if mine is not None:
        _inside[me] = mine
    _left.clear()
    _forking.clear()
    for token, (thread, f) in reversed(_changed.copy().items()):
        if thread != me:
            del _changed[token]
            f()


forks.at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
