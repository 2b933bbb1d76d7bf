"""Make what the page "Try it" loads: python docs/playground/make.py

Writes data.js beside this file: two training steps as modules of WebAssembly, their weights, formulas and predicted
times, and 6,000 digits of MNIST in 16 grays, all as text, because a page from disk may load scripts alone.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import einsmith as es

OUT = Path(__file__).with_name("data.js")
TRAINED, HELD_OUT, COLUMNS, GRAYS = 5000, 1000, 100, 15
BATCH = 16
STEPS, WAVES, GIVEN, UNITS = 80, 32, 32, 32
CONVOLUTION = "y[n,o,i,j] = b[o] + sum[c,r,s](x[n,c,i+r,j+s] * w[o,c,r,s])"
CELL = """\
u[t,b] = where(t < given, x[t,b], y[t-1,b])
n[t,b,k] = tanh(W[k]*u[t,b] + c[k] + sum[j](where(t > 0, h[t-1,b,j], 0) * U[k,j]))
p[t,b,k] = where(t > 0, h[t-1,b,k], 0)
g[t,b,k] = 1 / (1 + a[k]*a[k] * (n[t,b,k] - p[t,b,k])**2)
h[t,b,k] = g[t,b,k]*p[t,b,k] + (1 - g[t,b,k])*n[t,b,k]
y[t,b] = d[] + sum[k](h[t,b,k] * v[k])
return y"""
"""A cell that keeps its state where the new one is near: a gate without weights of its own. After `given` steps it
reads what it has predicted."""


class Digits(es.nn.Module):
    """LeNet-5 of images [B, 1, 28, 28] with values from 0 to 1."""

    def __init__(self) -> None:
        self.net = es.models.lenet5()

    def forward(self, x: Any) -> Any:
        return self.net((x - 0.1307) / 0.3081)


class Continue(es.nn.Module):
    """Continues waves [T, B] after their first steps with `CELL`."""

    def __init__(self, units: int = UNITS):
        rng = np.random.default_rng(0)

        def weights(*shape: int) -> es.nn.Parameter:
            return es.nn.Parameter((rng.uniform(-1, 1, shape) / units**0.5).astype(np.float32))

        self.cell = es.op(CELL, given=GIVEN)
        self.W, self.c, self.U, self.v, self.d = (
            weights(*s) for s in ((units,), (units,), (units, units), (units,), ())
        )
        self.a = es.nn.Parameter(np.ones(units, np.float32))

    def forward(self, x: Any) -> Any:
        return self.cell(x=x, W=self.W, c=self.c, U=self.U, v=self.v, d=self.d, a=self.a)


def main() -> int:
    es.manual_seed(0)
    digits = es.TrainStep(Digits(), es.functional.cross_entropy, es.optim.Adam(lr=3e-3), threads=1)
    x, y = np.zeros((BATCH, 1, 28, 28), np.float32), np.zeros(BATCH, np.int64)
    waves = es.TrainStep(Continue(), es.functional.mse_loss, es.optim.Adam(lr=5e-3), threads=1, clip_grad_norm=1.0)
    w = np.zeros((STEPS, WAVES), np.float32)
    op = es.op(CONVOLUTION)
    shapes = {"x": (32, 6, 12, 12), "w": (16, 6, 5, 5), "b": (16,)}
    data = {
        "digits": module(digits, "digits", x, y),
        "waves": module(waves, "waves", w, w),
        "images": images(),
        "convolution": CONVOLUTION,
        "gradient": str(op.gradient("w", **shapes)),
        "cell": CELL,
        "given": GIVEN,
    }
    OUT.write_text(f"window.playground = {json.dumps(data)};\n")
    print(f"{OUT}: {OUT.stat().st_size / 1e6:.2f} MB")
    return 0


def module(step: es.TrainStep, name: str, *batch: np.ndarray) -> dict[str, Any]:
    """Return the files of a step's export, as text, and its functions."""
    with tempfile.TemporaryDirectory() as folder:
        out = es.export(step, Path(folder, name), *batch, name=name, target="wasm")
        parts = {n: base64.b64encode((out / n).read_bytes()).decode() for n in (f"{name}.wasm", "weights.safetensors")}
        manifest = json.loads((out / "manifest.json").read_text())
        seconds = {f["role"]: f["predicted_seconds"] for f in manifest["functions"]}
        script = base64.b64encode((out / f"{name}.js").read_bytes()).decode()
    return {
        "wasm": parts[f"{name}.wasm"], "weights": parts["weights.safetensors"], "script": script, "seconds": seconds
    }  # fmt: skip


def images() -> dict[str, Any]:
    """Return digits of MNIST as a picture of rows of `COLUMNS`, first those that are trained on, and their labels."""
    x, y = es.data.mnist()
    chosen = np.random.default_rng(0).permutation(len(x))[: TRAINED + HELD_OUT]
    tiles = np.round(np.asarray(x)[chosen].reshape(-1, COLUMNS, 28, 28) * GRAYS)
    pixels = tiles.transpose(0, 2, 1, 3).reshape(-1, COLUMNS * 28)
    picture = Image.fromarray((pixels * (255 // GRAYS)).astype(np.uint8)).quantize(GRAYS + 1, dither=Image.Dither.NONE)
    file = io.BytesIO()
    picture.save(file, "png", optimize=True, bits=4)
    return {
        "png": base64.b64encode(file.getvalue()).decode(),
        "labels": "".join(map(str, np.asarray(y)[chosen])),
        "columns": COLUMNS,
        "trained": TRAINED,
    }


if __name__ == "__main__":
    sys.exit(main())
