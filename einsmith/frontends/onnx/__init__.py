"""Import networks from ONNX files: `load` makes an `es.nn.Module` of one, `save` writes the weights back.

The package `onnx` reads the files: pip install 'einsmith[onnx]'. docs/onnx.md lists the operators.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from einsmith.base import files, locks
from einsmith.base.errors import ArgumentError
from einsmith.frontends.onnx.module import OnnxModule, fix_inputs

__all__ = ["OnnxModule", "load", "save"]


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
    (the epsilon of a norm) than weights. trained: what `Constant` nodes of the graph give that trains as initializers
    do, as patterns of its names; `save` writes it as initializers. Raises DataError for files that are missing,
    truncated, or whose external data is missing or outside of the model's folder; TraceError, which lists them all with
    their reasons, for operators that are not here, and for other operator sets; ArgumentError for graphs with cycles or
    names that nothing gives; DtypeError for element types that are not here; ImportError without the package `onnx`.
    """
    with locks.IMPORTING:
        from einsmith.frontends.onnx import reader

    model, folder, what = reader.parse(file)
    model = reader.with_initializers(model, trained)
    graph = reader.read(model, folder, what)
    return OnnxModule(fix_inputs(graph, constants or {}, what), what, model, frozen)


def save(model: OnnxModule, file: str | os.PathLike) -> None:
    """Write the file that a network was loaded from, with the current values of its parameters and buffers."""
    if not isinstance(model, OnnxModule) or model._source is None:
        raise ArgumentError("save takes a network that `load` returned")
    with locks.IMPORTING:
        import onnx
        import onnx.numpy_helper

    made = onnx.ModelProto()
    made.CopyFrom(model._source)
    values = model._by_name()
    for t in made.graph.initializer:
        if t.name in values:
            t.CopyFrom(onnx.numpy_helper.from_array(values[t.name].numpy(), t.name))
        elif t.data_location == onnx.TensorProto.EXTERNAL:
            constant = model._graph.constants[t.name]
            t.CopyFrom(onnx.numpy_helper.from_array(constant.array, t.name))
    with files.replacing(Path(file)) as work:
        work.write_bytes(made.SerializeToString())
