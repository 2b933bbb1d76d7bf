"""Read the tensors of ONNX files: dense ones, those whose values are in another file, and sparse ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from einsmith.base import files
from einsmith.base.errors import DataError, DtypeError
from einsmith.frontends.onnx.nodes import Constant
from einsmith.frontends.onnx.protos import onnx
from einsmith.frontends.onnx.types import ELEMENTS, REFUSED_TYPES

MAX_SPARSE_ELEMENTS = 2**28
"""Most elements of a sparse tensor, which becomes a dense one."""


def type_name(number: int) -> str:
    """Return the name, in lower case, of the element type with this number in the standard; "" for others."""
    known = onnx.TensorProto.DataType.values()
    return onnx.TensorProto.DataType.Name(number).lower() if number in known[1:] else ""


class TensorReader:
    """Reader of a model's tensors. folder: that of its external data, None if it has none; what: its name in
    messages."""

    def __init__(self, folder: Path | None, what: str):
        self.folder, self.what = folder, what

    def read_constant(self, t: onnx.TensorProto, name: str) -> Constant:
        """Return a tensor's values. name: its name in messages. Raises DtypeError and DataError."""
        kind = type_name(t.data_type)
        if kind not in ELEMENTS:
            raise DtypeError(
                f"{self.what}: {name!r} is of {kind or 'no type'}: {REFUSED_TYPES.get(kind, 'it is not supported')}"
            )
        _check_dims(t.dims, f"{self.what}: {name!r}")
        if t.data_location == onnx.TensorProto.EXTERNAL:
            t = self.read_external(t, name)
        try:
            array = onnx.numpy_helper.to_array(t)
        except Exception as e:
            raise DataError(
                f"{self.what}: the values of {name!r}, of {kind} {list(t.dims)}, are damaged or truncated: {e}"
            ) from e
        return Constant(ELEMENTS[kind].hold(array), kind)

    def read_external(self, t: onnx.TensorProto, name: str) -> onnx.TensorProto:
        """Return a tensor with the bytes that it has in an external file. Raises DataError if they cannot be read."""
        entries = {e.key: e.value for e in t.external_data}
        where = f"{self.what}: the values of {name!r} are in the file {entries.get('location', '')!r}"
        if self.folder is None:
            raise DataError(f"{where} beside the model's; give load the path of the model, not its bytes")
        try:
            path = (self.folder / entries.get("location", "")).resolve()
            if not path.is_relative_to(self.folder) or path == self.folder:
                raise DataError(
                    f"{where}, which is outside of the model's folder; put it there and save the model anew"
                )
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
            raise DataError(f"{where}, at a place or an offset that cannot be read: {e}") from e
        tensor = onnx.TensorProto(name=t.name, data_type=t.data_type, dims=t.dims, raw_data=data)
        return tensor

    def read_sparse(self, sparse: onnx.SparseTensorProto) -> Constant:
        """Return a sparse tensor's values as a dense array. Raises DataError for indices out of range."""
        name, dims = f"{self.what}: {sparse.values.name!r}", tuple(sparse.dims)
        _check_dims(dims, name, MAX_SPARSE_ELEMENTS)
        values = self.read_constant(sparse.values, sparse.values.name)
        places = self.read_constant(sparse.indices, sparse.indices.name).array
        if values.array.ndim != 1 or places.shape not in (values.array.shape, (*values.array.shape, len(dims))):
            raise DataError(
                f"{name}: indices {list(places.shape)} of values {list(values.array.shape)} do not fit {dims}"
            )
        bounds = np.array(dims if places.ndim == 2 else [prod(dims)], np.int64)
        if (
            not places.dtype == np.int64
            or not ((places >= 0) & (places < (bounds if places.ndim == 2 else bounds[0]))).all()
        ):
            raise DataError(f"{name} has indices outside of {list(dims)}")
        out = np.zeros(dims, values.array.dtype)
        if places.ndim == 2:
            out[tuple(places.T)] = values.array
        else:
            out.reshape(-1)[places] = values.array
        return Constant(out, values.type)


def _check_dims(dims: Sequence[int], name: str, most: int = 2**62) -> None:
    """Raise DataError if the extents of a tensor in the file are none, or have more than `most` elements."""
    if any(e < 0 for e in dims) or prod(dims) > most:
        raise DataError(f"{name} has the shape {list(dims)}, which is negative or too large")
