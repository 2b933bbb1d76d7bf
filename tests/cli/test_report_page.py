"""`einsmith explain --html`: the page is well formed, whole in itself, and says what --json says."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.base.sizes import show_size
from einsmith.cli import explain, main
from einsmith.cli.explain import gather
from einsmith.cli.kernel_report import us
from einsmith.cli.report_charts import SPAN, ticks
from einsmith.cli.report_page import page
from einsmith.ir.nodes import nbytes
from einsmith.ir.views import storage
from einsmith.schedule.in_place import find_overwrites
from einsmith.schedule.layout.forced import forcing
from einsmith.schedule.rematerialize import KernelCost, peak
from einsmith.training.definition import batch_arrays

VOID = {"meta", "br"}


class Page(HTMLParser):
    """A page in parts: elements as (tag, attributes, path of the tags around it), and the text of table rows."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.text, self.open, self.elements, self.rows = text, [], [], {}
        self.row: str | None = None
        self.cell: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        assert len(known) == len(attributes), f"an attribute twice: {attributes}"
        self.elements.append((tag, known, tuple(self.open)))
        if tag == "tr" and "data-k" in known:
            self.row = known["id"]
            self.rows[self.row] = []
        if tag == "td" and self.row is not None:
            self.rows[self.row].append([known.get("data-v"), ""])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> in {self.open}"
        if tag == "tr":
            self.row = None

    def handle_data(self, data):
        if self.row is not None and self.rows[self.row]:
            self.rows[self.row][-1][1] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [a for t, a, _ in self.elements if t == tag]


def is_whole(found: Page) -> None:
    """It asks for nothing from elsewhere, and its links lead somewhere."""
    assert "http:" not in found.text and "https:" not in found.text and "url(" not in found.text
    assert not {"link", "img", "iframe", "base"} & {t for t, _, _ in found.elements}
    assert not any("src" in a for _, a, _ in found.elements)
    ids = [a["id"] for _, a, _ in found.elements if "id" in a]
    assert len(ids) == len(set(ids))
    links = [a["href"] for a in found.all("a")]
    assert links and all(x.startswith("#") and x[1:] in ids for x in links)


def written(tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Page, dict]:
    file = tmp_path / "page.html"
    assert main.run(["explain", *arguments, "--html", str(file), "--json"]) == 0
    return Page(file.read_text(encoding="utf-8")), json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_model_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, report = written(tmp_path, capsys, "mlp3", "--batch", "7", "--measure", "--candidates", "2")
    is_whole(found)
    kernels = report["kernels"]
    assert list(found.rows) == [f"k{n}" for n in range(len(kernels))]
    for row, k in zip(found.rows.values(), kernels, strict=True):
        (_, number), (_, role), (_, what), (_, pattern), *numbers = row
        assert f"k{number}" in found.rows and role == k["role"] and pattern == k["pattern"]
        parts = [k["root"], k["config"], k["kernel"], f"call {k['call']}", *(["fused"] if len(k["fused"]) > 1 else [])]
        assert all(x in what for x in parts)
        assert all(f"{c['pattern']} {c['config']}" in what for c in k["candidates"])
        exact = [sum(k["tasks"]), k["predicted"]["seconds"], k["measured"], k["bytes"], k["share"]]
        assert [float(v) for v, _ in numbers] == exact
        shown = ["+".join(map(str, k["tasks"])), us(exact[1]), us(exact[2]), show_size(exact[3]), f"{exact[4]:.1%}"]
        assert [text for _, text in numbers] == shown
    assert sum(k["share"] for k in kernels) == pytest.approx(1)
    *parts, total = report["parts"]
    assert [p["part"] for p in parts] == ["forward", "backward"] and total["kernels"] == len(kernels)
    for time in ("predicted", "measured"):
        assert sum(p[time] for p in parts) == pytest.approx(total[time])
        assert all(us(p[time]) in found.text for p in report["parts"])
    assert report["batch"] == 7 and report["distinct_kernels"] <= len(kernels) and len(report["inputs"]) == 2
    assert len(found.text) < 12_000 + 5000 * len(kernels)  # 500 kernels are less than 3 MB
    bars = [a for a in found.all("rect") if "data-k" in a]
    assert [int(a["data-k"]) for a in bars] == [*range(len(kernels))] * 2
    longest = max(total["predicted"], total["measured"])
    seconds = [*(k["predicted"]["seconds"] for k in kernels), *(k["measured"] for k in kernels)]
    assert [float(a["width"]) for a in bars] == pytest.approx([s * SPAN / longest for s in seconds], abs=0.006)
    assert [a["class"].split()[0] for a in bars] == [k["role"] for k in kernels] * 2
    assert f"{len(report['plan'])} calls" in found.text and report["plan"][1].startswith("call 1: kernel over ")


class Net(es.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = es.nn.Linear(13, 31), es.nn.LayerNorm(31), es.nn.Linear(31, 5)

    def forward(self, x):
        return self.b(es.functional.gelu(self.norm(self.a(x))))


def test_memory_over_time() -> None:
    """Against another way to count, and against what kernels read and write."""
    step = es.TrainStep(Net(), es.functional.cross_entropy, es.optim.Adam(lr=1e-3), threads=1)
    batch = (np.ones((17, 13), np.float32), np.arange(17) % 5)
    step.compile(*batch)
    (run,) = step.compiler.programs.values()
    report = gather(run, batch_arrays(batch), 0, measure=False)
    told = report["memory"]
    live = np.array([told["live"][kind] for kind in ("saved", "rest", "workspace")])
    assert live.shape == (3, len(run.plan.calls)) and (live >= 0).all()
    outside = run.compiled.outside
    workspace = {c.kernel: k.workspace for c, k in zip(run.calls, run.kernels, strict=True)}
    assert (
        told["peak"] == live.sum(0).max() == peak(run.plan, outside, KernelCost(lambda k: 0.0, workspace.__getitem__))
    )
    assert live[:, told["peak_call"]].sum() == told["peak"] <= told["results"] == run.arena_bytes
    assert sum(t["bytes"] for t in told["tensors"]) + live[2, told["peak_call"]] == told["peak"]
    assert told["held"] == sum(told[x] for x in ("parameters", "batch", "results", "scratch"))
    touched = {}  # by whom, in order
    for i, call in enumerate(run.plan.calls):
        for s in map(storage, call.tensors):
            if s not in outside and s not in run.plan.home:
                touched.setdefault(s, []).append(i)
    for t, s in find_overwrites(run.plan.calls, {s: (uses[0], uses[-1]) for s, uses in touched.items()}).items():
        assert touched[s][-1] == touched[t][0]
        touched[s][-1] -= 1
    is_saved = {s: run.roles[uses[0]] == "forward" != run.roles[uses[-1]] for s, uses in touched.items()}
    for i, call in enumerate(run.plan.calls):
        here = [s for s, uses in touched.items() if uses[0] <= i <= uses[-1]]
        saved = sum(nbytes(s) for s in here if is_saved[s])
        assert list(live[:, i]) == [saved, sum(map(nbytes, here)) - saved, workspace[call.kernel]]
    assert live[0].max() > 0 < live[1].max()
    found = Page(page({"what": "net", "batch": None} | report))
    is_whole(found)
    calls = [a for a in found.all("rect") if a.get("class") == "call"]
    assert len(calls) == len(run.plan.calls)
    assert f"peak at call {told['peak_call']}: {show_size(told['peak'])}" in found.text
    assert all(t["name"] in found.text and t["type"] in found.text for t in told["tensors"][:20])


def test_text_is_escaped_and_loops_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EINSMITH_WITHOUT", "joined steps")
    file = tmp_path / "a<b>&\"c'.txt"
    file.write_text(
        "h[t,b] = tanh(x[t,b] + where(t > 0, h[t-1,b], 0.0))\ny[b] = where(h[9,b] <= 0.5, 1.0, 2.0)\nreturn y"
    )
    found, report = written(tmp_path, capsys, str(file), "--shape", "x=10,3")
    is_whole(found)
    assert "<b>" not in found.text and "a&lt;b&gt;&amp;" in found.text and "b" not in {t for t, _, _ in found.elements}
    assert len(found.rows) == len(report["kernels"]) and report["batch"] is None
    assert [k["turns"] for k in report["kernels"]].count(10) == 1
    assert "loop of 10 steps" in found.text and "&lt;= 0.5" in found.text and "10 times" in found.text


def test_the_fewest_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.txt"
    file.write_text("Y[i] = X[i] + 1")
    found, report = written(tmp_path, capsys, str(file), "--shape", "X=7", "--candidates", "0")
    is_whole(found)
    assert len(found.rows) == 1 and "There are no intermediate results" in found.text and not report["memory"]["peak"]
    assert main.run(["explain", str(file), "--shape", "X=7", "--html", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'page.html'}: 1 kernels, in all: predicted ")


def never(*_):
    raise AssertionError("compiled all the same")


@pytest.mark.parametrize("where", ["", "missing/page.html", "file/page.html"])
def test_a_file_that_cannot_be_written(where: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(explain, "program", never)
    (tmp_path / "file").write_text("kept")
    assert main.run(["explain", "mlp3", "--html", str(tmp_path / where)]) == 1
    assert f"error: --html {tmp_path / where} cannot be written: " in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "kept"


def test_failures_leave_files_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, new = tmp_path / "old.html", tmp_path / "new.html"
    file.write_text("old")
    for page_file in (file, new):
        assert main.run(["explain", "lenet6", "--html", str(page_file)]) == 2
    assert file.read_text() == "old" and not new.exists()
    formula = tmp_path / "formula.txt"
    formula.write_text("Y[i] = X[i]")
    assert main.run(["explain", str(formula), "--shape", "X=3", "--html", f"{tmp_path}/./formula.txt"]) == 2
    assert "is the file that is explained" in capsys.readouterr().err and formula.read_text() == "Y[i] = X[i]"


@pytest.mark.parametrize("largest", [0.0, 3e-7, 0.00913, 1.0, 7.9, 8.0, 123456.0])
def test_ticks_are_round_and_few(largest: float) -> None:
    found = ticks(largest)
    assert found[0] == 0 and found[-1] <= largest * (1 + 1e-6) and len(found) <= 9
    if largest:
        assert len(found) >= 3 and f"{found[1]:e}"[0] in "125"


def test_the_graph_has_every_call_and_every_tensor_between_calls(rng) -> None:
    step = es.TrainStep(es.models.get("lenet5"), es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    batch = rng.standard_normal((3, 1, 28, 28), np.float32), rng.integers(0, 10, 3)
    with forcing(lambda t, orders: orders[-1]):
        step.compile(*batch)
    (run,) = step.compiler.programs.values()
    report = gather(run, batch_arrays(batch), 0, False)
    between = []
    for n, call in enumerate(run.plan.calls):
        for t in dict.fromkeys(storage(t) for t, w in zip(call.tensors, call.written, strict=True) if not w):
            makers = [m for m in range(n) if t in run.plan.calls[m].results]
            between += [(max(makers), n, nbytes(t))] if makers else []
    assert [(e["from"], e["to"], e["bytes"]) for e in report["edges"]] == between
    ordered = [e for e in report["edges"] if e["layout"]]
    assert 0 < len(ordered) < len(between)
    found = Page(page({**report, "what": "lenet5", "batch": 3}))
    is_whole(found)
    boxes = [a for a in found.all("rect") if a.get("class") == "box"]
    assert len(boxes) == len({k["call"] for k in report["kernels"]})
    places = [(float(a["x"]), float(a["y"]), float(a["height"])) for a in boxes]
    for n, (x, y, height) in enumerate(places):  # none lies on another one
        assert all(x != u or y + height < v or v + h < y for u, v, h in places[:n])
    lines = [a["class"] for a in found.all("path") if a["class"].startswith("edge")]
    assert lines == ["edge ordered" if e["layout"] else "edge" for e in report["edges"]]
    gains = [k["fusion"]["reward"] for k in report["kernels"] if k["fusion"]]
    assert gains and all(f"fused: {us(abs(g))} " in found.text for g in gains)
