"""Continue texts by published language models: `einsmith generate`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from einsmith import models
from einsmith.base import files
from einsmith.data import Tokenizer
from einsmith.models.generation import stream
from einsmith.nn import Module
from einsmith.runtime.thread_count import set_threads

DEFAULT_TOKENS = 128
"""Tokens that follow a text at most, where nothing else is said."""
UNFINISHED = "\ufffd"
"""Character that stands for the bytes of a character of which further tokens are to come."""


def load_model(folder: Path) -> tuple[Module, Tokenizer]:
    """Return the network and the tokenizer of a published folder. Raises EinsmithError and click's exceptions."""
    try:
        tokenizer = Tokenizer(folder)  # first: it fails sooner than the weights
    except ImportError as e:
        raise click.ClickException(str(e)) from e
    return models.from_folder(folder), tokenizer


def stop_tokens(folder: Path, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that end a text: those of generation_config.json, config.json and the tokenizer."""
    stops = {tokenizer.eos}
    for name in ("generation_config.json", "config.json"):
        with suppress(OSError, ValueError):
            content = json.loads(files.read_bytes(folder / name))
            ends = content.get("eos_token_id") if isinstance(content, dict) else None
            stops |= {*ends} if isinstance(ends, list) else {ends}
    return sorted(t for t in stops if type(t) is int)


def generate(
    folder: Path,
    text: str,
    as_json: bool,
    max_tokens: int | None,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    threads: int | None,
) -> None:
    """Print a text and what follows it, token by token.

    Raises click's usage errors for wrong options and EinsmithErrors for what fails."""
    if threads is not None:
        set_threads(threads)
    model, tokenizer = load_model(folder)
    prompt = tokenizer.encode(text) or ([] if tokenizer.bos is None else [tokenizer.bos])
    if not prompt:
        raise click.UsageError("the TEXT has no tokens; write a word")
    room = model.cached.most_steps - len(prompt) + 1
    most = max_tokens or int(max(1, min(DEFAULT_TOKENS, room)))
    stops = stop_tokens(folder, tokenizer)
    tokens: list[int] = []
    rows = stream(
        model, prompt, max_new_tokens=most, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stops
    )
    if not as_json:
        click.echo(text, nl=False)
    begun = time.perf_counter()
    out = "".join(_print_pieces(rows, prompt, tokens, tokenizer, as_json))
    seconds = time.perf_counter() - begun
    ended = tokens[-1] in stops
    if as_json:
        click.echo(json.dumps({
            "prompt": text, "text": out, "tokens": tokens, "ended": ended, "seconds": round(seconds, 3),
        }))  # fmt: skip
    else:
        click.echo()
        click.echo(f"{len(tokens)} tokens in {seconds:.1f} s", err=True)


def _print_pieces(
    rows: Iterator[Any], prompt: list[int], tokens: list[int], tokenizer: Tokenizer, quiet: bool
) -> Iterator[str]:
    """Yield the pieces of text that tokens add, which are collected in `tokens`, and print them unless `quiet`.

    Tokens are decoded together with all before them, as some decoders treat the first one in a way of its own."""
    shown = tokenizer.decode(prompt)
    for row in rows:
        tokens.append(int(row[0]))
        whole = tokenizer.decode([*prompt, *tokens])
        if not whole.endswith(UNFINISHED):
            yield _show(whole[len(shown) :], quiet)
            shown = whole
    yield _show(tokenizer.decode([*prompt, *tokens])[len(shown) :], quiet)


def _show(piece: str, quiet: bool) -> str:
    if not quiet:
        click.echo(piece, nl=False)
    return piece
