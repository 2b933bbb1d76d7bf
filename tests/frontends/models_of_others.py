"""Training steps of other packages' models through `torch.compile(model, backend="einsmith")`, against eager execution.

    python -m tests.frontends.models_of_others [--only bert,gpt2] [--json FILE] [--from-torch]

In float64, losses and all gradients at each step are to be those of eager execution within 1e-7; what a model computes
in float32 whatever it is given, such as a mean of squares, is then in float64, too. In float32, with nothing changed,
they are to be no farther from eager execution in float64 than 3 times eager execution in float32 is. With --json, each
model's row goes to a file as soon as it is known, and those that are there are not run again. With --from-torch, losses
and parameters of a TrainStep of what `from_torch` makes of the model are compared instead, in float64.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

import einsmith as es
import einsmith.frontends.torch  # registers the backend
import einsmith.frontends.torch_compile.options  # noqa: F401 - has the bound of what is said once
from benchmarks.models_of_others import MODELS, Trained, converted, get, missing
from tests.caches import forget

WHOLE = ("bert", "gpt2", "llama", "vit", "t5", "whisper_encoder")
"""Those of which no operator may run in PyTorch."""
BY_VALUES = ("gcn", "gat")
"""Those that leave edges out by their values, so that `from_torch` refuses them."""
STEPS, RATE, MOMENTUM = 5, 0.05, 0.9
CLOSE = 1e-7
TIMES = 3.0
NOISE = 1e-6
"""Of the largest element of all gradients: what a gradient's own elements count at least, as one that is exactly zero,
such as that of a key's bias, is rounding alone."""
EPS = torch.finfo(torch.float32).eps
Step = tuple[float, list[torch.Tensor]]
Named = Mapping[str, torch.Tensor]


@dataclass
class Row:
    """What was seen of a model. double: the greatest relative difference in float64 (of which tensor: `worst`); single,
    eager: how far all gradients are from those in float64, relatively, at the worst step; in_pytorch: what ran there
    in the steps in float32; seconds: of the compiled steps in float64; error: what failed."""

    name: str
    double: float = math.nan
    worst: str = ""
    single: float = math.nan
    eager: float = math.nan
    in_pytorch: tuple[str, ...] = ()
    seconds: float = math.nan
    error: str = ""

    def failure(self) -> str:
        """Why the model does not pass, or ""."""
        if self.error:
            return self.error
        if not self.double <= CLOSE:
            return f"{self.worst} is off by {self.double:.1e} in float64"
        if not self.single <= max(TIMES * self.eager, 4 * EPS):
            return f"off by {self.single:.1e} in float32, eager execution by {self.eager:.1e}"
        return f"in PyTorch: {', '.join(self.in_pytorch)}" if self.in_pytorch and self.name in WHOLE else ""


def steps(made: Trained, dtype: torch.dtype, compile_: Callable) -> list[Step]:
    """The loss and the gradients of each step of a copy of the model."""
    model = copy.deepcopy(made.model).to(dtype)
    f = compile_(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
    found = []
    for seed in range(STEPS):
        optimizer.zero_grad()
        loss = made.loss(f, converted(made.batch(seed), dtype))
        loss.backward()
        found.append((loss.item(), [_gradient(p) for p in model.parameters()]))
        optimizer.step()
    return found


def _gradient(p: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(p) if p.grad is None else p.grad.clone()


class Widened(TorchFunctionMode):
    """Whoever asks for float32 gets float64."""

    def __torch_function__(self, f: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        f = torch.Tensor.double if f is torch.Tensor.float else f
        return f(*_widened(args), **_widened(kwargs or {}))


def _widened(arguments: Any) -> Any:
    return tree_map(lambda x: torch.float64 if x is torch.float32 else x, arguments)


def in_double(model: torch.nn.Module) -> Callable:
    """The model by the backend, with `Widened`'s rule applied to what is captured."""

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Callable:
        for n in gm.graph.nodes:
            n.args, n.kwargs = _widened(n.args), _widened(n.kwargs)
            if n.op == "call_method" and n.target == "float":
                n.target = "double"
        gm.recompile()
        return lookup_backend("einsmith")(gm, inputs)

    return torch.compile(model, backend=backend)


def in_single(model: torch.nn.Module) -> Callable:
    return torch.compile(model, backend="einsmith")


def greatest(got: Named, want: Named) -> tuple[float, str]:
    """The greatest relative difference of tensors that have names, and of which."""
    least = NOISE * max(float(b.abs().max()) for b in want.values())
    found = [(float((got[n] - b).abs().max()) / max(float(b.abs().max()), least), n) for n, b in want.items()]
    return max(found, key=_nan_first)


def _nan_first(off: tuple[float, str]) -> float:
    return math.inf if math.isnan(off[0]) else off[0]


def largest(got: Sequence[Step], want: Sequence[Step], names: Sequence[str]) -> tuple[float, str]:
    """The greatest relative difference of a loss or a gradient, and where."""
    found = []
    for n, ((loss, ours), (wanted, theirs)) in enumerate(zip(got, want, strict=True)):
        found.append((abs(loss - wanted) / abs(wanted), f"the loss of step {n}"))
        off, name = greatest(dict(zip(names, ours, strict=True)), dict(zip(names, theirs, strict=True)))
        found.append((off, f"the gradient of {name} in step {n}"))
    return max(found, key=_nan_first)


def distance(got: Sequence[Step], want: Sequence[Step]) -> float:
    """How far the gradients are as one vector, and the loss, relatively, at the worst step."""
    found = []
    for (loss, ours), (wanted, theirs) in zip(got, want, strict=True):
        off = sum(float((a.double() - b).square().sum()) for a, b in zip(ours, theirs, strict=True))
        found.append(math.sqrt(off / sum(float(b.square().sum()) for b in theirs)))
        found.append(abs(loss - wanted) / abs(wanted))
    return max(found, key=lambda f: math.inf if math.isnan(f) else f)


def row(name: str) -> Row:
    """Runs a model. What fails is in the row."""
    made = get(name)
    with Widened():
        exact = steps(made, torch.float64, lambda m: m)
    eager = distance(steps(made, torch.float32, lambda m: m), exact)
    forget("operators that run in PyTorch")
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            start = time.perf_counter()
            double = steps(made, torch.float64, in_double)
            seconds = time.perf_counter() - start
            torch._dynamo.reset()
            counters.clear()
            single = distance(steps(made, torch.float32, in_single), exact)
        except Exception as e:
            return Row(name, error=f"{type(e).__name__}: {str(e).strip()}")
    said = [str(w.message).partition("\n")[0] for w in told if str(w.message).startswith("einsmith")]
    said += [f"graph break: {why.partition(chr(10))[0]}" for why in counters["graph_break"]]
    off, worst = largest(double, exact, [n for n, _ in made.model.named_parameters()])
    return Row(name, off, worst, single, eager, tuple(dict.fromkeys(said)), seconds)


class WithLoss(torch.nn.Module):
    """A model that gives its loss, of the tensors of a batch in their order."""

    def __init__(self, made: Trained):
        super().__init__()
        self.model, self.loss, self.names = copy.deepcopy(made.model), made.loss, tuple(made.batch(0))

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model, dict(zip(self.names, tensors, strict=True)))


def imported(name: str) -> Row:
    """Runs what `from_torch` makes of a model, in float64: how far losses and, at the end, parameters are."""
    made = get(name)
    model = WithLoss(made).double()
    batches = [tuple(converted(made.batch(seed), torch.float64).values()) for seed in range(STEPS)]
    start = time.perf_counter()
    with Widened():
        ours = es.frontends.torch.from_torch(model, *batches[0])
    step = es.TrainStep(ours, lambda loss, _: loss, es.optim.SGD(lr=RATE, momentum=MOMENTUM))
    losses = [step(*(x.numpy() for x in batch), np.zeros(())) for batch in batches]
    seconds = time.perf_counter() - start
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
    wanted = []
    for batch in batches:
        optimizer.zero_grad()
        with Widened():
            loss = model(*batch)
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    mine = {n: torch.from_numpy(x) for n, x in ours.state_dict().items()}
    parameters = greatest(mine, {n: p.detach() for n, p in model.named_parameters()})
    at_steps = greatest({"the losses": torch.tensor(losses)}, {"the losses": torch.tensor(wanted)})
    off, worst = max(parameters, at_steps, key=_nan_first)
    return Row(name, off, worst, 0.0, 0.0, (), seconds)


def _known(file: Path | None) -> dict[str, Row]:
    if file is None or not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {r["name"]: Row(**{**r, "in_pytorch": tuple(r["in_pytorch"])}) for r in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help=f"some of {', '.join(MODELS)}, separated by commas")
    parser.add_argument("--from-torch", action="store_true", help="what from_torch makes of the models instead")
    parser.add_argument("--json", type=Path, help="a file that gets a line a model; models in it are not run again")
    options = parser.parse_args()
    known = _known(options.json)
    console = Console(width=160)
    table = Table("model", "float64", "float32", "eager's", "seconds", "what fails, or runs in PyTorch")
    failed = False
    for name in options.only.split(",") if options.only else MODELS:
        if package := missing(name):
            table.add_row(name, "", "", "", "", f"{package} is not installed")
            continue
        if options.from_torch and name in BY_VALUES:
            table.add_row(name, "", "", "", "", "from_torch refuses it: it leaves out edges by their values")
            continue
        found = known.get(name) or (imported if options.from_torch else row)(name)
        if options.json and name not in known:
            with options.json.open("a") as f:
                f.write(json.dumps(asdict(found)) + "\n")
        failed |= bool(found.failure())
        numbers = [f"{x:.1e}" for x in (found.double, found.single, found.eager)]
        print(name, *numbers, found.failure() or "passes", "\n".join(found.in_pytorch), flush=True)
        table.add_row(name, *numbers, f"{found.seconds:.1f}", found.failure() or "\n".join(found.in_pytorch))
    console.print(table)
    sys.exit(failed)


if __name__ == "__main__":
    main()
