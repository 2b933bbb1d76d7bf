"""Read ONNX files as graphs: check and inline them, and infer every value's type and every node's operator before
anything runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

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
        "einsmith.frontends.onnx reads files with the package onnx, which is missing: pip install 'einsmith[onnx]'"
    ) from e

STRIPPED = 1024
"""Largest initializer whose values type inference sees (bytes)."""
DEEPEST = 30
"""Levels of bodies (of If, Loop and Scan) in bodies. The protobuf library reads 100 levels of messages, of which a body
takes three, and functions here recurse over bodies."""


def parse(file: Any) -> tuple[onnx.ModelProto, Path | None, str]:
    """Parse a path, bytes, a readable object or a ModelProto: (model, folder of external data, name for messages).
    Raises DataError for a file that is missing, truncated, nested too deeply or none of ONNX."""
    if isinstance(file, onnx.ModelProto):
        what = file.graph.name or "the model"
        _check_depth(file, what)
        return file, None, what
    folder = None
    if isinstance(file, (str, os.PathLike)):
        path = Path(file)
        what, folder = path.name, path.resolve().parent
        try:
            data = path.read_bytes()
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
            f"{what} is not an ONNX file, is truncated, or nests bodies more than {DEEPEST} deep: {e}; export or copy "
            "it again"
        ) from e
    if not model.opset_import or not model.ir_version or not (model.graph.node or model.graph.output):
        raise DataError(
            f"{what} is truncated or not an ONNX model: it has no operator set or no graph; export or copy it again"
        )
    _check_depth(model, what)
    if not all(isinstance(text, str) for node in _nodes(model.graph) for text in _texts(node)):
        raise DataError(f"{what} is damaged: some of its names are not text; export or copy it again")
    return model, folder, what


def _texts(node: onnx.NodeProto) -> Iterator[Any]:
    yield from (node.op_type, node.domain, node.name, *node.input, *node.output, *(a.name for a in node.attribute))


def with_initializers(model: onnx.ModelProto, patterns: Sequence[str]) -> onnx.ModelProto:
    """Return the model with initializers in place of tensors' `Constant` nodes whose names match a pattern."""
    chosen = [
        n
        for n in model.graph.node
        if n.op_type == "Constant"
        and [a.name for a in n.attribute] == ["value"]
        and any(fnmatchcase(n.output[0], p) for p in patterns)
    ]
    if not chosen:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node in chosen:
        made.graph.node.remove(node)
        tensor = made.graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
    return made


def read(model: onnx.ModelProto, folder: Path | None, what: str) -> OnnxGraph:
    """Return a model's graph. Raises TraceError that lists every missing operator and the node that uses it, and other
    errors for files that are not valid."""
    _versions(model, what)
    arrays = {t.name: t for t in model.graph.initializer}
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for t in bare.graph.initializer:
        if len(t.raw_data) > STRIPPED or len(t.float_data) * 4 > STRIPPED:
            t.ClearField("raw_data")
            t.ClearField("float_data")
    _check_cycles(bare.graph, what, set())
    bare = _inline_functions(bare, what)
    versions = _versions(bare, what)
    try:
        bare = onnx.shape_inference.infer_shapes(bare, check_type=True, strict_mode=False)
    except onnx.shape_inference.InferenceError as e:
        raise ArgumentError(f"{what} is not a valid model: {e}") from e
    _check_operators(bare, versions, what)
    return _Reader(versions, folder, what, arrays).graph(bare.graph, {})


def _versions(model: onnx.ModelProto, what: str) -> dict[str, int]:
    """Return domain -> operator set. Raises TraceError for unsupported ones."""
    found: dict[str, int] = {}
    local = {f.domain for f in model.functions}
    for opset in model.opset_import:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        found[domain] = opset.version
        least, greatest = (LEAST, GREATEST) if not domain else DOMAINS.get(domain, (0, 0))
        if domain in local or (domain and domain not in DOMAINS):
            continue  # its operators are checked one by one
        names = (domain,) if domain else ("", "ai.onnx")
        used = any(n.domain in names for n in _nodes(model.graph))
        if used and not least <= opset.version <= greatest:
            name = domain or "ai.onnx"
            raise TraceError(
                f"{what} is of operator set {opset.version} of {name}; {least} to {greatest} are supported. "
                "onnx.version_converter.convert_version(model, 21) converts it"
            )
    return found


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the bodies in it, each before those of its own bodies."""
    yield from (node for node, _ in _walk(graph.node))


def _walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[onnx.NodeProto, int]]:
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
    """Raise DataError that names a node if its bodies are nested too deeply for the steps that follow."""
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node, depth in _walk(nodes):
            if depth > DEEPEST:
                raise DataError(
                    f"{what} nests bodies of If, Loop and Scan more than {DEEPEST} deep, down to {_label(node)}; write "
                    "the inner ones as operators in the graph around them"
                )


def _inline_functions(model: onnx.ModelProto, what: str) -> onnx.ModelProto:
    """Return the model with function calls inlined: calls of its own functions, and operators that the standard defines
    as functions, which first become functions of the model."""
    try:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        while any(_key(n) in COMPOSED for n in _nodes(model.graph)):
            model = onnx.inliner.inline_local_functions(_with_functions(model))
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as e:
        raise ArgumentError(f"{what}: its functions cannot be inlined: {e}") from e
    except DecodeError as e:
        raise DataError(f"{what}: with its functions inlined, bodies are more than {DEEPEST} deep: {e}") from e
    _check_depth(model, what)
    return model


def _with_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Turn composed operators into calls of functions added to the model."""
    model = onnx.shape_inference.infer_shapes(model)
    versions = {o.domain: o.version for o in model.opset_import}
    count = 0
    for graph, kinds in _graphs(model.graph, {}):
        for node in graph.node:
            if _key(node) not in COMPOSED:
                continue
            version = versions.get(node.domain, versions.get("ai.onnx", 0))
            _fill_defaults(node, version)
            function = _function_body(node, version, [kinds.get(x, onnx.TypeProto()) for x in node.input])
            function.domain, function.name = _OWN, f"{node.op_type}_{count}"
            count += 1
            for o in function.opset_import:
                o.version = versions.get(o.domain, o.version)
            for o in function.opset_import:
                if o.domain not in versions:
                    model.opset_import.append(o)
                    versions[o.domain] = o.version
            model.functions.append(function)
            node.domain, node.op_type = _OWN, function.name
    model.opset_import.append(onnx.helper.make_opsetid(_OWN, 1))
    return model


_OWN = "einsmith.composed"


def _fill_defaults(node: onnx.NodeProto, version: int) -> None:
    """Set the attributes that a node leaves out to their defaults, which an inlined function would not know."""
    given = {a.name for a in node.attribute}
    for name, a in onnx.defs.get_schema(node.op_type, version, node.domain).attributes.items():
        if name not in given and a.default_value.type:
            default = onnx.AttributeProto()
            default.CopyFrom(a.default_value)
            default.name = name
            node.attribute.append(default)


def _function_body(node: onnx.NodeProto, version: int, kinds: list[onnx.TypeProto]) -> onnx.FunctionProto:
    """Return the standard's function body of an operator. Raises ValueError if this version has none."""
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    if schema.has_function:
        known = [v for v in schema.function_opset_versions if v <= version] or schema.function_opset_versions
        data = schema.get_function_with_opset_version(known[-1])
    else:
        versions = schema.context_dependent_function_opset_versions
        known = [v for v in versions if v <= version] or versions
        if not known:
            raise ValueError(f"{_label(node)} of operator set {version} has no function body in the standard")
        data = schema.get_context_dependent_function_with_opset_version(
            known[-1], node.SerializeToString(), [k.SerializeToString() for k in kinds]
        )
    return onnx.FunctionProto.FromString(data)


def _graphs(
    graph: onnx.GraphProto, outer: dict[str, onnx.TypeProto]
) -> Iterator[tuple[onnx.GraphProto, dict[str, onnx.TypeProto]]]:
    """Yield a graph and the bodies in it, with the types of the names in scope."""
    kinds = dict(outer)
    for v in (*graph.input, *graph.output, *graph.value_info):
        kinds[v.name] = v.type
    for t in graph.initializer:
        kinds[t.name] = onnx.helper.make_tensor_type_proto(t.data_type, t.dims)
    yield graph, kinds
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(a.g, kinds)


def _key(node: onnx.NodeProto) -> str:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return f"{domain}.{node.op_type}" if domain else node.op_type


def _label(node: onnx.NodeProto) -> str:
    return f"{_key(node)} {node.name or ', '.join(node.output)!r}"


def _check_operators(model: onnx.ModelProto, versions: dict[str, int], what: str) -> None:
    """Raise TraceError that lists the missing operators, each once."""
    missing: dict[str, str] = {}
    for node in _nodes(model.graph):
        key = _key(node)
        if key in TABLE or key in missing:
            continue
        why = REFUSED.get(key)
        if why is None:
            domain = "" if node.domain == "ai.onnx" else node.domain
            known = onnx.defs.has(node.op_type, domain)
            why = "no formula is in the table for it" if known else "no operator of that name is in the standard"
        missing[key] = f"  {_label(node)}: {why}"
    if missing:
        raise TraceError("\n".join([f"{what} uses operators that Einsmith does not have:", *missing.values()]))


def _check_cycles(graph: onnx.GraphProto, what: str, outer: set[str]) -> None:
    """Sort the nodes topologically, in place. Raises ArgumentError for cycles, names without a producer and names with
    two."""
    known = outer | {i.name for i in graph.input} | {t.name for t in graph.initializer}
    known |= {t.values.name for t in graph.sparse_initializer}
    given: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        for name in node.output:
            if name and (name in given or name in known - outer):
                raise ArgumentError(f"{what}: {name!r} is defined twice, the second time by {_label(node)}")
            given[name] = node
    order: list[onnx.NodeProto] = []
    state: dict[int, int] = {}
    for first in graph.node:
        stack = [(first, iter(_read(first)))]
        while stack:
            node, rest = stack[-1]
            if state.get(id(node)) == 2:
                stack.pop()
                continue
            state[id(node)] = 1
            for name in rest:
                if not name or name in known:
                    continue
                if name not in given:
                    raise ArgumentError(f"{what}: {_label(node)} reads {name!r}, which no node computes")
                below = given[name]
                if state.get(id(below)) == 1:
                    raise ArgumentError(
                        f"{what}: {_label(node)} and {_label(below)} are in a cycle, through {name!r}; loops are "
                        "written with Loop or Scan"
                    )
                if id(below) not in state:
                    stack.append((below, iter(_read(below))))
                    break
            else:
                state[id(node)] = 2
                order.append(node)
                stack.pop()
    for name in (o.name for o in graph.output):
        if name and name not in known and name not in given:
            raise ArgumentError(f"{what}: no node computes its output {name!r}")
    seen = known | set(given)
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                _check_cycles(a.g, what, seen)
    if [id(n) for n in order] != [id(n) for n in graph.node]:
        copies = []
        for node in order:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copies.append(copy)
        del graph.node[:]
        graph.node.extend(copies)


def _read(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node reads, including outer names that its bodies read."""
    found = list(node.input)
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            own = {i.name for i in a.g.input} | {t.name for t in a.g.initializer}
            own |= {o for n in a.g.node for o in n.output}
            found += [x for n in a.g.node for x in _read(n) if x not in own]
            found += [o.name for o in a.g.output if o.name not in own]
    return found


def type_name(number: int) -> str:
    """Return an element type's name by its number in the standard."""
    return onnx.TensorProto.DataType.Name(number).lower() if number else ""


class _Reader:
    def __init__(self, versions: dict[str, int], folder: Path | None, what: str, arrays: dict[str, onnx.TensorProto]):
        self.versions, self.folder, self.what, self.arrays = versions, folder, what, arrays

    def graph(self, graph: onnx.GraphProto, outer: dict[str, str]) -> OnnxGraph:
        constants = {t.name: self.constant(self.arrays.get(t.name, t), t.name) for t in graph.initializer}
        for sparse in graph.sparse_initializer:
            constants[sparse.values.name] = self.dense(sparse)
        self.arrays = {}
        types = {name: c.type for name, c in constants.items()}
        for value in (*graph.input, *graph.value_info, *graph.output):
            types.setdefault(value.name, self.type(value))
            types[value.name] = types[value.name] or self.type(value)
        inputs = tuple(self.input(i) for i in graph.input if i.name not in constants)
        nodes = tuple(self.node(n, types | {"": ""}, {**outer, **types}) for n in graph.node)
        for name in [o for n in nodes for o in n.outputs if o and not types.get(o)]:
            types[name] = ""
        shapes = {o.name: shape for o in graph.output if (shape := self.shape(o)) is not None}
        outputs = tuple(o.name for o in graph.output)
        return OnnxGraph(graph.name or self.what, inputs, nodes, constants, types, outputs, shapes)

    def type(self, value: onnx.ValueInfoProto) -> str:
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type":
            return type_name(value.type.tensor_type.elem_type)
        return (kind or "").removesuffix("_type")

    def input(self, value: onnx.ValueInfoProto) -> Input:
        name = self.type(value)
        kind = value.type.WhichOneof("value")
        if kind not in (None, "tensor_type", "sequence_type", "optional_type"):
            raise TraceError(f"{self.what}: input {value.name!r} is {with_article(name)}; only tensors are supported")
        if name in REFUSED_TYPES or (kind == "tensor_type" and name not in ELEMENTS):
            raise DtypeError(
                f"{self.what}: input {value.name!r} is of {name}: {REFUSED_TYPES.get(name, 'not supported')}"
            )
        return Input(value.name, name, self.shape(value))

    def shape(self, value: onnx.ValueInfoProto) -> tuple[int | str | None, ...] | None:
        if value.type.WhichOneof("value") != "tensor_type" or not value.type.tensor_type.HasField("shape"):
            return None
        return tuple(
            d.dim_value if d.WhichOneof("value") == "dim_value" else d.dim_param or None
            for d in value.type.tensor_type.shape.dim
        )

    def node(self, node: onnx.NodeProto, types: dict[str, str], around: dict[str, str]) -> OnnxNode:
        label = _label(node)
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain not in self.versions:
            raise ArgumentError(f"{self.what}: {label} is of a domain that the file imports no operator set of")
        for name in node.output:
            kind = types.get(name, "")
            if kind not in ELEMENTS and kind not in ("", "sequence", "optional"):
                raise DtypeError(f"{self.what}: {label} gives {kind}: {REFUSED_TYPES.get(kind, 'it is not supported')}")
        attributes = {a.name: self.attribute(a, label, around) for a in node.attribute}
        key = _key(node)
        outputs = tuple(node.output)
        name = node.name or f"{node.op_type}_{next((o for o in outputs if o), '')}"
        return OnnxNode(name, key, self.versions[domain], tuple(node.input), outputs, attributes)

    def attribute(self, a: onnx.AttributeProto, label: str, around: dict[str, str]) -> Any:
        kind = onnx.AttributeProto
        if a.ref_attr_name:
            raise ArgumentError(
                f"{self.what}: {label}: {a.name!r} refers to an attribute of a function, but is outside of one"
            )
        if a.type == kind.GRAPH:
            return self.graph(a.g, around)
        if a.type == kind.TENSOR:
            return self.constant(a.t, f"{a.name} of {label}")
        if a.type == kind.SPARSE_TENSOR:
            return self.dense(a.sparse_tensor)
        if a.type in (kind.INT, kind.FLOAT):
            return a.i if a.type == kind.INT else a.f
        if a.type == kind.STRING:
            return a.s.decode("utf-8", "replace")
        if a.type in (kind.INTS, kind.FLOATS):
            return tuple(a.ints if a.type == kind.INTS else a.floats)
        if a.type == kind.STRINGS:
            return tuple(s.decode("utf-8", "replace") for s in a.strings)
        if a.type == kind.TENSORS:
            return tuple(self.constant(t, f"{a.name} of {label}") for t in a.tensors)
        return None

    def constant(self, t: onnx.TensorProto, name: str) -> Constant:
        kind = type_name(t.data_type)
        if kind not in ELEMENTS:
            raise DtypeError(
                f"{self.what}: {name!r} is of {kind or 'no type'}: {REFUSED_TYPES.get(kind, 'it is not supported')}"
            )
        if t.data_location == onnx.TensorProto.EXTERNAL:
            t = self.external(t, name)
        try:
            array = onnx.numpy_helper.to_array(t)
        except Exception as e:
            raise DataError(
                f"{self.what}: the values of {name!r}, of {kind} {list(t.dims)}, are damaged or truncated: {e}"
            ) from e
        return Constant(ELEMENTS[kind].held(array), kind)

    def external(self, t: onnx.TensorProto, name: str) -> onnx.TensorProto:
        """Return a tensor with the bytes of its external file. Raises DataError."""
        facts = {e.key: e.value for e in t.external_data}
        where = f"{self.what}: the values of {name!r} are in the file {facts.get('location', '')!r}"
        if self.folder is None:
            raise DataError(f"{where} beside the model's; give load the path of the model, not its bytes")
        path = (self.folder / facts.get("location", "")).resolve()
        if not path.is_relative_to(self.folder) or path == self.folder:
            raise DataError(f"{where}, which is outside of the model's folder; put it there and save the model anew")
        try:
            offset = int(facts.get("offset", 0))
            size = path.stat().st_size
            length = int(facts.get("length", size - offset))
            if offset < 0 or length < 0 or offset + length > size:
                raise DataError(f"{where}, bytes {offset} to {offset + length}, but the file has {size}; copy it again")
            with path.open("rb") as f:
                f.seek(offset)
                data = f.read(length)
        except OSError as e:
            if isinstance(e, DataError):
                raise
            raise DataError(f"{where}, which cannot be read: {e.strerror or e}; put it beside the model") from e
        except ValueError as e:
            raise DataError(f"{where}, at an offset that is not a number: {e}") from e
        own = onnx.TensorProto(name=t.name, data_type=t.data_type, dims=t.dims, raw_data=data)
        return own

    def dense(self, sparse: onnx.SparseTensorProto) -> Constant:
        values = self.constant(sparse.values, sparse.values.name)
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
