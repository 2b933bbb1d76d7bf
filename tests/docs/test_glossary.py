"""`docs/glossary.md`: every word is in the module that it is said to live in, and stands once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "glossary.md"


OURS, FIELDS = PAGE.read_text().split("## The field's words")


def rows(page: str) -> list[tuple[str, str]]:
    """(word, module) of every line of a table."""
    return re.findall(r"^\| ([^|]+?) \|.*\| `([\w/]+\.(?:py|c))` \|$", page, re.M)


def lines(page: str) -> list[str]:
    return [x for x in page.splitlines() if x.startswith("| ") and not x.startswith("| word")]


def lost(word: str, module: str) -> bool:
    """Whether one of the words of a line stands nowhere in its module; what is in brackets does not count."""
    text = (ROOT / "einsmith" / module).read_text().lower()
    names = re.sub(r"\(.*?\)|`", "", word).lower().split(",")
    return not all(re.search(_as_in_code(n.strip()), text) for n in names)


def _as_in_code(name: str) -> str:
    """`halo copy` is HaloCopy and halo_copy too."""
    return r"[\s_-]*".join(map(re.escape, re.split(r"[\s-]+", name)))


def test_words_live_where_the_page_says() -> None:
    assert 40 < len(rows(OURS)) == len(lines(OURS)) <= 60
    assert not [(w, m) for w, m in rows(OURS) if lost(w, m)]


def test_the_fields_words_have_a_source_and_a_module() -> None:
    assert len(rows(FIELDS)) == len(lines(FIELDS))
    assert not [(w, m) for w, m in rows(FIELDS) if not (ROOT / "einsmith" / m).exists()]
    assert all(x.count("|") == 5 and x.split("|")[3].strip() for x in lines(FIELDS))


def test_each_word_has_one_row() -> None:
    words = Counter(w for page in (OURS, FIELDS) for w, _ in rows(page))
    assert not [w for w, n in words.items() if n > 1]


def test_a_word_that_is_gone_is_seen() -> None:
    assert lost("nowhere", "ir/nodes.py") and not lost("template", "ir/nodes.py")
