"""MegEngine's layouts: the order of each tensor chosen for a whole graph, beside one format imposed on all images."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import layouts, precision
from benchmarks.driver import geometric_mean, in_turns
from benchmarks.paper.experiment import Bars, Cases, Cells, Experiment, Paper, Plan, Shown, milliseconds
from benchmarks.precision import FORMATS, best_format, bound_of

NETWORKS, BATCHES, PRECISIONS = ("lenet5", "resnet18-cifar", "mobilenetv2", "resnet18"), (1, 16), ("int8", "fp32")
SECONDS, QUICK_SECONDS = 2.5, 0.3
"""For the formats of a network."""
DUMPED = (("lenet5", 16), ("resnet18-cifar", 16))
ORDERED = ("lenet5-b16", "resnet18_cifar-b1")
"""Training steps whose parameters are tried in other orders."""
DRAWN = ("NCHW", "NHWC", "CHWN", "CHWN4", "NC/4HW4", "NC/16HW16", "NC/32HW32")
"""Formats in the drawing, which has seven colors."""
ROUNDS, TURN = 7, 0.1
"""Turns of programs that are dumped and loaded, and the seconds of each."""


def _formats(plan: Plan) -> Cases:
    seconds = QUICK_SECONDS if plan.quick else SECONDS
    networks, batches = plan.pick(NETWORKS, NETWORKS[:1]), plan.pick(BATCHES, BATCHES[1:])
    for kind, name, batch in product(PRECISIONS, networks, batches):
        yield f"{name}-b{batch}-{kind}", partial(precision.formats_of, name, batch, kind, seconds)


def _ratio(cell: Mapping[str, Any], form: str) -> float | None:
    """Return the time of a form over that of the chosen layouts; None where a network has no such form."""
    forms = cell["forms"]
    return forms[form]["seconds"] / forms["chosen"]["seconds"] if form in forms else None


def _of(cells: Cells, kind: str) -> dict[str, Any]:
    return {k.removesuffix(f"-{kind}"): c for k, c in cells.items() if k.endswith(f"-{kind}")}


def _show_formats(cells: Cells) -> Sequence[Shown]:
    shown = []
    for kind in PRECISIONS:
        of = _of(cells, kind)
        if not of:
            continue
        rows, columns = [], ("chosen", *FORMATS)
        for name, cell in of.items():
            forms, (best, gain) = cell["forms"], best_format(cell)
            figures = [
                f"{milliseconds(forms[f]['seconds'])} ({milliseconds(forms[f]['predicted'])})" if f in forms else ""
                for f in columns
            ]
            rows.append([name, *figures, best, f"{gain:.2f}", f"{100 * bound_of(cell):.1f}"])
        gains = [best_format(c)[1] for c in of.values()]
        same = {f: sum(c["forms"].get(f, {}).get("as") == "chosen" for c in of.values()) for f in FORMATS}
        remarks = [
            f"The best format of each network beside the chosen layouts, geometric mean of {len(gains)}:"
            f" {geometric_mean(gains):.2f} times their time, at least {min(gains):.2f}.",
            f"Of the {len(of)} programs by the chosen layouts, so many are the same as by a format:"
            f" {', '.join(f'{f} {n}' for f, n in same.items() if n) or 'none'}.",
            *_means(of), *_reasons(of),
        ]  # fmt: skip
        ratios = {f: [_ratio(c, f) for c in of.values()] for f in DRAWN}
        bars = Bars(list(of), {f: r for f, r in ratios.items() if any(r)}, "time / chosen layouts' time", 1.0)
        title = f"{kind}, ms on one thread, predicted ones in parentheses"
        head = ("", *(f"{c}, ms" for c in columns), "best format", "best / chosen", "bound, %")
        shown.append(Shown(head, rows, remarks, bars, ("best format",), title))
    return shown


def _means(of: Mapping[str, Any]) -> list[str]:
    """Return how the time with each imposed format compares with that of the chosen layouts."""
    means = {}
    for f in FORMATS:
        ratios = [r for c in of.values() if (r := _ratio(c, f)) is not None]
        if ratios:
            means[f] = f"{f} {geometric_mean(ratios):.2f}"
    return [
        f"Imposed on all images, a format takes this many times the time of the choice: {', '.join(means.values())}."
    ]


def _reasons(of: Mapping[str, Any]) -> list[str]:
    """Return how much there is to gain by layouts, and how much of it a format takes."""
    bounds = {name: 100 * bound_of(c) for name, c in of.items()}
    gains = {name: 100 * max(0.0, 1 - best_format(c)[1]) for name, c in of.items()}
    most = max(bounds, key=bounds.__getitem__)
    return [
        "A kernel packs what it reads into the order of its register tiles, in whatever order it lies in memory, and"
        " reads and writes any order itself: what a layout can save is this packing, and what a cache does not hold."
        f" If no operand was ever packed or copied (bound), a run would take {statistics.median(bounds.values()):.1f} %"
        f" less in the median, {bounds[most]:.1f} % less on {most}. The best format saves"
        f" {statistics.median(gains.values()):.1f} % in the median, {max(gains.values()):.1f} % at most, beside the"
        " choice."
    ]


def _show_moves(cells: Cells) -> Sequence[Shown]:
    rows, more = [], 0
    for name, cell in cells.items():
        chosen, without = cell["forms"]["chosen"], cell["forms"]["without"]
        imposed = [x for f, x in cell["forms"].items() if f in FORMATS]
        pairs = [f"{x[what]}" for what in ("calls", "copies", "packed") for x in (chosen, without)]
        most = [f"{max(x[what] for x in imposed)}" for what in ("copies", "packed")]
        rows.append([name, str(cell["ordered"]), *pairs, *most, f"{without['seconds'] / chosen['seconds']:.2f}"])
        more += sum(x["copies"] > chosen["copies"] for x in imposed)
    columns = (
        "", "tensors not row-major", "kernels", "kernels without the choice", "copies", "copies without", "packed",
        "packed without", "most copies of a format", "most packed of a format", "times as fast with the choice",
    )  # fmt: skip
    remark = (
        "Copies are kernels that only move elements; packed are operands that products bring into the order of register"
        f" tiles at each run. Of all imposed formats {more} add copies: kernels read and write tensors as they lie."
    )
    return [Shown(columns, rows, [remark])]


def _show_choice(cells: Cells) -> Sequence[Shown]:
    rows = [
        [name, milliseconds(c["pass_seconds"]), milliseconds(c["compile_seconds"]),
         f"{100 * c['pass_seconds'] / c['compile_seconds']:.1f}"]
        for name, c in cells.items()
    ]  # fmt: skip
    longest = max(c["pass_seconds"] for c in cells.values())
    remark = (
        f"The choice takes {longest:.2f} s at most, with the predictions of kernels in the orders that are weighed,"
        " which a process makes once for each kernel. Nothing is run for it."
    )
    return [Shown(("", "choice, ms", "compilation, ms", "part, %"), rows, [remark])]


def dumped(name: str, batch: int, kind: str, turns: int) -> dict[str, Any]:
    """Return what a network and the graph of it that was written to a file and loaded again take, in turns on one
    thread (seconds), the largest difference of their results, and the bytes of the file."""
    import einsmith as es
    from einsmith.base import environment

    rng = np.random.default_rng(0)
    network, shape = precision.network_of(name, kind, rng)
    x = rng.standard_normal((batch, *shape)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder, es.threads(1):
        run = es.jit(network)
        with environment.setting(environment.DUMP, folder):
            wanted = run(x)
        *first, path = sorted(Path(folder).glob("*/graph.txt"))
        values = dict(network.state_dict())
        for other in first:  # it computes what weights alone decide
            precomputed = _loaded(other, values)
            precomputed()
            values |= precomputed.state
        loaded = _loaded(path, values)
        off = float(np.abs(loaded(x) - wanted).max())
        times = in_turns({"compiled": partial(run, x), "loaded": partial(loaded, x)}, turns, TURN, warm=1)
        return {"seconds": {n: min(t) for n, t in times.items()}, "off": off, "bytes": path.stat().st_size}


def _loaded(path: Path, values: Mapping[str, np.ndarray]) -> Any:
    """Return the graph of a file with the values of its state that are known; the others are its own to compute."""
    import einsmith as es

    loaded = es.load_graph(path)
    for n, array in loaded.state.items():
        if n in values:
            array[...] = values[n]
    return loaded


def _dumps(plan: Plan) -> Cases:
    for (name, batch), kind in product(plan.pick(DUMPED, DUMPED[:1]), PRECISIONS):
        yield f"{name}-b{batch}-{kind}-dump", partial(dumped, name, batch, kind, 1 if plan.quick else ROUNDS)


def _show_dumps(cells: Cells) -> Sequence[Shown]:
    rows = [
        [k.removesuffix("-dump"), *(milliseconds(t) for t in c["seconds"].values()), f"{c['off']:.1e}",
         f"{c['bytes'] / 1024:.0f}"]
        for k, c in cells.items()
    ]  # fmt: skip
    equal = sum(c["off"] == 0 for c in cells.values())
    columns = ("", "compiled, ms", "loaded, ms", "largest difference", "file, KiB")
    return [Shown(columns, rows, [f"{equal} of {len(cells)} loaded graphs give the same results to the last bit."])]


def ordered(name: str) -> dict[str, Any]:
    """Return what a training step takes as it is, and with all parameters in the orders that make it faster (seconds),
    how many orders were tried, and how many made it faster."""
    now, best, _, tried = layouts.order_parameters(name)
    return {"now": now, "best": best, "tried": len(tried), "faster": sum(o.measured < layouts.FASTER for o in tried)}


def _orders(plan: Plan) -> Cases:
    for name in plan.pick(ORDERED, ORDERED[:1]):
        yield f"{name}-parameters", partial(ordered, name)


def _show_orders(cells: Cells) -> Sequence[Shown]:
    rows = [
        [k.removesuffix("-parameters"), str(c["tried"]), str(c["faster"]), milliseconds(c["now"]),
         milliseconds(c["best"]), f"{c['now'] / c['best']:.2f}"]
        for k, c in cells.items()
    ]  # fmt: skip
    columns = ("", "orders tried", "faster", "as it is, ms", "best orders, ms", "times as fast")
    return [Shown(columns, rows)]


PAPER = Paper(
    "megengine",
    "MegEngine's global graph optimization",
    "Chen Sixu, Megvii: Global graph optimization, another means to improve MegEngine's inference (in Chinese, an"
    " article on the Web, 2022).",
    {
        "an order of dimensions for each tensor, chosen for a whole graph with the costs of conversions":
            "`docs/architecture.md`",
        "formats with channels in blocks (NC/4HW4 to NC/64HW64, CHWN4)": "`docs/architecture.md`",
        "inference in 8-bit integers": "`docs/quantization.md`",
        "the graph after all passes in a file that runs again": "`docs/export.md`",
    },
    [
        Experiment(
            "Comparison", "formats imposed on all images beside the choice for the whole graph",
            "the choice beats one format imposed by the user on int8 models; figures in an image alone.",
            _show_formats, cases=_formats,
        ),
        Experiment(
            "Conversions", "conversions between layouts, with and without the choice",
            "one format for all brings many conversions, which the choice takes into account; no figures.",
            _show_moves, cases=_formats,
        ),
        Experiment(
            "Algorithm", "time of the choice",
            "dynamic programming over cuts, K M^N states, pruned; operators and conversions are timed on the device.",
            _show_choice, cases=_formats,
            remark="Einsmith predicts these times by its cost model, and eliminates variables one by one, exactly where"
            " the tables fit.",
        ),
        Experiment(
            "load_and_run", "the optimised graph, written to a file and run from it",
            "--layout-transform-dump writes the optimised graph, and load_and_run runs it.",
            _show_dumps, cases=_dumps,
        ),
        Experiment(
            "Parameters", "orders of parameters in training steps",
            "not in the article, whose graphs are those of inference.", _show_orders, cases=_orders,
        ),
    ],
)  # fmt: skip
