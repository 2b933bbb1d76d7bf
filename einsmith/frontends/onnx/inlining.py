"""Inline the functions of a model, and those by which the standard defines composed operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from einsmith.base.errors import ArgumentError, DataError, EinsmithError
from einsmith.frontends.onnx.inference import infer_types
from einsmith.frontends.onnx.protos import (
    MAX_BODY_NESTING,
    DecodeError,
    check_depth,
    describe,
    get_key,
    onnx,
    quote,
    walk_nodes,
)
from einsmith.frontends.onnx.signatures import check_node
from einsmith.frontends.onnx.table import TABLE

MAX_INLINED_NODES, MAX_INLINED_BYTES = 50_000, 2**28
"""Most nodes, and their bytes in the file, that calls of the model's functions become. A few functions that call each
other twice would otherwise be gigabytes; a language model's layers are some ten thousand nodes."""
MAX_CALL_DEPTH = 100
"""Most functions of a model that call each other in a chain; the inliner recurses over them."""


def inline_functions(model: onnx.ModelProto, versions: dict[str, int], what: str) -> onnx.ModelProto:
    """Return the model without function calls, its nodes checked against the standard.

    The bodies of its own functions, and those by which the standard defines operators that have no formula here, take
    the places of the calls.
    """
    _check_calls(model, what)
    try:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        check_depth(model, what)
        _check_nodes(model, versions, what)
        while any(is_composed(get_key(n)) for n in walk_nodes(model.graph.node)):
            model = onnx.inliner.inline_local_functions(_replace_composed(model, what))
    except EinsmithError:
        raise
    except DecodeError as e:
        raise DataError(f"{what}: with its functions inlined, bodies are more than {MAX_BODY_NESTING} deep: {e}") from e
    except Exception as e:  # the library raises errors of several kinds
        raise ArgumentError(f"{what}: its functions cannot be inlined: {quote(e)}") from e
    check_depth(model, what)
    return model


def is_composed(key: str) -> bool:
    """Return whether an operator has no formula here, and the standard defines it as a function of others."""
    domain, _, name = key.rpartition(".")
    if key in TABLE or not onnx.defs.has(name, domain):
        return False
    schema = onnx.defs.get_schema(name, domain=domain)
    return schema.has_function or schema.has_context_dependent_function


def _check_calls(model: onnx.ModelProto, what: str) -> None:
    """Raise ArgumentError if functions call themselves, or calls would become too many nodes, before any is inlined."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    called = {key: [_get_call(n) for n in walk_nodes(f.node)] for key, f in functions.items()}
    total: dict[_Call, tuple[int, int, int]] = {}  # of a function: nodes, bytes and depth of calls once it is inlined

    def add_up(calls: Iterable[_Call], size: int) -> tuple[int, int, int]:
        parts = [total.get(c, (1, 0, 0)) for c in calls]
        depth = max((p[2] for p in parts), default=0)
        return sum(p[0] for p in parts), size + sum(p[1] for p in parts), depth + 1

    for root in functions:
        stack = {root: iter(called[root])}  # the functions around, each with the calls not yet visited
        while stack:
            key, rest = next(reversed(stack.items()))
            inner = next((c for c in rest if c in functions and c not in total), None)
            if inner is None:
                total[key] = add_up(called[key], functions[key].ByteSize())
                del stack[key]
            elif inner in stack:
                raise ArgumentError(f"{what}: its functions cannot be inlined: {inner[1]!r} calls itself, in a cycle")
            else:
                stack[inner] = iter(called[inner])
    nodes, size, depth = add_up(map(_get_call, walk_nodes(model.graph.node)), 0)
    if functions and (nodes > MAX_INLINED_NODES or size > MAX_INLINED_BYTES or depth > MAX_CALL_DEPTH + 1):
        raise ArgumentError(
            f"{what}: its functions cannot be inlined: they would become {nodes:,} nodes of {size:,} bytes, in chains "
            f"of up to {depth - 1} calls; at most {MAX_INLINED_NODES:,} nodes, {MAX_INLINED_BYTES:,} bytes and chains "
            f"of {MAX_CALL_DEPTH} calls are supported"
        )


_Call = tuple[str, str, str]
"""Domain, name and overload of a function."""


def _get_call(node: onnx.NodeProto) -> _Call:
    return node.domain, node.op_type, node.overload


def _check_nodes(model: onnx.ModelProto, versions: dict[str, int], what: str) -> None:
    """Check all nodes against the standard (`signatures.check_node`)."""
    for node in walk_nodes(model.graph.node):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain in versions:
            check_node(node, versions[domain], f"{what}: {describe(node)}")


def _replace_composed(model: onnx.ModelProto, what: str) -> onnx.ModelProto:
    """Return the model with composed operators replaced by calls of functions that are added to the model."""
    versions = {o.domain: o.version for o in model.opset_import}
    infer_types(model, versions | {"": versions.get("", versions.get("ai.onnx", 0))}, what)
    count = 0
    for graph, types in _walk_graphs(model.graph, {}):
        for node in graph.node:
            if not is_composed(get_key(node)):
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
            raise ValueError(f"{describe(node)} of operator set {version} has no function body in the standard")
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
