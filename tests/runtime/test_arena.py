"""The shapes of a function, and the batch shapes of a training step, share the memory of intermediate results."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.base import environment
from einsmith.driver import bound_program, executable
from einsmith.runtime.arena import Arena
from einsmith.runtime.program import Program
from tests.caches import CODE, bound
from tests.programs import arena_of, entries_of, programs_of

pytestmark = pytest.mark.skipif(bool(environment.check_level()), reason="checked programs have memory of their own")

scan = es.op("h[t,b] = tanh(x[t,b] + sum[c](where(t > 0, h[t-1,c], 0.0) * U[c,b]))")


def loss(x, u):
    """Products of intermediate results, and a recurrence, which has a workspace and moves its pointers."""
    y = es.functional.softmax(x @ u, 1)
    return (scan(y, u) @ u).sum() + (y * y).sum()


gradients = es.value_and_grad(loss, (0, 1))


def arguments(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, 17)), rng.standard_normal((17, 17)) / 4


def agree(found, n: int) -> None:
    value, grads = es.interpret(gradients)(*arguments(n))
    np.testing.assert_allclose(found[0], value, rtol=1e-11)
    for a, b in zip(found[1], grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def programs(f) -> list[executable.Executable]:
    return programs_of(f)


def poison(f) -> None:
    """What is not written yet is not used: all bits set is no number."""
    arena_of(f).block.array.fill(0xFF)


def test_shapes_share_one_block_as_large_as_the_largest_needs() -> None:
    f = es.jit(lambda x, u: gradients(x, u))
    for n in (16, 1, 31, 7, 64, 31, 1, 16):  # larger ones make the block move; smaller ones stay
        for _ in range(2):
            if programs(f):
                poison(f)
            agree(f(*arguments(n)), n)
    assert len(programs(f)) == 5
    assert arena_of(f).block.array.nbytes == max(run.binding.reserved for run in programs(f))
    assert {run.arena.ctypes.data for run in programs(f)} == {arena_of(f).block.address}
    assert all(run.program.scratch.nbytes == 0 for run in programs(f))


def test_shapes_run_in_threads_at_once_while_the_block_grows() -> None:
    f = es.jit(lambda x, u: gradients(x, u))
    sizes = (5, 33)
    want = {n: f(*arguments(n)) for n in sizes}
    for n in sizes:
        agree(want[n], n)
    failed: list[object] = []
    ended = threading.Event()

    def run(n: int) -> None:
        x, u = arguments(n)
        try:
            while not ended.is_set():
                found = f(x, u)
                time.sleep(0.002)  # so that compiling goes on beside it
                if found[0] != want[n][0] or any((a != b).any() for a, b in zip(found[1], want[n][1], strict=True)):
                    failed.append(n)
                    return
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(n,)) for n in sizes]
    for t in threads:
        t.start()
    known = arena_of(f).block.number
    for n in (40, 50):
        agree(f(*arguments(n)), n)
    for _ in range(25):
        arena_of(f).clear()
        f(*arguments(3))
    ended.set()
    for t in threads:
        t.join()
    assert not failed and arena_of(f).block.number > known + 2


def test_memory_goes_with_the_last_program_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    f, g = es.jit(lambda x, u: gradients(x, u)), es.jit(lambda x: x + 1)
    agree(f(*arguments(20)), 20)
    (run,) = programs(f)
    x, u = arguments(20)
    monkeypatch.setattr(bound_program.PROGRAMS, "entries", 1)
    assert (g(x) == x + 1).all()
    assert not programs(f) and arena_of(f).block.array.nbytes == 0 and not any(entries_of(f))
    _, outputs = run([x, u])  # whoever still has the program runs it
    agree((outputs[0], outputs[1:]), 20)
    agree(f(x, u), 20)
    assert not programs(g)


def test_an_arena_grows_and_does_not_shrink() -> None:
    a, b = Arena(), Arena()
    first = a.reserve(100)
    assert a.reserve(50) is first is not b.reserve(100)
    assert a.reserve(101) is a.block is not first and a.block.array.nbytes == 101


def test_timing_of_kernels_moves_with_the_block() -> None:
    f = es.jit(lambda x, u: gradients(x, u))
    f(*arguments(9))
    (run,) = programs(f)
    f(*arguments(40))
    assert len(run.time_calls(arguments(9), 2)) == len(run.kernels)
    agree(f(*arguments(9)), 9)


def test_an_interrupted_move_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a forked child with what another thread had half moved."""
    f = es.jit(lambda x, u: gradients(x, u))
    f(*arguments(9))
    (run,) = programs(f)

    def offsets() -> list[int]:
        return [int(x) - run.arena.ctypes.data for x in run.program.table[run.binding._inside]]

    known = offsets()
    assert len(known) > 5 and min(known) >= 0 and max(known) < run.arena_bytes
    arena_of(f).reserve(1 << 22)

    def interrupted(self: object, address: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr(Program, "move_scratch", interrupted)
        run(list(arguments(9)))
    run.binding.move()
    assert offsets() == known
    agree(f(*arguments(9)), 9)


def trained(sizes: list[int]) -> tuple[es.TrainStep, list[float]]:
    """A step after batches of these sizes, and the losses."""
    model = nn.Sequential(nn.Linear(11, 9), nn.ReLU(), nn.Dropout(0.25), nn.Linear(9, 5))
    rng = np.random.default_rng(0)
    for p in model.parameters():
        p.data[...] = rng.standard_normal(p.data.shape).astype(p.data.dtype) / 3
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.Adam(lr=1e-2), seed=5, threads=2)
    losses = []
    for k, n in enumerate(sizes):
        r = np.random.default_rng(k)
        losses.append(step(r.standard_normal((n, 11)).astype(np.float32), r.integers(0, 5, n)))
    return step, losses


@pytest.mark.slow
def test_training_with_changing_batch_sizes_is_the_same_with_few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [1, 16, 7, 16, 1, 33, 7, 1]
    plain, losses = trained(sizes)
    assert len(plain.compiler.programs) == len(set(sizes))
    assert plain.compiler.arena.block.array.nbytes == max(
        run.binding.reserved for run in plain.compiler.programs.values()
    )
    for narrow in (bound_program.PROGRAMS, bound(CODE)):
        monkeypatch.setattr(narrow, "entries", 2)
    few, again = trained(sizes)
    assert again == losses and len(few.compiler.programs) <= 2
    for (name, a), (_, b) in zip(plain.store.arrays(), few.store.arrays(), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    assert few.steps == plain.steps == len(sizes)


def test_a_step_without_programs_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    step, _ = trained([8])
    with monkeypatch.context() as m:
        m.setattr(bound_program.PROGRAMS, "entries", 1)
        es.jit(lambda x: x + 2)(np.ones(3))
    assert not step.compiler.programs and step.compiler.arena.block.array.nbytes == 0
    assert np.isfinite(step(np.ones((8, 11), np.float32), np.zeros(8, np.int64))) and step.steps == 2
