"""Cache values and evict the least recently used. Everything that grows with shapes, programs or kernels is kept in one
of these caches, or by functools.lru_cache with a bound.

A lookup takes no lock and maintains no ordered list: it stores an increasing number in the entry. Only an eviction
sorts by these numbers, and it frees some room at once, so that it is rare.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from einsmith.base import locks

K = TypeVar("K")
V = TypeVar("V")

tick: Callable[[], int] = itertools.count().__next__
"""Return the next time stamp; time is counted in uses of any cache entry."""
_ROOM = 8
"""An eviction frees 1/_ROOM of the bound, so that it scans all entries once in that fraction of insertions."""


class Bound:
    """A limit on the entries and the bytes that the caches sharing it hold together. The newest entry stays, whatever
    its size."""

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
        alive = [ref() for ref in self._caches.valuerefs()]  # one atomic copy: other threads make and drop some
        return [c for c in alive if c is not None]

    def _evict(self, last: Entry) -> list[tuple[Cache, Entry]]:
        """Remove the least recently used entries until the rest fits, with the lock held; return them with their
        caches."""
        caches = self.caches()
        count, size = sum(map(len, caches)), 0 if self.nbytes is None else sum(c._held for c in caches)
        limit = self.nbytes or 0
        if count <= self.entries and size <= limit:
            return []
        held = [(e.used, e, key, c) for c in caches for key, e in list(c._entries.items()) if e is not last]
        held.sort(key=lambda h: h[0])
        gone = []
        for _, entry, key, cache in held:
            if count <= self.entries - self.entries // _ROOM and size <= limit - limit // _ROOM:
                break
            cache._remove(key)
            count, size = count - 1, size - entry.nbytes
            gone.append((cache, entry))
        return gone


BOUNDS: list[Bound] = []
"""All bounds, created when modules are imported."""


class Entry(Generic[V]):
    """A cached value, None once it is evicted. A holder that keeps the entry to skip the lookup sets `used` itself."""

    __slots__ = ("value", "nbytes", "used")

    def __init__(self, value: V, nbytes: int):
        self.value: V | None = value
        self.nbytes = nbytes
        self.used = tick()


class Cache(Generic[K, V]):
    """A dictionary under a bound that several caches may share.

    `weigh` returns the bytes of a value; `evicted` is called with the cache after some of its values were evicted.
    Values must not be None. Lookups and changes may come from any thread; a value that another thread still uses
    outlives its eviction.
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
        self._held = 0  # bytes of all entries
        bound._caches[id(self)] = self

    def find(self, key: K) -> Entry[V] | None:
        """Return the entry of a key and mark it as used."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.used = tick()
        return entry

    def get(self, key: K) -> V | None:
        """Return the value of a key and mark it as used; None if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used = tick()
        return entry.value

    def put(self, key: K, value: V) -> Entry[V]:
        """Store a value under a key, replacing an earlier one, and evict entries beyond the limit."""
        return self._put(key, value, True)

    def setdefault(self, key: K, value: V) -> V:
        """Return the value of a key, after storing `value` if there is none yet; all threads get one and the same
        value."""
        stored = self._put(key, value, False).value
        return value if stored is None else stored

    def _put(self, key: K, value: V, replace: bool) -> Entry[V]:
        entry = Entry(value, self._weigh(value) if self._weigh is not None else 0)
        with self.bound.lock:
            known = self._entries.get(key)
            if known is not None and not replace:
                return known
            self._remove(key)
            self._entries[key] = entry
            self._held += entry.nbytes
            gone = self.bound._evict(entry)
        if known is not None:  # values are freed outside the lock: their destructors may need other locks
            known.value = None
        for _, old in gone:
            old.value = None
        for cache in {id(c): c for c, _ in gone}.values():
            if cache._evicted is not None:
                cache._evicted(cache)
        return entry

    def _remove(self, key: K) -> Entry[V] | None:
        """Remove an entry, with the lock held, and return it."""
        gone = self._entries.pop(key, None)
        if gone is not None:
            self._held -= gone.nbytes
        return gone

    def used_since(self, first: int) -> dict[K, V]:
        """Return the values that were used at a time stamp (`tick`) from `first` on, without marking them as used."""
        with self.bound.lock:
            used = [(key, e.value) for key, e in self._entries.items() if e.used >= first]
        return {key: value for key, value in used if value is not None}

    def drop(self, key: K) -> None:
        """Remove the value of a key, if there is one."""
        with self.bound.lock:
            gone = self._remove(key)
        if gone is not None:
            gone.value = None

    def clear(self) -> None:
        """Remove all values."""
        with self.bound.lock:
            gone = list(self._entries.values())
            self._entries.clear()
            self._held = 0
        for old in gone:
            old.value = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of all cached values together."""
        with self.bound.lock:
            return self._held

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        with self.bound.lock:
            return iter(list(self._entries))

    def items(self) -> list[tuple[K, V]]:
        """Return keys and values in order of insertion, without marking them as used."""
        with self.bound.lock:
            entries = [(key, e.value) for key, e in self._entries.items()]
        return [(key, value) for key, value in entries if value is not None]

    def values(self) -> list[V]:
        """Return the values in order of insertion."""
        return [value for _, value in self.items()]


class Once:
    """A set of marks for reporting each thing once. Beyond the bound the oldest marks are forgotten."""

    def __init__(self, name: str, entries: int = 1024):
        self._marks: Cache[Hashable, object] = Cache(Bound(name, entries))

    def __call__(self, key: Hashable) -> bool:
        """Mark a key; return whether it was not marked yet. Of several threads with one key, one gets True."""
        if self._marks.find(key) is not None:
            return False
        mark = object()
        return self._marks.setdefault(key, mark) is mark


def cache_clear() -> None:
    """Drop everything that is compiled or cached in memory; it is rebuilt where needed. Weights, states and code on
    disk stay."""
    for bound in BOUNDS:
        for cache in bound.caches():
            cache.clear()
            if cache._evicted is not None:
                cache._evicted(cache)
