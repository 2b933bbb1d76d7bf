"""Kernels of a card are tuned as those of the CPU: in other processes, by its clock, before training and meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_call
from einsmith.base.errors import ArgumentError, CompileError, DeviceError
from einsmith.cli import main
from einsmith.driver import registry
from einsmith.driver.bound_program import BoundProgram
from einsmith.driver.cuda import Cuda
from einsmith.driver.executable import Executable
from einsmith.gpu.cuda.launches import TileCode
from einsmith.gpu.tiles.ir import TileBuilder, TileParameter
from einsmith.runtime.comparison import list_written_buffers
from einsmith.tuning.kernels import candidate_worker, database, records, session, workshop
from einsmith.tuning.kernels.measure import MachineCode
from einsmith.tuning.kernels.override import overriding
from einsmith.tuning.programs import dynamic, graph_search, kernel_search
from einsmith.tuning.programs.budget import Budget
from einsmith.tuning.programs.dynamic import Exploration
from tests.caches import CHOICES, forget
from tests.cuda.planted import CRASH, FASTEST, PlantedConfig

Insert = Callable[..., Cuda]
FORMULA = "y[i,j] = x[i,j] * 2.5 + x[j,i]"


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(database, "_unusable", {})
    monkeypatch.setattr(workshop.WorkshopProcess, "is_low", False)  # tests leave it no processor
    forget(CHOICES)


def compiled(formula: str, *arrays: np.ndarray, device: str | None = "cuda:0") -> BoundProgram:
    traced = trace_call(es.op(formula), arrays, {}, frozenset())
    return Executable(traced.graph, traced.bind, 1, target=registry.target_of(device, 1))


@pytest.fixture
def x() -> np.ndarray:
    return default_rng(1).standard_normal((9, 9)).astype(np.float32)


def text(way: str = "right", warps: int = 8) -> str:
    return f"planted tiles way={way} warps={warps} stages=1"


def recorded(run: BoundProgram, chosen: str) -> None:
    (call,) = run.calls
    records.record_choice(call.kernel, run.target, records.create(call.kernel, chosen, 1e-6, 0.0, 2e-6, 1))


def test_a_search_finds_what_is_fast_and_right(card: Insert, x: np.ndarray, monkeypatch) -> None:
    """The fastest configurations are wrong, or end the process that runs them."""
    monkeypatch.setattr(session, "THOROUGH", session.Effort(final_seconds=0.1))
    card(planted=True)
    run = compiled(FORMULA, x)
    want = run((x,))[1][0]
    report = kernel_search.tune(run, (x,), 30.0)
    (result,) = report.kept
    assert result.best is not None and result.best.config == PlantedConfig("right", FASTEST)
    assert result.seconds == pytest.approx(result.prior * FASTEST / 8)
    faults = {c.config.way: why for c, why in result.faults}
    assert "with other values in unwritten memory" in faults["wrong"] and "SIGABRT" in faults[CRASH]
    for made in (report.run, compiled(FORMULA, x)):
        (kernel,) = made.kernels
        assert kernel.tuned and kernel.decision == text(warps=FASTEST)
        np.testing.assert_array_equal(made((x,))[1][0], want)


def test_records_hold_for_one_kind_of_card(card: Insert, x: np.ndarray) -> None:
    card(planted=True)
    recorded(compiled(FORMULA, x), text(warps=4))
    assert compiled(FORMULA, x).kernels[0].tuned
    card(planted=True)
    assert compiled(FORMULA, x).kernels[0].tuned, "another one of the same kind"
    card(planted=True, name="h200")
    assert not compiled(FORMULA, x).kernels[0].tuned
    assert not compiled(FORMULA, x, device="cpu").kernels[0].tuned


def test_a_record_that_cannot_be_followed_is_said(card: Insert, x: np.ndarray) -> None:
    card(planted=True)
    recorded(compiled(FORMULA, x), text(warps=3))
    with pytest.warns(es.EinsmithWarning, match="is compiled as the cost model chooses: the record 'planted tiles"):
        (kernel,) = compiled(FORMULA, x).kernels
    assert "warps=8" in kernel.config and kernel.unfollowed and not kernel.tuned


def test_overrides(card: Insert, x: np.ndarray) -> None:
    card(planted=True)
    name = compiled(FORMULA, x).calls[0].kernel.digest.hex()
    with overriding({name: "planted tiles warps=4"}):
        (kernel,) = compiled(FORMULA, x).kernels
    assert "warps=4" in kernel.config and not kernel.tuned
    with pytest.raises(CompileError, match="warps=8\\|4\\|2"), overriding({name: "planted tiles warps=5"}):
        compiled(FORMULA, x)


def test_kernels_are_timed_by_the_card(card: Insert, x: np.ndarray) -> None:
    made = card(planted=True, lazy=True)
    run = compiled(FORMULA, x)
    (pattern,) = made.patterns
    pairs = [(pattern, PlantedConfig("right", n)) for n in (8, 2)]
    seconds = made.seconds_of(run.calls[0].kernel, pairs, run.target, 1)
    launches = len(run.kernels[0].launches)
    assert seconds == pytest.approx([8e-6 * launches, 2e-6 * launches])


def test_stores_beside_a_buffer_are_noticed(card: Insert, x: np.ndarray) -> None:
    runner = card(planted=True).runner
    run = compiled(FORMULA, x)
    (call,), (kernel,) = run.calls, run.kernels
    (out,) = list_written_buffers(call.kernel)
    b = TileBuilder("beside")
    place = b.parameter(TileParameter("f32", x.size + 1, out))
    b.store(place, b.const(x.size), b.const(1.0, "f32"))
    beside = TileCode(b.finish(1)), 1, False
    for launches, fault in (([], ""), ([beside], "memory was written 0 bytes behind the end of its buffer")):
        code = MachineCode([*kernel.launches, *launches], 0, kernel.workspace)
        found = candidate_worker.fault_of(runner.subject(call.kernel, run.target, 1, code, "", ""), None, 1)
        assert found == fault or (fault and found.startswith(fault))


def test_graphs_are_tuned_and_recorded(card: Insert, x: np.ndarray) -> None:
    made = card()
    softmax = "m[i] = max[k](x[i,k])\ns[i] = sum[k](exp(x[i,k] - m[i]))\ny[i,k] = exp(x[i,k] - m[i]) / s[i]"
    run = compiled(softmax, x)
    made.keep_graph_decisions(run.source_graph, run.target, frozenset({"without fuse"}), 1.0, 0.1, 2.0)
    assert made.find_graph_ratio(run.source_graph, run.target) == 0.5
    raced = graph_search.race(run, run.with_decisions({}), (x,), 0.05)
    assert raced is not None and raced.first > 0


def test_the_command_tunes_for_a_card(card: Insert, capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    card(planted=True)
    file = tmp_path / "formula.txt"
    file.write_text("y[i] = x[i] * 2.5")
    assert main.run(["tune", str(file), "--shape", "x=9", "--device", "cuda", "--seconds", "1"]) == 0
    assert f"planted tiles {PlantedConfig(warps=FASTEST)}  (was" in capsys.readouterr().out
    assert main.run(["tune", str(file), "--shape", "x=9", "--device", "tpu"]) == 1
    assert 'must be "cpu", "cuda", or a card by its number' in capsys.readouterr().err


class Steps:
    """A training step that explores, and how often it has compiled programs in which candidates run beside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mode: str = "dynamic") -> None:
        es.manual_seed(0)
        self.step = es.TrainStep(es.nn.Linear(3, 2), F.cross_entropy, es.optim.SGD(lr=0.1), mode=mode, device="cuda")
        self.batch = default_rng(3).standard_normal((5, 3)).astype(np.float32), np.arange(5) % 2
        self.compared = 0
        plain = BoundProgram.with_decisions

        def counted(run: BoundProgram, texts: Any, compare: bool = False) -> BoundProgram:
            self.compared += compare
            return plain(run, texts, compare)

        monkeypatch.setattr(BoundProgram, "with_decisions", counted)

    def run(self, seconds: float) -> list[float]:
        losses, end = [self.step(*self.batch)], time.monotonic() + seconds
        (run,) = self.step.compiler.programs.values()
        while not run.note.exploration.over and time.monotonic() < end:
            losses.append(self.step(*self.batch))
            time.sleep(0.03)
        return losses + [self.step(*self.batch) for _ in range(3)]


def test_training_goes_on_while_kernels_are_tuned(card: Insert, monkeypatch) -> None:
    monkeypatch.setattr(dynamic, "MAX_COST_SHARE", 1e9)
    monkeypatch.setattr(dynamic, "MIN_KERNEL_SHARE", 0.0)
    monkeypatch.setattr(Exploration, "try_seconds", 0.0)
    nothing = property(lambda own: 0.0, lambda own, share: None)
    monkeypatch.setattr(Budget, "waiting_share", nothing, raising=False)
    monkeypatch.setattr(type(registry.DEFAULT), "workshop", None)  # nothing starts one of the CPU
    device = card(planted=True).card.device
    steps = Steps(monkeypatch)
    losses = steps.run(60.0)
    (run,) = steps.step.compiler.programs.values()
    x = run.note.exploration
    assert x.over.startswith("what is left to gain does not pay"), x.log
    kept = {k: c.decision for k, c in zip((c.kernel for c in run.calls), run.kernels, strict=True)}
    assert x.kept and all(kept[k] == chosen for k, chosen in x.kept.items())
    assert text(warps=FASTEST) in x.kept.values()
    assert any("rejected" in line and "way=wrong" in line for line in x.log)
    assert any("rejected" in line and "SIGABRT" in line for line in x.log)
    # Candidates that run beside the program's kernels are more launches. All other programs share one graph, and one
    # that is timed.
    assert device.graphs == 2 + steps.compared and device.swaps > 0
    assert len(run.program.flights) == 1
    steps.step.fit([steps.batch] * 3, progress=False)
    assert len(run.program.flights) == 2, "steps begin before the last one has ended"
    forget(CHOICES)
    card(planted=True)
    again = Steps(monkeypatch, "static").step
    assert losses == [again(*steps.batch) for _ in losses]
    (run,) = again.compiler.programs.values()
    assert all(k.tuned for c, k in zip(run.calls, run.kernels, strict=True) if c.kernel in x.kept)


def test_a_program_of_other_kernels_swaps_nodes(card: Insert, x: np.ndarray) -> None:
    device = card(planted=True).card.device
    run = compiled("m[i] = max[k](x[i,k])\ny[i,j] = sum[k](x[i,k] * x[k,j]) * m[j]", x)
    want = run((x,))[1][0]
    kernel = run.calls[0].kernel
    other = run.with_decisions({kernel: text(warps=4)})
    assert device.graphs == 1
    for made, count in ((other, 1), (run, 2), (run, 2), (other, 3)):
        np.testing.assert_array_equal(made((x,))[1][0], want)
        assert device.swaps == count * len(run.kernels[0].launches)
    run.swap(other)
    np.testing.assert_array_equal(run((x,))[1][0], want)
    assert device.graphs == 1 and run.kernels[0].decision == text(warps=4)
    beside = run.with_decisions({kernel: text("wrong", 1)}, compare=True)
    np.testing.assert_array_equal(beside((x,))[1][0], want)
    (result,) = beside.comparisons.values()
    assert "elements differ" in result.difference() and device.graphs == 2


def test_a_card_that_is_not_there_is_not_tuned(x: np.ndarray) -> None:
    run = compiled(FORMULA, x, device="h100")
    for ask in (
        lambda: run.backend.tune([], run.target, 1, 1.0, lambda *_: None),
        lambda: run.backend.workshop(),
    ):
        with pytest.raises(DeviceError, match="which is not in this machine, and cannot run"):
            ask()
    with pytest.raises(ArgumentError, match="mode='fast' is not available"):
        es.TrainStep(es.nn.Linear(2, 2), F.mse_loss, es.optim.SGD(lr=0.1), device="cuda", mode="fast")
