"""Programs that run on memory of the device, which the caller gives, in the caller's stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.errors import IndexOutOfRange
from einsmith.driver import registry
from einsmith.driver.cuda import Cuda
from einsmith.driver.executable import Executable

Insert = Callable[..., Cuda]


class Held:
    """Arrays in the device's memory."""

    def __init__(self, made: Cuda):
        self.device = made.card.device

    def put(self, array: np.ndarray, shift: int = 0) -> int:
        at = self.device.allocate(array.nbytes + shift + 64) + shift
        self.device.upload(at, array, 7)
        return at

    def get(self, address: int, like: np.ndarray) -> np.ndarray:
        out = np.empty_like(like)
        self.device.download(out, address, 7)
        return out


def program(f: Callable, *arrays: np.ndarray) -> Executable:
    traced = trace_call(f, arrays, {})
    return Executable(traced.graph, traced.bind, 1, target=registry.target_of("cuda:0", 1), origins=traced.origins)


def f(x, w):
    h = es.functional.tanh(x @ w)
    return h, (h * h).sum(0), x


@pytest.mark.parametrize("shift", [0, 4], ids=["aligned", "shifted"])
def test_results_lie_where_the_caller_says(shift: int, card: Insert) -> None:
    held, rng = Held(card()), default_rng()
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((7, 5), (5, 9))]
    run = program(f, *arrays)
    want = es.jit(f)(*arrays)
    for _ in range(3):  # at other addresses each time
        inputs, outputs = [held.put(a, shift) for a in arrays], [held.put(np.zeros_like(a)) for a in want]
        before = held.device.uploaded, held.device.downloaded
        assert run.run_at(inputs, outputs, 7) == 0
        assert (held.device.uploaded, held.device.downloaded) == before
        for at, a in zip(outputs, want, strict=True):
            np.testing.assert_allclose(held.get(at, a), a, rtol=1e-5, atol=1e-6)
    (_, got) = run(arrays)  # on this process's memory, by the same program
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_streams_follow_each_other(card: Insert, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs share memory, so that a run waits for the last one, in whichever stream that was."""
    made = card()
    held, rng = Held(made), default_rng()
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((7, 5), (5, 9))]
    run = program(f, *arrays)
    inputs, outputs = [held.put(a) for a in arrays], [held.put(np.zeros_like(a)) for a in es.jit(f)(*arrays)]
    done: list[tuple] = []
    kind = type(made.card.device)
    monkeypatch.setattr(kind, "record", lambda d, event, stream: done.append(("record", event, stream)))
    monkeypatch.setattr(kind, "wait", lambda d, stream, event: done.append(("wait", event, stream)))
    monkeypatch.setattr(kind, "launch", lambda d, graph, stream: done.append(("launch", None, stream)))
    for stream in (7, 7, 8):
        run.run_at(inputs, outputs, stream)
    (_, e, _) = done[0]
    own = made.card.device.stream
    assert done == [
        ("record", e, own), ("wait", e, 7), ("launch", None, 7), ("launch", None, 7),
        ("record", e, 7), ("wait", e, 8), ("launch", None, 8),
    ]  # fmt: skip


def test_a_failed_check_is_raised_by_its_own_call(card: Insert) -> None:
    held = Held(card())
    table, index = default_rng().standard_normal((5, 3)).astype(np.float32), np.array([4, 0, 2])
    run = program(lambda t, i: t[i], table, index)
    inputs, outputs = [held.put(table), held.put(index)], [held.put(np.zeros((3, 3), np.float32))]
    run.run_at(inputs, outputs, 7)
    np.testing.assert_array_equal(held.get(outputs[0], table[index]), table[index])
    with pytest.raises(IndexOutOfRange):
        run.run_at([inputs[0], held.put(np.array([4, 5, 2]))], outputs, 7)
    run.run_at(inputs, outputs, 7)
    np.testing.assert_array_equal(held.get(outputs[0], table[index]), table[index])
