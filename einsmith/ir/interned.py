"""Intern nodes: equal ones are one object, compared by identity.

`digest` identifies a node's structure in every process; it orders operands and keys caches.
"""

from __future__ import annotations

import hashlib
import struct
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]  # as WeakValueDictionary does
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar
from weakref import ref

from einsmith.base import locks
from einsmith.base.dtypes import DType
from einsmith.base.symbolic import SYMBOLIC, SymbolicFloat, hint

_LOCK = locks.lock()
_set = object.__setattr__


class _NodeReference(ref):
    """A weak reference to a node, with the node's key in the table."""

    __slots__ = ("key",)
    key: tuple


_TABLE: dict[tuple, _NodeReference] = {}
"""All nodes. A WeakValueDictionary takes four calls where this takes one, for a short-lived node."""


def _remove_key(reference: _NodeReference) -> None:
    """Remove the key of a node that has died, unless another node has taken it."""
    _remove_dead_weakref(_TABLE, reference.key)


_NOTHING: Mapping[Node, bytes] = MappingProxyType({})


def encode(value: Any, known: Mapping[Node, bytes] = _NOTHING) -> bytes:
    """Return a field's bytes for a digest: equal in every process for equal structure. `known`: the bytes of nodes that
    are not encoded by their own digests."""
    if isinstance(value, Node):
        return known[value] if value in known else value.digest
    if isinstance(value, tuple):
        return b"(" + b",".join([encode(v, known) for v in value]) + b")"
    if isinstance(value, DType):
        return value.name.encode()
    if isinstance(value, SYMBOLIC):  # which must not pass for its value where a digest is a key
        return f"{hint(value)} of {value.__hash__()}".encode()
    if isinstance(value, float):
        return struct.pack("<d", value)
    return repr(value).encode()


def _key(value: Any) -> Any:
    """Return a field as part of the interning key. Floats by their bits (0.0 is not -0.0, NaN is itself); True is not
    1."""
    if isinstance(value, tuple):
        return tuple(_key(v) for v in value)
    if isinstance(value, (float, bool)) and not isinstance(value, SymbolicFloat):
        return (type(value), encode(value))
    return value


class Node:
    """Base of all interned nodes. Subclasses list their fields; `_derive` computes derived attributes."""

    __slots__ = ("_outline", "_digest", "__weakref__")
    fields: ClassVar[tuple[str, ...]] = ()
    exact: ClassVar[bool] = False
    """Whether equal fields imply equal structure: no field contains floats, or bools where integers may
    occur."""
    _digest: bytes | None
    _outline: bytes  # see `rank`

    def __new__(cls, *values: Any):
        key = (cls, *values) if cls.exact else (cls, *map(_key, values))
        reference = _TABLE.get(key)
        node = None if reference is None else reference()
        return node if node is not None else cls._make(key, values)

    @classmethod
    def _make(cls, key: tuple, values: tuple):
        with _LOCK:  # two threads that meet the same new node must get one object
            reference = _TABLE.get(key)
            node = None if reference is None else reference()
            if node is not None:
                return node
            if len(values) != len(cls.fields):
                raise TypeError(f"{cls.__name__} takes {', '.join(cls.fields)}")
            node = object.__new__(cls)
            for name, value in zip(cls.fields, values, strict=True):
                _set(node, name, value)
            _set(node, "_digest", None)
            node._derive()
            reference = _TABLE[key] = _NodeReference(node, _remove_key)
            reference.key = key
            return node

    def _derive(self) -> None:
        pass

    def replaced(self, **changes: Any) -> Any:
        """Return the node with other values of some fields."""
        return type(self)(*(changes.get(name, getattr(self, name)) for name in self.fields))

    @property
    def digest(self) -> bytes:
        """Return the node's digest, computed at its first use; most nodes never need one."""
        return self._digest or _digest(self)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __reduce__(self):
        return type(self), tuple(getattr(self, f) for f in self.fields)

    _show: ClassVar[Callable[[Any], str]] = object.__repr__
    """Function that prints nodes: the printer's, which the package imports first."""

    def __repr__(self) -> str:
        return type(self)._show(self)


def _digest(node: Node) -> bytes:
    """Return the digest of a node, and compute those of all nodes below it, without recursion."""
    stack = [node]
    while stack:
        x = stack[-1]
        below = _find_without_digest([getattr(x, f) for f in x.fields])
        stack += below
        if not below:
            stack.pop()
            code = hashlib.blake2b(type(x).__name__.encode(), digest_size=16)
            for f in x.fields:
                code.update(b"|" + encode(getattr(x, f)))
            x._set("_digest", code.digest())
    return node.digest


def all_nodes(roots: Iterable[Node]) -> Iterator[Node]:
    """Yield every node that is reached from the roots through any field, each once, after those that it holds. Works
    without recursion."""
    seen: set[Node] = set()
    for root in roots:
        stack: list[Node | None] = [root]  # None is pushed above a node whose fields are done
        while stack:
            node = stack.pop()
            if node is None:
                node = stack.pop()
                if node is not None and node not in seen:
                    seen.add(node)
                    yield node
            elif node not in seen:
                stack += (node, None)
                stack += reversed(nodes_in([getattr(node, f) for f in node.fields]))


def _find_without_digest(values: Iterable[Any]) -> list[Node]:
    """Return the nodes in fields that have no digest yet."""
    out: list[Node] = []
    for v in values:
        if isinstance(v, Node):
            if v._digest is None:
                out.append(v)
        elif isinstance(v, tuple):
            out += _find_without_digest(v)
    return out


def nodes_in(values: Iterable[Any]) -> list[Node]:
    """Return all nodes in field values, those in nested tuples included."""
    out: list[Node] = []
    for v in values:
        if isinstance(v, Node):
            out.append(v)
        elif isinstance(v, tuple):
            out += nodes_in(v)
    return out
