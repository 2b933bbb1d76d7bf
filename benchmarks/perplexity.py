"""The LSTM language model and its PyTorch twin from the same weights on the same windows, an epoch of each:
python -m benchmarks.perplexity [--windows N] [--data moby-dick]

Both are trained by SGD and then evaluated on the test text; the last line is JSON with both perplexities, the ratio and
the seconds. The exit status is 1 where the perplexities differ by more than a hundredth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Iterable

import numpy as np
import torch
from rich.console import Console

import einsmith as es
from einsmith.data import Stream, Vocabulary, stream

TOLERANCE = 0.01


class Twin(torch.nn.Module):
    """The model in PyTorch, with torch's own LSTM."""

    def __init__(self, vocabulary: int, width: int, layers: int):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.rnn = torch.nn.LSTM(width, width, layers)
        self.decoder = torch.nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor, state: tuple | None) -> tuple[torch.Tensor, tuple]:
        h, state = self.rnn(self.embedding(x), state)
        return self.decoder(h.flatten(0, 1)), state


def windows(data: Stream, most: int | None) -> Iterable[tuple[np.ndarray, ...]]:
    return itertools.islice(data.epoch(0), most)


def ours(step: es.TrainStep, train: Stream, test: Stream, most: int | None, console: Console) -> tuple[float, float]:
    """Perplexity on the test text after the epoch, and the seconds that training took."""
    step.compile(*next(iter(windows(train, 1))))
    start = time.perf_counter()
    for n, batch in enumerate(windows(train, most)):
        loss = step(*batch)
        report(console, "Einsmith", n, loss, start)
    seconds = time.perf_counter() - start
    return math.exp(step.evaluate(windows(test, most))["loss"]), seconds


def theirs(
    model: Twin, lr: float, train: Stream, test: Stream, most: int | None, console: Console
) -> tuple[float, float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    state: tuple | None = None
    start = time.perf_counter()
    for n, (x, _, y) in enumerate(windows(train, most)):
        logits, state = model(torch.from_numpy(x), state)
        state = tuple(s.detach() for s in state)
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(console, "PyTorch", n, loss.item(), start)
    seconds = time.perf_counter() - start
    total, count, state = 0.0, 0, None
    with torch.no_grad():
        for x, _, y in windows(test, most):
            logits, state = model(torch.from_numpy(x), state)
            total += torch.nn.functional.cross_entropy(logits, torch.from_numpy(y), reduction="sum").item()
            count += len(y)
    return math.exp(total / count), seconds


def report(console: Console, who: str, n: int, loss: float, start: float) -> None:
    if (n + 1) % 100 == 0:
        rate = (time.perf_counter() - start) / (n + 1)
        console.print(f"{who}: window {n + 1}, loss {loss:.4f}, {1e3 * rate:.1f} ms a step")


def main() -> int:
    parser = argparse.ArgumentParser(description="An epoch of the language model in Einsmith and in PyTorch.")
    parser.add_argument("--data", default="sotu", help="sotu or moby-dick; default: %(default)s")
    parser.add_argument("--windows", type=int, help="train on so many windows, and test on as many; default: all")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--steps", type=int, default=35)
    parser.add_argument("--width", type=int, default=650)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--lr", type=float, default=0.2, help="much larger ones make training unstable: default 0.2")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    torch.set_num_threads(args.threads)

    text = es.data.text(args.data, say=console.print)
    vocabulary = Vocabulary.of(text, size=args.vocabulary)
    train = stream(vocabulary.encode(text), args.batch, args.steps)
    test = stream(vocabulary.encode(es.data.text(args.data, "test")), args.batch, args.steps)
    console.print(f"{vocabulary}; training on {train}, testing on {test}")
    es.manual_seed(0)
    model = es.models.lstm_lm(vocabulary=len(vocabulary), width=args.width, layers=args.layers, batch=args.batch)
    twin = Twin(len(vocabulary), args.width, args.layers)
    twin.load_state_dict({n: torch.tensor(v) for n, v in model.state_dict().items() if n not in ("hidden", "cell")})
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=args.lr), threads=args.threads)

    mine, my_seconds = ours(step, train, test, args.windows, console)
    peer, peer_seconds = theirs(twin, args.lr, train, test, args.windows, console)
    off = abs(mine / peer - 1)
    found = {"perplexity": mine, "pytorch": peer, "off": off, "seconds": my_seconds, "pytorch_seconds": peer_seconds}
    print(json.dumps(found))
    return int(not off <= TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
