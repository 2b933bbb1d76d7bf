"""Make the forms of an operator for one, two and three dimensions of space from one function of their number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, get_type_hints

from einsmith.ops.operator import operator

SPACE = {1: "L", 2: "H, W", 3: "D, H, W"}
"""What docstrings call the dimensions of space."""


def by_rank(
    of: Callable[..., Any],
    without: Mapping[int, Sequence[str]] | None = None,
    ranks: Sequence[int] = tuple(SPACE),
    **names: Any,
) -> tuple[Callable[..., Any], ...]:
    """Return the operators of one, two and three dimensions, as `conv1d`, `conv2d` and `conv3d` from `_conv`. Each has
    its number of dimensions as attribute `dims`.

    Args:
        of: function of an operator's name (for messages), of its dimensions of space, and of the operator's arguments;
            in its docstring, "{space}" stands for these dimensions
        without: numbers of dimensions -> names of arguments that the operator does not have, whose default is used
        ranks: numbers of dimensions that there are operators of
        names: the operators' rows in the table, as in `operator`; "{n}" in a text stands for the number of dimensions
    """
    return tuple(_of_rank(of, n, (without or {}).get(n, ()), names) for n in ranks)


def _of_rank(of: Callable[..., Any], n: int, without: Sequence[str], names: Mapping[str, Any]) -> Callable[..., Any]:
    name = f"{of.__name__.strip('_')}{n}d"

    def call(*args: Any, **kwargs: Any) -> Any:
        return of(name, n, *args, **kwargs)

    hints = get_type_hints(of, include_extras=True)
    _, _, *own = signature(of).parameters.values()
    own = [p for p in own if p.name not in without]
    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = of.__module__, (of.__doc__ or "").replace("{space}", SPACE[n])
    call.dims = n  # type: ignore[attr-defined]
    call.__signature__ = signature(of).replace(parameters=own)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: hints[p.name] for p in own}
    own_names: dict[str, Any] = {k: v.replace("{n}", str(n)) if isinstance(v, str) else v for k, v in names.items()}
    return operator(family=of.__name__.strip("_"), **own_names)(call)
