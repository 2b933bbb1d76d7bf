"""Llama, Mistral, Qwen2 and Qwen3: logits, gradients and settings are those of transformers."""

import json

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import ArgumentError, DataError, ShapeError
from einsmith.models.llama_config import rotary_rates

torch = pytest.importorskip("torch", reason="the references are PyTorch's")
pytest.importorskip("transformers", reason="the references are those of transformers")
from tests.models.language import FAMILIES, LLAMA3, SIZES, YARN, logits_of, random_model, state_of  # noqa: E402
from tests.models.twin import close  # noqa: E402


def ours_of(theirs, **options):
    """Our network with the settings and the weights of one of transformers, in evaluation mode."""
    model = es.models.llama(theirs.config.to_dict(), **options).eval()
    model.load_state_dict(state_of(theirs))
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(name, rng):
    theirs = random_model(name)
    ours = ours_of(theirs)
    for batch, steps in ((3, 17), (1, 1), (2, 31)):
        ids = rng.integers(0, SIZES["vocab_size"], (batch, steps))
        close(ours(ids), logits_of(theirs, ids), f"{name}, {batch} x {steps}", 1e-5)


@pytest.mark.parametrize("name", ["smollm", "mistral", "qwen3, layers"])
def test_gradients_are_those_of_transformers(name, rng):
    theirs = random_model(name).double()
    ours = ours_of(theirs, dtype="float64")
    ids = rng.integers(0, SIZES["vocab_size"], (2, 13))
    weights = rng.standard_normal((2, 13, SIZES["vocab_size"]))
    (theirs(torch.tensor(ids)).logits * torch.tensor(weights)).sum().backward()
    names = [n for n, _ in ours.named_parameters()]

    def total(*values):
        out = es.nn.functional_call(ours, dict(zip(names, values, strict=True)), ids)
        return (out * weights).sum()

    grads = es.grad(total, argnums=tuple(range(len(names))))(*(p.numpy() for p in ours.parameters()))
    wanted = dict(theirs.named_parameters())
    for n, g in zip(names, grads, strict=True):
        close(g, wanted[n].grad.numpy(), n, 1e-5)  # rotary angles of transformers are float32


def test_positions_shift_as_in_transformers(rng):
    theirs = random_model("llama, llama3")
    ids = rng.integers(0, 97, (2, 11))
    positions = np.array([[7], [100]]) + np.arange(11)[None]
    want = logits_of(theirs, ids, position_ids=torch.tensor(positions))
    close(ours_of(theirs)(ids, positions), want, "positions", 1e-5)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_documents_of_a_row_do_not_see_each_other(name, rng):
    ours = ours_of(random_model(name))
    ids = rng.integers(0, 97, (2, 19))
    lengths = (7, 1, 11)
    segments = np.repeat([0, 1, 2], lengths)[None].repeat(2, 0)
    packed = ours(ids, None, segments)
    start = 0
    for n in lengths:
        close(packed[:, start : start + n], ours(ids[:, start : start + n]), "a document alone", 1e-5)
        start += n
    assert np.abs(packed - ours(ids)).max() > 1e-3


def test_the_state_before_the_head_and_training_mode(rng):
    ours = ours_of(random_model("qwen2"))
    ids = rng.integers(0, 97, (2, 5))
    states = es.jit(ours.hidden)(ids)
    assert states.shape == (2, 5, 24)
    close(states @ ours.model.embed_tokens.weight.numpy().T, ours(ids), "tied head", 1e-5)


def test_a_step_of_training_and_its_save(tmp_path, rng):
    config = {"model_type": "llama"} | SIZES | {"num_hidden_layers": 1, "rope_parameters": LLAMA3}
    step = es.TrainStep(
        es.models.llama(config), lambda y, t: es.functional.cross_entropy(es.functional.flatten(y, 0, 1), t),
        es.optim.AdamW(lr=1e-2),
    )  # fmt: skip
    ids, target = rng.integers(0, 97, (2, 6)), rng.integers(0, 97, 12)
    losses = [step(ids, target) for _ in range(5)]
    assert losses[-1] < losses[0]
    es.save(step, tmp_path / "run")
    again = es.load(tmp_path / "run", loss=step.loss)
    assert again.model.config == step.model.config


def test_old_and_new_fields_mean_the_same():
    from transformers import LlamaConfig

    new = LlamaConfig(**SIZES, rope_parameters=LLAMA3).to_dict()
    old = {k: v for k, v in new.items() if k != "rope_parameters"}
    old |= {"rope_theta": 100.0, "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"}}
    read = es.models.LlamaConfig.from_json
    assert read(old, "old") == read(new, "new")
    assert read({"model_type": "llama", **SIZES, "rope_scaling": None, "rope_theta": 7.0}).rope_parameters == {
        "rope_type": "default", "rope_theta": 7.0,
    }  # fmt: skip


def test_settings_are_read_back_from_themselves():
    from dataclasses import asdict

    for name in FAMILIES:
        config = es.models.llama(random_model(name).config.to_dict() | {"num_hidden_layers": 3}).config
        assert es.models.LlamaConfig.from_json(json.loads(json.dumps(asdict(config)))) == config


REFUSED = {
    "unknown field": ({"logit_scale": 2.0}, "config.json has the unknown field 'logit_scale'"),
    "near name": ({"hidden_sizes": 2}, "did you mean 'hidden_size'"),
    "dropout": ({"attention_dropout": 0.1}, "attention_dropout=0.1 is not supported; set it to 0.0"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
    "family": ({"model_type": "gemma"}, "model_type='gemma' is not supported; known: llama, mistral"),
    "rope type": ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type='longrope' is not supported"),
    "rope field": ({"rope_scaling": {"type": "linear", "factor": 2.0, "x": 1}}, "unknown field 'x'"),
    "rope lacks": ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "has no field 'high_freq_factor'"),
    "rope number": ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor='2' must be a positive number"),
    "partial": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
    "heads": ({"num_attention_heads": 5}, "hidden_size=24 must be a multiple"),
    "groups": ({"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads=3"),
    "odd": ({"head_dim": 3}, "head_dim=3 must be even"),
    "missing": ({"hidden_size": None}, "has no field 'hidden_size'"),
    "kind": ({"hidden_size": "24"}, "hidden_size='24' must be"),
    "another family's": ({"sliding_window": 5}, "unknown field 'sliding_window'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_settings_are_refused(name, tmp_path):
    change, message = REFUSED[name]
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama", **SIZES, **change}))
    with pytest.raises(ArgumentError) as e:
        es.models.llama(tmp_path)
    assert message in str(e.value) and str(file) in str(e.value)


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"config\.json cannot be read"):
        es.models.llama(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type"')
    with pytest.raises(DataError, match="no JSON file"):
        es.models.llama(str(tmp_path))
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(DataError, match="no JSON object"):
        es.models.llama(tmp_path / "config.json")


def test_arguments_are_checked():
    config = es.models.LlamaConfig(
        **{**SIZES, "num_hidden_layers": 1, "max_position_embeddings": 8},
        rope_parameters={"rope_type": "dynamic", "factor": 2.0},
    )
    model = es.models.llama(config)
    with pytest.raises(ShapeError, match="T from 1 to 8"):
        model(np.zeros((1, 9), int))
    with pytest.raises(ShapeError, match="needs"):
        model(np.zeros(3, int))
    with pytest.raises(ShapeError, match="'segments' has shape"):
        model(np.zeros((1, 3), int), None, np.zeros((1, 4), int))
    with pytest.raises(es.IndexOutOfRange):
        model(np.full((1, 3), 97))


@pytest.mark.parametrize("rope", [LLAMA3, YARN], ids=["llama3", "yarn"])
def test_angles_are_those_of_transformers(rope):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(**SIZES | {"head_dim": 64}, rope_parameters=rope)
    rates, scale, _ = rotary_rates(es.models.LlamaConfig.from_json(config.to_dict()))
    want, want_scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, None)
    np.testing.assert_allclose(rates, want.numpy(), 1e-5)
    assert scale == pytest.approx(want_scale)
