"""Override the model's choice: fix a kernel's pattern and genes within a `with` block.

with override.overriding({"3f9a21": "contraction mr=6 nv=4"}):
    y = f(x)          # compiled with the override
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from einsmith.base.errors import CompileError
from einsmith.kernels.pattern import describe
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.decisions import name_of

MIN_DIGITS = 4
"""Fewest hexadecimal digits of a kernel's digest that an override may give."""


class Overrides:
    """Decisions by the leading digits of kernels' digests (as `einsmith explain` prints them). `compiled`: the kernels
    compiled while the overrides are active; `used`: the decisions that some kernel follows."""

    def __init__(self, texts: Mapping[str, str]):
        self.texts = dict(texts)
        self.compiled: dict[str, Kernel] = {}
        self.used: set[str] = set()
        for digest, text in self.texts.items():
            if len(digest) < MIN_DIGITS or not set(digest) <= set("0123456789abcdef"):
                raise CompileError(
                    f"{digest!r} does not name a kernel: {MIN_DIGITS} or more of the hexadecimal digits that "
                    "`einsmith explain` prints are needed"
                )
            if not text.split():
                raise CompileError(f"the override of the kernel {digest} is empty: a pattern and genes are needed")

    def text_of(self, kernel: Kernel) -> str:
        """Return the decision for a kernel; empty where there is none. Raises CompileError where two decisions name
        the kernel."""
        digest = name_of(kernel)
        self.compiled[digest] = kernel
        matches = [x for x in self.texts if digest.startswith(x)]
        if len(matches) > 1:
            raise CompileError(f"the kernel {digest} has two overrides: {' and as '.join(matches)}")
        self.used.update(matches)
        return self.texts[matches[0]] if matches else ""


_OVERRIDES: ContextVar[Overrides | None] = ContextVar("overrides", default=None)


@contextmanager
def overriding(texts: Mapping[str, str]) -> Iterator[None]:
    """Compile kernels inside the `with` block to these decisions. `texts`: as `decisions.parse_choice` reads them.
    Raises CompileError for a text that cannot be read, and, at the end, for a kernel that was not compiled."""
    overrides = Overrides(texts)
    token = _OVERRIDES.set(overrides)
    try:
        yield
    finally:
        _OVERRIDES.reset(token)
    missing = [x for x in overrides.texts if x not in overrides.used]
    if missing:
        known = "; ".join(f"{digest[:8]} ({describe(k)})" for digest, k in overrides.compiled.items()) or "none"
        raise CompileError(f"no kernel {', '.join(missing)} was compiled; those that were: {known}")


def is_active() -> bool:
    """Return whether the configurations of some kernels are decided by `overriding`."""
    return _OVERRIDES.get() is not None


def text_of(kernel: Kernel) -> str:
    """Return the decision that the active overrides hold for a kernel; empty where there is none."""
    overrides = _OVERRIDES.get()
    return "" if overrides is None else overrides.text_of(kernel)
