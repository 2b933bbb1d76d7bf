"""Provide what the front ends share: tables of operators, graphs that refer to values by name, checks of inputs against
a graph's signature, and modules that hold another framework's weights under the names they have there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import DtypeError, EinsmithError, ShapeError
from einsmith.nn.module import Module
from einsmith.tracing.builder import Value, as_value

F = TypeVar("F", bound=Callable[..., Any])

layer: ContextVar[str] = ContextVar("einsmith_layer", default="")
"""Path of the layer whose operator is being traced; it names streams of random numbers."""

# ------------------------------------------------------------------------------------------------- tables of operators


@dataclass(frozen=True)
class OperatorEntry:
    """An operator. family: its file; formula: its result, in a line; run: its function of tensors; static: positions of
    the operands whose values must be known during tracing, since extents depend on them."""

    name: str
    family: str
    formula: str
    run: Callable[..., Any]
    static: tuple[int, ...] = ()


class OperatorTable(dict[str, OperatorEntry]):
    """A table from operators' names to their entries."""

    def enter(
        self, names: str, formula: str, run: Callable[..., Any], family: str | None = None, static: Sequence[int] = ()
    ) -> None:
        """Add an operator under each of `names`, which are separated by blanks."""
        for name in names.split():
            assert name not in self, name
            self[name] = OperatorEntry(name, family or run.__module__.rpartition(".")[2], formula, run, tuple(static))

    def operator(self, names: str, static: Sequence[int] = ()) -> Callable[[F], F]:
        """Return a decorator that adds a function as an operator; its docstring's first paragraph is the formula."""

        def add(run: F) -> F:
            text = (run.__doc__ or "").partition("\n\n")[0]
            self.enter(names, " ".join(text.split()), run, static=static)
            return run

        return add


# -------------------------------------------------------------------------------------------------------------- graphs


@dataclass(frozen=True)
class Ref:
    """A reference by name to a node's result or an input."""

    name: str


@dataclass(frozen=True)
class Kind:
    """The expected shape and type of a tensor. shape: ints, or names of sizes that may differ from call to call."""

    shape: tuple[int | str, ...]
    dtype: str


@contextmanager
def evaluating(path: str, place: str) -> Iterator[None]:
    """Evaluate a node inside this context: the layer is `path`, and errors name `place`, where they arose."""
    token = layer.set(path)
    try:
        yield
    except EinsmithError as e:
        e.add_note(f"in {place}")
        raise
    finally:
        layer.reset(token)


@dataclass(frozen=True)
class Taken:
    """Texts for error messages about a network's inputs.

    They name the network (`what`), say how it was made for its sizes (`was`), and give the remedy for other sizes.
    """

    what: str
    was: str
    remedy: str

    def values(
        self, tensors: Sequence[Any], expected: Sequence[tuple[int, str, Kind]], ranges: Mapping[str, tuple[int, int]]
    ) -> tuple[dict[str, Value], dict[str, int]]:
        """Check tensors against `expected`: return (values of the inputs by name, sizes by name).

        expected: (place, name, kind) of each tensor; ranges: least and greatest value of named sizes. Raises
        ShapeError and DtypeError.
        """
        values: dict[str, Value] = {}
        sizes: dict[str, int] = {}
        for (n, name, kind), x in zip(expected, tensors, strict=True):
            where = f"{self.what}: input {n}"
            value = as_value(x)
            wanted = dtype_of(kind.dtype)
            if value.dtype is not wanted:
                if not (value.dtype.is_int and wanted.is_int and value.dtype.bits < wanted.bits):
                    raise DtypeError(f"{where} is {value.dtype.name}; {self.was} for {wanted.name}")
                value = value.astype(wanted)
            if value.ndim != len(kind.shape):
                raise ShapeError(f"{where} has shape {value.shape}; {self.was} for {kind.shape}")
            for d, (have, want) in enumerate(zip(value.shape, kind.shape, strict=True)):
                self._fit(f"{where} has shape {value.shape}, {have} along dimension {d}", have, want, sizes, ranges)
            values[name] = value
        return values, sizes

    def _fit(
        self, what: str, have: int, want: int | str, sizes: dict[str, int], ranges: Mapping[str, tuple[int, int]]
    ) -> None:
        """Bind a size to its name. Raises ShapeError if the graph was not made for it."""
        if isinstance(want, str):
            least, most = ranges.get(want, (0, have))
            if not least <= have <= most:
                bounds = f"at least {least}" if have < least else f"at most {most}"
                raise ShapeError(f"{what}; the module takes {bounds} there")
            want = sizes.setdefault(want, have)
            if have != want:
                raise ShapeError(f"{what}, where another dimension of equal size has {want}")
        elif have != want:
            raise ShapeError(f"{what}; the graph was made for {want}, {self.remedy}")


# ------------------------------------------------------------------------------------------------------------- modules


class ModulePart(Module):
    """A part of an imported network: its parameters, buffers and parts. kind: the class name in its framework."""

    def __init__(self, kind: str):
        self.kind = kind

    def extra_repr(self) -> str:
        return self.kind
