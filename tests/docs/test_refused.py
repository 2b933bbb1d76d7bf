"""docs/torch.md lists the names that are refused."""

from tests.docs.refused import PATH, page


def test_the_page_is_as_the_table_is():
    text = PATH.read_text()
    assert text == page(text), "python -m tests.docs --update makes it anew"
