"""Special functions side by side: the order of a block, and that results are bit for bit those of one at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from einsmith.codegen.llvm import lockstep
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Builder
from tests.codegen.test_llvm_ops import TARGET, run

SIZE, LANES = 64, 8


def block(seed: int) -> Builder:
    """Loads, functions and stores that overlap, on one buffer."""
    r, b = random.Random(seed), Builder(f"lockstep{seed}", 1)
    known = [b.const(0.5, "f32", LANES)]
    for _ in range(30):
        kind = r.choice(["load", "load", "function", "function", "function", "add", "store"])
        if kind == "load":
            known.append(b.load(b.buffers[0], b.const(r.randrange(SIZE - LANES)), "f32", LANES))
        elif kind == "function":
            known.append(b.op(r.choice(["erf", "tanh", "exp", "sin"]), r.choice(known[-4:])))
        elif kind == "add":
            known.append(b.mul(b.add(r.choice(known), r.choice(known)), b.const(0.3, "f32", LANES)))
        else:
            b.store(r.choice(known), b.buffers[0], b.const(r.randrange(SIZE - LANES)))
    for x in known:
        b.store(x, b.buffers[0], b.const(r.randrange(SIZE - LANES)))
    return b


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", range(12))
def test_any_block_computes_what_it_did(seed, monkeypatch):
    start = np.random.default_rng(seed).uniform(-1, 1, SIZE).astype(np.float32)
    together, alone = start.copy(), start.copy()
    run(block(seed), together)
    monkeypatch.setattr(lockstep, "group_instructions", lambda run, width: ([op] for op in run))
    b = block(seed)
    b.name += "alone"
    run(b, alone)
    assert np.isfinite(alone).all()
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("width", [2, 4])
def test_every_instruction_follows_its_arguments_once(seed, width):
    ops = block(seed).body
    found = list(lockstep.group_instructions(ops, width))
    order = [op for group in found for op in group]
    assert sorted(map(id, order)) == sorted(map(id, ops))
    assert max(map(len, found)) <= width
    made = {op.result.id for op in ops if op.results}
    done: set[int] = set()
    for group in found:
        assert all(a.id in done for op in group for a in op.args if a is not None and a.id in made)
        done |= {op.result.id for op in group if op.results}
    assert [op for op in order if op.name == "store"] == [op for op in ops if op.name == "store"]
    for n, op in enumerate(ops):
        if op.name == "load":  # no later than before, and after the same stores
            stores = [x for x in ops[:n] if x.name == "store"]
            assert [x for x in order[: order.index(op)] if x.name == "store"] == stores


def test_chains_alternate():
    b = Builder("four", 2)
    xs = [b.load(b.buffers[0], b.const(LANES * n), "f32", LANES) for n in range(4)]
    ys = [b.op("erf", x) for x in xs]
    for n, y in enumerate(ys):
        b.store(y, b.buffers[1], b.const(LANES * n))
    lines = emit_module([b.finish()], TARGET).splitlines()
    steps = [n for n, line in enumerate(lines) if "llvm.fabs" in line and "call" in line]
    width = 2 if TARGET.triple.startswith("x86_64") and TARGET.vector_bytes < 64 else 4
    assert [b - a for a, b in zip(steps, steps[1:width], strict=False)] == [1] * (width - 1)


def test_a_function_of_another_waits():
    b = Builder("nested", 1)
    x = b.load(b.buffers[0], b.const(0), "f32", LANES)
    y = b.op("erf", x)
    z = b.op("exp", b.add(y, x))
    b.store(z, b.buffers[0], b.const(0))
    assert all(len(g) == 1 for g in lockstep.group_instructions(b.body, 4))
