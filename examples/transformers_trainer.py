"""transformers' Trainer with Einsmith as its compiler: a small Llama learns to count, is stopped and resumed.

python examples/transformers_trainer.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import einsmith.frontends.accelerate  # noqa: F401 - Accelerate, on which the Trainer builds, learns of the backend


def train(folder: Path, steps: int, backend: str | None = "einsmith", checkpoint: Path | None = None) -> list[float]:
    """Train until `steps` updates are made, from a checkpoint or the beginning; return the losses."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                    bos_token_id=0, eos_token_id=0, use_cache=False)
    )  # fmt: skip
    texts = (torch.arange(16) + torch.randint(32, (64, 1))) % 32  # 5 6 7 8 ...
    arguments = TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=8, learning_rate=1e-2, lr_scheduler_type="constant",
        save_steps=4, logging_steps=1, report_to="none", disable_tqdm=True, use_cpu=True,
        torch_compile=backend is not None, torch_compile_backend=backend,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": x, "labels": x} for x in texts])
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), 4)
        losses = train(Path(folder), 40, checkpoint=Path(folder) / "checkpoint-4")
    print(f"the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}, with a stop after 4 of {len(losses)} steps")


if __name__ == "__main__":
    main()
