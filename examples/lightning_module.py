"""A module of Lightning whose network Einsmith compiles: points in two moons, stopped and resumed.

python examples/lightning_module.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import einsmith.frontends.torch  # noqa: F401 - registers the backend in a checkout; an installed package needs no import


class Network(nn.Module):
    """A perceptron. The class is our own: `compile` does nothing for a bare nn.Sequential, whose code is PyTorch's."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Moons(lightning.LightningModule):
    """A classifier of points. Its network is compiled, and the module's methods stay Python."""

    def __init__(self, backend: str | None = "einsmith"):
        super().__init__()
        self.network = Network()
        if backend is not None:
            self.network.compile(backend=backend)  # in place: checkpoints have the names of the plain network
        self.losses: list[float] = []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y)
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def moons(n: int) -> TensorDataset:
    """Points on two half circles that reach into each other, in noise."""
    y, angle = torch.randint(2, (n,)), torch.rand(n) * torch.pi
    sign = 1.0 - 2.0 * y
    x = torch.stack([sign * angle.cos() + y, sign * angle.sin() + 0.5 * y], 1)
    return TensorDataset(x + 0.1 * torch.randn(n, 2), y)


def train(folder: Path, epochs: int, backend: str | None = "einsmith", checkpoint: Path | None = None) -> list[float]:
    """Train until `epochs` epochs are done, from a checkpoint or the beginning; return the losses."""
    torch.manual_seed(0)
    model = Moons(backend)
    batches = DataLoader(moons(128), batch_size=32)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        log_every_n_steps=1, callbacks=[ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
    )  # fmt: skip
    trainer.fit(model, batches, ckpt_path=checkpoint)
    return model.losses


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        losses = train(Path(folder), 1) + train(Path(folder), 20, checkpoint=Path(folder) / "epoch=0.ckpt")
    print(f"the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}, with a stop after 4 of {len(losses)} steps")


if __name__ == "__main__":
    main()
