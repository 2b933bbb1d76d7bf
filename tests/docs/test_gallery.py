"""docs/gallery.md shows each operator's formula and derived gradient as they are, and times that were measured."""

from __future__ import annotations

import json
import re

import pytest

from tests.docs import gallery
from tests.papers.speed import SIZES

TEXT = gallery.PATH.read_text()


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if k % 4 else ()) for k, n in enumerate(SIZES)]
)
def test_a_section_is_as_the_operator_is(name: str) -> None:
    made = "\n".join(gallery.section(name))
    assert made in TEXT, "python -m tests.docs --update makes it anew"


def test_the_page_has_every_operator_once() -> None:
    assert re.findall(r"^## (.+)$", TEXT, re.MULTILINE) == list(SIZES) and len(SIZES) >= 30


def test_times_are_those_that_were_measured() -> None:
    found = json.loads(gallery.TIMES.read_text())
    assert set(found["operators"]) == set(SIZES)
    for name, row in found["operators"].items():
        assert row["sizes"] == SIZES[name], f"{name} has been measured at other sizes"
        (line,) = re.findall(rf"^\| \[{re.escape(name)}\].*$", TEXT, re.MULTILINE)
        own, peers = row["ms"]["einsmith"], [ms for peer, ms in row["ms"].items() if peer != "einsmith"]
        assert f"| {own:.3g} | {min(peers):.3g} (" in line and line.endswith(f"| {gallery.times(min(peers) / own)} |")


def test_pictures_are_there() -> None:
    named = re.findall(r"\]\((assets/gallery/[\w-]+\.png)\)", TEXT)
    assert len(named) == len(gallery.DRAWN)
    assert all((gallery.DOCS / path).stat().st_size < 120_000 for path in named)
