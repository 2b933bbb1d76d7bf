"""Complete the pages of the site while MkDocs builds it: programs as pages, and links where documents are named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = re.compile(r"`docs/([\w/]+\.md)`")


def programs() -> dict[str, Path]:
    """Return the Python files that are pages of the site, by the path of the page."""
    essays = {"from_scratch.md": ROOT / "docs" / "from_scratch.py"}
    notebooks = {f"notebooks/{p.stem}.md": p for p in sorted((ROOT / "notebooks").glob("*.py"))}
    return {page: path for page, path in (essays | notebooks).items() if path.exists()}


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
    """Return a page with a link wherever it names a document of this folder outside code: `docs/training.md`."""
    up = "../" * page.count("/")
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for n in range(0, len(parts), 2):
        parts[n] = DOCUMENT.sub(lambda m: f"[{title_of(m[1])}]({up}{m[1]})", parts[n])
    return "".join(parts)


def on_files(files: Any, config: Any) -> Any:
    """Add the programs that are pages."""
    from mkdocs.structure.files import File

    for page, path in programs().items():
        files.append(File.generated(config, page, content=page_of_program(path.read_text())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link the documents that the page names."""
    return link_documents(markdown, page.file.src_uri)
