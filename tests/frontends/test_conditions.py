"""Conditions on sizes, as torch.export writes them, hold as Python says, and nothing else is read."""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from einsmith.base.errors import ShapeError, TraceError
from einsmith.frontends.aten import conditions
from einsmith.frontends.aten.aten_graph import Guards

CONDITIONS = [
    "(L['x'].size()[0] % 2) == 0",
    "3*L['x'].size()[0] > 7",
    "L['x'].size()[0] != 16",
    "(max(L['x'].size()[1], L['x'].size()[0]) // 3) > 2",
    "math.trunc(torch.sym_float(L['x'].size()[0]) ** 0.5) == 3",
    "torch._sym_sqrt(L['x'].size()[0]) >= 2",
    "(L['x'].size()[0] / 3) > 1.5",
    "2 <= L['x'].size()[0] <= 17",
    "L['x'].size(0) < 5 or not (L['x'].shape[-1] == 1)",
    "L['x'].size()[0] - L['x'].size()[1] - 3 < -1 and min(2, 3) == 2",
    "(5 if L['x'].size()[0] > 4 else L['x'].size()[1]) == 5",
    "L['ys'][0].size()[0] == L['x'].size()[0]",
    "L['d']['a'].size()[1] + abs(-3) << 1 > 8 | 1",
    "len(L['ys']) == 1 and math.inf > 3",
    "L['x'].size()[0] > 20 or (12 // L['x'].size()[1]) > 3",
    " + ".join(["L['x'].size()[0]"] * 700) + " > 4000",
]


class _Tensor:
    def __init__(self, *shape: int):
        self.shape = shape

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]


_TORCH = SimpleNamespace(sym_float=float, _sym_sqrt=math.sqrt)


@pytest.mark.parametrize("text", CONDITIONS, ids=lambda t: t[:40])
def test_they_hold_as_python_says(text: str) -> None:
    seen = set()
    for n, m in product((1, 2, 3, 4, 5, 9, 10, 15, 16, 17), (1, 2, 13)):
        inputs = {"x": _Tensor(n, m), "ys": [_Tensor(4)], "d": {"a": _Tensor(2, m)}}
        wanted = eval(text, {"L": inputs, "math": math, "torch": _TORCH})
        found = conditions.parse(text)({k: conditions.describe_input(x) for k, x in inputs.items()})
        assert bool(found) is bool(wanted), (n, m)
        seen.add(bool(wanted))
    assert seen == {True, False} or "len(" in text


OTHERS = [
    "__import__('os').system('true')", "L.__class__", "L['x'].__class__.__mro__", "[x for x in L]", "(lambda: 1)()",
    "open('f')", "L['x'].size().__len__()", "'a' * 9", "L['x'].data", "x", "L", "torch.load('f')", "max(a=1)", "f'{L}'",
    "math.factorial(9)", "math", "L[L]", "1 if", "(" * 500 + "1" + ")" * 500, "-" * 100_000 + "1", "L['x'].size()[0:1]",
    "max(*L)", "1 in L", "(y := 1)", "L['x'].size(0, 1)", "max.__self__", "~1", "1 @ 2", "math.inf.hex()", "", "\0",
]  # fmt: skip


@pytest.mark.parametrize("text", OTHERS, ids=range(len(OTHERS)))
def test_nothing_else_is_read(text: str) -> None:
    with pytest.raises(TraceError, match="condition on sizes that Einsmith cannot read"):
        Guards((("x", False),), (text,))


def test_violated_conditions_name_the_shapes() -> None:
    guards = Guards((("x", False), ("more", True)), ("L['x'].size()[0] == L['more'][0].size()[0]",))
    guards.check("Net", [np.zeros((3, 2)), np.zeros(3)])
    with pytest.raises(ShapeError, match=r"Net was exported for sizes where L\['x'\].*shapes are \(3, 2\), \(4,\)$"):
        guards.check("Net", [np.zeros((3, 2)), np.zeros(4)])


@pytest.mark.parametrize(
    "text", ["L['x'].size()[2] == 1", "1 // (L['x'].size()[0] - 3) == 1", "9 ** (99 * L['x'].size()[0]) > 1",
             "L['y'].size()[0] == 1", "L['x'][0] == 1", "1 << (99 * L['x'].size()[0]) > 0"],
)  # fmt: skip
def test_uncomputable_conditions_are_violated(text: str) -> None:
    with pytest.raises(ShapeError, match="it cannot be computed for these"):
        Guards((("x", False),), (text,)).check("Net", [np.zeros((3, 2))])
