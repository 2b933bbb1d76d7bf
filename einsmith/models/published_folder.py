"""Write a language model as a folder of the kind that it was read from, which transformers and `from_folder` read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from einsmith.base import files
from einsmith.base.errors import ArgumentError, SaveError
from einsmith.models.llama import Llama
from einsmith.models.tensor_files import WEIGHTS, write_tensors
from einsmith.models.transformer import GPT
from einsmith.nn import Module

CONFIG = "config.json"
COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja",
)  # fmt: skip
"""Files beside the weights that stay as they are."""


class Limits(NamedTuple):
    """What a language model reads: tokens in a row at most, numbers of tokens, and whether it takes positions and
    segments of packed documents."""

    tokens: int
    vocabulary: int
    takes_segments: bool


def limits_of(model: Module) -> Limits:
    """Return what a language model reads. Raises ArgumentError for another network."""
    if isinstance(model, GPT):
        return Limits(model.wpe.num_embeddings, model.wte.num_embeddings, False)
    if isinstance(model, Llama):
        return Limits(model.config.max_position_embeddings, model.config.vocab_size, True)
    raise ArgumentError(f"{type(model).__name__} is not a language model that can be fine-tuned")


def write_files(model: Module, folder: Path, base: Path) -> None:
    """Write a model's weights into a folder that exists, with the other files of the folder that it was read from.

    base: the folder that it was read from. Raises SaveError where its files cannot be read, OSError."""
    try:
        config = json.loads(files.read_bytes(base / CONFIG))
    except (OSError, ValueError, RecursionError) as e:
        raise SaveError(f"{base / CONFIG} cannot be read any more: {e}") from e
    state = model.state_dict()
    kind = str(next(iter(state.values())).dtype)
    config = {name: kind if name in ("dtype", "torch_dtype") else value for name, value in config.items()}
    files.write(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    prefix = getattr(model, "published_prefix", "")
    write_tensors(folder / WEIGHTS, {prefix + name: array for name, array in state.items()})
    for name in COPIED:
        if files.exists(base / name):
            files.write(folder / name, files.read_bytes(base / name))
