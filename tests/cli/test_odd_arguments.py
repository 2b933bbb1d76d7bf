"""Odd arguments of every command end in an error that a user can act on, and in no trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from einsmith.cli import main

HUGE_NPY = b"\x93NUMPY\x01\0\x76\0" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(
    117
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    place = tmp_path_factory.mktemp("odd")
    (place / "formula").write_text("y[i] = x[i] + 1")
    (place / "indices").write_text("y[i] = x[n[i]]")
    (place / "empty").write_text("")
    (place / "binary").write_bytes(b"\xff\xfe\0y")
    (place / "broken.py").write_bytes(b"\xff\xfe\0y")
    (place / "ends.py").write_text("raise SystemExit(3)")
    (place / "bare.py").write_text("step = 3\ninputs = object()")
    (place / "op.py").write_text("import einsmith as es\nop = es.op('y[i] = x[i]')\ninputs = 'text'")
    (place / "huge.npy").write_bytes(HUGE_NPY + b"\n")
    (place / "text.npy").write_text("no array")
    (place / "text.npz").write_text("no arrays")
    (place / "bad.onnx").write_bytes(b"\xff\xfe\0y")
    (place / "a folder").mkdir()
    np.savez(place / "data.npz", x=np.ones((64, 3), np.float32), y=np.arange(64) % 2)
    np.savez(place / "short.npz", x=np.ones((1, 3), np.float32), y=np.zeros(1, np.int64))
    np.savez(place / "words.npz", x=np.array(["a", "b"]), y=np.zeros(2, np.int64))
    np.savez(place / "numbers.npz", x=np.float32(3), y=np.int64(3))
    np.save(place / "x.npy", np.ones((2, 3), np.float32))
    weights = numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])], [weights],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), place / "net.onnx")
    return place


WRONG = [  # an argument, and what its error says
    ("explain formula --shape x=-4", "whole numbers of at least 0"),
    ("explain formula --shape x=1,2.5", "whole numbers"),
    ("explain formula --shape x=99999999999999999999", "more elements than memory can hold"),
    ("explain formula --shape x=0,99999999999999999999", "more elements than memory can hold"),
    (f"explain formula --shape x={'9' * 5000}", "whole numbers"),
    ("explain formula --shape x=1099511627776", "memory"),
    ("explain formula --shape x=2,2", "x"),
    ("explain formula --shape x", "NAME=VALUE"),
    ("explain formula --shape y=3 --shape x=3", "no input y"),
    ("explain formula --shape x=4 --set s=many", "takes a number"),
    ("explain formula --shape x=4 --threads 100000", "threads"),
    ("explain formula --shape x=4 --threads 0", "threads"),
    ("explain formula --shape x=4 --candidates -1", "candidates"),
    ("explain formula --shape x=4 --memory-limit -1", "memory-limit"),
    ("explain formula --shape x=4 --memory-limit 1e400", "memory-limit"),
    ("explain formula --shape x=4 --device tpu", "device"),
    ("explain formula --shape x=4 --device cuda:99999999999999999999", "cuda"),
    ("explain formula --shape x=4 --override zz", "does not name a kernel"),
    ("explain formula --shape x=4 --dump formula", "file"),
    ("explain formula --shape x=4 --trace missing/trace.json", "cannot be written"),
    ("explain formula --shape x=4 --html missing/page.html", "cannot be written"),
    ("explain indices --shape x=0 --shape n=3", ""),
    ("explain empty", "formula"),
    ("explain binary", "UTF-8"),
    ("explain broken.py", "broken.py"),
    ("explain ends.py", "ends.py"),
    ("explain bare.py", "step"),
    ("explain missing", "missing"),
    ("explain", "argument"),
    ("explain bad.onnx", "bad.onnx"),
    ("explain net.onnx --shape x=-1,3", "whole numbers"),
    ("explain net.onnx --shape x=2,3,4", ""),
    ("explain net.onnx --shape z=2,3", "no input z"),
    ("explain net.onnx --batch 0", "batch"),
    ("explain mlp3 --batch 99999999999999999999", ""),
    ("explain mlp3 --set width=-3", ""),
    ("explain mlp3 --ranks 4 --network fast", "network"),
    ("run net.onnx", "input is missing"),
    ("run net.onnx --input huge.npy", "huge.npy"),
    ("run net.onnx --input text.npy", "text.npy"),
    ("run net.onnx --input binary", "binary"),
    ("run net.onnx --input missing.npy", "missing.npy"),
    ("run net.onnx --input x.npy --input x.npy", "takes 1 inputs"),
    ("run net.onnx --input x.npy --threads 100000", "threads"),
    ("run net.onnx --input x.npy --output out.txt", ".npz"),
    ("run net.onnx --input x.npy --output missing/out.npz", "cannot be written"),
    ("run formula", "not an ONNX file"),
    ("run missing.onnx", "missing.onnx"),
    ("train net.onnx --data data.npz --epochs 1 --threads 100000", "threads"),
    ("train net.onnx --data data.npz --epochs 0", "epochs"),
    ("train net.onnx --data data.npz --epochs 1 --batch 0", "batch"),
    ("train net.onnx --data data.npz --epochs 1 --lr nan", ""),
    ("train net.onnx --data data.npz --epochs 1 --lr inf", ""),
    ("train net.onnx --data data.npz --epochs 1 --seed 99999999999999999999999", ""),
    ("train net.onnx --data data.npz --epochs 1 --optimizer nothing", "nothing"),
    ("train net.onnx --data data.npz --epochs 1 --ema 1", "ema"),
    ("train net.onnx --data data.npz --epochs 1 --accumulate 0", "accumulate"),
    ("train net.onnx --data data.npz --epochs 1 --save formula", "formula"),
    ("train net.onnx --data data.npz --epochs 1 --resume formula", "formula"),
    ("train net.onnx --data short.npz --epochs 1", ""),
    ("train net.onnx --data words.npz --epochs 1", ""),
    ("train net.onnx --data numbers.npz --epochs 1", ""),
    ("train net.onnx --data text.npz --epochs 1", "text.npz"),
    ("train net.onnx --data missing.npz --epochs 1", "missing.npz"),
    ("train mlp3 --data binary", "binary"),
    ("train nothing", "nothing"),
    ("export mlp3 formula", "formula"),
    ("export mlp3 out --target z80", "z80"),
    ("export mlp3 out --name 3+4", "name"),
    ("export mlp3 out --compiler missing-compiler", "missing-compiler"),
    ("export missing out", "missing"),
    ("shrink missing.py", "missing.py"),
    ("shrink broken.py", "broken.py"),
    ("shrink bare.py", "op"),
    ("shrink op.py", ""),
    ("shrink op.py --seconds nan", ""),
    ("bench nothing", "nothing"),
    ("bench mlp3 --peers nothing", "nothing"),
    ("bench mlp3 --cap nan", ""),
    ("tune --import text.npz", "text.npz"),
    ("tune --import missing", "missing"),
    ("tune --export missing/file", "missing/file"),
    ("tune --forget zzzz", "zzzz"),
    ("tune formula", "shape"),
    ("tune formula --shape x=-4 --seconds 1", "whole numbers"),
    ("tune formula --shape x=4 --seconds 0", "seconds"),
    ("tune formula --shape x=4 --seconds 1 --workers nothing:nobody", "nothing"),
    ("tune binary --seconds 1", "UTF-8"),
    ("nothing", "nothing"),
    ("info --threads 3", "threads"),
]
SLOW = ("explain mlp3", "bench mlp3 --cap", "shrink op", "export mlp3 out --compiler", "--seed 9", "--lr")


def is_slow(command: str) -> bool:
    return any(text in command for text in SLOW)


@pytest.mark.parametrize(
    "command, says", [pytest.param(*c, id=c[0][:60], marks=[pytest.mark.slow] * is_slow(c[0])) for c in WRONG]
)
def test_an_odd_argument_is_named(folder, monkeypatch, capsys, command, says):
    """Whatever is printed, it is no fault of Einsmith, and no trace; where there is an error, it names its place."""
    monkeypatch.chdir(folder)
    status = main.run(command.split(" "))
    errors = capsys.readouterr().err
    assert status in (main.OK, main.FAILED, main.WRONG_USE), errors
    assert "a fault of Einsmith" not in errors and "Traceback" not in errors
    if says:
        assert status != main.OK and says in errors, errors


@pytest.mark.thinned(6)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    "command, says",
    [("explain formula --shape x=4 --html /dev/full", "/dev/full"),
     ("explain formula --shape x=4 --trace /dev/full", "/dev/full"),
     ("run net.onnx --input x.npy", "No space left"), ("info", "No space left"), ("cache --json", "No space left"),
     ("tune --export /dev/full", "/dev/full")],
)  # fmt: skip
def test_a_full_disk(folder, command, says):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "einsmith.cli.main", *command.split()], cwd=folder, timeout=120, stdout=full,
            stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    assert done.returncode == main.FAILED and says in done.stderr, done.stderr
    assert "a fault of Einsmith" not in done.stderr and "Traceback" not in done.stderr, done.stderr
