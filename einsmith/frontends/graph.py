"""What the front ends share: tables of operators, graphs that refer to values by name, inputs that are checked against
what a graph takes, and modules that hold the weights of another framework under their names there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from einsmith.dtypes import dtype_of
from einsmith.errors import DtypeError, EinsmithError, ShapeError
from einsmith.lang.builder import Value, as_value
from einsmith.nn.module import Module

F = TypeVar("F", bound=Callable[..., Any])

layer: ContextVar[str] = ContextVar("einsmith_layer", default="")
"""The path of the layer in which the operator that is being traced stands: it names streams of random numbers."""

# ------------------------------------------------------------------------------------------------- tables of operators


@dataclass(frozen=True)
class OperatorEntry:
    """One operator. family: the file it stands in; formula: what it gives, in a line; run: the function of tensors;
    static: places of the operands whose values must be known as a trace is made, since extents depend on them."""

    name: str
    family: str
    formula: str
    run: Callable[..., Any]
    static: tuple[int, ...] = ()


class OperatorTable(dict[str, OperatorEntry]):
    """Operators by name, with what each of them is here."""

    def enter(
        self, names: str, formula: str, run: Callable[..., Any], family: str | None = None, static: Sequence[int] = ()
    ) -> None:
        """Adds operators, their names between blanks."""
        for name in names.split():
            assert name not in self, name
            self[name] = OperatorEntry(name, family or run.__module__.rpartition(".")[2], formula, run, tuple(static))

    def operator(self, names: str, static: Sequence[int] = ()) -> Callable[[F], F]:
        """Adds the function under it. Its docstring's first paragraph is the formula."""

        def add(run: F) -> F:
            text = (run.__doc__ or "").partition("\n\n")[0]
            self.enter(names, " ".join(text.split()), run, static=static)
            return run

        return add


# -------------------------------------------------------------------------------------------------------------- graphs


@dataclass(frozen=True)
class Ref:
    """The result of a node, or an input, by name."""

    name: str


@dataclass(frozen=True)
class Kind:
    """What a tensor is expected to be. shape: ints, or names of sizes that may differ from call to call."""

    shape: tuple[int | str, ...]
    dtype: str


@contextmanager
def evaluating(path: str, place: str) -> Iterator[None]:
    """Around the evaluation of a node: the layer is `path`, and errors say where they arose, in `place`."""
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
    """What messages call a network, and what is said of its inputs: `what` it was made for, as `was`, and the remedy
    for other sizes."""

    what: str
    was: str
    remedy: str

    def values(
        self, tensors: Sequence[Any], expected: Sequence[tuple[int, str, Kind]], ranges: Mapping[str, tuple[int, int]]
    ) -> tuple[dict[str, Value], dict[str, int]]:
        """(values of the inputs by name, sizes by name) of tensors that are to be (place, name, kind) each; ranges:
        least and greatest value of sizes with names. Raises ShapeError, DtypeError."""
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
        """Takes a size as the value of its name. Raises ShapeError where the graph is not made for it."""
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
    """A part of an imported network: its parameters, buffers and parts. `kind`: the name of its class there."""

    def __init__(self, kind: str):
        self.kind = kind

    def extra_repr(self) -> str:
        return self.kind
