"""Layers that models of transformers share, against transformers' own in PyTorch, and models that call them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from einsmith.frontends import transformers as door  # noqa: E402
from einsmith.frontends.transformers import layers, table  # noqa: E402
from tests.frontends.test_transformers_models import agree, results, tiny  # noqa: E402

LEVELS = [(7, 5), (3, 4), (1, 1)]
NORMS = {
    "qwen3_next.Qwen3Next": {},
    "kimi_linear.KimiLinear": {},
    "qwen4_exp.Qwen4ExpText": {"activation": "sigmoid"},
    "mamba2.Mamba": {"group_size": 11},
    "zamba2.Zamba2": {"group_size": 33},
    "falcon_h1.FalconH1": {"n_groups": 3},
    "falcon_h1.FalconH1 ": {"n_groups": 1, "norm_before_gate": False},
}


@pytest.fixture(autouse=True)
def disabled():
    torch.manual_seed(0)
    yield
    door.disable()


@pytest.fixture
def small(monkeypatch) -> None:
    """Calls of any size are worth it."""
    monkeypatch.setattr(layers, "_FEWEST_OF_A_NORM", 1)
    monkeypatch.setattr(layers, "_FEWEST_OF_A_LOSS", 1)


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """The functions of which Einsmith has run one."""
    out: list[str] = []
    for name in ("_norm", "_sum_of_losses", "_attend"):
        f = getattr(layers, name)
        monkeypatch.setattr(layers, name, lambda *x, name=name, f=f: out.append(name) or f(*x))
    return out


def module(model: str) -> Any:
    return importlib.import_module(f"transformers.models.{model}.modeling_{model}")


def test_every_entry_names_what_a_model_has() -> None:
    assert {path for path in door.METHODS if "RMSNormGated" in path or "Deformable" in path} <= {*door.enable()}
    for path in door.METHODS:
        model, *names = path.split(".")
        holder = importlib.import_module("transformers.loss.loss_utils") if model == "loss_utils" else module(model)
        for name in names:
            holder = getattr(holder, name)


def deformable(model: str, shapes: list) -> tuple[Callable, list]:
    sizes = torch.tensor(shapes)
    starts = sizes.prod(1).cumsum(0) - sizes.prod(1)
    value, at = torch.randn(2, int(sizes.prod(1).sum()), 3, 5), torch.rand(2, 17, 3, len(shapes), 4, 2) * 1.4 - 0.2
    weights = torch.rand(2, 17, 3, len(shapes), 4)
    holder = module(model)
    if model not in table.DEFORMABLE.split():
        return lambda v, at, a: holder.multi_scale_deformable_attention(v, shapes, at, a), [value, at, weights]
    layer = holder.MultiScaleDeformableAttention()
    return lambda v, at, a: layer(v, sizes, shapes, starts, at, a, 64), [value, at, weights]


@pytest.mark.parametrize("model", [*table.DEFORMABLE.split(), "mask2former", "oneformer"])
def test_deformable_attention(model: str, calls: list[str]) -> None:
    f, inputs = deformable(model, LEVELS)
    wanted = results(f, inputs)
    assert not calls
    door.enable()
    agree(results(f, inputs), wanted, 1e-5)
    assert len(calls) == 1
    torch._dynamo.reset()
    agree(results(torch.compile(f, backend="einsmith", fullgraph=True), inputs), wanted, 1e-5)
    low = f(*(x.bfloat16() for x in inputs))
    assert low.dtype is torch.bfloat16
    with pytest.raises(RuntimeError, match="split"):
        f(inputs[0][:, 1:], *inputs[1:])
    count = len(calls)
    door.disable()
    f(*inputs)
    assert len(calls) == count


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("shape", [(2, 19), (5,)])
def test_gated_norms(name: str, shape: tuple[int, ...], small: None, calls: list[str]) -> None:
    model, layer = name.strip().split(".")
    norm = getattr(module(model), f"{layer}RMSNormGated")(33, eps=1e-3, **NORMS[name])
    x, z = torch.randn(*shape, 33), torch.randn(*shape, 66)[..., :33]
    call = lambda x, z, w: torch.func.functional_call(norm, {"weight": w}, (x, z))  # noqa: E731
    inputs = [x, z, torch.randn(33)]
    wanted = results(call, inputs)
    door.enable()
    agree(results(call, inputs), wanted, 1e-5)
    assert calls == ["_norm"]
    assert norm(x.bfloat16(), z.bfloat16()).shape == x.shape
    assert norm.double()(x.double(), z.double()).shape == x.shape
    assert len(calls) == 1


@pytest.mark.parametrize(
    "options", [{}, {"num_items_in_batch": torch.tensor(7)}, {"ignore_index": 3}, {"shifts": True}]
)
def test_losses(options: dict, small: None, calls: list[str]) -> None:
    from transformers.loss.loss_utils import LOSS_MAPPING

    loss, labels = LOSS_MAPPING["ForCausalLM"], torch.randint(0, 31, (2, 19))
    labels[0, 3:5] = options.get("ignore_index", -100)
    options = options if "shifts" not in options else {"shift_labels": labels.roll(-1, 1)}
    call = lambda x: loss(x, labels, 31, **options)  # noqa: E731
    for kind, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        logits = [(torch.randn(2, 19, 31) * 3).to(kind)]
        wanted = results(call, logits)
        door.enable()
        agree(results(call, logits), wanted, tolerance)
        door.disable()
    assert calls == ["_sum_of_losses"] * 2
    door.enable()
    with pytest.raises(IndexError):
        loss(logits[0], labels + 31, 31)


def test_losses_of_nothing_are_those_of_transformers(small: None) -> None:
    from transformers.loss import loss_utils

    x, labels = torch.randn(3, 5), torch.full((3,), -100)
    door.enable()
    assert loss_utils.fixed_cross_entropy(x, labels).isnan()
    assert loss_utils.fixed_cross_entropy(x, labels, num_items_in_batch=2) == 0


def test_little_is_left_to_transformers(calls: list[str]) -> None:
    from transformers.loss import loss_utils

    door.enable()
    norm = module("qwen3_next").Qwen3NextRMSNormGated(64)
    norm(torch.randn(8, 64), torch.randn(8, 64))
    loss_utils.fixed_cross_entropy(torch.randn(8, 64), torch.zeros(8, dtype=torch.int64))
    assert not calls
    norm(torch.randn(256, 64), torch.randn(256, 64))
    loss_utils.fixed_cross_entropy(torch.randn(1 << 16, 64), torch.zeros(1 << 16, dtype=torch.int64))
    assert calls == ["_norm", "_sum_of_losses"]


def real_time_detr() -> Any:
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8] * 4, depths=[1] * 4, out_features=["stage2", "stage3", "stage4"]
    )
    config = transformers.RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=16, encoder_in_channels=[8] * 3, encoder_ffn_dim=16,
        encoder_attention_heads=2, d_model=16, num_queries=7, decoder_in_channels=[16] * 3, decoder_ffn_dim=16,
        decoder_n_points=3, decoder_layers=1, decoder_attention_heads=2, num_denoising=0, num_labels=5,
    )  # fmt: skip
    return transformers.RTDetrForObjectDetection(config).train()


def deformable_detr() -> Any:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8] * 4, depths=[1] * 4, out_features=["stage2", "stage3", "stage4"]
    )
    config = transformers.DeformableDetrConfig(
        backbone_config=backbone, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=7, num_feature_levels=3,
        encoder_n_points=3, decoder_n_points=3, num_labels=5,
    )  # fmt: skip
    return transformers.DeformableDetrForObjectDetection(config).train()


def step(model: Any, f: Callable, **inputs: Any) -> list:
    """Return a loss and all gradients; dropout is the same in each step."""
    torch.manual_seed(1)
    model.zero_grad()
    out = f(**inputs)
    loss = out.loss if out.loss is not None else (out.logits.cos().mean() + out.pred_boxes.sin().mean())
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def apart(found: list, wanted: list) -> float:
    """Return how far all gradients are apart, by the largest element of all (batch norms of few pixels cancel)."""
    assert len(found) == len(wanted)
    largest = max(float(b.abs().max()) for b in wanted)
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True)) / largest


@pytest.mark.parametrize("make", [real_time_detr, deformable_detr])
def test_steps_of_detectors(make: Callable, calls: list[str]) -> None:
    model, inputs = make(), {"pixel_values": torch.randn(1, 3, 64, 96)}
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    wanted = step(model, model, **inputs)
    door.enable()
    assert apart(step(model, model, **inputs), wanted) <= 1e-4
    assert calls
    door.disable()
    count = len(calls)
    assert apart(step(model, model, **inputs), wanted) <= 1e-6 and len(calls) == count


@pytest.mark.parametrize("name", ["Qwen3Next", "Mamba2"])
def test_steps_of_language_models(name: str, small: None, calls: list[str]) -> None:
    model, tokens = tiny(name), torch.randint(0, 32, (2, 19))
    inputs = {"input_ids": tokens, "labels": tokens, "use_cache": False}
    wanted = step(model, model, **inputs)
    door.enable()
    agree(step(model, model, **inputs), wanted, 1e-4)
    assert {*calls} == {"_norm", "_sum_of_losses"}
