"""Check the nodes of a file against the standard: the number of their operands and results, and their attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from einsmith.base.errors import ArgumentError
from einsmith.frontends.onnx.protos import onnx

MOST_EXTENT = 2**31 - 1
"""Largest extent of a dimension, and largest stride, padding or window of an attribute (elements)."""

_KINDS = onnx.AttributeProto.AttributeType
_FLOATS = tuple(map(onnx.TensorProto.DataType.Value, ("FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16")))
_TYPES = tuple(onnx.TensorProto.DataType.values())[1:]

_LEAST = dict.fromkeys(
    ("batch_dims", "block_size", "output_padding", "pads", "sampling_ratio", "shape", "split"), 0
) | (
    dict.fromkeys(
        "blocksize dilations group hidden_size kernel_shape num_groups num_outputs num_scan_inputs offset_group "
        "output_height output_shape output_width sample_size size strides targets".split(),
        1,
    )
)
"""Attributes that count elements -> their least value; of lists, that of each element."""

_SIGNED = {("Pad", "pads"), ("Reshape", "shape")}
"""(operator, attribute) where `_LEAST` does not hold."""

_FLAGS = (
    "align_corners allowzero antialias batch_axis ceil_mode center_point_box count_include_pad detect_negative "
    "detect_positive exclude_outside exclusive fmod input_forget inverse is_causal keepdims largest layout "
    "linear_before_reset new_axis noop_with_empty_axes onesided periodic reverse saturate scan_input_directions "
    "scan_output_directions select_last_index sorted storage_order time_axis training_mode transA transB upper"
).split()

_RECURRENT = ("forward", "reverse", "bidirectional")
_CHOICES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "activation": {"": ("none", "silu", "swish")},
    "approximate": {"": ("none", "tanh")},
    "auto_pad": {"": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")},
    "coordinate_transformation_mode": {
        "Resize": (
            "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
            "tf_half_pixel_for_nn", "tf_crop_and_resize",
        ),
        "RoiAlign": ("half_pixel", "output_half_pixel"),
    },
    "direction": {"BitShift": ("LEFT", "RIGHT"), "": _RECURRENT},
    "keep_aspect_ratio_policy": {"": ("stretch", "not_larger", "not_smaller")},
    "mode": {
        "DepthToSpace": ("DCR", "CRD"),
        "SpaceToDepth": ("DCR", "CRD"),
        "GridSample": ("linear", "nearest", "cubic", "bilinear", "bicubic"),
        "Momentum": ("nesterov", "standard"),
        "Pad": ("constant", "reflect", "edge", "wrap"),
        "Resize": ("nearest", "linear", "cubic"),
        "RoiAlign": ("avg", "max"),
        "TensorScatter": ("linear", "circular"),
        "Upsample": ("nearest", "linear"),
    },
    "nearest_mode": {"": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")},
    "norm": {"": ("MAX", "L1", "L2")},
    "p": {"LpNormalization": (1, 2)},
    "padding_mode": {"": ("zeros", "border", "reflection")},
    "precision": {"": (0, *_FLOATS)},
    "reduction": {
        "ScatterElements": ("none", "add", "mul", "max", "min"),
        "ScatterND": ("none", "add", "mul", "max", "min"),
        "": ("none", "sum", "mean"),
    },
    "softmax_precision": {"": (0, *_FLOATS)},
    "stash_type": {"": _FLOATS},
    "update_rule": {"": ("linear", "gated", "delta", "gated_delta")},
    "to": {"": _TYPES},
    "dtype": {"": _TYPES},
    "output_dtype": {"": (0, *_TYPES)},
    "output_datatype": {"": _TYPES},
}  # fmt: skip
"""Attribute -> operator, or "" for all others -> the values that the standard lists."""


def check_node(node: onnx.NodeProto, version: int, label: str) -> None:
    """Raise ArgumentError if a node has attributes, or numbers of operands or results, that its operator does not take.

    Operators that the standard does not have are left alone.

    Args:
        node: the node
        version: operator set of its domain
        label: its name in messages
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return
    for what, names, least, most, formal in (
        ("inputs", node.input, schema.min_input, schema.max_input, schema.inputs),
        ("outputs", node.output, schema.min_output, schema.max_output, schema.outputs),
    ):
        count = max((n + 1 for n, name in enumerate(names) if name), default=0)
        if not least <= len(names) or count > most:
            span = f"{least}" if least == most else f"{least} or more" if most > 2**30 else f"{least} to {most}"
            raise ArgumentError(f"{label} has {len(names)} {what}; the operator has {span}")
        optional = onnx.defs.OpSchema.FormalParameterOption.Optional
        missing = [p.name for p, name in zip(formal, names, strict=False) if not name and p.option != optional]
        if missing and what == "inputs":
            raise ArgumentError(f"{label} lacks its input {missing[0]!r}")
    present = {a.name for a in node.attribute}
    if len(present) < len(node.attribute):
        raise ArgumentError(f"{label} has an attribute twice")
    for name, a in schema.attributes.items():
        if a.required and name not in present:
            raise ArgumentError(f"{label} lacks its attribute {name!r}")
    for attribute in node.attribute:
        known = schema.attributes.get(attribute.name)
        if known is None:
            raise ArgumentError(f"{label} has an attribute {attribute.name!r}, which the operator does not take")
        if attribute.type != known.type.value:
            wanted, kind = (_KINDS.Name(n) if n in _KINDS.values() else n for n in (known.type.value, attribute.type))
            raise ArgumentError(f"{label}: the attribute {attribute.name!r} is of type {kind}, not {wanted}")
        _check_values(node.op_type, attribute, label)


def _check_values(operator: str, a: onnx.AttributeProto, label: str) -> None:
    """Raise ArgumentError if a value of an attribute is out of its range, or none of those that the standard lists."""
    if a.type == _KINDS.Value("STRING"):
        values: Iterable[Any] = (a.s.decode("utf-8", "replace"),)
    elif a.type in (_KINDS.Value("INT"), _KINDS.Value("FLOAT")):
        values = (a.i if a.type == _KINDS.Value("INT") else a.f,)
    else:
        values = a.ints
    least = None if (operator, a.name) in _SIGNED else _LEAST.get(a.name)
    listed = _CHOICES.get(a.name, {})
    choices = (0, 1) if a.name in _FLAGS else listed.get(operator, listed.get(""))
    for value in values:
        if choices is not None and value not in choices:
            options = "a number of an element type" if len(choices) > 12 else f"one of {', '.join(map(str, choices))}"
            raise ArgumentError(f"{label}: the attribute {a.name!r} is {value!r}; it must be {options}")
        if isinstance(value, int) and least is not None and not least <= value <= MOST_EXTENT:
            raise ArgumentError(
                f"{label}: the attribute {a.name!r} has {value}; it must be from {least} to {MOST_EXTENT}"
            )
        if a.name == "ratio" and not 0 <= value < 1:
            raise ArgumentError(f"{label}: the attribute 'ratio' is {value}; it must be at least 0 and less than 1")
        if a.name in ("clip", "spatial_scale") and not 0 < value < float("inf"):
            raise ArgumentError(f"{label}: the attribute {a.name!r} is {value}; it must be positive and finite")
