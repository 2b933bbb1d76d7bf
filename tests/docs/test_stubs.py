"""The declarations for type checkers say what the table of operators has."""

from __future__ import annotations

import pytest

from tests.docs import stubs


@pytest.mark.parametrize("path, made", [(stubs.FUNCTIONS, stubs.functions), (stubs.LAYERS, stubs.layers)])
def test_declarations_are_as_the_table_is(path, made):
    assert path.read_text() == made(), "python -m tests.docs --update makes them anew"
