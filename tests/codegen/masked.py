"""Masked loads, stores, gathers and scatters of every type, lane count and mask, for the sweep of test_masked.

A case is one function: a row for each mask, so that many masks cost one call. Stores go to rows with guard bytes on
both sides; loads come from pages of their own between pages that cannot be touched, with the last allowed lane at the
page's end, or the first at its beginning. Numbers are small integers where they are computed with, so that
floats are exact.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from einsmith.base.dtypes import dtype_of
from einsmith.codegen.cache.native import compile_text
from einsmith.codegen.llvm.emitter import emit_module
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue

NUMPY = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16, "i32": np.int32,
    "i64": np.int64, "i1": np.bool_,
}  # fmt: skip
ELEMS = tuple(NUMPY)
LANES = (0, 2, 4, 8, 16, 32, 64)
GUARD = 64
PAGE = mmap.PAGESIZE
FAR = 2**28
"""An offset of lanes that are masked off."""
_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@dataclass
class Case:
    """`run(call)` calls the compiled function and compares; `call` takes arrays or addresses."""

    builder: Builder
    run: Callable[[Callable[..., None]], None]
    name: str = field(default="")


def masks_of(rng: np.random.Generator, lanes: int, full: bool) -> list[np.ndarray]:
    """Prefixes, single lanes and random ones; all of the first two kinds, if `full`."""
    n = max(lanes, 1)
    prefixes = range(n + 1) if full else sorted({0, 1, min(n // 2 + 1, n), n - 1, n})
    singles = range(1, n) if full else sorted({x for x in (n // 2, n - 1) if 0 < x < n})
    out = [np.arange(n) < x for x in prefixes] + [np.arange(n) == x for x in singles]
    return out + [rng.integers(0, 2, n).astype(bool) for _ in range(4 if full else 1)]


def mask_value(b: Builder, mask: np.ndarray, lanes: int, kind: str, table: SSAValue, row: int) -> SSAValue:
    """A mask as a literal, a comparison of known numbers, or loaded."""
    if kind == "variable":
        return b.load(table, b.const(row * max(lanes, 1)), "i1", lanes)
    if not lanes:
        return b.const(bool(mask[0]), "i1")
    live = int(mask.sum())
    if kind == "compared":
        low = b.op("lt", b.iota(lanes, "i32"), b.const(int(mask.argmax()) + live, "i32", lanes))
        if mask[:live].all():
            return low
        if mask[mask.argmax() :][:live].all():
            return b.op("and", low, b.op("not", b.op("lt", b.iota(lanes, "i32"), b.const(int(mask.argmax()), "i32"))))
    return b.literal([bool(x) for x in mask], "i1")


def _kind(row: int) -> str:
    return ("literal", "compared")[row % 2]


def _small(rng: np.random.Generator, elem: str, n: int) -> np.ndarray:
    return rng.integers(0, 2, n).astype(bool) if elem == "i1" else rng.integers(-5, 6, n).astype(NUMPY[elem])


def _numbers(rng: np.random.Generator, elem: str, n: int) -> np.ndarray:
    """Integers of which every byte counts."""
    if elem in ("i8", "i16", "i32", "i64"):
        limits = np.iinfo(NUMPY[elem])
        return rng.integers(limits.min, limits.max, n, NUMPY[elem], endpoint=True)
    return _small(rng, elem, n) if elem == "i1" else (rng.standard_normal(n) * 30).astype(NUMPY[elem])


def cast(x: np.ndarray, elem: str) -> np.ndarray:
    if elem == "f16":
        return dtype_of(elem).narrow(x)
    return x != 0 if elem == "i1" else x.astype(NUMPY[elem])


def stores(rng: np.random.Generator, of: str, to: str, lanes: int, variable: bool, full: bool, scatter: bool) -> Case:
    """Numbers of one type, stored as another."""
    masks, n, b = masks_of(rng, lanes, full), max(lanes, 1), Builder("k", 4)
    size = np.dtype(NUMPY[to]).itemsize
    stride = n + 2 * GUARD // size
    source = _numbers(rng, of, n * len(masks))
    out = rng.integers(0, 256, stride * len(masks) * size, np.uint8)
    want = out.copy().view(NUMPY[to] if to != "i1" else np.uint8)
    places = np.zeros((len(masks), n), np.int64)
    for row, mask in enumerate(masks):
        m = mask_value(b, mask, lanes, "variable" if variable else _kind(row), b.buffers[1], row)
        x = b.cast(b.load(b.buffers[0], b.const(row * n), of, lanes), to)
        at = row * stride + GUARD // size
        live, value = np.flatnonzero(mask), cast(source[row * n :][:n], to)
        if scatter:
            to_places = at + rng.permutation(n)
            places[row] = np.where(mask, to_places, FAR)
            b.scatter(x, b.buffers[3], b.load(b.buffers[2], b.const(row * n), "i64", lanes), m)
            want[to_places[live]] = value[live]
        else:
            b.store(x, b.buffers[3], b.const(at), m)
            want[at + live] = value[live]

    def run(call: Callable[..., None]) -> None:
        call(source, np.array(masks), places, out)
        np.testing.assert_array_equal(out, want.view(np.uint8))

    return Case(b, run, f"{'scatter' if scatter else 'store'} {of}->{to} x{lanes} {'variable' if variable else ''}")


Form = Callable[[Builder, SSAValue, SSAValue, SSAValue, SSAValue], SSAValue]
FORMS: dict[str, tuple[Form, Callable[..., np.ndarray]]] = {
    "x": (lambda b, x, m, w, v: x, lambda x, m, w, v: x),
    "x*w": (lambda b, x, m, w, v: b.mul(x, w), lambda x, m, w, v: x * w),
    "x*w+0": (lambda b, x, m, w, v: b.fma(x, w, b.const(0, x.type.elem)), lambda x, m, w, v: x * w),
    "x*1+w": (lambda b, x, m, w, v: b.fma(x, b.const(1, x.type.elem), w), lambda x, m, w, v: x + w),
    "x*0+w": (lambda b, x, m, w, v: b.fma(x, b.const(0, x.type.elem), w), lambda x, m, w, v: w),
    "x+0": (lambda b, x, m, w, v: b.add(x, b.const(0, x.type.elem)), lambda x, m, w, v: x),
    "m ? x*w+v : 0": (
        lambda b, x, m, w, v: b.op("where", m, b.fma(x, w, v), b.const(0, x.type.elem, x.type.lanes)),
        lambda x, m, w, v: np.where(m, x * w + v, 0).astype(x.dtype)),
    "m ? x*w+0 : 0": (
        lambda b, x, m, w, v: b.op("where", m, b.fma(x, w, b.const(0, x.type.elem)),
                                   b.const(0, x.type.elem, x.type.lanes)),
        lambda x, m, w, v: np.where(m, x * w, 0).astype(x.dtype)),
    "m ? v-x*w : 0": (
        lambda b, x, m, w, v: b.op("where", m, b.fma(b.op("neg", x), w, v), b.const(0, x.type.elem, x.type.lanes)),
        lambda x, m, w, v: np.where(m, v - x * w, 0).astype(x.dtype)),
    "m ? w*v+x : 0": (
        lambda b, x, m, w, v: b.op("where", m, b.fma(w, v, x), b.const(0, x.type.elem, x.type.lanes)),
        lambda x, m, w, v: np.where(m, w * v + x, 0).astype(x.dtype)),
    "m ? x*w+v : v": (lambda b, x, m, w, v: b.op("where", m, b.fma(x, w, v), v),
                      lambda x, m, w, v: np.where(m, x * w + v, v)),
    "m ? x+w : v": (lambda b, x, m, w, v: b.op("where", m, b.add(x, w), v), lambda x, m, w, v: np.where(m, x + w, v)),
    "max(x,w)": (lambda b, x, m, w, v: b.op("max", x, w), lambda x, m, w, v: np.maximum(x, w)),
}  # fmt: skip
"""What is made of a masked load x, its mask and two vectors that are used again."""


def loads(
    rng: np.random.Generator,
    of: str,
    to: str,
    lanes: int,
    variable: bool,
    full: bool,
    form: str,
    other: str,
    gather: bool,
) -> Case:
    """Numbers loaded as one type and cast to another, in an expression of that type. `other`: of lanes that are masked
    off: "none", "zero", "one", or "vector"."""
    masks, n, b = masks_of(rng, lanes, full), max(lanes, 1), Builder("k", 6)
    size = np.dtype(NUMPY[of]).itemsize
    rows = [(mask, last) for i, mask in enumerate(masks) for last in ((True, False) if full else (i % 2 == 0,))]
    pages = [_small(rng, of, PAGE // size) for _ in rows]
    w, v, rest = (_small(rng, e, n) for e in (to, to, of))
    table = np.array([mask for mask, _ in rows])
    want, places = np.zeros((len(rows) + 2, n), NUMPY[to]), np.zeros((len(rows), n), np.int64)
    vw, vv = (b.load(b.buffers[1], b.const(k * n), to, lanes) for k in (0, 1))
    make, reference = FORMS[form]
    for row, (mask, last) in enumerate(rows):
        m = mask_value(b, mask, lanes, "variable" if variable else _kind(row // 2), b.buffers[2], row)
        live, page = np.flatnonzero(mask), (2 * row + 1) * PAGE // size
        at = page - n if not live.size else page + PAGE // size - 1 - live[-1] if last else page - live[0]
        x = np.zeros(n, NUMPY[of])
        if gather:
            where = rng.integers(0, PAGE // size, n)
            places[row] = np.where(mask, page + where, 2 * row * PAGE // size)
            x[live] = pages[row][where[live]]
            value = b.gather(b.buffers[0], b.load(b.buffers[3], b.const(row * n), "i64", lanes), of, m)
        else:
            held = {
                "none": None,
                "zero": b.const(0, of, lanes),
                "one": b.const(1, of, lanes),
                "vector": b.load(b.buffers[4], b.const(0), of, lanes),
            }[other]
            x[:] = {"none": 0, "zero": 0, "one": 1, "vector": rest}[other]
            x[live] = pages[row][(at + live) - page]
            value = b.load(b.buffers[0], b.const(int(at)), of, lanes, m, held)
        result = make(b, b.cast(value, to), m, vw, vv)
        b.store(result, b.buffers[5], b.const(row * n))
        with np.errstate(all="ignore"):
            want[row] = reference(cast(x, to), mask, w, v)
    for k, value in enumerate((vw, vv)):
        b.store(value, b.buffers[5], b.const((len(rows) + k) * n))
    want[len(rows)], want[len(rows) + 1] = w, v

    def run(call: Callable[..., None]) -> None:
        out = np.zeros(want.shape, NUMPY[to])
        call(arena(pages), np.array([w, v]), table, places, rest, out)
        np.testing.assert_array_equal(out, want)

    what = "gather" if gather else f"load, else {other}"
    return Case(b, run, f"{what} {of}->{to} x{lanes} {form} {'variable' if variable else ''}")


def kept(rng: np.random.Generator, elem: str, lanes: int, how: str, store: bool) -> Case:
    """More masks than there are registers for, made before a loop and used twice in each of its turns: by a load or a
    store, and by a choice. `how`: "eq" or "ne", comparisons of bytes; "order", of floats; "loaded", as it is."""
    count, turns, n, b = 12, 2, max(lanes, 1), Builder("k", 3)
    size = np.dtype(NUMPY[elem]).itemsize
    masks = np.array([np.arange(n) < live for live in rng.integers(1, n + 1, count)])
    kind = {"eq": "i8", "ne": "i8", "order": "f32", "loaded": "i1"}[how]
    table = (masks if how in ("ne", "loaded") else ~masks).astype(NUMPY[kind])
    held = []
    for k in range(count):
        x = b.load(b.buffers[1], b.const(k * n), kind, lanes)
        held.append(
            x if how == "loaded" else b.op("lt" if how == "order" else how, x, b.const(how == "order", kind, lanes))
        )
    pages = [_small(rng, elem, PAGE // size) for _ in range(count * turns)]
    stride, page = n + GUARD // size, PAGE // size
    out = np.full((turns, count, stride), 99 if elem != "i1" else 1, NUMPY[elem])
    want = out.copy()
    with b.loop(0, turns) as loop:
        for k, m in enumerate(held):
            live = int(masks[k].sum())
            at = (2 * k + 2) * page - (n if store else live)
            where = b.add(b.const(at), b.mul(loop.var, b.const(2 * count * page)))
            to = b.add(b.const(k * stride), b.mul(loop.var, b.const(count * stride)))
            x = b.load(b.buffers[0], where, elem, lanes, None if store else m)
            b.store(b.op("where", m, x, b.const(0, elem, lanes)), b.buffers[2], to, m if store else None)
            for turn in range(turns):
                found = pages[turn * count + k][-n if store else -live :][:live]
                want[turn, k, :live] = found
                want[turn, k, live:n] = want[turn, k, live:n] if store else 0

    def run(call: Callable[..., None]) -> None:
        call(arena(pages), table, out)
        np.testing.assert_array_equal(out, want)

    return Case(b, run, f"{'stores' if store else 'loads'} under many masks {elem} x{lanes} {how}")


@cache
def _arena(pages: int) -> Any:
    """Pages, each between two that cannot be touched."""
    memory = mmap.mmap(-1, (2 * pages + 1) * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for n in range(0, 2 * pages + 1, 2):
        if protect(base + n * PAGE, PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return memory, base


def arena(pages: Sequence[np.ndarray]) -> int:
    """The address of memory that holds these pages at odd places."""
    memory, base = _arena(1 << (len(pages) - 1).bit_length())
    for n, x in enumerate(pages):
        ctypes.memmove(base + (2 * n + 1) * PAGE, x.ctypes.data, PAGE)
    return base


def run_all(cases: Sequence[Case], target: Any) -> Iterator[str]:
    """Compiles all in one module and runs each; yields what failed."""
    functions = []
    for n, x in enumerate(cases):
        x.builder.name = f"case{n}"
        functions.append(x.builder.finish())
    names = [f.name for f in functions]
    addresses = compile_text(emit_module(functions, target), names, target).addresses
    scratch = np.zeros(64, np.uint8)
    for x, name in zip(cases, names, strict=True):

        def call(*buffers: np.ndarray | int, name: str = name) -> None:
            held = [a if isinstance(a, int) else a.ctypes.data for a in buffers]
            _SIGNATURE(addresses[name])(np.array(held, np.uint64).ctypes.data, scratch.ctypes.data, 0)

        try:
            x.run(call)
        except AssertionError as e:
            yield f"{x.name}: {str(e).strip().splitlines()[-1][:100]}"
