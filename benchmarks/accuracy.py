"""Networks trained by `einsmith train`, and their PyTorch twins on the same batches from the same weights:
python -m benchmarks.accuracy --network resnet18_cifar [--epochs 1] [--seed 0] [--only einsmith|pytorch] [--folder DIR]

The twin reads the settings that the run was saved with, checks every batch against the digests of those that the run
has trained on, and the first loss against the run's. Each side is saved after every epoch, the twin within it too, and
goes on from there. The last line is JSON with both results; the exit status is 1 where Einsmith's accuracy is more than
0.3 points below the twin's, or its perplexity more than a hundredth above.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.nn import functional as T

from benchmarks.driver import Parser
from einsmith import models
from einsmith.bench.in_torch import in_torch
from einsmith.bench.torch_steps import margin_loss
from einsmith.cli.main import run as command_line
from einsmith.cli.task_table import task_of
from einsmith.cli.tasks import fitting
from einsmith.cli.train import SETTINGS, Run, fresh
from einsmith.data import Batches, Stream, mnist
from einsmith.data.mnist_files import FILES

POINTS, RATIO = 0.3, 1.01
"""How much below its twin's an accuracy may be, in points; how much above a perplexity, as a ratio."""
FIRST_LOSS = 1e-4
"""Relative difference of the first losses, which are functions of the initial weights and the first batch alone."""
EVERY = 50
"""Batches between two lines of progress, and two saves of the twin."""
UNBEGUN = {"batches": 0, "total": 0.0, "count": 0, "seconds": 0.0}
"""What is known of an epoch of the twin's: its batches so far, their losses times samples, samples, and seconds."""
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.0),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.0),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.0, weight_decay=0.05),
}


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


# -------------------------------------------------------------------------------------------------------- the networks


@dataclass(frozen=True)
class Network:
    """options: of `einsmith train`, given a folder where data may be written; twin: from the model's arguments, the
    network in PyTorch and its loss."""

    epochs: int
    options: Callable[[Path], Sequence[str]]
    twin: Callable[[dict[str, Any]], tuple[torch.nn.Module, Callable]]


def resnet(arguments: dict[str, Any]) -> tuple[torch.nn.Module, Callable]:
    return in_torch(models.get("resnet18_cifar", classes=arguments["classes"])), T.cross_entropy


def capsules(arguments: dict[str, Any]) -> tuple[torch.nn.Module, Callable]:
    return in_torch(models.get("capsulenet")), margin_loss


def gpt(arguments: dict[str, Any]) -> tuple[torch.nn.Module, Callable]:
    width = arguments["width"]
    sizes = {n: arguments[n] for n in ("vocabulary", "width", "layers", "heads", "positions")}
    twin = in_torch(models.get("gpt_small", **sizes, inner=4 * width, dropout=0.0))
    return twin, lambda y, t: T.cross_entropy(y.flatten(0, 1), t.flatten())


class LanguageModel(torch.nn.Module):
    """The twin of `es.models.lstm_lm`, with torch's own LSTM, which goes on from the states of the batch before."""

    def __init__(self, vocabulary: int, batch: int, width: int = 650, layers: int = 2):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.rnn = torch.nn.LSTM(width, width, layers)
        self.decoder = torch.nn.Linear(width, vocabulary)
        for name in ("hidden", "cell"):
            self.register_buffer(name, torch.zeros(layers, batch, width))
            self.register_buffer(f"test_{name}", torch.zeros(layers, batch, width), persistent=False)

    def forward(self, x: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
        names = [f"{'' if self.training else 'test_'}{name}" for name in ("hidden", "cell")]
        before = [torch.where(begins[:, None], 0.0, getattr(self, name)) for name in names]
        h, after = self.rnn(self.embedding(x), tuple(before))
        for name, state in zip(names, after, strict=True):
            setattr(self, name, state.detach())
        return self.decoder(h.flatten(0, 1))


def lstm(arguments: dict[str, Any]) -> tuple[torch.nn.Module, Callable]:
    sizes = {n: arguments[n] for n in ("vocabulary", "batch", "width", "layers") if n in arguments}
    return LanguageModel(**sizes), T.cross_entropy


def digits(folder: Path, count: int = 12_000) -> Path:
    """The first images of MNIST and all its test images, as a folder of idx files."""
    target = folder / f"mnist-{count}"
    target.mkdir(parents=True, exist_ok=True)
    for split, names in FILES.items():
        x, y = mnist(split, say=say)
        kept = count if split == "train" else len(y)
        for name, a in zip(names, (np.rint(255 * x[:kept, 0]), y[:kept]), strict=True):
            header = bytes([0, 0, 8, a.ndim]) + b"".join(n.to_bytes(4, "big") for n in a.shape)
            (target / name).write_bytes(header + a.astype(np.uint8).tobytes())
    return target


NETWORKS = {
    "resnet18_cifar": Network(
        1, lambda folder: ["--augment", "--batch", "128", "--optimizer", "momentum", "--lr", "0.05"], resnet
    ),
    "capsulenet": Network(
        3, lambda folder: ["--data", str(digits(folder)), "--batch", "128", "--optimizer", "adam", "--lr", "0.001"],
        capsules,
    ),
    "gpt_small": Network(
        4, lambda folder: [
            "--data", "moby-dick", "--optimizer", "adamw", "--lr", "0.001", "--batch", "32",
            *("--set", "width=128", "--set", "layers=4", "--set", "heads=4", "--set", "dropout=0"),
        ],
        gpt,
    ),
    "lstm-lm": Network(1, lambda folder: ["--data", "sotu", "--optimizer", "sgd", "--lr", "0.2"], lstm),
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- Einsmith


def digest(batch: Iterable[np.ndarray]) -> str:
    """Of the arrays' types, shapes and values."""
    found = hashlib.blake2b(digest_size=16)
    for a in batch:
        found.update(f"{a.dtype}{a.shape}".encode())
        found.update(np.ascontiguousarray(a).data)
    return found.hexdigest()


def ours(name: str, network: Network, folder: Path, epochs: int, seed: int, threads: int) -> int:
    """Runs `einsmith train`, and notes what it trains on in `folder`. Returns the exit status."""
    save = folder / "run"
    if (save / SETTINGS).exists():
        chosen = ["--resume", str(save)]
    else:
        chosen = ["--save", str(save), "--seed", str(seed), *network.options(folder.parent)]
    command = ["train", name, "--epochs", str(epochs), "--threads", str(threads), *chosen]
    say(f"einsmith {' '.join(command)}")
    with open(folder / "batches.jsonl", "a", buffering=1) as notes, ExitStack() as stack:

        def noting(epoch: Callable) -> Callable:
            def noted(self: Batches | Stream, n: int, start: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
                for k, batch in enumerate(epoch(self, n, start), start):
                    notes.write(json.dumps([n, k, digest(batch)]) + "\n")
                    yield batch
                    if not (k + 1) % EVERY:
                        say(f"Einsmith: epoch {n + 1}, batch {k + 1} of {len(self)}")

            return noted

        for kind in (Batches, Stream):
            stack.enter_context(mock.patch.object(kind, "epoch", noting(kind.epoch)))
        return command_line(command)


def saved(folder: Path) -> Run | None:
    """What `einsmith train` has saved."""
    try:
        found = json.loads((folder / "run" / SETTINGS).read_text())
    except FileNotFoundError:
        return None
    return Run(**{f.name: found[f.name] for f in fields(Run)})


def noted(folder: Path) -> dict[tuple[int, int], str]:
    """By epoch and number, the digests of the batches that the run has trained on."""
    lines = (folder / "batches.jsonl").read_text().splitlines()
    return {(n, k): found for n, k, found in map(json.loads, lines)}


# ----------------------------------------------------------------------------------------------------------- PyTorch


def theirs(network: Network, folder: Path, run: Run, threads: int) -> list[dict[str, float]]:
    """Trains the twin as the run was trained; what is reported after each epoch."""
    torch.set_num_threads(threads)
    data, batches = task_of(run.model).load(run, say), noted(folder)
    begun = fresh(run, data)
    model, loss_of = network.twin(fitting(run.model, data.arguments) | run.arguments)
    state = {n: torch.tensor(np.asarray(v)) for n, v in begun.state_dict().items()}
    model.load_state_dict(state)
    optimizer = OPTIMIZERS[run.optimizer](model.parameters())
    history: list[dict[str, float]] = []
    part = dict(UNBEGUN)
    save = folder / "twin.pt"
    if save.exists():
        found = torch.load(save, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        history, part = found["history"], found.get("part", part)

    def keep() -> None:
        packed = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": history, "part": part}
        torch.save(packed, folder / ".twin.pt")
        os.replace(folder / ".twin.pt", save)

    length = len(data.train)
    for n in range(len(history), run.epochs):
        start, done = time.perf_counter() - part["seconds"], int(part["batches"])
        total, count = part["total"], part["count"]
        model.train()
        for k, batch in enumerate(data.train.epoch(n, done), done):
            if digest(batch) != batches[n, k]:
                raise SystemExit(f"batch {k} of epoch {n} is not the one that the run has trained on")
            *inputs, target = (torch.from_numpy(np.ascontiguousarray(a)) for a in batch)
            for group in optimizer.param_groups:
                group["lr"] = run.rate(n * length + k, run.epochs * length)
            loss = loss_of(model(*inputs), target)
            if n == k == 0:
                first, mine = loss.item(), run.losses[0]
                if not abs(first - mine) <= FIRST_LOSS * abs(mine):
                    raise SystemExit(f"the first loss is {first}, and {mine} in the run: the weights are not the same")
                say(f"PyTorch: the first loss is {first:.6f}, the run's {mine:.6f}")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, count = total + loss.item() * len(target), count + len(target)
            if not (k + 1) % EVERY:
                part = {"batches": k + 1, "total": total, "count": count, "seconds": time.perf_counter() - start}
                keep()
                say(f"PyTorch: epoch {n + 1}, batch {k + 1} of {length}")
        row = {"epoch": n + 1, "loss": total / count, "seconds": time.perf_counter() - start}
        history.append(row | evaluated(model, loss_of, data.test, "accuracy" in run.history[n]))
        part = dict(UNBEGUN)
        keep()
        say(f"PyTorch: {history[-1]}")
    return history


def evaluated(model: torch.nn.Module, loss_of: Callable, test: Iterable, has_classes: bool) -> dict[str, float]:
    """The loss over the test samples, and the accuracy where each has one class, else the perplexity."""
    total, right, count = 0.0, 0, 0
    model.eval()
    with torch.no_grad():
        for batch in test:
            *inputs, target = (torch.from_numpy(np.ascontiguousarray(a)) for a in batch)
            out = model(*inputs)
            total, count = total + loss_of(out, target).item() * len(target), count + len(target)
            right += int((out.argmax(1) == target).sum()) if has_classes else 0
    loss = total / count
    return {"test_loss": loss} | ({"accuracy": right / count} if has_classes else {"perplexity": math.exp(loss)})


def compared(mine: Sequence[dict[str, float]], peers: Sequence[dict[str, float]]) -> tuple[dict[str, Any], bool]:
    """Both results after the last epoch that both have, and whether Einsmith's is good enough."""
    row, peer = mine[len(peers) - 1], peers[-1]
    if "accuracy" in row:
        points = 100 * (row["accuracy"] - peer["accuracy"])
        return {"einsmith": row["accuracy"], "pytorch": peer["accuracy"], "points": points}, points >= -POINTS
    ratio = row["perplexity"] / peer["perplexity"]
    return {"einsmith": row["perplexity"], "pytorch": peer["perplexity"], "ratio": ratio}, ratio <= RATIO


def main() -> int:
    usual = ", ".join(f"{n.epochs} of {name}" for name, n in NETWORKS.items())
    parser = Parser(
        __doc__, network=(str, f"of {', '.join(NETWORKS)}"), epochs=(int, f"how many; default: {usual}"),
        seed=(0, "of weights and batches"), only=(str, "einsmith or pytorch, to train that one"),
        folder=(Path("bench-results/accuracy"), "where both sides are saved"), threads=(2, ""),
    )  # fmt: skip
    args = parser.read()
    if args.network not in NETWORKS or args.only not in (None, "einsmith", "pytorch"):
        parser.error(f"--network is one of {', '.join(NETWORKS)}; --only einsmith or pytorch")
    network = NETWORKS[args.network]
    epochs = args.epochs or network.epochs
    folder = args.folder / f"{args.network}-{epochs}{f'-seed{args.seed}' if args.seed else ''}"
    folder.mkdir(parents=True, exist_ok=True)
    if args.only != "pytorch" and (status := ours(args.network, network, folder, epochs, args.seed, args.threads)):
        return status
    run = saved(folder)
    if run is None:
        raise SystemExit(f"{folder} has no run of Einsmith's yet; leave --only out")
    found: dict[str, Any] = {"network": args.network, "epochs": epochs, "seed": args.seed, "history": run.history}
    fine = True
    if args.only != "einsmith":
        peers = theirs(network, folder, run, args.threads)
        result, fine = compared(run.history, peers)
        found |= {"twin": peers} | result
    print(json.dumps(found))
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
