"""Random loop nests of integers against the nest interpreter: folding, sharing, loops, conditions, unrolling."""

from __future__ import annotations

import random

import numpy as np
import pytest

from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue, vector
from tests.codegen.test_llvm_ops import run
from tests.nest_interp import NestRun

SIZE = 64


class Random:
    """Builds one nest. `known` holds a stack of the values that are in scope."""

    def __init__(self, seed: int):
        self.r = random.Random(seed)
        self.b = Builder(f"fuzz{seed}", 2)
        self.known: list[SSAValue] = [self.b.task]
        self.loops = 0

    def value(self, elem: str = "i64", lanes: int = 0) -> SSAValue:
        same = [v for v in self.known if v.type is vector(elem, lanes)]
        if same and self.r.random() < 0.7:
            return self.r.choice(same)
        if lanes and self.r.random() < 0.5:
            return self.b.splat(self.value(elem), lanes)
        return self.b.const(self.r.choice([0, 1, -1, 2, 3, 5, 8, -7, 64, 2**31 - 1]), elem, lanes)

    def index(self) -> SSAValue:
        return self.b.op("mod", self.value(), self.b.const(SIZE - 4))

    def step(self, depth: int) -> None:
        b, r = self.b, self.r
        kind = r.choice(["binary"] * 6 + ["unary", "select", "cast", "load", "store", "loop", "loop", "if", "masked"])
        elem, lanes = r.choice(["i64", "i64", "i32"]), r.choice([0, 0, 4])
        if kind == "binary":
            fn = r.choice(["add", "add", "sub", "mul", "mul", "min", "max", "floordiv", "mod"])
            x, y = self.value(elem, lanes), self.value(elem, lanes)
            if fn in ("floordiv", "mod"):
                if r.random() < 0.5:
                    y = b.const(r.choice([1, 2, 3, 8, -1, -3, 13]), elem, lanes)
                else:
                    y = b.op("add", b.op("mod", y, b.const(7, elem)), b.const(r.choice([1, -9]), elem))
            self.known.append(b.op(fn, x, y))
        elif kind == "unary":
            self.known.append(b.op(r.choice(["neg", "abs", "sign"]), self.value(elem, lanes)))
        elif kind == "select":
            condition = b.op(r.choice(["lt", "le", "eq", "ne"]), self.value(elem, lanes), self.value(elem, lanes))
            self.known.append(b.select(condition, self.value(elem, lanes), self.value(elem, lanes)))
        elif kind == "cast":
            self.known.append(b.cast(self.value(elem, lanes), "i32" if elem == "i64" else "i64"))
        elif kind == "load":
            self.known.append(b.load(b.buffers[r.randrange(2)], self.index(), "i64", lanes))
        elif kind == "store":
            b.store(self.value("i64", lanes), b.buffers[1], self.index())
        elif kind == "masked":
            mask = b.op(r.choice(["lt", "le"]), b.iota(4), b.splat(self.value(), 4))
            x = b.load(b.buffers[0], self.index(), "i64", 4, mask=mask, other=r.choice([None, self.value("i64", 4)]))
            b.store(x, b.buffers[1], self.index(), mask=mask)
        elif depth and kind == "if":
            condition = b.op(r.choice(["lt", "eq", "ne"]), self.value(), self.value())
            with b.if_(condition):
                self.block(depth - 1)
        elif depth and self.loops < 6:
            self.loop(depth)

    def loop(self, depth: int) -> None:
        b, r = self.b, self.r
        self.loops += 1
        init = [self.value(r.choice(["i64", "i32"]), r.choice([0, 4])) for _ in range(r.randrange(4))]
        lo, step, unroll = r.randrange(-3, 4), r.randrange(1, 4), 1
        if r.random() < 0.5:
            unroll = r.choice([1, 1, 2, 3])
            ragged = r.randrange(step) if unroll == 1 else 0
            low, high = b.const(lo), b.const(lo + step * unroll * r.randrange(4) - ragged)
        else:
            low, high = b.op("mod", self.value(), b.const(4)), b.op("mod", self.value(), b.const(9))
        with b.loop(low, high, step, init, unroll) as turn:
            scope = len(self.known)
            self.known += [turn.var, *turn.carried]
            self.block(depth - 1, keep=True)
            turn.next = [self.value(v.elem, v.type.lanes) for v in init]
            del self.known[scope:]
        self.known += turn.results

    def block(self, depth: int, keep: bool = False) -> None:
        scope = len(self.known)
        for _ in range(self.r.randrange(2, 9)):
            self.step(depth)
        if not keep:
            del self.known[scope:]

    def build(self):
        self.block(3, keep=True)
        for n, v in enumerate(self.known[-12:]):
            self.b.store(self.b.cast(v, "i64"), self.b.buffers[1], self.b.const(SIZE + 4 * n))
        return self.b


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(150))
def test_generated_code_does_what_the_nest_says(seed):
    b = Random(seed).build()
    data = np.random.default_rng(seed).integers(-9, 10, SIZE)
    for task in (0, 3):
        got, want = np.zeros(SIZE + 48, np.int64), np.zeros(SIZE + 48, np.int64)
        run(b, data, got, task=task)
        with np.errstate(all="ignore"):
            NestRun([data.view(np.uint8), want.view(np.uint8)], np.zeros(64, np.uint8)).call(b.finish(), task)
        np.testing.assert_array_equal(got, want)


def test_a_fault_in_folding_is_noticed(monkeypatch):
    """The comparison above is worth something: with sums of constants off by one, some nest disagrees."""
    from einsmith.codegen.llvm import emitter

    real = emitter._Emitter.add_constant
    monkeypatch.setattr(emitter._Emitter, "add_constant", lambda self, x, c, elem: real(self, x, c + 1, elem))
    with pytest.raises(AssertionError):
        for seed in range(40):
            test_generated_code_does_what_the_nest_says(seed)
