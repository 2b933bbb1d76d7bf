"""Keep what tracing derives from formulas on disk, so that a second process need not derive it again: templates that
formulas are lowered to, and what memos of templates hold, adjoints above all.

What is kept for a trace is found by a hint, a text that two traces of one function for equal shapes share. Nothing
depends on the hint but time: a derivation is used only where its formula or template occurs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from einsmith.base import caches, environment
from einsmith.base.symbolic import is_symbolic
from einsmith.codegen.cache import objects
from einsmith.ir.nodes import Compute, Graph, Template, postorder
from einsmith.tracing.lower import LOWERED

WORTHWHILE = 0.05
"""Seconds of a trace from which on its derivations are kept: reading them takes about 5 ms."""
Memos = dict[Template, dict[str, Any]]


class Derivations:
    """The derivations of one trace, which begins when they are created. They are read from disk then.

    Args:
        hint: a text of what is traced: names and settings.
        arrays: shapes and types of what it is traced for; of a trace on symbolic extents, nothing is read or kept.
    """

    def __init__(self, hint: str, arrays: Sequence[tuple[tuple[int, ...], Any]]):
        self._key = objects.name_of(b"derivations", sys.version.encode(), f"{hint} {arrays}".encode())
        self._is_kept = bool(environment.PLANS.get()) and not any(map(is_symbolic, (n for s, _ in arrays for n in s)))
        self._count = 0
        self._memos: Memos = {}
        saved = objects.read_pickled(self._key) if self._is_kept else None
        if saved is not None:
            lowered, self._memos = saved
            self._count = _count(lowered, self._memos)
            for structure, record in lowered.items():
                LOWERED.setdefault(structure, record)
            for template, known in self._memos.items():
                for name, value in known.items():
                    template.memo(name, lambda _, value=value: value)
        self._first_tick, self._start = caches.tick(), time.perf_counter()

    def keep(self, graph: Graph) -> None:
        """Write the derivations of the trace, which has made `graph`, if it took long and they are not on disk."""
        if not self._is_kept or time.perf_counter() - self._start < WORTHWHILE:
            return
        lowered = LOWERED.used_since(self._first_tick)
        roots = (*graph.roots, *graph.gradients, *(out for _, out in lowered.values()))
        templates = dict.fromkeys(n.template for n in postorder(roots) if isinstance(n, Compute))
        memos = {t: {name: x for name, x in t.memos.items() if isinstance(name, str)} for t in templates}
        if _count(lowered, memos) > self._count:
            objects.write_pickled(self._key, (lowered, memos), memos)


def _count(lowered: dict, memos: Memos) -> int:
    return len(lowered) + sum(map(len, memos.values()))
