"""The Python programs of README.md and of the pages of docs/ run, and give what the pages say.

A page's blocks run in order in one namespace. Data sets that would be fetched are small arrays made here.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
from tests.docs.blocks import ROOT, blocks, is_shown, run

ELSEWHERE = {"docs/patterns.md", "docs/configurations.md"}  # test_patterns.py runs their programs one by one
SLOW = {
    f"docs/{page}.md"
    for page in (
        *("export", "kernel_methods", "pytorch", "quantization", "recurrences", "trainers", "training"),
        *("fields/chemistry", "fields/language", "fields/physics", "fields/speech"),
    )
}  # pages whose programs take about two seconds or more
PAGES = sorted(
    p
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if blocks(path.read_text()) and (p := path.relative_to(ROOT).as_posix()) not in ELSEWHERE
)


def images(split: str = "train", **_: Any) -> tuple[np.ndarray, np.ndarray]:
    """Stand in for the digits: 512 images that show their class as a bright row."""
    labels = np.arange(512) % 10
    x = default_rng(0).random((512, 1, 28, 28), np.float32)
    x[np.arange(512), 0, 2 * labels] += 2
    return x, labels


def words(name: str, split: str = "train", **_: Any) -> str:
    return " ".join(default_rng(0).choice(["the", "whale", "sea", "a", "ship"], 2000))


def write_network(_: Path) -> dict[str, Any]:
    """Write the network that docs/onnx.md reads."""
    onnx = pytest.importorskip("onnx", reason="docs/onnx.md needs the package onnx")
    text = """<ir_version: 10, opset_import: ["": 21]> net (float[N, 4] input) => (float[N, 3] output)
              <float[4, 3] W = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2}>
              { output = MatMul(input, W) }"""
    onnx.save(onnx.parser.parse_model(text), "net.onnx")
    return {"x": np.ones((8, 4), np.float32), "target": np.arange(8) % 3}


BEFORE: dict[str, Callable[[Path], dict[str, Any]]] = {"docs/onnx.md": write_network}
"""What a page reads that its blocks do not make."""


def check_readme(n: SimpleNamespace, printed: str) -> None:
    """The gradient is shown as it is printed, but for line breaks."""
    assert n.C.shape == (16, 32, 6, 6, 4, 4) and np.isfinite(n.C).all()
    shown = re.sub(r"\s", "", (ROOT / "README.md").read_text())
    sums = [line for line in printed.splitlines() if "sum[" in line]
    assert len(sums) == 4 and all(re.sub(r"\s", "", line) in shown for line in sums)


def check_aten(n: SimpleNamespace, _: str) -> None:
    assert math.isfinite(n.loss) and n.step.steps == 1
    state = n.model.state_dict()
    for name, tensor in n.module.state_dict().items():  # the trained weights came back
        np.testing.assert_array_equal(tensor.numpy(), state[name])


def check_pytorch(n: SimpleNamespace, _: str) -> None:
    assert math.isfinite(n.loss.item()) and all(p.grad is not None for p in n.model.parameters())
    assert n.step.steps == 1 and Path("net.onnx").exists() and Path("library/net.h").exists()
    np.testing.assert_array_equal(n.net[2].point.detach().numpy(), n.network.state_dict()["2.point"])


def check_constants(n: SimpleNamespace, _: str) -> None:
    path = np.eye(4)[n.P] * n.C[..., None]  # [i, j, k, p]
    terms = "ijkp,epu,eui,ej->euk"
    m = np.einsum(terms, path, n.w, n.x[n.src], n.Y)
    out = np.zeros((n.nodes, n.channels, 4))
    np.add.at(out, n.dst, m)
    np.testing.assert_allclose(n.out, out, rtol=1e-4, atol=1e-4)
    dm = 2 * out[n.dst]
    dw = np.einsum("ijkp,euk,eui,ej->epu", path, dm, n.x[n.src], n.Y)
    dY = np.einsum("ijkp,epu,eui,euk->ej", path, n.w, n.x[n.src], dm)
    dx = np.zeros_like(n.x)
    np.add.at(dx, n.src, np.einsum("ijkp,epu,euk,ej->eui", path, n.w, dm, n.Y).astype(np.float32))
    for got, want in ((n.dw, dw), (n.dx, dx), (n.dY, dY)):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


def check_segments(n: SimpleNamespace, _: str) -> None:
    dense = np.zeros((3, 4))
    np.add.at(dense, (np.repeat(np.arange(3), np.diff(n.row)), n.col), n.v)
    y = dense @ n.X
    np.testing.assert_allclose(n.y, y)
    np.testing.assert_allclose(n.dX, dense.T @ (2 * y))
    np.testing.assert_allclose(n.dv, (2 * y @ n.X.T)[np.repeat(np.arange(3), np.diff(n.row)), n.col])
    np.testing.assert_allclose(n.m, [n.Z[:2].mean(0), [0, 0], n.Z[2:].mean(0)])
    np.testing.assert_array_equal(n.top, [n.Z[1], [-np.inf, -np.inf], n.Z[4]])
    np.testing.assert_allclose(n.w, [n.Z[:3, 0].sum(), n.Z[3:, 0].sum()])


def check_semantics(n: SimpleNamespace, printed: str) -> None:
    for f in (n.f, es.interpret(n.f)):
        np.testing.assert_array_equal(f(n.x), [0, 0, np.nan])
    assert printed.count("nan") == 2


def check_training(n: SimpleNamespace, printed: str) -> None:
    assert n.step.epoch == 8 and n.again.epoch == 9
    assert n.step.history[-1]["loss"] < 0.7 * n.step.history[0]["loss"]
    named = re.search(r"# (epoch, steps, .*), and the rates\n", (ROOT / "docs/training.md").read_text())
    assert named is not None
    assert {k for k in n.step.history[-1] if "/" not in k} == set(named[1].split(", "))
    assert "val_loss" in printed
    assert len(Path("runs/page.csv").read_text().splitlines()) == 9
    assert {p.name for p in Path("runs/page").iterdir()} == {"last", "best"}


CHECKS: dict[str, Callable[[SimpleNamespace, str], None]] = {
    "README.md": check_readme,
    "docs/aten.md": check_aten,
    "docs/constants.md": check_constants,
    "docs/pytorch.md": check_pytorch,
    "docs/segments.md": check_segments,
    "docs/semantics.md": check_semantics,
    "docs/training.md": check_training,
}
"""What the names of a page hold after its program, and what it printed, beyond what its blocks assert."""


@pytest.mark.parametrize("page", [pytest.param(p, marks=pytest.mark.slow if p in SLOW else ()) for p in PAGES])
def test_a_page_runs(page, tmp_path, monkeypatch, capsys) -> None:
    text = (ROOT / page).read_text()
    for package in ("torch", "onnx"):
        if re.search(rf"^ *(?:import|from) (?:einsmith\.frontends\.)?{package}\b", text, re.MULTILINE):
            pytest.importorskip(package, reason=f"{page} needs {package}")
    if "backend=" in text:
        import einsmith.frontends.torch  # noqa: F401  # registers the backend in a checkout
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(es.data, "mnist", images)
    monkeypatch.setattr(es.data, "text", words)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # TorchDynamo imports the module of a class
    names = vars(module)
    names.update(BEFORE.get(page, lambda _: {})(tmp_path))
    es.manual_seed(0)
    run(page, names)
    CHECKS.get(page, lambda *_: None)(SimpleNamespace(**names), capsys.readouterr().out)


def test_every_check_has_its_page() -> None:
    assert {*CHECKS, *BEFORE, *SLOW} <= {*PAGES} and all((ROOT / p).exists() for p in ELSEWHERE)


@pytest.mark.parametrize(
    ("printed", "shown", "same"),
    [
        ("a  \nb\n", "a\nb", True),
        ("a\nb\nc\n", "a\n...\nc", True),
        ("a\nb\n", "a", False),
        ("a[i]\n", "a[j]", False),
        ("a+b\n", "aab", False),
    ],
)
def test_output_that_differs_is_seen(printed: str, shown: str, same: bool) -> None:
    assert is_shown(printed, shown) == same


def test_blocks_have_their_lines_and_outputs() -> None:
    text = (
        "# T\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\nand\n\n```python\nx = 2\n```\n\n"
        "so\n\n```text\nno output\n```\n"
    )
    assert blocks(text) == [(4, "print(1)\n", "1\n"), (14, "x = 2\n", None)]
