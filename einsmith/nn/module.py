"""Define Module, the base of networks, with named parameters, buffers and submodules, as in torch.nn."""

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
from einsmith.lang.builder import Value, as_value
from einsmith.lang.trace import current_trace, override, overriding, touch
from einsmith.nn.hooks import Handle, Hooks
from einsmith.nn.keys import Same, key_of
from einsmith.nn.parameter import Buffer, Parameter, Stored, fitting, substituted
from einsmith.ops.call import call_with_arrays, in_trace
from einsmith.runtime.signals import Deferred


class LoadResult(NamedTuple):
    """Names of the module that the state given to `load_state_dict` lacks, and names of the state that the module
    lacks."""

    missing_keys: list[str]
    unexpected_keys: list[str]


_OWN = frozenset(("_parameters", "_buffers", "_modules", "_transient", "_hooks", "_training", "_functional"))
"""Attributes of every module that are no settings."""


class Module:
    """Base of all networks and layers. Subclasses set parameters and submodules as attributes and define `forward`.

    Called on arrays, a module is traced, compiled and run, and returns fresh arrays; called on traced tensors it
    extends the trace. `training` decides how layers behave that differ between training and evaluation.
    """

    static_argnames: tuple[str, ...] = ()
    """Arguments of `forward` that are compile-time settings, such as sizes, and never run-time numbers."""

    _training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Buffer | None]
    _modules: dict[str, Module | None]
    _transient: set[str]
    _hooks: Hooks

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("einsmith.") and "__init__" in vars(cls):  # annotations of others are theirs
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
                given = self._bound(args, kwargs).arguments
                kwargs = {n: given.pop(n) for n in self.static_argnames if n in given}
                args = tuple(given.values())
            return call_with_arrays(self, args, kwargs)
        self._note()
        return self._hooks.call(self, args, kwargs) if self._hooks else self._forward(args, kwargs)

    def _forward(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        self._bound(args, kwargs)
        return self.forward(*args, **kwargs)

    def _bound(self, args: tuple, kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Bind the arguments of `forward`. Raises KindError, which names this module's path in the model."""
        return bound(self.forward, args, kwargs, self._place)

    def _place(self) -> str:
        trace, kind = current_trace(), type(self).__name__
        around = [m for m in (trace.depends.values() if trace is not None else ()) if isinstance(m, Module)]
        paths = [(path, type(m).__name__) for m in around for path, part in m.named_modules() if part is self]
        path, outer = max(paths, key=lambda x: len(x[0]), default=("", ""))
        return f"{kind} at {path!r} in {outer}" if path else kind

    def _note(self) -> None:
        """Record that the current trace depends on this module."""
        trace = current_trace()
        if trace is not None:
            trace.depends.setdefault(id(self), self)

    @check_arguments
    def predict(self, *inputs: Any, batch_size: Count = 256) -> Any:
        """Return the outputs in evaluation mode for inputs [N, ...], computed `batch_size` rows at a time."""
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
            self._take(name, self._parameters, value)
        elif isinstance(value, Module):
            self._take(name, self._modules, value)
        elif isinstance(value, Buffer):
            self._take(name, self._buffers, value)
        elif self._buffers.get(name) is not None and value is not None:
            self._buffers[name].assign(value)  # type: ignore[union-attr]
        else:
            for table in (self._parameters, self._buffers, self._modules):
                if name in table:
                    if value is not None:
                        raise KindError(
                            f"{name!r} of {type(self).__name__} takes a {_kind(table, self)} or None, not {value!r}"
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

    def _take(self, name: str, table: dict, value: Any) -> None:
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
            found = self.__dict__.get(table, {})
            if name in found:
                self._note()
                return found[name]
        raise UnknownAttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __copy__(self) -> Module:
        """Return a module that shares this module's parts, with tables of attributes and hooks of its own."""
        new = object.__new__(type(self))
        own = {n: self.__dict__[n].copy() for n in ("_parameters", "_buffers", "_modules", "_transient", "_hooks")}
        new.__dict__.update(self.__dict__, **own)
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
        _is_part(param, Parameter, name, self)
        self._take(name, self._parameters, param)

    @check_arguments
    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Add state that is not learned; the state dictionary holds it where `persistent`. None reserves the name."""
        if tensor is not None and not isinstance(tensor, Buffer):
            try:
                tensor = Buffer(tensor)
            except DtypeError as e:
                raise DtypeError(f"{name!r} of {type(self).__name__}: {e}") from None
        self._take(name, self._buffers, tensor)
        (self._transient.discard if persistent else self._transient.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule under `name`; None reserves the name."""
        _is_part(module, Module, name, self)
        self._take(name, self._modules, module)

    def register_forward_pre_hook(self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False) -> Handle:
        """Call `hook(self, args)` before every forward; a result other than None replaces the arguments.

        with_kwargs: `hook(self, args, kwargs)`, which returns None or (args, kwargs). Hooks are called as forward is:
        while a trace is made, with traced tensors, and not when the compiled program runs.
        """
        return self._hooks.add(hook, True, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> Handle:
        """Call `hook(self, args, output)` after every forward; a result other than None replaces the output.

        with_kwargs: `hook(self, args, kwargs, output)`. always_call: call the hook also where forward, or an earlier
        hook, raises; its output is then the last one computed, or None. Hooks are called as forward is: while a trace
        is made.
        """
        return self._hooks.add(hook, False, prepend, with_kwargs, always_call)

    register_module = add_module

    # -------------------------------------------------------------------------------------------------- traversal

    @check_arguments
    def get_submodule(self, target: str) -> Module:
        """Return the module at a path, as "layers.0.norm"; "" is this module. Raises UnknownNameError."""
        module: Module = self
        for name in target.split(".") if target else ():
            found = module._modules.get(name)
            if found is None:
                raise UnknownNameError(f"{type(self).__name__} has no module {target!r}: none is named {name!r}")
            module = found
        return module

    def _at(self, table: str, target: str) -> Any:
        path, _, name = target.rpartition(".")
        found = getattr(self.get_submodule(path), table).get(name)
        if found is None:
            raise UnknownNameError(f"{type(self).__name__} has no {table[1:-1]} {target!r}")
        return found

    @check_arguments
    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter at a path, as "layers.0.weight". Raises UnknownNameError."""
        return self._at("_parameters", target)

    @check_arguments
    def get_buffer(self, target: str) -> Buffer:
        """Return the buffer at a path. Raises UnknownNameError."""
        return self._at("_buffers", target)

    @check_arguments
    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield (path, module) of this module and all below it, each module once, in the order of registration."""
        seen: set[int] = set()
        for path, module in self._walk(prefix):
            if id(module) not in seen:
                seen.add(id(module))
                yield path, module

    def _walk(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield (path, module) of this module and all below it; a shared module comes under each of its names."""
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

    def _walk_named(
        self, table: str, once: bool = True, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Any]]:
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
        """Yield (path, parameter), each parameter once, under its first name (remove_duplicate=False: under each name).

        prefix: the start of all paths; recurse=False: only parameters of this module itself.
        """
        return self._walk_named("_parameters", remove_duplicate, prefix, recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, with `recurse` also those of the modules below."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    @check_arguments
    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Buffer]]:
        """Yield (path, buffer); the arguments are those of `named_parameters`."""
        return self._walk_named("_buffers", remove_duplicate, prefix, recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """Yield the buffers, with `recurse` also those of the modules below."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    @check_arguments
    def apply(self, fn: Callable[[Module], Any]) -> Module:
        """Call `fn` on every submodule, then on this module; return this module."""
        for module in reversed(list(self.modules())):
            fn(module)
        return self

    def trace_key(self, modes: bool = True) -> tuple:
        """Return the key of everything in this module itself that a trace depends on.

        It holds the mode (where `modes`), the parts, the hooks, and the settings: other attributes with a `key_of`.
        """
        parts = [(n, None if m is None else Same(m)) for n, m in self._modules.items()]
        arrays = [
            (n, None if v is None else (Same(v), v.requires_grad))
            for table in (self._parameters, self._buffers)
            for n, v in table.items()
        ]
        settings = [(n, key) for n, v in self.__dict__.items() if n not in _OWN and (key := key_of(v)) is not None]
        return self.training if modes else None, tuple(parts), tuple(arrays), tuple(settings), self._hooks.key

    # ------------------------------------------------------------------------------------------------------ modes

    @property
    def training(self) -> bool:
        """True in training mode, False in evaluation mode; layers such as dropout behave differently."""
        own = override()
        return self._training if own is None else own.get(self, self._training)

    @training.setter
    def training(self, mode: bool) -> None:
        own = override()
        if own is None:
            object.__setattr__(self, "_training", bool(mode))
        else:
            own.set(self, bool(mode))

    @check_arguments
    def train(self, mode: bool = True) -> Module:
        """Set training mode (or, with False, evaluation mode) of this module and all below; return this module."""
        for module in self.modules():
            object.__setattr__(module, "training", mode)
        if override() is None:
            touch()
        return self

    def eval(self) -> Module:
        """Switch to evaluation, as `train(False)`; return the module."""
        return self.train(False)

    @contextmanager
    def in_mode(self, training: bool) -> Iterator[None]:
        """Context that sets training or evaluation mode of this module and all below, for the current thread only."""
        with overriding():
            self.train(training)
            yield

    @check_arguments
    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Set whether training learns the parameters; return the module."""
        for p in self.parameters():
            p.requires_grad = requires_grad
        return self

    def to(self, dtype: Any) -> Module:
        """Convert floating parameters and buffers to `dtype`, float32 or float64, in new memory; return this module.

        Raises DtypeError for other types."""
        kind = dtype_of(dtype)
        if not kind.is_float:
            raise DtypeError(f"a module's parameters must be floats, not {kind.name}")
        if kind.in_memory_only:
            raise DtypeError(f"a module's parameters must be float32 or float64, as updates need, not {kind.name}")
        for table in ("_parameters", "_buffers"):
            for _, stored in self._walk_named(table):
                if stored.dtype.is_float:
                    stored.convert(kind)
        return self

    def double(self) -> Module:
        """Convert parameters and buffers of float types to float64; return the module."""
        return self.to("float64")

    def float(self) -> Module:
        """Convert parameters and buffers of float types to float32; return the module."""
        return self.to("float32")

    # ------------------------------------------------------------------------------------------------------ state

    def _state(self) -> Iterator[tuple[str, Stored]]:
        for path, module in self._walk():
            persistent = {n: b for n, b in module._buffers.items() if n not in module._transient}
            for name, value in (*module._parameters.items(), *persistent.items()):
                if value is not None:
                    yield (f"{path}.{name}" if path else name), value

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return path -> copy of every parameter and persistent buffer, in torch's names, shapes and order.

        All copies are taken at one moment, between two steps, whatever other threads do.
        """
        own = dict(self._state())
        with Deferred(), locks.Guard(v.memory.guard for v in own.values()):
            return {name: value.numpy() for name, value in own.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadResult:
        """Copy arrays (NumPy, torch, ...) into the existing memory. Nothing changes unless everything fits; Ctrl-C
        waits until all are copied.

        Raises UnknownNameError for missing and unexpected names (where `strict`), ShapeError and DtypeError for arrays
        that do not fit; the message lists all faults of all kinds.
        """
        if not isinstance(strict, (bool, np.bool_)):
            raise KindError(f"load_state_dict: strict={show(strict)} must be True or False")
        own = dict(self._state())
        arrays = fitting(type(self).__name__, own, state_dict, strict)
        with Deferred(), locks.Guard(v.memory.guard for v in own.values()):
            for name, array in arrays.items():
                own[name].memory.store(array)
        return LoadResult([n for n in own if n not in arrays], [n for n in state_dict if n not in own])

    # ---------------------------------------------------------------------------------------------------- printing

    def extra_repr(self) -> str:
        """Return the text in the parentheses of this module's line in `repr`."""
        return ""

    def _repr_html_(self) -> str:
        rows = []
        for path, module in self.named_modules():
            own = [v for v in (*module._parameters.values(), *module._buffers.values()) if v is not None]
            shapes = ", ".join(
                f"{n} {list(v.shape)}" + ("" if getattr(v, "requires_grad", True) else " frozen")
                for n, v in module._parameters.items()
                if v is not None
            )
            if own or not module._modules:
                kind = f"{type(module).__name__}({module.extra_repr()})"
                rows.append((path, kind, shapes, sum(p.size for p in own if isinstance(p, Parameter))))
        total = sum(p.size for p in self.parameters())
        title = f"{type(self).__name__}, {total:,} parameters"
        return html.table(title, ("part", "kind", "parameters", "elements"), rows)

    def __repr__(self) -> str:
        lines = [f"({name}): " + repr(module).replace("\n", "\n  ") for name, module in self._modules.items()]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        extra = [self.extra_repr()] if self.extra_repr() else []
        return f"{type(self).__name__}(\n  " + "\n  ".join(extra + lines) + "\n)"


def _is_part(value: Any, kind: type, name: str, module: Module) -> None:
    if value is not None and not isinstance(value, kind):
        raise KindError(f"{name!r} of {type(module).__name__} takes a {kind.__name__} or None, not {value!r}")


def _kind(table: dict, module: Module) -> str:
    return {id(module._parameters): "Parameter", id(module._buffers): "Buffer"}.get(id(table), "Module")


@check_arguments
def functional_call(module: Module, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Call `module(*args)` with the named parameters and buffers replaced by the tensors in `params`, path -> tensor.

    `es.grad(lambda p: loss(es.nn.functional_call(model, p, x)))(params)` gives gradients by name. Names that `params`
    lacks keep the module's own values. Raises UnknownNameError for unknown names, ShapeError where a shape differs.
    """
    own = {n: v for t in ("_parameters", "_buffers") for n, v in module._walk_named(t, once=False)}
    unknown = [n for n in params if n not in own]
    if unknown:
        listed = ", ".join(map(repr, unknown))
        raise UnknownNameError(f"{type(module).__name__} has no parameter or buffer named {listed}")
    for name, value in params.items():
        shape = getattr(value, "shape", None)
        if shape is None or tuple(shape) != own[name].shape:
            raise ShapeError(f"{name!r} has shape {own[name].shape}; its replacement {show(value)} needs the same")
    if not in_trace((dict(params), *args), kwargs):
        return call_with_arrays(_functional(module), (dict(params), *args), kwargs)
    values = {id(own[name]): as_value(value) for name, value in params.items()}
    token = substituted.set({**substituted.get(), **values})
    try:
        return module(*args, **kwargs)
    finally:
        substituted.reset(token)


class _Functional:
    """`functional_call` of one module as a function of (params, *args)."""

    def __init__(self, module: Module):
        self.module = module

    def __call__(self, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return functional_call(self.module, params, *args, **kwargs)


def _functional(module: Module) -> _Functional:
    """Return the module's own `_Functional`, so that compiled code is kept with the module."""
    found = module.__dict__.get("_functional")
    if found is None or found.module is not module:
        found = _Functional(module)
        object.__setattr__(module, "_functional", found)
    return found
