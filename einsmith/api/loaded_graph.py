"""Run graphs that were written to files: `einsmith.load_graph`."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from einsmith.base import files, locks
from einsmith.base.arrays import to_array
from einsmith.base.errors import ArgumentError, DataError, EinsmithError, NonFiniteError, ShapeError
from einsmith.base.locks import cached_property
from einsmith.base.numerics import Numerics
from einsmith.driver.executable import Executable
from einsmith.ir.graph_text import AGAIN, Dump, leaves_of, read_dump
from einsmith.ir.nodes import Graph, Leaf
from einsmith.ir.verify import verify_graph
from einsmith.passes.pipeline import ALL, deciding
from einsmith.runtime.memory import Memory
from einsmith.schedule.graph_decisions import WITHOUT


class LoadedGraph:
    """A graph that was read from a file, and runs as the program that it was written for.

    Attributes:
        graph: the graph, after all passes.
        inputs: the shape and element type of each array that a call takes, by name, in order.
        state: the arrays that calls read and update in place, by name: parameters, state, constants. They are zeros at
            first: set their elements.
    """

    def __init__(self, dump: Dump, path: str):
        self.graph: Graph = dump.graph
        self._settings = dump.settings
        self._leaves: dict[str, Leaf] = {}
        self._memory: dict[Leaf, Memory] = {}
        self._constant: list[Memory] = []
        self._guard = locks.Guard()
        own = {x: d for x, d in zip(leaves_of(dump.graph), dump.leaves, strict=True) if d is not None}
        for x in dict.fromkeys((*dump.graph.inputs, *own)):
            name, kind = own[x] if x in own else (f"in{len(self._leaves)}", "input")
            name = name if name not in self._leaves else f"{name}_{len(self._leaves)}"
            self._leaves[name] = x
            if kind != "input":
                memory = self._memory[x] = Memory(x.shape, x.dtype.numpy, guard=self._guard)
                memory.store(np.zeros((), x.dtype.numpy))
                self._constant += [memory] if kind == "constant" else []
        if any(x.after is not None for x in own):
            raise DataError(f"{path} is the graph of one of several processes, which cannot run alone")
        named = {n: x for n, x in self._leaves.items() if x not in self._memory}
        self.inputs: Mapping[str, Any] = MappingProxyType({n: (x.shape, x.dtype.numpy) for n, x in named.items()})
        self.state: Mapping[str, np.ndarray] = MappingProxyType(
            {n: self._memory[x].logical() for n, x in self._leaves.items() if x in self._memory}
        )

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run the graph on arrays, in the order of `inputs` or by name; return the output, or a tuple of several.

        Raises:
            ArgumentError: arrays are missing, or no inputs.
            ShapeError: an array has another shape or element type.
            NonFiniteError: the loss is not finite; nothing is updated.
        """
        if len(arrays) > len(self.inputs):
            raise ArgumentError(f"the graph takes {len(self.inputs)} arrays, not {len(arrays)}")
        by_name = dict(zip(self.inputs, arrays, strict=False))
        twice, unknown = by_name.keys() & named.keys(), named.keys() - self.inputs.keys()
        by_name |= named
        missing = [n for n in self.inputs if n not in by_name]
        if twice or unknown or missing:
            wrong = ", ".join(sorted(twice | unknown) or missing)
            what = "given twice" if twice else "no input" if unknown else "missing"
            raise ArgumentError(f"{wrong}: {what}; the graph takes {', '.join(self.inputs)}")
        status, outputs = self._program([self._convert(n, by_name[n]) for n in self.inputs])
        if status:
            raise NonFiniteError("the loss is not finite; nothing is updated")
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _convert(self, name: str, x: Any) -> np.ndarray:
        shape, dtype = self.inputs[name]
        array = np.asarray(x, dtype) if isinstance(x, (int, float)) else to_array(x, name)
        if array.shape != shape or array.dtype != dtype:
            own = f"{array.dtype} of shape {array.shape}"
            raise ShapeError(f"{name} is {own}; the graph takes {dtype} of shape {shape}")
        return np.ascontiguousarray(array)

    @cached_property
    def _program(self) -> Executable:
        """Compile the program at the first call as it was where the graph was written; run no pass over graphs."""
        s, outputs = self._settings, self.graph.outputs
        with deciding(frozenset((*s["decisions"], f"{WITHOUT} {ALL}"))):
            return Executable(
                self.graph,
                {x: m.physical for x, m in self._memory.items()},
                s["threads"],
                outputs[s["finite"]] if s["finite"] >= 0 else None,
                numerics=Numerics(s["winograd"], s["precision"], separate_exponentials=s["separate_exponentials"]),
                guard=self._guard,
                memories=self._constant,
                max_stored=s["max_stored"],
            )

    def __repr__(self) -> str:
        return f"<graph of {', '.join(self.inputs)}{' with state' if self.state else ''}>"


def load_graph(path: str | PathLike[str]) -> LoadedGraph:
    """Return a graph that `einsmith explain --dump DIR` or EINSMITH_DUMP wrote, to be run again.

    Args:
        path: a folder of the dump, such as `DIR/program-0000`, or its file `graph.txt`.

    Raises:
        DataError: the file is missing, damaged or of another version; the message says in which line.
    """
    file = Path(path) / "graph.txt" if files.is_folder(path) else Path(path)
    try:
        text = files.read_text(file)
    except (OSError, UnicodeDecodeError) as e:
        raise DataError(f"{file} cannot be read: {e}; name a folder `program-0000` of a dump, or its graph.txt") from e
    dump = read_dump(text, str(file))
    flags = dict.fromkeys(("winograd", "separate_exponentials"), bool)
    settings = {"threads": int, "finite": int, "precision": str, "max_stored": int, "decisions": list, **flags}
    for name, kind in settings.items():
        if not isinstance(dump.settings.get(name), kind):
            raise DataError(f"{file}, line 2: {name} is not set; {AGAIN}")
    try:
        verify_graph(dump.graph)
        return LoadedGraph(dump, str(file))
    except EinsmithError as e:
        raise e if isinstance(e, DataError) else DataError(f"{file}: the graph is not valid: {e}; {AGAIN}") from e
    except (TypeError, ValueError, AttributeError, KeyError, IndexError) as e:  # of fields that are no nodes or numbers
        raise DataError(f"{file}: the graph is not valid: {e}; {AGAIN}") from e
