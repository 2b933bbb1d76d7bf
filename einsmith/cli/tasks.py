"""Define the training tasks of the networks by name: data sets, batches, sizes that follow from data, settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np

from einsmith import models, ops
from einsmith.base import files
from einsmith.base.errors import DataError
from einsmith.data import (
    Batches,
    Stream,
    Vocabulary,
    augment,
    batches,
    cifar10,
    fashion_mnist,
    idx_folder,
    image_folder,
    mnist,
    mnist_rows,
    stream,
    text,
    text_folder,
    windows,
)
from einsmith.ops.losses.classes import cross_entropy

EVALUATION_BATCH = 500
CIFAR_SIZE = 32
"""Pixels along a side of CIFAR-10's images."""
MOST_ELEMENTS = 1 << 44
"""Elements from which on an array is refused before memory is asked for it: 64 TB of float32."""
Say = Callable[[str], None]


class TaskSettings(Protocol):
    """The settings of a run that a task reads."""

    data: str
    batch: int
    seed: int
    steps: int
    vocabulary: int
    unit: str
    size: int
    augment: bool


@dataclass(frozen=True)
class Loaded:
    """The batches of a run, and the model's arguments that follow from the data."""

    train: Batches | Stream
    test: Batches | Stream
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A kind of data that models are trained on.

    names: data sets that --data knows, the default first; folder: description of a folder of the user's data, for
    messages; things: noun for samples; batch: default samples per step; rates: default learning rates by optimizer;
    options: settings of a run that only this task has; usual: settings whose defaults differ from those of a Run;
    metric: name of the metric of an evaluation; loss: function of the model's output and the target.
    """

    names: tuple[str, ...]
    folder: str
    things: str
    batch: int
    rates: Mapping[str, float]
    options: tuple[str, ...] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)
    metric: str = "accuracy"
    loss: Callable = cross_entropy

    def load(self, run: TaskSettings, say: Say) -> Loaded:
        """Read the data for a run. say: prints remarks. Raises DataError."""
        raise NotImplementedError

    def example(self, batch: int, arguments: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        """Return a random batch for a model with the given arguments, in the default shapes of training."""
        raise NotImplementedError

    def sizes(self, batch: int) -> dict[str, Any]:
        """Return the model's arguments that follow from the batch size."""
        return {}

    def check(self, data: str) -> None:
        """Raise click's error where `data`, the value of --data, names neither a data set nor a folder."""
        if data not in self.names and not files.is_folder(data):
            raise click.BadParameter(
                f"{data!r} is neither {' nor '.join(self.names)} nor a folder{self.folder}", param_hint="--data"
            )


class ImageTask(Task):
    """Images [B, 1, 28, 28] and their classes."""

    def load(self, run: TaskSettings, say: Say) -> Loaded:
        x, y = self._read(run.data, "train", say)
        test_x, test_y = self._read(run.data, "test", say)
        test = batches(test_x, test_y, min(EVALUATION_BATCH, len(test_y)))
        return Loaded(batches(x, y, run.batch, seed=run.seed), test, self._arguments(x))

    def _read(self, name: str, split: str, say: Say) -> tuple[np.ndarray, np.ndarray]:
        known = {"mnist": mnist, "fashion-mnist": fashion_mnist}
        x, y = known[name](split, say=say) if name in known else idx_folder(name, split)
        if not len(y):
            raise DataError(f"{name} has no {split} images")
        return x, y

    def _arguments(self, x: np.ndarray) -> dict[str, Any]:
        return {}

    def example(self, batch: int, arguments: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(0)
        return rng.standard_normal((batch, 1, 28, 28), np.float32), rng.integers(0, 10, batch)


class RowTask(ImageTask):
    """Images as sequences of their rows, [B, rows, columns], and their classes."""

    def _read(self, name: str, split: str, say: Say) -> tuple[np.ndarray, np.ndarray]:
        if name in self.names:
            return mnist_rows(split, say=say)
        x, y = super()._read(name, split, say)
        return x[:, 0], y

    def _arguments(self, x: np.ndarray) -> dict[str, Any]:
        return {"input_size": x.shape[2]}

    def example(self, batch: int, arguments: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(0)
        shape = (batch, 28, arguments.get("input_size", 28))
        return rng.standard_normal(shape, np.float32), rng.integers(0, 10, batch)


class Colours(Task):
    """Colour images [B, 3, H, W] and their classes: CIFAR-10, or folders `train` and `test` of one folder a class."""

    def load(self, run: TaskSettings, say: Say) -> Loaded:
        if run.data in self.names and run.size != CIFAR_SIZE:
            raise click.UsageError(
                f"--size is for images of a folder; those of {run.data} have {CIFAR_SIZE} pixels a side"
            )
        parts, names = [], []
        for split in ("train", "test"):
            if run.data in self.names:
                x, y = cifar10(split, say=say)
            else:
                folder = image_folder(Path(run.data) / split, run.size, errors="skip")
                for path, _ in folder.skipped:
                    say(f"{path} cannot be decoded and is left out")
                x, y = folder.x[:], folder.y
                names.append(folder.classes)
            parts.append((x, y))
        (x, y), (test_x, test_y) = parts
        classes = len(names[0]) if names else int(y.max()) + 1
        if names:  # a folder numbers the classes that it has
            unknown = [n for n in names[1] if n not in names[0]]
            if unknown:
                raise DataError(f"{run.data} has test images, but no training images, of {', '.join(unknown)}")
            test_y = np.array([names[0].index(n) for n in names[1]])[test_y]
        mean, std = x.mean((0, 2, 3), keepdims=True), x.std((0, 2, 3), keepdims=True) + 1e-6
        for images in (x, test_x):
            images -= mean
            images /= std
        change = augment.compose(augment.random_crop(run.size // 8), augment.random_flip()) if run.augment else None
        train = batches(x, y, run.batch, seed=run.seed, transform=change, threads=2 if run.augment else 0)
        sizes = {"num_classes": classes, "classes": classes, "channels": 3, "size": run.size}
        return Loaded(train, batches(test_x, test_y, min(EVALUATION_BATCH, len(test_y))), sizes)

    def example(self, batch: int, arguments: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(0)
        classes, size = arguments.get("num_classes", arguments.get("classes", 10)), arguments.get("size", 32)
        return rng.standard_normal((batch, 3, size, size), np.float32), rng.integers(0, classes, batch)


class TextTask(Task):
    """A text as one long sequence of words or characters, each predicted from all tokens before it."""

    def load(self, run: TaskSettings, say: Say) -> Loaded:
        train, test, count = self._tokens(run, say)
        read = [stream(tokens, run.batch, run.steps) for tokens in (train, test)]
        return Loaded(read[0], read[1], {"vocabulary": count} | self.sizes(run.batch))

    def _tokens(self, run: TaskSettings, say: Say) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the numbers of the training tokens and the test tokens, and the size of the vocabulary."""
        train, test = (
            text(run.data, split, say=say) if run.data in self.names else text_folder(run.data, split)
            for split in ("train", "test")
        )
        vocabulary = Vocabulary.of(train, run.unit, run.vocabulary)
        return vocabulary.encode(train), vocabulary.encode(test), len(vocabulary)

    def sizes(self, batch: int) -> dict[str, Any]:
        return {"batch": batch}

    def example(self, batch: int, arguments: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        words = arguments.get("vocabulary", 10_000)
        tokens = np.random.default_rng(0).integers(0, words, batch * 36)
        return next(iter(stream(tokens, batch, 35)))


class Windows(TextTask):
    """A text as windows [B, T] in any order; each token is predicted from the tokens before it in its window."""

    def load(self, run: TaskSettings, say: Say) -> Loaded:
        train, test, count = self._tokens(run, say)
        (x, y), (test_x, test_y) = (windows(tokens, run.steps) for tokens in (train, test))
        return Loaded(
            batches(x, y, run.batch, seed=run.seed),
            batches(test_x, test_y, min(run.batch, len(test_y))),
            {"vocabulary": count, "positions": run.steps},
        )

    def sizes(self, batch: int) -> dict[str, Any]:
        return {}

    def example(self, batch: int, arguments: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        steps = min(self.usual["steps"], arguments["positions"])
        rng = np.random.default_rng(0)
        x, y = windows(rng.integers(0, arguments["vocabulary"], batch * steps + 1), steps)
        return x, y


def token_loss(logits: Any, target: Any) -> Any:
    """Return the mean cross entropy of logits [B, T, vocabulary] and target tokens [B, T]."""
    return ops.cross_entropy(ops.flatten(logits, 0, 1), ops.flatten(target))


IMAGES = ImageTask(
    ("mnist", "fashion-mnist"),
    " of idx files",
    "images",
    256,
    {"sgd": 0.1, "momentum": 0.05, "adam": 0.005, "adamw": 0.008},
)
ROWS = RowTask(
    ("mnist-rows", "mnist"),
    " of idx files",
    "images",
    128,
    {"sgd": 0.1, "momentum": 0.05, "adam": 0.003, "adamw": 0.003},
)
COLOURS = Colours(
    ("cifar10",),
    " with folders train and test of images",
    "images",
    128,
    {"sgd": 0.1, "momentum": 0.05, "adam": 0.001, "adamw": 0.002},
    ("size", "augment"),
)
TEXT = TextTask(
    ("sotu", "moby-dick"),
    " with train.txt and test.txt",
    "tokens",
    20,
    {"sgd": 0.2, "momentum": 0.02, "adam": 0.001, "adamw": 0.001},
    ("steps", "vocabulary", "unit"),
    metric="perplexity",
)
WINDOWS = Windows(
    ("moby-dick", "sotu"),
    " with train.txt and test.txt",
    "windows",
    32,
    {"sgd": 0.1, "momentum": 0.05, "adam": 0.001, "adamw": 0.001},
    ("steps", "vocabulary", "unit"),
    {"steps": 128, "unit": "character"},
    "perplexity",
    token_loss,
)


def parameters(model: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the function that makes a model, by name."""
    return inspect.signature(models.maker(model)).parameters


def defaults(model: str) -> dict[str, Any]:
    """Return the default arguments of a model."""
    return {name: p.default for name, p in parameters(model).items() if p.default is not p.empty}


def fitting(model: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Select the arguments that the model has from `sizes`, those that follow from the data."""
    known = parameters(model)
    return {name: value for name, value in sizes.items() if name in known}


def model_arguments(model: str, assignments: Sequence[str]) -> dict[str, int | float]:
    """Parse the --set options of a model, "name=number" each.

    Raises click's usage error for a value that is no number or a name that is no argument of the model."""
    known = [n for n in parameters(model) if n != "dtype"]
    out = {}
    for setting in assignments:
        name, value = assignment(setting, "--set", "hidden_size=64")
        if name not in known:
            raise click.UsageError(f"{model} has no argument {name}; it has {', '.join(known) or 'none'}")
        out[name] = number(value)
    return out


def assignment(text: str, option: str, example: str) -> tuple[str, str]:
    """Split NAME=VALUE of an option into name and value. Raises click's usage error, which shows `example`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{option} takes NAME=VALUE, as in {option} {example}, not {text!r}")
    return name.strip(), value.strip()


def shape(name: str, text: str) -> tuple[int, ...]:
    """Parse the shape that --shape gives for an input. Raises click's usage error."""
    try:
        extents = tuple(int(n) for n in text.split(",") if n)
    except ValueError:
        extents = (-1,)
    if min(extents, default=0) < 0:
        raise click.UsageError(f"--shape {name}=... takes whole numbers of at least 0, as in {name}=64,128")
    if prod(n or 1 for n in extents) >= MOST_ELEMENTS:
        raise click.UsageError(f"--shape {name}={text}: the array has more elements than memory can hold")
    return extents


def number(text: str) -> int | float:
    """Parse the number of a --set option. Raises click's usage error."""
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            raise click.UsageError(f"--set takes a number, not {text!r}") from None
