"""A program with other decisions about its kernels: on the same memory, without another run of the passes; and kernels
that run beside the program's own, whose results are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import ArgumentError, CompileError
from einsmith.driver import cpu
from einsmith.driver.backend import Backend
from einsmith.driver.executable import Executable
from einsmith.kernels import autoconfig
from einsmith.runtime.comparison import ZONE_BYTES, Comparison
from einsmith.schedule.kernel import Kernel
from einsmith.training.definition import batch_arrays
from einsmith.tuning.kernels.decisions import format_choice

RNG = np.random.default_rng(0)


class Recurrent(es.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = es.nn.LSTM(5, 16, batch_first=True), es.nn.Linear(16, 10)

    def forward(self, x):
        h, _ = self.cell(x)
        return self.head(h[:, -1])


class Embedded(es.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = es.nn.Embedding(40, 24), es.nn.LayerNorm(24), es.nn.Linear(24, 10)

    def forward(self, ids):
        return self.head(self.norm(self.table(ids)).mean(1))


def convolutional() -> es.nn.Module:
    return es.nn.Sequential(
        es.nn.Conv2d(3, 8, 3, padding=1), es.nn.BatchNorm2d(8), es.nn.ReLU(), es.nn.MaxPool2d(2),
        es.nn.Conv2d(8, 12, 3, stride=2), es.nn.Flatten(), es.nn.Linear(12 * 3 * 3, 10),
    )  # fmt: skip


NETWORKS = {
    "convolutional": (convolutional, RNG.standard_normal((8, 3, 16, 16), np.float32)),
    "recurrent": (Recurrent, RNG.standard_normal((7, 9, 5), np.float32)),
    "embedded": (Embedded, RNG.integers(0, 40, (6, 11))),
}


def step(name: str, threads: int = 1, **options: Any) -> tuple[es.TrainStep, Executable, list[np.ndarray]]:
    make, x = NETWORKS[name]
    es.manual_seed(0)
    made = es.TrainStep(
        make(), es.functional.cross_entropy, es.optim.SGD(lr=0.1, momentum=0.9), threads=threads, **options
    )
    batch = batch_arrays((x, np.arange(len(x)) % 10))
    run = made.compiler.find_or_compile(batch)
    made.parts.set_numbers(batch)
    return made, run, batch


def alternatives(run: Executable, nth: int) -> dict[Kernel, str]:
    """Another configuration of every kernel that has one."""
    found = {}
    for call in run.calls:
        others = autoconfig.choose(call.kernel, run.target).alternatives
        if len(others) > 1:
            name, config, _ = others[1 + nth % (len(others) - 1)]
            found[call.kernel] = format_choice(autoconfig.pattern_of(name), config)
    return found


def is_stored(x: Comparison) -> bool:
    """Whether both have made anything but zeros: what depends on the past is zero in a first turn."""
    return all(any(b.array[ZONE_BYTES:-ZONE_BYTES].any() for b in blocks) for blocks in x.results)


def is_noise(x: Comparison) -> bool:
    """Whether a result is what is left of terms that cancel: the gradient of a bias before a batch norm."""
    made = zip(x.written, x.results[0], strict=True)
    return any(
        np.abs(b.array[ZONE_BYTES:-ZONE_BYTES].view(x.kernel.buffers[n].dtype.numpy)).max() < 1e-7 for n, b in made
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "convolutional")) for n in NETWORKS])
def test_programs_take_turns_on_one_memory(name: str) -> None:
    _, plain, batch = step(name)
    want = [float(plain(batch)[1][0]) for _ in range(6)]
    _, run, batch = step(name)
    texts = alternatives(run, 0)
    other = run.with_decisions(texts)
    assert other.plan is run.plan and other.bound is run.bound and other.memory.arena is run.memory.arena
    assert [k.decision for k in other.kernels] == [texts.get(c.kernel, "") for c in run.calls]
    assert {k.decision for k in run.kernels} == {""}
    found = []
    for n in range(6):  # parameters and state go on from one to the other
        if n % 2:
            status, outputs, seconds = other.run_timed(batch)
            assert status == 0 and len(seconds) == len(run.calls) and min(seconds) > 0
        else:
            _, outputs = run(batch)
        found.append(float(outputs[0]))
    np.testing.assert_allclose(found, want, rtol=1e-5)
    back = other.with_decisions(dict.fromkeys(texts, ""))
    assert back.kernels == run.kernels


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_alternative_kernels_agree(name: str, threads: int, count: int) -> None:
    _, plain, batch = step(name, threads)
    want = [plain(batch)[1][0] for _ in range(count)]
    _, run, batch = step(name, threads)
    for n in range(count):
        program = run.with_decisions(alternatives(run, n), compare=True)
        assert program.kernels == run.kernels
        assert program(batch)[1][0] == want[n], "the program itself goes on as it is"
        assert program.comparisons
        for x in program.comparisons.values():
            assert x.difference() == "" or is_noise(x), x.other.config
        assert sum(map(is_stored, program.comparisons.values())) > len(program.comparisons) // 2


def test_faults_of_alternative_kernels_are_found() -> None:
    _, run, batch = step("convolutional")
    program = run.with_decisions(alternatives(run, 0), compare=True)
    program(batch)
    for x in program.comparisons.values():
        buffer, made = x.kernel.buffers[x.written[0]], x.results[1][0].array
        if not buffer.dtype.is_float or is_noise(x) or not is_stored(x):
            continue
        values = made[ZONE_BYTES:-ZONE_BYTES].view(buffer.dtype.numpy)
        at = int(np.argmax(np.abs(values)))
        values[at] *= 1.01
        assert f"buffer {x.written[0]}: 1 of" in x.difference()
        values[at] = np.nan
        assert "the first is nan" in x.difference()
        x.clear()
        assert x.difference() == ""
        made[ZONE_BYTES - 1] = 0
        assert "memory beside" in x.difference()


def test_impossible_decisions_are_rejected() -> None:
    _, run, _ = step("convolutional")
    with pytest.raises(CompileError, match="must begin with a pattern"):
        run.with_decisions({run.calls[0].kernel: "nonsense"})
    with pytest.raises(CompileError, match="always compiled to the cost model's choice"):
        Backend.compile_as(cpu.CPU, {}, run.target)


def test_the_limit_of_memory_holds_for_other_decisions_too() -> None:
    _, run, _ = step("convolutional", memory_limit="10MB")
    assert run.with_decisions({}).held_bytes <= 10 << 20
    run.memory.most = run.held_bytes - 1  # as if another decision needed more
    with pytest.raises(ArgumentError, match="more than memory_limit="):
        run.with_decisions({})
