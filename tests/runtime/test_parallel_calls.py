"""Calls from several Python threads at once: they wait for each other, and every one gives its own results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import einsmith as es

PATIENCE = 120
"""Seconds after which threads count as locked."""


def at_once(jobs: Sequence[Callable[[], None]]) -> None:
    """Run every job in a thread of its own, all of them released together; raise what one of them raises."""
    failed: list[BaseException] = []
    ready = threading.Barrier(len(jobs))

    def run(job: Callable[[], None]) -> None:
        try:
            ready.wait(PATIENCE)
            job()
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
    assert not any(t.is_alive() for t in threads), "calls wait for each other for ever"
    if failed:
        raise failed[0]


def network() -> es.nn.Sequential:
    return es.nn.Sequential(es.nn.Linear(17, 31), es.nn.ReLU(), es.nn.Linear(31, 5))


def reference(model: es.nn.Module, x: np.ndarray) -> np.ndarray:
    s = {k: np.asarray(v, np.float64) for k, v in model.state_dict().items()}
    return np.maximum(x @ s["0.weight"].T + s["0.bias"], 0) @ s["2.weight"].T + s["2.bias"]


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    es.set_threads(request.param)
    yield
    es.set_threads(None)


@pytest.mark.thinned(4)
def test_predictions_of_one_model(threads, rng):
    """Each thread has data of its own, of sizes that the others compile, too."""
    model = network()
    sizes = [1, 13, 16, 17]
    data = [[rng.standard_normal((n, 17)).astype(np.float32) for n in sizes] for _ in range(4)]

    def job(own: list[np.ndarray]) -> Callable[[], None]:
        want = [reference(model, x) for x in own]

        def run() -> None:
            for _ in range(15):
                for x, y in zip(own, want, strict=True):
                    np.testing.assert_allclose(model.predict(x), y, rtol=1e-4, atol=1e-5)

        return run

    at_once([job(own) for own in data])


@pytest.mark.thinned(4)
def test_predictions_during_training_and_formulas(threads, rng):
    model, trained = network(), network()
    x = rng.standard_normal((33, 17)).astype(np.float32)
    labels = rng.integers(0, 5, 33)
    step = es.TrainStep(trained, es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    product = es.op("C[i,j] = sum[k](A[i,k] * B[k,j])")
    a, b = rng.standard_normal((65, 17)), rng.standard_normal((17, 15))
    alone = network()
    alone.load_state_dict(trained.state_dict())
    lonely = es.TrainStep(alone, es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    losses = [lonely(x, labels) for _ in range(40)]
    got: list[float] = []

    def train() -> None:
        for _ in range(40):
            got.append(step(x, labels))

    def predict() -> None:
        want = reference(model, x)
        for _ in range(40):
            np.testing.assert_allclose(model.predict(x), want, rtol=1e-4, atol=1e-5)

    def multiply() -> None:
        for _ in range(40):
            np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-9, atol=1e-12)

    at_once([train, predict, predict, multiply])
    assert got == losses
