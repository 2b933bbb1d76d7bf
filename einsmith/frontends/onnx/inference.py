"""Infer the type of every value of a model from the types that the standard's operators take and give.

The library's own inference also computes shapes, of which none are needed here; on files that are not valid it ends the
process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base.errors import ArgumentError
from einsmith.frontends.onnx.protos import describe, get_key, onnx

_DataType, _Formal = onnx.TensorProto.DataType, onnx.defs.OpSchema.FormalParameterOption


def infer_types(model: onnx.ModelProto, versions: dict[str, int], what: str) -> None:
    """Add the types of all nodes' results to the `value_info` of their graphs.

    Args:
        model: the model, whose nodes are in order
        versions: operator set of each domain
        what: the model's name in messages
    Raises:
        ArgumentError: an operand has a type that its operator does not take, or a result another one than declared.
    """
    _Inference(versions, what).infer(model.graph, {})


def _write(kind: onnx.TypeProto) -> str:
    """Return a type as schemas write it, such as "seq(tensor(float))"; "" if it is not known."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        number = getattr(kind, which).elem_type
        name = which.removesuffix("_type")
        return f"{name}({_DataType.Name(number).lower()})" if number in _DataType.values()[1:] else ""
    if which in ("sequence_type", "optional_type"):
        inner = _write(getattr(kind, which).elem_type)
        return f"{'seq' if which == 'sequence_type' else 'optional'}({inner})" if inner else ""
    return which or ""


def _parse(text: str) -> onnx.TypeProto:
    """Return the type of a text that `_write` returned."""
    kind = onnx.TypeProto()
    outer, _, inner = text.removesuffix(")").partition("(")
    if outer == "tensor":
        kind.tensor_type.elem_type = _DataType.Value(inner.upper())
    elif outer in ("seq", "optional"):
        own = kind.sequence_type if outer == "seq" else kind.optional_type
        own.elem_type.CopyFrom(_parse(inner))
    return kind


def _tensor(number: int) -> str:
    return f"tensor({_DataType.Name(number).lower()})" if number in _DataType.values()[1:] else ""


def _inner(text: str) -> str:
    """Return the type of the elements of a sequence, or of what is optional."""
    return text.partition("(")[2].removesuffix(")")


class _Inference:
    """Inference over one model. versions: operator set of each domain; what: the model's name in messages."""

    def __init__(self, versions: dict[str, int], what: str):
        self.versions, self.what = versions, what

    def infer(self, graph: onnx.GraphProto, outer: dict[str, str]) -> dict[str, str]:
        """Add the types of a graph's results; return the types of its names and those around. outer: types of outer
        names."""
        declared = {v.name: text for v in (*graph.value_info, *graph.output) if (text := _write(v.type))}
        types = outer | {v.name: _write(v.type) for v in graph.input}
        types |= {t.name: _tensor(t.data_type) for t in graph.initializer}
        types |= {t.values.name: _tensor(t.values.data_type) for t in graph.sparse_initializer}
        for node in graph.node:
            results = self.infer_node(node, types)
            for name, text in zip(node.output, [*results, *[""] * len(node.output)], strict=False):
                if text and declared.get(name, text) != text:
                    raise ArgumentError(
                        f"{self.what} is not a valid model: {describe(node)} gives {text} for {name!r}, which the file "
                        f"declares as {declared[name]}"
                    )
                types[name] = text or declared.get(name, "")
                if name and types[name] and name not in declared:
                    graph.value_info.add(name=name).type.CopyFrom(_parse(types[name]))
        for name, text in declared.items():
            if name in types and types[name] and text != types[name]:
                raise ArgumentError(f"{self.what} is not a valid model: {name!r} is {types[name]}, declared as {text}")
        return types

    def infer_node(self, node: onnx.NodeProto, types: dict[str, str]) -> Sequence[str]:
        """Return the types of a node's results, "" or nothing for those that are not known."""
        operands = [types.get(x, "") if x else "" for x in node.input]
        attributes = {a.name: a for a in node.attribute}
        key = get_key(node)
        if key in _WITH_BODIES:
            return self.infer_bodies(node, key, operands, types)
        try:
            domain = "" if node.domain == "ai.onnx" else node.domain
            schema = onnx.defs.get_schema(node.op_type, self.versions.get(domain, 0), domain)
        except onnx.defs.SchemaError:
            return ()
        bound = self.bind(node, schema, operands)
        first = operands[0] if operands else ""
        if key in _FROM_INPUT:
            return [_FROM_INPUT[key](first)] * len(node.output)
        results = [bound.get(text, text if "(" in text else "") for text in _spread(schema.outputs, len(node.output))]
        chosen = _from_attributes(key, attributes, schema, operands)
        if key == "LayerNormalization" and chosen:
            return [results[0], *[chosen] * (len(results) - 1)]
        return [chosen, *results[1:]] if chosen else results

    def bind(self, node: onnx.NodeProto, schema: Any, operands: Sequence[str]) -> dict[str, str]:
        """Return the types to which an operator's type variables are bound. Raises ArgumentError for wrong operands."""
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        bound = {name: texts[0] for name, texts in allowed.items() if len(texts) == 1}
        mixed = [p for p in schema.inputs if p.option == _Formal.Variadic and not p.is_homogeneous]
        for position, (text, formal) in enumerate(zip(operands, _spread(schema.inputs, len(operands)), strict=True)):
            options = allowed.get(formal, [formal])
            if text and (text not in options or bound.get(formal, text) != text and not mixed):
                wanted = bound.get(formal, text)
                expected = wanted if wanted != text else f"one of {', '.join(options)}"
                raise ArgumentError(
                    f"{self.what} is not a valid model: {describe(node)} takes {expected} as input {position}, and "
                    f"{node.input[position]!r} is {text}"
                )
            if text:
                bound.setdefault(formal, text)
        return bound

    def infer_bodies(self, node: onnx.NodeProto, key: str, operands: list[str], types: dict[str, str]) -> Sequence[str]:
        """Return the types of the results of a node with bodies, whose values get their types."""
        if key == "SequenceMap":
            operands = [_inner(x) if x.startswith("seq") else x for x in operands]
        lead = 2 if key == "Loop" else int(key == "Scan" and self.versions.get("", 9) < 9)
        carried = (["tensor(int64)", "tensor(bool)"] if key == "Loop" else []) + operands[lead:]
        results: list[str] = []
        for a in node.attribute:
            if a.type != onnx.AttributeProto.GRAPH:
                continue
            for value, text in zip(a.g.input, carried if key != "If" else (), strict=False):
                known = _write(value.type)
                if known and text and known != text:
                    raise ArgumentError(
                        f"{self.what} is not a valid model: {describe(node)} gives {text} to {value.name!r} of its "
                        f"body, which is declared as {known}"
                    )
                if text and not known:
                    value.type.CopyFrom(_parse(text))
            inside = self.infer(a.g, types)
            for o in a.g.output:
                if not _write(o.type) and inside.get(o.name):
                    o.type.CopyFrom(_parse(inside[o.name]))
            texts = [inside.get(o.name, "") for o in a.g.output][key == "Loop" :]
            if results and any(x and y and x != y for x, y in zip(results, texts, strict=False)):
                raise ArgumentError(
                    f"{self.what} is not a valid model: the branches of {describe(node)} differ in types"
                )
            results = results or texts
        return [f"seq({x})" if x else "" for x in results] if key == "SequenceMap" else results


_WITH_BODIES = ("If", "Loop", "Scan", "SequenceMap")
"""Operators whose results' types are those of their bodies' results."""


def _spread(formals: Sequence[Any], count: int) -> list[str]:
    """Return the type of each of `count` operands or results; the last formal one may be repeated."""
    texts = [p.type_str for p in formals]
    return (texts + texts[-1:] * count)[:count] if texts else [""] * count


_FROM_INPUT = {
    "SequenceConstruct": lambda x: f"seq({x})" if x else "",
    "SplitToSequence": lambda x: f"seq({x})" if x else "",
    "SequenceAt": _inner,
    "ConcatFromSequence": _inner,
    "SequenceInsert": lambda x: x,
    "SequenceErase": lambda x: x,
    "OptionalGetElement": lambda x: _inner(x) if x.startswith("optional") else x,
    "ai.onnx.preview.training.Gradient": lambda x: x,
}
"""Operators whose results' types follow from the type of the first operand."""


def _from_attributes(key: str, attributes: dict[str, Any], schema: Any, operands: Sequence[str]) -> str:
    """Return the type of the first result of an operator where attributes decide it, else ""."""
    if key == "Optional":
        return f"optional({operands[0] if operands else _write(attributes['type'].tp)})"
    if key.startswith("ai.onnx.preview.training."):
        return operands[2] if len(operands) > 2 else ""
    for name, text in (
        ("value_float", "float"), ("value_floats", "float"), ("value_int", "int64"), ("value_ints", "int64"),
        ("value_string", "string"), ("value_strings", "string"), ("values_floats", "float"),
        ("values_int64s", "int64"), ("values_strings", "string"),
    ):  # fmt: skip
        if name in attributes:
            return f"tensor({text})"
    for name in ("value", "values_tensor", "sparse_value"):
        if name in attributes and attributes[name].type != onnx.AttributeProto.FLOAT:
            a = attributes[name]
            return _tensor(a.sparse_tensor.values.data_type if name == "sparse_value" else a.t.data_type)
    if key == "ConstantOfShape":
        return "tensor(float)"
    stash = ["stash_type"] if key == "LayerNormalization" else []
    for name in ("to", "dtype", "output_dtype", "output_datatype", *stash):
        if name in schema.attributes:
            number = attributes[name].i if name in attributes else schema.attributes[name].default_value.i
            if number:
                return f"seq({_tensor(number)})" if key == "SequenceEmpty" else _tensor(number)
            if name == "dtype":
                return "seq(tensor(float))" if key == "SequenceEmpty" else operands[0] if operands else ""
    if key == "QuantizeLinear" and not (len(operands) > 2 and operands[2]):
        return "tensor(uint8)"
    return ""
