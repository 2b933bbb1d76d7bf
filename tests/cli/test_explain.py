"""`einsmith explain`, `calibrate` and what `info` says of the machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import DeviceError
from einsmith.base.sizes import size_of
from einsmith.cli import main
from einsmith.cli.programs import program
from einsmith.cost.facts import of_instruction_set
from einsmith.driver import registry
from einsmith.driver.other_cpu import OtherCpu
from einsmith.schedule import pipeline
from einsmith.schedule.layout.apply import LayoutDecision, free_tensors
from einsmith.schedule.losses import MODEL_ERROR
from einsmith.schedule.plan import LayoutChoice, Plan
from einsmith.tuning.calibration import calibrate, store


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main.run(["explain", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    report = explained(capsys, "mlp3", "--batch", "7", "--threads", "1", "--candidates", "2", "--measure")
    kernels = report["kernels"]
    assert report["threads"] == 1
    assert {"contraction", "reduction", "pointwise", "rows", "summed"} >= {k["pattern"] for k in kernels}
    assert len(kernels) >= 10
    assert any(len(k["fused"]) > 1 for k in kernels)
    fusions = [k["fusion"] for k in kernels]
    joined = [k["pattern"] == "rows" or (k["pattern"] != "summed" and len(k["fused"]) > 1) for k in kernels]
    assert [f is not None for f in fusions] == joined
    for k, f in zip(kernels, fusions, strict=True):
        if f is not None:
            assert 1 < f["kernels"] <= len(k["fused"])
            assert f["fused"] == pytest.approx(k["predicted"]["seconds"], rel=1e-6)
            assert f["reward"] == pytest.approx(f["apart"] - f["fused"], rel=1e-6)
            assert f["reward"] > (0 if k["pattern"] == "rows" else -MODEL_ERROR * f["fused"])
    every = report["fusion"]
    assert every["launched"] == len(kernels) < every["apart"] == sum(len(k["fused"]) for k in kernels)
    assert every["reward"] == pytest.approx(sum(f["reward"] for f in fusions if f))
    for k in kernels:
        taken = [c for c in k["candidates"] if (c["pattern"], c["config"]) == (k["pattern"], k["config"])]
        others = [c for c in k["candidates"] if c not in taken]
        if k["pattern"] == "summed":  # whether the sums are better taken was decided when the kernels were joined
            others = [c for c in others if c["config"] != "apart None"]
        (first,) = taken
        assert first["predicted"] == k["predicted"] and k["measured"] > 0 and first["alone"] > 0
        p = k["predicted"]
        assert p["seconds"] == pytest.approx(max(p["arithmetic"], p["memory"]) + p["special"] + p["launch"])
        assert all(c["predicted"]["seconds"] >= p["seconds"] for c in others if not c["ruled_out"])
        others = k["candidates"][1:]
        assert [c["ruled_out"] for c in others[2:]] == sorted(c["ruled_out"] for c in others[2:])
        names = [c["pattern"] for c in k["candidates"]]
        assert len(set(names[2:])) == len(names[2:]) and not set(names[2:]) & set(names[:2]), "others by their best"
    assert {c["pattern"] for k in kernels for c in k["candidates"] if c["ruled_out"]} == {"reduction"}
    assert any({"contraction", "reduction"} <= {c["pattern"] for c in k["candidates"]} for k in kernels)


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["explain", "mlp3", "--batch", "3"]) == 0
    out = capsys.readouterr().out
    assert "fused: sum" in out and "separate kernels" in out and " kernels instead of " in out
    assert "arithmetic" in out and "in all: predicted" in out and "measured" not in out
    parts = [line for line in out.splitlines() if line.startswith(("forward: ", "backward: ", "update: ", "in all: "))]
    times = [float(line.split()[-2]) for line in parts]
    assert [line.partition(":")[0] for line in parts] == ["forward", "backward", "in all"]  # which stores the updates
    assert sum(times[:-1]) == pytest.approx(times[-1], abs=0.2) and all(times)


def test_a_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "conv.txt"
    file.write_text("C[b,p] = sum[r](A[b,stride*p+r] * W[r] * scale)")
    given = ["--shape", "A=6,101", "--shape", "W=5", "--set", "stride=2"]
    report = explained(capsys, str(file), *given, "--set", "scale=0.5", "--measure", "--candidates", "0")
    assert report["kernels"] and all(k["measured"] > 0 and k["role"] == "forward" for k in report["kernels"])
    assert "6x49" in report["kernels"][-1]["root"]
    for wrong in ([], given[:2], [*given, "--shape", "X=3"], ["--shape", "A", *given], ["--shape", "A=six,3"]):
        assert main.run(["explain", str(file), *wrong, "--set", "scale=1"]) == 2
    assert main.run(["explain", str(file), *given]) == 1  # no scale
    assert "scale" in capsys.readouterr().err


def test_the_graph_is_written_to_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "product.txt", tmp_path / "stages"
    file.write_text("C[i,j] = relu(sum[k](A[i,k]*B[k,j]))")
    shapes = ["--shape", "A=6,10", "--shape", "B=10,7"]
    before = dict(os.environ)
    explained(capsys, str(file), *shapes, "--candidates", "0", "--dump", str(folder))
    assert dict(os.environ) == before
    (program,) = folder.iterdir()
    names = {x.name for x in program.iterdir()}
    assert {"00-given.txt", "plan.txt", "program.txt"} <= names and any("precision" in n for n in names)
    assert "sum[r0](" in (program / "00-given.txt").read_text()
    file.write_text("C[i] = A[i]")
    assert main.run(["explain", str(file), "--shape", "A=3", "--dump", str(file)]) == 2
    assert "--dump" in capsys.readouterr().err


def test_gathers_of_a_formula_get_indices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gather.txt"
    file.write_text("Y[b,k] = T[I[b],k]")
    report = explained(capsys, str(file), "--shape", "T=5,3", "--shape", "I=4", "--measure")
    assert any("i64" in b for k in report["kernels"] for b in k["buffers"])


FILES = {
    "function": "def step(x, n, flag=None):\n    return es.exp(x) * n\ninputs = (np.ones((3, 4), np.float32), 2.0)\n",
    "jitted": (
        "step = es.jit(lambda x, n: x.sum(0) * n, static_argnames='n')\n"
        "def inputs():\n    return np.ones((3, 4), np.float32), 3\n"
    ),
    "train": (
        "m = es.nn.Linear(5, 3)\nstep = es.TrainStep(m, es.functional.cross_entropy, es.optim.Adam(lr=1e-3))\n"
        "inputs = (np.ones((4, 5), np.float32), np.array([0, 1, 2, 0]))\n"
    ),
    "one": "step = es.op('Y[i] = exp(X[i])')\ninputs = np.ones(6, np.float32)\n",
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", FILES)
def test_a_python_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import numpy as np, einsmith as es\n" + FILES[name])
    report = explained(capsys, str(file), "--measure")
    assert report["kernels"] and all(k["measured"] > 0 for k in report["kernels"])


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [("inputs = ()", 1, "`step`"), ("step = 3\ninputs = ()", 1, "neither"), ("step = 1 / 0", 1, "ZeroDivisionError")],
)
def test_python_files_that_do_not_do(tmp_path: Path, capsys, text: str, status: int, says: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert main.run(["explain", str(file)]) == status
    assert says in capsys.readouterr().err


def test_scalar_code_is_the_baseline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Speed-ups over scalar code, the instructions of each candidate, and the baseline as an override."""
    file = tmp_path / "matmul.txt"
    file.write_text("C[i,j] = sum[k](A[i,k]*B[k,j])")
    given = ("--shape", "A=31,47", "--shape", "B=47,29", "--candidates", "1", "--threads", "1", "--measure")
    (kernel,) = explained(capsys, str(file), *given, "--counts")["kernels"]
    *others, scalar = kernel["candidates"]
    assert scalar["pattern"] == "scalar" and scalar["predicted"]["seconds"] == kernel["scalar"]
    assert scalar["counts"] == {"floats": 31 * 29 * 47, "moves": 31 * 29 * (2 * 47 + 1), "special": 0}
    assert all(0 < c["counts"]["floats"] < scalar["counts"]["floats"] / 3 for c in others)
    assert kernel["scalar"] > 5 * kernel["predicted"]["seconds"] and scalar["alone"] > 5 * others[0]["alone"]
    (forced,) = explained(capsys, str(file), *given, "--override", f"{kernel['kernel']} scalar")["kernels"]
    assert forced["pattern"] == "scalar" and forced["measured"] > kernel["measured"]
    assert main.run(["explain", str(file), *given[:4], "--counts"]) == 0
    out = capsys.readouterr().out
    assert ", scalar code " in out and " floats, " in out and "ScalarConfig" in out


@pytest.mark.parametrize("name, vector", [("neon", 16), ("sse", 16), ("avx2", 32), ("avx512", 64)])
def test_another_cpu(name: str, vector: int, capsys: pytest.CaptureFixture[str]) -> None:
    report = explained(capsys, "mlp3", "--batch", "7", "--threads", "3", "--target", name)
    assert report["machine"]["vector_bytes"] == vector and report["threads"] == 3
    assert report["machine"]["shares"] == f"3 threads of a common processor with {name}"
    assert all(k["predicted"]["seconds"] > 0 and k["config"] for k in report["kernels"])
    here = explained(capsys, "mlp3", "--batch", "7", "--threads", "1", "--candidates", "0")
    assert here["machine"]["cpu"] != name and "common" not in here["machine"]["shares"]


def test_programs_of_another_cpu_do_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    for others in (["--measure"], ["--device", "cpu"], ["--trace", "x.json"]):
        assert main.run(["explain", "mlp3", "--target", "neon", *others]) == 2
        assert "--target names a CPU that programs do not run on" in capsys.readouterr().err
    with registry.compiling_for(OtherCpu(of_instruction_set("neon"))):
        with pytest.raises(DeviceError, match="for a CPU with neon, not for this one, and cannot run"):
            es.jit(lambda x: x + 1.0)(np.ones(3, np.float32))
    assert registry.backend_for(None) is registry.BACKENDS["cpu"] and not isinstance(registry.DEFAULT, OtherCpu)


@pytest.mark.parametrize("arguments", [["lenet6"], ["mlp3", "--shape", "A=3"], ["mlp3", "--batch", "0"], []])
def test_wrong_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["explain", *arguments]) == 2


@pytest.mark.parametrize("name, text", [("f.py", "step = lambda x: x + 1.0\ninputs = (1.0,)"), ("f.es", "y[i] = x[i]")])
@pytest.mark.parametrize("command", ["explain", "tune"])
def test_a_batch_is_for_models(command, name, text, tmp_path, capsys) -> None:
    (tmp_path / name).write_text(text)
    more = ["--shape", "x=3"] if name == "f.es" else []
    assert main.run([command, str(tmp_path / name), "--batch", "4", *more]) == 2
    assert "--batch is for a model" in capsys.readouterr().err


@pytest.mark.parametrize("name, text", [("f.py", "step = lambda x: x + 1.0\ninputs = (1.0,)"), ("f.es", "y[i] = x[i]")])
@pytest.mark.parametrize("option", ["--memory-limit", "--max-stored"])
def test_limits_are_for_models(option, name, text, tmp_path, capsys) -> None:
    """A step in a file sets them itself."""
    (tmp_path / name).write_text(text)
    assert main.run(["explain", str(tmp_path / name), option, "1MB"]) == 2
    assert f"{option} is for a model; a TrainStep in a file has its own {option[2:].replace('-', '_')}=" in (
        capsys.readouterr().err
    )


def test_programs_have_the_options_of_their_steps(tmp_path) -> None:
    file = tmp_path / "f.py"
    file.write_text("import einsmith as es\nstep = es.jit(lambda x: x + 1.0, max_stored=5)\ninputs = (1.0,)")
    for what, batch, bound in ((str(file), None, None), ("mlp3", 3, 5)):
        run, *_ = program(what, batch, (), (), 1, None, bound)
        assert run.source.max_stored == 5


def measured(machine, budget):
    seconds = {"fma": 0.9 / machine.fma_per_second, "load": 1.0}
    return calibrate.Figures(seconds, {"store": "its 4 runs disagree"})


def test_calibrate_and_info(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EINSMITH_CALIBRATE", "1")
    monkeypatch.setattr(calibrate, "measure", measured)
    assert main.run(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["coefficients"]["source"] == "static (not calibrated yet)"
    assert main.run(["calibrate", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["measured"] == ["fma"] and Path(record["path"]).parent == tmp_path / "calibration"
    assert main.run(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["coefficients"]["source"] == "measured"
    assert facts["coefficients"]["fma_per_second"] == record["coefficients"]["fma_per_second"]
    assert main.run(["calibrate"]) == 0
    out = capsys.readouterr().out
    assert "static" in out and "store: not used, its 4 runs disagree" in out and "load: not used, " in out
    assert main.run(["info"]) == 0
    assert "its 4 runs disagree" in capsys.readouterr().out
    monkeypatch.setenv("EINSMITH_CALIBRATE", "0")
    assert main.run(["info"]) == 0
    assert "EINSMITH_CALIBRATE is 0" in capsys.readouterr().out


def test_calibrate_on_a_busy_machine(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    busy = lambda machine, budget: measured(machine, budget)._replace(disturbance="others worked")  # noqa: E731
    monkeypatch.setattr(calibrate, "measure", busy)
    assert main.run(["calibrate"]) == 1
    assert "the machine is busy" in capsys.readouterr().err and not list(tmp_path.rglob("*.json"))


def test_calibrate_where_nothing_can_be_kept(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(store, "save", None)
    assert main.run(["calibrate"]) == 1
    assert "EINSMITH_CACHE_DIR" in capsys.readouterr().err


def test_a_kernel_is_decided_by_hand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "matmul.txt"
    file.write_text("C[i,j] = sum[k](A[i,k]*B[k,j])")
    given = ("--shape", "A=131,147", "--shape", "B=147,129", "--candidates", "2", "--threads", "1", "--measure")
    (before,) = explained(capsys, str(file), *given)["kernels"]
    assert [c["taken"] for c in before["candidates"]] == [True, *[False] * (len(before["candidates"]) - 1)]
    (kernel,) = explained(capsys, str(file), *given, "--override", f"{before['kernel']} reduction")["kernels"]
    (taken,) = [c for c in kernel["candidates"] if c["taken"]]
    assert kernel["pattern"] == taken["pattern"] == "reduction" != before["pattern"]
    assert kernel["config"] == taken["config"] and taken["alone"] > 0 and kernel["measured"] > 0
    assert main.run(["explain", str(file), *given, "--override", f"{before['kernel']} reduction mr=3"]) == 1
    assert "is no gene of reduction" in capsys.readouterr().err
    assert main.run(["explain", str(file), *given, "--override", "00000000 reduction"]) == 1
    assert before["kernel"] in capsys.readouterr().err
    twice = ("--override", f"{before['kernel']} reduction") * 2
    assert main.run(["explain", str(file), *given, *twice]) == 2


@pytest.mark.slow
def test_a_limit_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("vit_small", "--batch", "4", "--set", "layers=3")
    whole = explained(capsys, *model, "--candidates", "0")
    assert main.run(["explain", *model, "--memory-limit", "9kB"]) == 1
    least = capsys.readouterr().err.split("9 kB is too little: at least ")[1].split(" are needed")[0]
    limit = str(int(size_of(least, "least") * 1.001))
    less = explained(capsys, *model, "--candidates", "0", "--memory-limit", limit)
    assert less["arena_bytes"] < whole["arena_bytes"] and len(less["kernels"]) > len(whole["kernels"])
    assert less["again"]["kernels"] == sum(k["again"] for k in less["kernels"]) > 0 == whole["again"]["kernels"]
    assert any("'" in line.partition(" of ")[2] for line in less["plan"])  # t3', t3 computed again
    assert main.run(["explain", __file__, "--memory-limit", "9kB"]) == 2
    assert "a TrainStep in a file has its own" in capsys.readouterr().err


def test_products_that_stay_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wide products of one input are not joined, and both prices are told."""
    file = tmp_path / "wide.txt"
    lines = [f"{n}[i,j] = tanh(sum[k](X[i,k]*W{n}[k,j]))\nt{n}[i,j] = sum[k]({n}[i,k]*V[k,j])" for n in "ab"]
    file.write_text("\n".join([*lines, "y[i,j] = ta[i,j]*tb[i,j]", "return y"]))
    shapes = {"X": "197,320", "Wa": "320,320", "Wb": "320,320", "V": "320,3"}
    given = (str(file), *(x for n, s in shapes.items() for x in ("--shape", f"{n}={s}")), "--threads", "1")
    (refused,) = [x for x in explained(capsys, *given)["refused_joins"] if x["types"] == ["f32[197, 320]"] * 2]
    assert len(refused["kernels"]) == 2 and refused["joined"] > 0.97 * refused["apart"] > 0
    assert main.run(["explain", *given]) == 0
    assert "apart: products f32[197, 320] of kernels 0, " in capsys.readouterr().out


def test_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not lie as it is, and the next best order: in the text, in JSON, on the page and in the plan."""
    file, html = tmp_path / "two.txt", tmp_path / "two.html"
    file.write_text("H[i,j] = tanh(sum[k](A[i,k]*B[k,j]))\nC[i,j] = sum[k](H[i,k]*B[k,j])\nreturn C")
    given = (str(file), "--shape", "A=33,40", "--shape", "B=40,40")
    assert explained(capsys, *given)["layouts"] == []

    def decide(plan: Plan) -> LayoutDecision:
        (t,) = free_tensors(plan)
        return LayoutDecision({t: LayoutChoice((1, 0), (0, 1), 2.5e-6)})

    monkeypatch.setattr(pipeline, "layouts_of", lambda *_: decide)
    report = explained(capsys, *given, "--html", str(html))
    (layout,) = report["layouts"]
    assert layout == {
        "tensors": ["t1"], "type": "f32[33, 40]", "order": [1, 0], "layout": "dimension 0 innermost", "copies": False,
        "next": "as is, 2.5 us more", "more": 2.5e-6,
    }  # fmt: skip
    told = "f32[33, 40], dimension 0 innermost (next best: as is, 2.5 us more)"
    assert main.run(["explain", *given]) == 0 and f"layout: {told}: t1\n" in capsys.readouterr().out
    page = html.read_text()
    assert "<h2>Layouts</h2>" in page and "dimension 0 innermost" in page and "as is, 2.5 us more" in page
    assert any("at strides [1, 33]" in text for text in report["plan"])
    monkeypatch.setenv("EINSMITH_DUMP", str(tmp_path / "dump"))
    assert main.run(["explain", *given]) == 0
    assert f"layout of t1: {told}" in (tmp_path / "dump" / "program-0000" / "plan.txt").read_text()
