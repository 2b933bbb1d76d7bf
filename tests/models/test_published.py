"""Published folders: logits of transformers from files that transformers wrote, and errors for what is amiss."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import einsmith as es
from einsmith.base.errors import ArgumentError, DataError, ShapeError, UnknownNameError
from einsmith.models import tensor_files

torch = pytest.importorskip("torch", reason="the references are PyTorch's")
pytest.importorskip("transformers", reason="the references are those of transformers")
from tests.models.language import FAMILIES, GPTS, logits_of, random_model, state_of  # noqa: E402
from tests.models.twin import close  # noqa: E402

FILE = "model.safetensors"


@pytest.mark.parametrize("name", [*GPTS, *FAMILIES])
def test_folders_of_transformers_give_its_logits(name, tmp_path, rng):
    theirs = random_model(name)
    theirs.save_pretrained(tmp_path, max_shard_size="8KB" if len(name) % 2 else "1GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == bool(len(name) % 2)
    ours = es.models.from_folder(tmp_path)
    for batch, steps in ((2, 13), (1, 1)):
        ids = rng.integers(0, theirs.config.vocab_size, (batch, steps))
        close(ours(ids), logits_of(theirs, ids), name, 1e-5)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_are_converted(kind, tmp_path, rng, monkeypatch):
    monkeypatch.setattr(tensor_files, "PIECE", 7)
    theirs = random_model("qwen3").to(kind)
    theirs.save_pretrained(tmp_path)
    ours = es.models.from_folder(tmp_path)
    for n, v in ours.state_dict().items():
        np.testing.assert_array_equal(v, theirs.state_dict()[n].float().numpy())
    exact = es.models.from_folder(tmp_path, dtype="float64")
    ids = rng.integers(0, 97, (2, 5))
    again = type(theirs).from_pretrained(tmp_path, dtype=torch.float64).eval()  # with angles that are not rounded
    close(exact(ids), logits_of(again, ids), "float64", 1e-5)


def test_names_with_and_without_a_prefix(tmp_path, rng):
    ids = rng.integers(0, 83, (1, 9))
    for name, prefix in (("gpt2", "transformer."), ("qwen2", "model.")):
        theirs = random_model(name)
        theirs.save_pretrained(tmp_path)
        plain = {n.removeprefix(prefix): v for n, v in load_file(tmp_path / FILE).items()}
        save_file(plain | {"h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32)} if name == "gpt2" else plain,
                  tmp_path / FILE)  # fmt: skip
        close(es.models.from_folder(tmp_path)(ids), logits_of(theirs, ids), name, 1e-5)


def test_a_loaded_model_is_trained_saved_and_loaded(tmp_path, rng):
    random_model("gpt2").save_pretrained(tmp_path)
    model = es.models.from_folder(tmp_path)
    assert not model.training
    step = es.TrainStep(
        model, lambda y, t: es.functional.cross_entropy(es.functional.flatten(y, 0, 1), t), es.optim.SGD(lr=0.1)
    )
    ids, target = rng.integers(0, 83, (2, 6)), rng.integers(0, 83, 12)
    step(ids, target)
    es.save(step, tmp_path / "run")
    again = es.load(tmp_path / "run", loss=step.loss).model.eval()
    np.testing.assert_array_equal(again(ids), model.eval()(ids))


@pytest.fixture
def folder(tmp_path):
    random_model("llama").save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, change) -> None:
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE)


def test_weights_that_do_not_fit_are_listed(folder):
    rewrite(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(UnknownNameError, match=r"missing: model\.layers\.1\.mlp\.up_proj\.weight"):
        es.models.from_folder(folder)
    rewrite(folder, lambda t: t.update({f"extra.{n}": np.ones(1, np.float32) for n in range(9)}))
    with pytest.raises(UnknownNameError, match=r"superfluous: extra\.0, .* and 3 more"):
        es.models.from_folder(folder)


def test_weights_of_other_shapes_and_types_are_refused(folder):
    rewrite(folder, lambda t: t.update({"model.norm.weight": np.ones(23, np.float32)}))
    with pytest.raises(ShapeError, match=r"model\.norm\.weight: \(23,\), not \(24,\)"):
        es.models.from_folder(folder)
    rewrite(folder, lambda t: t.update({"model.norm.weight": np.ones(24, np.int32)}))
    with pytest.raises(DataError, match="type I32; only F32, F16, BF16, F64 are read"):
        es.models.from_folder(folder)


@pytest.mark.parametrize("size", [0, 5, 100, -4])
def test_files_that_are_cut_short_are_refused(folder, size):
    content = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content[:size])
    with pytest.raises(DataError, match=rf"{FILE}.* is cut short.*download it again"):
        es.models.from_folder(folder)


def test_damaged_tables_are_refused(folder):
    def table(text: bytes) -> None:
        (folder / FILE).write_bytes(len(text).to_bytes(8, "little") + text)

    for text in (b"[1]", b"{]", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}'):
        table(text)
        with pytest.raises(DataError, match=FILE):
            es.models.from_folder(folder)


def test_folders_without_weights_or_shards_are_refused(tmp_path):
    random_model("llama").save_pretrained(tmp_path, max_shard_size="8KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shard = sorted(set(index["weight_map"].values()))[1]
    (tmp_path / shard).rename(tmp_path / "aside")
    with pytest.raises(DataError, match=rf"missing: {re.escape(shard)}; download all files"):
        es.models.from_folder(tmp_path)
    (tmp_path / "aside").rename(tmp_path / shard)
    index["weight_map"]["model.other"] = shard
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"model\.other, which its files do not hold"):
        es.models.from_folder(tmp_path)
    for text in ("{", "{}", '{"weight_map": {"a": "../b"}}', '{"weight_map": 3}'):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(DataError, match="no index of safetensors files"):
            es.models.from_folder(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(DataError, match=r"neither.*convert pytorch_model\.bin with transformers"):
        es.models.from_folder(tmp_path)


GPT_REFUSED = {
    "dropouts": ({"attn_pdrop": 0.3}, "only one dropout"),
    "activation": ({"activation_function": "relu6"}, "activation_function='relu6'"),
    "scales": ({"scale_attn_by_inverse_layer_idx": True}, "is not supported; set it to False"),
    "untied": ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    "unknown": ({"n_heads": 3}, "unknown field 'n_heads'; did you mean 'n_head'"),
    "family": ({"model_type": "bloom"}, "known: gpt2, llama, mistral, qwen2, qwen3"),
    "heads": ({"n_head": 5}, "width=18 must be a positive multiple of heads=5"),
}


@pytest.mark.parametrize("name", GPT_REFUSED)
def test_unsupported_settings_of_gpt_are_refused(name, tmp_path):
    random_model("gpt2").save_pretrained(tmp_path)
    change, message = GPT_REFUSED[name]
    settings = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ArgumentError) as e:
        es.models.from_folder(tmp_path)
    assert message in str(e.value) and "config.json" in str(e.value)


def test_the_state_loads_by_name_too(rng):
    theirs = random_model("qwen2")
    ours = es.models.llama(theirs.config.to_dict())
    ours.load_state_dict(state_of(theirs))
    ids = rng.integers(0, 97, (1, 4))
    close(ours.eval()(ids), logits_of(theirs, ids), "state", 1e-5)


PEAK = """
import resource, sys
import einsmith as es
from einsmith.models import Llama
es.models.mlp3()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = es.models.from_folder(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, sum(p.size for p in model.parameters()) * 4 // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is that of Linux")
def test_memory_stays_near_the_weights(tmp_path):
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=5000, hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    peak, weights = map(int, run.stdout.split())
    assert weights > 150_000 and peak < 1.2 * weights
