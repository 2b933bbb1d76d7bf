"""docs/gallery.md shows each operator's formula and derived gradient as they are, and times that were measured."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.showpieces.case import FIELDS
from benchmarks.showpieces.collection import SHOWPIECES
from tests.docs import gallery

TEXT = gallery.PATH.read_text()


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if k % 4 else ()) for k, n in enumerate(SHOWPIECES)]
)
def test_a_section_is_as_the_operator_is(name: str) -> None:
    assert "\n".join(gallery.section(SHOWPIECES[name])) in TEXT, "python -m tests.docs --update makes it anew"


def test_the_page_has_every_operator_once_below_its_field() -> None:
    fields = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
    assert [f.partition("\n")[0].lower() for f in fields] == list(FIELDS)
    for text in fields:
        area = text.partition("\n")[0].lower()
        names = re.findall(r"^<summary>(.+?): ", text, re.MULTILINE)
        assert names == [n for n, piece in SHOWPIECES.items() if piece.area == area]


def test_times_are_those_that_were_measured() -> None:
    one, two = gallery.cells(1), gallery.cells(2)
    measured = json.loads(gallery.TIMES.read_text())["cells"]
    assert set(one) == set(SHOWPIECES) and {k.split("/")[0] for k in measured} == set(SHOWPIECES)
    for name, piece in SHOWPIECES.items():
        line = gallery.row(piece, one[name], two.get(name))
        assert line in TEXT
        assert ("slower" in line) == (gallery.ratio(one[name]) < 1)


def test_what_is_slower_is_named() -> None:
    cell = {"seconds": {"einsmith": 2e-3, "torch gather": 1e-3}, "bytes": {"einsmith": 2**20, "torch gather": 0}}
    cell["first"] = cell["seconds"]
    assert "| **0.5, slower** | ▌ |" in gallery.row(next(iter(SHOWPIECES.values())), cell, None)


@pytest.mark.parametrize(("ratio", "bar"), [(0.5, "▌"), (1, "█"), (2.3, "██▎"), (100, "█" * gallery.MOST_BLOCKS)])
def test_a_bar_is_as_long_as_the_speed_up(ratio: float, bar: str) -> None:
    assert gallery.bar(ratio) == bar


def test_pictures_are_there() -> None:
    named = re.findall(r"\]\((assets/gallery/[\w-]+\.png)\)", TEXT)
    assert len(named) == len(gallery.DRAWN)
    assert all((gallery.DOCS / path).stat().st_size < 120_000 for path in named)
