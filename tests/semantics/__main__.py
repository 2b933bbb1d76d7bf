"""`python -m tests.semantics --update` writes docs/semantics.md; without it, prints the page."""

from __future__ import annotations

import sys

from tests.semantics.document import PATH, document

if __name__ == "__main__":
    import torch

    page = document(torch)
    if "--update" in sys.argv[1:]:
        PATH.write_text(page)
    else:
        print(page)
