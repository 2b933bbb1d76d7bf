"""`python -m tests.docs --update` generates the stages of docs/architecture.md, the tables of docs/aten.md, docs/onnx.md
and docs/torch.md, pages of docs/reference, and the declarations of operators for type checkers; without it, prints the
first."""

from __future__ import annotations

import sys

from tests.docs import aten, onnx, reference, refused, stubs
from tests.docs.architecture import PATH, updated

if __name__ == "__main__":
    page = updated(PATH.read_text())
    if "--update" in sys.argv[1:]:
        PATH.write_text(page)
        for other in (aten, onnx, refused):
            other.PATH.write_text(other.page(other.PATH.read_text()))
        for name, generate in reference.PAGES.items():
            (reference.FOLDER / name).write_text(generate())
        stubs.FUNCTIONS.write_text(stubs.functions())
        stubs.LAYERS.write_text(stubs.layers())
    else:
        print(page)
