"""Pickle objects that refer to nodes, for other processes: leaves of the caller's own are numbers in it, other leaves
become new ones, and no recursion is needed for nodes however deep they are nested."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from einsmith.ir.interned import Node, all_nodes
from einsmith.ir.nodes import Leaf, leaf

NO_LEAVES: Mapping[Leaf, int] = MappingProxyType({})


def dumps(value: Any, roots: Iterable[Node] = (), leaves: Mapping[Leaf, int] = NO_LEAVES) -> bytes:
    """Return the pickle of a value. Raises ValueError for a value that has none.

    Args:
        value: the value.
        roots: nodes in it from which all nodes are reached whose nesting has no bound.
        leaves: numbers of the leaves that the reader has too.
    """
    file = io.BytesIO()
    # Nodes are written after those that they hold: pickle follows what it has not met by recursion.
    try:
        GraphPickler(file, leaves).dump((tuple(all_nodes(roots)), value))
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as e:
        raise ValueError(f"{type(e).__name__}: {e}") from e
    return file.getvalue()


def loads(data: bytes, leaves: Sequence[Leaf] = ()) -> Any:
    """Return the value that `dumps` has written; leaves: those that have numbers in it. The data must be trusted: a
    pickle can call any function. Raises ValueError for data that cannot be read."""
    try:
        return GraphUnpickler(data, leaves).load()[1]
    except Exception as e:  # of any kind: what is read calls constructors
        raise ValueError(f"{type(e).__name__}: {e}") from e


class GraphPickler(pickle.Pickler):
    """A pickler that writes the number of a leaf in place of the leaf."""

    def __init__(self, file: io.BytesIO, leaves: Mapping[Leaf, int]):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._leaves = leaves

    def persistent_id(self, x: Any) -> int | None:
        """Return the number of a leaf; None for everything else."""
        return self._leaves.get(x) if type(x) is Leaf else None

    def reducer_override(self, x: Any) -> Any:
        """Pickle a leaf without a number as a new leaf: ids are only valid in one process."""
        return (leaf, (x.shape, x.dtype, x.after)) if type(x) is Leaf else NotImplemented


class GraphUnpickler(pickle.Unpickler):
    """An unpickler that puts the leaves in the places of their numbers."""

    def __init__(self, data: bytes, leaves: Sequence[Leaf]):
        super().__init__(io.BytesIO(data))
        self._leaves = leaves

    def persistent_load(self, number: int) -> Leaf:
        """Return the leaf of a number."""
        return self._leaves[number]
