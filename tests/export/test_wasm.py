"""Exports for WebAssembly, run in wasmtime and in Node against this process's programs."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import einsmith as es
from einsmith.export import wasm
from tests.export.common import batch, call, small
from tests.export.wasm_module import WasmError, WasmModel, skip_without_tools

STEPS = 20
RNG = np.random.default_rng(5)


class TinyResNet(es.nn.Module):
    """Two residual blocks, one of which halves the image."""

    def __init__(self) -> None:
        self.stem = es.nn.Conv2d(3, 5, 3, padding=1)
        self.norm = es.nn.BatchNorm2d(5)
        self.body = es.nn.Conv2d(5, 5, 3, padding=1)
        self.down = es.nn.Conv2d(5, 7, 3, stride=2, padding=1)
        self.short = es.nn.Conv2d(5, 7, 1, stride=2)
        self.head = es.nn.Linear(7, 4)

    def forward(self, x):
        x = es.relu(self.norm(self.stem(x)))
        x = es.relu(x + self.body(x))
        x = es.relu(self.down(x) + self.short(x))
        return self.head(es.mean(x, (2, 3)))


class OwnFormula(es.nn.Module):
    """A layer whose operator no library has."""

    def __init__(self) -> None:
        self.z = es.nn.Parameter(RNG.standard_normal((7, 5)).astype(np.float32))
        self.w = es.nn.Parameter(RNG.standard_normal((7, 3)).astype(np.float32))
        self.op = es.op("D[i,c] = sum[k](exp(-abs(sum[j](abs(X[i,j] - Z[k,j]) ** 1.5)) / 3) * W[k,c])", name="own")

    def forward(self, x):
        return self.op(x, self.z, self.w)


def _images(n: int, channels: int, side: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.standard_normal((n, channels, side, side)).astype(np.float32), RNG.integers(0, classes, n)


CASES = {
    "mlp3": (lambda: es.models.mlp3(), lambda: _images(17, 1, 28, 10)),
    "lenet5": (lambda: es.models.lenet5(), lambda: _images(5, 1, 28, 10)),
    "resnet": (TinyResNet, lambda: _images(3, 3, 9, 4)),
    "milstm": (lambda: es.models.get("milstm", hidden_size=13), lambda: _images(4, 1, 28, 10)),
    "formula": (OwnFormula, lambda: _vectors(11, 5, 3)),
}


def _vectors(n: int, width: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.standard_normal((n, width)).astype(np.float32), RNG.integers(0, classes, n)


@pytest.mark.parametrize(("name", "target"), [*((name, "wasm") for name in CASES), ("lenet5", "wasm-relaxed")])
def test_training_equals_this_process(tmp_path, name, target) -> None:
    skip_without_tools()
    make, samples = CASES[name]
    x, y = samples()
    es.manual_seed(0)
    step = es.TrainStep(make(), es.functional.cross_entropy, es.optim.SGD(lr=0.02, momentum=0.9), threads=1)
    model = WasmModel(es.export(step, tmp_path / "out", x, y, name="network", target=target))
    got = [model.value("train", x, y) for _ in range(STEPS)]
    want = [float(step(x, y)) for _ in range(STEPS)]
    assert want[-1] < want[0]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(model.value("evaluate", x, y), step.evaluate([(x, y)])["loss"], rtol=1e-4)
    np.testing.assert_allclose(model.arrays("predict", x)[0], np.asarray(step.model.predict(x)), rtol=1e-3, atol=1e-4)
    assert model.call("steps", model.model) == STEPS


def test_functions_of_special_values(tmp_path) -> None:
    """Functions that other targets take from C's library, integers, and float64 with remainders."""
    skip_without_tools()
    x = np.array([0.3, -2.5, 1e6, 7.25, -0.0, 31.0, 1e-3], np.float32)
    n = np.array([3, -7, 0, 12, 5, -1, 8], np.int64)

    def f(x, n):
        w = x.astype("float64")
        return es.sin(w) + es.cos(w) + es.abs(w) ** 1.7, w % 3.0, x % -2.0, n % 5, es.tanh(x) * es.erf(x), n // 3

    model = WasmModel(es.export(f, tmp_path / "out", x, n, target="wasm"))
    for got, want in zip(model.arrays("call", x, n), es.jit(f)(x, n), strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=3e-6)


def test_settings_schedules_and_accumulation(tmp_path) -> None:
    """Everything around a step is the C library's: schedules as tables, gathered batches, dropout's draws."""
    skip_without_tools()
    x, y = batch()
    rule = es.optim.SGD(lr=lambda step: 0.1 / step, momentum=0.9)
    step = small(rule, accumulate=2, threads=1)
    model = WasmModel(es.export(step, tmp_path / "out", x, y, target="wasm", schedule=4, name="network"))
    got = [model.value("train", x, y) for _ in range(8)]
    np.testing.assert_allclose(got, [float(step(x, y)) for _ in range(8)], rtol=1e-5)
    with pytest.raises(WasmError, match="table has no value"):
        for _ in range(2):
            model.value("train", x, y)
    state, of = model.state(), step.model.state_dict()
    for name in ("first.weight", "norm.running_mean", "last.bias"):
        np.testing.assert_allclose(state[name], np.asarray(of[name]), rtol=1e-4, atol=1e-6)


def test_faults_are_errors_and_update_nothing(tmp_path) -> None:
    skip_without_tools()
    x, y = batch()
    model = WasmModel(es.export(small(threads=1), tmp_path / "out", x, y, target="wasm"))
    before = model.state()
    with pytest.raises(WasmError, match="the loss is not finite") as e:
        model.value("train", np.full_like(x, np.nan), y)
    assert e.value.code == 1
    with pytest.raises(WasmError, match="leaves its range"):
        model.value("train", x, y + 3)
    assert all(np.array_equal(a, before[name]) for name, a in model.state().items())


SCRIPT = """
import {{ readFileSync }} from "node:fs";
import {{ load, manifest, EinsmithError }} from "{module}";
const [x, y] = JSON.parse(readFileSync("{batch}"));
const model = await load(), other = await load(), out = {{ losses: [], errors: [] }};
for (let k = 0; k < {steps}; k++) out.losses.push(model.train(Float32Array.from(x), y));
out.evaluated = model.evaluate(x, Int32Array.from(y));
out.predicted = [...model.predict(x)];
other.setWeights(model.weights());
out.other = other.evaluate(x, y);
out.steps = [model.steps, other.steps];
model.set("lr", 0.25);
out.lr = model.get("lr");
out.mean = await other.fit([[x, y], [x, y], [x, y]], ({{ step }}) => step < 2);
out.fitted = other.steps;
out.bias = [...other.tensor("last.bias")];
const cut = model.weights().slice(0, -4), renamed = model.weights();
renamed.set(new TextEncoder().encode("lost"), new TextDecoder().decode(renamed).indexOf("last.bias"));
const faults = [
  () => model.train(x, y.slice(1)), () => model.train(new Float64Array(x), y), () => model.train(x.map(() => NaN), y),
  () => model.train(x, y.map(() => 9)), () => model.set("no", 1), () => model.setWeights(new Uint8Array(4)),
  () => model.setWeights(cut), () => model.setWeights(renamed), () => model.call(x), () => model.tensor("no"),
];
for (const fault of faults) {{
  try {{ fault(); out.errors.push(null); }}
  catch (e) {{ out.errors.push(e instanceof EinsmithError ? e.message : `bare: ${{e}}`); }}
}}
out.after = model.evaluate(x, y);
console.log(JSON.stringify(out));
"""


def test_the_module_in_node(tmp_path) -> None:
    skip_without_tools()
    if shutil.which("node") is None:
        pytest.skip("no Node.js (Debian: apt install nodejs)")
    x, y = batch()
    step = small(threads=1)
    folder = es.export(step, tmp_path / "out", x, y, target="wasm", name="network")
    (tmp_path / "batch.json").write_text(json.dumps([x.ravel().tolist(), y.tolist()]))
    script = SCRIPT.format(module=folder / "network.js", batch=tmp_path / "batch.json", steps=6)
    (tmp_path / "run.mjs").write_text(script)
    out = json.loads(call(["node", tmp_path / "run.mjs"]).stdout)
    np.testing.assert_allclose(out["losses"], [float(step(x, y)) for _ in range(6)], rtol=1e-5)
    np.testing.assert_allclose(out["evaluated"], step.evaluate([(x, y)])["loss"], rtol=1e-5)
    np.testing.assert_allclose(out["predicted"], np.asarray(step.model.predict(x)).ravel(), rtol=1e-4, atol=1e-5)
    assert out["steps"] == [6, 6] and out["other"] == out["evaluated"] == out["after"]
    assert out["lr"] == 0.25 and out["fitted"] == 8
    want = [float(step(x, y)) for _ in range(2)]
    np.testing.assert_allclose(out["mean"], np.mean(want), rtol=1e-5)
    np.testing.assert_allclose(out["bias"], np.asarray(step.model.state_dict()["last.bias"]), rtol=1e-4, atol=1e-6)
    expected = [
        "network: takes x float32[4, 5], target int64[4]; given Array(20), Array(3)", "it must be Float32Array",
        "the loss is not finite; nothing was updated", "leaves its range", "there is no setting of this name",
        "not a safetensors file", "not a safetensors file", "lacks the tensor last.bias, of float32[3]",
        "takes no such call", "no tensor of the name no",
    ]  # fmt: skip
    for message, part in zip(out["errors"], expected, strict=True):
        assert message is not None and part in message


def test_what_is_written(tmp_path) -> None:
    skip_without_tools()
    x, y = batch()
    folder = es.export(small(threads=1), tmp_path / "out", x, y, target="wasm", name="network")
    written = {p.name for p in folder.iterdir()}
    assert written == {
        "network.wasm", "network.js", "network.d.ts", "index.html", "weights.safetensors", "manifest.json"
    }  # fmt: skip
    types = (folder / "network.d.ts").read_text()
    assert "train(x: Float32Array | number[], target: BigInt64Array | number[]): number;" in types
    assert "__" not in (folder / "index.html").read_text()
    with pytest.raises(es.SaveError, match="WebAssembly"):
        es.load_library(folder)


def test_kernels_and_source_without_a_linker(tmp_path) -> None:
    x, y = batch()
    folder = es.export(small(threads=1), tmp_path / "out", x, y, target="wasm", name="network", link=False)
    assert (folder / "network_kernels.o").read_bytes()[:4] == b"\0asm"
    assert "pthread_self" not in (folder / "network.c").read_text()


def test_refused(tmp_path, monkeypatch) -> None:
    x, y = batch()
    with pytest.raises(es.ArgumentError, match="one thread"):
        es.export(small(threads=1), tmp_path / "out", x, y, target="wasm", threads=2)
    with pytest.raises(es.CompileError, match="not a command"):
        es.export(small(threads=1), tmp_path / "out", x, y, target="wasm", compiler="no-such-compiler")
    monkeypatch.setattr(wasm.shutil, "which", lambda name: None)
    monkeypatch.setattr(wasm.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(es.CompileError, match="ziglang.*clang and lld"):
        es.export(small(threads=1), tmp_path / "out", x, y, target="wasm")
    assert not (tmp_path / "out").exists()


def test_a_linkers_message_is_shown(tmp_path) -> None:
    skip_without_tools()
    (tmp_path / "a.c").write_text("int f(void) { return g(); }")
    (tmp_path / "b.o").write_bytes(b"no object")
    with pytest.raises(es.CompileError, match="undeclared function"):
        wasm.link(wasm.toolchain(None), tmp_path, "a", tmp_path / "b.o", ["f"])
