"""A case: a program with the arrays to call it on, as data that can be stored, replayed and printed as a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import einsmith as es

LAYOUTS = ("plain", "strided", "reversed", "turned", "offset", "misaligned", "broadcast")
"""How an array lies in memory when it is passed to a call."""


SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0)


@dataclass(frozen=True)
class Input:
    """`low` and `high`: the range of integer elements, `high` excluded; None for the usual one. `layout`: one of
    LAYOUTS; in a broadcast one all elements along the first axis are equal."""

    shape: tuple[int, ...]
    dtype: str
    low: int | None = None
    high: int | None = None
    layout: str = "plain"
    special: bool = False
    """Whether some elements are infinite, not numbers, or negative zeros."""


@dataclass(frozen=True)
class Case:
    """A program and how to call it: `function()(*arrays(), **parameters)`.

    text: a formula, or the source of a Python function `f(F, ...)` of Einsmith's or PyTorch's functional operators.
    exact: every value is a small integer, so that results are compared exactly. static: parameters that stand in
    indices. axes: the extent of every axis of the formula.
    """

    text: str
    extents: dict[str, Any]
    inputs: dict[str, Input]
    parameters: dict[str, float]
    exact: bool
    seed: int
    axes: dict[str, int] = field(default_factory=dict)

    @property
    def special(self) -> bool:
        """Whether only values say something: of what is infinite or not a number derivatives depend on their form."""
        return any(i.special for i in self.inputs.values())

    @property
    def is_python(self) -> bool:
        return self.text.startswith("def ")

    def function(self) -> Callable:
        if self.is_python:
            import einsmith.functional as functional

            made = self.python()
            return lambda *arrays: made(functional, *arrays)
        return es.op(self.text, extents=self.extents)

    def python(self) -> Callable:
        """The function f(F, ...) that a text in Python defines."""
        names: dict[str, Any] = {}
        exec(compile(self.text, "<case>", "exec"), names)
        return names["f"]

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        out = []
        for i in self.inputs.values():
            dtype = np.dtype(i.dtype)
            shape = (1, *i.shape[1:]) if i.layout == "broadcast" and i.shape and i.shape[0] else i.shape
            if dtype.kind == "b":
                a = rng.integers(0, 2, shape).astype(dtype)
            elif dtype.kind in "iu" or self.exact:
                low, high = (-3, 4) if i.low is None or i.high is None else (i.low, i.high)
                low, high = (0, high - low) if dtype.kind == "u" and low < 0 else (low, high)
                a = rng.integers(low, high, shape).astype(dtype)
            else:
                a = rng.standard_normal(shape).astype(dtype)
                if i.special:
                    a = np.where(rng.integers(0, 8, shape) > 0, a, rng.choice(SPECIAL, shape)).astype(dtype)
            out.append(np.array(np.broadcast_to(a, i.shape)))
        return out

    def views(self) -> list[np.ndarray]:
        """The same elements as `arrays()`, each array lying in memory as its input says."""
        return [lay(a, i.layout) for a, i in zip(self.arrays(), self.inputs.values(), strict=True)]

    def __str__(self) -> str:
        given = "\n".join(f"    {n}: {i}" for n, i in self.inputs.items())
        return f"{self.text}\nextents={self.extents}\nparameters={self.parameters}\nseed={self.seed}\n{given}"

    def data(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @staticmethod
    def of(data: Mapping[str, Any]) -> Case:
        inputs = {n: Input(**{**i, "shape": tuple(i["shape"])}) for n, i in data["inputs"].items()}
        return Case(**{**data, "inputs": inputs})


def lay(a: np.ndarray, layout: str) -> np.ndarray:
    """The array's elements in memory that is laid out so."""
    if layout == "strided" and a.ndim:
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1] + 1), a.dtype)
        wide[..., : 2 * a.shape[-1] : 2] = a
        return wide[..., : 2 * a.shape[-1] : 2]
    if layout == "reversed" and a.ndim:
        return np.ascontiguousarray(a[::-1])[::-1]
    if layout == "turned":
        return np.array(a, order="F")
    if layout == "offset":
        wide = np.zeros(a.size + 3, a.dtype)
        wide[3:] = a.reshape(-1)
        return wide[3:].reshape(a.shape)
    if layout == "misaligned":
        raw = np.zeros(a.nbytes + 1, np.uint8)
        view = raw[1:].view(a.dtype).reshape(a.shape)
        view[...] = a
        return view
    if layout == "broadcast" and a.ndim and a.shape[0]:
        return np.broadcast_to(a[:1].copy(), a.shape)
    return a


def as_test(case: Case, check: Mapping[str, Any], name: str = "found") -> str:
    """A test of the case, ready to paste."""
    inputs = ", ".join(f"{n!r}: {i!r}" for n, i in case.inputs.items())
    body = "\n".join("        " + x for x in case.text.splitlines())
    given = ", ".join(f"{k}={v!r}" for k, v in check.items())
    text = f'textwrap.dedent("""\n{body}\n    """).strip()'
    return f"""
import textwrap

from tests.fuzz.case import Case, Input
from tests.fuzz.trial import Check, run_check


def test_{name}():
    text = {text}
    case = Case(
        text, {case.extents!r},
        {{{inputs}}},
        {case.parameters!r}, exact={case.exact!r}, seed={case.seed!r}, axes={case.axes!r},
    )
    run_check(case, Check({given}))
"""
