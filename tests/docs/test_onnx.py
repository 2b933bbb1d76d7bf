"""docs/onnx.md says what the table has, and every operator of the standard stands somewhere in it."""

import onnx

from einsmith.frontends.onnx.refused import REFUSED
from einsmith.frontends.onnx.table import TABLE
from tests.docs.onnx import PATH, composed, page


def test_the_page_is_the_table():
    text = PATH.read_text()
    assert page(text) == text, "python -m tests.docs --update"


def test_every_operator_of_the_standard_is_there_or_refused():
    names = {f"{s.domain}.{s.name}" if s.domain else s.name for s in onnx.defs.get_all_schemas() if not s.deprecated}
    assert sorted(names - {*TABLE, *composed(), *REFUSED}) == []
    assert sorted({*TABLE, *composed()} & {*REFUSED}) == []
