"""Training steps of the networks of `es.models`: their shapes, their starting values, and the arithmetic of a step."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.models.program import Program
from benchmarks.recurrent_problems import CELLS, Recurrent, language_model, recurrent
from einsmith.bench.problem import Workload
from einsmith.bench.process import ROOT, variables

LR = 0.002
"""Of plain SGD, as in the papers' measurements."""
BATCHES = (1, 16)


@dataclass(frozen=True)
class Model(Workload):
    """One step of forward, loss, backward and SGD's update of a network with its default arguments but `arguments`.

    `part`: the module of the network that is trained, the whole where it is empty. `loss`: cross_entropy, of tokens
    flattened too, margin_loss, or mse_loss. `sample`, `target`: shapes of a sample of the input and of its target;
    `words`: the input is that many tokens; `classes`: that many the target's classes, 0 where it is numbers.

    Nothing is dropped, so that all peers compute the same. Batch norm's running statistics are part of a step.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    part: str = ""
    loss: str = "cross_entropy"
    sample: tuple[int, ...] = ()
    target: tuple[int, ...] = ()
    words: int = 0
    classes: int = 0

    verified_steps = 2
    exact = True

    def network_of(self, get: Callable[..., Any]) -> Any:
        """The network, or its part, that is trained; get: `es.models.get` or `benchmarks.twins.get`."""
        found = get(self.network, **self.arguments)
        for name in filter(None, self.part.split(".")):
            found = getattr(found, name)
        return found

    def inputs_and_targets(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        shape, wanted = (self.batch, *self.sample), (self.batch, *self.target)
        x = rng.integers(0, self.words, shape) if self.words else rng.standard_normal(shape, np.float32)
        y = rng.integers(0, self.classes, wanted) if self.classes else rng.standard_normal(wanted, np.float32)
        return x, y

    def arrays(self) -> dict[str, np.ndarray]:
        return dict(zip(("x", "y"), self.inputs_and_targets(), strict=True)) | _state(self)

    def program(self) -> Program:
        """The forward and its loss as a graph of PyTorch's operations. Raises ImportError without PyTorch."""
        return _exported(self.name)

    @property
    def operations(self) -> int:
        try:
            return self.program().flops()
        except ImportError:
            return 0


def _state(model: Model) -> dict[str, np.ndarray]:
    """Parameters and buffers by name: the network's own initial values, but what begins at zero or one is spread, as it
    is after some training; zeros in the last layer would hide every gradient before it."""
    import einsmith as es

    es.manual_seed(0)
    rng = np.random.default_rng(2)
    out = {}
    for name, value in model.network_of(es.models.get).state_dict().items():
        a = np.array(value)
        if a.dtype.kind == "f" and not name.endswith(("running_mean", "running_var")) and not np.ptp(a):
            a = a + 0.02 * rng.standard_normal(a.shape, np.float32)
        out[name] = a
    return out


@functools.lru_cache(maxsize=1)
def _exported(name: str) -> Program:
    """By a process of its own, so that peers need not import PyTorch beside their library."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.models.export", name],
        capture_output=True,
        cwd=ROOT,
        env=variables(1, None),
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ImportError(f"the network cannot be exported from PyTorch: {' '.join(last)}")
    return Program.from_json(json.loads(done.stdout))


def _image(network: str, channels: int, size: int, classes: int, **more: Any) -> Callable[[int], Model]:
    def make(batch: int) -> Model:
        return _model(network, batch, **({"sample": (channels, size, size), "classes": classes} | more))

    return make


def _model(network: str, batch: int, **more: Any) -> Model:
    return Model(f"{network}-b{batch}", network, batch, 0, (), dict, **more)


DROPLESS: dict[str, Any] = {"arguments": {"dropout": 0.0}}
NETWORKS: dict[str, Callable[[int], Model]] = {
    "mlp3": _image("mlp3", 1, 28, 10),
    "lenet5": _image("lenet5", 1, 28, 10),
    "capsulenet": _image("capsulenet", 1, 28, 10, loss="margin_loss"),
    "resnet18_cifar": _image("resnet18_cifar", 3, 32, 10),
    "resnet18": _image("resnet18", 3, 224, 1000),
    "resnet50": _image("resnet50", 3, 224, 1000),
    "mobilenet_v1": _image("mobilenet_v1", 3, 224, 1000, **DROPLESS),
    "mobilenet_v2": _image("mobilenet_v2", 3, 224, 1000, **DROPLESS),
    "shufflenet_v1": _image("shufflenet_v1", 3, 224, 1000),
    "squeezenet": _image("squeezenet", 3, 224, 1000, **DROPLESS),
    "efficientnet_lite0": _image(
        "efficientnet_lite0", 3, 224, 1000, arguments={"dropout": 0.0, "drop_path": 0.0}
    ),
    "vit_small": _image("vit_small", 3, 224, 1000),
    "unet": _image("unet", 1, 224, 2, target=(224, 224)),
    "bert_base": lambda batch: _model(
        "bert_base", batch, arguments={"dropout": 0.0, "pooler": False}, part="encoder", loss="mse_loss",
        sample=(512, 768), target=(512, 768),
    ),
    "gpt_small": lambda batch: _model(
        "gpt_small", batch, **DROPLESS, loss="cross_entropy", sample=(256,), target=(256,), words=50257, classes=50257
    ),
}  # fmt: skip
"""By name, of a batch: images of the papers' sizes; BERT's encoder of embedded tokens; GPT of 256 tokens. None is of
an image of other than its usual size, but U-Net, which has 224x224 in place of 572x572."""


def _recurrent(batch: int) -> list[Recurrent]:
    """The cells over one step and over 28, the language model over 35."""
    return [*(recurrent(c, batch, t) for c in CELLS for t in (1, 28)), language_model(batch=batch)]


TRAINING: dict[str, Workload] = {
    p.name: p
    for p in (
        *(make(b) for make in NETWORKS.values() for b in BATCHES),
        *(p for b in BATCHES for p in _recurrent(b)),
        *(NETWORKS[n](b) for n in ("mlp3", "lenet5") for b in (64, 256)),
    )
}
