"""Write the C header of a library, with documentation of its functions."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.base.templates import render
from einsmith.export.calls import LibraryCall
from einsmith.export.exported import ExportSubject
from einsmith.export.processors import Processor
from einsmith.export.source import RUNTIME
from einsmith.ir.nodes import size

CODES = {
    "OK": "0",
    "NOT_FINITE": "the loss is not finite; nothing was updated",
    "NO_MEMORY": "there is not enough memory",
    "NO_THREADS": "a thread cannot be started",
    "UNREADABLE": "a file cannot be read",
    "UNWRITABLE": "a file cannot be written",
    "FOREIGN_FILE": "a file is not a safetensors file, or is truncated",
    "SCHEDULE_ENDED": "a setting's table has no value for this step: set a value",
    "UNKNOWN_NAME": "there is no setting of this name",
    "BAD_NUMBER": "a number is out of its range",
}
"""Return codes and their meanings, in the order of runtime/machine.c."""


def header(
    name: str,
    subject: ExportSubject,
    calls: Sequence[LibraryCall],
    processor: Processor,
    version: str,
    violations: Sequence[str],
) -> str:
    """Return the text of NAME.h."""
    return render(
        RUNTIME / "public.h",
        name=name,
        NAME=name.upper(),
        subject=subject,
        calls=calls,
        processor=processor,
        version=version,
        violations=violations,
        codes=CODES,
        size=size,
    )
