"""Define Module, the base class of layers and networks: named parameters, buffers and submodules, as in torch.nn."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from einsmith.base import html, locks
from einsmith.base.arguments import Count, bound, check_arguments, check_options, show
from einsmith.base.arrays import as_numpy
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import (
    ArgumentError,
    DtypeError,
    KindError,
    ShapeError,
    UnknownAttributeError,
    UnknownNameError,
)
from einsmith.ir import labels
from einsmith.lang.builder import Value, as_value, traced_tensors
from einsmith.lang.torch_types import check_device, is_device
from einsmith.lang.trace import current_trace, override, overriding, touch
from einsmith.nn.hooks import Handle, Hooks
from einsmith.nn.keys import Same, key_of
from einsmith.nn.parameter import Buffer, Parameter, Stored, fitting, substituted
from einsmith.ops.call import call_with_arrays, in_trace
from einsmith.runtime.signals import Deferred


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


class Module:
    """Base of all networks and layers. Subclasses set parameters and submodules as attributes and define `forward`.

    A module that is called on arrays is traced, compiled and run, and returns new arrays. A module that is called on
    traced tensors extends the trace. `training` selects what layers such as dropout compute: it is True for training,
    False for evaluation.
    """

    static_argnames: tuple[str, ...] = ()
    """Names of the arguments of `forward` that are settings, such as sizes: a program is compiled for each value. Other
    numbers are passed at run time."""

    _training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Buffer | None]
    _modules: dict[str, Module | None]
    _transient: set[str]
    _hooks: Hooks

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
            return call_with_arrays(self, args, kwargs)
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
        trace = current_trace()
        traced_modules = [m for m in (trace.depends.values() if trace is not None else ()) if isinstance(m, Module)]
        paths = [(path, type(m).__name__) for m in traced_modules for path, part in m.named_modules() if part is self]
        return max(paths, key=lambda x: len(x[0]), default=("", ""))

    def _class_name(self) -> str:
        """Return the name of the network's class for exports: for a network of another framework, its class there."""
        return type(self).__name__

    def _path(self) -> str:
        """Return this module's path in the outermost traced module; that one's class for itself."""
        trace = current_trace()
        path = trace.paths.get(id(self)) if trace is not None else None
        return (self._place()[0] if path is None else path) or type(self).__name__

    def _note(self) -> None:
        """Record that the current trace, if there is one, depends on this module: the trace is out of date when
        `trace_key` changes."""
        trace = current_trace()
        if trace is not None:
            trace.depends.setdefault(id(self), self)

    @check_arguments
    def predict(self, *inputs: Any, batch_size: Count = 256) -> Any:
        """Return the outputs in evaluation mode, concatenated along the first dimension.

        inputs: the arguments of `forward`, arrays [N, ...]; batch_size: rows of them that are computed at a time.
        Raises ShapeError where there are no inputs, or their first extents differ.
        """
        arrays = [as_numpy(x, f"predict: argument {n}") for n, x in enumerate(inputs)]
        if not arrays or any(a.ndim == 0 or len(a) != len(arrays[0]) for a in arrays):
            raise ShapeError(
                f"predict needs inputs with one common first extent, got shapes {[a.shape for a in arrays]}"
            )
        with self.in_mode(training=False):
            starts = range(0, max(len(arrays[0]), 1), batch_size)
            parts = [self(*(a[i : i + batch_size] for a in arrays)) for i in starts]
        if isinstance(parts[0], tuple):
            return tuple(np.concatenate(column) for column in zip(*parts, strict=True))
        return np.concatenate(parts)

    # ------------------------------------------------------------------------------------------------- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self._register(name, self._parameters, value)
        elif isinstance(value, Module):
            self._register(name, self._modules, value)
        elif isinstance(value, Buffer):
            self._register(name, self._buffers, value)
        elif self._buffers.get(name) is not None and value is not None:
            self._buffers[name].assign(value)  # type: ignore[union-attr]
        else:
            for table in (self._parameters, self._buffers, self._modules):
                if name in table:
                    if value is not None:
                        raise KindError(
                            f"{name!r} of {type(self).__name__} takes a {_kind_of(table, self)} or None, not {value!r}"
                        )
                    table[name] = None
                    touch()
                    return
            if isinstance(value, Value) and current_trace() is not None:
                raise KindError(
                    f"forward assigned a traced tensor to {name!r}, which would outlive its trace; register a buffer "
                    "for state that a step changes, or use a local variable"
                )
            object.__setattr__(self, name, value)
            touch()

    def _register(self, name: str, table: dict, value: Any) -> None:
        """Enter a parameter, buffer or submodule into its table under `name`, and remove other attributes of that name.

        Raises UnknownNameError for a name that is empty or has a dot, ArgumentError for a submodule that contains this
        module.
        """
        if not isinstance(name, str) or "." in name or not name:
            raise UnknownNameError(f"{name!r} cannot be the name of a parameter, buffer or submodule")
        if isinstance(value, Module) and any(m is self for m in value.modules()):
            raise ArgumentError(f"{name!r} of {type(self).__name__} would make the module a part of itself")
        for other in (self._parameters, self._buffers, self._modules):
            if other is not table:
                other.pop(name, None)
        self.__dict__.pop(name, None)
        table[name] = value
        touch()

    def __getattr__(self, name: str) -> Any:
        for table in ("_parameters", "_buffers", "_modules"):
            entries = self.__dict__.get(table, {})
            if name in entries:
                self._note()
                return entries[name]
        raise UnknownAttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __copy__(self) -> Module:
        """Return a module that shares this module's parameters, buffers and submodules. Registering or removing parts
        or hooks of the copy leaves this module unchanged."""
        new = object.__new__(type(self))
        tables = {n: self.__dict__[n].copy() for n in ("_parameters", "_buffers", "_modules", "_transient", "_hooks")}
        new.__dict__.update(self.__dict__, **tables)
        return new

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                self._transient.discard(name)
                touch()
                return
        object.__delattr__(self, name)
        touch()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter under `name`; None reserves the name (a layer without bias)."""
        _check_part(param, Parameter, name, self)
        self._register(name, self._parameters, param)

    @check_arguments
    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Add a buffer under `name`: state that is not learned, such as running statistics.

        tensor: its initial value, an array or a Buffer; None reserves the name. persistent: whether `state_dict`
        includes the buffer. Raises DtypeError for an element type that buffers cannot have.
        """
        if tensor is not None and not isinstance(tensor, Buffer):
            try:
                tensor = Buffer(tensor)
            except DtypeError as e:
                raise DtypeError(f"{name!r} of {type(self).__name__}: {e}") from None
        self._register(name, self._buffers, tensor)
        (self._transient.discard if persistent else self._transient.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule under `name`; None reserves the name."""
        _check_part(module, Module, name, self)
        self._register(name, self._modules, module)

    def register_forward_pre_hook(self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False) -> Handle:
        """Register a hook that is called before `forward`, as `hook(self, args)`; return its handle, which removes it.

        A result other than None replaces the arguments. Like `forward`, hooks are called with traced tensors while a
        trace is made, and not when the compiled program runs.

        prepend: whether the hook is called before those registered earlier, instead of after them. with_kwargs: whether
        it is called as `hook(self, args, kwargs)`; it then returns None or (args, kwargs).
        """
        return self._hooks.add(hook, True, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> Handle:
        """Register a hook that is called after `forward`, as `hook(self, args, output)`; return its handle, which
        removes it.

        A result other than None replaces the output. Like `forward`, hooks are called with traced tensors while a
        trace is made, and not when the compiled program runs.

        Args:
            hook: the function to call
            prepend: whether it is called before the hooks registered earlier, instead of after them
            with_kwargs: whether it is called as `hook(self, args, kwargs, output)`
            always_call: whether it is called also after an error, with the last output computed, or None
        """
        return self._hooks.add(hook, False, prepend, with_kwargs, always_call)

    register_module = add_module

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

    def _walk(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield (path, module) of this module and all below it, in the order of registration; a module that is
        registered in several places comes under each of its paths."""
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            path, module = stack.pop()
            yield path, module
            below = [(f"{path}.{n}" if path else n, m) for n, m in module._modules.items() if m is not None]
            stack.extend(reversed(below))

    def modules(self) -> Iterator[Module]:
        """Yield this module and all modules below it, each once."""
        return (m for _, m in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield name and module of each direct submodule."""
        return ((n, m) for n, m in self._modules.items() if m is not None)

    def children(self) -> Iterator[Module]:
        """Yield the direct submodules."""
        return (m for _, m in self.named_children())

    def _named_entries(
        self, table: str, once: bool = True, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """Yield (path, value) of the entries of a table, "_parameters" or "_buffers".

        once: whether a value that has several paths comes only under the first; prefix: this module's own path, with
        which all paths begin; recurse: whether the tables of the modules below are included.
        """
        seen: set[int] = set()
        for path, module in self._walk(prefix) if recurse else [(prefix, self)]:
            for name, value in getattr(module, table).items():
                if value is None or (once and id(value) in seen):
                    continue
                seen.add(id(value))
                yield (f"{path}.{name}" if path else name), value

    @check_arguments
    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield (path, parameter) of this module's parameters.

        Args:
            prefix: this module's own path, with which all paths begin
            recurse: whether the parameters of the modules below are included
            remove_duplicate: whether a parameter that has several paths comes only under the first
        """
        return self._named_entries("_parameters", remove_duplicate, prefix, recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, each once; with `recurse`, the parameters of the modules below are included."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    @check_arguments
    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Buffer]]:
        """Yield (path, buffer) of this module's buffers; the arguments mean what they mean in `named_parameters`."""
        return self._named_entries("_buffers", remove_duplicate, prefix, recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """Yield the buffers, each once; with `recurse`, the buffers of the modules below are included."""
        return (b for _, b in self.named_buffers(recurse=recurse))

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

    @contextmanager
    def in_mode(self, training: bool) -> Iterator[None]:
        """Set this module and all below to training or evaluation mode within a `with` block. Only the current context
        (PEP 567) sees the mode, so other threads are not affected."""
        kept, modes = self.__dict__.get("_modes", (None, None))
        if kept is training and modes.is_current() and modes.get(self, None) is not None and override() is None:
            with overriding(modes):
                yield
            return
        is_outermost = override() is None
        with overriding() as modes:
            self.train(training)
            if is_outermost:
                modes.keep()
                object.__setattr__(self, "_modes", (training, modes))
            yield

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
                stored[name].memory.store(array)
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


def _check_part(value: Any, kind: type, name: str, module: Module) -> None:
    """Raise KindError if `value`, to be registered under `name`, is neither of class `kind` nor None."""
    if value is not None and not isinstance(value, kind):
        raise KindError(f"{name!r} of {type(module).__name__} takes a {kind.__name__} or None, not {value!r}")


def _kind_of(table: dict, module: Module) -> str:
    """Return the name of the class whose instances one of the module's three tables holds, for messages."""
    return {id(module._parameters): "Parameter", id(module._buffers): "Buffer"}.get(id(table), "Module")


def export_name(f: Any) -> str:
    """Return the name of a module's class or of a function, for exports; "function" for one without a name."""
    if isinstance(f, Module):
        return f._class_name()
    name = str(getattr(f, "__name__", None) or getattr(f, "name", "function"))  # an operator has a name
    return "function" if name == "<lambda>" else name


@check_arguments
def functional_call(module: Module, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Call `module(*args, **kwargs)` with some parameters and buffers replaced by other tensors.

    `es.grad(lambda p: loss(es.nn.functional_call(model, p, x)))(params)` gives gradients by name.

    Args:
        module: the module to call; it is not changed
        params: the replacements by path; parameters and buffers without one keep the module's own values
        args: positional arguments of `forward`
        kwargs: keyword arguments of `forward`

    Raises:
        UnknownNameError: the module has no parameter or buffer at a path.
        ShapeError: a replacement has another shape.
    """
    stored = {n: v for t in ("_parameters", "_buffers") for n, v in module._named_entries(t, once=False)}
    unknown = [n for n in params if n not in stored]
    if unknown:
        listed = ", ".join(map(repr, unknown))
        raise UnknownNameError(f"{type(module).__name__} has no parameter or buffer named {listed}")
    for name, value in params.items():
        shape = getattr(value, "shape", None)
        if shape is None or tuple(shape) != stored[name].shape:
            raise ShapeError(f"{name!r} has shape {stored[name].shape}; its replacement {show(value)} needs the same")
    if not in_trace((dict(params), *args), kwargs):
        return call_with_arrays(_functional_of(module), (dict(params), *args), kwargs)
    values = {id(stored[name]): as_value(value) for name, value in params.items()}
    token = substituted.set({**substituted.get(), **values})
    try:
        return module(*args, **kwargs)
    finally:
        substituted.reset(token)


class _Functional:
    """A function of (params, *args, **kwargs) that is `functional_call` of one module."""

    def __init__(self, module: Module):
        self.module = module

    def __call__(self, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return functional_call(self.module, params, *args, **kwargs)


def _functional_of(module: Module) -> _Functional:
    """Return the `_Functional` of a module, created at its first use. The programs compiled for the function live as
    long as the function, and the module keeps the function in an attribute."""
    function = module.__dict__.get("_functional")
    if function is None or function.module is not module:  # a copied module has the original's function
        function = _Functional(module)
        object.__setattr__(module, "_functional", function)
    return function
