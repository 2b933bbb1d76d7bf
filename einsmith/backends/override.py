"""Decisions that take the place of the model's choice: a kernel, the pattern that is to compile it, and its genes.

with override.overriding({"3f9a21": "contraction mr=6 nv=4"}):
    y = f(x)          # what is compiled in here
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from einsmith.decisions import name_of
from einsmith.errors import CompileError
from einsmith.kernels.pattern import describe
from einsmith.plan.kernel import Kernel, Rows

SHORTEST = 4
"""Digits of a kernel's digest that tell it from others, at least."""


class Overrides:
    """What has been decided, by the beginnings of kernels' digests (as `einsmith explain` prints them); `seen`: the
    kernels that were compiled meanwhile, `used`: the decisions that one of them follows."""

    def __init__(self, texts: Mapping[str, str]):
        self.texts = dict(texts)
        self.seen: dict[str, Kernel | Rows] = {}
        self.used: set[str] = set()
        for digest, text in self.texts.items():
            if len(digest) < SHORTEST or not set(digest) <= set("0123456789abcdef"):
                raise CompileError(
                    f"{digest!r} names no kernel: {SHORTEST} or more of the hexadecimal digits that `einsmith explain`"
                    " prints are needed"
                )
            if not text.split():
                raise CompileError(f"nothing is decided for the kernel {digest}: a pattern and genes are needed")

    def text_of(self, kernel: Kernel | Rows) -> str:
        """What is decided for a kernel; empty where nothing is. Raises CompileError where two decisions name it."""
        digest = name_of(kernel)
        self.seen[digest] = kernel
        found = [x for x in self.texts if digest.startswith(x)]
        if len(found) > 1:
            raise CompileError(f"the kernel {digest} is decided about twice: as {' and as '.join(found)}")
        self.used.update(found)
        return self.texts[found[0]] if found else ""


_OVERRIDES: ContextVar[Overrides | None] = ContextVar("overrides", default=None)


@contextmanager
def overriding(texts: Mapping[str, str]) -> Iterator[None]:
    """Kernels that are compiled inside follow these decisions, texts as `decisions.decided` reads them. Raises
    CompileError as that does, and, at the end, for a kernel that was not compiled."""
    made = Overrides(texts)
    token = _OVERRIDES.set(made)
    try:
        yield
    finally:
        _OVERRIDES.reset(token)
    missing = [x for x in made.texts if x not in made.used]
    if missing:
        known = "; ".join(f"{digest[:8]} ({describe(k)})" for digest, k in made.seen.items()) or "none"
        raise CompileError(f"no kernel {', '.join(missing)} was compiled; those that were: {known}")


def text_of(kernel: Kernel | Rows) -> str:
    """What is decided for a kernel here and now; empty where nothing is."""
    found = _OVERRIDES.get()
    return "" if found is None else found.text_of(kernel)
