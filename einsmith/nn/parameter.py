"""Define parameters and buffers: live arrays that traced functions capture and training steps update in place."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextvars import ContextVar
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from einsmith.base.arguments import check_arguments, describe, show
from einsmith.base.arrays import as_numpy
from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.errors import (
    ArgumentError,
    DtypeError,
    KindError,
    ShapeError,
    TraceError,
    UnknownAttributeError,
    UnknownNameError,
)
from einsmith.runtime.memory import DimensionOrder, Layout, Memory
from einsmith.tracing.builder import Value, as_value
from einsmith.tracing.refused import refusal
from einsmith.tracing.torch_types import ElementCount
from einsmith.tracing.trace import current_trace, in_full_precision, touch

substituted: ContextVar[Mapping[int, Value]] = ContextVar("einsmith_substituted", default=MappingProxyType({}))
"""Traced values that replace parameters and buffers, by their id, inside `functional_call`."""


def to_numpy(value: Any) -> np.ndarray:
    """Return the values for a parameter or buffer as a NumPy array, which may be a view.

    value: an array of NumPy or torch, or anything with `__array__` or `__dlpack__`; a torch tensor is detached from its
    gradient, as by torch.nn.Parameter. Raises TraceError for a traced tensor."""
    if isinstance(value, Value):
        raise TraceError("a traced tensor has no values yet; it cannot be stored in a parameter")
    if hasattr(value, "detach") and hasattr(value, "requires_grad"):  # a tensor of torch's, which may refuse NumPy
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":  # which NumPy has not
            value = value.float()
    return as_numpy(value, "the value of a parameter or buffer")


def fitting(module: str, own: Mapping[str, Stored], state: Any, strict: bool) -> dict[str, np.ndarray]:
    """Select from a state dictionary the arrays of a module's parameters and buffers, and check that all fit.

    Floats of any width fit floats; integers fit integers and floats. own: parameters and buffers by name; strict:
    whether missing and unexpected names are faults. Raises the first that applies of UnknownNameError, ShapeError and
    DtypeError; the message lists all faults.
    """
    if not isinstance(state, Mapping):
        raise DtypeError(f"the state of {module} is {describe(state)}; pass a mapping of names to arrays")
    arrays, faults = {}, {"missing": [], "unexpected": [], "shapes": [], "element types": []}  # type: ignore[var-annotated]
    if strict:
        faults["missing"] = [n for n in own if n not in state]
        faults["unexpected"] = [str(n) for n in state if n not in own]
    for name in (n for n in own if n in state):
        place = own[name]
        try:
            array = to_numpy(state[name])
        except (TypeError, ValueError, RuntimeError) as e:
            faults["element types"].append(f"{name}: cannot be read ({str(e).partition('. ')[0]})")
            continue
        arrays[name] = array
        if array.shape != place.shape:
            faults["shapes"].append(f"{name}: has {place.shape}, given {array.shape}")
        elif lost := _misfit(array, place.dtype.numpy):
            faults["element types"].append(f"{name}: is {place.dtype.name}, given {lost}")
    messages = [f"{kind}: {', '.join(listed)}" for kind, listed in faults.items() if listed]
    if messages:
        names = faults["missing"] or faults["unexpected"]
        error = UnknownNameError if names else ShapeError if faults["shapes"] else DtypeError
        raise error(f"the state does not fit {module}, and nothing of it was loaded; {'; '.join(messages)}")
    return arrays


def _misfit(array: np.ndarray, dtype: np.dtype) -> str:
    """Describe why an array does not fit an element type: by its own type, or by an integer that would wrap around.

    Return "" where it fits."""
    if not np.can_cast(array.dtype, dtype, casting="same_kind"):
        return str(array.dtype)
    if dtype.kind in "iu" and array.size and not np.can_cast(array.dtype, dtype):
        range_ = np.iinfo(dtype)
        for value in (int(array.min()), int(array.max())):
            if not range_.min <= value <= range_.max:
                return f"the value {value}"
    return ""


class Stored:
    """An array at a fixed address, in `memory`. `data` is the memory itself: C-contiguous, aligned to 64 bytes, changed
    in place. In another layout (`store_as`), `data` is a view of the memory, or a read-only copy; assigning to `data`
    stores the values in every layout.

    Inside a traced function an instance acts as a tensor (NumPy's operators, indexing, methods), captured live, not
    copied.
    """

    __array_ufunc__ = None  # NumPy's operators defer to the ones below
    code_parts = ()
    memory: Memory

    def __init__(self, data: Any):
        source = to_numpy(data)
        kind = dtype_of(source)
        if kind.is_float and kind.in_memory_only:
            raise DtypeError(f"a module's floats must be float32 or float64, as updates need; convert the {kind.name}")
        self.memory = Memory(source.shape, kind.numpy)
        self.memory.store(source)

    @property
    def data(self) -> np.ndarray:
        """The memory itself (see the class). Assigning an array of the same shape copies into it.

        Where a training step has chosen another order of dimensions in memory, that ends: memory is C-contiguous again,
        and stays so, and programs are compiled anew. `numpy()` returns a copy in any case."""
        self.release_order()
        return self.memory.logical()

    @data.setter
    def data(self, value: Any) -> None:
        source = to_numpy(value)
        if source.shape != self.shape:
            raise ShapeError(f"data has shape {self.shape} and cannot take an array of shape {source.shape}")
        if lost := _misfit(source, self.dtype.numpy):
            raise DtypeError(f"data is {self.dtype.name} and cannot take {lost}; convert it, as with .astype")
        self.store(source)

    def store(self, values: np.ndarray) -> None:
        """Set the values to those of an array of the same shape, whose type fits."""
        self.memory.store(values)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the dimensions."""
        return self.memory.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return dtype_of(self.memory.dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.memory.shape)

    @property
    def size(self) -> ElementCount:
        """Number of elements; `size()` and `size(dim)` are extents, as in PyTorch."""
        return ElementCount(prod(self.memory.shape), self.memory.shape)

    def numpy(self) -> np.ndarray:
        """Return a copy of the values, taken between two steps that change them."""
        return self.memory.copy()

    def store_as(self, layout: Layout | None) -> None:
        """Move the values to memory in another layout (None: C-contiguous); the optimizer's state follows at the next
        step. The address changes, and functions are traced anew. Where `data` is then a copy, change it and assign it
        to `data`. Raises ShapeError or DtypeError where the layout does not fit."""
        self._move(self.memory.dtype, layout)

    def release_order(self) -> None:
        """Return to row-major memory for good, where a training step has chosen another order of dimensions."""
        if isinstance(self.memory.layout, DimensionOrder):
            self.store_as(None)
            self.memory.is_exposed = True

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"memory": (self.memory.copy(), self.memory.layout)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fill a copy: memory of its own, in the same layout."""
        values, layout = state["memory"]
        self.__dict__.update(state)
        self.memory = Memory(values.shape, values.dtype, layout)
        self.memory.store(values)

    def convert(self, dtype: Any) -> None:
        """Move the values to memory of another element type. The address changes, and functions are traced anew."""
        kind = dtype_of(dtype)
        if kind is not self.dtype:
            self._move(kind.numpy, self.memory.layout)

    def _move(self, dtype: np.dtype, layout: Layout | None) -> None:
        """Exchange the memory for another one that holds the same values."""
        with self.memory.guard:
            self.memory = self.memory.convert(dtype, layout)
        touch()

    def __einsmith_value__(self) -> Value:
        """Return this array as a tensor of the current trace, with its new value after an update in this trace.

        Raises TraceError outside a traced function."""
        stand_in = substituted.get().get(id(self))
        if stand_in is not None:
            return stand_in
        return self._captured(self.dtype)

    def _captured(self, dtype: DType) -> Value:
        """Return this array as a tensor of the current trace, its memory being of a type."""
        trace = current_trace()
        if trace is None:
            raise TraceError(
                f"{describe(self)} is a tensor only inside a traced function (a module's forward, es.jit, "
                "es.grad); for its values take `.data`"
            )
        if id(self) in trace.updates:
            return Value(trace.updates[id(self)][1])
        own = trace.capture(self, self.shape, dtype)
        return Value(in_full_precision(own) if id(self) in trace.in_full_precision else own)

    def __einsmith_array__(self) -> np.ndarray:
        """Return a copy of the values, for an argument of a compiled function: a step on another thread may change the
        memory meanwhile."""
        return self.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if current_trace() is not None:
            raise TraceError(
                f"NumPy was given {describe(self)} inside a traced function, where its values are not "
                "known; use the functions of es.functional"
            )
        if copy is False:
            raise ArgumentError(
                f"the values of {describe(self)} are copied, since training changes them: leave out copy=False, or "
                "take the memory itself, `.data`"
            )
        return self.numpy().astype(self.memory.dtype if dtype is None else dtype, copy=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Value, name):
            refused = refusal(["torch.Tensor"], name)
            raise UnknownAttributeError(f"{type(self).__name__} has no attribute {name!r}{refused}")
        return getattr(self.__einsmith_value__(), name)

    def __getitem__(self, index: Any) -> Any:
        return self.__einsmith_value__()[index]

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("a 0-d array has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({np.array2string(self.numpy(), threshold=100, prefix='Parameter(')}, {self.dtype})"
        )


def _delegate(name: str) -> None:
    """Define the operator `name` of `Stored`, applied to the operands' tensors in the current trace."""
    function = getattr(operator, name)

    def forward(self: Stored, other: Any) -> Any:
        return function(as_value(self), as_value(other))

    def reflected(self: Stored, other: Any) -> Any:
        return function(as_value(other), as_value(self))

    setattr(Stored, f"__{name.strip('_')}__", forward)
    if name not in ("lt", "le", "gt", "ge"):
        setattr(Stored, f"__r{name.strip('_')}__", reflected)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lt", "le", "gt", "ge"):
    _delegate(_name)


def _unary(name: str) -> None:
    function = getattr(operator, name)
    setattr(Stored, f"__{name}__", lambda self: function(as_value(self)))


for _name in ("neg", "abs"):
    _unary(_name)


class Parameter(Stored):
    """An array that a training step learns. `Parameter(data, requires_grad=True)` copies `data`.

    A step computes no gradient for a parameter whose `requires_grad` is False, and does not change it. Raises
    DtypeError for integers that require a gradient.
    """

    @check_arguments
    def __init__(self, data: Any, requires_grad: bool = True):
        super().__init__(data)
        self.requires_grad = requires_grad

    @property
    def requires_grad(self) -> bool:
        """True where training steps change the parameter. Setting it takes effect at the next step."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not isinstance(value, (bool, np.bool_)):
            raise KindError(f"requires_grad={show(value)} must be True or False")
        if value and not self.dtype.is_float:
            raise DtypeError(f"a parameter of {self.dtype.name} has no gradient; use floats, or requires_grad=False")
        self._requires_grad = bool(value)
        touch()

    def requires_grad_(self, requires_grad: bool = True) -> Parameter:
        """Set whether training learns the parameter; return it."""
        self.requires_grad = requires_grad
        return self


class Buffer(Stored):
    """State of a module that is not learned. In a traced forward, assigning a tensor to the module's attribute makes
    the step store that tensor here when it ends."""

    requires_grad = False

    def assign(self, value: Any) -> None:
        """Store `value` in this buffer: a traced tensor when the step ends, an array at once.

        Raises TraceError for a traced tensor outside a trace, ShapeError where the shapes differ."""
        if not isinstance(value, Value):
            self.data = value
            return
        trace = current_trace()
        if trace is None:
            raise TraceError(
                "a traced tensor was assigned to a buffer outside the traced function; assign it inside, or an array"
            )
        if value.shape != self.shape:
            raise ShapeError(f"a buffer of shape {self.shape} cannot take a tensor of shape {value.shape}")
        trace.update(self, value.astype(self.dtype).tensor)
