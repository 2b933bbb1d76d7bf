"""Models of other packages (transformers, timm, torch_geometric), unmodified, from configurations, with random weights.

None of the packages is a requirement; `get` raises ImportError where one is missing.

Each model has two sizes: "small", of which five training steps in float64 take a second, and "usual", of which one in
float32 does. Dropout is 0, so that every run is the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn import functional as tf

SIZES = ("small", "usual")
Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Trained:
    """A model in training, and what it is trained with: `loss(f, batch)` of the model or what torch.compile made of it,
    f; `batch(seed)` of a number."""

    model: nn.Module
    batch: Callable[[int], Batch]
    loss: Callable[[Callable, Batch], torch.Tensor]


def converted(batch: Batch, dtype: torch.dtype) -> Batch:
    """A batch with its floats as `dtype`."""
    return {k: x.to(dtype) if x.is_floating_point() else x for k, x in batch.items()}


def _part(package: str, path: str) -> Any:
    """package.path, where the package is there."""
    _take_torchvision()
    module, _, name = f"{package}.{path}".rpartition(".")
    return getattr(importlib.import_module(module), name)


@cache
def _take_torchvision() -> None:
    """Makes torchvision's import work where its native library is one for another build of PyTorch. The packages take
    plain Python of it, but its import asks for two operators of the library to be declared."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:
        for name in ("nms", "qnms"):
            _DECLARED.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_DECLARED = torch.library.Library("torchvision", "FRAGMENT")


def _own_loss(f: Callable, batch: Batch) -> torch.Tensor:
    """What models of transformers give that are called with labels."""
    return f(**batch).loss


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _tokens(batch: int, length: int, vocabulary: int, **more: int) -> Callable[[int], Batch]:
    """Batches of random tokens with labels; more: names of further tokens, and their lengths."""
    names = {"input_ids": length, "labels": length, **more}

    def make(seed: int) -> Batch:
        g = _seeded(seed)
        return {n: torch.randint(1, vocabulary, (batch, k), generator=g) for n, k in names.items()}

    return make


def _transformer(name: str, **settings: Any) -> nn.Module:
    """A model of transformers and its configuration, which have names that begin alike."""
    kind = name.partition("For")[0].removesuffix("Model").removesuffix("LMHead").removesuffix("Encoder")
    config = _part("transformers", f"{kind}Config")(**settings)
    if name == "WhisperEncoder":
        return _part("transformers", "models.whisper.modeling_whisper.WhisperEncoder")(config)
    return _part("transformers", name)(config)


def bert(small: bool) -> Trained:
    width, length, vocabulary = (16, 10, 60) if small else (256, 128, 8000)
    model = _transformer(
        "BertForMaskedLM", vocab_size=vocabulary, hidden_size=width, num_hidden_layers=2 if small else 4,
        num_attention_heads=4, intermediate_size=4 * width, max_position_embeddings=length,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    make = _tokens(3 if small else 8, length, vocabulary)

    def batch(seed: int) -> Batch:
        found = make(seed)
        mask = torch.ones_like(found["input_ids"])
        mask[0, length // 2 :] = 0
        labels = found["labels"].masked_fill(torch.rand(mask.shape, generator=_seeded(seed)) < 0.7, -100)
        return {**found, "attention_mask": mask, "token_type_ids": found["input_ids"] % 2, "labels": labels}

    return Trained(model, batch, _own_loss)


def gpt2(small: bool) -> Trained:
    width, length, vocabulary = (16, 10, 60) if small else (256, 128, 8000)
    model = _transformer(
        "GPT2LMHeadModel", vocab_size=vocabulary, n_embd=width, n_layer=2 if small else 4, n_head=4, n_positions=length,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    model.loss_type = "ForCausalLM"  # else a warning is logged, where TorchDynamo leaves the graph
    return Trained(model, _tokens(3 if small else 8, length, vocabulary), _own_loss)


def llama(small: bool) -> Trained:
    width, length, vocabulary = (16, 10, 60) if small else (256, 128, 8000)
    model = _transformer(
        "LlamaForCausalLM", vocab_size=vocabulary, hidden_size=width, intermediate_size=3 * width,
        num_hidden_layers=2 if small else 4, num_attention_heads=4, num_key_value_heads=2, use_cache=False,
        max_position_embeddings=length,
    )  # fmt: skip
    return Trained(model, _tokens(3 if small else 8, length, vocabulary), _own_loss)


def _images(batch: int, size: int, classes: int, names: tuple[str, str] = ("x", "y")) -> Callable[[int], Batch]:
    def make(seed: int) -> Batch:
        g = _seeded(seed)
        images = torch.randn(batch, 3, size, size, generator=g)
        return {names[0]: images, names[1]: torch.randint(0, classes, (batch,), generator=g)}

    return make


def vit(small: bool) -> Trained:
    width, size, patch = (16, 12, 4) if small else (256, 96, 8)
    model = _transformer(
        "ViTForImageClassification", image_size=size, patch_size=patch, hidden_size=width, num_attention_heads=4,
        num_hidden_layers=2 if small else 4, intermediate_size=4 * width, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=10,
    )  # fmt: skip
    return Trained(model, _images(3 if small else 8, size, 10, ("pixel_values", "labels")), _own_loss)


def t5(small: bool) -> Trained:
    width, length, vocabulary = (16, 9, 60) if small else (256, 128, 8000)
    layers = 2 if small else 3
    model = _transformer(
        "T5ForConditionalGeneration", vocab_size=vocabulary, d_model=width, d_kv=width // 4, d_ff=4 * width,
        num_layers=layers, num_decoder_layers=layers, num_heads=4, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return Trained(model, _tokens(3 if small else 4, length, vocabulary, labels=length - 2), _own_loss)


def whisper_encoder(small: bool) -> Trained:
    width, length, bands = (16, 12, 8) if small else (256, 300, 80)
    model = _transformer(
        "WhisperEncoder", d_model=width, encoder_layers=2 if small else 4, encoder_attention_heads=4,
        encoder_ffn_dim=4 * width, num_mel_bins=bands, max_source_positions=length, dropout=0.0, vocab_size=60,
        pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    count = 3 if small else 4

    def batch(seed: int) -> Batch:
        g = _seeded(seed)
        return {
            "input_features": torch.randn(count, bands, 2 * length, generator=g),
            "target": torch.randn(count, length, width, generator=g),
        }

    def loss(f: Callable, batch: Batch) -> torch.Tensor:
        return tf.mse_loss(f(batch["input_features"]).last_hidden_state, batch["target"])

    return Trained(model, batch, loss)


def mamba(small: bool) -> Trained:
    width, length, vocabulary = (8, 6, 30) if small else (128, 32, 2000)
    model = _transformer(
        "MambaForCausalLM", vocab_size=vocabulary, hidden_size=width, num_hidden_layers=2,
        state_size=4 if small else 16, use_cache=False,
    )  # fmt: skip
    return Trained(model, _tokens(3 if small else 8, length, vocabulary), _own_loss)


def _timm(name: str, batch: int, size: int, **settings: Any) -> Trained:
    model = _part("timm", "create_model")(name, num_classes=10, **settings)

    def loss(f: Callable, batch: Batch) -> torch.Tensor:
        return tf.cross_entropy(f(batch["x"]), batch["y"])

    return Trained(model, _images(batch, size, 10), loss)


def timm_resnet(small: bool) -> Trained:
    return _timm("test_resnet", 4, 40) if small else _timm("resnet26d", 8, 160)


def timm_convnext(small: bool) -> Trained:
    return _timm("test_convnext", 3, 64) if small else _timm("convnext_atto", 8, 160)


def timm_efficientnet(small: bool) -> Trained:
    return _timm("test_efficientnet", 4, 40) if small else _timm("efficientnet_b0", 8, 160)


def timm_swin(small: bool) -> Trained:
    name = "swin_tiny_patch4_window7_224"
    if small:
        return _timm(name, 2, 56, img_size=56, embed_dim=8, depths=(2, 2), num_heads=(2, 4), drop_path_rate=0.0)
    return _timm(name, 4, 112, img_size=112, embed_dim=48, depths=(2, 2, 2), num_heads=(3, 6, 12), drop_path_rate=0.0)


def _graphs(name: str, small: bool, **settings: Any) -> Trained:
    """A network of torch_geometric on random graphs of as many edges, classifying nodes."""
    nodes, edges, features, width = (20, 60, 6, 8) if small else (4000, 40000, 128, 64)
    model = _part("torch_geometric", f"nn.models.{name}")(features, width, num_layers=2, out_channels=5, **settings)

    def batch(seed: int) -> Batch:
        g = _seeded(seed)
        return {
            "x": torch.randn(nodes, features, generator=g), "y": torch.randint(0, 5, (nodes,), generator=g),
            "edge_index": torch.randint(0, nodes, (2, edges), generator=g),
        }  # fmt: skip

    def loss(f: Callable, batch: Batch) -> torch.Tensor:
        return tf.cross_entropy(f(batch["x"], batch["edge_index"]), batch["y"])

    return Trained(model, batch, loss)


def gcn(small: bool) -> Trained:
    return _graphs("GCN", small)


def gat(small: bool) -> Trained:
    return _graphs("GAT", small, heads=2)


MODELS: dict[str, tuple[str, Callable[[bool], Trained]]] = {
    "bert": ("transformers", bert),
    "gpt2": ("transformers", gpt2),
    "llama": ("transformers", llama),
    "vit": ("transformers", vit),
    "t5": ("transformers", t5),
    "whisper_encoder": ("transformers", whisper_encoder),
    "mamba": ("transformers", mamba),
    "timm_resnet": ("timm", timm_resnet),
    "timm_convnext": ("timm", timm_convnext),
    "timm_efficientnet": ("timm", timm_efficientnet),
    "timm_swin": ("timm", timm_swin),
    "gcn": ("torch_geometric", gcn),
    "gat": ("torch_geometric", gat),
}
"""The package of each, and what makes it: of whether it is to be small."""


def missing(name: str) -> str:
    """The package that a model needs and that is not installed, or ""."""
    package = MODELS[name][0]
    return "" if find_spec(package) else package


def get(name: str, size: str = "small") -> Trained:
    """A model with the weights of seed 0. Raises ImportError where its package is missing."""
    if package := missing(name):
        raise ImportError(f"{name} is a model of {package}, which is not installed")
    torch.manual_seed(0)
    made = MODELS[name][1](size == "small")
    made.model.train()
    return made
