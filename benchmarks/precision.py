"""Measure what rounding does: accuracy in 16 bits and in 8-bit integers, and the time of steps and of inference.

python -m benchmarks.precision accuracy          LeNet-5 on MNIST, two seeds
python -m benchmarks.precision steps             training steps in each precision, in turns
python -m benchmarks.precision int8              inference in int8 and in float32, in turns
python -m benchmarks.precision training          steps of networks of benchmarks.models, beside PyTorch's autocast
python -m benchmarks.precision memory            intermediate results of planned training steps; nothing is run
python -m benchmarks.precision formats           int8 networks with the chosen layouts, and with each imposed on all
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import einsmith as es
from benchmarks import plans
from benchmarks.driver import Parser, geometric_mean, in_turns
from benchmarks.models import TRAINING
from einsmith.base import recording
from einsmith.bench.steps import EinsmithStep
from einsmith.cost.facts import Target
from einsmith.passes.pipeline import deciding
from einsmith.quantization import convert, prepare_qat
from einsmith.quantization.scales import METHODS
from einsmith.schedule.layout import forced
from einsmith.schedule.layout.dimension_orders import BLOCKS
from einsmith.schedule.pipeline import LAYOUTS
from einsmith.schedule.plan import Order

ROUNDS = 12
"""Runs of each variant, in turns; the shortest counts."""
STEP_ROUNDS = 5
"""The same of long training steps."""


def accuracy_of(model: es.nn.Module, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the percentage of images that a network classifies rightly."""
    return 100 * float((model.predict(images, batch_size=500).argmax(1) == labels).mean())


def measure_accuracy(seeds: Sequence[int], epochs: int) -> None:
    """Print the accuracy of LeNet-5 on MNIST in every precision, and quantized."""
    train, (images, labels) = es.data.mnist("train"), es.data.mnist("test")
    for seed in seeds:
        batches = es.data.batches(*train, 128, seed=seed)
        models = {}
        for precision in Target.precisions:
            es.manual_seed(seed)
            model = es.models.lenet5()
            optimizer = es.optim.Adam(lr=1e-3)
            step = es.TrainStep(model, es.functional.cross_entropy, optimizer, seed=seed, precision=precision)
            step.fit(batches, epochs=epochs, progress=False)
            models[precision] = model
            print(f"seed {seed}  {precision:12} {accuracy_of(model, images, labels):.2f} %", flush=True)
        samples = [train[0][i : i + 64] for i in range(0, 512, 64)]
        for method in METHODS:
            quantized = es.quantize(models["fp32"], samples, method=method)
            print(f"seed {seed}  int8 {method:10} {accuracy_of(quantized, images, labels):.2f} %", flush=True)
        aware = prepare_qat(models["fp32"])
        step = es.TrainStep(aware, es.functional.cross_entropy, es.optim.Adam(lr=2e-4), seed=seed)
        step.fit(batches, epochs=1, progress=False)
        print(f"seed {seed}  int8 aware      {accuracy_of(convert(aware), images, labels):.2f} %", flush=True)


Problem = tuple[Callable[[], es.nn.Module], tuple[int, ...], int]
"""A function that makes a network, the shape of a sample, and the number of classes."""
NETWORKS: dict[str, Problem] = {
    "lenet5": (es.models.LeNet5, (1, 28, 28), 10),
    "resnet18-cifar": (es.models.CIFARResNet18, (3, 32, 32), 10),
    "resnet18": (es.models.ResNet18, (3, 224, 224), 1000),
    "mobilenetv2": (es.models.MobileNetV2, (3, 224, 224), 1000),
    "resnet50": (es.models.ResNet50, (3, 224, 224), 1000),
}


def shortest(variants: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the shortest time of each variant (seconds), run in turns."""
    return {name: min(times) for name, times in in_turns(variants, rounds).items()}


def measure_steps(names: Sequence[str], batches: Sequence[int]) -> None:
    """Print the time of a training step in every precision, and the memory of its intermediate results."""
    rng = np.random.default_rng(0)
    for batch, name in product(batches, names):
        make, shape, classes = NETWORKS[name]
        x, y = rng.standard_normal((batch, *shape)).astype(np.float32), rng.integers(0, classes, batch)
        steps = {}
        for precision in Target.precisions:
            es.manual_seed(0)
            steps[precision] = es.TrainStep(
                make(), es.functional.cross_entropy, es.optim.SGD(lr=0.01), precision=precision
            )
        losses = {p: [step(x, y) for _ in range(3)] for p, step in steps.items()}
        for p in Target.precisions:
            np.testing.assert_allclose(losses[p], losses["fp32"], rtol=0.05)
        times = shortest({p: partial(step, x, y) for p, step in steps.items()})
        for p, step in steps.items():
            ((_, run),) = step.compiler.programs.items()
            ratio = times["fp32"] / times[p]
            print(f"{name} x{batch} {p}: {times[p] * 1e3:.2f} ms ({ratio:.2f}), {run.arena_bytes / 2**20:.1f} MiB")


MEMORY = ("resnet50-b16", "mobilenet_v2-b16", "vit_small-b16", "bert_base-b1", "gpt_small-b1")
"""Training steps of `benchmarks.models` whose memory is compared."""


def measure_training(names: Sequence[str], threads: int) -> None:
    """Print the time of training steps in float32 and in bfloat16, and of PyTorch's, eager, under autocast."""
    import torch

    from einsmith.bench.torch_steps import LAYOUTS, TorchStep

    class Autocast(TorchStep):
        """PyTorch's step whose forward pass is under autocast."""

        def step(self) -> float:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().step()

    torch.set_num_threads(threads)
    gains, ratios = [], []
    for name in names:
        problem: Any = TRAINING[name]
        arrays = problem.arrays()
        sessions: dict[str, Any] = {p: EinsmithStep(problem, arrays, threads, precision=p) for p in ("fp32", "bf16")}
        sessions["PyTorch"] = Autocast(problem, arrays, "torch", LAYOUTS[0] if problem.is_of_images else "")
        losses = {form: [session.step() for _ in range(2)][0] for form, session in sessions.items()}
        for form in ("bf16", "PyTorch"):
            np.testing.assert_allclose(losses[form], losses["fp32"], rtol=0.02)
        times = shortest({form: session.step for form, session in sessions.items()}, STEP_ROUNDS)
        gains.append(times["fp32"] / times["bf16"])
        ratios.append(times["PyTorch"] / times["bf16"])
        print(
            f"{name}: float32 {times['fp32'] * 1e3:.1f} ms, bf16 {times['bf16'] * 1e3:.1f} ms ({gains[-1]:.2f}), "
            f"PyTorch's autocast {times['PyTorch'] * 1e3:.1f} ms ({ratios[-1]:.2f})", flush=True,
        )  # fmt: skip
    print(f"geometric means: {geometric_mean(gains):.2f} times float32, {geometric_mean(ratios):.2f} times PyTorch")


def measure_memory(names: Sequence[str], threads: int) -> None:
    """Print the memory of the intermediate results of training steps in float32 and in bfloat16, as planned."""
    for name in names:
        problem: Any = TRAINING[name]
        sizes = []
        for precision in ("fp32", "bf16"):
            session = EinsmithStep(problem, problem.arrays(), threads, precision=precision)
            with plans.uncompiled():
                session.trainer.compile(*session.batch)
            sizes.append(plans.program_of(session.trainer).arena_bytes / 2**20)
        print(f"{name}: float32 {sizes[0]:.1f} MiB, bf16 {sizes[1]:.1f} MiB ({sizes[1] / sizes[0]:.2f})", flush=True)


def imposed(*wanted: Order) -> forced.Rule:
    """Return the rule that stores images in the first of these orders that a tensor may have, else in row-major
    order."""
    return lambda t, orders: next((order for order in wanted if order in orders), orders[0])


FORMATS: dict[str, forced.Rule] = {
    "NCHW": imposed(),
    "NHWC": imposed((0, 2, 3, 1)),
    "CHWN": imposed((1, 2, 3, 0)),
    "CHWN4": imposed((1, 2, 3, 0, (1, 4))),
    **{f"NC/{n}HW{n}": imposed((0, 1, 2, 3, (1, n))) for n in BLOCKS},
}
"""Formats that are imposed on every image that can have them. A batch of 1 has no CHWN."""
FORMAT_SECONDS = 6.0
"""For measuring the formats of a network at a batch size, in turns."""


def quantized_network(name: str, rng: np.random.Generator) -> tuple[es.nn.Module, es.nn.Module, tuple[int, ...]]:
    """Return a network, itself in int8, and the shape of a sample."""
    make, shape, _ = NETWORKS[name]
    es.manual_seed(0)
    model = make()
    model.eval()
    return model, es.quantize(model, [rng.standard_normal((8, *shape)).astype(np.float32)]), shape


def network_of(name: str, precision: str, rng: np.random.Generator) -> tuple[es.nn.Module, tuple[int, ...]]:
    """Return a network in int8 or in fp32, and the shape of a sample."""
    if precision == "int8":
        return quantized_network(name, rng)[1:]
    make, shape, _ = NETWORKS[name]
    es.manual_seed(0)
    return make().eval(), shape


def formats_of(name: str, batch: int, precision: str = "int8", seconds: float = FORMAT_SECONDS) -> dict[str, Any]:
    """Return what a network takes on one thread with the layouts that the cost model chooses ("chosen"), without the
    pass that chooses ("without"), with each format imposed on all images, and where no operand is ever packed or copied
    into another order ("unpacked"), whose results are wrong.

    Of each of these "forms": shortest processor time and predicted time (seconds), the first form that is the same
    program ("as"), which is timed for all of them, calls of kernels, "copies" that only move elements, and operands
    that every run packs. Further: tensors that are not stored in row-major order, and what the pass and the whole
    compilation take (seconds)."""
    rng = np.random.default_rng(0)
    network, shape = network_of(name, precision, rng)
    x = rng.standard_normal((batch, *shape)).astype(np.float32)
    formats = {f: rule for f, rule in FORMATS.items() if batch > 1 or not f.startswith("CHWN")}
    runs = {form: es.jit(network) for form in ("chosen", "without", *formats, "unpacked")}
    with es.threads(1):
        with recording.recording() as recorder:
            wanted = runs["chosen"](x)
        within = {"without": deciding(frozenset({f"without {LAYOUTS}"}))}
        for f, context in (within | {f: forced.forcing(rule) for f, rule in formats.items()}).items():
            with context:
                got = runs[f](x)
            # Depthwise sums of float32 in another order may round to the next integer.
            np.testing.assert_allclose(got, wanted, rtol=0, atol=0.02 * np.abs(wanted).max())
        with plans.without_packing():
            runs["unpacked"](x)
        programs = {form: plans.function_program(run) for form, run in runs.items()}
        plans.touch(programs["unpacked"])
        alike = _alike(programs)
        times = dict.fromkeys(alike.values(), float("inf"))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or float("inf") in times.values():
            for form in times:
                start = time.thread_time()
                runs[form](x)
                times[form] = min(times[form], time.thread_time() - start)
    forms = {
        f: {"seconds": times[alike[f]], "as": alike[f], "predicted": plans.seconds_of(p)} | plans.moves(p)
        for f, p in programs.items()
    }
    phases = [e for e in recorder.data()["traceEvents"] if "dur" in e]
    spent = {n: sum(e["dur"] for e in phases if e["name"] == n) / 1e6 for n in (f"schedule: {LAYOUTS}", "compilation")}
    return {
        "forms": forms,
        "ordered": len(programs["chosen"].plan.orders),
        "pass_seconds": spent[f"schedule: {LAYOUTS}"],
        "compile_seconds": spent["compilation"],
    }


def _alike(programs: Mapping[str, Any]) -> dict[str, str]:
    """Return, for each form, the first one that is the same program: that has the same kernels, whose buffers state the
    order of each tensor. The results of "unpacked" are wrong: it is like no other."""
    first: dict[Any, str] = {}
    return {f: first.setdefault((f == "unpacked", *(c.kernel for c in p.calls)), f) for f, p in programs.items()}


def best_format(cell: dict[str, Any]) -> tuple[str, float]:
    """Return the fastest of the imposed formats, and its time over that of the chosen layouts: 1 where it is the same
    program."""
    seconds = {f: x["seconds"] for f, x in cell["forms"].items() if f in FORMATS}
    best = min(seconds, key=seconds.__getitem__)
    return best, seconds[best] / cell["forms"]["chosen"]["seconds"]


def bound_of(cell: dict[str, Any]) -> float:
    """Return the part of the time with the chosen layouts that is saved where no operand is ever packed or copied into
    another order: a layout cannot save more of these, only of misses of the caches besides."""
    return max(0.0, 1 - cell["forms"]["unpacked"]["seconds"] / cell["forms"]["chosen"]["seconds"])


def measure_formats(names: Sequence[str], batches: Sequence[int], precisions: Sequence[str] = ("int8",)) -> None:
    """Print a table of networks with the layouts that the cost model chooses, and with each format imposed on all
    images: shortest processor time on one thread, and, in parentheses, predicted time (ms).

    The last columns compare the choice with the best format, and give the part of the time that no layout can save
    more than: the time that is left where no operand is ever packed or copied into another order."""
    print(f"| network | images | | chosen | {' | '.join(FORMATS)} | best format / chosen | bound |")
    print("|---" * (len(FORMATS) + 6) + "|")
    for name, batch, precision in product(names, batches, precisions):
        cell = formats_of(name, batch, precision)
        cells = [
            f"{1e3 * x['seconds']:.3g} ({1e3 * x['predicted']:.3g})" if (x := cell["forms"].get(f)) else "-"
            for f in ("chosen", *FORMATS)
        ]
        figures = f"{best_format(cell)[1]:.2f} | {100 * bound_of(cell):.1f} %"
        print(f"| {name} | {batch} | {precision} | {' | '.join(cells)} | {figures} |", flush=True)


def measure_int8(names: Sequence[str], batches: Sequence[int]) -> None:
    """Print the time of inference in int8 and in float32."""
    rng = np.random.default_rng(0)
    for name in names:
        model, quantized, shape = quantized_network(name, rng)
        for batch in batches:
            x = rng.standard_normal((batch, *shape)).astype(np.float32)
            wanted, got = model(x), quantized(x)
            assert np.abs(got - wanted).max() <= 0.25 * np.abs(wanted).max(), name
            times = shortest({"float32": partial(model, x), "int8": partial(quantized, x)})
            long, short = (times[n] * 1e3 for n in ("float32", "int8"))
            print(f"{name} x{batch}: float32 {long:.2f} ms, int8 {short:.2f} ms ({long / short:.2f})")


def main() -> int:
    """Run the part that the command line names."""
    parts: dict[str, Callable[[argparse.Namespace], object]] = {
        "accuracy": lambda o: measure_accuracy(o.seeds, o.epochs),
        "steps": lambda o: measure_steps(o.networks, o.batch),
        "training": lambda o: measure_training(o.steps, o.threads),
        "memory": lambda o: measure_memory(o.steps, o.threads),
        "formats": lambda o: measure_formats(o.networks, o.batch),
        "int8": lambda o: measure_int8(o.networks, o.batch),
    }
    parser = Parser(
        __doc__, parts, networks=(("lenet5", "resnet18-cifar"), f"of {', '.join(NETWORKS)}"), threads=(2, ""),
        steps=(MEMORY, "of benchmarks.models, for training and memory"), batch=((16,), ""), seeds=((0, 1), ""),
        epochs=(3, ""),
    )  # fmt: skip
    args = parser.read()
    if unknown := {*args.networks} - {*NETWORKS} | {*args.steps} - {*TRAINING}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    warnings.filterwarnings("ignore", "precision=")
    for part in args.names or parts:
        parts[part](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
