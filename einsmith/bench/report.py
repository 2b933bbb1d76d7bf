"""Show what a comparison has found: one table a problem, and one of all problems."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Sequence

from rich.table import Table

from einsmith.base.system import processors
from einsmith.bench.problem import Workload

LIBRARIES = {
    "einsmith": "einsmith",
    "torch": "torch",
    "compile": "torch",
    "keops": "pykeops",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "xla": "tensorflow",
}
"""Of each peer; "jax-unrolled" and the like are other programs of the peer "jax"."""


def machine() -> dict:
    """Return what the figures belong to: processor, cores, Python, system and date."""
    return {
        "cpu": processors.model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
    }


def table(problem: Workload, cell: dict) -> Table:
    """Return the table of all peers of one problem, the fastest first."""
    bound = "" if cell.get("bound_by", "arithmetic") == "arithmetic" else f" by its {cell['bound_by']}"
    floor = f", floor {1e3 * cell['floor_seconds']:.2f} ms{bound}" if cell.get("floor_seconds") else ""
    usual = "results agree" if cell["verified"] else "one peer only: nothing to verify against"
    verified = cell.get("verification", usual)
    out = Table(title=f"{problem.name}, {cell['threads']} threads{floor} ({verified})")
    for name in ("", "ms", "middle half", "of the floor", "against best peer", "first call s", "MiB", ""):
        out.add_column(name, justify="left" if name == "" else "right")
    best = cell["peers"].get(cell.get("best_peer") or "", {}).get("median")
    rows = sorted(cell["peers"].items(), key=lambda item: item[1].get("median", float("inf")))
    for peer, r in rows:
        if "median" not in r:
            out.add_row(peer, "", "", "", "", _seconds(r), _mebibytes(r), f"{r['status']}: {r.get('message', '')}")
            continue
        out.add_row(
            f"[bold]{peer}[/]" if peer == "einsmith" else peer,
            f"{1e3 * r['median']:.2f}",
            f"{1e3 * r['low']:.2f} to {1e3 * r['high']:.2f}",
            f"{r['floor_percent']:.0f} %" if "floor_percent" in r else "",
            f"{best / r['median']:.2f}x" if best else "",
            _seconds(r),
            _mebibytes(r),
            ", ".join(filter(None, (r.get("variant"), r.get("message")))),
        )
    if len(cell.get("groups", ())) > 1:
        turns = "; then ".join(", ".join(group) for group in cell["groups"])
        out.caption = f"not all at once, for want of memory: {turns}"
    return out


def _mebibytes(r: dict) -> str:
    """Return the most memory (MiB) that a peer held while it ran, above that of its imported library."""
    return f"{r['bytes'] / 2**20:.0f}" if r.get("bytes") else ""


def _seconds(r: dict) -> str:
    if "first_seconds" not in r:
        return ""
    warm = f" (warm {r['first_seconds_warm']:.2f})" if "first_seconds_warm" in r else ""
    return f"{r['first_seconds']:.2f}{warm}"


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean; None of nothing."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None


def summary(problems: Sequence[Workload], cells: Sequence[dict]) -> Table:
    """Return a table with a line for each problem: Einsmith against the best peer of those that were timed, and which
    were not because they took too long to compile; at the end the geometric mean of the ratios."""
    out = Table(title="Einsmith against the best peer")
    columns = (
        "", "Einsmith ms", "best peer ms", "which", "times as fast", "of the floor", "first call s", "kernels", "MiB",
        "PyTorch MiB", "not timed",
    )  # fmt: skip
    for name in columns:
        out.add_column(name, justify="left" if name in ("", "which", "not timed") else "right")
    for problem, cell in zip(problems, cells, strict=True):
        ours = cell["peers"].get("einsmith", {})
        best = cell["best_peer"]
        peer = cell["peers"][best] if best else {}
        out.add_row(
            problem.name,
            f"{1e3 * ours['median']:.2f}" if "median" in ours else ours.get("status", "not run"),
            f"{1e3 * peer['median']:.2f}" if best else "none",
            ", ".join(filter(None, (best, peer.get("variant")))),
            f"{cell['speedup']:.2f}" if cell["speedup"] else "",
            f"{ours['floor_percent']:.0f} %" if "floor_percent" in ours else "",
            _seconds(ours),
            str(ours.get("kernels", "")),
            _mebibytes(ours),
            _mebibytes(cell["peers"].get("torch", {})),
            ", ".join(_untimed(p, r) for p, r in cell["peers"].items() if p != "einsmith" and "median" not in r),
        )
    mean = geometric_mean([c["speedup"] for c in cells if c["speedup"]])
    if mean is not None:
        out.add_section()
        out.add_row("geometric mean", "", "", "", f"{mean:.2f}")
    return out


def _untimed(peer: str, r: dict) -> str:
    cap = f" {r['cap']:.0f} s" if "cap" in r else ""
    return f"{peer} over{cap}" if r["status"] == "timeout" else f"{peer} {r['status']}"
