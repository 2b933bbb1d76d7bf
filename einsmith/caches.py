"""Caches that forget what was not used for longest. Everything that grows with shapes, programs or kernels is kept in
one, or by functools.lru_cache with a bound.

Looking up takes no lock and keeps no list in order: it notes a number that grows. Only an eviction sorts by these, and
it makes some room at once, so that it is rare.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from einsmith import locks

K = TypeVar("K")
V = TypeVar("V")

tick: Callable[[], int] = itertools.count().__next__
"""The time, counted in uses of anything."""
_ROOM = 8
"""An eviction frees this part of the bound: then it looks at every entry once in so many insertions."""


class Bound:
    """How many entries, and how many bytes, the caches that share it hold together. The entry that was put last stays,
    whatever its size."""

    def __init__(self, name: str, entries: int, nbytes: int | None = None):
        self.name, self.entries, self.nbytes = name, entries, nbytes
        self.lock = locks.lock()
        self._caches: WeakValueDictionary[int, Cache] = WeakValueDictionary()
        BOUNDS.append(self)

    def held(self) -> tuple[int, int]:
        """Return the entries and the bytes that are cached now."""
        with self.lock:
            caches = self.caches()
            return sum(map(len, caches)), sum(c.nbytes for c in caches)

    def caches(self) -> list[Cache]:
        """Return the caches that are still alive."""
        found = [ref() for ref in self._caches.valuerefs()]  # at once, while other threads make and drop some
        return [c for c in found if c is not None]

    def _evict(self, last: Entry) -> list[tuple[Cache, Entry]]:
        """Takes out what was used least recently, under the lock, until all else fits; what it was."""
        caches = self.caches()
        count, size = sum(map(len, caches)), 0 if self.nbytes is None else sum(c.nbytes for c in caches)
        limit = self.nbytes or 0
        if count <= self.entries and size <= limit:
            return []
        held = [(e.used, e, key, c) for c in caches for key, e in list(c._entries.items()) if e is not last]
        held.sort(key=lambda h: h[0])
        gone = []
        for _, entry, key, cache in held:
            if count <= self.entries - self.entries // _ROOM and size <= limit - limit // _ROOM:
                break
            cache._entries.pop(key, None)
            count, size = count - 1, size - entry.nbytes
            gone.append((cache, entry))
        return gone


BOUNDS: list[Bound] = []
"""Every bound there is; made when modules are imported."""


class Entry(Generic[V]):
    """A cached value, None once it is evicted. A holder that keeps the entry to skip the lookup sets `used` itself."""

    __slots__ = ("value", "nbytes", "used")

    def __init__(self, value: V, nbytes: int):
        self.value: V | None = value
        self.nbytes = nbytes
        self.used = tick()


class Cache(Generic[K, V]):
    """A dictionary under a bound, which several may share. `weigh`: bytes of a value; `evicted` is called with
    the cache after some of its values had to go. Values must not be None.

    Lookups and changes may come from any threads. A value that another thread still uses lives on with it.
    """

    def __init__(
        self,
        bound: Bound,
        weigh: Callable[[V], int] | None = None,
        evicted: Callable[[Cache[K, V]], object] | None = None,
    ):
        self.bound = bound
        self._weigh, self._evicted = weigh, evicted
        self._entries: dict[K, Entry[V]] = {}
        bound._caches[id(self)] = self

    def find(self, key: K) -> Entry[V] | None:
        """The entry of a key, which is noted as used."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.used = tick()
        return entry

    def get(self, key: K) -> V | None:
        """The value of a key, which is noted as used; None where there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used = tick()
        return entry.value

    def put(self, key: K, value: V) -> Entry[V]:
        """Keeps a value, in place of another one of that key, and lets go of what no longer fits."""
        return self._put(key, value, True)

    def setdefault(self, key: K, value: V) -> V:
        """The value of a key, in all threads the same one; this one where there is none yet."""
        found = self._put(key, value, False).value
        return value if found is None else found

    def _put(self, key: K, value: V, replace: bool) -> Entry[V]:
        entry = Entry(value, self._weigh(value) if self._weigh is not None else 0)
        with self.bound.lock:
            known = self._entries.get(key)
            if known is not None and not replace:
                return known
            self._entries.pop(key, None)
            self._entries[key] = entry
            gone = self.bound._evict(entry)
        if known is not None:  # values end outside the lock: what they hold may need others
            known.value = None
        for _, old in gone:
            old.value = None
        for cache in {id(c): c for c, _ in gone}.values():
            if cache._evicted is not None:
                cache._evicted(cache)
        return entry

    def clear(self) -> None:
        """Lets go of everything."""
        with self.bound.lock:
            gone = list(self._entries.values())
            self._entries.clear()
        for old in gone:
            old.value = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of all cached values together."""
        with self.bound.lock:
            return sum(e.nbytes for e in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        with self.bound.lock:
            return iter(list(self._entries))

    def items(self) -> list[tuple[K, V]]:
        """Keys and values, the first put first; they are not noted as used."""
        with self.bound.lock:
            found = [(key, e.value) for key, e in self._entries.items()]
        return [(key, value) for key, value in found if value is not None]

    def values(self) -> list[V]:
        """The values, the first put first."""
        return [value for _, value in self.items()]


class Once:
    """Marks of what has been said, so that each thing is said once. Beyond the bound the oldest marks are forgotten."""

    def __init__(self, name: str, entries: int = 1024):
        self._marks: Cache[Hashable, object] = Cache(Bound(name, entries))

    def __call__(self, key: Hashable) -> bool:
        """Mark a key; return whether it was not marked yet. Of several threads with one key, one gets True."""
        if self._marks.find(key) is not None:
            return False
        mark = object()
        return self._marks.setdefault(key, mark) is mark

    def clear(self) -> None:
        """Forget every mark."""
        self._marks.clear()


def cache_clear() -> None:
    """Lets go of everything that is compiled or remembered, so that it is made anew where it is needed again; weights,
    states and code on disk stay."""
    for bound in BOUNDS:
        for cache in bound.caches():
            cache.clear()
            if cache._evicted is not None:
                cache._evicted(cache)
