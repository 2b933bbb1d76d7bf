"""Write a graph as text that can be read again, to the same nodes: a line for each node, arguments before users.

    n0 = leaf(0, (96, 64), f32)
    n1 = Read(0, (Axis(0), Axis(1)), f32)
    n2 = Template((96, 64), ((f32, (96, 64)),), (Piece((0, 0), (1, 1), (96, 64), Apply('mul', (n1, n1), f32)),))

A line is an expression in Python's syntax: classes of nodes called with their fields, tuples, numbers, texts, element
types, and names of earlier lines. An expression that occurs once stands inside its user. Leaves are numbered in the
order of their first occurrence; a reader makes new ones.
"""

from __future__ import annotations

import ast
import json
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import DataError, DtypeError, VerifyError
from einsmith.base.symbolic import SYMBOLIC, hint
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.interned import Node, all_nodes, nodes_in
from einsmith.ir.loop import InputPlace, LoopSegment, LoweredLoop
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Graph,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    StepOptions,
    Template,
    leaf,
)

_CLASSES: dict[str, type] = {
    c.__name__: c
    for c in (Apply, Axis, Compute, Const, Graph, InputPlace, Item, LoopSegment, LoweredLoop, Piece, Read, Recurrence,
              Reduce, Scatter, StepOptions, Template)
}  # fmt: skip
_DTYPES = {d.name: d for d in dt.ALL}
FORMAT, VERSION = "einsmith graph", 1
AGAIN = "write it again, by `einsmith explain --dump DIR` or EINSMITH_DUMP=DIR"
_OWN_LINE = (Leaf, Template, Compute, Recurrence, LoopSegment, LoweredLoop, Graph)
_NAN = struct.pack("<d", math.nan)
_DEEPEST = 20
"""Deepest nesting of nodes in a line: Python's parser takes 200 levels of parentheses, of which a node has up to
four."""


def leaves_of(graph: Graph) -> list[Leaf]:
    """Return the leaves of a graph, those of loops' steps included, in the order of their numbers in the text."""
    return [x for x in all_nodes([graph]) if isinstance(x, Leaf)]


def write_graph(graph: Graph) -> str:
    """Return a graph as text; the last line is the graph."""
    order = list(all_nodes([graph]))
    uses: Counter[Node] = Counter()
    for node in order:
        uses.update(nodes_in([getattr(node, f) for f in node.fields]))
    texts: dict[Node, str] = {}
    depth: dict[Node, int] = {}
    lines: list[str] = []
    leaves = 0
    for node in order:
        if isinstance(node, Leaf):
            after = "" if node.after is None else f", {texts[node.after]}"
            text = f"leaf({leaves}, {_show(node.shape, texts)}, {node.dtype.name}{after})"
            leaves += 1
        else:
            text = f"{type(node).__name__}({', '.join(_show(getattr(node, f), texts) for f in node.fields)})"
        level = 1 + max((depth[x] for x in nodes_in([getattr(node, f) for f in node.fields])), default=0)
        is_shared = uses[node] > 1 and not isinstance(node, (Axis, Const))
        if isinstance(node, _OWN_LINE) or level > _DEEPEST or is_shared:
            lines.append(f"n{len(lines)} = {text}")
            text, level = f"n{len(lines) - 1}", 0
        texts[node], depth[node] = text, level
    return "\n".join(lines)


def _show(value: Any, texts: dict[Node, str]) -> str:
    """Return a field as text."""
    if isinstance(value, Node):
        return texts[value]
    if isinstance(value, DType):
        return value.name
    if isinstance(value, SYMBOLIC):
        value = hint(value)
    if isinstance(value, tuple):
        parts = ", ".join(_show(v, texts) for v in value)
        if hasattr(value, "_fields"):
            return f"{type(value).__name__}({parts})"
        return f"({parts}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and math.isnan(value) and struct.pack("<d", value) != _NAN:
        return f"bits({int.from_bytes(struct.pack('<d', value), 'little'):#x})"
    return repr(value)


class Dump(NamedTuple):
    """A graph in a file. leaves: name and kind ("input", "state" or "constant") of each leaf by number, None for those
    of loops' steps; settings: how the graph is compiled."""

    graph: Graph
    leaves: Sequence[tuple[str, str] | None]
    settings: Mapping[str, Any]


def write_dump(dump: Dump) -> str:
    """Return the text of a file with a graph: its version, its settings and leaves as JSON, a line each, the nodes."""
    head = [f"{FORMAT} {VERSION}", json.dumps(dict(dump.settings)), json.dumps(list(dump.leaves))]
    return "\n".join([*head, write_graph(dump.graph)])


def read_dump(text: str, path: str) -> Dump:
    """Return what a file with a graph holds. Raises DataError where it is damaged, or of another version."""
    lines = text.split("\n", 3)
    if not lines[0].startswith(FORMAT):
        raise DataError(f"{path} is no graph; name a folder `program-0000` of a dump, or its file graph.txt")
    if lines[0] != f"{FORMAT} {VERSION}":
        raise DataError(f"{path} is of version {lines[0].removeprefix(FORMAT).strip()}, not {VERSION}; {AGAIN}")
    parts: list[Any] = []
    for number, kind in ((2, dict), (3, list)):
        try:
            parts.append(json.loads(lines[number - 1]))
        except (ValueError, IndexError) as e:
            raise _damaged(path, number, str(e)) from e
        if not isinstance(parts[-1], kind):
            raise _damaged(path, number, f"a {kind.__name__} is expected")
    graph = read_graph(lines[3] if len(lines) > 3 else "", path=path, first=4)
    settings, leaves = parts
    if len(leaves) != len(leaves_of(graph)) or any(x is not None and len(x) != 2 for x in leaves):
        raise _damaged(path, 3, "there is not one entry for each leaf")
    return Dump(graph, leaves, settings)


def read_graph(text: str, leaves: Sequence[Leaf] = (), path: str = "the text", first: int = 1) -> Graph:
    """Return the graph that a text describes.

    Args:
        text: what `write_graph` returned.
        leaves: leaves to use instead of new ones, in the order of `leaves_of`.
        path: the file, for messages.
        first: the number of the text's first line in it.

    Raises:
        DataError: a line is damaged.
    """
    known: dict[str, Any] = {}
    value: Any = None
    for number, line in enumerate(text.splitlines(), first):
        if not line.strip():
            continue
        try:
            name, sign, body = line.partition(" = ")
            if not sign:
                raise ValueError("a line has the form name = node")
            value = known[name] = _LineReader(known, leaves).read(ast.parse(body, mode="eval").body)
        except (ValueError, TypeError, KeyError, AttributeError, SyntaxError, RecursionError, MemoryError) as e:
            raise _damaged(path, number, str(e) or type(e).__name__) from e
        except (VerifyError, DtypeError) as e:
            raise _damaged(path, number, str(e)) from e
    if not isinstance(value, Graph):
        raise DataError(f"{path} ends before its graph; {AGAIN}")
    return value


def _damaged(path: str, number: int, why: str) -> DataError:
    return DataError(f"{path}, line {number}: {why}; the file is damaged: {AGAIN}")


class _LineReader:
    """A reader of one line. known: the nodes of the lines before it, by name."""

    def __init__(self, known: dict[str, Any], leaves: Sequence[Leaf]):
        self.known, self.leaves = known, leaves

    def read(self, e: ast.expr) -> Any:
        """Return the value of an expression. Raises ValueError for one that no writer makes."""
        if isinstance(e, ast.Constant) and type(e.value) in (int, float, bool, str, type(None)):
            return e.value
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
            return -self.number(e.operand)
        if isinstance(e, ast.Tuple):
            return tuple([self.read(x) for x in e.elts])
        if isinstance(e, ast.Name):
            if e.id in ("inf", "nan"):
                return float(e.id)
            if e.id in _DTYPES:
                return _DTYPES[e.id]
            if e.id not in self.known:
                raise ValueError(f"{e.id} is not defined above")
            return self.known[e.id]
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and not e.keywords:
            return self.call(e.func.id, [self.read(x) for x in e.args])
        raise ValueError(f"{ast.unparse(e)} is no part of a graph")

    def number(self, e: ast.expr) -> float:
        """Return a number behind a sign."""
        value = self.read(e)
        if type(value) not in (int, float):
            raise ValueError(f"-{ast.unparse(e)} is no number")
        return value

    def call(self, name: str, args: list[Any]) -> Any:
        """Return a node of this class."""
        if name == "leaf":
            number, shape, dtype, *after = args
            return self.leaves[number] if self.leaves else leaf(shape, dtype, *after)
        if name == "bits":
            return struct.unpack("<d", int(args[0]).to_bytes(8, "little"))[0]
        if name not in _CLASSES:
            raise ValueError(f"there is no node {name}")
        if name == "Apply" and args[0] not in FUNCTIONS:
            call = str(args[0]).partition("@")[0]
            raise ValueError(
                f"the function {args[0]} is not defined; define {call} by es.function as where the file was written"
            )
        if name == "Recurrence" and isinstance(args[5], int):  # of files without chunks
            args[5] = StepOptions(args[5])
        return _CLASSES[name](*args)
