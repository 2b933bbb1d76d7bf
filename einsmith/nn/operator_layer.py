"""Define layers without parameters. Each computes an operator of the table in `einsmith.ops`, and has its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, get_annotations, signature
from typing import Any, get_type_hints

from einsmith.nn.module import Module
from einsmith.ops.operator import OperatorRow


class OperatorLayer(Module):
    """A layer that computes an operator: `forward` takes the operator's operands, and the constructor its settings,
    which become attributes.

    `make_layer` makes a subclass of each operator that has a layer's name. A subclass without an operator is a base of
    the layers of some operators, which it adapts.

    Attributes of a subclass:
        dims: dimensions of space, where the operator has a form for each number of them.
        shown: names of the settings that the layer's text shows; None for all. `inplace` is shown where it is True.
        stored: settings that are tensors: buffers, part of the state and not learned.

    A setting that the body of the class annotates, or that of a class which it is made from, has this annotation in
    place of the operator's.
    """

    dims = 0
    shown: tuple[str, ...] | None = None
    stored: tuple[str, ...] = ()
    _settings: tuple[str, ...] = ()

    def __init_subclass__(
        cls,
        of: OperatorRow | None = None,
        family: str = "",
        settings: str = "",
        defaults: Mapping[str, Any] | None = None,
        tensors: str = "",
    ) -> None:
        """Give the subclass the constructor and the `forward` of an operator.

        Args:
            of: the operator; None for a base of layers
            family: names or families of the operators that the subclass is a base of, separated by blanks
            settings: names of the settings where they are fewer than the operator's, or in another order; those behind
                "*" are given by keyword alone
            defaults: settings whose default is not the operator's
            tensors: names of the tensors that `forward` takes, where they are not the operator's
        """
        _BASES.update(dict.fromkeys(family.split(), cls))
        if of is not None:
            own, hints = list(of.operands), get_type_hints(of.call, include_extras=True)
            others = _select(signature(of.call).parameters, settings) if settings else list(of.settings.values())
            texts: dict[str, Any] = {}
            for base in reversed(cls.__mro__):
                if issubclass(base, OperatorLayer):
                    texts |= get_annotations(base)
                    hints |= get_annotations(base, eval_str=True)
            others = [
                p.replace(annotation=texts.get(p.name, p.annotation), default=(defaults or {}).get(p.name, p.default))
                for p in others
            ]
            cls.dims, cls._settings = getattr(of.call, "dims", cls.dims), tuple(p.name for p in others)
            cls.__init__ = _constructor(others, hints)  # type: ignore[method-assign]
            cls.forward = _forward(of.call, own, tensors.split() or own)  # type: ignore[method-assign]
        super().__init_subclass__()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()

    def check(self) -> None:
        """Check settings together, when all of them are set. Subclasses may define it."""

    def extra_repr(self) -> str:
        """Return the settings as text."""
        names = [n for n in (self._settings if self.shown is None else self.shown) if n != "inplace" or self.inplace]
        return ", ".join(f"{n}={getattr(self, n)!r}" for n in names)


_BASES: dict[str, type[OperatorLayer]] = {}
"""The bases of layers, by the names and families of their operators."""


def make_layer(of: OperatorRow, module: str) -> type[OperatorLayer]:
    """Make the layer of an operator, a class of the module with this name."""
    base = _BASES.get(of.name) or _BASES.get(of.family) or OperatorLayer
    text = f"The layer of `functional.{of.name}`: {of.formula}."
    return type(of.layer, (base,), {"__doc__": text, "__module__": module}, of=of, **of.options)


def _select(parameters: Mapping[str, Parameter], settings: str) -> list[Parameter]:
    """Return the parameters that are named, in this order; those behind "*" are keywords alone."""
    by_place, _, by_name = settings.partition("*")
    return [
        *(parameters[n].replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for n in by_place.split()),
        *(parameters[n].replace(kind=Parameter.KEYWORD_ONLY) for n in by_name.split()),
    ]


def _constructor(settings: list[Parameter], hints: Mapping[str, Any]) -> Callable[..., None]:
    """Return a constructor that takes these settings. hints: their evaluated annotations."""
    own = Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *settings])

    def __init__(self: OperatorLayer, *args: Any, **kwargs: Any) -> None:
        bound = own.bind(self, *args, **kwargs)
        bound.apply_defaults()
        for name in self._settings:
            if name in self.stored:
                self.register_buffer(name, bound.arguments[name])
            else:
                setattr(self, name, bound.arguments[name])
        self.check()

    __init__.__signature__ = own  # type: ignore[attr-defined]
    __init__.__annotations__ = {p.name: hints[p.name] for p in settings}
    return __init__


def _forward(operator: Callable[..., Any], own: list[str], names: list[str]) -> Callable[..., Any]:
    """Return the `forward` that computes an operator of the tensors `names`, which the operator calls `own`."""

    places = Signature([Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in ("self", *names)])

    def forward(self: OperatorLayer, *tensors: Any, **named: Any) -> Any:
        bound = places.bind(self, *tensors, **named).arguments
        settings = {n: getattr(self, n) for n in self._settings}
        return operator(**{n: bound[name] for n, name in zip(own, names, strict=True)}, **settings)

    forward.__signature__ = places  # type: ignore[attr-defined]
    return forward
