"""`einsmith generate`: texts of a folder that is made here, with a tiny tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from einsmith.cli import main

torch = pytest.importorskip("torch", reason="writes the folder")
transformers = pytest.importorskip("transformers", reason="writes the folder")
pytest.importorskip("tokenizers", reason="reads tokenizer.json")
from tests.data.tokenizer_files import write  # noqa: E402

TEXT = "The quick brown"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A Llama with random weights of bfloat16, and a tokenizer of about 350 tokens."""
    folder = tmp_path_factory.mktemp("model")
    size = write(folder).get_vocab_size()
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(1.0 if p.ndim < 2 else 0.0, 0.3)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def run(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main.run(["generate", *map(str, words)])
    return status, *capfd.readouterr()


def expected(folder: Path, count: int) -> tuple[list[int], str]:
    """The tokens and the text that transformers appends, until the token that ends a text."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=count, do_sample=False, pad_token_id=0)[0]
    new = out[ids.input_ids.shape[1] :].tolist()
    return new, tokenizer.decode(out, skip_special_tokens=True)[len(TEXT) :]


def test_the_text_is_that_of_transformers(folder, capfd):
    tokens, text = expected(folder, 40)
    capfd.readouterr()
    status, out, err = run(capfd, folder, TEXT, "--max-tokens", 40, "--json")
    result = json.loads(out)
    assert (status, err) == (0, "") and (result["tokens"], result["text"]) == (tokens, text)
    assert result["ended"] == (tokens[-1] == 1) and result["prompt"] == TEXT
    status, out, err = run(capfd, folder, TEXT, "--max-tokens", 40)
    assert (status, out) == (0, f"{TEXT}{text}\n") and f"{len(tokens)} tokens in" in err


def test_draws_by_seed(folder, capfd):
    def text(*options: object) -> str:
        return json.loads(run(capfd, folder, TEXT, "--json", "--max-tokens", 12, *options)[1])["text"]

    drawn: tuple[Any, ...] = ("--temperature", 1, "--top-k", 50, "--top-p", 0.9)
    assert text(*drawn, "--seed", 1) == text(*drawn, "--seed", 1) != text(*drawn, "--seed", 2)
    assert text("--temperature", 3, "--top-k", 1) == text()


def test_an_empty_text_begins_with_the_first_token(folder, capfd):
    status, out, _ = run(capfd, folder, "", "--max-tokens", 3, "--json")
    assert status == 0 and len(json.loads(out)["tokens"]) <= 3


def test_the_token_that_ends_a_text(folder, capfd):
    tokens, _ = expected(folder, 40)
    file = folder / "generation_config.json"
    before = file.read_text() if file.exists() else None
    try:
        file.write_text(json.dumps({"eos_token_id": [tokens[4], 1]}))
        result = json.loads(run(capfd, folder, TEXT, "--json")[1])
    finally:
        file.unlink() if before is None else file.write_text(before)
    assert result["ended"] and result["tokens"] == tokens[: tokens.index(tokens[4]) + 1]


def test_wrong_folders_and_options_fail_with_a_message(folder, capfd, tmp_path, monkeypatch):
    status, out, err = run(capfd, tmp_path, TEXT)
    assert (status, out) == (1, "") and "tokenizer.json cannot be read" in err
    write(tmp_path)
    status, _, err = run(capfd, tmp_path, TEXT)
    assert status == 1 and "config.json cannot be read" in err
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    status, _, err = run(capfd, tmp_path, TEXT)
    assert status == 1 and "has neither model.safetensors nor" in err
    assert run(capfd, folder, TEXT, "--top-p", 2)[0] == 2
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    status, _, err = run(capfd, folder, TEXT)
    assert status == 1 and "pip install 'einsmith[language]'" in err
