"""Define modules that hold modules or parameters: Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from einsmith.base.arguments import check_arguments
from einsmith.base.errors import IndexOutOfRange, KindError, UnknownNameError
from einsmith.lang.trace import touch
from einsmith.nn.module import Module
from einsmith.nn.parameter import Parameter


class _Ordered(Module):
    """Submodules named "0", "1", ... (or as given) in order."""

    def _put(self, modules: Iterable[Module]) -> None:
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> Any:
        """Add a module at the end, under the next number; return this container."""
        self.add_module(str(len(self._modules)), module)
        return self

    def _item(self, index: int) -> Module:
        modules = list(self._modules.values())
        if not -len(modules) <= index < len(modules):
            raise IndexOutOfRange(f"{type(self).__name__} has {len(modules)} modules; there is no [{index}]")
        return modules[index]  # type: ignore[return-value]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(list(self._modules.values()))  # type: ignore[arg-type]

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            part = type(self)()
            part._put(list(self)[index])
            return part
        return self._item(index)

    def __setitem__(self, index: int, module: Module) -> None:
        self._item(index)
        self.add_module(list(self._modules)[index], module)


class Sequential(_Ordered):
    """Modules applied one after another: `Sequential(a, b, c)` or `Sequential({"name": a, ...})`."""

    def __init__(self, *modules: Any):
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self._put(modules)

    def add_module(self, name: str, module: Any) -> None:
        if not isinstance(module, Module):
            raise KindError(f"Sequential takes modules, not {module!r}; write functions as a Module's forward")
        super().add_module(name, module)

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input


class ModuleList(_Ordered):
    """A list of modules, whose parameters belong to the module that holds it."""

    def __init__(self, modules: Iterable[Module] = ()):
        self._put(modules)

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules at the end; return this list."""
        self._put(modules)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Insert a module before position `index`; the modules behind it are renumbered."""
        modules = list(self)
        modules.insert(index, module)
        self._modules.clear()
        self._put(modules)


class ModuleDict(Module):
    """Modules under names, whose parameters belong to the module that holds it."""

    def __init__(self, modules: Mapping[str, Module] | None = None):
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add modules, replacing modules of the same name."""
        for name, module in modules.items():
            self.add_module(name, module)

    def __getitem__(self, name: str) -> Module:
        if name not in self._modules:
            raise UnknownNameError(f"ModuleDict has no module {name!r}, only {', '.join(self._modules) or 'none'}")
        return self._modules[name]  # type: ignore[return-value]

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        del self._modules[name]
        touch()

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._modules))

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def keys(self) -> Iterable[str]:
        """Return the names."""
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        """Return the modules."""
        return self._modules.values()  # type: ignore[return-value]

    def items(self) -> Iterable[tuple[str, Module]]:
        """Return the pairs of name and module."""
        return self._modules.items()  # type: ignore[return-value]


def _parameter(value: Any) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)


class ParameterList(Module):
    """A list of parameters, which belong to the module that holds it. Arrays become parameters."""

    def __init__(self, values: Iterable[Any] = ()):
        self.extend(values)

    def append(self, value: Any) -> ParameterList:
        """Add a parameter at the end, under the next number; return this list."""
        self.register_parameter(str(len(self)), _parameter(value))
        return self

    @check_arguments
    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add parameters at the end; return this list."""
        for value in values:
            self.append(value)
        return self

    __iadd__ = extend

    def __getitem__(self, index: int | slice) -> Any:
        self._note()
        return ParameterList(self._list()[index]) if isinstance(index, slice) else self._list()[index]

    def __setitem__(self, index: int, value: Any) -> None:
        self.register_parameter(str(range(len(self))[index]), _parameter(value))

    def _list(self) -> list[Parameter]:
        return list(self._parameters.values())  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        self._note()
        return iter(self._list())

    def extra_repr(self) -> str:
        return _shapes(self)


class ParameterDict(Module):
    """Parameters under names, which belong to the module that holds it. Arrays become parameters."""

    def __init__(self, parameters: Mapping[str, Any] | None = None):
        self.update(parameters or {})

    def update(self, parameters: Mapping[str, Any]) -> None:
        """Add parameters, replacing parameters of the same name."""
        for name, value in parameters.items():
            self[name] = value

    def __getitem__(self, name: str) -> Parameter:
        self._note()
        return self._parameters[name]  # type: ignore[return-value]

    def __setitem__(self, name: str, value: Any) -> None:
        self.register_parameter(name, _parameter(value))

    def __delitem__(self, name: str) -> None:
        del self._parameters[name]
        touch()

    def get(self, name: str, default: Any = None) -> Any:
        """Return the parameter of the given name, or `default`."""
        return self[name] if name in self else default

    def pop(self, name: str) -> Parameter:
        """Remove a parameter and return it."""
        value = self[name]
        del self[name]
        return value

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._parameters))

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def keys(self) -> Iterable[str]:
        """Return the names."""
        return self._parameters.keys()

    def values(self) -> Iterable[Parameter]:
        """Return the parameters."""
        self._note()
        return self._parameters.values()  # type: ignore[return-value]

    def items(self) -> Iterable[tuple[str, Parameter]]:
        """Return the pairs of name and parameter."""
        self._note()
        return self._parameters.items()  # type: ignore[return-value]

    def extra_repr(self) -> str:
        return _shapes(self)


def _shapes(module: Module) -> str:
    return ", ".join(f"{n}: {p.dtype.name}{list(p.shape)}" for n, p in module._parameters.items() if p is not None)
