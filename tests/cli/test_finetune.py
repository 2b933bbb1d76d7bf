"""`einsmith finetune` on tiny published models, from options to the saved adapter."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import einsmith as es
from einsmith.cli import finetune, main
from tests.data import tokenizer_files

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = 400
TEXT = "It was a bright day, and the clocks were striking. " * 3


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    tokenizer_files.write(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-gpt2")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=24, n_layer=2, n_head=3, n_positions=48, bos_token_id=0, eos_token_id=1
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer_files.write(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = [{"text": TEXT[n : n + 40]} for n in range(0, 90, 5)]
    rows += [{"prompt": f"{n} and {n} is ", "completion": str(2 * n)} for n in range(12)]
    rows += [{"tokens": list(range(n, n + 20))} for n in range(8)]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return file


@pytest.fixture
def run(capfd):
    """Runs the command line in this process: (status, stdout, stderr)."""

    def call(*words: object) -> tuple[int, str, str]:
        status = main.run([str(w) for w in ("finetune", *words)])
        out, err = capfd.readouterr()
        return status, out, err

    return call


SMALL = ("--length", 32, "--batch", 4, "--lr", 0.01, "--epochs", 2)


def contents(folder: Path) -> dict[str, bytes]:
    """The trained weights and the optimizer's state of a save."""
    files = [p for p in (folder / "adapter_model.safetensors", folder / "model.safetensors") if p.exists()]
    return {p.name: p.read_bytes() for p in [*files, folder / "run" / "state.safetensors"]}


def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, WORDS, (2, 9))


def their_logits(model) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(tokens())).logits.float().numpy()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_an_adapter_is_trained_and_read_by_peft(kind, run, data, tmp_path, request):
    peft = pytest.importorskip("peft")
    folder, out = request.getfixturevalue(kind), tmp_path / "out"
    status, text, err = run(folder, "--data", data, "--lora", 4, "--save", out, "--validation", 0.2, "--json", *SMALL)
    assert status == 0, err
    first, second, last = map(json.loads, text.splitlines())
    assert second["loss"] < first["loss"] and second["test_loss"] < first["test_loss"] < 7
    assert second["perplexity"] == pytest.approx(np.exp(second["test_loss"])) and last["epochs"] == 2
    assert "held-out documents" in err and (out / "run" / "loss.png").exists()
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = their_logits(peft.PeftModel.from_pretrained(base, out).eval())
    ours = es.adapters.load(es.models.from_folder(folder), out)
    np.testing.assert_allclose(ours(tokens()), theirs, atol=1e-5)
    assert np.abs(es.models.from_folder(folder)(tokens()) - theirs).max() > 0.01
    assert not (load_file(out / "run" / "weights.safetensors"))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_all_weights_are_trained_and_read_by_transformers(kind, run, data, tmp_path, request):
    folder, out = request.getfixturevalue(kind), tmp_path / "out"
    status, _, err = run(folder, "--data", data, "--full", "--save", out, *SMALL, "--lr", 0.003)
    assert status == 0, err
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert theirs.dtype == torch.float32
    np.testing.assert_allclose(es.models.from_folder(out)(tokens()), their_logits(theirs.eval()), atol=1e-5)
    assert transformers.AutoTokenizer.from_pretrained(out)("fox").input_ids == (
        transformers.AutoTokenizer.from_pretrained(folder)("fox").input_ids
    )
    status, text, _ = run(folder, "--save", out, "--resume", "--epochs", 3, "--json")
    assert status == 0 and json.loads(text.splitlines()[0])["epoch"] == 3


@pytest.mark.parametrize(
    "options", [("--lora", 4, "--dora", "--dropout", 0.1), ("--lora", 3, "--accumulate", 2), ("--full",)]
)
def test_an_interrupted_run_goes_on_bitwise(options, run, llama, data, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    arguments = llama, "--data", data, "--validation", 0.1, *options, *SMALL
    assert run(*arguments, "--save", whole)[0] == 0
    steps = 0
    train = es.TrainStep.fit

    def fit(step, *args, on_step, **kwargs):
        def interrupt(step, loss):
            nonlocal steps
            steps += 1
            if steps in (1, 4, 5):
                os.kill(os.getpid(), signal.SIGINT)
            on_step(step, loss)

        return train(step, *args, on_step=interrupt, **kwargs)

    monkeypatch.setattr(es.TrainStep, "fit", fit)
    status, _, err = run(*arguments, "--save", parts)
    assert status == 1 and "--resume" in err
    statuses = []
    while len(statuses) < 9 and (not statuses or statuses[-1]):
        statuses.append(run(llama, "--save", parts, "--resume")[0])
    assert statuses == [1, 1, 0]
    assert contents(parts) == contents(whole)
    first, second = (json.loads((f / "run" / "run.json").read_text()) for f in (whole, parts))
    assert first["losses"] == second["losses"]
    assert [h["test_loss"] for h in first["history"]] == [h["test_loss"] for h in second["history"]]


def test_packed_and_padded_rows_learn_the_same_tokens(run, llama, data, tmp_path):
    for option in ((), ("--pad",)):
        _, _, err = run(llama, "--data", data, "--lora", 2, "--save", tmp_path / str(len(option)), *SMALL, *option)
        assert "38 documents" in err, err


def test_texts_of_files(run, llama, tmp_path):
    file, other = tmp_path / "a.txt", tmp_path / "b.txt"
    file.write_text(TEXT + "\n\n" + TEXT)
    other.write_text("The lazy dog.")
    status, _, err = run(
        llama, "--data", file, "--divide", "--validation", other, "--lora", 2, "--save", tmp_path / "out", *SMALL
    )
    assert status == 0 and "2 documents" in err and "1 held-out documents" in err


@pytest.fixture
def saved(run, llama, data, tmp_path) -> Path:
    out = tmp_path / "saved"
    assert run(llama, "--data", data, "--lora", 2, "--save", out, *SMALL, "--epochs", 1)[0] == 0
    return out


def test_resumed_runs_keep_their_settings_and_files(run, saved, llama, gpt2, data, tmp_path):
    def refused(*words, status=2):
        got, _, err = run(*words)
        assert got == status, err
        return err

    assert "a resumed run keeps its settings" in refused(llama, "--save", saved, "--resume", "--lora", 3)
    assert "a resumed run keeps its settings" in refused(llama, "--save", saved, "--resume", "--full")
    assert "begun with other contents of" in refused(gpt2, "--save", saved, "--resume", status=1)
    other = tmp_path / "other.jsonl"
    other.write_text(data.read_text() + '{"text": "more"}\n')
    assert "other contents of --data" in refused(llama, "--data", other, "--save", saved, "--resume", status=1)
    assert "holds no run" in refused(llama, "--save", tmp_path / "none", "--resume", status=1)
    file = saved / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert "was changed since it was saved" in refused(llama, "--save", saved, "--resume", status=1)


def test_other_files_in_the_save_folder_stay(run, saved, llama):
    (saved / "README.md").write_text("mine")
    assert run(llama, "--save", saved, "--resume", "--epochs", 2)[0] == 0
    assert (saved / "README.md").read_text() == "mine"


def test_wrong_use_is_refused_before_anything_is_written(run, llama, gpt2, data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    for words, message in (
        ((llama, "--lora", 2), "--data FILE is missing"),
        ((llama, "--data", data), "--lora RANK is missing"),
        ((llama, "--data", data, "--lora", 2, "--full"), "pass one of them"),
        ((llama, "--data", data, "--full", "--alpha", 3), "belong to --lora"),
        ((llama, "--data", data, "--lora", 2, "--length", 65), "reads 64 tokens at most"),
        ((gpt2, "--data", data, "--lora", 2, "--length", 49), "reads 48 tokens at most"),
        ((llama, "--data", data, "--lora", 2, "--validation", "some"), "neither a fraction"),
        ((llama, "--data", data, "--lora", 2, "--validation", 1.5), "neither a fraction"),
    ):
        status, _, err = run(*words, "--save", out)
        assert status == 2 and message in err, err
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"tokens": [1, 2, 400]}\n')
    for words, message in (
        (
            (llama, "--data", bad, "--lora", 2),
            "bad.jsonl, line 1: token 400 at place 2 is beyond the model's vocabulary",
        ),
        ((llama, "--data", tmp_path / "none.txt", "--lora", 2), "cannot read"),
        ((tmp_path / "nothing", "--data", data, "--lora", 2), "nothing"),
        ((llama, "--data", data, "--lora", 2, "--targets", "c_attn"), "no such layers.*q_proj"),
    ):
        status, _, err = run(*words, "--save", out)
        assert status == 1 and re.search(message, err), err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("x")
    status, _, err = run(llama, "--data", data, "--lora", 2, "--save", tmp_path / "mine")
    assert status == 1 and "not a saved run" in err
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(finetune.shutil, "disk_usage", lambda place: usage(1, 1, 1000))
    status, _, err = run(llama, "--data", data, "--lora", 2, "--save", out)
    assert status == 1 and "needs room for" in err
    assert not out.exists()


def test_no_torch_is_imported(llama, data, tmp_path):
    code = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from einsmith.cli import main
sys.exit(main.run(["finetune", *sys.argv[1:], "--lora", "2", "--length", "32", "--epochs", "1"]))
"""
    words = [str(llama), "--data", str(data), "--save", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_model_without_a_tokenizer_takes_tokens_alone(run, llama, data, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((llama / name).read_bytes())
    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"tokens": [1, 2, 3]}\n' * 4)
    assert run(folder, "--data", ids, "--lora", 2, "--save", tmp_path / "out", *SMALL)[0] == 0
    status, _, err = run(folder, "--data", data, "--lora", 2, "--save", tmp_path / "other", *SMALL)
    assert status == 1 and "line 1: texts need a tokenizer" in err


def test_weights_of_fewer_bits(run, llama, data, tmp_path):
    """The folder's weights are bfloat16, so that keeping them so changes nothing; a run that goes on keeps them."""
    losses = {}
    for keep in ("fp32", "bf16", "int8"):
        out = tmp_path / keep
        words = "--data", data, "--lora", 4, "--save", out, "--weights", keep, "--json", *SMALL
        status, text, err = run(llama, *words)
        assert status == 0, err
        losses[keep] = [json.loads(x)["loss"] for x in text.splitlines()[:2]]
        assert not load_file(out / "run" / "weights.safetensors")
    np.testing.assert_allclose(losses["bf16"], losses["fp32"], rtol=1e-5)
    np.testing.assert_allclose(losses["int8"], losses["fp32"], rtol=0.02)
    status, text, err = run(llama, "--save", tmp_path / "int8", "--resume", "--epochs", 3, "--json")
    assert status == 0 and json.loads(text.splitlines()[0])["loss"] < losses["int8"][1], err
    status, _, err = run(llama, "--save", tmp_path / "int8", "--resume", "--weights", "bf16")
    assert status == 2 and "--weights" in err and "'int8'" in err
    status, _, err = run(llama, "--data", data, "--full", "--save", tmp_path / "full", "--weights", "bf16")
    assert status == 2 and "--weights" in err and "belong to --lora" in err
