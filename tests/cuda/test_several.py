"""Training on several cards, each of which a thread has: sums of gradients are nodes of the graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
import einsmith.functional as F
from einsmith import nn
from einsmith.base.errors import ArgumentError, DeviceError, GroupError, IndexOutOfRange, NonFiniteError
from einsmith.driver import registry
from einsmith.driver.cuda import Cuda
from einsmith.gpu.cuda import driver
from einsmith.gpu.cuda.device import CollectiveNode
from einsmith.gpu.cuda.executable_graph import ExecutableGraph
from einsmith.runtime import queues
from einsmith.runtime.steps import AllReduce, Notify
from einsmith.training import gradient_buckets
from tests.cuda.fake import WORLDS
from tests.distributed.world import make_seeded, run
from tests.tiles.memory import Fault

WIDTH, CLASSES = 7, 4
Insert = Callable[..., Cuda]


@pytest.fixture(autouse=True)
def runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process runs one training step at a time, but here its threads are ranks whose cards wait for each other."""
    own = threading.local()

    class Own:
        """The first queue of each thread."""

        def __getattr__(self, name: str) -> Any:
            if not hasattr(own, "queue"):
                own.queue = queues.RunQueue(0)
            return getattr(own.queue, name)

    monkeypatch.setattr(queues, "FIRST", Own())


@pytest.fixture
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parameter has a bucket of its own."""
    monkeypatch.setattr(gradient_buckets, "FIRST_BYTES", 1)
    monkeypatch.setattr(gradient_buckets, "MOST_BYTES", 1)


@pytest.fixture
def cards(card: Insert) -> Callable[[int], list[Cuda]]:
    return lambda count: [card(seed=n, ordinal=n) for n in range(count)]


def network(seed: int = 0) -> nn.Module:
    return make_seeded(seed, lambda: nn.Sequential(nn.Linear(WIDTH, 9), nn.ReLU(), nn.Linear(9, CLASSES)))


def batches_of(*sizes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = default_rng(1)
    return [(rng.standard_normal((n, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, n)) for n in sizes]


def part(group: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    first, end = (len(arrays[0]) * r // group.size for r in (group.rank, group.rank + 1))
    return [a[first:end] for a in arrays]


def weights(step: es.TrainStep) -> dict[str, np.ndarray]:
    return {k: np.array(v) for k, v in step.model.state_dict().items()}


def step_of(model: nn.Module, **options: Any) -> es.TrainStep:
    return es.TrainStep(model, F.cross_entropy, es.optim.Adam(lr=0.01), **options)


def train(size: int, batches: Sequence, device: str = "cuda", **options: Any) -> list[tuple]:
    """The losses, weights and step of each rank, which begin with other weights."""
    models = [network(rank) for rank in range(size)]

    def work(group):
        step = step_of(models[group.rank], group=group, device=device, **options)
        return [step(*part(group, *batch)) for batch in batches], weights(step), step

    return run(size, work)


def compare(results: Sequence[tuple], expected: dict[str, np.ndarray], losses: Sequence[float] | None) -> None:
    for found, state, _ in results:
        if losses is not None:
            np.testing.assert_allclose(found, losses, rtol=1e-5)
        for name, value in state.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=2e-5, err_msg=name)
            np.testing.assert_array_equal(value, results[0][1][name])


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "size, options", [(3, {}), (2, {"clip_grad_norm": 0.1, "ema": 0.5}), (2, {"accumulate": 2})], ids=str
)
def test_cards_train_as_one_cpu_with_the_whole_batch(size, options, cards, many_buckets) -> None:
    """Where a rank has no sample of a batch, its card takes part in the sums."""
    batches = batches_of(12, 12, 7, 2)
    alone = step_of(network(), **options)
    losses = [alone(*batch) for batch in batches]
    cards(size)
    results = train(size, batches, **options)
    compare(results, weights(alone), losses if "accumulate" not in options else None)
    assert [counts for counts, _ in WORLDS[-1].sums[:4]] == [(CLASSES,), (CLASSES * 9,), (9,), (9 * WIDTH,)]
    assert [step.compiler.backend.name for _, _, step in results] == [f"cuda:{rank}" for rank in range(size)]
    assert "summed on their cards" in str(results[0][2].plan)


def test_a_bucket_is_summed_as_soon_as_it_is_complete(cards, many_buckets) -> None:
    """Its node waits for what stores its gradients and for the sum before it, not for the rest of the backward pass."""
    cards(2)
    (_, _, step), _ = train(2, batches_of(8))
    ((_, run_),) = step.compiler.programs.items()
    program = run_.program
    assert not any(isinstance(s, Notify) for s in program.steps)
    assert sum(isinstance(s, AllReduce) for s in program.steps) == 4
    sums = [n for n, node in enumerate(program.nodes) if isinstance(node, CollectiveNode)]
    before = before_of(len(program.nodes), program.edges)
    assert all(a in before[b] for a, b in zip(sums, sums[1:], strict=False))
    last = max(n for n, node in enumerate(program.nodes) if not isinstance(node, CollectiveNode))
    assert last not in before[sums[0]] and last in before[sums[-1]]
    assert "sums over" not in "".join(program.describe(range(len(program.steps))))


def before_of(count: int, edges: Sequence[tuple[int, int]]) -> list[set[int]]:
    """For each node the nodes that come before it."""
    before: list[set[int]] = [set() for _ in range(count)]
    for a, b in sorted(edges, key=lambda e: e[1]):
        before[b] |= before[a] | {a}
    return before


def test_each_left_out_edge_to_a_sum_is_noticed(cards, many_buckets) -> None:
    """Both cards lack the edge: only the order of the launches is left to chance, not that of the sums."""
    made = cards(2)
    models = [network(), network()]
    batch = batches_of(8)[0]
    meet = threading.Barrier(2, timeout=30)

    def work(group):
        step = step_of(models[group.rank], group=group, device="cuda")
        mine = part(group, *batch)
        step(*mine)
        ((_, run_),) = step.compiler.programs.items()
        program, device = run_.program, made[group.rank].card.device
        whole, nodes = program.edges, program.nodes
        left_out = [e for e in whole if isinstance(nodes[e[1]], CollectiveNode) and e[0] != e[1]]
        faults = []
        for edge in left_out:
            meet.wait()
            if isinstance(nodes[edge[0]], CollectiveNode):
                continue  # the order of sums, which the other card's depends on
            program.graph = ExecutableGraph(device, nodes, [e for e in whole if e != edge])
            try:
                step(*mine)
                faults.append(None)
            except (Fault, GroupError) as e:
                faults.append(str(e))
        program.graph = ExecutableGraph(device, nodes, whole)
        return len(faults), faults, step(*mine)

    for count, faults, loss in run(2, work):
        assert count >= 4 and np.isfinite(loss)
        assert all(f is not None and "no edge orders launches" in f for f in faults)


def test_the_gradients_of_a_step_stay_on_the_cards(cards) -> None:
    made = cards(2)
    models = [network(), network()]
    batch = batches_of(8)[0]

    def work(group):
        device = made[group.rank].card.device
        step = step_of(models[group.rank], group=group, device="cuda")
        mine = part(group, *batch)
        for _ in range(2):
            step(*mine)
        before = device.uploaded, device.downloaded
        step(*mine)
        return device.uploaded - before[0], device.downloaded - before[1]

    for uploaded, downloaded in run(2, work):
        # besides the batch, the numbers of two programs; those of the gradients have 448 bytes
        assert uploaded <= 640 and downloaded <= 192


def test_batches_of_other_sizes_and_a_bucket_for_all(cards) -> None:
    """Programs of several sizes make the sums in one order; between two sums a rank's card may have nothing to do."""
    batches = batches_of(5, 1, 9, 1, 5)
    alone = step_of(network())
    losses = [alone(*batch) for batch in batches]
    cards(2)
    results = train(2, batches)
    compare(results, weights(alone), losses)
    assert len(WORLDS[-1].sums) == len(batches)


def test_parameters_without_a_gradient(cards) -> None:
    """The buckets have their zeros, whatever the program computes."""

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(WIDTH, CLASSES), nn.Linear(3, 5)

        def forward(self, x):
            return self.used(x)

    models = [make_seeded(2, Partly) for _ in range(3)]
    batches = batches_of(6, 6)
    alone = step_of(models[2])
    losses = [alone(*batch) for batch in batches]
    unused = np.array(models[2].unused.weight.data)
    cards(2)

    def work(group):
        step = step_of(models[group.rank], group=group, device="cuda")
        return [step(*part(group, *batch)) for batch in batches], weights(step), step

    results = run(2, work)
    compare(results, weights(alone), losses)
    np.testing.assert_array_equal(results[0][1]["unused.weight"], unused)


def test_a_failure_on_one_card_updates_none(cards) -> None:
    """And the next step goes on."""
    cards(2)
    models = [make_seeded(3, lambda: Words()) for _ in range(2)]
    x = np.arange(8).reshape(4, 2) % 5
    y = np.arange(4) % CLASSES

    def work(group):
        step = step_of(models[group.rank], group=group, device="cuda")
        step(x, y)
        before = weights(step)
        wrong = np.where(group.rank == 1, x + 3, x)
        with pytest.raises(IndexOutOfRange if group.rank else GroupError, match="index"):
            step(wrong, y)
        for name, value in weights(step).items():
            np.testing.assert_array_equal(value, before[name])
        if group.rank:
            step.model.out.bias.data[1] = np.inf
        with pytest.raises(NonFiniteError, match="not finite on 1 of 2 ranks"):
            step(x, y)
        if group.rank:
            step.model.out.bias.data[1] = before["out.bias"][1]
        loss = step(x, y)
        return loss, weights(step)

    (first, state), (second, other) = run(2, work)
    assert first == second and np.isfinite(first)
    for name, value in state.items():
        np.testing.assert_array_equal(value, other[name])


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(5, 6), nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.out(self.words(x).reshape((x.shape[0], 12)))


def test_a_run_that_fails_before_its_launch_takes_part_in_the_sums(cards, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cards(2)
    models = [network(), network()]
    batch = batches_of(8)[0]

    def work(group):
        step = step_of(models[group.rank], group=group, device="cuda")
        mine = part(group, *batch)
        for _ in range(2):
            step(*mine)
        device = made[group.rank].card.device
        if group.rank:
            upload, device.upload = device.upload, refuse
        with pytest.raises(DeviceError if group.rank else GroupError, match="no upload"):
            step(*mine)
        if group.rank:
            device.upload = upload
        return step(*mine)

    def refuse(*_: Any) -> None:
        raise DeviceError("no upload")

    first, second = run(2, work)
    assert first == second


def test_a_step_moves_between_cards_and_cpus(cards) -> None:
    batches = batches_of(8, 8, 8)
    alone = step_of(network())
    losses = [alone(*batch) for batch in batches]
    cards(2)
    models = [network(), network()]

    def work(group):
        step, found = step_of(models[group.rank], group=group, device="cpu"), []
        for device, batch in zip(("cpu", "cuda", "cpu"), batches, strict=True):
            step.device = device
            found.append(step(*part(group, *batch)))
        return found, weights(step), step

    compare(run(2, work), weights(alone), losses)


def test_what_cards_do_not_do_is_refused_before_anything_runs(cards) -> None:
    cards(2)

    def making(model: Callable[[], nn.Module], words: str, **options: Any) -> None:
        models = [model() for _ in range(2)]

        def work(group):
            with pytest.raises(ArgumentError, match=words):
                step_of(models[group.rank], group=group, device="cuda", **options)(*part(group, *batches_of(8)[0]))

        run(2, work)

    made = len(WORLDS)
    making(network, "shard_optimizer=True .* on CPUs only", shard_optimizer=True)
    making(network, "deterministic=True .* on CPUs only", deterministic=True)
    assert len(WORLDS) == made
    with pytest.raises(ArgumentError, match="deterministic=True .* on CPUs only"):
        step_of(network(), device="cuda", deterministic=True)
    making(lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES), Centred()), "group_sum sum on the CPU only")


class Centred(nn.Module):
    def forward(self, x):
        return x - F.group_sum(es.sum(x, axis=0)) / 8.0


def refused(size: int, words: str, kind: type = GroupError, device: Callable[[Any], str] = lambda g: "cuda") -> None:
    models = [network() for _ in range(size)]

    def work(group):
        with pytest.raises(kind, match=words):
            step_of(models[group.rank], group=group, device=device(group))

    run(size, work)


def test_cards_that_cannot_train_together(cards) -> None:
    made = cards(3)
    refused(3, "ranks 0 and 1 both have the card cuda:0", device=lambda group: f"cuda:{group.rank // 2}")
    refused(2, "rank 0 has 'CPU' at device and rank 1 has 'card'", device=lambda g: "cuda" if g.rank else "cpu")
    device = made[1].card.device
    device.missing = "sums over cards need NCCL"
    refused(2, "rank 1 cannot join the other cards: sums over cards need NCCL")
    device.missing, device.facts = "", device.facts._replace(name="Fake H200")
    refused(2, "rank 0 has the card Fake H100 .* rank 1 Fake H200 .* cards of one kind")


def test_without_a_card_for_each_process(card: Insert, monkeypatch: pytest.MonkeyPatch) -> None:
    card()

    def device(ordinal: int) -> None:
        raise DeviceError(f"there is no card {ordinal}")

    monkeypatch.setattr(driver, "device", device)

    def work(group):
        with pytest.raises(GroupError, match="rank 0 has 'card' at device and rank 1 has 'there is no card 1'"):
            step_of(models[group.rank], group=group, device="cuda")

    models = [network(), network()]
    run(2, work)
    assert "cuda:1" not in registry.BACKENDS


def test_fit_evaluates_saves_and_goes_on(cards, tmp_path) -> None:
    cards(2)
    x, y = batches_of(18)[0]
    models = [network(rank) for rank in range(4)]
    alone = step_of(network())
    alone.fit(es.data.batches(x, y, 6, seed=1), epochs=2, progress=False)

    def work(group):
        batches = es.data.batches(x, y, 6, seed=1, group=group)
        step = step_of(models[group.rank], group=group, device="cuda")
        step.fit(batches, progress=False)
        es.save(step, tmp_path / "run")
        step = es.load(tmp_path / "run", model=models[2 + group.rank], group=group, device="cuda")
        losses = step.fit(batches, epochs=2, progress=False)
        return [*losses, step.evaluate(batches)["loss"]], weights(step), step

    expected = [alone.history[-1]["loss"], alone.evaluate(es.data.batches(x, y, 6))["loss"]]
    compare(run(2, work), weights(alone), expected)
