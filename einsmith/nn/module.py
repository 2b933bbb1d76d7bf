"""Define Module, the base class of layers and networks: named parameters, buffers and submodules, as in torch.nn."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from einsmith.base import html, locks
from einsmith.base.arguments import Count, bound, check_arguments, check_options, show
from einsmith.base.arrays import as_numpy
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import DtypeError, KindError, ShapeError, UnknownNameError
from einsmith.ir import labels
from einsmith.nn.hooks import Hookable, Hooks
from einsmith.nn.keys import Same, key_of
from einsmith.nn.parameter import Buffer, Parameter, Stored, fitting
from einsmith.nn.tree import ModuleTree
from einsmith.runtime.signals import Deferred
from einsmith.tracing import trace
from einsmith.tracing.builder import traced_tensors
from einsmith.tracing.calls import in_trace
from einsmith.tracing.torch_types import check_device, is_device
from einsmith.tracing.trace import begin_override, current_trace, end_override, override, touch


class LoadResult(NamedTuple):
    """Names that `load_state_dict` could not match: `missing_keys` are parameters and persistent buffers that the state
    dictionary lacks, `unexpected_keys` are names of the state dictionary that the module lacks."""

    missing_keys: list[str]
    unexpected_keys: list[str]


_INTERNAL = frozenset(
    ("_parameters", "_buffers", "_modules", "_transient", "_hooks", "_training", "_functional", "_modes")
)
"""Names of the attributes in which Module keeps its tables, hooks and modes; `Module.trace_key` treats all others as
settings of a layer."""


class Module(ModuleTree, Hookable):
    """Base of all networks and layers. Subclasses set parameters and submodules as attributes and define `forward`.

    A module that is called on arrays is traced, compiled and run, and returns new arrays. A module that is called on
    traced tensors extends the trace. `training` selects what layers such as dropout compute: it is True for training,
    False for evaluation.
    """

    static_argnames: tuple[str, ...] = ()
    """Names of the arguments of `forward` that are settings, such as sizes: a program is compiled for each value. Other
    numbers are passed at run time."""
    code_parts: tuple[str, ...] | None = None

    _training: bool
    _modules: dict[str, Module | None]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("einsmith.") and "__init__" in vars(cls):  # users' annotations are not checked
            cls.__init__ = check_arguments(cls.__init__)  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any):
        module = object.__new__(cls)
        for name, value in (("_parameters", {}), ("_buffers", {}), ("_modules", {}), ("_transient", set())):
            object.__setattr__(module, name, value)
        object.__setattr__(module, "_hooks", Hooks())
        object.__setattr__(module, "_training", True)
        if kwargs:
            check_options(cls, kwargs)
        return module

    def __init__(self) -> None:
        pass

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's outputs on traced tensors. Subclasses define it."""
        raise KindError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not in_trace(args, kwargs):
            if self.static_argnames:
                by_name = self._bind_arguments(args, kwargs).arguments
                kwargs = {n: by_name.pop(n) for n in self.static_argnames if n in by_name}
                args = tuple(by_name.values())
            return trace.run_arrays(self, args, kwargs)
        self._note()
        out = self._hooks.call(self, args, kwargs) if self._hooks else self._forward(args, kwargs)
        if labels.is_recorded():
            labels.note(traced_tensors(out), labels.Label(layer=self._path()), traced_tensors((args, kwargs)))
        return out

    def _forward(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call `forward`, without hooks. Raises KindError, which names this module, for a missing or extra argument."""
        self._bind_arguments(args, kwargs)
        return self.forward(*args, **kwargs)

    def _bind_arguments(self, args: tuple, kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Bind a call's arguments to the parameters of `forward`. Raises KindError, which names this module and its
        path in the model, where an argument is missing or there is one too many."""
        return bound(self.forward, args, kwargs, self._describe_place)

    def _describe_place(self) -> str:
        """Return this module's class for messages, with its path in the outermost traced module that contains it."""
        path, outer = self._place()
        kind = type(self).__name__
        return f"{kind} at {path!r} in {outer}" if path else kind

    def _place(self) -> tuple[str, str]:
        """Return this module's path in the outermost traced module that contains it, and the class of that one."""
        under_way = current_trace()
        met = () if under_way is None else under_way.depends.values()
        traced_modules = [m for m in met if isinstance(m, Module)]
        paths = [(path, type(m).__name__) for m in traced_modules for path, part in m.named_modules() if part is self]
        return max(paths, key=lambda x: len(x[0]), default=("", ""))

    def _class_name(self) -> str:
        """Return the name of the network's class for exports: for a network of another framework, its class there."""
        return type(self).__name__

    def _path(self) -> str:
        """Return this module's path in the outermost traced module; that one's class for itself."""
        under_way = current_trace()
        path = under_way.paths.get(id(self)) if under_way is not None else None
        return (self._place()[0] if path is None else path) or type(self).__name__

    @check_arguments
    def predict(self, *inputs: Any, batch_size: Count = 256, tune: float | str = 0.0) -> Any:
        """Return the outputs in evaluation mode, concatenated along the first dimension.

        inputs: the arguments of `forward`, arrays [N, ...]; batch_size: rows of them that are computed at a time; tune:
        seconds to search faster kernels when a program is compiled, or "first-call", as in `es.jit`.
        Raises ShapeError where there are no inputs, or their first extents differ.
        """
        arrays = [x if type(x) is np.ndarray else as_numpy(x, f"predict: argument {n}") for n, x in enumerate(inputs)]
        if not arrays or any(a.ndim == 0 or len(a) != len(arrays[0]) for a in arrays):
            raise ShapeError(
                f"predict needs inputs with one common first extent, got shapes {[a.shape for a in arrays]}"
            )
        rows = len(arrays[0])
        call: Callable[..., Any] = self
        if tune:
            with locks.IMPORTING:
                from einsmith.api.jit import call_tuned  # imported late: most predictions are not tuned
            call = partial(call_tuned, self, tune)
        with self.in_mode(training=False):
            if rows <= batch_size:
                parts = [call(*arrays)]
            else:
                parts = [call(*(a[i : i + batch_size] for a in arrays)) for i in range(0, rows, batch_size)]
        if isinstance(parts[0], tuple):
            return tuple(map(_join_rows, zip(*parts, strict=True)))
        return _join_rows(parts)

    def __copy__(self) -> Module:
        """Return a module that shares this module's parameters, buffers and submodules. Registering or removing parts
        or hooks of the copy leaves this module unchanged."""
        new = object.__new__(type(self))
        tables = {n: self.__dict__[n].copy() for n in ("_parameters", "_buffers", "_modules", "_transient", "_hooks")}
        new.__dict__.update(self.__dict__, **tables)
        return new

    # -------------------------------------------------------------------------------------------------- traversal

    @check_arguments
    def get_submodule(self, target: str) -> Module:
        """Return the module at a path such as "layers.0.norm"; "" is this module. Raises UnknownNameError."""
        module: Module = self
        for name in target.split(".") if target else ():
            child = module._modules.get(name)
            if child is None:
                raise UnknownNameError(f"{type(self).__name__} has no module {target!r}: none is named {name!r}")
            module = child
        return module

    def _find_by_path(self, table: str, target: str) -> Any:
        """Return the parameter or buffer at a path; `table` is "_parameters" or "_buffers". Raises UnknownNameError."""
        path, _, name = target.rpartition(".")
        value = getattr(self.get_submodule(path), table).get(name)
        if value is None:
            raise UnknownNameError(f"{type(self).__name__} has no {table[1:-1]} {target!r}")
        return value

    @check_arguments
    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter at a path such as "layers.0.weight". Raises UnknownNameError."""
        return self._find_by_path("_parameters", target)

    @check_arguments
    def get_buffer(self, target: str) -> Buffer:
        """Return the buffer at a path such as "layers.0.running_mean". Raises UnknownNameError."""
        return self._find_by_path("_buffers", target)

    @check_arguments
    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield (path, module) of this module and all below it, each module once, in the order of registration. All
        paths begin with `prefix`, the path of this module itself."""
        seen: set[int] = set()
        for path, module in self._walk(prefix):
            if id(module) not in seen:
                seen.add(id(module))
                yield path, module

    def modules(self) -> Iterator[Module]:
        """Yield this module and all modules below it, each once."""
        return (m for _, m in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield name and module of each direct submodule."""
        return ((n, m) for n, m in self._modules.items() if m is not None)

    def children(self) -> Iterator[Module]:
        """Yield the direct submodules."""
        return (m for _, m in self.named_children())

    @check_arguments
    def apply(self, fn: Callable[[Module], Any]) -> Module:
        """Call `fn` on every submodule, then on this module; return this module."""
        for module in reversed(list(self.modules())):
            fn(module)
        return self

    def trace_key(self, modes: bool = True) -> tuple:
        """Return the key of what a trace depends on in this module itself, apart from the modules below it.

        A compiled program is valid while the keys of all modules that its trace met are unchanged. A key consists of
        the mode (where `modes`), the submodules, parameters and buffers by identity, the hooks, and the settings: the
        other attributes for which `key_of` gives a key.
        """
        parts = [(n, None if m is None else Same(m)) for n, m in self._modules.items()]
        arrays = [
            (n, None if v is None else (Same(v), v.requires_grad))
            for table in (self._parameters, self._buffers)
            for n, v in table.items()
        ]
        settings = [(n, key) for n, v in self.__dict__.items() if n not in _INTERNAL and (key := key_of(v)) is not None]
        return self.training if modes else None, tuple(parts), tuple(arrays), tuple(settings), self._hooks.key

    # ------------------------------------------------------------------------------------------------------ modes

    @property
    def training(self) -> bool:
        """True in training mode, False in evaluation mode. The mode selects what layers such as dropout compute."""
        overrides = override()
        return self._training if overrides is None else overrides.get(self, self._training)

    @training.setter
    def training(self, mode: bool) -> None:
        overrides = override()
        if overrides is None:
            object.__setattr__(self, "_training", bool(mode))
        else:
            overrides.set(self, bool(mode))

    @check_arguments
    def train(self, mode: bool = True) -> Module:
        """Set this module and all below to training mode (mode=False: to evaluation mode); return this module."""
        for module in self.modules():
            object.__setattr__(module, "training", mode)
        if override() is None:
            touch()
        return self

    def eval(self) -> Module:
        """Set this module and all below to evaluation mode; return this module."""
        return self.train(False)

    def in_mode(self, training: bool) -> AbstractContextManager[None]:
        """Set this module and all below to training or evaluation mode within a `with` block. Only the current context
        (PEP 567) sees the mode, so other threads are not affected."""
        return _Mode(self, training)

    @check_arguments
    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Set whether training steps change the parameters of this module and all below; return this module."""
        for p in self.parameters():
            p.requires_grad = requires_grad
        return self

    def to(self, dtype: Any) -> Module:
        """Convert the parameters and buffers of float types, of this module and all below, to float32 or float64 in new
        memory; return this module. Raises DtypeError for another `dtype`.

        A device in its place must be the CPU, and changes nothing. Raises ArgumentError for another device."""
        if is_device(dtype):
            check_device("to", dtype)
            return self
        kind = dtype_of(dtype)
        if not kind.is_float:
            raise DtypeError(f"a module's parameters must be floats, not {kind.name}")
        if kind.in_memory_only:
            raise DtypeError(f"a module's parameters must be float32 or float64, as updates need, not {kind.name}")
        for table in ("_parameters", "_buffers"):
            for _, stored in self._named_entries(table):
                if stored.dtype.is_float:
                    stored.convert(kind)
        return self

    def double(self) -> Module:
        """Convert the parameters and buffers of float types to float64, as `to` does; return this module."""
        return self.to("float64")

    def float(self) -> Module:
        """Convert the parameters and buffers of float types to float32, as `to` does; return this module."""
        return self.to("float32")

    # ------------------------------------------------------------------------------------------------------ state

    def _persistent_state(self) -> Iterator[tuple[str, Stored]]:
        """Yield (path, value) of all parameters and persistent buffers, in the order of torch's `state_dict`; a shared
        one comes under each of its paths."""
        for path, module in self._walk():
            persistent = {n: b for n, b in module._buffers.items() if n not in module._transient}
            for name, value in (*module._parameters.items(), *persistent.items()):
                if value is not None:
                    yield (f"{path}.{name}" if path else name), value

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of all parameters and persistent buffers by path, in torch's names, shapes and order.

        All copies are taken between the same two training steps, even if another thread trains the module.
        """
        stored = dict(self._persistent_state())
        with Deferred(), locks.Guard(v.memory.guard for v in stored.values()):
            return {name: value.numpy() for name, value in stored.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadResult:
        """Copy the arrays of a state dictionary into the memory of parameters and persistent buffers.

        Nothing changes unless everything fits. Ctrl-C waits until all arrays are copied.

        state_dict: arrays (NumPy, torch, ...) by path. strict: whether missing and unexpected names are errors; the
        result lists them otherwise. Raises UnknownNameError for such names, ShapeError and DtypeError for arrays that
        do not fit; the message lists the faults of all three kinds.
        """
        if not isinstance(strict, (bool, np.bool_)):
            raise KindError(f"load_state_dict: strict={show(strict)} must be True or False")
        stored = dict(self._persistent_state())
        arrays = fitting(type(self).__name__, stored, state_dict, strict)
        with Deferred(), locks.Guard(v.memory.guard for v in stored.values()):
            for name, array in arrays.items():
                stored[name].store(array)
        return LoadResult([n for n in stored if n not in arrays], [n for n in state_dict if n not in stored])

    # ---------------------------------------------------------------------------------------------------- printing

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows in parentheses after the class name; subclasses override it."""
        return ""

    def _repr_html_(self) -> str:
        rows = []
        for path, module in self.named_modules():
            stored = [v for v in (*module._parameters.values(), *module._buffers.values()) if v is not None]
            shapes = ", ".join(
                f"{n} {list(v.shape)}" + ("" if getattr(v, "requires_grad", True) else " frozen")
                for n, v in module._parameters.items()
                if v is not None
            )
            if stored or not module._modules:
                kind = f"{type(module).__name__}({module.extra_repr()})"
                rows.append((path, kind, shapes, sum(p.size for p in stored if isinstance(p, Parameter))))
        total = sum(p.size for p in self.parameters())
        title = f"{type(self).__name__}, {total:,} parameters"
        return html.table(title, ("part", "kind", "parameters", "elements"), rows)

    def __repr__(self) -> str:
        lines = [f"({name}): " + repr(module).replace("\n", "\n  ") for name, module in self._modules.items()]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        extra = [self.extra_repr()] if self.extra_repr() else []
        return f"{type(self).__name__}(\n  " + "\n  ".join(extra + lines) + "\n)"


class _Mode(AbstractContextManager[None]):
    """The mode of a module and all below within a `with` block. The module keeps the modes of the outermost block for
    the next one: setting them takes a walk over all of its parts."""

    def __init__(self, module: Module, training: bool):
        self._module, self._training = module, training

    def __enter__(self) -> None:
        module, is_outermost = self._module, override() is None
        kept, modes = module.__dict__.get("_modes", (None, None))
        if is_outermost and kept is self._training and modes.is_current() and modes.get(module, None) is not None:
            _, self._token = begin_override(modes)
            return
        modes, self._token = begin_override()
        try:
            module.train(self._training)
        except BaseException:
            end_override(self._token)
            raise
        if is_outermost:
            modes.keep()
            object.__setattr__(module, "_modes", (self._training, modes))

    def __exit__(self, *_: object) -> None:
        end_override(self._token)


def _join_rows(parts: Sequence[Any]) -> np.ndarray:
    """Return results of rows one after the other as one array."""
    whole = len(parts) == 1 and type(parts[0]) is np.ndarray and parts[0].ndim
    return parts[0] if whole else np.concatenate(parts)


class Variant(Module):
    """Base of layers of one kind, whose classes differ in attributes alone: `class Conv2d(_Conv, dims=2)`."""

    def __init_subclass__(cls, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(cls, name, value)
        super().__init_subclass__()


def export_name(f: Any) -> str:
    """Return the name of a module's class or of a function, for exports; "function" for one without a name."""
    if isinstance(f, Module):
        return f._class_name()
    name = str(getattr(f, "__name__", None) or getattr(f, "name", "function"))  # an operator has a name
    return "function" if name == "<lambda>" else name
