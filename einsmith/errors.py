"""Every error class of Einsmith, which all derive from EinsmithError, and the category of its warnings."""

from __future__ import annotations

from typing import Any


class EinsmithError(Exception):
    """Base of every error that Einsmith raises on purpose."""


class EinsmithWarning(UserWarning):
    """Category of the warnings that a requested or stored setting is not used. Results stay right."""


class StoreWarning(EinsmithWarning, RuntimeWarning):
    """Category of the warnings that compiled code or a measurement cannot be written to disk or read from it. Work
    continues without the stored data."""


_WIDTH = 160  # characters of a line that a message shows


def _excerpt(line: str, place: int) -> tuple[str, int]:
    """A line, or of a long one what lies around a place, on which characters that do not print are marks; and where the
    place lies in it."""
    start = max(0, min(place - _WIDTH // 2, len(line) - _WIDTH))
    shown = "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}"
                    for c in line[start : start + _WIDTH])  # fmt: skip
    before, after = "... " if start else "", " ..." if start + _WIDTH < len(line) else ""
    return before + shown + after, place - start + len(before)


def marked(source: str, offset: int) -> str:
    """Return the line of a text at an offset, with its number and a caret below the place."""
    offset = min(max(offset, 0), len(source))
    start = source.rfind("\n", 0, offset) + 1
    end = source.find("\n", offset)
    line, place = _excerpt(source[start : end if end >= 0 else len(source)], offset - start)
    head = f"  line {source.count(chr(10), 0, offset) + 1}: "
    return f"{head}{line}\n" + " " * (place + len(head)) + "^"


class FormulaError(EinsmithError, ValueError):
    """A formula is wrong. Shows the line, a caret and what to write instead.

    message: one sentence; source: the whole text; offset: position of the fault in it; hint: the remedy.
    """

    def __init__(self, message: str, source: str | None = None, offset: int | None = None, hint: str | None = None):
        self.message, self.source, self.offset, self.hint = message, source, offset, hint
        text = message
        if source is not None and offset is not None:
            text += f"\n{marked(source, offset)}"
        if hint:
            text += f"\n  {hint}"
        super().__init__(text)


class RecurrenceError(FormulaError):
    """Tensors that read each other are no recurrence along any axis; the message names the read. `reader` and `read`
    are the tensors' stand-ins, where they have names."""

    def __init__(self, message: str, hint: str | None = None, reader: Any = None, read: Any = None):
        super().__init__(message, hint=hint)
        self.reader, self.read = reader, read


class ShapeError(EinsmithError, ValueError):
    """An array has the wrong rank or extent; the message names the array."""


class DtypeError(EinsmithError, TypeError):
    """An array has the wrong element type; the message names the array."""


class BoundsError(FormulaError):
    """A read cannot be proven in bounds; the message names the read, the axis, its range and the shape."""


class IndexOutOfRange(EinsmithError, IndexError):
    """An index computed from integer inputs leaves its tensor; nothing has been changed. Names the input, the element,
    its value, what it is no index into, and the line of the formula."""


class VerifyError(EinsmithError):
    """A graph breaks a rule of the IR. Names the pass and the tensor; it is a fault of Einsmith itself."""


class GradientError(EinsmithError, ValueError):
    """A gradient cannot be formed: names the read or the argument, and what would work."""


class TraceError(EinsmithError, TypeError):
    """Python asked a traced tensor for a value that exists only at run time."""


class CompileError(EinsmithError):
    """No pattern or code generator takes a kernel; names the tensor."""


class OutOfMemoryError(EinsmithError, MemoryError):
    """Error for tensors that need more memory than is available; the message gives the bytes requested."""


class BusyError(EinsmithError, RuntimeError):
    """The machine does something else, so that figures measured on it would be wrong; none were stored."""


class CheckError(EinsmithError):
    """A checked run (EINSMITH_CHECK) found generated code that is wrong: names the kernel, its formula, the buffer, the
    element, and the folder in which the fault can be repeated. It is a fault of Einsmith itself, or of LLVM."""


class NonFiniteError(EinsmithError, ArithmeticError):
    """The loss of a training step is not finite; nothing was updated. `step` counts from 1."""

    def __init__(self, message: str, step: int = 0, value: float = float("nan")):
        super().__init__(message)
        self.step, self.value = step, value


class LibraryError(EinsmithError, RuntimeError):
    """A function of an exported library returns a code that is not 0: `code`, whose meaning is the message."""

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code


class DataError(EinsmithError, OSError):
    """A data set is missing or damaged; says which files to put where."""


class SaveError(EinsmithError, OSError):
    """A save folder is missing, truncated, or not one of Einsmith's."""


class StoreError(EinsmithError, OSError):
    """The store of tuned configurations, or a file of them, cannot be read or written, or is none of Einsmith's."""


class ArgumentError(EinsmithError, ValueError):
    """An option has a value that it cannot have; the message names both."""


class MemoryLimitError(ArgumentError):
    """A program needs more memory than its limit. `needed`: the least limit that is found to be enough (bytes)."""

    def __init__(self, message: str, needed: int = 0):
        super().__init__(message)
        self.needed = needed


class KindError(ArgumentError, TypeError):
    """An argument is of another kind than it must be, or out of its range; the message names it and what it takes."""


class UnknownOptionError(ArgumentError, TypeError):
    """A keyword is none of those that a layer takes; the message shows near ones."""


class UnknownNameError(EinsmithError, KeyError):
    """A name is not one of those that exist; the message shows near ones."""

    def __str__(self) -> str:  # a KeyError would show its message in quotes
        return str(self.args[0])


class UnknownAttributeError(EinsmithError, AttributeError):
    """An object has no attribute of a name; the message shows near ones, or what to use instead."""


class KnobError(EinsmithError, ValueError):
    """An environment variable holds a value that it cannot have."""
