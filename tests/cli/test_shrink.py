"""`einsmith shrink`: the smallest formula and sizes that still fail, as a file to run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from einsmith.autodiff import reverse
from einsmith.cli import main
from einsmith.ir.functions import FUNCTIONS
from einsmith.lang.parser import parse
from einsmith.lang.unparse import unparse

FORMULA = """
import numpy as np, einsmith as es
rng = np.random.default_rng(3)
op = es.op('''
    h[b, k] = tanh(sum[i](x[b, i]*w[i, k]) + bias[k])
    y[b, k] = where(h[b, k] > 0, h[b, k], slope*h[b, k]) + {fault}
    z[b] = sum[k](y[b, k]*2)
    return y, z
''', slope=0.1)
inputs = [rng.standard_normal(s).astype(np.float32) for s in ((9, 20), (20, 33), (33,))]
"""


def shrunk(capsys: pytest.CaptureFixture[str], file: Path, *more: str) -> dict:
    assert main.run(["shrink", str(file), "--seconds", "20", "--json", *more]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("text", [
    "y[i] = -(a[i] - (b[i] - 2.5)) / (c[i] // -3 % 2) ** -1.5",
    "y[i, 2*j + 1] = where(not (0 <= i - 1 < size(j)) or i == 3 and True, x[i - 1, min(j, k)], -inf)",
    "y[] = sum[i, j](f32(n[i] > 2) * (a[i] + b[j]) * (a[i] == b[j]))\nz[i] max= max[j](relu(-a[i])*nan)\nreturn y, z",
    "e[ids[t], k] += (a[t] < b[t]) == (a[t] < 2)",
    "y[i] = a[i]**2**-x.shape[0] - (1 - 2) - 3 + (not a[i] > 0 and a[i] > 1)",
])  # fmt: skip
def test_written_formulas_are_read_again(text: str) -> None:
    written = unparse(parse(text))

    def shape(e):
        fields = {k: v for k, v in vars(e).items() if k not in ("at", "text")} if hasattr(e, "__dict__") else e
        return fields if not isinstance(fields, dict) else (type(e), {k: down(v) for k, v in fields.items()})

    def down(v):
        if isinstance(v, tuple):
            return tuple(map(down, v))
        return shape(v) if hasattr(v, "at") else "nan" if v != v else v

    first, second = parse(text), parse(written)
    assert [shape(s) for s in first.statements] == [shape(s) for s in second.statements], written
    assert [n for n, _ in first.returns or ()] == [n for n, _ in second.returns or ()]


def test_an_error_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A read out of bounds, of a formula of three statements."""
    file = tmp_path / "failing.py"
    file.write_text(FORMULA.format(fault="x[b + 1, 0]"))
    found = shrunk(capsys, file)
    assert found["failure"] == "BoundsError" and "x[b + 1, 0]" in found["formula"]
    assert found["formula"].count("\n") <= 2 and "tanh" not in found["formula"] and "sum" not in found["formula"]
    again = tmp_path / "again.py"
    again.write_text(found["file"])
    done = subprocess.run([sys.executable, str(again)], capture_output=True, text=True)
    assert done.returncode and "BoundsError" in done.stderr


def test_wrong_results_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """Of a program that computes tanh wrongly: the formula is left with it, on few numbers."""
    file, smaller = tmp_path / "failing.py", tmp_path / "smaller.py"
    file.write_text(FORMULA.format(fault="0"))
    assert main.run(["shrink", str(file)]) == 1
    assert "results are those of the reference evaluator; --gradients" in capsys.readouterr().err
    right = FUNCTIONS["tanh"]
    monkeypatch.setitem(FUNCTIONS, "tanh", replace(right, numpy=lambda x: right.numpy(x) * 1.01))
    assert main.run(["shrink", str(file), "--seconds", "20", "--output", str(smaller)]) == 0
    assert capsys.readouterr().out == f"{smaller}: results differ\n"
    text = smaller.read_text()
    assert "tanh" in text and "where" not in text and "results differ" in text and len(text) < 700
    names: dict = {"__name__": "smaller"}
    exec(text, names)
    assert sum(a.size for a in names["inputs"]) <= 4
    assert shrunk(capsys, smaller)["failure"] == "results differ"  # the file is one that the command reads
    monkeypatch.undo()
    done = subprocess.run([sys.executable, str(smaller)], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) >= 2


def test_wrong_gradients_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    file = tmp_path / "failing.py"
    file.write_text(FORMULA.format(fault="stop_gradient(0*x[b, 0])"))
    assert main.run(["shrink", str(file), "--gradients"]) == 1
    assert "reference evaluator\n" in capsys.readouterr().err
    add = reverse.add
    monkeypatch.setattr(reverse, "add", lambda terms: add([*terms, terms[0]] if len(terms) > 1 else terms))
    found = shrunk(capsys, file, "--gradients")
    assert found["failure"] == "GradientError" and len(found["formula"]) < 120


@pytest.mark.parametrize("text, said", [
    ("inputs = ()", "defines no `op`"), ("op = 3; inputs = ()", "`op` of .* is an int, not a formula"),
    ("import einsmith as es; op = es.op('y[i] = x[i]'); inputs = ()", "lack x"), ("1/0", "raised ZeroDivisionError"),
])  # fmt: skip
def test_files_that_are_none(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file.py"
    file.write_text(text)
    assert main.run(["shrink", str(file)]) == 1
    assert re.search(said, capsys.readouterr().err)
