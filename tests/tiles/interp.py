"""An interpreter of the tile IR on NumPy. It is strict: what is not defined, and what programs do to one element in an
order that nobody knows, raises a Fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from einsmith.codegen.ssa import Loop, Op, SSAValue, operations
from einsmith.gpu.tiles.ir import TileFunction, TileParameter
from tests.tiles.memory import NUMPY, Fault, Memory, product, rounded_to_bf16
from tests.tiles.order import Loads, another_lane, gathered

Find = Callable[[TileParameter], Memory]
"""The memory behind a parameter."""


def run(functions: Sequence[TileFunction], find: Find, order: Callable[[int], Iterable[int]] = range) -> None:
    """All programs of all functions. order: that of a function's programs, by how many there are, between any two grid
    barriers."""
    for f in functions:
        memories = [find(p) for p in f.parameters]
        for m in memories:
            m.begin()
        met = gathered(f)
        if not f.cooperative:
            with np.errstate(all="ignore"):
                for n in order(f.programs):
                    for _ in _Program(f, memories, n, met).run():
                        raise Fault(f"{f.name}: a program that is not resident with all others waits for them")
            continue
        running = [_Program(f, memories, n, met).run() for n in range(f.programs)]
        while running:
            with np.errstate(all="ignore"):
                goes_on = [next(running[n], False) for n in order(f.programs)]
            if not any(goes_on):
                break
            if not all(goes_on):
                raise Fault(f"{f.name}: programs wait at a grid barrier for others that have ended")
            for m in memories:
                m.meet()


def _whole(function: Callable, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A quotient or remainder of integers that is towards zero."""
    if (b == 0).any() or ((b == -1) & (a == np.iinfo(a.dtype).min)).any():
        raise Fault("a division that is not defined")
    q = np.floor_divide(np.abs(a.astype(object)), np.abs(b.astype(object))) if a.dtype == np.int64 else None
    if q is None:
        wide, by = a.astype(np.int64), b.astype(np.int64)
        q = np.abs(wide) // np.abs(by)
    q = q * np.sign(a.astype(np.int64)) * np.sign(b.astype(np.int64))
    return (q if function is np.floor_divide else a - q * b).astype(a.dtype)


def _rem(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.fmod(a, b) if a.dtype.kind == "f" else _whole(np.mod, a, b)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a*b + c by way of a wider type; of f64 the product may lose what 64 bits do not hold."""
    wide = np.float64 if a.dtype == np.float32 else np.longdouble
    return (a.astype(wide) * b + c).astype(a.dtype)


_MATH: dict[str, Callable] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "abs": np.abs, "not": np.logical_not, "floor": np.floor, "sqrt": np.sqrt, "sin": np.sin,
    "cos": np.cos, "pow": lambda x, y: np.power(x, y + np.zeros_like(x)), "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
    "quot": partial(_whole, np.floor_divide), "rem": _rem, "select": np.where, "fma": fused,
}  # fmt: skip


class _Ended(Exception):
    """A program ends before its last instruction."""


class _Program:
    """met: the loads that each store has the lanes of (`order.gathered`)."""

    def __init__(self, f: TileFunction, memories: Sequence[Memory], number: int, met: dict[int, Loads]):
        self.f, self.memories, self.number, self.met = f, memories, number, met
        self.stored = {id(memories[x.memory]) for x in operations(f.body) if x.name == "store" and x.memory is not None}
        self.loaded: list[tuple[Op, Memory, np.ndarray, np.ndarray]] = []  # since the last barrier
        self.epoch = 0
        self.values: dict[SSAValue, np.ndarray] = {
            x.results[0]: np.asarray(x.attrs[0], NUMPY[x.results[0].elem]) for x in f.constants
        }
        for x in f.constants:
            if x.results[0].elem == "bf16":
                self.values[x.results[0]] = rounded_to_bf16(self.values[x.results[0]])

    def run(self) -> Iterator[bool]:
        """Yields True at each grid barrier."""
        with suppress(_Ended):
            yield from self.block(self.f.body)

    def block(self, body: Sequence[Op | Loop]) -> Iterator[bool]:
        for x in body:
            if isinstance(x, Loop):
                yield from self.loop(x)
                continue
            if x.name == "grid_barrier":
                assert x.memory is not None
                self.memories[x.memory].atomic_add(np.zeros(1, int), np.zeros(1, np.int32))
                self.loaded.clear()
                yield True
                continue
            results = self.operation(x)
            for v, result in zip(x.results, results, strict=True):
                assert result.shape == v.shape and result.dtype == NUMPY[v.elem], (x.name, result.dtype, v.type)
                self.values[v] = result

    def loop(self, x: Loop) -> Iterator[bool]:
        carried = [self.values[v] for v in x.init]
        for n in range(int(self.values[x.lo]), int(self.values[x.hi]), x.step):
            self.values[x.var] = np.asarray(n, NUMPY[x.var.elem])
            self.values.update(zip(x.carried, carried, strict=True))
            yield from self.block(x.body)
            carried = [self.values[v] for v in x.next]
        self.values.update(zip(x.results, carried, strict=True))

    def operation(self, x: Op) -> Sequence[np.ndarray]:
        args: list[Any] = [None if v is None else self.values[v] for v in x.args]
        if x.name in ("load", "store"):
            return self.access(x, args)
        if x.name == "barrier":
            self.epoch += 1
            self.loaded.clear()
            return ()
        if x.name == "end_if":
            if args[0]:
                raise _Ended
            return ()
        if x.name == "reduce":
            return reduced(x.attrs[0], x.attrs[1], args)
        (out,) = x.results
        elem = NUMPY[out.elem]
        if x.name in _MATH:
            return (np.asarray(_MATH[x.name](*args), elem),)
        return (np.asarray(getattr(self, x.name)(x, *args), elem),)

    def program(self, x: Op) -> int:
        return self.number

    def arange(self, x: Op) -> np.ndarray:
        return np.arange(x.results[0].shape[0])

    def expand(self, x: Op, a: np.ndarray) -> np.ndarray:
        return np.expand_dims(a, x.attrs[0])

    def broadcast(self, x: Op, a: np.ndarray) -> np.ndarray:
        return np.broadcast_to(a, x.results[0].shape)

    def shl(self, x: Op, a: np.ndarray) -> np.ndarray:
        return a << a.dtype.type(x.attrs[0])

    def sar(self, x: Op, a: np.ndarray) -> np.ndarray:
        return a >> a.dtype.type(x.attrs[0])

    def shr(self, x: Op, a: np.ndarray) -> np.ndarray:
        unsigned = np.dtype(f"u{a.dtype.name}")
        return (a.view(unsigned) >> unsigned.type(x.attrs[0])).view(a.dtype)

    def cast(self, x: Op, a: np.ndarray) -> np.ndarray:
        out = x.results[0].elem
        if out == "bf16":
            return rounded_to_bf16(a)
        if a.dtype.kind == "f" and np.dtype(NUMPY[out]).kind in "iu":
            ends = np.iinfo(NUMPY[out])
            if not ((np.trunc(a) >= float(ends.min)) & (np.trunc(a) < float(ends.max) + 1)).all():
                raise Fault(f"a float that is no {out}")
        return a.astype(NUMPY[out])

    def bitcast(self, x: Op, a: np.ndarray) -> np.ndarray:
        return a.view(NUMPY[x.results[0].elem])

    def dot(self, x: Op, a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
        return product(a, b, total, x.attrs[0])

    def access(self, x: Op, args: Sequence[Any]) -> Sequence[np.ndarray]:
        assert x.memory is not None
        memory = self.memories[x.memory]
        where, mask = args[0], args[1 if x.name == "load" else 2]
        on = np.ones(where.shape, bool) if mask is None else mask
        at = where[on]
        if x.name == "load":
            out = np.full(where.shape, 0 if mask is None else args[2], NUMPY[x.results[0].elem])
            out[on] = memory.load(at, self.number, self.epoch)
            if id(memory) in self.stored:
                self.loaded.append((x, memory, where, on))
            return (out,)
        self.overwrite(x, memory, where, on)
        memory.store(at, args[1][on], self.number, self.epoch)
        return ()

    def overwrite(self, x: Op, memory: Memory, where: np.ndarray, on: np.ndarray) -> None:
        """Raises a Fault where another lane may have yet to load what a store touches."""
        for load, of, read, reading in self.loaded:
            if of is memory:
                other = another_lane(read, reading, where, on)
                if other or (other is None and id(load) not in self.met[id(x)]):
                    raise Fault(f"{memory.what}: program {self.number} writes what another lane of it reads")


def reduced(combiner: str, axis: int, tiles: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Tiles combined along a dimension."""
    x = tiles[0]
    if combiner in ("sum", "prod"):
        return (getattr(np, combiner)(x, axis=axis, dtype=x.dtype),)
    if combiner in ("max", "min"):
        return (getattr(np, combiner)(x, axis=axis),)
    places = tiles[1]
    best = getattr(np, combiner[3:])(x, axis=axis, keepdims=True)
    first = (x == best) | (np.isnan(best) & np.isnan(x) if x.dtype.kind == "f" else False)
    place = np.where(first, places, np.iinfo(np.int32).max).min(axis=axis)
    return np.squeeze(best, axis), place.astype(np.int32)
