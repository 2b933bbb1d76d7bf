"""Keep weights that do not train in fewer bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base import locks
from einsmith.base.arguments import Count, check_arguments, show
from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError, DtypeError
from einsmith.base.precisions import KEPT
from einsmith.base.system import memory
from einsmith.ir.nodes import Axis, Compute, Const, Expr, Read, apply, cast, template
from einsmith.nn.module import Module
from einsmith.nn.parameter import Buffer, Parameter, Stored, substituted
from einsmith.runtime.memory import Memory
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import touch

KINDS = dict(zip(KEPT, (dt.bf16, dt.i8), strict=True))
_LARGEST = 127
"""The largest integer of a weight of int8: the scale maps the largest magnitude of a group to it."""


class KeptWeight(Buffer):
    """A weight that does not train, in bfloat16 or as int8 times scales; in a traced function a float32 tensor.

    Programs widen the elements where they read them; no float32 copy is stored. `numpy()` and `state_dict` return
    float32. Assigning to `data` stores the nearest values.

    Args:
        shape: the extents of the weight, at least one; its values are not set yet.
        kind: `dt.bf16` or `dt.i8`.
        group: elements of the last dimension that share a scale; None: all of a row.

    scale: the scales of integers, [rows, groups], a row being an index of the first dimension; None for bfloat16.
    """

    def __init__(self, shape: tuple[int, ...], kind: DType, group: int | None = None):
        self.memory = Memory(shape, kind.numpy)
        self.group = shape[-1] if group is None else group
        self.scale: Buffer | None = None
        if kind is dt.i8:
            self.scale = Buffer(np.ones((shape[0], -(-shape[-1] // self.group)), np.float32))

    @property
    def dtype(self) -> DType:
        """The element type of the tensor in a trace."""
        return dt.f32

    @property
    def data(self) -> np.ndarray:
        """A read-only float32 copy. Assigning floats of the same shape stores the nearest values; int8 gets new
        scales."""
        out = self.numpy()
        out.flags.writeable = False
        return out

    @data.setter
    def data(self, value: Any) -> None:
        Stored.data.fset(self, value)  # type: ignore[attr-defined]

    def store(self, values: np.ndarray) -> None:
        """Store the values nearest to those of an array. Raises ArgumentError for NaN and infinity."""
        source = np.asarray(values, np.float32)
        if not np.isfinite(source).all():
            raise ArgumentError("a weight that is kept in fewer bits must be finite")
        if self.scale is None:
            self.memory.store(dt.bf16.narrow(source))
            return
        largest = np.maximum.reduceat(np.abs(source), np.arange(0, source.shape[-1], self.group), -1)
        largest = largest.max(tuple(range(1, source.ndim - 1)))
        scale = np.where(largest > 0, largest / _LARGEST, 1).astype(np.float32)
        with locks.Guard((self.memory.guard, self.scale.memory.guard)):
            self.scale.store(scale)
            self.memory.store(np.rint(source / self._spread(scale)).astype(np.int8))

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"scale": copy(self.scale)}

    def convert(self, dtype: Any) -> None:
        """Accept float32, the type in which the weight is read. Raises DtypeError for other types."""
        if dt.dtype_of(dtype) is not dt.f32:
            raise DtypeError(f"a weight that is kept in fewer bits is read as float32, not {show(dtype)}")

    def numpy(self) -> np.ndarray:
        """Return the values as float32."""
        stored = self.memory.copy()
        if self.scale is None:
            return dt.bf16.wide(stored).astype(np.float32)
        return stored * self._spread(self.scale.numpy())

    def _spread(self, scale: np.ndarray) -> np.ndarray:
        """Return scales in a shape that broadcasts to the weight's."""
        scales = np.repeat(scale, self.group, 1)[:, : self.shape[-1]]
        return scales.reshape((self.shape[0], *(1,) * (self.ndim - 2), self.shape[-1]))

    def __einsmith_value__(self) -> Value:
        stand_in = substituted.get().get(id(self))
        if stand_in is not None:
            return stand_in
        stored = self._captured(dt.dtype_of(self.memory.dtype)).tensor
        axes = tuple(map(Axis, range(self.ndim)))
        if self.scale is None:
            body: Expr = cast(Read(0, axes, dt.bf16), dt.f32)
            return Value(Compute(template(self.shape, [(dt.bf16, self.shape)], body), (stored,)))
        scale = self.scale.__einsmith_value__().tensor
        at = apply("floordiv", axes[-1], Const(self.group, dt.i32)) if scale.shape[1] > 1 else Const(0, dt.i32)
        body = apply("mul", cast(Read(0, axes, dt.i8), dt.f32), Read(1, (axes[0], at), dt.f32))
        params = [(dt.i8, self.shape), (dt.f32, scale.shape)]
        return Value(Compute(template(self.shape, params, body), (stored, scale)))


@check_arguments
def freeze(
    module: Module, names: str | Sequence[str] = "*", *, keep: str | None = None, group: Count | None = None
) -> Module:
    """Exclude parameters of a module from training, and keep them in fewer bits where asked; return the module.

    Frozen parameters have neither gradients nor optimizer state. Those that are kept in bfloat16 or int8 become buffers
    (`KeptWeight`) of the same names, half or a quarter of the memory, which programs widen where they read them; this
    holds for floats of at least two dimensions, as others are small. Products of `precision="bf16"` read bfloat16 as
    it is.

    Args:
        module: the module, which changes; a parameter that several layers share stays shared.
        names: patterns of the parameters' paths, as "layers.*.weight"; all by default.
        keep: "bf16", "int8" or None: as they are.
        group: elements of the last dimension that share a scale in int8; all of a row by default.
    Raises:
        ArgumentError: unknown `keep`, a group without int8, no parameter has such a name, values that are not finite.
    """
    patterns = [names] if isinstance(names, str) else list(names)
    chosen = [place for place in _places(module) if any(fnmatchcase(place.path, p) for p in patterns)]
    if not chosen:
        raise ArgumentError(f"names={show(names)}: {type(module).__name__} has no parameters of such names")
    _fill(_replace(chosen, keep, group))
    del chosen  # with the last references to the parameters
    if keep is not None:
        memory.give_back()
    return module


def _fill(replaced: list[tuple[str, Parameter, KeptWeight]]) -> None:
    """Store the values of parameters in the weights that replace them; empties the list."""
    while replaced:
        path, parameter, weight = replaced.pop()
        try:
            weight.store(parameter.numpy())
        except ArgumentError as e:
            raise ArgumentError(f"{path}: {e}") from None


def keep_unset(module: Module, keep: str, group: int | None = None) -> None:
    """Freeze all parameters of a module like `freeze`; the values of those that are kept are not set yet."""
    _replace(list(_places(module)), keep, group)
    memory.give_back()


class _ParameterPlace(NamedTuple):
    """Where a module has a parameter: its path, and its name in the layer that owns it."""

    path: str
    owner: Module
    name: str
    parameter: Parameter


def _places(module: Module) -> Iterator[_ParameterPlace]:
    """Yield where a module has parameters, as often as it has each."""
    for prefix, owner in module.named_modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None:
                yield _ParameterPlace(f"{prefix}.{name}" if prefix else name, owner, name, parameter)


def _replace(
    places: Sequence[_ParameterPlace], keep: str | None, group: int | None
) -> list[tuple[str, Parameter, KeptWeight]]:
    """Freeze parameters; replace float parameters of two and more dimensions by buffers of the kind `keep` (None: keep
    them). The buffers are not filled yet. Return (path, parameter, buffer) of each parameter replaced."""
    if keep is not None and keep not in KEPT:
        raise ArgumentError(f"keep={show(keep)} must be one of {', '.join(map(repr, KEPT))}, or None")
    if group is not None and keep != "int8":
        raise ArgumentError(f"group={group} divides weights of int8; pass keep='int8'")
    kept: dict[int, tuple[str, Parameter, KeptWeight]] = {}
    for path, owner, name, parameter in places:
        parameter.requires_grad = False
        if keep is None or not parameter.dtype.is_float or parameter.ndim < 2 or not parameter.size:
            continue
        if id(parameter) not in kept:
            kept[id(parameter)] = path, parameter, KeptWeight(parameter.shape, KINDS[keep], group)
        weight = kept[id(parameter)][2]
        owner.register_buffer(name, weight)
        if weight.scale is not None:
            owner.register_buffer(f"{name}_scale", weight.scale, persistent=False)
    touch()
    return [*kept.values()]
