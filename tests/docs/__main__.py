"""`python -m tests.docs --update` makes the stages of docs/architecture.md and the tables of docs/aten.md anew; without
it, prints the former."""

from __future__ import annotations

import sys

from tests.docs import aten
from tests.docs.architecture import PATH, updated

if __name__ == "__main__":
    page = updated(PATH.read_text())
    if "--update" in sys.argv[1:]:
        PATH.write_text(page)
        aten.PATH.write_text(aten.page(aten.PATH.read_text()))
    else:
        print(page)
