"""Make the page of `einsmith explain --html`: one self-contained file, readable without scripts.

The template is `report/page.html`; the modules `report_charts` and `report_graph` place what it draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from einsmith.base import html
from einsmith.base.sizes import show_size
from einsmith.base.templates import markup, render
from einsmith.cli import report_charts, report_graph
from einsmith.cli.kernel_report import candidate_lines, describe_fusion, fused_in_all, seconds_of
from einsmith.cli.report_charts import Report, colour_of
from einsmith.driver.streaming import lines_of, us

TEMPLATE = Path(__file__).parent / "report" / "page.html"
TENSORS = 20
"""Most tensors shown of those live at the peak of memory."""
ROLES = {
    "forward": "forward",
    "backward": "backward",
    "update": "update",
    "again": "recomputed to meet the memory limit",
}


def page(report: Report) -> str:
    """Return the report (`explain.gather`, with `what` and `batch`) as an HTML page."""
    kernels = report["kernels"]
    colours = set(map(colour_of, kernels))
    return render(
        TEMPLATE,
        escapes=True,
        report=report,
        table=lambda *parts: markup(html.table(*parts)),
        folded=lambda title, body, name="": markup(html.text(title, body, folded=True, name=name)),
        charts=report_charts,
        graphs=report_graph,
        candidates=candidate_lines,
        colour=colour_of,
        fusion=describe_fusion,
        lines=lines_of,
        seconds=seconds_of,
        show_size=show_size,
        us=us,
        name=Path(report["what"]).name,
        facts=_facts(report),
        times=[(p["part"], p["kernels"], us(p["predicted"]), _measured(p)) for p in report["parts"]],
        held=_held(report["memory"]),
        tensors=_tensors(report),
        layouts=[
            (", ".join(x["tensors"]), x["type"], x["layout"] + (", copied" if x["copies"] else ""), x["next"])
            for x in report["layouts"]
        ],
        time=report_charts.timeline(report),
        memory=report_charts.memory(report),
        graph=report_graph.graph(report),
        roles=ROLES,
        kinds=report_charts.KINDS,
        shown_roles={name: text for name, text in ROLES.items() if name in colours},
        is_measured=report["parts"][-1]["measured"] is not None,
        most=max((k["share"] for k in kernels), default=0.0) or 1.0,
    )


def _measured(part: Mapping[str, Any]) -> str:
    return "not measured" if part["measured"] is None else us(part["measured"])


def _facts(report: Report) -> list[tuple[str, str]]:
    machine, again = report["machine"], report["again"]
    inputs = ", ".join(report["inputs"]) or "none"
    facts = [
        ("program", report["what"]),
        ("batch", f"{report['batch']}; inputs {inputs}" if report["batch"] is not None else f"inputs {inputs}"),
        ("machine", f"{machine['processor']} ({machine['cpu']}), vectors of {machine['vector_bytes']} bytes"),
        ("caches", ", ".join(f"{level.upper()} {machine[level] / 1024:g} KiB" for level in ("l1", "l2", "l3"))),
        ("threads", f"{report['threads']} on {machine['cores']} core{'s' * (machine['cores'] > 1)}"),
        ("kernels", f"{len(report['kernels'])}, {report['distinct_kernels']} of them distinct"),
        ("fusion", fused_in_all(report)),
        ("compiled in", f"{report['compile_seconds']:.2f} s"),
    ]
    if again["kernels"]:
        facts.append(("recomputed", f"{again['kernels']} kernels, predicted {us(again['predicted'])}"))
    return facts


def _held(use: Mapping[str, Any]) -> list[tuple[str, str]]:
    held = [
        ("parameters, buffers, the optimizer's state", "parameters"),
        ("the batch and the results", "batch"),
        (f"intermediate results (at most {show_size(use['peak'])} live)", "results"),
        ("scratch of the threads", "scratch"),
        ("peak in total", "held"),
    ]
    return [(what, show_size(use[entry])) for what, entry in held]


def _tensors(report: Report) -> list[tuple[str, ...]]:
    """Return the rows of the largest tensors that are live at the peak of memory."""
    rows: list[tuple[str, ...]] = []
    for t in report["memory"]["tensors"][:TENSORS]:
        maker = f"kernel {t['kernel']}: {report['kernels'][t['kernel']]['root']}"
        saved = "saved" if t["saved"] else ""
        rows.append((t["name"], t["type"], show_size(t["bytes"]), f"{t['first']} to {t['last']}", saved, maker))
    return rows
