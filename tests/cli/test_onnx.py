"""`einsmith run`, `explain`, `train` and `export` with a file of ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from einsmith.cli import main, onnx_files
from einsmith.frontends.onnx import load

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*words: object) -> tuple[int, str, str]:
        status = main.run([str(w) for w in words])
        return status, *capfd.readouterr()

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """y = x*w + rate*b of rows of three."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((3, 2)).astype(np.float32), "b": np.ones(2, np.float32)}
    nodes = [h.make_node("MatMul", ["x", "w"], ["p"]), h.make_node("Add", ["p", "b"], ["y"])]
    graph = h.make_graph(
        nodes, "net", [h.make_tensor_value_info("x", T.FLOAT, ["n", 3])],
        [h.make_tensor_value_info("y", T.FLOAT, ["n", 2])], [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    onnx.save_model(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_run_prints_and_writes_outputs(file: Path, tmp_path: Path, run: Run):
    x = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    expected = load(file)(x)
    status, out, _ = run("run", file, "--input", tmp_path / "x.npy", "--json")
    found = json.loads(out)
    assert status == 0 and found["output"] == "y" and found["shape"] == [4, 2]
    np.testing.assert_allclose(found["values"], expected, 1e-6)
    status, out, _ = run("run", file, "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "y.npz")
    assert status == 0 and out == "y: float32[4, 2]\n"
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], expected)


@pytest.mark.parametrize(
    "words, status, message",
    [
        (["run", "FILE"], 2, "--input is missing for x: --input x=X.npy"),
        (["run", "FILE", "--input", "none.npy"], 1, "none.npy cannot be read"),
        (["run", "FILE", "--input", "X", "--input", "X"], 2, "takes 1 inputs, x"),
        (["run", "FILE", "--input", "X", "--output", "y.txt"], 2, "must be a .npz file"),
        (["run", "net.txt"], 2, "is not an ONNX file"),
        (["run", "none.onnx", "--input", "X"], 1, "none.onnx cannot be read"),
        (["train", "none.onnx"], 1, "there is no file"),
        (["train", "FILE", "--data", "none.npz"], 2, "is not a .npz file of arrays x and y"),
        (["train", "FILE", "--data", "X"], 2, "is not a .npz file of arrays x and y"),
        (["train", "FILE", "--set", "width=3", "--data", "D"], 2, "--set is for a model"),
        (["train", "FILE", "--data", "HALF"], 1, "half.npz needs test_x and test_y, or neither; it has x, y, test_x"),
        (["explain", "FILE", "--shape", "z=3"], 2, "has no input z; it has x"),
    ],
)
def test_wrong_use_is_named(words: list[str], status: int, message: str, file: Path, tmp_path: Path, run: Run):
    np.save(tmp_path / "x.npy", np.zeros((4, 3), np.float32))
    np.savez(tmp_path / "half.npz", x=np.zeros((4, 3), np.float32), y=np.zeros(4, int), test_x=np.zeros((2, 3)))
    given = {"FILE": file, "X": tmp_path / "x.npy", "D": tmp_path / "d.npz", "HALF": tmp_path / "half.npz"}
    found, _, err = run(*(given.get(w, w) for w in words))
    assert found == status and message in " ".join(err.split()), err


def test_explain_shows_the_kernels(file: Path, run: Run):
    status, out, _ = run("explain", file, "--batch", "5", "--json")
    report = json.loads(out)
    assert status == 0 and "float32[5, 3]" in report["inputs"] and report["kernels"]


def test_train_says_which_arrays_it_takes(file: Path, tmp_path: Path, run: Run):
    x, y = np.zeros((30, 3), np.float32), np.zeros(30, np.int64)
    np.savez(tmp_path / "d.npz", x=x, y=y, x_test=x, y_test=y)
    status, _, err = run("train", file, "--data", tmp_path / "d.npz", "--epochs", 1, "--json")
    said = " ".join(err.split())
    assert status == 0 and "x_test, y_test not used" in said
    assert "no test_x and test_y: the last 3 of 30 samples are held out to test" in said


def test_train_resumes_and_writes_the_weights(file: Path, tmp_path: Path, run: Run):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((90, 3)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    words = ["--data", tmp_path / "d.npz", "--batch", 16, "--lr", 0.1, "--schedule", "constant", "--json"]
    status, out, _ = run("train", file, *words, "--epochs", 4, "--save", tmp_path / "run")
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and rows[-1]["loss"] < rows[0]["loss"]
    trained = load(tmp_path / "run" / "model.onnx")
    assert not np.array_equal(trained.state_dict()["w"], load(file).state_dict()["w"])
    status, out, _ = run("train", file, "--resume", tmp_path / "run", "--epochs", 5, "--json")
    assert status == 0 and json.loads(out.splitlines()[-1])["epochs"] == 5
    whole, out, _ = run("train", file, *words, "--epochs", 5, "--save", tmp_path / "whole")
    both = [load(tmp_path / folder / "model.onnx").state_dict()["w"] for folder in ("run", "whole")]
    np.testing.assert_array_equal(*both)


def test_examples_have_the_requested_shapes(tmp_path: Path, run: Run):
    """--batch is refused where the file fixes the first extent; whole numbers keep their digits."""
    taken = [h.make_tensor_value_info("x", T.FLOAT, [2, 3]), h.make_tensor_value_info("n", T.INT64, [])]
    nodes = [h.make_node("Cast", ["n"], ["c"], to=T.FLOAT), h.make_node("Mul", ["x", "c"], ["y"])]
    graph = h.make_graph(nodes, "net", taken, [h.make_tensor_value_info("y", T.FLOAT, [2, 3])])
    onnx.save_model(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx")
    status, _, err = run("explain", tmp_path / "net.onnx", "--batch", "5")
    assert status == 2 and "--batch is for a dynamic first dimension" in " ".join(err.split())
    odd = 2**53 + 1  # no float64
    _, (_, n) = onnx_files.example(str(tmp_path / "net.onnx"), None, [], [f"n={odd}"])
    assert n.dtype == np.int64 and n == odd


# ------------------------------------------------------------------------------------------------------------- export


def test_a_model_is_exported(run: Run, tmp_path: Path):
    made = tmp_path / "net.onnx"
    status, out, _ = run("export", "lenet5", made, "--json")
    told = json.loads(out)
    assert status == 0 and told["inputs"] == {"input": ["batch", 1, 28, 28]} and told["outputs"] == ["output"]
    assert load(made)(np.zeros((3, 1, 28, 28), np.float32)).shape == (3, 10)
    assert run("export", "lenet5", made)[0] == main.FAILED
    status, out, _ = run("export", "lenet5", made, "--batch", 4, "--overwrite")
    assert status == 0 and "input: float[4, 1, 28, 28]" in out and "net.onnx  " in out
    status, _, err = run("export", "lenet5", made, "--threads", 2, "--overwrite")
    assert status == main.WRONG_USE and "--threads is for a library" in err
