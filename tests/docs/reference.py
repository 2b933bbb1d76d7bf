"""Generate pages of docs/reference from the program: commands, environment variables, errors, operators, layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import click

from einsmith import nn
from einsmith.base import environment, errors
from einsmith.cli.main import app
from einsmith.nn.operator_layer import OperatorLayer
from einsmith.ops.table import OPERATORS
from tests.docs.tables import cell

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
NOTE = "\n\n<!-- generated: python -m tests.docs --update -->"
VARIABLES = """# Environment variables

Variables are read at each use, so that a program may set them after its imports. A value that is not accepted is an
`es.KnobError`; a name with the prefix that nothing reads is a warning."""
ERRORS = """# Errors

Every error that Einsmith raises on purpose derives from `EinsmithError`. Most also derive from the class of Python that
a program would catch without knowing Einsmith. Messages name the place and the remedy."""
FUNCTIONS = """# es.functional

Operators and losses under the names of `torch.nn.functional`, and tensor functions under those of `torch`. Each is a
formula: given arrays it is compiled and run, given traced tensors it extends the trace. `docs/torch.md` has the
differences from PyTorch's."""
LAYERS = """# es.nn

Layers have the arguments, initial values and state names of `torch.nn`, so that weights move both ways by name."""


def commands() -> str:
    """Return the page of the command line, from click's commands."""
    parts = ["# Command line" + NOTE, "", "What `einsmith COMMAND --help` prints.", ""]
    group = click.Context(app, info_name="einsmith", **app.context_settings)
    for name, command in app.commands.items():
        context = click.Context(command, group, name, terminal_width=100)
        parts += [f"## einsmith {name}", "", "```text", command.get_help(context).rstrip(), "```", ""]
    return "\n".join(parts)


def variables() -> str:
    """Return the page of environment variables."""
    rows = [VARIABLES + NOTE, "", "| variable | takes | default | meaning |", "| --- | --- | --- | --- |"]
    for knob in environment.ALL:
        default = "" if knob.default in (None, ()) else f"`{knob.default}`"
        rows.append(f"| `{knob.name}` | {cell(knob.accepts)} | {default} | {cell(knob.help)} |")
    return "\n".join([*rows, ""])


def error_classes() -> str:
    """Return the page of errors: each class with its bases and docstring."""
    parts = [ERRORS + NOTE]
    for name, kind in vars(errors).items():
        if not (isinstance(kind, type) and kind.__module__ == errors.__name__):
            continue
        bases = ", ".join(f"`{b.__name__}`" for b in kind.__bases__)
        parts += ["", f"## {name}", "", f"Derives from {bases}.", "", _prose(kind)]
    return "\n".join([*parts, ""])


def functions() -> str:
    """Return the page of `es.functional`, by families."""
    parts = [FUNCTIONS + NOTE]
    families: dict[str, list[str]] = {}
    for name, row in sorted(OPERATORS.items()):
        families.setdefault(row.call.__module__.removeprefix("einsmith.ops."), []).append(
            f"| `{name}{_signature(row.call)}` | {cell(_first(row.call))} |"
        )
    for family, rows in sorted(families.items()):
        parts += ["", f"## {family}", "", "| function | result |", "| --- | --- |", *rows]
    return "\n".join([*parts, ""])


def layers() -> str:
    """Return the page of `es.nn`."""
    parts = [LAYERS + NOTE]
    parts += ["", "::: einsmith.nn.Module", "", "::: einsmith.nn.Parameter", "", "::: einsmith.nn.functional_call", ""]
    own, made = [], []
    for name in sorted(nn.__all__):
        kind = getattr(nn, name)
        if not isinstance(kind, type) or name in ("Module", "Parameter"):
            continue
        if issubclass(kind, OperatorLayer):
            made.append((name, kind))
        else:
            own.append(f"| `{name}{_signature(kind)}` | {cell(_first(kind))} |")
    parts += ["## Layers", "", "| layer | |", "| --- | --- |", *own]
    parts += [
        "",
        "## Layers of one function",
        "",
        "Each applies a function of `es.functional`, whose settings are its arguments.",
    ]
    parts += ["", "| layer | function |", "| --- | --- |"]
    named = {row.layer: row.name for row in OPERATORS.values() if row.layer}
    parts += [f"| `{name}{_signature(kind)}` | `{named[name]}` |" for name, kind in made if name in named]
    return "\n".join([*parts, ""])


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": commands,
    "environment.md": variables,
    "errors.md": error_classes,
    "functional.md": functions,
    "nn.md": layers,
}


def _signature(call: Callable) -> str:
    """Return the names and defaults of a function's or class's arguments."""
    plain = []
    for p in inspect.signature(call).parameters.values():
        name = getattr(p.default, "__name__", None)  # a function would be shown with its address
        default = p.default if name is None or p.default is p.empty else _Named(name)
        plain.append(p.replace(annotation=p.empty, default=default))
    return str(inspect.Signature(plain))


class _Named(str):
    """A text that is shown without quotes."""

    __repr__ = str.__str__


def _first(thing: object) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())


def _prose(thing: object) -> str:
    return inspect.cleandoc(thing.__doc__ or "")
