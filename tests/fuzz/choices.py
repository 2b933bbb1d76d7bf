"""A source of choices that can be recorded, replayed and shrunk: integers in [0, n), 0 being the simplest."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any


class Choices:
    """`choices(n)` gives an integer in [0, n): at random, or as `given`, and 0 after its end. `taken` has them all."""

    def __init__(self, seed: str | int = 0, given: Sequence[int] | None = None):
        self.random = random.Random(seed)
        self.given = given
        self.taken: list[int] = []

    def __call__(self, n: int) -> int:
        if self.given is None:
            found = self.random.randrange(n)
        else:
            at = len(self.taken)
            found = min(self.given[at], n - 1) if at < len(self.given) else 0
        self.taken.append(found)
        return found

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self(len(options))]

    def chance(self, n: int) -> bool:
        """True once in n."""
        return self(n) == n - 1

    def some(self, options: Sequence[Any]) -> list[Any]:
        """Each with probability a half."""
        return [x for x in options if self(2)]

    def shuffled(self, options: Sequence[Any]) -> list[Any]:
        """In any order; that given for choices of 0."""
        left = list(options)
        return [left.pop(self(len(left))) for _ in range(len(left))]
