"""AutoConfig: algorithms and vector lengths chosen by a model of counted instructions and measured coefficients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any

from benchmarks.convolutions import Conv, distinct
from benchmarks.driver import geometric_mean
from benchmarks.kernel_cases import of_one_image
from benchmarks.paper import configured
from benchmarks.paper.configured import COEFFICIENTS, LENGTHS, PROGRAMS, SETS
from benchmarks.paper.experiment import (
    Bars,
    Cases,
    Cells,
    Curves,
    Experiment,
    Paper,
    Plan,
    Shown,
    beside,
    milliseconds,
    problem_of,
    time_of,
)
from benchmarks.report import Job
from benchmarks.worker import find

NETWORK = "efficientnet_lite0"
CONVOLUTIONS = distinct(NETWORK)
BY_NAME = {of_one_image(c).name: c for c in CONVOLUTIONS}
FEW = (CONVOLUTIONS[1], CONVOLUTIONS[2], CONVOLUTIONS[19])
PRODUCTS = ("product-256-nn", "product-512-nn", "product-1024-nn")
COUNTED = (CONVOLUTIONS[0], CONVOLUTIONS[2], CONVOLUTIONS[11], CONVOLUTIONS[31])
"""The stem, and convolutions of wide, middling and narrow images."""
TIMED = (
    *PRODUCTS, "product-64x1024x256-nn",
    *(of_one_image(c).name for c in (CONVOLUTIONS[0], CONVOLUTIONS[31])),
)  # fmt: skip
"""Products, square and rectangular, and convolutions, timed beside TVM."""
TUNED = TIMED[:4]
"""Those that TVM tunes."""
PEERS = ("einsmith", "torch", "tvm", "tvm-tuned")
NAMES = {"avx512": "AVX-512", "avx2": "AVX2"}
AVX2 = "AVX2 code runs on this machine's processor too: its times are those of AVX2 instructions there."


# ---------------------------------------------------------------------------------------------------- tables 1 and 2


Counts = tuple[str, int, int, int]
"""An algorithm with the float, memory and special instructions that it executes."""


def product_counts(name: str, lanes: int) -> Iterator[Counts]:
    """Yield what the algorithms of a product execute by the paper's analysis."""
    shapes = find(name).shapes or {}  # type: ignore[attr-defined]
    (m, k), (_, n) = shapes["A"], shapes["B"]
    steps = m * k * ceil(n / lanes)
    yield "scalar", m * n * k, 2 * m * n + 2 * m * n * k, 0
    yield "broadcast", steps, 3 * steps, m * k


def convolution_counts(conv: Conv, lanes: int) -> Iterator[Counts]:
    """Yield what the algorithms of a convolution of one image execute by the paper's analysis."""
    taps, out = conv.c_in // conv.groups * conv.kernel**2, conv.out
    together, rows = conv.c_out * taps * ceil(out**2 / lanes), conv.c_out * taps * out * ceil(out / lanes)
    yield "im2col", together, 2 * taps * out**2 + 3 * together, conv.c_out * taps
    yield "broadcast", rows, 3 * rows, conv.c_out * taps * out


def _count_products(plan: Plan) -> Cases:
    for name in plan.pick(PRODUCTS, PRODUCTS[:1]):
        yield f"counts {name}", partial(configured.counted, name)


def _count_convolutions(plan: Plan) -> Cases:
    for conv in plan.pick(COUNTED, COUNTED[1:2]):
        yield f"counts {of_one_image(conv).name}", partial(configured.counted, of_one_image(conv).name)


def _show_counts(cells: Cells, formulas: Callable[[str, int], Iterator[Counts]], packed: str) -> Sequence[Shown]:
    rows = []
    for key, cell in cells.items():
        name = key.partition(" ")[2]
        wanted = {n: counts for n, *counts in formulas(name, cell["lanes"])}
        for algorithm in ("scalar", "broadcast", "im2col"):
            paper = [f"{x:,}" for x in wanted.get(algorithm, ())] or ["", "", ""]
            ours = [f"{cell[algorithm][n]:,}" for n in ("floats", "moves")] if cell.get(algorithm) else ["", ""]
            if any(paper) or any(ours):
                rows.append([name, packed if algorithm == "im2col" else algorithm, *paper, *ours])
    kinds = ("float, by the paper", "memory, by the paper", "broadcasts, by the paper", "float", "memory")
    lanes = next(iter(cells.values()))["lanes"]
    saved = [
        wanted[2] / cell["broadcast"]["moves"]
        for key, cell in cells.items()
        for wanted in formulas(key.partition(" ")[2], cell["lanes"])
        if wanted[0] == "broadcast" and cell.get("broadcast")
    ]
    remarks = [
        f"Vectors have {lanes} float32. A broadcast is a load here, counted under memory.",
        f"Register tiles keep sums and share loads: the paper's broadcast algorithm reads and writes memory"
        f" {geometric_mean(saved):.1f} times as often (geometric mean).",
    ]
    return [Shown(["", "algorithm", *kinds], rows, remarks[: 1 + bool(saved)], text=("algorithm",))]


# ---------------------------------------------------------------------------------------------------- tables 3 and 4


def _coefficients(plan: Plan) -> Cases:
    for name in SETS:
        yield f"coefficients {name}", partial(configured.coefficients, name)
        yield f"programs {name}", partial(configured.programs, name, 3 if plan.quick else 50)


def _show_coefficients(cells: Cells) -> Sequence[Shown]:
    known = {n: cells[f"coefficients {n}"] for n in SETS if f"coefficients {n}" in cells}
    times = {n: cells[f"programs {n}"] for n in SETS if f"programs {n}" in cells}
    rows = [
        [name, how, *(f"{1e9 * x[which][name]:.3f}" for x in known.values() for which in ("measured", "static"))]
        for name, how in COEFFICIENTS.items()
    ]
    columns = [f"{NAMES[n]}, {kind}" for n in known for kind in ("ns", "ns uncalibrated")]
    first = Shown(["", "measured by", *columns], rows, [AVX2], text=("measured by",), title="coefficients of a vector")
    rows = [[str(n), *(_of_calls(x[kind][str(n)]) for x in times.values() for kind in PROGRAMS)] for n in LENGTHS]
    remarks = [
        f"{NAMES[n]}: a vector's load and store cost {_memory_ratio(known[n], x):.0f} times a multiply-add of a"
        " register tile in the mean; the paper finds about 20 times."
        for n, x in times.items()
        if n in known
    ]
    columns = [f"{NAMES[n]} {kind}, ms" for n in times for kind in PROGRAMS]
    title = "milliseconds of 10,000 iterations over 2^20 float32, by the length of vectors"
    return [first, Shown(["length", *columns], rows, remarks, title=title)]


def _of_calls(seconds: float) -> str:
    return milliseconds(seconds * configured.CALLS)


def _memory_ratio(known: Mapping[str, Any], times: Mapping[str, Mapping[str, float]]) -> float:
    copies = list(times["copy"].values())
    vectors = configured.ELEMENTS / known["lanes"]
    return sum(copies) / len(copies) / vectors / known["measured"]["multiply-add"]


# ------------------------------------------------------------------------------------------------------------ table 5


def _operators(plan: Plan) -> Cases:
    yield "operators", partial(configured.operators, NETWORK)


def _show_operators(cells: Cells) -> Sequence[Shown]:
    cell = cells["operators"]
    every = sum(cell["operators"].values())
    rows = [[op, str(n)] for op, n in cell["operators"].items()]
    rows += [[f"conv2d {kind}", str(n)] for kind, n in cell["convolutions"].items()]
    convs = cell["operators"].get("conv2d", 0)
    dense = sum(n for kind, n in cell["convolutions"].items() if not kind.startswith("depthwise"))
    return [
        Shown(
            ["operator", "count"], rows,
            [f"{convs} of {every} operators are convolutions, {dense} of them not depthwise."], text=("operator",),
        )
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------- table 6, figure 5


def _chosen(plan: Plan) -> Cases:
    for name in SETS:
        for conv in plan.pick(CONVOLUTIONS, FEW):
            yield f"{name} {conv}", partial(configured.compared, conv, name, 0.1 if plan.quick else 0.5)


def _ratio(rows: Sequence[Mapping[str, Any]], length: int, key: str) -> float | None:
    """Return how many times as fast im2col is as broadcast, with vectors of a length."""
    times = {r["algorithm"]: r[key] for r in rows if r["length"] == length}
    return times["broadcast"] / times["im2col"] if len(times) == 2 else None


def _means(every: Sequence[Mapping[str, Any]], key: str) -> dict[int, float]:
    """Return by length the time of the better algorithm, as a ratio to that with the best length of each convolution:
    geometric means over the convolutions that have most lengths."""
    most = max((len(_lengths(c)) for c in every), default=0)
    ratios: dict[int, list[float]] = {}
    for cell in every:
        best = {n: min(r[key] for r in cell["lengths"] if r["length"] == n) for n in _lengths(cell)}
        for n, seconds in best.items() if len(best) == most else ():
            ratios.setdefault(n, []).append(seconds / min(best.values()))
    return {n: geometric_mean(x) or 0.0 for n, x in ratios.items()}


def _lengths(cell: Mapping[str, Any]) -> list[int]:
    return sorted({r["length"] for r in cell["lengths"]})


def _show_chosen(cells: Cells) -> Sequence[Shown]:
    shown = [s for name in SETS for s in _show_set(name, {k: c for k, c in cells.items() if k.startswith(f"{name} ")})]
    means = {n: _means([c for k, c in cells.items() if k.startswith(f"{n} ")], "measured") for n in SETS}
    known = {n: x for n, x in means.items() if x}
    rows = [[str(n), *(f"{x[n]:.2f}" if n in x else "" for x in known.values())] for n in LENGTHS]
    remarks = [f"{NAMES[n]}: vectors of {min(x, key=x.__getitem__)} are best in the mean." for n, x in known.items()]
    curves = {NAMES[n]: (list(x), list(x.values())) for n, x in known.items()}
    title = "time with vectors of a length, as a ratio to the best length of each convolution, geometric mean"
    drawing = Curves(curves, "length of vectors, float32", "time, ratio to the best")
    of_lengths = Shown(["length", *(NAMES[n] for n in known)], rows, remarks, drawing, title=title)
    return [*shown, of_lengths] if known else shown


def _show_set(name: str, cells: Cells) -> Iterator[Shown]:
    means = _means(list(cells.values()), "measured")
    if not cells:
        return
    length = min(means, key=means.__getitem__) if means else 0
    rows, regrets, right, shares = [], [], [], dict[str, list[float]]()
    for key, cell in cells.items():
        conv, found = key.partition(" ")[2], cell["algorithms"]
        best = min(found, key=lambda r: r["measured"])
        regrets.append(found[0]["measured"] / best["measured"] - 1)
        ratios = [_ratio(cell["lengths"], length, what) for what in ("predicted", "measured")]
        agree = None not in ratios and (ratios[0] > 1) == (ratios[1] > 1)  # type: ignore[operator]
        if None not in ratios:
            right.append(agree)
            shares[conv] = [100 / (1 + ratios[1]), 100 * ratios[1] / (1 + ratios[1])]  # type: ignore[operator]
        texts = ["" if r is None else f"{r:.2f}" for r in ratios]
        mark = "" if None in ratios else "yes" if agree else "no"
        rows.append([conv, found[0]["algorithm"], best["algorithm"], f"{100 * regrets[-1]:.0f}", *texts, mark])
    near = sum(r <= 0.05 for r in regrets)
    remarks = [
        f"Choices among all algorithms lose {100 * ((geometric_mean([1 + r for r in regrets]) or 1) - 1):.1f} % in the"
        f" mean; {near} of {len(regrets)} are within 5 % of the best that was measured.",
    ]
    if right:
        remarks.append(f"Of im2col and broadcast the better one is predicted for {sum(right)} of {len(right)}.")
    remarks += [AVX2] * (name == "avx2")
    parts = {n: [x[i] for x in shares.values()] for i, n in enumerate(("im2col", "broadcast"))}
    columns = [
        "convolution", "predicted best", "measured best", "regret, %", "im2col's speed to broadcast's, predicted",
        "measured", "right",
    ]  # fmt: skip
    drawing = Bars(list(shares), parts, "share of the two times, %", 50.0) if shares else None
    title = f"{NAMES[name]}, im2col and broadcast with vectors of {length}" if length else NAMES[name]
    yield Shown(columns, rows, remarks, drawing, columns[:3] + columns[-1:], title)


# ------------------------------------------------------------------------------------------ tables 7 and 8, figure 4


def _neon(plan: Plan) -> Cases:
    for conv in plan.pick(CONVOLUTIONS, FEW):
        yield f"neon {conv}", partial(configured.on_neon, conv)


def _show_neon(cells: Cells) -> Sequence[Shown]:
    rows, drawn = [], {n: list[float | None]() for n in LENGTHS}
    for key, cell in cells.items():
        of = {(r["length"], r["algorithm"]): r["predicted"] for r in cell["lengths"]}
        ratios = [_ratio(cell["lengths"], n, "predicted") for n in (16, 64)]
        choice = cell["choice"]
        rows.append([
            key.partition(" ")[2], choice["algorithm"], milliseconds(choice["predicted"]),
            f"{cell['scalar'] / choice['predicted']:.1f}" if cell["scalar"] else "",
            *("" if r is None else f"{r:.2f}" for r in ratios),
            *(milliseconds(of.get((n, "broadcast"))) for n in (16, 64)), _emulated(cell),
        ])  # fmt: skip
        if cell["lengths"]:
            for n in LENGTHS:
                drawn[n].append(None if (n, "broadcast") not in of else 1e3 * of[n, "broadcast"])
    means = _means(list(cells.values()), "predicted")
    remarks = []
    if means:
        told = ", ".join(f"{n}: {x:.2f}" for n, x in means.items())
        remarks.append(f"Predicted time by length of vectors, as a ratio to the best length, geometric mean: {told}.")
    checked = [r["right"] for c in cells.values() for r in (c["choice"], *c["lengths"]) if r["right"] is not None]
    if checked:
        remarks.append(
            f"{sum(checked)} of {len(checked)} programs for AArch64 give, under qemu, what scalar code gives here."
        )
    columns = [
        "convolution", "chosen", "predicted ms", "times scalar", "im2col's speed to broadcast's, vectors of 16",
        "vectors of 64", "broadcast ms, 16", "broadcast ms, 64", "emulated",
    ]  # fmt: skip
    labels = [key.partition(" ")[2] for key, c in cells.items() if c["lengths"]]
    series = {f"vectors of {n}": x for n, x in drawn.items() if any(v is not None for v in x)}
    drawing = Bars(labels, series, "predicted ms, broadcast", is_log=True) if series else None
    return [Shown(columns, rows, remarks, drawing, (*columns[:2], columns[-1]))]


def _emulated(cell: Mapping[str, Any]) -> str:
    found = [r["right"] for r in (cell["choice"], *cell["lengths"])]
    return "" if None in found else "right" if all(found) else "wrong"


# --------------------------------------------------------------------------------------- tables 9 and 10, figure 6


def _jobs(plan: Plan) -> Sequence[Job]:
    names = plan.pick(TIMED, (TIMED[0], TIMED[-1]))
    tuned = plan.pick(TUNED, ())  # tuning takes minutes
    return [Job(find(n), PEERS if n in tuned else PEERS[:-1], plan.threads) for n in names]


def _configured(plan: Plan) -> Cases:
    for job in _jobs(plan):
        name = job.problem.name
        yield f"scalar {name}", partial(configured.configured, name, 0.1 if plan.quick else 1.0)


def _joined(cells: Cells) -> dict[str, Any]:
    """Return the cells of the harness, each with what was measured of scalar code."""
    return {
        key: cell | cells.get(f"scalar {key.rpartition('-t')[0]}", {})
        for key, cell in cells.items()
        if not key.startswith("scalar ")
    }


def _gain(cell: Mapping[str, Any], peer: str) -> float | None:
    seconds = time_of(cell, peer)
    return cell["scalar"] / seconds if seconds is not None and "scalar" in cell else None


def _row(cell: Mapping[str, Any], peer: str) -> Mapping[str, Any]:
    return cell["peers"].get(peer, {})


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _show_timed(cells: Cells) -> Sequence[Shown]:
    def gain(peer: str, cell: Any) -> str:
        return _number(_gain(cell, peer))

    more: dict[str, Callable[[Any], str]] = {
        "scalar, ms": lambda c: milliseconds(c.get("scalar")),
        "Einsmith, times scalar": partial(gain, "einsmith"),
        "TVM, times scalar": partial(gain, "tvm"),
        "tuned TVM, times scalar": partial(gain, "tvm-tuned"),
        "tuning, s": lambda c: _number(_row(c, "tvm-tuned").get("tuning_seconds")),
        "trials": lambda c: str(_row(c, "tvm-tuned").get("trials", "")),
    }
    peers = {"PyTorch": ["torch"], "TVM": ["tvm"], "tuned TVM": ["tvm-tuned"]}
    shown = beside(_joined(cells), peers, more=more)
    threads = next(iter(c["threads"] for c in cells.values() if "threads" in c), None)
    note = f"Scalar code runs on one thread, everything else on {threads}." if threads else ""
    return [shown._replace(remarks=[*shown.remarks, *filter(None, [note])])]


def _costs(cell: Mapping[str, Any]) -> dict[str, float | None]:
    """Return by name the seconds of configuring or tuning for each unit of speed-up over scalar code."""
    ours, theirs = _gain(cell, "einsmith"), _gain(cell, "tvm-tuned")
    tuning = _row(cell, "tvm-tuned").get("tuning_seconds")
    return {
        "Einsmith": (cell["choosing"] + cell["compiling"]) / ours if ours and "choosing" in cell else None,
        "tuned TVM": tuning / theirs if theirs and tuning is not None else None,
    }


def _show_costs(cells: Cells) -> Sequence[Shown]:
    rows, joined = [], _joined(cells)
    for key, cell in joined.items():
        costs = _costs(cell)
        rows.append([
            problem_of(key),
            *(_number(1e3 * cell[x], 2) if x in cell else "" for x in ("choosing", "compiling")),
            _number(_row(cell, "einsmith").get("first_spent"), 2), _number(_gain(cell, "einsmith")),
            _number(_row(cell, "tvm-tuned").get("tuning_seconds")), _number(_gain(cell, "tvm-tuned")),
            *("" if x is None else f"{1e3 * x:,.3g}" for x in costs.values()),
        ])  # fmt: skip
    columns = [
        "", "choosing, ms", "compiling, ms", "first call, s", "times scalar", "TVM's tuning, s", "TVM, times scalar",
        "ms for a unit", "TVM's ms for a unit",
    ]  # fmt: skip
    every = [_costs(c) for c in joined.values()]
    ratios = [x["tuned TVM"] / x["Einsmith"] for x in every if x["tuned TVM"] and x["Einsmith"]]
    remarks = []
    if ratios:
        remarks.append(
            f"A unit of speed-up over scalar code costs TVM {geometric_mean(ratios):,.0f} times the seconds that it"
            f" costs Einsmith, geometric mean of {len(ratios)}."
        )
    series = {n: [x[n] for x in every] for n in ("Einsmith", "tuned TVM") if any(x[n] for x in every)}
    labels = [problem_of(key) for key in joined]
    drawing = Bars(labels, series, "s for a unit of speed-up", is_log=True) if series else None
    title = "seconds of configuring, or of tuning, for a unit of speed-up over scalar code"
    return [Shown(columns, rows, remarks, drawing, title=title)]


def _predicted(plan: Plan) -> Cases:
    for job in _jobs(plan):
        yield f"neon {job.problem.name}", partial(configured.predicted, job.problem.name)


def _show_predicted(cells: Cells) -> Sequence[Shown]:
    rows = [
        [key.partition(" ")[2], c["algorithm"], *(milliseconds(c[x]) for x in ("scalar", "chosen")),
         f"{c['scalar'] / c['chosen']:.1f}"]
        for key, c in cells.items()
    ]  # fmt: skip
    mean = geometric_mean([c["scalar"] / c["chosen"] for c in cells.values()])
    columns = ["", "chosen", "scalar, predicted ms", "chosen, predicted ms", "times scalar"]
    return [Shown(columns, rows, [f"Predicted speed to scalar code's, geometric mean: {mean:.1f}."], text=("chosen",))]


PAPER = Paper(
    "autoconfig",
    "AutoConfig",
    "H. Zhang, X. Zhou, M. Xing, Y. Wu, C. Zhao: AutoConfig: an automatic configuration mechanism for compiler"
    " optimization of deep learning (in Chinese). Ruan Jian Xue Bao (Journal of Software), 2024.",
    {
        "a choice of algorithm and configuration by predicted cost, without a search": "`docs/patterns.md`",
        "patterns that each match, configure, price and lower, and can be registered": "`docs/patterns.md`",
        "coefficients measured once a machine by small programs": "`docs/patterns.md`",
        "counts of float, memory and special instructions of each algorithm": "`docs/patterns.md`",
        "one cost model for AVX-512, AVX2 and NEON": "`docs/architecture.md`",
    },
    [
        Experiment(
            "Table 1", "instructions of a product, scalar and broadcast",
            "MNK multiply-adds and 2MN + 2MNK memory instructions of scalar code; of broadcast a multiply-add for each"
            " vector, three memory instructions around it (as the text has it: a vector of B and of C read, one of C"
            " written), and MK broadcasts.",
            partial(_show_counts, formulas=product_counts, packed="left operand packed"), cases=_count_products,
        ),
        Experiment(
            "Table 2", "instructions of a convolution, im2col and broadcast",
            "im2col copies each element of its matrix (2 NCHkWkHoWo memory instructions), then multiplies vectors over"
            " all of HoWo; broadcast copies nothing, has vectors over Wo alone, and Ho times the broadcasts.",
            partial(
                _show_counts, formulas=lambda name, lanes: convolution_counts(BY_NAME[name], lanes), packed="im2col"
            ),
            cases=_count_convolutions,
        ),
        Experiment(
            "Tables 3 and 4", "measured coefficients",
            "costs of a memory access, a multiply-add and a broadcast by the length of vectors, from programs over 2^20"
            " elements; on AVX-512 memory costs about 20 times as much as either of the others.",
            _show_coefficients, cases=_coefficients,
            remark="The programs stream arrays beyond L1, so that their cost of memory is not that of an instruction:"
            " Einsmith's coefficients are those of L1, and bytes from farther levels are priced by bandwidth.",
        ),
        Experiment(
            "Table 5", "operators of EfficientNet",
            "38 of the 64 operators of Coral's model that compute or move memory are convolutions"
            " (conv_2d_nhwc_hwcf).",
            _show_operators, cases=_operators,
            remark="Counted is EfficientNet-Lite0 of `es.models`, by PyTorch's operators, in place of Coral's file of"
            " TensorFlow Lite, which Einsmith does not read.",
        ),
        Experiment(
            "Table 6 and figure 5", "choices of algorithms on AVX-512, and on AVX2",
            "with vectors of 64, the best length on AVX-512, the better one of im2col and broadcast is predicted for"
            " most convolutions of EfficientNet.",
            _show_chosen, cases=_chosen,
            remark="All distinct convolutions of EfficientNet-Lite0, batch 1, one thread; of each algorithm the"
            " configuration that is predicted to be its best is measured. A length is that of a row of"
            " a register tile: the paper's vectors are split into registers as well. Depthwise convolutions are no"
            " products, so that neither of the two algorithms applies. Of a contraction, a and b are the operands of"
            " the broadcast side and of the vectors' side: read in place (inline), or packed by each task (panel) or"
            " before (buffer).",
        ),
        Experiment(
            "Tables 7 and 8, figure 4", "choices on NEON with vectors of 16 and 64",
            "on NEON vectors of 16 are faster than vectors of 64, and choices are right more often with 16.",
            _show_neon, cases=_neon,
            remark="There is no machine with NEON here: times are predicted, and the code is run under qemu for its"
            " results alone. The registers hold 128 float32: vectors of 64 leave room for one row of a tile, longer"
            " ones for none.",
        ),
        Experiment(
            "Table 9 and figure 6", "products and convolutions beside scalar code and TVM, and what tuning takes",
            "AutoConfig's speed-up over scalar code and its times are of the order of TVM's after tuning; a unit of"
            " that speed-up costs it far fewer seconds, as nothing is searched.",
            lambda cells: [*_show_timed(cells), *_show_costs(cells)], jobs=_jobs, cases=_configured,
            remark="Einsmith's seconds are those of choosing and compiling without caches, on one thread; coefficients"
            " are measured once a machine, in about a second. The first call has tracing and the first run besides.",
        ),
        Experiment(
            "Table 10", "the same on NEON",
            "the same holds on NEON.",
            _show_predicted, cases=_predicted,
            remark="There is no machine with NEON here, and TVM's tuning needs one: both columns are predicted, for one"
            " core.",
        ),
    ],
)  # fmt: skip
