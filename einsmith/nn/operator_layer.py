"""Define layers without parameters: each computes an operator of `einsmith.ops`, and has its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, get_annotations, signature
from typing import Any, get_type_hints

from einsmith.nn.module import Module


class OperatorLayer(Module):
    """A layer that computes an operator. A subclass names it, as in `class GLU(OperatorLayer, of=ops.glu)`.

    The operator's first parameters, of any type and without a default, are the tensors that `forward` takes; the others
    are the settings that the constructor takes, and attributes.

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
        of: Callable[..., Any] | None = None,
        settings: str = "",
        defaults: Mapping[str, Any] | None = None,
        tensors: str = "",
    ) -> None:
        """Give the subclass the constructor and the `forward` of an operator.

        Args:
            of: the operator; None for a base of several layers
            settings: names of the settings where they are fewer than the operator's, or in another order; those behind
                "*" are given by keyword alone
            defaults: settings whose default is not the operator's
            tensors: names of the tensors that `forward` takes, where they are not the operator's
        """
        if of is not None:
            found, hints = signature(of).parameters, get_type_hints(of, include_extras=True)
            own = [n for n, p in found.items() if hints.get(n) is Any and p.default is p.empty]
            others = _select(found, settings) if settings else [p for n, p in found.items() if n not in own]
            texts: dict[str, Any] = {}
            for base in reversed(cls.__mro__):
                if issubclass(base, OperatorLayer):
                    texts |= get_annotations(base)
                    hints |= get_annotations(base, eval_str=True)
            others = [
                p.replace(annotation=texts.get(p.name, p.annotation), default=(defaults or {}).get(p.name, p.default))
                for p in others
            ]
            cls.dims, cls._settings = getattr(of, "dims", cls.dims), tuple(p.name for p in others)
            cls.__init__ = _constructor(others, hints)  # type: ignore[method-assign]
            cls.forward = _forward(of, own, tensors.split() or own)  # type: ignore[method-assign]
        super().__init_subclass__()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()

    def check(self) -> None:
        """Check settings together, when all of them are set. Subclasses may define it."""

    def extra_repr(self) -> str:
        """Return the settings as text."""
        names = [n for n in (self._settings if self.shown is None else self.shown) if n != "inplace" or self.inplace]
        return ", ".join(f"{n}={getattr(self, n)!r}" for n in names)


def _select(found: Mapping[str, Parameter], settings: str) -> list[Parameter]:
    """Return the parameters that are named, in this order; those behind "*" are keywords alone."""
    by_place, _, by_name = settings.partition("*")
    return [
        *(found[n].replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for n in by_place.split()),
        *(found[n].replace(kind=Parameter.KEYWORD_ONLY) for n in by_name.split()),
    ]


def _constructor(settings: list[Parameter], hints: Mapping[str, Any]) -> Callable[..., None]:
    """Return a constructor that takes these settings. hints: their evaluated annotations."""
    own = Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *settings])

    def __init__(self: OperatorLayer, *args: Any, **kwargs: Any) -> None:
        given = own.bind(self, *args, **kwargs)
        given.apply_defaults()
        for name in self._settings:
            if name in self.stored:
                self.register_buffer(name, given.arguments[name])
            else:
                setattr(self, name, given.arguments[name])
        self.check()

    __init__.__signature__ = own  # type: ignore[attr-defined]
    __init__.__annotations__ = {p.name: hints[p.name] for p in settings}
    return __init__


def _forward(operator: Callable[..., Any], own: list[str], names: list[str]) -> Callable[..., Any]:
    """Return the `forward` that computes an operator of the tensors `names`, which the operator calls `own`."""

    places = Signature([Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in ("self", *names)])

    def forward(self: OperatorLayer, *tensors: Any, **named: Any) -> Any:
        given = places.bind(self, *tensors, **named).arguments
        settings = {n: getattr(self, n) for n in self._settings}
        return operator(**{n: given[name] for n, name in zip(own, names, strict=True)}, **settings)

    forward.__signature__ = places  # type: ignore[attr-defined]
    return forward
