"""The parts of the benchmark, in the order in which they run; each writes every result at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.gpu import problems
from benchmarks.gpu.compare import OURS, PEERS, Comparison
from benchmarks.gpu.problems import Case
from benchmarks.gpu.record import Deadline, Record
from benchmarks.gpu.serving import Client

GROUP = 16
"""Kinds of kernels that are compiled side by side."""
SEARCHES: dict[str, dict[str, Any]] = {"mode=dynamic": {"mode": "dynamic"}, "tune": {"tune": 20.0}}
"""Ways to search while, or before, a step trains: options of TrainStep."""
DYNAMIC_SECONDS = 20.0

SERVERS = {
    OURS: "benchmarks.gpu.einsmith_server:EinsmithServer",
    "torch": "benchmarks.gpu.torch_server:TorchServer",
    "compile": "benchmarks.gpu.torch_server:TorchServer",
    "jax": "benchmarks.gpu.jax_server:JaxServer",
}
"""Processes; "torch-graph" is in that of "torch"."""

Say = Callable[[str], None]


class Sizes(NamedTuple):
    """How much is measured.

    cases: cases of each kind of kernels, None for all; copy: bytes; launches: in a graph; product: extent; kernels,
    configurations: of a network in the search for regret; seconds: of a search
    """

    cases: int | None = None
    copies: tuple[int, ...] = (1 << 30, 8 << 20)
    launches: int = 1000
    products: tuple[int, ...] = (4096, 8192)
    kernels: int = 8
    configurations: int = 16
    regret_seconds: float = 60.0
    search_seconds: float = DYNAMIC_SECONDS
    programs: tuple[int, ...] = (1, 132)


REAL = Sizes()
FAKE = Sizes(1, (1 << 16,), 5, (32,), 2, 3, 5.0, 0.1, (1, 3))


class Run:
    """A run over the parts: its options, its record and its processes."""

    def __init__(self, options: argparse.Namespace, record: Record, deadline: Deadline, say: Say):
        self.options, self.record, self.deadline, self.say = options, record, deadline, say
        self.fake: bool = options.fake
        self.sizes = FAKE if self.fake else REAL
        made = {name: Client(server, self.fake, deadline) for name, server in SERVERS.items()}
        self.clients = {**made, "torch-graph": made["torch"]}
        self.ours = self.clients[OURS]

    def close(self) -> None:
        """End all processes."""
        for client in dict.fromkeys(self.clients.values()):
            client.close()

    def todo(self, part: str, items: Sequence[str]) -> Iterator[str]:
        """Yield the items of a part without a result, as long as there is time. Raises OutOfTime."""
        for item in items:
            if self.record.find(part, item) is None:
                self.deadline.check()
                yield item

    def note(self, part: str, item: str, result: dict[str, Any]) -> None:
        """Keep a result, and tell of it."""
        self.record.add(part, item, result)
        reason = f": {result['reason']}" if "reason" in result else ""
        self.say(f"{part}: {item}: {result['status']}{reason}")

    @property
    def cases(self) -> list[Case]:
        """The networks at all batch sizes."""
        return list(problems.cases(self.options.models, self.options.batches, self.fake))


def facts(run: Run) -> None:
    """The card, its driver and clocks, and the versions of all libraries."""
    for item in run.todo("facts", ["card"]):
        run.note("facts", item, run.ours.ask("facts", limit=120) | {"versions": run.record.about["versions"]})


def kernels(run: Run) -> None:
    """Kernels of every kind at awkward sizes, in each precision, against the evaluator in float64."""
    from benchmarks.gpu.kernels import names

    wanted = [n for n in names() if n in run.options.kernels] if run.options.kernels else names()
    left = list(run.todo("kernels", wanted))
    for start in range(0, len(left), GROUP):
        group = left[start : start + GROUP]
        run.deadline.check()
        if not run.fake:
            run.say(f"kernels: compiling those of {len(group)} kinds")
            run.ours.ask("prepare_kernels", group, run.sizes.cases, limit=240)
        for name in run.todo("kernels", group):
            run.note("kernels", name, run.ours.ask("kernel", name, run.sizes.cases, limit=180))


def steps(run: Run) -> None:
    """Whole training steps of all networks, small, against the CPU's program."""
    wanted = {f"{m} {p}": (m, p) for p in run.options.precisions for m in run.options.models}
    for item in run.todo("steps", list(wanted)):
        run.note("steps", item, run.ours.ask("steps", *wanted[item], 3, limit=180))


def coefficients(run: Run) -> None:
    """Bandwidth, the gap between launches, and the rates of products, for `einsmith.gpu.cards`."""
    from einsmith.gpu.tiles.operations import PRECISIONS

    wanted: dict[str, tuple] = {f"copy of {n} bytes": ("copies", n) for n in run.sizes.copies}
    wanted |= {f"launches of {n} programs": ("launch_gaps", n, run.sizes.launches) for n in run.sizes.programs}
    for size in run.sizes.products:
        wanted |= {f"dots {p} {size}": ("dots", p, size, "f32") for p in PRECISIONS}
        wanted[f"dots bf16 in memory {size}"] = "dots", "bf16", size, "bf16"
    for item in run.todo("coefficients", list(wanted)):
        run.note("coefficients", item, run.ours.ask(*wanted[item], limit=120))


def models(run: Run) -> None:
    """All networks at each batch size and precision, beside PyTorch and JAX."""
    comparison = Comparison(run.clients, run.options.cap, run.fake, run.say)
    for precision in run.options.precisions:
        for case in run.cases:
            item = f"{case} {precision}"
            known = run.record.find("models", item)
            before = {} if known is None else known["peers"]
            if set(run.options.peers) <= before.keys():
                continue
            run.deadline.check()
            # Ratios are of one run: peers that have run before run again beside new ones.
            peers = [p for p in PEERS if p in run.options.peers or before.get(p, {}).get("status") == "ok"]
            run.say(f"models: {item}")
            run.note("models", item, comparison.compare(case, precision, peers))


def regret(run: Run) -> None:
    """What the cost model's configurations lose against a small search, for the slowest kernels."""
    sizes = run.sizes
    wanted = {
        f"{c} {p}": (c, p) for p in run.options.precisions for c in run.cases if c.batch == run.options.batches[0]
    }
    for item in run.todo("regret", list(wanted)):
        asked = *wanted[item], sizes.kernels, sizes.configurations, sizes.regret_seconds
        run.note("regret", item, run.ours.ask("regret", *asked, limit=3 * sizes.regret_seconds + 60))


def dynamic(run: Run) -> None:
    """Steps that search configurations while, or before, they train."""
    seconds = run.sizes.search_seconds
    wanted = {
        f"{c} {p} {name}": (c, p, seconds, options)
        for p in run.options.precisions
        for c in run.cases
        if c.batch == run.options.batches[0]
        for name, options in SEARCHES.items()
    }
    for item in run.todo("dynamic", list(wanted)):
        run.note("dynamic", item, run.ours.ask("searched", *wanted[item], limit=6 * seconds + 120))


PARTS: dict[str, Callable[[Run], None]] = {
    f.__name__: f for f in (facts, kernels, steps, coefficients, models, regret, dynamic)
}
