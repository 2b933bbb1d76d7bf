"""Locks that a fork leaves sound. Every lock of Einsmith is made here.

A child has one thread, the one that forked; what the others held, nobody gives back. So there are two kinds of locks.
`lock()` guards what is whole after every single change (a dictionary that is filled, a program that writes all it reads
at each run): the child has it free, however it was held, and goes on with what it finds. `Awaited` guards what is not:
weights in the middle of a step, LLVM, registrations with another library. A fork waits until no other thread is inside
one, and none goes in until the fork is done; so it is delayed by a step, or by the compilation of one kernel, not by
that of a network. A holder that takes longer than PATIENCE (it may itself wait for what the forking thread holds) is
left behind: then the child refuses to use what that thread left half done, and everything else works.

`undone` takes back in the child what a thread of the parent changed for a while.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any
from weakref import WeakSet

from einsmith.errors import EinsmithError

PATIENCE = 30.0
"""Seconds that a fork waits at most."""
_POLL = 2e-4
"""Seconds between two looks of who waits: looking needs no lock that a fork could leave held."""

_free_in_child: WeakSet[Any] = WeakSet()
_inside: dict[int, list[Awaited]] = {}
"""The awaited locks that each thread holds or waits for, by the thread's number."""
_forking: set[int] = set()
_left: dict[int, list[Awaited]] = {}
"""What a forking thread found still held when its patience ended."""
_changed: dict[object, tuple[int, Callable[[], object]]] = {}


def lock() -> Any:
    """A reentrant lock that is free in a forked child, unless the thread that forked holds it."""
    made = threading.RLock()
    _free_in_child.add(made)
    return made


class Awaited:
    """A reentrant lock for `with`, for whose holders a fork waits. `doing` says in messages what they do."""

    __slots__ = ("_doing", "_lock", "_broken", "_waiting", "__weakref__")

    def __init__(self, doing: str):
        self._doing = doing
        self._lock = lock()
        self._broken = False
        self._waiting: list[int] = []

    def __enter__(self) -> Awaited:
        if self._broken:
            raise EinsmithError(
                f"this process was forked while another thread was {self._doing}, for more than {PATIENCE:.0f} s, so "
                f"that it has only half of the result; fork before that, or start processes by 'spawn'"
            )
        me = get_ident()
        held = _inside.get(me)
        if held is not None:
            held.append(self)
        else:
            _inside[me] = [self]
            while _forking:  # looked at after this thread is entered: a fork does it the other way round
                del _inside[me]
                time.sleep(_POLL)
                _inside[me] = [self]
        if not self._lock.acquire(blocking=False):
            self._waiting.append(me)
            try:
                self._lock.acquire()
            except BaseException:  # Ctrl-C
                self._leave()
                raise
            finally:
                self._waiting.remove(me)
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._leave()
        if self._waiting:  # who takes it again and again would leave nobody else a turn
            time.sleep(_POLL)

    @staticmethod
    def _leave() -> None:
        me = get_ident()
        held = _inside[me]
        held.pop()
        if not held:
            del _inside[me]


IMPORTING = Awaited("importing a library")
"""Held while a module is imported late: Python's own lock of it would stay held in a child."""


@contextmanager
def undone(f: Callable[[], object]) -> Iterator[None]:
    """Within it something is changed for a while: a child that another thread forks meanwhile calls `f` first."""
    token = object()
    _changed[token] = get_ident(), f
    try:
        yield
    finally:
        _changed.pop(token, None)


class cached_property(functools.cached_property):  # noqa: N801  # stands for the library's
    """functools.cached_property without the lock that Python 3.11 has: of two threads that are the first to ask both
    compute, and no fork leaves it held."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self.attrname] = self.func(instance)
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
        if not held._is_owned():
            held._at_fork_reinit()
    for broken in _left.get(me, ()):
        broken._broken = True
    for known in _others(me):
        known._waiting.clear()
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
