"""Launches with final addresses, the edges between them, and what a card does without an edge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator, default_rng

import einsmith as es
import einsmith.functional as F
from einsmith.base.errors import CompileError
from einsmith.driver.cuda import Cuda
from einsmith.gpu.cuda.card_program import CudaProgram
from einsmith.gpu.cuda.device import LaunchNode
from einsmith.gpu.cuda.executable_graph import ExecutableGraph
from einsmith.gpu.cuda.launches import ByteRange, DeviceLaunch, TileCode, edges, overlaps
from einsmith.gpu.tiles.ir import TileBuilder, TileFunction, TileParameter
from einsmith.gpu.triton.binary import Binary
from tests.programs import program_of
from tests.tiles.memory import Fault


def accessing(reads: int, writes: int, size: int = 4) -> TileFunction:
    """A function that copies between so many parameters of `size` bytes."""
    b = TileBuilder("f")
    at = b.const(0)
    loaded = [b.load(b.parameter(TileParameter("i8", size, n)), at) for n in range(reads)]
    for n in range(writes):
        b.store(b.parameter(TileParameter("i8", size, reads + n)), at, loaded[0] if loaded else b.const(1, "i8"))
    return b.finish(1)


def launch(reads: list[int], writes: list[int]) -> DeviceLaunch:
    return DeviceLaunch(TileCode(accessing(len(reads), len(writes))), (*reads, *writes), 0)


def test_edges_of_bytes() -> None:
    found = edges(
        [
            launch([], [100]),  # 0
            launch([100], [200]),  # 1 loads what 0 stores
            launch([102], [300]),  # 2 as well, in part
            launch([], [98]),  # 3 overwrites part of what 1 loads
            launch([200, 300], [400]),  # 4
            launch([], [103]),  # 5 overwrites the rest, beside 3: 98 to 101 and 103 to 106
            launch([], [500]),  # 6 has nothing to do with any
        ]
    )
    assert sorted(found) == [(0, 1), (0, 2), (1, 3), (1, 4), (1, 5), (2, 4), (2, 5)]


def brute_edges(launches: list[DeviceLaunch]) -> set[tuple[int, int]]:
    """All pairs that touch a byte which one of them stores, by comparison of sets of bytes."""
    sets = [[{b for r in ranges for b in range(*r)} for ranges in x.ranges()] for x in launches]
    return {
        (a, b)
        for b in range(len(launches))
        for a in range(b)
        if sets[a][1] & (sets[b][0] | sets[b][1]) or sets[a][0] & sets[b][1]
    }


def closure(pairs: set[tuple[int, int]], n: int) -> np.ndarray:
    reach = np.zeros((n, n), bool)
    for a, b in sorted(pairs, key=lambda p: p[1]):
        reach[a, b] = True
    for k in range(n):
        reach |= np.outer(reach[:, k], reach[k])
    return reach


def test_random_edges_order_what_must_be_ordered_and_nothing_else() -> None:
    rng = default_rng()
    for _ in range(30):
        launches = [
            launch(rng.integers(0, 60, rng.integers(1, 4)).tolist(), rng.integers(0, 60, rng.integers(0, 3)).tolist())
            for _ in range(25)
        ]
        found = edges(launches)
        assert (closure(set(found), 25) == closure(brute_edges(launches), 25)).all()
        for pair in found:  # none follows from the others
            assert not closure(set(found) - {pair}, 25)[pair]


def test_overlaps() -> None:
    inside = overlaps([ByteRange(10, 20), ByteRange(30, 40), ByteRange(50, 50)])
    expected = {(0, 10): False, (0, 11): True, (19, 25): True, (20, 30): False, (22, 31): True, (45, 60): False}
    assert {r: inside(ByteRange(*r)) for r in expected} == expected


def network(rng: Generator) -> tuple[Callable, list[np.ndarray]]:
    def f(x, w, v):
        h = F.softmax(x @ w, 1)
        return (F.tanh(h @ v).sum(1) * (x * x).sum(1)).sum()

    shapes = (7, 6), (6, 5), (5, 9)
    return es.value_and_grad(f, argnums=(0, 1, 2)), [rng.standard_normal(s).astype(np.float32) for s in shapes]


def test_each_left_out_edge_is_noticed(card: Callable[..., Cuda]) -> None:
    made = card()
    f, arrays = network(default_rng())
    compiled = es.jit(f, device="cuda")
    want = compiled(*arrays)
    run = program_of(compiled)
    program = run.program
    assert isinstance(program, CudaProgram)
    device, whole = made.card.device, program.edges
    assert len(whole) > 10
    for left_out in whole:
        program.graph = ExecutableGraph(device, program.nodes, [e for e in whole if e != left_out])
        with pytest.raises(Fault):
            compiled(*arrays)
    program.graph = ExecutableGraph(device, program.nodes, whole)
    np.testing.assert_array_equal(compiled(*arrays)[0], want[0])


def test_fewer_turns_are_loaded_ahead_where_shared_memory_is_short(card: Callable[..., Cuda]) -> None:
    made = card()
    asked: list[int] = []

    def compiles(sources: list, capability: tuple) -> list[Binary]:
        asked.extend(s.stages for s in sources)
        return [Binary(b"", s.name, s.warps, (100 << 10) * s.stages + least, 0, 0) for s in sources]

    made._compiles, least = compiles, 0
    f, arrays = network(default_rng())
    es.jit(f, device="cuda")(*arrays)
    assert min(asked) <= 2 and all(x.code.binary.shared <= 227 << 10 for x in last_nodes(made))
    made._compiles, least = compiles, 200 << 10
    with pytest.raises(CompileError, match="bytes of shared memory"):
        es.jit(lambda x, w, v: F.tanh(x).sum(0) * w.T[:, :1].sum(), device="cuda")(*arrays)


def last_nodes(made: Cuda) -> list[LaunchNode]:
    """The launches of the last graph that the card has run."""
    return made.card.device.last.nodes
