"""`python -m tests.docs --update` generates what is generated of docs/: the stages in architecture.md, the tables in
aten.md, formulas.md, onnx.md and torch.md, gallery.md, the pages of reference/, the picture of speed on the home page;
and the declarations of operators for type checkers. Without it, the stages are printed."""

from __future__ import annotations

import sys

from tests.docs import aten, formulas, gallery, onnx, reference, refused, speed, stubs
from tests.docs.architecture import PATH, updated

if __name__ == "__main__":
    page = updated(PATH.read_text())
    if "--update" in sys.argv[1:]:
        PATH.write_text(page)
        for other in (aten, formulas, onnx, refused):
            other.PATH.write_text(other.page(other.PATH.read_text()))
        for name, generate in reference.PAGES.items():
            (reference.FOLDER / name).write_text(generate())
        gallery.draw_missing()
        gallery.PATH.write_text(gallery.page())
        speed.draw_outdated()
        stubs.FUNCTIONS.write_text(stubs.functions())
        stubs.LAYERS.write_text(stubs.layers())
    else:
        print(page)
