"""Showpieces agree with their peers in PyTorch at awkward sizes: values, gradients and second derivatives."""

from __future__ import annotations

import random
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.driver import Results
from benchmarks.showpieces import __main__ as driver
from benchmarks.showpieces import measure, programs
from benchmarks.showpieces.case import FIELDS, Peer, Showpiece, Sizes
from benchmarks.showpieces.collection import SHOWPIECES
from benchmarks.showpieces.verify import AGREE, drawn, verify

SIZES = 3
"""Small sizes of each showpiece; the middle one is tested in each run of the suite."""
CASES = [
    pytest.param(name, n, marks=[] if n == 1 else pytest.mark.slow, id=f"{name}-{n}")
    for name in SHOWPIECES
    for n in range(SIZES)
]


def _small(piece: Showpiece, n: int) -> dict[str, int]:
    return {name: sizes[n] for name, sizes in piece.small.items()}


def _seeds(piece: Showpiece, sizes: Sizes, arrays: programs.Arrays) -> list[np.ndarray]:
    return programs.cotangents([np.shape(y) for y in programs.values(piece, sizes, arrays)], np.float64)


@pytest.mark.parametrize("name, n", CASES)
def test_peers_agree(name: str, n: int) -> None:
    pytest.importorskip("torch")
    errors = verify(SHOWPIECES[name], _small(SHOWPIECES[name], n), libraries=["torch"])
    assert errors
    assert max(errors.values()) < AGREE, errors


def _along(piece: Showpiece, sizes: Sizes, arrays: programs.Arrays, seeds: list[np.ndarray]) -> list[np.ndarray]:
    """Return central differences, along the directions, of the gradients, whose Jacobian is symmetric."""
    step, at, along = 1e-6, programs.places(piece, arrays), programs.directions(piece, arrays)
    ends = []
    for sign in (1, -1):
        moved = dict(arrays)
        for (name, x), d in zip([list(arrays.items())[k] for k in at], along, strict=True):
            moved[name] = x + sign * step * d
        ends.append(programs.OfEinsmith(piece, sizes, moved, seeds)()[-len(at) :])
    return [(a - b) / (2 * step) for a, b in zip(*ends, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWPIECES)
@pytest.mark.parametrize("n", [1, 2])
def test_second_derivatives_agree(name: str, n: int) -> None:
    """With those of the first peer that PyTorch differentiates twice, which gives no numbers for some logarithms of
    zero; with differences of gradients where none is."""
    pytest.importorskip("torch")
    piece = SHOWPIECES[name]
    sizes = _small(piece, n)
    arrays = programs.draw(piece, sizes, np.float64)
    seeds = _seeds(piece, sizes, arrays)
    results = programs.second_order(piece, sizes, arrays, seeds)
    for peer in piece.peers.values():
        try:
            if peer.library == "torch":
                wanted = programs.second_order_of_torch(piece, peer, arrays, seeds)
                if all(np.isfinite(x).all() for x in wanted):
                    assert programs.apart(results, wanted) < 1e-8
                    return
        except RuntimeError as error:
            assert "not implemented" in str(error) or "does not require grad" in str(error)
    assert programs.apart(results, _along(piece, sizes, arrays, seeds)) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWPIECES)
def test_single_precision_is_near(name: str) -> None:
    piece = SHOWPIECES[name]
    sizes = programs.middle(piece)
    arrays = programs.draw(piece, sizes, np.float64)
    seeds = _seeds(piece, sizes, arrays)
    wanted = programs.OfEinsmith(piece, sizes, arrays, seeds)()
    single = programs.draw(piece, sizes, np.float32)
    results = programs.OfEinsmith(piece, sizes, single, [c.astype(np.float32) for c in seeds])()
    assert all(x.dtype == np.float32 for x in results)
    assert programs.apart(results, wanted) < measure.CLOSE


def test_collection_has_sizes_and_sources() -> None:
    for name, piece in SHOWPIECES.items():
        assert piece.area in FIELDS and piece.source and piece.peers and piece.sizes
        assert all(set(x) == set(piece.small) for x in piece.sizes.values()), name
        assert all(len(x) == SIZES for x in piece.small.values()), name
        assert "/" not in name and not any("/" in x for x in (*piece.sizes, *piece.peers))


def test_known_inputs_are_constants_without_gradients() -> None:
    piece = SHOWPIECES["equivariant tensor product"]
    arrays = programs.draw(piece, programs.middle(piece), np.float64)
    arguments = dict(zip(arrays, programs.arguments(piece, arrays), strict=True))
    assert {n for n, a in arguments.items() if not isinstance(a, np.ndarray)} == set(piece.known) == {"C", "P"}
    assert [list(arrays)[n] for n in programs.places(piece, arrays)] == ["x", "Y", "w"]


def test_sizes_are_drawn_alike() -> None:
    piece = SHOWPIECES["soft-DTW"]
    draws = [drawn(piece, random.Random(3)) for _ in range(2)]
    assert draws[0] == draws[1]
    assert all(min(piece.small[n]) <= x <= max(piece.small[n]) for n, x in draws[0].items())


def test_a_wrong_peer_is_noticed() -> None:
    torch = pytest.importorskip("torch")
    piece = SHOWPIECES["attention-free transformer"]
    wrong = {"wrong": Peer(lambda q, k, v, w: torch.sigmoid(q) * (torch.softmax(w, 1) @ v), "")}
    changed = Showpiece(**{**vars(piece), "peers": wrong})
    assert verify(changed, programs.middle(piece))["torch wrong"] > 1e-2


def test_results_that_are_no_numbers_differ() -> None:
    assert programs.apart([np.array([np.nan])], [np.array([1.0])]) == np.inf
    assert programs.apart([np.array([1.0]), np.array([1e-17])], [np.array([1.0]), np.array([0.0])]) < 1e-10
    with pytest.raises(ValueError, match="shape"):
        programs.apart([np.ones(2)], [np.ones(3)])


@pytest.mark.parametrize("peer, label", [("einsmith", ""), ("torch", "products")])
def test_server_measures(peer: str, label: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    name, server = "attention-free transformer", measure.Server()
    server.peer, server.label, server.threads = peer, label, 1
    sizes, path = programs.middle(SHOWPIECES[name]), str(tmp_path / "wanted.npz")
    assert server.verify(name, sizes, path, ["torch"])["torch products"] < AGREE
    server.open_case(name, sizes, path, False)
    seconds, off = server.first_call()
    assert seconds > 0 and off < 1e-4
    assert server.memory() >= 0 and server.turn(2) > 0
    server.open_case(name, sizes, path, True)
    assert server.first_call()[1] < AGREE


def test_contenders() -> None:
    settings = measure.Settings(compiled=False)
    assert measure.contenders("soft-DTW", settings) == ["einsmith", "torch diagonals", "jax scan"]
    cell = {"seconds": {"einsmith": 2.0, "torch diagonals": 4.0, "compile diagonals": 1.0, "jax scan": 3.0}}
    assert measure.peers_by_time(cell) == ["compile diagonals", "jax scan", "torch diagonals"]
    two = measure.Settings(peers=("compile diagonals", "jax scan"))
    assert measure.contenders("soft-DTW", two) == ["einsmith", "jax scan"]  # it is not compiled
    without = measure.Settings(without=("skew", "merge loops, skew"))
    assert measure.contenders("soft-DTW", without) == ["einsmith", "einsmith skew", "einsmith merge loops, skew"]
    assert "compile products" in measure.contenders("attention-free transformer", measure.Settings())


def test_tables_name_what_is_slow() -> None:
    results = Results(None, timing=False)
    text = StringIO()
    results.console = Console(file=text, width=200)
    cell = {"seconds": {"einsmith": 2e-3, "torch a": 3e-3, "jax b": 2.4e-3}, "left_out": {"compile a": "over 90 s"}}
    cell |= {n: dict.fromkeys(cell["seconds"], x) for n, x in (("bytes", 2**20), ("first", 1.0), ("off", 1e-6))}
    driver._show(results, {"one/small/1": cell, "other/small/1": {**cell, "left_out": {}}}, 1)
    shown = text.getvalue()
    assert "jax b" in shown and "geometric mean of 2: 1.20" in shown and "below 1: none" in shown
    assert "below 1.5: one small (1.20), other small (1.20)" in shown and "compile a: over 90 s" in shown


@pytest.mark.slow
def test_measures_in_processes() -> None:
    pytest.importorskip("torch")
    name = "KAN layer, cubic"
    (label, *_) = SHOWPIECES[name].sizes
    cell = measure.measure(name, label, measure.Settings(rounds=1, compiled=False))
    assert cell["verified"] == "as measured" and set(cell["seconds"]) >= {"einsmith", "torch polynomials"}
    assert measure.fastest(cell) != "einsmith" and cell["bytes"]["einsmith"] > 0
