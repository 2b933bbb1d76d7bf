"""Measurements of NeoFlow's experiments that compare Einsmith's own programs: launches, dynamic mode, layouts, operand
swapping and parallel fusion."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from benchmarks import choices, cost_model, dynamic_mode, kernel_cases, layouts, parallel_fusion, plans, worker
from benchmarks.convolutions import Conv
from benchmarks.driver import geometric_mean
from benchmarks.paper.experiment import Bars, Cases, Cells, Curves, Plan, Shown, milliseconds

LIBRARIES = ("torch", "jax", "tensorflow", "onnxruntime", "tvm")
CASE_STUDY, SECONDS = "milstm-b64-t28", 60.0
"""The network of dynamic mode, and how long each side trains; a quick run trains a smaller one."""
CHANNELS, SIZE, BATCHES = 1024, 14, (1, 8, 16)
"""Of the 1x1 convolution in several layouts."""
BATCH_INNERMOST = (1, 2, 3, 0)
"""CHWN, from images [N, C, H, W]."""
PRODUCTS = ((1024, 8, 512), (1024, 16, 1024), (4096, 4, 256), (512, 24, 2048))
"""M, N and K of products with few columns."""
SIBLINGS = ("capsules-13c", "capsules-256", "narrow-14", "inception-28", "lstm-16x128", "qkv-197x320")
MEASURE_SECONDS = 0.5
"""For which the forms of a kernel take turns."""


# ------------------------------------------------------------------------------------------------------------- settings


def _versions() -> dict[str, str]:
    packages = metadata.packages_distributions()
    versions = {name: metadata.version(packages[name][0]) for name in LIBRARIES if name in packages}
    return {"Python": sys.version.split()[0]} | {name: versions.get(name, "missing") for name in LIBRARIES}


def settings(plan: Plan) -> Cases:
    """Yield the case of the libraries' versions."""
    yield "settings", _versions


def show_settings(cells: Cells) -> Sequence[Shown]:
    """Return the table of versions."""
    rows = [(name, version) for cell in cells.values() for name, version in cell.items()]
    return [Shown(("", "version"), rows, text=("version",))]


# ------------------------------------------------------------------------------------------------------------- launches


def _launches(name: str, threads: int) -> dict[str, int] | None:
    """Return the kernels that Einsmith runs for an operator with its gradients, and the operations of PyTorch that are
    no views, in its first formulation; None without PyTorch."""
    if find_spec("torch") is None:
        return None
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counter.count += not func.is_view
            return func(*args, **(kwargs or {}))

    problem = worker.find(name)
    arrays = problem.arrays()
    ours, theirs = (
        worker.build(problem, arrays, threads, p, worker.variants(problem, p)[0]) for p in ("einsmith", "torch")
    )
    ours.step()
    with Counter():
        theirs.step()
    return {"einsmith": sum(1 for _ in plans.function_program(ours._f).plan.kernel_calls()), "torch": Counter.count}


def launches(plan: Plan, names: Sequence[str]) -> Cases:
    """Yield the launches of operators by name."""
    for name in names:
        yield f"launches/{name}", partial(_launches, name, plan.threads)


def show_launches(cells: Cells) -> Shown:
    """Return the table of launches."""
    rows = [(key.partition("/")[2], str(c["einsmith"]), str(c["torch"])) for key, c in cells.items()]
    title = "launches of a call with all gradients: Einsmith's kernels, and PyTorch's operations that are no views"
    return Shown(("", "Einsmith", "PyTorch"), rows, title=title)


# --------------------------------------------------------------------------------------------------------- dynamic mode


def _trained(name: str, peer: str, threads: int, seconds: float) -> dict[str, Any]:
    say = lambda text: None  # noqa: E731 - progress is told by the harness
    return dynamic_mode.measure(name, threads, seconds, 600.0, say, [peer])[peer]


def dynamic(plan: Plan) -> Cases:
    """Yield MI-LSTM in PyTorch and in dynamic mode, one after the other."""
    name, seconds = ("milstm-b1-t1", 1.0) if plan.quick else (CASE_STUDY, SECONDS)
    for peer in ("torch", "dynamic"):
        yield f"{peer}/{name}", partial(_trained, name, peer, plan.threads, seconds)


def _line(row: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return the seconds since the start at the end of each turn, compilation included, and the steps done by then."""
    ends, steps = dynamic_mode.progress(row)
    return [row["first"], *(row["first"] + t for t in ends)], [1.0, *(1.0 + n for n in steps)]


def _done(row: dict[str, Any], at: float) -> float:
    """Return how many steps a side has done so many seconds after the start."""
    ends, steps = _line(row)
    if at <= ends[0]:
        return 0.0
    for n in range(1, len(ends)):
        if at <= ends[n]:
            return steps[n - 1] + (steps[n] - steps[n - 1]) * (at - ends[n - 1]) / (ends[n] - ends[n - 1])
    return steps[-1]


def _overtakes(ours: dict[str, Any], theirs: dict[str, Any]) -> float | None:
    """Return the first end of a turn from which on we have done more steps, in seconds since the start."""
    last = min(_line(ours)[0][-1], _line(theirs)[0][-1])
    ends = sorted(t for t in (*_line(ours)[0], *_line(theirs)[0]) if t <= last)
    behind = [t for t in ends if _done(ours, t) <= _done(theirs, t)]
    ahead = [t for t in ends if not behind or t > behind[-1]]
    return ahead[0] if ahead else None


def show_dynamic(cells: Cells) -> Sequence[Shown]:
    """Return what dynamic mode takes beside PyTorch: the latency of a step, and the steps done, over time."""
    labels = {"torch": "PyTorch", "dynamic": "Einsmith, dynamic mode"}
    good = {labels[key.partition("/")[0]]: c for key, c in cells.items() if c["status"] == "ok"}
    rows = []
    for label, row in good.items():
        turns, x = row["by_turn"], row.get("explored") or {}
        last = statistics.median(turns[-dynamic_mode.LAST :])
        times = f"{row['first']:.2f}", milliseconds(turns[0]), milliseconds(last), f"{row['steps']}"
        rows.append((label, *times, str(x.get("tried", "")), str(x.get("kept", "")), x.get("state", "")))
    names = ("", "first call, s", "first steps, ms", "last steps, ms", "steps", "tried", "kept", "state")
    latency = {label: (dynamic_mode.progress(r)[0], [1e3 * t for t in r["by_turn"]]) for label, r in good.items()}
    shown = Shown(names, rows, drawing=Curves(latency, "seconds of training", "ms per step"), text=("state",))
    return [shown, _show_steps(good)] if len(good) == len(labels) else [shown]


def _show_steps(rows: dict[str, dict[str, Any]]) -> Shown:
    """Return the steps that PyTorch and Einsmith have done, compilation included, as long as both train."""
    theirs, ours = rows.values()
    end, since = min(_line(ours)[0][-1], _line(theirs)[0][-1]), _overtakes(ours, theirs)
    lines = []
    for at in (end / 16, end / 4, end / 2, end):
        done = _done(theirs, at), _done(ours, at)
        lines.append((f"{at:.1f}", *(f"{n:.0f}" for n in done), f"{done[1] / max(done[0], 1.0):.2f}"))
    when = (
        "is not ahead at the end"
        if since is None
        else f"has done more steps than PyTorch from {since:.1f} s on, by the ends of turns"
    )
    curves = Curves({label: _line(r) for label, r in rows.items()}, "seconds since the start", "steps done")
    columns = ("seconds", *rows, "ratio")
    return Shown(
        columns, lines, [f"Einsmith {when}."], curves, title="steps done since the start, compilation included"
    )


# ------------------------------------------------------------------------------------------------- layouts and swapping


def _in_torch(*arrays: Any) -> dict[str, Callable[[], float]]:
    """Return functions that convolve images by a filter in PyTorch on one thread, and return the seconds."""
    import torch

    torch.set_num_threads(1)

    def run(tensors: Sequence[Any]) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            torch.nn.functional.conv2d(*tensors)
        return time.perf_counter() - start

    orders = {"PyTorch, NCHW": torch.contiguous_format, "PyTorch, NHWC": torch.channels_last}
    given = [torch.from_numpy(a) for a in arrays]
    return {n: partial(run, [t.contiguous(memory_format=o) for t in given]) for n, o in orders.items()}


def _in_turns(forms: dict[str, Any], more: dict[str, Callable[[], float]], target: Any) -> dict[str, float]:
    """Return the least seconds of kernels, given as choices, and of other functions, by name, on one thread."""
    from einsmith.kernels import autoconfig
    from einsmith.tuning.kernels.measure import example_buffers, prepare, shortest

    runs: dict[str, Any] = {}
    for name, (kernel, pattern, config) in forms.items():
        how = autoconfig.pattern_of(pattern), config, target, 1
        runs[name] = prepare(kernel, *how, example_buffers(kernel))
    every = runs | more
    return dict(zip(every, shortest(list(every.values()), MEASURE_SECONDS), strict=True))


def _chosen(kernel: Any, target: Any) -> tuple[Any, Any, Any]:
    from einsmith.kernels import autoconfig

    name, config, _ = autoconfig.choose(kernel, target).alternatives[0]
    return kernel, name, config


def _convolution(batch: int) -> dict[str, Any]:
    """Return the seconds of the convolution with its images in NCHW and CHWN, in the order of least predicted cost, and
    in PyTorch with the channels first and last."""
    from einsmith.kernels import autoconfig
    from einsmith.tuning.calibration import calibrate

    target = calibrate.target(1)
    conv = Conv(CHANNELS, CHANNELS, 1, 1, 1, SIZE)
    case = next(iter(kernel_cases.convolution(conv, batch)))
    (kernel,) = choices.kernels_of(case)
    image, weight = kernel.buffers[0].shape, kernel.buffers[1].shape
    every = {(of[image], of.get(weight)): k for of, k in layouts.in_orders(kernel)}
    (_, as_it_is), forms = next(iter(every)), {"NCHW": kernel}
    if (BATCH_INNERMOST, as_it_is) in every:
        forms["CHWN"] = every[BATCH_INNERMOST, as_it_is]
    best = min(every, key=lambda o: autoconfig.choose(every[o], target).cost.seconds)
    forms["chosen"] = every[best]
    kernels = {name: _chosen(k, target) for name, k in forms.items()}
    more = {} if find_spec("torch") is None else _in_torch(*(case.arrays()[n] for n in "XW"))
    return {"seconds": _in_turns(kernels, more, target), "order": "".join("NCHW"[d] for d in best[0][:4])
            + "".join(f", {'NCHW'[d]} in blocks of {n}" for d, n in best[0][4:])}  # fmt: skip


def layouts_of(plan: Plan) -> Cases:
    """Yield the convolution at several batch sizes."""
    for batch in plan.pick(BATCHES, BATCHES[1:2]):
        yield f"layouts/{batch}", partial(_convolution, batch)


def show_layouts(cells: Cells) -> Sequence[Shown]:
    """Return milliseconds in each layout."""
    names = ("NCHW", "CHWN", "chosen", "PyTorch, NCHW", "PyTorch, NHWC")
    rows, ratios, gains = [], [], []
    for key, cell in cells.items():
        t = cell["seconds"]
        torch = [t[n] / t["chosen"] for n in names[3:] if n in t]
        ratios += [min(torch)] if torch else []
        gains.append(t["NCHW"] / t["chosen"])
        times = [milliseconds(t.get(n)) for n in names]
        faster = f"{ratios[-1]:.2f}" if torch else ""
        rows.append((key.partition("/")[2], *times, cell["order"], faster, f"{gains[-1]:.2f}"))
    columns = ("batch", *(f"{n}, ms" for n in names), "chosen order", "times PyTorch", "times NCHW")
    remarks = [
        f"The chosen order's speed as a ratio to {what}, geometric mean: {geometric_mean(values):.2f}."
        for what, values in (("PyTorch's better one", ratios), ("NCHW", gains)) if values
    ]  # fmt: skip
    series = {n: [1e3 * c["seconds"][n] if n in c["seconds"] else None for c in cells.values()] for n in names}
    bars = Bars([f"batch {k.partition('/')[2]}" for k in cells], series, "ms")
    return [Shown(columns, rows, remarks, bars, ("chosen order",))]


def _product(m: int, n: int, k: int) -> dict[str, Any]:
    """Return the seconds of the cheapest configuration whose vectors lie along N, of the one whose vectors lie along M
    (the operands change sides), and of the one that is chosen."""
    from einsmith.kernels.contraction.config import sides
    from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
    from einsmith.tuning.calibration import calibrate

    target = calibrate.target(1)
    ((kernel, p),) = cost_model.contractions(kernel_cases.product(m, n, k))
    forms = {"chosen": _chosen(kernel, target)}
    for config, _ in cost_model.priced(kernel, p, target).values():  # the cheapest first
        if hasattr(config, "swap"):
            _, along = sides(p, config.swap)
            name = {n: "as is", m: "swapped"}[p.count(along.axes)]
            forms.setdefault(name, (kernel, CONTRACTION.name, Configs((config,))))
    return {"seconds": _in_turns(forms, {}, target), "configurations": {n: str(x[2]) for n, x in forms.items()}}


def products(plan: Plan) -> Cases:
    """Yield products with few columns."""
    for m, n, k in plan.pick(PRODUCTS, PRODUCTS[:1]):
        yield f"swap/{m}x{n}x{k}", partial(_product, m, n, k)


def show_products(cells: Cells) -> Sequence[Shown]:
    """Return microseconds of products as they are and with swapped operands."""
    names, gains, rows = ("as is", "swapped", "chosen"), [], []
    for key, cell in cells.items():
        t = cell["seconds"]
        if "as is" in t and "swapped" in t:
            gains.append(t["as is"] / t["swapped"])
        gain = f"{100 * (gains[-1] - 1):+.0f} %" if "as is" in t and "swapped" in t else ""
        times = (f"{1e6 * t[n]:.1f}" if n in t else "" for n in names)
        rows.append((key.partition("/")[2], *times, gain, cell["configurations"]["chosen"]))
    columns = ("M x N x K", *(f"{n}, us" for n in names), "gain by swapping", "chosen configuration")
    mean, best = geometric_mean(gains), [min(c["seconds"].values()) / c["seconds"]["chosen"] for c in cells.values()]
    remarks = [
        f"The chosen one's speed as a ratio to the fastest of the three, geometric mean: {geometric_mean(best):.2f}."
    ]
    if mean is not None:
        remarks.insert(0, f"Swapped, beside products as they are: {100 * (mean - 1):+.0f} % of speed on average.")
    series = {n: [1e6 * c["seconds"][n] if n in c["seconds"] else None for c in cells.values()] for n in names}
    bars = Bars([k.partition("/")[2] for k in cells], series, "us")
    return [Shown(columns, rows, remarks, bars, ("chosen configuration",))]


# ------------------------------------------------------------------------------------------------------ parallel fusion


def fusion(plan: Plan) -> Cases:
    """Yield products that share an operand, without and with gradients."""
    for name in plan.pick(SIBLINGS, SIBLINGS[:1]):
        for gradients in plan.pick((False, True), (False,)):
            key = f"{name}/{'gradients' if gradients else 'values'}"
            yield key, partial(parallel_fusion.measure, parallel_fusion.CASES[name], gradients)


def _fusion_rows(cells: Cells) -> Iterator[tuple[str, ...]]:
    for key, cell in cells.items():
        t = cell["seconds"]
        times = (f"{1e6 * t[n]:.1f}" for n in ("apart", "joined", "decided"))
        gains = (f"{t['apart'] / t[n]:.2f}" for n in ("joined", "decided"))
        yield key, *times, *gains, "yes" if cell["joins"] else "no"


def show_fusion(cells: Cells) -> Sequence[Shown]:
    """Return microseconds of one thread with products apart, joined, and as prices decide."""
    columns = ("", "apart, us", "joined, us", "decided, us", "joined, times as fast", "decided, times as fast", "joins")
    gains = {n: [c["seconds"]["apart"] / c["seconds"][n] for c in cells.values()] for n in ("joined", "decided")}
    joined, decided = (geometric_mean(g) for g in gains.values())
    remarks = [f"Times as fast as products apart, geometric mean: joined {joined:.2f}, as prices decide {decided:.2f}."]
    return [Shown(columns, list(_fusion_rows(cells)), remarks, Bars(list(cells), gains, "times as fast", 1.0))]
