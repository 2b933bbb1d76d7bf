"""`python -m tests.docs --update` makes the stages of docs/architecture.md and the tables of docs/aten.md and
docs/onnx.md anew; without it, prints the first."""

from __future__ import annotations

import sys

from tests.docs import aten, onnx
from tests.docs.architecture import PATH, updated

if __name__ == "__main__":
    page = updated(PATH.read_text())
    if "--update" in sys.argv[1:]:
        PATH.write_text(page)
        for other in (aten, onnx):
            other.PATH.write_text(other.page(other.PATH.read_text()))
    else:
        print(page)
