"""The kernel benchmark: shapes are those of the networks, formulations mean the same, verdicts are right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import kernel_cases, kernels, report, worker
from benchmarks.convolutions import NETWORKS, Conv, distinct
from benchmarks.kernel_cases import CASES, GROUPS, Case, Group, Line
from benchmarks.peers import LAST, Form
from benchmarks.run import _summarize
from benchmarks.verify import error


@pytest.mark.parametrize(
    ("network", "convolutions", "macs"),
    [("resnet18", 20, 1.814), ("resnet50", 53, 4.087), ("mobilenet_v2", 52, 0.2995), ("efficientnet_lite0", 49, 0.3836),
     ("shufflenet", 49, 0.138)],
)  # fmt: skip
def test_networks_are_those_of_the_papers(network: str, convolutions: int, macs: float) -> None:
    """Numbers of convolutions and multiply-adds (billions) as published, without the classifier's."""
    found = list(NETWORKS[network]())
    assert len(found) == convolutions
    assert sum(c.macs(1) for c in found) / 1e9 == pytest.approx(macs, rel=0.03)
    assert len(set(distinct(network))) == len(distinct(network)) < convolutions


def test_every_row_of_the_table_is_there() -> None:
    assert len(CASES) == len({c.name for g in GROUPS.values() for c in g.cases}) > 200
    assert {g.threads for g in GROUPS.values()} == {1, 2}
    both = {c.name.rsplit("-", 1)[0] for c in GROUPS["ResNet 3x3 stride 1"].cases}
    assert both == {f"conv-{Conv(n, n, 3, 1, 1, s)}" for n, s in ((64, 56), (128, 28), (256, 14), (512, 7))}
    assert len(GROUPS["products, 1 thread"].cases) == 16


def tiny() -> list[Case]:
    """A case of every kind and direction, small and of awkward sizes.

    The strided 1x1 convolution has 8 input channels: with 3 to 5, PyTorch 2.13 writes past its buffers on processors
    without AVX-512 where the memory of the image is NHWC.
    """
    cases = [kernel_cases.product(3, 5, 7, way) for way in ("nn", "nt", "tn", "tt")]
    cases += [kernel_cases.product(3, 4, 5, way, batch=6) for way in ("nn", "tt")]
    for conv in (Conv(3, 5, 3, 2, 1, 7), Conv(6, 6, 5, 1, 6, 6), Conv(6, 4, 1, 1, 2, 5), Conv(8, 3, 1, 2, 1, 6)):
        cases += kernel_cases.convolution(conv, 2)
    cases += [c for layer in (1, 2) for c in kernel_cases.lenet_convolution(layer, 2)]
    cases += [c for stride in (1, 2) for c in kernel_cases.capsule(stride, 2, 3, 6)]
    return cases + list(kernel_cases.streaming("tiny", (6, 16), (2, 3, 4, 4)))


TINY = {c.name: c for c in tiny()}


def results(library: str, peer: str, case: Case) -> dict[str, dict[str, np.ndarray]]:
    out = {}
    for variant in worker.variants(case, peer):
        session = worker.build(case, case.arrays(), 1, peer, variant)
        session.step()
        out[f"{peer}: {variant}"] = {n: a.copy() for n, a in session.results().items()}
    return out


@pytest.mark.thinned(10)
@pytest.mark.parametrize("name", TINY)
def test_formulations_mean_the_same(name: str, torch) -> None:
    case = TINY[name]
    (reference,) = results("torch", "reference", case).values()
    assert set(reference) == set(case.results) and all(a.dtype == np.float64 for a in reference.values())
    for found in (results("einsmith", "einsmith", case), results("torch", "torch", case)):
        for variant, got in found.items():
            assert not error(got, reference), variant


@pytest.mark.slow
@pytest.mark.parametrize("library", ["jax", "tensorflow"])
def test_other_libraries_mean_the_same(library: str, torch) -> None:
    pytest.importorskip(library)
    for case in TINY.values():
        (reference,) = results("torch", "reference", case).values()
        for variant, got in results(library, library, case).items():
            assert not error(got, reference), f"{case.name}: {variant}"


def test_bytes_are_those_that_must_move() -> None:
    forward, dx, dw = kernel_cases.convolution(Conv(3, 5, 3, 2, 1, 7), 2)
    x, w, y = 2 * 3 * 49, 5 * 3 * 9, 2 * 5 * 16
    assert (forward.nbytes, dx.nbytes, dw.nbytes) == tuple([4 * (x + w + y)] * 3)
    assert forward.flops == 2 * y * 27
    pooled = list(kernel_cases.lenet_convolution(2, 3))
    assert pooled[1].results == ("Y", "dX") and pooled[2].results == ("Y", "dW", "dbias")


def test_a_wrong_corner_is_seen() -> None:
    reference = {"Y": np.ones((1000, 100))}
    got = {"Y": np.ones((1000, 100), np.float32)}
    assert not error(got, reference)
    got["Y"][-1, -1] += 0.01
    assert "Y" in error(got, reference)
    got["Y"][-1, -1] = np.nan
    assert error(got, reference) and error({"Y": got["Y"][1:]}, reference)


def test_arrays_go_to_a_peers_order_and_back(rng: np.random.Generator) -> None:
    form = Form(lambda x: x, {"X": LAST, "Y": LAST})
    a = rng.standard_normal((2, 3, 4, 5))
    assert form.to_peer("X", a).shape == (2, 4, 5, 3)
    for name in ("X", "dX", "G", "Y"):
        assert np.array_equal(form.from_peer(name, form.to_peer(name, a)), a)
    assert form.to_peer("W", a) is a


def cell(flops: float, **milliseconds: float) -> dict:
    peers = {p: {"status": "ok", "rounds": [1e-3 * m] * 3} for p, m in milliseconds.items()}
    out = {"flops": flops, "nbytes": 0, "threads": 2, "verified": True, "peers": peers}
    _summarize(out, 1e11)
    return out


def test_verdicts() -> None:
    ratio, torch, peak = Line("ratio", 2.0), Line("torch", 2.0), Line("peak", 80)
    fast, slow = cell(1e8, einsmith=2, torch=5, jax=4), cell(1e8, einsmith=2, torch=5, jax=3)
    assert kernels.score(fast, ratio) == pytest.approx(1) and kernels.score(slow, ratio) == pytest.approx(0.75)
    near = cell(1e8, einsmith=1.1, jax=1.1)
    assert kernels.score(near, ratio) == pytest.approx(100 / 1.1 / 85), "the roofline stands for the ratio"
    assert kernels.score(near, torch) is None
    assert kernels.score(cell(1e8, einsmith=1, torch=1.5), torch) is None, "the library is at the peak itself"
    assert kernels.score(fast, torch) == pytest.approx(1.25)
    assert kernels.score(near, peak) == pytest.approx(100 / 1.1 / 80)
    assert kernels.judge([fast, near], ratio)[2] and not kernels.judge([near, near, slow], ratio)[2]
    assert kernels.judge([near], torch) == (None, None, True)
    failed = cell(1e8, jax=1)
    assert kernels.judge([fast, failed], ratio) == (0.0, 0.0, False)


def test_unsteady_cases_run_again_and_the_steadiest_run_counts(tmp_path: Path, monkeypatch) -> None:
    """Whoever is ahead in it; spread of slow peers does not matter."""

    def rounds(ours: float, jax: float, spread: float, far: float = 0.0) -> dict:
        out = cell(1e8, einsmith=ours, jax=jax, torch=9.0)
        times = {"einsmith": (ours, spread), "jax": (jax, 0.0), "torch": (9.0, far)}
        for peer, (t, s) in times.items():
            out["peers"][peer] |= {"median": t, "low": t * (1 - s / 2), "high": t * (1 + s / 2)}
        return out

    assert report.unsteadiness(rounds(1.0, 2.0, 0.3, 0.9)) == pytest.approx(0.3)
    assert report.unsteadiness(rounds(1.0, 8.0, 0.3, 0.9)) == pytest.approx(0.9)
    calls: list[str] = []
    spreads = {0: [0.01], 1: [0.5, 0.2, 0.3], 2: [0.5, 0.6, 0.05]}
    group = Group("small", tuple(tiny()[:3]), (Line("ratio", 0.9),))
    names = [c.name for c in group.cases]

    def fake(case, peers, threads, pace, cap, say, crew, keeper):
        n = calls.count(case.name)
        calls.append(case.name)
        return rounds(1.0 + n, 2.0, spreads[names.index(case.name)][n])

    monkeypatch.setattr(kernels, "GROUPS", {"small": group})
    monkeypatch.setattr(report, "run_problem", fake)
    path = tmp_path / "kernels.json"
    kernels.main(["--json", str(path), "--peers", "jax,torch"])
    cells = json.loads(path.read_text())["cells"]
    assert calls == [*names, *names[1:], *names[1:]]
    assert [cells[k]["peers"]["einsmith"]["median"] for k in cells] == [1.0, 2.0, 3.0]
    assert [cells[k]["runs"] for k in cells] == [1, 3, 3]
    kernels.main(["--json", str(path), "--peers", "jax,torch"])  # what an earlier run left is finished
    assert len(calls) == 7


def test_an_interrupted_run_resumes(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []

    def fake(case, peers, threads, pace, cap, say, crew, keeper):
        calls.append(case.name)
        return cell(1e8, **{p: 2.0 for p in peers})

    group = Group("small", tuple(tiny()[:3]), (Line("ratio", 0.9),))
    monkeypatch.setattr(kernels, "GROUPS", {"small": group})
    monkeypatch.setattr(report, "run_problem", fake)
    path = tmp_path / "kernels.json"
    assert kernels.main(["--only", "product-3x5x7-nt", "--json", str(path)]) == 0
    assert calls == ["product-3x5x7-nt"]
    assert kernels.main(["--json", str(path), "--seconds", "-1"]) == 0 and len(calls) == 1
    assert kernels.main(["--json", str(path)]) == 0
    assert sorted(calls) == sorted(c.name for c in group.cases)
    assert kernels.main(["--json", str(path), "--summary"]) == 0 and len(calls) == 3
    assert "holds" in capsys.readouterr().out and len(json.loads(path.read_text())["cells"]) == 3
    with pytest.raises(SystemExit):
        kernels.main(["--only", "nothing"])
