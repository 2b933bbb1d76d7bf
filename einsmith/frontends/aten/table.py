"""The table of operators: PyTorch's names, `add.Tensor` for aten.add.Tensor, with what each of them is here.

Arguments are those of PyTorch's schema, in its order; tensors come as traced tensors, element types as DTypes, and what
says where a tensor lies (device, layout, memory format) is left out. Results are those of PyTorch: shapes, types, and
derivatives, which are derived from the formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """One operator. family: the file it stands in; formula: what it gives, in a line; run: the function of tensors."""

    name: str
    family: str
    formula: str
    run: Callable[..., Any]


TABLE: dict[str, Entry] = {}


def enter(names: str, formula: str, run: Callable[..., Any], family: str | None = None) -> None:
    """Adds operators, their names between blanks."""
    for name in names.split():
        assert name not in TABLE, name
        TABLE[name] = Entry(name, family or run.__module__.rpartition(".")[2], formula, run)


def aten(names: str) -> Callable[[F], F]:
    """Adds the function under it. Its docstring's first paragraph is the formula."""

    def add(run: F) -> F:
        text = (run.__doc__ or "").partition("\n\n")[0]
        enter(names, " ".join(text.split()), run)
        return run

    return add
