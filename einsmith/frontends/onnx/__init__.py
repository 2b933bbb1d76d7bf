"""Import networks from ONNX files, and export them: `load` makes an `es.nn.Module` of a file, `save` writes the weights
back, `export` writes any network.

The package `onnx` reads and writes the files: pip install 'einsmith[onnx]'. docs/onnx.md lists the operators.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from einsmith.api.tracing import names_of
from einsmith.base import files, locks
from einsmith.base.arguments import check_arguments, refuse_torch, show
from einsmith.base.arrays import detached, to_array
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import ArgumentError, DataError, KindError, ShapeError
from einsmith.frontends.onnx.module import OnnxModule, fix_inputs
from einsmith.nn.module import Module, export_name

__all__ = ["OnnxModule", "export", "load", "save"]

OPSETS = range(18, 24)
"""Operator sets that `export` writes."""


def load(
    file: Any,
    *,
    constants: Mapping[str, Any] | None = None,
    frozen: Sequence[str] | None = None,
    trained: Sequence[str] = (),
) -> OnnxModule:
    """Load the network of a file as a module, whose floating initializers are its parameters.

    file: a path, bytes, an open file or an onnx.ModelProto, of operator sets 7 to 28. constants: inputs by name that
    are always these arrays, as shapes are that extents depend on. frozen: initializers that do not train, as patterns
    of their names ("val_*"); where it is not given, those without dimensions, which are rather numbers of a formula
    (the epsilon of a norm) than weights. trained: what `Constant` nodes, and initializers of bodies (of If and Loop),
    give that trains as initializers do, as patterns of its names; `save` writes it as initializers. Raises DataError
    for files that are missing, truncated, or whose external data is missing or outside of the model's folder;
    TraceError, which lists them all with their reasons, for operators that are not here, and for other operator sets;
    ArgumentError for graphs with cycles or names that nothing gives; DtypeError for element types that are not here;
    ImportError without the package `onnx`.
    """
    with locks.IMPORTING:
        from einsmith.frontends.onnx import reader

    model, folder, what = reader.parse(file)
    model = reader.with_initializers(model, trained)
    graph = reader.read(model, folder, what)
    return OnnxModule(fix_inputs(graph, constants or {}, what), what, model, frozen)


def save(model: OnnxModule, file: str | os.PathLike) -> None:
    """Write the file that a network was loaded from, with the current values of its parameters and buffers. Raises
    DataError where it cannot be written."""
    if not isinstance(model, OnnxModule) or model._source is None:
        raise ArgumentError("save takes a network that `load` returned")
    with locks.IMPORTING:
        import onnx
        import onnx.numpy_helper

    proto = onnx.ModelProto()
    proto.CopyFrom(model._source)
    values = model._by_name()
    for t in proto.graph.initializer:
        if t.name in values:
            t.CopyFrom(onnx.numpy_helper.from_array(values[t.name].numpy(), t.name))
        elif t.data_location == onnx.TensorProto.EXTERNAL:
            constant = model._graph.constants[t.name]
            t.CopyFrom(onnx.numpy_helper.from_array(constant.array, t.name))
    _write(_writable(file), proto)


@check_arguments
def export(
    model: Any,
    example: Any,
    file: Any,
    *,
    dynamic_batch: bool = False,
    opset: int = 20,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> None:
    """Write a network, or a function of tensors, as an ONNX file, as it computes in evaluation mode.

    Parameters and buffers are initializers under their names in `model.state_dict()`. Operators have their names in
    ONNX. Other functions, and each es.op, are functions of the file under their names (domain "einsmith"), made of
    elementary operators (MatMul, Einsum, Gather, Where, Loop, ...), each with its formula as its `doc_string`.

    Args:
        model: the network, or a function of tensors, such as an es.op; modules that a function calls keep their mode
        example: an input, or a tuple of inputs: arrays whose shapes and element types the file has
        file: path of the file
        dynamic_batch: whether the file takes any number of rows: the first extent of all inputs, which is then a size
            named "batch"
        opset: version of ONNX's operator set, 18 to 23
        input_names: names of the inputs, by default those of the parameters of `forward` or of the function (those of
            PyTorch's forward for a module from `from_torch`), "input_0", ... for `*args`
        output_names: names of the outputs, by default "output", or "output_0", "output_1", ...

    Raises FormulaError, which shows the formula, for what ONNX's operators cannot express, such as random numbers, or
    for what holds for one batch size alone; ArgumentError for a network that updates buffers in evaluation, or that has
    more than 2 GiB of parameters; DataError for a path that cannot be written; ImportError without the package `onnx`.
    """
    refuse_torch(model, "model")
    if not callable(model) or isinstance(model, type):
        raise KindError(f"model={show(model)} must be an es.nn.Module or a function of tensors, such as an es.op")
    path = _writable(file)
    arrays = [
        to_array(detached(x), f"example {n}")
        for n, x in enumerate(example if isinstance(example, tuple) else (example,))
    ]
    if opset not in OPSETS:
        raise ArgumentError(f"opset={opset!r} must be from {OPSETS[0]} to {OPSETS[-1]}")
    if dynamic_batch and any(not a.ndim or len(a) != len(arrays[0]) for a in arrays):
        raise ShapeError(f"dynamic_batch: the inputs' first extents must be equal; got {[a.shape for a in arrays]}")
    known = names_of(model)
    model = model if isinstance(model, Module) else _Function(model)
    inputs = input_names or [known[n] if n < len(known) else f"input_{n}" for n in range(len(arrays))]
    if len(inputs) != len(arrays):
        raise ArgumentError(f"input_names={list(inputs)!r} must be {len(arrays)} names")
    named = [*inputs, *(output_names or ())]
    if len(set(named)) < len(named) or not all(named):
        raise ArgumentError(f"input_names and output_names must be different names, got {named!r}")
    with locks.IMPORTING:
        from einsmith.frontends.onnx.writer.model import make_model

    shapes = [(a.shape, dtype_of(a)) for a in arrays]
    proto = make_model(model, shapes, inputs, output_names, opset, dynamic_batch)
    _write(path, proto)


class _Function(Module):
    """A function of tensors as a network. Parameters that it reads are constants of the file."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    def _class_name(self) -> str:
        return export_name(self._function)

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs)


def _write(path: Path, proto: Any) -> None:
    try:
        files.write(path, proto.SerializeToString())
    except OSError as e:
        raise DataError(f"{path} cannot be written: {e.strerror or e}; name another file") from e


def _writable(file: Any) -> Path:
    """Return the path of a file to write. Raises KindError and DataError."""
    try:
        path = Path(file)
    except TypeError:
        raise KindError(f"file={show(file)} must be a path") from None
    if files.is_folder(path):
        raise DataError(f"{path} is a folder; give the path of a file in it, such as {path / 'net.onnx'}")
    if why := files.why_not_folder(path.absolute().parent):
        raise DataError(f"{path.absolute().parent} {why}; make it first, or name a file in another folder")
    return path
