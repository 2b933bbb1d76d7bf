"""NNVM-Fusion: element-wise operators and update rules fused into kernels that are compiled at run time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks import ablations, elementwise, models, plans
from benchmarks.ablations import ALL, FUSING
from benchmarks.driver import geometric_mean, in_turns
from benchmarks.paper.experiment import (
    Bars,
    Cases,
    Cells,
    Experiment,
    Paper,
    Plan,
    Shown,
    beside,
    milliseconds,
    problem_of,
    time_of,
)  # fmt: skip
from benchmarks.report import Job
from benchmarks.worker import WorkerError

ELEMENTS = 1 << 20
"""Elements of the vectors of example 1: 4 MB each."""
LARGE = 1 << 24
NETWORKS = ("lenet5-b64", "lenet5-b256", "resnet18-b16")
INTERPRETED = NETWORKS[:2]
"""Networks whose step the interpreter runs within seconds."""
EAGER, COMPILERS = ("torch", "tensorflow"), ("compile", "xla")
GAINS = {"lenet5": (1.4, 1.5), "resnet18": (1.1, 1.3)}
"""What the paper's fusion gains on a GPU, by network."""
ROUNDS, CAP = 7, 300.0
APART = ", not fused"
TURNS, TURN = 15, 0.05
"""Turns of forms of an operator in one process, and the seconds of each."""


# ----------------------------------------------------------------------------------------------- example 1, a sigmoid


def _operators(plan: Plan) -> Sequence[Job]:
    n = ELEMENTS if not plan.quick else ELEMENTS >> 4
    ways = plan.pick(("forward", "gradient"), ("gradient",))
    cases = [elementwise.elementwise(f, n, way) for f in ("own_sigmoid", "sigmoid") for way in ways]
    cases += [elementwise.elementwise("multiply_add", k) for k in plan.pick((ELEMENTS, LARGE), ())]
    return [Job(c, ("einsmith", "torch", "compile"), plan.threads) for c in cases]


def forms(networks: Sequence[str], elements: int, threads: int, turns: int = TURNS) -> dict[str, Any]:
    """Return the seconds and the kernels of operators of vectors, by name and by whether they are fused, and the
    largest difference of any result from the first one's.

    Args:
        networks: names of operators that compute the same (`elementwise.INPUTS`)
        elements: of each vector
        threads: that share the work
        turns: of each form
    """
    import einsmith as es
    from benchmarks.peers import einsmith_kernels
    from einsmith.passes.pipeline import deciding

    calls, cell = dict[str, Callable[[], Any]](), dict[str, dict[str, Any]]()
    apart = frozenset(f"without {name}" for name in FUSING)
    with es.threads(threads):
        for way in ("forward", "gradient"):
            first: list[np.ndarray] = []
            for network, decisions in product(networks, (frozenset[str](), apart)):
                case = elementwise.elementwise(network, elements, way)
                arrays, (f, names) = case.arrays(), einsmith_kernels.function(case)
                run = partial(es.jit(lambda *xs, f=f: f(*xs)), *(arrays[n] for n in names))
                with deciding(decisions):
                    results = list(run())
                first = first or results
                kernels = len(list(plans.function_program(run.func).plan.kernel_calls()))
                off = max(float(np.abs(a - b).max()) for a, b in zip(results, first, strict=True))
                name = f"{network} {way}{APART * bool(decisions)}"
                calls[name], cell[name] = run, {"kernels": kernels, "off": off}
        times = in_turns(calls, turns, TURN, warm=1)
    return {name: x | {"seconds": statistics.median(times[name])} for name, x in cell.items()}


def _forms(plan: Plan) -> Cases:
    n, turns = (ELEMENTS >> 4, 2) if plan.quick else (ELEMENTS, TURNS)
    yield f"forms-sigmoid-n{n}", partial(forms, ("sigmoid", "own_sigmoid"), n, plan.threads, turns)
    large = n if plan.quick else LARGE
    yield f"forms-multiply_add-n{large}", partial(forms, ("multiply_add",), large, plan.threads, turns)


def _show_operators(cells: Cells) -> Sequence[Shown]:
    shown = []
    for key, cell in cells.items():
        if not key.startswith("forms-"):
            continue
        rows = [
            (name.replace("_", " "), str(x["kernels"]), milliseconds(x["seconds"]), f"{x['off']:.1e}")
            for name, x in cell.items()
        ]
        remarks = []
        for name in [n for n in cell if n + APART in cell]:
            apart = cell[name + APART]
            if apart["kernels"] == cell[name]["kernels"]:
                continue
            gain = apart["seconds"] / cell[name]["seconds"]
            text = f"{name.replace('_', ' ')}: {apart['kernels']} kernels fused into {cell[name]['kernels']}"
            remarks.append(f"{text}, {gain:.2f} times as fast.")
        for way in ("forward", "gradient"):
            if f"own_sigmoid {way}" in cell:
                ratio = cell[f"sigmoid {way}"]["seconds"] / cell[f"own_sigmoid {way}"]["seconds"]
                remarks.append(
                    f"The sigmoid that is written as a formula, {way}: {ratio:.2f} times the built-in one's speed."
                )
        columns = ("", "kernels", "ms", "largest difference")
        shown.append(Shown(columns, rows, remarks, title=f"{key.removeprefix('forms-')}, taking turns in one process"))
    timed = {k: c for k, c in cells.items() if not k.startswith("forms-")}
    if timed:
        shown.append(beside(timed, {"PyTorch": ["torch"], "torch.compile": ["compile"]}, title="beside PyTorch"))
    return shown


# ------------------------------------------------------------------------------------------------- example 2, Adam


def _adam(plan: Plan) -> Sequence[Job]:
    names = plan.pick(("lenet5", "resnet18"), ("lenet5",))
    jobs = [Job(elementwise.adam_of(n), ("einsmith", "torch", "compile"), plan.threads) for n in names]
    plain = plan.pick([elementwise.adam_of(n, "plain") for n in names], ())
    return [*jobs, *(Job(c, ("einsmith", "torch"), plan.threads) for c in plain)]


def _without_fusion(names: Sequence[str], plan: Plan) -> Cases:
    for name in names:
        yield f"{name}-t{plan.threads}-fusion", partial(_measure_fusion, name, plan)


def _measure_fusion(name: str, plan: Plan) -> dict[str, Any] | None:
    try:
        return ablations.measured(name, plan.threads, 2 if plan.quick else ROUNDS, CAP, [ALL])
    except WorkerError as e:
        print(f"{name}: {e.kind}: {e}")
        return None


def _adam_without_fusion(plan: Plan) -> Cases:
    names = plan.pick(("lenet5", "resnet18"), ("lenet5",))
    return _without_fusion([elementwise.adam_of(n, "operators").name for n in names], plan)


def gain_of(cell: Mapping[str, Any]) -> float | None:
    """Return how many times as fast a step is with fusion as without it; None where fusion changed nothing."""
    return ablations.gain_with(cell, ALL) if ALL in cell else None


def _fusion_row(name: str, cell: Mapping[str, Any]) -> list[str]:
    """Return the kernels and milliseconds of a step without and with fusion, its gain, and the arena of both."""
    parts = [cell.get(ALL, cell[""]), cell[""]]
    gain = gain_of(cell)
    return [
        name, *(str(x["calls"]) for x in parts), *(milliseconds(statistics.median(x["rounds"])) for x in parts),
        "" if gain is None else f"{gain:.2f}", *(f"{x['arena_bytes'] / 2**20:.1f}" for x in parts),
    ]  # fmt: skip


FUSION_COLUMNS = (
    "", "kernels, each operator", "fused", "ms, each operator", "ms, fused", "times as fast", "MiB, each operator",
    "MiB, fused",
)  # fmt: skip


def _fused(cells: Cells) -> dict[str, Any]:
    """Return the cells of steps with and without fusion by their problems' names."""
    return {problem_of(k.removesuffix("-fusion")): c for k, c in cells.items() if k.endswith("-fusion")}


def _show_adam(cells: Cells) -> Sequence[Shown]:
    fused = _fused(cells)
    timed = {k: c for k, c in cells.items() if not k.endswith("-fusion")}
    own = Shown(
        FUSION_COLUMNS,
        [_fusion_row(*x) for x in fused.items()],
        title="the update, composed of operators, with and without fusion",
    )
    peers = {"PyTorch": ["torch"], "torch.compile": ["compile"]}
    more = {"PyTorch's": lambda c: c["peers"].get("torch", {}).get("variant", "")}
    return [own, beside(timed, peers, title="the update beside torch.optim.Adam", more=more)]


# ------------------------------------------------------------------------------------------------------- training


def _training(plan: Plan) -> Sequence[Job]:
    problems = [models.named(n) for n in plan.pick(NETWORKS, NETWORKS[:1])]
    peers = plan.pick(("einsmith", *EAGER, *COMPILERS), ("einsmith", "torch", "compile"))
    return [Job(p, peers, plan.threads) for p in problems if p is not None]


def interpreted(name: str) -> dict[str, Any]:
    """Return the seconds of a training step that NumPy runs operator by operator, in float64, and its loss."""
    from einsmith.ir.evaluator import evaluate

    step, batch = plans.begun(models.named(name), 1)
    with plans.uncompiled():
        step.compile(*batch)
    run, arrays = plans.program_of(step), step.read_batch(batch)
    step.parts.set_numbers(arrays)
    graph = run.compiled.source_graph
    known = [np.asarray(run.memory.arrays[x]) for x in graph.inputs[len(arrays) :]]
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        outputs, _ = evaluate(graph, [*arrays, *known])
        seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds), "loss": float(next(x for x in outputs if not x.ndim))}


def _fusion(plan: Plan) -> Cases:
    yield from _without_fusion(plan.pick(NETWORKS, NETWORKS[:1]), plan)
    for name in plan.pick(INTERPRETED, INTERPRETED[:1]):
        yield f"{name}-interpreted", partial(interpreted, name)


def _show_fusion(cells: Cells) -> Sequence[Shown]:
    slow = {k.removesuffix("-interpreted"): c["seconds"] for k, c in cells.items() if k.endswith("-interpreted")}
    fused = _fused(cells)
    rows = [[*_fusion_row(name, c), milliseconds(slow.get(name))] for name, c in fused.items()]
    remarks = []
    for network, (low, high) in GAINS.items():
        gains = [g for n, c in fused.items() if n.startswith(network) and (g := gain_of(c)) is not None]
        if gains:
            mean = geometric_mean(gains)
            remarks.append(f"Fusion on {network}: {mean:.2f} times as fast here, {low} to {high} times in the paper.")
    drawn = {"with fusion": [gain_of(c) for c in fused.values()]}
    bars = Bars(list(fused), drawn, "times as fast as without fusion", 1.0)
    return [Shown((*FUSION_COLUMNS, "ms, interpreted"), rows, remarks, bars)]


def _show_training(cells: Cells) -> Sequence[Shown]:
    peers = {"TensorFlow": ["tensorflow"], "XLA": ["xla"], "PyTorch": ["torch"], "torch.compile": ["compile"]}
    there = {n: p for n, p in peers.items() if any(p[0] in c["peers"] for c in cells.values())}
    return [beside(cells, there)]


def _first(cell: Mapping[str, Any], peer: str, what: str = "first_seconds") -> float | None:
    return cell["peers"].get(peer, {}).get(what)


def repaid(cell: Mapping[str, Any]) -> float | None:
    """Return the steps after which Einsmith's first call is paid for beside PyTorch's eager step; None where a step is
    not faster."""
    ours, theirs = time_of(cell, "einsmith"), time_of(cell, "torch")
    first = [_first(cell, p) for p in ("einsmith", "torch")]
    if ours is None or theirs is None or None in first or ours >= theirs:
        return None
    return max(0.0, (first[0] - first[1]) / (theirs - ours))  # type: ignore[operator]


def _show_first(cells: Cells) -> Sequence[Shown]:
    wanted = {
        "Einsmith, s": ("einsmith", "first_seconds"), "from the caches, s": ("einsmith", "first_seconds_warm"),
        "torch.compile, s": ("compile", "first_seconds"), "XLA, s": ("xla", "first_seconds"),
        "PyTorch eager, s": ("torch", "first_seconds"),
    }  # fmt: skip
    rows, ratios, saved = [], [], []
    for key, cell in cells.items():
        times = [_first(cell, *of) for of in wanted.values()]
        steps = repaid(cell)
        shown = ("" if t is None else f"{t:.2f}" for t in times)
        rows.append([problem_of(key), *shown, "" if steps is None else f"{steps:.0f}"])
        own, warm, compiled = times[:3]
        ratios += [compiled / own] if own and compiled else []
        saved += [own / warm] if own and warm else []
    remarks = []
    for what, values in (
        ("The first call, compilation included, beside torch.compile's", ratios),
        ("The first call from the caches beside the first one of all", saved),
    ):
        mean = geometric_mean(values)
        remarks += [f"{what}: {mean:.1f} times as fast, geometric mean of {len(values)}."] if mean else []
    return [Shown(("", *wanted, "steps until repaid"), rows, remarks)]


ON_CPU = (
    "On a CPU an operator of its own costs a pass over tensors that the caches hold in part, and a call in place of a"
    " launch on another processor: fusion saves traffic between caches rather than to the global memory of a card."
)

PAPER = Paper(
    "nnvm",
    "NNVM-Fusion",
    "Ziheng: Fusion and Runtime Compilation for NNVM and TinyFlow (an article on the Web).",
    {
        "operators written as formulas, as fast as those of the library": "`docs/formulas.md`",
        "fusion of element-wise operators, updates of parameters included": "`docs/architecture.md`",
        "run-time compilation, and a cache of what was compiled": "`docs/compilation.md`",
        "optimizers as rules of a few lines": "`docs/training.md`",
    },
    [
        Experiment(
            "Example 1", "an activation written as a formula, and add(mul(x0, x1), x2) as one kernel",
            "a sigmoid composed of exp, + and / is to be as efficient as a native operator; no figures.",
            _show_operators, jobs=_operators, cases=_forms,
        ),
        Experiment(
            "Example 2", "Adam written as a rule, for all parameters of a network",
            "many element-wise operations fused into one; no figures.",
            _show_adam, jobs=_adam, cases=_adam_without_fusion,
            remark="The update stands alone here; in a training step Einsmith fuses it into kernels of the gradients.",
        ),
        Experiment(
            "Benchmark, fusion", "training without and with fusion",
            "on a GPU 1.4 to 1.5 times as fast on LeNet, 1.1 to 1.3 times on ResNet with a medium batch size.",
            _show_fusion, cases=_fusion, remark=ON_CPU, card="--parts models --models lenet5,resnet18",
        ),
        Experiment(
            "Benchmark, TensorFlow", "training beside TensorFlow and PyTorch",
            "with fusion on par with TensorFlow on ResNet, and better on LeNet, on a GPU.",
            _show_training, jobs=_training,
        ),
        Experiment(
            "Run-time compilation", "the first step, in which everything is compiled",
            "kernels are compiled when the graph is known, and a cache of patterns is future work; no figures.",
            _show_first, jobs=_training,
        ),
    ],
)  # fmt: skip
