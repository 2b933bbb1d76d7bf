"""Check arguments of the package's functions and layers by their annotations, at the call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from einsmith.base import symbolic
from einsmith.base.dtypes import is_whole
from einsmith.base.errors import EinsmithError, KindError, UnknownOptionError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Fit = Callable[[Any], Any]
"""Converts a value to its annotated form: NumPy's numbers to Python's, sequences to tuples. Raises _Misfit."""


Size = Annotated[int, 0]
Count = Annotated[int, 1]
MAX_LAYERS = 10_000
"""Most layers that one argument asks for: each is an object of 3 kB and more."""
Depth = Annotated[int, 1, MAX_LAYERS]
Magnitude = Annotated[float, 0]
Share = Annotated[float, 0, 1]


class _Misfit(Exception):
    """Raised for a value that an annotation does not allow."""


def check_arguments(function: F) -> F:
    """Wrap `function` so that its arguments are checked by their annotations and converted.

    `int` means whole numbers, NumPy's too, but no truth values; `float` any number but a traced one, whose value is not
    known; a `Sequence` of numbers is also an array of one dimension; `Annotated[..., low, high]` a number in that
    range, unbounded above where there is no `high`. A parameter annotated `Any` is left for the function to check.

    The wrapper raises KindError for an argument that does not fit its annotation, that is missing or one too many, and
    UnknownOptionError for an unknown keyword. Both messages show the function's signature.
    """
    fits: list[_Fits] = []  # built at the first call: annotations may name classes defined further down

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not fits:
            fits.append(_Fits(function))
        fit = fits[0]
        if kwargs or len(args) < fit.fewest or not fit.takes_any:
            args, kwargs = fit(args, kwargs)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def check_fields(kind: type[T]) -> type[T]:
    """Have a dataclass check and convert its fields as `check_arguments` does a function's arguments."""
    kind.__init__ = check_arguments(kind.__init__)  # type: ignore[method-assign]
    return kind


def check_options(kind: Callable[..., Any], names: Iterable[str]) -> None:
    """Raise UnknownOptionError for a keyword that a class or a function does not take."""
    function = kind.__init__ if isinstance(kind, type) else kind  # type: ignore[misc]
    parameters = list(inspect.signature(function).parameters.values())[isinstance(kind, type) :]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        refuse_unknown(getattr(kind, "__name__", type(kind).__name__), names, known)


def bound(
    function: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any], what: Callable[[], str]
) -> inspect.BoundArguments:
    """Bind a call's arguments to the parameters of `function`.

    Raises KindError where one is missing or there is one too many; the message names the function as `what` does.
    """
    signature = inspect.signature(function)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as e:
        plain = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
        raise KindError(f"{what()} takes {inspect.Signature(plain)}: {e}") from None


def refuse_unknown(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raise UnknownOptionError for the first keyword that `what` does not take."""
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(known) or 'none'}"
            raise UnknownOptionError(f"{what} has no option {name!r}; {hint}")


def show(x: Any) -> str:
    """Return a value as messages show it: short, arrays by their shape."""
    if getattr(x, "shape", None) is not None and not isinstance(x, (np.generic, type)):
        return f"<{type(x).__name__} of shape {tuple(x.shape)}>"
    text = repr(x.item() if isinstance(x, np.generic) else x)
    return text if len(text) <= 60 else f"<{type(x).__name__}>"


def describe(x: Any) -> str:
    """Return what kind of thing x is, with its article, for messages."""
    return "None" if x is None else with_article(type(x).__name__)


def with_article(name: str) -> str:
    """Return a noun with "a" or "an" before it."""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def refuse_torch(x: Any, what: str) -> None:
    """Raise KindError for a module or an operator of PyTorch, given where Einsmith's own are expected, as `what`."""
    for kind in type(x).__mro__:  # by name: PyTorch need not be installed
        place = f"{kind.__module__}.{kind.__qualname__}"
        if place == "torch.nn.modules.module.Module":
            raise KindError(
                f"{what} is {describe(x)}, a module of PyTorch; convert it first, with "
                "einsmith.frontends.torch.from_torch(module, example)"
            )
        if place == "einsmith.frontends.torch_operator.TorchOperator":
            raise KindError(
                f"{what} is {x.__name__}, an operator on PyTorch's tensors; pass the es.op itself, of which operator() "
                "made it"
            )


def whole_numbers(value: Any, what: str) -> tuple[int, ...]:
    """Return one integer or a sequence of integers as a tuple of Python's ints. Raises KindError, which names
    `what`."""
    try:
        many = isinstance(value, (tuple, list)) or getattr(value, "ndim", 0) == 1 and len(value) > 0
        listed = value if many else (value,)
        return tuple(map(_whole, listed))
    except _Misfit:
        unknown = _UNKNOWN if hasattr(value, "tensor") else ""
        raise KindError(f"{what}={show(value)} must be an integer or a sequence of integers{unknown}") from None


class Shown:
    """Base of objects that are shown as the call that makes them: `Name(option=value, ...)`."""

    def __repr__(self) -> str:
        names = [n for n in inspect.signature(type(self)).parameters if hasattr(self, n)]
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"


def signature_of(f: Callable[..., Any]) -> str:
    """Return a function's name with its parameters, for messages; the name alone where its signature is unknown."""
    own = getattr(f, "signature", None)  # an operator has no Python parameters
    if isinstance(own, str):
        return own
    name = getattr(f, "__name__", type(f).__name__)
    try:
        plain = [p.replace(annotation=p.empty) for p in inspect.signature(f).parameters.values()]
    except (TypeError, ValueError):
        return name
    return f"{name}{inspect.Signature(plain)}"


_UNKNOWN = "; a traced tensor has no value yet: pass a Python number, which es.jit takes under static_argnames"


class _Fits:
    """The conversions that make the arguments of one function fit."""

    code_parts = ()

    def __init__(self, function: Callable[..., Any]):
        parameters = inspect.signature(function).parameters.values()
        self.function = function
        hints = get_type_hints(function, include_extras=True)
        self.name = function.__name__
        self.order = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.open = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        single = (p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        self.needed = [(n, p.name) for n, p in enumerate(single) if p.default is p.empty]
        self.fewest = 1 + max((n for n, _ in self.needed), default=-1)
        hinted = ((n, hints.get(n, Any)) for n in dict.fromkeys((*self.order, *self.known)))
        self.fits = {name: (fit, hint) for name, hint in hinted if (fit := _fit(hint)) is not None}
        self.takes_any = self.many and not any(n in self.fits for n in self.order)
        """Whether positional arguments are never checked, if there are enough."""

    def __call__(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        name = type(args[0]).__name__ if self.name == "__init__" else self.name
        positional = len(args)
        more = positional > len(self.order) and not self.many
        if kwargs or more or positional < self.fewest:
            if not self.open:
                refuse_unknown(name, kwargs, [n for n in self.known if n != "self"])
            twice = any(n in kwargs and n in self.known for n in self.order[:positional])
            if more or twice or any(place >= positional and n not in kwargs for place, n in self.needed):
                bound(self.function, args, kwargs, lambda: name)
        fitting = [self._one(name, n, x) for n, x in zip(self.order, args, strict=False)]
        return (*fitting, *args[len(fitting) :]), {n: self._one(name, n, x) for n, x in kwargs.items()}

    def _one(self, function: str, name: str, value: Any) -> Any:
        if name not in self.fits:
            return value
        fit, hint = self.fits[name]
        try:
            return fit(value)
        except _Misfit:
            why = _UNKNOWN if hasattr(value, "tensor") else ""
            raise KindError(f"{function}: {name}={show(value)} must be {_words(hint)}{why}") from None


# ------------------------------------------------------------------------------------------------ single annotations


def _whole(x: Any) -> int:
    if type(x) is int and -(1 << 63) <= x < 1 << 64:
        return x
    if is_whole(x) and not getattr(x, "shape", ()):
        try:
            number = symbolic.index(x)
        except TypeError:  # a traced tensor, an array of floats
            raise _Misfit from None
        if -(1 << 63) <= number < 1 << 64:
            return number
    raise _Misfit


def _number(x: Any) -> Any:
    if getattr(x, "ndim", None) == 0 and hasattr(x, "item") and not hasattr(x, "tensor"):
        x = x.item()
    if isinstance(x, float):
        return x
    if isinstance(x, int) and not isinstance(x, bool) and -(1 << 999) < x < 1 << 999:
        return x if -(1 << 64) < x < 1 << 64 else float(x)
    raise _Misfit


def _fit_range(of: Fit, low: float, high: float = inf) -> Fit:
    def fit(x: Any) -> Any:
        x = of(x)
        if isinstance(x, (int, float)) and not low <= x <= high:
            raise _Misfit
        return x

    return fit


def _truth(x: Any) -> bool:
    if isinstance(x, (bool, np.bool_)):
        return bool(x)
    raise _Misfit


def _sequence(of: Fit | None, length: int | None = None) -> Fit:
    def fit(x: Any) -> Any:
        many = isinstance(x, Sequence) and not isinstance(x, (str, bytes))
        many = many or getattr(x, "ndim", None) == 1 and len(x) > 0  # an empty array is not a list of numbers
        if not many or (length is not None and len(x) != length):
            raise _Misfit
        return x if of is None else tuple(map(of, x))

    return fit


def _list(x: Any) -> Any:
    """List an iterable's values at the time of the call, so that an error of its iterator is raised there.

    The values themselves are not checked; strings are returned unchanged.
    """
    try:
        return x if isinstance(x, str) else tuple(x)
    except EinsmithError:
        raise
    except (TypeError, ValueError):
        raise _Misfit from None


def _either(fits: Sequence[Fit]) -> Fit:
    def fit(x: Any) -> Any:
        for one in fits:
            try:
                return one(x)
            except _Misfit:
                pass
        raise _Misfit

    return fit


def _such(holds: Callable[[Any], bool]) -> Fit:
    def fit(x: Any) -> Any:
        if not holds(x):
            raise _Misfit
        return x

    return fit


_PLAIN: dict[Any, tuple[Fit, str, str]] = {
    int: (_whole, "an integer", "integers"),
    float: (_number, "a number", "numbers"),
    bool: (_truth, "True or False", "truth values"),
    str: (_such(lambda x: isinstance(x, str)), "a string", "strings"),
    NoneType: (_such(lambda x: x is None), "None", "None"),
    Callable: (_such(callable), "a callable", "callables"),
    Iterable: (_such(lambda x: isinstance(x, Iterable) and getattr(x, "ndim", 1) != 0), "an iterable", "iterables"),
    Mapping: (_such(lambda x: isinstance(x, Mapping)), "a mapping", "mappings"),
}
"""How to check a plain type's values, and its words in the singular and the plural."""


def _fit(hint: Any) -> Fit | None:
    """Return the function that makes values fit an annotation, or None where the annotation accepts every value."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if hint.__origin__ is Any:  # an operand: the operator checks it
            return None
        return _fit_range(_PLAIN[hint.__origin__][0], *hint.__metadata__)
    if origin in (Union, UnionType):
        fits = [_fit(h) for h in inner]
        return None if None in fits else _either([f for f in fits if f is not None])
    if origin is tuple and inner[-1:] != (Ellipsis,):
        parts = [_fit(h) for h in inner]
        return _sequence(None if None in parts else _either([f for f in parts if f is not None]), len(inner))
    if origin in (Sequence, tuple, list):
        return _sequence(_fit(inner[0]))
    if origin is Iterable:
        return _list
    plain = _PLAIN.get(origin or hint)
    if plain is not None:
        return plain[0]
    if not isinstance(hint, type) or hint in (Any, object):
        return None
    return _such(lambda x: isinstance(x, hint))


def _words(hint: Any, several: bool = False) -> str:
    """Describe an annotation in words for error messages; `several`: in the plural."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        low, *high = hint.__metadata__
        return _words(hint.__origin__, several) + (f" in [{low}, {high[0]}]" if high else f" of at least {low}")
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(h, several) for h in inner))
    if origin is tuple and inner[-1:] != (Ellipsis,):
        return f"{len(inner)} {' and '.join(dict.fromkeys(_words(h, True) for h in inner))}"
    if origin in (Sequence, tuple, list, Iterable):
        of = _words(inner[0], True)
        return "a sequence" if inner[0] is Any else f"a sequence of ({of})" if " or " in of else f"a sequence of {of}"
    plain = _PLAIN.get(origin or hint)
    if plain is not None:
        return plain[2] if several else plain[1]
    name = "tensor" if hint.__name__ == "Value" else hint.__name__
    if hint.__name__ == "PathLike":
        return "paths" if several else "a path"
    return f"{name}s" if several else with_article(name)
