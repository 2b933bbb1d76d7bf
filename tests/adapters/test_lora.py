"""Adapters of low rank, and their folders, against PEFT's."""

import json

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import ArgumentError, KindError, SaveError

SIZES = {"vocabulary": 23, "width": 12, "layers": 2, "heads": 3, "positions": 9, "dropout": 0.0}


def gpt(seed: int = 0) -> es.models.GPT:
    es.manual_seed(seed)
    return es.models.gpt_small(**SIZES)


def tokens(batch: int = 3, steps: int = 7) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 23, (batch, steps))


def spread(model, rng) -> None:
    """Draw the parts of adapters anew, so that they have an effect."""
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.data = p.data + 0.3 * rng.standard_normal(p.shape)


def logits(model) -> np.ndarray:
    return model.eval()(tokens())


@pytest.mark.parametrize("targets", ["all-linear", ["c_attn", "h.1.mlp.c_fc"], r".*\.attn\.c_.*"])
@pytest.mark.parametrize("dora", [False, True])
def test_a_new_adapter_changes_nothing_and_alone_is_trained(targets, dora):
    model = gpt()
    before, names = logits(model), set(model.state_dict())
    es.adapters.lora(model, 4, 8, targets, dora=dora)
    np.testing.assert_allclose(logits(model), before, atol=2e-6)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == set(model.state_dict()) - names and trained
    assert all("lora_" in n for n in trained)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("rslora", [False, True])
def test_merging_keeps_the_logits_and_unmerging_the_weights(dora, rslora, rng):
    model = es.adapters.lora(gpt(), 3, 5.0, dora=dora, rslora=rslora)
    spread(model, rng)
    adapted = logits(model)
    weights = model.h[1].mlp.c_fc.weight.numpy()
    assert np.abs(adapted - logits(gpt())).max() > 0.01
    es.adapters.merge(model)
    np.testing.assert_allclose(logits(model), adapted, atol=1e-5)
    es.adapters.unmerge(model)
    np.testing.assert_allclose(model.h[1].mlp.c_fc.weight.numpy(), weights, atol=1e-6)
    np.testing.assert_allclose(logits(model), adapted, atol=1e-5)
    es.adapters.remove(es.adapters.merge(model))
    np.testing.assert_allclose(logits(model), adapted, atol=1e-5)
    assert set(model.state_dict()) == set(gpt().state_dict())


@pytest.mark.parametrize("dora", [False, True])
def test_gradients_are_those_of_the_formula(dora, rng):
    layer = es.nn.Linear(5, 7, dtype="float64")
    net = es.nn.Sequential(layer)
    es.adapters.lora(net, 2, 3.0, dora=dora)
    spread(net, rng)
    x, y = rng.standard_normal((4, 5)), rng.standard_normal((4, 7))
    step = es.TrainStep(net, lambda out, t: es.functional.mse_loss(out, t), es.optim.SGD(lr=0.1))
    torch = pytest.importorskip("torch")
    a, b, w, bias = (
        torch.tensor(net[0].get_parameter(n).numpy()) for n in ("lora_A.weight", "lora_B.weight", "weight", "bias")
    )
    parts = [a, b] + ([torch.tensor(net[0].lora_magnitude_vector.numpy())] if dora else [])
    for p in parts:
        p.requires_grad_()
    adapted = w + 1.5 * b @ a
    if dora:
        adapted = adapted * (parts[2] / adapted.detach().norm(dim=1))[:, None]
    loss = torch.nn.functional.mse_loss(torch.tensor(x) @ adapted.T + bias, torch.tensor(y))
    loss.backward()
    assert step(x, y) == pytest.approx(loss.item(), rel=1e-12)
    now = [net[0].lora_A.weight, net[0].lora_B.weight, net[0].lora_magnitude_vector][: len(parts)]
    for p, old in zip(now, parts, strict=True):
        np.testing.assert_allclose(p.numpy(), (old - 0.1 * old.grad).detach().numpy(), rtol=1e-10)
    np.testing.assert_array_equal(net[0].weight.numpy(), w.numpy())


def test_ranks_and_alphas_of_single_layers():
    model = es.adapters.lora(
        gpt(), 4, 8, rank_pattern={"c_fc": 2, r"h\.0\.attn\.c_attn": 3}, alpha_pattern={"mlp.c_proj": 1}
    )
    first, second = model.h
    assert first.attn.c_attn.lora_A.weight.shape == (3, 12) and second.attn.c_attn.lora_A.weight.shape == (4, 12)
    assert second.mlp.c_fc.lora_B.weight.shape == (48, 2) and second.mlp.c_fc.scale == 4.0
    assert first.mlp.c_proj.scale == 0.25 and first.attn.c_proj.scale == 2.0


def test_dropout_is_only_in_training(rng):
    net = es.nn.Sequential(es.nn.Linear(50, 4))
    es.adapters.lora(net, 2, dropout=0.5)
    spread(net, rng)
    x = rng.standard_normal((3, 50)).astype(np.float32)
    assert np.abs(net.train()(x) - net.eval()(x)).max() > 1e-3
    np.testing.assert_array_equal(net(x), net(x))


def test_seeds_decide_the_initial_values():
    first, second, third = (
        es.adapters.lora(gpt(), 2, seed=s).h[0].attn.c_attn.lora_A.weight.numpy() for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - third).max() > 0


def test_wrong_targets_are_refused():
    with pytest.raises(ArgumentError, match="no such layers.*c_attn, c_proj, c_fc"):
        es.adapters.lora(gpt(), 4, targets=["q_proj"])
    with pytest.raises(KindError, match="wte is Embedding"):
        es.adapters.lora(gpt(), 4, targets=["wte"])
    with pytest.raises(ArgumentError, match="regular expression"):
        es.adapters.lora(gpt(), 4, targets="(")
    with pytest.raises(ArgumentError, match="already"):
        es.adapters.lora(es.adapters.lora(gpt(), 4), 4)
    with pytest.raises(ArgumentError, match="no adapter"):
        es.adapters.merge(gpt())
    with pytest.raises(ArgumentError, match="merged already"):
        es.adapters.merge(es.adapters.merge(es.adapters.lora(gpt(), 4)))
    with pytest.raises(KindError, match="LinearCrossEntropyLoss"):
        es.adapters.lora(es.nn.Sequential(es.nn.LinearCrossEntropyLoss(4, 5)), 2, targets=["linear"])
    with pytest.raises(ArgumentError):
        es.adapters.lora(gpt(), 0)


def test_a_weight_that_other_layers_share_is_not_merged():
    net = es.nn.Sequential(es.nn.Linear(4, 4, bias=False), es.nn.Linear(4, 4, bias=False))
    net[1].weight = net[0].weight
    es.adapters.lora(net, 2, targets=["1"])
    with pytest.raises(ArgumentError, match="part of another layer"):
        es.adapters.merge(net)


# ---------------------------------------------------------------------------------------------------------------- PEFT


@pytest.fixture(scope="module")
def peft():
    pytest.importorskip("transformers")
    return pytest.importorskip("peft")


def published_gpt(seed: int = 0):
    """transformers' GPT-2 with the weights of `gpt(seed)`."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=23, n_embd=12, n_layer=2, n_head=3, n_positions=9, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    theirs = GPT2LMHeadModel(config).eval()
    state = {f"transformer.{n}": torch.tensor(v) for n, v in gpt(seed).state_dict().items()}
    theirs.load_state_dict(state | {"lm_head.weight": state["transformer.wte.weight"]})
    return theirs


def their_logits(model) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(torch.tensor(tokens())).logits.numpy()


VARIANTS = [
    {},
    {"targets": ["c_attn", "c_fc"], "rslora": True},
    {"targets": r"transformer\.h\.1\..*c_(attn|proj)", "alpha": 7.5},
    {"dora": True, "rank_pattern": {"c_fc": 2}, "alpha_pattern": {"h.0.attn.c_proj": 3}},
]


@pytest.mark.parametrize("settings", VARIANTS)
def test_peft_reads_what_is_written(settings, peft, rng, tmp_path):
    model = es.adapters.lora(gpt(), 4, **settings)
    spread(model, rng)
    es.adapters.save(model, tmp_path / "out", "some/model")
    theirs = peft.PeftModel.from_pretrained(published_gpt(), tmp_path / "out").eval()
    np.testing.assert_allclose(their_logits(theirs), logits(model), atol=1e-5)
    again = es.adapters.load(gpt(), tmp_path / "out")
    np.testing.assert_array_equal(logits(again), logits(model))
    assert {n for n, p in again.named_parameters() if p.requires_grad} == {
        n for n, p in model.named_parameters() if p.requires_grad
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": "all-linear"},
        {"target_modules": ["c_attn", "c_fc"], "use_rslora": True, "lora_alpha": 3},
        {"target_modules": "all-linear", "use_dora": True, "rank_pattern": {"c_fc": 2}, "lora_dropout": 0.1},
        {"target_modules": ["c_proj"], "layers_to_transform": [1]},
        {"target_modules": ["c_proj"], "exclude_modules": [r"transformer.h.0.mlp.c_proj"]},
    ],
)
@pytest.mark.parametrize("is_bf16", [False, True])
def test_what_peft_writes_is_read(settings, is_bf16, peft, tmp_path):
    import torch

    torch.manual_seed(0)
    theirs = peft.get_peft_model(published_gpt(), peft.LoraConfig(r=4, task_type="CAUSAL_LM", **settings)).eval()
    for name, p in theirs.named_parameters():
        if "lora_" in name:
            p.data += 0.3 * torch.randn_like(p)
            if is_bf16:
                p.data = p.data.bfloat16().float()
    want = their_logits(theirs)
    if is_bf16:
        theirs.bfloat16()
    theirs.save_pretrained(tmp_path / "theirs")
    model = es.adapters.load(gpt(), tmp_path / "theirs")
    np.testing.assert_allclose(logits(model), want, atol=1e-5)


def rewrite(folder, **entries) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@pytest.fixture
def saved(tmp_path, rng):
    model = es.adapters.lora(gpt(), 4, targets=["c_attn"])
    spread(model, rng)
    es.adapters.save(model, tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"r": 3}, r"lora_A.weight has \[4, 12\], needs \[3, 12\]"),
        ({"use_dora": True}, "lacks lora_magnitude_vector"),
        ({"peft_type": "IA3"}, "of the kind 'IA3'"),
        ({"bias": "all"}, "bias='all'.*not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"new_thing": 3}, "new_thing=3.*changes what the adapter computes"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"target_modules": ["c_attn", "c_fc"]}, "another network.*mlp.c_fc"),
        ({"lora_alpha": None}, "lacks lora_alpha"),
        ({"lora_alpha": "much"}, "adapter_config.json: .*alpha"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(saved, entries, message):
    rewrite(saved, **entries)
    model = gpt()
    with pytest.raises(SaveError, match=message):
        es.adapters.load(model, saved)
    assert set(model.state_dict()) == set(gpt().state_dict()) and all(p.requires_grad for p in model.parameters())


def test_adapters_of_other_networks_are_refused(saved, tmp_path):
    for sizes, message in (({"width": 6}, "needs"), ({"layers": 1}, "no linear layers .*h.1"), ({"layers": 3}, "h.2")):
        with pytest.raises(SaveError, match=message):
            es.adapters.load(es.models.gpt_small(**SIZES | sizes), saved)
    with pytest.raises(SaveError, match="another network"):
        es.adapters.load(es.nn.Sequential(es.nn.Linear(3, 3)), saved)
    with pytest.raises(SaveError, match="not a folder"):
        es.adapters.load(gpt(), tmp_path / "nothing")
    file = saved / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(SaveError, match="cut short"):
        es.adapters.load(gpt(), saved)


def test_other_folders_are_not_replaced(saved, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    model = es.adapters.load(gpt(), saved)
    with pytest.raises(SaveError, match="not an adapter"):
        es.adapters.save(model, tmp_path / "mine")
    (saved / "notes.txt").write_text("x")
    es.adapters.save(model, saved)
    assert (saved / "notes.txt").read_text() == "x"
    before = (saved / "adapter_model.safetensors").read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("einsmith.models.tensor_files.save_file", full)
    with pytest.raises(SaveError, match="No space left"):
        es.adapters.save(model, saved)
    assert (saved / "adapter_model.safetensors").read_bytes() == before and len(list(tmp_path.iterdir())) == 2
