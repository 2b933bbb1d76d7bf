"""Track what the programs of a training step depend on: captured memory, and the states of modules."""

from __future__ import annotations

from itertools import count
from typing import Any

from einsmith.base.caches import Bound, Cache
from einsmith.runtime.memory import Memory
from einsmith.training.step_graph import StepGraph

_STATES = Bound("states of modules in training steps", 1024)
"""Bound of the module states that all training steps keep together."""
_NUMBERS = count()
"""Numbers for the modules' states; a number is part of the programs' keys."""


class Dependencies:
    """The objects that graphs of a step have captured, with their memory, and the modules met while tracing them.

    number: number of the modules' present state, part of the key of programs. Equal states have equal numbers."""

    def __init__(self) -> None:
        self.number = 0
        self._captured: dict[int, tuple[Any, Memory]] = {}
        self._modules: dict[int, Any] = {}
        self._states: Cache[tuple, int] = Cache(_STATES)

    def add(self, graph: StepGraph) -> None:
        """Add what a graph has captured and the modules that it has met."""
        self._captured |= {id(o): (o, memory) for o, memory in graph.live}
        self._modules |= graph.depends

    def is_moved(self) -> bool:
        """Return whether a captured object has other memory than when a graph captured it."""
        return any(o.memory is not memory for o, memory in self._captured.values())

    def clear(self) -> None:
        """Forget captured objects and states of modules, after the programs that depend on them."""
        self._states.clear()
        self._captured.clear()

    def update_number(self, model: Any) -> None:
        """Set `number` to that of the present state of the model's modules, and of others met while tracing."""
        modules = {id(m): m for m in model.modules()} | self._modules
        state = tuple(m.trace_key(modes=False) for m in modules.values())
        number = self._states.get(state)
        if number is None:
            number = next(_NUMBERS)
            self._states.put(state, number)
        self.number = number
