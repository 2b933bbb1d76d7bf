"""transformers' Trainer, Accelerate and Lightning train with the backend as without it, and resume from checkpoints."""

from __future__ import annotations

import importlib.util
import logging
import math
import warnings
from pathlib import Path

import numpy as np
import pytest

from einsmith.base.errors import EinsmithWarning
from einsmith.driver.executable import Executable

torch = pytest.importorskip("torch", reason="its trainers are tested")

EXAMPLES = Path(__file__).parents[2] / "examples"
RTOL = 2e-4
"""Of losses in float32 after at most 8 steps; sums are added in another order."""


@pytest.fixture
def programs(monkeypatch):
    """A list that gets an entry for each program that is compiled; what runs in PyTorch instead is an error."""
    made, old = [], Executable.__init__

    def noted(self, *args, **kwargs):
        made.append(self)
        old(self, *args, **kwargs)

    monkeypatch.setattr(Executable, "__init__", noted)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", EinsmithWarning)
        yield made


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_losses(eager, whole, resumed, steps):
    assert len(eager) == len(whole) == steps and all(map(math.isfinite, eager)) and len(set(eager)) == steps
    np.testing.assert_allclose(whole, eager, rtol=RTOL)
    np.testing.assert_allclose(resumed, whole[-len(resumed) :], rtol=1e-6)


@pytest.mark.slow
def test_the_trainer_of_transformers(programs, tmp_path) -> None:
    pytest.importorskip("transformers", reason="its Trainer is tested")
    pytest.importorskip("accelerate", reason="the Trainer builds on it")
    example = load_example("transformers_trainer")
    eager = example.train(tmp_path / "eager", 6, None)
    assert not programs
    whole = example.train(tmp_path / "runs", 6)
    assert len(programs) == 2  # one forward, one backward
    resumed = example.train(tmp_path / "runs", 6, checkpoint=tmp_path / "runs" / "checkpoint-4")
    check_losses(eager, whole, resumed, 6)


@pytest.mark.slow
def test_a_loop_of_accelerate(programs, tmp_path) -> None:
    pytest.importorskip("accelerate", reason="it is tested")
    from accelerate.state import AcceleratorState

    example = load_example("accelerate_loop")

    def train(*args, **kwargs):
        AcceleratorState._reset_state(True)  # the first Accelerator of a process sets its backend
        return example.train(*args, **kwargs)

    eager = train(tmp_path / "eager", 2, "no")
    assert not programs
    whole = train(tmp_path / "whole", 2)
    assert len(programs) == 2
    train(tmp_path / "half", 1)
    resumed = train(tmp_path / "half", 2, resume=True)
    assert len(resumed) == 4
    check_losses(eager, whole, resumed, 8)


def adapted():
    """Return a small model of transformers with adapters of PEFT, and the texts that it is trained on."""
    transformers = pytest.importorskip("transformers", reason="its models are tested")
    peft = pytest.importorskip("peft", reason="its adapters are tested")
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(num_attention_heads=2, num_key_value_heads=1, use_cache=False, **sizes)
    model = peft.get_peft_model(
        transformers.LlamaForCausalLM(config), peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    return model, (torch.arange(12) + torch.randint(32, (32, 1))) % 32


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_trainer_with_adapters_of_peft(programs, tmp_path, checkpointing) -> None:
    transformers = pytest.importorskip("transformers", reason="its Trainer is tested")
    pytest.importorskip("accelerate", reason="the Trainer builds on it")
    import einsmith.frontends.accelerate  # noqa: F401 - adds the backend

    losses = []
    for backend in (None, "einsmith"):
        assert not programs
        model, texts = adapted()
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            max_steps=4,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            gradient_checkpointing=checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            torch_compile=backend is not None,
            torch_compile_backend=backend,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        rows = [{"input_ids": x, "labels": x} for x in texts]
        trainer = transformers.Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert programs and len(losses[0]) == 4
    np.testing.assert_allclose(losses[1], losses[0], rtol=RTOL)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["backend of the accelerator", "compiled before"])
def test_accelerate_with_adapters_of_peft(programs, way) -> None:
    accelerate = pytest.importorskip("accelerate", reason="it is tested")
    import einsmith.frontends.accelerate  # noqa: F401 - adds the backend

    losses = []
    for backend in ("no", "einsmith"):
        assert not programs
        accelerate.state.AcceleratorState._reset_state(True)
        first = "no" if way == "compiled before" else backend
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, dynamo_backend=first)
        model, texts = adapted()
        weights = [p for p in model.parameters() if p.requires_grad]
        run = torch.compile(model, backend=backend) if way == "compiled before" and backend != "no" else model
        run, optimizer = accelerator.prepare(run, torch.optim.AdamW(weights, lr=1e-2))
        losses.append([])
        for x in texts.split(4):
            with accelerator.accumulate(run):
                loss = run(input_ids=x, labels=x).loss
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses[-1].append(loss.item())
    assert programs and len(set(losses[0])) == 8
    np.testing.assert_allclose(losses[1], losses[0], rtol=RTOL)


def test_accelerates_list_of_backends() -> None:
    pytest.importorskip("accelerate", reason="its list is tested")
    from accelerate.utils import DynamoBackend, TorchDynamoPlugin

    from einsmith.frontends.accelerate import add_backend

    for _ in range(2):
        add_backend()
        member = DynamoBackend("EINSMITH")
        assert DynamoBackend(member) is member and member.value == "EINSMITH" and member != DynamoBackend.NO
    assert TorchDynamoPlugin(backend="einsmith").to_kwargs()["backend"] == "einsmith"
    with pytest.raises(ValueError, match="is not a valid DynamoBackend"):
        TorchDynamoPlugin(backend="einsmiht")


@pytest.mark.slow
def test_a_module_of_lightning(programs, tmp_path) -> None:
    pytest.importorskip("lightning", reason="it is tested")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    example = load_example("lightning_module")
    eager = example.train(tmp_path / "eager", 2, None)
    assert not programs
    whole = example.train(tmp_path / "runs", 2)
    assert len(programs) == 2
    resumed = example.train(tmp_path / "runs", 2, checkpoint=tmp_path / "runs" / "epoch=0.ckpt")
    assert len(resumed) == 4
    check_losses(eager, whole, resumed, 8)
    names = torch.load(tmp_path / "runs" / "epoch=0.ckpt", weights_only=False)["state_dict"]
    assert set(names) == set(example.Moons(None).state_dict())
