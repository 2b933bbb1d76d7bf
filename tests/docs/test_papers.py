"""The page of the five papers is what the files of results give."""

from __future__ import annotations

import re

from benchmarks.paper import __main__ as command
from benchmarks.paper import page


def test_the_page_is_made_of_the_files() -> None:
    papers = [command.paper(name) for name in command.PAPERS]
    assert page.PATH.read_text() == page.text(papers), "run: python -m benchmarks.paper --page"


def test_the_page_shows_the_drawings_that_there_are() -> None:
    shown = set(re.findall(r"assets/papers/([\w-]+\.svg)", page.PATH.read_text()))
    assert shown == {p.name for p in page.DRAWINGS.glob("*.svg")}


def test_the_readme_names_the_papers() -> None:
    readme = (page.DOCS.parent / "README.md").read_text()
    assert all(command.paper(name).title in readme for name in command.PAPERS)
