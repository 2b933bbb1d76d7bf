"""What notebooks and prompts show of operators, models, plans and steps."""

from __future__ import annotations

from html.parser import HTMLParser

import einsmith as es
from tests.training.small import data, net


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
