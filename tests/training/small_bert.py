"""A tiny BERT as it would be published: a folder of weights, sizes and a vocabulary, and two texts to tell apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import einsmith as es

WORDS = {"sea": "whale ship harpoon ocean un", "land": "congress treaty law nation able"}
SIZES = {
    "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 32, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
}  # fmt: skip


def write_bert(folder: Path, rng: np.random.Generator) -> None:
    """Write vocab.txt, config.json, model.safetensors, and a text of each of WORDS under its name."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *" ".join(WORDS.values()).split(), "##able", "##aff"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (folder / "config.json").write_text(json.dumps(SIZES))
    model = es.models.bert_base(vocabulary=16, width=8, layers=1, heads=2, inner=12, positions=32)
    weights = {n: v + rng.normal(0, 0.3, v.shape).astype("f4") for n, v in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    for name, words in WORDS.items():
        (folder / name).write_text(" ".join(rng.choice(words.split(), 4000)))
