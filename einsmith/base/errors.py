"""Define every error class of Einsmith, all derived from EinsmithError, and the categories of its warnings."""

from __future__ import annotations

from typing import Any


class EinsmithError(Exception):
    """Base of every error that Einsmith raises on purpose."""


class EinsmithWarning(UserWarning):
    """Category of the warnings that a requested or stored setting is not used. Results stay right."""


class StoreWarning(EinsmithWarning, RuntimeWarning):
    """Category of the warnings that compiled code or a measurement cannot be written to disk or read from it. Work
    continues without the stored data."""


_WIDTH = 160  # most characters of a line in a message


def escape_text(text: str) -> str:
    """Return a text of a file with its control characters, line breaks and lone surrogates as escape sequences, so that
    printing it changes nothing but the line that it is part of."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _excerpt(line: str, place: int) -> tuple[str, int]:
    """Return a line, or the surroundings of a place in a long line, with unprintable characters marked, and the place's
    offset in it."""
    start = max(0, min(place - _WIDTH // 2, len(line) - _WIDTH))
    shown = "".join(
        c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}"
        for c in line[start : start + _WIDTH]
    )
    before, after = "... " if start else "", " ..." if start + _WIDTH < len(line) else ""
    return before + shown + after, place - start + len(before)


def line_number(source: str, offset: int) -> int:
    """Return the number of the line of a text at an offset, from 1 on."""
    return source.count("\n", 0, offset) + 1


def mark(source: str, offset: int) -> str:
    """Return the line of a text at an offset, with its number and a caret below the place."""
    offset = min(max(offset, 0), len(source))
    start = source.rfind("\n", 0, offset) + 1
    end = source.find("\n", offset)
    line, place = _excerpt(source[start : end if end >= 0 else len(source)], offset - start)
    head = f"  line {line_number(source, offset)}: "
    return f"{head}{line}\n" + " " * (place + len(head)) + "^"


class FormulaError(EinsmithError, ValueError):
    """Error in a formula. The message shows the line, a caret and what to write instead.

    message: one sentence; source: the whole text; offset: position of the fault in it; hint: the remedy.
    """

    def __init__(self, message: str, source: str | None = None, offset: int | None = None, hint: str | None = None):
        self.message, self.source, self.offset, self.hint = message, source, offset, hint
        text = message
        if source is not None and offset is not None:
            text += f"\n{mark(source, offset)}"
        if hint:
            text += f"\n  {hint}"
        super().__init__(text)


class RecurrenceError(FormulaError):
    """Error for tensors that read each other but are not a recurrence along any axis; the message names the read.

    `reader` and `read` are the tensors' placeholders, where they have names.
    """

    def __init__(self, message: str, hint: str | None = None, reader: Any = None, read: Any = None):
        super().__init__(message, hint=hint)
        self.reader, self.read = reader, read


class ShapeError(EinsmithError, ValueError):
    """Error for an array with the wrong rank or extent; the message names the array."""


class DtypeError(EinsmithError, TypeError):
    """Error for an array with the wrong element type; the message names the array."""


class BoundsError(FormulaError):
    """Error for a read that cannot be proven in bounds; the message names the read, the axis, its range and the
    shape."""


class IndexOutOfRange(EinsmithError, IndexError):
    """Error for an index computed from integer inputs that leaves its tensor; nothing has been changed.

    The message names the input, the element, its value, the tensor that it does not index, and the line of the formula.
    """


class VerifyError(EinsmithError):
    """Error for a graph that breaks a rule of the IR, naming the pass and the tensor; it is a fault of Einsmith
    itself."""


class GradientError(EinsmithError, ValueError):
    """Error for a gradient that cannot be formed; the message names the read or the argument, and what would work."""


class TraceError(EinsmithError, TypeError):
    """Error for Python code that needs a traced tensor's value, which exists only at run time."""


class CompileError(EinsmithError):
    """Error for a kernel that no pattern or code generator takes; the message names the tensor."""


class OutOfMemoryError(EinsmithError, MemoryError):
    """Error for tensors that need more memory than is available; the message gives the bytes requested."""


class DeviceError(EinsmithError, RuntimeError):
    """Error for a device that cannot be used: there is no driver or no such card, or it reports a failure, whose number
    is `code`."""

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code


class GroupError(EinsmithError, RuntimeError):
    """Error for a group of processes: they differ in what must be equal, or one of them has ended or failed."""


class BusyError(EinsmithError, RuntimeError):
    """Error for measurements on a machine that is busy with other work: the figures would be wrong; none were
    stored."""


class CheckError(EinsmithError):
    """Error for wrong generated code, found by a checked run (EINSMITH_CHECK).

    The message names the kernel, its formula, the buffer, the element, and the folder in which the fault can be
    reproduced. It is a fault of Einsmith itself, or of LLVM.
    """


class NonFiniteError(EinsmithError, ArithmeticError):
    """Error for a training step whose loss is not finite; nothing was updated. `step` counts from 1."""

    def __init__(self, message: str, step: int = 0, value: float = float("nan")):
        super().__init__(message)
        self.step, self.value = step, value


class LibraryError(EinsmithError, RuntimeError):
    """Error for a function of an exported library that returns a code other than 0: `code`, whose meaning is the
    message."""

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code


class DataError(EinsmithError, OSError):
    """Error for a data set that is missing or damaged; the message says which files to put where."""


class SaveError(EinsmithError, OSError):
    """Error for a save folder that is missing, truncated, or not one of Einsmith's."""


class StoreError(EinsmithError, OSError):
    """Error for a store of tuned configurations, or a file of them, that cannot be read or written or is not in
    Einsmith's format."""


class ArgumentError(EinsmithError, ValueError):
    """Error for an option with an invalid value; the message names both."""


class MemoryLimitError(ArgumentError):
    """Error for a program that needs more memory than its limit. `needed`: the least sufficient limit that was found
    (bytes)."""

    def __init__(self, message: str, needed: int = 0):
        super().__init__(message)
        self.needed = needed


class KindError(ArgumentError, TypeError):
    """Error for an argument of the wrong kind or out of range; the message names it and what is accepted."""


class UnknownOptionError(ArgumentError, TypeError):
    """Error for a keyword that a layer does not take; the message shows near ones."""


class UnknownNameError(EinsmithError, KeyError):
    """Error for a name that does not exist; the message shows near ones."""

    def __str__(self) -> str:  # a KeyError would show its message in quotes
        return str(self.args[0])


class UnknownAttributeError(EinsmithError, AttributeError):
    """Error for an attribute that an object does not have; the message shows near ones, or what to use instead."""


class KnobError(EinsmithError, ValueError):
    """Error for an environment variable with an invalid value."""
