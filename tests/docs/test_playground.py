"""The page "Try it": what it loads is what the package writes, and it learns in a browser, from disk."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
from pathlib import Path

import einsmith as es
from einsmith.export.wasm import WEB
from tests.browser import result

DOCS = Path(__file__).resolve().parents[2] / "docs"
ASSETS = DOCS / "playground"

HARNESS = """
<script>
const fail = (e) => { document.title = "result: " + JSON.stringify({ error: String(e.message ?? e.reason ?? e) }); };
addEventListener("error", fail);
addEventListener("unhandledrejection", fail);
const at = (id) => document.getElementById(id), wait = (ms) => new Promise((resume) => setTimeout(resume, ms));
(async () => {
  const digits = await playgroundCards.digits, waves = await playgroundCards.waves, out = {};
  at("digits-go").click();
  for (let k = 0; k < 600 && digits.losses.length < 625; k++) await wait(100);
  at("digits-go").click();
  await wait(300);
  out.accuracy = parseFloat(at("digits-said").value.split(", ")[1]);
  out.paused = [digits.losses.length, at("digits-go").textContent];
  at("digits-sample").click();
  out.sample = at("digits-bars").getAttribute("aria-label");
  at("digits-clear").click();
  const pad = at("digits-pad"), box = pad.getBoundingClientRect();
  pad.setPointerCapture = () => {};
  const point = (type, x, y) => pad.dispatchEvent(new PointerEvent(type, {
    pointerId: 1, clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true }));
  point("pointerdown", 0.5, 0.15);
  for (let k = 1; k < 15; k++) point("pointermove", 0.5, 0.15 + 0.05 * k);
  point("pointerup", 0.5, 0.85);
  out.drawn = at("digits-bars").getAttribute("aria-label");
  at("digits-rate").value = "0.0005";
  at("digits-again").click();
  await wait(200);
  at("digits-go").click();
  await wait(300);
  out.again = [digits.model.get("lr"), digits.model.steps < 600];
  at("waves-go").click();
  for (let k = 0; k < 300 && waves.losses.length < 500; k++) await wait(100);
  at("waves-go").click();
  const mean = (a) => a.reduce((x, y) => x + y, 0) / a.length;
  out.waves = [mean(waves.losses.slice(0, 50)), mean(waves.losses.slice(450, 500))];
  out.said = [at("digits-time").textContent, at("convolution").textContent];
  document.title = "result: " + JSON.stringify(out);
})().catch(fail);
</script>
"""


def _data() -> dict:
    text = (ASSETS / "data.js").read_text()
    return json.loads(text.removeprefix("window.playground = ").removesuffix(";\n"))


def test_the_data_is_what_the_package_writes():
    """Otherwise: python docs/playground/make.py"""
    spec = importlib.util.spec_from_file_location("make", ASSETS / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    data = _data()
    assert (data["convolution"], data["cell"]) == (make.CONVOLUTION, make.CELL)
    gradient = es.op(make.CONVOLUTION).gradient("w", x=(32, 6, 12, 12), w=(16, 6, 5, 5), b=(16,))
    assert data["gradient"] == str(gradient)
    template = (WEB / "module.js").read_text()
    for name in ("digits", "waves"):
        script = base64.b64decode(data[name]["script"]).decode()
        lines = [x for x in template.replace("__NAME__", name).splitlines() if "__" not in x]
        assert [x for x in script.splitlines() if x in set(lines)] == lines
    assert len(data["images"]["labels"]) == make.TRAINED + make.HELD_OUT


def test_sizes():
    assert (ASSETS / "data.js").stat().st_size < 3e6
    assert sum(len((ASSETS / name).read_text().splitlines()) for name in ("page.js", "page.css")) < 600


def test_the_page_learns_from_disk(tmp_path):
    shutil.copytree(ASSETS, tmp_path / "playground")
    page = tmp_path / "page.html"
    page.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{(DOCS / "playground.md").read_text()}{HARNESS}')
    out = json.loads(result(page.as_uri()))
    assert "error" not in out, out
    assert out["accuracy"] > 90
    assert out["paused"][0] >= 2 * 5000 // 16 and out["paused"][1] == "Train"
    assert out["sample"].startswith("the network reads ") and out["drawn"] == "the network reads 1"
    assert out["again"] == [0.0005, True]
    assert out["waves"][1] < 0.6 * out["waves"][0]
    assert "here it takes" in out["said"][0] and out["said"][1].startswith("y[n,o,i,j]")
