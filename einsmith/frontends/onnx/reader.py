"""Read ONNX files as graphs (`nodes.OnnxGraph`): parse, check and inline them, and infer the type of every value.

Everything that a file may lack or have wrong, operators without a formula included, is reported here, before anything
runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from einsmith.base import files
from einsmith.base.arguments import with_article
from einsmith.base.errors import ArgumentError, DataError, DtypeError, TraceError, escape_text
from einsmith.frontends.onnx import operators  # noqa: F401  # fills the table
from einsmith.frontends.onnx.inference import infer_types
from einsmith.frontends.onnx.inlining import inline_functions
from einsmith.frontends.onnx.nodes import Input, OnnxGraph, OnnxNode
from einsmith.frontends.onnx.protos import MAX_BODY_NESTING, check_depth, describe, get_key, onnx, walk_nodes
from einsmith.frontends.onnx.refused import REFUSED
from einsmith.frontends.onnx.table import DOMAINS, GREATEST, LEAST, TABLE
from einsmith.frontends.onnx.tensors import TensorReader, type_name
from einsmith.frontends.onnx.types import ELEMENTS, REFUSED_TYPES

MAX_FILE = 1 << 31
"""Most bytes of a file that are read: protobuf parses no more than 2 GiB."""


def parse(file: Any) -> tuple[onnx.ModelProto, Path | None, str]:
    """Parse a path, bytes, a readable object or a ModelProto.

    Returns:
        The model, the folder of its external data (None if `file` is not a path), the model's name in messages.
    Raises:
        ArgumentError: `file` is none of these.
        DataError: the file is missing, truncated, nested too deeply, or not an ONNX file.
    """
    if isinstance(file, onnx.ModelProto):
        what = escape_text(file.graph.name) or "the model"
        check_depth(file, what)
        return file, None, what
    folder = None
    if isinstance(file, (str, os.PathLike)):
        path = Path(file)
        what, folder = escape_text(path.name), path.resolve().parent
        try:
            data = files.read_bytes(path, MAX_FILE)
        except OSError as e:
            raise DataError(f"{file} cannot be read: {e.strerror or e}") from e
    elif isinstance(file, (bytes, bytearray)) or hasattr(file, "read"):
        what = "the model"
        try:
            data = bytes(file) if isinstance(file, (bytes, bytearray)) else file.read()
        except (OSError, ValueError) as e:
            raise DataError(f"the file cannot be read: {e}") from e
    else:
        raise ArgumentError(f"load takes a path, bytes, an open file or a ModelProto, not {type(file).__name__}")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as e:
        raise DataError(
            f"{what} is not an ONNX file, is truncated, or nests bodies more than {MAX_BODY_NESTING} deep: "
            f"{escape_text(str(e))}; export or copy it again"
        ) from e
    if not model.opset_import or not model.ir_version or not (model.graph.node or model.graph.output):
        raise DataError(
            f"{what} is truncated or not an ONNX model: it has no operator set or no graph; export or copy it again"
        )
    check_depth(model, what)
    if not all(isinstance(text, str) for node in walk_nodes(model.graph.node) for text in _list_texts(node)):
        raise DataError(f"{what} is damaged: some of its names are not text; export or copy it again")
    return model, folder, what


def _list_texts(node: onnx.NodeProto) -> Iterator[Any]:
    """Yield all names that a node contains; a damaged one is not a str."""
    yield from (node.op_type, node.domain, node.name, *node.input, *node.output, *(a.name for a in node.attribute))


def with_initializers(model: onnx.ModelProto, patterns: Sequence[str]) -> onnx.ModelProto:
    """Return the model with initializers in place of `Constant` nodes of tensors whose names match a pattern, and of
    initializers of bodies.

    patterns: shell patterns (`fnmatch`) of the names of the nodes' outputs. Raises ArgumentError for a name that two
    bodies have, or that is itself the output of a body.
    """
    if not patterns:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    chosen: dict[str, onnx.TensorProto] = {}
    stack = [(changed.graph, False)]
    while stack:
        graph, inner = stack.pop()
        stack += [(a.g, True) for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
        nodes = {n.output[0]: n for n in graph.node if n.op_type == "Constant" and _gives_tensor(n)}
        tensors = {name: n.attribute[0].t for name, n in nodes.items()}
        tensors |= {t.name: t for t in graph.initializer} if inner else {}
        for name, tensor in tensors.items():
            if not any(fnmatchcase(name, p) for p in patterns):
                continue
            if name in chosen or (inner and name in {o.name for o in graph.output}):
                where = "two bodies have it" if name in chosen else "it is the output of a body"
                raise ArgumentError(f"trained: {name!r} cannot become a parameter, as {where}")
            chosen[name] = onnx.TensorProto()
            chosen[name].CopyFrom(tensor)
            if name in nodes:
                graph.node.remove(nodes[name])
            else:
                graph.initializer.remove(tensor)
    for name, tensor in chosen.items():
        tensor.name = name
        changed.graph.initializer.append(tensor)
    return changed


def _gives_tensor(node: onnx.NodeProto) -> bool:
    return [a.name for a in node.attribute] == ["value"]


def read(model: onnx.ModelProto, folder: Path | None, what: str) -> OnnxGraph:
    """Return a model's graph.

    Args:
        model: the parsed file
        folder: folder of the model's external data; None if it has none
        what: the model's name in messages
    Raises:
        TraceError: operators, operator sets or kinds of inputs are not supported; lists every such operator.
        ArgumentError: the model is not valid.
        DataError: bodies are nested too deeply, or external data is missing or damaged.
        DtypeError: an element type is not supported.
    """
    versions = _read_versions(model, what)
    initializers = {t.name: t for t in model.graph.initializer}
    stripped = onnx.ModelProto()
    stripped.CopyFrom(model)
    for t in stripped.graph.initializer:
        t.ClearField("raw_data")
        t.ClearField("float_data")
    _sort_nodes(stripped.graph, what, set())
    stripped = inline_functions(stripped, versions, what)
    versions = _read_versions(stripped, what)
    _check_operators(stripped, what)
    infer_types(stripped, versions, what)
    return _Reader(versions, folder, what, initializers).read_graph(stripped.graph, {})


def _read_versions(model: onnx.ModelProto, what: str) -> dict[str, int]:
    """Return the operator set of each domain. Raises TraceError if an operator set in use is not supported."""
    versions: dict[str, int] = {}
    local = {f.domain for f in model.functions}
    for opset in model.opset_import:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        versions[domain] = opset.version
        least, greatest = (LEAST, GREATEST) if not domain else DOMAINS.get(domain, (0, 0))
        if domain in local or (domain and domain not in DOMAINS):
            continue  # operators of this domain are checked one by one
        names = (domain,) if domain else ("", "ai.onnx")
        used = any(n.domain in names for n in walk_nodes(model.graph.node))
        if used and not least <= opset.version <= greatest:
            name = escape_text(domain) or "ai.onnx"
            raise TraceError(
                f"{what} is of operator set {opset.version} of {name}; {least} to {greatest} are supported. "
                "onnx.version_converter.convert_version(model, 21) converts it"
            )
    return versions


def _check_operators(model: onnx.ModelProto, what: str) -> None:
    """Raise TraceError that lists the operators without a formula, each once with a node and the reason."""
    missing: dict[str, str] = {}
    for node in walk_nodes(model.graph.node):
        key = get_key(node)
        if key in TABLE or key in missing:
            continue
        why = REFUSED.get(key)
        if why is None:
            domain = "" if node.domain == "ai.onnx" else node.domain
            known = onnx.defs.has(node.op_type, domain)
            why = "no formula is in the table for it" if known else "no operator of that name is in the standard"
        missing[key] = f"  {describe(node)}: {why}"
    if missing:
        raise TraceError("\n".join([f"{what} uses operators that Einsmith does not have:", *missing.values()]))


def _sort_nodes(graph: onnx.GraphProto, what: str, outer: set[str]) -> None:
    """Sort the nodes of a graph, and of the bodies in it, topologically in place.

    Args:
        graph: the graph
        what: the model's name in messages
        outer: names that the graphs around this one define
    Raises:
        ArgumentError: nodes form a cycle, or a name has no producer or two.
    """
    known = outer | {i.name for i in graph.input} | {t.name for t in graph.initializer}
    known |= {t.values.name for t in graph.sparse_initializer}
    nodes = list(graph.node)
    producers: dict[str, int] = {}
    for n, node in enumerate(nodes):
        for name in node.output:
            if name and (name in producers or name in known - outer):
                raise ArgumentError(f"{what}: {name!r} is defined twice, the second time by {describe(node)}")
            producers[name] = n
    reads = [[x for x in _list_reads(node) if x and x not in known] for node in nodes]
    for node, names in zip(nodes, reads, strict=True):
        for name in names:
            if name not in producers:
                raise ArgumentError(f"{what}: {describe(node)} reads {name!r}, which no node computes")
    for name in (o.name for o in graph.output):
        if name and name not in known and name not in producers:
            raise ArgumentError(f"{what}: no node computes its output {name!r}")
    before = {n: {producers[x] for x in names} for n, names in enumerate(reads)}
    if any(p >= n for n, places in before.items() for p in places):
        try:
            order = list(TopologicalSorter(before).static_order())
        except CycleError as e:
            first, second, *_ = e.args[1]
            name = next(x for x in reads[second] if producers[x] == first)
            raise ArgumentError(
                f"{what}: {describe(nodes[second])} and {describe(nodes[first])} are in a cycle, through {name!r}; "
                "loops are written with Loop or Scan"
            ) from None
        copies = onnx.GraphProto()
        copies.node.extend(nodes[n] for n in order)
        del graph.node[:]
        graph.node.extend(copies.node)
    visible = known | set(producers)
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                _sort_nodes(a.g, what, visible)


def _list_reads(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node reads: its inputs, and the names outside of its bodies that its bodies read."""
    names = list(node.input)
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            own = {i.name for i in a.g.input} | {t.name for t in a.g.initializer}
            own |= {o for n in a.g.node for o in n.output}
            names += [x for n in a.g.node for x in _list_reads(n) if x not in own]
            names += [o.name for o in a.g.output if o.name not in own]
    return names


class _Reader(TensorReader):
    """Converter of the messages of one model, checked and inlined, to graphs, nodes and constants.

    Attributes:
        versions: operator set of each domain
        initializers: outermost initializers with their values, by name, until the outermost graph has read them
    """

    def __init__(
        self, versions: dict[str, int], folder: Path | None, what: str, initializers: dict[str, onnx.TensorProto]
    ):
        super().__init__(folder, what)
        self.versions, self.initializers = versions, initializers

    def read_graph(self, graph: onnx.GraphProto, outer: dict[str, str]) -> OnnxGraph:
        """Return a graph. outer: element types of the names in the graphs around it."""
        constants = {t.name: self.read_constant(self.initializers.get(t.name, t), t.name) for t in graph.initializer}
        for sparse in graph.sparse_initializer:
            constants[sparse.values.name] = self.read_sparse(sparse)
        self.initializers = {}
        types = {name: c.type for name, c in constants.items()}
        for value in (*graph.input, *graph.value_info, *graph.output):
            types.setdefault(value.name, self.get_type(value))
            types[value.name] = types[value.name] or self.get_type(value)
        inputs = tuple(self.read_input(i) for i in graph.input if i.name not in constants)
        own, visible = types | {"": ""}, outer | types
        nodes = tuple(self.read_node(n, own, visible) for n in graph.node)
        for name in [o for n in nodes for o in n.outputs if o and not types.get(o)]:
            types[name] = ""
        shapes = {o.name: shape for o in graph.output if (shape := self.get_shape(o)) is not None}
        outputs = tuple(o.name for o in graph.output)
        return OnnxGraph(graph.name or self.what, inputs, nodes, constants, types, outputs, shapes)

    def get_type(self, value: onnx.ValueInfoProto) -> str:
        """Return the element type of a tensor, or "sequence", "optional" and the like; "" if the type is unknown."""
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type":
            return type_name(value.type.tensor_type.elem_type)
        return (kind or "").removesuffix("_type")

    def read_input(self, value: onnx.ValueInfoProto) -> Input:
        """Return a graph's input. Raises TraceError and DtypeError for types that are not supported."""
        name = self.get_type(value)
        kind = value.type.WhichOneof("value")
        if kind not in (None, "tensor_type", "sequence_type", "optional_type"):
            raise TraceError(f"{self.what}: input {value.name!r} is {with_article(name)}; only tensors are supported")
        if name in REFUSED_TYPES or (kind == "tensor_type" and name not in ELEMENTS):
            raise DtypeError(
                f"{self.what}: input {value.name!r} is of {name}: {REFUSED_TYPES.get(name, 'not supported')}"
            )
        return Input(value.name, name, self.get_shape(value))

    def get_shape(self, value: onnx.ValueInfoProto) -> tuple[int | str | None, ...] | None:
        """Return the shape of a tensor, with names of sizes and None for unknown ones; None: the rank is unknown."""
        if value.type.WhichOneof("value") != "tensor_type" or not value.type.tensor_type.HasField("shape"):
            return None
        return tuple(
            d.dim_value if d.WhichOneof("value") == "dim_value" else d.dim_param or None
            for d in value.type.tensor_type.shape.dim
        )

    def read_node(self, node: onnx.NodeProto, types: dict[str, str], around: dict[str, str]) -> OnnxNode:
        """Return a node. types: element types in its graph; around: these and those of the graphs around it."""
        label = describe(node)
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain not in self.versions:
            raise ArgumentError(f"{self.what}: {label} is of a domain that the file imports no operator set of")
        for name in node.output:
            kind = types.get(name, "")
            if kind not in ELEMENTS and kind not in ("", "sequence", "optional"):
                raise DtypeError(f"{self.what}: {label} gives {kind}: {REFUSED_TYPES.get(kind, 'it is not supported')}")
        attributes = {a.name: self.read_attribute(a, label, around) for a in node.attribute}
        key = get_key(node)
        outputs = tuple(node.output)
        name = node.name or f"{node.op_type}_{next((o for o in outputs if o), '')}"
        return OnnxNode(escape_text(name), key, self.versions[domain], tuple(node.input), outputs, attributes)

    def read_attribute(self, a: onnx.AttributeProto, label: str, around: dict[str, str]) -> Any:
        """Return the value of an attribute of the node `label`; None for kinds of values that no operator here has."""
        kind = onnx.AttributeProto
        if a.ref_attr_name:
            raise ArgumentError(
                f"{self.what}: {label}: {a.name!r} refers to an attribute of a function, but is outside of one"
            )
        if a.type == kind.GRAPH:
            return self.read_graph(a.g, around)
        if a.type == kind.TENSOR:
            return self.read_constant(a.t, f"{a.name} of {label}")
        if a.type == kind.SPARSE_TENSOR:
            return self.read_sparse(a.sparse_tensor)
        if a.type in (kind.INT, kind.FLOAT):
            return a.i if a.type == kind.INT else a.f
        if a.type == kind.STRING:
            return a.s.decode("utf-8", "replace")
        if a.type in (kind.INTS, kind.FLOATS):
            return tuple(a.ints if a.type == kind.INTS else a.floats)
        if a.type == kind.STRINGS:
            return tuple(s.decode("utf-8", "replace") for s in a.strings)
        if a.type == kind.TENSORS:
            return tuple(self.read_constant(t, f"{a.name} of {label}") for t in a.tensors)
        return None
