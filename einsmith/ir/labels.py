"""Label the nodes of graphs with what they were made for, a layer and a line of a formula, while something is recorded.

Labels live in a table apart from the graph (`base.recording`). Passes replace nodes; a replacement, and
what is made for it, takes over the label of the node that it replaces. A node that replaces several has the label of
the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from einsmith.base import recording
from einsmith.ir.nodes import Leaf


class Label(NamedTuple):
    """The origin of a node: a layer, and a line of a formula or a function.

    Attributes:
        layer: path of a module, such as "features.0", or of a parameter that is updated; "" for none.
        function: a function of `einsmith.ops`, or what updates a parameter; "" for none.
        formula: name of the tensor that a statement of a formula defines; "" for none.
        line: the statement's line in the formula, from 1 on; 0 for none.
    """

    layer: str = ""
    function: str = ""
    formula: str = ""
    line: int = 0

    def __str__(self) -> str:
        line = f"{self.formula}, line {self.line}" if self.formula else ""
        origin = ": ".join(filter(None, (self.function, line)))
        return f"{self.layer} ({origin})" if self.layer and origin else self.layer or origin


def is_recorded() -> bool:
    """Return whether labels are recorded."""
    return recording.current() is not None


def note(tensors: Iterable[Any], label: Label, known: Iterable[Any] = (), anew: bool = False) -> None:
    """Label nodes, and those below them down to `known`. Only the missing parts of their labels are added: the
    innermost function and formula stay, and so does the innermost layer. anew: with this label alone."""
    recorder = recording.current()
    if recorder is not None:
        _fill(recorder.labels, tensors, label, known, anew)


def _fill(table: Any, tensors: Iterable[Any], label: Label, known: Iterable[Any] = (), anew: bool = False) -> None:
    stack, seen = list(tensors), set(known)
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, Leaf):
            continue
        seen.add(node)
        old = table.get(node)
        new = label if old is None or anew else _complete(old, label)
        if new != old:
            table[node] = new
            stack += node.args


def _complete(inner: Label, outer: Label) -> Label:
    return inner._replace(layer=inner.layer or outer.layer, function=inner.function or outer.function)


def label_of(node: Any) -> Label | None:
    """Return the label of a node; None where it has none, or nothing is recorded."""
    recorder = recording.current()
    return None if recorder is None else recorder.labels.get(node)


def carry(new: Mapping[Any, Any]) -> None:
    """Label the replacements of nodes, and what was made for them, as the nodes. `new`: replacements by node."""
    recorder = recording.current()
    if recorder is None:
        return
    table = recorder.labels
    pairs = [(x, label) for old, x in new.items() if x is not None and (label := table.get(old)) is not None]
    for x, label in pairs:
        if x not in table and not isinstance(x, Leaf):
            table[x] = label
    for x, label in pairs:
        for a in getattr(x, "args", ()):
            if a not in table:
                _fill(table, [a], label)
