"""Time of a training step of LeNet-5 as a module of WebAssembly, beside native code and TensorFlow.js.

python -m benchmarks.web [--batch 32] [--rounds 8] [--steps 10] [--tfjs node_modules/@tensorflow] [--json FILE]

All sides have one thread, the same weights and batch, and their first losses are compared before times are printed.
Native steps, wasmtime's and the browser's alternate in rounds; within the browser modules and TensorFlow.js take turns,
--steps at a time. TensorFlow.js comes from the npm packages @tensorflow/tfjs and @tensorflow/tfjs-backend-wasm.
"""

from __future__ import annotations

import argparse
import http.server
import json
import shutil
import subprocess
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import einsmith as es
from tests.export.wasm_module import WasmModel

TARGETS = ("wasm", "wasm-relaxed")
PAGE = Path(__file__).parent / "page.html"
SECONDS = 300


class _Server(http.server.ThreadingHTTPServer):
    """Serves a folder, and keeps what a page posts."""

    def __init__(self, folder: Path):
        self.posted: list[dict[str, Any]] = []
        self.arrived = threading.Event()
        super().__init__(("127.0.0.1", 0), partial(_Pages, directory=str(folder)))


class _Pages(http.server.SimpleHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append(json.loads(body))
        self.send_response(204)
        self.end_headers()
        self.server.arrived.set()

    def log_message(self, *args: Any) -> None:
        pass


def browse(folder: Path, browser: str) -> dict[str, Any]:
    """Return what the page of a folder posts from a browser."""
    server = _Server(folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as profile:
        address = f"http://127.0.0.1:{server.server_address[1]}/page.html"
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        process = subprocess.Popen([browser, *options, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if not server.arrived.wait(SECONDS):
                raise SystemExit(f"{browser} has posted no result within {SECONDS} s")
        finally:
            process.kill()
            process.wait()
            server.shutdown()
            time.sleep(0.2)  # its children leave the profile's folder
    return server.posted[0]


def timed(step: Any, count: int) -> tuple[list[float], list[float]]:
    """Return the losses and milliseconds of some steps."""
    losses, times = [], []
    for _ in range(count):
        begun = time.perf_counter()
        losses.append(float(step()))
        times.append((time.perf_counter() - begun) * 1e3)
    return losses, times


def wasm_step(model: WasmModel, x: np.ndarray, y: np.ndarray) -> Any:
    """Return a function that trains on a batch that lies in the module's memory."""
    places, out = (model.put(x), model.put(y)), model.allocate(8)

    def step() -> float:
        model.check(model.call("train", model.model, *places, out))
        return float(np.frombuffer(model.read(out, 8))[0])

    return step


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the losses and milliseconds of all sides, by name, and the browser."""
    es.manual_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((options.batch, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, options.batch)
    step = es.TrainStep(es.models.lenet5(), es.functional.cross_entropy, es.optim.Adam(lr=1e-3), threads=1)
    for target in TARGETS:
        es.export(step, folder / target, x, y, target=target, name="lenet5")
    (folder / "x.bin").write_bytes(x.tobytes())
    (folder / "y.bin").write_bytes(y.astype(np.float32).tobytes())
    shutil.copy(PAGE, folder / "page.html")
    if options.tfjs:
        (folder / "tfjs").symlink_to(Path(options.tfjs).resolve())
    chosen = {"rounds": 4, "steps": options.steps, "targets": TARGETS}
    (folder / "options.json").write_text(json.dumps(chosen))
    sides = {"native": partial(step, x, y)}
    sides |= {f"{t} wasmtime": wasm_step(WasmModel(folder / t), x, y) for t in TARGETS}
    results: dict[str, Any] = {name: {"losses": timed(s, 5)[0], "times": []} for name, s in sides.items()}
    for _ in range(options.rounds):
        for name, side in sides.items():
            results[name]["times"] += timed(side, options.steps)[1]
        page = browse(folder, options.browser)
        if "error" in page:
            raise SystemExit(f"the page fails: {page['error']}")
        for name, part in page["peers"].items():
            key = name if name.startswith("Tensor") else f"{name} browser"
            known = results.setdefault(key, {"losses": [], "times": [], "load": []})
            if "error" in part:
                known["error"] = part["error"]
                continue
            known["losses"] = part["losses"]
            known["times"] += part["times"]
            known["load"].append(part.get("load"))
    return {"browser": page["browser"], "sides": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--browser", default="chromium")
    parser.add_argument("--tfjs", help="folder @tensorflow of node_modules")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), options)
    if options.json:
        options.json.write_text(json.dumps(measured))
    native = measured["sides"]["native"]
    print(measured["browser"])
    for name, side in measured["sides"].items():
        if not side["times"]:
            print(f"{name:<22} {side['error']}")
            continue
        np.testing.assert_allclose(side["losses"], native["losses"], rtol=1e-3, err_msg=name)
        least, ratio = min(side["times"]), np.median(side["times"]) / np.median(native["times"])
        load = f"  loaded in {np.median(side['load']):.0f} ms" if any(side.get("load", [])) else ""
        print(f"{name:<22} {least:7.2f} ms  median {np.median(side['times']):7.2f}  {ratio:6.2f} of native{load}")


if __name__ == "__main__":
    main()
