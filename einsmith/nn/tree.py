"""Hold the parameters, buffers and submodules of modules in tables, and make them attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from einsmith.base.arguments import check_arguments
from einsmith.base.errors import ArgumentError, DtypeError, KindError, UnknownAttributeError, UnknownNameError
from einsmith.nn.parameter import Buffer, Parameter
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import current_trace, touch


class ModuleTree:
    """The tables of a module: its parameters, buffers and submodules by name, which are its attributes."""

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Buffer | None]
    _modules: dict[str, Any]
    _transient: set[str]

    def _note(self) -> None:
        """Record that the current trace, if there is one, depends on this module: the trace is out of date when
        `trace_key` changes."""
        trace = current_trace()
        if trace is not None:
            trace.depends.setdefault(id(self), self)

    # ------------------------------------------------------------------------------------------------- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self._register(name, self._parameters, value)
        elif isinstance(value, ModuleTree):
            self._register(name, self._modules, value)
        elif isinstance(value, Buffer):
            self._register(name, self._buffers, value)
        elif self._buffers.get(name) is not None and value is not None:
            self._buffers[name].assign(value)  # type: ignore[union-attr]
        else:
            for table in (self._parameters, self._buffers, self._modules):
                if name in table:
                    if value is not None:
                        raise _misfit(name, table, self, value)
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
        if isinstance(value, ModuleTree) and any(m is self for _, m in value._walk()):
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
        if param is not None and not isinstance(param, Parameter):
            raise _misfit(name, self._parameters, self, param)
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

    def add_module(self, name: str, module: ModuleTree | None) -> None:
        """Add a submodule under `name`; None reserves the name."""
        if module is not None and not isinstance(module, ModuleTree):
            raise _misfit(name, self._modules, self, module)
        self._register(name, self._modules, module)

    register_module = add_module

    def _walk(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Yield (path, module) of this module and all below it, in the order of registration; a module that is
        registered in several places comes under each of its paths."""
        stack: list[tuple[str, Any]] = [(prefix, self)]
        while stack:
            path, module = stack.pop()
            yield path, module
            below = [(f"{path}.{n}" if path else n, m) for n, m in module._modules.items() if m is not None]
            stack.extend(reversed(below))

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


def _misfit(name: str, table: dict, module: ModuleTree, value: Any) -> KindError:
    """Return the error of a value that one of the module's three tables cannot hold."""
    kind = {id(module._parameters): "Parameter", id(module._buffers): "Buffer"}.get(id(table), "Module")
    return KindError(f"{name!r} of {type(module).__name__} takes a {kind} or None, not {value!r}")
