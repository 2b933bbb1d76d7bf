"""The site of documentation: its generated pages are up to date, its navigation has every page, its links lead to pages
and headings that exist. `make docs` checks the last again, by MkDocs."""

from __future__ import annotations

import re
import unicodedata
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any

import pytest

from docs import hooks
from tests.docs import reference, speed
from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"
LINK = re.compile(r"(?<![\\!])\[(?:[^\[\]]|\\\[|\\\])*\]\(([^()\s]+)\)")


def pages() -> dict[str, str]:
    """Return the Markdown of every page of the site, by its path."""
    texts = {p.relative_to(DOCS).as_posix(): p.read_text() for p in DOCS.rglob("*.md")}
    texts |= {page: hooks.page_of_program(path.read_text()) for page, path in hooks.programs().items()}
    made = {page: hooks.link_documents(text, page) for page, text in texts.items()}
    return made | {page: hooks.page_of_file(path) for page, path in hooks.named_files().items()}


def prose(text: str) -> str:
    """Return a page without its code."""
    text = re.sub(r"^(````*).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "code", text)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs names them."""
    outside = re.sub(r"^(````*).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    made = set()
    for heading in re.findall(r"^#+ (.+)$", outside, re.MULTILINE):
        plain = unicodedata.normalize("NFKD", re.sub(r"[`\\]", "", heading)).encode("ascii", "ignore").decode()
        made.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return made | set(re.findall(r'id="([^"]+)"', text))


def broken(texts: dict[str, str]) -> list[str]:
    """Return the links that lead to no page or heading, each as "page: link"."""
    wrong = []
    for page, text in texts.items():
        for link in LINK.findall(prose(text)):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = page if not path else _normal(PurePosixPath(page).parent / path)
            if target not in texts and not (DOCS / target).is_file():
                wrong.append(f"{page}: {link}")
            elif anchor and anchor not in anchors(texts[target]):
                wrong.append(f"{page}: {link}")
    return wrong


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def test_links_lead_somewhere() -> None:
    assert broken(pages()) == []


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("see [this](b.md), [that](b.md#two-words) and [more](#own)\n\n# Own", []),
        ("see [this](c.md)", ["c.md"]),
        ("see [this](b.md#three)", ["b.md#three"]),
        ("see [this](#none)", ["#none"]),
        ("`sum[k](x)` and sum\\[k\\](x)\n\n```text\nsum[k](x)\n```\n", []),
        ("sum[k](x) would be a link", ["x"]),
        ("[elsewhere](https://example.org)", []),
    ],
)
def test_a_broken_link_is_seen(text: str, links: list[str]) -> None:
    assert broken({"a.md": text, "b.md": "# Two `words`\n"}) == [f"a.md: {link}" for link in links]


def test_the_navigation_has_every_page() -> None:
    listed = re.findall(r"^ +- (?:[^:\n]+: )?([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    own = [page for page in pages() if page not in hooks.named_files()]
    assert sorted(listed) == sorted(own), "mkdocs.yml lists the pages under nav"


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_pages_are_as_the_program_is(name: str) -> None:
    text = (reference.FOLDER / name).read_text()
    assert text == reference.PAGES[name](), "python -m tests.docs --update makes it anew"


@pytest.mark.parametrize("theme", speed.PICTURES)
def test_the_picture_of_speed_shows_the_recorded_figures(theme: str) -> None:
    shown = speed.strips()
    assert speed.recorded(speed.PICTURES[theme]) == [list(strip) for strip in shown], "python -m tests.docs --update"
    assert {*speed.LABELS} <= {name for strip in shown for name in strip.cases}
    assert min(value for strip in shown for value in strip.cases.values()) < 1  # cases that are slower are among them


def resolve(name: str) -> Any:
    """Return what a dotted name leads to: attributes of the longest module that it begins with; None for nothing."""
    parts = name.split(".")
    count = 1
    while count < len(parts) and hasattr(import_module(".".join(parts[:count])), "__path__"):
        if find_spec(".".join(parts[: count + 1])) is None:
            break
        count += 1
    thing: Any = import_module(".".join(parts[:count]))
    for part in parts[count:]:
        thing = getattr(thing, part, None)
    return thing


def test_every_directive_names_something() -> None:
    """`::: einsmith.jit` is resolved by mkdocstrings; here by importing."""
    for page, text in pages().items():
        for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
            thing = resolve(name)
            assert thing is not None, f"{page}: {name}"
            listed = re.search(
                rf"^::: {re.escape(name)}\n    options:\n(?:      .*\n)*?      members: \[(.*)\]", text, re.M
            )
            for member in listed[1].split(", ") if listed else ():
                assert hasattr(thing, member), f"{page}: {name}.{member}"


def test_programs_become_pages() -> None:
    text = "# ---\n# header\n# ---\n\n# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\nx = 1  # one\n\n\ndef f(): ...\n"
    assert hooks.page_of_program(text) == "# Title\n\nWords.\n\n```python\nx = 1  # one\n\n\ndef f(): ...\n```\n"


def test_named_documents_become_links() -> None:
    text = "See `docs/onnx.md`.\n\n```text\n`docs/onnx.md`\n```\n"
    assert hooks.link_documents(text, "reference/a.md").startswith("See [ONNX networks](../onnx.md).")
    assert hooks.link_documents(text, "a.md").count("(onnx.md)") == 1


def test_files_that_a_page_names_are_pages() -> None:
    """A reader of the site alone reaches the program in C, and the cells that a page speaks of."""
    shown = pages()
    for page, name in (("export.md", "examples/train_from_c.c"), ("recurrences.md", "einsmith/nn/cells.py")):
        assert f"[`{name}`](files/{name}.md)" in shown[page]
        assert (ROOT / name).read_text() in shown[f"files/{name}.md"]
    assert hooks.link_documents("`examples/none.py`", "a.md") == "`examples/none.py`"


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_asks_nothing_of_the_network(tmp_path, monkeypatch) -> None:
    """`make docs` builds it too; here its pages are read."""
    pytest.importorskip("material", reason="the site is built by mkdocs-material")
    pytest.importorskip("mkdocstrings", reason="its reference by mkdocstrings")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.chdir(ROOT)
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))
    texts = {p.relative_to(tmp_path).as_posix(): p.read_text() for p in tmp_path.rglob("*.html")}
    assert {p.replace(".md", ".html") for p in pages()} <= set(texts)
    fetched = re.compile(r"<(?:script|img|iframe)[^>]+src=.?(?:https?:)?//|<link[^>]+href=.?(?:https?:)?//")
    assert not [p for p, text in texts.items() if fetched.search(text)]
    styles = "".join(p.read_text() for p in tmp_path.rglob("*.css"))
    assert not re.search(r"url\(.?(?:https?:)?//", styles)


def test_an_asterisk_in_a_docstring_is_no_emphasis() -> None:
    """Formulas in docstrings are shown as they are written, those in code without a backslash."""
    pytest.importorskip("griffe", reason="what builds the documentation is not installed")
    from docs.docstrings import escape_asterisks

    text = "p*(1 - lr*decay), `a*b*c`:\n\n    x*y*z\n\n**kwargs\n```\na*b*c\n```\n"
    want = "p\\*(1 - lr\\*decay), `a*b*c`:\n\n    x*y*z\n\n\\*\\*kwargs\n```\na*b*c\n```\n"
    assert escape_asterisks(text) == want


MULTIPLIED = re.compile(r"[\w)\]]\*[\w(][^*\n]*[\w)\]]\*[\w(]")
"""Two asterisks between operands, which Markdown takes for emphasis and does not show."""


def test_formulas_on_pages_are_code() -> None:
    assert MULTIPLIED.search("x = 2*p + r, and x - 2*p") and not MULTIPLIED.search("it *gathers*, and *scatters*")
    shown = {page: text for page, text in pages().items() if not page.startswith("files/")}
    assert not [f"{page}: {m[0]}" for page, text in shown.items() for m in MULTIPLIED.finditer(prose(text))]
