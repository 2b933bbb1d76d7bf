"""docs/aten.md says what the table has."""

from tests.docs.aten import PATH, page


def test_the_page_is_as_the_table_is():
    text = PATH.read_text()
    assert text == page(text), "python -m tests.docs --update makes it anew"
