"""Read and write programs: texts that say which derivative of an operator a call computes.

A program is the names of the tensors passed by keyword, then a part for each derivative or batch, which says how many
inputs it has, what it is (`derive`) and the positions. "scale|3:0,2" is the pullback by inputs 0 and 2 of a formula
with two inputs and a tensor for `scale`. A name with ~ behind it is that of a Python number, with ~~ that of an integer
which int32 does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from einsmith.api.transforms import batched, jvp, vjp

Program = str
_PART = re.compile(r"(\d+)([:>*])([\d,]*)")


def derive(program: Program, inputs: int, kind: str, positions: Sequence[int]) -> Program:
    """Return the derived program of a program with `inputs` inputs.

    kind: ":" is the pullback by the inputs at `positions`, ">" the pushforward of their tangents, "*" the program for a
    batch of them.
    """
    return f"{program}|{inputs}{kind}{','.join(map(str, positions))}"


def read(program: Program) -> tuple[list[str], list[tuple[int, str, list[int]]]]:
    """Parse a program into its names and its parts (number of inputs, kind, positions)."""
    names, *parts = program.split("|")
    matches = [_PART.fullmatch(part) for part in parts]
    groups = [m.groups() for m in matches if m is not None]
    assert len(groups) == len(parts), program
    return (names.split(",") if names else []), [
        (int(n), kind, [int(i) for i in at.split(",") if i]) for n, kind, at in groups
    ]


def differentiate(f: Callable[..., tuple], program: Program) -> Callable[..., tuple]:
    """Return what a program makes of f, a function of traced tensors that returns a tuple of them."""
    for n, kind, at in read(program)[1]:
        f = _DERIVED[kind](f, n, at)
    return f


def _restrict(f: Callable[..., tuple], inputs: Sequence[Any], at: Sequence[int]) -> Callable[..., tuple]:
    """Return f as a function of the inputs at `at` alone, which gives its float outputs."""

    def floats(*moving: Any) -> tuple:
        values = dict(zip(at, moving, strict=True))
        out = f(*(values.get(i, x) for i, x in enumerate(inputs)))
        return tuple(o for o in out if o.dtype.is_float)

    return floats


def _pullback(f: Callable[..., tuple], n: int, at: Sequence[int]) -> Callable[..., tuple]:
    """Return the pullback: (n inputs of f, a cotangent for each float output) -> gradients by the inputs at `at`."""
    return lambda *values: vjp(_restrict(f, values[:n], at), *(values[i] for i in at))[1](values[n:])


def _pushforward(f: Callable[..., tuple], n: int, at: Sequence[int]) -> Callable[..., tuple]:
    """Return the pushforward: (n inputs of f, tangents of the inputs at `at`) -> tangents of the float outputs."""
    return lambda *values: jvp(_restrict(f, values[:n], at), tuple(values[i] for i in at), values[n:])[1]


_DERIVED: dict[str, Callable[[Callable[..., tuple], int, list[int]], Callable[..., tuple]]] = {
    ":": _pullback,
    ">": _pushforward,
    "*": lambda f, n, at: batched(f, at),
}
