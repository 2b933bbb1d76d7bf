"""Fill in templates of Jinja2, all with the same options: values that are missing are errors, and lines that hold
statements alone leave nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from einsmith.base import locks


def render(template: Path, escapes: bool = False, **values: Any) -> str:
    """Return the text of a Jinja template with its variables replaced; it may include templates of the same folder.

    Args:
        template: the file of the template
        escapes: whether texts are escaped as HTML, except those that are `markup`
        values: the values of the variables, by name
    """
    with locks.IMPORTING:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=escapes,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    return environment.get_template(template.name).render(values)


def markup(text: str) -> Any:
    """Return a text that is HTML already."""
    with locks.IMPORTING:
        from markupsafe import Markup
    return Markup(text)
