"""Read documents for fine-tuning a language model: texts, pairs of prompt and completion, or token ids."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng

from einsmith.base import files
from einsmith.base.arguments import Count, check_arguments, show
from einsmith.base.errors import ArgumentError, DataError

KINDS = ".txt", ".jsonl"
"""Ends of the names of files that are read."""
_FIELDS = (("text",), ("prompt", "completion"), ("tokens",), ("input_ids",))
"""Fields of a row, one set of which it has; other fields are ignored."""
Encode = Callable[[str, bool], Sequence[int]]
"""Function from a text, and whether a document begins with it, to token ids."""


@dataclass(frozen=True, eq=False)
class Document:
    """The tokens of a document, int32 [n], the first `prompt` of which are not learned."""

    tokens: np.ndarray
    prompt: int = 0


@dataclass(frozen=True)
class _DocumentFile:
    """Reads the documents of one file; see `documents`."""

    path: Path
    encode: Encode | None
    vocabulary: int
    end: int | None

    def read(self, is_divided: bool) -> Iterator[Document]:
        try:
            content = files.read_bytes(self.path)
        except OSError as e:
            raise DataError(f"cannot read {self.path}: {e.strerror or e}") from e
        if self.path.suffix == ".txt":
            yield from self._texts(self._decode(content, str(self.path)), is_divided)
            return
        for n, line in enumerate(content.split(b"\n"), 1):
            if line.strip():
                yield self._row(self._decode(line, f"{self.path}, line {n}"), f"{self.path}, line {n}")

    def _decode(self, content: bytes, where: str) -> str:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as e:
            raise DataError(f"{where}: it is not UTF-8 text: {e}") from e

    def _texts(self, text: str, is_divided: bool) -> Iterator[Document]:
        if not is_divided:
            yield self._document(self._ids(text, True, str(self.path)), 0, str(self.path))
            return
        line = 1
        for n, part in enumerate(re.split(r"((?:[ \t\r]*\n){2,})", text)):
            if part.strip() and n % 2 == 0:
                where = f"{self.path}, line {line}"
                yield self._document(self._ids(part, True, where), 0, where)
            line += part.count("\n")

    def _row(self, line: str, where: str) -> Document:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise DataError(f"{where}: it is not JSON: {e}") from e
        if not isinstance(row, dict):
            raise DataError(f"{where}: it is {show(row)}, not an object of fields")
        known = [names for names in _FIELDS if any(name in row for name in names)]
        if len(known) != 1:
            kinds = " or ".join(map(_join, _FIELDS))
            has = _join([name for names in known for name in names if name in row] or list(row)) or "none"
            raise DataError(f"{where}: a row has the fields {kinds}; it has {has}")
        if lacking := [name for name in known[0] if name not in row]:
            raise DataError(f"{where}: the field {_join(lacking)} is missing")
        if known[0] in (("tokens",), ("input_ids",)):
            return self._token_row(row[known[0][0]], known[0][0], where)
        texts = [row[name] for name in known[0]]
        for name, text in zip(known[0], texts, strict=True):
            if not isinstance(text, str):
                raise DataError(f"{where}: the field {name!r} is {show(text)}, not a text")
        if not texts[-1]:
            raise DataError(f"{where}: the field {known[0][-1]!r} is empty, so there is nothing to learn")
        prompt = self._ids(texts[0], True, where) if len(texts) > 1 else []
        rest = self._ids(texts[-1], not len(texts) > 1, where)
        return self._document([*prompt, *rest], len(prompt), where)

    def _token_row(self, tokens: Any, name: str, where: str) -> Document:
        is_list = isinstance(tokens, list)
        wrong = next((t for t in tokens if type(t) is not int), None) if is_list else tokens
        if not is_list or wrong is not None:
            raise DataError(f"{where}: the field {name!r} must be a list of whole numbers; it has {show(wrong)}")
        return self._checked(tokens, 0, where)

    def _ids(self, text: str, begins: bool, where: str) -> Sequence[int]:
        if self.encode is None:
            raise DataError(f"{where}: texts need a tokenizer, and the model's folder has none (tokenizer.json)")
        return self.encode(text, begins)

    def _document(self, ids: Sequence[int], prompt: int, where: str) -> Document:
        """Return a document of texts, with the token that ends it."""
        if self.end is not None and (not ids or ids[-1] != self.end):
            ids = [*ids, self.end]
        return self._checked(ids, prompt, where)

    def _checked(self, ids: Sequence[int], prompt: int, where: str) -> Document:
        outside = next((n for n, t in enumerate(ids) if not 0 <= t < self.vocabulary), None)
        if outside is not None:
            raise DataError(
                f"{where}: token {ids[outside]} at place {outside} is beyond the model's vocabulary, which has the "
                f"numbers 0 to {self.vocabulary - 1}"
            )
        if len(ids) < 2 or prompt >= len(ids):
            raise DataError(
                f"{where}: it has {len(ids)} tokens; a token is learned from those before it, so 2 are needed"
            )
        return Document(np.array(ids, np.int32), prompt)


def _join(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


@check_arguments
def documents(
    path: str | os.PathLike,
    vocabulary: Count,
    encode: Encode | None = None,
    end: int | None = None,
    *,
    is_divided: bool = False,
) -> list[Document]:
    """Return the documents of a file, as tokens.

    A .jsonl file has a JSON object on each line, with the fields "text"; "prompt" and "completion", of which only the
    completion is learned; or "tokens" (or "input_ids"), which are taken as they are. A .txt file is one document, or
    several that blank lines divide.

    Args:
        path: the file, in UTF-8
        vocabulary: number of tokens that the model knows
        encode: function (text, whether a document begins with it) -> token ids
        end: token that ends a document of texts, which is added where it is not there; None: none is added
        is_divided: whether blank lines divide a .txt file into documents
    Raises:
        DataError: the file cannot be read, or a row is wrong; the message has the file, the line and the field.
    """
    file = Path(path)
    if file.suffix not in KINDS:
        raise DataError(f"{file}: a file of documents ends in {' or '.join(KINDS)}")
    out = list(_DocumentFile(file, encode, vocabulary, end).read(is_divided))
    if not out:
        raise DataError(f"{file} has no documents")
    return out


@check_arguments
def hold_out(all_documents: Sequence[Document], share: float, seed: int) -> tuple[list[Document], list[Document]]:
    """Return (documents to train on, documents held out), a function of the seed; each has one at least.

    A single document is divided instead: its end is held out. share: fraction that is held out. Raises ArgumentError.
    """
    if not 0 < share < 1:
        raise ArgumentError(f"share={share} must be between 0 and 1")
    if len(all_documents) == 1:
        (whole,) = all_documents
        n = len(whole.tokens)
        cut = min(max(round(n * (1 - share)), 2), n - 2)
        if whole.prompt or cut < 2:
            raise ArgumentError(
                "one document of this length cannot be divided into two; pass a file of its own instead"
            )
        return [Document(whole.tokens[:cut])], [Document(whole.tokens[cut:])]
    count = min(max(round(share * len(all_documents)), 1), len(all_documents) - 1)
    order = default_rng(seed).permutation(len(all_documents))
    parts = np.sort(order[count:]), np.sort(order[:count])
    train, held = ([all_documents[n] for n in part] for part in parts)
    return train, held
