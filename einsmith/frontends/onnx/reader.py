"""Read ONNX files as graphs (`nodes.OnnxGraph`): parse, check and inline them, and infer the type of every value.

Everything that a file may lack or have wrong, operators without a formula included, is reported here, before anything
runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from einsmith.base import files
from einsmith.base.arguments import with_article
from einsmith.base.errors import ArgumentError, DataError, DtypeError, TraceError
from einsmith.frontends.onnx import operators  # noqa: F401  # fills the table
from einsmith.frontends.onnx.nodes import Constant, Input, OnnxGraph, OnnxNode
from einsmith.frontends.onnx.refused import COMPOSED, REFUSED
from einsmith.frontends.onnx.table import DOMAINS, GREATEST, LEAST, TABLE
from einsmith.frontends.onnx.types import ELEMENTS, REFUSED_TYPES

try:
    import onnx
    import onnx.checker
    import onnx.inliner
    import onnx.numpy_helper
    import onnx.shape_inference
    from google.protobuf.message import DecodeError  # the library below onnx
except ImportError as e:
    raise ImportError(
        "einsmith.frontends.onnx needs the package onnx, which is missing: pip install 'einsmith[onnx]'"
    ) from e

MAX_INFERENCE_BYTES = 1024
"""Largest initializer whose values type inference sees (bytes); the values of larger ones are left out."""
MAX_BODY_NESTING = 30
"""Most levels of bodies (of If, Loop and Scan) inside each other. The protobuf library reads 100 levels of messages, of
which a body takes three, and functions here recurse over bodies."""


def parse(file: Any) -> tuple[onnx.ModelProto, Path | None, str]:
    """Parse a path, bytes, a readable object or a ModelProto.

    Returns:
        The model, the folder of its external data (None if `file` is not a path), the model's name in messages.
    Raises:
        ArgumentError: `file` is none of these.
        DataError: the file is missing, truncated, nested too deeply, or not an ONNX file.
    """
    if isinstance(file, onnx.ModelProto):
        what = file.graph.name or "the model"
        _check_depth(file, what)
        return file, None, what
    folder = None
    if isinstance(file, (str, os.PathLike)):
        path = Path(file)
        what, folder = path.name, path.resolve().parent
        try:
            data = files.read_bytes(path)
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
            f"{what} is not an ONNX file, is truncated, or nests bodies more than {MAX_BODY_NESTING} deep: {e}; export "
            "or copy it again"
        ) from e
    if not model.opset_import or not model.ir_version or not (model.graph.node or model.graph.output):
        raise DataError(
            f"{what} is truncated or not an ONNX model: it has no operator set or no graph; export or copy it again"
        )
    _check_depth(model, what)
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
        found = {name: n.attribute[0].t for name, n in nodes.items()}
        found |= {t.name: t for t in graph.initializer} if inner else {}
        for name, tensor in found.items():
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
    _read_versions(model, what)
    initializers = {t.name: t for t in model.graph.initializer}
    stripped = onnx.ModelProto()
    stripped.CopyFrom(model)
    for t in stripped.graph.initializer:
        if len(t.raw_data) > MAX_INFERENCE_BYTES or len(t.float_data) * 4 > MAX_INFERENCE_BYTES:
            t.ClearField("raw_data")
            t.ClearField("float_data")
    _sort_nodes(stripped.graph, what, set())
    stripped = _inline_functions(stripped, what)
    versions = _read_versions(stripped, what)
    try:
        stripped = onnx.shape_inference.infer_shapes(stripped, check_type=True, strict_mode=False)
    except onnx.shape_inference.InferenceError as e:
        raise ArgumentError(f"{what} is not a valid model: {e}") from e
    _check_operators(stripped, versions, what)
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
            name = domain or "ai.onnx"
            raise TraceError(
                f"{what} is of operator set {opset.version} of {name}; {least} to {greatest} are supported. "
                "onnx.version_converter.convert_version(model, 21) converts it"
            )
    return versions


def walk_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those of all bodies in them, each node before the nodes of its own bodies."""
    yield from (node for node, _ in _walk_nested(nodes))


def _walk_nested(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield (node, number of bodies around it), each node followed by the nodes of its bodies."""
    stack = [iter(nodes)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        yield node, len(stack) - 1
        bodies = [a.g.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
        if bodies:
            stack.append(chain.from_iterable(bodies))


def _check_depth(model: onnx.ModelProto, what: str) -> None:
    """Raise DataError, naming a node, if bodies of the model or its functions are nested beyond MAX_BODY_NESTING."""
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node, depth in _walk_nested(nodes):
            if depth > MAX_BODY_NESTING:
                raise DataError(
                    f"{what} nests bodies of If, Loop and Scan more than {MAX_BODY_NESTING} deep, down to "
                    f"{_describe(node)}; write the inner ones as operators in the graph around them"
                )


def _inline_functions(model: onnx.ModelProto, what: str) -> onnx.ModelProto:
    """Return the model without function calls: the bodies of its own functions, and the functions by which the standard
    defines composed operators (`refused.COMPOSED`), take the places of the calls."""
    try:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        while any(_get_key(n) in COMPOSED for n in walk_nodes(model.graph.node)):
            model = onnx.inliner.inline_local_functions(_replace_composed(model))
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as e:
        raise ArgumentError(f"{what}: its functions cannot be inlined: {e}") from e
    except DecodeError as e:
        raise DataError(f"{what}: with its functions inlined, bodies are more than {MAX_BODY_NESTING} deep: {e}") from e
    _check_depth(model, what)
    return model


def _replace_composed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with composed operators replaced by calls of functions that are added to the model."""
    model = onnx.shape_inference.infer_shapes(model)
    versions = {o.domain: o.version for o in model.opset_import}
    count = 0
    for graph, types in _walk_graphs(model.graph, {}):
        for node in graph.node:
            if _get_key(node) not in COMPOSED:
                continue
            version = versions.get(node.domain, versions.get("ai.onnx", 0))
            _fill_defaults(node, version)
            function = _get_function(node, version, [types.get(x, onnx.TypeProto()) for x in node.input])
            function.domain, function.name = _COMPOSED_DOMAIN, f"{node.op_type}_{count}"
            count += 1
            for o in function.opset_import:
                o.version = versions.get(o.domain, o.version)
            for o in function.opset_import:
                if o.domain not in versions:
                    model.opset_import.append(o)
                    versions[o.domain] = o.version
            model.functions.append(function)
            node.domain, node.op_type = _COMPOSED_DOMAIN, function.name
    model.opset_import.append(onnx.helper.make_opsetid(_COMPOSED_DOMAIN, 1))
    return model


_COMPOSED_DOMAIN = "einsmith.composed"
"""Domain of the functions that take the places of composed operators."""


def _fill_defaults(node: onnx.NodeProto, version: int) -> None:
    """Set the attributes that a node leaves out to their defaults: an inlined function does not know the defaults."""
    present = {a.name for a in node.attribute}
    for name, a in onnx.defs.get_schema(node.op_type, version, node.domain).attributes.items():
        if name not in present and a.default_value.type:
            default = onnx.AttributeProto()
            default.CopyFrom(a.default_value)
            default.name = name
            node.attribute.append(default)


def _get_function(node: onnx.NodeProto, version: int, types: list[onnx.TypeProto]) -> onnx.FunctionProto:
    """Return the function by which the standard defines a node's operator.

    Args:
        node: the node, with all attributes
        version: operator set of the node's domain
        types: types of the node's inputs
    Raises:
        ValueError: the standard has no function for this version of the operator.
    """
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    if schema.has_function:
        usable = [v for v in schema.function_opset_versions if v <= version] or schema.function_opset_versions
        data = schema.get_function_with_opset_version(usable[-1])
    else:
        versions = schema.context_dependent_function_opset_versions
        usable = [v for v in versions if v <= version] or versions
        if not usable:
            raise ValueError(f"{_describe(node)} of operator set {version} has no function body in the standard")
        data = schema.get_context_dependent_function_with_opset_version(
            usable[-1], node.SerializeToString(), [t.SerializeToString() for t in types]
        )
    return onnx.FunctionProto.FromString(data)


def _walk_graphs(
    graph: onnx.GraphProto, outer: dict[str, onnx.TypeProto]
) -> Iterator[tuple[onnx.GraphProto, dict[str, onnx.TypeProto]]]:
    """Yield a graph and all bodies in it, each with the types of the names in scope. outer: types of outer names."""
    types = dict(outer)
    for v in (*graph.input, *graph.output, *graph.value_info):
        types[v.name] = v.type
    for t in graph.initializer:
        types[t.name] = onnx.helper.make_tensor_type_proto(t.data_type, t.dims)
    yield graph, types
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                yield from _walk_graphs(a.g, types)


def _get_key(node: onnx.NodeProto) -> str:
    """Return a node's operator as the table names it, with the domain if it is not the default one."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return f"{domain}.{node.op_type}" if domain else node.op_type


def _describe(node: onnx.NodeProto) -> str:
    """Return a node's operator and name, or else its outputs, for messages."""
    return f"{_get_key(node)} {node.name or ', '.join(node.output)!r}"


def _check_operators(model: onnx.ModelProto, versions: dict[str, int], what: str) -> None:
    """Raise TraceError that lists the operators without a formula, each once with a node and the reason."""
    missing: dict[str, str] = {}
    for node in walk_nodes(model.graph.node):
        key = _get_key(node)
        if key in TABLE or key in missing:
            continue
        why = REFUSED.get(key)
        if why is None:
            domain = "" if node.domain == "ai.onnx" else node.domain
            known = onnx.defs.has(node.op_type, domain)
            why = "no formula is in the table for it" if known else "no operator of that name is in the standard"
        missing[key] = f"  {_describe(node)}: {why}"
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
    producers: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        for name in node.output:
            if name and (name in producers or name in known - outer):
                raise ArgumentError(f"{what}: {name!r} is defined twice, the second time by {_describe(node)}")
            producers[name] = node
    order: list[onnx.NodeProto] = []
    state: dict[int, int] = {}  # by a node's id: 1 while its inputs are visited, 2 once it is in the order
    for first in graph.node:
        stack = [(first, iter(_list_reads(first)))]
        while stack:
            node, rest = stack[-1]
            if state.get(id(node)) == 2:
                stack.pop()
                continue
            state[id(node)] = 1
            for name in rest:
                if not name or name in known:
                    continue
                if name not in producers:
                    raise ArgumentError(f"{what}: {_describe(node)} reads {name!r}, which no node computes")
                producer = producers[name]
                if state.get(id(producer)) == 1:
                    raise ArgumentError(
                        f"{what}: {_describe(node)} and {_describe(producer)} are in a cycle, through {name!r}; loops "
                        "are written with Loop or Scan"
                    )
                if id(producer) not in state:
                    stack.append((producer, iter(_list_reads(producer))))
                    break
            else:
                state[id(node)] = 2
                order.append(node)
                stack.pop()
    for name in (o.name for o in graph.output):
        if name and name not in known and name not in producers:
            raise ArgumentError(f"{what}: no node computes its output {name!r}")
    visible = known | set(producers)
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                _sort_nodes(a.g, what, visible)
    if [id(n) for n in order] != [id(n) for n in graph.node]:
        copies = []
        for node in order:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copies.append(copy)
        del graph.node[:]
        graph.node.extend(copies)


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


def type_name(number: int) -> str:
    """Return the name, in lower case, of the element type with this number in the standard; "" for 0, no type."""
    return onnx.TensorProto.DataType.Name(number).lower() if number else ""


class _Reader:
    """Converter of the messages of one model, checked and inlined, to graphs, nodes and constants.

    Attributes:
        versions: operator set of each domain
        folder: folder of the model's external data; None if it has none
        what: the model's name in messages
        initializers: outermost initializers with their values, by name, until the outermost graph has read them
    """

    def __init__(
        self, versions: dict[str, int], folder: Path | None, what: str, initializers: dict[str, onnx.TensorProto]
    ):
        self.versions, self.folder, self.what, self.initializers = versions, folder, what, initializers

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
        nodes = tuple(self.read_node(n, types | {"": ""}, {**outer, **types}) for n in graph.node)
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
        label = _describe(node)
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain not in self.versions:
            raise ArgumentError(f"{self.what}: {label} is of a domain that the file imports no operator set of")
        for name in node.output:
            kind = types.get(name, "")
            if kind not in ELEMENTS and kind not in ("", "sequence", "optional"):
                raise DtypeError(f"{self.what}: {label} gives {kind}: {REFUSED_TYPES.get(kind, 'it is not supported')}")
        attributes = {a.name: self.read_attribute(a, label, around) for a in node.attribute}
        key = _get_key(node)
        outputs = tuple(node.output)
        name = node.name or f"{node.op_type}_{next((o for o in outputs if o), '')}"
        return OnnxNode(name, key, self.versions[domain], tuple(node.input), outputs, attributes)

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

    def read_constant(self, t: onnx.TensorProto, name: str) -> Constant:
        """Return a tensor's values. name: its name in messages. Raises DtypeError and DataError."""
        kind = type_name(t.data_type)
        if kind not in ELEMENTS:
            raise DtypeError(
                f"{self.what}: {name!r} is of {kind or 'no type'}: {REFUSED_TYPES.get(kind, 'it is not supported')}"
            )
        if t.data_location == onnx.TensorProto.EXTERNAL:
            t = self.read_external(t, name)
        try:
            array = onnx.numpy_helper.to_array(t)
        except Exception as e:
            raise DataError(
                f"{self.what}: the values of {name!r}, of {kind} {list(t.dims)}, are damaged or truncated: {e}"
            ) from e
        return Constant(ELEMENTS[kind].held(array), kind)

    def read_external(self, t: onnx.TensorProto, name: str) -> onnx.TensorProto:
        """Return a tensor with the bytes that it has in an external file. Raises DataError if they cannot be read."""
        entries = {e.key: e.value for e in t.external_data}
        where = f"{self.what}: the values of {name!r} are in the file {entries.get('location', '')!r}"
        if self.folder is None:
            raise DataError(f"{where} beside the model's; give load the path of the model, not its bytes")
        path = (self.folder / entries.get("location", "")).resolve()
        if not path.is_relative_to(self.folder) or path == self.folder:
            raise DataError(f"{where}, which is outside of the model's folder; put it there and save the model anew")
        try:
            offset = int(entries.get("offset", 0))
            with files.reading(path) as f:
                size = os.fstat(f.fileno()).st_size
                length = int(entries.get("length", size - offset))
                if offset < 0 or length < 0 or offset + length > size:
                    raise DataError(
                        f"{where}, bytes {offset} to {offset + length}, but the file has {size}; copy it again"
                    )
                f.seek(offset)
                data = f.read(length)
        except OSError as e:
            if isinstance(e, DataError):
                raise
            raise DataError(f"{where}, which cannot be read: {e.strerror or e}; put it beside the model") from e
        except ValueError as e:
            raise DataError(f"{where}, at an offset that is not a number: {e}") from e
        tensor = onnx.TensorProto(name=t.name, data_type=t.data_type, dims=t.dims, raw_data=data)
        return tensor

    def read_sparse(self, sparse: onnx.SparseTensorProto) -> Constant:
        """Return a sparse tensor's values as a dense array. Raises DataError for indices out of range."""
        values = self.read_constant(sparse.values, sparse.values.name)
        places = onnx.numpy_helper.to_array(sparse.indices)
        out = np.zeros(tuple(sparse.dims), values.array.dtype)
        try:
            if places.ndim == 1:
                out.reshape(-1)[places] = values.array
            else:
                out[tuple(places.T)] = values.array
        except IndexError as e:
            raise DataError(f"{self.what}: {sparse.values.name!r} has indices outside of {list(sparse.dims)}") from e
        return Constant(out, values.type)
