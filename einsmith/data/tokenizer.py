"""Turn texts to tokens and back as published language models do: `tokenizer.json` by the package tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from einsmith.base import files, locks
from einsmith.base.arguments import check_arguments
from einsmith.base.errors import DataError

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
"""Fields of tokenizer_config.json that name a token with a meaning of its own."""
LISTS = ("additional_special_tokens", "extra_special_tokens")
"""Fields of tokenizer_config.json that list further ones."""


class Tokenizer:
    """The tokenizer of a published folder: ids of a text, and the text of ids.

    Truncation and padding that tokenizer.json asks for are left out. Chat templates are not read.

    Args:
        folder: the folder with tokenizer.json and, where special tokens are named, tokenizer_config.json

    Raises:
        DataError: a file is missing or damaged.
        ImportError: the package tokenizers is missing.
    """

    @check_arguments
    def __init__(self, folder: str | PathLike):
        with locks.IMPORTING:
            try:
                import tokenizers
            except ImportError as e:
                raise ImportError(
                    "texts of language models need the package tokenizers: pip install 'einsmith[language]'"
                ) from e
        place = Path(folder)
        settings = _read_settings(place / SETTINGS)
        try:
            self._inner: Any = tokenizers.Tokenizer.from_str(files.read_bytes(place / FILE).decode())
        except OSError as e:
            raise DataError(
                f"{place / FILE} cannot be read ({e.strerror or e}); pass tokens as numbers, or add it"
            ) from e
        except Exception as e:  # the library raises plain exceptions
            raise DataError(f"{place / FILE} is no tokenizer of the package tokenizers ({e}); download it again") from e
        self._inner.no_truncation()
        self._inner.no_padding()
        names = {field: _content(settings.get(field)) for field in SPECIAL}
        try:
            self._add(tokenizers.AddedToken, settings, [n for n in names.values() if n], place)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise DataError(f"{place / SETTINGS} lists its special tokens in an unknown form ({e!r})") from e
        self.bos, self.eos = (self._id(names[field]) for field in SPECIAL[:2])
        if "add_bos_token" in settings or "add_eos_token" in settings:
            ends = (
                settings.get("add_bos_token") and names["bos_token"],
                settings.get("add_eos_token") and names["eos_token"],
            )
            self._inner.post_processor = self._frame(tokenizers.processors.TemplateProcessing, *ends)

    bos: int | None
    """Token that begins a text; None where there is none."""
    eos: int | None
    """Token that ends a text; None where there is none."""

    def _add(self, make: Any, settings: Mapping[str, Any], names: list[str], place: Path) -> None:
        """Add tokens of tokenizer_config.json that tokenizer.json lacks, and mark the special ones."""
        entries = settings.get("added_tokens_decoder") or {}
        for number, entry in sorted(entries.items(), key=lambda x: int(x[0])):
            flags = {n: entry[n] for n in ("single_word", "lstrip", "rstrip", "normalized") if n in entry}
            token = make(entry["content"], special=bool(entry.get("special")), **flags)
            if self._id(entry["content"]) is None:
                self._inner.add_tokens([token])
            if self._id(entry["content"]) != int(number):
                raise DataError(f"{place / SETTINGS}: token {entry['content']!r} cannot have the number {number}")
        for field in LISTS:
            listed = settings.get(field) or ()
            names = names + [
                c for t in (listed.values() if isinstance(listed, Mapping) else listed) if (c := _content(t))
            ]
        own = {t.content for t in self._inner.get_added_tokens_decoder().values() if t.special}
        self._inner.add_special_tokens([n for n in names if n not in own and self._id(n) is not None])

    def _frame(self, make: Any, bos: str | None, eos: str | None) -> Any:
        """Return the step that puts tokens before and behind those of a text."""
        ends = [n for n in (bos, eos) if n and self._id(n) is not None]
        parts = [f"{n}:0" if n in ends else "" for n in (bos, eos)]
        return make(single=" ".join(p for p in (parts[0], "$A:0", parts[1]) if p),
                    special_tokens=[(n, self._id(n)) for n in dict.fromkeys(ends)])  # fmt: skip

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._inner.token_to_id(token)

    def __len__(self) -> int:
        return self._inner.get_vocab_size()

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return the tokens of a text; special: with those that the model puts at its beginning and end."""
        return self._inner.encode(text, add_special_tokens=special).ids

    def decode(self, tokens: Iterable[int], special: bool = False) -> str:
        """Return the text of tokens; special: with the texts of special tokens."""
        return self._inner.decode([int(t) for t in tokens], skip_special_tokens=not special)


def _content(token: Any) -> str | None:
    """Return the text of a special token, whose field is the text or an object with the text and flags."""
    return token.get("content") if isinstance(token, Mapping) else token


def _read_settings(file: Path) -> dict[str, Any]:
    """Return the content of tokenizer_config.json, empty where there is none. Raises DataError."""
    if not files.exists(file):
        return {}
    try:
        content = json.loads(files.read_bytes(file))
    except (OSError, ValueError, RecursionError) as e:
        raise DataError(f"{file} cannot be read ({e}); download it again") from e
    if not isinstance(content, dict):
        raise DataError(f"{file} holds no JSON object; download it again")
    return content
