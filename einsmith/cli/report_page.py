"""Make the page of `einsmith explain --html`: one self-contained file, readable without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from einsmith.base import html
from einsmith.base.sizes import show_size
from einsmith.cli.kernel_report import candidate_lines, describe_fusion, fused_in_all, seconds_of
from einsmith.cli.report_charts import KINDS, Report, colour_of, legend, memory, timeline
from einsmith.cli.report_graph import graph
from einsmith.driver.streaming import lines_of, us

TENSORS = 20
"""Most tensors shown of those live at the peak of memory."""
ROLES = {
    "forward": "forward",
    "backward": "backward",
    "update": "update",
    "again": "recomputed to meet the memory limit",
}

STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #16160f; --faint: #6b6a63; --line: #dddcd5; --mark: #f1efe6;
  --forward: #2a78d6; --backward: #e0622c; --update: #1a9c6d; --again: #7a55c7;
  --saved: #dd9a12; --rest: #8f9bab; --workspace: #c9cdd4; }
@media (prefers-color-scheme: dark) { :root { --page: #161614; --ink: #ecebe4; --faint: #a09f97; --line: #3a3934;
  --mark: #26251f; --forward: #4a93ea; --backward: #e5773f; --update: #2bb583; --again: #9d7fe0;
  --saved: #d39b2a; --rest: #76828f; --workspace: #4b525b; } }
body { margin: 0 auto; padding: 12px 20px 60px; max-width: 1240px; background: var(--page); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 21px; margin: 8px 0; } h2 { font-size: 16px; margin: 26px 0 6px; }
a { color: inherit; } p { margin: 4px 0; max-width: 76em; } small, .faint { color: var(--faint); font-size: 12px; }
code, pre { font: 12px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: 4px 0 6px 14px; }
summary { cursor: pointer; } summary code { overflow-wrap: anywhere; }
table { border-collapse: collapse; } td, th { padding: 2px 12px 2px 0; vertical-align: top; font-size: 13px; }
th { color: var(--faint); font-weight: 600; }
.head { display: flex; flex-wrap: wrap; gap: 8px 48px; }
#kernels { width: 100%; } #kernels th { cursor: pointer; text-align: left; border-bottom: 1px solid var(--line); }
#kernels td { border-bottom: 1px solid var(--line); padding: 5px 10px 5px 0; }
#kernels .n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
#kernels td:nth-child(3) { width: 46%; overflow-wrap: anywhere; }
#kernels details { contain: inline-size; } #kernels pre { width: min(80vw, 1000px); }
#kernels tr:target, .on td { background: var(--mark); }
.role, .tensors td:not(:last-child) { white-space: nowrap; }
i { display: inline-block; width: 10px; height: 10px; margin-right: 5px; }
.bar { display: block; height: 4px; margin-top: 3px; margin-left: auto; }
.legend span { margin-right: 18px; white-space: nowrap; }
svg { display: block; width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--faint); }
svg .number { fill: #fff; font-weight: 600; pointer-events: none; } svg .strong { fill: var(--ink); font-weight: 600; }
svg .edged { stroke: var(--page); stroke-width: .5; } svg rect:hover, rect.on { opacity: .65; }
.grid { stroke: var(--line); } .call { fill: transparent; } .call:hover { fill: var(--ink); fill-opacity: .12; }
.graph { max-height: 80vh; overflow: auto; border: 1px solid var(--line); }
.graph svg { max-width: none; } .graph.live { overflow: hidden; } .graph.live svg { width: 100% !important;
  height: 80vh; cursor: grab; } .edge { fill: none; stroke: var(--faint); opacity: .55; }
.ordered { stroke-dasharray: 5 3; stroke: var(--saved); } .edge:hover { stroke: var(--ink); opacity: 1; }
.box { fill: var(--mark); stroke: var(--line); }
.arena { stroke: var(--faint); stroke-dasharray: 2 3; } .peak { stroke: var(--ink); stroke-dasharray: 4 3;
  pointer-events: none; }
""" + "".join(
    f".{name} {{ fill: var(--{name}); }} i.{name}, .bar.{name} {{ background: var(--{name}); }}\n"
    for name in (*ROLES, *KINDS)
)

# A click on a column's head sorts by it; a kernel under the pointer is marked wherever it is shown; a link unfolds its
# target.
SCRIPT = """
const table = document.getElementById('kernels'), value = (row, n) => row.cells[n].dataset.v ?? row.cells[n].innerText;
[...table.tHead.rows[0].cells].forEach((head, n) => head.addEventListener('click', () => {
  const way = head.dataset.way = head.dataset.way === '1' ? -1 : 1;
  const rows = [...table.tBodies[0].rows].map(row => [value(row, n), row]);
  rows.sort(([a], [b]) => way * (isNaN(a) || isNaN(b) ? String(a).localeCompare(b) : b - a));
  table.tBodies[0].append(...rows.map(pair => pair[1]));
}));
const mark = on => event => {
  const own = event.target.closest('[data-k]');
  if (own) document.querySelectorAll(`[data-k="${own.dataset.k}"]`).forEach(x => x.classList.toggle('on', on));
};
document.addEventListener('mouseover', mark(true));
document.addEventListener('mouseout', mark(false));
const drawn = document.getElementById('graph');
if (drawn) {
  drawn.parentElement.classList.add('live');
  const whole = drawn.viewBox.baseVal, all = [whole.x, whole.y, whole.width, whole.height];
  let [x, y, w, h] = all, from = null;
  const show = () => drawn.setAttribute('viewBox', `${x} ${y} ${w} ${h}`);
  const size = () => drawn.getBoundingClientRect(), scale = () => Math.max(w / size().width, h / size().height);
  const first = () => { w = all[2]; h = w * size().height / size().width; x = all[0]; y = all[1]; show(); };
  first();
  drawn.addEventListener('wheel', event => {
    event.preventDefault();
    const box = size(), by = event.deltaY > 0 ? 1.15 : 1 / 1.15;
    const u = (event.clientX - box.left) / box.width, v = (event.clientY - box.top) / box.height;
    x += u * w * (1 - by); y += v * h * (1 - by); w *= by; h *= by; show();
  }, {passive: false});
  drawn.addEventListener('pointerdown', event => { from = [event.clientX, event.clientY, x, y]; });
  addEventListener('pointermove', event => {
    if (from) { x = from[2] - (event.clientX - from[0]) * scale(); y = from[3] - (event.clientY - from[1]) * scale();
      show(); }
  });
  addEventListener('pointerup', () => { from = null; });
  drawn.addEventListener('dblclick', () => { [x, y, w, h] = all; show(); });
}
const unfold = () => {
  const found = location.hash && document.getElementById(location.hash.slice(1));
  for (let x = found; x; x = x.parentElement) if (x.tagName === 'DETAILS') x.open = true;
  if (found) found.scrollIntoView({block: 'nearest'});
};
addEventListener('hashchange', unfold);
unfold();
"""


def page(report: Report) -> str:
    """Return the report (`explain.gather`, with `what` and `batch`) as an HTML page."""
    name = escape(Path(report["what"]).name)
    body = [
        f"<h1>{name}</h1>",
        _head(report),
        *_time(report),
        *_memory(report),
        *_graph(report),
        *_kernels(report),
        *_layouts(report),
        *_plan(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>einsmith explain {name}</title><style>{STYLE}</style></head>\n"
        f"<body>{chr(10).join(body)}\n<script>{SCRIPT}</script></body></html>\n"
    )


def _head(report: Report) -> str:
    machine, use, again = report["machine"], report["memory"], report["again"]
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
    times = [
        (p["part"], p["kernels"], us(p["predicted"]), "not measured" if p["measured"] is None else us(p["measured"]))
        for p in report["parts"]
    ]
    held = [
        ("parameters, buffers, the optimizer's state", use["parameters"]),
        ("the batch and the results", use["batch"]),
        (f"intermediate results (at most {show_size(use['peak'])} live)", use["results"]),
        ("scratch of the threads", use["scratch"]),
        ("peak in total", use["held"]),
    ]
    return (
        '<div class="head">'
        + html.table("", ("", ""), facts)
        + html.table("time", ("", "kernels", "predicted", "measured"), times)
        + html.table("memory", ("", ""), [(what, show_size(n)) for what, n in held])
        + "</div>"
    )


def _time(report: Report) -> Iterator[str]:
    shown = {colour_of(k) for k in report["kernels"]}
    yield "<h2>Time</h2>"
    yield "<p>The kernels in order of execution, with widths proportional to time; the table has their numbers.</p>"
    yield legend({name: text for name, text in ROLES.items() if name in shown})
    yield timeline(report)


def _memory(report: Report) -> Iterator[str]:
    use = report["memory"]
    yield "<h2>Memory</h2>"
    if not use["results"] or not use["peak"]:
        yield "<p>There are no intermediate results.</p>"
        return
    yield "<p>Bytes of intermediate results that are live at each call; the band shows the roles of the calls.</p>"
    yield legend(KINDS)
    yield memory(report)
    tensors = use["tensors"]
    rows = []
    for t in tensors[:TENSORS]:
        maker = f"kernel {t['kernel']}: {report['kernels'][t['kernel']]['root']}"
        saved = "saved" if t["saved"] else ""
        rows.append((t["name"], t["type"], show_size(t["bytes"]), f"{t['first']} to {t['last']}", saved, maker))
    if rows:
        title = f"the {len(rows)} largest of {len(tensors)} tensors that are live at call {use['peak_call']}"
        head = ("tensor", "type", "size", "calls", "", "computed by")
        yield f'<div class="tensors">{html.table(title, head, rows)}</div>'


def _graph(report: Report) -> Iterator[str]:
    yield "<h2>Graph</h2>"
    yield (
        "<p>The calls of the plan with what is fused in them, and the tensors between them, as wide as they are large; "
        "dashed where they are not in row-major order. The wheel zooms, dragging moves, a double click shows all.</p>"
    )
    yield from graph(report)


def _kernels(report: Report) -> Iterator[str]:
    measured = report["parts"][-1]["measured"] is not None
    columns = ["#", "role", "kernel", "pattern", "tasks", "predicted", "measured", "bytes", "share"]
    if not measured:
        columns.remove("measured")
    right = ("tasks", "predicted", "measured", "bytes", "share")
    head = "".join(f'<th class="n">{c}</th>' if c in right else f"<th>{c}</th>" for c in columns)
    most = max((k["share"] for k in report["kernels"]), default=0.0) or 1.0
    yield "<h2>Kernels</h2>"
    yield f'<table id="kernels"><thead><tr>{head}</tr></thead><tbody>'
    for n, k in enumerate(report["kernels"]):
        yield _row(n, k, measured, most)
    yield "</tbody></table>"


def _row(n: int, k: Mapping[str, Any], measured: bool, most: float) -> str:
    def number(value: float, shown: str, more: str = "") -> str:
        return f'<td class="n" data-v="{value!r}">{escape(shown)}{more}</td>'

    colour = colour_of(k)
    bar = f'<span class="bar {colour}" style="width:{60 * k["share"] / most:.0f}px"></span>'
    cells = [
        f'<td data-v="{-n}">{n}</td>',
        f'<td class="role"><i class="{colour}"></i>{k["role"]}{" (recomputed)" if k["again"] else ""}</td>',
        f"<td>{_what(k)}</td>",
        f"<td>{escape(k['pattern'])}{' (tuned)' if k['tuned'] else ''}</td>",
        number(sum(k["tasks"]), "+".join(map(str, k["tasks"]))),
        number(seconds_of(k, False), us(seconds_of(k, False))),
    ]
    if measured:
        cells.append(number(k["measured"], us(k["measured"])))
    cells += [number(k["bytes"], show_size(k["bytes"])), number(k["share"], f"{k['share']:.1%}", bar)]
    return f'<tr id="k{n}" data-k="{n}">{"".join(cells)}</tr>'


def _what(k: Mapping[str, Any]) -> str:
    """Return the HTML of a kernel's formula, configuration and candidates."""
    times = f", {k['turns']} times {us(k['predicted']['seconds'])}" if k["turns"] > 1 else ""
    shape = "x".join(map(str, k["shape"])) or "scalar"
    lines = [
        f"<code>{escape(k['root'])}</code>",
        f'<small>over {shape}{times}, <a href="#c{k["call"]}">call {k["call"]}</a>, kernel {k["kernel"]}</small>',
    ]
    if len(k["fused"]) > 1:
        lines.append(f"<small>{escape(describe_fusion(k))}</small>")
    lines += [f"<small>{escape(line)}</small>" for line in lines_of(k["results"])]
    lines.append(f"<small><code>{escape(k['config'])}</code></small>")
    if k["unfollowed"]:
        lines.append(f"<small>{escape(k['unfollowed'])}</small>")
    candidates = candidate_lines(k)
    more = html.text(f"{k['considered']} candidates", "\n".join(candidates), folded=True) if candidates else ""
    return "<br>".join(lines) + more


def _layouts(report: Report) -> Iterator[str]:
    if report["copies"]:
        yield html.text(
            f"{len(report['copies'])} copies weighed", "\n".join(x["text"] for x in report["copies"]), folded=True
        )
    if not report["layouts"]:
        return
    rows = [
        (", ".join(x["tensors"]), x["type"], x["layout"] + (", copied" if x["copies"] else ""), x["next"])
        for x in report["layouts"]
    ]
    yield "<h2>Layouts</h2>"
    yield "<p>Tensors that are not stored in row-major order, by their names in the plan.</p>"
    yield html.table("", ("tensors", "type", "layout", "next best"), rows)


def _plan(report: Report) -> Iterator[str]:
    calls: Sequence[str] = report["plan"]
    yield "<h2>Plan</h2>"
    yield "<p>What each call computes: t0, t1, ... are tensors, in0, in1, ... parameters, state and the batch.</p>"
    yield f"<details><summary><code>{len(calls)} calls</code></summary>"
    for i, text in enumerate(calls):
        first, _, rest = text.partition("\n")
        yield html.text(first, rest, folded=True, name=f"c{i}")
    yield "</details>"
