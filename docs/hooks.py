"""Complete the pages of the site while MkDocs builds it: programs as pages, files that a page names as pages of their
own, and links where documents and files are named."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = re.compile(r"`docs/([\w/]+\.md)`")
SOURCE = re.compile(r"`((?:einsmith|examples|tests|benchmarks)/[\w/]+\.(?:py|c|h))`")
LANGUAGES = {".py": "python", ".c": "c", ".h": "c"}


def programs() -> dict[str, Path]:
    """Return the Python files that are pages of the site, by the path of the page."""
    essays = {"from_scratch.md": ROOT / "docs" / "from_scratch.py"}
    notebooks = {f"notebooks/{p.stem}.md": p for p in sorted((ROOT / "notebooks").glob("*.py"))}
    return {page: path for page, path in (essays | notebooks).items() if path.exists()}


@cache
def named_files() -> dict[str, Path]:
    """Return the files of the source distribution that pages name in backticks, by the path of the file's page."""
    texts = [p.read_text() for p in (ROOT / "docs").rglob("*.md")]
    texts += [page_of_program(p.read_text()) for p in programs().values()]
    names = sorted({name for text in texts for name in SOURCE.findall(text)})
    return {f"files/{name}.md": ROOT / name for name in names if (ROOT / name).is_file()}


def page_of_file(path: Path) -> str:
    """Return a page that shows a file, left out of the search."""
    code = path.read_text()
    fence = "`" * max(4, 1 + max(map(len, re.findall("`+", code)), default=0))
    name = path.relative_to(ROOT).as_posix()
    said = "This file is a part of the source distribution" + ", and of the wheel" * name.startswith("einsmith/")
    return (
        f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n{said}.\n\n{fence}{LANGUAGES[path.suffix]}\n{code}{fence}\n"
    )


def page_of_program(text: str) -> str:
    """Return a program in jupytext's percent format as Markdown: its texts, and its code in fences."""
    parts = []
    for cell in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:  # before the first cell: jupytext's header
        kind, _, body = cell.partition("\n")
        body = body.strip("\n")
        if "[markdown]" in kind:
            parts.append(re.sub(r"^# ?", "", body, flags=re.MULTILINE))
        elif body:
            parts.append(f"```python\n{body}\n```")
    return "\n\n".join(parts) + "\n"


def title_of(path: str) -> str:
    """Return the first heading of a document, without its marks."""
    text = page_of_program(programs()[path].read_text()) if path in programs() else (ROOT / "docs" / path).read_text()
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return heading[1].replace("`", "") if heading else path


def link_documents(markdown: str, page: str) -> str:
    """Return a page with links wherever it names, outside code, a document of this folder or a file that has a page:
    `docs/training.md`, `examples/train_from_c.c`."""
    up = "../" * page.count("/")
    files = named_files()

    def link_file(m: re.Match[str]) -> str:
        return f"[{m[0]}]({up}files/{m[1]}.md)" if f"files/{m[1]}.md" in files else m[0]

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for n in range(0, len(parts), 2):
        parts[n] = DOCUMENT.sub(lambda m: f"[{title_of(m[1])}]({up}{m[1]})", parts[n])
        parts[n] = SOURCE.sub(link_file, parts[n])
    return "".join(parts)


def on_files(files: Any, config: Any) -> Any:
    """Add the programs that are pages, and the files that pages name."""
    from mkdocs.structure.files import File

    for page, path in programs().items():
        files.append(File.generated(config, page, content=page_of_program(path.read_text())))
    for page, path in named_files().items():
        files.append(File.generated(config, page, content=page_of_file(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link the documents that the page names."""
    is_file = page.file.src_uri.startswith("files/")
    return markdown if is_file else link_documents(markdown, page.file.src_uri)
