"""Declare every environment variable that Einsmith reads: its type, its default and its effect.

Variables are read at each use, so that a program may set them after importing Einsmith.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from einsmith.base import locks
from einsmith.base.errors import EinsmithWarning, KnobError
from einsmith.base.locks import cached_property

T = TypeVar("T")


def _is_set(name: str) -> Callable[[], bool]:
    """Return a fast predicate for whether a variable is set.

    Every call of a compiled function queries variables that are mostly unset, and `os.environ` takes ten times as long
    as the dictionary behind it. The predicate reads that dictionary where there is one, unless `os.environ` has been
    replaced by another mapping.
    """
    known, table, encode = os.environ, getattr(os.environ, "_data", None), getattr(os.environ, "encodekey", None)
    if not isinstance(table, dict) or encode is None or any(encode(n) not in table for n in known):
        return lambda: name in os.environ
    key = encode(name)
    return lambda: key in table if os.environ is known else name in os.environ


@dataclass(frozen=True)
class Knob(Generic[T]):
    """One environment variable. `parse` converts its text and raises ValueError for a bad one; `accepts` describes
    valid texts."""

    name: str
    default: T
    parse: Callable[[str], T]
    accepts: str
    help: str

    @cached_property
    def is_set(self) -> Callable[[], bool]:
        """Return a fast predicate for whether the variable is set at the time it is called."""
        return _is_set(self.name)

    def get(self) -> T:
        """Return the current value; the default where the variable is unset or empty. Raises KnobError for a bad
        value."""
        text = os.environ.get(self.name, "").strip() if self.is_set() else ""
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise KnobError(
                f"the environment variable {self.name} is {text!r}, but takes {self.accepts}; "
                f"set it to one of these, or unset it"
            ) from None


@contextmanager
def setting(knob: Knob[Any], text: str | None) -> Iterator[None]:
    """Set a variable inside the `with` block. None changes nothing."""
    if text is None:
        yield
        return
    before = os.environ.get(knob.name)
    os.environ[knob.name] = text
    try:
        yield
    finally:
        if before is None:
            del os.environ[knob.name]
        else:
            os.environ[knob.name] = before


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


def _path(text: str) -> Path:
    if "\0" in text:
        raise ValueError(text)
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError):  # no home folder, or no working directory
        raise ValueError(text) from None


def _folder(text: str) -> Path:
    path = _path(text)
    if not os.path.isdir(path):
        raise ValueError(text)
    return path


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _checks(text: str) -> tuple[int, bool]:
    """Return the level of checked runs, and whether gradients are checked."""
    words = _names(text)
    levels = [_whole(0, 2)(w) for w in words if w != "gradients"]
    if len(levels) > 1 or len(words) > len(levels) + 1:
        raise ValueError(text)
    return (levels or [0])[0], len(words) > len(levels)


SIZE_CHOICES = EACH, SHARED, AUTO = "each", "shared", "auto"
"""Whether each size has a program of its own, or several sizes share one; AUTO: several batch sizes of a function that
stores nothing share one where it takes no longer (docs/sizes.md)."""


def _sizes(text: str) -> str:
    if text not in SIZE_CHOICES:
        raise ValueError(text)
    return text


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?|[a-z]\d+", text):
        raise ValueError(text)
    return text


DEBUG: Knob[int] = Knob(
    "EINSMITH_DEBUG",
    0,
    _whole(0, 7),
    "a whole number from 0 to 7",
    "1 timings and kernel counts, 2 kernels and configurations, 3 chosen and rejected costs, 4 loop nests, 5 LLVM IR, "
    "6 every pass, 7 everything; each level prints what the lower ones print",
)
THREADS: Knob[int | None] = Knob(
    "EINSMITH_THREADS",
    None,
    _whole(1, 4096),
    "a whole number from 1 to 4096",
    "threads that run a program; by default the physical cores that the process may use",
)
CALIBRATE: Knob[int] = Knob(
    "EINSMITH_CALIBRATE",
    1,
    _whole(0, 1),
    "0 or 1",
    "1 measures the machine at its first use (about a second, once) and stores the figures; 0 chooses kernels by "
    "static figures of the processor, as 1 does until the machine was once not busy while it was measured",
)
TUNED: Knob[int] = Knob(
    "EINSMITH_TUNED",
    1,
    _whole(0, 1),
    "0 or 1",
    "1 compiles tuned kernels to the fastest configuration that tuning has found (`einsmith tune --list`); 0 compiles "
    "all kernels to the choice of the cost model",
)
PLANS: Knob[int] = Knob(
    "EINSMITH_PLANS",
    1,
    _whole(0, 1),
    "0 or 1",
    "1 keeps the plans of programs on disk beside their code, so that a later process need not plan them again; 0 "
    "plans every program anew",
)
CACHE_DIR: Knob[Path | None] = Knob(
    "EINSMITH_CACHE_DIR",
    None,
    _path,
    "the path of a directory",
    "folder of compiled code and measurements; by default in the user's cache directory",
)
CACHE_LIMIT: Knob[int] = Knob(
    "EINSMITH_CACHE_LIMIT",
    512,
    _whole(1, 1 << 20),
    "a whole number of megabytes, at least 1",
    "limit of compiled code on disk, in megabytes; the least recently used code is removed first",
)
DATA_DIR: Knob[Path | None] = Knob(
    "EINSMITH_DATA_DIR",
    None,
    _folder,
    "the path of a directory that exists",
    "folder that is searched for data sets first; downloaded ones are stored in the cache directory",
)

CHECK: Knob[tuple[int, bool]] = Knob(
    "EINSMITH_CHECK",
    (0, False),
    _checks,
    "0, 1, 2, gradients, or two of them, separated by a comma",
    "1 runs every kernel on guarded memory and compares its results with the evaluator, in its first runs and then "
    "less and less often; 2 does so in every run; gradients compares the derived gradients of each training step with "
    "central differences at its first run (docs/checking.md)",
)
DUMP: Knob[Path | None] = Knob(
    "EINSMITH_DUMP",
    None,
    _path,
    "the path of a directory",
    "folder to which the graph after every pass, the plan, the arena and the steps of each compiled program are "
    "written, in a subfolder per program; by default none",
)
TRACE: Knob[Path | None] = Knob(
    "EINSMITH_TRACE",
    None,
    _path,
    "the path of a file",
    "file to which the phases of compilation and every run are written at the process's exit, as Chrome trace events "
    "for Perfetto (docs/tracing.md); %p in its name is the process's number; by default none",
)
WITHOUT: Knob[tuple[str, ...]] = Knob(
    "EINSMITH_WITHOUT",
    (),
    _names,
    "names of passes, separated by commas",
    "passes to leave out of programs compiled from now on, to measure their effect: those of "
    "einsmith/passes/pipeline.py and einsmith/schedule/pipeline.py that are not required, and parts of them "
    "(einsmith/schedule/options.py)",
)

SIZES: Knob[str] = Knob(
    "EINSMITH_SIZES",
    EACH,
    _sizes,
    "auto, each or shared",
    "each compiles a program for each size; shared compiles one for all sizes up to a capacity, once a second size of "
    "a dimension is seen (docs/sizes.md); auto does so, of programs that store nothing among batch sizes where that "
    "costs no time, until a size that has run 500 times gets its own. Unset: each in es.jit and TrainStep, auto in "
    "PyTorch. The argument `sizes` of es.jit, TrainStep and torch.compile's options takes its place",
)
DEVICE: Knob[str] = Knob(
    "EINSMITH_DEVICE",
    "cpu",
    _device,
    "cpu, cuda, or a card by its number, as in cuda:1",
    "device on which programs compiled from now on run (docs/gpu.md). The argument `device` of es.jit and TrainStep "
    "takes its place",
)
ALL: tuple[Knob, ...] = (
    DEBUG,
    THREADS,
    CALIBRATE,
    TUNED,
    PLANS,
    CACHE_DIR,
    CACHE_LIMIT,
    DATA_DIR,
    CHECK,
    DUMP,
    TRACE,
    WITHOUT,
    SIZES,
    DEVICE,
)


def warn_unknown(names: Collection[str]) -> None:
    """Warn of variables that have the prefix of Einsmith's but that nothing reads."""
    prefix = "EINSMITH_"
    known = [k.name for k in ALL]
    unknown = sorted(n for n in names if n.startswith(prefix) and n not in known)
    if not unknown:
        return
    with locks.IMPORTING:
        from difflib import get_close_matches  # imported late: nearly always nothing is unknown
    for name in unknown:
        near = get_close_matches(name.removeprefix(prefix), [n.removeprefix(prefix) for n in known], 1)
        hint = f"did you mean {prefix}{near[0]}?" if near else f"there are {', '.join(known)}"
        warnings.warn(f"Einsmith reads no environment variable {name}; {hint}", EinsmithWarning, 2)


def debug() -> int:
    """Return the level of EINSMITH_DEBUG."""
    return DEBUG.get()


def check_level() -> int:
    """Return the level of checked runs (EINSMITH_CHECK): 0 for none."""
    return CHECK.get()[0]


def checks_gradients() -> bool:
    """Return whether gradients of training steps are checked (EINSMITH_CHECK=gradients)."""
    return CHECK.get()[1]


def cache_dir() -> Path:
    """Return the directory of compiled code and measurements (it need not exist yet)."""
    configured = CACHE_DIR.get()
    if configured is not None:
        return configured
    with locks.IMPORTING:
        from platformdirs import user_cache_dir  # imported late: it is needed only where the variable is unset

    with suppress(RuntimeError):  # there is no home folder, as for a number without a name, which containers run under
        path = Path(user_cache_dir("einsmith", appauthor=False))
        if path.is_absolute():  # older versions of platformdirs return "~/.cache" instead
            return path
    return Path(os.environ.get("TMPDIR") or "/tmp").absolute() / f"einsmith-{getattr(os, 'geteuid', int)()}"


def data_dir() -> Path:
    """Return the directory of data sets (it need not exist yet)."""
    return DATA_DIR.get() or cache_dir() / "data"


warn_unknown(os.environ)
