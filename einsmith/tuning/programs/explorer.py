"""Choose which program of a training step is explored."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from einsmith.base import locks
from einsmith.cost.facts import Target
from einsmith.driver import registry
from einsmith.driver.backend import Backend, Workshop
from einsmith.driver.bound_program import BoundProgram
from einsmith.tuning.programs.online import Exploration


class _Prepared(NamedTuple):
    """A workshop that no program has yet, its back end, and what closes it when the explorer is garbage-collected."""

    workshop: Workshop
    backend: Backend
    closing: weakref.finalize


class Explorer:
    """Explorer of the programs of a training step, one at a time: two would compete for processors. Several threads may
    use it."""

    def __init__(self) -> None:
        self._lock = locks.Reentrant("preparing an exploration")
        self._current: weakref.ref[Exploration] | None = None
        self._prepared: _Prepared | None = None
        """Workshop of the next program to explore."""

    @contextmanager
    def preparing(self, target: Target | None, threads: int, programs: Sequence[BoundProgram]) -> Iterator[None]:
        """Begin to start the workshop of a program that is compiled within the block, so that starting it costs no
        steps. At the end of the block, a workshop that no program has is closed.

        target: what the program is compiled for; threads, programs: as for `begin`."""
        prepared = self._prepare(target, threads, programs)
        try:
            yield
        finally:
            if prepared is not None:
                self._close_unused(prepared)

    def _prepare(self, target: Target | None, threads: int, programs: Sequence[BoundProgram]) -> _Prepared | None:
        """Return a workshop that begins to start; None where a program is being explored, or another thread compiles
        one and has prepared a workshop, which the first of the two programs takes."""
        with self._lock:
            if self._prepared is not None or self._is_exploring(programs):
                return None
            backend = registry.DEFAULT if target is None else registry.backend_of(target)
            workshop = backend.workshop(target or backend.target(threads), threads)
            prepared = _Prepared(workshop, backend, weakref.finalize(self, workshop.close))
            self._prepared = prepared
            try:
                workshop.prepare()
            except BaseException:  # Ctrl-C too
                self._close_unused(prepared)
                raise
            return prepared

    def _close_unused(self, prepared: _Prepared) -> None:
        """Close a prepared workshop unless a program has taken it."""
        with self._lock:
            if self._prepared is not prepared:
                return
            self._prepared = None
        prepared.closing()

    def begin(
        self, run: BoundProgram, threads: int, seconds: float, programs: Sequence[BoundProgram]
    ) -> Exploration | None:
        """Begin to explore a program; return None where another one of `programs` (all of the step) is being explored.

        threads: worker threads of the program; seconds: time limit."""
        with self._lock:
            if self._is_exploring(programs):
                return None
            current = None if self._current is None else self._current()
            if current is not None:
                current.state.end("its program is no longer used")
            exploration = Exploration(run, self._take_workshop(run, threads), seconds)
            self._current = weakref.ref(exploration)
            return exploration

    def _is_exploring(self, programs: Sequence[BoundProgram]) -> bool:
        """Return whether one of `programs` is being explored."""
        current = None if self._current is None else self._current()
        return current is not None and not current.state.over and any(run is current.run for run in programs)

    def _take_workshop(self, run: BoundProgram, threads: int) -> Workshop:
        """Return the workshop that was prepared, for a program; a new one where none was prepared for its back end."""
        prepared = self._prepared
        if prepared is None or prepared.backend is not run.backend:
            return run.backend.workshop(run.target, threads)
        self._prepared = None
        prepared.closing.detach()
        prepared.workshop.target, prepared.workshop.threads = run.target, threads
        return prepared.workshop
