"""Groups: sums, broadcasts and agreement, over threads in the place of processes."""

from __future__ import annotations

import copy
import os
import signal
import threading

import numpy as np
import pytest

import einsmith as es
from einsmith.distributed import group as group_module
from einsmith.distributed import launch
from einsmith.distributed.group import ProcessGroup
from einsmith.distributed.launch import find_launcher
from einsmith.distributed.transport import Alone
from einsmith.runtime.signals import Deferred
from tests.distributed.world import run

SIZES = 1, 2, 3, 5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("n", [0, 1, 2, 7, 16, 1031])
def test_sums_are_in_the_order_of_the_ranks(size, n, rng):
    rows = (rng.standard_normal((size, n)) * 10.0 ** rng.integers(-6, 6, (size, n))).astype(np.float32)
    expected = rows[0].copy()
    for row in rows[1:]:
        expected += row
    for result in run(size, lambda group: group.all_reduce({"x": rows[group.rank]})):
        assert result["x"].dtype == np.float32
        np.testing.assert_array_equal(result["x"], expected)


@pytest.mark.parametrize("size", SIZES)
def test_trees_keep_their_structure(size):
    def work(group):
        tree = {"a": (np.full((2, 3), group.rank, np.int64), group.rank + 0.5), "b": [group.rank], "c": None}
        return group.all_reduce(tree), group.broadcast(tree, root=size - 1)

    for summed, sent in run(size, work):
        total = size * (size - 1) // 2
        assert summed["b"] == [total] and summed["c"] is None and summed["a"][1] == total + 0.5 * size
        np.testing.assert_array_equal(summed["a"][0], np.full((2, 3), total))
        assert sent["b"] == [size - 1] and isinstance(sent["a"], tuple) and isinstance(sent["b"][0], int)


def test_results_do_not_alias_arguments():
    def work(group):
        x = np.ones(3)
        group.all_reduce(x)[...] = 7
        group.broadcast(x)[...] = 7
        return x

    assert all((x == 1).all() for x in run(2, work) + run(1, work))


def test_values_of_all_ranks_are_gathered():
    words = ["", "a", "ü" * 1000]
    assert run(3, lambda group: group.gather({"w": words[group.rank]})) == [[{"w": w} for w in words]] * 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 1, 2], r"seed differs between the ranks: rank 0 has 1 and rank 2 has 2"),
        ([{"lr": [1, 2]}, {"lr": [1, 3]}, {"lr": [1, 2]}], r"rank 0 has 2 at lr\[1\] and rank 1 has 3"),
        ([[1], [1], [1, 2]], r"rank 0 has 1 and rank 2 has 2"),
    ],
)
def test_a_difference_is_named_on_every_rank(values, message):
    def work(group):
        with pytest.raises(es.GroupError, match=message):
            group.agree("seed", values[group.rank])
        return group.gather(0)  # the group can be used afterwards

    assert run(3, work) == [[0, 0, 0]] * 3


def test_different_arguments_are_refused_before_they_are_exchanged():
    def work(group):
        with pytest.raises(es.GroupError, match="the argument of all_reduce differs"):
            group.all_reduce(np.zeros(2 + group.rank))
        with pytest.raises(es.GroupError, match="the argument of broadcast differs"):
            group.broadcast(np.zeros(2, [np.float32, np.float64][group.rank]))

    run(2, work)


@pytest.mark.parametrize("bad", ["text", np.array(["a"]), object(), 1j])
def test_leaves_that_are_no_numbers_are_refused(bad):
    with pytest.raises(es.EinsmithError):
        ProcessGroup(Alone()).all_reduce([bad])


@pytest.mark.parametrize("root", [-1, 1, 7])
def test_a_root_outside_the_group_is_refused(root):
    with pytest.raises(es.ArgumentError, match="root"):
        ProcessGroup(Alone()).broadcast(1, root)


def test_a_closed_group_is_refused():
    group = ProcessGroup(Alone())
    with group:
        assert group.all_reduce(3) == 3
    with pytest.raises(es.GroupError, match="closed"):
        group.barrier()


class Silent(Alone):
    """The engine of a rank that gets Ctrl-C while it waits; the others come when `come` is set."""

    size = 2

    def __init__(self):
        self.come = threading.Event()

    def barrier(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        self.come.wait()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(group_module, "LOOK", 0.01)
    monkeypatch.setattr(group_module, "GRACE", 0.02)


def test_an_interrupt_ends_a_step_that_waits_for_others(impatient):
    """In a step, which defers signals: the group is broken then, and a further wait ends at once."""
    engine = Silent()
    group = ProcessGroup(engine)
    with pytest.raises(KeyboardInterrupt), Deferred():
        pending = group.submit(lambda collectives: collectives.transport.barrier())
        later = group.submit(lambda collectives: None)
        try:
            group.wait(pending)
        finally:
            for wait in (lambda: group.wait(later), group.barrier):
                with pytest.raises(es.GroupError, match="lost the others .KeyboardInterrupt ended a wait"):
                    wait()
    group.close()
    engine.come.set()


def test_an_interrupted_step_ends_where_the_others_come(monkeypatch):
    monkeypatch.setattr(group_module, "LOOK", 0.01)
    engine, reached = Silent(), []
    engine.come.set()
    group = ProcessGroup(engine)
    with pytest.raises(KeyboardInterrupt), Deferred():
        group.barrier()
        reached.append(group.submit(lambda collectives: 3).result())
    assert reached == [3]
    group.close()


def test_a_handler_that_raises_nothing_does_not_end_the_wait(impatient, monkeypatch):
    engine, seen = Silent(), []

    def handler(number, frame):
        seen.append(number)
        engine.come.set()

    before = signal.signal(signal.SIGINT, handler)
    try:
        group = ProcessGroup(engine)
        with Deferred():
            group.barrier()
        group.close()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_ranks_of_different_versions_are_named():
    def work(group):
        launch.check_versions(group, "1.0", "aaaa")
        with pytest.raises(
            es.GroupError, match=r"1.0 \(sources aaaa\) on 0, 2; 1.0 \(sources bbbb\) on 1; install one"
        ):
            launch.check_versions(group, "1.0", "bbbb" if group.rank == 1 else "aaaa")
        with pytest.raises(es.GroupError, match=r"1.0 \(sources a\) on 0, 1; 2.0 \(sources a\) on 2"):
            launch.check_versions(group, "2.0" if group.rank == 2 else "1.0", "a")

    run(3, work)


@pytest.mark.parametrize(
    "changed, words",
    [({"RANK": "2"}, "RANK=2 and WORLD_SIZE=2"), ({"RANK": "5"}, "RANK=5"), ({"RANK": "-1"}, "RANK='-1'"),
     ({"RANK": "one"}, "RANK='one'"), ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"), ({"WORLD_SIZE": ""}, "WORLD_SIZE=''"),
     ({"MASTER_PORT": "0"}, "MASTER_PORT=0"), ({"MASTER_PORT": "65536"}, "not a port"), ({"RANK": "²"}, "integer")],
)  # fmt: skip
def test_ranks_that_cannot_be_are_refused_at_once(monkeypatch, changed, words):
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    launch.check_ranks(variables)
    for name in launch.MPI:
        monkeypatch.delenv(name, raising=False)
    for name, value in (variables | changed).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(es.GroupError, match=words):
        es.distributed.init()


def test_a_group_is_not_copied():
    with pytest.raises(es.ArgumentError, match="neither copied nor pickled"):
        copy.deepcopy(ProcessGroup(Alone()))


def test_a_lost_rank_breaks_the_group():
    class Broken(Alone):
        size = 2

        def barrier(self) -> None:
            raise RuntimeError("Connection closed by peer\nmore")

    group = ProcessGroup(Broken())
    for _ in range(2):
        with pytest.raises(es.GroupError, match=r"rank 0 of 2 lost the others \(Connection closed by peer\)"):
            group.barrier()


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({}, "none"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "none"),  # not all of torchrun's
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "torchrun"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "MPI"),
        ({"PMI_SIZE": "2"}, "MPI"),
    ],
)
def test_launchers_are_known_by_their_variables(variables, launcher):
    assert find_launcher(variables) == launcher


def test_two_launchers_at_once_are_refused():
    with pytest.raises(es.GroupError, match="both MPI"):
        find_launcher({"PMI_SIZE": "2", "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"})


def test_without_a_launcher_there_is_a_group_of_one(monkeypatch):
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    group = es.distributed.init()
    assert (group.rank, group.size, group.local_rank, group.local_size, group.engine) == (0, 1, 0, 1, "none")
