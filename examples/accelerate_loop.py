"""A training loop of Accelerate with Einsmith as its compiler: images of stripes, stopped and resumed.

python examples/accelerate_loop.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import einsmith.frontends.accelerate  # noqa: F401 - adds "einsmith" to Accelerate's list of backends


def stripes(n: int) -> TensorDataset:
    """Pictures of stripes, upright (0) or lying (1), in noise."""
    waves = torch.sin(torch.arange(12) + torch.randint(6, (n, 1, 1, 1)))
    y = torch.randint(2, (n,))
    x = torch.where(y[:, None, None, None] == 0, waves.expand(n, 1, 12, 12), waves.expand(n, 1, 12, 12).mT)
    return TensorDataset(x + 0.5 * torch.randn(n, 1, 12, 12), y)


def train(folder: Path, epochs: int, backend: str = "einsmith", resume: bool = False) -> list[float]:
    """Train until `epochs` epochs are done, from the state in a folder or the beginning, and save the state after each
    epoch; return the losses."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, dynamo_backend=backend)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(5), nn.Flatten(), nn.Linear(32, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 8, gamma=0.8)
    batches = DataLoader(stripes(64), batch_size=16)
    model, optimizer, schedule, batches = accelerator.prepare(model, optimizer, schedule, batches)
    first = 0
    if resume:
        accelerator.load_state(str(folder))
        first = int((folder / "epoch.txt").read_text())
    losses = []
    for epoch in range(first, epochs):
        model.train()
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        accelerator.save_state(str(folder))
        (folder / "epoch.txt").write_text(str(epoch + 1))
    return losses


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        losses = train(Path(folder), 1) + train(Path(folder), 10, resume=True)
    print(f"the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}, with a stop after 4 of {len(losses)} steps")


if __name__ == "__main__":
    main()
