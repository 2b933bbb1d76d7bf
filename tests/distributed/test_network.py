"""Predictions for networks and many processes."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import einsmith as es
from einsmith.cli.main import app
from einsmith.distributed.network import Interconnect, exposed_seconds, measure_network, parse_network
from einsmith.training.scaling import _completion, predict_communication, predict_scaling
from tests.distributed.world import ThreadTransport, run


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency"),
    [
        ("25 Gb/s, 10 us", 25e9 / 8, 10e-6),
        ("1.5Tb/s,800ns", 1.5e12 / 8, 800e-9),
        (" 100 Mb/s , 0.2 ms ", 1e8 / 8, 2e-4),
        ("9600 b/s, 1 s", 1200.0, 1.0),
    ],
)
def test_networks_are_read(text, bandwidth, latency):
    network = parse_network(text)
    assert network.bandwidth == pytest.approx(bandwidth) and network.latency == pytest.approx(latency)


@pytest.mark.parametrize(
    "text", ["", "fast", "25 Gb/s", "25 GB/s, 10 us", "1.2.3 Gb/s, 1 us", "0 Gb/s, 1 us", "-1 Gb/s, 1 us"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(es.ArgumentError, match="is not a bandwidth and latency"):
        parse_network(text)


def test_sums_take_what_their_messages_take():
    network = Interconnect(latency=1e-3, bandwidth=1e6, overhead=0.0)
    assert network.all_reduce_seconds(1e6, 1) == 0
    assert network.all_reduce_seconds(1e6, 2) == pytest.approx(1e-3 + 1.0)  # one exchange of wholes
    assert network.all_reduce_seconds(1e6, 1000) == pytest.approx(2 * (1e-3 + 0.999))
    slow = Interconnect(latency=1e-3, bandwidth=1e6, overhead=1e-3)
    assert slow.all_reduce_seconds(0, 1001) == pytest.approx(1e-3 + 1.0)
    assert slow.all_reduce_seconds(1e6, 1001) == pytest.approx(2 * (1e-3 + 1.0 + 1000 / 1001))


@pytest.mark.parametrize(
    ("buckets", "exposed"),
    [
        ([(1.0, 100)], 0.0),  # done long before the end at 10
        ([(9.5, 100)], 0.5),  # half of its second is hidden
        ([(10.0, 100)], 1.0),
        ([(9.0, 100), (9.1, 100), (9.2, 100)], 2.0),  # one after another
        ([(0.0, 2000)], 10.0),
    ],
)
def test_what_computation_hides_is_not_exposed(buckets, exposed):
    network = Interconnect(latency=0.0, bandwidth=100.0, overhead=0.0)  # two processes: 100 bytes take a second
    assert exposed_seconds(buckets, 10.0, 2, network) == pytest.approx(exposed)


@pytest.mark.parametrize(
    ("buckets", "exposed"),
    [
        ([(1.0, 100)], 0.25),  # waiting is hidden, the processor's quarter of its second is not
        ([(1.0, 100), (3.0, 100)], 0.5),
        ([(10.0, 100)], 1.0),  # nothing is computed meanwhile
        ([(1.0, 100), (9.9, 100)], 1.15),  # the second is complete a quarter of a second later
    ],
)
def test_where_no_core_is_free_messages_take_time_from_the_computation(buckets, exposed):
    network = Interconnect(latency=0.0, bandwidth=100 / 0.95, overhead=0.05, byte_overhead=0.002)
    assert network.busy_seconds(100, 2) == pytest.approx(0.25)
    assert network.all_reduce_seconds(100, 2) == pytest.approx(1.0)
    assert exposed_seconds(buckets, 10.0, 2, network, is_crowded=True) == pytest.approx(exposed)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("busy", [0.0, 0.25, 1.0])
def test_a_network_is_measured(busy, monkeypatch):
    """The probe finds the figures of an engine that takes a known time, part of it the processor's, by a clock that
    stands still otherwise."""
    latency, bandwidth, clock = 2e-3, 4e8, [0.0]

    def slow(self, what, array, take, share=ThreadTransport._share):
        def take_time(given):
            take(given)
            if self.rank == 0 and what == "exchange":
                clock[0] += latency + sum(a.nbytes for a in array[1:]) / bandwidth

        share(self, what, array, take_time)

    monkeypatch.setattr(ThreadTransport, "_share", slow)
    times = SimpleNamespace(perf_counter=lambda: clock[0], process_time=lambda: busy * clock[0])
    monkeypatch.setattr("einsmith.distributed.network.time", times)
    expected = Interconnect(latency * (1 - busy), bandwidth, latency * busy, busy / bandwidth)
    for found in run(2, measure_network):
        np.testing.assert_allclose(dataclasses.astuple(found), dataclasses.astuple(expected), rtol=1e-4, atol=1e-9)


def test_a_group_of_one_has_no_network():
    with pytest.raises(es.ArgumentError, match="has no network"):
        run(1, measure_network)


def test_predictions_of_a_step():
    es.manual_seed(0)
    step = es.TrainStep(es.models.mlp3(), es.functional.cross_entropy, es.optim.SGD(lr=0.1))
    arrays = [np.zeros((4, 1, 28, 28), np.float32), np.zeros(4, np.int64)]
    before = {k: np.array(v) for k, v in step.model.state_dict().items()}
    ready, computed = _completion(step, step.compiler.find_or_compile(arrays, True))
    assert ready.keys() == before.keys()
    names = list(before)
    assert ready[names[-1]] < ready[names[0]] <= computed  # the backward pass begins at the last layer

    fast, slow = (predict_scaling(step, arrays, 100, parse_network(t)) for t in ("400 Gb/s, 1 us", "0.1 Gb/s, 1 ms"))
    assert [s.ranks for s in slow] == [1, 2, 4, 8, 16, 32, 64]
    assert slow[0].exposed == 0 and slow[0].efficiency == 1
    for a, b in zip(fast[1:], slow[1:], strict=True):
        assert 0 < a.exposed < b.exposed and a.efficiency > b.efficiency
        assert b.efficiency == pytest.approx((b.seconds - b.exposed) / b.seconds)
    small = sum(p.data.nbytes for p in step.model.parameters())
    for text in ("400 Gb/s, 1 us", "0.1 Gb/s, 1 ms"):
        network = parse_network(text)
        whole, exposed = predict_communication(step, arrays, 2, network)
        assert whole >= network.all_reduce_seconds(small, 2) and 0 < exposed <= whole
        assert predict_communication(step, arrays, 1, network) == (0, 0)
    for name, value in step.model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_the_command():
    options = ["explain", "lenet5", "--batch", "4", "--ranks", "8", "--network", "1 Gb/s, 50 us"]
    text = CliRunner().invoke(app, options)
    assert text.exit_code == 0, text.output
    lines = text.output.splitlines()
    assert "4 samples on each process, 1 Gb/s, 50 us (predicted)" in lines[0]
    assert [line.split()[0] for line in lines[2:6]] == ["1", "2", "4", "8"]
    report = json.loads(CliRunner().invoke(app, [*options, "--json"]).output)
    assert [row["ranks"] for row in report["rows"]] == [1, 2, 4, 8] and report["useful"] in (1, 2, 4, 8)
    wrong = CliRunner().invoke(app, [*options[:-1], "fast"])
    assert wrong.exit_code and "is not a bandwidth and latency" in str(wrong.output) + str(wrong.exception)
