"""What notebooks and prompts show of operators, models, plans and steps."""

from __future__ import annotations

import pickle
from html.parser import HTMLParser

import numpy as np

import einsmith as es
from einsmith.base import html
from tests.gallery.entries import ENTRIES
from tests.training.small import data, net

V = np.ones(4, np.float32)


class Reader(HTMLParser):
    """The cells of tables and the other text; refuses tags that are not closed in order, and scripts."""

    def __init__(self, source):
        super().__init__()
        self.open, self.cells, self.text = [], [], ""
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag != "script"
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.text += text
        if "td" in self.open or "th" in self.open:
            self.cells[-1] += text


def test_formulas_are_shown() -> None:
    f = es.op("""
        C[i,j] = where(A[i,j] < 0, 0, A[i,j]) * B[j]
    """)
    shown = Reader(f._repr_html_()).text
    assert f.signature in shown and "C[i,j] = where(A[i,j] < 0, 0, A[i,j]) * B[j]" in shown


def test_formulas_have_a_table_of_their_indices() -> None:
    f = es.op("Y[b, p] = sum[c,r](X[b,c,stride*p + r] * W[c,r] + X[b,c,0] * E[ids[p],r])")
    cells = Reader(f._repr_html_()).cells
    rows = [cells[k : k + 5] for k in range(0, len(cells), 5)]
    assert rows == [
        ["", "b", "p", "c (sum)", "r (sum)"],
        ["Y[b, p]", "0: b", "1: p", "", ""],
        ["X[b, c, stride*p + r]", "0: b", "2: stride*p + r", "1: c", "2: stride*p + r"],
        ["W[c, r]", "", "", "0: c", "1: r"],
        ["X[b, c, 0]", "0: b", "", "1: c", ""],
        ["E[ids[p], r]", "", "0: ids[p]", "", "1: r"],
        ["ids[p]", "", "0: p", "", ""],
    ]


def test_gradients_are_shown_and_are_texts() -> None:
    text = es.op("Y[i] = where(A[i] < 1, A[i]*B[i], 0)").gradient("A", A=(3,), B=(3,))
    assert isinstance(text, str) and text.startswith("dA[i] = ")
    found = Reader(text._repr_html_())
    assert str(text) in found.text and "dA from " in found.text and "dY[i]" in found.cells


def test_models_are_shown() -> None:
    model = net()
    model[0].bias.requires_grad = False
    found = Reader(model._repr_html_())
    assert "Sequential, 174 parameters" in found.text
    rows = [tuple(found.cells[k : k + 4]) for k in range(0, len(found.cells), 4)]
    assert rows[0] == ("part", "kind", "parameters", "elements")
    assert rows[1][0] == "0" and rows[1][2:] == ("weight [13, 7], bias [13] frozen", "104")
    assert rows[2][1] == "Tanh()" and rows[3][3] == "70" and len(rows) == 4


def test_steps_and_plans_are_shown() -> None:
    step = es.TrainStep(net(), es.functional.cross_entropy, es.optim.SGD(lr=0.1), clip_grad_norm=2.0)
    assert "nothing is compiled" in Reader(step._repr_html_()).text
    step(*data(4))
    want = "TrainStep(Sequential, cross_entropy, SGD(lr=0.1), clip_grad_norm=2.0, steps=1, epoch=0)"
    assert repr(step) == want
    shown = Reader(step._repr_html_())
    assert want in shown.text and "174 parameters" in shown.text
    plan = Reader(step.plan._repr_html_())
    for line in step.plan.splitlines():
        assert line in plan.text
    schedule = es.optim.lr_scheduler.StepLR(0.1, 3)
    groups = es.optim.Groups(es.optim.SGD(lr=schedule), a=es.optim.Group("0", lr=0.2))
    assert repr(groups) == f"Groups(a=SGD(lr=0.2), rest=SGD(lr={schedule}))"


def test_plans_have_a_timeline_of_their_kernels() -> None:
    step = es.TrainStep(net(), es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    step(*data(4))
    source = step.plan._repr_html_()
    ((_, lines, bars),) = step.plan.programs
    found = Reader(source)
    assert source.count("<rect ") == len(bars) == lines.count(" us predicted  ")
    assert all(f"{n}: {label}, {role}, " in found.text for n, (label, role, _) in enumerate(bars))
    assert {role for _, role, _ in bars} >= {"forward", "backward"} and "backward" in found.text
    widths = [float(part.partition('width="')[2].partition('"')[0]) for part in source.split("<rect ")[1:]]
    assert abs(sum(widths) - 1000) < 1
    again = pickle.loads(pickle.dumps(step.plan))
    assert again == step.plan and again._repr_html_() == source


def test_operators_plans_are_shown_by_static_parameters() -> None:
    f = es.op("Y[i] = X[s*i]")
    assert "nothing is compiled" in Reader(f.plan._repr_html_()).text
    for s in (2, 3):
        f(V, s=s)
    assert f.plan.count("Y with s=") == 2 and f.plan._repr_html_().count("<svg ") == 2
    assert "Y with s=2" in Reader(f.plan._repr_html_()).text


def test_what_is_shown_is_escaped() -> None:
    source = html.timeline([("sum <b> & more", "forward", 1e-6)])
    assert "<b>" not in source and "sum <b> & more" in Reader(source).text
    assert html.timeline([]) == ""


def test_formulas_of_every_kind_are_shown() -> None:
    """Each statement's table has a column for each axis, and every read of a dimension stands in some cell."""
    for e in ENTRIES:
        f = es.op(e.formula, extents=e.extents)
        found = Reader(f._repr_html_())
        for line in f.program.lines:
            for site in line.reads:
                name, rank = site.node.name, len(site.node.index)
                assert any(c.startswith(f"{name}[") and c.endswith("]") for c in found.cells), (e.name, name, rank)
        assert all(a in " ".join(found.cells) for line in f.program.lines for a in line.axes), e.name
