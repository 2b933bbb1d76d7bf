"""The table of the cost model's constants: it is the only one, and every constant says what it is."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import einsmith
from benchmarks import constants
from einsmith.cost import overheads
from einsmith.cost.overheads import Instructions, Overheads

PRICE = re.compile(r"_?[A-Z0-9_]*(CYCLES|SECONDS|COST|INSTRUCTIONS|LATENCY)\b")


def prices(module: ast.Module) -> list[str]:
    """Constants of a module that are prices by their names, but for limits."""
    out = []
    for x in module.body:
        for name in [t for t in getattr(x, "targets", []) if isinstance(x, ast.Assign)]:
            out += [n.id for n in ast.walk(name) if isinstance(n, ast.Name) and PRICE.fullmatch(n.id)]
    return [n for n in out if not re.match(r"_?(MAX|MIN)_", n)]


def test_patterns_have_no_prices_of_their_own() -> None:
    assert prices(ast.parse("A_COST, B = 3, 4\nMAX_COST = 1\nGATHER_CYCLES = 2.0")) == ["A_COST", "GATHER_CYCLES"]
    files = (Path(einsmith.__file__).parent / "kernels").rglob("*.py")
    assert not {p.name: found for p in files if (found := prices(ast.parse(p.read_text())))}


@pytest.mark.parametrize("table", [Overheads, Instructions])
def test_every_constant_says_what_it_is(table: type) -> None:
    (body,) = [x.body for x in ast.parse(inspect.getsource(overheads)).body if getattr(x, "name", "") == table.__name__]
    told = {
        x.target.id: y.value.value
        for x, y in zip(body, body[1:], strict=False)
        if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)
        if isinstance(y, ast.Expr) and isinstance(y.value, ast.Constant)
    }
    assert told.keys() == {f.name for f in fields(table)} and all(str(x).strip().endswith(".") for x in told.values())


def test_every_price_can_be_taken_away() -> None:
    """The benchmark that finds what decides nothing knows them all."""
    every = constants.neutral()
    assert {f.name for f in fields(Overheads)} <= every.keys()
    table = Overheads()
    assert not [f.name for f in fields(table) if every[f.name] == getattr(table, f.name)]
