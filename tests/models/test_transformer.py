"""BERT, a vision transformer and a GPT against PyTorch twins whose states have the published names."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import einsmith as es
from einsmith.base.errors import ArgumentError, ShapeError, UnknownNameError
from tests.models.twin import agree, close, images, numbers, outputs, same_statistics, spread

torch = pytest.importorskip("torch", reason="the twin networks are PyTorch's")
from torch import nn as tnn  # noqa: E402

from tests.models.twins.transformer import TorchBert, TorchGPT, TorchViT  # noqa: E402

BERT = {"vocabulary": 11, "width": 6, "layers": 2, "heads": 2, "inner": 10, "positions": 7}


def tokens(rng, batch, steps, words=11):
    return rng.integers(0, words, (batch, steps))


VIT = {"classes": 5, "width": 6, "layers": 1, "heads": 3, "inner": 9, "size": 8, "patch": 4}


def test_bert_trains_as_torch(steps, rng):
    sizes = BERT | {"layers": 1}
    ours, theirs = es.models.bert_base(**sizes, dropout=0.0, dtype="float64"), TorchBert(**sizes, dropout=0.0)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0]])
    batches = [
        (tokens(rng, 3, 5), mask, rng.integers(0, 2, (3, 5)), rng.standard_normal((3, 5, 6))) for _ in range(steps)
    ]
    agree(
        ours, theirs, batches, lambda y, t: es.functional.mse_loss(y[0], t) + (y[1] ** 2).mean(),
        lambda y, t: tnn.functional.mse_loss(y[0], t) + (y[1] ** 2).mean(),
    )  # fmt: skip


def test_bert_reads_files_of_old_and_new_kinds(rng, tmp_path):
    theirs = TorchBert(**BERT).eval()
    spread(theirs, 1)
    state = numbers(theirs)
    plain = {**state, "embeddings.position_ids": np.arange(7)[None]}
    heads = {f"bert.{n.replace('Norm.weight', 'Norm.gamma').replace('Norm.bias', 'Norm.beta')}": v
             for n, v in state.items()} | {"cls.predictions.bias": np.zeros(11, np.float32)}  # fmt: skip
    ids = tokens(rng, 2, 7)
    want = outputs(theirs(torch.tensor(ids)))
    for n, published in enumerate((plain, heads)):
        save_file({k: np.ascontiguousarray(v) for k, v in published.items()}, tmp_path / f"{n}.safetensors")
        ours = es.models.bert_base(**BERT).eval()
        ours.load_state_dict(load_file(tmp_path / f"{n}.safetensors"))
        for got, exact in zip(ours(ids), want, strict=True):
            close(got, exact, "published file", 1e-5)
    with pytest.raises(UnknownNameError, match="pooler"):
        es.models.bert_base(**BERT, pooler=False).load_state_dict(plain)


@pytest.mark.slow
def test_minilm_is_read_by_the_names_of_its_file(rng, tmp_path):
    """all-MiniLM-L6-v2's tensors by name and shape; their values are random, those of words fewer."""
    norm: dict[str, tuple] = {"weight": (384,), "bias": (384,)}
    square: dict[str, tuple] = {"weight": (384, 384), "bias": (384,)}
    layer = {f"attention.self.{n}": square for n in ("query", "key", "value")} | {
        "attention.output.dense": square, "attention.output.LayerNorm": norm, "output.LayerNorm": norm,
        "intermediate.dense": {"weight": (1536, 384), "bias": (1536,)},
        "output.dense": {"weight": (384, 1536), "bias": (384,)},
    }  # fmt: skip
    parts = {f"encoder.layer.{k}.{n}": tensors for k in range(6) for n, tensors in layer.items()} | {
        "embeddings.LayerNorm": norm, "embeddings.word_embeddings": {"weight": (997, 384)}, "pooler.dense": square,
        "embeddings.position_embeddings": {"weight": (512, 384)},
        "embeddings.token_type_embeddings": {"weight": (2, 384)},
    }  # fmt: skip
    state = {
        f"{part}.{n}": 0.05 * rng.standard_normal(shape, np.float32) + (part.endswith("Norm") and n == "weight")
        for part, tensors in parts.items() for n, shape in tensors.items()
    }  # fmt: skip
    state["embeddings.position_ids"] = np.arange(512)[None]
    assert len(state) == 104
    save_file(state, tmp_path / "model.safetensors")
    ours = es.models.bert_base(vocabulary=997, width=384, layers=6, heads=12).eval()
    ours.load_state_dict(load_file(tmp_path / "model.safetensors"))
    theirs = TorchBert(997, 384, 6, 12, 1536, 512).eval()
    theirs.load_state_dict({n: torch.tensor(v) for n, v in state.items() if n != "embeddings.position_ids"})
    ids = tokens(rng, 3, 9, 997)
    mask = np.arange(9) < np.array([[9], [5], [1]])
    with torch.no_grad():
        single = outputs(theirs(torch.tensor(ids), torch.tensor(mask)))
        exact = outputs(theirs.double()(torch.tensor(ids), torch.tensor(mask)))
    for got, peer, want in zip(ours(ids, mask.astype(np.int64)), single, exact, strict=True):
        limit = 3 * np.abs(peer - want).max()
        assert np.abs(got - want).max() <= limit


def test_bert_without_pooler_and_its_encoder_alone(rng):
    ours, theirs = es.models.bert_base(**BERT, pooler=False, dtype="float64").eval(), TorchBert(**BERT).double().eval()
    ours.load_state_dict({n: v for n, v in theirs.state_dict().items() if not n.startswith("pooler")})
    ids, x = tokens(rng, 1, 1), rng.standard_normal((2, 13, 6))
    close(ours(ids), theirs(torch.tensor(ids))[0].detach().numpy(), "hidden states of one token")
    y = torch.tensor(x)
    for layer in theirs.encoder.layer:
        y = layer(y, None)
    close(ours.encoder(x), y.detach().numpy(), "encoder")


def test_vit_trains_as_torch(steps, rng):
    ours, theirs = es.models.vit_small(**VIT, dtype="float64"), TorchViT(**VIT)
    batches = [(images(rng, 3, 3, 8), rng.integers(0, 5, 3)) for _ in range(steps)]
    agree(ours, theirs, batches, es.functional.cross_entropy, tnn.functional.cross_entropy)


TINY = {"vocabulary": 11, "width": 6, "layers": 2, "heads": 3, "positions": 8, "inner": 7}


def test_gpt_trains_as_torch(steps, rng):
    sizes = TINY | {"layers": 1}
    ours, theirs = es.models.gpt_small(**sizes, dropout=0.0, dtype="float64"), TorchGPT(**sizes, dropout=0.0)
    batches = [(tokens(rng, 2, 5), rng.integers(0, 11, 10)) for _ in range(steps)]
    agree(
        ours, theirs, batches, lambda y, t: es.functional.cross_entropy(es.functional.flatten(y, 0, 1), t),
        lambda y, t: tnn.functional.cross_entropy(y.flatten(0, 1), t),
    )  # fmt: skip


def test_gpt_reads_files_with_heads_and_masks(rng):
    theirs = TorchGPT(**TINY).eval()
    state = {f"transformer.{n}": v for n, v in numbers(theirs).items()}
    state |= {"transformer.h.0.attn.bias": np.ones((1, 1, 8, 8)), "lm_head.weight": state["transformer.wte.weight"]}
    ours = es.models.gpt_small(**TINY).eval()
    ours.load_state_dict(state)
    ids = tokens(rng, 1, 8)
    close(ours(ids), theirs(torch.tensor(ids)).detach().numpy(), "published names", 1e-5)


def test_later_tokens_change_nothing_before_them(rng):
    model = es.models.gpt_small(**TINY).eval()
    ids = tokens(rng, 2, 8)
    other = np.concatenate([ids[:, :5], (ids[:, 5:] + 1) % 11], 1)
    a, b = model(ids), model(other)
    np.testing.assert_array_equal(a[:, :5], b[:, :5])
    assert not np.allclose(a[:, 5:], b[:, 5:])


@pytest.mark.slow
def test_dropout_has_torchs_statistics(rng):
    options = {"dropout": 0.3, "dtype": "float64"}
    ids = tokens(rng, 1, 4)
    same_statistics(es.models.gpt_small(**TINY, **options), TorchGPT(**TINY, dropout=0.3), ids)
    same_statistics(es.models.bert_base(**BERT, **options), TorchBert(**BERT, dropout=0.3), ids)
    vit = es.models.vit_small(**VIT, **options, attention_dropout=0.3)
    same_statistics(vit, TorchViT(**VIT, dropout=0.3), images(rng, 1, 3, 8))


@pytest.mark.parametrize(
    "name,wrong,said",
    [
        ("bert_base", {"width": 10, "heads": 3}, "heads=3"), ("vit_small", {"size": 225}, "patch=16"),
        ("gpt_small", {"heads": 0}, "heads=0"), ("vit_small", {"width": 10}, "width=10"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_named(name, wrong, said):
    with pytest.raises(ArgumentError, match=said):
        es.models.get(name, **wrong)


def test_inputs_that_do_not_fit_are_named(rng):
    bert = es.models.bert_base(**BERT)
    with pytest.raises(ShapeError, match="from 1 to 7"):
        bert(tokens(rng, 1, 8))
    with pytest.raises(ShapeError, match="attention_mask"):
        bert(tokens(rng, 1, 4), np.ones((1, 3)))
    with pytest.raises(ShapeError, match="token_type_ids"):
        bert(tokens(rng, 1, 4), None, np.ones((1, 3), np.int64))
    with pytest.raises(IndexError):
        bert(tokens(rng, 1, 4) + 11)
    with pytest.raises(ShapeError, match="from 1 to 8"):
        es.models.gpt_small(**TINY)(np.zeros(4, np.int64))
    with pytest.raises(ShapeError, match="8x8"):
        es.models.vit_small(width=6, layers=1, size=8, patch=4)(np.zeros((1, 3, 12, 8), np.float32))
