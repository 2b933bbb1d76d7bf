"""`python -m tests.docs --update` prints the stages of docs/architecture.md anew; without it, prints the page."""

from __future__ import annotations

import sys

from tests.docs.architecture import PATH, updated

if __name__ == "__main__":
    page = updated(PATH.read_text())
    if "--update" in sys.argv[1:]:
        PATH.write_text(page)
    else:
        print(page)
