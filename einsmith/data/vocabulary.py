"""Convert words or characters of a text to numbers and back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np

from einsmith.base.arguments import check_arguments, show
from einsmith.base.errors import ArgumentError, IndexOutOfRange, KindError

UNKNOWN = "<unk>"
UNITS = ("word", "character")
_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def tokens_of(text: str, unit: str = "word") -> list[str]:
    """Split a text into words in lower case, with every punctuation mark as a word of its own, or into characters.

    unit: "word" or "character". Raises ArgumentError."""
    if unit not in UNITS:
        raise ArgumentError(f"unit={unit!r} must be 'word' or 'character'")
    return _WORD.findall(text.lower()) if unit == "word" else list(text)


class Vocabulary:
    """Tokens and their numbers. Number 0 is "<unk>", the number of every token that is not in the vocabulary.

    tokens: tokens 1, 2, ..., in order; unit: "word" or "character", the tokens into which `encode` splits a text.
    Raises ArgumentError where a token appears twice.
    """

    @check_arguments
    def __init__(self, tokens: Iterable[str], unit: str = "word"):
        if unit not in UNITS:
            raise ArgumentError(f"unit={unit!r} must be 'word' or 'character'")
        self.unit = unit
        tokens = tuple(tokens)
        if not all(isinstance(t, str) for t in tokens):
            raise KindError(f"Vocabulary: tokens={show(tokens)} must be strings")
        self.tokens: tuple[str, ...] = (UNKNOWN, *tokens)
        self._number = {token: n for n, token in enumerate(self.tokens)}
        if len(self._number) != len(self.tokens):
            twice = next(t for t, k in Counter(self.tokens).items() if k > 1)
            raise ArgumentError(f"the vocabulary has {twice!r} twice")

    @classmethod
    @check_arguments
    def of(cls, text: str, unit: str = "word", size: Annotated[int, 2] | None = None) -> Vocabulary:
        """Return the vocabulary of the most frequent tokens of a text, ties in alphabetical order.

        size: most tokens, "<unk>" included; None for all."""
        counted = Counter(tokens_of(text, unit))
        ordered = sorted(counted, key=lambda token: (-counted[token], token))
        return cls(ordered if size is None else ordered[: size - 1], unit)

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._number

    def encode(self, text: str) -> np.ndarray:
        """Return the numbers of a text's tokens, int64 [n]."""
        tokens = tokens_of(text, self.unit)
        return np.fromiter((self._number.get(t, 0) for t in tokens), np.int64, len(tokens))

    def decode(self, numbers: Sequence[int] | np.ndarray) -> str:
        """Return the text of the tokens with the given numbers, words separated by spaces. Raises IndexOutOfRange."""
        indices = np.asarray(numbers, np.int64).ravel()
        outside = indices[(indices < 0) | (indices >= len(self))]
        if outside.size:
            raise IndexOutOfRange(f"{outside[0]} is outside the vocabulary, which has the numbers 0 to {len(self) - 1}")
        return (" " if self.unit == "word" else "").join(self.tokens[n] for n in indices)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} {self.unit}s)"
