"""Adapters of PEFT with frozen weights that the backend takes for constants (option `frozen`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")
peft = pytest.importorskip("peft", reason="its adapters are tested")

from einsmith.frontends.torch import refresh  # noqa: E402
from tests.frontends.test_peft import RTOL, adapted, distance, train  # noqa: E402
from tests.frontends.test_torch_frozen import KEEPS, keep_values, packs_all  # noqa: E402, F401
from tests.frontends.torch_compiled import compiled, fresh  # noqa: E402, F401

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("packs_all"),
]


def check(make: Callable[[], Any], keep: bool | str = True, **options: Any) -> None:
    """Compare training by the backend with eager training of the kept values."""
    eager, model = keep_values(make(), keep), make()
    options = {"lengths": (7,)} | options
    assert distance(train(model, compiled(model, frozen=keep), **options), train(eager, eager, **options)) < RTOL


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_lora(name: str, keep: bool | str) -> None:
    check(lambda: adapted(name), keep)


@pytest.mark.parametrize("keep", [True, "bf16"])
def test_dora(keep: bool | str) -> None:
    check(lambda: adapted("Llama", "DoRA"), keep)


@pytest.mark.parametrize("keep", [True, "int8"])
def test_lengths_that_vary(keep: bool | str) -> None:
    check(adapted, keep, lengths=(7, 9, 5, 12, 9))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant: bool) -> None:
    def make() -> Any:
        model = adapted()
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        model.enable_input_require_grads()
        return model

    check(make, "bf16")


@pytest.mark.parametrize("keep", [True, "bf16"])
def test_autocast(keep: bool | str) -> None:
    """The distance from training in float32 is that of eager autocast, but for chance."""
    eager, model, exact = adapted(), adapted(), adapted()
    wanted = train(exact, exact)
    theirs = distance(train(eager, eager, dtype=torch.bfloat16), wanted)
    ours = distance(train(model, compiled(model, frozen=keep), dtype=torch.bfloat16), wanted)
    assert 1e-4 < ours < 2 * theirs


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("adapter", ["LoRA", "DoRA", "IA3"])
def test_merged_adapters(adapter: str, keep: bool | str) -> None:
    """Weights into which an adapter is merged, and that it leaves, are followed after `refresh`."""
    tokens = torch.arange(12).reshape(2, 6)
    model = adapted("Llama", adapter).eval()
    run = compiled(model, frozen=keep)
    with torch.no_grad():
        for change in (lambda: None, model.merge_adapter, model.unmerge_adapter, model.merge_adapter):
            change()
            refresh(model)
            eager = keep_values(adapted("Llama", adapter).eval(), False)
            if change == model.merge_adapter:
                eager.merge_adapter()
            eager.load_state_dict(model.state_dict())
            assert distance([run(input_ids=tokens).logits], [keep_values(eager, keep)(input_ids=tokens).logits]) < RTOL


def test_trained_adapters_are_merged_again() -> None:
    """A second merge, of other values, reaches the graph that the first one compiled."""
    tokens = torch.arange(12).reshape(2, 6)
    model = adapted().eval()
    run = compiled(model, frozen=True)
    with torch.no_grad():
        for factor in (1.0, 3.0):
            for name, p in model.named_parameters():
                if "lora_B" in name:
                    p.mul_(factor)
            model.merge_adapter()
            refresh(model)
            merged = model(input_ids=tokens).logits
            assert distance([run(input_ids=tokens).logits], [merged]) < RTOL
            model.unmerge_adapter()
            refresh(model)


def test_accelerate_passes_options() -> None:
    accelerate = pytest.importorskip("accelerate", reason="its plug-in is tested")
    import einsmith.frontends.accelerate  # noqa: F401 - adds the backend

    plugin = accelerate.utils.TorchDynamoPlugin(backend="einsmith", options={"frozen": True})
    accelerator = accelerate.Accelerator(cpu=True, dynamo_plugin=plugin)
    eager, model = adapted(), adapted()
    run = accelerator.prepare_model(model)
    assert distance(train(model, run), train(eager, eager)) < RTOL
