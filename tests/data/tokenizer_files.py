"""A tiny tokenizer, trained here, and its files as transformers writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "A tensor is a function of its indices; 3.14 is not.",
    "for i in range(10):\n    print(i)\n",
)


def train(size: int = 97) -> tokenizers.Tokenizer:
    """A tokenizer of pairs of bytes, as GPT-2's, with at most so many tokens more than bytes."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=256 + size, special_tokens=["<s>", "</s>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )  # fmt: skip
    return inner


def write(folder: Path, inner: tokenizers.Tokenizer | None = None, **settings: Any) -> tokenizers.Tokenizer:
    """Write tokenizer.json and tokenizer_config.json by transformers, and return the tokenizer."""
    from transformers import PreTrainedTokenizerFast

    inner = inner or train()
    PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", **settings).save_pretrained(
        folder
    )
    return inner
