"""Define modules that hold modules or parameters: Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from einsmith.base.arguments import check_arguments
from einsmith.base.errors import IndexOutOfRange, KindError, UnknownNameError
from einsmith.nn.module import Module
from einsmith.nn.parameter import Parameter
from einsmith.tracing.trace import touch


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


class _Keyed(Module):
    """Members under names, in the table of modules or of parameters."""

    _table: str

    def update(self, members: Mapping[str, Any]) -> None:
        """Add members, replacing those of the same name."""
        for name, member in members.items():
            self[name] = member

    def __getitem__(self, name: str) -> Any:
        return getattr(self, self._table)[name]

    def __setitem__(self, name: str, member: Any) -> None:
        self.add_module(name, member)

    def __delitem__(self, name: str) -> None:
        del getattr(self, self._table)[name]
        touch()

    def __len__(self) -> int:
        return len(getattr(self, self._table))

    def __iter__(self) -> Iterator[str]:
        return iter(list(getattr(self, self._table)))

    def __contains__(self, name: object) -> bool:
        return name in getattr(self, self._table)

    def keys(self) -> Iterable[str]:
        """Return the names."""
        return getattr(self, self._table).keys()

    def values(self) -> Iterable[Any]:
        """Return the members."""
        return getattr(self, self._table).values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return the pairs of name and member."""
        return getattr(self, self._table).items()


class ModuleDict(_Keyed):
    """Modules under names, whose parameters belong to the module that holds it."""

    _table = "_modules"

    def __init__(self, modules: Mapping[str, Module] | None = None):
        self.update(modules or {})

    def __getitem__(self, name: str) -> Module:
        if name not in self:
            raise UnknownNameError(f"ModuleDict has no module {name!r}, only {', '.join(self) or 'none'}")
        return super().__getitem__(name)


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


class ParameterDict(_Keyed):
    """Parameters under names, which belong to the module that holds it. Arrays become parameters."""

    _table = "_parameters"

    def __init__(self, parameters: Mapping[str, Any] | None = None):
        self.update(parameters or {})

    def __getitem__(self, name: str) -> Parameter:
        self._note()
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.register_parameter(name, _parameter(value))

    def get(self, name: str, default: Any = None) -> Any:
        """Return the parameter of the given name, or `default`."""
        return self[name] if name in self else default

    def pop(self, name: str) -> Parameter:
        """Remove a parameter and return it."""
        value = self[name]
        del self[name]
        return value

    def values(self) -> Iterable[Parameter]:
        """Return the parameters."""
        self._note()
        return super().values()

    def items(self) -> Iterable[tuple[str, Parameter]]:
        """Return the pairs of name and parameter."""
        self._note()
        return super().items()

    def extra_repr(self) -> str:
        return _shapes(self)


def _shapes(module: Module) -> str:
    return ", ".join(f"{n}: {p.dtype.name}{list(p.shape)}" for n, p in module._parameters.items() if p is not None)
